"""What a device of a rank stores, gathers, moves to its host and keeps: sharding, groups, stages, sizes, by hand.

The model of `test_rows_by_hand`: two layers of 496 scalars (two norms of 8 among them), table and head of 128, a norm
of 8. Groups and ranks of four layers where there is something to cut.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from jaxcost.contracts.case import Case
from jaxcost.prediction import groups, offload, predict, program, replay, sequence_shards, sharding, stages
from jaxcost.prediction.ledgers import assumptions
from jaxcost.prediction.liveness import _Replay, _segments, program_peak
from jaxcost.prediction.parameters import Entry
from jaxcost.prediction.program import Program
from jaxcost.prediction.rematerialisation import RULES, onset
from jaxcost.prediction.sizes import Sizes
from tests.prediction.cases import TOY, case

LAYER, MODEL = 496, 2 * 496 + 2 * 128 + 8
FOUR = {**TOY, "L": 4}


def built(sizes: dict[str, Any] = TOY, phase: str = "training", **options: Any) -> Program:
    return program(case(sizes, phase, **{"batch": 4, "seq": 4, **options}))


def changed(made: Case, **fields: Any) -> Case:
    """The case with fields of its first state object of each name given: `gradients={"dtype": "fp32"}`."""
    data = made.to_data()
    for item in data["state"]["objects"]:
        item.update(fields.get(item["name"], {}))
    return Case.from_data(data)


# Sharding


def array(axes: str, shape: tuple[int, ...]) -> Entry:
    return Entry("group0/mlp/up/weight", "group0/mlp/up", tuple(axes.split()), shape, "fp32", "x", True, 1, 0, 1)


def test_axes_of_a_factored_array() -> None:
    """Of 2 x 300 x 128 a row lacks the 300, a column the 128; what is not factored leaves a placeholder."""
    of = {item.count: item for item in case(TOY, "training", seq=4, optimizer="adafactor").state.objects}
    factored, small = array("layer d f", (2, 300, 128)), array("layer d f", (2, 300, 100))
    told = {count: sharding.kept_axes(item, factored) for count, item in of.items() if count != "scalar"}
    assert told == {"dense": (0, 1, 2), "row": (0, 2), "column": (0, 1), "unfactored": None}
    told = {count: sharding.kept_axes(item, small) for count, item in of.items() if count != "scalar"}
    assert told == {"dense": (0, 1, 2), "row": None, "column": None, "unfactored": (0, 1, 2)}


def test_a_rank_has_its_layers_of_an_array() -> None:
    for layers, shape, copies in (("scan", (3, 8, 12), 1), ("unrolled", (8, 12), 3)):
        of = built(FOUR, mesh={"pipeline": 2}, accumulate=2, pipeline_layers=[3, 1], layers=layers)
        rank, last = stages.ranks(of)
        entries = {entry.name: entry for entry in sharding.population(of, "loaded")}
        here = sharding.on_rank(of, entries["group0/mlp/up/weight"], rank)
        assert here is not None
        assert (here.shape, here.copies, here.scalars, here.padding) == (shape, copies, 3 * 96, 0)
        assert here.name == "group0/mlp/up/weight"
        assert sharding.on_rank(of, entries["head/weight"], rank) is None
        assert sharding.on_rank(of, entries["head/weight"], last) is entries["head/weight"]
    all_in_one = built(FOUR, mesh={"pipeline": 2}, accumulate=2, pipeline_layers=[4, 0])
    entries = {entry.name: entry for entry in sharding.population(all_in_one, "loaded")}
    rank, last = stages.ranks(all_in_one)
    assert sharding.on_rank(all_in_one, entries["group0/mlp/up/weight"], rank) is entries["group0/mlp/up/weight"]
    assert sharding.on_rank(all_in_one, entries["group0/mlp/up/weight"], last) is None


def test_sharding_under_another_stage_than_the_cases() -> None:
    of = built(mesh={"data": 2})
    (rank,) = stages.ranks(of)
    state = {item.role: item for item in of.case.state.objects}
    for stage, parameters, gradients, moments in (
        (0, MODEL, MODEL, MODEL), (1, MODEL, MODEL, MODEL // 2), (2, MODEL, MODEL // 2, MODEL // 2),
        (3, MODEL // 2, MODEL // 2, MODEL // 2),
    ):  # fmt: skip
        wanted = {"parameter": parameters, "gradient": gradients, "first_moment": moments}
        for role, scalars in wanted.items():
            assert sharding.rank_bytes(of, state[role], stage, rank) == 4 * scalars
            holding = sharding.held(of, state[role], stage)
            assert (holding.per_device, holding.bytes) == (4 * scalars, 4 * MODEL)
    stepped = sharding.held(of, state["step"], 3)
    assert stepped.per_device == stepped.bytes == 4


def test_what_exists_in_a_step() -> None:
    """A checkpoint is written beside the step, and what is released before it is gone."""
    made = case(TOY, "training", seq=4, precision="a16_six_object")
    names = [item.name for item in made.state.objects]
    assert [item.name for item in sharding.alive(made)] == names
    saved = changed(made, master_parameters={"placement": "checkpoint"}, gradient_copy={"released": "in_first_step"})
    assert [item.name for item in sharding.alive(saved)] == ["parameters", "gradients", "m", "v"]


def test_gradients_stand_whole_where_they_are_reduced_last() -> None:
    late = built(mesh={"fsdp": 2}, accumulate=2, gradient_sync="last_microbatch").case
    often = built(mesh={"fsdp": 2}, accumulate=2).case
    state = {item.role: item for item in late.state.objects}
    assert sharding.unreduced(late, state["gradient"]) and not sharding.unreduced(late, state["parameter"])
    assert not sharding.unreduced(often, state["gradient"])
    # A formula is of one microbatch, and of one the first is the last.
    from jaxcost.prediction.symbols import symbolic

    assert not sharding.unreduced(symbolic(late, {"fsdp": "N"}).case, state["gradient"])


# Groups of arrays that are gathered together


def test_groups_come_in_the_order_of_their_use() -> None:
    of = built(mesh={"fsdp": 2})
    (rank,) = stages.ranks(of)
    assert [group.name for group in groups.fsdp_groups(of, rank)] == [
        "embed/tokens/weight", "group0/attn_norm/scale", *(f"group0/attn/{name}_proj/weight" for name in "qkv"),
        "group0/attn/o_proj/weight", "group0/mlp_norm/scale", "group0/mlp/gate/weight", "group0/mlp/up/weight",
        "group0/mlp/down/weight", "final_norm/scale", "head/weight",
    ]  # fmt: skip
    blocks = built(mesh={"fsdp": 2}, fsdp_group="block")
    assert [tuple(group) for group in groups.fsdp_groups(blocks, rank)] == [
        ("remainder", 1, 264, 2 * 264, 2 * 256, 256), ("group0", 2, LAYER, 2 * LAYER, 2 * 480, 480),
    ]  # fmt: skip
    root = built(mesh={"fsdp": 2}, fsdp_group="root")
    assert [tuple(group) for group in groups.fsdp_groups(root, rank)] == [
        ("root", 1, MODEL, 2 * MODEL, 2 * (MODEL - 40), MODEL - 40)
    ]
    # The embedding stands on the first rank, head and final norm on the last.
    piped = built(mesh={"pipeline": 2, "fsdp": 2}, accumulate=2)
    first, last = (groups.fsdp_groups(piped, each) for each in stages.ranks(piped))
    assert (first[0].name, first[-1].name) == ("embed/tokens/weight", "group0/mlp/down/weight")
    assert (last[0].name, last[-1].name) == ("group0/attn_norm/scale", "head/weight")
    assert groups.fsdp_groups(built(), rank) == () and groups.group_rows(built()) == ()


@pytest.mark.parametrize(
    "kind, scopes",
    [
        ("root", {"gathered root": ""}),
        ("block", {"gathered remainder": "", "gathered group0": "group0"}),
        ("matrix", {"gathered head/weight": "head", "gathered group0/attn/q_proj/weight": "group0/attn/q_proj"}),
    ],
)
def test_rows_of_groups(kind: str, scopes: dict[str, str]) -> None:
    of = built(mesh={"fsdp": 2}, fsdp_group=kind)
    rows = {row.object: row for row in groups.group_rows(of)}
    assert {name: rows[name].scope for name in scopes} == scopes
    for row in rows.values():
        told = row.fields
        assert row.phase == "forward" and row.unit == "bytes" and row.per_device == row.value
        assert told["missing_bytes"] == told["gathered_bytes"] - told["shard_bytes"] == told["gathered_bytes"] // 2
        assert (told["rank"], told["dtype"], told["placement"]) == (0, "bf16", "device")
        assert told["created"] == "gathered before use" and told["released"] == "after the products of each pass"
    kept = groups.group_rows(built(mesh={"fsdp": 2}, reshard=False))
    assert {row.fields["released"] for row in kept} == {"after backward"}


def test_what_is_gathered_ahead_stands_beside_what_is_used() -> None:
    """Matrices of 96, 96, 96 and 128 scalars follow each other at the end, table and q, k, v of 128, 64, 32, 32 first.

    The second layer's three of 96 and the head are the most of four, 2 bytes each; vectors need no gather.
    """
    of = built(mesh={"fsdp": 2})
    (rank,) = stages.ranks(of)
    most = {ahead: groups.gathered_at_once(of, rank, ahead) for ahead in range(4)}
    assert most == {0: 2 * 128, 1: 2 * (96 + 128), 2: 2 * (96 + 96 + 128), 3: 2 * (3 * 96 + 128)}
    kept = built(mesh={"fsdp": 2}, reshard=False)
    assert groups.gathered_at_once(kept, rank) == 2 * (MODEL - 40)
    served = built(phase="prefill", mesh={"fsdp": 2})
    assert groups.gathered_at_once(served, rank) == 2 * 128 and groups.gather_sweeps(served) == 1
    assert groups.gathered_at_once(built(), rank) == groups.gather_sweeps(built()) == 0
    assert groups.group_totals(built(), rank) == {}
    assert groups.group_totals(of, rank) == {
        "group": "matrix", "reshard": True, "prefetch": 0, "groups": 9 * 2 + 3,
        "largest_group": "embed/tokens/weight", "largest_group_bytes": 256, "largest_missing_bytes": 128,
        "gathered_at_once_bytes": 256, "gather_sweeps": 2,
    }  # fmt: skip


# Stages


def test_layers_of_groups_on_stages() -> None:
    """Two groups of two layers on four stages, and on stages of 1, 3 and none."""
    of = built({**TOY, "split": (2, 2)}, mesh={"pipeline": 4}, accumulate=4)
    spans = [rank.stages[0].spans for rank in stages.ranks(of)]
    assert spans == [((0, 1), (0, 0)), ((1, 1), (0, 0)), ((0, 0), (0, 1)), ((0, 0), (1, 1))]
    of = built({**TOY, "split": (2, 2)}, mesh={"pipeline": 4}, accumulate=4, pipeline_layers=[1, 3, 0, 0])
    spans = [rank.stages[0].spans for rank in stages.ranks(of)]
    assert spans == [((0, 1), (0, 0)), ((1, 1), (0, 2)), ((0, 0), (0, 0)), ((0, 0), (0, 0))]
    first, second, third, last = stages.ranks(of)
    assert [rank.layers(1) for rank in stages.ranks(of)] == [0, 2, 0, 0]
    assert [rank.why() for rank in (first, second, third, last)] == [
        "1 layers, embedding", "3 layers", "0 layers", "0 layers, final norm and head",
    ]  # fmt: skip
    assert first.holds("embed/tokens") and not first.holds("head") and not second.holds("head")
    assert last.holds("final_norm") and last.holds("embed/tokens", tied=True) and not last.holds("embed/tokens")
    assert not last.holds("embed/positions", tied=True)
    # Layers 1 to 3 of a group of which a stage has the first two: one of them.
    assert stages.overlap(stages.Stage(0, 0, ((0, 2),), True, False), 0, 1, 3) == (1, 1)
    assert stages.overlap(stages.Stage(0, 0, ((0, 1),), True, False), 0, 1, 3) == (1, 0)
    assert stages.overlap(stages.Stage(0, 0, ((0, 4),), True, False), 0, 0, 4) == (0, 4)


# The rows of a sequence


def test_rows_of_a_context_axis_and_of_split_rows() -> None:
    """A sequence's keys and values: four rows x two heads x 2 x 2 bytes, twice; a device has two of the rows."""
    of = built(mesh={"context": 2}, batch=1)
    (row,) = sequence_shards.row_rows(of)
    assert (row.object, row.scope, row.phase, row.value, row.per_device) == (
        "keys and values", "group0/attn", "forward", 64, 64,
    )  # fmt: skip
    assert dict(row.fields) == {
        "group": 0, "layers": 2, "full_bytes": 64, "local_bytes": 32, "buffer_bytes": 64, "ring_bytes": 64,
        "double_buffered_bytes": 64, "remote_bytes": 32, "method": "all_gather", "dtype": "bf16", "copies": 1,
        "placement": "device", "created": "before the pairwise products", "released": "after them",
    }  # fmt: skip
    (row,) = sequence_shards.row_rows(built(mesh={"tensor": 2}, sequence_parallel=True, batch=1))
    assert (row.object, row.value, row.per_device) == ("stream", 4 * 8 * 2, 2 * 8 * 2)
    assert dict(row.fields) == {
        "ranks": 2, "axes": "b s d", "dtype": "bf16", "copies": 1, "placement": "device",
        "created": "by each residual sum", "released": "after its last use",
    }  # fmt: skip
    assert sequence_shards.row_rows(built()) == ()
    (alone,) = sequence_shards.keys_values(built(batch=1))
    assert alone[2:] == (64, 64, 64, 64, 64) and alone.remote_bytes == 0
    # Of eight ranks a ring keeps a block and the one that travels, or two that do.
    (ring,) = sequence_shards.keys_values(built(batch=1, seq=8, mesh={"context": 8}, context_method="ring"))
    assert ring[2:] == (128, 16, 48, 32, 48)


