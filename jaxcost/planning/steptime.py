"""The time of a step between two idealisations, its collectives, and what a measured time says about them.

A collective takes its declared startup plus its bytes over the rate of the path it crosses: inside a node or slice,
and between them, level by level (`prediction.algorithms`). How much of it hides behind arithmetic is declared, or
unknown: the sum of collective durations is not the exposed time. Three numbers follow, none of them a promise:

    full overlap   every resource works all the time: the longest of arithmetic, traffic and communication
    ops in order   each op overlaps its own arithmetic and traffic, ops follow one another; plus exposed communication
    serialised     arithmetic, then traffic, then communication

A real program can be slower than the last: it is no upper bound, and asking for one is refused. It cannot be faster
than the first under the same counts; a measured time below it is an inconsistency.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from jaxcost.contracts.errors import Problem, RejectedError, reject
from jaxcost.planning.machine import Machine
from jaxcost.planning.quantities import Number, positive, share
from jaxcost.planning.roofline import OMITTED, Point, by_scope, points, total
from jaxcost.planning.utilisation import Cause, Utilisation, hfu, mfu
from jaxcost.prediction.collectives import collectives
from jaxcost.prediction.flops import FMA, PAIRS, flops
from jaxcost.prediction.program import Program
from jaxcost.prediction.rows import Row
from jaxcost.prediction.stages import bubble

_SENT = ("object", "scope", "phase", "kind", "axis", "participants", "times", "inside_bytes", "between_bytes")
IDEALISATIONS = ("full_overlap", "ops_in_order", "serialised")


@dataclass(frozen=True)
class Transmission:
    """One collective of the worst device: how often, what it sends, and what that takes."""

    object: str
    scope: str
    phase: str
    kind: str
    axis: str
    participants: int
    times: int
    inside_bytes: int | None
    between_bytes: int | None
    startup_seconds: Fraction
    seconds: Fraction | None
    reason: str

    def to_data(self) -> dict[str, Any]:
        """Return the JSON form; bytes are one execution's."""
        data = {name: getattr(self, name) for name in _SENT}
        data |= {"startup_seconds": float(self.startup_seconds), "seconds": _float(self.seconds)}
        return {**data, "reason": self.reason} if self.reason else data


