"""Publish gates as text: section by section, each line with what it was held against; what is broken, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from rich.console import Console
from rich.text import Text

from jaxcost.report.console import table
from jaxcost.report.tables import line

COLOURS = {"holds": "green", "broken": "bold red", "nothing to check": "yellow", "not checkable": "dim"}
_WIDTHS = {"no.": 3, "checked": 9, "status": 16}


def head(gate: Mapping[str, Any]) -> str:
    """Return the heading of a gate's section."""
    return f"{gate['section']}: {gate['title']}"


def basis(gate: Mapping[str, Any]) -> str:
    """Return what a line rests on: its checks, or why there is none."""
    return str(gate.get("reason") or ", ".join(gate["checks"]))


def sentence(gates: Sequence[Mapping[str, Any]], cases: Sequence[str]) -> str:
    """Return how many lines have which status, and over how many cases."""
    statuses = [gate["status"] for gate in gates]
    counts = ", ".join(f"{statuses.count(status)} {status}" for status in COLOURS if status in statuses)
    over = "one case" if len(cases) == 1 else f"{len(cases)} cases"
    return f"{len(gates)} lines of {len({gate['section'] for gate in gates})} gates over {over}: {counts}"


def show_gates(out: Console, gates: Sequence[Mapping[str, Any]], cases: Sequence[str], seconds: float) -> None:
    """Print a table for each gate, then what is broken."""
    for title, members in groupby(gates, key=head):
        made = table("no.", "it is required that", "rests on", "checked", "status", title=title, right=("checked",))
        made.expand = True
        for column in made.columns:
            column.width = _WIDTHS.get(str(column.header))
            column.ratio = None if column.width else 1
        for gate in members:
            status = Text(gate["status"], style=COLOURS.get(gate["status"], ""))
            checked = f"{gate['checked']:,}" if gate["checked"] else ""
            made.add_row(gate["id"].partition("/")[2], gate["gate"], basis(gate), checked, status)
        out.print(made)
    for gate in gates:
        for problem in gate.get("problems", ()):
            line(out, f"{gate['id']}: {problem}", style="bold red")
    line(out, f"{sentence(gates, cases)}. {seconds:.1f} s", style="bold")
