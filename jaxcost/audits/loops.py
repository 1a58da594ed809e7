"""The loops of the compiled program: how often each runs, who says so, what one trip costs and carries."""

from __future__ import annotations

from typing import Any

from jaxcost.audits.evidence import Evidence, Notes
from jaxcost.observation.hlo.trips import ZERO, Loop, Total
from jaxcost.observation.sections import interval

NAMED = 8  # loops with a finding of their own
_FLOPS = "flops"


def section(evidence: Evidence, notes: Notes) -> list[dict[str, Any]]:
    """Return one row per loop, in the order of the module (inner before outer).

    `trips` is the count each time the loop runs: an integer, the interval it lies in, or null with `reason` (then
    `minimum` is what is certain, and `supply` says how to give it). `count_from`: declared by XLA, derived from the
    loop's own scalars, supplied by the caller, unknown, or unreached. `entries` and `total_trips` are those of one step
    on one device; `flops_per_trip` and `flops` hold everything the body calls; `state_bytes` is carried from trip to
    trip.
    """
    graph, rows = evidence.graph, []
    wrong: list[tuple[Loop, Total, Total]] = []
    own = {row.id: {_FLOPS: row.flops} for row in evidence.work.rows}
    uncounted = {unknown.name for unknown in evidence.work.unknowns if unknown.voids and unknown.kind != "loop"}
    opaque = {at.id: {_FLOPS: 1} for at in graph.module.walk() if at.name in uncounted}
    inside, hidden = graph.executions.within(own), graph.executions.within(opaque)
    for number, loop in graph.executions.loops.items():
        at = graph.module.instructions[number]
        where, _ = graph.places.named(at)
        per_trip = in_all = ZERO
        if number in inside:
            per_trip, in_all = inside[number].per_trip.get(_FLOPS, ZERO), inside[number].whole.get(_FLOPS, ZERO)
        if number in hidden and hidden[number].per_trip:
            per_trip = in_all = Total(None, None, "it holds a kernel whose FLOPs are not known")
        reason = loop.reason or per_trip.reason
        row = {
            "name": loop.instruction, "op_name": loop.op_name, "scope": where.scope, "phase": where.phase,
            "source": evidence.user_source(at) if loop.line else "", "computation": loop.computation, "body": loop.body,
            "trips": _trips(loop), "minimum": loop.minimum, "maximum": loop.maximum, "reason": reason,
            "count_from": loop.source, "entries": interval(loop.entries), "total_trips": interval(loop.total),
            "flops_per_trip": interval(per_trip), "flops": interval(in_all), "state_bytes": loop.state_bytes,
            "supply": "",
        }  # fmt: skip
        if loop.source == "unknown" or (loop.trips is None and not loop.varies):
            row["supply"] = f"trips={{{loop.instruction!r}: N}} in Python, --trips {loop.instruction}=N at the terminal"
        if loop.trips != 1 and per_trip != ZERO and loop.source != "unreached":
            wrong.append((loop, per_trip, in_all))
        rows.append(row)
    if evidence.program.cost_analysis is not None:  # without one there is no number that could mislead
        _counted_once(wrong, notes)
    return rows


def _trips(loop: Loop) -> int | dict[str, int] | None:
    if loop.trips is not None:
        return loop.trips
    return None if loop.maximum is None else {"minimum": loop.minimum, "maximum": loop.maximum}


def _counted_once(loops: list[tuple[Loop, Total, Total]], notes: Notes) -> None:
    """Say of the loops with most in them that XLA counts their bodies once."""
    loops = sorted(loops, key=lambda item: -(item[2].maximum if item[2].maximum is not None else 1 << 62))
    for loop, per_trip, in_all in loops[:NAMED]:
        often = "an unknown number of" if loop.total.maximum is None else f"{loop.total.maximum:,}"
        most = "up to " if loop.total.value is None and loop.total.maximum is not None else ""
        text = f"XLA's cost analysis counts the body of {loop.instruction} once; it runs {most}{often} times a step"
        if per_trip.value is not None:
            text += f", {per_trip.value:,} FLOPs each: it leaves out what follows the first"
        more: dict[str, Any] = {}
        if in_all.value is not None and per_trip.value is not None:
            more["flops"] = in_all.value - per_trip.value
        notes.find("loop_counted_once", text, where=loop.op_name or loop.instruction, **more)
    if len(loops) > NAMED:
        notes.find("loop_counted_once", f"it counts the bodies of {len(loops) - NAMED} more loops once")
