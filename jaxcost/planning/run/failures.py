"""Failures, rollback and restart: when to checkpoint, and what share of the calendar makes progress.

    Young (1974), CACM 17(9):  I = sqrt(2 C M)
    Daly (2006), FGCS 22(3), perturbation solution:
        I = sqrt(2 C M) (1 + sqrt(C / 2M) / 3 + C / 18M) - C for C < 2M, else M
    Daly (2006), complete cost function:  T_wall = M e^(R/M) (e^((I + C)/M) - 1) T_s / I

C pause, M mean time between failures of the job, R restart, I useful time between pauses, T_s useful work. The last is
exact for failures that come at a constant rate, during pauses and restarts too; `simulation` plays the same story
event by event and knows none of these formulas.
"""

from __future__ import annotations

import math
from typing import Any

from jaxcost.planning.run.budget import DAY
from jaxcost.planning.run.sheet import Unknown, figure
from jaxcost.planning.run.simulation import simulate

EXPONENTIAL = "failures at a constant rate, independent of one another, also in pauses and restarts"
LEFT_OUT = "correlated failures, slow detection, asynchronous saving, degraded placement"
# Beyond it next to nothing is finished between two failures and the exponentials leave the floats.
LARGEST_EXPONENT = 200.0


def productive(interval: float, pause: float, mtbf: float, restart: float) -> float | None:
    """Return useful over wall-clock time (Daly 2006, complete cost function); None where it is beyond any float."""
    if max((interval + pause) / mtbf, restart / mtbf) > LARGEST_EXPONENT:
        return None
    return interval / (mtbf * math.exp(restart / mtbf) * math.expm1((interval + pause) / mtbf))


@figure(
    "failures",
    "s",
    scope="job",
    convention="of the whole job; from devices: theirs over their number",
    omitted="correlated failures, and parts other than the devices",
)
def job_mtbf_seconds(devices: Any, job_mtbf_hours: Any = None, device_mtbf_hours: Any = None) -> Any:
    """Mean time between interruptions."""
    if job_mtbf_hours is not None:
        return job_mtbf_hours * 3600
    if device_mtbf_hours is not None:
        return device_mtbf_hours * 3600 / devices
    return Unknown("not given: job_mtbf_hours")


@figure(
    "failures",
    "s",
    scope="job",
    convention="Young 1974: sqrt(2 C M), useful time between pauses",
    omitted="restart, failures in pauses",
)
def young_interval_seconds(checkpoint_pause: Any, job_mtbf_seconds: Any) -> Any:
    """Interval that costs least, to first order."""
    return math.sqrt(2 * checkpoint_pause * job_mtbf_seconds)


@figure(
    "failures",
    "s",
    scope="job",
    convention="Daly 2006, perturbation solution, useful time between pauses",
    omitted=LEFT_OUT,
)
def daly_interval_seconds(checkpoint_pause: Any, job_mtbf_seconds: Any) -> Any:
    """Interval that costs least, to higher order."""
    pause, mtbf = float(checkpoint_pause), float(job_mtbf_seconds)
    if pause >= 2 * mtbf:
        return mtbf
    root = math.sqrt(pause / (2 * mtbf))
    return math.sqrt(2 * pause * mtbf) * (1 + root / 3 + root * root / 9) - pause


@figure(
    "failures",
    "ratio",
    scope="job",
    convention="Daly 2006, complete cost function: useful over wall-clock time; " + EXPONENTIAL,
    omitted=LEFT_OUT,
)
def productive_fraction(
    useful_interval_seconds: Any, checkpoint_pause: Any, job_mtbf_seconds: Any, restart_seconds: Any
) -> Any:
    """Share of the calendar that makes lasting progress, at the plan's interval."""
    given = (useful_interval_seconds, checkpoint_pause, job_mtbf_seconds, restart_seconds)
    found = productive(*map(float, given))
    return found if found is not None else Unknown("hardly an interval ends before the next failure")


