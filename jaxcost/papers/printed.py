"""Figures as printed: the text of a cell, its value, and the half unit of its last digit that rounding allows.

A printed 44 stands for anything from 43.5 to 44.5. Where a column prints fewer digits than it shows (29600 with three
digits that mean something) the column says so, in `significant`, `unit` or `zeros`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from jaxcost.contracts.errors import reject
from jaxcost.papers.expression import Interval

NUMBER = re.compile(r"[+-]?[0-9]{1,30}(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,3})?")


@dataclass(frozen=True)
class Figure:
    """One printed number: `unit` is that of its last digit that means something."""

    text: str
    value: Fraction
    unit: Fraction

    @property
    def interval(self) -> Interval:
        """What the print stands for, both ends included."""
        half = self.unit / 2
        return Interval(self.value - half, self.value + half)


def is_number(text: str) -> bool:
    """Return whether a cell holds a number."""
    return NUMBER.fullmatch(text) is not None


def figure(text: str, *, significant: int | None = None, unit: str | None = None, zeros: str = "significant") -> Figure:
    """Return a printed number.

    Args:
        text: the cell.
        significant: how many digits of it mean something, where not those printed.
        unit: the unit of the last digit, where not that printed.
        zeros: `insignificant` where zeros at the end of a whole number only mark its size.

    Raises:
        RejectedError: the cell holds no number.
    """
    if not is_number(text):
        raise reject("cell", text, "not a printed number", "copy the figure as printed, without unit and separators")
    number = Decimal(text)
    value = Fraction(number)
    if unit is not None:
        return Figure(text, value, Fraction(Decimal(unit)))
    exponent = number.as_tuple().exponent
    assert isinstance(exponent, int)
    if significant is not None:
        exponent = number.adjusted() - significant + 1
    elif zeros == "insignificant" and exponent >= 0 and value:
        whole = str(abs(int(value)))
        exponent = len(whole) - len(whole.rstrip("0"))
    return Figure(text, value, Fraction(10) ** exponent)
