"""The compiler's own estimate of a step's time, with what it covers.

XLA for TPUs says two things. Its cost analysis states `optimal_seconds`: a loop body counts once however often it runs,
and an instruction without an estimate subtracts from the sum, which can so be negative. And it estimates cycles for
each instruction it schedules on the compute units; summed with loops counted they cover the step but for collectives
and waits. They are XLA's numbers, shown beside ours and never mixed with them. Cycles become a time only at a declared
clock rate: none is recorded. The compilers for GPUs ahead of time and for CPUs state neither.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from jaxcost.observation.observed import Observed
from jaxcost.planning.quantities import Number, positive

KEY = "optimal_seconds"
NOT_READ = "cycles are read from a compile made now, not from a record"


@dataclass(frozen=True)
class Cycles:
    """Cycles of the compute units in one step, by scope and phase; `without_estimate` are executions by opcode."""

    total: int | None
    reason: str
    by_place: tuple[Mapping[str, Any], ...] = ()
    without_estimate: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class CompilerTime:
    """Seconds as the compiler states them; `covers` is `step`, `loop bodies once` or `nothing`, with the reason."""

    target: str
    seconds: float | None
    covers: str
    reason: str
    cycles: Cycles
    hertz: Fraction | None = None

    @property
    def cycle_seconds(self) -> Fraction | None:
        """The cycles at the declared clock; None where either is unknown."""
        known = self.cycles.total is not None and self.hertz is not None
        return Fraction(self.cycles.total or 0) / self.hertz if known and self.hertz else None

    def to_data(self) -> dict[str, Any]:
        """Return the JSON form."""
        time, found = self.cycle_seconds, self.cycles
        return {
            "target": self.target,
            "seconds": self.seconds,
            "covers": self.covers,
            "reason": self.reason,
            "cycles": found.total,
            "cycles_reason": found.reason,
            "cycles_by_place": [dict(row) for row in found.by_place],
            "without_estimate": dict(found.without_estimate or {}),
            "clock_hz": None if self.hertz is None else float(self.hertz),
            "cycle_seconds": None if time is None else float(time),
        }


def nothing_compiled(target: str = "") -> dict[str, Any]:
    """Return the JSON form where no estimate was asked for."""
    reason = "no target was compiled for: name one with --target"
    return CompilerTime(target, None, "nothing", reason, Cycles(None, reason)).to_data() | {"target": target or None}


def compiler_time(observed: Observed) -> CompilerTime:
    """Return what the compiler that made an observation (or a record of one) says about the time of one step."""
    section, target = observed.data["compiler"], observed.target
    if section is None:
        reason = observed.reason or "nothing was compiled"
        return CompilerTime(target, None, "nothing", reason, Cycles(None, reason))
    raw = section["raw"]
    family = str(observed.data["target"]["family"])
    loops = len((observed.data["hlo"] or {}).get("loops", ()))
    seconds, covers, reason = optimal(raw.get("cost_analysis"), str(raw.get("cost_analysis_reason")), family, loops)
    return CompilerTime(target, seconds, covers, reason, Cycles(None, NOT_READ))


def from_compile(answer: Mapping[str, Any], family: str, clock_ghz: Number | None = None) -> CompilerTime:
    """Return what a compile made now says: the answer of `observation.cycles.compiler_cycles`.

    Args:
        answer: the estimates.
        family: `tpu`, `cuda` or `cpu`.
        clock_ghz: declared rate of the compute units.
    """
    hertz = None if clock_ghz is None else positive(clock_ghz, "clock_ghz") * 10**9
    if answer["failed"]:
        return CompilerTime(answer["target"], None, "nothing", answer["failed"], Cycles(None, answer["failed"]), hertz)
    seconds, covers, reason = optimal(answer["cost_analysis"], answer["cost_analysis_reason"], family, answer["loops"])
    cycles = Cycles(answer["cycles"], answer["reason"], tuple(answer["by_place"]), answer["without_estimate"])
    return CompilerTime(answer["target"], seconds, covers, reason, cycles, hertz)


def optimal(table: Mapping[str, Any] | None, missing: str, family: str, loops: int) -> tuple[float | None, str, str]:
    """Return XLA's `optimal_seconds`, what it covers, and why."""
    if table is None:
        return None, "nothing", missing
    value = table.get(KEY)
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value) or family != "tpu":
        return None, "nothing", f"the {family} compiler states no {KEY}"
    if value <= 0:
        reason = "not above zero: some instruction has no estimate and subtracts from the sum, so it is no time"
        return float(value), "nothing", reason
    if loops:
        reason = f"each of {loops} loop bodies counts once, not once a layer: unroll the layers to compare"
        return float(value), "loop bodies once", reason
    return float(value), "step", "XLA's estimate, its own conventions"
