"""Donation: which arguments gave their memory to a result, which gave it in vain and why, and which could give it.

JAX pairs a donated argument with a result of its shape and dtype, failing that it offers the argument to XLA for a
result of as many elements, and XLA takes the offer where sizes and lifetimes agree (jax/_src/interpreters/mlir.py,
_set_up_aliases). What took place stands in the module (`input_output_alias`), the rest is told from shapes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from jaxcost.audits.arguments import Bound, Returned, bound_arguments, layout, layout_of, returned, whole_argument
from jaxcost.audits.evidence import Evidence, Notes
from jaxcost.observation.hlo.module import Instruction, Module

_LISTED = 200
_VIEWS = frozenset("bitcast get-tuple-element tuple opt-barrier copy-start copy-done".split())
ELEMENTWISE = frozenset(
    """abs add and atan2 cbrt ceil clamp compare convert cosine divide erf exponential exponential-minus-one floor
    log log-plus-one logistic maximum minimum multiply negate not or parameter power real reduce-precision remainder
    round-nearest-afz round-nearest-even rsqrt select sign sine sqrt subtract tan tanh xor bitcast constant
    broadcast""".split()
)


@dataclass(frozen=True, slots=True)
class Possible:
    """An argument that was not given away, and a result that could take over its memory.

    `sure`: whatever the schedule, the argument is used for the last time before the result's memory is written, or in
    the same elementwise operation; then the saving is exact.
    """

    argument: Bound
    result: Returned
    sure: bool
    why: str

    @property
    def bytes(self) -> int:
        """Bytes of the result's own memory, which the argument's would replace."""
        return self.result.shape.bytes


def donation(evidence: Evidence, notes: Notes) -> tuple[dict[str, Any], dict[str, list[Possible]]]:
    """Return the section on donation, and by argument what could be donated. What was given in vain is a finding."""
    arguments, unknown = bound_arguments(evidence)
    results = returned(evidence)
    offered = {e.parameter_number for e in evidence.graph.module.proto.buffer_donor.entries}
    taken_by = {r.argument: r for r in results if r.argument is not None}
    rows, lost = [], []
    claimed: set[tuple[int, ...]] = set()
    for argument in arguments:
        if not argument.donated:
            continue
        row: dict[str, Any] = {"path": argument.path, "shape": argument.shape, "bytes": argument.bytes}
        result = taken_by.get(argument.number) if argument.number is not None else None
        if result is not None:
            rows.append({**row, "result": list(result.index), "used": True, "reason": None, "why": ""})
            continue
        unclaimed = sorted(results, key=lambda r: r.index in claimed)  # each such argument names a result of its own
        reason, why, near = _refused(argument, unclaimed, evidence, argument.number in offered)
        rows.append({**row, "result": None, "used": False, "reason": reason, "why": why})
        if near is not None and near.argument is None and near.shape.bytes:
            claimed.add(near.index)
            rows[-1]["unlike"] = {"result": list(near.index), "bytes": near.shape.bytes}
        lost.append(rows[-1])
    pairing = Pairing(evidence, arguments, results)
    possible = pairing.of(pairing.waiting)
    for row in lost[:20]:
        notes.find(
            "donation", f"{row['path']} was donated in vain: {row['why']}", where=row["path"], bytes=row["bytes"]
        )
    rows.sort(key=lambda row: (row["used"], -row["bytes"]))
    section = {
        "known": not unknown,
        "reason": unknown or None,
        "donated": None if unknown else sum(1 for a in arguments if a.donated),
        "used_bytes": sum(r.shape.bytes for r in results if r.argument is not None),
        "in_vain_bytes": None if unknown else sum(row["bytes"] for row in lost),
        "arguments": rows[:_LISTED],
        "not_listed": max(0, len(rows) - _LISTED),
        "possible": [
            {
                "path": p.argument.path, "shape": p.argument.shape, "bytes": p.bytes, "result": list(p.result.index),
                "sure": p.sure, "why": p.why,
            }
            for p in possible[:_LISTED]
        ],
        "possible_bytes": sum(p.bytes for p in possible),
    }  # fmt: skip
    return section, pairing.by_argument()


def _refused(
    argument: Bound, results: list[Returned], evidence: Evidence, offered: bool
) -> tuple[str, str, Returned | None]:
    """Why a donated argument gave its memory to no result, and the result that would fit but for that."""
    at = argument.parameter
    if at is None:
        return "unused", "the program does not use it and does not take it: there is nothing to reuse", None
    shape, same_bytes = at.shape, [r for r in results if r.shape.logical_bytes == at.shape.logical_bytes]
    same = [r for r in results if (r.shape.dtype, r.shape.dims) == (shape.dtype, shape.dims)]
    free = [r for r in same if r.argument is None]
    if not free:
        free = [r for r in same_bytes if r.argument is None and r not in same]
    if same and not any(r.argument is None for r in same):
        own = (r for r in results if r.argument is None and r.shape.size == shape.size and not r.shape.is_tuple)
        return "taken", f"every result of {shape} ({len(same)}) takes over another argument", next(own, None)
    root = evidence.graph.module.entry.root.proto.shape
    for result in free:
        theirs, mine = layout(_part(root, result.index)), layout_of(at)
        if theirs[2] != mine[2]:
            return "memory", f"it lies in memory space {mine[2]}, result {result.name} in {theirs[2]}", result
        if result.shape.dims == shape.dims and theirs[:2] != mine[:2]:
            return (
                "layout",
                f"its layout {mine[0]} {mine[1]} is not that of result {result.name}: {theirs[0]} {theirs[1]}",
                result,
            )
    if free:
        said = "it was offered to the compiler, which did not use it" if offered else "the compiler kept them apart"
        return "dropped", f"result {free[0].name} is as large, but {said}", None
    fitting = [r for r in results if (r.shape.dtype, r.shape.size) == (shape.dtype, shape.size)]
    if fitting:
        return "taken", f"result {fitting[0].name}, {fitting[0].shape}, takes over another argument", None
    elements = [r for r in results if r.shape.size == shape.size and not r.shape.is_tuple]
    if elements:
        other = next((r for r in elements if r.argument is None), elements[0])
        return "dtype", f"no result is {shape}: result {other.name} is {other.shape}", other
    sharded = _sharded(argument, evidence, results)
    if sharded is not None:
        text = f"result {sharded.name} is sharded otherwise: {sharded.shape} on a device, not {argument.shape}"
        return "sharding", text, sharded
    if not results:
        return "shape", "the program returns nothing", None
    return "shape", f"no result has {shape.size:,} elements, as {shape} has", None


def _sharded(argument: Bound, evidence: Evidence, results: list[Returned]) -> Returned | None:
    """A result that has the argument's global shape and another one on a device."""
    lowered = evidence.program.lowered
    if lowered is None or argument.given is None or len(lowered.results) != len(results) or lowered.device_count < 2:
        return None
    whole = f"{argument.given.dtype}[{','.join(map(str, argument.given.shape))}]"
    same = (r for text, r in zip(lowered.results, results, strict=True) if text == whole)
    return next(same, None)


