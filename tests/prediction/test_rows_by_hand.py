"""Whole rows of every ledger, written by hand for a model small enough to count on paper.

Two layers of width 8: 4 query heads and 2 key heads of 2, an MLP of 12, a vocabulary of 16. A layer holds
64 + 32 + 32 + 64 (attention) + 3 x 96 (MLP) + 2 x 8 (norms) = 496 scalars, the model 2 x 496 + 2 x 128 + 8 = 1256.
A row is compared whole: what it names, says and leaves out belongs to its contract as much as its number.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from jaxcost.contracts.case import build_case
from jaxcost.prediction import predict, program
from jaxcost.prediction.collectives import collectives
from jaxcost.prediction.ledgers import Prediction
from jaxcost.prediction.rows import Row
from jaxcost.prediction.state import factored_axes
from tests.prediction.cases import TOY, architecture, case

LAYER = 64 + 32 + 32 + 64 + 3 * 96 + 2 * 8
MODEL = 2 * LAYER + 2 * 128 + 8


def train(sizes: dict[str, Any] = TOY, **options: Any) -> Prediction:
    return predict(case(sizes, "training", **{"batch": 2, "seq": 4, **options}))


def rows(found: Prediction, ledger: str, **where: Any) -> list[Row]:
    return [
        row for row in found.ledgers[ledger].rows if all(getattr(row, name) == value for name, value in where.items())
    ]


def one(found: Prediction, ledger: str, **where: Any) -> dict[str, Any]:
    (row,) = rows(found, ledger, **where)
    return row.to_dict()


def shown(row: Row) -> dict[str, Any]:
    """A row without its prose, which has tests of its own."""
    return {name: value for name, value in row.to_dict().items() if name not in ("convention", "omitted")}


def words(row: dict[str, Any]) -> tuple[str, str]:
    return row.pop("convention"), row.pop("omitted")


@pytest.mark.parametrize("phase, options", [("training", {"seq": 4}), ("prefill", {"seq": 4}), ("decode", {"past": 5})])
def test_every_ledger_bears_its_name(phase: str, options: dict[str, int]) -> None:
    found = predict(case(TOY, phase, batch=2, **options))
    assert {name: ledger.name for name, ledger in found.ledgers.items()} == {name: name for name in found.ledgers}
    assert {row.evidence for ledger in found.ledgers.values() for row in ledger.rows} == {"analytical"}


# Cache: 2 layers x 2 sequences x 6 rows x 2 heads x 2 x 2 bytes


def cache_row(part: str, **fields: Any) -> dict[str, Any]:
    return {
        "object": f"group0/attn/{part}", "scope": "group0/attn", "phase": "decode", "value": 192, "unit": "bytes",
        "fields": {
            "layers": 2, "dtype": "bf16", "axes": "b t k e", "elements": 2 * 6 * 2 * 2, "copies": 2,
            "placement": "device", "created": "by an earlier call and appended to", "released": "with its requests",
            "past_rows": 5, "new_rows": 1, "visible_rows": 6, "minimum_bytes": 192, **fields,
        },
        "convention": "logical payload", "omitted": "paging, padding", "evidence": "analytical",
    }  # fmt: skip


def test_a_cache() -> None:
    found = predict(case(TOY, "decode", batch=2, past=5)).ledgers["kv_cache"]
    assert [row.to_dict() for row in found.rows] == [cache_row("keys"), cache_row("values")]
    assert found.totals == {"bytes": 384, "bytes_per_token": 32, "minimum_bytes": 384, "allocated_bytes": 384}
    filled = predict(case(TOY, "prefill", batch=2, seq=6)).ledgers["kv_cache"]
    assert filled.totals == found.totals
    assert [row.to_dict() for row in filled.rows] == [
        cache_row(part, created="by this call", past_rows=0, new_rows=6) | {"phase": "prefill"}
        for part in ("keys", "values")
    ]
    assert train().ledgers["kv_cache"].totals == dict.fromkeys(found.totals, 0)


def test_a_cache_of_ragged_prompts_fills_part_of_its_rectangle() -> None:
    found = predict(case(TOY, "prefill", batch=2, seq=6, lengths=[6, 2])).ledgers["kv_cache"]
    a_token = 2 * 2 * 2 * 2 * 2  # keys and values, layers, heads, width, bytes
    assert found.totals["bytes"] == (6 + 2) * a_token
    assert found.totals["allocated_bytes"] == 2 * 6 * a_token


# Parameters


def test_parameter_rows() -> None:
    found = train()
    query = one(found, "parameters", object="group0/attn/q_proj/weight")
    assert words(query) == ("an alias is named again, not stored again", "buffers: rotary tables, masks, random keys")
    assert query == {
        "object": "group0/attn/q_proj/weight", "scope": "group0/attn/q_proj", "phase": "", "value": 128,
        "unit": "scalars", "evidence": "analytical",
        "fields": {
            "axes": "layer d h e", "shape": [2, 8, 4, 2], "copies": 1, "dtype": "fp32",
            "storage": "group0/attn/q_proj/weight", "alias": False, "trainable": True, "padding": 0, "bytes": 512,
        },
    }  # fmt: skip
    unrolled = one(train(layers="unrolled"), "parameters", object="group0/attn/q_proj/weight")
    assert unrolled["fields"] == query["fields"] | {"axes": "d h e", "shape": [8, 4, 2], "copies": 2}
    table = one(found, "parameters", object="embed/tokens/weight")
    assert table["fields"]["axes"], table["fields"]["shape"] == ("v d", [16, 8])
    assert found.ledgers["parameters"].totals == {
        "unique": MODEL, "named": MODEL, "trainable": MODEL, "active": MODEL, "stored": MODEL, "padding": 0,
        "bytes": 4 * MODEL,
    }  # fmt: skip


def test_a_tied_head_is_an_alias_and_a_frozen_part_learns_nothing() -> None:
    found = train(TOY | {"tied": True}, frozen=["embed"])
    head = one(found, "parameters", object="head/weight")["fields"]
    assert (head["alias"], head["storage"], head["bytes"]) == (True, "embed/tokens/weight", 0)
    assert found.ledgers["parameters"].totals == {
        "unique": MODEL - 128, "named": MODEL, "trainable": MODEL - 256, "active": MODEL - 128, "stored": MODEL - 128,
        "padding": 0, "bytes": 4 * (MODEL - 128),
    }  # fmt: skip
    assert not one(found, "parameters", object="embed/tokens/weight")["fields"]["trainable"]


def test_a_padded_vocabulary() -> None:
    found = train(vocabulary_multiple=24).ledgers["parameters"].totals
    assert (found["unique"], found["padding"], found["stored"]) == (MODEL, 2 * 8 * 8, MODEL + 2 * 8 * 8)
    assert found["bytes"] == 4 * found["stored"]


# State: fp32 weights, gradients and two moments, an int32 step


def test_state_rows() -> None:
    found = train()
    moments = one(found, "state", object="m")
    assert words(moments) == ("logical payload", "allocator padding, buffers, workspace")
    assert moments == {
        "object": "m", "scope": "", "phase": "after_optimizer_construction", "value": 4 * MODEL, "unit": "bytes",
        "evidence": "analytical",
        "fields": {
            "role": "first_moment", "basis": "updated", "count": "dense", "dtype": "fp32", "copies": 1,
            "scalars": MODEL, "placement": "device", "created": "after_optimizer_construction", "released": "never",
            "owner": "optimizer",
            "live_at": ["after_optimizer_construction", "after_backward", "in_first_step", "after_release"],
        },
    }  # fmt: skip
    gradients = one(found, "state", object="gradients")["fields"]
    assert (gradients["basis"], gradients["owner"], gradients["live_at"]) == (
        "trainable", "autograd", ["after_backward", "in_first_step"],
    )  # fmt: skip
    copy = 4 * MODEL
    assert found.ledgers["state"].totals == {
        "bytes": 4 * copy + 4,
        "bytes_per_parameter": Fraction(4 * copy + 4, MODEL),
        "by_role": {
            "parameter": copy, "gradient": copy, "step": 4, "first_moment": copy, "second_moment": copy
        },
        "resident_bytes": {
            "after_load": copy, "after_optimizer_construction": 3 * copy + 4, "after_backward": 4 * copy + 4,
            "in_first_step": 4 * copy + 4, "after_release": 3 * copy + 4,
        },
        "optimizer_bytes": 2 * copy + 4,
        "checkpoint_bytes": 3 * copy + 4,
        "host_bytes": 0,
        "loaded": MODEL, "trainable": MODEL, "updated": MODEL,
    }  # fmt: skip


def test_serving_updates_nothing() -> None:
    found = predict(case(TOY, "decode", batch=2, past=5)).ledgers["state"].totals
    assert (found["loaded"], found["updated"], found["bytes"]) == (MODEL, 0, 2 * MODEL)
    assert found["optimizer_bytes"] == 0 and found["checkpoint_bytes"] == 2 * MODEL


# Device: what crosses the step's border


def test_device_rows() -> None:
    found = train()
    tokens = one(found, "device", object="tokens", phase="argument")
    assert words(tokens) == ("worst device", "allocator padding")
    assert tokens == {
        "object": "tokens", "scope": "embed", "phase": "argument", "value": 2 * 4 * 4, "unit": "bytes",
        "evidence": "analytical", "per_device": 32,
        "fields": {
            "role": "input", "dtype": "int32", "elements": 8, "copies": 1, "placement": "device",
            "created": "before the step", "released": "with the step, or taken over by a result", "padding": 0,
        },
    }  # fmt: skip
    loss = one(found, "device", object="loss/out", phase="result")
    assert (loss["value"], loss["fields"]) == (
        4,
        {
            "role": "output", "dtype": "fp32", "elements": 1, "copies": 1, "placement": "device",
            "created": "by the step", "released": "by the caller", "padding": 0,
        },
    )  # fmt: skip
    totals = found.ledgers["device"].totals
    state = 3 * 4 * MODEL + 4
    assert (totals["argument_bytes"], totals["state_bytes"], totals["input_bytes"]) == (state + 32, state, 32)
    assert totals["output_bytes"] == state + 4
    assert list(totals["peak_bytes_by_family"]) == ["cuda", "tpu", "cpu"]
    for family in ("cuda", "tpu", "cpu"):
        reason = found.ledgers["device"].reasons[f"peak_bytes_by_family.{family}.expected"]
        assert reason and totals["peak_bytes_by_family"][family] == {
            "lower": state + 32, "expected": None, "upper": None, "at": None, "policy": None,
        }  # fmt: skip
    assert totals["peak_bytes"] == totals["peak_bytes_by_family"]["cuda"]
    assert found.ledgers["device"].reasons["peak_bytes.expected"]


# FLOPs: 2 x 2 layers x rows 8 x 8 x 8 for the query projection


def query_flops(**fields: Any) -> dict[str, Any]:
    return {
        "object": "q_proj", "scope": "group0/attn/q_proj", "phase": "forward", "value": 2048, "unit": "FLOPs",
        "part": "forward", "region": "block", "per_device": 2048, "evidence": "analytical",
        "fields": {
            "contraction": "b s d, d h e -> b s h e", "layers": 2, "microbatches": 1, "b": 2, "s": 4, "d": 8, "h": 4,
            "e": 2, "matrix": {"batch": "", "m": "b s", "n": "h e", "k": "d"}, "rows": 8, **fields,
        },
    }  # fmt: skip


def test_flop_rows() -> None:
    found = train()
    forward, data, weight = rows(found, "flops", object="q_proj")
    assert shown(forward) == query_flops()
    assert forward.convention == "one multiply-add is two FLOPs; every query-key pair"
    assert forward.omitted == "non-matmul primitives, embedding lookup, collectives"
    assert shown(data) == query_flops(
        gradient_of="group0/attn_norm/out", product="b s h e, d h e -> b s d",
        matrix={"batch": "", "m": "b s", "n": "d", "k": "h e"},
    ) | {"phase": "backward", "part": "dx"}  # fmt: skip
    assert shown(weight) == query_flops(
        gradient_of="group0/attn/q_proj/weight", product="b s d, b s h e -> d h e",
        matrix={"batch": "", "m": "d", "n": "h e", "k": "b s"},
    ) | {"phase": "backward", "part": "dw"}  # fmt: skip
    # Matrices meet 8 rows; each of scores and values is 2 x layers x sequences x heads x 4 x 4 x width.
    matrices = 2 * 8 * (MODEL - 128 - 8 - 2 * 16)
    pairs = 2 * 2 * 2 * 2 * 4 * 4 * 4 * 2
    legal = pairs * 10 // 16  # of 4 x 4 pairs a causal mask leaves 1 + 2 + 3 + 4
    forward_flops = matrices + pairs
    assert found.ledgers["flops"].totals == {
        "forward": forward_flops, "backward": 2 * forward_flops, "recompute": 0, "total": 3 * forward_flops,
        "forward_causal": matrices + legal, "per_device_forward": forward_flops,
        "per_device_backward": 2 * forward_flops, "per_device_recompute": 0, "per_device": 3 * forward_flops,
    }  # fmt: skip


def test_replayed_flops_name_their_cause() -> None:
    found = train(remat="block")
    replayed = [row for row in rows(found, "flops", object="q_proj") if row.phase == "replay"]
    assert [shown(row) for row in replayed] == [
        query_flops(cause="remat block") | {"phase": "replay", "part": "replay"}
    ]
    block = 2 * 8 * 2 * (LAYER - 16) + 2 * 2 * 2 * 2 * 4 * 4 * 4 * 2
    assert found.ledgers["flops"].totals["recompute"] == block
    split = train(attention="blockwise", attention_block=2)
    assert {row.fields["cause"] for row in rows(split, "flops", phase="replay")} == {"blockwise backward"}
    assert split.ledgers["flops"].totals["recompute"] == 2 * 2 * 2 * 4 * 4 * 4 * 2  # QK once more


def test_legal_pairs_say_so() -> None:
    (scores, *_) = rows(train(pairs="legal"), "flops", object="scores")
    assert scores.convention == (
        "one multiply-add is two FLOPs; query-key pairs the mask lets through, windows included"
    )
    assert scores.value == 2 * 2 * 2 * 4 * 2 * 10


# Traffic


def test_traffic_rows() -> None:
    found = train()
    read = rows(found, "traffic", object="group0/attn/rotary/q", scope="group0/attn/scores", phase="forward")
    assert [shown(row) for row in read] == [
        {
            "object": "group0/attn/rotary/q", "scope": "group0/attn/scores", "phase": "forward", "value": 256,
            "unit": "bytes", "region": "block", "evidence": "analytical",
            "fields": {
                "direction": "read", "boundary": "device memory and chip", "axes": "b s h e", "elements": 64,
                "dtype": "bf16", "bytes": 128, "multiplicity": 1, "layers": 2, "schedule": "materialised",
            },
        }
    ]  # fmt: skip
    assert read[0].convention == (
        "logical payload between device memory and chip: "
        "every stage reads its operands whole once and writes its result once"
    )
    assert read[0].omitted == "cache hits, sectors, replays, padding, workspace"
    gradient = rows(found, "traffic", scope="head", phase="backward")  # logits are fp32, all else is bf16
    assert [(row.object, row.fields["direction"], row.fields["gradient_of"], row.value) for row in gradient] == [
        ("d head/out", "read", "final_norm/out", 8 * 16 * 4),
        ("head/weight", "read", "final_norm/out", 8 * 16 * 2),
        ("d final_norm/out", "write", "final_norm/out", 8 * 8 * 2),
        ("d head/out", "read", "head/weight", 8 * 16 * 4),
        ("final_norm/out", "read", "head/weight", 8 * 8 * 2),
        ("d head/weight", "write", "head/weight", 8 * 16 * 2),
    ]
    assert {row.fields["schedule"] for row in gradient} == {"one pass"}
    assert {row.convention.partition(": ")[2] for row in gradient} == {
        "both operands of an isolated product are read whole once, its result is written once"
    }


def test_blockwise_traffic() -> None:
    """Two blocks of two rows: K and V pass once for each query block, Q and dQ once for each key block."""
    found = train(attention="blockwise", attention_block=2)
    forward = [row for row in rows(found, "traffic", phase="forward") if row.fields["schedule"] == "blockwise"]
    q, kv, statistics = 2 * 128, 2 * 64, 2 * 2 * 4 * 4 * 4
    attn = "group0/attn"
    moves = [(row.object, row.scope, row.fields["direction"], row.fields["multiplicity"], row.value) for row in forward]
    assert moves == [
        (f"{attn}/rotary/q", f"{attn}/scores", "read", 1, q),
        (f"{attn}/rotary/k", f"{attn}/scores", "read", 2, 2 * kv),
        (f"{attn}/v_proj/out", f"{attn}/values", "read", 2, 2 * kv),
        (f"{attn}/values/out", f"{attn}/values", "write", 1, q),
        ("row statistics", f"{attn}/softmax", "write", 1, statistics),
    ]  # fmt: skip
    assert (forward[-1].fields["axes"], forward[-1].fields["dtype"]) == ("b k g s", "fp32")
    assert {row.convention.partition(": ")[2] for row in forward} == {
        "a block stays on chip while all rows of the other side pass by, once for each block"
    }
    backward = [row for row in rows(found, "traffic", phase="backward") if row.fields["schedule"] == "blockwise"]
    assert [(row.object, row.fields["direction"], row.fields["multiplicity"], row.value) for row in backward] == [
        (f"{attn}/values/out", "read", 1, q),
        (f"d {attn}/values/out", "read", 1, q),
        ("sum(do * o)", "write", 1, statistics),
        (f"{attn}/rotary/k", "read", 1, kv),
        (f"{attn}/v_proj/out", "read", 1, kv),
        (f"{attn}/rotary/q", "read", 2, 2 * q),
        (f"d {attn}/values/out", "read", 2, 2 * q),
        ("row statistics", "read", 2, 2 * statistics),
        ("sum(do * o)", "read", 2, 2 * statistics),
        (f"d {attn}/rotary/q", "read", 2, 2 * q),
        (f"d {attn}/rotary/q", "write", 2, 2 * q),
        (f"d {attn}/rotary/k", "write", 1, kv),
        (f"d {attn}/v_proj/out", "write", 1, kv),
    ]
    assert {row.scope for row in backward if row.object in ("row statistics", "sum(do * o)")} == {f"{attn}/softmax"}
    totals = found.ledgers["traffic"].totals
    assert totals["attention_bytes"] == 2 * q + 4 * kv + statistics
    assert totals["attention_backward_bytes"] == 10 * q + 4 * kv + 5 * statistics
    assert totals["attention_replay_bytes"] == 0


# Saved activations, primitives, ownership, collectives


def test_a_saved_activation() -> None:
    found = train(accumulate=2, batch=4)
    saved = one(found, "activations", object="group0/in")
    assert words(saved) == (
        "unique tensors needed by backward, one microbatch",
        "norm row statistics (rebuilt), compute-dtype copies of weights, index tables, workspace",
    )
    assert saved == {
        "object": "group0/in", "scope": "group0", "phase": "forward", "value": 2 * 2 * 4 * 8 * 2, "unit": "bytes",
        "region": "block", "per_device": 256, "evidence": "analytical",
        "fields": {
            "axes": "b s d", "dtype": "bf16", "layers": 2, "role": "activation", "elements": 64,
            "bytes_per_layer": 128, "copies": 2, "placement": "device", "needed_by": ["group0/attn_norm backward"],
            "created": "group0 forward", "last_use": "group0/attn_norm backward",
            "released": "after group0/attn_norm backward",
        },
    }  # fmt: skip
    assert found.ledgers["activations"].reasons["peak_bytes"] == "no liveness events supplied"
    assert predict(case(TOY, "decode", batch=2, past=5)).ledgers["activations"].totals["saved_bytes"] == 0


@pytest.mark.parametrize(
    "optimizer, counts",
    [
        ("sgd", {"multiply": 1, "add": 1}),
        ("lion", {"multiply": 5, "add": 3, "sign": 1}),
        ("adam", {"multiply": 6, "add": 4, "divide": 3, "sqrt": 1}),
        ("adamw", {"multiply": 7, "add": 5, "divide": 3, "sqrt": 1}),
    ],
)
def test_an_update(optimizer: str, counts: dict[str, int]) -> None:
    found = rows(train(optimizer=optimizer), "primitives", phase="optimizer")
    assert [shown(row) for row in found] == [
        {
            "object": kind, "scope": "optimizer", "phase": "optimizer", "value": n * MODEL, "unit": "primitives",
            "evidence": "analytical",
            "fields": {
                "op": "update", "layers": 1, "optimizer": optimizer, "per": "updated scalar",
                "terms": [{"coefficient": n, "axes": "updated scalars", "extent": MODEL}],
            },
        }
        for kind, n in counts.items()
    ]  # fmt: skip
    assert found[0].convention == "one per element; subtraction is add; a reduction over n values counts n"
    assert found[0].omitted.startswith("type conversions, layout changes")


def test_a_lookup_gathers_and_its_backward_pass_scatters() -> None:
    found = rows(train(), "primitives", scope="embed/tokens")
    assert [(row.object, row.phase, row.value, row.fields["op"], row.region) for row in found] == [
        ("gather", "forward", 8 * 8, "lookup", "outside"),
        ("scatter_add", "backward", 8 * 8, "lookup", "outside"),
    ]
    totals = train().ledgers["primitives"].totals
    assert totals["by_phase"]["backward"]["scatter_add"] == totals["scatter_add"] == 64
    again = rows(train(remat="block"), "primitives", phase="replay")
    assert {row.fields["cause"] for row in again} == {"recomputation policy"}
    split = rows(train(attention="blockwise", attention_block=2), "primitives", phase="replay")
    assert {row.fields["cause"] for row in split} == {"blockwise backward"}


def test_who_holds_the_parameters() -> None:
    """fsdp 2 x tensor 2: the matrices are cut four ways, five vectors of 8 are whole on each of four devices."""
    found = train(batch=4, mesh={"fsdp": 2, "tensor": 2})
    vectors = 5 * 8
    matrices = MODEL - vectors
    mine = 4 * (matrices // 4 + vectors)
    row = one(found, "ownership", object="parameters")
    assert words(row) == ("worst device", "activations, gathered weights, communication buffers")
    assert row == {
        "object": "parameters", "scope": "", "phase": "in_first_step", "value": 4 * MODEL, "unit": "bytes",
        "per_device": mine, "evidence": "analytical",
        "fields": {
            "role": "parameter", "zero": 0, "dtype": "fp32", "copies": 1, "bytes_per_parameter": 4,
            "divided": {"fsdp=2 x tensor=2": 4 * matrices, "whole": 4 * vectors},
            "replicated_over": {"fsdp=2 x tensor=2": [], "whole": ["fsdp", "tensor"]},
            "created": "after_load", "released": "never", "elements": MODEL, "padding": 0, "cluster_bytes": 4 * mine,
            "placement": "device", "host_bytes": 0,
        },
    }  # fmt: skip
    totals = found.ledgers["ownership"].totals
    assert totals["by_role"] == {
        "parameter": mine, "gradient": mine, "step": 4, "first_moment": mine, "second_moment": mine
    }  # fmt: skip
    assert (totals["persistent_bytes"], totals["by_zero_stage"]) == (4 * mine + 4, {"0": 4 * mine + 4})
    assert (totals["global_bytes"], totals["cluster_bytes"]) == (4 * 4 * MODEL + 4, 4 * (4 * mine + 4))
    assert (totals["padding_bytes"], totals["host_bytes"], totals["tokens_per_device"]) == (0, 0, 8)
    assert totals["worst_device"]["device"] == "any"
    assert totals["tensor"] == {
        "sliced_weights": 9, "whole_weights": 0, "kv_replicas": 1, "largest_partial_bytes": 2 * 4 * 8 * 2
    }  # fmt: skip
    assert totals["gradients"] == {
        "sync": "every_microbatch", "reductions": 1, "between_microbatches_bytes": mine, "reduced_bytes": mine
    }  # fmt: skip


def test_two_ranks_of_a_pipeline() -> None:
    """The first holds the embedding and a layer, the last a layer, the final norm and the head."""
    found = train(batch=4, mesh={"pipeline": 2}, accumulate=2)
    first, last = LAYER + 128, LAYER + 8 + 128
    ranks = [row for row in found.ledgers["ownership"].rows if row.object.startswith("pipeline rank")]
    assert [(row.object, row.scope, row.phase, row.value, row.unit) for row in ranks] == [
        ("pipeline rank 0", "", "in_first_step", first, "scalars"),
        ("pipeline rank 1", "", "in_first_step", last, "scalars"),
    ]
    a_layer = 2 * 16 * (LAYER - 16) + 2 * 2 * 4 * 4 * 4 * 4 * 2
    head = 2 * 16 * 128
    state = [4 * 4 * n + 4 for n in (first, last)]
    for row, stage, n in zip(ranks, (0, 1), state, strict=True):
        fields = dict(row.fields)
        saved = fields.pop("saved_bytes_per_microbatch")
        assert fields == {
            "stages": [stage], "layers": [1], "embedding": stage == 0, "head": stage == 1, "padding": 0,
            "state_bytes_per_device": n, "in_flight": 2, "saved_bytes_in_flight": 2 * saved,
            "flops": 3 * (a_layer + stage * head), "flops_per_device": 3 * (a_layer + stage * head),
        }  # fmt: skip
        assert row.convention.startswith("gpipe, 2 microbatches; ")
        assert row.omitted == "boundary buffers, gathered weights, temporaries"
    saved = [row.fields["saved_bytes_in_flight"] for row in ranks]
    totals = found.ledgers["ownership"].totals
    assert sum(saved) == 2 * found.value("activations.saved_bytes")
    assert totals["pipeline"] == {
        "schedule": "gpipe", "microbatches": 2, "parameters_by_rank": {"0": first, "1": last},
        "state_bytes_by_rank": {"0": state[0], "1": state[1]}, "in_flight_by_rank": {"0": 2, "1": 2},
        "saved_bytes_by_rank": {"0": saved[0], "1": saved[1]},
        "flops_by_rank": {"0": 3 * a_layer, "1": 3 * (a_layer + head)},
        "worst_rank_state": 1, "worst_rank_with_saved": 1,
        "boundary_bytes": 2 * 4 * 8 * 2,  # the rows of one microbatch
        "boundary_sends": 2 * 2,  # forward and back, for each of two
        "bubble_over_ideal": Fraction(1, 2), "bubble_over_all": Fraction(1, 3),
    }  # fmt: skip
    assert totals["worst_device"]["device"] == "pipeline=1"
    assert totals["persistent_bytes"] == state[1]
    assert totals["gradients"]["reductions"] == 0


def gathered(**fields: Any) -> dict[str, Any]:
    return {
        "kind": "all-gather", "boundary": "between devices", "axis": "fsdp", "participants": 2, "dtype": "bf16",
        "elements": 32, "payload_bytes": 64, "input_bytes": 32, "output_bytes": 64, "layers": 2, "microbatches": 1,
        "times": 2, "made_by": "parameters", "needed_by": "group0/attn/q_proj", "ring_send_bytes": 32,
        "tree_send_bytes": 32, **fields,
    }  # fmt: skip


def test_a_gathered_weight() -> None:
    """A quarter of the query projection's 64 scalars stands on a device; half of them are gathered from two."""
    declared = case(TOY, "training", batch=4, seq=4, mesh={"fsdp": 2, "tensor": 2})
    row = one(predict(declared), "collectives", object="group0/attn/q_proj/weight", phase="forward")
    assert words(row) == (
        "payload of one device: the whole array before a reduction, after a gather, as sent otherwise",
        "headers, retries, routes, padding of communication buckets",
    )
    assert row == {
        "object": "group0/attn/q_proj/weight", "scope": "group0/attn/q_proj", "phase": "forward", "value": 128,
        "unit": "bytes", "region": "block", "per_device": 128, "evidence": "analytical",
        "fields": gathered(
            inside_send_bytes=None, between_send_bytes=None,
            reason="how many devices share a node is a fact of the target, and none is named",
        ),
    }  # fmt: skip
    # fsdp is the outer axis: its pairs are devices 0 and 2, 1 and 3, so nodes of two split each pair.
    for per_node, inside, between in ((4, 32, 0), (2, 0, 32)):
        found = collectives(program(declared), per_node)
        (told,) = [row for row in found.rows if row.object == "group0/attn/q_proj/weight" and row.phase == "forward"]
        assert dict(told.fields) == gathered(inside_send_bytes=inside, between_send_bytes=between)


