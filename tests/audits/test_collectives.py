"""Transfers of programs nobody here wrote: axes, payloads, trips, links; three spellings of groups, every kind."""

from __future__ import annotations

import pytest

from jaxcost.audits import collectives
from jaxcost.audits.document import audit_document
from jaxcost.audits.evidence import Notes, gather
from jaxcost.observation.hlo.groups import devices_of, numbering
from jaxcost.observation.pool import Request
from jaxcost.observation.sources import Program
from jaxcost.observation.targets import parse_target
from tests.audits.compiled_programs import TASK
from tests.observation.hlo.building import Program as ByHand
from tests.observation.hlo.building import fill, loop

AXES, LINE = {"a": 2, "b": 4}, {"d": 8}
CPU = pytest.param("cpu:8")
H100 = pytest.param("h100:8", marks=pytest.mark.cuda)
V5E = pytest.param("tpu-v5e:2x4", marks=pytest.mark.tpu)


@pytest.fixture(scope="module")
def compiled(compiled):
    """On eight devices in a line, unless a target and a mesh are named."""
    return lambda name, target="cpu:8", mesh=None: compiled(name, target, mesh or LINE)


def summing():
    """A module with a computation that adds, its entry open."""
    made = ByHand()
    made.computation("add")
    one, two = (made.add("parameter", ("f32",), parameter_number=n) for n in (0, 1))
    made.add("add", ("f32",), [one, two])
    add = made.open.id
    made.computation("entry")
    return made, add


def read(program, mesh=None):
    notes = Notes()
    evidence = gather(program, mesh=mesh)
    return collectives.section(evidence, notes), collectives.totals(evidence, notes), notes


# Spellings of groups ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "axis", "groups", "moved"),
    [("over_a", "a", (4, 2), 32_768), ("over_b", "b", (2, 4), 32_768), ("over_ba", "a", (4, 2), 8_192)],
)
def test_three_spellings_of_groups(compiled, name, axis, groups, moved):
    program = compiled(name, "cpu:8", AXES)
    rows, _, _ = read(program)
    (row,) = (row for row in rows if row["kind"] == "all-reduce")
    assert (row["axes"], row["group_count"], row["group_size"]) == ([axis], *groups)
    assert (row["operand_bytes"], row["result_bytes"], row["executions"]) == (moved, moved, 1)
    n = groups[1]
    assert row["wire_bytes"] == 2 * (n - 1) * moved // n
    # Without a mesh the partitioner's own names, or none: never a wrong one.
    (row,) = (row for row in read(program, mesh={})[0] if row["kind"] == "all-reduce")
    assert row["axes"] in (["axis_1"], None) and row["axes_reason"]
    assert row["layout"] == f"{n} devices, stride {4 if axis == 'a' else 1}"


TEXT = """HloModule spelled, is_scheduled=true, entry_computation_layout={{(f32[64,128]{{1,0}})->f32[64,128]{{1,0}}}}, num_partitions=8

%add (x: f32[], y: f32[]) -> f32[] {{
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %sum = f32[] add(%x, %y)
}}

ENTRY %main (p: f32[64,128]) -> f32[64,128] {{
  %p = f32[64,128]{{1,0}} parameter(0)
  ROOT %ar = f32[64,128]{{1,0}} all-reduce(%p), channel_id=1, replica_groups={groups}, use_global_device_ids=true, to_apply=%add
}}
"""  # noqa: E501


@pytest.mark.parametrize(
    ("groups", "axes"),
    [
        ("mesh['axis_0'=1,'axis_1'=4,'axis_2'=2], device_ids=([2,4]T(1,0)) {'axis_1'}", ["b"]),
        ("mesh['axis_0'=1,'axis_1'=2,'axis_2'=4] {'axis_1'}", ["a"]),
        ("mesh['x'=2,'y'=4] {'x','y'}", ["a", "b"]),
        ("[2,4]<=[8]", ["b"]),
        ("[4,2]<=[2,4]T(1,0)", ["a"]),
        ("{{0,1,2,3},{4,5,6,7}}", ["b"]),
        ("{{0,4},{1,5},{2,6},{3,7}}", ["a"]),
    ],
)
def test_groups_in_text(pool, groups, axes):
    data = pool.value(Request(f"{TASK.partition(':')[0]}:read_text", {"text": TEXT.format(groups=groups)}))
    rows, _, _ = read(Program("text", "x", data, "cpu", parse_target("cpu:8")), AXES)
    (row,) = rows
    assert row["axes"] == axes and row["operand_bytes"] == 32_768
    assert row["group_size"] == {("b",): 4, ("a",): 2, ("a", "b"): 8}[tuple(axes)]


