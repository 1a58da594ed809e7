"""What a change moves: all of it, and nothing else; and which assumption moves the end of the run most."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from jaxcost.contracts.errors import RejectedError
from jaxcost.planning.run.change import changed, compare_plans, plan_change
from jaxcost.planning.run.sheet import FIGURES, Unknown
from jaxcost.planning.run.trust import trust
from tests.planning.run.plans import scenario, with_model

FULL = {
    "baseline_devices": 64, "serial_fraction": "0.02", "slow_probability": "0.001", "slow_factor": 2,
    "loader_seconds": 2, "kept": 3,
}  # fmt: skip
# One change of each field, to a value that differs.
CHANGES = [
    "devices=512", "days=60", "peak=none", "mfu=0.35", "reserve=0.3", "parameters=20e9", "active=10e9", "tokens=1e12",
    "batch_tokens=8000000", "padding=0.1", "masked=0.1", "memory_fraction=0.95", "checkpoint=resume",
    "checkpoint_bandwidth=10", "checkpoint_pause=90", "checkpoint_interval=900", "interval_counts=useful", "kept=2",
    "copies=2", "job_mtbf_hours=3", "restart_seconds=60", "token_bytes=2", "read_days=60", "loader_seconds=50",
    "price=4", "baseline_devices=32", "serial_fraction=0.1", "slow_probability=0.01", "slow_factor=3", "seed=1",
    "downtime=apart", "dtype=fp16", "case.precision=fp32",
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_what_moves_follows_from_what_changed_and_the_rest_stands(change: str) -> None:
    base = scenario(**FULL)
    if change == "price=4":
        base = scenario(**FULL, price={"value": 6, "date": "2026-10"})
        with pytest.raises(RejectedError, match="undated"):
            plan_change(base, [change])
        return
    if change == "dtype=fp16":
        base = scenario(**FULL | {"peak": None})
    after, found = plan_change(base, [change])
    assert [item["name"] for item in found["inputs"]] == [change.split("=")[0].replace("case.precision", "case")]
    moved, unmoved = {item["name"] for item in found["moved"]}, set(found["unmoved"])
    assert not moved & unmoved
    assert moved | unmoved | set(found["unknown"]) == {name for name, item in FIGURES.items() if item.section}
    for name in moved | unmoved:
        values = [plan.sheet.value(name, "main") for plan in (base, after)]
        assert (values[0] != values[1]) == (name in moved), name
    field = change.split("=")[0]
    if field in base.sheet.given and field not in ("dtype", "checkpoint"):
        without = {name for name in moved if field not in base.sheet.rests_on(name)}
        assert not without or field in ("peak", "parameters"), without  # a peak and a dense size come through others


def test_utilisation_moves_time_and_neither_bytes_nor_price() -> None:
    _, found = plan_change(scenario(), ["mfu=0.20"])
    moved = {item["name"]: item for item in found["moved"]}
    assert moved["healthy_days"]["ratio"] == 2 and moved["step_seconds"]["ratio"] == 2
    assert {"checkpoint_bytes", "cost", "dataset_bytes", "total_flops", "accelerator_hours"} <= set(found["unmoved"])


def test_a_change_back_moves_nothing() -> None:
    base = scenario()
    after, _ = plan_change(base, ["mfu=0.35"])
    back, found = plan_change(after, ["mfu=0.40"])
    assert compare_plans(base, back)["moved"] == []
    assert found["moved"]


def test_several_changes_are_made_at_once() -> None:
    _, found = plan_change(scenario(), ["mfu=0.20", "devices=512"])
    assert [item["name"] for item in found["inputs"]] == ["mfu", "devices"]
    assert "healthy_days" in found["unmoved"]


def test_a_mesh_and_a_stage_can_be_changed() -> None:
    plan = with_model(stages=[{"name": "a", "tokens": "1e12"}, {"name": "b-c", "tokens": "1e11"}])
    inputs = changed(plan.inputs, ["mesh=data=8,tensor=4", "stages.b-c.mfu=0.2", "stages.a.case.remat=none"])
    assert inputs.mesh == {"data": 8, "tensor": 4}
    assert inputs.exact("mfu", inputs.stages[1]) == Fraction(1, 5)
    assert inputs.staged("case", inputs.stages[0])["remat"] == "none"
    _, found = plan_change(plan, ["stages.b-c.mfu=0.2"])
    assert {"b-c: step_seconds", "healthy_days"} <= {item["name"] for item in found["moved"]}
    assert "a: step_seconds" in found["unmoved"]


def test_a_changed_model_is_loaded() -> None:
    after, found = plan_change(with_model(), ["model=llama-3.2-3b"])
    assert after.manifest is not None and after.manifest.architecture.name == "llama-3.2-3b"
    assert "full_state_bytes" in {item["name"] for item in found["moved"]}


@pytest.mark.parametrize(
    "text", ["mfu", "mfu=", "=3", "mfus=1", "stages.x.mfu=1", "mfu=a", "mfu=0.1..0.2", "mesh=data", "claims=3"]
)
def test_what_sets_no_field_is_refused(text: str) -> None:
    with pytest.raises(RejectedError):
        changed(scenario().inputs, [text])


RANGED: dict[str, Any] = {
    "mfu": {"value": "0.40", "low": "0.35", "high": "0.43", "test": "time it"},
    "restart_seconds": {"value": 600, "low": 300, "high": 1800},
}


def test_the_widest_range_at_the_end_of_the_run_is_trusted_least() -> None:
    plan = scenario(**RANGED)
    found = trust(plan)
    assert (found["least"], found["test"]) == ("mfu", "time it")
    low, high = (scenario(mfu=value).known("calendar_days") for value in ("0.35", "0.43"))
    row = found["rows"][0]
    assert (row["low"], row["high"], row["spread"]) == (low, high, low - high)
    narrow = trust(scenario(**{**RANGED, "mfu": {"value": "0.40", "low": "0.399", "high": "0.401"}}))
    assert narrow["least"] == "restart_seconds"


def test_without_a_range_nothing_is_named() -> None:
    found = trust(scenario(price=None))
    assert found["least"] is None and "states a range" in found["reason"]
    ordered = [abs(row["one_percent"] or 0) for row in found["rows"]]
    assert ordered == sorted(ordered, reverse=True) and ordered[0] > 0


def test_a_run_that_fills_its_budget_is_judged_by_its_tokens() -> None:
    found = trust(scenario(tokens=None, **RANGED))
    assert (found["target"], found["least"]) == ("total_tokens", "mfu")
    low, high = (scenario(tokens=None, mfu=value).known("total_tokens") for value in ("0.35", "0.43"))
    assert found["rows"][0]["spread"] == high - low


def test_a_range_of_what_does_not_reach_the_end_is_not_named() -> None:
    found = trust(scenario(price={"value": 6, "low": 3, "high": 10, "date": "2026-10"}))
    assert found["least"] is None and "moves it" in found["reason"]


def test_a_range_end_that_is_refused_is_unknown() -> None:
    plan = scenario(batch_tokens=None, micro_batch=1, seq=8192, accumulate=16, data_parallel=32,
                    devices={"value": 256, "low": 255, "high": 512})  # fmt: skip
    (row,) = [row for row in trust(plan)["rows"] if row["name"] == "devices"]
    assert row["low"] is None and row["spread"] is None


def test_a_figure_that_becomes_unknown_has_its_reason() -> None:
    _, found = plan_change(scenario(), ["job_mtbf_hours=none"])
    (row,) = [item for item in found["moved"] if item["name"] == "calendar_days"]
    assert row["to"] is None and row["reason"]
    assert isinstance(plan_change(scenario(), ["tokens=none"])[0].known("stage_tokens"), int)
    assert not isinstance(scenario().sheet.value("calendar_days"), Unknown)
