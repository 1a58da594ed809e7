"""Intervals and the productive fraction: formulas against a simulation that knows none, and that against itself."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxcost.planning.run.failures import productive
from jaxcost.planning.run.sheet import Unknown
from jaxcost.planning.run.simulation import Simulation, simulate
from tests.planning.run.plans import scenario

DAY = 86400.0
SIGMAS = 5


@pytest.mark.parametrize(
    ("interval", "pause", "mtbf", "restart"),
    [
        (1740.0, 60.0, 21600.0, 600.0),
        (3600.0, 300.0, 7200.0, 1800.0),
        (600.0, 5.0, 86400.0, 0.0),
        (7200.0, 600.0, 3600.0, 900.0),
        (1000.0, 100.0, 500.0, 700.0),
    ],
)
def test_simulation_agrees_with_dalys_formula(interval: float, pause: float, mtbf: float, restart: float) -> None:
    seen = simulate(200 * interval, interval, pause, mtbf, restart, runs=512, seed=1)
    assert isinstance(seen, Simulation)
    formula = productive(interval, pause, mtbf, restart)
    assert formula is not None
    assert abs(seen.mean - formula) < SIGMAS * seen.standard_error


def test_a_wrong_formula_is_seen_by_the_simulation() -> None:
    seen = simulate(400 * 3600.0, 3600.0, 300.0, 7200.0, 1800.0, runs=512, seed=1)
    assert isinstance(seen, Simulation)
    first_order = 1 - 300 / 3900 - 3900 / (2 * 7200) - 1800 / 7200
    without_restart = productive(3600.0, 300.0, 7200.0, 0.0)
    assert without_restart is not None
    for wrong in (first_order, without_restart):
        assert abs(seen.mean - wrong) > SIGMAS * seen.standard_error


def _one_by_one(work: float, interval: float, pause: float, mtbf: float, restart: float, seed: int) -> float:
    """One run, a segment at a time, in plain Python: another program of the same story."""
    draws = np.random.default_rng(seed)
    clock, left, failing = 0.0, work, draws.exponential(mtbf)
    while left > 1e-9:
        length = min(interval, left) + pause
        if clock + length <= failing:
            clock, left = clock + length, left - min(interval, left)
            continue
        clock = failing
        while True:
            failing = clock + draws.exponential(mtbf)
            if failing - clock >= restart:
                clock += restart
                break
            clock = failing
    return work / clock


def test_the_simulation_of_many_is_that_of_one_after_the_other() -> None:
    case = (50_000.0, 1700.0, 100.0, 9000.0, 400.0)
    many = simulate(*case, runs=2000, seed=3)
    singles = [_one_by_one(*case, seed=seed) for seed in range(2000)]
    error = math.hypot(float(np.std(singles, ddof=1)) / math.sqrt(2000), many.standard_error)  # type: ignore[union-attr]
    assert isinstance(many, Simulation)
    assert abs(many.mean - float(np.mean(singles))) < SIGMAS * error


def test_the_same_seed_gives_the_same_runs() -> None:
    case = (50_000.0, 1700.0, 100.0, 9000.0, 400.0)
    assert simulate(*case, runs=64, seed=5) == simulate(*case, runs=64, seed=5)
    assert simulate(*case, runs=64, seed=5) != simulate(*case, runs=64, seed=6)


def test_without_failures_only_pauses_are_lost() -> None:
    seen = simulate(10_000.0, 1000.0, 50.0, 1e15, 10.0, runs=16)
    assert isinstance(seen, Simulation)
    assert seen.mean == pytest.approx(10_000 / 10_500) and seen.failures == 0 and seen.standard_error == 0


def test_a_run_without_progress_is_unknown() -> None:
    assert isinstance(simulate(1e9, 1e5, 1e4, 100.0, 10.0, runs=16), Unknown)
    assert isinstance(simulate(1e9, 10.0, 1.0, 100.0, 1e5, runs=16), Unknown)
    plan = scenario(job_mtbf_hours="0.001", restart_seconds=3600)
    assert plan.known("productive_fraction") is None and plan.known("calendar_days") is None


@settings(max_examples=200)
@given(
    pause=st.floats(1, 1000), mtbf=st.floats(2000, 1e7), restart=st.floats(0, 3600), off=st.floats(0.02, 50),
)  # fmt: skip
def test_no_interval_is_better_than_dalys_by_much(pause: float, mtbf: float, restart: float, off: float) -> None:
    root = math.sqrt(pause / (2 * mtbf))
    daly = math.sqrt(2 * pause * mtbf) * (1 + root / 3 + root * root / 9) - pause if pause < 2 * mtbf else mtbf
    best, other = productive(daly, pause, mtbf, restart), productive(daly * off, pause, mtbf, restart)
    assert best is not None and 0 < best < 1
    assert other is None or other <= best * (1 + 1e-2)


@pytest.mark.parametrize(("mtbf_hours", "minutes"), [("24", 117.0), ("6", 57.0), ("0.25", 9.1)])
def test_dalys_own_intervals(mtbf_hours: str, minutes: float) -> None:
    # Daly 2006, captions of figures 3 to 5: dumps of 5 minutes; printed to the minute, the last to a tenth.
    found = scenario(checkpoint_pause=300, job_mtbf_hours=mtbf_hours).known("daly_interval_seconds") / 60
    assert abs(found - minutes) <= (0.05 if minutes < 10 else 0.5)


def test_daly_tends_to_young_where_failures_are_rare() -> None:
    near = scenario(checkpoint_pause=1, job_mtbf_hours=10**6)
    young, daly = near.known("young_interval_seconds"), near.known("daly_interval_seconds")
    assert daly == pytest.approx(young, rel=1e-3)
    assert scenario(checkpoint_pause=900, job_mtbf_hours="0.1").known("daly_interval_seconds") == 360


def test_both_conventions_of_the_interval() -> None:
    elapsed, useful = scenario(), scenario(interval_counts="useful")
    assert elapsed.known("useful_interval_seconds") == 1740 and useful.known("useful_interval_seconds") == 1800
    for name in ("pause_fraction_elapsed", "pause_fraction_useful"):
        assert elapsed.known(name) == useful.known(name)


def test_the_calendar_is_healthy_time_and_what_is_lost() -> None:
    plan = scenario()
    parts = [float(plan.known(name)) for name in ("healthy_days", "pause_days", "rollback_restart_days")]
    assert sum(parts) == pytest.approx(plan.known("calendar_days"), rel=1e-12)
    assert all(part > 0 for part in parts)
    assert plan.known("expected_failures") == pytest.approx(plan.known("calendar_days") * 4)


def test_failures_of_devices_add_up() -> None:
    plan = scenario(job_mtbf_hours=None, device_mtbf_hours=256 * 6)
    assert plan.known("job_mtbf_seconds") == 6 * 3600


def test_healthy_days_are_never_the_calendar() -> None:
    plan = scenario(restart_seconds=None)
    assert plan.known("calendar_days") is None and plan.target == "healthy_days"
    assert scenario().target == "calendar_days"
    assert scenario().known("calendar_days") > scenario().known("healthy_days")
