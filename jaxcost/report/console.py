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
WORD_WIDTH = 9  # of a column of words: no shorter than a phase's name
COLUMN_GAP = 3


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
    """A table that keeps its numbers, and a name of usual length in its first column, whole in a narrow terminal.

    Where it is too wide all the same, columns of `optional` are left out, in their order, and named below the table.
    """

    optional: tuple[str, ...] = ()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        widths = {}
        for index, column in enumerate(self.columns):
            longest = max((cell_len(str(cell)) for cell in column.cells), default=0)
            if column.justify == "right":
                column.min_width = longest
            elif index == 0 or not column.no_wrap:
                column.min_width = min(longest, NAME_WIDTH if index == 0 else WORD_WIDTH)
            header = cell_len(str(column.header)) if column.justify == "right" else 0
            widths[str(column.header)] = max(column.min_width or 0, header) + COLUMN_GAP
        dropped = []
        for name in self.optional:
            if sum(widths.values()) <= options.max_width:
                break
            if widths.pop(name, None) is not None:
                dropped.append(name)
        if dropped:
            self.columns = [column for column in self.columns if str(column.header) not in dropped]
            self.caption = f"not shown at this width: {', '.join(dropped)}"
        yield from super().__rich_console__(console, options)


def table(*columns: str, title: str = "", right: tuple[str, ...] = (), optional: tuple[str, ...] = ()) -> Table:
    """Return an empty table; columns named in `right` hold numbers, the others may break over lines.

    Those of `optional` are left out, first to last, where the terminal is too narrow for all.
    """
    made = NumberTable(
        box=box.SIMPLE_HEAD,
        title=title or None,
        title_justify="left",
        title_style="bold",
        pad_edge=False,
        header_style="bold",
    )
    made.optional = optional
    for name in columns:
        made.add_column(
            name,
            justify="right" if name in right else "left",
            no_wrap=name in right,
            overflow="fold",
        )
    return made
