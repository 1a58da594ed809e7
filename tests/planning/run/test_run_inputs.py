"""What a plan refuses: numbers that are none, claims without proof, and the mistakes that can be seen in the inputs."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from jaxcost.contracts.errors import RejectedError
from jaxcost.planning.run import RunInputs, plan_run, read_inputs
from jaxcost.planning.run.assumed import parse_assumed
from jaxcost.planning.run.inputs import DEFAULTS, SPECS
from tests.planning.run.plans import MODEL, SCENARIO, scenario, with_model

HOSTILE: dict[str, tuple[dict[str, Any], str]] = {
    "a boolean": ({"mfu": True}, "plan.mfu"),
    "not a number": ({"mfu": "nan"}, "plan.mfu.value"),
    "an infinity": ({"days": "Infinity"}, "plan.days.value"),
    "a float infinity": ({"days": float("inf")}, "plan.days.value"),
    "negative": ({"days": -1}, "plan.days"),
    "zero": ({"devices": 0}, "plan.devices"),
    "half a device": ({"devices": 2.5}, "plan.devices"),
    "too large": ({"days": "1e60"}, "plan.days.value"),
    "too small": ({"days": "1e-4000000"}, "plan.days.value"),
    "too many digits": ({"days": "1." + "0" * 80}, "plan.days.value"),
    "text": ({"days": "ninety"}, "plan.days.value"),
    "a list": ({"days": [90]}, "plan.days"),
    "control characters": ({"name": "a\x1b[31m"}, "plan.name"),
    "an unknown field": ({"mfus": 0.4}, "plan.mfus"),
    "an unknown field of a stage": ({"tokens": None, "stages": [{"name": "a", "tokens": 1, "days": 1}]}, "days"),
    "an unknown option of the case": ({"case": {"batch": 2}}, "case.batch"),
    "recomputation of no graph": ({"case": {"remat": "block"}}, "case.remat"),
    "an unknown mesh axis": ({"mesh": {"dat": 256}}, "mesh.dat"),
    "half a range": ({"mfu": {"value": 0.4, "low": 0.3}}, "mfu.low"),
    "a range beside its value": ({"mfu": {"value": 0.4, "low": 0.5, "high": 0.6}}, "mfu.value"),
    "a range beyond the bounds": ({"mfu": {"value": 0.4, "low": 0.3, "high": 1.2}}, "mfu.high"),
    "evidence without its source": ({"mfu": {"value": 0.4, "evidence": "locally_measured"}}, "mfu.source"),
    "an unknown evidence class": ({"mfu": {"value": 0.4, "evidence": "felt"}}, "mfu.evidence"),
    "a utilisation above one": ({"mfu": "3.75"}, "mfu"),
    "the entire allocation for the main run": ({"reserve": 0}, "reserve"),
    "nothing for the main run": ({"reserve": 1}, "reserve"),
    "an undated price": ({"price": 6}, "price.date"),
    "a price without a currency": ({"currency": ""}, "currency"),
    "a date that is none": ({"price": {"value": 6, "date": "soon"}}, "price.date"),
    "more active than stored": ({"active": 31_000_000_000}, "active"),
    "a ledger without a model": ({"work": "ledger"}, "work"),
    "a model and its size": ({"model": "gpt2"}, "parameters"),
    "no model": ({"parameters": None}, "model"),
    "no device": ({"device": None, "peak": None}, "device"),
    "two failure rates": ({"device_mtbf_hours": 1000}, "device_mtbf_hours"),
    "an interval inside its pause": ({"checkpoint_interval": 60}, "checkpoint_interval"),
    "downtime charged twice": ({"mfu_window": "calendar", "downtime": "apart"}, "downtime"),
    "two stages of a name": ({"tokens": None, "stages": [{"name": "a", "tokens": 1}] * 2}, "stages"),
    "a total beside the stages": ({"stages": [{"name": "a", "tokens": 1}]}, "tokens"),
    "a stage without tokens": ({"tokens": None, "stages": [{"name": "a"}]}, "stages.0.tokens"),
    "a part that no price has": ({"includes": ["love"]}, "includes"),
    "all devices padded away": ({"padding": 1}, "padding"),
}  # fmt: skip
REQUIRED = ("devices", "days", "mfu", "reserve")


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_inputs_are_refused_by_path(name: str) -> None:
    changes, path = HOSTILE[name]
    data = {key: value for key, value in {**SCENARIO, **changes}.items() if value is not None}
    with pytest.raises(RejectedError) as caught:
        read_inputs(data)
    assert any(path in problem.path for problem in caught.value.problems), caught.value


def test_the_scenario_itself_is_accepted() -> None:
    assert read_inputs(SCENARIO).devices is not None


@pytest.mark.parametrize("name", REQUIRED)
def test_what_a_plan_needs_is_asked_for(name: str) -> None:
    with pytest.raises(RejectedError, match=f"--{name}"):
        read_inputs({key: value for key, value in SCENARIO.items() if key != name})


def test_all_problems_come_together() -> None:
    with pytest.raises(RejectedError) as caught:
        read_inputs({"devices": -1, "price": 3, "mesh": {"x": 2}})
    assert len(caught.value.problems) >= 7


PLANNED: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown device": ({"device": "h900"}, "no figures"),
    "a sparse peak": ({"peak": "1978.9"}, "sparsity"),
    "the peak of another precision": ({"peak": "494.7"}, "tf32"),
    "a precision without a peak": ({"dtype": "bf17"}, "element type"),
    "an unknown precision of the state": ({"case": {"precision": "half"}}, "precision"),
    "an unknown claim": ({"claims": {"joy": 1}}, "not a figure"),
    "a claim on no stage": ({"claims": {"late:step_seconds": 1}}, "not a stage"),
}


@pytest.mark.parametrize("name", PLANNED)
def test_what_the_records_cannot_see_is_refused_by_the_plan(name: str) -> None:
    changes, rule = PLANNED[name]
    with pytest.raises(RejectedError, match=rule):
        scenario(**changes)


def test_a_mesh_that_does_not_fit_the_model_or_the_devices() -> None:
    with pytest.raises(RejectedError, match="the mesh has 16 devices, the allocation 32"):
        with_model(mesh={"data": 16})
    with pytest.raises(RejectedError, match="32 stages do not divide 16 layers"):
        with_model(mesh={"pipeline": 32})
    with pytest.raises(RejectedError, match="catalogue|no such"):
        with_model(model="no-such-model")


def test_a_decimal_means_what_it_prints() -> None:
    for value in (0.1, "0.1", "0.10"):
        assert read_inputs({**SCENARIO, "mfu": value}).exact("mfu") == Fraction(1, 10)
    assert read_inputs({**SCENARIO, "parameters": 3e10}).exact("parameters") == 30_000_000_000


def test_the_record_comes_back_from_its_own_data() -> None:
    for data in (SCENARIO, MODEL):
        inputs = read_inputs(data)
        assert RunInputs.from_data(inputs.to_data()) == inputs
        assert read_inputs(inputs.to_data()).digest == inputs.digest


def test_the_digest_covers_numbers_and_not_names() -> None:
    first = read_inputs(SCENARIO).digest
    assert read_inputs({**SCENARIO, "name": "x", "claims": {"cost": 1}}).digest == first
    assert read_inputs({**SCENARIO, "mfu": {"value": "0.4", "source": "said"}}).digest == first
    assert read_inputs({**SCENARIO, "mfu": "0.41"}).digest != first


def test_every_field_has_a_unit_and_a_test() -> None:
    for name, spec in SPECS.items():
        assert spec.unit and spec.what.endswith(".") and spec.test, name
        assert name in RunInputs.model_fields
    assert set(DEFAULTS) <= set(SPECS)


def test_ranges_as_they_are_written() -> None:
    assert parse_assumed("0.40", "x") == {"value": "0.40"}
    assert parse_assumed("0.35..0.40..0.43", "x") == {"low": "0.35", "value": "0.40", "high": "0.43"}
    for text in ("", "a", "1..2", "1..2..3..4", "nan", "0x10", "1" * 300, "1e9999"):
        with pytest.raises(RejectedError):
            parse_assumed(text, "x")


def test_a_model_by_path_begins_at_the_plan(root: Any) -> None:
    data = {name: value for name, value in MODEL.items() if name != "model"} | {"model": "llama-3.2-1b.toml"}
    assert plan_run(read_inputs(data), folder=root / "models").manifest is not None


def test_a_device_with_a_shape_would_say_twice_how_many_there_are() -> None:
    with pytest.raises(RejectedError, match=r"a shape says how many devices there are.*write h100"):
        read_inputs({**SCENARIO, "device": "h100:32x8"})
