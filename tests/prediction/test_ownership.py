"""Ownership: ZeRO's own table, known wrong estimators, stages, groups, products, rows, gradients and offload.

Expected numbers come from the papers named, or are worked out here from sizes by hand.
"""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from jaxcost.contracts.errors import RejectedError
from jaxcost.prediction import groups, offload, predict, sequence_shards, stages, tensor_parallel
from jaxcost.prediction import program as build
from jaxcost.prediction.ownership import ownership
from jaxcost.prediction.parameters import parameters
from jaxcost.prediction.state import state
from jaxcost.prediction.transfers import transfers
from tests.prediction.cases import RUNNING, case

GIB = 2**30
TINY = {"L": 8, "d": 16, "h": 4, "k": 4, "e": 4, "f": 64, "V": 100}
ZERO_TABLE = [
    line.split(",") for line in (Path(__file__).parent.parent / "data" / "zero2019_table1.csv").read_text().split()[2:]
    if line.count(",") == 4
][1:]  # fmt: skip


def built(sizes: dict[str, Any], phase: str = "training", **options: Any) -> Any:
    options.setdefault("seq", 16)
    return build(case(sizes, phase, **options))


def owned(sizes: dict[str, Any], phase: str = "training", **options: Any) -> dict[str, Any]:
    return ownership(built(sizes, phase, **options)).totals


def of_size(parameters_wanted: int, d: int) -> dict[str, Any]:
    """Sizes of a graph with exactly so many parameters, most of them in one table; d must divide the number."""
    layer = 4 * d + 3 * d + 2  # q, k, v, o of one head of width d, an MLP of width d, two norms, in units of d
    rows = parameters_wanted // d - layer - 1
    assert parameters_wanted % d == 0 and rows > 0
    return {"L": 1, "d": d, "h": 1, "k": 1, "e": d, "f": d, "V": rows, "tied": True}


@pytest.mark.parametrize("row", ZERO_TABLE, ids=lambda row: "-".join(row[:4]))
def test_the_table_of_zero_comes_out_at_its_printed_digits(row: list[str]) -> None:
    psi, degree, printed = int(float(row[1])), int(row[3]), row[4]
    stage = {"P_os": 1, "P_os+g": 2, "P_os+g+p": 3}[row[2]]
    mesh = {"mesh": {"data": degree}, "zero": stage} if degree > 1 else {}
    sizes = of_size(psi, d=2000)
    assert parameters(built(sizes, **mesh, batch=degree, precision="bf16_master_adam")).totals["unique"] == psi
    found = owned(sizes, **mesh, batch=degree, precision="bf16_master_adam")
    digits = len(printed.partition(".")[2])
    # The paper rounds some entries and cuts others: one unit of the last printed digit covers both.
    assert abs(found["persistent_bytes"] / 1e9 - float(printed)) <= 10**-digits * (1 if degree > 1 else 0) + 1e-9
    exact = [4 + Fraction(12, degree), 2 + Fraction(14, degree), Fraction(16, degree)][stage - 1]
    assert 0 <= found["persistent_bytes"] - exact * psi <= 16 * 12  # a norm of 2000 is padded up to the degree


def test_zero_two_is_two_bytes_and_fourteen_eighths_a_parameter() -> None:
    """microsoft/DeepSpeed#5102 and #4076: 2,851 million parameters on 8 ranks, mixed-precision Adam."""
    count = 2_851_000_000
    sizes = of_size(count, d=1000)
    options = {"mesh": {"data": 8}, "zero": 2, "batch": 8}
    paper = built(sizes, **options, precision="bf16_master_adam")
    found = ownership(paper)
    assert found.totals["persistent_bytes"] == 2 * count + 14 * count // 8
    assert round(found.totals["persistent_bytes"] / GIB, 3) == 9.957
    extra = owned(sizes, **options, precision="a16_six_object")  # one more fp32 gradient, sharded
    assert round(extra["persistent_bytes"] / GIB, 3) == 11.285
    wrong = 4 * count + 16 * count // 8
    assert round(wrong / GIB, 3) == 15.931
    assert wrong not in (*found.totals["by_zero_stage"].values(), *extra["by_zero_stage"].values())
    rows = {row.object: row for row in found.rows if row.phase == "in_first_step"}
    assert {name: row.fields["bytes_per_parameter"] for name, row in rows.items()} == {
        "parameters": 2, "master_parameters": 4, "gradients": 2, "m": 4, "v": 4,
    }  # fmt: skip
    whole = {name for name, row in rows.items() if set(row.fields["divided"]) == {"whole"}}
    assert whole == {"parameters"}
    assert {key for name, row in rows.items() if name not in whole for key in row.fields["divided"]} == {"data=8"}


