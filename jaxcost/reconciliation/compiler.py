"""XLA's own numbers, judged: each gets a row with a verdict, which says what it is worth and does not decide a report.

XLA counts each loop body once, branches by their maximum and library calls as nothing, and ahead of time on GPU it
counts nothing. Those are facts about XLA; the ledgers are not wrong for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxcost.observation.observed import Observed
from jaxcost.prediction.ledgers import Prediction
from jaxcost.reconciliation.rows import Row

UNITS = {"flops": "FLOPs", "bytes_accessed": "bytes", "transcendentals": "primitives"}
TRANSCENDENTAL = ("exp", "log", "tanh", "erf", "rsqrt", "sqrt", "sin", "cos", "sigmoid", "logistic", "pow")


def compiler_rows(prediction: Prediction, observed: Observed) -> list[Row]:
    """Return a row for each of XLA's counters and memory fields, with its verdict."""
    section = observed.data["compiler"]
    if section is None:
        return []
    predicted = {
        "flops": prediction.value("flops.per_device"),
        "bytes_accessed": None,
        "transcendentals": _transcendentals(prediction),
    }
    rows = []
    for name, unit in UNITS.items():
        counter = section["counters"][name]
        value = counter["value"]
        whole = value if isinstance(value, int) else None if value is None else round(value)
        verdict = _verdict(name, counter, predicted[name], whole)
        rows.append(
            Row(f"xla.{name}", "", "", unit, predicted[name], whole, reason=counter["meaning"], verdict=verdict)
        )
    for name, field in section["memory_analysis"].items():
        verdict = (
            field["verdict"] if field.get("difference") in (None, 0) else f"{field['verdict']} by {field['difference']}"
        )
        meaning = field.get("meaning") or field.get("reason", "")
        rows.append(Row(f"xla.{name}", "", "", "bytes", None, field["value"], reason=meaning, verdict=verdict))
    return rows


def _transcendentals(prediction: Prediction) -> int | None:
    """Return the declared transcendental primitives of the whole step where one device runs all of it."""
    if prediction.case.execution.device_count > 1:
        return None
    totals = prediction.ledgers["primitives"].totals
    counts = [totals[name] for name in TRANSCENDENTAL if isinstance(totals.get(name), int)]
    return sum(counts) if counts else None


def _verdict(name: str, counter: Mapping[str, Any], predicted: int | None, value: int | None) -> str:
    if value is None:
        return f"absent: {counter['reason']}"
    if name == "flops":
        return _flops_verdict(counter, predicted, value)
    if counter["loops"]:
        return f"not comparable: {counter['loops']} loop bodies are counted once"
    if predicted is None:
        return "not comparable: nothing of the same meaning is predicted"
    return _ratio(predicted, value)


def _flops_verdict(counter: Mapping[str, Any], predicted: int | None, value: int) -> str:
    once = counter.get("contractions_once_flops")
    if counter["loops"] and once is not None:
        parts = f"{once:,} of contractions, {value - once:,} of the rest"
        return f"wrong: {_ratio(predicted, value)}; {counter['loops']} loop bodies count once ({parts})"
    return f"not comparable: element-wise operations are in it; {_ratio(predicted, value)}"


def _ratio(predicted: int | None, value: int) -> str:
    if not predicted:
        return "nothing is predicted"
    if predicted == value:
        return "equal"
    if value == 0:
        return "zero where work is predicted"
    return f"{predicted / value:.2f} times too low" if value < predicted else f"{value / predicted:.2f} times too high"