# Loops ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", [CPU, H100, V5E])
@pytest.mark.parametrize(("name", "gathers"), [("fsdp", 6), ("fsdp_remat", 12)])
def test_weights_gathered_in_a_loop_and_again_when_it_is_recomputed(compiled, target, name, gathers):
    rows, totals, _ = read(compiled(name, target))
    found = totals["by_kind"]["all-gather"]
    assert found["executions"] == gathers
    assert found["user_bytes"] == gathers * 256 * 256 * 4 // 8
    reduced = [row for row in rows if row["kind"] in ("all-reduce", "reduce-scatter")]
    assert sum(row["executions"] for row in reduced) == 6
    assert {row["operand_bytes"] for row in reduced} == {256 * 256 * 4}
    assert {row["axes"][0] for row in rows} == {"d"}


def test_keeping_gathered_weights_costs_their_bytes(compiled):
    temp = {name: gather(compiled(name)).reading.memory.temp_bytes for name in ("fsdp", "fsdp_remat")}
    assert temp == {"fsdp": 2_457_984, "fsdp_remat": 786_736}
    assert temp["fsdp"] - temp["fsdp_remat"] >= 6 * 262_144


def test_a_branch_leaves_an_interval_and_an_open_loop_is_unknown(compiled):
    (row,), totals, notes = read(compiled("maybe"))
    assert row["executions"] == {"minimum": 0, "maximum": 1}
    assert row["total_operand_bytes"] == totals["total"]["operand_bytes"] == {"minimum": 0, "maximum": 2_048}
    assert notes.unknowns == []
    (row,), totals, notes = read(compiled("until"))
    assert row["executions"] is None and row["reason"]
    assert row["total_wire_bytes"] is None and totals["total"]["wire_bytes"] is None
    (unknown,) = notes.unknowns
    assert unknown["what"] == row["name"] and "run-time values" in unknown["reason"]


# Types ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("target", "dtype", "moved"), [
    pytest.param("cpu:8", "f32", 4_096), pytest.param("tpu-v5e:2x4", "bf16", 2_048, marks=pytest.mark.tpu),
    pytest.param("h100:8", "bf16", 2_048, marks=pytest.mark.cuda),
])  # fmt: skip
def test_a_sum_of_bf16_and_what_the_compiler_moves(compiled, target, dtype, moved):
    (row,), totals, notes = read(compiled("psum_bf16", target))
    assert (row["dtype"], row["operand_bytes"]) == (dtype, moved)
    assert (row["user_dtype"], row["user_bytes"]) == ("bf16", 2_048)
    assert totals["total"]["user_bytes"] == 2_048
    widened = [finding for finding in notes.findings if finding["kind"] == "collective_widened"]
    assert len(widened) == (dtype == "f32")
    assert all("widened" in finding["text"] and finding["bytes"] == 2_048 for finding in widened)


def test_a_scatter_is_widened_too_and_f32_is_not(compiled):
    (row,), _, notes = read(compiled("scatter_bf16"))
    assert (row["kind"], row["user_bytes"], row["operand_bytes"]) == ("reduce-scatter", 1_024, 2_048)
    assert [finding["kind"] for finding in notes.findings] == ["collective_widened"]
    (row,), _, notes = read(compiled("psum_f32"))
    assert (row["user_dtype"], row["user_bytes"]) == ("f32", row["operand_bytes"]) and notes.findings == []


@pytest.mark.tpu
def test_a_gather_that_the_compiler_narrows(compiled):
    """The TPU compiler multiplies f32 in bf16, and moves the weights after the conversion."""
    rows, _, notes = read(compiled("fsdp", "tpu-v5e:2x4"))
    (row,) = (row for row in rows if row["kind"] == "all-gather")
    assert (row["dtype"], row["user_dtype"]) == ("bf16", "f32") and row["user_bytes"] == 2 * row["operand_bytes"]
    assert [finding["kind"] for finding in notes.findings] == ["collective_narrowed"]


