"""Supplied activation events: what is alive from when until when, in bytes.

Intervals are half-open and a release precedes a birth at the same time, so the peak is a cut through the intervals and
not their sum. A case without events has no supplied peak; that is not a peak of zero.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from jaxcost.contracts.errors import Problem
from jaxcost.contracts.record import Extent, Name, Record


class LiveObject(Record):
    """One storage alive on [birth, death)."""

    name: Name
    bytes: Extent
    birth: float
    death: float
    kind: Literal["tensor", "workspace"] = "tensor"

    def problems(self) -> Iterable[Problem]:
        if self.death <= self.birth:
            yield Problem(
                "death", self.death, f"not after birth ({self.birth})", "give a later time; intervals are half-open"
            )


class Liveness(Record):
    """The supplied events of one step, and the bytes that persist through it."""

    objects: tuple[LiveObject, ...]
    persistent_bytes: Extent = 0

    def problems(self) -> Iterable[Problem]:
        names = [item.name for item in self.objects]
        for name in sorted({name for name in names if names.count(name) > 1}):
            yield Problem("objects", name, "two live objects share a name", "name each storage once")
        if not self.objects:
            yield Problem("objects", [], "no events", "leave [liveness] out when no events are supplied")
