"""Little's law: the same items on both sides, the whole stay, and no average of a queue that grows."""

from __future__ import annotations

from typing import Any

import pytest

from jaxcost.contracts.errors import RejectedError
from jaxcost.planning.queue import Flow, Stay, in_flight


def test_the_worksheet_figure() -> None:
    assert in_flight(Flow(100, "request"), Stay(0.2, "request")).items == 20


def test_items_are_the_same_on_both_sides() -> None:
    for item in ("token", "batch", ""):
        with pytest.raises(RejectedError, match="count the same items"):
            in_flight(Flow(100, "request"), Stay(0.2, item))


def test_the_stay_includes_waiting() -> None:
    with pytest.raises(RejectedError, match="leaves out waiting"):
        in_flight(Flow(100, "request"), Stay(0.2, "request", frozenset({"service"})))


def test_overload_has_no_average() -> None:
    with pytest.raises(RejectedError, match="grows without end"):
        in_flight(Flow(100, "request", offered_per_s=101), Stay(0.2, "request"))
    with pytest.raises(RejectedError, match="grows without end"):
        in_flight(Flow(100, "request", offered_per_s=130, capacity_per_s=120), Stay(0.2, "request"))
    with pytest.raises(RejectedError, match="more completed than the capacity"):
        in_flight(Flow(100, "request", capacity_per_s=90), Stay(0.2, "request"))
    assert in_flight(Flow(100, "request", offered_per_s=100, capacity_per_s=120), Stay(0.2, "request")).items == 20


@pytest.mark.parametrize("bad", [True, float("nan"), float("inf"), -1, "8", None])
def test_hostile_numbers_are_refused(bad: Any) -> None:
    with pytest.raises(RejectedError):
        in_flight(Flow(bad, "request"), Stay(1, "request"))
    with pytest.raises(RejectedError):
        in_flight(Flow(1, "request"), Stay(bad, "request"))
    if bad is not None:
        with pytest.raises(RejectedError):
            in_flight(Flow(1, "request", offered_per_s=bad), Stay(1, "request"))
        with pytest.raises(RejectedError):
            in_flight(Flow(1, "request", capacity_per_s=bad), Stay(1, "request"))
