"""Time in tokens and in steps: two routes to the same healthy duration, and their sum over stages.

One route divides all arithmetic by the useful rate of the allocation. The other times one step of one replica on its
own devices and counts steps. They differ by the rounding to whole steps, which has a closed form.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

from jaxcost.planning.run.budget import DAY
from jaxcost.planning.run.sheet import Unknown, figure
from jaxcost.planning.utilisation import hfu, useful_rate

HEALTHY = "healthy steps only: no checkpoint pause, failure, replay or restart"


@figure(
    "steps",
    "tokens",
    scope="stage",
    staged=True,
    convention="if all of the main run's budget went here",
    omitted="equal compute is not equal quality",
)
def affordable_tokens(main_run_flops: Any, flops_per_token: Any, padding: Any) -> Any:
    """Useful tokens that the main run's budget reaches."""
    return main_run_flops / flops_per_token * (1 - padding)


@figure("steps", "tokens", scope="stage", staged=True, convention="useful tokens: padding is not counted")
def stage_tokens(affordable_tokens: Any = None, tokens: Any = None) -> Any:
    """Tokens to train on."""
    if tokens is not None:
        return tokens
    if affordable_tokens is None:
        return Unknown("not given: tokens")
    return math.floor(affordable_tokens) or Unknown("the budget reaches no whole token")


@figure("steps", "tokens", scope="stage", staged=True, convention="padding counted")
def processed_tokens(stage_tokens: Any, padding: Any) -> Any:
    """Positions that are computed for them."""
    return stage_tokens / Fraction(1 - padding)


@figure("steps", "FLOPs", scope="stage", staged=True, convention="useful model FLOPs, padding positions computed")
def stage_flops(flops_per_token: Any, processed_tokens: Any) -> Any:
    """Arithmetic of the stage."""
    return flops_per_token * processed_tokens


@figure("steps", "steps", scope="stage", staged=True, convention="rounded up: the last step may be partly empty")
def optimizer_steps(stage_tokens: Any, step_useful_tokens: Any) -> Any:
    """Optimizer steps."""
    return math.ceil(Fraction(stage_tokens) / step_useful_tokens)


@figure("steps", "tokens/s", scope="stage", staged=True, convention=HEALTHY + "; positions, padding counted")
def tokens_per_s(useful_stage_flops_per_s: Any, flops_per_token: Any) -> Any:
    """Throughput."""
    return useful_stage_flops_per_s / flops_per_token


@figure("steps", "tokens/s", scope="device", staged=True, convention=HEALTHY + "; positions, padding counted")
def tokens_per_s_per_device(tokens_per_s: Any, devices: Any) -> Any:
    """Throughput of one device."""
    return tokens_per_s / devices


@figure("steps", "FLOP/s", scope="stage", staged=True, convention="useful model FLOPs in healthy steps")
def useful_stage_flops_per_s(device_peak: Any, devices: Any, mfu: Any) -> Any:
    """Useful rate of the allocation in this stage."""
    return useful_rate(device_peak, devices, mfu).per_second


@figure("steps", "s", scope="step", staged=True, convention=HEALTHY + "; one replica's positions on its own devices")
def step_seconds(
    step_positions: Any,
    flops_per_token: Any,
    device_peak: Any,
    mfu: Any,
    devices: Any,
    data_parallel_degree: Any = None,
) -> Any:
    """Duration of one optimizer step."""
    replicas = data_parallel_degree or 1
    work = Fraction(step_positions, replicas) * flops_per_token
    return work / (device_peak.per_second * mfu * Fraction(devices, replicas))


@figure(
    "steps",
    "ratio",
    scope="step",
    staged=True,
    convention="executed FLOPs, recomputed ones too, over peak; above one the utilisation and the recomputation "
    "do not go together",
)
def executed_utilisation(
    step_positions: Any,
    flops_per_token: Any,
    executed_over_model: Any,
    step_seconds: Any,
    devices: Any,
    device_peak: Any,
) -> Any:
    """HFU that the declared MFU implies."""
    executed = step_positions * flops_per_token * executed_over_model
    return hfu(Fraction(executed), Fraction(step_seconds), devices, device_peak).value


@figure("steps", "s", scope="stage", staged=True, convention=HEALTHY + "; all arithmetic over the useful rate")
def healthy_seconds(stage_flops: Any, useful_stage_flops_per_s: Any) -> Any:
    """Duration by arithmetic."""
    return stage_flops / useful_stage_flops_per_s


@figure("steps", "s", scope="stage", staged=True, convention=HEALTHY + "; whole steps times the duration of one")
def healthy_seconds_by_steps(optimizer_steps: Any, step_seconds: Any) -> Any:
    """Duration by steps."""
    return optimizer_steps * step_seconds


@figure("run", "tokens", convention="useful tokens of all stages")
def total_tokens(each_stage_tokens: Any) -> Any:
    """Tokens of the run."""
    return sum(each_stage_tokens)


@figure("run", "steps", convention="of all stages")
def total_steps(each_optimizer_steps: Any) -> Any:
    """Optimizer steps of the run."""
    return sum(each_optimizer_steps)


@figure("run", "FLOPs", convention="useful model FLOPs of all stages, each counted at its own context")
def total_flops(each_stage_flops: Any) -> Any:
    """Arithmetic of the run."""
    return sum(each_stage_flops)


@figure("run", "days", convention=HEALTHY + "; each stage at its own utilisation")
def healthy_days(each_healthy_seconds: Any, mfu_window: Any) -> Any:
    """Duration of the run if every step were healthy."""
    if mfu_window == "calendar":
        return Unknown(
            "the utilisation is an average over the calendar and contains downtime; healthy steps are faster"
        )
    return sum(each_healthy_seconds) / DAY


@figure(
    "run", "ratio", convention="arithmetic of the run over what the allocation leaves for it, at the run's utilisation"
)
def budget_used(total_flops: Any, main_run_flops: Any) -> Any:
    """Share of the main run's budget that the plan spends."""
    return total_flops / main_run_flops
