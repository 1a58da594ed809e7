"""Failure rows: known ways to get a cost model wrong, each planted and each caught by a named check.

`jaxcost verify --failures` runs them all, in seconds and without compiling. The ids name the table and row of the
cost-model document the rows come from. A row whose check lets the fault pass is `missed`, and the command exits 1; rows
about components that do not exist yet are listed as `not reached`, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterable

from jaxcost.verify.failures import activations, closure, flops, ownership, parameters, state, traffic
from jaxcost.verify.failures.common import Failure, FailureResult

__all__ = ["Failure", "FailureResult", "failures", "run_failures"]


def failures() -> tuple[Failure, ...]:
    """Return every row, in the order of the tables."""
    found: list[Failure] = []
    for table in (parameters, state, activations, flops, ownership, traffic, closure):
        found += table.failures()
    return tuple(found)


def run_failures(only: Iterable[str] | None = None) -> list[FailureResult]:
    """Execute the rows (those of ids `only`, or all) and return their results."""
    wanted = None if only is None else set(only)
    return [row.result() for row in failures() if wanted is None or row.id in wanted]