def test_collective_totals_are_sums_of_their_rows() -> None:
    found = train(batch=4, mesh={"fsdp": 2, "tensor": 2}, accumulate=2).ledgers["collectives"]
    for total, field in (("by_kind", "kind"), ("by_axis", "axis")):
        names = {row.fields[field] for row in found.rows}
        assert found.totals[total] == {
            name: sum(row.value for row in found.rows if row.fields[field] == name) for name in names
        }
    assert found.totals["payload_bytes"] == sum(row.value for row in found.rows)
    assert found.totals["ring_send_bytes"] == sum(
        row.fields["ring_send_bytes"] * row.fields["times"] for row in found.rows
    )
    assert {row.region for row in found.rows if row.scope.startswith("group")} == {"block"}
    assert {row.region for row in found.rows if not row.scope.startswith("group")} == {"outside"}
    assert all(row.fields["times"] == row.fields["layers"] * row.fields["microbatches"] for row in found.rows)
    assert {row.fields["microbatches"] for row in found.rows} <= {1, 2}


# One layer keeps, of 8 rows of bf16: five streams of 8 (in, norm out, mid, norm out, context), queries of 8, keys and
# values of 4, three widths of 12, and 2 x 4 x 4 x 4 probabilities; the ends keep two streams and 16 logits of fp32.
KEPT_LAYER = 2 * (8 * (5 * 8 + 8 + 4 + 4 + 3 * 12) + 2 * 4 * 4 * 4)
KEPT_ENDS = 2 * 8 * 2 * 8 + 4 * 8 * 16


