"""The third witness: FLOPs counted in the jaxpr, before XLA rewrites anything.

Each equation is counted (`equations`) with the trips of the loops around it and named by the name stacks of the
equations around it, so its rows carry the same scopes and phases as those read from HLO. Inside `shard_map` shapes are
per shard along its manual axes: those counts are times their sizes, so that every total here is the whole program's,
over all devices.

What constants decide is decided: an index that is always the same, a predicate on a loop's counter, the trips of a
`while` whose condition follows from its own counters. Where data decide, branches are alternatives and a loop is an
interval or unknown. A Pallas kernel is opaque, or, where asked for, its own program times its grid: then a `pl.when` on
the place in the grid is decided too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import product
from math import prod
from typing import Any

from jaxcost.observation.equations import Cost, cost_of, operations
from jaxcost.observation.hlo.scope import place, scope_parts
from jaxcost.observation.hlo.trips import ONE, ZERO, Total, exact
from jaxcost.observation.jaxpr_flow import Flow
from jaxcost.observation.jaxpr_loops import trips_of
from jaxcost.observation.jaxpr_values import Known, bare, evaluate, known_constant, read, scalar

_ONE_BY_ONE = 4096  # iterations, or places of a grid, told apart
_BUDGET = 2_000_000  # equations walked in all
# Their jaxprs are functions of scalars, applied element by element.
_PER_ELEMENT = ("reduce", "scatter", "select_and_scatter", "sort")
_MATRIX_UNITS = ("wgmma", "tcgen05_mma")  # matrix instructions of a kernel language, by whose rules this does not count


@dataclass(frozen=True, slots=True)
class JaxprRow:
    """One contraction equation. `flops` is one execution; `executions` counts scan trips and, in a shard_map, devices.

    `batch`, `m`, `k`, `n` are None for what is no product of two matrices. `flops` is None for a kernel, whose
    `operands` are all of them; `declared` is its own cost estimate. `basis` says where the count is from (shape,
    convention, unknown); `kernel` names the Pallas kernel that the equation is in.

    `dead`: nobody reads its result. `repeats`: an earlier equation has the same operands. `alike`: how many executions
    in a row give one result, because nothing they read changes in the loops around them.
    """

    primitive: str
    name: str
    scope: str
    phase: str
    batch: int | None
    m: int | None
    k: int | None
    n: int | None
    operands: tuple[str, ...]
    flops: int | None
    executions: Total
    total: Total
    declared: int | None = None
    basis: str = "shape"
    convention: str = ""
    kernel: str = ""
    dead: bool = False
    repeats: bool = False
    alike: int = 1


@dataclass(frozen=True, slots=True)
class Kernel:
    """A Pallas kernel counted by its own program: `flops` of one call, all places of its grid, and what it declares."""

    name: str
    scope: str
    phase: str
    grid: tuple[int, ...]
    flops: Total
    declared: int | None


@dataclass(frozen=True, slots=True)
class JaxprCount:
    """All contractions of a jaxpr, kernels apart. Totals are whole-program; an uncounted loop or kernel is in
    `unknowns`. `operations` counts everything else, by kind.
    """

    rows: tuple[JaxprRow, ...]
    opaque: tuple[JaxprRow, ...]
    by_place: dict[tuple[str, str], Total]
    by_phase: dict[str, Total]
    total: Total
    unknowns: tuple[str, ...]
    operations: dict[str, Total] = field(default_factory=dict)
    kernels: tuple[Kernel, ...] = ()


Key = tuple[str, ...]


@dataclass
class _Found:
    """What one execution of a jaxpr does: its rows, sums by key, and how many decisions data (or a counter) take."""

    rows: dict[tuple[int, str], JaxprRow] = field(default_factory=dict)
    sums: dict[Key, Total] = field(default_factory=dict)
    undecided: int = 0
    unknowns: dict[str, None] = field(default_factory=dict)

    def add(self, other: _Found, times: Total = ONE) -> None:
        for key, amount in other.sums.items():
            self.sums[key] = self.sums.get(key, ZERO) + amount.times(times)
        self.merge(other, times)

    def merge(self, other: _Found, times: Total) -> None:
        """Rows and decisions alone."""
        self.undecided += other.undecided
        if times != ZERO:
            self.unknowns |= other.unknowns
        for key, row in other.rows.items():
            row = _again(row, times)
            before = self.rows.get(key)
            if before is not None:
                row = replace(row, executions=before.executions + row.executions, total=before.total + row.total)
            self.rows[key] = row

    def count(self, key: Key, amount: Total) -> None:
        self.sums[key] = self.sums.get(key, ZERO) + amount

    @property
    def counts(self) -> bool:
        """Whether anything with FLOPs is in it."""
        return bool(self.rows)


def _again(row: JaxprRow, times: Total) -> JaxprRow:
    return replace(row, executions=row.executions.times(times), total=row.total.times(times))


def inside(eqn: Any) -> Iterator[tuple[str, Any]]:
    """(parameter name, jaxpr) of everything an equation calls."""
    for key, value in eqn.params.items():
        for item in value if isinstance(value, tuple | list) else (value,):
            inner = bare(item)
            if inner is not None:
                yield key, inner


class _Counter:
    def __init__(self, scopes: frozenset[str] | None, *, open_kernels: bool) -> None:
        self.scopes, self.open_kernels = scopes, open_kernels
        self.kernels: dict[tuple[int, str], Kernel] = {}
        self.kernel = ""
        self.grids: list[tuple[tuple[int, ...], tuple[int, ...] | None]] = []  # sizes, and the place in them
        self.walked = 0

    def walk(
        self, jaxpr: Any, above: str, given: Sequence[Known], consts: Sequence[Any] = ()
    ) -> tuple[_Found, list[Known]]:
        """One execution of `jaxpr`, reached under the name stack `above`: what it does, and what it returns."""
        found = _Found()
        env: dict[Any, Known] = dict(zip(jaxpr.invars, given, strict=False))
        for var, value in zip(jaxpr.constvars, consts, strict=False):
            env[var] = known_constant(value)
        for eqn in jaxpr.eqns:
            self.walked += 1
            values = [read(v, env) for v in eqn.invars]
            own = str(eqn.source_info.name_stack)
            name = "/".join(part for part in (above, own) if part)
            made = self.equation(found, eqn, name, values)
            for var, value in zip(eqn.outvars, made, strict=False):
                if value is not None:
                    env[var] = value
        return found, [read(v, env) for v in jaxpr.outvars]

    def equation(self, found: _Found, eqn: Any, name: str, values: list[Known]) -> Sequence[Known]:
        primitive = eqn.primitive.name
        if primitive == "pallas_call" and self.open_kernels and bare(eqn.params.get("jaxpr")) is not None:
            self.pallas(found, eqn, name)
            return ()
        cost = cost_of(eqn)
        if cost is not None:
            self.row(found, eqn, name, cost)
            return ()
        if primitive == "cond":
            return self.cond(found, eqn, name, values)
        if primitive == "scan":
            return self.scan(found, eqn, name, values)
        if primitive == "while":
            return self.loop(found, eqn, name, values)
        if primitive.startswith(_MATRIX_UNITS):
            self.row(found, eqn, name, Cost(None, basis="unknown", reason="a matrix instruction of a kernel language"))
            return ()
        called = [] if primitive.startswith(_PER_ELEMENT) else self.called(eqn)
        if called:
            return self.call(found, eqn, name, values, called)
        counted = operations(eqn)
        if counted is not None:
            found.count(("op", counted[0]), exact(counted[1]))
        if primitive in ("program_id", "num_programs") and self.grids:
            return [self.in_grid(primitive, int(eqn.params["axis"]))]
        return [evaluate(primitive, eqn.params, values, eqn.outvars[0].aval)] if len(eqn.outvars) == 1 else ()

    def row(self, found: _Found, eqn: Any, name: str, cost: Cost) -> None:
        where = place(name, self.scopes, primitive=False)
        primitive, flops = eqn.primitive.name, cost.flops
        if flops is None:
            why = "" if cost.reason in ("", "opaque") else f": {cost.reason}"
            found.unknowns[f"{primitive} at {name or 'the top'} is not counted{why}"] = None
        else:
            amount = exact(flops)
            for key in (("flops",), ("phase", where.phase), ("place", where.scope, where.phase)):
                found.count(key, amount)
        total = exact(flops) if flops is not None else Total(None, None, f"{primitive} is {cost.reason}")
        operands = tuple(str(v.aval) for v in (eqn.invars if flops is None else eqn.invars[:2]))
        made = JaxprRow(
            primitive, name, where.scope, where.phase, *cost.sizes, operands, flops, ONE, total, cost.declared,
            cost.basis, cost.convention, self.kernel,
        )  # fmt: skip
        found.rows[id(eqn), name] = made

    # What equations call ----------------------------------------------------------------------------------------------

    @staticmethod
    def called(eqn: Any) -> list[Any]:
        """The jaxprs an equation runs: of a linear solve the solver alone, of a linear function not its transpose."""
        if eqn.primitive.name == "custom_linear_solve":
            return [eqn.params["jaxprs"].solve]
        if eqn.primitive.name == "linear_call":
            return [eqn.params["callee"]]
        return [item for value in eqn.params.values() for item in _each(value) if bare(item) is not None]

    def call(self, found: _Found, eqn: Any, name: str, values: list[Known], called: list[Any]) -> Sequence[Known]:
        times, primitive = ONE, eqn.primitive.name
        if primitive in ("shard_map", "core_map"):
            # Axes that are not manual are left to the partitioner: along them shapes are whole.
            shape = dict(eqn.params["mesh"].shape)
            manual = eqn.params.get("newly_manual_axes") or eqn.params.get("manual_axes") or tuple(shape)
            times = exact(prod(shape[axis] for axis in manual))
            values = [v if v is not None and v.size == 1 else None for v in values]
        outs: Sequence[Known] = ()
        for one in called:
            inner = bare(one)
            given = values if len(inner.invars) == len(values) else [None] * len(inner.invars)
            more, outs = self.walk(inner, name, given, _consts(one))
            found.add(more, times)
        if times != ONE:
            outs = [v if v is not None and v.size == 1 else None for v in outs]
        return outs if len(called) == 1 and len(outs) == len(eqn.outvars) else ()

    def cond(self, found: _Found, eqn: Any, name: str, values: list[Known]) -> Sequence[Known]:
        branches, index = eqn.params["branches"], scalar(values[0])
        if index is None and len(branches) == 1:
            index = 0
        if index is not None:
            one = branches[max(0, min(index, len(branches) - 1))]
            more, outs = self.walk(bare(one), name, values[1:], _consts(one))
            found.add(more)
            return outs
        walked = [self.walk(bare(one), name, values[1:], _consts(one))[0] for one in branches]
        for key in dict.fromkeys(key for more in walked for key in more.sums):
            found.count(key, reduce(Total.either, [more.sums.get(key, ZERO) for more in walked]))
        for more in walked:
            found.merge(more, Total(0, 1))
        found.undecided += any(more.counts for more in walked)
        return ()

    def scan(self, found: _Found, eqn: Any, name: str, values: list[Known]) -> Sequence[Known]:
        closed, length, reverse = eqn.params["jaxpr"], int(eqn.params["length"]), bool(eqn.params["reverse"])
        inner = bare(closed)
        # Scanned operands and stacked results have one dimension more outside; the rest is constant or carried.
        stacked = [len(a.aval.shape) > len(b.aval.shape) for a, b in zip(eqn.invars, inner.invars, strict=True)]
        scanned = stacked.index(True) if True in stacked else len(stacked)
        carried = carried_by_scan(eqn, inner)
        consts = scanned - carried
        carry = values[consts : consts + carried]

        def one(state: list[Known], n: int | None) -> tuple[_Found, list[Known]]:
            at = None if n is None else length - 1 - n if reverse else n
            slices = [None if v is None or at is None else v[at] for v in values[consts + carried :]]
            more, outs = self.walk(inner, name, [*values[:consts], *state, *slices], _consts(closed))
            return more, outs[:carried]

        return self.repeat(found, one, carry, _same(inner, consts, carried, 0), exact(length))

    def loop(self, found: _Found, eqn: Any, name: str, values: list[Known]) -> Sequence[Known]:
        params, carried = eqn.params, len(eqn.outvars)
        ahead = len(bare(params["cond_jaxpr"]).invars) - carried
        between = len(values) - carried
        condition, body = bare(params["cond_jaxpr"]), bare(params["body_jaxpr"])
        low, high = trips_of(
            params["cond_jaxpr"], params["body_jaxpr"], values[:ahead], values[ahead:between], values[between:]
        )
        reason = f"a while loop at {name or 'the top'} has no static trip count"
        trips = Total(None, None, reason) if high is None else Total(low, high)

        def one(state: list[Known], n: int | None) -> tuple[_Found, list[Known]]:
            return self.walk(body, name, [*values[ahead:between], *state], _consts(params["body_jaxpr"]))

        same = _same(body, between - ahead, carried, 0)
        held, _ = self.walk(
            condition, name, [*values[:ahead], *_kept(values[between:], same)], _consts(params["cond_jaxpr"])
        )
        more = _Found()
        outs = self.repeat(more, one, values[between:], same, trips)
        if more.counts or held.counts:
            found.undecided += low != high
            if high is None:
                found.unknowns[reason] = None
        found.add(more)
        found.add(held, trips + ONE)
        return outs if low == high else _kept(values[between:], same)

    def repeat(
        self, found: _Found, one: Callable[[list[Known], int | None], tuple[_Found, list[Known]]], carry: list[Known],
        same: list[bool], trips: Total,
    ) -> list[Known]:  # fmt: skip
        """Add `trips` executions of a body: all alike, or one by one where its counter decides something."""
        kept = _kept(carry, same)
        any_trip, _ = one(kept, None)
        if any_trip.undecided and trips.value is not None and 0 < trips.value <= _ONE_BY_ONE:
            each, state = _Found(), list(carry)
            for n in range(trips.value):
                if self.walked > _BUDGET:
                    break
                more, state = one(state, n)
                each.add(more)
                if n == 1 and each.undecided >= 2 * any_trip.undecided:
                    break  # something else than the counter decides
            else:
                found.add(each)
                return state
        found.add(any_trip, trips)
        return list(carry) if trips == ZERO else kept

    # Kernels ----------------------------------------------------------------------------------------------------------

    def pallas(self, found: _Found, eqn: Any, name: str) -> None:
        """A kernel by its own program: once per place in its grid."""
        sizes = tuple(eqn.params["grid_mapping"].grid)
        inner = bare(eqn.params["jaxpr"])
        label = _kernel_name(eqn)
        outer, self.kernel = self.kernel, label
        static = all(isinstance(size, int) for size in sizes)

        def at(where: tuple[int, ...] | None) -> _Found:
            self.grids.append((sizes if static else (), where))
            more, _ = self.walk(inner, name, [None] * len(inner.invars))
            self.grids.pop()
            return more

        whole, each = _Found(), at(None)
        places = prod(sizes) if static else 0
        reason = f"the grid of a kernel at {name or 'the top'} depends on run-time values"
        if each.undecided and 0 < places <= _ONE_BY_ONE:
            for number, where in enumerate(product(*map(range, sizes))):
                more = at(where)
                whole.add(more)
                if number == 1 and whole.undecided >= 2 * each.undecided and places > 2:
                    whole = _Found()
                    whole.add(each, exact(places))
                    break
        else:
            whole.add(each, exact(places) if static else Total(None, None, reason))
        self.kernel = outer
        if not static and each.counts:
            whole.unknowns[reason] = None
        where_ = place(name, self.scopes, primitive=False)
        estimate = getattr(eqn.params.get("cost_estimate"), "flops", None)
        declared = int(estimate) if isinstance(estimate, int) else None
        self.kernels[id(eqn), name] = Kernel(
            label, where_.scope, where_.phase, sizes if static else (), whole.sums.get(("flops",), ZERO), declared
        )
        found.add(whole)

    def in_grid(self, primitive: str, axis: int) -> Known:
        sizes, where = self.grids[-1]
        if primitive == "num_programs":
            return known_constant(sizes[axis]) if axis < len(sizes) else None
        return known_constant(where[axis]) if where is not None and axis < len(where) else None


def _each(value: Any) -> Sequence[Any]:
    return value if isinstance(value, tuple | list) else (value,)


def _consts(closed: Any) -> Sequence[Any]:
    return getattr(closed, "consts", ())


def carried_by_scan(eqn: Any, body: Any) -> int:
    """How many results of a scan are carried. They stand first; a stacked one has one dimension more than its body's.

    The parameter that says so has another name in each release of JAX.
    """
    return sum(len(a.aval.shape) == len(b.aval.shape) for a, b in zip(eqn.outvars, body.outvars, strict=True))


def _same(body: Any, consts: int, carried: int, first: int) -> list[bool]:
    """Which of the carried values a body hands on unchanged."""
    return [body.outvars[first + i] is body.invars[consts + i] for i in range(carried)]


def _kept(carry: Sequence[Known], same: Sequence[bool]) -> list[Known]:
    return [value if keeps else None for value, keeps in zip(carry, same, strict=True)]


def _kernel_name(eqn: Any) -> str:
    for key in ("name", "name_and_src_info"):
        given = eqn.params.get(key)
        text = getattr(given, "name", given)
        if isinstance(text, str) and text:
            return text
    return "pallas_call"


def count_jaxpr(closed_jaxpr: Any, scopes: frozenset[str] | None = None, *, open_kernels: bool = False) -> JaxprCount:
    """Count a jaxpr (`jax.make_jaxpr(f)(...)` or `jax.jit(f).trace(...).jaxpr`).

    `scopes`: names of the scope components to keep, as names or paths; None keeps every named scope. `open_kernels`:
    count Pallas kernels by their own program, instead of naming them as opaque.
    """
    jaxpr = bare(closed_jaxpr)
    if jaxpr is None:
        raise TypeError(f"count_jaxpr takes a jaxpr, got {type(closed_jaxpr).__name__}")
    counter = _Counter(scope_parts(scopes), open_kernels=open_kernels)
    found, _ = counter.walk(jaxpr, "", [None] * len(jaxpr.invars), _consts(closed_jaxpr))
    facts = Flow(jaxpr).facts
    rows = []
    for key, row in found.rows.items():
        fact = facts.get(key)
        rows.append(row if fact is None else replace(row, dead=fact.dead, repeats=fact.repeats, alike=fact.alike))
    return JaxprCount(
        tuple(r for r in rows if r.flops is not None),
        tuple(r for r in rows if r.flops is None),
        {(key[1], key[2]): total for key, total in found.sums.items() if key[0] == "place"},
        {key[1]: total for key, total in found.sums.items() if key[0] == "phase"},
        found.sums.get(("flops",), ZERO),
        tuple(found.unknowns),
        {key[1]: total for key, total in sorted(found.sums.items()) if key[0] == "op"},
        tuple(counter.kernels.values()),
    )