@pytest.mark.parametrize(
    ("op_name", "back", "dtype"),
    [
        ("jit(f)/psum", True, "bf16"), ("", True, "bf16"), ("jit(f)/psum", False, "f32"),
        ("jit(f)/convert_element_type", True, "f32"), ("jit(f)/(a/convert_element_type:b/psum)", True, "f32"),
    ],
)  # fmt: skip
def test_a_conversion_is_the_compilers_where_it_is_undone_and_has_no_name_of_a_cast(op_name, back, dtype):
    made, add = summing()
    given = made.add("parameter", ("bf16", 1024))
    wide = made.add("convert", ("f32", 1024), [given], op_name=op_name)
    summed = made.add("all-reduce", ("f32", 1024), [wide], [add], channel_id=1, use_global_device_ids=True)
    made.add("convert", ("bf16", 1024), [summed]) if back else made.add("negate", ("f32", 1024), [summed])
    (row,), _, notes = read(Program("proto", "x", made.bytes(), "cpu"))
    assert row["user_dtype"] == dtype and len(notes.findings) == (dtype == "bf16")


@pytest.mark.parametrize(("cast_elsewhere", "dtype"), [(False, "f32"), (True, None)])
def test_a_narrowed_argument_is_the_compilers_only_where_the_program_casts_nothing(cast_elsewhere, dtype):
    made = ByHand()
    made.computation("entry")
    given = made.add("parameter", ("f32", 8))
    narrow = made.add("convert", ("bf16", 8), [given])
    if cast_elsewhere:
        made.add("convert", ("bf16", 8), [given], op_name="jit(f)/convert_element_type")
    made.add("collective-permute", ("bf16", 8), [narrow], channel_id=1)
    made.open.instructions[-1].source_target_pairs.add(source=0, target=1)
    (row,), totals, notes = read(Program("proto", "x", made.bytes(), "tpu"))
    assert (row["user_dtype"], row["user_bytes"]) == (dtype, None if cast_elsewhere else 32)
    assert totals["total"]["user_bytes"] == row["user_bytes"]
    assert [finding["kind"] for finding in notes.findings] == ([] if cast_elsewhere else ["collective_narrowed"])


# Kinds ------------------------------------------------------------------------------------------------------------

