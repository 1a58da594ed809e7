"""Failure rows as text: section by section, each fault with its symptom, its check and what that answered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from jaxcost.report import gather
from jaxcost.report.console import table
from jaxcost.report.tables import COLOURS

_WIDTHS = {"row": 5, "status": 22}


def show_failures(out: Console, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print a table of equal columns for each section, and why a row is missed."""
    for head, members in gather.failure_sections(rows):
        made = table("row", "fault", "symptom", "check", "status", title=head)
        made.expand = True
        for column in made.columns:
            column.width = _WIDTHS.get(str(column.header))
            column.ratio = None if column.width else 1
        for row in members:
            status = Text(gather.answered(row), style=COLOURS.get(row["status"], ""))
            check = row["check"].replace("property ", "property: ").replace("_", " ")
            made.add_row(row.get("id", "").partition("/")[2], row["fault"], row["symptom"], check, status)
        out.print(made)
    for row in rows:
        if row["status"] == "missed":
            out.print(Text(f"{row.get('id', row['fault'])}: {row.get('reason', '')}", style="bold red"), soft_wrap=True)
