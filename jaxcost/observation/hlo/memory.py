"""Device memory as XLA planned it: the buffer assignment, and the heap trace replayed.

Two different numbers are called peak. `required_bytes` is what must be allocated: the sum of all allocations in device
memory (what an out-of-memory message reports). `live_peak_bytes` is what is in use at the fullest moment: arguments,
results and constants, which have allocations of their own, plus the largest replay of a heap trace. The difference is
fragmentation.

A trace lists ALLOC and FREE of logical buffers, and SHARE_WITH, by which a buffer takes over the memory of another:
the memory is free when the last one sharing it is, and is taken again when a later one shares it. On TPU traces exist
for on-chip memory too; only buffers of colour 0 (device memory) count here, while the compiler's own statistic takes
the largest of all traces.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from jaxcost.observation.hlo.module import Instruction, Module
from jaxcost.observation.hlo.origins import Places
from jaxcost.observation.hlo.schema import Proto, rejected, unknown_fields
from jaxcost.observation.hlo.shapes import Shape

_ALLOC, _FREE, _SHARE = 0, 1, 2
_REMEDY = "the dump is damaged: dump the module again"
_POINTER_BYTES = 8


@dataclass(frozen=True, slots=True)
class LiveBuffer:
    """One buffer in use at the peak. `kind`: parameter, output, constant or temporary. `op_name` of an argument is
    its path in the arguments; '' (and `scope_exact` False) where the compiler kept no name. `shared` counts the
    values in it.
    """

    bytes: int
    shape: str
    instruction: str
    op_name: str
    scope: str
    phase: str
    scope_exact: bool
    kind: str
    source: str
    shared: int = 1


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes on one device. A None has its reason in `reasons` under the field's name.

    `argument_bytes`, `constant_bytes`: allocations of their kind. `output_bytes`: the result, aliased parts included,
    and its table of pointers (8 bytes a leaf on CPU and CUDA). `alias_bytes`: results that reuse an argument.
    `temp_bytes`: other allocations in device memory. `all_spaces_peak_bytes`: the peak by the compiler's rule
    (largest trace of any space).
    """

    argument_bytes: int
    output_bytes: int
    alias_bytes: int
    constant_bytes: int | None
    temp_bytes: int | None
    required_bytes: int | None
    live_peak_bytes: int | None
    fragmentation_bytes: int | None
    all_spaces_peak_bytes: int | None
    peak_instruction: str
    live: tuple[LiveBuffer, ...]
    reasons: dict[str, str]


def result_table_bytes(module: Module, assignment: Proto | None, platform: str) -> int:
    """Bytes of the table of pointers to a program's results.

    It has 8 bytes an element of the tuple on CPU and CUDA, and is an allocation of its own on TPU.
    """
    shape = module.entry.root.shape
    if not shape.is_tuple:
        return 0
    if platform != "tpu":
        return _POINTER_BYTES * len(shape.elements)
    allocations = assignment.buffer_allocations if assignment is not None else ()
    return sum(a.size for a in allocations if a.maybe_live_out and a.is_tuple and a.color == 0)


def _result_bytes(shape: Shape, platform: str) -> int:
    """Bytes of a program's result by its shape: the leaves and, on CPU and CUDA, the table of pointers to them."""
    if not shape.is_tuple or platform == "tpu":
        return shape.bytes
    return shape.bytes + _POINTER_BYTES * len(shape.elements)


def _alias_bytes(module: Module) -> int:
    total = 0
    for entry in module.proto.input_output_alias.entries:
        shape = module.entry.root.shape.at(tuple(entry.output_shape_index))
        if shape is None:
            raise rejected("hlo.input_output_alias", list(entry.output_shape_index), "must index the result", _REMEDY)
        total += shape.bytes
    return total


@dataclass(slots=True)
class _Replay:
    """The fullest moment of one trace: bytes, the event after which it is reached, and the buffers live then."""

    bytes: int
    instruction: str
    live: dict[int, int]  # canonical buffer -> how many values share it


