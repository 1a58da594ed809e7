"""The jaxpr's count beside the compiled one, and what the compiler did to the difference.

Both are compared by scope and phase, over all devices. A difference is explained by single equations and single
instructions: a product that became multiply and reduce, K padded, groups multiplied densely, an equation nobody reads,
one that repeats another, one that need not run in every trip of its loop, a kernel that declares something else than
its own program does. Each amount is that instruction's or that equation's own FLOPs. What is left is unexplained, and
said so: no reason is ever made from the difference itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from jaxcost.audits.enclosing import enclosed, listed
from jaxcost.audits.evidence import Evidence, Notes
from jaxcost.audits.flops import amount_value
from jaxcost.audits.replication import replicated
from jaxcost.observation.hlo.amounts import Amount
from jaxcost.observation.hlo.flops import FlopRow
from jaxcost.observation.hlo.linalg import fft_flops
from jaxcost.observation.hlo.origins import source_of
from jaxcost.observation.hlo.scope import primitive_of

LISTED = 100
_RFFT, _IRFFT = 2, 3  # fft_type of an instruction
_EVIDENCE = 8  # names listed for one reason
_HOST = frozenset("pure_callback io_callback debug_callback debug_print".split())

_CONVOLUTION, _ELEMENTWISE = "conv_general_dilated", "elementwise_product"

Place = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Reason:
    """Why the compiled count of a place differs: `flops` (signed) by what `evidence` names."""

    kind: str
    place: Place
    flops: int
    text: str
    evidence: tuple[str, ...]


def section(evidence: Evidence, notes: Notes) -> dict[str, Any] | None:
    """Return the jaxpr's count and its differences to the compiled one; None where the source had no jaxpr.

    `flops` is an integer, an interval, or null with `reason`. `differences`: one row per scope and phase that differs,
    with `reasons` and what is `unexplained`; null where one of the two sides is no exact number. Places that agree only
    together are one row, of the scope around them, with `places`.
    """
    lowered = evidence.program.lowered
    if lowered is None or lowered.jaxpr is None:
        return None
    data = lowered.jaxpr
    blind = [row for row in data["opaque"] if row["primitive"] not in _HOST]
    reason = data["reasons"].get("flops", "")
    if blind and not reason:
        reason = data["unknowns"][0] if data["unknowns"] else "it holds what cannot be counted"
    devices = evidence.reading.device_count
    counts = _counts(evidence, data, devices)
    reasons = _agreeing(_reasons(evidence, data, devices), counts)
    differences = _differences(evidence, counts, devices, reasons)
    _findings(reasons, notes)
    for text in data["unknowns"]:
        notes.unknown(text, "jaxpr", text)
    largest = sorted(data["rows"], key=lambda row: -(row["flops"] if row["total"] is None else row["total"]))
    return {
        "flops": None if blind else data.get("interval", data["flops"]),
        "counted": data.get("interval", data["flops"]), "reason": reason,
        "by_phase": dict(data["by_phase"]),
        "by_scope": [
            {"scope": row["scope"], "phase": row["phase"], "flops": row["flops"]}
            for row in data.get("intervals", data["by_scope_phase"])
        ],
        "operations": dict(data.get("operations", {})), "kernels": list(data.get("kernels", [])),
        "equations": len(data["rows"]), "rows": [_row(row) for row in largest[:LISTED]],
        "not_listed": _rest(largest[LISTED:]),
        "opaque": [_row(row) for row in data["opaque"]], "unknowns": list(data["unknowns"]),
        "devices": devices, "differences": differences,
    }  # fmt: skip


def _rest(rows: Sequence[Mapping[str, Any]]) -> dict[str, int | None]:
    """How many equations are in no row, and their FLOPs; null where one of them has no exact number."""
    totals = [row["total"] for row in rows]
    return {"count": len(rows), "total": None if None in totals else sum(totals)}


def _row(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if value not in ("", None, False) or key in ("scope", "flops")}


# Differences ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Count:
    """Both counts of a place, over all devices; None is no exact number. `amounts` are the compiled ones of one."""

    jaxpr: int | None
    compiled: int | None
    amounts: tuple[Amount, ...]


def _counts(evidence: Evidence, data: Mapping[str, Any], devices: int) -> dict[Place, _Count]:
    before = {(row["scope"], row["phase"]): row["flops"] for row in data["by_scope_phase"]}
    names = _primitives(data)
    after: dict[Place, list[Amount]] = {}
    for (scope, phase), amount in evidence.work.by_place.items():
        after.setdefault((_home(scope, names), phase), []).append(amount)
    found = {}
    for place in {*before, *after}:
        amounts = tuple(after.get(place, ()))
        right: int | None = 0
        for amount in amounts:
            right = None if right is None or amount.value is None else right + amount.value * devices
        found[place] = _Count(before.get(place, 0), right, amounts)
    return found


def _agreeing(reasons: list[Reason], counts: Mapping[Place, _Count]) -> list[Reason]:
    """Without copies that the count of their place contradicts: nothing is computed twice where nothing is more."""
    even = {place for place, count in counts.items() if count.jaxpr is not None and count.jaxpr == count.compiled}
    sums: dict[Place, int] = {}
    for reason in reasons:
        sums[reason.place] = sums.get(reason.place, 0) + reason.flops
    return [r for r in reasons if r.kind != "replicated" or r.place not in even or not sums[r.place]]


def _differences(
    evidence: Evidence, counts: Mapping[Place, _Count], devices: int, reasons: Iterable[Reason]
) -> list[dict[str, Any]]:
    explained: dict[Place, list[Reason]] = {}
    for reason in reasons:
        explained.setdefault(reason.place, []).append(reason)
    rows = []
    for place in sorted({*counts, *explained}):
        mine = explained.get(place, [])
        count = counts.get(place, _Count(0, 0, ()))
        left, right = count.jaxpr, count.compiled
        if left is not None and left == right and not mine:
            continue
        texts = listed(
            {"kind": r.kind, "flops": r.flops, "text": r.text, "count": 1, "evidence": r.evidence} for r in mine
        )
        row: dict[str, Any] = {
            "scope": place[0], "phase": place[1], "jaxpr": left, "compiled": right, "difference": None,
            "reasons": texts, "unexplained": None, "reason": "",
        }  # fmt: skip
        if left is None or right is None:
            unsure = "the jaxpr's count" if left is None else "the compiled count"
            row["reason"] = f"{unsure} is no exact number here"
            if right is None and devices == 1 and len(count.amounts) == 1:
                row["compiled"] = amount_value(count.amounts[0])
            if left == right == None and not mine:  # noqa: E711  both are open in the same way: nothing to compare
                continue
        else:
            row["difference"] = right - left
            row["unexplained"] = right - left - sum(r.flops for r in mine)
        rows.append(row)
    return enclosed(rows)


def _primitives(data: Mapping[str, Any]) -> frozenset[str]:
    return frozenset(row["primitive"] for row in (*data["rows"], *data["opaque"]))


def _home(scope: str, primitives: frozenset[str]) -> str:
    """The scope an instruction came from: a kernel written for a primitive is named below it."""
    head, _, last = scope.rpartition("/")
    return head if last in primitives else scope


# Evidence -------------------------------------------------------------------------------------------------------------


def _reasons(evidence: Evidence, data: Mapping[str, Any], devices: int) -> list[Reason]:
    compiled: dict[Place, list[FlopRow]] = {}
    names = _primitives(data)
    for row in evidence.work.rows:
        compiled.setdefault((_home(row.scope, names), row.phase), []).append(row)
    equations: dict[Place, list[Mapping[str, Any]]] = {}
    for equation in data["rows"]:
        equations.setdefault((equation["scope"], equation["phase"]), []).append(equation)
    found = [*_rewritten(evidence, devices)]
    for place in {*compiled, *equations}:
        mine, theirs = compiled.get(place, []), equations.get(place, [])
        found += _routines(place, mine, theirs, devices)
        found += _passes(evidence, place, mine, devices)
        found += _kernels(place, mine, data, devices)
        found += _convolutions(place, mine, theirs, devices)
        if devices > 1:
            found += _replicated(evidence, place, mine, theirs, devices)
        found += _removed(evidence, place, mine, theirs, devices)
    return [reason for reason in found if reason.flops]


def _rewritten(evidence: Evidence, devices: int) -> Iterable[Reason]:
    """What single instructions say of themselves."""
    remat = {row.id for row in evidence.reading.contractions.rows if row.remat}
    for row in evidence.work.rows:
        place, times = (row.scope, row.phase), row.executions.value
        if times is None:
            continue
        if row.id in remat:
            yield Reason(
                "rematerialised", place, row.flops * times * devices, "XLA computes it again to save memory",
                (row.name,),
            )  # fmt: skip
        if row.active_flops is not None and row.active_flops != row.flops:
            more = (row.flops - row.active_flops) * times * devices
            yield Reason(
                "dense_groups", place, more, "groups are multiplied densely, under a mask", (row.name,)
            )  # fmt: skip
        elif row.logical_flops is not None and row.logical_flops != row.flops:
            more = (row.flops - row.logical_flops) * times * devices
            yield Reason("padded", place, more, "an operand is padded before it is multiplied", (row.name,))


def _routines(place: Place, mine: list[FlopRow], theirs: list[Mapping[str, Any]], devices: int) -> Iterable[Reason]:
    """A factorisation or transform that the compiler wrote out as products of its own."""
    routines = [equation for equation in theirs if equation["basis"] == "convention" and equation["total"] is not None]
    if not routines or len(routines) < len(theirs) or any(row.kind == "linear_algebra" for row in mine):
        return
    for equation in routines:
        yield Reason(
            "expanded", place, -equation["total"], f"{equation['primitive']} is no library routine here",
            (equation["name"] or equation["primitive"],),
        )  # fmt: skip
    for row in mine:
        if row.total.value is not None:
            text = "a product the compiler writes in place of a routine"
            yield Reason("expanded", place, row.total.value * devices, text, (row.name,))


def _passes(evidence: Evidence, place: Place, mine: list[FlopRow], devices: int) -> Iterable[Reason]:
    """A Fourier transform over several axes that the compiler makes one after the other: both by the convention, less
    the whole by it.
    """
    instructions = evidence.graph.module.instructions
    transforms = {row.id: row for row in mine if row.opcode == "fft"}
    for row in transforms.values():
        at = instructions[row.id]
        first = transforms.get(source_of(at.operands[0]).id)
        if first is None or first.op_name != row.op_name or row.executions.value is None:
            continue
        before = instructions[first.id]
        points = prod((*before.proto.fft_length, *at.proto.fft_length))
        side = at.shape if at.proto.fft_type == _IRFFT else before.operands[0].shape
        whole = (
            side.size // points * fft_flops(points, real=at.proto.fft_type == _IRFFT or before.proto.fft_type == _RFFT)
        )
        more = (first.flops + row.flops - whole) * row.executions.value * devices
        text = "a Fourier transform over several axes is made one after the other"
        yield Reason("split_transform", place, more, text, (first.name, row.name))


def _kernels(place: Place, mine: list[FlopRow], data: Mapping[str, Any], devices: int) -> Iterable[Reason]:
    """A kernel that declares another count than its own program gives."""
    kernels = [k for k in data.get("kernels", ()) if (k["scope"], k["phase"]) == place]
    for row in mine:
        alike = [k for k in kernels if k["declared"] == row.flops and isinstance(k["flops"], int)]
        if row.basis != "declared" or not alike or row.executions.value is None:
            continue
        more = (row.flops - alike[0]["flops"]) * row.executions.value * devices
        text = f"the kernel declares {row.flops:,} FLOPs a call, its own program counts {alike[0]['flops']:,}"
        yield Reason("declared", place, more, text, (row.name,))


def _convolutions(place: Place, mine: list[FlopRow], theirs: list[Mapping[str, Any]], devices: int) -> Iterable[Reason]:
    """A convolution that the compiler wrote as one with another window (space to batch, a stride unrolled)."""
    equations = [equation for equation in theirs if equation["primitive"] == _CONVOLUTION]
    rows = [row for row in mine if row.op_name and primitive_of(row.op_name) == _CONVOLUTION]
    if devices > 1 or len(equations) != 1 or len(rows) != 1 or len(theirs) != 1 or len(mine) != 1:
        return
    (row,), (equation,) = rows, equations
    times, own = row.executions.value, row.flops if row.logical_flops is None else row.logical_flops
    if times is not None and times == equation["executions"] and own != equation["flops"]:
        text = f"the convolution is written with another window: {row.operands[0]} by {row.operands[1]} to {row.result}"
        yield Reason("rewritten", place, (own - equation["flops"]) * times, text, (row.name,))


def _replicated(
    evidence: Evidence, place: Place, mine: list[FlopRow], theirs: list[Mapping[str, Any]], devices: int
) -> Iterable[Reason]:
    """Products whose parts several devices compute alike."""
    products = {row.id: row for row in evidence.reading.contractions.rows}
    for found in replicated(mine, products, theirs, devices):
        whole = found.copies == devices
        each = "the whole product" if whole else f"one {devices // found.copies}th of the product"
        text = f"each of {devices} devices computes {each}: {found.copies} times over"
        yield Reason("replicated", place, found.flops * (found.row.executions.value or 0), text, (found.row.name,))


def _removed(
    evidence: Evidence, place: Place, mine: list[FlopRow], theirs: list[Mapping[str, Any]], devices: int
) -> Iterable[Reason]:
    """Executions of equations that no instruction of this place makes, where the jaxpr itself allows to leave them
    out. On one device by the size of the product; on several, sizes are cut, and executions alone are counted.
    """
    shares = {row.id: max(1, len(row.shares)) for row in evidence.reading.contractions.rows}

    def size(row: FlopRow) -> int:
        if devices > 1:
            return 0
        own = row.active_flops or (row.logical_flops if row.logical_flops is not None else row.flops)
        return own // shares.get(row.id, 1)

    made: dict[int, int] = {}
    repeated: dict[int, int] = {}  # executions as multiply and reduce
    named: dict[int, list[str]] = {}
    for row in mine:
        times = row.executions.value
        if times is None:
            return
        made[size(row)] = made.get(size(row), 0) + times * shares.get(row.id, 1)
        named.setdefault(size(row), []).append(row.name)
        if row.kind == _ELEMENTWISE:
            repeated[size(row)] = repeated.get(size(row), 0) + times
    elementwise = tuple(row.name for row in mine if row.kind == _ELEMENTWISE)
    groups: dict[int, list[Mapping[str, Any]]] = {}
    for equation in theirs:
        if equation["basis"] == "shape" and not equation["kernel"]:
            groups.setdefault(0 if devices > 1 else equation["flops"], []).append(equation)
    for key, alike in groups.items():
        if any(equation["executions"] is None for equation in alike):
            continue
        missing = sum(equation["executions"] for equation in alike) - made.get(key, 0)
        kept = tuple(named.get(key, ()))
        again = min(-missing, repeated.get(key, 0)) if devices == 1 else 0
        if again > 0:
            text = f"{again} execution{'s' if again > 1 else ''} more: fusions repeat a product made elementwise"
            yield Reason("repeated", place, again * key, text, elementwise)
        gone: dict[str, list[tuple[Mapping[str, Any], int]]] = {}
        for equation, kind, removable in _removable(alike, elementwise if devices == 1 else None):
            left_out = min(missing, removable)
            if left_out > 0:
                missing -= left_out
                gone.setdefault(kind, []).append((equation, left_out))
        for kind, equations in gone.items():
            flops = sum(times * equation["flops"] for equation, times in equations)
            names = kept
            if kind == "strength_reduced":  # a multiply may have no name of its own left: then the equation's
                names = elementwise or tuple(dict.fromkeys(e["name"] or e["primitive"] for e, _ in equations))
            yield Reason(kind, place, -flops, _text(kind, equations, names), names)


def _removable(
    equations: list[Mapping[str, Any]], elementwise: tuple[str, ...] | None
) -> Iterable[tuple[Mapping[str, Any], str, int]]:
    """(equation, why, executions) that need be no product without changing a result: what nobody reads first, then
    products of vectors: nothing is summed where K is one, and `elementwise` names what sums where M or N is.
    """
    for equation in equations:
        if equation["dead"]:
            yield equation, "dead_code", equation["executions"]
    for equation in equations:
        if elementwise is None or equation["dead"]:
            continue
        if equation["k"] == 1 or (elementwise and 1 in (equation["m"], equation["n"])):
            yield equation, "strength_reduced", equation["executions"]
    for equation in equations:
        if equation["repeats"] and not equation["dead"]:
            kind = "replay_undone" if equation["phase"] == "replay" else "merged"
            yield equation, kind, equation["executions"]
    for equation in equations:
        if equation["alike"] > 1 and not equation["dead"] and not equation["repeats"]:
            times = equation["executions"]
            yield equation, "hoisted", times - times // equation["alike"]


def _text(kind: str, equations: list[tuple[Mapping[str, Any], int]], kept: tuple[str, ...]) -> str:
    first, times = equations[0][0], sum(n for _, n in equations)
    what = f"{times} execution{'s' if times > 1 else ''} of {first['name'] or first['primitive']}"
    if len(equations) > 1:
        what += f" and {len(equations) - 1} equations like it"
    if kind == "strength_reduced":
        return f"{what} became multiply and reduce without a name of its own ({', '.join(kept[:_EVIDENCE])})"
    left = f"the module keeps {', '.join(kept[:_EVIDENCE])} here" if kept else "the module holds none of them here"
    why = {
        "dead_code": "nobody reads the result",
        "replay_undone": "a recomputation of a product with the same operands was merged with it",
        "merged": "an earlier product has the same operands",
        "hoisted": "its operands stay the same in the loop around it",
    }[kind]
    return f"{what} left out: {why}; {left}"


_FOUND = {
    "replay_undone": "the compiler undid the recomputation of {n:,} FLOPs: checkpointing saves no memory there",
    "hoisted": "the compiler took {n:,} FLOPs out of loops whose operands do not change",
    "merged": "the compiler computes {n:,} FLOPs once that the program asks for again",
    "dead_code": "{n:,} FLOPs of the program are dropped: nobody reads their results",
    "dense_groups": "ragged products are compiled densely: {n:,} FLOPs more than their groups need",
    "replicated": "devices compute {n:,} FLOPs that other devices compute too",
    "rematerialised": "XLA recomputes {n:,} FLOPs of its own accord",
}  # fmt: skip


def _findings(reasons: Iterable[Reason], notes: Notes) -> None:
    sums: dict[str, int] = {}
    where: dict[str, set[str]] = {}
    for reason in reasons:
        if reason.kind in _FOUND:
            sums[reason.kind] = sums.get(reason.kind, 0) + abs(reason.flops)
            where.setdefault(reason.kind, set()).add(reason.place[0])
    for kind, total in sums.items():
        scopes = ", ".join(sorted(s for s in where[kind] if s)[:_EVIDENCE])
        notes.find(kind, _FOUND[kind].format(n=total), where=scopes, flops=total)
