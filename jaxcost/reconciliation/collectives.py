"""Transfers between devices, by kind, mesh axes, bytes and executions.

Compilers join several arrays into one collective; each array counts as a transfer of its own on both sides, so joining
explains nothing and needs no explanation. A transfer of the prediction is first matched with an array that has the same
kind, axes, bytes, type and executions. What is left over may have been written in another form, by rules that each look
for their own evidence:

- wider type: the instruction sends the same elements in a wider type;
- reduced whole: an all-reduce of which named instructions keep this device's part, in place of a reduce-scatter;
- at once: the all-reduce over all axes, where a scatter over one and a sum over the others were declared;
- one sum each: the partial products of one gradient reduced by themselves, one instruction for each named product;
- out of the loop: one collective of the stacked layers in place of one a layer;
- hoisted: a gather of what does not change between microbatches, once for all of them;
- summed first: a gradient reduced after the last microbatch, where every microbatch was declared;
- axis by axis: a sum over several mesh axes as one instruction per part of them;
- gathered by a sum: the shards, written into zeros, are summed;
- padded: a reduce-scatter of an array that the program padded, and a permutation of the rows at the border;
- passed around: a gather, or a reduce-scatter, as permutations of one shard;
- replay gone: no product is left under replay in that group of layers.

Stages of a pipeline have rules of their own (`pipeline`).

An explanation moves the declared payload out of its row and the payload of the new form into the row of what was found:
both follow from the declared elements, never from the residual. What no rule matches stays open, and what nobody
declared is a finding with its source line. Automatic partitioning is not predicted: its rows are unmeasured.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from typing import Any

from jaxcost.contracts.dtypes import BITS, payload_bytes
from jaxcost.observation.observed import Observed
from jaxcost.prediction.ledgers import Prediction
from jaxcost.prediction.rows import Row as LedgerRow
from jaxcost.reconciliation import pipeline
from jaxcost.reconciliation.rows import Explanation, Finding, Row
from jaxcost.reconciliation.transfer_forms import (
    BACK,
    Change,
    Key,
    Nearness,
    Need,
    Seen,
    anywhere,
    as_evidence,
    axis_pair,
    changed,
    likeness,
    listed,
    related,
    same_group,
    same_pass,
    same_place,
    same_scope,
    shows,
)

TYPES = {"f64": "fp64", "f32": "fp32", "bf16": "bf16", "f16": "fp16", "s32": "int32", "u32": "uint32", "s64": "int64"}
AUTO = "what the automatic partitioner inserts is not predicted; the ledger is that of explicit sharding"
SLICES = "the program of one of several slices, with host transfers between them: compared by nobody in this version"
UNKNOWN_TIMES = "how often it runs is unknown"


class Transfers:
    """The two witnesses' transfers of one case: which of the one is which of the other, and what explains the rest."""

    def __init__(self, prediction: Prediction, observed: Observed):
        self.prediction, self.observed = prediction, observed
        self.ledger = prediction.ledgers["collectives"]
        self.section: Mapping[str, Any] = observed.data["collectives"]
        self.known = self.ledger.totals["payload_bytes"] is not None
        self.auto = prediction.case.execution.sharding == "auto" and prediction.case.execution.device_count > 1
        self.slices = int(observed.data["target"].get("slice_count") or 1)
        self.needs = list(self._needs()) if self.known else []
        self.seen = list(self._seen())
        self.moved: dict[Key, list[Explanation]] = {}
        if self.known and not self.auto and self.slices == 1:
            self._match()

    # -- both sides ---------------------------------------------------------------------------------------------------

    def _needs(self) -> Iterator[Need]:
        unrolled = self.prediction.case.execution.layers == "unrolled"
        for row in self.ledger.rows:
            copies = row.fields["layers"] if unrolled and row.scope.startswith("group") else 1
            yield from (_need(row, copies) for _ in range(copies))

    def _seen(self) -> Iterator[Seen]:
        for row in self.section["rows"]:
            if row["executions"] is None:
                continue
            axes = "" if row["axes"] is None else axes_text(row["axes"])
            parts = row.get("parts") or [_whole(row)]
            for part in parts:
                size = part["result_bytes"] if row["kind"] in ("all-gather", "recv") else part["operand_bytes"]
                dtype = TYPES.get(part["dtype"], part["dtype"])
                bits = BITS.get(dtype, 8)
                yield Seen(
                    Key(row["kind"], axes, size, row["executions"]), dtype, size * 8 // bits,
                    part["scope"] or row["scope"], part["phase"], part["argument"], row["name"], row["form"],
                    tuple(part["sliced"]), row["source"], part.get("unpadded_elements", 0),
                )  # fmt: skip

    # -- matching -----------------------------------------------------------------------------------------------------

    def _match(self) -> None:
        left = pipeline.take(self.prediction, self.observed, self.needs, self.seen, self._add, _need)
        # Of equal transfers those that bear the same name belong together, or a missing one would be sought elsewhere.
        for near in (same_place, same_scope, related, anywhere):
            left = [need for need in left if not self._take_exact(need, near)]
        left = self._joint(left)
        special = (self._take_ring, self._take_padded, self._take_axes, self._take_changed)
        left = [need for need in left if not any(take(need) for take in special)]
        # Equal arrays made once bear the name of one component of the layer.
        left = [need for need in left if not self._take_changed(need, near=same_group)]
        for need in left:
            self._absent(need)

    def _joint(self, needs: list[Need]) -> list[Need]:
        """Match a reduce-scatter over one axis and the sum of its shard over others with one all-reduce over all."""
        left = list(needs)
        for need in [need for need in needs if need.key.kind == "reduce-scatter"]:
            rest = next((n for n in left if n.object == need.object and n.key.kind == "all-reduce"), None)
            found = None if rest is None else self._over_all(need, rest)
            if rest is None or found is None:
                continue
            found.taken = True
            left.remove(need)
            left.remove(rest)
            for part in (need, rest):
                self._add(part.key, "at once", -part.key.total, as_evidence(found, need))
            whole = need.key.total
            self._add(found.key, "at once", whole, as_evidence(found, need))
            self._add(found.key, "wider type", found.key.total - whole, as_evidence(found, need))
        return left

    def _over_all(self, need: Need, rest: Need) -> Seen | None:
        axes = {*need.key.axes.split(","), *rest.key.axes.split(",")}
        for seen in self.seen:
            same = not seen.taken and seen.key.kind == "all-reduce" and set(seen.key.axes.split(",")) == axes
            size = (seen.elements, seen.key.times) == (need.elements, need.key.times)
            if same and size and seen.sliced and seen.dtype in (need.dtype, "fp32") and related(need, seen):
                return seen
        return None

    def _take_exact(self, need: Need, near: Nearness) -> bool:
        split = Change("one sum each", pieces=len(need.terms))
        if len(need.terms) > 1 and self._find(need, (split,), related):
            return False
        for seen in self.seen:
            if not seen.taken and seen.key == need.key and seen.dtype == need.dtype and near(need, seen):
                seen.taken = True
                return True
        return False

    def _take_changed(self, need: Need, near: Nearness | None = None) -> bool:
        # Parts by name before anything that merely has the right size.
        for changes in sorted(
            self._ways(need), key=lambda way: ("one sum each" not in {c.name for c in way}, len(way))
        ):
            found = self._find(need, changes, near or related)
            if found:
                for seen in found:
                    seen.taken = True
                self._explain(need, changes, found)
                return True
        return False

    def _ways(self, need: Need) -> list[tuple[Change, ...]]:
        """All combinations of changes that a transfer may have gone through; the first is none."""
        optional: list[list[Change]] = []
        if need.key.kind == "reduce-scatter":
            optional.append([Change("reduced whole", kind="all-reduce")])
        if need.key.kind == "all-gather":
            optional.append([Change("gathered by a sum", kind="all-reduce")])
        if len(need.terms) > 1:
            optional.append([Change("one sum each", pieces=len(need.terms))])
        if need.layers > 1:
            optional.append([Change("out of the loop", divided=need.layers)])
        if need.key.kind == "all-gather" and need.microbatches > 1 and need.layers == 1:
            optional.append([Change("hoisted", fewer=need.microbatches)])
        if need.key.kind == "all-reduce" and need.object.startswith("d ") and need.key.times % need.microbatches == 0:
            optional.append([Change("summed first", fewer=need.microbatches)] if need.microbatches > 1 else [])
        if BITS[need.dtype] < BITS["fp32"]:
            optional.append([Change("wider type", dtype="fp32")])
        found = []
        for chosen in product(*[[None, *changes] for changes in optional]):
            kept = tuple(change for change in chosen if change is not None)
            if kept:
                found.append(kept)
        return found

    def _find(self, need: Need, changes: tuple[Change, ...], near: Nearness) -> list[Seen]:
        """Return the arrays of a changed form, all of them or none."""
        key, dtype, elements = changed(need, changes)
        pieces = 1
        for change in changes:
            pieces *= change.pieces
        names = {change.name for change in changes}
        free = [
            s
            for s in self.seen
            if not s.taken and s.key == key and s.dtype == dtype and s.elements == elements and shows(s, names)
        ]
        if "one sum each" in names:
            found = []
            for term in need.terms:
                match = next((s for s in free if s.scope == term and s not in found), None)
                if match is None:
                    return []
                found.append(match)
            return found
        related = sorted((s for s in free if near(need, s)), key=lambda s: likeness(need, s), reverse=True)
        return related[:pieces] if len(related) >= pieces else []

    def _explain(self, need: Need, changes: tuple[Change, ...], found: list[Seen]) -> None:
        """Move the declared payload to the rows of what was found, change by change."""
        evidence = "; ".join(dict.fromkeys(as_evidence(seen, need) for seen in found))
        self._add(need.key, changes[0].name, -need.key.total, evidence)
        before = 0
        for index in range(len(changes)):
            key, _, _ = changed(need, changes[: index + 1])
            pieces = 1
            for change in changes[: index + 1]:
                pieces *= change.pieces
            after = key.total * pieces
            self._add(found[0].key, changes[index].name, after - before, evidence)
            before = after

    def _take_ring(self, need: Need) -> bool:
        """Match a gather or a scatter with permutations of one shard: n - 1 of them, or as a loop around products up to
        two more (both directions at once, and the shard that is rotated into place).
        """
        n = need.participants
        if need.key.kind not in ("all-gather", "reduce-scatter") or need.elements % n:
            return False
        shard = need.elements // n
        passed = [
            s
            for s in self.seen
            if not s.taken and s.key.kind == "collective-permute" and s.key.axes == need.key.axes
            if s.elements == shard and s.dtype == need.dtype and s.scope == need.scope and same_pass(need, s)
        ]
        times, rest = divmod(sum(s.key.times for s in passed), need.key.times)
        if rest or times not in (n - 1, n, n + 1):
            return False
        evidence = f"{listed(s.name for s in passed)} pass {shard} x {need.dtype} of {need.object} {times} times"
        self._add(need.key, "passed around", -need.key.total, evidence)
        for seen in passed:
            seen.taken = True
            self._add(seen.key, "passed around", payload_bytes(shard, need.dtype) * seen.key.times, evidence)
        return True

    def _take_padded(self, need: Need) -> bool:
        """Match a reduce-scatter with one of a padded array, and the permutation of the rows then one rank off.

        With shards of S + p instead of S, rank i finds the first i p of its elements on the rank before.
        """
        n, bits = need.participants, BITS[need.dtype]
        for wide in self.seen:
            if wide.taken or wide.unpadded != need.elements or wide.dtype != need.dtype or not related(need, wide):
                continue
            if wide.key[:2] != need.key[:2] or wide.key.times != need.key.times or (wide.elements - need.elements) % n:
                continue
            border = (wide.elements - need.elements) // n * (n - 1)
            key = Key("collective-permute", need.key.axes, border * bits // 8, need.key.times)
            passed = [s for s in self.seen if not s.taken and s.key == key and related(need, s)]
            if not passed:
                continue
            other = max(passed, key=lambda s: likeness(need, s))
            evidence = f"{wide.shown} for {need.object} of {need.elements}, {other.shown} from the rank before"
            padded = payload_bytes(wide.elements, need.dtype) * need.key.times
            for moved, amount in ((need.key, -need.key.total), (wide.key, padded), (key, key.total)):
                self._add(moved, "padded", amount, evidence)
            wide.taken = other.taken = True
            return True
        return False

    def _take_axes(self, need: Need) -> bool:
        """Match an all-reduce over several mesh axes with one over each part of them."""
        axes = need.key.axes.split(",")
        if need.key.kind != "all-reduce" or len(axes) < 2:
            return False
        for dtype in dict.fromkeys((need.dtype, "fp32")):
            payload = payload_bytes(need.elements, dtype)
            same = [
                s
                for s in self.seen
                if not s.taken and (s.key.kind, s.key.payload, s.key.times) == ("all-reduce", payload, need.key.times)
                if s.dtype == dtype and related(need, s)
            ]
            pair = axis_pair(axes, same)
            if pair:
                self._by_axis(need, pair)
                return True
        return False

    def _by_axis(self, need: Need, pair: tuple[Seen, Seen]) -> None:
        evidence = ", ".join(f"{seen.shown} over {seen.key.axes}" for seen in pair) + f", for {need.object}"
        self._add(need.key, "axis by axis", -need.key.total, evidence)
        for seen in pair:
            seen.taken = True
            self._add(seen.key, "axis by axis", need.key.total, evidence)
            self._add(seen.key, "wider type", seen.key.total - need.key.total, evidence)

    def _absent(self, need: Need) -> None:
        """Explain a transfer that is not there at all, where something shows why."""
        if not self._replays(need):
            top = need.scope.split("/", 1)[0]
            self._add(need.key, "replay gone", -need.key.total, f"no product under replay in {top}")

    def _replays(self, need: Need) -> bool:
        """Return whether a transfer is of no declared replay, or its group has products under replay in the module."""
        top = need.scope.split("/", 1)[0]
        if need.phase not in BACK or not top.startswith("group") or not (need.phase == "replay" or self._gathers(need)):
            return True
        places = self.observed.data["hlo"]["by_scope_phase"]
        declared = any(row["phase"] == "replay" for row in self.observed.data["jaxpr"]["by_scope_phase"])
        there = any(row["phase"] == "replay" and row["scope"].split("/", 1)[0] in (top, "") for row in places)
        return there or not declared

    def _gathers(self, need: Need) -> bool:
        return need.key.kind == "all-gather" and self.prediction.case.execution.remat != "none"

    def _add(self, key: Key, change: str, amount: int, evidence: str) -> None:
        if amount:
            self.moved.setdefault(key, []).append(_explanation(change, amount, evidence))

    # -- rows ---------------------------------------------------------------------------------------------------------

    def rows(self) -> Iterator[Row]:
        """Yield the total, one row per kind and axes, and one per kind, axes, bytes and executions.

        There are none where one device talks to nobody.
        """
        if not self.known or self.auto or self.slices > 1:
            reason = (
                AUTO if self.auto else SLICES if self.known else "; ".join(dict.fromkeys(self.ledger.reasons.values()))
            )
            yield from (
                Row("collective_bytes", scope, "", "bytes", None, n, reason=reason) for scope, n in self._sums()
            )
            return
        declared: dict[Key, int] = {}
        there: dict[Key, int] = {}
        for need in self.needs:
            declared[need.key] = declared.get(need.key, 0) + need.key.total
        for seen in self.seen:
            there[seen.key] = there.get(seen.key, 0) + seen.key.total
        rows = [
            Row(
                "collective", key.scope, "", "bytes", declared.get(key, 0), there.get(key, 0),
                folded(self.moved.get(key, ())), self._reason(key),
            )
            for key in sorted({*declared, *there, *self.moved})
        ]  # fmt: skip
        unknown = [row for row in self.section["rows"] if row["executions"] is None]
        rows += [
            Row("collective", f"{row['kind']}/{axes_text(row['axes'] or ())}/{row['name']}", "", "bytes", None, None,
                reason=UNKNOWN_TIMES)
            for row in unknown
        ]  # fmt: skip
        if rows:
            yield from self._totals(rows, unknown)
        yield from rows

    def _totals(self, rows: list[Row], unknown: list[Any]) -> Iterator[Row]:
        by_kind: dict[str, list[Row]] = {}
        for row in rows:
            by_kind.setdefault(row.scope.rsplit("/", 1)[0], []).append(row)
        for scope, group in [("", rows), *sorted(by_kind.items())]:
            moved = folded(item for row in group for item in row.explanations)
            seen = None if any(row.observation is None for row in group) else sum(row.observation or 0 for row in group)
            declared = sum(row.prediction for row in group if isinstance(row.prediction, int))
            reason = UNKNOWN_TIMES if seen is None else ""
            yield Row("collective_bytes", scope, "", "bytes", declared, seen, moved, reason)

    def _sums(self) -> list[tuple[str, int]]:
        sums: dict[str, int] = {}
        for seen in self.seen:
            scope = f"{seen.key.kind}/{seen.key.axes or 'unknown axes'}"
            sums[scope] = sums.get(scope, 0) + seen.key.total
        return [("", sum(sums.values())), *sorted(sums.items())] if sums else []

    def _reason(self, key: Key) -> str:
        loose = [s for s in self.seen if s.key == key and not s.taken]
        wanted = [need for need in self.needs if need.key == key]
        said = []
        if wanted:
            said.append("declared: " + listed(dict.fromkeys(f"{need.object} ({need.phase})" for need in wanted)))
        if loose:
            said.append("not declared: " + listed(f"{s.shown} {s.source}".strip() for s in loose))
        return "; ".join(said)

    def findings(self) -> Iterator[Finding]:
        """Yield what nobody declared, with its source line, and what automatic partitioning does differently."""
        if self.slices > 1:
            yield from self._between_slices()
        if self.auto and self.known:
            yield from self._partitioner()
        if self.auto or self.slices > 1:
            return
        for seen in self.seen if self.known else ():
            if not seen.taken:
                where = f" at {seen.source}" if seen.source else ""
                text = f"nobody declared {seen.key.kind} over {seen.key.axes or 'unknown axes'}, "
                text += f"{seen.key.payload} bytes x {seen.key.times}, in {seen.scope or 'no scope'}{where}"
                yield Finding("undeclared collective", text, (seen.name,))

    def _between_slices(self) -> Iterator[Finding]:
        """What leaves a device for other slices, by the kind of transfer that it is part of."""
        sums: dict[str, int] = {}
        for seen in self.seen:
            if seen.key.kind == "send":
                sums[seen.form] = sums.get(seen.form, 0) + seen.key.total
        for form, total in sorted(sums.items()):
            names = [s.name for s in self.seen if s.form == form and s.key.kind == "send"]
            text = f"{form}: each device sends {total} bytes to the other {self.slices - 1} of {self.slices} slices"
            yield Finding("between slices", text, tuple(names)[:4])

    def _partitioner(self) -> Iterator[Finding]:
        """What the partitioner, left to itself, inserts beside what explicit sharding declares."""
        declared: dict[str, int] = {}
        for need in self.needs:
            scope = f"{need.key.kind}/{need.key.axes}"
            declared[scope] = declared.get(scope, 0) + need.key.total
        there = {scope: total for scope, total in self._sums() if scope}
        for scope in sorted({*declared, *there}):
            if declared.get(scope, 0) != there.get(scope, 0):
                names = dict.fromkeys(s.name for s in self.seen if scope == f"{s.key.kind}/{s.key.axes}")
                text = f"{scope}: {there.get(scope, 0)} bytes, {declared.get(scope, 0)} with explicit sharding"
                yield Finding("automatic partitioning", text, tuple(names)[:4])


def _need(row: LedgerRow, copies: int = 1) -> Need:
    """Return the transfer of a ledger row, one of several `copies` where layers are written out."""
    f = row.fields
    return Need(
        Key(f["kind"], f["axis"], f["payload_bytes"], f["times"] // copies), f["dtype"], f["elements"], row.scope,
        row.phase, row.object, tuple(f.get("terms", ())), f["layers"] // copies, f["microbatches"], f["participants"],
    )  # fmt: skip


def _explanation(change: str, amount: int, evidence: str) -> Explanation:
    for name, reason in (
        ("wider type", "sent in a wider type than declared"),
        ("reduced whole", "an all-reduce and a slice in place of a reduce-scatter"),
        ("at once", "scattered and summed at once: one all-reduce over all axes, and a slice"),
        ("one sum each", "parts of one gradient reduced one by one instead of their sum"),
        ("out of the loop", "moved out of the loop: one collective of all layers"),
        ("hoisted", "a gather of what does not change, moved out of the loop over microbatches"),
        ("summed first", "a gradient summed over microbatches before it is summed over devices"),
        ("axis by axis", "a sum over several mesh axes taken one axis at a time"),
        ("gathered by a sum", "a gather by summing shards written into zeros"),
        ("passed around", "a gather or scatter by passing shards around a ring"),
        ("padded", "a reduce-scatter of a padded array, the rows at its border passed on"),
        ("every tick", "handed on in every tick of the pipeline, the bubble's too"),
        ("other ranks", "sent by another rank of the pipeline: one program runs on all"),
        ("rows for ends", "rows for the ends of the pipeline, which every rank computes"),
        ("whole table", "the gradient of a tied table, which every rank of the pipeline has whole"),
        ("once", "a loss computed once, of all microbatches of the pipeline"),
        ("replay gone", "collectives of a recomputation that the compiler undid"),
    ):
        if name == change:
            return Explanation(amount, reason, evidence)
    raise KeyError(change)


def _whole(row: Mapping[str, Any]) -> dict[str, Any]:
    """A collective whose arrays are not listed, as one array."""
    return {
        "unpadded_elements": 0, "dtype": row["dtype"], "operand_bytes": row["operand_bytes"],
        "result_bytes": row["result_bytes"],
        "scope": row["scope"], "phase": row["phase"], "argument": "", "sliced": (),
    }  # fmt: skip


def axes_text(axes: Iterable[str]) -> str:
    """Return mesh axes as one text, as the ledger writes them."""
    return ",".join(axes)


def folded(items: Iterable[Explanation]) -> tuple[Explanation, ...]:
    """Join explanations of one reason; what cancels stays, as an explanation of nothing, with its evidence."""
    amounts: dict[str, int] = {}
    evidence: dict[str, dict[str, None]] = {}
    for item in items:
        amounts[item.reason] = amounts.get(item.reason, 0) + item.amount
        evidence.setdefault(item.reason, {})[item.evidence] = None
    return tuple(Explanation(amount, reason, listed(evidence[reason])) for reason, amount in amounts.items())
