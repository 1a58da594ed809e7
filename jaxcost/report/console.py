"""Where tables go: standard output, as wide as the terminal; plain where it is not one or NO_COLOR is set."""

from __future__ import annotations

import os
import sys

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table

PIPE_WIDTH = 160


def console() -> Console:
    """Return a console on standard output. Into a pipe it is wide and plain, so that no number breaks over lines."""
    columns = os.environ.get("COLUMNS", "")
    width = int(columns) if columns.isdecimal() and 0 < int(columns) < 10_000 else None
    if not sys.stdout.isatty():
        width = width or PIPE_WIDTH
    return Console(width=width, highlight=False, soft_wrap=False, no_color=None if sys.stdout.isatty() else True)


class NumberTable(Table):
    """A table whose right-justified columns are never narrower than their numbers, however narrow the terminal."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for column in self.columns:
            if column.justify == "right":
                column.min_width = max((cell_len(str(cell)) for cell in column.cells), default=0)
        yield from super().__rich_console__(console, options)


def table(*columns: str, title: str = "", right: tuple[str, ...] = (), wrap: tuple[str, ...] = ()) -> Table:
    """Return an empty table; columns named in `right` hold numbers, those in `wrap` may break over lines."""
    made = NumberTable(
        box=box.SIMPLE_HEAD,
        title=title or None,
        title_justify="left",
        title_style="bold",
        pad_edge=False,
        header_style="bold",
    )
    for name in columns:
        made.add_column(
            name,
            justify="right" if name in right else "left",
            no_wrap=name in right or name not in wrap,
            overflow="fold",
        )
    return made
