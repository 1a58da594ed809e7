"""A large module out of a small one: what its entry does is done again, as a program of many unrolled layers would.

Every computation is copied with it, so nothing is shared but the arguments; the buffer assignment grows with it. XLA
itself accepts the result, which is how it is printed as text.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from jaxcost.observation.hlo.schema import message


def grown(hlo: bytes, times: int) -> bytes:
    """An HloProto whose entry does `times` times what that of `hlo` does; instructions are numbered anew."""
    source, target = message("HloProto", hlo), message("HloProto", hlo)
    module, made = source.hlo_module, target.hlo_module
    for name in ("computations", "schedule"):
        made.ClearField(name)
    entry = next(c for c in module.computations if c.id == module.entry_computation_id)
    schedule = {s.key: list(s.value.instruction_ids) for s in module.schedule.sequences}
    # As XLA numbers them: the computation in the upper half, and in it from 1.
    frame_ids, last = iter(range(2, 1 << 31)), Counter[int]()

    def next_in(frame: int) -> int:
        last[frame] += 1
        return frame << 32 | last[frame]

    arguments = {i.id: next_in(1) for i in entry.instructions if i.opcode == "parameter"}
    scheduled: dict[int, list[int]] = {}
    whole = message("HloComputationProto", entry.SerializeToString())
    whole.ClearField("instructions")
    whole.id = 1
    numbers: list[dict[int, int]] = []
    for copy in range(times):
        number = dict(arguments)
        frames: dict[int, int] = {}
        numbers.append(number)
        for computation in module.computations:
            is_entry = computation.id == entry.id
            into = whole if is_entry else made.computations.add()
            if not is_entry:
                into.CopyFrom(computation)
                into.ClearField("instructions")
                frames[computation.id] = into.id = next(frame_ids)
                into.name = _named(computation.name, copy)
            for instruction in computation.instructions:
                if is_entry and copy and instruction.id in arguments:
                    continue
                one = into.instructions.add()
                one.CopyFrom(instruction)
                one.id = number.get(instruction.id) or number.setdefault(instruction.id, next_in(into.id))
                one.name = _named(instruction.name, copy)
                for field, known in (
                    ("operand_ids", number), ("called_computation_ids", frames), ("control_predecessor_ids", number),
                ):  # fmt: skip
                    listed = getattr(one, field)
                    listed[:] = [known[old] for old in listed]
                if instruction.id == computation.root_id:
                    into.root_id = one.id
            order = [number[old] for old in schedule.get(computation.id, ())]
            scheduled.setdefault(into.id, []).extend(new for new in order if not (copy and new in arguments.values()))
    made.computations.add().CopyFrom(whole)
    made.entry_computation_id = whole.id
    for key, order in scheduled.items():
        if order:
            made.schedule.sequences.add(key=key).value.instruction_ids.extend(order)
    if source.HasField("buffer_assignment"):
        _grow_assignment(source.buffer_assignment, target.buffer_assignment, numbers, set(arguments))
    return bytes(target.SerializeToString())


def instructions(hlo: bytes) -> int:
    """How many instructions an HloProto has."""
    return sum(len(c.instructions) for c in message("HloProto", hlo).hlo_module.computations)


def as_text(hlo: bytes) -> bytes:
    """The module as XLA prints it."""
    from jaxlib import _hlo

    module = message("HloProto", hlo).hlo_module.SerializeToString()
    return bytes(_hlo.HloModule.from_serialized_hlo_module_proto(module).to_string().encode())


def _named(name: str, copy: int) -> str:
    return f"{name}.u{copy}" if copy else name


def _grow_assignment(source: Any, made: Any, numbers: list[dict[int, int]], arguments: set[int]) -> None:
    """Each copy has logical buffers of its own, in the same allocations; the heap is filled once for each."""
    made.ClearField("logical_buffers")
    made.ClearField("buffer_aliases")
    for allocation in made.buffer_allocations:
        allocation.ClearField("assigned")
    for trace in made.heap_simulator_traces:
        trace.ClearField("events")
    ids = iter(range(1 << 31))
    shared = {b.id: next(ids) for b in source.logical_buffers if b.defined_at.instruction_id in arguments}
    for copy, number in enumerate(numbers):
        buffers = dict(shared)
        for buffer in source.logical_buffers:
            if copy and buffer.id in shared:
                continue
            one = made.logical_buffers.add()
            one.CopyFrom(buffer)
            one.id = buffers.get(buffer.id) if buffer.id in shared else buffers.setdefault(buffer.id, next(ids))
            one.defined_at.instruction_id = number[buffer.defined_at.instruction_id]
        for alias in source.buffer_aliases:
            if not (copy and alias.source_buffer_id in shared):
                one = made.buffer_aliases.add()
                one.CopyFrom(alias)
                one.source_buffer_id = buffers[alias.source_buffer_id]
                one.location.instruction_id = number[alias.location.instruction_id]
        for old, new in zip(source.buffer_allocations, made.buffer_allocations, strict=True):
            for assigned in old.assigned:
                if not (copy and assigned.logical_buffer_id in shared):
                    one = new.assigned.add()
                    one.CopyFrom(assigned)
                    one.logical_buffer_id = buffers[assigned.logical_buffer_id]
        for old, new in zip(source.heap_simulator_traces, made.heap_simulator_traces, strict=True):
            for event in old.events:
                one = new.events.add()
                one.CopyFrom(event)
                one.buffer_id = buffers[event.buffer_id]
                one.instruction_name = _named(event.instruction_name, copy)
                if event.kind == 2:
                    one.share_with_canonical_id = buffers[event.share_with_canonical_id]
