"""Little's law: items in flight = completed items a second x seconds that each stays.

It holds between averages of a stable flow with one boundary. So the items must be the same on both sides (requests are
not tokens, nor batches), the stay includes waiting as well as service, and work that arrives faster than it is
completed has no stable average: it is refused. The law is an accounting identity; it does not say that so many workers
sustain the rate.

    >>> in_flight(Flow(100, "request"), Stay(0.2, "request")).items
    Fraction(20, 1)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from jaxcost.contracts.errors import Problem, RejectedError
from jaxcost.planning.quantities import Number, not_negative, positive

PARTS = frozenset({"service", "waiting"})


@dataclass(frozen=True)
class Flow:
    """Completed items a second. `offered_per_s` is what arrives, `capacity_per_s` what can be sustained, if known."""

    completed_per_s: Number
    item: str
    offered_per_s: Number | None = None
    capacity_per_s: Number | None = None


@dataclass(frozen=True)
class Stay:
    """Average seconds that an item spends inside the boundary; `includes` names the parts the figure covers."""

    seconds: Number
    item: str
    includes: frozenset[str] = PARTS


@dataclass(frozen=True)
class InFlight:
    """The average number of items inside, and what it was made of."""

    items: Fraction
    item: str
    per_second: Fraction
    seconds: Fraction


def in_flight(flow: Flow, stay: Stay) -> InFlight:
    """Return the average number of items in flight.

    Raises:
        RejectedError: the items differ, the stay leaves out waiting or service, or the flow is overloaded.
    """
    completed, seconds = positive(flow.completed_per_s, "completed_per_s"), not_negative(stay.seconds, "seconds")
    problems = [*_mixed(flow, stay), *_left_out(stay), *_overload(flow)]
    if problems:
        raise RejectedError(problems)
    return InFlight(completed * seconds, flow.item, completed, seconds)


def _mixed(flow: Flow, stay: Stay) -> Iterable[Problem]:
    if not flow.item or flow.item != stay.item:
        rule = f"the flow counts {flow.item or 'nothing'}, the stay is that of {stay.item or 'nothing'}"
        yield Problem("item", stay.item, rule, "count the same items on both sides")


def _left_out(stay: Stay) -> Iterable[Problem]:
    missing = sorted(PARTS - stay.includes)
    if missing:
        rule = f"the stay leaves out {', '.join(missing)}"
        yield Problem("includes", sorted(stay.includes), rule, "give the whole residence: waiting and service")


def _overload(flow: Flow) -> Iterable[Problem]:
    sustained = completed = positive(flow.completed_per_s, "completed_per_s")
    if flow.capacity_per_s is not None:
        sustained = positive(flow.capacity_per_s, "capacity_per_s")
        if completed > sustained:
            rule = f"more completed than the capacity of {float(sustained):g}/s"
            yield Problem("completed_per_s", float(completed), rule, "check the unit of one of them")
    if flow.offered_per_s is not None:
        offered = positive(flow.offered_per_s, "offered_per_s")
        if offered > sustained:
            rule = f"{float(offered):g}/s arrive and {float(sustained):g}/s are sustained: the queue grows without end"
            yield Problem(
                "offered_per_s", float(offered), rule, "add capacity or shed load; there is no stable average"
            )
