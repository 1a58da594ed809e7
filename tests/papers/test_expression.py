"""Formulas in data: exact on integers, on intervals and on symbols; anything but arithmetic is refused."""

from __future__ import annotations

from fractions import Fraction

import pytest
import sympy
from hypothesis import given
from hypothesis import strategies as st

from jaxcost.contracts.errors import RejectedError
from jaxcost.papers.expression import Interval, expression, interval


def test_integers_and_decimals_are_exact() -> None:
    assert expression("12*l*h**2*(1 + 13/(12*h))").value({"l": 2, "h": 8}) == 12 * 2 * 64 + 13 * 2 * 8
    assert expression("0.75*x").value({"x": 3}) == Fraction(9, 4)
    assert expression("312e12").value({}) == 312 * 10**12
    assert type(expression("6/3").value({})) is int
    assert expression("1e16 + 1").value({}) == 10**16 + 1  # no float in between
    assert expression("floor(7/2) - -x").value({"x": 1}) == 4


def test_names_are_listed_once_in_order() -> None:
    assert expression("b*a + b").names == ("b", "a")


def test_symbols_pass_through() -> None:
    x = sympy.Symbol("x", positive=True)
    assert sympy.expand(expression("x*(1 + 3/(2*x)) + 0.5").value({"x": x}) - x - 2) == 0


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "a b", "__import__('os')", "a.b", "a[0]", "lambda: 1", "[1]", "'a'", "True", "1 if a else 2", "a < b",
        "a // b", "a % b", "f(x)", "floor(1, 2)", "floor(x=1)", "a ** b", "2 ** 65", "2 ** -1", "2 ** 1e3", "1j",
        "x := 1", "a; b", "1e999", "(" * 400 + "1" + ")" * 400, "+".join("a" * 300), "-" * 100 + "a", "9" * 2001,
        "a\x00b",
    ],
)  # fmt: skip
def test_what_is_no_arithmetic_is_refused(text: str) -> None:
    with pytest.raises(RejectedError):
        expression(text)


def test_unknown_names_and_zero_divisors_are_refused() -> None:
    with pytest.raises(RejectedError, match="'y' is not known"):
        expression("x + y").value({"x": 1})
    with pytest.raises(RejectedError, match="divides by zero"):
        expression("1/(x - 1)").value({"x": 1})
    with pytest.raises(RejectedError, match="divides by zero"):
        expression("1/x").value({"x": Interval(Fraction(-1), Fraction(1))})


numbers = st.fractions(min_value=-50, max_value=50, max_denominator=20)


@given(numbers, numbers, numbers, numbers, st.fractions(0, 1), st.fractions(0, 1))
def test_an_interval_holds_every_value_of_its_points(
    a: Fraction, b: Fraction, c: Fraction, d: Fraction, s: Fraction, t: Fraction
) -> None:
    x, y = Interval(min(a, b), max(a, b)), Interval(min(c, d), max(c, d))
    inside = {"x": x.low + s * (x.high - x.low), "y": y.low + t * (y.high - y.low)}
    for text in ("x + y", "x - y", "x*y", "2*x - y/3", "x**3*y", "-x", "3 - x", "floor(x)"):
        wide, point = expression(text).value({"x": x, "y": y}), expression(text).value(inside)
        assert wide.low <= point <= wide.high
    if not y.low <= 0 <= y.high:
        wide, point = expression("x/y + 1/y").value({"x": x, "y": y}), expression("x/y + 1/y").value(inside)
        assert wide.low <= point <= wide.high


def test_intervals_meet_at_their_ends() -> None:
    assert interval(1).meets(Interval(Fraction(1), Fraction(2)))
    assert not interval(1).meets(Interval(Fraction(3, 2), Fraction(2)))
