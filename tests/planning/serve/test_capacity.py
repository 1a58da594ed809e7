"""Weights and capacity of a device: a recount from shapes, lines that engines printed, and what is not given."""

from __future__ import annotations

from fractions import Fraction
from math import prod

import pytest

from jaxcost.catalog import load
from jaxcost.contracts.errors import RejectedError
from jaxcost.planning.serve.capacity import expected_activation
from jaxcost.planning.serve.inputs import Engine
from jaxcost.planning.serve.plan import filled, target_of
from jaxcost.planning.serve.weights import rank_weights, stored_program
from jaxcost.verify import recount
from tests.planning.serve.engine_walk import admitted, groups, pool_size
from tests.planning.serve.plans import engine, held, plan
from tests.planning.serve.published_logs import HALF, SPLIT, WEIGHTS

H100_BYTES = 84_942_979_072


def by_hand(
    layers: int, d: int, heads: int, kv: int, e: int, f: int, vocab: int, tensor: int, tied: bool = False
) -> int:
    """bf16 bytes of one tensor rank of a Llama: matrices cut, norm scales whole, K/V heads copied where too few."""
    own = max(1, kv // tensor)
    attention = d * heads * e // tensor * 2 + 2 * d * own * e
    layer = attention + 3 * d * f // tensor + 2 * d
    table = -(-vocab // 64) * 64 // tensor * d
    return 2 * (layers * layer + table * (1 if tied else 2) + d)


@pytest.mark.parametrize("tensor", [1, 2, 8])
def test_weights_of_a_rank_are_a_sum_over_shapes(tensor: int) -> None:
    [found] = held("llama-3.1-70b", f"h100:{tensor}", tensor=tensor).budget.weights
    assert found.total == by_hand(80, 8192, 64, 8, 128, 28672, 128256, tensor)
    assert found.rotary == found.scales == found.padding == 0


def test_weights_with_more_ranks_than_heads() -> None:
    [found] = held("llama-3.1-70b", "h100:2x8").budget.weights
    assert found.total == by_hand(80, 8192, 64, 8, 128, 28672, 128256, 16)


def test_tied_tables_stand_once_and_vocabularies_are_padded() -> None:
    architecture = load("llama-3.2-1b").architecture
    [found] = held("llama-3.2-1b").budget.weights
    assert found.total == by_hand(16, 2048, 32, 8, 64, 8192, 128256, 1, tied=True)
    settings = Engine(vocabulary_multiple=1000)
    [padded] = rank_weights(stored_program(architecture, settings), settings)
    assert padded.padding == 744 * 2048 * 2 and padded.total == found.total + padded.padding


@pytest.mark.parametrize("pipeline", [1, 2, 4])
def test_stages_hold_all_weights_once(pipeline: int) -> None:
    [whole] = held("llama-3.1-8b").budget.weights
    found = held("llama-3.1-8b", f"h100:{pipeline}", pipeline=pipeline).budget.weights
    assert len(found) == pipeline and sum(each.total for each in found) == whole.total


def test_the_same_weights_by_the_recount_of_another_module() -> None:
    from jaxcost.contracts.case import build_case

    architecture = load("qwen2.5-0.5b").architecture
    case = build_case(architecture, {"phase": "decode", "past": 1, "vocabulary_multiple": 64})
    [found] = held("qwen2.5-0.5b").budget.weights
    assert found.total == 2 * sum(prod(t.shape) for t in recount.tensors(case, padded=True))


@pytest.mark.parametrize(("source", "name", "given", "printed", "missed"), WEIGHTS)
def test_printed_weights_come_out(source: str, name: str, given: dict[str, object], printed: str, missed: str) -> None:
    [found] = held(name, **given).budget.weights
    assert Fraction(printed) - Fraction(f"{found.total / 2**30:.4f}") == Fraction(missed), source


@pytest.mark.parametrize(("tensor", "device", "weights", "other", "activation", "left"), SPLIT)
def test_a_printed_split_of_memory_comes_out(
    tensor: int, device: str, weights: str, other: str, activation: str, left: str | None
) -> None:
    """Every printed part stands for an interval of half a last digit to either side; ours lies in their sum."""
    given = {name: int(Fraction(text) * 2**30) for name, text in (
        ("device_memory_bytes", device), ("other_bytes", other), ("activation_bytes", activation))}  # fmt: skip
    found = held("llama-3.1-8b", f"h100:{tensor}", tensor=tensor, rotary_rows=8192, **given).budget
    assert f"{found.weights[0].total / 2**30:.2f}" == weights
    if left is not None:
        slack = HALF * (Fraction(9, 10) + 1 + 1 + 1)
        assert abs(Fraction(found.available[0], 2**30) - Fraction(left)) <= slack


def test_without_scales_or_rotary_table_printed_weights_do_not_come_out() -> None:
    for _, name, given, printed, _ in WEIGHTS:
        [found] = held(name, **given).budget.weights
        for part in (found.rotary, found.scales):
            if part:
                assert abs(Fraction(found.total - part, 2**30) - Fraction(printed)) > Fraction(1, 100)


@pytest.mark.parametrize(
    ("grain", "elements"),
    [("tensor", 7), ("channel", 4096 + 2 * 1024 + 4096 + 2 * 14336 + 4096), ("group:128", None)],
)
def test_scales_of_quantised_weights(grain: str, elements: int | None) -> None:
    [found] = held("llama-3.1-8b", weight_dtype="int4", weight_scales=grain).budget.weights
    d, f = 4096, 14336
    matrices = [(d, 4096), (d, 1024), (d, 1024), (4096, d), (d, f), (d, f), (f, d)]
    if elements is None:
        elements = sum(outer * -(-inner // 128) for inner, outer in matrices)
    assert found.scales == 32 * 4 * elements
    assert found.codes == 32 * sum(inner * outer for inner, outer in matrices) // 2 + 2 * (2 * 128256 * d + 65 * d)


@pytest.mark.parametrize(
    ("name", "target", "kv_bytes"),
    [("llama-3.1-8b", "h100:1", 2 * 8 * 128 * 2), ("llama-3.1-70b", "h100:8", 2 * 1 * 128 * 2)],
)
@pytest.mark.parametrize("taken", [0, 1_300_000_000])
def test_the_two_asked_for_agree_with_a_walk_within_one_block(
    name: str, target: str, kv_bytes: int, taken: int
) -> None:
    """Llama-3.1 8B on one H100 and 70B on eight: pages handed out one by one, from memory by hand."""
    found = held(name, target, activation_bytes=taken, other_bytes=taken // 2)
    layers, tensor = (32, 1) if "8b" in name else (80, 8)
    sizes = (4096, 32, 8, 128, 14336) if tensor == 1 else (8192, 64, 8, 128, 28672)
    left = H100_BYTES * 9 // 10 - by_hand(layers, *sizes, 128256, tensor) - taken - taken // 2
    tables = groups([0] * layers)
    blocks = pool_size(left, 16 * kv_bytes, tables)
    assert abs(found.pool.blocks - blocks) <= 1 and abs(found.pool.tokens - blocks * 16) <= 16
    assert int(found.pool.concurrency(8192)) == admitted(blocks, tables, 8192, 16, 8192)


def test_windowed_models_follow_the_groups_of_the_engine() -> None:
    gemma = held("gemma-2-9b").pool
    assert sorted((g.window, g.layers) for g in gemma.groups) == [(0, (21,)), (4096, (21,))]
    assert gemma.request_blocks(8192) == 512 + 513
    assert held("gemma-2-9b", max_num_batched_tokens=2048).pool.request_blocks(8192) == 512 + 384 + 1
    mistral = held("mistral-7b").pool
    assert [(g.window, g.layers) for g in mistral.groups] == [(4096, (32,))]
    assert held("mistral-7b", max_num_batched_tokens=2048).pool.request_blocks(32768) == 385
    assert [g.window for g in held("gemma-2-9b", hybrid=False).pool.groups] == [0]


def test_what_is_not_given_makes_an_upper_limit() -> None:
    bare = held("llama-3.1-8b")
    assert set(bare.unseen) == {"activation_bytes", "other_bytes", "rotary_rows"}
    given = held("llama-3.1-8b", activation_bytes=10**9, other_bytes=10**9, rotary_rows=131072)
    assert given.unseen == {} and given.pool.blocks < bare.pool.blocks
    assert (
        plan()["capacity"]["upper_limit"]
        and not plan(activation_bytes=10**9, other_bytes=10**9, rotary_rows=8192)["capacity"]["upper_limit"]
    )
    assert "rotary_rows" not in held("mpt-7b").unseen  # it has no rotary positions


def test_the_expected_capacity_is_an_interval_below_the_limit() -> None:
    data = plan()
    tokens = data["expected"]["tokens"]
    assert tokens["lower"] <= tokens["expected"] <= tokens["upper"] < data["capacity"]["tokens"]
    assert expected_activation(load("llama-3.1-8b").architecture, engine(kv_cache_dtype="fp8"), target_of("h100:1"))[
        "reason"
    ]
    fused = plan("phi-3-mini-4k")
    assert fused["expected"]["tokens"] is None and fused["expected"]["reason"]


def test_an_engine_that_does_not_start_says_how_long_a_request_may_be() -> None:
    data = plan(max_model_len=1_000_000)
    pages = data["capacity"]
    assert not pages["starts"] and pages["longest_request"] == pages["tokens"]
    none = plan("llama-3.1-70b")
    assert none["capacity"]["blocks"] == 0 and none["memory"]["available_bytes"] < 0
    assert none["capacity"]["longest_request"] == 0


def test_degrees_follow_the_target() -> None:
    assert filled({}, target_of("h100:8"))["tensor"] == 8
    assert filled({"pipeline": 2}, target_of("h100:8"))["tensor"] == 4
    with pytest.raises(RejectedError, match="does not divide the 8 of h100:8"):
        filled({"tensor": 3}, target_of("h100:8"))
    with pytest.raises(RejectedError, match="states no memory"):
        held("llama-3.2-1b", "cpu:1")
    declared = held("llama-3.2-1b", "cpu:1", device_memory_bytes=10**10)
    assert declared.budget.source == "declared by the caller"


def test_a_model_with_few_positions_is_profiled_with_several_prompts() -> None:
    data = plan("gpt2", max_model_len=1024)
    assert data["expected"]["tokens"]["expected"] < data["capacity"]["tokens"]
    with pytest.raises(RejectedError, match="learned positions"):
        plan("gpt2", max_model_len=2048)
