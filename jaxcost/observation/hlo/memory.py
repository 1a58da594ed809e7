"""Device memory as XLA planned it: the buffer assignment, and the heap trace replayed.

Two different numbers are called peak. `required_bytes` is what must be allocated: the sum of all allocations in device
memory (what an out-of-memory message reports). `live_peak_bytes` is what is in use at the fullest moment: arguments,
results and constants, which have allocations of their own, plus the largest replay of a heap trace. The difference is
fragmentation.

On TPU traces exist for on-chip memory too; only buffers of colour 0 (device memory) count here, while the compiler's
own statistic takes the largest of all traces. What each buffer is for is in `classes`, how a trace is replayed in
`heap`, what is in use over the schedule in `timeline`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

from jaxcost.observation.hlo.classes import Classes
from jaxcost.observation.hlo.heap import Fullest, Held, fullest
from jaxcost.observation.hlo.kinds import Classifier, Kind
from jaxcost.observation.hlo.module import Instruction, Module
from jaxcost.observation.hlo.origins import Places
from jaxcost.observation.hlo.purposes import Purposes
from jaxcost.observation.hlo.rematerialisation import believed_bytes, border_bytes
from jaxcost.observation.hlo.schema import Proto, rejected
from jaxcost.observation.hlo.scope import Place
from jaxcost.observation.hlo.shapes import Shape
from jaxcost.observation.hlo.timeline import Parts, Point, Shown, Step, Timeline, chosen, read_steps, snapshots

_DUMP = 'a dump as proto has it all: XLA_FLAGS="--xla_dump_to=DIR --xla_dump_hlo_as_proto"'
_REMEDY = "the dump is damaged: dump the module again"
_POINTER_BYTES = 8
_HOST = 5  # xla::Layout::kHostMemorySpace
_OVER_TIME = ("by_class_at_peak", "unclassified_bytes", "moments", "timeline")
_LISTED = 12  # temporaries that a point of the timeline names


@dataclass(frozen=True, slots=True)
class LiveBuffer:
    """One buffer in use at the peak. `kind`: parameter, output, constant or temporary. `op_name` of an argument is
    its path in the arguments; '' (and `scope_exact` False) where the compiler kept no name. `shared` counts the
    values in it.

    `instruction` took the memory and `value` made what lies in it at the peak, which differ where memory is handed on
    in place; class, scope and phase are those of the value. `bytes` holds `padding_bytes` beyond `logical_bytes`.
    `why` is the evidence for the class and `sure` whether there is any. `born_step` is a step of the timeline, None for
    what is resident.
    """

    bytes: int
    logical_bytes: int
    padding_bytes: int
    shape: str
    dtype: str
    instruction: str
    op_name: str
    scope: str
    phase: str
    scope_exact: bool
    kind: str
    source: str
    shared: int
    class_: str
    why: str
    sure: bool
    value: str
    born: str
    born_step: int | None


@dataclass(frozen=True, slots=True)
class Moment:
    """The fullest step of one part of the schedule (see `timeline`); `by_class` sums to `bytes`."""

    name: str
    bytes: int
    step: int
    instruction: str
    computation: str
    scope: str
    phase: str
    by_class: dict[str, int]


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes on one device. A None has its reason in `reasons` under the field's name.

    `argument_bytes`, `constant_bytes`: allocations of their kind. `output_bytes`: the result, aliased parts included,
    and its table of pointers (8 bytes a leaf on CPU and CUDA). `alias_bytes`: results that reuse an argument.
    `temp_bytes`: other allocations in device memory. `all_spaces_peak_bytes`: the peak by the compiler's rule
    (largest trace of any space). `by_class_at_peak` sums to `live_peak_bytes`; `unclassified_bytes` is the part of it
    for whose class there was no evidence. `believed_bytes` and `border_bytes` are temporaries, and arguments with
    results, as XLA's rematerialisation pass adds them up (see `rematerialisation`).
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
    by_class_at_peak: dict[str, int] | None
    unclassified_bytes: int | None
    live: tuple[LiveBuffer, ...]
    moments: tuple[Moment, ...]
    timeline: Timeline | None
    believed_bytes: int | None
    border_bytes: int
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
        return _device_bytes(shape)
    return _device_bytes(shape) + _POINTER_BYTES * len(shape.elements)


def _alias_bytes(module: Module) -> int:
    total = 0
    for entry in module.proto.input_output_alias.entries:
        shape = module.entry.root.shape.at(tuple(entry.output_shape_index))
        if shape is None:
            raise rejected("hlo.input_output_alias", list(entry.output_shape_index), "must index the result", _REMEDY)
        total += _device_bytes(shape)
    return total


def _device_bytes(shape: Shape) -> int:
    """Bytes of a shape's leaves less those that a layout puts into the host's memory."""
    return sum(leaf.bytes for leaf in shape.leaves() if leaf.memory_space != _HOST)


class _Reader:
    def __init__(self, module: Module, assignment: Proto, places: Places, *, general: bool) -> None:
        self.module, self.places = module, places
        self.classes: Classifier = Purposes(module, places) if general else Classes(module, places)
        self.assignment = assignment
        self.buffers = {b.id: b for b in assignment.logical_buffers}
        for buffer in assignment.logical_buffers:
            if buffer.size < 0:
                raise rejected("hlo.logical_buffers", buffer.size, "a size is 0 or more", _REMEDY)
        self.device = device_sizes(assignment)
        self.anywhere = {i: b.size for i, b in self.buffers.items()}
        self._kinds: dict[int, Kind] = {}

    def defined_by(self, buffer: Proto) -> tuple[Instruction | None, Shape | None]:
        made = self.module.instructions.get(buffer.defined_at.instruction_id)
        return made, made.shape.at(tuple(buffer.defined_at.shape_index)) if made else None

    def only_tables(self) -> bool:
        """Whether all temporaries are tables of pointers: those are in no heap trace, and need none."""
        for allocation in self.assignment.buffer_allocations:
            if _kind(allocation) != "temporary" or allocation.color != 0 or allocation.is_thread_local:
                continue
            for assigned in allocation.assigned:
                buffer = self.buffers.get(assigned.logical_buffer_id)
                shape = self.defined_by(buffer)[1] if buffer is not None else None
                if shape is None or not shape.is_tuple:
                    return False
        return True

    def kind(self, buffer_id: int) -> Kind:
        """The class of a value in temporary memory."""
        found = self._kinds.get(buffer_id)
        if found is None:
            found = self._kinds[buffer_id] = self._kind(buffer_id)
        return found

    def _kind(self, buffer_id: int) -> Kind:
        buffer = self.buffers[buffer_id]
        made = self.module.instructions.get(buffer.defined_at.instruction_id)
        if made is None:
            return self.classes.unknown
        return self.classes.temporary(made, tuple(buffer.defined_at.shape_index))

    def _row(
        self, at: Instruction | None, shape: Shape | None, size: int, kind: str, of: Kind, value: Instruction | None,
        shared: int, born: str, step: int | None,
    ) -> LiveBuffer:  # fmt: skip
        logical = size if shape is None or (shape.is_tuple and kind != "parameter") else shape.logical_bytes
        text, dtype = ("", "") if shape is None else (str(shape), "" if shape.is_tuple else shape.dtype)
        padding = max(0, size - logical)
        if at is None:
            return LiveBuffer(
                size, logical, padding, text, dtype, "", "", "", "", False, kind, "", shared, of.name, of.why, of.sure,
                "", born, step,
            )  # fmt: skip
        told = value if value is not None and value.op_name and value.opcode != "parameter" else at
        place, op_name = self.places.named(told)
        source = self.module.source(told)
        if at.opcode == "parameter" and at.computation is self.module.entry:
            place, op_name, source = Place("", ""), at.op_name, ""
        return LiveBuffer(
            size, logical, padding, text, dtype, at.name, op_name, place.scope, place.phase, place.exact, kind, source,
            shared, of.name, of.why, of.sure, (value or at).name, born, step,
        )  # fmt: skip

    def temporary(self, held: Held, step: int) -> LiveBuffer:
        """A buffer of the heap, described by the value that lies in it."""
        at, shape = self.defined_by(self.buffers[held.owner])
        value, _ = self.defined_by(self.buffers[held.value])
        return self._row(
            at, shape, self.device[held.owner], "temporary", self.kind(held.value), value, len(held.values),
            at.name if at else "", step,
        )  # fmt: skip

    def resident(self) -> list[LiveBuffer]:
        """The arguments, results and constants, which hold their memory throughout."""
        found = []
        for allocation in self.assignment.buffer_allocations:
            kind = _kind(allocation)
            if kind == "temporary" or allocation.color != 0 or allocation.is_thread_local:
                continue
            at, shape = None, None
            of = self.classes.constant
            if kind == "parameter":
                at = self.module.entry.parameters.get(allocation.parameter_number)
                shape = at.shape.at(tuple(allocation.parameter_shape_index)) if at else None
                of = self.classes.argument(at.op_name if at else "")
            elif allocation.assigned:
                buffer = self.buffers.get(self._main(allocation))
                at, shape = self.defined_by(buffer) if buffer is not None else (None, None)
                if kind == "output" and at is not None and buffer is not None:
                    of = self.classes.result(at, tuple(buffer.defined_at.shape_index))
            if kind == "output" and at is None:
                of = self.classes.border
            found.append(self._row(at, shape, allocation.size, kind, of, None, 1, "", None))
        return found

    def _main(self, allocation: Proto) -> int:
        """The buffer an allocation is there for: of the largest ones the result, whose memory others may use first."""
        most = max(a.size for a in allocation.assigned)
        largest = [a.logical_buffer_id for a in allocation.assigned if a.size == most]
        for buffer_id in largest:
            buffer = self.buffers.get(buffer_id)
            made = self.module.instructions.get(buffer.defined_at.instruction_id) if buffer is not None else None
            if (
                buffer is not None
                and made is not None
                and self.classes.is_result(made, tuple(buffer.defined_at.shape_index))
            ):
                return int(buffer_id)
        return int(largest[0])

    def by_class(self, resident: list[LiveBuffer], live: Iterable[Held]) -> dict[str, int]:
        """Bytes in use by class; every class is named."""
        sums = dict.fromkeys(self.classes.names, 0)
        for row in resident:
            sums[row.class_] += row.bytes
        for held in live:
            if self.device[held.owner]:
                sums[self.kind(held.value).name] += self.device[held.owner]
        return sums

    def over_time(self, trace: Proto | None, resident: list[LiveBuffer], peak: Fullest) -> _OverTime:
        """The timeline of a trace, the moments, and the step in which each event lies."""
        steps = read_steps(trace, self.device) if trace is not None else []
        parts = Parts(self.module, self.places)
        names = parts.moments(steps)
        wanted = chosen(steps, names)
        held = snapshots(trace, self.device, {steps[i].event: i for i in wanted}) if trace is not None else {}
        base = sum(row.bytes for row in resident)
        largest = sorted(range(len(resident)), key=lambda i: (-resident[i].bytes, i))[:_LISTED]
        shown = {f"r{i}": _shown(resident[i]) for i in largest}
        points = [self._point(steps[i], names[i], held[i], parts, resident, base, shown) for i in wanted]
        timeline = Timeline(
            len(steps), _step_of(steps, peak.number), base, tuple(f"r{i}" for i in largest), tuple(points), shown
        )
        best: dict[str, Point] = {}
        for point in points:
            if point.moment not in best or point.bytes > best[point.moment].bytes:
                best[point.moment] = point
        moments = tuple(
            Moment(
                name,
                p.bytes,
                p.step,
                p.instruction,
                p.computation,
                p.scope,
                p.phase,
                {**dict.fromkeys(self.classes.names, 0), **p.by_class},
            )
            for name, p in best.items()
        )
        return _OverTime(timeline, moments, steps)

    def _point(
        self, step: Step, moment: str, live: tuple[Held, ...], parts: Parts, resident: list[LiveBuffer], base: int,
        shown: dict[str, Shown],
    ) -> Point:  # fmt: skip
        place = parts.place(step)
        ids = []
        for held in sorted(live, key=lambda h: (-self.device[h.owner], h.owner))[:_LISTED]:
            name = f"b{held.value}"
            ids.append(name)
            if name not in shown:
                shown[name] = _shown(self.temporary(held, step.number))
        return Point(
            step.number, step.instruction, step.computation, place.scope, place.phase, moment, base + step.bytes,
            {name: size for name, size in self.by_class(resident, live).items() if size}, tuple(ids),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _OverTime:
    timeline: Timeline
    moments: tuple[Moment, ...]
    steps: list[Step]


def _step_of(steps: list[Step], event: int) -> int:
    """The step in which memory was at its fullest after `event`; 0 where nothing is ever taken."""
    return next((step.number for step in steps if step.event == event), 0)


def _shown(row: LiveBuffer) -> Shown:
    return Shown(row.bytes, row.shape, row.class_, row.scope, row.phase, row.value or row.instruction, row.source)


def _kind(allocation: Proto) -> str:
    if allocation.is_entry_computation_parameter:
        return "parameter"
    if allocation.is_constant:
        return "constant"
    return "output" if allocation.maybe_live_out else "temporary"


def read_memory(
    module: Module, assignment: Proto | None, places: Places, platform: str, *, general: bool = False
) -> tuple[Memory, list[str]]:
    """Memory of one device, and notes on fields this reader does not know. Without a buffer assignment only the sizes
    that follow from the program's signature are given. `general`: buffers are classed as those of a program of any
    author (`purposes`) and not as the reference network's (`classes`).
    """
    shapes = [p.shape for p in module.entry.parameters.values()]
    believed, border = believed_bytes(module) if platform == "cuda" else None, border_bytes(module)
    output, alias = _result_bytes(module.entry.root.shape, platform), _alias_bytes(module)
    if assignment is None:
        why = f"the module came without a buffer assignment; {_DUMP}"
        unknown = ("constant", "temp", "required", "live_peak", "fragmentation", "all_spaces_peak")
        argument = sum(_device_bytes(s) for s in shapes)
        absent = dict.fromkeys((*(f"{name}_bytes" for name in unknown), *_OVER_TIME), why)
        memory = Memory(
            argument,
            output,
            alias,
            None,
            None,
            None,
            None,
            None,
            None,
            "",
            None,
            None,
            (),
            (),
            None,
            believed,
            border,
            absent,
        )
        return memory, []
    for allocation in assignment.buffer_allocations:
        if allocation.size < 0:
            raise rejected("hlo.buffer_allocations", allocation.size, "a size is 0 or more", _REMEDY)
    reader = _Reader(module, assignment, places, general=general)
    sums = {"parameter": 0, "output": 0, "constant": 0, "temporary": 0}
    for allocation in assignment.buffer_allocations:
        if allocation.color == 0 and not allocation.is_thread_local:
            sums[_kind(allocation)] += allocation.size
    output = sum(a.size for a in assignment.buffer_allocations if a.maybe_live_out and a.color == 0)
    required = sum(sums.values())
    resident = required - sums["temporary"]
    traces = assignment.heap_simulator_traces
    reasons: dict[str, str] = {}
    if not traces and sums["temporary"] and not reader.only_tables():
        why = f"the buffer assignment came without heap traces: its text has none, nor has a CPU executable; {_DUMP}"
        names = ("live_peak_bytes", "fragmentation_bytes", "all_spaces_peak_bytes", *_OVER_TIME)
        memory = Memory(
            argument_bytes=sums["parameter"], output_bytes=output, alias_bytes=alias, constant_bytes=sums["constant"],
            temp_bytes=sums["temporary"], required_bytes=required, live_peak_bytes=None, fragmentation_bytes=None,
            all_spaces_peak_bytes=None, peak_instruction="", by_class_at_peak=None, unclassified_bytes=None, live=(),
            moments=(), timeline=None, believed_bytes=believed, border_bytes=border, reasons=dict.fromkeys(names, why),
        )  # fmt: skip
        return memory, []
    peak, of = fullest_trace(assignment, reader.device)
    fixed = reader.resident()
    over_time = reader.over_time(of, fixed, peak)
    at_step = {held.owner: _born(over_time.steps, held.born) for held in peak.live}
    live = [*fixed, *(reader.temporary(h, at_step[h.owner]) for h in peak.live if reader.device[h.owner])]
    live.sort(key=lambda b: (-b.bytes, b.instruction))
    memory = Memory(
        argument_bytes=sums["parameter"], output_bytes=output, alias_bytes=alias, constant_bytes=sums["constant"],
        temp_bytes=sums["temporary"], required_bytes=required, live_peak_bytes=resident + peak.bytes,
        fragmentation_bytes=required - resident - peak.bytes,
        all_spaces_peak_bytes=resident + max((fullest(t, reader.anywhere).bytes for t in traces), default=0),
        peak_instruction=peak.instruction, by_class_at_peak=reader.by_class(fixed, peak.live),
        unclassified_bytes=sum(b.bytes for b in live if not b.sure), live=tuple(live), moments=over_time.moments,
        timeline=over_time.timeline, believed_bytes=believed, border_bytes=border, reasons=reasons,
    )  # fmt: skip
    return memory, []


def device_sizes(assignment: Proto) -> dict[int, int]:
    """Bytes of each logical buffer in device memory: 0 for those of another memory."""
    return {b.id: b.size if b.color == 0 else 0 for b in assignment.logical_buffers}


def fullest_trace(assignment: Proto, sizes: dict[int, int]) -> tuple[Fullest, Proto | None]:
    """The fullest moment of all heap traces, and the trace it belongs to; None where nothing is ever taken.

    XLA does not say which allocation a trace belongs to (its index is stale on CPU and CUDA).
    """
    peak, of = Fullest(0, -1, "", ()), None
    for trace in assignment.heap_simulator_traces:
        replayed = fullest(trace, sizes)
        if replayed.bytes > peak.bytes:
            peak, of = replayed, trace
    return peak, of


def _born(steps: list[Step], event: int) -> int:
    """The step during which an event happens. Each step begins with the event that first took memory for it."""
    return bisect_right(steps, event, key=lambda step: step.first) - 1