def test_unequal_stages_are_summed_and_not_averaged() -> None:
    """NVIDIA-NeMo/Megatron-Bridge PR 5077: 8 layers on stages of 1, 2, 2, 3."""
    found = owned(TINY, batch=4, accumulate=4, mesh={"pipeline": 4}, pipeline_layers=[1, 2, 2, 3])
    by_rank = found["pipeline"]["parameters_by_rank"]
    assert list(by_rank.values()) == [5_728, 8_256, 8_256, 14_000]
    assert sum(by_rank.values()) == 36_240 == predict(case(TINY, "training", seq=16)).value("parameters.unique")
    assert found["worst_device"] == {"device": "pipeline=3", "holds": "3 layers, final norm and head"}
    assert found["persistent_bytes"] == 4 * 4 * 14_000 + 4  # fp32 parameters, gradients, two moments; the step counter


@pytest.mark.parametrize(
    ("tied", "places", "wanted"),
    [
        (False, {}, [5_728, 8_256, 8_256, 14_000]),
        (True, {}, [5_728, 8_256, 8_256, 14_000]),  # the table stands in both ends
        (False, {"head_stage": 0}, [7_344, 8_256, 8_256, 12_384]),
        (True, {"head_stage": 0}, [5_744, 8_256, 8_256, 12_384]),  # one copy serves both
        (False, {"embedding_stage": 1, "head_stage": 2}, [4_128, 9_856, 9_872, 12_384]),
    ],
)
def test_embedding_and_head_stand_where_they_are_placed(tied: bool, places: dict[str, int], wanted: list[int]) -> None:
    sizes = {**TINY, "tied": tied}
    options = {"batch": 4, "accumulate": 4, "mesh": {"pipeline": 4}, "pipeline_layers": [1, 2, 2, 3]}
    found = owned(sizes, **options, **places)["pipeline"]["parameters_by_rank"]
    assert list(found.values()) == wanted


@pytest.mark.parametrize("layers", ["scan", "unrolled"])
def test_interleaved_stages_take_layers_in_turn(layers: str) -> None:
    options: dict[str, Any] = {"pipeline_schedule": "interleaved", "pipeline_virtual": 2, "layers": layers}
    program = built(TINY, batch=4, accumulate=4, mesh={"pipeline": 2}, pipeline_layers=[1, 4, 2, 1], **options)
    assert [[stage.layers for stage in rank.stages] for rank in stages.ranks(program)] == [[1, 2], [4, 1]]
    found = ownership(program).totals["pipeline"]["parameters_by_rank"]
    assert list(found.values()) == [3 * 4_128 + 1_600, 5 * 4_128 + 16 + 1_600]


def flight(schedule: str, size: int, micro: int, virtual: int = 1) -> list[int]:
    layers = {**TINY, "L": size * virtual}
    options: dict[str, Any] = {"pipeline_schedule": schedule}
    if virtual > 1:
        options["pipeline_virtual"] = virtual
    program = built(layers, batch=micro, accumulate=micro, mesh={"pipeline": size}, **options)
    return [stages.in_flight(program.case, rank.number) for rank in stages.ranks(program)]


def test_microbatches_in_flight_follow_the_schedule() -> None:
    assert flight("gpipe", 4, 8) == [8, 8, 8, 8]
    assert flight("1f1b", 4, 8) == [4, 3, 2, 1]
    assert flight("1f1b", 4, 2) == [2, 2, 2, 1]
    # 2 (P - p - 1) + (v - 1) P + 1 chunks: Pv + P - 1 on the first rank
    assert flight("interleaved", 4, 16, virtual=2) == [11, 9, 7, 5]


