"""Memory over the schedule: a thinned series of the replayed heap trace, and the fullest moment of each part of a step.

A step of the schedule is one instruction that takes memory, and its bytes are the most in use until the next one takes
some. The parts are found from the loops and products of the layers: what lies between the first and the last of the
forward ones is `forward`, what follows until the first backward one is `between` (norm, head, loss, copies of layout),
then `backward`, replay included, and `after`. They are contiguous, so a copy that no name places is in the right part.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from jaxcost.observation.hlo.heap import FREE, Held, replay
from jaxcost.observation.hlo.module import Computation, Instruction, Module
from jaxcost.observation.hlo.origins import Places
from jaxcost.observation.hlo.schema import Proto
from jaxcost.observation.hlo.scope import BACKWARD, FORWARD, REPLAY, Place

MOST_POINTS = 400
MOMENTS = ("before", "forward", "between", "backward", "after", "program")
_PRODUCTS = frozenset({"dot", "convolution", "ragged-dot", "custom-call"})


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the schedule; `first` is its first event, `event` the one after which most is in use."""

    number: int
    instruction: str
    computation: str
    bytes: int
    event: int
    first: int


@dataclass(frozen=True, slots=True)
class Point:
    """One step that was kept. `bytes` and `by_class` (of which none is 0) include what is resident; `live` lists the
    largest temporaries.
    """

    step: int
    instruction: str
    computation: str
    scope: str
    phase: str
    moment: str
    bytes: int
    by_class: dict[str, int]
    live: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Shown:
    """A buffer that a point names, described by the value in it."""

    bytes: int
    shape: str
    class_: str
    scope: str
    phase: str
    instruction: str
    source: str


@dataclass(frozen=True, slots=True)
class Timeline:
    """`points` are in order; the largest is the peak. `resident_bytes` are in each of them."""

    steps: int
    peak_step: int
    resident_bytes: int
    resident: tuple[str, ...]
    points: tuple[Point, ...]
    buffers: dict[str, Shown]


def read_steps(trace: Proto, sizes: dict[int, int]) -> list[Step]:
    """The steps of a trace."""
    steps: list[Step] = []
    here: tuple[str, str] | None = None
    most, at, first = 0, -1, 0
    for event in replay(trace, sizes):
        place = (event.computation, event.instruction)
        if event.kind != FREE and place != here:
            if here is not None:
                steps.append(Step(len(steps), here[1], here[0], most, at, first))
            here, most, at, first = place, -1, -1, event.number
        if event.used > most:
            most, at = event.used, event.number
    if here is not None:
        steps.append(Step(len(steps), here[1], here[0], most, at, first))
    return steps


