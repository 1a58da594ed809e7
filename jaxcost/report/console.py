"""Where tables go: standard output, as wide as the terminal; plain where it is not one or NO_COLOR is set."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from copy import copy

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Column, Table

PIPE_WIDTH = 160
NAME_WIDTH = 24
WORD_WIDTH = 9  # of a column of words: no shorter than a phase's name
NUMBER_WIDTH = 36  # of a right-aligned cell; a longer one is a text that may break between its words
TEXT_WIDTH = 20  # of a column whose cells are sentences
COLUMN_GAP = 3


def console() -> Console:
    """Return a console on standard output. Into a pipe it is wide and plain, so that no number breaks over lines."""
    columns = os.environ.get("COLUMNS", "")
    width = int(columns) if columns.isdecimal() and 0 < int(columns) < 10_000 else None
    if not sys.stdout.isatty():
        width = width or PIPE_WIDTH
    return _Console(width=width, highlight=False, soft_wrap=False, no_color=None if sys.stdout.isatty() else True)


def printable(text: str) -> str:
    """Return a text that others wrote without what a terminal would obey: each control character shows as one mark."""
    return text if text.isprintable() else "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text)


class _Console(Console):
    """A console that leaves a closed pipe to the program; rich would end with 1, which means a mismatch here."""

    def on_broken_pipe(self) -> None:
        raise  # the BrokenPipeError that is being handled


class NumberTable(Table):
    """A table that keeps its numbers, and a name of usual length in its first column, whole in a narrow terminal.

    Where it is too wide all the same, columns of `optional` are left out, in their order, and named below the table. If
    that is not enough it is printed in parts, below each other, each with the columns that name its rows.
    """

    optional: tuple[str, ...] = ()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for index, column in enumerate(self.columns):
            column.min_width = _least_width(index, column)
        dropped = []
        for name in self.optional:
            if self._width(self.columns) <= options.max_width:
                break
            if any(str(column.header) == name for column in self.columns):
                self.columns = [column for column in self.columns if str(column.header) != name]
                dropped.append(name)
        parts = self._parts(options.max_width)
        for number, columns in enumerate(parts):
            part = copy(self)
            part.columns = columns
            part.title = self.title if number == 0 else None
            if dropped and number == len(parts) - 1:
                part.caption = f"not shown at this width: {', '.join(dropped)}"
            yield from Table.__rich_console__(part, console, options)

    def _parts(self, width: int) -> list[list[Column]]:
        if self._width(self.columns) <= width:
            return [self.columns]
        names = self._naming()
        parts = [list(names)]
        for column in self.columns[len(names) :]:
            if len(parts[-1]) > len(names) and self._width([*parts[-1], column]) > width:
                parts.append(list(names))
            parts[-1].append(column)
        return parts

    def _naming(self) -> list[Column]:
        """The first columns, as many as tell the rows apart; an empty cell in the first repeats the one above it."""
        rows: list[tuple[str, ...]] = [()] * self.row_count
        for count, column in enumerate(self.columns, start=1):
            above = ""
            for index, cell in enumerate(column.cells):
                above = str(cell) if str(cell) or count > 1 else above
                rows[index] = (*rows[index], above)
            if len(set(rows)) == len(rows):
                return self.columns[:count]
        return self.columns[:1]

    @staticmethod
    def _width(columns: Sequence[Column]) -> int:
        return sum((column.min_width or 0) + COLUMN_GAP for column in columns)


def _least_width(index: int, column: Column) -> int:
    """What a column needs: its numbers whole, a name up to NAME_WIDTH, words of a text, and a heading's words."""
    cells = [str(cell) for cell in column.cells]
    longest = max(map(cell_len, cells), default=0)
    heading = max(map(cell_len, str(column.header).split()), default=0)
    if column.justify == "right":
        column.no_wrap = longest <= NUMBER_WIDTH
        if column.no_wrap:
            return max(longest, cell_len(str(column.header)))
    words = max((cell_len(word) for cell in cells for word in cell.split()), default=0)
    if column.justify == "right":
        return max(words, heading, max((cell_len(cell) for cell in cells if cell_len(cell) <= NUMBER_WIDTH), default=0))
    text = TEXT_WIDTH if longest > 2 * TEXT_WIDTH else WORD_WIDTH
    return max(heading, min(longest, NAME_WIDTH if index == 0 else max(text, min(words, NAME_WIDTH))))


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
