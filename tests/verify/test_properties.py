"""The properties hold for drawn cases of every phase."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings

from jaxcost.contracts.case import Case
from jaxcost.contracts.workload import PHASES
from jaxcost.verify import recount
from jaxcost.verify.failures.subjects import decode, prefill, toy, train
from jaxcost.verify.fuzz import case_file
from jaxcost.verify.properties import PROPERTIES, broken
from jaxcost.verify.strategies import cases

# One example runs two dozen properties and their variants.
SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]


def hold(case: Case) -> None:
    found = broken(case)
    assert not found, f"{found}\n{json.dumps(case_file(case))}"


@given(cases(phase="training"))
@settings(suppress_health_check=SLOW)
def test_training_cases_keep_the_properties(case: Case) -> None:
    hold(case)


@given(cases(phase="prefill"))
@settings(suppress_health_check=SLOW)
def test_prefill_cases_keep_the_properties(case: Case) -> None:
    hold(case)


@given(cases(phase="decode"))
@settings(suppress_health_check=SLOW)
def test_decode_cases_keep_the_properties(case: Case) -> None:
    hold(case)


@pytest.mark.parametrize("devices", [1, 8])
def test_the_number_of_devices_can_be_fixed(devices: int) -> None:
    @given(cases(devices=devices))
    @settings(max_examples=10, suppress_health_check=SLOW)
    def check(case: Case) -> None:
        assert case.execution.device_count == devices
        assert not broken(case, ["shards_add_up", "forward_equals_the_walk"])

    check()


def test_every_property_speaks_about_a_phase_and_says_what_it_claims() -> None:
    for name, entry in PROPERTIES.items():
        assert entry.name == name
        assert len(entry.claim) > 20
        assert set(entry.phases) <= set(PHASES)


def test_the_walk_knows_the_toy_by_heart() -> None:
    """Counted by hand: per layer 768 weights, embedding 128, five norm scales of 8."""
    case = prefill()
    assert recount.unique_parameters(case) == 1128
    assert recount.unique_parameters(prefill(toy(tied=False))) == 1128 + 128
    assert recount.forward_flops(case) == 2 * 4352 + 256
    assert recount.pairs(case) == 16
    assert recount.pairs(case, "legal") == 10
    assert recount.cache_bytes(case) == 128
    assert recount.cache_bytes(decode()) == 2 * 2 * 8 * 4 * 2 * 2
    assert recount.backward_flops(train()) == 2 * recount.forward_flops(train())
    assert recount.backward_flops(train(frozen=["embed", "group0"])) < 2 * recount.forward_flops(train())
