"""Sums over a program that stay useful where a part is unknown: what is exact, what lies between, what is certain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from jaxcost.observation.hlo.module import Module
from jaxcost.observation.hlo.trips import ZERO, Executions, Total

Key = tuple[str, ...]

_INTERVAL = "an interval: branches of a conditional, or a loop whose trips are only bounded"


@dataclass(frozen=True, slots=True)
class Amount:
    """A count in [minimum, maximum]. `maximum` is None, with a reason, while something in it is unknown; `minimum` is
    then what is certainly executed.
    """

    minimum: int
    maximum: int | None
    reason: str = ""

    @property
    def value(self) -> int | None:
        """The exact number, or None."""
        return self.minimum if self.minimum == self.maximum else None


class Sums:
    """Sums of `own[instruction id][key]` (one execution's worth) over the program. `reasons`: why a key is unknown,
    beside loops without a count.
    """

    def __init__(
        self,
        module: Module,
        executions: Executions,
        own: Mapping[int, Mapping[Key, int]],
        reasons: Mapping[Key, list[str]] | None = None,
    ) -> None:
        self.reasons = dict(reasons or {})
        self.whole: dict[Key, Total] = executions.totals(own)
        self.certain: dict[Key, int] = {}
        if any(total.minimum is None for total in self.whole.values()):
            counts = executions.counts()
            for number, amounts in own.items():
                times = counts[module.instructions[number].computation.id].minimum or 0
                for key, amount in amounts.items():
                    self.certain[key] = self.certain.get(key, 0) + times * amount

    def named(self, first: str) -> list[Key]:
        """All keys that begin with `first`, those of unknowns too, sorted."""
        return sorted(key for key in {*self.whole, *self.reasons} if key[0] == first)

    def __getitem__(self, key: Key) -> Amount:
        whole = self.whole.get(key, ZERO)
        reasons = list(self.reasons.get(key, ()))
        if whole.minimum is None:
            return Amount(self.certain.get(key, 0), None, _one_line([whole.reason, *reasons]))
        if reasons:
            return Amount(whole.minimum, None, _one_line(reasons))
        return Amount(whole.minimum, whole.maximum, "" if whole.value is not None else _INTERVAL)


def _one_line(reasons: list[str]) -> str:
    return reasons[0] + (f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else "")
