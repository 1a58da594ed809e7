"""How often a `while` of a jaxpr runs, where its own counters say so.

The condition is solved where counters move by a constant, as it is for compiled loops; else the counters alone are
followed step by step. The carried data are never made: what a condition needs of them is unknown, and leaves a bound
from above, or none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxcost.observation.hlo.bounds import first_failure
from jaxcost.observation.jaxpr_values import Known, bare, evaluate, known_constant, read, scalar

_STEPS = 4096
_PATIENCE = 16
_CALLS = frozenset(["jit", "pjit", "closed_call", "eval_jaxpr"])
_DIRECTIONS = {"lt": "LT", "le": "LE", "gt": "GT", "ge": "GE", "eq": "EQ", "ne": "NE"}

Ends = tuple[int, int | None]


@dataclass(frozen=True, slots=True)
class _Line:
    """start + slope * x for the x named by `of`: a carried value before an iteration (>= 0), or the iteration (-1)."""

    of: int
    start: int
    slope: int


@dataclass(frozen=True, slots=True)
class _End:
    """A condition that first fails in [minimum, maximum]."""

    minimum: int
    maximum: int | None


def trips_of(
    condition: Any, body: Any, of_condition: Sequence[Known], of_body: Sequence[Known], carry: Sequence[Known]
) -> Ends:
    """(fewest, most) trips of a loop; most is None where nothing in the program ends it, or what does is not known."""
    solved = _solved(condition, body, of_condition, of_body, carry)
    if solved.minimum == solved.maximum:
        return solved.minimum, solved.maximum
    return _followed(condition, body, of_condition, of_body, carry, solved)


def _solved(
    condition: Any, body: Any, of_condition: Sequence[Known], of_body: Sequence[Known], carry: Sequence[Known]
) -> _End:
    inner = bare(body)
    moving = [_Line(i, 0, 1) if _integer(v.aval) else None for i, v in enumerate(inner.invars[len(of_body) :])]
    after = _lines(inner, [*of_body, *moving], _consts(body))
    states: list[Any] = []
    for i, (first, then) in enumerate(zip(carry, after, strict=True)):
        start = scalar(first)
        steady = isinstance(then, _Line) and then.of == i and then.slope == 1
        if start is not None and steady:
            states.append(_Line(-1, start, then.start) if then.start else known_constant(first))
        else:
            states.append(first if inner.outvars[i] is inner.invars[len(of_body) + i] else None)
    (holds,) = _lines(bare(condition), [*of_condition, *states], _consts(condition))
    return _end(holds)


def _end(value: Any) -> _End:
    if isinstance(value, _End):
        return value
    known = scalar(value) if isinstance(value, np.ndarray) else None
    return _End(0, 0) if known == 0 else _End(0, None)


def _integer(aval: Any) -> bool:
    return getattr(aval, "shape", None) == () and getattr(aval.dtype, "kind", "") in "iu"


def _called(eqn: Any) -> Any:
    """The jaxpr that an equation runs once, on its own operands; None for other equations."""
    if eqn.primitive.name not in _CALLS:
        return None
    return eqn.params.get("jaxpr", eqn.params.get("call_jaxpr"))


def _consts(closed: Any) -> list[Known]:
    return [known_constant(value) for value in getattr(closed, "consts", ())]


def _lines(jaxpr: Any, given: Sequence[Any], consts: Sequence[Any]) -> list[Any]:
    """Results of a jaxpr on numbers, lines and conditions."""
    env: dict[Any, Any] = dict(zip(jaxpr.invars, given, strict=False)) | dict(
        zip(jaxpr.constvars, consts, strict=False)
    )
    for eqn in jaxpr.eqns:
        values = [read(v, env) for v in eqn.invars]
        if all(v is None for v in values) and values:
            continue
        closed = _called(eqn)
        inner = bare(closed)
        if inner is not None:
            made = _lines(inner, values, _consts(closed))
        elif len(eqn.outvars) == 1:
            made = [_line(eqn, values)]
        else:
            continue
        for var, value in zip(eqn.outvars, made, strict=False):
            if value is not None:
                env[var] = value
    return [read(v, env) for v in jaxpr.outvars]


def _line(eqn: Any, values: list[Any]) -> Any:
    name, out = eqn.primitive.name, eqn.outvars[0].aval
    if not any(isinstance(v, _Line | _End) for v in values):
        return evaluate(name, eqn.params, values, out)
    if name in ("and", "or") and getattr(out.dtype, "kind", "") == "b":
        return _joined(name, values)
    if name in _DIRECTIONS:
        return _compared(_DIRECTIONS[name], values, eqn.invars[0].aval.dtype)
    if not _integer(out):
        return None
    if name == "convert_element_type":
        (line,) = values
        wider = np.iinfo(out.dtype), np.iinfo(eqn.invars[0].aval.dtype)
        return line if wider[0].min <= wider[1].min and wider[0].max >= wider[1].max else None
    if name == "neg":
        (line,) = values
        return _Line(line.of, -line.start, -line.slope) if isinstance(line, _Line) else None
    if name not in ("add", "sub", "mul", "add_any"):
        return None
    left, right = (v if isinstance(v, _Line) else scalar(v) if isinstance(v, np.ndarray) else None for v in values)
    if name == "mul":
        line, factor = (left, right) if isinstance(left, _Line) else (right, left)
        if not isinstance(line, _Line) or not isinstance(factor, int):
            return None
        return _Line(line.of, line.start * factor, line.slope * factor)
    sign = -1 if name == "sub" else 1
    if isinstance(left, int) and isinstance(right, _Line):
        return _Line(right.of, left + sign * right.start, sign * right.slope)
    if isinstance(left, _Line) and isinstance(right, int):
        return _Line(left.of, left.start + sign * right, left.slope)
    if isinstance(left, _Line) and isinstance(right, _Line) and left.of == right.of:
        return _Line(left.of, left.start + sign * right.start, left.slope + sign * right.slope)
    return None


def _compared(direction: str, values: list[Any], dtype: Any) -> _End | None:
    sides = [v if isinstance(v, _Line) else scalar(v) if isinstance(v, np.ndarray) else None for v in values]
    if any(side is None or (isinstance(side, _Line) and side.of != -1) for side in sides):
        return None
    left, right = (side if isinstance(side, _Line) else _Line(-1, int(side or 0), 0) for side in sides)
    trips = first_failure(direction, left.start - right.start, left.slope - right.slope)
    if trips is None:
        return _End(0, None)
    within = np.iinfo(dtype)
    ends = [side.start + side.slope * n for side in (left, right) for n in (0, trips)]
    return _End(trips, trips) if all(within.min <= end <= within.max for end in ends) else _End(0, None)


def _joined(name: str, values: list[Any]) -> Any:
    left, right = (_end(v) for v in values)
    known = [scalar(v) if isinstance(v, np.ndarray) else None for v in values]
    for value, other in ((known[0], values[1]), (known[1], values[0])):
        if value is not None:
            return other if bool(value) == (name == "and") else known_constant(np.bool_(name == "or"))
    if name == "or":
        return _End(max(left.minimum, right.minimum), None)
    most = [end.maximum for end in (left, right) if end.maximum is not None]
    return _End(min(left.minimum, right.minimum), min(most) if most else None)


# Followed -------------------------------------------------------------------------------------------------------------


def _needed(jaxpr: Any, wanted: set[int]) -> tuple[list[Any], set[int]]:
    """The equations that results number `wanted` need, and the numbers of the operands they read."""
    variables = {jaxpr.outvars[i] for i in wanted if not hasattr(jaxpr.outvars[i], "val")}
    kept = []
    for eqn in reversed(jaxpr.eqns):
        if any(var in variables for var in eqn.outvars):
            kept.append(eqn)
            variables.update(v for v in eqn.invars if not hasattr(v, "val"))
    return kept[::-1], {i for i, var in enumerate(jaxpr.invars) if var in variables}


def _followed(
    condition: Any, body: Any, of_condition: Sequence[Known], of_body: Sequence[Known], carry: Sequence[Known],
    solved: _End,
) -> Ends:  # fmt: skip
    """Bounds by running the part of the body that the condition needs, on what is known."""
    first, inner = bare(condition), bare(body)
    tests, read_by = _needed(first, {0})
    needs = {i - len(of_condition) for i in read_by if i >= len(of_condition)}
    while True:
        steps, read_by = _needed(inner, needs)
        more = needs | {i - len(of_body) for i in read_by if i >= len(of_body)}
        if more == needs:
            break
        needs = more
    state = [value if i in needs else None for i, value in enumerate(carry)]
    fewest: int | None = None
    for n in range(_STEPS + 1):
        (holds,) = _run(first, tests, [*of_condition, *state], _consts(condition))
        value = scalar(holds)
        if value is None:
            fewest = n if fewest is None else fewest
            if solved.maximum is not None or n >= fewest + _PATIENCE:
                break
        elif not value:
            return (n if fewest is None else fewest), n
        if n == solved.maximum:
            break
        state = _run(inner, steps, [*of_body, *state], _consts(body))
    least = max(solved.minimum, fewest or 0)
    return (least if solved.maximum is None else min(least, solved.maximum)), solved.maximum


def _run(jaxpr: Any, equations: Sequence[Any], given: Sequence[Known], consts: Sequence[Known]) -> list[Known]:
    env: dict[Any, Known] = dict(zip(jaxpr.invars, given, strict=True)) | dict(
        zip(jaxpr.constvars, consts, strict=False)
    )
    for eqn in equations:
        values = [read(v, env) for v in eqn.invars]
        closed = _called(eqn)
        inner = bare(closed)
        if inner is not None:
            made = _run(inner, inner.eqns, values, _consts(closed))
        elif len(eqn.outvars) == 1:
            made = [evaluate(eqn.primitive.name, eqn.params, values, eqn.outvars[0].aval)]
        else:
            continue
        env.update({var: value for var, value in zip(eqn.outvars, made, strict=False) if value is not None})
    return [read(v, env) for v in jaxpr.outvars]