SHARD = 8 * 64 * 4
KINDS = [
    ("gather", "all-gather", SHARD, 8 * SHARD, 7 * SHARD),
    ("scatter", "reduce-scatter", SHARD, SHARD // 8, 7 * SHARD // 8),
    ("exchange", "all-to-all", SHARD, SHARD, 7 * SHARD // 8),
    ("shift", "collective-permute", SHARD, SHARD, SHARD),
    ("ragged", "ragged-all-to-all", SHARD, SHARD, None),
]


@pytest.mark.parametrize("target", [CPU, H100, V5E])
@pytest.mark.parametrize(("name", "kind", "operand", "result", "wire"), KINDS)
def test_every_kind_by_elements_and_by_a_ring(compiled, target, name, kind, operand, result, wire):
    if name == "scatter" and target.startswith("tpu"):
        kind, result, wire = "all-reduce", SHARD, 2 * 7 * SHARD // 8  # of so small an array the TPU keeps a part
    if name == "ragged" and target.startswith("tpu"):
        operand = result = 2 * SHARD  # the TPU lowering exchanges rows padded to 128 lanes
    (row,), totals, _ = read(compiled(name, target))
    assert (row["kind"], row["axes"], row["executions"]) == (kind, ["d"], 1)
    assert (row["operand_bytes"], row["result_bytes"], row["wire_bytes"]) == (operand, result, wire)
    assert row["stored_bytes"] >= row["operand_bytes"], "tiles on TPU pad what is stored"
    assert totals["by_kind"][kind]["operand_bytes"] == operand
    assert (row["wire_reason"] == "") == (wire is not None)


@pytest.mark.cuda
def test_a_broadcast_between_devices(compiled):
    (row,), _, _ = read(compiled("broadcast", "h100:8"))
    assert (row["kind"], row["operand_bytes"], row["wire_bytes"]) == ("collective-broadcast", SHARD, 7 * SHARD // 8)


@pytest.mark.parametrize("target", [CPU, H100])
def test_groups_that_are_no_whole_axis(compiled, target):
    (row,), _, _ = read(compiled("subgroups", target))
    assert row["axes"] is None and row["along"] == ["d"] and "no whole axes" in row["axes_reason"]
    assert (row["group_size"], row["group_count"], row["layout"]) == (4, 2, "4 devices, stride 1")
    assert row["groups"] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert row["wire_bytes"] == 2 * 3 * SHARD // 4


# Nodes and slices -------------------------------------------------------------------------------------------------


@pytest.mark.cuda
def test_inside_and_between_nodes(compiled):
    for name, link, nodes in (("over_a", "between", 2), ("over_b", "inside", 1)):
        rows, totals, _ = read(compiled(name, "h100:2x4", AXES))
        (row,) = (row for row in rows if row["kind"] == "all-reduce")
        assert (row["link"], row["nodes"]) == (link, nodes)
        assert totals["by_link"][link]["operand_bytes"] == 32_768
    (row,), _, _ = read(compiled("shift", "h100:2x4"))
    assert (row["pairs"], row["pairs_between"], row["link"]) == (8, 2, "between")
    (row,), _, _ = read(compiled("shift", "h100:8"))
    assert (row["pairs"], row["pairs_between"], row["link"]) == (8, None, "inside")


@pytest.mark.tpu
def test_between_slices_through_the_host(compiled):
    program = compiled("psum_f32", "tpu-v5e:2x2*2", {"s": 2, "d": 4})
    for mesh in (None, {}):
        rows, totals, _ = read(program, mesh)
        kinds = {row["kind"]: row for row in rows}
        assert kinds.keys() == {"all-reduce", "send", "recv"}
        assert (kinds["all-reduce"]["link"], kinds["all-reduce"]["wire_bytes"]) == ("inside", 2 * 3 * 4_096 // 4)
        assert (kinds["send"]["link"], kinds["send"]["nodes"], kinds["send"]["wire_bytes"]) == ("between", 2, 4_096)
        assert kinds["recv"]["wire_bytes"] == 0, "what is sent is counted once"
        assert totals["by_link"]["between"]["wire_bytes"] == 4_096
        assert kinds["send"]["axes"] == (["s"] if mesh is None else None)


# Written by hand --------------------------------------------------------------------------------------------------


def started(shape, operands, opcode="all-gather-start", **rest):
    made = ByHand()
    made.computation("entry")
    given = [made.add("parameter", s, parameter_number=n) for n, s in enumerate(operands)]
    made.add(opcode, shape, given, channel_id=1, use_global_device_ids=True, dimensions=[0], **rest)
    fill(made.open.instructions[-1].collective_device_list, {"replica_groups": [{"replica_ids": list(range(8))}]})
    return made


def test_a_combined_gather_is_the_sum_of_its_arrays_and_its_start_counts_once():
    one, two = ("f32", 8, 16), ("bf16", 4, 16)
    out = [("f32", 64, 16), ("bf16", 32, 16)]
    tuples = started([[one, two], out], [one, two])
    (row,), totals, _ = read(Program("proto", "x", tuples.bytes(), "cuda"))
    assert (row["arrays"], row["operand_bytes"]) == (2, 8 * 16 * 4 + 4 * 16 * 2)
    assert row["result_bytes"] == 8 * row["operand_bytes"] == totals["total"]["result_bytes"]
    plain = started(out, [one, two], "all-gather")
    (row,), _, _ = read(Program("proto", "x", plain.bytes(), "cpu"))
    assert row["result_bytes"] == 8 * row["operand_bytes"]
    single = started([one, ("f32", 64, 16)], [one])
    (row,), _, _ = read(Program("proto", "x", single.bytes(), "cuda"))
    assert (row["operand_bytes"], row["result_bytes"]) == (512, 4_096)


@pytest.mark.parametrize(
    ("opcode", "channel", "flat", "ids"),
    [
        ("all-reduce", 0, False, "replicas"), ("all-reduce", 1, False, "both"), ("all-reduce", 1, True, "devices"),
        ("all-gather-start", 1, False, "both"), ("reduce-scatter", 1, False, "both"),
        ("all-to-all", 1, False, "partitions"), ("collective-permute", 1, False, "partitions"),
        ("all-to-all", 0, False, "replicas"),
    ],
)  # fmt: skip
def test_what_the_ids_of_a_group_number(opcode, channel, flat, ids):
    assert numbering(opcode, channel, flat) == ids


def test_devices_of_groups_with_replicas_and_partitions():
    """Two replicas of four partitions: device 4 r + p."""
    assert devices_of(((0, 1),), "replicas", 2, 4) == ((0, 4), (1, 5), (2, 6), (3, 7))
    assert devices_of(((0, 1), (2, 3)), "partitions", 2, 4) == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert devices_of(((0,), (1,)), "both", 2, 4) == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert devices_of(((0, 1), (2, 3)), "devices", 2, 4) == ((0, 1), (2, 3))
    # An id beyond the range is a device after all.
    assert devices_of(((0, 7),), "replicas", 2, 4) == ((0, 7),)


def with_devices(made, replicas, partitions):
    assignment = made.module.device_assignment
    assignment.replica_count, assignment.computation_count = replicas, partitions
    for p in range(partitions):
        assignment.computation_devices.add().replica_device_ids.extend(r * partitions + p for r in range(replicas))
    return made


@pytest.mark.parametrize(
    ("channel", "flat", "count", "size", "layout"),
    [(0, False, 4, 2, "2 devices, stride 4"), (1, False, 1, 8, "8 devices, stride 1"),
     (1, True, 1, 8, "8 devices, stride 1")],
)  # fmt: skip
def test_no_groups_at_all_are_everyone_that_is_numbered(channel, flat, count, size, layout):
    made, add = summing()
    given = made.add("parameter", ("f32", 16))
    made.add("all-reduce", ("f32", 16), [given], [add], channel_id=channel, use_global_device_ids=flat)
    (row,), _, _ = read(Program("proto", "x", with_devices(made, 2, 4).bytes(), "cuda"))
    assert (row["group_count"], row["group_size"], row["layout"]) == (count, size, layout)


def test_uneven_groups_and_pairs_that_stay():
    made = started([("f32", 8), ("f32", 24)], [("f32", 8)])
    listed = made.open.instructions[-1].collective_device_list
    del listed.replica_groups[:]
    fill(listed, {"replica_groups": [{"replica_ids": [0, 1, 2]}, {"replica_ids": [3, 4]}]})
    (row,), _, _ = read(Program("proto", "x", made.bytes(), "cuda"))
    assert (row["group_sizes"], row["layout"]) == ([2, 3], "of irregular sizes")
    assert row["wire_bytes"] == 2 * 24 * 4 // 3, "of the largest group"
    for pairs, wire in (([(0, 0), (1, 1)], 0), ([(0, 1)], 32), ([], 0)):
        made = ByHand()
        made.computation("entry")
        given = made.add("parameter", ("f32", 8))
        made.add("collective-permute", ("f32", 8), [given], channel_id=1)
        for source, target in pairs:
            made.open.instructions[-1].source_target_pairs.add(source=source, target=target)
        (row,), _, _ = read(Program("proto", "x", made.bytes(), "cpu"))
        assert row["wire_bytes"] == wire


def test_a_send_between_devices_carries_its_pairs():
    made = ByHand()
    made.computation("entry")
    given = made.add("parameter", ("f32", 8))
    token = made.add("after-all", ("token",))
    made.add("send", [("f32", 8), ("u32",), ("token",)], [given, token], channel_id=1)
    made.open.instructions[-1].frontend_attributes.map.add(
        key="_xla_send_recv_source_target_pairs", value="{{0,1},{1,2},{3,4}}"
    )
    (row,), _, _ = read(Program("proto", "x", made.bytes(), "cuda", parse_target("h100:2x4")))
    assert (row["form"], row["pairs"], row["pairs_between"], row["wire_bytes"]) == ("point to point", 3, 1, 32)


def test_a_collective_in_a_counted_loop():
    made = ByHand()

    def body(program):
        given = program.add("broadcast", ("f32", 8), [program.constant(0)])
        program.add("collective-permute", ("f32", 8), [given], channel_id=1)
        program.open.instructions[-1].source_target_pairs.add(source=0, target=1)

    loop(made, 0, 1, 5, "LT", per_trip=body)
    (row,), totals, _ = read(Program("proto", "x", made.bytes(), "cpu"))
    assert (row["executions"], row["total_wire_bytes"], totals["total"]["executions"]) == (5, 160, 5)


def test_the_document_has_the_rows_and_their_sums(compiled):
    document = audit_document(compiled("fsdp_remat"))
    assert (
        sum(row["total_wire_bytes"] for row in document["collectives"])
        == (document["collective_totals"]["total"]["wire_bytes"])
    )
    assert (
        sum(row["wire_bytes"] for row in document["collective_totals"]["by_kind_axes"])
        == (document["collective_totals"]["total"]["wire_bytes"])
    )
