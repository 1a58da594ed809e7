from __future__ import annotations

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxcost.contracts.errors import RejectedError
from jaxcost.observation.hlo import read_hlo
from jaxcost.observation.hlo.collectives import one_slice
from jaxcost.observation.hlo.groups import MeshAxes, decode_groups
from jaxcost.observation.hlo.schema import message
from tests.observation.hlo.building import Program, cuda_devices, dump, fill

AXES = {"a": 2, "b": 4}


def product_over(x_spec, w_spec, devices=None, options=None):
    mesh = Mesh(np.array(devices if devices is not None else jax.devices()[:8]).reshape(2, 4), ("a", "b"))

    def place(spec, *dims):
        return jax.ShapeDtypeStruct(dims, "float32", sharding=NamedSharding(mesh, spec))

    fn = jax.jit(lambda x, w: x @ w, out_shardings=NamedSharding(mesh, P()))
    return dump(fn, place(x_spec, 64, 512), place(w_spec, 512, 128), options=options)[0]


@pytest.mark.parametrize(
    "axis, groups",
    [
        ("a", {(0, 4), (1, 5), (2, 6), (3, 7)}),
        ("b", {(0, 1, 2, 3), (4, 5, 6, 7)}),
    ],
)
def test_a_contraction_over_a_sharded_axis(axis, groups):
    reading = read_hlo(product_over(P(None, axis), P(axis, None)), platform="cpu", mesh=AXES)
    (row,) = (r for r in reading.collectives.rows if r.kind == "all-reduce")
    assert set(row.groups) == groups
    assert (row.axes, row.group_size) == ((axis,), AXES[axis])
    assert (row.operand_bytes, row.result_bytes, row.dtype) == (32_768, 32_768, "f32")
    assert reading.device_count == 8


def test_a_spelling_that_names_devices():
    reading = read_hlo(product_over(P("b", "a"), P("a", None)), platform="cpu", mesh=AXES)
    (row,) = (r for r in reading.collectives.rows if r.kind == "all-reduce")
    assert set(row.groups) == {(0, 4), (1, 5), (2, 6), (3, 7)}
    assert row.operand_bytes == 8_192


@pytest.mark.cuda
def test_a_started_collective_counts_once():
    data = product_over(P("b", None), P("b", None), cuda_devices(8))
    reading = read_hlo(data, platform="cuda", mesh=AXES)
    gathers = [r for r in reading.collectives.rows if r.kind == "all-gather"]
    for row in gathers:
        assert row.form == "async"
        assert row.result_bytes == row.operand_bytes * row.group_size


def instruction(**values):
    proto = message("HloInstructionProto")
    fill(proto, values)
    return proto


def mesh_axes(axes, **mesh):
    sizes = [{"name": f"axis_{i}", "size": s} for i, s in enumerate((1, 4, 2))]
    return instruction(
        mesh_axes_replica_group_list={"mesh": {"axes": sizes, **mesh}, "axes": [{"mesh_axis_index": a} for a in axes]}
    )


def test_three_spellings_of_the_same_groups():
    rows = ((0, 1, 2, 3), (4, 5, 6, 7))
    transposed = {"iota_transform": {"reshape_dims": [2, 4], "transpose_perm": [1, 0]}}
    assert decode_groups(mesh_axes([1], **transposed), 8) == rows
    ids = {"device_ids": [0, 4, 1, 5, 2, 6, 3, 7]}
    assert decode_groups(mesh_axes([1], **ids), 8) == rows
    assert decode_groups(mesh_axes([1]), 8) == ((0, 2, 4, 6), (1, 3, 5, 7))
    assert decode_groups(mesh_axes([1, 2]), 8) == (tuple(range(8)),)
    assert decode_groups(mesh_axes([2, 1]), 8) == ((0, 2, 4, 6, 1, 3, 5, 7),)
    iota = {"num_replica_groups": 2, "num_devices_per_group": 4, "iota_reshape_dims": [8]}
    assert decode_groups(instruction(iota_collective_device_list=iota), 8) == rows
    iota = {
        "num_replica_groups": 4,
        "num_devices_per_group": 2,
        "iota_reshape_dims": [2, 4],
        "iota_transpose_perm": [1, 0],
    }
    pairs = ((0, 4), (1, 5), (2, 6), (3, 7))
    assert decode_groups(instruction(iota_collective_device_list=iota), 8) == pairs
    listed = {"replica_groups": [{"replica_ids": list(pair)} for pair in pairs]}
    assert decode_groups(instruction(collective_device_list=listed), 8) == pairs
    assert decode_groups(instruction(), 3) == ((0, 1, 2),)


