"""Blocks of a model that stand one after the other without scopes of their own, told by the weights they read.

Arguments such as `blocks[3].up.kernel` name the block that uses them. What is computed forward belongs to the last
block on its way: that of the weights it reads, else of what it is made from. A weight outside the blocks that is read
after them (a head) ends the last one.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator

from jaxcost.audits.donation import schedule
from jaxcost.audits.replay import Change, Edit, Held, Replay
from jaxcost.observation.hlo.flow import Value
from jaxcost.observation.hlo.module import Instruction
from jaxcost.observation.hlo.origins import argument_of
from jaxcost.observation.hlo.purposes import ARGUMENT, RECOMPUTED, SAVED
from jaxcost.observation.hlo.scope import BACKWARD, FORWARD, REPLAY

_LATER = frozenset({BACKWARD, REPLAY})
ASSUMED = ("the compiler keeps the recomputation where the checkpoint puts it",)  # of one in straight-line code
_NUMBER = re.compile(r"\d+")


def block_checkpoints(replay: Replay, single: Iterable[Held]) -> Iterator[Change]:
    """A checkpoint of each block, where blocks are told and saved buffers of theirs wait for the backward pass."""
    prefix, labels = _labels(replay)
    if not prefix:
        return
    module = replay.evidence.graph.module
    order = schedule(module)
    inside: dict[int, list[Held]] = defaultdict(list)
    for held in single:
        if held.kind.name == SAVED and held.at is not None and labels.get(held.at.id, -1) >= 0:
            inside[labels[held.at.id]].append(held)
    places: dict[int, list[int]] = defaultdict(list)
    entering: dict[int, dict[int, Held]] = defaultdict(dict)
    by_id = {h.at.id: h for h in replay.held if h.at is not None}
    for at in module.entry.instructions:
        label = labels.get(at.id, -1)
        if label < 0 or replay.evidence.graph.places.of(at).phase != FORWARD:
            continue
        places[label].append(order.get(at.id, -1))
        for operand in at.operands:
            known = by_id.get(operand.id)
            if known is not None and known.kind.name == SAVED and labels.get(operand.id, -1) != label:
                entering[label][known.span.owner] = known
    edits: list[Edit] = []
    taken = blocks = 0
    for label, found in inside.items():
        own = {h.span.owner for h in found}
        reads = [
            order[user.id]
            for held in found if held.at is not None
            for user in replay.purposes.flow.reach(Value(held.at, held.index)).users
            if user.id in order and replay.evidence.graph.places.of(user).phase in _LATER
        ]  # fmt: skip
        if not reads:
            continue
        # What the update does to a block's weights has no mark of the backward pass either, and comes after it.
        ends = max((place for place in places[label] if place < min(reads)), default=-1)
        forward, first = replay.event_at(ends + 1), replay.event_at(min(reads))
        last = max(h.span.end for h in found)
        before = taken
        for held in found:
            leaves = max(forward, held.span.first + 1)
            if leaves < first < held.span.end:
                edits.append(Edit(leaves, first, -held.bytes))
                taken += held.bytes
        blocks += taken > before
        for held in entering[label].values():
            if held.span.owner not in own and held.span.end < last:
                edits.append(Edit(held.span.end, last, held.bytes))
    pattern = prefix + ("*]" if prefix.endswith("[") else "*")
    if blocks > 1:
        yield Change(
            "checkpoint", pattern, f"wrap each block whose weights are {pattern} in jax.checkpoint",
            f"{taken:,} bytes made in {blocks:,} blocks, told by the weights they read, wait for the backward pass; "
            "what enters a block is kept", "estimate", tuple(edits),
            assumptions=ASSUMED,
        )  # fmt: skip


def _labels(replay: Replay) -> tuple[str, dict[int, int]]:
    """What the paths of the blocks' weights begin with, and the block of what is computed forward, by instruction."""
    graph = replay.evidence.graph
    entry = graph.module.entry
    reads: dict[int, list[Instruction]] = {}
    for at in entry.instructions:
        if at.opcode == "parameter" or graph.places.of(at).phase != FORWARD or argument_of(graph.module, at):
            continue
        found = (argument_of(graph.module, operand) for operand in at.operands)
        reads[at.id] = [a for a in found if a is not None and a.op_name]
    numbers: dict[str, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    sizes: dict[str, int] = defaultdict(int)
    weights = {a.id: a for found in reads.values() for a in found}
    for argument in weights.values():
        for match in _NUMBER.finditer(argument.op_name):
            start, rest = argument.op_name[: match.start()], argument.op_name[match.end() :]
            numbers[start][rest].add(int(match.group()))
            sizes[start] += argument.shape.bytes
    # A block has what the others have: most paths must go on alike behind the number.
    alike = [s for s, ends in numbers.items() if 2 * sum(len(n) > 1 for n in ends.values()) > len(ends)]
    if not alike:
        return "", {}
    prefix = max(alike, key=lambda s: (sizes[s], -len(s)))
    labels: dict[int, int] = {}
    over = 1 << 30
    for at in entry.instructions:
        if at.id not in reads:
            continue
        before = max((labels.get(o.id, -1) for o in at.operands if o.id in labels), default=-1)
        own = -1
        for argument in reads[at.id]:
            if argument.op_name.startswith(prefix) and (number := _NUMBER.match(argument.op_name, len(prefix))):
                own = max(own, int(number.group()))
            elif before >= 0 and replay.purposes.argument(argument.op_name).name != ARGUMENT:
                own = over
        label = max(before, own)
        if label >= 0:
            labels[at.id] = label
    return prefix, {identity: label for identity, label in labels.items() if label < over}


def undone(replay: Replay) -> int:
    """Bytes live at the peak that a checkpoint makes again, and that lie there since before the backward pass began.

    The compiler merged the recomputation with what it repeats: such a checkpoint lowers nothing.
    """
    graph = replay.evidence.graph
    later = {
        at.name for at in graph.module.entry.instructions
        if (place := graph.places.of(at)).phase == BACKWARD and place.exact
        and not replay.purposes.flow.constant(Value(at))
    }  # fmt: skip
    began = next((n for n, event in enumerate(replay.events) if event.takes and event.instruction in later), None)
    if began is None:
        return 0
    return sum(h.bytes for h in replay.held if h.kind.name == RECOMPUTED and h.span.first < began and replay.live(h))


def waiting(replay: Replay) -> int:
    """Bytes live at the peak, other than stacks of a loop, that wait for the backward pass."""
    flow, total = replay.purposes.flow, 0
    for held in replay.held:
        if held.kind.name == SAVED and held.at is not None and replay.live(held):
            slots = flow.reach(Value(held.at, held.index)).slots[:4]
            total += 0 if any(replay.purposes.change(slot)[0] == "stacked" for slot in slots) else held.bytes
    return total
