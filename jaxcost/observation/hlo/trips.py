"""How often each computation runs.

XLA writes the trip count of a loop on CPU and GPU (`known_trip_count`). On TPU it must be derived: each element of the
loop's state that changes by a constant is linear in the iteration number, the condition compares two such elements, and
the count is the first iteration where the comparison fails. What cannot be read this way is unknown: never 1, never 0.
Where XLA's number and the derived one disagree, the count is unknown too and the disagreement is reported.

Branches of a conditional are alternatives, so counts are intervals.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from jaxcost.observation.hlo.module import Computation, Instruction, Module
from jaxcost.observation.hlo.opcodes import DONE

_MAX_DEPTH = 64
_SIMULATED = 4096  # steps tried for counters that do not move by a constant (i = 2 i)
_INTEGERS = {"s8": 8, "s16": 16, "s32": 32, "s64": 64, "u8": 8, "u16": 16, "u32": 32, "u64": 64, "pred": 1}
_LITERALS = {"s32": "s32s", "s64": "s64s", "u32": "u32s", "u64": "u64s", "pred": "preds"}
_PACKED = {"s8": ("s8s", 1, True), "u8": ("u8s", 1, False), "s16": ("s16s", 2, True), "u16": ("u16s", 2, False)}
_THROUGH = frozenset("copy convert bitcast reshape copy-done copy-start opt-barrier".split())

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Total:
    """An integer known to lie in [minimum, maximum]; both None, with a reason, when it is unknown."""

    minimum: int | None
    maximum: int | None
    reason: str = ""

    @property
    def value(self) -> int | None:
        """The exact value, or None when it is an interval or unknown."""
        return self.minimum if self.minimum == self.maximum else None

    def __add__(self, other: Total) -> Total:
        if self.minimum is None or self.maximum is None:
            return self
        if other.minimum is None or other.maximum is None:
            return other
        return Total(self.minimum + other.minimum, self.maximum + other.maximum)

    def times(self, other: Total) -> Total:
        """The product; zero times unknown is zero (nothing in an uncounted loop)."""
        if self == ZERO or other == ZERO:
            return ZERO
        if self.minimum is None or self.maximum is None:
            return self
        if other.minimum is None or other.maximum is None:
            return other
        return Total(self.minimum * other.minimum, self.maximum * other.maximum)

    def either(self, other: Total) -> Total:
        """The union of two alternatives."""
        if self.minimum is None or self.maximum is None:
            return self
        if other.minimum is None or other.maximum is None:
            return other
        return Total(min(self.minimum, other.minimum), max(self.maximum, other.maximum))


ZERO, ONE = Total(0, 0), Total(1, 1)


def exact(value: int) -> Total:
    """A known integer."""
    return Total(value, value)


@dataclass(frozen=True, slots=True)
class Loop:
    """One while loop. `source` says where the trip count is from: declared, derived, supplied, or unknown."""

    instruction: str
    computation: str
    body: str
    op_name: str
    trips: int | None
    source: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class _Line:
    """scale * (element `index` of the loop state) + offset; index -1 is a plain integer."""

    index: int
    scale: int
    offset: int


class _Values:
    """Evaluates scalars: symbolically in the state of `loop` inside its body and condition, else as integers."""

    def __init__(self, module: Module, loop: Instruction | None) -> None:
        self.module, self.loop = module, loop
        self.state: set[Instruction] = set()
        for computation in loop.called if loop else ():
            self.state.update(computation.parameters.values())
        self.seen: dict[tuple[int, tuple[int, ...]], _Line | None] = {}

    def line(self, at: Instruction, path: tuple[int, ...] = (), depth: int = 0) -> _Line | None:
        """The value of a scalar (element `path` of `at`) as a line in the loop state."""
        if depth > _MAX_DEPTH:
            return None
        key = (at.id, path)
        if key not in self.seen:
            self.seen[key] = self._line(at, path, depth)
        return self.seen[key]

    def _line(self, at: Instruction, path: tuple[int, ...], depth: int) -> _Line | None:
        shape = at.shape.at(path)
        if shape is None or (not shape.is_tuple and (shape.dims not in ((), (1,)) or shape.dtype not in _INTEGERS)):
            return None
        opcode = at.opcode
        if opcode == "parameter":
            if at in self.state:
                if at.shape.is_tuple:
                    return _Line(path[0], 1, 0) if len(path) == 1 else None
                return _Line(0, 1, 0)
            operand = _caller_operand(at)
            return None if operand is None else self.line(operand, path, depth + 1)
        if opcode == "get-tuple-element":
            return self.line(at.operands[0], (at.proto.tuple_index, *path), depth + 1)
        if opcode == "tuple":
            return self.line(at.operands[path[0]], path[1:], depth + 1) if path else None
        if opcode == "copy-start":
            return self.line(at.operands[0], path[1:], depth + 1)
        if opcode == "copy-done":
            return self.line(at.operands[0].operands[0] if at.operands[0].operands else at.operands[0], path, depth + 1)
        if opcode in _THROUGH:
            return self.line(at.operands[0], path, depth + 1)
        if opcode in ("fusion", "call"):
            return self.line(at.called[0].root, path, depth + 1)
        if opcode == "constant":
            value = _literal(at)
            return None if value is None else _Line(-1, 0, value)
        if opcode == "while":
            return self.invariant(at, path, depth)
        if opcode in ("add", "subtract", "multiply"):
            left = self.line(at.operands[0], (), depth + 1)
            right = self.line(at.operands[1], (), depth + 1)
            return None if left is None or right is None else _combine(opcode, left, right)
        if opcode == "negate":
            inner = self.line(at.operands[0], (), depth + 1)
            return None if inner is None else _Line(inner.index, -inner.scale, -inner.offset)
        return None

    def invariant(self, loop: Instruction, path: tuple[int, ...], depth: int) -> _Line | None:
        """An element of a finished (or enclosing) loop's state that the loop never changes: its first value."""
        if loop is self.loop or len(path) > 1:
            return None
        index = path[0] if path else 0
        inner = _Values(self.module, loop)
        if inner.step(index, depth + 1) != _Line(index, 1, 0):
            return None
        return self.line(loop.operands[0], path, depth + 1)

    def step(self, index: int, depth: int = 0) -> _Line | None:
        """Element `index` after one iteration."""
        if self.loop is None:
            return None
        root = self.loop.called[0].root
        return self.line(root, (index,) if root.shape.is_tuple else (), depth)

    def first(self, index: int) -> int | None:
        """Element `index` before the loop."""
        if self.loop is None:
            return None
        before = self.loop.operands[0]
        return outer_value(self.module, before, (index,) if before.shape.is_tuple else ())


