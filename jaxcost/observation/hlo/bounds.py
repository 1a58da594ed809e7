"""How often a while loop runs, from its own condition.

Solved where it can be: the condition compares two integers that are linear in the iteration number, and the count is
the first iteration where the comparison fails. Of several conditions joined by `and` the first to fail ends the loop:
one of them that depends on data leaves an interval. Where a counter moves otherwise (doubled, a float, wrapping at its
width, chosen by another condition), the loop is followed step by step, up to a bound.
"""

from __future__ import annotations

from dataclasses import dataclass

from jaxcost.observation.hlo.arithmetic import COMPARE, values_of
from jaxcost.observation.hlo.module import Instruction
from jaxcost.observation.hlo.scalars import (
    BUDGET,
    MAX_ITERATIONS,
    Frame,
    Junction,
    Line,
    Moving,
    Scalars,
    Symbolic,
    Test,
    Value,
    known,
    lines_of,
)

_PATIENCE = 16  # steps followed after the first that may be the last, where nothing bounds the loop from above


@dataclass(frozen=True, slots=True)
class Bounds:
    """Trips of a loop lie in [minimum, maximum]; None is no bound. `blocked` names loops around it whose iteration
    decides; `forever`, that nothing in the program ends it; `wraps`, that it ends, if at all, beyond a counter's type.
    """

    minimum: int
    maximum: int | None
    reason: str = ""
    blocked: frozenset[Symbolic] = frozenset()
    forever: bool = False
    wraps: bool = False

    @property
    def exact(self) -> int | None:
        """The count, None when it is not known."""
        return self.maximum if self.minimum == self.maximum else None


class Loops(Scalars):
    """Scalars, and how often loops run by them."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[tuple[Frame, int], Bounds | None] = {}

    def trips_after(self, frame: Frame, loop: Instruction) -> int | None:
        """Trips of a loop whose result is asked for; None while they are being found."""
        bounds = self.bounds(frame, loop)
        return None if bounds is None else bounds.exact

    def undecided(self, frame: Frame, loop: Instruction) -> Value:
        """Decided by the loops around it, where they block its count."""
        bounds = self.found.get((frame, loop.id))
        return Moving(bounds.blocked) if bounds is not None and bounds.blocked else None

    def bounds(self, frame: Frame, loop: Instruction, *, follow: bool = True) -> Bounds | None:
        """Bounds of the trips of a while instruction in a frame. `follow`: step by step, where that is needed."""
        key = (frame, loop.id)
        if key in self.found:
            return self.found[key]
        self.found[key] = None  # a loop whose own count asks for it
        solved = self._solved(frame, loop)
        if solved.exact is None and (follow or solved.wraps):
            solved = self._followed(frame, loop, solved)
            self.found[key] = solved
        elif solved.exact is None:
            del self.found[key]
        else:
            self.found[key] = solved
        return solved

    def why(self, loop: Instruction) -> str:
        """Why a count is not known."""
        if self.left <= 0:
            return f"the trip count of {loop.name} was not found among {BUDGET} values looked at in the module"
        return f"the trip count of {loop.name} depends on run-time values"

    # Solved -----------------------------------------------------------------------------------------------------------

    def _solved(self, frame: Frame, loop: Instruction) -> Bounds:
        symbolic = self.of_loop(frame, loop)
        condition = self.scalar(symbolic.condition, loop.called[1].root)
        return self._ends(symbolic, condition)

    def _ends(self, loop: Symbolic, condition: Value) -> Bounds:
        """When a condition first fails."""
        if isinstance(condition, Test):
            return self._first_failure(loop, condition)
        if isinstance(condition, Junction):
            left, right = self._ends(loop, condition.left), self._ends(loop, condition.right)
            blocked = left.blocked | right.blocked
            if condition.every:
                ends = [b.maximum for b in (left, right) if b.maximum is not None]
                return Bounds(min(left.minimum, right.minimum), min(ends) if ends else None, "", blocked)
            return Bounds(max(left.minimum, right.minimum), None, "", blocked)
        value = known(condition)
        if value is None:
            return Bounds(0, None, "", lines_of(condition))
        return Bounds(0, None, "its condition always holds", forever=True) if value else Bounds(0, 0)

    def _first_failure(self, loop: Symbolic, test: Test) -> Bounds:
        blocked: set[Symbolic] = set()
        starts: dict[int, int] = {}  # side -> distance at the start, and by how much it moves
        moves: dict[int, int] = {}
        ends: list[tuple[int, int, range]] = []  # values that must stay in their type: start, move, type
        for number, side in enumerate((test.left, test.right)):
            if not isinstance(side, Line):
                starts[number], moves[number] = side, 0
                continue
            if side.of is not loop:
                return Bounds(0, None, "", frozenset([side.of]))
            first, stride = loop.first(side.path), loop.stride(side.path)
            blocked |= lines_of(first)
            if not isinstance(first, int) or stride is None:
                blocked |= lines_of(loop.step(side.path)) - {loop}
                return Bounds(0, None, "", frozenset(blocked))
            shape = loop.loop.shape.at(side.path)
            assert shape is not None
            starts[number], moves[number] = side.scale * first + side.offset, side.scale * stride
            ends.append((first, stride, values_of(shape.dtype)))
            ends.append((starts[number], moves[number], values_of(test.dtype)))
        distance, slope = starts[0] - starts[1], moves[0] - moves[1]
        trips = first_failure(test.direction, distance, slope)
        if trips is None:
            forever = slope == 0 and not blocked
            reason = "its condition always holds" if forever else ""
            return Bounds(0, None, reason, frozenset(blocked), forever, wraps=slope != 0)
        if any(start + move * n not in possible for start, move, possible in ends for n in (0, trips)):
            return Bounds(0, None, wraps=True)  # something wraps around before that
        return Bounds(trips, trips)

    # Followed ---------------------------------------------------------------------------------------------------------

    def _followed(self, frame: Frame, loop: Instruction, solved: Bounds) -> Bounds:
        """Sharper bounds, by evaluating the condition iteration by iteration."""
        if solved.forever:
            return solved
        steps, root = self.steps_of(frame, loop), loop.called[1].root
        minimum: int | None = None
        blocked = solved.blocked
        for n in range(MAX_ITERATIONS + 1):
            if self.left <= 0:
                break
            condition = self.scalar(steps.frame(n, 1), root)
            holds = known(condition)
            if holds is None:
                blocked |= lines_of(condition)
                if minimum is None:
                    minimum = n
                if solved.maximum is not None or n >= minimum + _PATIENCE:
                    break
            elif not holds:
                return Bounds(n if minimum is None else minimum, n, self.why(loop), blocked)
            if n == solved.maximum:
                break
        else:
            text = f"{loop.name} still runs after {MAX_ITERATIONS} trips followed step by step"
            return Bounds(MAX_ITERATIONS if minimum is None else minimum, solved.maximum, text, blocked)
        least = max(solved.minimum, minimum or 0)
        if solved.maximum is not None:
            least = min(least, solved.maximum)
        return Bounds(least, solved.maximum, self.why(loop), blocked)


def first_failure(direction: str, start: int, slope: int) -> int | None:
    """The smallest n >= 0 for which `start + n slope` no longer compares as `direction` says with 0; None if never."""
    holds = COMPARE.get(direction)
    if holds is None:
        return None
    if not holds(start, 0):
        return 0
    if slope == 0:
        return None
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
