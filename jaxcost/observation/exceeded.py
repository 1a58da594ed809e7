"""What the TPU compiler says when a program exceeds the device: two sizes in a sentence."""

from __future__ import annotations

import re
from dataclasses import dataclass

_EXCEEDED = re.compile(
    r"Ran out of memory (?:on|in(?: memory space)?) (?P<space>\w+).*?"
    r"\((?P<required>[0-9.]+)(?P<required_unit>[KMGT]?)B?\) exceeds available \w+ "
    r"\((?P<available>[0-9.]+)(?P<available_unit>[KMGT]?)B?\)",
    re.DOTALL,
)
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclass(frozen=True)
class Exceeded:
    """The memory that was exceeded (`HBM`, ...), what the program needs and what there is, as printed: with two
    decimals of a unit, the coarser of which is `unit_bytes`.
    """

    space: str
    required_bytes: int
    available_bytes: int
    unit_bytes: int


def exceeded(text: str) -> Exceeded | None:
    """Return the sizes in a compiler's refusal, None where it names none."""
    match = _EXCEEDED.search(text)
    if match is None:
        return None
    try:
        required, available = float(match["required"]), float(match["available"])
    except ValueError:
        return None
    units = _UNITS[match["required_unit"]], _UNITS[match["available_unit"]]
    return Exceeded(match["space"], round(required * units[0]), round(available * units[1]), max(units))
