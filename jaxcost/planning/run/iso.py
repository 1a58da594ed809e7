"""Parameters against tokens at one budget: a curve of equal compute, which is not a curve of equal quality."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from typing import Any

from jaxcost.contracts.architecture import Architecture
from jaxcost.contracts.errors import RejectedError
from jaxcost.planning.run.work import six_p_flops_per_token, token_work

NOTE = (
    "equal compute is not equal quality: unique data, optimisation, capacity, serving and context decide between "
    "points of this curve, and scaling experiments, not arithmetic, compare them"
)
SIZES = (*(digit * 10**power for power in range(9, 12) for digit in (1, 2, 5)), 10**12)


def iso_budget(budget_flops: Fraction, active: int | None) -> dict[str, Any]:
    """Return the tokens that a budget reaches under 6PT, at round numbers of active parameters and at the plan's."""
    sizes = sorted({*SIZES, *([active] if active else [])})
    return {
        "budget_flops": budget_flops,
        "convention": "6 x active parameters x tokens",
        "note": NOTE,
        "points": [
            {"parameters": size, "tokens": budget_flops / six_p_flops_per_token(size), "own": size == active}
            for size in sizes
        ],
    }


def by_context(
    architecture: Architecture,
    parameters: int,
    contexts: Iterable[int],
    budget_flops: Fraction | None,
    options: tuple[tuple[str, Any], ...],
) -> list[dict[str, Any]]:
    """Return, for each context, the work of a token by the ledger and by 6P, and the tokens that a budget reaches.

    A context that the model does not take has None and the reason.
    """
    rows = []
    six = six_p_flops_per_token(parameters)
    for seq in contexts:
        row: dict[str, Any] = {"context": seq, "six_p_flops_per_token": six}
        try:
            found = token_work(architecture, seq, options).model
        except RejectedError as error:
            rows.append(row | {"ledger_flops_per_token": None, "shortfall": None, "tokens": None,
                               "reason": error.problems[0].rule})  # fmt: skip
            continue
        tokens = None if budget_flops is None else budget_flops / found
        rows.append(row | {"ledger_flops_per_token": found, "shortfall": 1 - six / found, "tokens": tokens})
    return rows
