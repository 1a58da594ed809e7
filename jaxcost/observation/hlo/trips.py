"""How often each computation runs.

XLA writes the trip count of a loop on CPU and GPU (`known_trip_count`); on TPU, in dumps of other stages and for counts
that it did not try, the count is found from the loop's own scalars (`bounds`). Where both say something and disagree,
the count is unknown and the disagreement is reported. What cannot be read either way is unknown: never 1, never 0.

A program is walked from its entry as it would run, without its arrays. What is decided by constants is decided: a
branch that is always taken, a loop inside a loop that runs as often as the outer counter says. Each distinct way in
which a computation runs is one plan: its calls, each with the plans it runs and how often. Branches that data decide
are alternatives, and counts become intervals.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Generic, TypeVar

from jaxcost.observation.hlo.bounds import Bounds, Loops
from jaxcost.observation.hlo.module import Computation, Instruction, Module
from jaxcost.observation.hlo.scalars import Frame, Symbolic, branch_of, lines_of
from jaxcost.observation.hlo.schema import rejected

_WALKED = 20_000  # computations walked in a context of their own, per module
_ONE_BY_ONE = 4096  # iterations of one loop told apart

_CALLERS = frozenset("while conditional fusion call async-start custom-call scan".split())

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
        if self is ZERO or other is ZERO:
            return other if self is ZERO else self
        if self.minimum is None or self.maximum is None:
            return self
        if other.minimum is None or other.maximum is None:
            return other
        return Total(self.minimum + other.minimum, self.maximum + other.maximum)

    def times(self, other: Total) -> Total:
        """The product; zero times unknown is zero (nothing in an uncounted loop)."""
        if self is ONE or other is ONE:
            return other if self is ONE else self
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
    """One while loop. `source` says where the trip count is from: declared (by XLA), derived (from its scalars),
    supplied (by the caller), unknown, or unreached (nothing runs it).

    `trips` is the count each time the loop runs, None when it is unknown or differs; it lies in [minimum, maximum]
    (None: no upper bound). `varies`: it differs from one run of the loop to the next, and is known each time. `entries`
    and `total` are the runs of the loop and its trips in one step. `state_bytes` is what it carries from trip to trip.
    """

    instruction: str
    computation: str
    body: str
    op_name: str
    trips: int | None
    source: str
    reason: str = ""
    minimum: int = 0
    maximum: int | None = None
    varies: bool = False
    entries: Total = ONE
    total: Total = ZERO
    state_bytes: int = 0
    line: str = ""


@dataclass(frozen=True, slots=True)
class Conditional:
    """One conditional: how often each branch runs in one step. `decided` is False when data choose the branch."""

    instruction: str
    computation: str
    op_name: str
    branches: tuple[str, ...]
    executions: tuple[Total, ...]
    decided: bool
    line: str = ""


@dataclass(frozen=True, slots=True)
class _Trips:
    minimum: int
    maximum: int | None
    source: str
    reason: str = ""

    @property
    def exact(self) -> int | None:
        return self.maximum if self.minimum == self.maximum else None

    def total(self, more: int = 0) -> Total:
        if self.maximum is None:
            return Total(None, None, self.reason)
        return Total(self.minimum + more, self.maximum + more)


@dataclass(frozen=True, slots=True)
class _Site:
    """One call. `runs`: (plan, times) of what it runs, in order of what it calls; of `alternatives` only one runs."""

    at: int
    runs: tuple[tuple[int, Total], ...]
    alternatives: bool = False
    trips: _Trips | None = None


@dataclass(frozen=True, slots=True)
class _Plan:
    computation: int
    sites: tuple[_Site, ...]


def _calls(at: Instruction) -> bool:
    """Whether what an instruction calls is part of the program: not a scalar function run once per element (reduce,
    sort, scatter, all-reduce).
    """
    return at.opcode in _CALLERS and bool(at.called)


class _Walk:
    """Walks a module once; `plans` lists callees before callers."""

    def __init__(self, module: Module, supplied: Mapping[str, int], declared: bool = True) -> None:
        self.module, self.supplied, self.declared = module, supplied, declared
        self.loops = Loops()
        self.plans: list[_Plan] = []
        self.numbers: dict[_Plan, int] = {}
        self.plain: dict[int, int] = {}  # computation -> its plan where no decision is inside
        self.loose: dict[int, int] = {}  # computation -> its plan with nothing known of its parameters
        self.walked = 0
        self.sites: dict[int, list[Instruction]] = {}
        for computation in module.computations:
            sites = [at for at in computation.instructions if _calls(at)]
            self.sites[computation.id] = sites
            if all(at.opcode not in ("while", "conditional") for at in sites) and all(
                c.id in self.plain for at in sites for c in at.called
            ):
                made = tuple(_Site(at.id, tuple((self.plain[c.id], _times(at)) for c in at.called)) for at in sites)
                self.plain[computation.id] = self.number(_Plan(computation.id, made))
        self.entry, _ = self.plan(Frame(module.entry))

    def number(self, plan: _Plan) -> int:
        if plan not in self.numbers:
            self.numbers[plan] = len(self.plans)
            self.plans.append(plan)
        return self.numbers[plan]

    def plan(self, frame: Frame) -> tuple[int, frozenset[Symbolic]]:
        """The plan of a computation in a frame, and the loops whose iteration would decide what it leaves open."""
        computation = frame.computation
        if computation.id in self.plain:
            return self.plain[computation.id], frozenset()
        self.walked += 1
        if self.walked > _WALKED:
            return self.loosely(computation), frozenset()
        made: list[_Site] = []
        blocked: frozenset[Symbolic] = frozenset()
        for at in self.sites[computation.id]:
            site, more = self.site(frame, at)
            made.append(site)
            blocked |= more
        return self.number(_Plan(computation.id, tuple(made))), blocked

    def loosely(self, computation: Computation) -> int:
        """The plan of a computation whoever calls it. Valid everywhere, and sharp nowhere."""
        if computation.id in self.plain:
            return self.plain[computation.id]
        if computation.id not in self.loose:
            frame = Frame(computation)
            made = []
            for at in self.sites[computation.id]:
                inner = [self.loosely(c) for c in at.called]
                if at.opcode == "while":
                    trips, _ = self.trips(frame, at)
                    made.append(_loop_site(at, [(inner[0], trips.total())], inner[1], trips))
                else:
                    runs = tuple((plan, _times(at)) for plan in inner)
                    made.append(_Site(at.id, runs, at.opcode == "conditional" and len(inner) > 1))
            self.loose[computation.id] = self.number(_Plan(computation.id, tuple(made)))
        return self.loose[computation.id]

    def site(self, frame: Frame, at: Instruction) -> tuple[_Site, frozenset[Symbolic]]:
        if at.opcode == "while":
            return self.loop(frame, at)
        if at.opcode == "conditional":
            value = self.loops.scalar(frame, at.operands[0])
            which = branch_of(at, value)
            blocked = lines_of(value) if which is None else frozenset()
            runs = []
            for number in range(len(at.called)):
                if which in (None, number):
                    plan, more = self.plan(frame.child(at, number, 1 + number))
                    blocked |= more
                else:
                    plan = self.loosely(at.called[number])
                runs.append((plan, ONE if which in (None, number) else ZERO))
            return _Site(at.id, tuple(runs), which is None), blocked
        runs, blocked = [], frozenset()
        for number in range(len(at.called)):
            plan, more = self.plan(frame.child(at, number) if at.opcode != "scan" else Frame(at.called[number]))
            runs.append((plan, _times(at)))
            blocked |= more
        return _Site(at.id, tuple(runs)), blocked

    def loop(self, frame: Frame, at: Instruction) -> tuple[_Site, frozenset[Symbolic]]:
        trips, blocked = self.trips(frame, at)
        state = self.loops.of_loop(frame, at)
        body, inside = self.plan(state.body)
        condition, more = self.plan(state.condition)
        bodies = [(body, trips.total())]
        if state in inside:
            bodies = self.one_by_one(frame, at, trips.exact, body) or bodies
        return _loop_site(at, bodies, condition, trips), (blocked | inside | more) - {state}

    def one_by_one(self, frame: Frame, at: Instruction, trips: int | None, same: int) -> list[tuple[int, Total]]:
        """The plans of the body in each iteration, with how often each occurs; [] where they cannot be told apart."""
        if trips is None or trips > _ONE_BY_ONE or self.walked + trips > _WALKED:
            return []
        steps, found = self.loops.steps_of(frame, at), Counter[int]()
        for n in range(trips):
            plan, _ = self.plan(steps.frame(n))
            found[plan] += 1
            if n == 1 and set(found) == {same}:
                return []  # something else than the counter decides
        return [(plan, exact(times)) for plan, times in sorted(found.items())]

    def trips(self, frame: Frame, at: Instruction) -> tuple[_Trips, frozenset[Symbolic]]:
        declared = declared_trips(at) if self.declared else None
        bounds = self.loops.bounds(frame, at, follow=declared is None) or Bounds(0, None)
        low, high = bounds.minimum, bounds.maximum
        if declared is not None:
            if low <= declared and (high is None or declared <= high):
                self.agree(at, declared, "XLA declares")
                return _Trips(declared, declared, "declared"), frozenset()
            said = str(low) if low == high else f"{low} to {high}" if high is not None else f"at least {low}"
            reason = f"XLA declares {declared} trips but the loop's scalars give {said}"
            low, high = 0, None
        elif bounds.exact is not None:
            self.agree(at, bounds.exact, "the loop's own scalars give")
            return _Trips(low, high, "derived"), frozenset()
        else:
            reason = bounds.reason or self.loops.why(at)
        if at.name in self.supplied:
            count = self.supplied[at.name]
            if count < low or (high is not None and count > high):
                most = "" if high is None else f" to {high}"
                raise rejected(
                    f"trips.{at.name}", count, f"the loop runs {low}{most} times by its own condition", "correct it"
                )
            return _Trips(count, count, "supplied"), frozenset()
        return _Trips(low, high, "unknown" if high is None else "derived", reason), bounds.blocked

    def agree(self, at: Instruction, known: int, said: str) -> None:
        """Refuse a supplied count that is another than the one the program fixes."""
        count = self.supplied.get(at.name, known)
        if count != known:
            raise rejected(f"trips.{at.name}", count, f"{said} {known} trips", "leave it out")


def _times(at: Instruction) -> Total:
    """Runs of what an instruction calls, per execution of it."""
    if at.opcode != "scan":
        return ONE
    scanned = at.operands[: len(at.operands) - at.proto.num_carries]
    dimension = at.proto.dimensions[0] if at.proto.dimensions else 0
    if not scanned or dimension >= len(scanned[0].shape.dims):
        return Total(None, None, f"{at.name} scans over nothing that has a size")
    return exact(scanned[0].shape.dims[dimension])


def _loop_site(at: Instruction, bodies: Iterable[tuple[int, Total]], condition: int, trips: _Trips) -> _Site:
    return _Site(at.id, (*bodies, (condition, trips.total(1))), trips=trips)


def declared_trips(loop: Instruction) -> int | None:
    """What XLA wrote into a while instruction as its `known_trip_count`, None where it wrote nothing readable."""
    known = loop.backend_config().get("known_trip_count")
    n = known.get("n") if isinstance(known, dict) else None
    if isinstance(n, str) and n.isdecimal() and len(n) <= 20:
        return int(n)
    return n if isinstance(n, int) and not isinstance(n, bool) and n >= 0 else None


@dataclass(frozen=True, slots=True)
class Inside(Generic[K]):
    """Sums over what a loop holds: one trip (an interval where trips differ), and all trips of one step."""

    per_trip: dict[K, Total]
    whole: dict[K, Total]


class Executions:
    """How often everything runs per step: `loops` and `conditionals` by instruction id, and sums weighted by it."""

    def __init__(
        self, module: Module, loops: Mapping[int, Loop], conditionals: Mapping[int, Conditional],
        plans: tuple[_Plan, ...], entry: int,
    ) -> None:  # fmt: skip
        self.module, self.loops, self.conditionals = module, loops, conditionals
        self._plans, self._entry = plans, entry

    @cached_property
    def _counts(self) -> dict[int, Total]:
        counts = {c.id: ZERO for c in self.module.computations}
        for plan, times in _times_of(self._plans, self._entry):
            counts[plan.computation] += times
        return counts

    @cached_property
    def _known(self) -> dict[int, int]:
        """The executions of those computations of which they are one number."""
        return {number: total.minimum for number, total in self._counts.items()
                if total.minimum is not None and total.minimum == total.maximum}  # fmt: skip

    @cached_property
    def reached(self) -> frozenset[int]:
        """The ids of the computations that may run."""
        return frozenset(number for number, total in self._counts.items() if total != ZERO)

    def counts(self) -> dict[int, Total]:
        """Executions of each computation by id; (0, 0) when nothing reaches it."""
        return dict(self._counts)

    def totals(self, own: Mapping[int, Mapping[K, int]]) -> dict[K, Total]:
        """Sum over the program of `own[instruction id][key]` (one execution's worth), by key.

        A conditional contributes the interval over its branches, not their sum; an uncounted loop makes the keys inside
        it unknown and leaves the others alone.
        """
        instructions, known = self.module.instructions, self._known
        found: dict[K, int] = {}
        rest: dict[int, Mapping[K, int]] = {}
        for number, amounts in own.items():
            times = known.get(instructions[number].computation.id)
            if times is None:
                rest[number] = amounts
            elif times:
                for key, amount in amounts.items():
                    found[key] = found.get(key, 0) + amount * times
        result = {key: exact(amount) for key, amount in found.items()}
        # What runs an uncertain number of times adds to what is certain, branch by branch and loop by loop.
        for key, more in self._sums(rest)[self._entry].items() if rest else ():
            result[key] = result.get(key, ZERO) + _total(more)
        return result

    def within(self, own: Mapping[int, Mapping[K, int]]) -> dict[int, Inside[K]]:
        """The same sums for what each loop holds, by instruction id."""
        if not self.loops:
            return {}
        sums = self._sums(own)
        trips: dict[int, list[dict[K, Total]]] = {}
        whole: dict[int, dict[K, Total]] = {}
        for plan, times in _times_of(self._plans, self._entry):
            for site in plan.sites:
                if site.trips is None:
                    continue
                bodies = site.runs[:-1]  # the last is the condition
                inside = [{key: _total(amount) for key, amount in sums[number].items()} for number, _ in bodies]
                trips.setdefault(site.at, []).extend(inside)
                found = whole.setdefault(site.at, {})
                for held, (_, once) in zip(inside, bodies, strict=True):
                    for key, total in held.items() if once != ZERO else ():
                        found[key] = found.get(key, ZERO) + total.times(once).times(times)
        return {number: Inside(_union(trips[number]), whole[number]) for number in trips}

    def _sums(self, own: Mapping[int, Mapping[K, int]]) -> list[dict[K, int | Total]]:
        """Sums over one execution of each plan; what is exact is a number."""
        bare: dict[int, dict[K, int | Total]] = {}
        for number, amounts in own.items():
            mine = bare.setdefault(self.module.instructions[number].computation.id, {})
            for key, amount in amounts.items():
                mine[key] = _plus(mine.get(key, 0), amount)
        sums: list[dict[K, int | Total]] = []
        for plan in self._plans:
            result = dict(bare.get(plan.computation, ()))
            for site in plan.sites:
                if site.alternatives:
                    branches = [{k: _total(v) for k, v in sums[number].items()} for number, _ in site.runs]
                    for key, total in _union(branches).items():
                        result[key] = _plus(result.get(key, 0), total)
                    continue
                for number, times in site.runs:
                    found = sums[number]
                    if not found or times.maximum == 0:
                        continue
                    once = times.value
                    for key, inner in found.items():
                        more = inner * once if type(inner) is int and once is not None else _total(inner).times(times)
                        result[key] = _plus(result.get(key, 0), more)
            sums.append(result)
        return sums


def _total(amount: int | Total) -> Total:
    return amount if isinstance(amount, Total) else exact(amount)


def _plus(one: int | Total, other: int | Total) -> int | Total:
    if type(one) is int and type(other) is int:
        return one + other
    return _total(one) + _total(other)


def _union(alternatives: list[dict[K, Total]]) -> dict[K, Total]:
    """The interval over alternatives, key by key; a key that one of them lacks may be nothing."""
    keys = dict.fromkeys(key for found in alternatives for key in found)
    return {key: reduce(Total.either, [found.get(key, ZERO) for found in alternatives]) for key in keys}


def _times_of(plans: Iterable[_Plan], entry: int) -> Iterator[tuple[_Plan, Total]]:
    """Each plan with its executions per step, callers first."""
    listed = list(plans)
    times = [ZERO] * len(listed)
    times[entry] = ONE
    for number in range(len(listed) - 1, -1, -1):
        if times[number] == ZERO:
            continue
        for site in listed[number].sites:
            for callee, once in site.runs:
                maybe = Total(0, 1) if site.alternatives else once
                times[callee] = times[callee] + times[number].times(maybe)
        yield listed[number], times[number]


def read_executions(module: Module, supplied: Mapping[str, int] | None = None, *, declared: bool = True) -> Executions:
    """Walk a module. `supplied`: trip counts by instruction name, for loops whose count the program does not fix.
    `declared` False leaves XLA's own `known_trip_count` out, so that it can be compared with what the scalars give.

    Raises:
        RejectedError: a supplied count contradicts the loop's own condition, or its name is no loop's.
    """
    if supplied:
        names = {at.name for at in module.walk() if at.opcode == "while"}
    for name, count in (supplied or {}).items():
        if name not in names:
            some = ", ".join(sorted(names)[:8]) or "none"
            raise rejected(f"trips.{name}", count, "names no loop of the module", f"its loops are {some}")
    walk = _Walk(module, supplied or {}, declared)
    runs: dict[int, list[tuple[_Site, Total]]] = {}
    for plan, times in _times_of(walk.plans, walk.entry):
        for site in plan.sites:
            runs.setdefault(site.at, []).append((site, times))
    loops: dict[int, Loop] = {}
    conditionals: dict[int, Conditional] = {}
    for at in (at for sites in walk.sites.values() for at in sites):
        if at.opcode == "while":
            loops[at.id] = _loop(module, at, runs.get(at.id, []))
        elif at.opcode == "conditional":
            conditionals[at.id] = _conditional(module, at, runs.get(at.id, []))
    return Executions(module, loops, conditionals, tuple(walk.plans), walk.entry)


def _loop(module: Module, at: Instruction, runs: list[tuple[_Site, Total]]) -> Loop:
    entries = sum((times for _, times in runs), ZERO)
    total, found = ZERO, set[_Trips]()
    for site, times in runs:
        assert site.trips is not None
        total = total + times.times(site.trips.total())
        found.add(site.trips)
    line, size = module.source(at), at.shape.bytes
    if not found:
        return Loop(
            at.name, at.computation.name, at.called[0].name, at.op_name, 0, "unreached", "nothing runs it", 0, 0,
            entries=ZERO, state_bytes=size, line=line,
        )  # fmt: skip
    low = min(trips.minimum for trips in found)
    ends = [trips.maximum for trips in found]
    high = None if None in ends else max(end for end in ends if end is not None)
    trips = high if low == high else None
    varies = trips is None and all(one.exact is not None for one in found)
    unsure = [one for one in found if one.exact is None]
    source = unsure[0].source if unsure else min(one.source for one in found)
    reason = unsure[0].reason if unsure else f"{low} to {high} trips, by the loop around it" if varies else ""
    return Loop(
        at.name, at.computation.name, at.called[0].name, at.op_name, trips, source, reason, low, high, varies, entries,
        total, size, line,
    )  # fmt: skip


def _conditional(module: Module, at: Instruction, runs: list[tuple[_Site, Total]]) -> Conditional:
    executions = [ZERO] * len(at.called)
    for site, times in runs:
        for number, (_, once) in enumerate(site.runs):
            executions[number] = executions[number] + times.times(Total(0, 1) if site.alternatives else once)
    return Conditional(
        at.name, at.computation.name, at.op_name, tuple(c.name for c in at.called), tuple(executions),
        not any(site.alternatives for site, _ in runs), module.source(at),
    )  # fmt: skip
