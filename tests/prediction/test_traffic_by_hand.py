"""Bytes of every schedule by hand: eight rows of bf16 through two layers of width 8 (see `test_rows_by_hand`).

A stream of 8 rows has 128 bytes, queries 128, keys and values 64 each, a width of 12 has 192; scores and probabilities,
2 sequences x 4 heads x 4 x 4, have 256; logits, of fp32, 512. Every layer's row counts twice, for two layers.
"""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from typing import Any

import pytest

from jaxcost.prediction import predict, program
from jaxcost.prediction.ledgers import Prediction
from jaxcost.prediction.traffic import gemm_bytes, kv_input, one_pass
from tests.prediction.cases import TOY, case

ATTN = "group0/attn"
Q, K, V = f"{ATTN}/rotary/q", f"{ATTN}/rotary/k", f"{ATTN}/v_proj/out"
S, P, O = f"{ATTN}/scores/out", f"{ATTN}/softmax/out", f"{ATTN}/values/out"  # noqa: E741
MODEL = 1256


def train(**options: Any) -> Prediction:
    return predict(case(TOY, "training", **{"batch": 2, "seq": 4, **options}))


def moves(found: Prediction, phase: str, schedule: str) -> Counter[tuple[str, str, str, int]]:
    return Counter(
        (row.object, row.scope.rpartition("/")[2], row.fields["direction"], row.value)
        for row in found.ledgers["traffic"].rows
        if row.phase == phase and row.fields["schedule"] == schedule
    )


FORWARD = [
    (Q, "scores", "read", 256), (K, "scores", "read", 128), (S, "scores", "write", 512),
    (S, "softmax", "read", 512), (P, "softmax", "write", 512),
    (P, "values", "read", 512), (V, "values", "read", 128), (O, "values", "write", 256),
]  # fmt: skip
BACKWARD = [
    (f"d {O}", "values", "read", 256), (V, "values", "read", 128), (f"d {P}", "values", "write", 512),
    (f"d {O}", "values", "read", 256), (P, "values", "read", 512), (f"d {V}", "values", "write", 128),
    (f"d {P}", "softmax", "read", 512), (P, "softmax", "read", 512), (f"d {S}", "softmax", "write", 512),
    (f"d {S}", "scores", "read", 512), (K, "scores", "read", 128), (f"d {Q}", "scores", "write", 256),
    (f"d {S}", "scores", "read", 512), (Q, "scores", "read", 256), (f"d {K}", "scores", "write", 128),
]  # fmt: skip


def test_materialised_attention_stage_by_stage() -> None:
    found = train()
    assert moves(found, "forward", "materialised") == Counter(FORWARD)
    assert moves(found, "backward", "materialised") == Counter(BACKWARD)
    assert moves(found, "replay", "materialised") == Counter()
    again = train(remat="attention")
    assert moves(again, "replay", "materialised") == Counter(FORWARD)
    assert moves(again, "backward", "materialised") == Counter(BACKWARD)
    forward, backward = (sum(value for *_, value in rows) for rows in (FORWARD, BACKWARD))
    totals = again.ledgers["traffic"].totals
    assert (totals["attention_bytes"], totals["attention_replay_bytes"]) == (forward, forward)
    assert totals["attention_backward_bytes"] == backward
    convention = {
        row.convention for row in found.ledgers["traffic"].rows if row.fields["schedule"] == "materialised"
    }  # fmt: skip
    assert convention == {
        "logical payload between device memory and chip: "
        "every stage reads its operands whole once and writes its result once"
    }


LAYER_PASS = 2 * ((128 + 128 + 128) * 2 + (128 + 64 + 64) * 2 + 3 * (128 + 192 + 192))  # two layers, weights in bf16
HEAD_PASS = 128 + 256 + 512