def _steps(trace: Proto, sizes: dict[int, int]) -> Iterator[tuple[Proto, int, dict[int, int]]]:
    """(event, bytes in use after it, live counts by canonical buffer)."""
    owners: dict[
        int, int
    ] = {}  # buffer -> the one whose memory it uses; kept after its end, since later ones may share
    active: set[int] = set()
    live: dict[int, int] = {}
    used = 0
    for event in trace.events:
        buffer = event.buffer_id
        if event.kind in (_ALLOC, _SHARE):
            owner = buffer if event.kind == _ALLOC else owners.get(event.share_with_canonical_id)
            if buffer in active or owner not in sizes:
                raise rejected("hlo.heap_simulator_trace", buffer, "each buffer starts once, from a known one", _REMEDY)
            owners[buffer] = owner
            active.add(buffer)
            if owner not in live:
                used += sizes[owner]
            live[owner] = live.get(owner, 0) + 1
        elif event.kind == _FREE:
            if buffer not in active:
                raise rejected("hlo.heap_simulator_trace", buffer, "only a live buffer can be freed", _REMEDY)
            active.discard(buffer)
            owner = owners[buffer]
            live[owner] -= 1
            if live[owner] == 0:
                del live[owner]
                used -= sizes[owner]
        else:
            raise rejected("hlo.heap_simulator_trace", event.kind, "an event is ALLOC, FREE or SHARE_WITH", _REMEDY)
        yield event, used, live


def _replay(trace: Proto, sizes: dict[int, int]) -> _Replay:
    peak, at = 0, -1
    for i, (_, used, _) in enumerate(_steps(trace, sizes)):
        if used > peak:
            peak, at = used, i
    for i, (event, _, live) in enumerate(_steps(trace, sizes)):
        if i == at:
            return _Replay(peak, event.instruction_name, dict(live))
    return _Replay(0, "", {})


class _Reader:
    def __init__(self, module: Module, assignment: Proto, places: Places) -> None:
        self.module, self.places = module, places
        self.assignment = assignment
        self.buffers = {b.id: b for b in assignment.logical_buffers}
        for buffer in assignment.logical_buffers:
            if buffer.size < 0:
                raise rejected("hlo.logical_buffers", buffer.size, "a size is 0 or more", _REMEDY)

    def defined_by(self, buffer: Proto) -> tuple[Instruction | None, Shape | None]:
        made = self.module.instructions.get(buffer.defined_at.instruction_id)
        return made, made.shape.at(tuple(buffer.defined_at.shape_index)) if made else None

    def live(self, at: Instruction | None, shape: Shape | None, size: int, kind: str, shared: int = 1) -> LiveBuffer:
        if at is None:
            return LiveBuffer(size, "", "", "", "", "", False, kind, "", shared)
        place, op_name = self.places.named(at)
        argument = at.opcode == "parameter" and at.computation is self.module.entry
        if argument:
            return LiveBuffer(size, str(shape), at.name, at.op_name, "", "", True, kind, "", shared)
        return LiveBuffer(
            size,
            str(shape),
            at.name,
            op_name,
            place.scope,
            place.phase,
            place.exact,
            kind,
            self.module.source(at),
            shared,
        )

    def resident(self) -> list[LiveBuffer]:
        """The arguments, results and constants, which hold their memory throughout."""
        found = []
        for allocation in self.assignment.buffer_allocations:
            kind = _kind(allocation)
            if kind == "temporary" or allocation.color != 0 or allocation.is_thread_local:
                continue
            at, shape = None, None
            if kind == "parameter":
                at = self.module.entry.parameters.get(allocation.parameter_number)
                shape = at.shape.at(tuple(allocation.parameter_shape_index)) if at else None
            elif allocation.assigned:
                largest = max(allocation.assigned, key=lambda a: a.size)
                buffer = self.buffers.get(largest.logical_buffer_id)
                at, shape = self.defined_by(buffer) if buffer is not None else (None, None)
            found.append(self.live(at, shape, allocation.size, kind))
        return found


