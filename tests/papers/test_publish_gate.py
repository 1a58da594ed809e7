"""Section 0x0BE of the cost model, sentence by sentence: what must hold before contracts stand beside one another."""

from __future__ import annotations

import pytest

from jaxcost.contracts.errors import RejectedError
from jaxcost.papers.contract import AXES, KINDS, PER_DEVICE, Contract
from jaxcost.papers.expression import expression
from jaxcost.papers.gate import claims_of, compare_all
from jaxcost.papers.registry import REQUIRED, registry

EVERY = [pytest.param(contract, id=contract.name) for contract in registry().values()]


def test_all_required_contracts_are_present() -> None:
    assert set(REQUIRED) <= set(registry())


@pytest.mark.parametrize("contract", EVERY)
def test_each_is_scoped_to_its_source(contract: Contract) -> None:
    assert contract.source.citation and contract.source.url and contract.source.locators
    assert all(item.equation for item in contract.quantities)
    assert all(item.locator for item in contract.tables)


def test_the_composite_source_is_identified() -> None:
    assert [contract.name for contract in registry().values() if contract.subsections] == ["teaching-article"]
    assert registry()["teaching-article"].kind == "composite"


@pytest.mark.parametrize("contract", EVERY)
def test_symbols_are_translated_before_reuse(contract: Contract) -> None:
    own = {symbol.paper for symbol in contract.symbols if symbol.jaxcost}
    for item in contract.quantities:
        assert set(expression(item.formula).names) <= own


@pytest.mark.parametrize("contract", EVERY)
def test_operation_backward_and_replay_sets_are_explicit(contract: Contract) -> None:
    for axis in AXES:
        assert getattr(contract.axes, axis).strip()
    for item in contract.quantities:
        if item.kind == "hardware_flops":
            assert item.remat != "none"
        if item.kind == "model_flops":
            assert item.remat == "none"


def test_activation_bytes_and_flops_model_and_hardware_flops_are_kinds_apart() -> None:
    assert KINDS["saved_bytes_per_layer"] == "bytes" and KINDS["model_flops"] == KINDS["hardware_flops"] == "FLOPs"
    for found in compare_all(registry().values(), None):
        assert {item.claim.quantity.kind for item in found.claims} == {found.kind}
    both = [c.name for c in registry().values() if {"model_flops", "hardware_flops"} <= {q.kind for q in c.quantities}]
    assert {"palm", "korthikanti"} <= set(both)


def test_global_arithmetic_is_not_relabelled_as_one_rank_s() -> None:
    for item in claims_of(registry().values()):
        assert item.quantity.rank_local == (item.quantity.kind in PER_DEVICE)
        other = {**item.quantity.to_data(), "rank_local": not item.quantity.rank_local}
        with pytest.raises(RejectedError, match="relabelled"):
            type(item.quantity).from_data(other)


def test_numeric_comparison_stays_closed_without_a_target_manifest() -> None:
    assert not any(contract.numeric_comparison.allowed for contract in registry().values())
    for found in compare_all(registry().values(), None):
        assert found.status == "not_comparable"
        assert all(item.value is None and len(item.open) == len(AXES) for item in found.claims)