def test_part_of_an_axis():
    proto = mesh_axes([1])
    part = proto.mesh_axes_replica_group_list.axes[0].sub_axis_info
    part.pre_size, part.size = 2, 2  # the inner half of an axis of 4
    assert decode_groups(proto, 8) == ((0, 2), (1, 3), (4, 6), (5, 7))


def test_impossible_groups_are_rejected():
    for proto in (
        mesh_axes([7]), mesh_axes([1], device_ids=[0, 1]), mesh_axes([1, 1]),
        instruction(
            iota_collective_device_list={"num_replica_groups": 3, "num_devices_per_group": 4, "iota_reshape_dims": [8]}
        ),
        instruction(collective_device_list={"replica_groups": [{"replica_ids": [0, 0]}]}),
        instruction(iota_collective_device_list={"num_replica_groups": 1 << 40, "num_devices_per_group": 4}),
    ):  # fmt: skip
        with pytest.raises(RejectedError):
            decode_groups(proto, 8)


def test_axes_of_a_mesh():
    mesh = MeshAxes({"data": 2, "fsdp": 1, "tensor": 4})
    assert mesh.of_groups(((0, 1, 2, 3), (4, 5, 6, 7))) == ("tensor",)
    assert mesh.of_groups(((4, 0), (1, 5), (2, 6), (3, 7))) == ("data",)
    assert mesh.of_groups((tuple(range(8)),)) == ("data", "tensor")
    assert mesh.of_groups(tuple((i,) for i in range(8))) == ()
    assert mesh.of_groups(((0, 1), (2, 3), (4, 5), (6, 7))) is None
    assert mesh.of_pairs(((0, 1), (1, 2), (2, 3), (3, 0))) == ("tensor",)
    assert mesh.of_pairs(((0, 4),)) == ("data",)
    assert mesh.of_pairs(((0, 9),)) is None


def test_a_combined_start_moves_the_sum_of_its_results_once():
    program = Program()
    program.computation("entry")
    a, b = (
        program.add("parameter", ("f32", 8), parameter_number=0),
        program.add("parameter", ("bf16", 16), parameter_number=1),
    )
    shape = [[("f32", 8), ("bf16", 16)], [("f32", 32), ("bf16", 64)]]
    start = program.add("all-gather-start", shape, [a, b], dimensions=[0], channel_id=1,
                        collective_device_list={"replica_groups": [{"replica_ids": [0, 1, 2, 3]}]})  # fmt: skip
    program.add("all-gather-done", shape[1], [start])
    (row,) = read_hlo(program.bytes(), platform="cuda").collectives.rows
    assert (row.operand_bytes, row.result_bytes, row.group_size, row.form) == (64, 256, 4, "async")


def test_a_collective_wrapped_in_a_start_is_async():
    program = Program()
    wrapped = program.computation("wrapped")
    value = program.add("parameter", ("f32", 8))
    program.add("reduce-scatter", ("f32", 2), [value], dimensions=[0], collective_device_list=GROUPS)
    program.computation("entry")
    value = program.add("parameter", ("f32", 8))
    start = program.add("async-start", [[("f32", 8)], ("f32", 2), ("u32",)], [value], [wrapped])
    program.add("async-done", ("f32", 2), [start])
    (row,) = read_hlo(program.bytes(), platform="cuda").collectives.rows
    assert (row.kind, row.form, row.operand_bytes, row.result_bytes) == ("reduce-scatter", "async", 32, 8)


def test_clones_of_a_hidden_gather_count_once_and_a_fused_slice_is_a_reduce_scatter():
    program = Program()
    groups = {"replica_groups": [{"replica_ids": [0, 1, 2, 3]}]}
    fused = []
    for target in ("AsyncCollectiveStart", "AsyncCollectiveDone"):
        fused.append(program.computation(f"async_collective_fusion.{target}", fusion=True))
        shard = program.add("parameter", ("bf16", 64))
        whole = program.add("all-gather", ("bf16", 256), [shard], channel_id=5, collective_device_list=groups)
        program.add("custom-call", ("bf16", 256), [whole], custom_call_target=target)
    scatter = program.computation("all-reduce-scatter.1", fusion=True)
    value = program.add("parameter", ("f32", 64))
    summed = program.add("all-reduce", ("f32", 64), [value], channel_id=6, collective_device_list=groups)
    program.add("dynamic-slice", ("f32", 16), [summed, program.constant(0)])
    program.computation("entry")
    shard = program.add("parameter", ("bf16", 64), parameter_number=0)
    value = program.add("parameter", ("f32", 64), parameter_number=1)
    for computation in fused:
        program.add("fusion", ("bf16", 256), [shard], [computation])
    program.add("fusion", ("f32", 16), [value], [scatter])
    found = read_hlo(program.bytes(), platform="tpu").collectives
    assert found.clones == 1
    assert [(r.kind, r.operand_bytes, r.result_bytes) for r in found.rows] == [
        ("all-gather", 128, 512), ("reduce-scatter", 256, 64),
    ]  # fmt: skip