def test_interleaving_keeps_the_extra_part_of_the_papers_first_rank() -> None:
    """arXiv:2205.05198: L layers of one microbatch times 1 + (p - 1) / (p m), m virtual stages a rank."""
    size, virtual = 4, 3
    (first, *_) = flight("interleaved", size, 24, virtual)
    layers = size * virtual
    assert Fraction(first * layers, size * virtual) == layers * (1 + Fraction(size - 1, size * virtual))


def test_uneven_chunks_are_replayed_in_order() -> None:
    options: dict[str, Any] = {"pipeline_schedule": "interleaved", "pipeline_virtual": 2}
    run = built({**TINY, "L": 4}, batch=4, accumulate=4, mesh={"pipeline": 2}, **options).case
    done = list(stages.steps(run, 0))
    assert sum(direction for direction, _ in done) == 0 and len(done) == 16
    assert [chunk for direction, chunk in done if direction == 1] == [0, 0, 1, 1, 0, 0, 1, 1]
    assert [chunk for direction, chunk in done if direction == -1] == [1, 1, 0, 0, 1, 1, 0, 0]
    assert stages.in_flight_bytes(run, 0, (1, 1)) == stages.in_flight(run, 0) == 5
    # By hand: 0 0 1 1 forward (22), 0 (32), back 1 (31), 0 (41), back 1 (40), 1 (41), back 0 (31), ...
    assert stages.in_flight_bytes(run, 0, (10, 1)) == 41


def test_bubble_is_the_papers() -> None:
    """arXiv:2104.04473, sections 2.2.1 and 2.2.2: (p - 1) / m, and that over v."""
    run = built({**TINY, "L": 8}, batch=16, accumulate=16, mesh={"pipeline": 4}).case
    assert stages.bubble(run) == (Fraction(3, 16), Fraction(3, 19))
    options: dict[str, Any] = {"pipeline_schedule": "interleaved", "pipeline_virtual": 2}
    run = built({**TINY, "L": 8}, batch=16, accumulate=16, mesh={"pipeline": 4}, **options).case
    assert stages.bubble(run) == (Fraction(3, 32), Fraction(3, 35))


@pytest.mark.parametrize(
    ("options", "path"),
    [
        ({}, (0, 1, 2, 3)),
        ({"embedding_stage": 3, "head_stage": 0}, (3, 0, 1, 2, 3, 0)),
        ({"head_stage": 0}, (0, 1, 2, 3, 0)),
        ({"pipeline_layers": [0, 4, 4, 0]}, (0, 1, 2, 3)),
        ({"pipeline_layers": [0, 4, 4, 0], "embedding_stage": 1, "head_stage": 2}, (1, 2)),
        ({"pipeline_schedule": "interleaved", "pipeline_virtual": 2}, (0, 1, 2, 3, 0, 1, 2, 3)),
    ],
)
def test_a_microbatch_goes_where_embedding_layers_and_head_stand(
    options: dict[str, Any], path: tuple[int, ...]
) -> None:
    run = built(TINY, batch=4, accumulate=4, mesh={"pipeline": 4}, **options)
    assert stages.route(run.case) == path
    sends = [transfers(run, rank) for rank in stages.ranks(run)]
    times = [item.layers for each in sends for item in each if item.kind == "collective-permute"]
    assert sum(times) == 2 * (len(path) - 1) == 2 * stages.boundaries(run.case)


def test_saved_activations_are_multiplied_by_what_is_in_flight_on_their_rank() -> None:
    options = {"batch": 8, "accumulate": 8, "mesh": {"pipeline": 4}, "remat": "block"}
    full, staged = (owned(TINY, **options, pipeline_schedule=name)["pipeline"] for name in ("gpipe", "1f1b"))
    layer_inputs = 2 * 16 * 16 * 2  # two layers' inputs [1, 16, 16] in bf16
    assert full["saved_bytes_by_rank"]["1"] == 8 * layer_inputs
    assert staged["saved_bytes_by_rank"]["1"] == 3 * layer_inputs
    assert staged["saved_bytes_by_rank"]["3"] > layer_inputs  # the head keeps its operand and the logits


