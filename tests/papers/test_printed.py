"""Printed figures: the unit of the last digit that means something, and the half of it that rounding allows."""

from __future__ import annotations

from fractions import Fraction

import pytest

from jaxcost.contracts.errors import RejectedError
from jaxcost.papers.printed import figure, is_number


@pytest.mark.parametrize(
    ("text", "options", "unit"),
    [
        ("44", {}, 1),
        ("4.10", {}, Fraction(1, 100)),
        ("-3", {}, 1),
        ("1008.0", {}, Fraction(1, 10)),
        ("2.31e21", {}, 10**19),
        ("1.8e20", {"significant": 3}, 10**18),
        ("104", {"significant": 3}, 1),
        ("3640", {"significant": 3}, 10),
        ("29600", {"zeros": "insignificant"}, 100),
        ("497", {"zeros": "insignificant"}, 1),
        ("0", {"zeros": "insignificant"}, 1),
        ("2.60", {"zeros": "insignificant"}, Fraction(1, 100)),
        ("400", {"unit": "10"}, 10),
        ("1.1", {"unit": "0.01"}, Fraction(1, 100)),
    ],
)
def test_the_unit_of_the_last_digit(text: str, options: dict[str, object], unit: Fraction) -> None:
    found = figure(text, **options)  # type: ignore[arg-type]
    assert found.unit == unit
    assert found.interval.high - found.interval.low == unit
    assert found.interval.high + found.interval.low == 2 * found.value


@pytest.mark.parametrize("text", ["", "44%", "1,000", "nan", "inf", "1.", ".5", "1e", "0x10", "4 4", "1_000", "٣"])
def test_what_is_no_figure_is_refused(text: str) -> None:
    assert not is_number(text)
    with pytest.raises(RejectedError):
        figure(text)
