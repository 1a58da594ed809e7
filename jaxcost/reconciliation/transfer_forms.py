"""What one transfer is on either side, how a changed form follows from a declared one, and what lies near what."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import combinations
from typing import NamedTuple

from jaxcost.contracts.dtypes import payload_bytes

BACK = ("backward", "replay")


class Key(NamedTuple):
    """What identifies a row: kind, mesh axes, bytes of one execution, executions."""

    kind: str
    axes: str
    payload: int
    times: int

    @property
    def scope(self) -> str:
        """The row's scope."""
        return f"{self.kind}/{self.axes or 'unknown axes'}/{self.payload}x{self.times}"

    @property
    def total(self) -> int:
        """Bytes over all executions."""
        return self.payload * self.times


@dataclass(frozen=True)
class Need:
    """One declared transfer, of one instruction; `layers` is how many of its executions are layers of a loop."""

    key: Key
    dtype: str
    elements: int
    scope: str
    phase: str
    object: str
    terms: tuple[str, ...]
    layers: int
    microbatches: int
    participants: int

    @property
    def scopes(self) -> tuple[str, ...]:
        """Where its instructions may bear a name from."""
        return self.terms or (self.scope,)


@dataclass
class Seen:
    """One array of one collective instruction, and whether a declared transfer was matched with it."""

    key: Key
    dtype: str
    elements: int
    scope: str
    phase: str
    argument: str
    name: str
    form: str
    sliced: tuple[str, ...]
    source: str
    unpadded: int
    taken: bool = field(default=False)

    @property
    def shown(self) -> str:
        """The instruction as evidence."""
        return f"{self.name} ({self.dtype} x {self.elements})"


class Change(NamedTuple):
    """One way in which a form differs from the declaration: which, its evidence, and its effect on a transfer.

    `pieces` multiplies the instructions, `divided` divides their executions and multiplies the elements of each,
    `fewer` only divides the executions.
    """

    name: str
    kind: str = ""
    dtype: str = ""
    pieces: int = 1
    divided: int = 1
    fewer: int = 1


Nearness = Callable[[Need, Seen], bool]


def changed(need: Need, changes: tuple[Change, ...]) -> tuple[Key, str, int]:
    """Return key, type and elements of one instruction of a changed form."""
    kind, dtype, elements, times = need.key.kind, need.dtype, need.elements, need.key.times
    for change in changes:
        kind, dtype = change.kind or kind, change.dtype or dtype
        if change.divided > 1:
            elements, times = elements * change.divided, times // change.divided
        times //= change.fewer
    return Key(kind, need.key.axes, payload_bytes(elements, dtype), times), dtype, elements


def shows(seen: Seen, names: set[str]) -> bool:
    """Return whether an instruction shows what some changes claim of it."""
    if "reduced whole" in names and not seen.sliced:
        return False
    return "gathered by a sum" not in names or "summing into zeros" in seen.form


def related(need: Need, seen: Seen) -> bool:
    """Return whether an instruction bears the name of the transfer's component, or of one around or inside it."""
    return any(_close(scope, seen.scope) for scope in need.scopes)


def axis_pair(axes: list[str], found: list[Seen]) -> tuple[Seen, Seen] | None:
    """Return two instructions whose axes together are `axes`."""
    for cut in range(1, len(axes)):
        for first in combinations(axes, cut):
            rest = ",".join(axis for axis in axes if axis not in first)
            one = next((s for s in found if s.key.axes == ",".join(first)), None)
            other = next((s for s in found if s.key.axes == rest), None)
            if one is not None and other is not None:
                return one, other
    return None


def same_place(need: Need, seen: Seen) -> bool:
    """Return whether component and phase are the same."""
    return seen.scope in need.scopes and seen.phase == need.phase


def same_scope(need: Need, seen: Seen) -> bool:
    """Return whether the component is the same."""
    return seen.scope in need.scopes


def anywhere(need: Need, seen: Seen) -> bool:
    """Return True: kind, axes, bytes and executions say enough."""
    return True


def same_group(need: Need, seen: Seen) -> bool:
    """Return whether an instruction stands in the same group of layers."""
    top = need.scope.split("/", 1)[0]
    return top.startswith("group") and seen.scope.split("/", 1)[0] == top


def _close(a: str, b: str) -> bool:
    return a == b or a.startswith(b + "/") or b.startswith(a + "/") or not b


def likeness(need: Need, seen: Seen) -> tuple[bool, bool, bool]:
    """Return what makes one of several candidates the likelier one: component, neighbourhood, pass."""
    back = (need.phase in BACK) == (seen.phase in BACK)
    return seen.scope in need.scopes, related(need, seen), back


def same_pass(need: Need, seen: Seen) -> bool:
    """Return whether an instruction stands in the pass of a gather, or in the backward pass of a gradient."""
    if need.key.kind == "reduce-scatter":
        return seen.phase == "backward"
    return seen.phase == "forward" if need.phase == "forward" else seen.phase in BACK


def as_evidence(seen: Seen, need: Need) -> str:
    """Return an instruction, what it is for, and what keeps a part of it."""
    cut = f", of which {listed(seen.sliced)} keeps a part" if seen.sliced else ""
    return f"{seen.shown} for {need.object}{cut}"


def listed(names: Iterable[str], most: int = 6) -> str:
    """Return names in one line, the last ones only counted."""
    found = list(names)
    rest = f" and {len(found) - most} more" if len(found) > most else ""
    return ", ".join(found[:most]) + rest
