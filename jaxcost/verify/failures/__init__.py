"""Failure rows: known ways to get a cost model wrong, each planted and each caught by a named check.

`jaxcost verify --failures` runs them all, in seconds and without compiling. An id is `section/row`: the section of the
cost-model document (0x...) or of the compute-and-memory document (worksheet, caveat) whose table or list the row is in,
rows counted from 1. A row whose check lets the fault pass is `missed`, and the command exits 1. Each row names its
guard, the piece of the product the check rests on; without it the row is missed.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from jaxcost.verify.failures import (
    activations,
    caveats,
    closure,
    flops,
    manifest,
    ownership,
    papers,
    parameters,
    reasoning,
    sensitivity,
    serving,
    state,
    traffic,
    worksheet_memory,
    worksheet_plan,
    worksheet_rates,
)
from jaxcost.verify.failures.common import SECTIONS, Failure, FailureResult

__all__ = ["SECTIONS", "Failure", "FailureResult", "failures", "run_failures"]


@cache
def failures() -> tuple[Failure, ...]:
    """Return every row, section by section in the order of the documents."""
    found: list[Failure] = []
    for table in (
        manifest, parameters, state, activations, flops, ownership, traffic, closure, sensitivity, papers, reasoning,
        worksheet_memory, worksheet_plan, worksheet_rates, caveats, serving,
    ):  # fmt: skip
        found += table.failures()
    return tuple(sorted(found, key=lambda row: _place(row.id)))


def _place(row: str) -> tuple[int, int, str]:
    """Return the section's place, the number of the row, and the letter of a row that a table's row was split into."""
    section, _, number = row.partition("/")
    digits = number.rstrip("abcdefgh")
    return list(SECTIONS).index(section), int(digits), number[len(digits) :]


def run_failures(only: Iterable[str] | None = None) -> list[FailureResult]:
    """Execute the rows (those of ids `only`, or all) and return their results."""
    wanted = None if only is None else set(only)
    return [row.result() for row in failures() if wanted is None or row.id in wanted]