def test_saved_bytes_stand_on_the_rank_that_keeps_most() -> None:
    assert train().value("activations.saved_bytes") == 2 * KEPT_LAYER + KEPT_ENDS
    piped = {"batch": 4, "accumulate": 2, "mesh": {"pipeline": 2}}
    # Two layers against a layer and the ends; then one against two and the ends.
    for layers, most, ends in (([2, 1], 2, False), ([1, 2], 2, True)):
        found = train(TOY | {"L": 3}, **piped, pipeline_layers=layers).ledgers["activations"]
        assert found.totals["saved_bytes"] == 3 * KEPT_LAYER + KEPT_ENDS
        assert found.totals["saved_bytes_per_device"] == most * KEPT_LAYER + ends * KEPT_ENDS
        kept = {row.object: row.per_device for row in found.rows}
        assert (kept["group0/in"], kept["head/out"]) == (most * 2 * 8 * 8, ends * 4 * 8 * 16)
        assert kept["group0/residual/out"] == ends * 2 * 8 * 8  # what the last layer hands on


def test_what_is_offloaded_by_name_rests_on_the_host() -> None:
    names = ["q_proj", "down"]
    for remat, place in (("save_and_offload_only_these_names", "host"), ("save_only_these_names", "device")):
        found = train(remat=remat, remat_names=names)
        places = {row.object: row.fields["placement"] for row in found.ledgers["activations"].rows[:-1]}
        assert places.pop("group0/attn/q_proj/out") == place
        assert set(places.values()) == {"device"}


