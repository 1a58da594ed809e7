"""The walk through one row as text: step by step, predicted beside observed, and the sentence it ends in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from jaxcost.report import gather
from jaxcost.report.console import table
from jaxcost.report.tables import line

_SHOWN = 12
_WORDS = {True: ("agrees", "green"), False: ("disagrees", "bold red"), None: ("nothing to compare", "yellow")}


def show_explained(out: Console, explained: Mapping[str, Any]) -> None:
    """Print the seven steps; of a long one what disagrees and the first of the rest."""
    line(out, f"{explained['row']} of {explained['report']} on {explained['target']}: {explained['status']}", "bold")
    for step in explained["steps"]:
        word, style = _WORDS[step["agrees"]]
        if step["step"] == "residual":
            word, style = "", ""
        head = Text(f"{step['number']}. {step['step']}: {step['question']}", style="bold")
        out.print(head + Text(f"  {word}" if step["rows"] and word else "", style=style), soft_wrap=True)
        if not step["rows"]:
            line(out, "   nothing of this row")
            continue
        _show_rows(out, step["rows"])
    line(out, explained["conclusion"][:1].upper() + explained["conclusion"][1:] + ".", "bold")
    out.print()


def _show_rows(out: Console, rows: Sequence[Mapping[str, Any]]) -> None:
    differing = [row for row in rows if row["agrees"] is False][:_SHOWN]
    others = [row for row in rows if row["agrees"] is not False][: max(_SHOWN - len(differing), 0)]
    chosen = [row for row in rows if any(row is kept for kept in (*differing, *others))]
    heads = [name for name in ("predicted", "observed") if any(row[name] is not None for row in chosen)]
    units = any(row["unit"] for row in chosen)
    made = table("what", *heads, *(["unit"] if units else []), "", "note", right=tuple(heads))
    for row in chosen:
        mark = {True: Text("="), False: Text("differs", style="bold red"), None: Text("")}[row["agrees"]]
        made.add_row(
            row["what"],
            *(gather.side(row[name]) for name in heads),
            *([row["unit"]] if units else []),
            mark,
            row["note"],
        )
    out.print(made)
    if len(rows) > len(chosen):
        line(out, f"   and {len(rows) - len(chosen)} more, listed by --json")