def test_prefetched_groups_stand_beside_the_current_one() -> None:
    options = {"mesh": {"fsdp": 8}, "batch": 8, "seq": 4096, "precision": "bf16"}
    (rank,) = stages.ranks(built(RUNNING, **options))
    block, remainder = 2 * (218_112_000 - 2 * 4096), 2 * (1_050_677_248 - 4096)  # vectors need no gather
    for prefetch, wanted in ((0, remainder), (1, remainder + block), (2, remainder + 2 * block)):
        program = built(RUNNING, **options, fsdp_group="block", prefetch=prefetch)
        assert groups.gathered_at_once(program, stages.ranks(program)[0]) == wanted
    with pytest.raises(RejectedError, match="no other group to gather ahead"):
        built(RUNNING, **options, fsdp_group="root", prefetch=1)
    root = built(RUNNING, **options, fsdp_group="root")
    assert groups.gathered_at_once(root, stages.ranks(root)[0]) == remainder + 32 * block
    kept = owned(RUNNING, **options, fsdp_group="block", reshard=False)["fsdp"]
    assert (kept["gathered_at_once_bytes"], kept["gather_sweeps"]) == (remainder + 32 * block, 1)
    sweeps = {
        remat: owned(RUNNING, **options, remat=remat)["fsdp"]["gather_sweeps"] for remat in ("block", "everything")
    }
    assert sweeps == {"block": 2, "everything": 3}
    assert owned(RUNNING, **options)["fsdp"]["gathered_at_once_bytes"] == 2 * 128_256 * 4096
    assert rank.layers(0) == 32


def test_hybrid_sharding_divides_by_fsdp_and_replicates_over_data() -> None:
    one = owned(RUNNING, mesh={"fsdp": 4}, batch=8, seq=4096)
    both = owned(RUNNING, mesh={"data": 2, "fsdp": 4}, batch=8, seq=4096)
    assert both["persistent_bytes"] == one["persistent_bytes"]
    assert both["cluster_bytes"] == 2 * one["cluster_bytes"]
    assert both["global_bytes"] == one["global_bytes"] < one["cluster_bytes"] < one["persistent_bytes"] * 8


def test_a_context_axis_divides_no_weight() -> None:
    whole, split = (owned(RUNNING, mesh=mesh, seq=4096) for mesh in ({"tensor": 2}, {"tensor": 2, "context": 4}))
    assert split["by_role"] == whole["by_role"] and split["cluster_bytes"] == 4 * whole["cluster_bytes"]
    assert split["tokens_per_device"] == 1024


def test_ring_keeps_one_travelling_block_and_two_where_it_overlaps() -> None:
    (found,) = sequence_shards.keys_values(built(RUNNING, mesh={"context": 8}, seq=4096, context_method="ring"))
    assert (found.full_bytes, found.local_bytes) == (16 * 2**20, 2 * 2**20)
    assert (found.ring_bytes, found.double_buffered_bytes, found.buffer_bytes) == (2**22, 6 * 2**20, 6 * 2**20)
    (found,) = sequence_shards.keys_values(built(RUNNING, mesh={"context": 8}, seq=4096))
    assert found.buffer_bytes == found.full_bytes


def test_products_are_columns_rows_or_vocabulary_by_their_axes() -> None:
    program = built(RUNNING, mesh={"tensor": 8}, seq=4096, precision="bf16")
    kinds = {item.scope.rsplit("/", 1)[-1]: item.kind for item in tensor_parallel.locals_of(program)}
    assert kinds == {
        "tokens": "vocabulary row", "q_proj": "column", "k_proj": "column", "v_proj": "column", "o_proj": "row",
        "gate": "column", "up": "column", "down": "row", "head": "vocabulary column",
    }  # fmt: skip
    found = {item.scope.rsplit("/", 1)[-1]: item for item in tensor_parallel.locals_of(program)}
    assert found["q_proj"].output_bytes == 4096 * 512 * 2 and found["o_proj"].input_bytes == 4096 * 512 * 2
    assert found["down"].output_bytes == found["down"].kept_bytes == 4096 * 4096 * 2
    split = built(RUNNING, mesh={"tensor": 8}, seq=4096, precision="bf16", sequence_parallel=True)
    down = next(item for item in tensor_parallel.locals_of(split) if item.scope.endswith("down"))
    assert (down.collective, down.output_bytes, down.kept_bytes) == ("reduce_scatter", 2**25, 2**22)


