"""Memory over the schedule: consistent with the peak, thin enough, and changed by a change of the trace."""

from __future__ import annotations

import jax
import pytest

from jaxcost.observation.hlo import read_hlo
from jaxcost.observation.hlo.heap import fullest, replay
from jaxcost.observation.hlo.schema import message
from jaxcost.observation.hlo.timeline import MOMENTS, Step, chosen, read_steps
from tests.observation.hlo.building import dump
from tests.observation.hlo.test_classes import ARGUMENTS, step


@pytest.fixture(scope="module")
def data():
    return dump(jax.jit(step, donate_argnums=0), *ARGUMENTS)[0]


def test_the_timeline_reaches_the_peak_and_never_above_it(data):
    memory = read_hlo(data, platform="cpu").memory
    line = memory.timeline
    assert max(point.bytes for point in line.points) == memory.live_peak_bytes
    assert line.resident_bytes == memory.required_bytes - memory.temp_bytes
    assert next(p for p in line.points if p.step == line.peak_step).by_class == {
        name: size for name, size in memory.by_class_at_peak.items() if size
    }
    for point in line.points:
        assert sum(point.by_class.values()) == point.bytes
        assert set(point.live) <= line.buffers.keys()
    assert [p.step for p in line.points] == sorted({p.step for p in line.points})
    assert max(moment.bytes for moment in memory.moments) == memory.live_peak_bytes
    order = [MOMENTS.index(moment.name) for moment in memory.moments]
    assert order == sorted(order)


def test_a_buffer_added_to_the_trace_moves_the_timeline(data):
    """The largest buffer is taken once more at the start and never given back: every step is that much fuller."""
    before = read_hlo(data, platform="cpu").memory
    proto = message("HloProto")
    proto.ParseFromString(data)
    assignment = proto.buffer_assignment
    extra = assignment.logical_buffers.add()
    extra.CopyFrom(max(assignment.logical_buffers, key=lambda b: b.size))
    extra.id = max(b.id for b in assignment.logical_buffers) + 1
    for trace in assignment.heap_simulator_traces:
        events = [type(event).FromString(event.SerializeToString()) for event in trace.events]
        del trace.events[:]
        trace.events.add(kind=0, buffer_id=extra.id, instruction_name="extra", computation_name="entry")
        trace.events.extend(events)
    after = read_hlo(proto.SerializeToString(), platform="cpu").memory
    assert after.live_peak_bytes == before.live_peak_bytes + extra.size
    assert after.timeline.points[-1].bytes == before.timeline.points[-1].bytes + extra.size
    assert sum(after.by_class_at_peak.values()) == after.live_peak_bytes


def test_a_long_trace_is_thinned_and_keeps_its_summits():
    steps = [Step(i, f"i{i}", "entry" if i % 500 else "body", (i * 7919) % 1013, i, i) for i in range(5000)]
    moments = ["forward" if i < 2000 else "backward" for i in range(5000)]
    kept = chosen(steps, moments, most=400)
    assert len(kept) <= 400
    assert {0, 4999} <= set(kept)
    for group in (steps, steps[:2000], steps[2000:], [s for s in steps if s.computation == "body"]):
        best = max(group, key=lambda s: (s.bytes, -s.number))
        assert best.number in kept
    assert chosen([], []) == []


def test_steps_are_the_events_of_one_instruction():
    trace = message("HeapSimulatorTrace")
    for kind, buffer, name in ((0, 0, "a"), (0, 1, "a"), (1, 0, "a"), (0, 2, "b"), (1, 1, "a"), (1, 2, "b")):
        trace.events.add(kind=kind, buffer_id=buffer, instruction_name=name, computation_name=f"of {name}")
    sizes = {0: 10, 1: 20, 2: 5}
    assert read_steps(trace, sizes) == [Step(0, "a", "of a", 30, 1, 0), Step(1, "b", "of b", 25, 3, 3)]
    assert fullest(trace, sizes).bytes == 30
    assert [event.used for event in replay(trace, sizes)] == [10, 30, 20, 25, 5, 0]
