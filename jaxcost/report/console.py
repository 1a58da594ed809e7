"""Where tables go: standard output, as wide as the terminal; plain where it is not one or NO_COLOR is set."""

from __future__ import annotations

import os
import sys

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table

PIPE_WIDTH = 160
NAME_WIDTH = 24


def console() -> Console:
    """Return a console on standard output. Into a pipe it is wide and plain, so that no number breaks over lines."""
    columns = os.environ.get("COLUMNS", "")
    width = int(columns) if columns.isdecimal() and 0 < int(columns) < 10_000 else None
    if not sys.stdout.isatty():
        width = width or PIPE_WIDTH
    return _Console(width=width, highlight=False, soft_wrap=False, no_color=None if sys.stdout.isatty() else True)


class _Console(Console):
    """A console that leaves a closed pipe to the program; rich would end with 1, which means a mismatch here."""

    def on_broken_pipe(self) -> None:
        raise  # the BrokenPipeError that is being handled


class NumberTable(Table):
    """A table that keeps its numbers, and a name of usual length in its first column, whole in a narrow terminal."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for index, column in enumerate(self.columns):
            longest = max((cell_len(str(cell)) for cell in column.cells), default=0)
            if column.justify == "right":
                column.min_width = longest
            elif index == 0:
                column.min_width = min(longest, NAME_WIDTH)
        yield from super().__rich_console__(console, options)


def table(*columns: str, title: str = "", right: tuple[str, ...] = ()) -> Table:
    """Return an empty table; columns named in `right` hold numbers, the others may break over lines."""
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
            no_wrap=name in right,
            overflow="fold",
        )
    return made
