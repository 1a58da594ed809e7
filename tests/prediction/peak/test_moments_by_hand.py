"""What each moment holds and by which rule, on models whose arrays are quickly counted.

llama-3.2-1b: 16 layers of width 2048, 32 heads of 64 over 8 key heads, an MLP of 8192, a tied table of 128,256 words.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import jaxcost
from jaxcost.contracts.case import Case, build_case
from jaxcost.prediction.ownership import arguments
from jaxcost.prediction.peak import NARROWEST, PeakPrediction, Policy, Unpredicted, outside, policy_for, predict_peak
from jaxcost.prediction.peak.arrays import total, weights
from jaxcost.prediction.peak.moments import Held, Moment
from jaxcost.prediction.peak.step import Step
from jaxcost.prediction.peak.tiles import tiled_arguments
from jaxcost.prediction.program import program
from tests.prediction.cases import TOY, case

SMALL = "llama-3.2-1b"
MATRICES = 2 * 2048 * 2048 + 2 * 2048 * 512 + 3 * 2048 * 8192  # of a layer
TABLE = 128_256 * 2048
BLOCKS, WRITTEN = {"attention": "blockwise"}, {"attention": "materialised"}


def predicted(family: str, model: str = SMALL, **options: Any) -> PeakPrediction:
    given = {"phase": "training", "seq": 1024, **options}
    if given["phase"] == "decode":
        del given["seq"]
        given.setdefault("past", 1023)
    found = predict_peak(program(build_case(jaxcost.load(model), given)), family)
    assert isinstance(found, PeakPrediction), found
    return found


def at(found: PeakPrediction, name: str) -> Moment:
    (moment,) = [moment for moment in found.moments if moment.name == name]
    return moment


def rule_of(found: PeakPrediction, moment: str, thing: str) -> str:
    (item,) = [item for item in at(found, moment).held if item.object == thing]
    return item.rule


def item_of(moment: Moment, thing: str) -> Held:
    (item,) = [item for item in moment.held if item.object == thing]
    return item


def policy(family: str, phase: str = "training") -> Policy:
    found = policy_for(family, phase)
    assert found is not None
    return found


# The border of the domain


@pytest.mark.parametrize("width, inside", [(512, True), (504, False)])
def test_the_narrowest_width_that_is_covered(width: int, inside: bool) -> None:
    assert NARROWEST == 512
    reason = outside(program(case({**TOY, "d": width}, "training", seq=8)))
    assert (reason == "") == inside and ("narrower than 512" in reason) == (not inside)


def test_recomputed_layers_that_are_written_out_over_tensor_are_not_covered() -> None:
    options = {"phase": "training", "seq": 1024, "batch": 2, "layers": "unrolled", **BLOCKS}
    for mesh, remat, covered in (
        ({"tensor": 2}, "block", False), ({"tensor": 2}, "attention", True), ({"fsdp": 2}, "block", True)
    ):  # fmt: skip
        found = predict_peak(
            program(build_case(jaxcost.load(SMALL), {**options, "mesh": mesh, "remat": remat})), "cuda"
        )
        assert isinstance(found, PeakPrediction) == covered
        assert covered or (isinstance(found, Unpredicted) and found.reason.startswith("unrolled layers, recomputed"))


# Arrays


def test_bytes_of_weights_as_stored_and_as_used() -> None:
    of = program(build_case(jaxcost.load(SMALL), {"phase": "training", "seq": 64, "batch": 2, "mesh": {"fsdp": 2}}))

    def matrices(weight: Any) -> bool:
        return weight.group is not None and not weight.vector

    assert total(of, matrices) == 4 * 16 * MATRICES // 2
    assert total(of, matrices, "bf16") == 2 * 16 * MATRICES // 2
    assert total(of, matrices, used=True) == 4 * 16 * MATRICES
    assert total(of, lambda weight: weight.name == "embed/tokens/weight", "bf16") == TABLE
    assert total(of, lambda weight: weight.vector) == 4 * (16 * 2 + 1) * 2048
    assert len({weight.name for weight in weights(of)}) == len(weights(of)) == 7 + 2 + 2


def test_moments_that_a_factored_optimizer_does_not_keep_take_a_tile_each() -> None:
    """Width 128 and an MLP of 256, written out: 3 x 2 matrices are factored, 6 x 2 + 3 arrays have a scalar instead.

    A row of 128 in fp32 takes 512 bytes, a column of 256 takes 1024.
    """
    made = case({**TOY, "d": 128, "f": 256}, "training", seq=4, optimizer="adafactor", layers="unrolled")
    found = {item.object: item for item in tiled_arguments(program(made))}
    row, column, tile = 512, 1024, 512
    assert found["v_row"].padded == 6 * row + 15 * tile
    assert found["v_column"].padded == 6 * column + 15 * tile
    assert found["v_row"].bytes == 4 * (6 * 128 + 15) and found["step"].padded == tile


# Training on CUDA


def test_written_out_layers_on_cuda() -> None:
    """A device of two of fsdp: 1024 rows, a stream of 2 x 2048 bytes each, logits of 4 x 128,256."""
    found = predicted("cuda", batch=2, remat="block", layers="unrolled", mesh={"fsdp": 2}, **BLOCKS)
    assert [(moment.name, moment.phase) for moment in found.moments] == [
        ("loss, input gradient", "loss"), ("first layer backward", "backward"), ("last layer backward", "backward"),
    ]  # fmt: skip
    first, _, last = found.moments
    stream, logits = 1024 * 2048 * 2, 1024 * 128_256 * 4
    for moment, rule in ((first, "declared"), (last, "unrolled-kept")):
        kept = item_of(moment, "group0/in")
        assert (kept.kind, kept.scope, kept.rule, kept.bytes.expected) == ("saved", "group0", rule, 16 * stream)
    assert item_of(first, "head/out").bytes.expected == logits
    assert item_of(first, "head, as multiplied").bytes.expected == 2 * TABLE
    assert item_of(last, "head, unreduced").bytes.expected == 4 * TABLE
    assert item_of(last, "weights of the layers").bytes.upper == 2 * 16 * (MATRICES // 2 + 2 * 2048)
    for moment in found.moments:
        parts = ("parameters", "m", "v")
        assert {item_of(moment, name).bytes.expected for name in parts} == {
            4 * (16 * (MATRICES // 2 + 2 * 2048) + TABLE // 2 + 2048)
        }
        loss = item_of(moment, "loss")
        assert (loss.kind, loss.scope, loss.rule, loss.bytes.expected) == ("input_output", "loss", "declared", 4)


def test_the_schedulers_limit_is_passed_by_more_than_it() -> None:
    of = program(build_case(jaxcost.load(SMALL), {"phase": "training", "seq": 64, "batch": 2, "mesh": {"data": 2}}))
    held = sum(item.per_device for item in arguments(of))

    def step(limit: int) -> Step:
        known = policy("cuda")
        rule = replace(known.rule("scheduler-limit"), value=limit, alternatives=(limit,))
        return Step(of, replace(known, rules={**known.rules, "scheduler-limit": rule}))

    assert not step(held).beyond_limit and step(held - 1).beyond_limit
    assert step(held - 1).lateness.id == "head-gradient-late-beyond-limit"
    alone = program(build_case(jaxcost.load(SMALL), {"phase": "training", "seq": 64, "batch": 2}))
    assert not Step(alone, step(0).policy).beyond_limit


def test_a_tables_gradient_has_the_type_of_gradients() -> None:
    """An untied table of 128,256 x 4096 on one device: in bf16 half of what its fp32 parameters take."""
    data = build_case(
        jaxcost.load("llama-3.1-8b"), {"phase": "training", "seq": 64, "batch": 2, "remat": "block"}
    ).to_data()
    for dtype, size in (("fp32", 4), ("bf16", 2)):
        next(item for item in data["state"]["objects"] if item["role"] == "gradient")["dtype"] = dtype
        step = Step(program(Case.from_data(data)), policy("cuda"))
        assert (step.gradient, step.tied, step.late) == (dtype, False, False)
        (found,) = step.embedding_gradient()
        unit = size * 128_256 * 4096
        rule = policy("cuda").rule("table-gradient-single")
        assert (found.kind, found.object, found.scope, found.rule) == (
            "gradient", "token table", "embed/tokens", "table-gradient-single",
        )  # fmt: skip
        assert tuple(found.bytes) == (rule.low * unit, int(rule.value) * unit, rule.high * unit)


# Serving on CUDA


def test_written_out_decode_gathers_every_weight() -> None:
    found = predicted("cuda", phase="decode", batch=2, layers="unrolled", mesh={"fsdp": 2}, **WRITTEN)
    every = item_of(at(found, "group0/mlp"), "all weights, gathered")
    assert every.rule == "unrolled-decode-gathers-all" and every.kind == "gathered_weight"
    assert every.bytes.upper == 2 * (16 * MATRICES + TABLE)
    scanned = predicted("cuda", phase="decode", batch=2, mesh={"fsdp": 2}, **WRITTEN)
    assert "all weights, gathered" not in {item.object for item in at(scanned, "group0/mlp").held}


@pytest.mark.parametrize("mesh, ending", [({"tensor": 2}, "-meshed"), ({"fsdp": 2}, "-meshed"), ({"data": 2}, "")])
def test_results_of_written_out_prefill(mesh: dict[str, int], ending: str) -> None:
    found = predicted("cuda", phase="prefill", batch=2, layers="unrolled", mesh=mesh, **BLOCKS)
    (moment, *_) = found.moments
    kept = item_of(moment, "results of all layers")
    assert kept.rule == f"unrolled-blockwise-results{ending}" and kept.scope == "group0/attn"
    rows, heads = (2048, 16) if mesh == {"tensor": 2} else (1024, 32)
    assert kept.bytes.upper == 16 * rows * heads * 64 * 2


# TPU


def test_a_long_gather_becomes_a_windowed_product() -> None:
    """Eight devices of fsdp with 8192 rows each: logits beside their gradient, and shards of the head's gradient."""
    options = {"batch": 64, "mesh": {"fsdp": 8}, **BLOCKS}
    for given, rule in (
        ({"remat": "attention", "precision": "bf16"}, "loss-shards-uncast"),
        ({"remat": "attention"}, "loss-shards"),
        ({"remat": "block", "precision": "bf16"}, "loss-shards"),
        ({"remat": "none"}, "loss-shards-none"),
    ):
        loss = at(predicted("tpu", **options, **given), "loss")
        assert loss.phase == "loss" and item_of(loss, "head, shards").rule == rule
        rows = 8 * 1024
        assert item_of(loss, "head/out").bytes.expected == rows * 128_256 * 4
        made = item_of(loss, "gradient of the logits")
        assert (made.kind, made.scope, made.bytes.expected) == ("logits", "loss", rows * 128_256 * 2)
        assert item_of(loss, "head, gathered").bytes.expected == 2 * TABLE
        streams = item_of(loss, "streams")
        assert (streams.kind, streams.rule, streams.bytes.expected) == ("workspace", "loss-streams", rows * 2048 * 2)


