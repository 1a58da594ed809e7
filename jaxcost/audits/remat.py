"""What a checkpoint would save: residuals leave the heap between their last use forward and the backward pass.

In a loop over layers, `jax.checkpoint` of the body keeps its carry for each round and nothing else: the stacks that the
backward loop reads give way to one stack of carries, and the residuals of one round are made again while its backward
runs. In straight-line code the residuals of a region leave between its forward and its backward part, and what enters
the region stays instead. Where the compiler undoes a checkpoint in straight-line code (it merges the recomputation with
the original, as that of the CPU did until jaxlib 0.10), none is proposed.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator

from jaxcost.audits.blocks import ASSUMED, block_checkpoints
from jaxcost.audits.replay import Change, Edit, Held, Replay
from jaxcost.audits.tree import some
from jaxcost.observation.hlo.flow import Slot, Value
from jaxcost.observation.hlo.module import Computation, Instruction
from jaxcost.observation.hlo.purposes import SAVED
from jaxcost.observation.hlo.scope import BACKWARD, FORWARD, REPLAY

_LATER = frozenset({BACKWARD, REPLAY})


def checkpoints(replay: Replay) -> Iterator[Change]:
    """Every checkpoint that the saved buffers of a module give grounds for."""
    stacks: dict[int, list[Held]] = defaultdict(list)
    chains: dict[int, tuple[Slot, ...]] = {}
    single: list[Held] = []
    for held in replay.held:
        if held.kind.name != SAVED or held.at is None:
            continue
        loop = _stacking(replay, held)
        if loop is None:
            single.append(held)
        else:
            stacks[loop[0].loop.id].append(held)
            chains[loop[0].loop.id] = loop[1]
    for identity, found in stacks.items():
        yield from _loop(replay, replay.evidence.graph.module.instructions[identity], chains[identity], found)
    if not replay.evidence.undoes_checkpoints:
        regions = list(_regions(replay, single))
        yield from regions or block_checkpoints(replay, single)


def _stacking(replay: Replay, held: Held) -> tuple[Slot, tuple[Slot, ...]] | None:
    """The slot of the forward loop that stacks a saved buffer, and all that its memory passes through."""
    assert held.at is not None
    for slot in replay.purposes.flow.reach(Value(held.at, held.index)).slots:
        chain = replay.purposes.flow.chain(slot)
        for near in chain:
            if replay.purposes.change(near)[0] == "stacked":
                return near, chain
    return None


def _loop(replay: Replay, loop: Instruction, chain: tuple[Slot, ...], found: list[Held]) -> Iterator[Change]:
    trips = replay.evidence.graph.loops[loop.id].trips if loop.id in replay.evidence.graph.loops else None
    if not isinstance(trips, int) or trips < 2:
        return
    carried = 0
    for position, shape in enumerate(loop.shape.elements):
        if not shape.is_tuple and shape.size > 1 and replay.purposes.change(Slot(loop, position))[0] == "replaced":
            carried += shape.bytes
    total, kept = sum(h.bytes for h in found), trips * carried
    if total <= kept:
        return
    edits = [Edit(h.span.first, h.span.end, -h.bytes) for h in found]
    edits.append(Edit(min(h.span.first for h in found), max(h.span.end for h in found), kept))
    later = [s.loop for s in chain if s.loop is not loop and replay.evidence.graph.places.of(s.loop).phase in _LATER]
    if later:
        inside = _names(later[0].called[0])
        events = [n for n, event in enumerate(replay.events) if event.computation in inside]
        if events:
            edits.append(Edit(events[0], events[-1] + 1, (total - kept) // trips))
    yield Change(
        "checkpoint", loop.name, f"wrap the body of the loop over layers ({loop.name}) in jax.checkpoint",
        f"{some(len(found), 'stack')} of {total:,} bytes, made by {loop.name} for the backward pass; a checkpoint of "
        f"its body keeps the carry of {trips:,} rounds, {kept:,} bytes, and in each those of one round are there again",
        "estimate", tuple(edits), assumptions=(
            "the whole body is made again once in the backward pass",
            "what it works with meanwhile takes no more memory than the backward pass does",
        ),
    )  # fmt: skip


def _names(computation: Computation) -> set[str]:
    """The names of a computation and of those it calls."""
    found, stack = set(), [computation]
    while stack:
        here = stack.pop()
        if here.name in found:
            continue
        found.add(here.name)
        stack += [c for at in here.instructions for c in at.called]
    return found


# Straight-line code -----------------------------------------------------------------------------------------------


def _regions(replay: Replay, single: list[Held]) -> Iterator[Change]:
    """Regions by scope. Scopes that differ in a number alone are the same region of several layers."""
    graph = replay.evidence.graph
    marks: dict[str, tuple[int, int, int]] = {}  # scope -> last forward event, first and last backward event
    by_name = {at.name: at for at in graph.module.walk() if at.computation is graph.module.entry}
    for number, event in enumerate(replay.events):
        at = by_name.get(event.instruction) if event.takes else None
        place = graph.places.of(at) if at is not None else None
        if place is None or not place.exact or not place.scope:
            continue
        for scope in _above(place.scope):
            forward, first, last = marks.get(scope, (-1, -1, -1))
            if place.phase == FORWARD:
                forward = number
            elif place.phase in _LATER:
                first, last = (number if first < 0 else first), number
            marks[scope] = (forward, first, last)
    inside: dict[str, list[Held]] = defaultdict(list)
    for held in single:
        for scope in _above(held.place.scope) if held.place.exact else ():
            inside[scope].append(held)
    groups: dict[str, list[str]] = defaultdict(list)
    for scope in inside:
        groups[re.sub(r"\d+", "*", scope)].append(scope)
    by_id: dict[int, Held] = {h.at.id: h for h in replay.held if h.at is not None}
    found: list[tuple[int, str, Change]] = []
    for pattern, scopes in groups.items():
        change = _region(replay, pattern, scopes, inside, marks, by_id)
        if change is not None:
            found.append((replay.peak() - replay.peak(change.edits), pattern, change))
    # Of regions within each other the one that saves most; of equals the smaller.
    chosen: list[str] = []
    for _, pattern, change in sorted(found, key=lambda item: (-item[0], -len(item[1]))):
        if not any(f"{pattern}/".startswith(f"{c}/") or f"{c}/".startswith(f"{pattern}/") for c in chosen):
            chosen.append(pattern)
            yield change


def _region(
    replay: Replay, pattern: str, scopes: list[str], inside: dict[str, list[Held]],
    marks: dict[str, tuple[int, int, int]], by_id: dict[int, Held],
) -> Change | None:  # fmt: skip
    edits, taken = [], 0
    for scope in scopes:
        forward, first, last = marks.get(scope, (-1, -1, -1))
        if forward < 0 or first <= forward:
            continue
        own = {h.span.owner for h in inside[scope]}
        for held in inside[scope]:
            leaves = max(forward + 1, held.span.first)
            if leaves < first < held.span.end:
                edits.append(Edit(leaves, first, -held.bytes))
                taken += held.bytes
        for entering in _entering(replay, scope, by_id):
            if entering.span.owner not in own and entering.span.end < last:
                edits.append(Edit(entering.span.end, last, entering.bytes))
    if not taken:
        return None
    return Change(
        "checkpoint", pattern, f"wrap {pattern} in jax.checkpoint",
        f"{taken:,} bytes made in {some(len(scopes), 'region')} {pattern} wait for the backward pass; what enters one "
        "is kept", "estimate", tuple(edits),
        assumptions=ASSUMED,
    )  # fmt: skip


def _entering(replay: Replay, scope: str, by_id: dict[int, Held]) -> Iterable[Held]:
    """What a region's forward part reads that was made outside it."""
    graph = replay.evidence.graph
    found: dict[int, Held] = {}
    for at in graph.module.entry.instructions:
        place = graph.places.of(at)
        if place.phase != FORWARD or not _within(place.scope, scope):
            continue
        for operand in at.operands:
            held = by_id.get(operand.id)
            if held is not None and not _within(graph.places.of(operand).scope, scope):
                found[held.span.owner] = held
    return found.values()


def _within(scope: str, region: str) -> bool:
    return scope == region or scope.startswith(region + "/")


def _above(scope: str) -> list[str]:
    """A scope and those around it."""
    parts = scope.split("/")
    return ["/".join(parts[: i + 1]) for i in range(len(parts))] if scope else []