def _part(shape: Any, index: tuple[int, ...]) -> Any:
    for i in index:
        shape = shape.tuple_shapes[i]
    return shape


# What could be given away -----------------------------------------------------------------------------------------


class Pairing:
    """Pairs arguments that are not given away with results that have memory of their own, as JAX would pair them: each
    result in order takes the first donated argument of its shape and dtype.
    """

    def __init__(self, evidence: Evidence, arguments: Iterable[Bound], results: list[Returned]) -> None:
        self.module = evidence.graph.module
        taken = {r.argument for r in results}
        self.waiting = [a for a in arguments if a.parameter is not None and not a.donated and a.number not in taken]
        self.free = [r for r in results if r.argument is None and r.shape.bytes]
        self.order = schedule(self.module)
        writers = _writers(evidence)
        self.writers = {r.index: writers.get(r.index, []) for r in self.free}
        self._uses: dict[int, tuple[int, Instruction | None]] = {}
        self._bits: dict[int, int] = {}  # of each reader of an argument, a bit of its own
        self._above: dict[int, int] | None = None  # of each instruction of the entry, the readers that it follows from

    def of(self, arguments: Iterable[Bound]) -> list[Possible]:
        """What would be reused if these arguments, and no others, were donated as well."""
        given: dict[tuple[Any, ...], deque[Bound]] = {}
        for argument in arguments:
            at = argument.parameter
            if at is not None:
                given.setdefault((at.shape.dtype, at.shape.dims, at.shape.memory_space), deque()).append(argument)
        found = []
        for result in self.free:
            same = given.get((result.shape.dtype, result.shape.dims, result.shape.memory_space))
            if same:
                argument = same.popleft()
                found.append(Possible(argument, result, *self._lifetimes(argument, result)))
        return found

    def by_argument(self) -> dict[str, list[Possible]]:
        """The same for each argument of the call by itself, as `donate_argnums` counts them."""
        groups: dict[str, list[Bound]] = {}
        for argument in self.waiting:
            groups.setdefault(whole_argument(argument.path), []).append(argument)
        return {name: found for name, group in groups.items() if (found := self.of(group))}

    def _lifetimes(self, argument: Bound, result: Returned) -> tuple[bool, str]:
        at, writers = argument.parameter, self.writers[result.index]
        assert at is not None
        if not writers or any(w.id not in self.order for w in writers):
            return False, "where the result's memory is first written cannot be told"
        last, by = self._last_use(at)
        first = min(writers, key=lambda w: self.order[w.id])
        when = self.order[first.id]
        inside = last == when and by is first and _in_place(at, first)
        if last >= when and not inside:
            read_by = by.name if by is not None else "the result"
            return (
                False,
                f"{read_by} still reads it when {first.name} writes to the result's memory: a copy may be needed",
            )
        # Copies are put in before there is a schedule: only what follows from a reader comes after it for certain.
        loose = self._not_before(at, first)
        if loose is not None:
            why = f"only the schedule keeps {loose.name}, which reads it, before {first.name}, which writes to the"
            return False, f"{why} result's memory: a copy may be needed"
        if inside:
            return True, f"{first.name} reads and writes it element by element"
        return True, f"it is not read again once {first.name} has begun to write there"

    def _not_before(self, at: Instruction, writer: Instruction) -> Instruction | None:
        """A reader of an argument that a writer does not follow from by its operands; None where it does from all."""
        if self._above is None:
            for argument in self.waiting:
                for reader in readers(argument.parameter) if argument.parameter is not None else ():
                    self._bits.setdefault(reader.id, 1 << len(self._bits))
            self._above = {}
            for here in self.module.entry.instructions:  # operands come first
                found = self._bits.get(here.id, 0)
                for before in here.operands:
                    found |= self._above.get(before.id, 0)
                self._above[here.id] = found
        known = self._above.get(writer.id, 0)
        return next((r for r in readers(at) if not known & self._bits.get(r.id, 0)), None)

    def _last_use(self, at: Instruction) -> tuple[int, Instruction | None]:
        if at.id not in self._uses:
            self._uses[at.id] = last_use(at, self.order)
        return self._uses[at.id]


