from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from jaxcost.contracts.errors import RejectedError
from jaxcost.observation.hlo import read_hlo
from jaxcost.observation.hlo.classes import CLASSES
from jaxcost.observation.hlo.memory import LiveBuffer, Moment
from jaxcost.observation.hlo.schema import message
from jaxcost.observation.hlo.timeline import Point, Shown
from tests.observation.hlo.building import Program, array, cuda_devices, dump


def step(state, x):
    def loss(w):
        y = jax.lax.scan(lambda c, w: (jnp.tanh(c @ w), None), x, w)[0]
        return jnp.sum(y * y)

    value, grads = jax.value_and_grad(loss)(state["w"])
    return {"w": state["w"] - 0.1 * grads, "n": state["n"] + 1}, value


STATE, X = {"w": array(6, 64, 64), "n": array(dtype="int32")}, array(32, 64)


def agrees(memory, stats):
    assert memory.argument_bytes == stats.argument_size_in_bytes
    assert memory.output_bytes == stats.output_size_in_bytes
    assert memory.alias_bytes == stats.alias_size_in_bytes
    assert memory.temp_bytes == stats.temp_size_in_bytes


def test_the_compilers_sizes_on_cpu():
    data, compiled = dump(jax.jit(step, donate_argnums=0), STATE, X)
    memory = read_hlo(data, platform="cpu").memory
    agrees(memory, compiled.memory_analysis())
    assert memory.alias_bytes == 6 * 64 * 64 * 4 + 4
    assert memory.required_bytes == memory.live_peak_bytes + memory.fragmentation_bytes
    assert sum(b.bytes for b in memory.live) == memory.live_peak_bytes
    assert [b.bytes for b in memory.live] == sorted((b.bytes for b in memory.live), reverse=True)
    (weights,) = (b for b in memory.live if b.op_name == "state['w']")
    assert (weights.kind, weights.bytes, weights.shape) == ("parameter", 98_304, "f32[6,64,64]")


@pytest.mark.cuda
def test_the_compilers_sizes_and_peak_on_cuda():
    sharding = jax.sharding.SingleDeviceSharding(cuda_devices(1)[0])
    placed = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=sharding), (STATE, X))
    data, compiled = dump(jax.jit(step, donate_argnums=0), *placed)
    memory, stats = read_hlo(data, platform="cuda").memory, compiled.memory_analysis()
    agrees(memory, stats)
    assert memory.live_peak_bytes == stats.peak_memory_in_bytes


def test_without_an_assignment_the_peak_is_unknown_not_zero():
    data, compiled = dump(step, STATE, X)
    bare = compiled.runtime_executable().hlo_modules()[0].as_serialized_hlo_module_proto()
    memory = read_hlo(bare, platform="cpu").memory
    assert memory.argument_bytes == compiled.memory_analysis().argument_size_in_bytes
    assert memory.output_bytes == compiled.memory_analysis().output_size_in_bytes
    assert memory.required_bytes is None and "buffer assignment" in memory.reasons["required_bytes"]
    proto = message("HloProto")
    proto.ParseFromString(data)
    del proto.buffer_assignment.heap_simulator_traces[:]
    memory = read_hlo(proto.SerializeToString(), platform="cpu").memory
    assert memory.required_bytes > 0
    assert memory.live_peak_bytes is None and "heap traces" in memory.reasons["live_peak_bytes"]
    assert "--xla_dump_hlo_as_proto" in memory.reasons["live_peak_bytes"]


def replayed(events, sizes, colors=()):
    program = Program()
    program.computation("entry")
    at = program.add("parameter", ("f32", 1))
    assignment = program.proto.buffer_assignment
    for i, size in enumerate(sizes):
        buffer = assignment.logical_buffers.add(id=i, size=size, color=colors[i] if colors else 0)
        buffer.defined_at.instruction_id = at
    assignment.buffer_allocations.add(size=sum(sizes))
    trace = assignment.heap_simulator_traces.add()
    for kind, buffer, *shared in events:
        trace.events.add(kind="AFS".index(kind), buffer_id=buffer, share_with_canonical_id=shared[0] if shared else 0)
    return read_hlo(program.bytes(), platform="tpu").memory


def test_replay():
    assert replayed([("A", 0), ("A", 1), ("F", 0), ("A", 2)], [10, 20, 5]).live_peak_bytes == 30
    # Shared memory is free only when the last buffer in it is, and comes back when a later one shares it.
    assert replayed([("A", 0), ("S", 1, 0), ("F", 0), ("A", 2)], [10, 10, 5]).live_peak_bytes == 15
    assert replayed([("A", 0), ("F", 0), ("A", 2), ("S", 1, 0)], [10, 10, 5]).live_peak_bytes == 15
    assert replayed([("A", 0), ("F", 0), ("A", 2)], [10, 10, 5]).live_peak_bytes == 10
    on_chip = replayed([("A", 0), ("A", 1)], [10, 20], colors=[0, 1])
    assert (on_chip.live_peak_bytes, on_chip.all_spaces_peak_bytes) == (10, 30)


