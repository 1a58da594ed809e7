"""The comparison gate: closed without a target and wherever an axis is open; then ledger + differences = contract."""

from __future__ import annotations

from typing import Any

import pytest

import jaxcost
from jaxcost.contracts.case import Case, build_case
from jaxcost.contracts.errors import RejectedError
from jaxcost.papers.contract import AXES, KINDS
from jaxcost.papers.gate import (
    COMMON,
    REQUIREMENTS,
    RESIDUAL_AXIS,
    Claim,
    claims_of,
    compare,
    compare_all,
    normalise,
    values,
)
from jaxcost.papers.graphs import architecture
from jaxcost.papers.registry import registry

CLAIMS = [pytest.param(item, id=item.label) for item in claims_of(registry().values())]


def claim(contract: str, quantity: str) -> Claim:
    found = registry()[contract]
    return Claim(found, found.quantity(quantity))


def running(**options: Any) -> Case:
    return jaxcost.training(jaxcost.load("running"), **{"batch": 1, "seq": 4096, **options})


def gpt(**options: Any) -> Case:
    """A small GPT that every form of multi-head attention applies to."""
    made = architecture(registry()["korthikanti"].graph("gpt"))
    return build_case(made, {"phase": "training", "batch": 4, "seq": 8, "precision": "bf16", **options})


@pytest.mark.parametrize("item", CLAIMS)
def test_without_a_target_every_axis_is_open(item: Claim) -> None:
    found = normalise(item, None)
    assert found.status == "not_comparable" and found.value is None
    assert [axis.axis for axis in found.open] == list(AXES)
    closed = compare([item], None)
    assert (closed.status, closed.target_case_id) == ("not_comparable", None)


@pytest.mark.parametrize("item", CLAIMS)
@pytest.mark.parametrize("model", ["gpt2", "llama-3.1-8b", "gemma-2-2b", "opt-350m"])
def test_a_number_is_given_only_where_everything_closes(item: Claim, model: str) -> None:
    target = jaxcost.training(jaxcost.load(model), batch=2, seq=128)
    found = normalise(item, target)
    if found.open:
        assert found.value is None and found.ledger is None and found.steps == ()
        assert all(axis.axis in AXES and axis.reason for axis in found.open)
    else:
        assert found.ledger + sum(step.amount for step in found.steps) == found.value
        assert all(step.amount for step in found.steps)


def test_the_running_fixture_s_three_ways_to_count() -> None:
    """Section 0x06F of the cost model: 6 N D with three different N against the ledger of 210.82 TFLOPs."""
    target = running()
    found = compare([claim("kaplan", "training_flops"), claim("llama3", "six_n"), claim("palm", "model_flops")], target)
    assert (found.status, found.target_case_id) == ("normalized", target.digest)
    assert {item.ledger for item in found.claims} == {210_822_764_691_456}
    kaplan, llama, palm = found.claims
    assert kaplan.value == 171_523_813_933_056  # non-embedding N: 18.6% below
    assert llama.value == 6 * 8_030_261_248 * 4096  # all unique scalars: 6.4% below
    pairwise = next(step.amount for step in llama.steps if step.name == "the pairwise products are left out")
    assert pairwise == -3 * 8_796_093_022_208
    assert palm.value == llama.value + 3 * 8_796_093_022_208
    assert llama.cancels and not kaplan.cancels and not palm.cancels


def test_nearness_that_rests_on_errors_of_both_signs_is_marked() -> None:
    target = jaxcost.training(jaxcost.load("llama-3.1-8b"), batch=1, seq=2048)
    found = normalise(claim("gpt3", "six_n"), target)
    assert found.cancels
    assert abs(found.value / found.ledger - 1) < 0.05
    assert max(abs(step.amount) for step in found.steps) > 3 * abs(found.value - found.ledger) / 2


def test_a_replay_that_the_target_lacks_is_one_signed_step() -> None:
    found = normalise(claim("megatron", "iteration_flops"), gpt())
    again = normalise(claim("megatron", "iteration_flops"), gpt(remat="block"))
    assert [step.name for step in found.steps] == ["replay"]
    assert again.steps == () and again.value == again.ledger == found.value
    assert found.steps[0].amount == found.value - found.ledger > 0


def test_saved_bytes_open_with_dropout_and_two_bytes_alone() -> None:
    layer = claim("korthikanti", "layer_bytes")
    assert normalise(layer, gpt(dropout=True)).value == 34 * 4 * 8 * 16 + 5 * 4 * 4 * 8 * 8
    for options in ({}, {"dropout": True, "precision": "fp32"}, {"dropout": True, "attention": "blockwise"}):
        assert {axis.axis for axis in normalise(layer, gpt(**options)).open} == {"state"}
    assert {axis.axis for axis in normalise(layer, gpt(dropout=True, remat="block")).open} == {"replay"}


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_zero_opens_for_its_own_stage(stage: int) -> None:
    names = ("baseline", "p_os", "p_os_g", "p_os_g_p")
    target = gpt(precision="bf16_master_adam", mesh={"data": 4}, zero=stage)
    found = {name: normalise(claim("zero", name), target) for name in names}
    assert [name for name, item in found.items() if not item.open] == [names[stage]]
    mixed = gpt(precision="mixed", mesh={"data": 4}, zero=stage)
    assert all(normalise(claim("zero", name), mixed).open for name in names)