def _caller_operand(parameter: Instruction) -> Instruction | None:
    """The operand bound to a parameter of a fusion or call with one caller."""
    callers = parameter.computation.callers
    if len(callers) != 1 or callers[0].opcode not in ("fusion", "call"):
        return None
    number: int = parameter.proto.parameter_number
    return callers[0].operands[number]


def outer_value(module: Module, at: Instruction, path: tuple[int, ...] = (), depth: int = 0) -> int | None:
    """The value of a scalar that is the same whenever it is reached, or None."""
    if depth > 8:
        return None
    host = at.computation
    while len(host.callers) == 1 and host.callers[0].opcode in ("fusion", "call"):
        host = host.callers[0].computation
    loops = [c for c in host.callers if c.opcode == "while"]
    if len(host.callers) != 1 or not loops:  # the entry, or a place whose parameters have no single meaning
        line = _Values(module, None).line(at, path)
        return line.offset if line is not None and line.index == -1 else None
    around = _Values(module, loops[0])
    line = around.line(at, path)
    if line is None:
        return None
    if line.index == -1:
        return line.offset
    if around.step(line.index) != _Line(line.index, 1, 0):
        return None
    outside = outer_value(module, loops[0].operands[0], (line.index,), depth + 1)
    return None if outside is None else line.scale * outside + line.offset


def _combine(opcode: str, left: _Line, right: _Line) -> _Line | None:
    if opcode == "multiply":
        if left.index != -1:
            left, right = right, left
        if left.index != -1:
            return None
        return _Line(right.index, right.scale * left.offset, right.offset * left.offset)
    sign = -1 if opcode == "subtract" else 1
    if left.index != -1 and right.index != -1 and left.index != right.index:
        return None
    index = left.index if left.index != -1 else right.index
    line = _Line(index, left.scale + sign * right.scale, left.offset + sign * right.offset)
    return _Line(-1, 0, line.offset) if line.scale == 0 else line


