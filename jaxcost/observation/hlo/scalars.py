"""What a scalar of a compiled program is, as far as the program itself says.

Loop bounds, counters and the predicates of conditionals are small integer programs inside the module. `Scalars` runs
them one element at a time, on demand, through tuples, fusions, calls, slices of tables and the state of loops. It reads
in one of two ways: at a given iteration of a loop, where every element of the state that follows from constants has a
value; or for all iterations at once, where an integer that moves is a `Line` in its own value at the iteration's start,
and a comparison of lines is a `Test` that can be solved for the first iteration where it fails.

What depends on an argument, on a reduction, on a collective is None: unknown. Nothing is ever guessed from names.
Work is bounded: past the budget everything is unknown.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from jaxcost.observation.hlo import arithmetic
from jaxcost.observation.hlo.arithmetic import INTEGERS, Number, literal_element, values_of, wrapped
from jaxcost.observation.hlo.module import Computation, Instruction

MAX_DEPTH = 100
BUDGET = 200_000  # elements evaluated per module; a compiled program of 100,000 instructions took 6,777
MAX_ITERATIONS = 4096  # of one loop followed step by step

Path = tuple[int, ...]
Index = tuple[int, ...]


class State(Protocol):
    """The state of a loop as its body and condition see it."""

    def value(self, path: Path, index: Index, depth: int) -> Value:
        """An element of the state."""


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """A computation as one of its callers runs it.

    Its parameters are the operands of `caller` from `shift` on, read in `above`; or the `state` of a loop; or unknown.
    """

    computation: Computation
    above: Frame | None = None
    caller: Instruction | None = None
    shift: int = 0
    state: State | None = None
    memo: dict[tuple[int, Path, Index], Value] = field(default_factory=dict)
    children: dict[tuple[int, int], Frame] = field(default_factory=dict)

    def child(self, caller: Instruction, which: int = 0, shift: int = 0) -> Frame:
        """The frame of the computation number `which` that `caller` calls."""
        key = (caller.id, which)
        if key not in self.children:
            self.children[key] = Frame(caller.called[which], self, caller, shift)
        return self.children[key]


@dataclass(frozen=True, slots=True)
class Line:
    """scale * (element `path` of a loop's state at the start of an iteration) + offset."""

    of: Symbolic
    path: Path
    scale: int
    offset: int


@dataclass(frozen=True, slots=True)
class Test:
    """A comparison whose outcome changes with the iteration; `dtype` is the type compared in."""

    direction: str
    left: int | Line
    right: int | Line
    dtype: str


@dataclass(frozen=True, slots=True)
class Junction:
    """Both conditions (`every`), or either; a part may be unknown."""

    every: bool
    left: Value
    right: Value


@dataclass(frozen=True, slots=True)
class Moving:
    """A value that the iterations of loops decide in a way that is not followed for all iterations at once."""

    of: frozenset[Symbolic]


Value = int | float | Line | Test | Junction | Moving | None


def known(value: Value) -> Number | None:
    """The number, or None for what is not one."""
    return value if isinstance(value, int | float) else None


def lines_of(value: Value) -> frozenset[Symbolic]:
    """The loops whose iterations decide a value."""
    if isinstance(value, Line):
        return frozenset([value.of])
    if isinstance(value, Test | Junction):
        return lines_of(value.left) | lines_of(value.right)
    return value.of if isinstance(value, Moving) else frozenset()


def _unfollowed(read: Iterable[Value]) -> Moving | None:
    """What an operation makes of values that are not all numbers: unknown, or decided by iterations."""
    values = list(read)
    return None if any(v is None for v in values) else Moving(frozenset().union(*map(lines_of, values)))


class Scalars:
    """Evaluates elements of arrays. `trips_after` tells how often a loop runs, for what it leaves behind."""

    def __init__(self) -> None:
        self.left = BUDGET
        self.symbolic: dict[tuple[Frame, int], Symbolic] = {}
        self.concrete: dict[tuple[Frame, int], Concrete] = {}
        self.origins: dict[tuple[int, Path], tuple[int, Path] | None] = {}

    def trips_after(self, frame: Frame, loop: Instruction) -> int | None:
        """Trips of a loop in a frame, None when unknown. The reader of loops overrides it."""
        return None

    def undecided(self, frame: Frame, loop: Instruction) -> Value:
        """What is known of a loop whose count is not: the loops around it whose iterations decide."""
        return None

    def of_loop(self, frame: Frame, loop: Instruction) -> Symbolic:
        """The state of a loop for all iterations at once."""
        key = (frame, loop.id)
        if key not in self.symbolic:
            self.symbolic[key] = Symbolic(self, frame, loop)
        return self.symbolic[key]

    def steps_of(self, frame: Frame, loop: Instruction) -> Concrete:
        """The states of a loop, iteration by iteration."""
        key = (frame, loop.id)
        if key not in self.concrete:
            self.concrete[key] = Concrete(self, frame, loop)
        return self.concrete[key]

    def scalar(self, frame: Frame, at: Instruction, path: Path = (), depth: int = 0) -> Value:
        """A scalar, or the one element of an array that has one."""
        shape = at.shape.at(path)
        if shape is None or shape.is_tuple or shape.size != 1:
            return None
        return self.element(frame, at, path, (0,) * len(shape.dims), depth)

    def element(self, frame: Frame, at: Instruction, path: Path = (), index: Index = (), depth: int = 0) -> Value:
        """Element `index` of the array at `path` of what `at` makes."""
        if depth > MAX_DEPTH or self.left <= 0:
            return None
        key = (at.id, path, index)
        if key not in frame.memo:
            self.left -= 1
            frame.memo[key] = self._element(frame, at, path, index, depth + 1)
        return frame.memo[key]

    def _element(self, frame: Frame, at: Instruction, path: Path, index: Index, depth: int) -> Value:
        opcode, operands = at.opcode, at.operands
        if opcode == "parameter":
            if frame.state is not None:
                return frame.state.value(path, index, depth)
            if frame.caller is None or frame.above is None:
                return None
            number = frame.shift + at.number
            if number >= len(frame.caller.operands):
                return None
            return self.element(frame.above, frame.caller.operands[number], path, index, depth)
        if opcode == "get-tuple-element":
            return self.element(frame, operands[0], (at.number, *path), index, depth)
        if opcode == "tuple":
            return self.element(frame, operands[path[0]], path[1:], index, depth) if path else None
        if opcode in ("copy", "copy-done", "opt-barrier", "async-update", "add-dependency", "domain"):
            inner = (0, *path) if opcode == "copy-done" and operands[0].opcode == "copy-start" else path
            return self.element(frame, operands[0], inner, index, depth) if operands else None
        if opcode == "copy-start":
            return self.element(frame, operands[0], path[1:], index, depth)
        if opcode in ("fusion", "call"):
            return self.element(frame.child(at), at.called[0].root, path, index, depth)
        if opcode == "async-done":
            return self._started(frame, operands[0], path, index, depth)
        if opcode == "while":
            return self._after(frame, at, path, index, depth)
        if opcode == "conditional":
            return self._branched(frame, at, path, index, depth)
        if path or at.shape.is_tuple:
            return None
        if opcode == "constant":
            return literal_element(at, index)
        if opcode in arithmetic.MOVES:
            source = arithmetic.source_index(at, index)
            return None if source is None else self.element(frame, operands[source[0]], (), source[1], depth)
        if opcode == "iota":
            return self._iota(at, index)
        if opcode == "dynamic-slice":
            return self._dynamic_slice(frame, at, index, depth)
        if opcode == "dynamic-update-slice":
            return self._updated(frame, at, index, depth)
        if opcode in arithmetic.ELEMENTWISE and all(o.shape.dims == at.shape.dims for o in operands):
            return self._computed(at, [self.element(frame, o, (), index, depth) for o in operands])
        if opcode in ("select", "clamp"):
            read = [self.element(frame, o, (), index if o.shape.dims else (), depth) for o in operands]
            return self._chosen(at, read)
        return None

    # Values -----------------------------------------------------------------------------------------------------------

    @staticmethod
    def _iota(at: Instruction, index: Index) -> Value:
        dimension = at.proto.dimensions[0] if at.proto.dimensions else 0
        return wrapped(index[dimension], at.shape.dtype)

    def _starts(
        self, frame: Frame, at: Instruction, first: int, sizes: Index, depth: int
    ) -> tuple[Index, Moving | None]:
        """Where a dynamic slice of `sizes` begins: moved back inside, as XLA does; () and why not, when not known."""
        dims, found = at.operands[0].shape.dims, []
        for operand, size, whole in zip(at.operands[first:], sizes, dims, strict=True):
            value: Value = 0 if size == whole else self.scalar(frame, operand, (), depth)
            start = known(value)
            if start is None:
                return (), _unfollowed([value])
            found.append(max(0, min(int(start), whole - size)))
        return tuple(found), None

    def _dynamic_slice(self, frame: Frame, at: Instruction, index: Index, depth: int) -> Value:
        if len(at.operands) != 1 + len(at.shape.dims):
            return None
        starts, why = self._starts(frame, at, 1, at.shape.dims, depth)
        if len(starts) != len(index):
            return why
        return self.element(frame, at.operands[0], (), tuple(s + i for s, i in zip(starts, index, strict=True)), depth)

    def _updated(self, frame: Frame, at: Instruction, index: Index, depth: int) -> Value:
        sizes = at.operands[1].shape.dims
        if len(at.operands) != 2 + len(sizes):
            return None
        starts, why = self._starts(frame, at, 2, sizes, depth)
        if len(starts) != len(index):
            return why
        inner = tuple(i - s for i, s in zip(index, starts, strict=True))
        if all(0 <= i < size for i, size in zip(inner, sizes, strict=True)):
            return self.element(frame, at.operands[1], (), inner, depth)
        return self.element(frame, at.operands[0], (), index, depth)

    def _computed(self, at: Instruction, read: list[Value]) -> Value:
        opcode, dtype = at.opcode, at.shape.dtype
        if opcode == "compare":
            return self._compared(at, *read)
        if opcode == "convert":
            return self._converted(read[0], at.operands[0].shape.dtype, dtype)
        if dtype == "pred" and opcode in ("and", "or", "not"):
            return _joined(opcode, read)
        numbers = [known(v) for v in read]
        if opcode == "multiply" and dtype in INTEGERS and 0 in numbers:
            return 0
        if any(n is None for n in numbers):
            line = _moved(opcode, read, dtype)
            return _unfollowed(read) if line is None else line
        return arithmetic.compute(opcode, [n for n in numbers if n is not None], dtype)

    @staticmethod
    def _converted(value: Value, source: str, target: str) -> Value:
        if source == target:
            return value
        if isinstance(value, Line):  # a type that holds all of the other's values keeps the line
            fits = source in INTEGERS and target in INTEGERS and target != "pred"
            wide = fits and set_within(values_of(source), values_of(target))
            return value if wide else _unfollowed([value])
        number = known(value)
        return _unfollowed([value]) if number is None else wrapped(number, target)

    @staticmethod
    def _compared(at: Instruction, left: Value, right: Value) -> Value:
        direction: str = at.proto.comparison_direction
        dtype = at.operands[0].shape.dtype
        a, b = known(left), known(right)
        if a is not None and b is not None:
            holds = arithmetic.COMPARE.get(direction)
            return None if holds is None else holds(a, b)
        if dtype == "pred":
            if a is not None:
                left, a, b = right, b, a
            if b is None or direction not in ("EQ", "NE"):
                return _unfollowed([left, right])
            return left if bool(b) == (direction == "EQ") else _joined("not", [left])
        sides = [v for v in (left, right) if isinstance(v, int | Line)]
        if len(sides) != 2 or dtype not in INTEGERS:
            return _unfollowed([left, right])
        return Test(direction, sides[0], sides[1], dtype)

    @staticmethod
    def _chosen(at: Instruction, read: list[Value]) -> Value:
        if at.opcode == "clamp":
            low, value, high = (known(v) for v in read)
            if low is None or value is None or high is None:
                return _unfollowed(read)
            return min(max(value, low), high)
        which = known(read[0])
        if which is None:
            return read[1] if read[1] == read[2] else _unfollowed(read)
        return read[1] if which else read[2]

    # What computations leave behind -----------------------------------------------------------------------------------

    def _started(self, frame: Frame, at: Instruction, path: Path, index: Index, depth: int) -> Value:
        for _ in range(MAX_DEPTH):
            if at.opcode == "async-start" and at.called:
                return self.element(frame.child(at), at.called[0].root, path, index, depth)
            if at.opcode != "async-update":
                return None
            at = at.operands[0]
        return None

    def _branched(self, frame: Frame, at: Instruction, path: Path, index: Index, depth: int) -> Value:
        chooses = self.scalar(frame, at.operands[0], (), depth)
        which = branch_of(at, chooses)
        taken = range(len(at.called)) if which is None else [which]
        values = [self.element(frame.child(at, b, 1 + b), at.called[b].root, path, index, depth) for b in taken]
        return values[0] if all(v == values[0] for v in values) else _unfollowed([chooses, *values])

    def _after(self, frame: Frame, at: Instruction, path: Path, index: Index, depth: int) -> Value:
        if self.origin(at.called[0].root, path) == (0, path):
            return self.element(frame, at.operands[0], path, index, depth)
        trips = self.trips_after(frame, at)
        if trips is None:
            return self.undecided(frame, at)
        return self.steps_of(frame, at).value(trips, path, index, depth)

    def origin(self, at: Instruction, path: Path, depth: int = 0) -> tuple[int, Path] | None:
        """The parameter (number, path) of its computation that an element is, unchanged; None when it is made there."""
        if depth > MAX_DEPTH:
            return None
        key = (at.id, path)
        if key not in self.origins:
            self.origins[key] = self._origin(at, path, depth + 1)
        return self.origins[key]

    def _origin(self, at: Instruction, path: Path, depth: int) -> tuple[int, Path] | None:
        opcode, operands = at.opcode, at.operands
        if opcode == "parameter":
            return at.number, path
        if opcode == "get-tuple-element":
            return self.origin(operands[0], (at.number, *path), depth)
        if opcode == "tuple":
            return self.origin(operands[path[0]], path[1:], depth) if path else None
        if opcode in ("copy", "opt-barrier", "add-dependency"):
            return self.origin(operands[0], path, depth) if operands else None
        if opcode == "copy-done":
            started = operands[0]
            return self.origin(started.operands[0], path, depth) if started.opcode == "copy-start" else None
        if opcode == "bitcast" and operands[0].shape.dims == at.shape.dims:
            return self.origin(operands[0], path, depth)
        branches: list[tuple[Instruction, tuple[int, Path] | None]]
        if opcode in ("fusion", "call"):
            inner = self.origin(at.called[0].root, path, depth)
            return None if inner is None else self.origin(operands[inner[0]], inner[1], depth)
        if opcode == "while":
            kept = self.origin(at.called[0].root, path, depth) == (0, path)
            return self.origin(operands[0], path, depth) if kept else None
        if opcode == "conditional":
            branches = [(o, self.origin(c.root, path, depth)) for o, c in zip(operands[1:], at.called, strict=False)]
            found = {None if k is None or k[0] else self.origin(o, k[1], depth) for o, k in branches}
            return found.pop() if len(found) == 1 else None
        return None


def set_within(inner: range, outer: range) -> bool:
    """Whether every value of one range lies in the other."""
    return inner.start >= outer.start and inner.stop <= outer.stop


def branch_of(at: Instruction, value: Value) -> int | None:
    """Which computation a conditional calls for a value of its first operand: out of range is the last one."""
    number = known(value)
    if number is None:
        return 0 if len(at.called) == 1 else None
    if at.operands[0].shape.dtype == "pred":
        return 0 if number or len(at.called) == 1 else 1
    return int(number) if 0 <= number < len(at.called) else len(at.called) - 1


_OPPOSITE = {"LT": "GE", "LE": "GT", "GT": "LE", "GE": "LT", "EQ": "NE", "NE": "EQ"}


def _joined(opcode: str, read: list[Value]) -> Value:
    """and, or, not of truth values, with unknowns."""
    if opcode == "not":
        (value,) = read
        if isinstance(value, Test) and value.direction in _OPPOSITE:
            return Test(_OPPOSITE[value.direction], value.left, value.right, value.dtype)
        if isinstance(value, Junction):
            return Junction(not value.every, _joined("not", [value.left]), _joined("not", [value.right]))
        number = known(value)
        return _unfollowed([value]) if number is None else not number
    left, right = read
    settles = opcode == "or"
    for value, other in ((left, right), (right, left)):
        number = known(value)
        if number is not None:
            return settles if bool(number) == settles else other
    if left is None and right is None:
        return None
    return Junction(opcode == "and", left, right)


def _moved(opcode: str, read: list[Value], dtype: str) -> Value:
    """Integer arithmetic on lines: what stays a line."""
    if dtype not in INTEGERS or dtype == "pred":
        return None
    if opcode == "negate":
        (line,) = read
        return Line(line.of, line.path, -line.scale, -line.offset) if isinstance(line, Line) else None
    if opcode not in ("add", "subtract", "multiply"):
        return None
    left, right = read
    if opcode == "multiply":
        if isinstance(right, Line):
            left, right = right, left
        if not isinstance(left, Line) or not isinstance(right, int):
            return None
        return Line(left.of, left.path, left.scale * right, left.offset * right) if right else 0
    sign = -1 if opcode == "subtract" else 1
    if isinstance(left, Line) and isinstance(right, int):
        return Line(left.of, left.path, left.scale, left.offset + sign * right)
    if isinstance(left, int) and isinstance(right, Line):
        return Line(right.of, right.path, sign * right.scale, left + sign * right.offset)
    if isinstance(left, Line) and isinstance(right, Line) and left.of is right.of and left.path == right.path:
        scale, offset = left.scale + sign * right.scale, left.offset + sign * right.offset
        return Line(left.of, left.path, scale, offset) if scale else wrapped(offset, dtype)
    return None


class Symbolic:
    """A loop's state for all iterations at once: what the body never changes keeps its first value, an integer is a
    line in itself.
    """

    def __init__(self, scalars: Scalars, above: Frame, loop: Instruction) -> None:
        self.scalars, self.above, self.loop = scalars, above, loop
        self.body = Frame(loop.called[0], above, state=self)
        self.condition = Frame(loop.called[1], above, state=self)

    def value(self, path: Path, index: Index, depth: int) -> Value:
        """An element of the state at the start of an iteration."""
        if self.scalars.origin(self.loop.called[0].root, path) == (0, path):
            return self.scalars.element(self.above, self.loop.operands[0], path, index, depth)
        shape = self.loop.shape.at(path)
        if shape is None or shape.is_tuple:
            return None
        counts = shape.size == 1 and shape.dtype in INTEGERS and shape.dtype != "pred"
        return Line(self, path, 1, 0) if counts else Moving(frozenset([self]))

    def first(self, path: Path) -> Value:
        """A scalar of the state before the loop."""
        return self.scalars.scalar(self.above, self.loop.operands[0], path)

    def step(self, path: Path) -> Value:
        """A scalar of the state after one iteration."""
        return self.scalars.scalar(self.body, self.loop.called[0].root, path)

    def stride(self, path: Path) -> int | None:
        """By how much an integer of the state moves in each iteration, None when not always by the same."""
        step = self.step(path)
        if isinstance(step, Line) and step.of is self and step.path == path and step.scale == 1:
            return step.offset
        return None


class Concrete:
    """A loop's states iteration by iteration."""

    def __init__(self, scalars: Scalars, above: Frame, loop: Instruction) -> None:
        self.scalars, self.above, self.loop = scalars, above, loop
        self.values: dict[tuple[Path, Index], list[Value]] = {}
        self.frames: dict[tuple[int, int], Frame] = {}

    def frame(self, iteration: int, which: int = 0) -> Frame:
        """The body (0) or the condition (1) as run in an iteration."""
        key = (iteration, which)
        if key not in self.frames:
            self.frames[key] = Frame(self.loop.called[which], self.above, state=_At(self, iteration))
        return self.frames[key]

    def value(self, iteration: int, path: Path, index: Index, depth: int) -> Value:
        """An element of the state at the start of an iteration (after the last: what the loop leaves)."""
        scalars, root = self.scalars, self.loop.called[0].root
        if scalars.origin(root, path) == (0, path):
            return scalars.element(self.above, self.loop.operands[0], path, index, depth)
        values = self.values.setdefault((path, index), [])
        if not values:
            values.append(scalars.element(self.above, self.loop.operands[0], path, index, depth))
        if iteration < len(values):
            return values[iteration]
        shape = self.loop.shape.at(path)
        if shape is None or shape.is_tuple:
            return None
        if shape.size == 1 and shape.dtype in INTEGERS and isinstance(values[0], int):
            stride = scalars.of_loop(self.above, self.loop).stride(path)
            if stride is not None:
                return wrapped(values[0] + iteration * stride, shape.dtype)
        if iteration > MAX_ITERATIONS:
            return None
        while len(values) <= iteration:
            values.append(scalars.element(self.frame(len(values) - 1), root, path, index, depth))
        return values[iteration]


@dataclass(frozen=True, slots=True)
class _At:
    steps: Concrete
    iteration: int

    def value(self, path: Path, index: Index, depth: int) -> Value:
        return self.steps.value(self.iteration, path, index, depth)
