"""Rows and their status: the arithmetic of comparison, and nothing else.

For a counter with prediction P, observation O and signed explanations E_i, the residual is r = O - P. The row is

- `exact` when r = 0 and nothing was explained;
- `explained` when the explanations sum to r, to the unit;
- `bounded` when the prediction is an interval, O minus the explanations lies inside it and the interval is no wider
  than its claim allows;
- `unmeasured` when either side is unknown;
- `open` otherwise. Neither P nor O is ever changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Literal

Status = Literal["rejected", "open", "unmeasured", "bounded", "explained", "exact"]
STATUSES: tuple[Status, ...] = ("rejected", "open", "unmeasured", "bounded", "explained", "exact")


@dataclass(frozen=True)
class Explanation:
    """A signed part of a residual with its own closed form and its own evidence in the program."""

    amount: int
    reason: str
    evidence: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"amount": self.amount, "reason": self.reason, "evidence": self.evidence}


@dataclass(frozen=True)
class Interval:
    """A predicted interval, both ends included.

    `maximum_ratio` is the widest upper/lower that still counts as a prediction; None for a limit, where only the upper
    end says something (a device's memory). An interval around an `expected` value may be no wider than `maximum_width`
    times that value.
    """

    lower: int
    upper: int
    maximum_ratio: int | None = None
    expected: int | None = None
    maximum_width: Fraction | None = None

    def holds(self, value: int) -> bool:
        """Return whether `value` lies inside."""
        return self.lower <= value <= self.upper

    @property
    def too_wide(self) -> bool:
        """Whether the interval says too little to count as a prediction."""
        if self.maximum_ratio is not None and self.upper > self.maximum_ratio * self.lower:
            return True
        if self.maximum_width is None or self.expected is None:
            return False
        return self.upper - self.lower > self.maximum_width * self.expected

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form; a width is the text of its fraction."""
        data: dict[str, Any] = {"lower": self.lower, "upper": self.upper}
        if self.maximum_ratio is not None:
            data["maximum_ratio"] = self.maximum_ratio
        if self.expected is not None:
            data["expected"] = self.expected
        if self.maximum_width is not None:
            data["maximum_width"] = str(self.maximum_width)
        return data


@dataclass(frozen=True)
class Row:
    """One comparison.

    `verdict` marks a row about another tool's own counter, which says what that counter is worth. Such a row does not
    decide a report, and where the counter differs it measures nothing. `forced_open` is for differences that no number
    shows, named in `reason`.
    """

    counter: str
    scope: str
    phase: str
    unit: str
    prediction: int | Interval | None
    observation: int | None
    explanations: tuple[Explanation, ...] = ()
    reason: str = ""
    verdict: str = ""
    forced_open: bool = field(default=False, repr=False)

    @property
    def residual(self) -> int | None:
        """Observation minus prediction; for an interval, the distance outside it after the explanations."""
        if self.prediction is None or self.observation is None:
            return None
        if isinstance(self.prediction, Interval):
            seen = self.observation - self.explained
            return min(seen - self.prediction.lower, 0) or max(seen - self.prediction.upper, 0)
        return self.observation - self.prediction

    @property
    def explained(self) -> int:
        """The sum of the signed explanations."""
        return sum(item.amount for item in self.explanations)

    @property
    def status(self) -> Status:
        """The status that follows from the numbers; see the module's text."""
        if self.forced_open:
            return "open"
        if self.verdict and self.residual != 0:
            return "unmeasured"
        if self.prediction is None or self.observation is None:
            return "unmeasured"
        if isinstance(self.prediction, Interval):
            return "bounded" if self.residual == 0 and not self.prediction.too_wide else "open"
        if self.residual == 0 and not self.explained:
            return "explained" if self.explanations else "exact"
        return "explained" if self.explained == self.residual else "open"

    @property
    def key(self) -> str:
        """`counter[:scope][:phase]`, the name a user gives to `--explain`."""
        return ":".join(part for part in (self.counter, self.scope, self.phase) if part)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form; an unknown is null with a `reason`."""
        prediction: Any = self.prediction
        if isinstance(prediction, Interval):
            prediction = prediction.to_dict()
        data: dict[str, Any] = {
            "counter": self.counter,
            "scope": self.scope,
            "phase": self.phase,
            "unit": self.unit,
            "prediction": prediction,
            "observation": self.observation,
            "residual": self.residual,
            "explanations": [item.to_dict() for item in self.explanations],
            "status": self.status,
        }
        if self.reason:
            data["reason"] = self.reason
        if self.verdict:
            data["verdict"] = self.verdict
        return data


@dataclass(frozen=True)
class Finding:
    """Something worth knowing that a total does not show."""

    kind: str
    text: str
    evidence: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"kind": self.kind, "text": self.text, "evidence": list(self.evidence)}


@dataclass(frozen=True)
class Report:
    """All rows of one case on one target."""

    case: dict[str, Any]
    target: str
    environment: dict[str, Any]
    rows: tuple[Row, ...]
    findings: tuple[Finding, ...] = ()
    name: str = ""

    @property
    def status(self) -> Status:
        """The worst status of the rows that count; a report without any is unmeasured."""
        return worst(row.status for row in self.rows if not row.verdict)

    def row(self, key: str) -> Row | None:
        """Return the row of a key, or None."""
        return next((row for row in self.rows if row.key == key), None)

    def with_rows(self, rows: Sequence[Row]) -> Report:
        """Return the report with other rows."""
        return replace(self, rows=tuple(rows))

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form of interface `jaxcost.verify`."""
        return {
            "name": self.name,
            "case": self.case,
            "target": self.target,
            "environment": self.environment,
            "rows": [row.to_dict() for row in self.rows],
            "status": self.status,
            "findings": [finding.to_dict() for finding in self.findings],
        }


def worst(statuses: Iterable[Status]) -> Status:
    """Return the worst of the statuses; of none, `unmeasured`."""
    return min(statuses, key=STATUSES.index, default="unmeasured")
