"""One row walked through in the order in which a discrepancy is found, up to the first step that disagrees.

    1 shapes      which arrays, with which axes
    2 elements    how many numbers they hold
    3 bytes       in which element type
    4 FLOPs       products, apart from work that is no product
    5 transfers   which bytes cross a named boundary
    6 phase       training, prefill or one-token decode; forward, backward or replay
    7 residual    the compiled layout, element types and counters; what is left, and what explains it

A wrong shape makes everything after it wrong, so it is looked at first. Each step sets what is predicted beside what
was seen; where nobody saw it, the step says nothing, which is not agreement.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from jaxcost.contracts.case import Case
from jaxcost.observation.observed import Observed
from jaxcost.prediction.ledgers import Prediction, predict
from jaxcost.prediction.rows import plain
from jaxcost.reconciliation.rows import Interval, Report, Row
from jaxcost.verify.arrays import (
    Pair,
    Seen,
    declared,
    inside,
    matched,
    pairs,
    parsed,
    place,
    product,
    same_extents,
)

QUESTIONS = {
    "shapes": "which arrays, with which axes",
    "elements": "how many numbers they hold",
    "bytes": "in which element type",
    "FLOPs": "products, apart from work that is no product",
    "transfers": "which bytes cross a named boundary",
    "phase": "in which phase of which workload",
    "residual": "what the compiled layout and counters leave, and what explains it",
}
_MOVED = ("bytes_moved", "collective", "collective_bytes", "traffic", "collectives")
_PRODUCTS = ("matmul_flops", "jaxpr_matmul_flops", "flops")
_STATE = ("state", "argument_bytes")
# Where a number belongs: by its unit, and, for a total that was written down beforehand, by its ledger.
_HOME = {"scalars": "elements", "FLOPs": "FLOPs", "primitives": "FLOPs", "bytes": "bytes"}
_LEDGERS = {
    "parameters": "elements", "state": "bytes", "kv_cache": "bytes", "device": "bytes", "activations": "bytes",
    "ownership": "bytes", "flops": "FLOPs", "primitives": "FLOPs", "traffic": "transfers", "collectives": "transfers",
}  # fmt: skip
_PHASES = {"forward": "forward", "backward": "backward", "recompute": "replay"}
Entry = dict[str, Any]


def explain_row(report: Report, key: str, seen: Seen = None) -> Mapping[str, Any]:
    """Return the walk of one row of a report, as plain data with one entry per step.

    Args:
        report: a prediction compared with what was seen.
        key: `counter[:scope][:phase]` of one of its rows.
        seen: what it was compared with; without it the walk knows the numbers of the report alone.

    Raises:
        KeyError: the report has no such row.
    """
    row = report.row(key)
    if row is None:
        raise KeyError(key)
    case = Case.from_data({name: value for name, value in report.case.items() if name in Case.model_fields})
    walk = _Walk(report, row, predict(case), seen)
    steps = []
    for number, name in enumerate(QUESTIONS, start=1):
        rows = list(getattr(walk, name.lower())())
        steps.append({"number": number, "step": name, "question": QUESTIONS[name], "rows": rows, "agrees": _all(rows)})
    first = next((step for step in steps if step["agrees"] is False), None)
    return {
        "report": report.name,
        "target": report.target,
        "row": key,
        "status": row.status,
        "steps": steps,
        "first_disagreement": None if first is None else {"number": first["number"], "step": first["step"]},
        "conclusion": _conclusion(row, steps, first),
    }


def _all(rows: Iterable[Mapping[str, Any]]) -> bool | None:
    """Return whether all that is known on both sides agrees; None where nothing is."""
    known = [row["agrees"] for row in rows if row["agrees"] is not None]
    return all(known) if known else None


def _entry(
    what: str, predicted: Any, observed: Any, unit: str = "", note: str = "", agrees: bool | None = None,
    comparable: bool = True,
) -> Entry:  # fmt: skip
    """Return one line of a step; whether the sides agree follows from them where both are known and comparable."""
    if agrees is None and predicted is not None and observed is not None and comparable:
        agrees = bool(predicted == observed)
    return {
        "what": what, "predicted": plain(predicted), "observed": plain(observed), "unit": unit, "agrees": agrees,
        "note": note,
    }  # fmt: skip


def _of_row(row: Row, what: str = "") -> Entry:
    """Return a compared row as a line of a step."""
    predicted: Any = row.prediction
    agrees = None if row.residual is None else row.residual == 0 and not row.forced_open
    if isinstance(predicted, Interval):
        agrees, predicted = row.status == "bounded", {"lower": predicted.lower, "upper": predicted.upper}
    return _entry(what or row.key, predicted, row.observation, row.unit, row.reason or row.verdict, agrees)


class _Walk:
    """The seven steps of one row, one method each; names as in `QUESTIONS`."""

    def __init__(self, report: Report, row: Row, prediction: Prediction, seen: Seen):
        self.report, self.row, self.prediction, self.seen = report, row, prediction, seen
        self.counter, _, total = row.counter.removeprefix("expected.").partition(".")
        named = row.counter.removeprefix("expected.")
        # A ledger's total of one phase stands in a row without one.
        phase = row.phase or (_PHASES.get(total, "") if self.counter == "flops" else "")
        self.about = replace(row, counter=named, phase=phase)
        self.found = pairs(prediction, self.about, seen)
        self.document: Mapping[str, Any] = seen.data if isinstance(seen, Observed) else {}

    def _over(self, counter: str) -> str:
        """Return over which devices a sum of products runs, where there are several: the two witnesses differ in it."""
        if self.prediction.case.execution.device_count == 1:
            return ""
        return {"jaxpr_matmul_flops": ", all devices", "matmul_flops": ", one device"}.get(counter, "")

    def _section(self, name: str) -> Mapping[str, Any]:
        return self.document.get(name) or {}

    def _here(self, scope: str, phase: str) -> bool:
        return inside(scope, self.row.scope) and self.about.phase in ("", phase)

    def _own(self, step: str) -> Iterator[Entry]:
        """Yield the row itself at the step of its unit. What no number shows has a step of its own, or the last."""
        home = _HOME.get(self.row.unit, "")
        if self.row.counter.startswith("expected."):
            home = _LEDGERS.get(self.counter, "")
        elif home == "bytes" and (self.counter in _MOVED or self.row.counter == "xla.bytes_accessed"):
            home = "transfers"
        if step == home:
            yield _of_row(replace(self.row, forced_open=False))

    def shapes(self) -> Iterator[Entry]:
        """Set the axes of each array beside those that were seen; their order is a layout, and no difference."""
        found = self.found
        if self.counter in _STATE:  # state has the shapes of what it is the state of
            found = pairs(self.prediction, Row("parameters", "", "", "scalars", None, None), self.seen)
        for pair in found:
            left, right = (None if side is None else side.shape for side in (pair.predicted, pair.seen))
            if left is not None or right is not None:
                agrees, note = _shapes_agree(pair)
                axes = pair.predicted.axes if pair.predicted is not None else ""
                note = "; ".join(filter(None, (axes, note, pair.note)))
                yield _entry(pair.what, left, right, "", note, agrees, comparable=not pair.in_pieces)

    def elements(self) -> Iterator[Entry]:
        """Count the numbers of all copies."""
        for pair in self.found:
            left, right = (None if side is None else side.elements for side in (pair.predicted, pair.seen))
            yield _entry(pair.what, left, right, "scalars", _times(pair), comparable=not pair.in_pieces)
        yield from self._own("elements")

    def bytes(self) -> Iterator[Entry]:
        """Turn them into bytes by their element types, which may differ; for a peak, add them up by class."""
        for pair in self.found:
            left, right = (None if side is None else side.bytes for side in (pair.predicted, pair.seen))
            types = [side.dtype for side in (pair.predicted, pair.seen) if side is not None]
            note = " predicted, seen as ".join(dict.fromkeys(types))
            yield _entry(pair.what, left, right, "bytes", note, comparable=not pair.in_pieces)
        if self.row.counter in ("live_peak_bytes", "required_bytes", "fits"):
            parts = "live_peak_bytes." if self.row.counter == "live_peak_bytes" else "live_peak_bytes"
            found = (other for other in self.report.rows if other.counter.startswith(parts))
            yield from (_of_row(other) for other in found if parts.endswith(".") or other.counter == parts)
        yield from self._own("bytes")

    def flops(self) -> Iterator[Entry]:
        """Set each product beside the jaxpr's, then the sums of both witnesses; list other work apart."""
        if self.counter in _PRODUCTS:
            section = self._section("jaxpr")
            for item, match in matched(self.prediction, self.about, section.get("rows") or ()):
                spec = str(item.row.fields.get("product") or item.row.fields["contraction"])
                observed = match.flops if match is not None else 0 if section.get("rows") else None
                unit = f"FLOPs{self._over('jaxpr_matmul_flops')}"
                yield _entry(f"{product(item.row)} ({item.row.phase})", item.flops, observed, unit, spec)
            for witness in self._sums():
                yield {**_of_row(witness), "unit": witness.unit + self._over(witness.counter)}
            work: dict[str, int] = {}
            for other in self.prediction.ledgers["primitives"].rows:
                if self._here(other.scope, other.phase):
                    work[other.object] = work.get(other.object, 0) + other.value
            for kind, count in work.items():
                yield _entry(f"{kind} (no product)", count, None, "primitives", "no witness counts them")
        if self.counter != "matmul_flops" and self.counter != "jaxpr_matmul_flops":
            yield from self._own("FLOPs")

    def _sums(self) -> Iterator[Row]:
        """Yield the row of each witness at this place, or at the nearest place around it; the compiled one is no part
        of a row of the jaxpr, which comes before it.
        """
        for counter in ("jaxpr_matmul_flops", "matmul_flops")[: 1 if self.counter == "jaxpr_matmul_flops" else 2]:
            around = [
                other
                for other in self.report.rows
                if other.counter == counter and other.phase == self.about.phase and inside(self.row.scope, other.scope)
            ]
            if around:
                yield max(around, key=lambda other: len(other.scope))

    def transfers(self) -> Iterator[Entry]:
        """List the scheduled payloads with their boundary; seen is what compiled kernels read and write."""
        if self.counter in _PRODUCTS or self.counter in ("traffic", "bytes_moved"):
            yield from self._scheduled()
        if self.counter in ("collective", "collective_bytes", "collectives"):
            yield from self._between_devices()
        yield from self._own("transfers")

    def _scheduled(self) -> Iterator[Entry]:
        total = self.row.counter.removeprefix("expected.").partition(".")[2]
        schedule = {"attention": False, "gemm": True}.get(total.split("_", maxsplit=1)[0])
        moved: dict[tuple[str, str, str], int] = {}
        for item in self.prediction.ledgers["traffic"].rows:
            one_pass = item.fields["schedule"] == "one pass"
            if self._here(item.scope, item.phase) and schedule in (None, one_pass):
                key = (f"{item.object}, {item.fields['direction']}", item.phase, str(item.fields["boundary"]))
                moved[key] = moved.get(key, 0) + item.value
        for (what, phase, boundary), value in moved.items():
            yield _entry(f"{what} ({phase})", value, None, "bytes", f"between {boundary}, all devices")
        traffic = self._section("hlo").get("traffic") or {}
        own = [item["bytes"] for item in traffic.get("by_scope_phase", ()) if self._here(item["scope"], item["phase"])]
        if own and None not in own:
            note = "one device, as compiled; fusion leaves payloads out, so this is no count of the schedule above"
            yield _entry("kernels of the scope", None, sum(own), "bytes", note)

    def _between_devices(self) -> Iterator[Entry]:
        kind, axis, size, times = place(self.row.scope)
        for item in self.prediction.ledgers["collectives"].rows:
            fields = item.fields
            here = self.counter != "collective" or (fields["payload_bytes"], fields["layers"]) == (size, times)
            if here and kind in ("", fields["kind"]) and axis in ("", fields["axis"]):
                note = f"{fields['kind']} over {fields['axis']}, {fields['boundary']}, {fields['times']} times"
                yield _entry(f"{item.object} ({item.phase})", item.per_device, None, "bytes", note)

    def phase(self) -> Iterator[Entry]:
        """Name the workload, and set the row's phases beside each other."""
        work = self.prediction.case.workload
        text = (
            f"{work.new_tokens} new tokens over {work.past_tokens} past in each of {work.batch}, logits {work.logits}"
        )
        note = f"{text}; this row: {self.about.phase or 'the whole step'}"
        yield _entry("workload", work.phase, None, "", note)
        for other in self.report.rows:
            if other.counter == self.row.counter and other.scope == self.row.scope and other.phase:
                if other is self.row or not self.row.phase:
                    yield _of_row(other)
                else:  # another phase stands beside this one; its differences are its own
                    found = _of_row(other)
                    yield {**found, "agrees": None, "note": f"another phase: {other.status}"}

    def residual(self) -> Iterator[Entry]:
        """Give the residual, its explanations with what they rest on, and what is left; then the compiled form."""
        row = self.row
        if row.forced_open:
            yield _entry("what no number shows", None, None, "", row.reason, agrees=False)
        left = row.residual
        yield _entry("residual", None if left is None else 0, left, row.unit, f"status {row.status}")
        for item in row.explanations:
            yield _entry(item.reason, None, item.amount, row.unit, item.evidence)
        if row.explanations and left is not None and not isinstance(row.prediction, Interval):
            left -= row.explained
            yield _entry("left after the explanations", 0, left, row.unit)
        yield from self._compiled()

    def _declared_types(self, scope: str, phase: str) -> set[str]:
        """Return the element types of the operands of the products declared in a scope and phase."""
        return {array.dtype for item in declared(self.prediction, scope, phase) for array in item.arrays}

    def _compiled(self) -> Iterator[Entry]:
        """Name the instructions behind a row of the compiled program: their layouts and element types."""
        for item in (self._section("hlo").get("contractions") or ()) if self.counter == "matmul_flops" else ():
            if self._here(item["scope"], item["phase"]):
                found = [parsed(item[side]) for side in ("lhs", "rhs")]
                types = {array.dtype for array in found if array is not None}
                types_declared = self._declared_types(item["scope"], item["phase"])
                text = f"{item['lhs']} x {item['rhs']} -> {item['out']}"
                note = f"{item['executions']} times, {item['scope'] or 'no scope'}, {item['phase']}"
                agrees = types <= types_declared if types_declared else None
                yield _entry(item["name"], " or ".join(sorted(types_declared)) or None, text, "", note, agrees)
        for item in self._section("compiler").get("memory_analysis", {}).values() if self.row.verdict else ():
            if self.row.observation == item["value"] and item["verdict"] in self.row.verdict:
                yield _entry(item["meaning"], None, item["value"], self.row.unit, item["verdict"])