def _literal(constant: Instruction) -> int | None:
    literal, dtype = constant.proto.literal, constant.shape.dtype
    if dtype in _LITERALS:
        values = getattr(literal, _LITERALS[dtype])
        return int(values[0]) if len(values) == 1 else None
    if dtype in _PACKED:
        name, size, signed = _PACKED[dtype]
        raw = getattr(literal, name)
        return int.from_bytes(raw, "little", signed=signed) if len(raw) == size else None
    return None


def _comparison(values: _Values) -> tuple[str, _Line, _Line, str] | None:
    """Direction, both sides and type of the loop's condition."""
    assert values.loop is not None
    at = values.loop.called[1].root
    for _ in range(_MAX_DEPTH):
        if at.opcode == "compare":
            left, right = (values.line(o) for o in at.operands)
            if left is None or right is None:
                return None
            return at.proto.comparison_direction, left, right, at.operands[0].shape.dtype
        if at.opcode in ("fusion", "call"):
            at = at.called[0].root
        elif at.opcode in _THROUGH and at.opcode != "copy-start":
            at = at.operands[0]
        elif at.opcode == "parameter" and (operand := _caller_operand(at)) is not None:
            at = operand
        else:
            return None
    return None


_HOLDS = {
    "LT": lambda d: d < 0, "LE": lambda d: d <= 0, "GT": lambda d: d > 0, "GE": lambda d: d >= 0,
    "EQ": lambda d: d == 0, "NE": lambda d: d != 0,
}  # fmt: skip


