"""Rooflines of a step on one device: which resource bounds each op, each scope and the whole.

Every op has FLOPs and bytes across a named boundary. Its arithmetic alone would take a = FLOPs / peak, its traffic
alone b = bytes / bandwidth. max(a, b) is full overlap of the two, a + b is one after the other; both are idealisations
(Williams, Waterman, Patterson 2009, "Roofline"), and neither bounds a real program from above: launches, dependencies,
extra traffic and ineffective instructions come on top. FLOPs and bytes are the ledgers' (`prediction.flops`,
`prediction.traffic`), for the worst device of the mesh, over all microbatches and layers it runs.

The interconnect is a boundary of its own (`planning.steptime`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from jaxcost.planning.machine import Machine
from jaxcost.prediction.flops import busiest_rank, flops
from jaxcost.prediction.ownership import arguments, held
from jaxcost.prediction.program import Program
from jaxcost.prediction.stages import share
from jaxcost.prediction.traffic import product_rows

BOUNDARY = "device memory"
OMITTED = (
    "elementwise ops, norms, softmax arithmetic, embedding lookup and loss",
    "launches, dependencies between ops, reloaded tiles, ineffective instructions",
    "casts of parameters to the compute type, gathered weights and communication buffers on their way through memory",
)
# Stages of one attention kernel, which stand as one point unless attention is materialised.
_KERNEL = ("scores", "softmax", "values", "mask", "softcap")


@dataclass(frozen=True)
class Point:
    """FLOPs and bytes of one op (or a sum of ops) in one phase, with the time each resource alone would take."""

    scope: str
    phase: str
    flops: int
    bytes: int
    compute_seconds: Fraction
    memory_seconds: Fraction
    overlapped_seconds: Fraction
    boundary: str = BOUNDARY

    @property
    def intensity(self) -> Fraction | None:
        """FLOPs a byte across the boundary; None where nothing crosses it."""
        return Fraction(self.flops, self.bytes) if self.bytes else None

    @property
    def bound(self) -> str:
        """The resource whose time alone is the longer one: `compute`, `memory`, or `both`."""
        if self.compute_seconds == self.memory_seconds:
            return "both"
        return "compute" if self.compute_seconds > self.memory_seconds else "memory"

    @property
    def serial_seconds(self) -> Fraction:
        """One resource after the other, a + b. Not an upper bound."""
        return self.compute_seconds + self.memory_seconds

    @property
    def ceiling_flops_per_second(self) -> Fraction | None:
        """The rate of FLOPs at full overlap; None for an op without FLOPs."""
        return self.flops / self.overlapped_seconds if self.flops else None

    def to_data(self) -> dict[str, Any]:
        """Return the JSON form."""
        ceiling, intensity = self.ceiling_flops_per_second, self.intensity
        return {
            "scope": self.scope,
            "phase": self.phase,
            "flops": self.flops,
            "bytes": self.bytes,
            "boundary": self.boundary,
            "intensity": None if intensity is None else float(intensity),
            "compute_seconds": float(self.compute_seconds),
            "memory_seconds": float(self.memory_seconds),
            "overlapped_seconds": float(self.overlapped_seconds),
            "serial_seconds": float(self.serial_seconds),
            "ceiling_flops_per_second": None if ceiling is None else float(ceiling),
            "bound": self.bound,
        }


def point(scope: str, phase: str, flops: int, size: int, machine: Machine) -> Point:
    """Return the roofline point of some FLOPs and bytes on a machine."""
    compute, memory = Fraction(flops) / machine.peak.per_second, Fraction(size) / machine.bytes_per_second
    return Point(scope, phase, flops, size, compute, memory, max(compute, memory))


def points(program: Program, machine: Machine) -> tuple[Point, ...]:
    """Return the points of every op and phase of the worst device, in execution order; the optimizer stands last."""
    sums: dict[tuple[str, str], list[int]] = {}
    for row in flops(program).rows:
        sums.setdefault((_scope(program, row.scope), row.phase), [0, 0])[0] += int(row.per_device)
    micro = replace(program, sizes=program.device_microbatch_sizes)
    times = program.case.workload.accumulate
    for row in product_rows(micro):
        size = row.value * times * _on_rank(program, row.scope)
        sums.setdefault((_scope(program, row.scope), row.phase), [0, 0])[1] += int(size)
    order = {"forward": 0, "replay": 1, "backward": 2}
    found = [point(*key, work, size, machine) for key, (work, size) in sums.items() if work or size]
    found.sort(key=lambda item: order.get(item.phase, 3))
    update = optimizer_bytes(program)
    if update:
        found.append(point("optimizer", "optimizer", 0, update, machine))
    return tuple(found)


def by_scope(found: Iterable[Point], depth: int = 2) -> tuple[Point, ...]:
    """Return the points summed over phases by the first `depth` parts of their scopes.

    The overlapped time of a sum is the sum of its ops' overlapped times: ops follow one another.
    """
    sums: dict[str, Point] = {}
    for item in found:
        key = "/".join(item.scope.split("/")[:depth])
        sums[key] = _plus(sums[key], item) if key in sums else replace(item, scope=key, phase="")
    return tuple(sums.values())


def total(found: Iterable[Point]) -> Point:
    """Return the whole step as one point."""
    empty = Point("", "", 0, 0, Fraction(0), Fraction(0), Fraction(0))
    for item in found:
        empty = _plus(empty, item)
    return empty


def optimizer_bytes(program: Program) -> int:
    """Return what the optimizer moves on the worst device: state read and written once, gradients read once."""
    case = program.case
    if case.workload.phase != "training":
        return 0
    state = sum(item.per_device for item in arguments(program) if item.role != "input")
    gradients = sum(held(program, item).per_device for item in case.state.objects if item.role == "gradient")
    return int(2 * state + gradients)


def _plus(one: Point, other: Point) -> Point:
    return replace(
        one,
        flops=one.flops + other.flops,
        bytes=one.bytes + other.bytes,
        compute_seconds=one.compute_seconds + other.compute_seconds,
        memory_seconds=one.memory_seconds + other.memory_seconds,
        overlapped_seconds=one.overlapped_seconds + other.overlapped_seconds,
    )


def _scope(program: Program, scope: str) -> str:
    head, _, last = scope.rpartition("/")
    if program.case.workload.attention != "materialised" and last in _KERNEL:
        return f"{head}/attention"
    return scope


def _on_rank(program: Program, scope: str) -> Fraction:
    """Return the share of a group's layers (or of what stands outside) that the busiest pipeline rank runs."""
    if program.case.execution.degree("pipeline") == 1:
        return Fraction(1)
    head = scope.split("/", 1)[0]
    group = int(head.removeprefix("group")) if head.startswith("group") else None
    layers = 1 if group is None else program.sizes.repeats[group]
    return Fraction(share(program, busiest_rank(program).stages, scope, group, 0, layers), layers)