def test_fewer_heads_than_ranks_are_held_by_several() -> None:
    program = built({"L": 1, "d": 16, "h": 8, "k": 2, "e": 4, "f": 64, "V": 96}, mesh={"tensor": 8})
    found = {item.scope.rsplit("/", 1)[-1]: item for item in tensor_parallel.locals_of(program)}
    assert (found["k_proj"].replicas, found["q_proj"].replicas) == (4, 1)
    assert found["k_proj"].weight_shard_bytes == 16 * 1 * 4 * 2  # one head whole
    row = next(row for row in ownership(program).rows if row.object == "parameters")
    keys = 2 * 16 * 2 * 4 * 4  # k and v, fp32
    assert row.fields["divided"]["tensor=2"] == keys
    replicated = 3 * 16 * 4  # three norms on every rank
    assert row.fields["cluster_bytes"] == row.value + 3 * keys + 7 * replicated


def test_padded_heads_are_stored_and_not_learned() -> None:
    sizes = {"L": 2, "d": 16, "h": 6, "k": 2, "e": 4, "f": 64, "V": 96}
    plain, padded = (built(sizes, mesh={"tensor": n}, head_multiple=m) for n, m in ((2, 1), (4, 4)))
    one, two = (parameters(item).totals for item in (plain, padded))
    assert one["unique"] == two["unique"] and two["padding"] == 2 * 2 * (2 * 4 * 16) and one["padding"] == 0
    assert state(padded).totals["by_role"]["parameter"] == 4 * (one["unique"] + two["padding"])
    assert predict(padded.case).value("flops.forward") > predict(plain.case).value("flops.forward")
    with pytest.raises(RejectedError, match="query_heads"):
        built(sizes, mesh={"tensor": 4})


def test_gradients_reduced_late_stand_whole_between_microbatches() -> None:
    options = {"mesh": {"fsdp": 4}, "batch": 16, "accumulate": 4}
    early, late = (owned(TINY, **options, gradient_sync=n) for n in ("every_microbatch", "last_microbatch"))
    assert (early["gradients"]["reductions"], late["gradients"]["reductions"]) == (4, 1)
    assert late["gradients"]["between_microbatches_bytes"] == 4 * 36_240 == late["by_role"]["gradient"]
    assert late["gradients"]["reduced_bytes"] == early["by_role"]["gradient"] < late["by_role"]["gradient"]
    with pytest.raises(RejectedError, match="of one microbatch the first is the last"):
        owned(TINY, mesh={"fsdp": 4}, batch=16, gradient_sync="last_microbatch")


def test_offloaded_state_moves_once_each_way_and_leaves_the_device() -> None:
    options = {"mesh": {"fsdp": 4}, "batch": 16, "accumulate": 4}
    kept, away = owned(TINY, **options), owned(TINY, **options, offload=["optimizer"])
    moments = kept["by_role"]["first_moment"] + kept["by_role"]["second_moment"] + 4
    assert away["host_bytes"] == moments == away["host_to_device_bytes"] == away["device_to_host_bytes"]
    assert away["persistent_bytes"] == kept["persistent_bytes"] - moments
    assert (away["global_bytes"], away["cluster_bytes"]) == (kept["global_bytes"], kept["cluster_bytes"])
    moved = {item.object: item for item in offload.transfers(built(TINY, **options, offload=["parameter", "gradient"]))}
    assert (moved["parameters"].into, moved["parameters"].out) == (2 * 4 + 1, 1)
    assert (moved["gradients"].into, moved["gradients"].out) == (4, 4)
    argument = predict(case(TINY, "training", seq=16, **options, offload=["optimizer"]))
    plain = predict(case(TINY, "training", seq=16, **options))
    assert plain.value("device.argument_bytes") - argument.value("device.argument_bytes") == moments