def schedule(module: Module) -> dict[int, int]:
    """The place of each instruction of the entry in its schedule, by id."""
    for entry in module.proto.schedule.sequences:
        if entry.key == module.entry.id:
            return {int(identity): i for i, identity in enumerate(entry.value.instruction_ids)}
    return {at.id: i for i, at in enumerate(module.entry.instructions)}


def last_use(at: Instruction, order: dict[int, int]) -> tuple[int, Instruction | None]:
    """When a value of the entry is read for the last time, through views of it, and by what. -1 where never."""
    last, by = -1, None
    for user in readers(at):
        when = max(order.get(end.id, len(order)) for end in _until(user))
        if when > last:
            last, by = when, user
    return last, by


def readers(at: Instruction) -> list[Instruction]:
    """What reads a value of the entry, through views of it."""
    found: dict[int, Instruction] = {}
    seen, stack = {at.id}, [at]
    while stack:
        for user in stack.pop().users:
            if user.opcode not in _VIEWS or user is user.computation.root:
                found[user.id] = user
            elif user.id not in seen:
                seen.add(user.id)
                stack.append(user)
    return list(found.values())


def _until(user: Instruction) -> list[Instruction]:
    """An instruction, and those that end it where it only starts one: what it reads is read until then."""
    found = [user]
    for at in found:
        if at.opcode.endswith(("-start", "-update")):
            found += [after for after in at.users if after not in found]
    return found


