"""How jaxcost refuses: one problem names the field, its value, the rule it breaks and what to write instead.

All problems of one input are collected and raised together, so that a user mends a file once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """One reason why an input is refused."""

    path: str
    value: object
    rule: str
    remedy: str

    def __str__(self) -> str:
        shown = repr(self.value)
        shown = shown if len(shown) <= 80 else shown[:77] + "..."
        return f"{self.path or 'input'} = {shown}: {self.rule}. {self.remedy}"

    def to_dict(self) -> dict[str, object]:
        """Return the JSON form; a value JSON cannot carry is shown as text."""
        value = self.value
        finite = not isinstance(value, float) or math.isfinite(value)
        if not isinstance(value, str | int | float | bool | type(None)) or not finite:
            value = repr(value)
        if isinstance(value, str) and len(value) > 200:
            value = value[:197] + "..."
        return {"path": self.path, "value": value, "rule": self.rule, "remedy": self.remedy}


class JaxcostError(Exception):
    """Base of the errors a user can cause; `exit_code` is what the command line returns."""

    exit_code = 4


class RejectedError(JaxcostError):
    """The input breaks its contract; nothing was computed or written."""

    exit_code = 2

    def __init__(self, problems: Iterable[Problem]):
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class NotExecutedError(RejectedError):
    """The case is sound and is predicted, but the reference network does not execute it."""


class UnavailableError(JaxcostError):
    """A known target has no compiler here, or a file given by path does not exist."""

    exit_code = 3

    def __init__(self, what: str, reason: str, remedy: str):
        self.what, self.reason, self.remedy = what, reason, remedy
        super().__init__(f"{what}: {reason}. {remedy}")


def reject(path: str, value: object, rule: str, remedy: str) -> RejectedError:
    """Return the error for a single problem, to be raised by the caller."""
    return RejectedError([Problem(path, value, rule, remedy)])