def _shapes_agree(pair: Pair) -> tuple[bool | None, str]:
    one, other = pair.predicted, pair.seen
    if one is None or other is None or one.shape is None or other.shape is None:
        return None, ""
    if one.shape == other.shape:
        return True, ""
    if same_extents(one.shape, other.shape):
        return True, "axes in another order"
    if pair.in_pieces:
        return None, f"in pieces: {other.copies} of them, {one.copies} whole ones declared"
    return False, ""


def _times(pair: Pair) -> str:
    counts = [side.copies for side in (pair.predicted, pair.seen) if side is not None and side.shape is not None]
    return " predicted, seen ".join(f"{n} times" for n in dict.fromkeys(counts)) if set(counts) - {1} else ""


def _conclusion(row: Row, steps: Sequence[Mapping[str, Any]], first: Mapping[str, Any] | None) -> str:
    """Return the walk in one sentence: the first step that disagrees, and whether the residual is explained."""
    if first is None:
        if all(step["agrees"] is None for step in steps):
            return f"no step can disagree: {row.reason or 'nothing was observed of this row'}"
        return "no step disagrees: both sides are equal wherever both are known"
    worst = next(item for item in first["rows"] if item["agrees"] is False)
    sides = f"{_said(worst['predicted'])} predicted, {_said(worst['observed'])} observed"
    sides = sides if worst["observed"] is not None else worst["note"]
    own = next((step for step in steps if any(item["what"] == row.key and item["agrees"] is False
                                              for item in step["rows"])), first)  # fmt: skip
    elsewhere = "" if own is first else f", which comes in at step {own['number']}, {own['step']},"
    residual = f"The row's residual of {row.residual:,} {row.unit}{elsewhere}" if row.residual else ""
    endings = {"explained": f"{residual} is explained in full", "open": f"{residual} stays open"}
    ending = endings.get(row.status, "") if residual else f"The row itself is {row.status}"
    if row.forced_open:
        ending = f"The row is open: {row.reason}"
    where = f" ({worst['unit'].partition(', ')[2]})" if ", " in worst["unit"] else ""
    head = f"the first step that disagrees is {first['number']}, {first['step']}: {worst['what']}, {sides}{where}"
    return f"{head}. {ending or f'The row is {row.status}'}"


def _said(value: Any) -> str:
    if isinstance(value, dict):
        return f"{value['lower']:,} to {value['upper']:,}"
    return f"{value:,}" if isinstance(value, int) else str(value)
