"""Progress on standard error: one bar on a terminal, plain lines elsewhere, nothing where it is to be quiet.

A message `[done/total] text` moves the bar; any other message stands as a line above it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_STEP = re.compile(r"\[(\d+)/(\d+)\] (.*)", re.DOTALL)


@contextmanager
def progress(doing: str, quiet: bool = False) -> Iterator[Callable[[str], None]]:
    """Show `doing` at once, with the time it takes, and yield the function that takes messages."""
    if quiet:
        yield lambda message: None
    elif sys.stderr.isatty():
        yield from _bar(doing)
    else:
        print(f"{doing} ...", file=sys.stderr, flush=True)
        yield lambda message: print(message, file=sys.stderr, flush=True)


def _bar(doing: str) -> Iterator[Callable[[str], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.text import Text

    columns = (BarColumn(30), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=Console(stderr=True, highlight=False), transient=True) as bar:
        task = bar.add_task(doing, total=None)

        def say(message: str) -> None:
            step = _STEP.fullmatch(message)
            if step:
                bar.update(task, completed=int(step[1]), total=int(step[2]), description=step[3])
            else:
                bar.console.print(Text(message), soft_wrap=True)

        yield say