@pytest.mark.parametrize("events", [[("F", 0)], [("A", 0), ("A", 0)], [("S", 1, 0)], [("A", 9)]])
def test_an_impossible_trace_is_rejected(events):
    with pytest.raises(RejectedError, match="trace"):
        replayed(events, [10, 10])


SQUARE, LOGICAL, STORED = ("f32", 10, 10), 400, 512
RESIDENT = STORED + 64 + STORED  # the argument, a constant, the result


@pytest.fixture(scope="module")
def planned():
    """Two products, one of the forward and one of the backward pass, and what lies between; each array is padded."""
    program = Program()
    index = program.module.stack_frame_index
    index.file_names.append("model.py")
    index.file_locations.add(file_name_id=1, line=12)
    index.stack_frames.add(file_location_id=1)
    program.computation("entry")
    product = {"dot_dimension_numbers": {"lhs_contracting_dimensions": [1], "rhs_contracting_dimensions": [0]}}
    x = program.add("parameter", SQUARE, name="x", op_name="inputs")
    first = program.add("dot", SQUARE, [x, x], name="first", op_name="jit(f)/jvp(group0)/mlp/dot_general", **product)
    middle = program.add("negate", SQUARE, [first], name="middle", op_name="jit(f)/jvp(loss)/neg")
    of_last = "jit(f)/transpose(jvp(group0))/mlp/dot_general"
    last = program.add("dot", SQUARE, [middle, x], name="last", op_name=of_last, **product)
    program.add("exponential", SQUARE, [last], name="result")
    for at in program.open.instructions:
        at.metadata.stack_frame_id = 1
    plan = program.proto.buffer_assignment
    sizes = (STORED, STORED, 2 * STORED, STORED, STORED)
    for number, (at, size) in enumerate(zip(program.open.instructions, sizes, strict=True)):
        plan.logical_buffers.add(id=number, size=size).defined_at.instruction_id = at.id
    plan.buffer_allocations.add(size=STORED, is_entry_computation_parameter=True)
    plan.buffer_allocations.add(size=64, is_constant=True)
    plan.buffer_allocations.add(size=STORED, maybe_live_out=True).assigned.add(logical_buffer_id=4, size=STORED)
    plan.buffer_allocations.add(size=5 * STORED)
    trace = plan.heap_simulator_traces.add()
    for kind, buffer in (("A", 1), ("A", 2), ("A", 3), ("F", 1), ("F", 2), ("F", 3)):
        name = program.open.instructions[buffer].name
        trace.events.add(kind="AFS".index(kind), buffer_id=buffer, instruction_name=name, computation_name="entry")
    return read_hlo(program.bytes(), platform="tpu").memory


def test_a_plan_is_the_sum_of_its_allocations(planned):
    assert (planned.argument_bytes, planned.constant_bytes, planned.output_bytes) == (STORED, 64, STORED)
    assert (planned.temp_bytes, planned.required_bytes) == (5 * STORED, RESIDENT + 5 * STORED)
    assert (planned.live_peak_bytes, planned.fragmentation_bytes) == (RESIDENT + 4 * STORED, STORED)
    assert planned.peak_instruction == "last"


def test_every_buffer_at_the_peak_is_described_whole(planned):
    shape, padding = ("f32[10,10]", "f32"), STORED - LOGICAL
    source, saved = "model.py:12", "made in the forward pass, read by last in the backward pass"
    gradient = "a product of the backward pass of group0/mlp without a weight"
    assert {b.instruction: b for b in planned.live} == {
        "": LiveBuffer(
            64, 64, 0, "", "", "", "", "", "", False, "constant", "", 1, "workspace", "a constant of the program", True,
            "", "", None,
        ),
        "x": LiveBuffer(
            STORED, LOGICAL, padding, *shape, "x", "inputs", "", "", True, "parameter", "", 1, "input_output",
            "argument inputs", True, "x", "", None,
        ),
        "result": LiveBuffer(
            STORED, LOGICAL, padding, *shape, "result", "", "group0/mlp", "backward", False, "output", source, 1,
            "input_output", "a result of the program", True, "result", "", None,
        ),
        "first": LiveBuffer(
            STORED, LOGICAL, padding, *shape, "first", "jit(f)/jvp(group0)/mlp/dot_general", "group0/mlp", "forward",
            True, "temporary", source, 1, "workspace", "at work in group0/mlp", True, "first", "first", 0,
        ),
        "middle": LiveBuffer(
            2 * STORED, LOGICAL, 2 * STORED - LOGICAL, *shape, "middle", "jit(f)/jvp(loss)/neg", "loss", "forward",
            True, "temporary", source, 1, "saved", saved, True, "middle", "middle", 1,
        ),
        "last": LiveBuffer(
            STORED, LOGICAL, padding, *shape, "last", "jit(f)/transpose(jvp(group0))/mlp/dot_general", "group0/mlp",
            "backward", True, "temporary", source, 1, "gradient", gradient, True, "last", "last", 2,
        ),
    }  # fmt: skip