def test_supplied_events_and_program_order_are_two_peaks() -> None:
    """x and y overlap on [1, 2); z is born as x dies, and a release comes first."""
    events = {
        "objects": [
            {"name": "x", "bytes": 10, "birth": 0.0, "death": 2.0},
            {"name": "y", "bytes": 5, "birth": 1.0, "death": 3.0},
            {"name": "z", "bytes": 7, "birth": 2.0, "death": 4.0, "kind": "workspace"},
        ],
        "persistent_bytes": 100,
    }
    options = {"phase": "training", "batch": 2, "seq": 4}
    found = predict(build_case(architecture(**TOY), options, events)).ledgers["activations"]
    assert (found.totals["peak_bytes"], found.totals["process_peak_bytes"]) == (15, 115)
    assert found.reasons == {}
    supplied, own = found.rows[-2:]
    assert supplied.to_dict() == {
        "object": "peak, supplied events", "scope": "", "phase": "", "value": 15, "unit": "bytes",
        "fields": {"at": 1.0, "alive": {"x": 10, "y": 5}}, "evidence": "analytical",
        "convention": "half-open intervals, release before birth",
        "omitted": "allocator rounding, workspace not declared",
    }  # fmt: skip
    assert (own.object, own.phase, own.unit) == ("peak, program order", "backward", "bytes")
    assert own.value == found.totals["program_order_peak_bytes"] == sum(own.fields["alive"].values())
    assert own.convention.startswith("program-order-v1: ") and own.fields["at"] == "loss"
    assert len(found.rows) == len(train().ledgers["activations"].rows) + 1
    without = train().ledgers["activations"]
    assert without.totals["peak_bytes"] is None and without.totals["program_order_peak_bytes"] == own.value