@figure(
    "failures",
    "ratio",
    scope="job",
    convention="Daly 2006, complete cost function at Daly's interval",
    omitted=LEFT_OUT,
)
def best_productive_fraction(
    daly_interval_seconds: Any, checkpoint_pause: Any, job_mtbf_seconds: Any, restart_seconds: Any
) -> Any:
    """The same at the interval that costs least."""
    given = (daly_interval_seconds, checkpoint_pause, job_mtbf_seconds, restart_seconds)
    found = productive(*map(float, given))
    return found if found is not None else Unknown("hardly an interval ends before the next failure")


@figure(
    "failures",
    "s",
    scope="job",
    convention="half an interval: a failure may fall anywhere in it",
    omitted="failures in pauses; exact for a uniform position only",
)
def rollback_seconds(useful_interval_seconds: Any) -> Any:
    """Work that one failure takes back."""
    return useful_interval_seconds / 2


@figure(
    "failures",
    "days",
    convention="healthy days over the productive fraction, downtime and replay included",
    omitted=LEFT_OUT,
)
def calendar_days(each_healthy_seconds: Any, mfu_window: Any, productive_fraction: Any = None) -> Any:
    """Duration of the run on the calendar."""
    days = sum(each_healthy_seconds) / DAY
    if mfu_window == "calendar":
        return days  # the utilisation contains downtime already; applied again it would be charged twice
    if productive_fraction is None:
        return Unknown(
            "healthy days are no calendar: not given is one of checkpoint_pause, checkpoint_interval, job_mtbf_hours, "
            "restart_seconds"
        )
    return float(days) / productive_fraction


@figure("failures", "failures", convention="calendar time over the mean time between failures")
def expected_failures(calendar_days: Any, job_mtbf_seconds: Any) -> Any:
    """Failures to expect."""
    return float(calendar_days * DAY / job_mtbf_seconds)


@figure("failures", "days", convention="calendar less healthy: pauses, rollback, restarts")
def downtime_days(calendar_days: Any, healthy_days: Any) -> Any:
    """Days without lasting progress."""
    return calendar_days - float(healthy_days)


@figure("failures", "days", convention="pauses of work that lasts; those repeated after a failure count as rollback")
def pause_days(healthy_days: Any, useful_interval_seconds: Any, checkpoint_pause: Any) -> Any:
    """Of them in checkpoint pauses."""
    return healthy_days / useful_interval_seconds * checkpoint_pause


@figure("failures", "days", convention="downtime less pauses: work done again, and restarts")
def rollback_restart_days(downtime_days: Any, pause_days: Any) -> Any:
    """Of them in rollback and restart."""
    return downtime_days - float(pause_days)


@figure(
    "failures", "days", convention="allocation less calendar where the reserve holds downtime, else the main run's days"
)
def spare_days(days: Any, main_run_days: Any, calendar_days: Any, downtime: Any) -> Any:
    """Days that are left when the run ends, for everything else."""
    return float(days if downtime == "in_reserve" else main_run_days) - float(calendar_days)


@figure("", "", convention="event by event, seeded; it knows no formula of this section")
def simulation(
    each_healthy_seconds: Any, useful_interval_seconds: Any, checkpoint_pause: Any, job_mtbf_seconds: Any,
    restart_seconds: Any, simulated_runs: Any, seed: Any,
) -> Any:  # fmt: skip
    """The run played out many times."""
    return simulate(
        float(sum(each_healthy_seconds)), float(useful_interval_seconds), float(checkpoint_pause),
        float(job_mtbf_seconds), float(restart_seconds), runs=simulated_runs, seed=seed,
    )  # fmt: skip


@figure("failures", "ratio", scope="job", convention="mean over simulated runs; " + EXPONENTIAL, omitted=LEFT_OUT)
def simulated_productive_fraction(simulation: Any) -> Any:
    """Productive fraction by simulation."""
    return simulation.mean


@figure("failures", "ratio", scope="job", convention="of that mean: standard deviation over the root of the runs")
def simulated_standard_error(simulation: Any) -> Any:
    """Its standard error."""
    return simulation.standard_error
