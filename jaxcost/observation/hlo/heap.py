"""A heap trace replayed: which memory is in use after each instruction, and which value lies in it.

A trace lists ALLOC and FREE of logical buffers, and SHARE_WITH, by which a buffer takes over the memory of another:
the memory is free when the last one sharing it is, and is taken again when a later one shares it. The events of one
instruction make a step; a loop's body is passed once, before the loop's own result. The fullest moment of a step is
what its instruction needs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from jaxcost.observation.hlo.schema import Proto, rejected

ALLOC, FREE, SHARE = 0, 1, 2
_REMEDY = "the dump is damaged: dump the module again"


@dataclass(slots=True)
class Held:
    """Memory in use: the buffer that defined it, the event that took it, and the buffers whose values lie in it."""

    owner: int
    born: int
    values: list[int]

    @property
    def value(self) -> int:
        """The buffer that was put there last."""
        return self.values[-1]


@dataclass(slots=True)
class Event:
    """One event replayed. `live` is the state after it, by owner; it changes with the next event."""

    number: int
    kind: int
    buffer: int
    owner: int
    instruction: str
    computation: str
    used: int
    live: dict[int, Held]


def replay(trace: Proto, sizes: dict[int, int]) -> Iterator[Event]:
    """Replay a trace under the given sizes of its buffers.

    Raises RejectedError for a trace that does not hold together.
    """
    owners: dict[int, int] = {}  # buffer -> the one whose memory it uses; kept after its end: later ones may share
    active: set[int] = set()
    live: dict[int, Held] = {}
    used = 0
    for number, event in enumerate(trace.events):
        buffer = event.buffer_id
        if event.kind in (ALLOC, SHARE):
            owner = buffer if event.kind == ALLOC else owners.get(event.share_with_canonical_id)
            if buffer in active or owner not in sizes:
                raise rejected("hlo.heap_simulator_trace", buffer, "each buffer starts once, from a known one", _REMEDY)
            owners[buffer] = owner
            active.add(buffer)
            if owner not in live:
                used += sizes[owner]
                live[owner] = Held(owner, number, [])
            live[owner].values.append(buffer)
        elif event.kind == FREE:
            if buffer not in active:
                raise rejected("hlo.heap_simulator_trace", buffer, "only a live buffer can be freed", _REMEDY)
            active.discard(buffer)
            owner = owners[buffer]
            live[owner].values.remove(buffer)
            if not live[owner].values:
                del live[owner]
                used -= sizes[owner]
        else:
            raise rejected("hlo.heap_simulator_trace", event.kind, "an event is ALLOC, FREE or SHARE_WITH", _REMEDY)
        yield Event(
            number, event.kind, buffer, owners[buffer], event.instruction_name, event.computation_name, used, live
        )


@dataclass(frozen=True, slots=True)
class Fullest:
    """The fullest moment of a trace; `number` is -1 where nothing is ever taken."""

    bytes: int
    number: int
    instruction: str
    live: tuple[Held, ...]


def fullest(trace: Proto, sizes: dict[int, int]) -> Fullest:
    """The first moment at which most memory is in use."""
    peak, at = 0, -1
    for event in replay(trace, sizes):
        if event.used > peak:
            peak, at = event.used, event.number
    for event in replay(trace, sizes):
        if event.number == at:
            held = tuple(Held(h.owner, h.born, list(h.values)) for h in event.live.values())
            return Fullest(peak, at, event.instruction, held)
    return Fullest(0, -1, "", ())


@dataclass(frozen=True, slots=True)
class Span:
    """Memory in use from event `first` on and no more at event `end`: who took it, and every value that lay in it."""

    owner: int
    first: int
    end: int
    values: tuple[int, ...]


def spans(trace: Proto, sizes: dict[int, int]) -> tuple[list[Span], int]:
    """Every stretch of a trace over which one piece of memory is in use, and the number of events."""
    found: list[Span] = []
    open_: dict[int, tuple[int, list[int]]] = {}
    number = -1
    for event in replay(trace, sizes):
        number = event.number
        if event.kind == FREE:
            if event.owner not in event.live:
                first, values = open_.pop(event.owner)
                found.append(Span(event.owner, first, number, tuple(values)))
        else:
            open_.setdefault(event.owner, (number, []))[1].append(event.buffer)
    found += [Span(owner, first, number + 1, tuple(values)) for owner, (first, values) in open_.items()]
    return found, number + 1