def _kind(allocation: Proto) -> str:
    if allocation.is_entry_computation_parameter:
        return "parameter"
    if allocation.is_constant:
        return "constant"
    return "output" if allocation.maybe_live_out else "temporary"


def read_memory(module: Module, assignment: Proto | None, places: Places, platform: str) -> tuple[Memory, list[str]]:
    """Memory of one device, and notes on fields this reader does not know. Without a buffer assignment only the sizes
    that follow from the program's signature are given.
    """
    shapes = [p.shape for p in module.entry.parameters.values()]
    output, alias = _result_bytes(module.entry.root.shape, platform), _alias_bytes(module)
    if assignment is None:
        why = "the module came without a buffer assignment (a compile-time dump has one)"
        names = ("constant", "temp", "required", "live_peak", "fragmentation", "all_spaces_peak")
        argument = sum(s.bytes for s in shapes)
        absent = {f"{name}_bytes": why for name in names}
        return Memory(argument, output, alias, None, None, None, None, None, None, "", (), absent), []
    notes = unknown_fields(assignment)
    for allocation in assignment.buffer_allocations:
        if allocation.size < 0:
            raise rejected("hlo.buffer_allocations", allocation.size, "a size is 0 or more", _REMEDY)
        notes += unknown_fields(allocation)
    reader = _Reader(module, assignment, places)
    sums = {"parameter": 0, "output": 0, "constant": 0, "temporary": 0}
    for allocation in assignment.buffer_allocations:
        if allocation.color == 0 and not allocation.is_thread_local:
            sums[_kind(allocation)] += allocation.size
    output = sum(a.size for a in assignment.buffer_allocations if a.maybe_live_out and a.color == 0)
    required = sum(sums.values())
    resident = required - sums["temporary"]
    traces = assignment.heap_simulator_traces
    reasons: dict[str, str] = {}
    live_peak: int | None
    every: int | None
    live: list[LiveBuffer] = []
    peak = _Replay(0, "", {})
    if not traces and sums["temporary"]:
        live_peak = every = None
        why = (
            "the buffer assignment came without heap traces (the CPU runtime drops them; a compile-time dump has them)"
        )
        reasons = dict.fromkeys(("live_peak_bytes", "fragmentation_bytes", "all_spaces_peak_bytes"), why)
    else:
        device = {i: b.size for i, b in reader.buffers.items() if b.color == 0}
        anywhere = {i: b.size for i, b in reader.buffers.items()}
        # XLA does not say which allocation a trace belongs to (its index is stale on CPU and CUDA): take the fullest.
        for trace in traces:
            replayed = _replay(trace, _with_zeros(device, anywhere))
            if replayed.bytes > peak.bytes:
                peak = replayed
        live_peak = resident + peak.bytes
        every = resident + max((_replay(t, anywhere).bytes for t in traces), default=0)
        live = reader.resident()
        for buffer_id, shared in peak.live.items():
            size = device.get(buffer_id, 0)
            if size:
                live.append(reader.live(*reader.defined_by(reader.buffers[buffer_id]), size, "temporary", shared))
        live.sort(key=lambda b: (-b.bytes, b.instruction))
    memory = Memory(
        argument_bytes=sums["parameter"], output_bytes=output, alias_bytes=alias, constant_bytes=sums["constant"],
        temp_bytes=sums["temporary"], required_bytes=required, live_peak_bytes=live_peak,
        fragmentation_bytes=None if live_peak is None else required - live_peak, all_spaces_peak_bytes=every,
        peak_instruction=peak.instruction, live=tuple(live), reasons=reasons,
    )  # fmt: skip
    return memory, sorted({f"field {n}" for n in notes})


def _with_zeros(device: dict[int, int], anywhere: dict[int, int]) -> dict[int, int]:
    """Sizes with other memory spaces at 0, so that a trace that mixes spaces still replays."""
    return {i: device.get(i, 0) for i in anywhere}
