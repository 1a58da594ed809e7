"""Numbers a caller supplies, read exactly or refused.

A decimal such as 0.40 means what it prints, not the nearest binary fraction: it becomes `Fraction(2, 5)`. Booleans,
NaN, infinities, texts and numbers beyond any plan are refused with their path.
"""

from __future__ import annotations

import math
from fractions import Fraction

from jaxcost.contracts.errors import reject

LARGEST = 10**40

Number = int | float | Fraction


def number(value: object, where: str) -> Fraction:
    """Return a finite number as an exact fraction.

    Raises:
        RejectedError: it is no number, or too large for any plan.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | Fraction):
        raise reject(where, value, "must be a number", "write digits, without quotes")
    if isinstance(value, float):
        if not math.isfinite(value):
            raise reject(where, value, "must be finite", "write a finite number")
        if value and not 1e-40 < abs(value) <= 1e40:
            raise reject(where, value, "beyond any plan", "check the unit and the exponent")
        return Fraction(str(value))
    if not -LARGEST <= value <= LARGEST:
        raise reject(where, "more than 40 digits", "beyond any plan", "check the unit and the exponent")
    return Fraction(value)


def positive(value: object, where: str) -> Fraction:
    """Return a number above zero as an exact fraction, or refuse it."""
    found = number(value, where)
    if found <= 0:
        raise reject(where, value, "must be above zero", "check the sign and the unit")
    return found


def not_negative(value: object, where: str) -> Fraction:
    """Return a number of at least zero as an exact fraction, or refuse it."""
    found = number(value, where)
    if found < 0:
        raise reject(where, value, "must not be negative", "check the sign and the unit")
    return found


def share(value: object, where: str) -> Fraction:
    """Return a number from 0 to 1 as an exact fraction, or refuse it; 40% is 0.40."""
    found = number(value, where)
    if not 0 <= found <= 1:
        raise reject(where, value, "must be from 0 to 1", "write a percentage as a fraction: 0.40")
    return found


def count(value: object, where: str) -> int:
    """Return a whole number above zero, or refuse it."""
    found = positive(value, where)
    if found.denominator != 1 or isinstance(value, float):
        raise reject(where, value, "must be a whole number", "write it without a decimal point")
    return int(found)
