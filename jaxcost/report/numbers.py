"""Numbers as text: exact first, and beside it a size a reader can hold in mind. An unknown is shown as unknown."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_DECIMAL = ("", "k", "M", "G", "T", "P", "E")


def exact(value: Any) -> str:
    """Return the exact text of a value, with thousands separators."""
    if value is None:
        return "unknown"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.6g}"
    if isinstance(value, dict) and {"lower", "upper"} <= value.keys():
        middle = f" ({exact(value['expected'])} expected)" if value.get("expected") is not None else ""
        return f"{exact(value['lower'])} .. {exact(value['upper'])}{middle}"
    if isinstance(value, dict) and value.keys() == {"minimum", "maximum"}:
        least = exact(value["minimum"])
        return f"at least {least}" if value["maximum"] is None else f"{least} to {exact(value['maximum'])}"
    return str(value)


def about(value: Any, unit: str) -> str:
    """Return a rounded size with its prefix: 64.00 GiB, 70.27 TFLOP; empty where the exact number is short already."""
    if isinstance(value, str) and re.fullmatch(r"-?[0-9]+/[1-9][0-9]*", value):
        return _rounded(Fraction(value))
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) < 10_000:
        return ""
    base, names = (1024, _BINARY) if unit == "bytes" else (1000, _DECIMAL)
    step = 0
    while abs(value) >= base ** (step + 1) and step < len(names) - 1:
        step += 1
    return f"{_rounded(Fraction(value, base**step))} {names[step]}{'FLOP' if unit == 'FLOPs' else ''}".rstrip()


def _rounded(value: Fraction) -> str:
    digits = 2 if abs(value) < 100 else 0
    return f"{float(value):,.{digits}f}"


def signed(value: Any) -> str:
    """Return a residual with its sign; zero has none."""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:+,}" if value else "0"
    return "" if value is None else str(value)


_LEDGER_UNITS = {
    "parameters": "scalars", "flops": "FLOPs", "primitives": "operations", "state": "bytes", "ownership": "bytes",
    "activations": "bytes", "kv_cache": "bytes", "traffic": "bytes", "device": "bytes", "collectives": "bytes",
}  # fmt: skip
_NAMED_UNITS = {
    "bytes_per_parameter": "bytes/parameter",
    "bytes_per_token": "bytes/token",
    "tokens_per_device": "tokens",
}


def unit_of(ledger: str, name: str) -> str:
    """Return the unit of a total, from its dotted name or its ledger."""
    if name in _NAMED_UNITS:
        return _NAMED_UNITS[name]
    if "intensity" in name:
        return "FLOP/byte"
    if "bytes" in name:
        return "bytes"
    if ledger == "ownership" and not name.startswith(("by_role.", "by_zero_stage.")):
        return "scalars" if "parameters" in name else "FLOPs" if "flops" in name else ""
    if ledger == "state" and name in ("loaded", "trainable", "updated"):
        return "scalars"
    return _LEDGER_UNITS.get(ledger, "")


def flat(totals: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Return totals with nested tables opened, as (dotted name, value) in order."""
    rows: list[tuple[str, Any]] = []
    for name, value in totals.items():
        if isinstance(value, dict) and not {"lower", "upper"} <= value.keys():
            rows += flat(value, f"{prefix}{name}.")
        else:
            rows.append((prefix + name, value))
    return rows