GROUPS = {"replica_groups": [{"replica_ids": [0, 1, 2, 3]}]}


def test_arrays_combined_in_a_tuple_or_laid_in_a_row_are_parts_of_their_own():
    program = Program()
    program.computation("entry")
    a = program.add("parameter", ("f32", 8), parameter_number=0, metadata={"op_name": "state.a"})
    b = program.add("parameter", ("f32", 16), parameter_number=1)
    row = program.add("concatenate", ("f32", 24), [a, b], dimensions=[0])
    program.add("all-reduce", ("f32", 24), [row], collective_device_list=GROUPS)
    program.add("all-reduce", [("f32", 8), ("f32", 16)], [a, b], collective_device_list=GROUPS)
    flat, both = read_hlo(program.bytes(), platform="cuda").collectives.rows
    for found in (flat, both):
        assert [(part.operand_bytes, part.result_bytes) for part in found.parts] == [(32, 32), (64, 64)]
        assert found.parts[0].argument == "state.a"


def test_the_slice_that_keeps_a_part_and_the_padding_before_are_seen():
    program = Program()
    program.computation("entry")
    value = program.add("parameter", ("f32", 14), parameter_number=0)
    padded = program.add("pad", ("f32", 16), [value, program.constant(0)])
    summed = program.add("all-reduce", ("f32", 16), [padded], collective_device_list=GROUPS)
    own = program.add("dynamic-slice", ("f32", 4), [summed, program.constant(0)], name="own.1")
    (row,) = read_hlo(program.bytes(), platform="cpu").collectives.rows
    assert row.parts[0].sliced == ("own.1",) and row.parts[0].unpadded_elements == 14
    program.add("negate", ("f32", 16), [summed])  # used whole as well: no reduce-scatter
    (row,) = read_hlo(program.bytes(), platform="cpu").collectives.rows
    assert row.parts[0].sliced == () and own


def test_nodes_of_a_group_follow_the_device_assignment():
    program = Program()
    program.computation("entry")
    value = program.add("parameter", ("f32", 8), parameter_number=0)
    pairs = {"replica_groups": [{"replica_ids": [0, 1]}, {"replica_ids": [2, 3]}]}
    program.add("all-reduce", ("f32", 8), [value], collective_device_list=pairs)

    def nodes(*ids):
        assignment = program.module.device_assignment
        assignment.Clear()
        assignment.replica_count, assignment.computation_count = 1, len(ids)
        for device in ids:
            assignment.computation_devices.add().replica_device_ids.append(device)
        found = read_hlo(program.bytes(), platform="cuda", mesh={"data": 2, "tensor": 2}, devices_per_node=2)
        return found.collectives.rows[0].nodes

    assert nodes(0, 1, 2, 3) == 1
    assert nodes(0, 2, 1, 3) == 2
    assert read_hlo(program.bytes(), platform="cuda").collectives.rows[0].nodes is None