def test_a_peak_of_symbols_is_unknown_with_its_reason() -> None:
    from jaxcost.prediction.activations import activations
    from jaxcost.prediction.device import device
    from jaxcost.prediction.symbols import symbolic

    built = symbolic(case(TOY, "training", batch=2, seq=4))
    reason = "a largest cut is a choice between sizes, which symbols do not have"
    kept, held = activations(built), device(built)
    assert kept.name == "activations" and len(kept.rows) == len(train().ledgers["activations"].rows) - 1
    assert kept.totals["program_order_peak_bytes"] is None and kept.totals["saved_bytes"] != 0
    assert kept.reasons["program_order_peak_bytes"] == reason
    assert held.name == "device" and held.totals["peak_bytes"]["expected"] is None
    assert held.totals["peak_bytes"]["lower"] == held.totals["argument_bytes"]
    assert held.reasons == {
        f"{path}.expected": reason
        for path in ("peak_bytes", *(f"peak_bytes_by_family.{family}" for family in ("cuda", "tpu", "cpu")))
    }


def test_a_replayed_primitive_counts_what_its_forward_pass_counts() -> None:
    def counted(found: Prediction, phase: str, **where: Any) -> list[tuple[str, str, int]]:
        return sorted((row.object, row.scope, row.value) for row in rows(found, "primitives", phase=phase, **where))

    block = train(remat="block")
    assert counted(block, "replay") == counted(block, "forward", region="block") != []
    assert counted(block, "replay") != counted(block, "backward", region="block")
    kernel = train(attention="blockwise", attention_block=2)
    softmax = [row for row in counted(kernel, "forward") if row[1] == "group0/attn/softmax"]
    replayed = counted(kernel, "replay")
    assert replayed and set(replayed) <= set(counted(kernel, "forward"))
    assert [row for row in replayed if row[1] == "group0/attn/softmax"] == softmax
    # An exponential for each of 4 x 4 pairs, and one a row and block of two to scale what was summed before.
    assert ("exp", "group0/attn/softmax", 2 * 2 * 4 * (4 * 4 + 4 * 2)) in replayed


