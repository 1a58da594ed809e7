"""What is held at the moments of a step that can be its fullest, and the peak over them.

A moment lists everything in use at it, each entry with its class, where it comes from, its bytes as (lower, expected,
upper) and the rule that puts it there. The peak is the largest sum; each end of its interval is the largest of that
end.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from jaxcost.prediction.peak.policy import Policy, Rule
from jaxcost.prediction.rows import plain

CLASSES = (
    "parameter", "gradient", "optimizer", "saved", "gathered_weight", "attention", "logits", "cache", "input_output",
    "workspace",
)  # fmt: skip
DECLARED = "declared"  # the rule of what the program itself declares: no habit of a compiler is needed
OPEN_WIDTH = 0.4  # an interval wider than this share of the expected value bounds nothing


class Span(NamedTuple):
    """Bytes as a closed interval with a likeliest value."""

    lower: int
    expected: int
    upper: int

    @staticmethod
    def exact(value: int) -> Span:
        """Return a value that nothing leaves open."""
        return Span(value, value, value)

    @staticmethod
    def of(rule: Rule, unit: int) -> Span:
        """Return `unit` bytes times the alternatives of a rule."""
        return Span(rule.low * unit, int(rule.value) * unit, rule.high * unit)

    def plus(self, other: Span) -> Span:
        """Return the sum, end by end."""
        return Span(self.lower + other.lower, self.expected + other.expected, self.upper + other.upper)


@dataclass(frozen=True, slots=True)
class Held:
    """One entry of a moment.

    Attributes:
        kind: one of `CLASSES`.
        object: what it is, in words or as a tensor's name.
        scope: component scope, empty for the whole model.
        bytes: on the worst device.
        rule: id of the policy's rule, or `declared`.
    """

    kind: str
    object: str
    scope: str
    bytes: Span
    rule: str = DECLARED

    def __post_init__(self) -> None:
        assert self.kind in CLASSES, self.kind
        assert 0 <= self.bytes.lower <= self.bytes.expected <= self.bytes.upper, self


@dataclass(frozen=True, slots=True)
class Moment:
    """A time that can be the fullest: its name, its phase and what is held then."""

    name: str
    phase: str
    held: tuple[Held, ...]

    @property
    def bytes(self) -> Span:
        """The sum of what is held."""
        total = Span(0, 0, 0)
        for item in self.held:
            total = total.plus(item.bytes)
        return total

    @property
    def by_class(self) -> dict[str, int]:
        """Expected bytes by class, those at zero left out."""
        sums = dict.fromkeys(CLASSES, 0)
        for item in self.held:
            sums[item.kind] += item.bytes.expected
        return {name: value for name, value in sums.items() if value}


@dataclass(frozen=True)
class Unpredicted:
    """No peak is predicted, and why."""

    reason: str


@dataclass(frozen=True)
class PeakPrediction:
    """The live peak of a step on the worst device, in bytes.

    `expected` is the largest moment under each rule's likelier value, `at` its name and `by_class` what it holds;
    `lower` and `upper` take every alternative.
    """

    policy: str
    moments: tuple[Moment, ...]
    lower: int
    expected: int
    upper: int
    at: str
    by_class: dict[str, int]
    assumptions: tuple[str, ...]

    @property
    def peak(self) -> Moment:
        """The moment that is expected to be the fullest."""
        return next(moment for moment in self.moments if moment.name == self.at)

    @property
    def is_open(self) -> bool:
        """Whether the interval is too wide to bound anything."""
        return self.upper - self.lower > OPEN_WIDTH * self.expected

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "policy": self.policy,
            "lower": self.lower,
            "expected": self.expected,
            "upper": self.upper,
            "at": self.at,
            "by_class": dict(self.by_class),
            "assumptions": list(self.assumptions),
            "moments": [
                {
                    "name": moment.name,
                    "phase": moment.phase,
                    "bytes": list(moment.bytes),
                    "held": [
                        {
                            "class": item.kind, "object": item.object, "scope": item.scope, "bytes": list(item.bytes),
                            "rule": item.rule,
                        }
                        for item in moment.held
                    ],
                }
                for moment in self.moments
            ],
        }  # fmt: skip


def peak_of(policy: Policy, moments: Iterable[Moment], assumptions: Iterable[str] = ()) -> PeakPrediction:
    """Return the peak over moments; entries of no bytes are dropped."""
    kept = tuple(
        Moment(moment.name, moment.phase, tuple(item for item in moment.held if item.bytes.upper)) for moment in moments
    )
    sums = [moment.bytes for moment in kept]
    best = max(range(len(kept)), key=lambda index: sums[index].expected)
    return PeakPrediction(
        policy.name,
        kept,
        max(span.lower for span in sums),
        plain(sums[best].expected),
        max(span.upper for span in sums),
        kept[best].name,
        kept[best].by_class,
        tuple(assumptions),
    )