def test_a_program_for_several_slices_is_that_of_one():
    assert one_slice({"data": 2, "fsdp": 4}, 4) == {"data": 1, "fsdp": 4}
    assert one_slice({"data": 4, "fsdp": 4}, 8) == {"data": 2, "fsdp": 4}
    assert one_slice({"fsdp": 6, "tensor": 4}, 4) == {"fsdp": 1, "tensor": 4}
    assert one_slice({"fsdp": 3, "tensor": 4}, 6) == {}
    assert one_slice({"fsdp": 4}, None) == {}
    assert one_slice({"fsdp": 4}, 3) == {}  # a slice and a third are no slices
    assert one_slice({"fsdp": 7}, 3) == {}
    program = Program()
    program.computation("entry")
    value = program.add("parameter", ("f32", 8), parameter_number=0)
    program.add("all-reduce", ("f32", 8), [value], collective_device_list=GROUPS)
    token = program.add("after-all", ("token",), [])
    attributes = {"map": [{"key": "_xla_megascale_transfer_type", "value": "ALL_REDUCE"}]}
    shape = [("f32", 8), ("u32",), ("token",)]
    program.add("send", shape, [value, token], is_host_transfer=True, frontend_attributes=attributes)
    program.add("recv", shape, [token], is_host_transfer=True, frontend_attributes=attributes)
    mesh = {"data": 2, "fsdp": 4}
    inside, sent, received = read_hlo(program.bytes(), platform="tpu", mesh=mesh, devices_per_node=4).collectives.rows
    assert inside.axes == ("fsdp",)
    assert (sent.kind, sent.operand_bytes, sent.axes, sent.nodes) == ("send", 32, ("data",), 2)
    assert (received.kind, received.result_bytes, received.form) == ("recv", 32, "host transfer ALL_REDUCE")
    for row, into, out in ((sent, 32, 0), (received, 0, 32)):
        (part,) = row.parts
        assert (part.dtype, part.operand_dims, part.result_dims) == ("f32", (8,), (8,))
        assert (part.operand_bytes, part.result_bytes) == (into, out)


def test_without_a_channel_equal_gathers_are_several():
    program = Program()
    fused = []
    for target in ("AsyncCollectiveStart", "AsyncCollectiveDone"):
        fused.append(program.computation(f"fused.{target}", fusion=True))
        whole = program.add("all-gather", ("f32", 16), [program.add("parameter", ("f32", 4))],
                            collective_device_list=GROUPS)  # fmt: skip
        program.add("custom-call", ("f32", 16), [whole], custom_call_target=target)
    program.computation("entry")
    shard = program.add("parameter", ("f32", 4))
    for computation in fused:
        program.add("fusion", ("f32", 16), [shard], [computation])
    found = read_hlo(program.bytes(), platform="tpu").collectives
    assert (len(found.rows), found.clones) == (2, 0)


def test_an_all_to_all_in_pieces_is_one_array_of_its_own_name():
    program = Program()
    program.computation("entry")
    value = program.add("parameter", ("f32", 8))
    pieces = [program.add("slice", ("f32", 2), [value], op_name="jit(f)/mlp/slice") for _ in range(4)]
    program.add("all-to-all", [("f32", 2)] * 4, pieces, op_name="jit(f)/attn/all_to_all", collective_device_list=GROUPS)
    (row,) = read_hlo(program.bytes(), platform="cpu").collectives.rows
    (part,) = row.parts
    assert (part.op_name, part.scope) == ("jit(f)/attn/all_to_all", "attn")
    assert (part.operand_bytes, part.result_bytes) == (32, 32)


def test_a_slice_is_found_behind_many_views():
    program = Program()
    program.computation("entry")
    value = program.add("parameter", ("f32", 16))
    at = program.add("all-reduce", ("f32", 16), [value], collective_device_list=GROUPS)
    for _ in range(20):
        at = program.add("bitcast", ("f32", 16), [at])
    program.add("dynamic-slice", ("f32", 4), [at, program.constant(0)], name="own")
    (row,) = read_hlo(program.bytes(), platform="cpu").collectives.rows
    assert row.parts[0].sliced == ("own",)


def test_a_permutation_runs_over_pairs_and_without_any_over_nothing():
    program = Program()
    program.computation("entry")
    value = program.add("parameter", ("f32", 8))
    program.add("collective-permute", ("f32", 8), [value], channel_id=1)
    permute = program.open.instructions[-1]
    for source in range(4):
        permute.source_target_pairs.add(source=source, target=(source + 1) % 4)
    (row,) = read_hlo(program.bytes(), platform="cpu", mesh={"data": 2, "tensor": 4}).collectives.rows
    assert (row.kind, row.axes, row.group_size, len(row.groups)) == ("collective-permute", ("tensor",), 2, 4)
    permute.ClearField("source_target_pairs")
    (row,) = read_hlo(program.bytes(), platform="cpu", mesh={"data": 2, "tensor": 4}).collectives.rows
    assert (row.axes, row.group_size, row.groups) == (None, 0, ())


def test_of_an_empty_tuple_nothing_is_sent():
    program = Program()
    program.computation("entry")
    program.add("all-gather", ("f32", 0), [program.add("tuple", [])], collective_device_list=GROUPS)
    (row,) = read_hlo(program.bytes(), platform="cpu").collectives.rows
    (part,) = row.parts
    assert (row.operand_bytes, row.result_bytes, part.operand_bytes, part.operand_dims) == (0, 0, 0, ())