@pytest.mark.parametrize(
    "mesh, rule",
    [
        ({"fsdp": 4, "tensor": 2}, "head-late-fsdp-tensor"),
        ({"fsdp": 2, "tensor": 2}, "head-late-fsdp"),
        ({"fsdp": 4}, "head-late-fsdp"),
        ({"data": 2, "fsdp": 4, "tensor": 2}, "head-late-fsdp"),
        ({"tensor": 2}, "head-late"),
        ({"data": 2}, "head-late-data-cast"),
    ],
)
def test_when_a_tied_heads_gradient_is_made(mesh: dict[str, int], rule: str) -> None:
    found = predicted("tpu", batch=8, remat="block", mesh=mesh, **BLOCKS)
    assert rule_of(found, "head gradient", "head, unreduced") == rule
    assert rule_of(found, "after the loops", "head") == rule


@pytest.mark.parametrize(
    "mesh, batch, ending",
    [
        ({"fsdp": 8}, 16, ""),
        ({"data": 2, "fsdp": 4}, 16, "-gathered"),
        ({"data": 2}, 16, ""),
        ({"data": 2, "fsdp": 4}, 8, "-single"),
    ],
)
def test_scores_of_a_backward_pass(mesh: dict[str, int], batch: int, ending: str) -> None:
    """More where a gather spans a part of the devices; another number where scores have one batch axis."""
    found = predicted("tpu", batch=batch, remat="block", mesh=mesh, **WRITTEN)
    assert rule_of(found, "backward loop, attention", "scores") == f"backward-scores{ending}-replayed"


def test_copies_of_a_cache_in_decode() -> None:
    """Heads of 64 are padded to 128 lanes: 16 layers x sequences x 1024 rows x 8 heads x 128 x 2 bytes."""
    a_copy = 16 * 1024 * 8 * 128 * 2
    for options, rule, batch in (
        ({"batch": 2, **WRITTEN}, "decode-relaid-one", 1),
        ({"batch": 2, **BLOCKS}, "decode-relaid-blocks", 1),
        ({"batch": 4, **WRITTEN}, "decode-relaid", 2),
    ):
        found = predicted("tpu", phase="decode", mesh={"fsdp": 2}, **options)
        copies = item_of(at(found, "group0/attn"), "keys and values in another layout")
        assert (copies.kind, copies.rule, copies.scope) == ("cache", rule, "group0")
        assert copies.bytes.upper == policy("tpu").rule(rule).high * batch * a_copy
    alone = predicted("tpu", phase="decode", batch=1, **WRITTEN)
    assert "keys and values in another layout" not in {item.object for item in at(alone, "group0/attn").held}
