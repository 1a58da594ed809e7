"""What the allocation buys: devices x peak x utilisation x time, less the reserve. Nothing is charged twice.

The rates are those of `jaxcost.planning.utilisation`, which know the losses that they contain: a reserve that covers
downtime and a downtime factor beside it are refused there.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from jaxcost.planning.run.sheet import Unknown, figure
from jaxcost.planning.utilisation import Rate, useful_rate

DAY = 86_400
FMA = "one FMA = 2 FLOPs"


@figure("budget", "accelerator-hours", scope="allocation", convention="every device, every hour, used or not")
def accelerator_hours(devices: Any, days: Any) -> Any:
    """Hours that the allocation holds."""
    return devices * days * 24


@figure("budget", "FLOP/s", scope="device", convention="dense, of the declared precision; no structured sparsity")
def peak_flops_per_s(device_peak: Any) -> Any:
    """Peak of one device."""
    return device_peak.per_second


@figure("budget", "FLOP/s", scope="allocation", convention=FMA)
def allocation_peak_flops_per_s(devices: Any, peak_flops_per_s: Any) -> Any:
    """Peak of all devices."""
    return devices * peak_flops_per_s


@figure(
    "budget",
    "FLOP/s",
    scope="allocation",
    convention="useful model FLOPs in healthy steps; " + FMA,
    omitted="recomputation, downtime, replay",
)
def useful_flops_per_s(device_peak: Any, devices: Any, mfu: Any) -> Any:
    """Useful rate of the allocation at the declared utilisation."""
    return useful_rate(device_peak, devices, mfu).per_second


@figure("budget", "FLOPs", scope="allocation", convention="useful model FLOPs; " + FMA, omitted="downtime, replay")
def budget_flops(useful_flops_per_s: Any, days: Any) -> Any:
    """Useful work if every second of the allocation were a healthy step."""
    return useful_flops_per_s * days * DAY


@figure("budget", "FLOP/s", scope="main run", convention="useful model FLOPs, averaged over the allocation")
def main_run_flops_per_s(
    device_peak: Any,
    devices: Any,
    mfu: Any,
    reserve: Any,
    downtime: Any,
    mfu_window: Any,
    productive_fraction: Any = None,
) -> Any:
    """Rate that is left for the main run: less the reserve, and less downtime where the reserve does not hold it."""
    found: Rate = useful_rate(device_peak, devices, mfu)
    if downtime == "in_reserve":
        covers = ("replay",) if mfu_window == "calendar" else ("downtime", "replay")
        return found.after("reserve", reserve, covers=covers).per_second
    if productive_fraction is None:
        return Unknown("downtime is charged apart from the reserve, and the productive fraction is unknown")
    left = found.after("reserve", reserve)
    return left.after(
        "checkpoints", 1 - Fraction(productive_fraction), covers=("failures", "restart", "replay")
    ).per_second


@figure("budget", "FLOPs", scope="main run", convention="useful model FLOPs; " + FMA)
def main_run_flops(main_run_flops_per_s: Any, days: Any) -> Any:
    """Work that the allocation leaves for the main run."""
    return main_run_flops_per_s * days * DAY


@figure("budget", "days", scope="main run", convention="calendar days of all devices")
def main_run_days(days: Any, reserve: Any) -> Any:
    """Days that the reserve leaves."""
    return days * (1 - reserve)


@figure("budget", "days", scope="allocation", convention="calendar days of all devices")
def reserve_days(days: Any, reserve: Any) -> Any:
    """Days kept for experiments, integration, evaluation and finishing, and for downtime where it is paid here."""
    return days * reserve
