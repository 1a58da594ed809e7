"""An audit against a recorded one, as tables: what is beyond its bound, what else moved, what the compiler did."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.text import Text

from jaxcost.report.console import console, printable, table
from jaxcost.report.numbers import about, exact, signed
from jaxcost.report.tables import line

_MOST = 40
_STYLES = {
    "grown": "bold red",
    "new": "bold red",
    "unknown": "yellow",
    "changed": "cyan",
    "shrunk": "green",
    "same": "green",
}


def show_against(data: Mapping[str, Any], every: bool = False) -> None:
    """Print the section `against` of an audit; `every` shows rows that are the same too."""
    out = console()
    old, new = data["old"], data["new"]
    line(out, f"{new['name']} on {new['target']} against {data['file'] or 'the recorded audit'}", style="bold")
    rows = [row for row in data["rows"] if every or row["status"] != "same"]
    if rows:
        made = table("figure", "old", "new", "growth", "bound", "status", right=("old", "new", "growth"))
        for row in rows[:_MOST]:
            status = Text(row["status"], style=_STYLES.get(row["status"], "") if row["failed"] else "")
            name = Text(printable(row["figure"]))  # the axes in its brackets are no markup
            made.add_row(name, side(row["old"], row), side(row["new"], row), growth(row), row["bound"] or "", status)
        out.print(made)
    if len(rows) > _MOST:
        line(out, f"{len(rows) - _MOST} more rows; --json has all of them")
    for row in rows:
        if row["failed"] and row["reason"]:
            line(out, f"{row['figure']} is unknown: {row['reason']}")
    if data["differences"]:
        line(out, "what differs", style="bold")
        for found in data["differences"]:
            line(out, f"- {found['about']}: {found['text']}")
    line(out, verdict(data), style="bold")
    if old["versions"] == new["versions"] and data["status"] == "same":
        line(out, "the same compiler, the same figures")


def verdict(data: Mapping[str, Any]) -> str:
    """Return one sentence: how many figures are beyond their bounds, and the worst of them."""
    failures = [row for row in data["rows"] if row["failed"]]
    if not failures:
        held = sum(1 for row in data["rows"] if row["bound"] is not None)
        return f"nothing is beyond its bound ({held} figures held to one)"
    worst = max(failures, key=_share)
    named = ", ".join(row["figure"] for row in failures[:4]) + (" ..." if len(failures) > 4 else "")
    grown = f"; the most in {worst['figure']}, by {growth(worst)}" if worst["growth"] else ""
    return f"{len(failures)} beyond their bounds: {named}{grown}"


def _share(row: Mapping[str, Any]) -> float:
    old = row["old"]
    old = old.get("maximum") if isinstance(old, Mapping) else old
    return float("inf") if not old else (row["growth"] or 0) / old


def side(value: Any, row: Mapping[str, Any]) -> str:
    """Return a figure of one of the two audits in words."""
    if isinstance(value, Mapping):
        return f"{exact(value['minimum'])} .. {exact(value['maximum'])}"
    if value is None and row["status"] in ("new", "gone"):
        return "-"
    return exact(value)


def growth(row: Mapping[str, Any]) -> str:
    """Return by how much a figure has grown in words; '' where there is no such number."""
    if row["growth"] is None:
        return ""
    rounded = about(row["growth"], row["unit"])
    return signed(row["growth"]) + (f" ({rounded})" if rounded else "")
