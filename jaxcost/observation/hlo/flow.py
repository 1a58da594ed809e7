"""Where values go: through tuples, loops, copies and fusions, ahead to the loop state and the operations that use them.

`origins` walks back from a value; this walks ahead. The state of a loop is a tuple, and one element of it is a `Slot`:
initial value, body parameter, next value and result are one memory. What the body does with a slot says what it is:
written slice by slice (a stack of one value per layer), summed into, handed on unchanged, or replaced.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from jaxcost.observation.hlo.module import Computation, Instruction, Module
from jaxcost.observation.hlo.origins import behind, source_of

Change = Literal["stacked", "summed", "kept", "replaced"]

_MAX_VALUES = 256
_SAME_VALUE = frozenset("bitcast copy copy-start copy-done reshape transpose opt-barrier".split())
_WRITES = frozenset({"dynamic-update-slice"})
_FRAMES = ("fusion", "call", "async-start")


class Slot(NamedTuple):
    """Element `position` of the state of `loop`."""

    loop: Instruction
    position: int


class Value(NamedTuple):
    """An array: an instruction's result, or element `path` of its tuple."""

    at: Instruction
    path: tuple[int, ...] = ()


@dataclass(slots=True)
class Reach:
    """Where a value gets to without being computed with: loop state, results of the program, and what uses it."""

    slots: list[Slot] = field(default_factory=list)
    results: list[int] = field(default_factory=list)
    users: list[Instruction] = field(default_factory=list)


def _is_body(computation: Computation) -> Instruction | None:
    """The loop whose body or condition this is."""
    callers = computation.callers
    return callers[0] if len(callers) == 1 and callers[0].opcode == "while" else None


