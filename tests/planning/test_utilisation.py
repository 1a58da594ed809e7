"""Utilisation: the worksheet's figures, inconsistencies reported, no factor twice, no scope mixed up."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from jaxcost.contracts.errors import RejectedError
from jaxcost.planning.hardware import device
from jaxcost.planning.utilisation import (
    Utilisation,
    agree,
    calendar_progress,
    calendar_seconds,
    hfu,
    mfu,
    of_rate,
    rate,
    useful_rate,
)

PEAK = 10**15


def test_the_worksheet_figures() -> None:
    assert mfu(12 * 10**14, 0.40, 8, PEAK).value == Fraction(375, 1000)
    assert hfu(15 * 10**14, 0.40, 8, PEAK).value == Fraction(46875, 100000)
    wrong = mfu(12 * 10**15, 0.40, 8, PEAK)
    assert wrong.value == Fraction(375, 100), "never clamped"
    assert (wrong.status, wrong.consistent) == ("inconsistent", False)
    assert wrong.causes[0].would_be == Fraction(375, 1000), "the power of ten that made it"
    assert "INCONSISTENT" in str(wrong)


def test_every_ratio_names_its_parts() -> None:
    found = mfu(12 * 10**14, 0.40, 8, device("h100").peak("bf16"), "rectangular attention").to_data()
    assert found["numerator"]["value"] == 12 * 10**14
    assert found["denominator"]["value"] == 8 * 989.4e12 * 0.4
    assert "dense bf16" in found["denominator"]["what"]
    assert found["convention"] == "rectangular attention"
    assert found["causes"] == []


def test_one_hundred_percent_is_consistent_and_a_hair_more_is_not() -> None:
    assert mfu(8 * PEAK, 1, 8, PEAK).consistent
    assert not mfu(8 * PEAK + 1, 1, 8, PEAK).consistent


def test_a_total_called_one_device_s() -> None:
    """1545.38 TFLOP/s printed "per rank" where eight GPUs share it: 156.18%, and 19.52% once divided by the GPUs."""
    peak = device("h100").declared_peak("bf16", 989.5)
    said = rate(1545.38e12, "model", "device")
    wrong = of_rate(said, 8, peak)
    assert round(float(100 * wrong.value), 2) == 156.18
    assert not wrong.consistent
    assert "total of 8 devices" in wrong.causes[0].text
    assert wrong.causes[0].would_be is not None
    assert round(float(100 * wrong.causes[0].would_be), 2) == 19.52
    right = rate(1545.38e12, "model", "total")
    assert round(float(right.per_device(8).per_second) / 1e12, 2) == 193.17
    assert of_rate(right, 8, peak).value == of_rate(right.per_device(8), 8, peak).value == wrong.value / 8
    with pytest.raises(RejectedError, match="not of workers"):
        agree(said, right, 8)
    agree(right.per_device(8), right, 8)


def test_scopes_convert_once() -> None:
    total = rate(8, "model", "total")
    with pytest.raises(RejectedError, match="one device's rate already"):
        total.per_device(8).per_device(8)
    with pytest.raises(RejectedError, match="total already"):
        total.total(8)
    assert total.per_device(8).total(8) == total


def test_no_loss_is_applied_twice() -> None:
    healthy = useful_rate(device("h100").declared_peak("bf16", 989), 256, 0.40)
    assert healthy.per_second == Fraction(1012736 * 10**11)
    with pytest.raises(RejectedError, match="already contains utilisation"):
        healthy.after("utilisation", 0.60)
    kept = healthy.after("reserve", 0.25, covers=("downtime",))
    assert kept.per_second == healthy.per_second * Fraction(3, 4)
    for loss in ("downtime", "checkpoints", "failures", "restart", "reserve"):
        with pytest.raises(RejectedError, match="charged twice"):
            kept.after(loss, 0.1)
    assert kept.after("padding", 0.1).per_second == kept.per_second * Fraction(9, 10)
    with pytest.raises(RejectedError, match="not a loss"):
        healthy.after("luck", 0.1)


def test_replay_is_not_charged_twice() -> None:
    """A measured rate of model FLOPs contains the slowdown of recomputation: no factor 8/6 on top."""
    measured = rate(10**15, "model", "total", includes=("recomputation",))
    with pytest.raises(RejectedError, match="charged twice"):
        measured.after("recomputation", Fraction(1, 4))
    assert measured.seconds(6 * 10**15, "model") == 6
    with pytest.raises(RejectedError, match="counted twice, or not at all"):
        measured.seconds(8 * 10**15, "executed")
    assert rate(10**15, "executed", "total").seconds(8 * 10**15, "executed") == 8
    with pytest.raises(RejectedError, match="total already"):
        measured.seconds(6 * 10**15, "model", scope="device")


def test_calendar_progress_needs_the_healthy_rate() -> None:
    healthy = rate(10**15, "model", "total", includes=("utilisation", "recomputation"))
    found = calendar_progress(9 * 10**16, 100, healthy)
    assert found.value == Fraction(9, 10)
    assert found.name == "calendar progress"
    replayed = calendar_progress(11 * 10**16, 100, healthy)
    assert not replayed.consistent
    assert "each accepted token once" in replayed.causes[0].text
    for loss in ("downtime", "failures", "replay"):
        with pytest.raises(RejectedError, match="would hide them"):
            calendar_progress(1, 1, rate(1, "model", "total", includes=(loss,)))
    with pytest.raises(RejectedError, match="one device's"):
        calendar_progress(1, 1, rate(1, "model", "device"))
    with pytest.raises(RejectedError, match="model FLOPs"):
        calendar_progress(1, 1, rate(1, "executed", "total"))


def test_a_healthy_mfu_is_no_calendar_progress() -> None:
    """The two are different records over different denominators: a step of 40% MFU, and 27 of 30 days productive."""
    peak, day = device("h100").declared_peak("bf16", 989), 86400
    healthy = useful_rate(peak, 256, 0.40)
    step = of_rate(healthy, 256, peak)
    progress = calendar_progress(healthy.per_second * 27 * day, 30 * day, healthy)
    assert (step.name, step.value) == ("MFU", Fraction(2, 5))
    assert (progress.name, progress.value) == ("calendar progress", Fraction(9, 10))
    assert step.denominator_what != progress.denominator_what
    assert calendar_seconds(27 * day, progress) == 30 * day
    with pytest.raises(RejectedError, match="no calendar progress"):
        calendar_seconds(27 * day, step)
    with pytest.raises(RejectedError, match="above 100%"):
        calendar_seconds(day, calendar_progress(2 * healthy.per_second * day, day, healthy))
    with pytest.raises(RejectedError, match="never ends"):
        calendar_seconds(day, calendar_progress(0, day, healthy))


@pytest.mark.parametrize(
    "bad", [True, float("nan"), float("inf"), -1, "8", None, 10**60, pytest.param(10**5000, id="huge"), 1e300]
)
def test_hostile_numbers_are_refused(bad: Any) -> None:
    with pytest.raises(RejectedError):
        mfu(bad, 1, 1, PEAK)
    with pytest.raises(RejectedError):
        mfu(1, bad, 1, PEAK)
    with pytest.raises(RejectedError):
        mfu(1, 1, bad, PEAK)
    with pytest.raises(RejectedError):
        mfu(1, 1, 1, bad)
    with pytest.raises(RejectedError):
        rate(bad, "model", "total")
    with pytest.raises(RejectedError):
        useful_rate(device("h100").peak("bf16"), 8, bad)


def test_zero_devices_time_or_peak_is_refused() -> None:
    for arguments in ((1, 0, 1, PEAK), (1, 1, 0, PEAK), (1, 1, 1, 0), (1, 1, 2.0, PEAK)):
        with pytest.raises(RejectedError):
            mfu(*arguments)  # type: ignore[arg-type]
    assert mfu(0, 1, 1, PEAK).value == 0


def test_records_do_not_change() -> None:
    found = mfu(1, 1, 1, PEAK)
    assert isinstance(found, Utilisation)
    with pytest.raises(AttributeError):
        found.numerator = Fraction(0)  # type: ignore[misc]