# The host


def test_rows_of_what_rests_on_the_host() -> None:
    """Moments come in and go back once a step; parameters come for both passes of two microbatches and the update."""
    of = built(offload=["optimizer", "parameter"], accumulate=2, mesh={"fsdp": 2})
    own = 4 * ((MODEL - 40) // 2 + 40)
    rows = {(row.object, row.phase): row for row in offload.transfer_rows(of)}
    assert set(rows) == {
        (name, way) for name in ("parameters", "m", "v", "step") for way in ("host_to_device", "device_to_host")
    }
    for (name, way), row in rows.items():
        times = 5 if (name, way) == ("parameters", "host_to_device") else 1
        each = 4 if name == "step" else own
        assert (row.value, row.per_device, row.unit, row.scope) == (2 * each * times, each * times, "bytes", "")
        role = {"parameters": "parameter", "m": "first_moment", "v": "second_moment", "step": "step"}[name]
        assert dict(row.fields) == {
            "role": role, "dtype": "int32" if name == "step" else "fp32",
            "boundary": "host memory and device memory", "times": times, "bytes_each": each, "direction": way,
        }  # fmt: skip
    assert offload.transfer_rows(built()) == ()


# Sizes


def test_layers_by_window() -> None:
    """Of a cycle of three, layers 1 to 4 have the second and third window once more than the first."""
    sizes = Sizes({"b": 1, "s": 4, "t": 4}, ({}, {}), (5, 3), windows=((2, 3, 0), ()))
    assert sizes.by_window(0, 1, 4) == ((2, 1), (3, 2), (0, 1))
    assert sizes.by_window(0, 0, 5) == ((2, 2), (3, 2), (0, 1))
    assert sizes.by_window(1, 0, 3) == sizes.by_window(None, 0, 3) == ((0, 3),)
    assert Sizes({}, ({},), (3,)).by_window(0, 0, 3) == ((0, 3),)


# Replay and peaks of the declared order


def test_one_checkpoint_around_everything_keeps_nothing() -> None:
    of = built()
    whole = replay.walk(of, "everything")
    assert whole.saved == ()
    again = [op.scope for op in whole.useful]
    assert {"embed/tokens", "group0/attn/q_proj", "group0/attn/softmax", "group0/mlp/down", "head"} <= set(again)
    assert "loss" not in again
    block = replay.walk(of, "block")
    assert [item.name for item in block.saved][:1] == ["group0/in"]
    assert "head" not in [op.scope for op in block.useful] and "group0/mlp/down" not in [
        op.scope for op in block.useful
    ]  # fmt: skip
    assert replay.walk(of, "none").useful == ()


def test_what_two_kernels_do_twice() -> None:
    wide = {**TOY, "d": 512, "e": 128}
    options = {"batch": 1, "seq": 256, "attention": "splash"}
    assert [op.scope for op in replay.split_backward(built(wide, **options))] == [
        f"group0/attn/{name}" for name in ("scores", "softmax", "values")
    ]
    assert replay.split_backward(built(wide, **{**options, "attention": "blockwise"})) == ()


def test_a_layers_input_is_the_tensor_that_leaves_the_one_before() -> None:
    """4 x 4 rows of 8 in bf16: one such stream is alive when the first layer begins."""
    of = built(phase="prefill")
    begins = next(index for index, op in enumerate(of.ops) if "group0/in" in op.outputs)
    walked = _Replay(of, of.device_microbatch_sizes)
    walked.forward(list(of.ops[: begins + 1]), set(), "forward")
    assert walked.best.bytes == 4 * 4 * 8 * 2


def test_runs_of_ops_are_cut_where_layers_end() -> None:
    of = built(FOUR, frozen=["embed"], layers="unrolled")
    runs = _segments(of)
    assert [{op.segment for op in run} for run in runs] == [{""}, {"group0"}, {"group0#rest"}, {""}]
    assert [op for run in runs for op in run] == list(of.ops)


def test_what_is_rebuilt_before_backward_is_as_much_as_what_was_kept() -> None:
    kept, rebuilt, dropped = (program_peak(built(FOUR, remat=remat)).bytes for remat in ("none", "everything", "block"))
    assert kept == rebuilt > dropped


# What is said, and when XLA would recompute


def test_a_prediction_as_data_says_what_it_rests_on() -> None:
    made = case(TOY, "training", batch=2, seq=4)
    data = predict(made).to_dict()
    assert set(data) == {"schema", "case", "ledgers", "assumptions"}
    assert data["assumptions"] == list(assumptions(made)) and data["case"]["digest"] == made.digest
    assert not [line for line in assumptions(made) if "plan" in line or "sharded" in line or "ragged" in line]
    blocks = assumptions(case(TOY, "training", batch=2, seq=4, attention="blockwise"))
    assert [line for line in blocks if "plan" in line] == [
        "attention plan blockwise: scores and probabilities stay on chip, its backward pass repeats QK once"
    ]
    many = assumptions(case(TOY, "training", batch=2, seq=4, mesh={"data": 2}))
    assert [line for line in many if "sharded" in line] == [line for line in many if line not in assumptions(made)]
    assert any("legal" in line for line in assumptions(case(TOY, "training", batch=2, seq=4, pairs="legal")))
    assert not any("labels" in line for line in assumptions(case(TOY, "prefill", batch=2, seq=4)))
    assert any("one program" in line for line in assumptions(case(TOY, "training", seq=4, frozen=["embed"])))


def test_recomputation_begins_above_a_share_of_what_is_left() -> None:
    """Of 1,000,000 bytes 800,000 less a border of 300,000 + 200,000 - 100,000; of those 400,000, 95 in a hundred."""
    assert (RULES["cuda"].share, RULES["cuda"].slop) == (Fraction(4, 5), Fraction(19, 20))
    for least, most, starts, said in (
        (380_001, 500_000, True, "above"),
        (380_000, 500_000, None, "on both sides of"),
        (0, 190_000, False, "at most"),
        (0, 190_001, None, "on both sides of"),
    ):
        found = onset(
            "cuda", 1_000_000, arguments=300_000, results=200_000, aliased=100_000, lower=400_000 + least,
            upper=400_000 + most,
        )  # fmt: skip
        assert found is not None
        assert (found.starts, found.limit_bytes) == (starts, 380_000)
        assert (found.lower_bytes, found.upper_bytes) == (least, 2 * most) and f" {said} the limit" in found.reason
    assert onset("tpu", 10, arguments=1, results=1, aliased=0, lower=2, upper=2) is None
    full = onset("cuda", 100, arguments=90, results=0, aliased=0, lower=80, upper=90)
    assert full is not None and (full.limit_bytes, full.lower_bytes, full.starts) == (0, 0, False)