class Flow:
    """Walks ahead in one module; answers are kept."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self._reach: dict[tuple[int, tuple[int, ...]], Reach] = {}
        self._chains: dict[tuple[int, int], tuple[Slot, ...]] = {}
        self._positions: dict[int, dict[int, list[int]]] = {}
        self._split: dict[int, tuple[dict[int, list[Instruction]], list[Instruction]]] = {}
        self._orders: dict[int, dict[int, int]] = {}
        self._constant: dict[int, bool | tuple[bool, ...]] = {}
        self._find_constants()

    def reach(self, value: Value) -> Reach:
        """Where `value` gets to from where it is made."""
        key = (value.at.id, value.path)
        found = self._reach.get(key)
        if found is None:
            found = self._reach[key] = self._walk(value)
        return found

    def _walk(self, start: Value) -> Reach:
        found, queue = Reach(), [start]
        seen: set[tuple[int, tuple[int, ...]]] = set()
        if start.at.opcode == "while" and start.path:
            found.slots.append(Slot(start.at, start.path[0]))
        while queue and len(seen) < _MAX_VALUES:
            value = queue.pop()
            if (value.at.id, value.path) in seen:
                continue
            seen.add((value.at.id, value.path))
            at, index = value
            loop = _is_body(at.computation)
            if at.opcode == "parameter" and loop is not None and index:
                found.slots.append(Slot(loop, index[0]))
            elements, others = self._users(at)
            if index:
                queue += [Value(user, index[1:]) for user in elements.get(index[0], ())]
            for user in others:
                if user.opcode == "tuple":
                    queue += [Value(user, (i, *index)) for i in self._places(user)[at.id]]
                elif user.opcode == "while":
                    if index:
                        found.slots.append(Slot(user, index[0]))
                elif user.opcode in _SAME_VALUE:
                    queue.append(Value(user, () if user.opcode != "opt-barrier" else index))
                else:
                    found.users.append(user)
            if at is at.computation.root:
                self._leave(Value(at, index), found, queue)
        return found

    def _users(self, at: Instruction) -> tuple[dict[int, list[Instruction]], list[Instruction]]:
        """The users that take one element of a tuple, by element, and the others: a loop's state is thousands too."""
        found = self._split.get(at.id)
        if found is None:
            elements: dict[int, list[Instruction]] = {}
            others = []
            for user in at.users:
                if user.opcode == "get-tuple-element":
                    elements.setdefault(user.number, []).append(user)
                else:
                    others.append(user)
            found = self._split[at.id] = elements, others
        return found

    def _places(self, made: Instruction) -> dict[int, list[int]]:
        """Where each operand of a tuple stands in it: a step's results are thousands."""
        found = self._positions.get(made.id)
        if found is None:
            found = self._positions[made.id] = {}
            for i, operand in enumerate(made.operands):
                found.setdefault(operand.id, []).append(i)
        return found

    def _leave(self, value: Value, found: Reach, queue: list[Value]) -> None:
        """Out of a computation through its root."""
        computation, index = value.at.computation, value.path
        if computation is self.module.entry:
            found.results.append(index[0] if index else 0)
            return
        loop = _is_body(computation)
        if loop is not None and index:
            found.slots.append(Slot(loop, index[0]))
        for caller in computation.callers:
            if caller.opcode in _FRAMES:
                queue.append(Value(caller, index))

    def chain(self, slot: Slot) -> tuple[Slot, ...]:
        """The slots of all loops that one memory passes through, in program order."""
        key = (slot.loop.id, slot.position)
        found = self._chains.get(key)
        if found is not None:
            return found
        slots, queue = {key: slot}, [slot]
        while queue and len(slots) < _MAX_VALUES:
            here = queue.pop()
            before = self.before(here)
            near = list(self.reach(Value(here.loop, (here.position,))).slots)
            if before is not None and before.at.opcode == "while" and before.path:
                near.append(Slot(before.at, before.path[0]))
            for other in near:
                # Only loops of one computation follow on each other; a loop inside another is not its successor.
                if (other.loop.id, other.position) not in slots and other.loop.computation is here.loop.computation:
                    slots[other.loop.id, other.position] = other
                    queue.append(other)
        order = self._orders.get(slot.loop.computation.id)
        if order is None:
            loops = (at for at in slot.loop.computation.instructions if at.opcode == "while")
            order = self._orders[slot.loop.computation.id] = {at.id: i for i, at in enumerate(loops)}
        found = tuple(sorted(slots.values(), key=lambda s: order[s.loop.id]))
        for s in found:
            self._chains[s.loop.id, s.position] = found
        return found

    def before(self, slot: Slot) -> Value | None:
        """The value a slot starts from."""
        state = slot.loop.operands[0]
        for _ in range(8):
            if state.opcode != "opt-barrier" and state.opcode != "copy":
                break
            state = state.operands[0]
        if state.opcode != "tuple" or slot.position >= len(state.operands):
            return None
        at = state.operands[slot.position]
        for _ in range(_MAX_VALUES):
            if at.opcode == "get-tuple-element":
                return Value(at.operands[0], (at.number,))
            if at.opcode not in _SAME_VALUE or not at.operands:
                break
            at = at.operands[0]
        return Value(at)

    def inside(self, slot: Slot) -> Reach:
        """Where a slot's value gets to within the body of its loop."""
        return self.reach(Value(slot.loop.called[0].parameters[0], (slot.position,)))

    def change(self, slot: Slot) -> tuple[Change, Instruction | None]:
        """What the body does with a slot, and the instruction that does it."""
        body = slot.loop.called[0]
        root = body.root
        if root.opcode != "tuple" or slot.position >= len(root.operands):
            return "replaced", None
        ends = root.operands[slot.position]
        if self._is_slot(ends, body, slot.position):
            return "kept", None
        source = source_of(ends, _WRITES)
        if source.opcode in ("dynamic-update-slice", "scatter") and self._is_slot(
            source.operands[0], body, slot.position
        ):
            return "stacked", source
        if source.opcode == "add" and any(self._is_slot(o, body, slot.position) for o in source.operands):
            return "summed", source
        return "replaced", source

    def _is_slot(self, at: Instruction | None, body: Computation, index: int) -> bool:
        """Whether `at` is, moved or not, element `index` of the body's parameter."""
        state = body.parameters[0]
        for _ in range(64):
            if at is None:
                return False
            if at.opcode == "get-tuple-element" and at.operands[0] is state:
                return bool(at.number == index)
            at = behind(at) if at.opcode != "parameter" or at.computation is not body else None
        return False

    def behind(self, at: Instruction) -> Instruction | None:
        """One step back as `origins.behind`, and through a loop that hands the value on unchanged."""
        if at.opcode == "get-tuple-element" and at.operands[0].opcode == "while":
            slot = Slot(at.operands[0], at.number)
            state = slot.loop.operands[0]
            if self.change(slot)[0] == "kept" and state.opcode == "tuple" and slot.position < len(state.operands):
                return state.operands[slot.position]
        return behind(at)

    # Values that no argument goes into ------------------------------------------------------------------------------

    def constant(self, value: Value) -> bool:
        """Whether `value` follows from constants and counters alone (a mask, a rotary table, zeros)."""
        flags = self._constant.get(value.at.id, False)
        if isinstance(flags, tuple):
            return bool(value.path) and value.path[0] < len(flags) and flags[value.path[0]]
        return flags

    def _find_constants(self) -> None:
        for computation in reversed(self.module.computations):  # callers first
            loop = _is_body(computation)
            for at in computation.instructions:
                self._constant[at.id] = self._is_constant(at, loop)

    def _is_constant(self, at: Instruction, loop: Instruction | None) -> bool | tuple[bool, ...]:
        if at.opcode == "parameter":
            if loop is not None:
                flags = self._constant.get(loop.id, False)
                return flags if isinstance(flags, tuple) else False
            callers = at.computation.callers
            if len(callers) == 1 and at.number < len(callers[0].operands):
                number: int = at.number
                return self._constant.get(callers[0].operands[number].id, False)
            return False
        if at.opcode == "tuple":
            return tuple(self._flag(o) for o in at.operands)
        if at.opcode == "get-tuple-element":
            flags = self._constant.get(at.operands[0].id, False)
            number = at.number
            if isinstance(flags, tuple):
                return number < len(flags) and flags[number]
            return flags
        if at.opcode == "while":
            flags = self._constant.get(at.operands[0].id, False)
            if not isinstance(flags, tuple):
                return False
            # A counter stays one; everything else must be handed on unchanged.
            return tuple(
                known and (at.shape.elements[i].size == 1 or self.change(Slot(at, i))[0] == "kept")
                for i, known in enumerate(flags)
            )
        if at.opcode in ("constant", "iota", "partition-id", "replica-id"):
            return True
        if not at.operands:
            return at.opcode in ("fusion", "call", "custom-call")  # a table made from counters, memory without content
        return all(self._flag(o) for o in at.operands)

    def _flag(self, at: Instruction) -> bool:
        flags = self._constant.get(at.id, False)
        return all(flags) if isinstance(flags, tuple) else flags
