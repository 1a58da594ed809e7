"""Where values come from: through fusions, copies and loop state, back to the argument or operation that made them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from jaxcost.observation.hlo.module import Instruction, Module
from jaxcost.observation.hlo.opcodes import MOVEMENT
from jaxcost.observation.hlo.scope import BACKWARD, FORWARD, MIXED, OPTIMIZER, REPLAY, Place, common_scope, place

_MAX_WALK = 96
_NEIGHBOURS = 48
_FRAMES = frozenset(["fusion", "call", "async-start"])
_UNTOLD = Place("", FORWARD, exact=False)


def behind(at: Instruction) -> Instruction | None:
    """One step back through a pure frame: a fusion's result to its root, a fusion's parameter to the operand bound to
    it, a tuple element to what was put there, loop state to its first value, a data movement to its source. None at
    an argument of the program or at an operation that computes.
    """
    opcode = at.opcode
    if opcode == "parameter":
        callers = at.computation.callers
        if len(callers) != 1 or callers[0].opcode not in ("fusion", "call", "async-start", "while"):
            return None
        operands = callers[0].operands
        number = 0 if callers[0].opcode == "while" else at.number
        return operands[number] if number < len(operands) else None
    if opcode == "get-tuple-element":
        return _element(at.operands[0], at.number)
    if opcode in ("fusion", "call"):
        return at.called[0].root if not at.shape.is_tuple else None
    if opcode == "async-start":
        return at.called[0].root if at.called else at.operands[0]
    if opcode in MOVEMENT and at.operands:
        return at.operands[0]
    return None


def _element(at: Instruction, index: int) -> Instruction | None:
    """What element `index` of a tuple value holds. The result of a loop is computed, so the walk stops there."""
    for _ in range(_MAX_WALK):
        if at.opcode == "tuple":
            return at.operands[index] if index < len(at.operands) else None
        if at.opcode in ("fusion", "call", "async-start") and at.called:
            at = at.called[0].root
        elif at.opcode in ("copy", "opt-barrier", "all-gather-done", "async-done", "async-update"):
            at = at.operands[0]
        elif at.opcode in ("all-gather", "all-gather-start", "all-reduce", "all-reduce-start"):
            return at.operands[index] if index < len(at.operands) else None
        elif at.opcode == "parameter":
            callers = at.computation.callers
            if not callers:
                return at  # an argument of the program that is itself a tuple
            if len(callers) != 1 or callers[0].opcode not in ("fusion", "call", "while"):
                return None
            number = 0 if callers[0].opcode == "while" else at.number
            at = callers[0].operands[number]
        elif at.opcode == "get-tuple-element":
            inner = _element(at.operands[0], at.number)
            if inner is None:
                return None
            at = inner
        else:
            return None
    return None


def source_of(at: Instruction, stop: frozenset[str] = frozenset()) -> Instruction:
    """The instruction that computed the value of `at`, or the first of an opcode in `stop` on the way there."""
    for _ in range(_MAX_WALK):
        if at.opcode in stop:
            return at
        before = behind(at)
        if before is None:
            return at
        at = before
    return at


def argument_of(module: Module, at: Instruction) -> Instruction | None:
    """The program's argument that `at` is a (moved, cast, gathered or sliced) copy of; None when it is computed."""
    source = source_of(at)
    return source if source.opcode == "parameter" and source.computation is module.entry else None


class Places:
    """Scope and phase of every instruction.

    An instruction's own name decides. One without a name takes its fusion's; failing that its scope is what its nearest
    neighbours in a scope share and its phase the latest of those that feed it; the result then says `exact=False`.
    Where no neighbour has a scope the phase is that of the nearest that have a name. `names` are all op_names of the
    module, where they are known: where none tells a scope or a phase, no neighbour is asked.
    """

    def __init__(self, scopes: frozenset[str] | None, names: Iterable[str] | None = None) -> None:
        self.scopes = scopes
        told = (place(name, scopes) for name in names or () if name)
        self.told = names is None or any(found.scope or found.phase != FORWARD for found in told)
        self.known: dict[int, tuple[Place, str]] = {}

    def of(self, at: Instruction) -> Place:
        """Scope and phase of `at`."""
        return self.named(at)[0]

    def named(self, at: Instruction) -> tuple[Place, str]:
        """Scope and phase of `at`, and the op_name they were read from ('' when inferred from neighbours)."""
        found = self.known.get(at.id)
        if found is None:
            found = self.known[at.id] = self._find(at)
        return found

    def _find(self, at: Instruction) -> tuple[Place, str]:
        frame: Instruction | None = at
        while frame is not None:
            if "/" in frame.op_name or (frame.op_name and frame.opcode == "parameter"):  # else a name XLA made up
                return place(frame.op_name, self.scopes), frame.op_name
            callers = frame.computation.callers
            inside = len(callers) == 1 and callers[0].opcode in ("fusion", "call", "async-start")
            frame = callers[0] if inside else None
        return self._inferred(at), ""

    def _inferred(self, at: Instruction) -> Place:
        if not self.told:
            return _UNTOLD
        before, after = self._nearest(at, back=True), self._nearest(at, back=False)
        if not before and not after:
            before, after = (self._nearest(at, back=back, scoped=False) for back in (True, False))
        order = (FORWARD, REPLAY, BACKWARD, OPTIMIZER)
        phases = [p.phase for p in before if p.phase != MIXED]
        if phases:
            phase = max(phases, key=order.index)
        else:
            later = [p.phase for p in after if p.phase != MIXED]
            phase = min(later, key=order.index) if later else FORWARD
        fed_by = {p.scope for p in before}
        # Two feeders already bound the place (softmax and rotary: attn); one alone may be the scope before it.
        return Place(common_scope(fed_by | {p.scope for p in after} if len(fed_by) < 2 else fed_by), phase, exact=False)

    def _nearest(self, at: Instruction, *, back: bool, scoped: bool = True) -> list[Place]:
        """Places of the closest named instructions, `scoped` or of any name, upstream or downstream, one per path."""
        found: list[Place] = []
        seen = {at.id}
        queue = deque(_upstream(at) if back else _downstream(at))
        while queue and len(seen) < _NEIGHBOURS:
            near = queue.popleft()
            if near.id in seen:
                continue
            seen.add(near.id)
            if near.op_name and near.opcode not in ("parameter", "constant"):
                there = place(near.op_name, self.scopes)
                if there.scope or not scoped:
                    found.append(there)
                    continue
            queue.extend(_upstream(near) if back else _downstream(near))
        return found


def _upstream(at: Instruction) -> list[Instruction]:
    if at.opcode == "parameter":
        callers = at.computation.callers
        if len(callers) == 1 and callers[0].opcode in _FRAMES and at.number < len(callers[0].operands):
            return [callers[0].operands[at.number]]
        return []
    if at.opcode in _FRAMES and at.called:
        return [at.called[0].root]
    return list(at.operands)


def _downstream(at: Instruction) -> list[Instruction]:
    users = list(at.users)
    if at is at.computation.root:
        callers = at.computation.callers
        if len(callers) == 1 and callers[0].opcode in _FRAMES:
            users.append(callers[0])
    return [u for u in users if u.opcode not in ("tuple", "while")]