def test_phases_and_rows_that_a_form_does_not_count_stay_closed() -> None:
    arch = jaxcost.load("gpt2")
    final = jaxcost.prefill(arch, batch=1, seq=64)
    assert {axis.axis for axis in normalise(claim("kaplan", "forward_flops"), final).open} == {"phase"}
    whole = jaxcost.prefill(arch, batch=1, seq=64, logits="all")
    assert normalise(claim("kaplan", "forward_flops"), whole).status == "normalized"
    assert {axis.axis for axis in normalise(claim("palm", "model_flops"), whole).open} == {"phase"}
    ragged = jaxcost.training(arch, batch=2, seq=64, lengths=[64, 32])
    assert {axis.axis for axis in normalise(claim("palm", "model_flops"), ragged).open} == {"phase"}


def test_legal_pairs_are_another_operation_set() -> None:
    legal = normalise(claim("palm", "model_flops"), running(pairs="legal"))
    assert [axis.axis for axis in legal.open] == ["operations"]


def test_a_form_that_takes_something_else_for_granted_stays_closed() -> None:
    """Every requirement is met by one target and broken by another; without its name the rest would still show."""
    found = claim("megatron", "iteration_flops")
    assert normalise(found, running()).open
    loose = Claim(found.contract, found.quantity.model_copy(update={"requires": ()}))
    assert [axis.axis for axis in normalise(loose, running()).open] == ["operations"]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("multi_head", {}), ("classic_mlp", {}), ("width_4d", {}), ("dropout", {}), ("zero_1", {}), ("zero_2", {}),
        ("zero_3", {}), ("data_parallel_only", {}), ("materialised", {"attention": "blockwise"}),
        ("two_byte_activations", {"precision": "fp32"}), ("zero_0", {"mesh": {"data": 2}, "zero": 1, "batch": 2}),
        ("one_device", {"mesh": {"fsdp": 2}, "batch": 2}),
    ],
)  # fmt: skip
def test_each_requirement_is_broken_by_some_target(name: str, options: dict[str, Any]) -> None:
    found = REQUIREMENTS[name](running(**options))
    assert found is not None and found.axis in AXES and found.reason


@pytest.mark.parametrize(
    ("name", "model"),
    [("one_kind_of_layer", None), ("no_windows", "gemma-2-2b"), ("table_of_hidden_width", "opt-350m"),
     ("heads_fill_width", "gemma-2-2b"), ("rows_all", "gpt2")],
)  # fmt: skip
def test_each_requirement_of_the_graph_is_broken_by_some_model(name: str, model: str | None) -> None:
    if model is None:
        arch = jaxcost.load("gpt2")
        twice = arch.replaced(groups=(arch.groups[0], arch.groups[0]))
        target = jaxcost.training(twice, seq=8)
    elif name == "rows_all":
        target = jaxcost.prefill(jaxcost.load(model), seq=8)
    else:
        target = jaxcost.training(jaxcost.load(model), seq=8)
    assert REQUIREMENTS[name](target) is not None
    assert REQUIREMENTS[name](gpt()) is None


def test_kinds_units_and_owners_never_meet() -> None:
    target = gpt(dropout=True)
    layer, model = claim("korthikanti", "layer_bytes"), claim("korthikanti", "model_flops")
    hardware, other = claim("palm", "with_attention_replay"), claim("palm", "model_flops")
    parameters = claim("megatron", "p")
    for pair, axis in (
        ((layer, model), "output"),
        ((hardware, other), "replay"),
        ((parameters, claim("zero", "baseline")), "ownership"),
        ((claim("kaplan", "forward_flops"), other), "output"),
    ):
        found = compare(pair, target)
        assert found.status == "not_comparable" and axis in {item.axis for item in found.open}
        with pytest.raises(RejectedError) as caught:
            values(pair, target)
        assert f"comparison.{axis}" in [problem.path for problem in caught.value.problems]
    assert set(values((model, other), target)) == {"korthikanti.model_flops", "palm.model_flops"}


def test_nothing_is_compared_by_its_title() -> None:
    pair = (claim("kaplan", "training_flops"), claim("palm", "model_flops"))
    with pytest.raises(RejectedError) as caught:
        values(pair, None)
    assert len(caught.value.problems) == 2 * len(AXES)
    assert compare((), gpt()).status == "not_comparable"


def test_every_kind_has_a_ledger_and_an_axis_for_its_rest() -> None:
    assert COMMON.keys() == KINDS.keys() == RESIDUAL_AXIS.keys()
    assert set(RESIDUAL_AXIS.values()) <= set(AXES)
    assert {item.kind for item in compare_all(registry().values(), gpt())} == set(KINDS)
    used = {name for item in claims_of(registry().values()) for name in item.quantity.requires}
    assert used <= REQUIREMENTS.keys()


def test_errors_of_both_signs_that_do_not_cancel_are_not_marked() -> None:
    found = normalise(claim("chinchilla", "n"), jaxcost.training(jaxcost.load("gpt2"), batch=1, seq=64))
    signs = {step.amount > 0 for step in found.steps}
    assert signs == {True, False} and not found.cancels
