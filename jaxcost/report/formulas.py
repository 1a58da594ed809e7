"""Formulas as text: what each symbol stands for, then each total (or row) as a formula, and the number it gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from rich.console import Console

from jaxcost.report.console import console, table
from jaxcost.report.numbers import exact
from jaxcost.report.tables import line
from jaxcost.report.values import case_values

# Options that are sizes, and stand in the formulas.
SIZES = ("batch", "seq", "past", "accumulate", "mesh", "attention-block", "vocabulary-multiple", "head-multiple")


def show_formulas(body: Mapping[str, Any]) -> None:
    """Print the formulas of a model in each phase, or those of one case."""
    out, formula = console(), body["formula"]
    if "phases" in formula:
        line(out, f"{body['name']}, one device, in the phases' default policies", style="bold")
        _legend(out, formula["symbols"])
        for phase, forms in formula["phases"].items():
            made = table(phase, "formula")
            for path, text in forms.items():
                made.add_row(path, text)
            out.print(made)
        line(out, "With the options of a case (--phase ...) each formula stands beside its number, meshes included.")
        return
    case = formula["case"]
    line(out, f"{body['name']}, {case['workload']['phase']}: its ledgers as formulas", style="bold")
    _legend(out, formula["symbols"])
    policy = "  ".join(f"{name}={value}" for name, value in case_values(case) if name not in SIZES)
    line(out, f"Policies act as numbers (types as bytes, kinds of work as counts): {policy}")
    if formula["numbers"]:
        line(out, f"So do {', '.join(formula['numbers'])}: a schedule is an order, and lengths are summed.")
    _totals(out, formula["totals"])
    _rows(out, formula.get("rows", ()))
    shown = {item["path"].split(".")[0] for item in formula["totals"]} | {
        item["ledger"] for item in formula.get("rows", ())
    }
    held = dict.fromkeys(text for name, texts in formula["conditions"].items() if name in shown for text in texts)
    if held:
        line(out, f"They hold where {', '.join(held)}.")
        line(out, "At sizes where that is not so, a fold may decide otherwise: ask again with those sizes.")


def _legend(out: Console, symbols: Sequence[Mapping[str, Any]]) -> None:
    made = table("symbol", "field", "value", right=("value",))
    for item in symbols:
        value = exact(item["value"]) if item["value"] is not None else "of the case"
        made.add_row(item["symbol"], item["field"], value)
    out.print(made)


def _totals(out: Console, totals: Sequence[Mapping[str, Any]]) -> None:
    """Print a table for each ledger; totals that are zero for all sizes, and those without a formula, in a line."""
    for ledger, members in groupby(totals, key=lambda item: item["path"].split(".")[0]):
        found = list(members)
        made = table(ledger.replace("_", " "), "formula", "value", right=("value",))
        for item in found:
            if item["formula"] not in (None, "0"):
                made.add_row(_inside(item), item["pretty"], _value(item))
        if made.row_count:
            out.print(made)
        zero = [_inside(item) for item in found if item["formula"] == "0"]
        if zero:
            line(out, f"{ledger}: 0 here are {', '.join(zero)}")
        reasons: dict[str, list[str]] = {}
        for item in found:
            if item["formula"] is None:
                names = reasons.setdefault(item["reason"], [])
                name = ".".join(_inside(item).split(".")[:1])
                if name not in names:
                    names.append(name)
        for reason, names in reasons.items():
            line(out, f"{ledger}: no formula for {', '.join(names)}: {reason}")


def _rows(out: Console, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print a table of the rows of each ledger."""
    for ledger, members in groupby(rows, key=lambda item: item["ledger"]):
        made = table(f"{ledger.replace('_', ' ')}: object", "scope", "phase", "formula", "value", right=("value",))
        for item in members:
            phase = " ".join(dict.fromkeys(text for text in (item["phase"], item.get("part", "")) if text))
            made.add_row(item["object"], item["scope"], phase, item["pretty"], _value(item))
        out.print(made)


def _inside(item: Mapping[str, Any]) -> str:
    return str(item["path"]).partition(".")[2]


def _value(item: Mapping[str, Any]) -> str:
    """Return the number, with what the formula gives where that is another one."""
    text = exact(item["value"])
    return text if item["substituted"] == item["value"] else f"{text}, not {exact(item['substituted'])}"
