"""Arithmetic written in data: `12*l*h**2*(1 + 13/(12*h))`, evaluated exactly in any domain.

A formula of a paper is data, so it is read by a parser that knows numbers, names, + - * / **, brackets and `floor`,
and nothing else. One text is evaluated on integers and fractions (exact), on intervals (what the rounding of printed
figures allows) and on sympy symbols (proofs).
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

from jaxcost.contracts.errors import reject

LONGEST_TEXT = 2000
LARGEST_POWER = 64
MAXIMUM_DEPTH = 60


@dataclass(frozen=True)
class Interval:
    """All values from `low` to `high`, both ends included; exact."""

    low: Fraction
    high: Fraction

    def __add__(self, other: Any) -> Interval:
        right = interval(other)
        return Interval(self.low + right.low, self.high + right.high)

    def __sub__(self, other: Any) -> Interval:
        right = interval(other)
        return Interval(self.low - right.high, self.high - right.low)

    def __mul__(self, other: Any) -> Interval:
        right = interval(other)
        ends = [a * b for a in (self.low, self.high) for b in (right.low, right.high)]
        return Interval(min(ends), max(ends))

    def __truediv__(self, other: Any) -> Interval:
        right = interval(other)
        if right.low <= 0 <= right.high:
            raise ZeroDivisionError("the divisor's interval holds zero")
        return self * Interval(1 / right.high, 1 / right.low)

    def __neg__(self) -> Interval:
        return Interval(-self.high, -self.low)

    __radd__ = __add__
    __rmul__ = __mul__

    def __rsub__(self, other: Any) -> Interval:
        return interval(other) - self

    def __rtruediv__(self, other: Any) -> Interval:
        return interval(other) / self

    def __pow__(self, power: int) -> Interval:
        found = Interval(Fraction(1), Fraction(1))
        for _ in range(power):
            found = found * self
        return found

    def meets(self, other: Interval) -> bool:
        """Return whether the two have a value in common."""
        return self.low <= other.high and other.low <= self.high


def interval(value: Any) -> Interval:
    """Return a value as an interval of its own; an interval stays one."""
    return value if isinstance(value, Interval) else Interval(Fraction(value), Fraction(value))


def _divide(left: Any, right: Any) -> Any:
    if isinstance(left, int | Fraction) and isinstance(right, int | Fraction):
        return _whole(Fraction(left) / Fraction(right))
    return left / right


def _whole(value: Fraction) -> int | Fraction:
    return value.numerator if value.denominator == 1 else value


def _floor(value: Any) -> Any:
    if isinstance(value, Interval):
        return Interval(Fraction(math.floor(value.low)), Fraction(math.floor(value.high)))
    if isinstance(value, int | Fraction):
        return math.floor(value)
    import sympy

    return sympy.floor(value)


_OPERATORS: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: _divide, ast.Pow: operator.pow,
}  # fmt: skip


@dataclass(frozen=True)
class Expression:
    """One formula: its text, and the names it mentions in order of first use."""

    text: str
    names: tuple[str, ...]
    tree: ast.expr

    def value(self, scope: Mapping[str, Any]) -> Any:
        """Return the value over a scope; integers and fractions stay exact.

        Raises:
            RejectedError: a name is not in the scope, or something is divided by zero.
        """
        try:
            return _value(self.tree, scope)
        except KeyError as error:
            rule = f"{error.args[0]!r} is not known here"
            raise reject("formula", self.text, rule, "declare it as a symbol, a column or a constant") from None
        except ZeroDivisionError:
            raise reject("formula", self.text, "divides by zero", "correct the sizes it is evaluated on") from None


@lru_cache(maxsize=4096)
def expression(text: str) -> Expression:
    """Parse a formula.

    Raises:
        RejectedError: it is too long, no arithmetic, or uses anything but numbers, names, + - * / ** and floor.
    """
    if len(text) > LONGEST_TEXT:
        raise reject("formula", text[:60], f"longer than {LONGEST_TEXT} characters", "write a formula")
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise reject("formula", text, "not arithmetic", "write numbers, names, + - * / ** and brackets") from None
    names: dict[str, None] = {}
    _check(tree, text, names, 0)
    return Expression(text, tuple(names), tree)


def _check(node: ast.expr, text: str, names: dict[str, None], depth: int) -> None:
    if depth > MAXIMUM_DEPTH:
        raise reject("formula", text[:60], "nested too deeply", f"use at most {MAXIMUM_DEPTH} levels")
    inner: list[ast.expr] = []
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        inner = [node.left, node.right]
        if isinstance(node.op, ast.Pow) and not _small_power(node.right):
            rule = f"a power is a whole number from 0 to {LARGEST_POWER}"
            raise reject("formula", text, rule, "write the power as a number")
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        inner = [node.operand]
    elif isinstance(node, ast.Name):
        names[node.id] = None
    elif isinstance(node, ast.Call):
        if not (
            isinstance(node.func, ast.Name) and node.func.id == "floor" and len(node.args) == 1 and not node.keywords
        ):
            raise reject("formula", text, "the only function is floor(x)", "write it out")
        inner = node.args
    elif not (isinstance(node, ast.Constant) and _is_number(node.value)):
        raise reject("formula", text, "holds more than arithmetic", "write numbers, names, + - * / ** and brackets")
    for item in inner:
        _check(item, text, names, depth + 1)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _small_power(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is int and 0 <= node.value <= LARGEST_POWER


def _value(node: ast.expr, scope: Mapping[str, Any]) -> Any:
    if isinstance(node, ast.Constant):
        # 312e12 is an integer however it is spelled, and 0.75 is three quarters.
        return _whole(Fraction(str(node.value)))
    if isinstance(node, ast.Name):
        return scope[node.id]
    if isinstance(node, ast.UnaryOp):
        value = _value(node.operand, scope)
        return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.Call):
        return _floor(_value(node.args[0], scope))
    assert isinstance(node, ast.BinOp)
    return _OPERATORS[type(node.op)](_value(node.left, scope), _value(node.right, scope))