def _writers(evidence: Evidence) -> dict[tuple[int, ...], list[Instruction]]:
    """By result, the instructions of the entry that write to its memory: it may hold temporaries before it."""
    module, assignment = evidence.graph.module, evidence.graph.assignment
    found: dict[tuple[int, ...], list[Instruction]] = {}
    if assignment is None:
        return found
    places = {b.id: b.defined_at for b in assignment.logical_buffers}
    holders: dict[tuple[int, tuple[int, ...]], list[int]] = {}
    for allocation in assignment.buffer_allocations:
        if allocation.maybe_live_out and not allocation.is_entry_computation_parameter:
            members = [a.logical_buffer_id for a in allocation.assigned if a.logical_buffer_id in places]
            for member in members:
                place = places[member]
                holders[int(place.instruction_id), tuple(place.shape_index)] = members
    for result in returned(evidence):
        made = _maker(module, result)
        members = holders.get((made[0].id, made[1]), []) if made is not None else []
        writers = (module.instructions.get(places[member].instruction_id) for member in members)
        found[result.index] = [_in_entry(module, at) for at in writers if at is not None]
    return found


def _in_entry(module: Module, at: Instruction) -> Instruction:
    """The instruction of the entry inside which another runs."""
    for _ in range(64):
        if at.computation is module.entry or not at.computation.callers:
            return at
        at = at.computation.callers[0]
    return at


def _maker(module: Module, result: Returned) -> tuple[Instruction, tuple[int, ...]] | None:
    """The instruction of the entry that makes a result, and the place in what it makes; None for an argument."""
    at: Instruction = module.entry.root
    index = result.index
    for _ in range(256):
        if at.opcode == "tuple" and index:
            at, index = at.operands[index[0]], index[1:]
        elif at.opcode == "get-tuple-element":
            at, index = at.operands[0], (at.proto.tuple_index, *index)
        elif at.opcode == "copy-done":
            at, index = at.operands[0], (0,)
        elif at.opcode in ("bitcast", "opt-barrier") and at.operands:
            at = at.operands[0]
        elif at.opcode == "while" and index and at.operands[0].opcode == "tuple":
            at, index = at.operands[0].operands[index[0]], index[1:]
        else:
            return (at, index) if at.opcode != "parameter" else None
    return None


def _in_place(at: Instruction, made: Instruction) -> bool:
    """Whether an instruction computes each element of its result from the same element of an argument."""
    if made.opcode in ELEMENTWISE:
        return made.shape.dims == at.shape.dims
    if made.opcode != "fusion":
        return False
    inner = made.called[0]
    return all(
        i.opcode in ELEMENTWISE
        and (i.shape.dims == at.shape.dims or i.opcode in ("constant", "parameter", "convert", "bitcast"))
        for i in inner.instructions
    )
