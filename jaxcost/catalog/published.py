"""Published parameter counts, and how each follows from a manifest's own.

A published count is one of several things: unique parameters, named occurrences (a tied head counted again), or either
of them with something added or left out, such as stored buffers or the embeddings. A manifest states the relation in
parts, so that it can be checked: the base, plus elements times times for each part, is the count. `[[published]]` in a
manifest file lies outside the digest.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Field

from jaxcost.contracts.errors import Problem
from jaxcost.contracts.record import LARGEST_SIZE, Name, Record, Size

Signed = Annotated[int, Field(ge=-LARGEST_SIZE, le=LARGEST_SIZE)]


class Part(Record):
    """Elements that a published count has more (or, below zero, fewer) than its base, `times` over."""

    what: Name
    elements: Signed
    times: Size = 1

    def problems(self) -> Iterable[Problem]:
        if self.elements == 0:
            yield Problem("elements", 0, "a part that adds nothing explains nothing", "remove it")


class Published(Record):
    """One published count: what it counts, the parts that make the difference, and where it was published."""

    count: Size
    of: Literal["unique", "named"]
    source: Annotated[str, Field(min_length=1)]
    parts: tuple[Part, ...] = ()

    def explained(self, unique: int, named: int) -> int:
        """Return the count that the relation gives for a model with these parameters."""
        base = unique if self.of == "unique" else named
        return base + sum(part.elements * part.times for part in self.parts)

    @property
    def relation(self) -> str:
        """The relation in words and digits."""
        return " ".join([self.of, *map(_term, self.parts)])


def _term(part: Part) -> str:
    sign = "+" if part.elements > 0 else "-"
    times = f"{part.times:,} * " if part.times != 1 else ""
    return f"{sign} {times}{abs(part.elements):,} ({part.what})"
