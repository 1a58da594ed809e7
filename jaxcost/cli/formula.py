"""The formulas that `show --formula` gives: of a model in each phase, or of one case with its numbers beside them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from jaxcost.contracts.architecture import Architecture
from jaxcost.contracts.case import Case
from jaxcost.contracts.errors import Problem, RejectedError, reject
from jaxcost.prediction.forms import Form
from jaxcost.prediction.formulas import CaseFormulas, RowFormula, Total, case_formulas, numbers, traced_case
from jaxcost.prediction.ledgers import FOLDS, Prediction, predict
from jaxcost.prediction.rows import plain


def check_choice(formula: bool, options: bool, parts: Mapping[str, Any]) -> None:
    """Refuse what has no part in the answer.

    Raises:
        RejectedError: options without --formula, rows without a case, or a ledger that there is not.
    """
    problems = []
    given = [name for name, value in parts.items() if value]
    if not formula:
        for name in [*given, *(["case options"] if options else [])]:
            problems.append(Problem(name, None, "says which formulas to give", "add --formula, or leave it out"))
    elif not options:
        for name in given:
            if name in ("--scope", "--rows"):
                problems.append(Problem(name, None, "rows are those of one case", "give --phase and its options"))
    for name in parts["--ledger"]:
        if name not in FOLDS:
            problems.append(Problem("--ledger", name, "no ledger of this name", f"use one of {', '.join(FOLDS)}"))
    if problems:
        raise RejectedError(problems)


# -- a model, no case -------------------------------------------------------------------------------------------------


def model_formulas(architecture: Architecture, ledgers: tuple[str, ...]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return (formulas by phase and path, the same written for reading with a legend) of a model on one device.

    Without ledgers named, the totals of `symbols.FORMULAS`; with them, all of theirs. What is zero in a phase is left
    out.
    """
    from jaxcost.contracts.case import decode, prefill, training
    from jaxcost.prediction.symbols import as_form, formulas, symbolic

    cases = {
        "training": training(architecture, seq=1),
        "prefill": prefill(architecture, seq=1),
        "decode": decode(architecture, past=0),
    }
    found: dict[str, dict[str, Form]] = {}
    for phase, case in cases.items():
        if ledgers:
            built = symbolic(case)
            totals = {f"{name}.{path}": value for name in ledgers for path, value in _flat(FOLDS[name](built).totals)}
        else:
            totals = formulas(case)
        found[phase] = {path: as_form(value) for path, value in totals.items() if value != 0}
    named = frozenset().union(*(form.symbols for forms in found.values() for form in forms.values()))
    text = {phase: {path: form.text() for path, form in forms.items()} for phase, forms in found.items()}
    pretty = {phase: {path: form.text(pretty=True) for path, form in forms.items()} for phase, forms in found.items()}
    return text, {"symbols": _legend(cases["decode"], named), "phases": pretty}


def _flat(totals: Mapping[str, Any], above: str = "") -> list[tuple[str, Any]]:
    """Return the totals with dotted paths that are formulas or numbers."""
    found: list[tuple[str, Any]] = []
    for name, value in totals.items():
        if isinstance(value, Mapping):
            found += _flat(value, f"{above}{name}.")
        elif not isinstance(value, str) and value is not None:
            found.append((f"{above}{name}", value))
    return found


def _legend(case: Case, named: frozenset[str]) -> list[dict[str, Any]]:
    """Return what each symbol stands for; sizes of a case, which there is none of, have no value."""
    fields = traced_case(case)[1]
    free = {"B": "workload.batch", "S": "workload.new_tokens", "T": "workload.past_tokens + workload.new_tokens",
            "R": "workload.logits"}  # fmt: skip
    found: list[dict[str, Any]] = []
    for name in sorted(named, key=_order(fields)):
        if name in free:
            found.append({"symbol": name, "field": free[name], "value": None, "reason": "chosen by the case"})
        else:
            found.append({"symbol": name, "field": fields[name].field, "value": fields[name].value})
    return found


def _order(fields: Mapping[str, Any]) -> Any:
    names = ["B", "S", "T", "R", *fields]
    return lambda name: names.index(name) if name in names else len(names)


# -- one case ---------------------------------------------------------------------------------------------------------


def formulas_of_case(
    case: Case, ledgers: tuple[str, ...], scope: str | None, every_row: bool
) -> tuple[dict[str, Any], bool]:
    """Return the formulas of a case as data, and whether each gives the number that `predict` does.

    Raises:
        RejectedError: no row of the ledgers has the scope.
    """
    chosen = ledgers or tuple(FOLDS)
    found, prediction = case_formulas(case, chosen), predict(case)
    wanted = [row for row in found.rows if scope is None or _within(row.row.scope, scope)]
    rows = wanted if scope is not None or every_row else []
    if scope is not None and not rows:
        known = sorted({row.row.scope for row in found.rows if row.row.scope})
        raise reject("--scope", scope, "no row of these ledgers has this scope", f"there are {', '.join(known)}")
    totals = [] if scope is not None else [_total(item, found, prediction) for item in found.totals]
    predicted = [row for name in chosen for row in prediction.ledgers[name].rows if not row.object.startswith("peak, ")]
    values = {id(row): other.value for row, other in zip(found.rows, predicted, strict=True)}
    shown = [_row(row, values[id(row)], found) for row in rows]
    named = {name for item in (*totals, *shown) for name in item["fields"]}
    # What a condition speaks of is in the legend too, though no formula has it.
    spoken = {word for texts in found.conditions.values() for text in texts for word in re.findall(r"[^\W\d]\w*", text)}
    data: dict[str, Any] = {
        "case": {**case.to_data(), "digest": case.digest},
        "symbols": [
            {"symbol": item.symbol, "field": item.field, "value": item.value}
            for item in found.fields.values()
            if item.field in named or item.symbol in spoken
        ],
        "numbers": list(numbers(case)),
        "totals": totals,
        "conditions": {name: list(texts) for name, texts in found.conditions.items()},
    }
    if scope is not None:
        data["scope"] = scope
    if rows:
        data["rows"] = shown
    agree = all(item["formula"] is None or item["substituted"] == item["value"] for item in (*totals, *shown))
    return data, agree


def _within(scope: str, wanted: str) -> bool:
    return scope == wanted or scope.startswith(f"{wanted}/")


def _written(form: Form | None, found: CaseFormulas) -> dict[str, Any]:
    """Return a formula as text for machines and for readers, the fields it depends on, and what it is worth."""
    if form is None:
        return {"formula": None, "pretty": None, "fields": [], "substituted": None}
    return {
        "formula": form.text(),
        "pretty": form.text(pretty=True),
        "fields": [item.field for name, item in found.fields.items() if name in form.symbols],
        "substituted": plain(form.value(found.sizes)),
    }


def _total(item: Total, found: CaseFormulas, prediction: Prediction) -> dict[str, Any]:
    data = {"path": item.path, **_written(item.form, found)}
    if item.form is None:
        return {**data, "value": None, "reason": item.reason}
    return {**data, "value": plain(Fraction(prediction.value(item.path)))}


def _row(item: RowFormula, value: Any, found: CaseFormulas) -> dict[str, Any]:
    row = item.row
    data = {
        "ledger": item.ledger, "object": row.object, "scope": row.scope, "phase": row.phase, "unit": row.unit,
        **_written(item.form, found), "value": plain(value),
    }  # fmt: skip
    if row.part:
        data["part"] = row.part
    if item.device is not None:
        data["per_device"] = _written(item.device, found)
    return data
