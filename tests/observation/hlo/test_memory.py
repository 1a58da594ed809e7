from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from jaxcost.contracts.errors import RejectedError
from jaxcost.observation.hlo import read_hlo
from jaxcost.observation.hlo.schema import message
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
