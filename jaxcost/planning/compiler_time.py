"""The compiler's own estimate of a step's time, with what it covers.

XLA for TPUs states `optimal_seconds` in its cost analysis. It is XLA's number, shown beside ours and never mixed with
it: a loop body counts once however often it runs, and an instruction without an estimate subtracts from the sum, which
can so be negative. The compilers for GPUs ahead of time and for CPUs state no such time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from jaxcost.observation.observed import Observed

KEY = "optimal_seconds"


@dataclass(frozen=True)
class CompilerTime:
    """Seconds as the compiler states them; `covers` is `step`, `loop bodies once` or `nothing`, with the reason."""

    target: str
    seconds: float | None
    covers: str
    reason: str

    def to_data(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"target": self.target, "seconds": self.seconds, "covers": self.covers, "reason": self.reason}


def compiler_time(observed: Observed) -> CompilerTime:
    """Return what the compiler that made an observation says about the time of one step."""
    section, target = observed.data["compiler"], observed.target
    if section is None:
        return CompilerTime(target, None, "nothing", observed.reason or "nothing was compiled")
    raw = section["raw"]
    table = raw.get("cost_analysis")
    if table is None:
        return CompilerTime(target, None, "nothing", str(raw.get("cost_analysis_reason") or "no cost analysis"))
    value = table.get(KEY)
    family = str(observed.data["target"].get("family", target.split("-", 1)[0]))
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value) or family != "tpu":
        reason = f"the compiler for {target} states no {KEY}"
        return CompilerTime(target, None, "nothing", reason)
    if value <= 0:
        reason = "not above zero: some instruction has no estimate and subtracts from the sum, so it is no time"
        return CompilerTime(target, float(value), "nothing", reason)
    loops = len((observed.data["hlo"] or {}).get("loops", ()))
    if loops:
        reason = f"each of {loops} loop bodies counts once, not once a layer: unroll the layers to compare"
        return CompilerTime(target, float(value), "loop bodies once", reason)
    return CompilerTime(target, float(value), "step", "XLA's estimate, its own conventions")
