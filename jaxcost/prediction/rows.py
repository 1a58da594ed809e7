"""What every ledger is made of: rows that say what was counted and under which contract, and totals over them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any


@dataclass(frozen=True, slots=True)
class Row:
    """One counted object.

    Attributes:
        object: what is counted.
        scope: component scope; empty for the whole model.
        phase: `forward`, `backward`, `replay`, `optimizer`, a lifecycle point, or empty where time plays no part.
        value: exact integer (or a sympy expression); None where unknown.
        unit: `scalars`, `bytes`, `FLOPs` or `primitives`.
        fields: extents and other facts the value follows from.
        convention: how it was counted.
        omitted: what is left out.
        evidence: always `analytical` here.
        part: of FLOPs, `forward`, `dx`, `dw` or `replay`.
        region: `block` or `outside`.
        per_device: the same on the worst device of the mesh, where it was derived.
    """

    object: str
    scope: str
    phase: str
    value: Any
    unit: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    convention: str = ""
    omitted: str = ""
    evidence: str = "analytical"
    part: str = ""
    region: str = ""
    per_device: Any = None

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form; parts that do not apply are left out."""
        data = {name: getattr(self, name) for name in _ALWAYS}
        data["value"], data["fields"] = plain(self.value), {name: plain(value) for name, value in self.fields.items()}
        data.update({name: plain(getattr(self, name)) for name in ("part", "region") if getattr(self, name)})
        if self.per_device is not None:
            data["per_device"] = plain(self.per_device)
        return data


_ALWAYS = ("object", "scope", "phase", "value", "unit", "fields", "convention", "omitted", "evidence")


@dataclass(frozen=True)
class Ledger:
    """One answer: totals by name, the rows behind them, and a reason for every total that is None."""

    name: str
    totals: dict[str, Any]
    rows: tuple[Row, ...] = ()
    reasons: dict[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form; an unknown total is null, with a `reason` beside it."""
        totals = plain(self.totals)
        for path, reason in self.reasons.items():
            beside = totals
            for part in path.split(".")[:-1]:
                beside = beside[part]
            known = beside.get("reason")
            beside["reason"] = reason if known in (None, reason) else f"{known}; {reason}"
        return {"totals": totals, "rows": [row.to_dict() for row in self.rows]}


def plain(value: Any) -> Any:
    """Return a JSON form that loses nothing: a whole fraction as an integer, any other as the text `p/q`."""
    if isinstance(value, Fraction):
        return value.numerator if value.denominator == 1 else str(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)


def total(rows: Iterable[Row], **where: str) -> Any:
    """Return the sum of the values of rows whose attributes equal `where`."""
    return sum((row.value for row in rows if all(getattr(row, name) == value for name, value in where.items())), 0)


def by_scope(rows: Iterable[Row]) -> dict[str, Any]:
    """Return the sum of values for every scope and every scope above it; the empty scope is everything."""
    sums: dict[str, Any] = {}
    for row in rows:
        parts = row.scope.split("/") if row.scope else []
        for depth in range(len(parts) + 1):
            key = "/".join(parts[:depth])
            sums[key] = sums.get(key, 0) + row.value
    return sums