# What is in use after each of the three instructions, by class.
FIRST = {"input_output": 2 * STORED, "workspace": 64 + STORED}
MIDDLE = {**FIRST, "saved": 2 * STORED}
LAST = {**MIDDLE, "gradient": STORED}


def test_the_timeline_of_a_plan(planned):
    line = planned.timeline
    assert (line.steps, line.peak_step, line.resident_bytes) == (3, 2, RESIDENT)
    forward, backward = ("group0/mlp", "forward"), ("group0/mlp", "backward")
    assert line.points == (
        Point(0, "first", "entry", *forward, "forward", RESIDENT + STORED, FIRST, ("b1",)),
        Point(1, "middle", "entry", "loss", "forward", "between", RESIDENT + 3 * STORED, MIDDLE, ("b2", "b1")),
        Point(2, "last", "entry", *backward, "backward", RESIDENT + 4 * STORED, LAST, ("b2", "b1", "b3")),
    )  # fmt: skip
    assert line.resident == ("r0", "r2", "r1")  # the largest first, equals in order
    assert line.buffers["b2"] == Shown(2 * STORED, "f32[10,10]", "saved", "loss", "forward", "middle", "model.py:12")
    assert line.buffers["r0"] == Shown(STORED, "f32[10,10]", "input_output", "", "", "x", "")
    assert line.buffers.keys() == {"r0", "r1", "r2", "b1", "b2", "b3"}


def test_each_part_of_the_schedule_has_its_fullest_moment(planned):
    def whole(sums):
        return {name: sums.get(name, 0) for name in CLASSES}

    assert planned.by_class_at_peak == whole(LAST)
    assert planned.moments == (
        Moment("forward", RESIDENT + STORED, 0, "first", "entry", "group0/mlp", "forward", whole(FIRST)),
        Moment("between", RESIDENT + 3 * STORED, 1, "middle", "entry", "loss", "forward", whole(MIDDLE)),
        Moment("backward", RESIDENT + 4 * STORED, 2, "last", "entry", "group0/mlp", "backward", whole(LAST)),
    )  # fmt: skip


def test_a_point_names_the_twelve_largest_temporaries():
    sizes = [7, 3, 11, 1, 13, 5, 9, 2, 12, 4, 10, 6, 8, 12]  # all but 2 and 1; of two alike the earlier comes first
    line = replayed([("A", i) for i in range(len(sizes))], sizes).timeline
    assert [sizes[int(name[1:])] for name in line.points[-1].live] == [13, 12, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3]
    assert line.points[-1].live[1:3] == ("b8", "b13")


def test_a_result_that_no_instruction_makes_is_a_result_still():
    program = Program()
    program.computation("entry")
    program.add("parameter", SQUARE, op_name="inputs")
    plan = program.proto.buffer_assignment
    plan.buffer_allocations.add(size=96, maybe_live_out=True).assigned.add(logical_buffer_id=99, size=96)
    (row,) = read_hlo(program.bytes(), platform="tpu").memory.live
    assert (row.bytes, row.kind, row.class_, row.why) == (96, "output", "input_output", "a result of the program")


def test_a_buffer_of_a_place_that_its_instruction_lacks_is_counted_and_unsure():
    program = Program()
    program.computation("entry")
    at = program.add("negate", SQUARE, [program.add("parameter", SQUARE, op_name="inputs")])
    plan = program.proto.buffer_assignment
    place = plan.logical_buffers.add(id=1, size=64).defined_at
    place.instruction_id = at
    place.shape_index.append(5)
    plan.buffer_allocations.add(size=64)
    plan.heap_simulator_traces.add().events.add(kind=0, buffer_id=1)
    (row,) = read_hlo(program.bytes(), platform="tpu").memory.live
    assert (row.bytes, row.shape, row.class_, row.sure) == (64, "", "workspace", False)