def test_what_adafactor_factors() -> None:
    """Width 128 and an MLP of 256: its three matrices are factored, as their two largest axes reach 128; nine are not.

    A row vector lacks the largest axis, a column vector the second largest; what is not factored keeps a dense moment,
    and a scalar in the place of each vector.
    """
    wide = TOY | {"d": 128, "f": 256}
    dense = 16 * 128 + 2 * 128 * (8 + 4 + 4 + 8) + 2 * 2 * 128 + 128 + 128 * 16
    for layers, placeholders, factored in (("scan", 9, 3), ("unrolled", 6 * 2 + 3, 3 * 2)):
        found = train(wide, optimizer="adafactor", layers=layers)
        scalars = {row.object: row.fields["scalars"] for row in found.ledgers["state"].rows}
        assert scalars["v_row"] == 3 * 2 * 128 + placeholders
        assert scalars["v_column"] == 3 * 2 * 256 + placeholders
        assert scalars["v"] == dense + factored
        assert scalars["parameters"] == dense + 3 * 2 * 128 * 256
        assert scalars["step"] == 1
        updates = {row.object: row.value for row in rows(found, "primitives", phase="optimizer")}
        # A factored scalar: 7 multiply, 6 add, 1 divide; a dense one: 8 multiply, 5 add, 1 divide, 1 rsqrt.
        large = 3 * 2 * 128 * 256
        assert updates == {
            "multiply": 7 * large + 8 * dense, "add": 6 * large + 5 * dense, "divide": large + dense, "rsqrt": dense
        }  # fmt: skip
    assert factored_axes((128, 128)) == (0, 1) and factored_axes((127, 300)) is None and factored_axes((300,)) is None
    assert factored_axes((2, 300, 128)) == (2, 1)