def test_one_pass_of_every_other_product() -> None:
    found = train()
    totals = found.ledgers["traffic"].totals
    assert totals["gemm_one_pass_bytes"] == LAYER_PASS + HEAD_PASS
    # Each gradient is a product over the same three arrays.
    assert totals["gemm_backward_bytes"] == 2 * (LAYER_PASS + HEAD_PASS)
    assert totals["gemm_replay_bytes"] == 0
    block = train(remat="block").ledgers["traffic"].totals
    assert block["gemm_replay_bytes"] == LAYER_PASS and block["attention_replay_bytes"] == totals["attention_bytes"]
    assert totals["bytes"] == sum(
        totals[name]
        for name in ("attention_bytes", "attention_backward_bytes", "gemm_one_pass_bytes", "gemm_backward_bytes")
    )
    assert moves(train(remat="block"), "replay", "one pass")[("group0/mlp/up/weight", "up", "read", 384)] == 1
    passes = {item.scope: item for item in one_pass(program(case(TOY, "training", batch=2, seq=4)))}
    query, head = passes["group0/attn/q_proj"], passes["head"]
    assert query == ("group0/attn/q_proj", 2 * 8 * 64, 384, Fraction(2 * 8 * 64, 384), 2)
    assert head == ("head", 2 * 8 * 128, HEAD_PASS, Fraction(2 * 8 * 128, HEAD_PASS), 1)
    assert passes["group0/attn/scores"].bytes == 128 + 64 + 256
    assert len(passes) == 10
    assert gemm_bytes(2, 3, 5, "bf16", "fp32", "int8") == 2 * 6 + 4 * 15 + 10


@pytest.mark.parametrize("precision, each", [("bf16_inference", 2), ("fp32_inference", 4)])
def test_intensity_of_keys_and_values(precision: str, each: int) -> None:
    """One query row a sequence over 6 rows: 2 x 2 x 2 x 4 x 6 x 2 FLOPs a layer, and 2 x 2 x 6 x 2 x 2 scalars."""
    found = kv_input(program(case(TOY, "decode", batch=2, past=5, precision=precision)))
    work, size = 2 * 2 * 2 * 4 * 6 * 2, 2 * 2 * 6 * 2 * 2 * each
    assert found == {"flops": work, "bytes": size, "intensity": Fraction(work, size)}
    two = program(case({**TOY, "L": 3, "split": (1, 2)}, "decode", batch=2, past=5, precision=precision))
    assert kv_input(two, 0) == kv_input(two, 1) == found
    whole = kv_input(program(case({**TOY, "h": 4, "k": 1}, "decode", batch=2, past=5)))
    assert whole["intensity"] == 4 and isinstance(whole["intensity"], int)


def test_bounds_of_any_schedule() -> None:
    found = train()
    totals = found.ledgers["traffic"].totals
    parameters = 4 * MODEL
    state = 3 * parameters + 4
    assert totals["compulsory_bytes"] == (state + 32) + (state + 4)  # arguments and results: tokens, and a loss
    # The optimizer reads gradients, and reads and writes parameters, moments and step.
    assert totals["unfused_by_phase"]["optimizer"] == parameters + 2 * state
    assert totals["unfused_bytes"] == sum(totals["unfused_by_phase"].values())
    assert set(totals["unfused_by_phase"]) == {"forward", "backward", "optimizer"}
    block = train(remat="block").ledgers["traffic"].totals["unfused_by_phase"]
    assert block["forward"] == totals["unfused_by_phase"]["forward"]
    assert 0 < block["replay"] < block["forward"]
    frozen = train(frozen=["embed"]).ledgers["traffic"].totals["unfused_by_phase"]["optimizer"]
    assert frozen == parameters + 2 * state - 7 * 4 * 128  # 128 scalars less, of gradient, weight and two moments
    master = train(precision="bf16_master_adam").ledgers["traffic"].totals["unfused_by_phase"]["optimizer"]
    # bf16 weights and gradients, an fp32 master copy and two fp32 moments, a step counter of the program's own.
    assert master == 2 * MODEL + 2 * (2 * MODEL + 3 * 4 * MODEL + 4)
    serving = predict(case(TOY, "decode", batch=2, past=5)).ledgers["traffic"].totals
    assert set(serving["unfused_by_phase"]) == {"forward"}
    cache, rows = 384, 2 * 16 * 4
    assert serving["compulsory_bytes"] == (2 * MODEL + cache + 2 * 4 + 4) + (rows + cache)


def test_unfused_products_read_two_arrays_and_write_one() -> None:
    """The forward sum by hand: what each op of a layer and of the ends reads and writes."""
    norm = 128 + 2 * 8 + 128
    rotary = (128 + 64) * 2
    attention = sum(value for *_, value in FORWARD) // 2
    activation = 192 + 192 + 192
    residual = 3 * 128
    layer = 2 * norm + LAYER_PASS // 2 + rotary + attention + activation + 2 * residual
    lookup = 32 + 4 * 64 + 128
    loss = 512 + 32 + 4
    assert (
        train().ledgers["traffic"].totals["unfused_by_phase"]["forward"] == 2 * layer + lookup + norm + HEAD_PASS + loss
    )
