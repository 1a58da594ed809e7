"""Large lookup tables: what they hold, what a token reads, and whether the read hides behind the layers before it.

A table costs no FLOPs and much memory. Addresses that depend on tokens alone are known before the first layer runs, so
rows can be fetched while earlier layers compute; what the transfer takes beyond that time is exposed.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from jaxcost.contracts.dtypes import BITS, payload_bytes
from jaxcost.contracts.errors import reject
from jaxcost.planning.quantities import Number, count, not_negative, positive


@dataclass(frozen=True)
class LookupTable:
    """A table of `elements` scalars, rows of `width`, `lookups` rows for each token, stored in `dtype`."""

    elements: int
    dtype: str = "bf16"
    width: int = 1
    lookups: int = 1

    @property
    def table_bytes(self) -> int:
        """Bytes of the table, before optimizer state and metadata."""
        return _bytes(count(self.elements, "--elements"), self.dtype)

    def read_bytes(self, tokens: int) -> int:
        """Return the bytes of the rows that so many tokens read; equal rows are not merged."""
        rows = count(tokens, "--tokens") * count(self.lookups, "--lookups")
        return _bytes(rows * count(self.width, "--width"), self.dtype)

    def prefetch(
        self, tokens: int, link_bytes_per_s: Number, hidden_seconds: Number, latency_seconds: Number = 0
    ) -> dict[str, Any]:
        """Return the transfer of one step's rows, and how much of it stays exposed.

        Args:
            tokens: of one step, on the device that reads.
            link_bytes_per_s: of the path the rows take, in one direction.
            hidden_seconds: compute of the layers before the lookup, during which the transfer may run.
            latency_seconds: before the first byte arrives.

        Raises:
            RejectedError: a number is out of range.
        """
        size = self.read_bytes(tokens)
        seconds = not_negative(latency_seconds, "--latency-us") + size / positive(link_bytes_per_s, "link_bytes_per_s")
        exposed = max(seconds - not_negative(hidden_seconds, "--hidden-us"), Fraction(0))
        return {
            "read_bytes": size,
            "transfer_seconds": float(seconds),
            "exposed_seconds": float(exposed),
            "hidden": exposed == 0,
            "convention": "full overlap with the layers before it is an idealisation, not a bound from above",
        }


def _bytes(elements: int, dtype: str) -> int:
    """Return the payload of elements, or refuse a type that is none."""
    if dtype not in BITS:
        raise reject("--dtype", dtype, "not an element type", f"use one of {', '.join(BITS)}")
    return payload_bytes(elements, dtype)
