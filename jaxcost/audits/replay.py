"""The heap trace replayed without a buffer, or with a smaller one: what a change to a program would save at the peak.

A saving is the peak before less the peak after, never the size of the buffer: where another moment is nearly as full,
that moment becomes the peak. Each is `derived`: it says what the plan at hand would be without the buffer, while a
compiler given the changed program makes a new plan. `bound` says what that makes of the number:

    exact      the plan stays as it is but for this memory
    interval   between `at_least_bytes` and `saves_bytes`
    upper      at most `saves_bytes`, where the rest of the plan stays; what the change itself costs is not known
    estimate   `saves_bytes` is derived and bounds nothing: the compiler plans the changed region anew

    replay = Replay.of(evidence)
    replay.peak([Edit(first, end, -bytes)], resident=-bytes)
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from jaxcost.audits.donation import schedule
from jaxcost.audits.evidence import Evidence
from jaxcost.observation.hlo.heap import FREE, Span, spans
from jaxcost.observation.hlo.kinds import Kind
from jaxcost.observation.hlo.memory import device_sizes, fullest_trace
from jaxcost.observation.hlo.module import Instruction
from jaxcost.observation.hlo.purposes import Purposes
from jaxcost.observation.hlo.schema import Proto
from jaxcost.observation.hlo.scope import Place

Bound = Literal["exact", "interval", "upper", "estimate"]


@dataclass(frozen=True, slots=True)
class Edit:
    """Bytes more or fewer in use from event `first` up to, and without, event `end`."""

    first: int
    end: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Held:
    """A stretch of the heap with the value that names it: the last one that lay there."""

    span: Span
    bytes: int
    at: Instruction | None
    index: tuple[int, ...]
    kind: Kind
    place: Place


class Happening(NamedTuple):
    """One event of the trace: the instruction that made the buffer, where, and whether memory is taken for it."""

    instruction: str
    computation: str
    takes: bool


@dataclass(frozen=True, slots=True)
class Change:
    """One change to a program. `edits` and `resident` are what it does to the plan at best; `costs` are further edits,
    `resident_cost` further bytes, that it may bring with it.
    """

    kind: str
    target: str
    action: str
    derivation: str
    bound: Bound
    edits: tuple[Edit, ...] = ()
    resident: int = 0
    costs: tuple[Edit, ...] | None = None
    resident_cost: int = 0
    assumptions: tuple[str, ...] = ()


class Replay:
    """The plan of one module: what is resident, the spans of its heap, and the bytes in use after each event."""

    def __init__(
        self, evidence: Evidence, purposes: Purposes, held: list[Held], events: list[Happening], resident: int
    ) -> None:
        self.evidence, self.purposes, self.held, self.events = evidence, purposes, held, events
        self.resident = resident
        self._starts: list[tuple[int, int]] | None = None
        self._places: dict[int, Proto] | None = None
        self.used = self._used(Edit(h.span.first, h.span.end, h.bytes) for h in held)
        self.at = int(self.used.argmax()) if len(self.used) else -1

    @classmethod
    def of(cls, evidence: Evidence) -> Self | None:
        """Return the plan; None where the module came without heap traces and has temporaries."""
        memory, graph = evidence.reading.memory, evidence.graph
        if memory.live_peak_bytes is None or memory.required_bytes is None or graph.assignment is None:
            return None
        resident = memory.required_bytes - (memory.temp_bytes or 0)
        sizes = device_sizes(graph.assignment)
        _, trace = fullest_trace(graph.assignment, sizes)
        purposes, places = Purposes(graph.module, graph.places), graph.places
        if trace is None:
            return cls(evidence, purposes, [], [], resident)
        buffers = {b.id: b for b in graph.assignment.logical_buffers}
        events = [Happening(e.instruction_name, e.computation_name, e.kind != FREE) for e in trace.events]
        found, _ = spans(trace, sizes)
        held = []
        for span in found:
            size = sizes[span.owner]
            if not size:
                continue
            buffer = buffers[span.values[-1]]
            at = graph.module.instructions.get(buffer.defined_at.instruction_id)
            index = tuple(buffer.defined_at.shape_index)
            # Classing each of many small buffers takes long and moves nothing: they stay as they are.
            small = size * 10_000 < memory.live_peak_bytes
            kind = purposes.unknown if at is None or small else purposes.temporary(at, index)
            place = Place("", "") if at is None or small else places.of(at)
            held.append(Held(span, size, at, index, kind, place))
        made = cls(evidence, purposes, held, events, resident)
        return made if made.peak() == memory.live_peak_bytes else None

    def _used(self, edits: Iterable[Edit]) -> NDArray[np.int64]:
        steps = np.zeros(len(self.events) + 1, dtype=np.int64)
        for edit in edits:
            steps[edit.first] += edit.bytes
            steps[edit.end] -= edit.bytes
        return np.cumsum(steps[:-1])

    def peak(self, edits: Sequence[Edit] = (), resident: int = 0) -> int:
        """Return the live peak with edits to the heap and to what is resident."""
        used = self.used + self._used(edits) if edits else self.used
        most = int(used.max()) if len(used) else 0
        return self.resident + resident + max(0, most)

    def event_at(self, place: int) -> int:
        """The first event at or after a place of the entry's schedule; their number where there is none."""
        if self._starts is None:
            order = schedule(self.evidence.graph.module)
            places = {at.name: order.get(at.id, -1) for at in self.evidence.graph.module.entry.instructions}
            found = ((places.get(event.instruction, -1), n) for n, event in enumerate(self.events) if event.takes)
            self._starts = sorted((place, n) for place, n in found if place >= 0)
        at = bisect_left(self._starts, (place, -1))
        return self._starts[at][1] if at < len(self._starts) else len(self.events)

    def values(self, held: Held) -> list[tuple[Instruction, tuple[int, ...]]]:
        """Every value that lies in a stretch, one after the other."""
        return self._values(held.span.values)

    def _values(self, buffers: Iterable[int]) -> list[tuple[Instruction, tuple[int, ...]]]:
        if self._places is None:
            assignment = self.evidence.graph.assignment
            known = assignment.logical_buffers if assignment is not None else ()
            self._places = {b.id: b.defined_at for b in known}
        found = []
        for number in buffers:
            place = self._places.get(number)
            at = self.evidence.graph.module.instructions.get(place.instruction_id) if place is not None else None
            if at is not None and place is not None:
                found.append((at, tuple(place.shape_index)))
        return found

    def inside_arguments(self, weight: Callable[[Instruction, tuple[int, ...]], int]) -> dict[int, int]:
        """The most that any value weighs that lies in the memory of an argument, by the argument's number."""
        assignment = self.evidence.graph.assignment
        found = {}
        for allocation in assignment.buffer_allocations if assignment is not None else ():
            if allocation.is_entry_computation_parameter:
                values = self._values(a.logical_buffer_id for a in allocation.assigned)
                found[int(allocation.parameter_number)] = max((weight(*value) for value in values), default=0)
        return found

    def live(self, held: Held) -> bool:
        """Whether a stretch is in use at the fullest moment."""
        return held.span.first <= self.at < held.span.end
