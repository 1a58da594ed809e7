"""Matmul FLOPs, row by row: ledger against jaxpr (all devices) and against the compiled program (one device).

Rows match by (scope, phase). Where a compiler merged products of several components into one dot that its operands do
not tell apart, the row moves up to the scope that encloses them all, on both sides.

A residual is explained by rules that each look for their own evidence:

- dead replay: the program's dataflow says that no backward op needs a replayed result, and the jaxpr holds no such dot;
- idle gradient: a loop of one layer, unrolled by the compiler, makes a gradient of its input that nothing takes;
- strength reduction: a product with one row or one column became multiply and reduce, instructions named;
- padding: a library call or split padded K, M or N, shapes shown;
- hoisting: a dot that bears an equation's name and size runs less often than the equation;
- repetition: dots of one name, some with a sum fused into them, others bare, each for another consumer;
- recomputation undone: the jaxpr replays, the compiled program holds no product under replay in that whole group;
- merged replay: some replayed products of a group are equal to others that are there (see `merged`);
- bubble: a pipeline's stages run in ticks without a microbatch, too (see `pipeline`);
- opaque kernel: the products of a library's call by its declared closed form (see `kernels`), instruction named.

The amounts come from shapes, counts and the jaxpr; none is computed from the residual.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from jaxcost.observation.observed import Observed
from jaxcost.prediction.dead import dead_replay
from jaxcost.prediction.ledgers import Prediction, predict
from jaxcost.reconciliation import kernels, merged, pipeline
from jaxcost.reconciliation.rows import Explanation, Finding, Row

Place = tuple[str, str]
UNIT = "FLOPs"
IDLE = "gradient of a one-layer loop's input that nothing needs"


@dataclass(frozen=True)
class Matmuls:
    """The two witnesses' matmul FLOPs of one case, by place, and what explains their differences."""

    prediction: Prediction
    observed: Observed

    @property
    def hlo(self) -> Mapping[str, Any]:
        """The reading of the compiled module."""
        section: Mapping[str, Any] = self.observed.data["hlo"]
        return section

    @property
    def devices(self) -> int:
        """The number of devices the global program is spread over."""
        return self.prediction.case.execution.device_count

    @cached_property
    def predicted(self) -> dict[Place, int]:
        """Ledger FLOPs on the worst device."""
        return _summed(((row.scope, row.phase), row.per_device) for row in self.prediction.ledgers["flops"].rows)

    @cached_property
    def predicted_global(self) -> dict[Place, int]:
        """Ledger FLOPs over all devices."""
        return _summed(((row.scope, row.phase), row.value) for row in self.prediction.ledgers["flops"].rows)

    @cached_property
    def jaxpr(self) -> dict[Place, int]:
        """FLOPs of the jaxpr, over all devices."""
        return _places(self.observed.data["jaxpr"]["by_scope_phase"])

    @cached_property
    def compiled(self) -> dict[Place, int]:
        """FLOPs of the compiled module, on one device."""
        return _places(self.hlo["by_scope_phase"])

    @cached_property
    def dead(self) -> dict[Place, tuple[int, int, str]]:
        """Dead replay by place: FLOPs on the worst device, over all devices, and the result nobody needs."""
        found: dict[Place, tuple[int, int, str]] = {}
        for row in dead_replay(self.prediction.program):
            device, everywhere, names = found.get((row.scope, "replay"), (0, 0, ""))
            names = ", ".join(filter(None, (names, str(row.fields["result"]))))
            found[row.scope, "replay"] = (device + row.per_device, everywhere + row.value, names)
        return found

    @cached_property
    def idle(self) -> dict[Place, int]:
        """FLOPs that only a loop of one layer makes: the gradient of its input, where nothing below is trained.

        A scan hands that gradient on; the compiler unrolls a loop of one trip and drops what nobody takes. The amount
        is what the same layer does less when it is declared unrolled.
        """
        case = self.prediction.case
        alone = {f"group{index}" for index, group in enumerate(case.architecture.groups) if group.repeat == 1}
        if case.execution.layers != "scan" or not case.state.frozen or not alone:
            return {}
        written_out = predict(case.replaced(execution=case.execution.replaced(layers="unrolled")))
        other = Matmuls(written_out, self.observed)
        found = {place: self._used(place) - other._used(place) for place in self.predicted if _top(place[0]) in alone}
        return {place: amount for place, amount in found.items() if amount > 0}

    def _is_loop(self, group: str) -> bool:
        """Return whether the module holds a loop over the layers of a group; one without a name may be it."""
        names = [loop["op_name"] for loop in self.hlo["loops"]]
        return any(not name or re.search(rf"\b{group}\)*/while$", name) for name in names)

    def _used(self, place: Place) -> int:
        return self.predicted.get(place, 0) - self.dead.get(place, (0, 0, ""))[0]

    def rows(self) -> list[Row]:
        """Return the rows of both comparisons, totals first."""
        return [*self._rows("jaxpr_matmul_flops"), *self._rows("matmul_flops")]

    def _rows(self, counter: str) -> list[Row]:
        compiled = counter == "matmul_flops"
        section: Mapping[str, Any] = self.hlo if compiled else self.observed.data["jaxpr"]
        left, right = (self.predicted, self.compiled) if compiled else (self.predicted_global, self.jaxpr)
        calls = [call for call in map(kernels.call_of, section["opaque"]) if call is not None]
        right = _summed([*right.items(), *((place, 0) for call in calls for place in call.amounts)])
        coarse = _coarse(left, right)
        left, right = _merged(left, coarse), _merged(right, coarse)
        unknown = {
            coarse.get((row["scope"], row["phase"]), (row["scope"], row["phase"]))
            for row in section["by_scope_phase"]
            if row["flops"] is None
        }
        reason = "; ".join(str(item) for item in section["unknowns"]) or "a number of executions is unknown"
        rows = []
        for place in sorted(set(left) | set(right)):
            explanations = (*self._explanations(place, compiled, coarse), *_opaque(place, calls, coarse))
            seen = None if place in unknown else right.get(place, 0)
            rows.append(
                Row(counter, *place, UNIT, left.get(place, 0), seen, explanations, reason if seen is None else "")
            )
        undeclared = kernels.undeclared(section["opaque"])
        rows = [_hidden(row, undeclared) for row in rows]
        if compiled:
            rows = self._grouped(rows)
        total = section["flops"]
        if undeclared:
            total, reason = None, _nobody(undeclared)
        folded = _folded(item for row in rows for item in row.explanations)
        whole = Row(counter, "", "", UNIT, sum(left.values()), total, folded, reason if total is None else "")
        return [whole, *rows, *(_opaque_row(item) for item in undeclared if compiled)]

    def _explanations(self, place: Place, compiled: bool, coarse: Mapping[Place, Place]) -> Iterable[Explanation]:
        members = [
            item
            for item in set(self.predicted) | set(self.compiled) | set(self.jaxpr)
            if coarse.get(item, item) == place
        ]
        gone = 0
        for item in sorted(members):
            if item in self.dead and not self.jaxpr.get(item):
                device, everywhere, result = self.dead[item]
                amount = device if compiled else everywhere
                gone += amount
                evidence = f"no backward op needs {result}; the jaxpr has no dot in {item[0]} under replay"
                yield Explanation(-amount, "dead replay dropped by differentiation", evidence)
        yield from self._bubble(members, gone, compiled)
        if not compiled:
            yield from self._row_sums(place)
            return
        unused = [item for item in members if item in self.idle]
        if unused and not self._is_loop(_top(place[0])):
            evidence = (
                f"one layer in {_top(place[0])}, nothing below it is trained; the module has no loop of that name, so "
                "the layer is written out"
            )
            yield Explanation(-sum(self.idle[item] for item in unused), IDLE, evidence)
        yield from self._strength(place, coarse)
        yield from self._padding(place, coarse)
        yield from self._fewer(members, place)
        yield from self._repeated(place)

    def _bubble(self, members: Iterable[Place], gone: int, compiled: bool) -> Iterable[Explanation]:
        """What stages of a pipeline do of a place, `gone` of it dead, in more ticks than there are microbatches."""
        declared = self.predicted if compiled else self.predicted_global
        inside = [item for item in members if item[0].startswith("group")]
        amount = sum(declared.get(item, 0) for item in inside) - (gone if inside else 0)
        return pipeline.bubble(self.prediction, self.observed, [scope for scope, _ in inside], amount, compiled)

    def _row_sums(self, place: Place) -> Iterable[Explanation]:
        """A sum over the width of two arrays beside a kernel, spelled as a product with one row and one column."""
        found = [
            row
            for row in self.observed.data["jaxpr"]["rows"]
            if (row["scope"], row["phase"]) == place
            and place[0].endswith("/kernel")
            and (row["m"], row["n"]) == (1, 1)
            and row["total"] is not None
        ]
        if found:
            names = _listed(f"{row['name'].rsplit('/', 1)[-1]} ({' x '.join(row['operands'])})" for row in found)
            reason = "a row sum beside a kernel, spelled as a product and counted as primitives"
            yield Explanation(sum(row["total"] for row in found), reason, names)

    def _strength(self, place: Place, coarse: Mapping[Place, Place]) -> Iterable[Explanation]:
        kept = [
            row
            for row in self._all_reduced()
            if coarse.get((row["scope"], row["phase"]), (row["scope"], row["phase"])) == place
        ]
        amount, names = sum(row["total"] for row in kept), [f"{row['name']} ({row['opcode']})" for row in kept]
        if names:
            reason = "strength reduction: a product with one row or column became multiply and reduce"
            yield Explanation(-amount, reason, _listed(names))

    def _all_reduced(self) -> list[Mapping[str, Any]]:
        """The strength-reduced products, without what is repeated in several fusions."""
        groups: dict[tuple[Place, str, int], list[Mapping[str, Any]]] = {}
        for row in self.hlo["strength_reduced"]:
            if row["total"] is not None:
                groups.setdefault(((row["scope"], row["phase"]), row["op_name"], row["flops"]), []).append(row)
        return [
            row
            for (where, _, size), rows in groups.items()
            for row in rows[: self._equations(where, size) or len(rows)]
        ]

    def _equations(self, place: Place, size: int) -> int | None:
        """Equations of one size in a place of the jaxpr; None where device and global sizes differ.

        A reduced product may be repeated in every fusion that uses it; the dots lost are still those of the equations.
        """
        if self.devices != 1:
            return None
        rows = self.observed.data["jaxpr"]["rows"]
        return sum(1 for row in rows if (row["scope"], row["phase"]) == place and row["flops"] == size)

    def _padding(self, place: Place, coarse: Mapping[Place, Place]) -> Iterable[Explanation]:
        found = [
            row
            for row in self.hlo["contractions"]
            if row["flops"] is not None
            and row["executions"] is not None
            and coarse.get((row["scope"], row["phase"]), (row["scope"], row["phase"])) == place
            and self._logical(row) != row["flops"]
        ]
        if found:
            amount = sum((row["flops"] - self._logical(row)) * row["executions"] for row in found)
            names = _listed(f"{row['name']} ({row['lhs']} x {row['rhs']}, split {row['split_k']})" for row in found)
            yield Explanation(amount, "padding of a split or library product", names)

    def _logical(self, row: Mapping[str, Any]) -> int:
        """FLOPs of a dot without the compiler's padding.

        A library product of the sizes M, K, N, each rounded up to its alignment, comes from the equation of the jaxpr
        that rounds up to it; where no equation of the place is the only one, the padding that the module shows counts.
        """
        shown = int(row["logical_flops"] or row["flops"])
        staged = pipeline.ticks(self.prediction.case) and row["scope"].startswith("group")  # shapes of one device there
        if not (self.devices == 1 or staged) or row["shares"] or not row["target"].startswith("__cublas"):
            return shown
        padded = (row["batch"], *sorted((row["m"], row["k"], row["n"])))
        sizes = {
            equation["flops"]
            for equation in self.observed.data["jaxpr"]["rows"]
            if _touches(row, (equation["scope"], equation["phase"]))
            and equation["batch"] is not None
            and (equation["batch"], *sorted(_aligned(equation[name]) for name in "mkn")) == padded
        }
        return int(sizes.pop()) if len(sizes) == 1 else shown

    def _grouped(self, rows: Sequence[Row]) -> list[Row]:
        """Compare a group of layers once, over all phases, where the compiler dropped names of products in it and the
        places inferred for them do not add up.

        Where a product could stand in any of several groups, all that are not settled are compared as one. Both sides
        are summed alike, so nothing closes that the totals and explanations do not close.
        """
        nameless: dict[str, list[str]] = {}
        for row in self.hlo["contractions"]:
            if not row["op_name"] and not row["scope_exact"]:
                nameless.setdefault(_top(row["scope"]), []).append(row["name"])
        unsettled = {_top(row.scope) for row in rows if row.status == "open"} & {*nameless}
        kept = [row for row in rows if _top(row.scope) not in unsettled]
        together = [sorted(unsettled)] if "" in unsettled else [[top] for top in sorted(unsettled)]
        for tops in together:
            top = tops[0]
            inside = [row for row in rows if _top(row.scope) in tops]
            predicted = sum(row.prediction for row in inside if isinstance(row.prediction, int))
            seen = [row.observation for row in inside]
            total = None if None in seen else sum(value for value in seen if value is not None)
            names = [name for each in tops for name in nameless[each]]
            reason = f"the compiler dropped the names of {_listed(names)}: compared over all parts and phases"
            folded = _folded(item for row in inside for item in row.explanations)
            kept.append(Row("matmul_flops", top, "", UNIT, predicted, total, folded, reason))
        return kept

    def _fewer(self, members: Sequence[Place], place: Place) -> Iterable[Explanation]:
        """Explain equations of the jaxpr that the compiled program executes less often."""
        if place[1] == "replay":
            undone = list(self._undone(members))
            yield from undone or self._merged(members)
            return
        yield from self._merged(members)
        equations = [row for row in self.observed.data["jaxpr"]["rows"] if (row["scope"], row["phase"]) in members]
        if self.devices != 1 or any(row["total"] is None for row in equations):
            return
        amount, names = 0, []
        for row in self._dots(place[1]):
            same = [item for item in equations if _bears(row, item) and item["flops"] == self._logical(row)]
            times = {_times(item) for item in same}
            if len(times) == 1 and row["executions"] is not None and not row["shares"]:
                (wanted,) = times
                if row["executions"] < wanted:
                    names.append(f"{row['name']} runs {row['executions']} times for {wanted}")
                    amount += (wanted - row["executions"]) * self._logical(row)
        if amount:
            yield Explanation(-amount, "loop-invariant hoisting", _listed(names))

    def _repeated(self, place: Place) -> Iterable[Explanation]:
        """A product that a library runs more often than the jaxpr, each time for another consumer.

        One consumer takes the product with a sum fused into the call, another takes it bare: the calls bear one
        equation's name and differ in what they add. Equal calls are no case of it.
        """
        if self.devices != 1:
            return
        equations = [row for row in self.observed.data["jaxpr"]["rows"] if (row["scope"], row["phase"]) == place]
        groups: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
        for row in self._dots(place[1]):
            if row["scope"] == place[0] and row["op_name"] and row["target"] and not row["shares"]:
                groups.setdefault((row["op_name"], self._logical(row)), []).append(row)
        for (_, size), rows in groups.items():
            wanted = sum(1 for item in equations if item["flops"] == size and _bears(rows[0], item))
            distinct = {row["addend"]: row for row in rows}
            extra = list(distinct.values())[wanted:] if wanted else []
            if extra:
                amount = sum(size * (row["executions"] or 0) for row in extra)
                shown = _listed(f"{row['name']} adds {row['addend'] or 'nothing'}" for row in distinct.values())
                evidence = f"{wanted} {'equation' if wanted == 1 else 'equations'}; {shown}"
                yield Explanation(amount, "one product run again for another consumer", evidence)

    def _dots(self, phase: str) -> list[Mapping[str, Any]]:
        return [row for row in self.hlo["contractions"] if row["phase"] == phase]

    def _undone(self, members: Sequence[Place]) -> Iterable[Explanation]:
        """A replay in the jaxpr without any product in the compiled program, whose forward results are kept instead.

        Replay starts from a layer's saved input, so what makes one product common with its forward twin makes all of
        the layer common: a single product that is gone from a replay that is there is not undone recomputation.
        """
        for item in sorted(members):
            top = _top(item[0])
            if any(_top(row["scope"]) == top for row in (*self._dots("replay"), *self._reduced("replay"))):
                continue
            nameless = (row for row in self.hlo["contractions"] if not row["op_name"])
            if self.devices == 1 and any(_top(row["scope"]) == top for row in nameless):
                continue  # which of the nameless are replay is only inferred: `merged` counts over all phases
            equations = [row for row in self.observed.data["jaxpr"]["rows"] if (row["scope"], row["phase"]) == item]
            forward = [row["name"] for row in self._dots("forward") if _touches(row, (item[0], "forward"))]
            total = sum(row["total"] or 0 for row in equations)
            if not equations or not forward or total % self.devices:
                continue
            kept = f"no product under replay in {top}; forward results kept: {_listed(forward)}"
            evidence = f"{len(equations)} equations under replay in the jaxpr, {kept}"
            yield Explanation(-(total // self.devices), "recomputation undone by the compiler", evidence)

    @cached_property
    def merged(self) -> Mapping[Place, tuple[int, str]]:
        """Replay merged with equal products, by place: FLOPs and evidence (see `merged`)."""
        equations = merged.done(self.observed.data["jaxpr"]["rows"])
        dots = merged.done(
            {**row, "flops": self._logical(row), "total": row["executions"] and row["executions"] * self._logical(row)}
            for row in self.hlo["contractions"]
            if row["flops"] is not None
        )
        reduced = merged.done(self._all_reduced())
        if self.devices != 1 or equations is None or dots is None or reduced is None:
            return {}
        return merged.merged(self.prediction.case, equations, [*dots, *reduced])

    def _merged(self, members: Sequence[Place]) -> Iterable[Explanation]:
        for place in sorted(members):
            if place in self.merged:
                amount, evidence = self.merged[place]
                yield Explanation(amount, merged.REASON, evidence)

    def _reduced(self, phase: str) -> list[Mapping[str, Any]]:
        return [row for row in self.hlo["strength_reduced"] if row["phase"] == phase]

    def findings(self) -> list[Finding]:
        """Return what the compiler did that a total does not show."""
        found = []
        undone = [
            row
            for row in self._rows("matmul_flops")[1:]
            for item in row.explanations
            if item.reason.startswith(("recomputation undone", merged.REASON))
        ]
        if undone:
            scopes = tuple(sorted({row.scope for row in undone}))
            found.append(
                Finding("recomputation undone", "the compiler removed declared recomputation in these scopes", scopes)
            )
        found += kernels.findings(self.hlo["opaque"])
        if self.hlo["unattributed"]:
            names = tuple(f"{row['phase']}: {_listed(row['instructions'])}" for row in self.hlo["unattributed"])
            found.append(Finding("unattributed", "contractions without a component scope", names))
        return found


def _opaque(place: Place, calls: Iterable[kernels.Call], coarse: Mapping[Place, Place]) -> Iterable[Explanation]:
    """The products of a place that opaque calls do instead of the contractions one can count."""
    found = [
        (call, amount) for call in calls for where, amount in call.amounts.items() if coarse.get(where, where) == place
    ]
    if found:
        names = _listed(dict.fromkeys(f"{call.name} ({call.kernel}: {call.shape})" for call, _ in found))
        yield Explanation(-sum(amount for _, amount in found), "opaque kernel: declared closed form", names)


def _hidden(row: Row, undeclared: Sequence[Mapping[str, Any]]) -> Row:
    """Return a row without an observation where a kernel that nobody declared may hold what is missing from it."""
    inside = [item for item in undeclared if _holds(item, (row.scope, row.phase))]
    return replace(row, observation=None, reason=_nobody(inside)) if inside and row.status == "open" else row


def _holds(item: Mapping[str, Any], place: Place) -> bool:
    around = item["scope"].rpartition("/")[0] or item["scope"]
    near = place[0] == around or _below(place[0], around) or _below(around, place[0])
    return near and (item["phase"] == place[1] or (item["phase"], place[1]) == ("backward", "replay"))


def _nobody(items: Sequence[Mapping[str, Any]]) -> str:
    return f"nobody declared what these calls multiply: {_listed(item['name'] for item in items)}"


def _opaque_row(item: Mapping[str, Any]) -> Row:
    reason = f"{item['target']} is opaque and not declared here: its FLOPs do not follow from its shapes"
    return Row("opaque_flops", item["scope"], item["phase"], UNIT, None, None, reason=reason)


def _bears(row: Mapping[str, Any], equation: Mapping[str, Any]) -> bool:
    """Whether a dot bears the name of an equation: one place, one product as the program spells it."""
    spelled = str(equation["name"]).rsplit("/", 1)[-1]
    same = (row["scope"], row["phase"]) == (equation["scope"], equation["phase"])
    return same and spelled in str(row["op_name"]).split("/")


def _aligned(extent: int) -> int:
    """Round up to the eight elements to which cuBLAS products of 16-bit types are padded."""
    return extent + -extent % 8


def _times(row: Mapping[str, Any]) -> int:
    return int(row["total"] // row["flops"]) if row["flops"] else 0


def _touches(row: Mapping[str, Any], place: Place) -> bool:
    if row["phase"] != place[1]:
        return False
    return row["scope"] == place[0] or any(share["scope"] == place[0] for share in row["shares"])


def _places(rows: Iterable[Mapping[str, Any]]) -> dict[Place, int]:
    return _summed(((row["scope"], row["phase"]), row["flops"] or 0) for row in rows)


def _summed(pairs: Iterable[tuple[Place, int]]) -> dict[Place, int]:
    found: dict[Place, int] = {}
    for place, value in pairs:
        found[place] = found.get(place, 0) + value
    return found


def _coarse(left: Mapping[Place, int], right: Mapping[Place, int]) -> dict[Place, Place]:
    """Map each place to the widest scope of its phase that one side uses for several components of the other."""
    scopes: dict[str, set[str]] = {}
    for scope, phase in (*left, *right):
        scopes.setdefault(phase, set()).add(scope)
    mapping = {}
    for phase, found in scopes.items():
        enclosing = sorted(scope for scope in found if any(_below(other, scope) for other in found))
        for scope in found:
            mapping[scope, phase] = (
                next((wide for wide in enclosing if scope == wide or _below(scope, wide)), scope),
                phase,
            )
    return mapping


def _top(scope: str) -> str:
    return scope.split("/", 1)[0]


def _below(scope: str, wide: str) -> bool:
    return scope != wide and (not wide or scope.startswith(wide + "/"))


def _merged(values: Mapping[Place, int], coarse: Mapping[Place, Place]) -> dict[Place, int]:
    return _summed((coarse.get(place, place), value) for place, value in values.items())


def _folded(items: Iterable[Explanation]) -> tuple[Explanation, ...]:
    """Join explanations of one reason, so that a total shows each rule once."""
    amounts: dict[str, int] = {}
    evidence: dict[str, list[str]] = {}
    for item in items:
        amounts[item.reason] = amounts.get(item.reason, 0) + item.amount
        evidence.setdefault(item.reason, []).append(item.evidence)
    return tuple(Explanation(amount, reason, _listed(evidence[reason])) for reason, amount in amounts.items())


def _listed(names: Iterable[str], most: int = 6) -> str:
    found = list(names)
    rest = f" and {len(found) - most} more" if len(found) > most else ""
    return ", ".join(found[:most]) + rest