@dataclass(frozen=True)
class StepTime:
    """A step on a machine: its points, its collectives, and its idealised times.

    `unsent` says why its collectives are unknown; empty where they are known.
    """

    program: Program
    machine: Machine
    points: tuple[Point, ...]
    transmissions: tuple[Transmission, ...]
    overlap: Mapping[str, Fraction] | None
    bubble: Fraction
    unsent: str = ""

    @property
    def whole(self) -> Point:
        """The step's arithmetic and traffic as one point."""
        return total(self.points)

    @property
    def communication_seconds(self) -> Fraction | None:
        """The time of all collectives one after the other; None where a path's rate is unknown."""
        return None if self.unsent else _sum(item.seconds for item in self.transmissions)

    def by_axis(self) -> dict[str, Fraction | None]:
        """Return the seconds of the collectives of each mesh axis."""
        axes = dict.fromkeys(item.axis for item in self.transmissions)
        return {axis: _sum(i.seconds for i in self.transmissions if i.axis == axis) for axis in axes}

    @property
    def exposed_seconds(self) -> Fraction | None:
        """Communication that is not hidden, by the declared overlap; None where none is declared or a rate is unknown.

        What a declaration hides cannot exceed the time there is to hide it behind; the excess is exposed.
        """
        if self.communication_seconds is None:
            return None
        if self.communication_seconds == 0:
            return Fraction(0)
        if self.overlap is None:
            return None
        hidden = Fraction(0)
        for axis, seconds in self.by_axis().items():
            assert seconds is not None
            hidden += seconds * min(self.overlap.get(part, Fraction(0)) for part in axis.split(","))
        return self.communication_seconds - min(hidden, self.whole.overlapped_seconds)

    def seconds(self, idealisation: str) -> Fraction | None:
        """Return one idealised time (`IDEALISATIONS`); None where it rests on an unknown.

        Raises:
            RejectedError: an upper bound is asked for.
        """
        problems = list(_upper_bound_problems(idealisation))
        if problems:
            raise RejectedError(problems)
        work, sent, idle = self.whole, self.communication_seconds, 1 + self.bubble
        if idealisation == "ops_in_order":
            exposed = self.exposed_seconds
            return None if exposed is None else work.overlapped_seconds * idle + exposed
        if sent is None:
            return None
        if idealisation == "full_overlap":
            return max(work.compute_seconds * idle, work.memory_seconds * idle, sent)
        return work.serial_seconds * idle + sent

    @property
    def bound(self) -> str:
        """The resource that takes longest: `compute`, `memory`, `interconnect`, or `unknown`."""
        work, sent = self.whole, self.communication_seconds
        if sent is None:
            return "unknown"
        named = {"compute": work.compute_seconds, "memory": work.memory_seconds, "interconnect": sent}
        return max(named, key=lambda name: named[name])

    @property
    def model_flops(self) -> int:
        """Forward and backward FLOPs over all devices, without replay: the numerator of MFU."""
        found = flops(self.program).totals
        return int(found["forward"] + found["backward"])

    @property
    def executed_flops(self) -> int:
        """All FLOPs over all devices, replay counted: the numerator of HFU."""
        return int(flops(self.program).totals["total"])

    def utilisation(self, seconds: Number) -> tuple[Utilisation, Utilisation]:
        """Return MFU and HFU of a step that takes so long."""
        convention = FMA + PAIRS[self.program.case.convention.attention_pairs]
        arguments = (seconds, self.machine.devices, self.machine.peak, convention)
        return mfu(self.model_flops, *arguments), hfu(self.executed_flops, *arguments)

    def measured(self, seconds: Number) -> dict[str, Any]:
        """Return what a measured step time says: its utilisation, its share of the bound, and whether it can be.

        A step far from the bound motivates a look at reuse, tiles, instructions and dependencies; the roof does not say
        which.
        """
        taken = positive(seconds, "measured_seconds")
        bound = self.seconds("full_overlap")
        useful, executed = self.utilisation(taken)
        causes: tuple[Cause, ...] = executed.causes
        below = _faster(taken, bound)
        if below:
            causes = (
                Cause("another step was measured: batch, context, precision, recomputation or devices differ"),
                Cause("the traffic counted is not what crosses memory: a cache holds an operand between ops"),
                Cause("the time leaves work out: an asynchronous step was not waited for"),
                *causes,
            )
        return {
            "seconds": float(taken),
            "mfu": useful.to_data(),
            "hfu": executed.to_data(),
            "share_of_full_overlap": None if bound is None else float(bound / taken),
            "status": "inconsistent" if below or not executed.consistent else "consistent",
            "causes": [cause.to_data() for cause in dict.fromkeys(causes)],
        }

    def to_data(self) -> dict[str, Any]:
        """Return the JSON form of points, scopes, collectives and step."""
        work, machine = self.whole, self.machine
        step: dict[str, Any] = {**work.to_data(), "bound": self.bound}
        step["communication_seconds"] = _float(self.communication_seconds)
        step["exposed_seconds"] = _float(self.exposed_seconds)
        step["bubble_over_ideal"] = float(self.bubble)
        step["seconds"] = {name: _float(self.seconds(name)) for name in IDEALISATIONS}
        step["reason"] = self.reason
        step["mfu_at"] = {}
        for name in IDEALISATIONS:
            at = self.seconds(name)
            step["mfu_at"][name] = None if not at or not self.model_flops else float(self.utilisation(at)[0].value)
        ridges = {name: _float(value) for name, value in machine.ridges().items()}
        return {
            "device": {
                "name": machine.device.name,
                "peak": {"per_second": float(machine.peak.per_second), "unit": machine.peak.unit,
                         "label": machine.peak.label},
                "memory_bytes_per_second": float(machine.bytes_per_second),
                "links": [machine.inside.to_data(), machine.between.to_data()],
                "devices": machine.devices,
                "devices_per_node": machine.devices_per_node,
                "startup_seconds": _float(machine.startup_seconds),
                "sources": [source.text for source in machine.device.sources],
                "conflicts": [conflict.to_data() for conflict in machine.device.conflicts],
            },
            "ridge_points": ridges,
            "ops": [item.to_data() for item in self.points],
            "scopes": [item.to_data() for item in by_scope(self.points)],
            "collectives": [item.to_data() for item in self.transmissions],
            "communication_by_axis": {axis: _float(value) for axis, value in self.by_axis().items()},
            "overlap": None if self.overlap is None else {axis: float(f) for axis, f in self.overlap.items()},
            "step": step,
            "omitted": list(OMITTED),
            "notes": list(machine.notes),
        }  # fmt: skip

    @property
    def reason(self) -> str:
        """Why some time is unknown; empty where none is."""
        if self.unsent:
            return self.unsent
        unknown = next((item.reason for item in self.transmissions if item.seconds is None), "")
        if unknown:
            return unknown
        if self.exposed_seconds is None:
            return "no overlap of communication with arithmetic is declared, so what is exposed is unknown"
        return ""


