"""What more devices do to fixed work (Amdahl) and to work that grows with them (Gustafson), from one serial share.

    Amdahl (1967):     speedup of the same tokens   1 / (s + (1 - s) / n)
    Gustafson (1988):  tokens in the same time      s + (1 - s) n

n devices over those of the baseline, s the share of the baseline's time that they do not shorten. Runs of different
token counts are compared by throughput, never as a speedup of fixed work.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

from jaxcost.planning.run.sheet import Unknown, figure

OMITTED = "communication that grows with the devices, smaller matrices, imbalance, stragglers"


@figure("scaling", "ratio", convention="devices over those of the baseline")
def device_ratio(devices: Any, baseline_devices: Any) -> Any:
    """How many times the baseline's devices."""
    return Fraction(devices, baseline_devices)


@figure("scaling", "ratio", convention="Amdahl: the same tokens, shorter time", omitted=OMITTED)
def fixed_work_speedup(device_ratio: Any, serial_fraction: Any) -> Any:
    """Speedup of the baseline's own work."""
    return 1 / (serial_fraction + (1 - serial_fraction) / device_ratio)


@figure("scaling", "ratio", convention="Amdahl: the same tokens on ever more devices", omitted=OMITTED)
def fixed_work_limit(serial_fraction: Any) -> Any:
    """Speedup that no number of devices exceeds."""
    return Unknown("there is no serial share, and no limit") if serial_fraction == 0 else 1 / serial_fraction


@figure("scaling", "ratio", convention="Gustafson: the same time, more tokens", omitted=OMITTED)
def throughput_gain(device_ratio: Any, serial_fraction: Any) -> Any:
    """Work that the devices do in the baseline's time."""
    return serial_fraction + (1 - serial_fraction) * device_ratio


@figure("scaling", "ratio", convention="days of the baseline over days of this run, of the same tokens alone")
def measured_speedup(total_tokens: Any, baseline_tokens: Any, baseline_days: Any, finish_days: Any) -> Any:
    """Speedup over the baseline's record."""
    if total_tokens != baseline_tokens:
        return Unknown("the token counts differ: a ratio of throughputs, no speedup of fixed work")
    return float(baseline_days) / float(finish_days)


@figure("scaling", "ratio", convention="tokens a day over those of the baseline", omitted="quality, cost")
def measured_throughput_gain(total_tokens: Any, baseline_tokens: Any, baseline_days: Any, finish_days: Any) -> Any:
    """Throughput over the baseline's record."""
    return float(total_tokens) / float(finish_days) / float(baseline_tokens / baseline_days)


@figure("", "days", convention="calendar days, healthy ones where no calendar is known")
def finish_days(calendar_days: Any = None, healthy_days: Any = None) -> Any:
    """Days to the end of the run."""
    found = calendar_days if calendar_days is not None else healthy_days
    return Unknown("the run has no known duration") if found is None else found


@figure(
    "tail",
    "ratio",
    scope="step",
    convention="1 - (1 - p)^n: a step ends with its slowest rank, ranks independent",
    omitted="slow ranks that come together or stay slow",
)
def slow_step_probability(slow_probability: Any, devices: Any) -> Any:
    """Probability that a step waits for a slow rank."""
    if slow_probability == 1:
        return 1
    return -math.expm1(devices * math.log1p(-float(slow_probability)))


@figure(
    "tail",
    "ratio",
    scope="step",
    convention="1 + P (factor - 1), the mean over steps",
    omitted="ranks slower than the factor",
)
def mean_slowdown(slow_step_probability: Any, slow_factor: Any) -> Any:
    """Mean duration of a step over one without slow ranks; a measured utilisation contains it already."""
    return 1 + slow_step_probability * float(slow_factor - 1)