def _first_failure(direction: str, start: int, slope: int) -> int | None:
    """The smallest n >= 0 for which `start + n slope` no longer compares as `direction` says with 0."""
    holds = _HOLDS.get(direction)
    if holds is None:
        return None
    if not holds(start):
        return 0
    if slope == 0:
        return None  # holds for ever
    if direction == "EQ":
        return 1
    if direction == "NE":
        steps, rest = divmod(-start, slope)
        return steps if rest == 0 and steps > 0 else None
    if direction in ("GT", "GE"):
        start, slope = -start, -slope
    if slope < 0:
        return None  # moves away from the bound
    return -(start // slope) if direction in ("LT", "GT") else -start // slope + 1


def _values_of(dtype: str) -> range:
    """What a scalar of an integer type can be."""
    bits = _INTEGERS[dtype]
    return range(-(1 << (bits - 1)), 1 << (bits - 1)) if dtype.startswith("s") else range(1 << bits)


def derive_trips(module: Module, loop: Instruction) -> int | None:
    """The trip count of a while instruction from its scalars; None when they do not determine it."""
    values = _Values(module, loop)
    compared = _comparison(values)
    if compared is None:
        return None
    direction, left, right, dtype = compared
    possible = _values_of(dtype)
    moving: dict[int, tuple[int, int, int]] = {}  # element -> first value, scale and offset of its step
    for side in (left, right):
        if side.index == -1 or side.index in moving:
            continue
        first, step = values.first(side.index), values.step(side.index)
        if first is None or step is None or step.index not in (-1, side.index):
            return None
        moving[side.index] = (first, step.scale, step.offset)

    def at(side: _Line, n_of: Mapping[int, int]) -> int:
        return side.offset if side.index == -1 else side.scale * n_of[side.index] + side.offset

    start = {index: first for index, (first, _, _) in moving.items()}
    distance = at(left, start) - at(right, start)
    if all(scale == 1 for _, scale, _ in moving.values()):
        after = {index: first + offset for index, (first, _, offset) in moving.items()}
        slope = at(left, after) - at(right, after) - distance
        trips = _first_failure(direction, distance, slope)
        if trips is None:
            return None
        last = {index: first + offset * trips for index, (first, _, offset) in moving.items()}
        wraps = any(v not in possible for v in last.values())
        return None if wraps else trips
    holds = _HOLDS.get(direction)
    if holds is None:
        return None
    now = start
    for trip in range(_SIMULATED):
        if not holds(at(left, now) - at(right, now)):
            return trip
        now = {index: moving[index][1] * value + moving[index][2] for index, value in now.items()}
        if any(v not in possible for v in now.values()):
            return None
    return None


def _declared(loop: Instruction) -> int | None:
    known = loop.backend_config().get("known_trip_count")
    n = known.get("n") if isinstance(known, dict) else None
    if isinstance(n, str) and n.isdecimal() and len(n) <= 20:
        return int(n)
    return n if isinstance(n, int) and not isinstance(n, bool) and n >= 0 else None


def read_loops(module: Module, supplied: Mapping[str, int] | None = None) -> dict[int, Loop]:
    """Every while loop by instruction id. `supplied`: counts by instruction name, for loops that have none."""
    loops: dict[int, Loop] = {}
    for at in module.walk():
        if at.opcode != "while":
            continue
        declared, derived = _declared(at), derive_trips(module, at)
        trips, source, reason = declared, "declared", ""
        if declared is None:
            trips, source = derived, "derived"
        elif derived is not None and derived != declared:
            trips, source = None, "unknown"
            reason = f"XLA declares {declared} trips but the loop's scalars give {derived}"
        if trips is None and not reason:
            if supplied and at.name in supplied:
                trips, source = supplied[at.name], "supplied"
            else:
                source, reason = "unknown", f"the trip count of {at.name} depends on run-time values"
        loops[at.id] = Loop(at.name, at.computation.name, at.called[0].name, at.op_name, trips, source, reason)
    return loops


@dataclass(frozen=True, slots=True)
class Executions:
    """How often computations run per step, and sums over the program weighted by it."""

    module: Module
    loops: Mapping[int, Loop]

    def _calls(self, at: Instruction) -> list[tuple[Computation, Total]]:
        """(computation, times per execution of `at`) for plain calls; branches are handled by the callers of this."""
        if at.opcode == "while":
            loop = self.loops[at.id]
            body, condition = at.called
            if loop.trips is None:
                unknown = Total(None, None, loop.reason)
                return [(body, unknown), (condition, unknown)]
            return [(body, exact(loop.trips)), (condition, exact(loop.trips + 1))]
        if at.opcode in DONE:
            return []
        if at.opcode in ("fusion", "call", "async-start", "custom-call"):
            return [(c, ONE) for c in at.called]
        # reduce, sort, scatter, all-reduce: a scalar function, run once per element
        return []

    def counts(self) -> dict[int, Total]:
        """Executions of each computation by id; (0, 0) when nothing reaches it."""
        counts = {c.id: ZERO for c in self.module.computations}
        counts[self.module.entry.id] = ONE
        for computation in reversed(self.module.computations):
            times = counts[computation.id]
            if times == ZERO:
                continue
            for at in computation.instructions:
                if not at.called:
                    continue
                if at.opcode == "conditional":
                    for branch in at.called:
                        maybe = times.times(Total(0, 1) if len(at.called) > 1 else ONE)
                        counts[branch.id] = counts[branch.id] + maybe
                    continue
                for callee, n in self._calls(at):
                    counts[callee.id] = counts[callee.id] + times.times(n)
        return counts

    def totals(self, own: Mapping[int, Mapping[K, int]]) -> dict[K, Total]:
        """Sum over the program of `own[instruction id][key]` (one execution's worth), by key.

        A conditional contributes the interval over its branches, not their sum; an uncounted loop makes the keys inside
        it unknown and leaves the others alone.
        """
        done: dict[int, dict[K, Total]] = {}
        for computation in self.module.computations:
            result: dict[K, Total] = {}
            for at in computation.instructions:
                mine = own.get(at.id)
                if mine:
                    for key, once in mine.items():
                        result[key] = result.get(key, ZERO) + exact(once)
                if not at.called:
                    continue
                if at.opcode == "conditional":
                    branches = [done[b.id] for b in at.called]
                    for key in {k for b in branches for k in b}:
                        alternatives = [b.get(key, ZERO) for b in branches]
                        union = alternatives[0]
                        for other in alternatives[1:]:
                            union = union.either(other)
                        result[key] = result.get(key, ZERO) + union
                    continue
                for callee, times in self._calls(at):
                    for key, amount in done[callee.id].items():
                        result[key] = result.get(key, ZERO) + amount.times(times)
            done[computation.id] = result
        return done[self.module.entry.id]
