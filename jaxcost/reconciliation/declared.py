"""Rows that need no observation: integers a manifest or case file expects, held against the ledgers."""

from __future__ import annotations

from typing import Any

from jaxcost.prediction.ledgers import Prediction
from jaxcost.reconciliation.rows import Row


def expected_rows(prediction: Prediction) -> list[Row]:
    """Return one row per `[expected]` entry; a ledger that moved away from it is open.

    The declared integer stands in the place of the observation: it is what someone wrote down before.
    """
    expected = prediction.case.expected or {}
    return [_row(prediction, path, value) for path, value in sorted(expected.items())]


def _row(prediction: Prediction, path: str, value: int) -> Row:
    name, _, rest = path.partition(".")
    ledger = prediction.ledgers.get(name)
    found: Any = None if ledger is None else ledger.totals
    for part in rest.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    if isinstance(found, int) and not isinstance(found, bool):
        return Row(f"expected.{path}", "", "", "", found, value)
    reason = f"no ledger total is called {path}" if ledger is None or found is None else f"{path} is not an integer"
    return Row(f"expected.{path}", "", "", "", None, value, reason=reason, forced_open=True)
