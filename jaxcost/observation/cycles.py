"""The cycles that the TPU compiler estimates for each instruction, summed over a step with loops counted.

The compiler writes `estimated_cycles` into the window configuration of the fusions and copies it schedules on the
compute units. It does so after the stage that is dumped, so the module is taken from the executable. Collectives,
waits and other instructions without an estimate are listed, never counted as nothing. Cycles are of the compiler's own
cost model; they are no time until someone says how long a cycle is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxcost.contracts.case import Case
from jaxcost.contracts.mesh import program_mesh
from jaxcost.observation.hlo.module import Instruction, read_module
from jaxcost.observation.hlo.origins import Places
from jaxcost.observation.hlo.schema import parse
from jaxcost.observation.hlo.scope import scope_parts
from jaxcost.observation.hlo.trips import ZERO, Total, read_executions
from jaxcost.observation.observe import target_for
from jaxcost.observation.pool import Pool, WorkerFailure, request_for
from jaxcost.observation.sections import known_scopes
from jaxcost.observation.targets import parse_target, require
from jaxcost.observation.worker import task

TASK = "jaxcost.observation.cycles:compile_for_cycles"
# Bookkeeping that takes no time of its own: it names values, or its work is that of the computations it calls.
_FREE = frozenset(
    "parameter constant tuple get-tuple-element bitcast while call conditional after-all opt-barrier partition-id "
    "replica-id copy-done all-gather-done all-reduce-done collective-permute-done async-done async-update".split()
)


def compiler_cycles(case: Case, target: str, pool: Pool | None = None) -> dict[str, Any]:
    """Compile a case for a TPU target and return the compiler's estimates.

    Returns:
        `target`; `cost_analysis` (XLA's table, or None with `cost_analysis_reason`); `loops` (how many); `cycles`,
        `by_place` and `without_estimate` of `read_cycles`; `failed`, why there is nothing, else empty.

    Raises:
        RejectedError: mesh and target do not fit together.
        UnavailableError: the target's compiler is not installed.
    """
    found = target_for(case, target)
    require(found)
    request = request_for(found, TASK, {"case": case.to_data(), "target": found.text})
    if pool is not None:
        reply = pool.call(request)
    else:
        with Pool(size=1) as own:
            reply = own.call(request)
    if isinstance(reply, WorkerFailure):
        return {"target": found.text, "failed": reply.reason or reply.kind}
    answer: dict[str, Any] = reply.value
    return answer


@task
def compile_for_cycles(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Compile the step of a case for a target and read the estimates; runs in a worker, imports jax."""
    from jaxcost.observation.compiling import Compiled, compile_lowered, make_mesh
    from jaxcost.reference.step import make_step

    case, target = Case.from_data(payload["case"], "case"), parse_target(payload["target"])
    lowered = make_step(case, make_mesh(target, program_mesh(case))).trace().lower()
    compiled = compile_lowered(lowered, target, dump=False)
    if not isinstance(compiled, Compiled) or compiled.modules.optimised is None:
        return {"target": target.text, "failed": "the compiler refused the program"}
    return {
        "target": target.text,
        "failed": "",
        "cost_analysis": compiled.cost_analysis,
        "cost_analysis_reason": compiled.cost_analysis_reason,
        **read_cycles(compiled.modules.optimised, known_scopes(case)),
    }


def read_cycles(hlo: bytes, scopes: frozenset[str]) -> dict[str, Any]:
    """Read the estimates out of an executable's module.

    Returns:
        `cycles`, the sum over a step (None with a `reason` where a loop's count is unknown or nothing is estimated);
        `by_place`, cycles by scope and phase; `without_estimate`, executions by opcode of what has none; `loops`.

    Raises:
        RejectedError: the bytes are not one whole, consistent module.
    """
    module = read_module(parse(hlo)[0])
    executions = read_executions(module)
    places = Places(scope_parts(scopes))
    estimated: dict[int, dict[tuple[str, str, str], int]] = {}
    for at in module.walk():
        if at.computation.is_fusion or at.opcode in _FREE:
            continue
        cycles = estimated_cycles(at)
        if cycles is None:
            estimated[at.id] = {("", "", at.opcode): 1}
        else:
            where = places.of(at)
            estimated[at.id] = {(where.scope, where.phase, ""): cycles}
    totals = executions.totals(estimated)
    found = {key[:2]: total for key, total in totals.items() if not key[2]}
    whole = sum(found.values(), ZERO)
    reason = whole.reason if found else "the compiler estimates no instruction of this program"
    return {
        "cycles": whole.value if found else None,
        "reason": reason or ("" if whole.value is not None else "branches of a conditional differ"),
        "by_place": [
            {"scope": scope, "phase": phase, "cycles": total.value} for (scope, phase), total in sorted(found.items())
        ],
        "without_estimate": {key[2]: _count(total) for key, total in sorted(totals.items()) if key[2]},
        "loops": len(executions.loops),
    }


def estimated_cycles(at: Instruction) -> int | None:
    """Return the cycles of one execution, None where the compiler wrote none; the field is text in its JSON."""
    window = at.backend_config().get("window_config")
    value = window.get("estimated_cycles") if isinstance(window, Mapping) else None
    if isinstance(value, str) and value.isdecimal() and len(value) <= 18:
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _count(total: Total) -> int | None:
    return total.value
