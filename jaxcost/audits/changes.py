"""The changes that an audit proposes to lower a peak: what each would take out of the plan, and what it may put in.

No change is proposed for its size alone: each rests on something the module shows, which its derivation names.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from math import prod
from typing import Any

from jaxcost.audits.arguments import Bound, bound_arguments, whole_argument
from jaxcost.audits.carried import carried, whole
from jaxcost.audits.donation import ELEMENTWISE, Possible
from jaxcost.audits.remat import checkpoints
from jaxcost.audits.replay import Change, Edit, Held, Replay
from jaxcost.audits.residents import copied_by, nearest_source
from jaxcost.audits.tree import some
from jaxcost.observation.hlo.flow import Slot, Value
from jaxcost.observation.hlo.module import Instruction
from jaxcost.observation.hlo.origins import behind
from jaxcost.observation.hlo.purposes import COPY, GRADIENT, RECOMPUTED, SAVED, TEMPORARY
from jaxcost.observation.hlo.shapes import ELEMENT_TYPES

_LARGE = 1 << 16
_UNLIKE = {"dtype": "type", "taken": "type", "memory": "memory space"}
_CHUNKS = 8
_TOGETHER = 4
_BITS = dict(ELEMENT_TYPES.values())
_DONATED_BY = {
    "jax.jit": " (donate_argnums or donate_argnames)",
    "eqx.filter_jit": ' (donate="all" of filter_jit donates every array)',
}


def changes(
    replay: Replay, possible: Mapping[str, list[Possible]], given: Iterable[Mapping[str, Any]] = ()
) -> Iterator[Change]:
    """Every change that the module gives grounds for. `given` are the rows of the section on donation."""
    arguments, _ = bound_arguments(replay.evidence)
    yield from _donate(replay, possible)
    yield from _in_vain(given)
    yield from checkpoints(replay)
    yield from _shard(replay, arguments)
    yield from _narrow(replay)
    yield from _constants(replay)
    yield from _padding(replay)
    yield from _chunk(replay)
    yield from _loop_copies(replay)
    yield from carried(replay)


def _donate(replay: Replay, possible: Mapping[str, list[Possible]]) -> Iterator[Change]:
    """Arguments that could be donated, as `donate_argnums` counts them, and by which words where that is known."""
    lowered = replay.evidence.program.lowered
    how = _DONATED_BY.get(lowered.jitted, "") if lowered is not None else ""
    for argument, found in possible.items():
        size, unsure = sum(p.bytes for p in found), sum(p.bytes for p in found if not p.sure)
        why = next((p.why for p in found if not p.sure), found[0].why)
        # A copy may lie beside both the argument and the result, so what is unsure may cost as much as it may save.
        certain = size - 2 * unsure > 0
        yield Change(
            "donate", argument, f"donate {argument}{how}",
            f"{some(len(found), 'result')}, {size:,} bytes, would take over its memory, {size - unsure:,} for "
            f"certain: {why}",
            "exact" if not unsure else "interval" if certain else "estimate", resident=-size,
            costs=() if certain else None, resident_cost=2 * unsure,
            assumptions=("the caller does not use it again",),
        )  # fmt: skip


def _in_vain(given: Iterable[Mapping[str, Any]]) -> Iterator[Change]:
    """Arguments donated in vain whose result would fit but for its type, layout, sharding or memory space."""
    groups: dict[tuple[str, str], dict[tuple[int, ...], int]] = defaultdict(dict)
    taken: set[tuple[int, ...]] = set()
    for row in given:
        near = row.get("unlike")
        if near is None or tuple(near["result"]) in taken:
            continue  # a result takes over one argument
        taken.add(tuple(near["result"]))
        groups[whole_argument(row["path"]), row["reason"]][tuple(near["result"])] = near["bytes"]
    for (path, reason), results in groups.items():
        size, what = sum(results.values()), _UNLIKE.get(reason, reason)
        yield Change(
            "donated_in_vain", path, f"give results the {what} of {path}, which is donated in vain",
            f"{some(len(results), 'result')} ({', '.join('.'.join(map(str, at)) or '0' for at in list(results)[:4])}"
            f"{', ...' * (len(results) > 4)}), {size:,} bytes, have memory of their own: their {what} keeps them from "
            f"taking over that of {path}", "estimate", resident=-size, assumptions=("no copy is needed when they do",),
        )  # fmt: skip


# Sharding and places ----------------------------------------------------------------------------------------------


def _shard(replay: Replay, arguments: list[Bound]) -> Iterator[Change]:
    """Arguments that every device of a mesh axis holds whole."""
    evidence = replay.evidence
    devices = evidence.reading.device_count
    lowered = evidence.program.lowered
    if devices < 2:
        return
    groups: dict[tuple[str, str, int], list[Bound]] = defaultdict(list)
    for argument in arguments:
        at = argument.parameter
        if at is None or at.shape.is_tuple or at.shape.bytes < _LARGE or not at.shape.dims:
            continue
        if argument.given is not None and lowered is not None and argument.given.sharding:
            used = set(re.findall(r"'([^']+)'", argument.given.sharding))
            axes = {name: size for name, size in evidence.mesh.items() if name not in used and size > 1}
        elif argument.given is not None and prod(argument.given.shape) == at.shape.size:
            axes = {"all devices": devices}
        else:
            continue
        for name, size in axes.items():
            if any(d % size == 0 and d >= size for d in at.shape.dims):
                groups[whole_argument(argument.path), name, size].append(argument)
    for (path, axis, size), found in groups.items():
        held = sum(a.bytes for a in found)
        yield Change(
            "shard", path, f"shard {path} over {axis} ({size} devices)",
            f"{some(len(found), 'array')}, {held:,} bytes, the same on each of {size} devices: a share is "
            f"{held - held * (size - 1) // size:,} bytes", "estimate", resident=-(held * (size - 1) // size),
            assumptions=("neither what is gathered for use nor results that become shares too are counted",),
        )  # fmt: skip


# Types, constants, layouts ----------------------------------------------------------------------------------------


def _narrow(replay: Replay) -> Iterator[Change]:
    """Arrays that only hold, in a wide type, what was computed in a narrow one."""
    groups: dict[tuple[str, str, str], list[tuple[Held, Instruction | None]]] = defaultdict(list)
    lying = {held.at.id: held for held in replay.held if held.at is not None and not held.index}
    for held in replay.held:
        if held.at is None or held.bytes < _LARGE:
            continue
        found = _widened(replay, held)
        if found is not None:
            made, narrow, stacked = found
            if replay.evidence.platform == "cpu" and not made.op_name:
                continue  # the CPU compiler widens bf16 by itself: no change of the program takes that out
            shape = held.at.shape.at(held.index)
            where = nearest_source(replay.evidence, made) or made.name
            before = None if stacked else made.operands[0]
            groups[where, narrow, shape.dtype if shape is not None else ""].append((held, before))
    for (where, narrow, wide), pairs in groups.items():
        found_ = [held for held, _ in pairs]
        edits: list[Edit] = []
        for held, before in pairs:
            start = held.span.first if before is None else _lies_until(replay, lying, before, held)
            edits.append(whole(held, 0))
            if start < held.span.end:
                edits.append(Edit(start, held.span.end, held.bytes * _BITS[narrow] // _BITS[wide]))
        yield Change(
            "dtype", where, f"keep the {narrow} value that {where} widens to {wide}, and widen it where it is read",
            f"{some(len(found_), 'buffer')}, {sum(h.bytes for h in found_):,} bytes, with a conversion of {narrow} to "
            f"{wide}",
            "upper", tuple(edits), assumptions=("every reader can widen for itself",),
        )  # fmt: skip


def _lies_until(replay: Replay, lying: Mapping[int, Held], at: Instruction, held: Held) -> int:
    """The event from which a narrow value would need memory in place of the wide one: until then it has its own."""
    here: Instruction | None = at
    for _ in range(16):
        if here is None:
            break
        if here.id in lying:
            return max(held.span.first, lying[here.id].span.end)
        if here.opcode == "parameter" and here.computation is replay.evidence.graph.module.entry:
            return held.span.end
        here = behind(here)
    return held.span.first


def _widened(replay: Replay, held: Held) -> tuple[Instruction, str, bool] | None:
    """The conversion that fills a buffer, the narrow type, and whether a loop stacks its results."""
    at, flow = held.at, replay.purposes.flow
    assert at is not None
    shape = at.shape.at(held.index)
    if shape is None or shape.is_tuple or shape.dtype not in ("f32", "f64", "s32"):
        return None
    start: Instruction | None = at if not held.index else None
    stacked = False
    for slot in flow.reach(Value(at, held.index)).slots[:1]:
        for near in flow.chain(slot):
            change, writer = replay.purposes.change(near)
            if change == "stacked" and writer is not None and writer.opcode == "dynamic-update-slice":
                start, stacked = writer.operands[1], True
    here = start
    for _ in range(16):
        if here is None:
            return None
        if here.opcode == "convert":
            narrow = here.operands[0].shape.dtype
            smaller = 0 < _BITS.get(narrow, 0) < _BITS[shape.dtype] and narrow != "pred"
            return (here, narrow, stacked) if smaller and here.shape.dtype == shape.dtype else None
        if here.opcode in ("fusion", "bitcast", "reshape", "transpose", "copy", "parameter", "get-tuple-element"):
            here = flow.behind(here)
        else:
            return None
    return None


def _constants(replay: Replay) -> Iterator[Change]:
    """Large constants, computed where they are used instead: all at once for what reads whole arrays."""
    module = replay.evidence.graph.module
    rows = [r for r in replay.evidence.reading.memory.live if r.kind == "constant" and r.bytes >= _LARGE]
    wanted = {r.instruction for r in rows}
    by_name = {at.name: at for at in module.walk() if at.name in wanted}
    for row in rows:
        readers = _readers(by_name[row.instruction]) if row.instruction in by_name else []
        whole_readers = {at.name for at in readers if not _element_by_element(at)}
        events = [n for n, event in enumerate(replay.events) if event.instruction in whole_readers]
        if not readers or (whole_readers and not events):
            continue  # whoever reads it is there throughout: no moment is without it
        yield Change(
            "constant", row.instruction, f"compute {row.shape} where it is used",
            f"the constant {row.instruction} {row.shape} is allocated for as long as the program is loaded; it is read "
            f"by {', '.join(at.name for at in readers[:3])}", "upper",
            (Edit(events[0], events[-1] + 1, row.bytes),) if events else (), resident=-row.bytes,
            assumptions=("it follows from little (a counter, a mask); passed as an argument it is resident as well",),
        )  # fmt: skip


def _readers(at: Instruction) -> list[Instruction]:
    """What reads a value, through views of it."""
    found: list[Instruction] = []
    for user in at.users:
        found += _readers(user) if user.opcode in ("bitcast", "copy", "reshape") else [user]
    return found


def _element_by_element(at: Instruction) -> bool:
    return at.opcode in ELEMENTWISE or (
        at.opcode == "fusion"
        and all(i.opcode in ELEMENTWISE or i.opcode == "reduce" for i in at.called[0].instructions)
    )


def _padding(replay: Replay) -> Iterator[Change]:
    groups: dict[str, tuple[list[Edit], int]] = {}
    for held in replay.held:
        shape = held.at.shape.at(held.index) if held.at is not None else None
        if shape is None or shape.is_tuple or held.bytes < _LARGE:
            continue
        padding = held.bytes - shape.logical_bytes
        if shape.bytes > shape.logical_bytes and padding > 0 and shape.bytes == held.bytes:
            edits, total = groups.get(str(shape), ([], 0))
            groups[str(shape)] = ([*edits, whole(held, shape.logical_bytes)], max(total, padding))
    for text, (edits, padding) in groups.items():
        yield Change(
            "padding", text, f"reshape {text} so that its two minor dimensions fill the tiles",
            f"tiles add {padding:,} bytes to {text}; {some(len(edits), 'buffer')}", "upper", tuple(edits),
            assumptions=("a layout without padding exists for the operations around it",),
        )  # fmt: skip
    for row in replay.evidence.reading.memory.live:
        if row.kind in ("parameter", "output") and row.padding_bytes >= _LARGE:
            yield Change(
                "padding", row.op_name or row.instruction, f"reshape {row.shape}: it leaves tiles empty",
                f"tiles add {row.padding_bytes:,} bytes to {row.shape}", "upper", resident=-row.padding_bytes,
                assumptions=("a layout without padding exists for the operations around it",),
            )  # fmt: skip


# Sizes of work ----------------------------------------------------------------------------------------------------


def _chunk(replay: Replay) -> Iterator[Change]:
    """The largest working array and those of its size (logits and their gradient): an eighth of each at a time.

    More than a few of one size are what many layers leave behind, not one piece of work.
    """
    working = (TEMPORARY, GRADIENT, RECOMPUTED, SAVED)
    owned = {p.shape.size for p in replay.evidence.graph.module.entry.parameters.values() if not p.shape.is_tuple}
    live = []
    for held in replay.held:
        shape = held.at.shape.at(held.index) if held.at is not None else None
        if held.at is None or not replay.live(held) or shape is None or shape.is_tuple or held.kind.name not in working:
            continue
        stacked = any(
            replay.purposes.change(slot)[0] in ("stacked", "summed")
            for slot in replay.purposes.flow.reach(Value(held.at, held.index)).slots[:4]
        )
        if not stacked and shape.size not in owned and shape.dims and max(shape.dims) >= 2 * _CHUNKS:
            live.append((held, shape))
    if not live:
        return
    size = max(live, key=lambda item: item[0].bytes)[1].size
    alike = [h for h, s in live if s.size == size]
    if len(alike) > _TOGETHER:
        return
    at = alike[0].at
    assert at is not None
    where = nearest_source(replay.evidence, at) or at.name
    yield Change(
        "chunk", where, f"compute what {where} makes in {_CHUNKS} pieces, one after the other",
        f"{some(len(alike), 'array')} of {size:,} elements at work at the peak: {sum(h.bytes for h in alike):,} bytes",
        "estimate", tuple(whole(h, h.bytes // _CHUNKS) for h in alike),
        assumptions=("the operations around it can be cut along one dimension", "arrays of other sizes stay whole"),
    )  # fmt: skip


def _loop_copies(replay: Replay) -> Iterator[Change]:
    """Copies of loop state, each loop's together."""
    flow = replay.purposes.flow
    assignment = replay.evidence.graph.assignment
    owners = {b.id: b for b in assignment.logical_buffers} if assignment is not None else {}
    made_by: dict[int, list[Held]] = defaultdict(list)
    for held in replay.held:
        made_by[owners[held.span.owner].defined_at.instruction_id].append(held)
    for loop in (at for at in replay.evidence.graph.module.walk() if at.opcode == "while"):
        root = loop.called[0].root
        found = []
        for position, operand in enumerate(root.operands if root.opcode == "tuple" else ()):
            if operand.shape.bytes < _LARGE or copied_by(operand) is None:
                continue
            if flow.change(Slot(loop, position))[0] != "kept":
                found += [h for h in made_by.get(operand.id, ()) if h.kind.name != COPY]
        if found:
            yield Change(
                "loop_copy", loop.name, f"write the state of {loop.name} so that no old value is read after its place",
                f"{sum(h.bytes for h in found):,} bytes copied in the body, in {some(len(found), 'buffer')}", "upper",
                tuple(whole(h, 0) for h in found),
            )  # fmt: skip
