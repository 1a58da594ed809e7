"""One assumption: a value with its range, its evidence and the test that would reduce its uncertainty.

A number stands for itself: `mfu = 0.40` in a file is `mfu = { value = 0.40 }`. A decimal means what it prints
(0.40 is 2/5), so the arithmetic of a plan is exact. An assumption of a class that needs proof is refused without it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Annotated, Any

from pydantic import Field

from jaxcost.contracts.errors import Problem, reject
from jaxcost.contracts.observation import EvidenceClass
from jaxcost.contracts.record import Record
from jaxcost.planning.quantities import LARGEST

Text = Annotated[str, Field(max_length=1000)]
Date = Annotated[str, Field(pattern=r"^\d{4}-\d{2}(-\d{2})?$")]
MOST_DIGITS, SMALLEST_EXPONENT, LARGEST_EXPONENT = 60, -40, len(str(LARGEST)) - 1
_PLAIN = re.compile(r"[+-]?(\d[\d_]*\.?\d*|\.\d+)([eE][+-]?\d{1,3})?")
# What an evidence class is refused without; analytical and unmeasured assumptions need no proof.
NEEDS_SOURCE = ("source_reported", "locally_measured", "compiled")


@dataclass(frozen=True)
class Spec:
    """What a field of a plan may hold: its unit, its bounds, whether it is whole, and what would measure it.

    Bounds are open where `above` or `below` are set, closed for `least` and `most`; `why` says what a bound protects.
    """

    unit: str
    what: str
    test: str = ""
    whole: bool = False
    above: int | None = 0
    least: int | None = None
    below: int | None = None
    most: int | None = None
    why: str = ""

    def problem(self, path: str, value: Decimal) -> Problem | None:
        """Return why a value is refused, None where it is not."""
        exact = Fraction(value)
        bounds = (
            (self.above, self.above is None or exact > self.above, "above"),
            (self.least, self.least is None or exact >= self.least, "at least"),
            (self.below, self.below is None or exact < self.below, "below"),
            (self.most, self.most is None or exact <= self.most, "at most"),
        )
        for bound, holds, word in bounds:
            if not holds:
                rule = f"must be {word} {bound}" + (f": {self.why}" if self.why else f" ({self.unit})")
                return Problem(path, str(value), rule, "check the sign and the unit")
        if self.whole and exact.denominator != 1:
            return Problem(path, str(value), f"must be a whole number of {self.unit}", "write a whole number")
        return None


class Assumed(Record):
    """A value with the range it may lie in.

    Attributes:
        value: what the plan is computed with.
        low, high: the range in which the truth is believed to lie; both or neither.
        evidence: one of the evidence classes; `unmeasured` is an assigned number.
        source: where it comes from; needed for source_reported, locally_measured and compiled.
        date: of the source, `2026-03` or `2026-03-14`.
        test: what would narrow the range; empty for the usual one of the field.
    """

    value: Decimal
    low: Decimal | None = None
    high: Decimal | None = None
    evidence: EvidenceClass = "unmeasured"
    source: Text = ""
    date: Date | None = None
    test: Text = ""

    def problems(self) -> Iterable[Problem]:
        given = {"value": self.value, "low": self.low, "high": self.high}
        for name, number in given.items():
            if number is not None and not _bounded(number):
                yield Problem(name, str(number)[:60], "beyond any plan", "check the unit and the exponent")
                return
        if (self.low is None) != (self.high is None):
            yield Problem("low", None, "a range has two ends", "give low and high, or neither")
        elif self.low is not None and self.high is not None and not self.low <= self.value <= self.high:
            rule = f"value {self.value} lies outside low {self.low} .. high {self.high}"
            yield Problem("value", str(self.value), rule, "order them low, value, high")
        if self.evidence in NEEDS_SOURCE and not self.source:
            rule = f"evidence {self.evidence} is a claim without its proof"
            yield Problem("source", "", rule, "name the document, run or artefact, or write unmeasured")

    def covered(self) -> dict[str, Any]:
        """Return what the digest covers: the value and its range; evidence and source change no number."""
        given = {"value": self.value, "low": self.low, "high": self.high}
        return {name: str(Fraction(number)) for name, number in given.items() if number is not None}

    @property
    def exact(self) -> Fraction:
        """The value as a fraction."""
        return Fraction(self.value)

    def checked(self, path: str, spec: Spec) -> Iterable[Problem]:
        """Yield what the value and its range break of a field's rules."""
        for name, number in (("", self.value), (".low", self.low), (".high", self.high)):
            found = spec.problem(path + name, number) if number is not None else None
            if found:
                yield found


def _bounded(number: Decimal) -> bool:
    digits = len(number.as_tuple().digits)
    return digits <= MOST_DIGITS and (not number or SMALLEST_EXPONENT <= number.adjusted() <= LARGEST_EXPONENT)


def parse_assumed(text: str, path: str) -> dict[str, Any]:
    """Return the plain data of `0.40`, or of `0.35..0.40..0.45` (low, value, high).

    Raises:
        RejectedError: it is neither.
    """
    parts = [part.strip() for part in text.split("..")]
    if len(text) > 200 or len(parts) not in (1, 3) or not all(_PLAIN.fullmatch(part) for part in parts):
        remedy = "write a number such as 0.40, or a range as low..value..high: 0.35..0.40..0.45"
        raise reject(path, text, "not a number or a range", remedy)
    return {"value": parts[0]} if len(parts) == 1 else dict(zip(("low", "value", "high"), parts, strict=True))
