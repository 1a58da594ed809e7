"""What the allocation costs at dated rates, and what that price does and does not include.

A reservation is paid whole: a faster step frees capacity, it does not lower the bill.
"""

from __future__ import annotations

from typing import Any

from jaxcost.planning.run.sheet import Unknown, figure

CONVENTION = "accelerator-hours of the whole allocation, used or not, x price; a scenario, not a quotation"
OMITTED = "all that the boundary excludes"


@figure("cost", "currency", scope="allocation", convention=CONVENTION, omitted=OMITTED)
def cost(accelerator_hours: Any, price: Any) -> Any:
    """Cost of the allocation."""
    return accelerator_hours * price


@figure("cost", "currency", scope="allocation", convention=CONVENTION + ", low end of its range", omitted=OMITTED)
def cost_low(accelerator_hours: Any, price_low: Any) -> Any:
    """The same at the low rate."""
    return accelerator_hours * price_low


@figure("cost", "currency", scope="allocation", convention=CONVENTION + ", high end of its range", omitted=OMITTED)
def cost_high(accelerator_hours: Any, price_high: Any) -> Any:
    """The same at the high rate."""
    return accelerator_hours * price_high


@figure(
    "cost",
    "accelerator-hours",
    scope="main run",
    convention="devices x calendar days x 24",
    omitted="the reserve's other uses",
)
def main_run_hours(devices: Any, calendar_days: Any = None, healthy_days: Any = None) -> Any:
    """Hours in which the main run holds the devices; healthy ones where no calendar is known."""
    days = calendar_days if calendar_days is not None else healthy_days
    return Unknown("the run has no known duration") if days is None else devices * days * 24


@figure(
    "cost",
    "currency/10^12 tokens",
    convention="cost of the whole allocation over the run's useful tokens",
    omitted=OMITTED,
)
def cost_per_tera_tokens(cost: Any, total_tokens: Any) -> Any:
    """Cost of a trillion tokens."""
    return cost / total_tokens * 10**12