def test_state_that_an_optimizer_does_not_keep_cannot_rest_on_the_host() -> None:
    case(TINY, "training", seq=16, offload=["optimizer"], optimizer="momentum")
    for options in ({"offload": ["optimizer"], "optimizer": "sgd"}, {"offload": ["master"], "precision": "bf16"}):
        with pytest.raises(RejectedError, match="has no such object"):
            case(TINY, "training", seq=16, **options)


def test_serving_reads_offloaded_parameters_once() -> None:
    (only,) = offload.transfers(built(TINY, "prefill", offload=["parameter"]))
    assert (only.bytes, only.into, only.out) == (2 * 36_240, 1, 0)


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"mesh": {"fsdp": 3}, "batch": 3}, "must divide hidden_size"),
        ({"mesh": {"pipeline": 3}, "batch": 3, "accumulate": 3}, "do not divide 8 layers"),
        ({"mesh": {"context": 3}}, "must divide the rows"),
        ({"mesh": {"data": 3}, "batch": 8}, "must divide the sequences"),
        (
            {"mesh": {"pipeline": 2}, "batch": 3, "accumulate": 3, "pipeline_schedule": "interleaved",
             "pipeline_virtual": 2}, "groups of pipeline",
        ),
    ],
)  # fmt: skip
def test_a_degree_that_does_not_divide_is_refused(options: dict[str, Any], rule: str) -> None:
    with pytest.raises(RejectedError, match=rule):
        built(TINY, **options)


@pytest.mark.parametrize(
    ("vocabulary", "tensor", "multiple", "stored", "own"),
    [
        (128_256, 8, 512, 128_512, 16_064),  # hpcaitech/ColossalAI PR 6124: 64 x tensor
        (129_280, 24, 1_536, 130_560, 5_440),
        (129_280, 24, 192, 129_408, 5_392),
        (151_552, 6, 384, 151_680, 25_280),
    ],
)
def test_a_padded_vocabulary_is_stored_and_not_learned(
    vocabulary: int, tensor: int, multiple: int, stored: int, own: int
) -> None:
    sizes = {"L": 1, "d": 48, "h": 24, "k": 24, "e": 2, "f": 48, "V": vocabulary}
    program = built(sizes, mesh={"tensor": tensor}, vocabulary_multiple=multiple)
    totals = parameters(program).totals
    assert totals["padding"] == 2 * (stored - vocabulary) * 48  # table and head
    assert totals["unique"] == parameters(built(sizes)).totals["unique"]
    head = next(item for item in tensor_parallel.locals_of(program) if item.scope == "head")
    assert head.weight_shard_bytes == own * 48 * 2 and head.kind == "vocabulary column"
    if tensor == 8:
        assert totals["padding"] // 48 * 4096 == 2 * 1_048_576


def test_a_pipeline_composes_with_tensor_slices_and_data_shards_in_order() -> None:
    """Two data replicas of two tensor ranks of two stages: no array is divided by eight."""
    options: dict[str, Any] = {"seq": 4096, "batch": 4, "accumulate": 2, "precision": "bf16_master_adam"}
    program = built(RUNNING, mesh={"pipeline": 2, "data": 2, "tensor": 2}, zero=1, **options)
    row = next(row for row in ownership(program).rows if row.object == "m")
    assert set(row.fields["divided"]) == {"data=2 x tensor=2", "data=2"}
    vectors = 16 * 2 * 4096 + 4096  # the second rank's norms, whole under tensor
    matrices = 16 * (218_112_000 - 2 * 4096) + 128_256 * 4096
    assert row.per_device == 4 * (matrices // 4 + vectors // 2)
    assert row.fields["cluster_bytes"] == 4 * (8_030_261_248 - 266_240) + 2 * 4 * 266_240