class Parts:
    """Which part of a step's schedule an instruction belongs to."""

    def __init__(self, module: Module, places: Places) -> None:
        self.module, self.places = module, places
        self.by_name = {at.name: at for at in module.walk()}
        self.computations = {c.name: c for c in module.computations}
        self._inside: dict[int, frozenset[str]] = {}
        self._products = self._named_products()

    def _named_products(self) -> dict[str, str]:
        """Scheduled instructions that hold a product of a layer, and its pass."""
        found: dict[str, str] = {}
        for at in self.module.walk():
            if at.opcode not in _PRODUCTS:
                continue
            where = self.places.of(at)
            if not self._is_layer(where):
                continue
            outer = at
            while len(outer.computation.callers) == 1 and outer.computation.callers[0].opcode in ("fusion", "call"):
                outer = outer.computation.callers[0]
            found[outer.name] = _pass(where.phase)
        return found

    @staticmethod
    def _is_layer(where: Place) -> bool:
        return where.scope.startswith("group") and where.scope[5:6].isdigit()

    def _passes(self, computation: Computation) -> frozenset[str]:
        """The passes of the products in a computation and in those it calls."""
        found = self._inside.get(computation.id)
        if found is None:
            passes: set[str] = set()
            for at in computation.instructions:
                if at.opcode in _PRODUCTS:
                    passes.add(_pass(self.places.of(at).phase))
                for called in at.called:
                    passes |= self._passes(called)
            found = self._inside[computation.id] = frozenset(passes - {""})
        return found

    def loop_of(self, computation: str) -> Instruction | None:
        """The outermost loop around a computation that belongs to one pass alone."""
        here, best = self.computations.get(computation), None
        for _ in range(64):
            if here is None or len(here.callers) != 1:
                return best
            caller = here.callers[0]
            if caller.opcode == "while" and len(self._passes(caller.called[0])) == 1:
                best = caller
            here = caller.computation
        return best

    def place(self, step: Step) -> Place:
        """Scope and phase of a step."""
        at = self.by_name.get(step.instruction)
        return Place("", "") if at is None else self.places.of(at)

    def moments(self, steps: Iterable[Step]) -> list[str]:
        """The part that each step lies in."""
        steps = list(steps)
        passes = [self._anchor(step) for step in steps]
        forward = [i for i, p in enumerate(passes) if p == FORWARD]
        backward = [i for i, p in enumerate(passes) if p == BACKWARD]
        if not forward and not backward:
            return ["program"] * len(steps)
        first_backward = backward[0] if backward else len(steps)
        last_backward = backward[-1] if backward else -1
        first_forward = forward[0] if forward else first_backward
        last_forward = max((i for i in forward if i < first_backward), default=first_forward - 1)
        names = []
        for i in range(len(steps)):
            if i < first_forward:
                names.append("before")
            elif i <= last_forward:
                names.append("forward")
            elif i < first_backward and backward:
                names.append("between")
            elif i <= last_backward:
                names.append("backward")
            else:
                names.append("after")
        return names

    def _anchor(self, step: Step) -> str | None:
        at, loop = self.by_name.get(step.instruction), self.loop_of(step.computation)
        if loop is None and at is not None and at.opcode == "while" and len(self._passes(at.called[0])) == 1:
            loop = at
        if loop is not None:
            return next(iter(self._passes(loop.called[0])))
        return self._products.get(step.instruction)


def _pass(phase: str) -> str:
    return BACKWARD if phase == REPLAY else phase if phase in (FORWARD, BACKWARD) else ""


def chosen(steps: list[Step], moments: list[str], most: int = MOST_POINTS) -> list[int]:
    """The numbers of the steps worth keeping: the ends, the fullest of all, of each computation and of each part, and
    others evenly between.
    """
    if not steps:
        return []
    keep = {0, len(steps) - 1, _fullest(range(len(steps)), steps)}
    for part in dict.fromkeys(moments):
        keep.add(_fullest((i for i, name in enumerate(moments) if name == part), steps))
    by_computation: dict[str, list[int]] = {}
    for i, step in enumerate(steps):
        by_computation.setdefault(step.computation, []).append(i)
    tops = sorted((_fullest(group, steps) for group in by_computation.values()), key=lambda i: -steps[i].bytes)
    keep |= set(tops[: most // 4])
    left = most - len(keep)
    if left > 0:
        every = max(1, -(-len(steps) // left))
        keep |= set(range(0, len(steps), every))
    return sorted(keep)


def _fullest(numbers: Iterable[int], steps: list[Step]) -> int:
    return max(numbers, key=lambda i: (steps[i].bytes, -i))


def snapshots(trace: Proto, sizes: dict[int, int], events: Mapping[int, int]) -> dict[int, tuple[Held, ...]]:
    """What is in use after each of the wanted events (event -> step), by step."""
    found: dict[int, tuple[Held, ...]] = {}
    for event in replay(trace, sizes):
        step = events.get(event.number)
        if step is not None:
            found[step] = tuple(Held(h.owner, h.born, list(h.values)) for h in event.live.values() if sizes[h.owner])
    return found
