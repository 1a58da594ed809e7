"""What a compiler may do to the products of a jaxpr without changing a result: evidence, not a prediction.

A product nobody reads is dead. One with the operands of an earlier one repeats it. One whose operands do not change in
the loops around it may run once instead. Each is read off the dataflow of the jaxpr; whether the compiler took the
opportunity is seen in the compiled module alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from jaxcost.observation.equations import cost_of
from jaxcost.observation.jaxpr_values import bare


@dataclass(frozen=True, slots=True)
class Fact:
    """Of one equation, over all places it is called from: `dead`, `repeats` an earlier one, and how many of its
    executions give one result (`alike`: the trips of the loops in which its operands stay the same).
    """

    dead: bool
    repeats: bool
    alike: int


Value = tuple[int, int]  # a number equal values share, and the depth of the innermost loop it changes in
_SAME_SHAPE = (
    "jit pjit closed_call eval_jaxpr remat2 checkpoint custom_jvp_call custom_vjp_call core_call composite".split()
)


class Flow:
    """Facts by (id of the equation, name stack)."""

    def __init__(self, jaxpr: Any) -> None:
        self.facts: dict[tuple[int, str], Fact] = {}
        self.numbers = count()
        self.seen: dict[Any, int] = {}
        self.trips: list[int] = []
        self._walk(jaxpr, "", [(next(self.numbers), 0) for _ in jaxpr.invars], [True] * len(jaxpr.outvars))

    def _literal(self, value: Any) -> Value:
        key = ("literal", str(getattr(value, "dtype", type(value))), repr(value))
        return self.seen.setdefault(key, next(self.numbers)), 0

    def _walk(self, jaxpr: Any, above: str, given: Sequence[Value], used: Sequence[bool]) -> list[Value]:
        env: dict[Any, Value] = dict(zip(jaxpr.invars, given, strict=True))
        for var in jaxpr.constvars:
            env[var] = self.seen.setdefault(("constant", id(var)), next(self.numbers)), 0

        def value(var: Any) -> Value:
            return self._literal(var.val) if hasattr(var, "val") else env[var]

        live = _live(jaxpr, used)
        for eqn in jaxpr.eqns:
            own = str(eqn.source_info.name_stack)
            name = "/".join(part for part in (above, own) if part)
            ins = [value(v) for v in eqn.invars]
            outs = self._equation(eqn, name, ins, [var in live for var in eqn.outvars])
            env.update(zip(eqn.outvars, outs, strict=True))
        return [value(v) for v in jaxpr.outvars]

    def _equation(self, eqn: Any, name: str, ins: list[Value], used: list[bool]) -> list[Value]:
        level, primitive = max((depth for _, depth in ins), default=0), eqn.primitive.name
        inner = next((item for item in map(bare, eqn.params.values()) if item is not None), None)
        counted = cost_of(eqn) is not None
        if inner is not None and not counted:
            if primitive == "scan":
                self._scan(eqn, name, ins, used)
            elif primitive in _SAME_SHAPE and len(inner.invars) == len(ins) and len(inner.outvars) == len(used):
                return self._walk(inner, name, ins, used)
            elif primitive == "while":
                self._while(eqn, name, ins)
            else:
                depth = len(self.trips)
                fresh = [(next(self.numbers), depth) for _ in inner.invars]
                self._walk(inner, name, fresh, [True] * len(inner.outvars))
            return [(next(self.numbers), len(self.trips)) for _ in eqn.outvars]
        if primitive == "cond":
            for branch in eqn.params["branches"]:
                self._walk(bare(branch), name, ins[1:], used)
        if eqn.effects or inner is not None or primitive == "cond":
            key: Any = object()
        else:
            key = (primitive, tuple(number for number, _ in ins), str(eqn.params))
        repeats = key in self.seen
        self.seen.setdefault(key, next(self.numbers))
        if counted:
            alike = 1
            for trips in self.trips[level:]:
                alike *= trips
            fact = Fact(not any(used) and not eqn.effects, repeats, alike)
            before = self.facts.get((id(eqn), name))
            if before is not None:
                fact = Fact(fact.dead and before.dead, fact.repeats and before.repeats, min(fact.alike, before.alike))
            self.facts[id(eqn), name] = fact
        return [(self.seen.setdefault((key, i), next(self.numbers)), level) for i in range(len(used))]

    def _scan(self, eqn: Any, name: str, ins: list[Value], used: list[bool]) -> None:
        inner = bare(eqn.params["jaxpr"])
        carried = sum(len(a.aval.shape) == len(b.aval.shape) for a, b in zip(eqn.outvars, inner.outvars, strict=True))
        stacked = [len(a.aval.shape) > len(b.aval.shape) for a, b in zip(eqn.invars, inner.invars, strict=True)]
        consts = (stacked.index(True) if True in stacked else len(stacked)) - carried
        self.trips.append(int(eqn.params["length"]))
        depth, given = len(self.trips), list(ins)
        for i in range(consts, len(ins)):
            same = i < consts + carried and inner.outvars[i - consts] is inner.invars[i]
            if not same:
                given[i] = (next(self.numbers), depth)
        # What one trip hands to the next is read by it.
        self._walk(inner, name, given, [True] * carried + list(used[carried:]))
        self.trips.pop()

    def _while(self, eqn: Any, name: str, ins: list[Value]) -> None:
        body, carried = bare(eqn.params["body_jaxpr"]), len(eqn.outvars)
        consts = len(body.invars) - carried
        self.trips.append(1)  # how often it runs may not be known: nothing is claimed of it
        depth, given = len(self.trips), ins[len(ins) - carried - consts :]
        for i in range(consts, len(given)):
            if body.outvars[i - consts] is not body.invars[i]:
                given[i] = (next(self.numbers), depth)
        self._walk(body, name, given, [True] * len(body.outvars))
        condition = bare(eqn.params["cond_jaxpr"])
        self._walk(condition, name, [(next(self.numbers), depth) for _ in condition.invars], [True])
        self.trips.pop()


def _live(jaxpr: Any, used: Sequence[bool]) -> set[Any]:
    """Variables that a used result or an effect needs."""
    live = {var for var, wanted in zip(jaxpr.outvars, used, strict=True) if wanted and not hasattr(var, "val")}
    for eqn in reversed(jaxpr.eqns):
        if eqn.effects or any(var in live for var in eqn.outvars):
            live.update(var for var in eqn.invars if not hasattr(var, "val"))
    return live
