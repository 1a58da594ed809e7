"""The live peak of a step: what a compiler holds at the fullest moment, under a materialisation policy.

    from jaxcost.prediction.peak import predict_peak
    found = predict_peak(program(case), "cuda")
    found.lower, found.expected, found.upper, found.at

A peak is predicted only inside the domain that its policy states; elsewhere the answer is `Unpredicted` and its reason.
"""

from __future__ import annotations

from importlib import import_module

from jaxcost.prediction.peak.moments import CLASSES, Held, Moment, PeakPrediction, Span, Unpredicted, peak_of
from jaxcost.prediction.peak.policy import Policy, Rule, policy_for
from jaxcost.prediction.program import Program

__all__ = [
    "CLASSES", "Held", "Moment", "PeakPrediction", "Policy", "Rule", "Span", "Unpredicted", "peak_of", "policy_for",
    "predict_peak",
]  # fmt: skip

# Which module knows the moments of a family and phase. Each has `moments(program, policy)`, which returns the moments
# (with `assumptions(program, policy)` beside them) or `Unpredicted` where the case lies outside of its domain.
MODULES: dict[tuple[str, str], str] = {
    ("cuda", "training"): "training",
    ("cuda", "prefill"): "serving",
    ("cuda", "decode"): "serving",
    ("tpu", "training"): "tpu",
    ("tpu", "prefill"): "tpu_serving",
    ("tpu", "decode"): "tpu_serving",
}


NARROWEST = 512  # hidden width; below it what a policy counts in copies of arrays is lost among workspace and padding


def predict_peak(program: Program, family: str) -> PeakPrediction | Unpredicted:
    """Return the live peak of one step on the worst device of a family of targets: `cuda`, `tpu` or `cpu`."""
    phase = program.case.workload.phase
    name = MODULES.get((family, phase))
    policy = policy_for(family, phase) if name else None
    if name is None or policy is None:
        return Unpredicted(f"no materialisation policy covers {phase} on {family}")
    reason = outside(program)
    if reason:
        return Unpredicted(reason)
    module = import_module(f"{__name__}.{name}")
    found = module.moments(program, policy)
    if isinstance(found, Unpredicted):
        return found
    return peak_of(policy, found, module.assumptions(program, policy))


def outside(program: Program) -> str:
    """Return why no policy covers a case, empty where one may."""
    case = program.case
    work, run = case.workload, case.execution
    if case.architecture.hidden_size < NARROWEST:
        return f"no development case is narrower than {NARROWEST}: compilers fuse and pad small arrays by other rules"
    for axis in ("pipeline", "context", "expert"):
        if run.degree(axis) > 1:
            return f"no development case has a {axis} axis"
    if run.zero:
        return "ZeRO stages are not executed by the reference program"
    if run.offload:
        return "no development case keeps state in host memory"
    if run.sharding != "explicit" and run.device_count > 1:
        return "the partitioner's own choices (sharding auto) follow from no declaration"
    if work.lengths is not None:
        return "ragged rows are not executed by the reference program"
    if work.phase == "prefill" and work.continues:
        return "a prefill over cached rows is not executed by the reference program"
    if work.attention not in ("materialised", "blockwise"):
        return f"the workspace of the {work.attention} kernel is the library's own"
    if run.sequence_parallel:
        return "no development case splits rows over tensor"
    return ""