def step_time(program: Program, machine: Machine, overlap: Mapping[str, Number] | Number | None = None) -> StepTime:
    """Return a step's idealised times on a machine.

    Args:
        program: the declared step.
        machine: what it runs on.
        overlap: declared share of each axis's communication that hides behind arithmetic, or one for all axes; of a
            collective over two axes the smaller one.

    Raises:
        RejectedError: a share is not from 0 to 1, or names an axis without collectives.
    """
    ledger = collectives(program, machine.devices_per_node)
    unsent = "" if ledger.totals["payload_bytes"] is not None else ledger.reasons["payload_bytes"]
    mesh = program.case.execution.mesh_sizes
    busy = [name for name, size in mesh.items() if size > 1]
    sent = tuple(_transmission(row, machine, len(busy)) for row in ledger.rows)
    axes = {part for item in sent for part in item.axis.split(",")}
    declared: dict[str, Fraction] | None = None
    if overlap is not None:
        given = overlap if isinstance(overlap, Mapping) else dict.fromkeys(sorted(axes), share(overlap, "overlap"))
        for axis in given:
            if axis not in axes:
                known = ", ".join(sorted(axes)) or "none"
                raise reject("overlap", axis, "no collective runs over this axis", f"axes with collectives: {known}")
        declared = {axis: share(value, f"overlap.{axis}") for axis, value in given.items()}
    idle = bubble(program.case)[0] if program.case.execution.degree("pipeline") > 1 else Fraction(0)
    return StepTime(program, machine, points(program, machine), sent, declared, idle, unsent)


def _upper_bound_problems(idealisation: str) -> Iterable[Problem]:
    if idealisation not in IDEALISATIONS:
        rule = "neither full overlap nor the sum of all resources bounds a real program from above"
        remedy = f"choose one of {', '.join(IDEALISATIONS)}; only a measurement says how long it takes"
        yield Problem("idealisation", idealisation, rule, remedy)


def _faster(taken: Fraction, bound: Fraction | None) -> bool:
    """Return whether a measured time lies below full overlap."""
    return bound is not None and taken < bound


def _transmission(row: Row, machine: Machine, busy_axes: int) -> Transmission:
    fields = row.fields
    inside, between, times = fields["inside_send_bytes"], fields["between_send_bytes"], int(fields["times"])
    startup = machine.startup_seconds or Fraction(0)
    seconds: Fraction | None = None
    reason = str(fields.get("reason", ""))
    if inside is not None and between is not None:
        beside = max(0, busy_axes - fields["axis"].count(",") - 1)
        parts = (machine.inside.seconds(inside, beside), machine.between.seconds(between))
        for wire, part in zip((machine.inside, machine.between), parts, strict=True):
            if part is None:
                reason = f"{wire.reach}: {wire.source}"
        if None not in parts:
            seconds = times * (startup + sum(part for part in parts if part is not None))
    return Transmission(
        row.object, row.scope, row.phase, fields["kind"], fields["axis"], fields["participants"], times,
        inside, between, startup * times, seconds, "" if seconds is not None else reason,
    )  # fmt: skip


def _sum(values: Any) -> Fraction | None:
    listed = list(values)
    return None if None in listed else sum(listed, Fraction(0))


def _float(value: Fraction | None) -> float | None:
    return None if value is None else float(value)
