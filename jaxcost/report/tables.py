"""Results as tables for a terminal, from the same documents that --json prints."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from jaxcost.report.console import console, printable, table
from jaxcost.report.numbers import about, exact, flat, unit_of
from jaxcost.report.values import case_values, unknown_reasons

_SYMBOLS = (
    "B sequences, S new tokens, T visible tokens in decode, d hidden size, V vocabulary, P position rows; for "
    "each group of layers L layers, H query heads, K K/V heads, E head width, F MLP width. Defaults of each phase "
    "(precision, optimizer, logits rows) as in `jaxcost estimate`; one device."
)
COLOURS = {
    "rejected": "bold red",
    "open": "bold red",
    "refused": "bold red",
    "failed": "bold red",
    "broken": "bold red",
    "lapsed": "bold red",
    "unused": "bold red",
    "unmeasured": "yellow",
    "unavailable": "yellow",
    "bounded": "cyan",
    "explained": "cyan",
    "exact": "green",
    "holds": "green",
    "passed": "green",
    "caught": "green",
    "missed": "bold red",
}


def status_text(status: str) -> Text:
    """Return a status in its colour."""
    return Text(status, style=COLOURS.get(status, ""))


def show_models(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the catalogue."""
    made = table(
        "name", "family", "parameters", "about", "active", "Hugging Face id", right=("parameters", "about", "active")
    )
    for row in rows:
        count = row["parameters"]
        made.add_row(
            row["name"],
            row["family"],
            exact(count),
            about(count, "scalars"),
            exact(row["active_parameters"]),
            row["huggingface_id"],
        )
    console().print(made)


def show_targets(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the targets, and for each missing compiler the line that adds it."""
    out = console()
    made = table("target", "compiles here", "device memory", "example", "device", right=("device memory",))
    for row in rows:
        memory = row["device_memory_bytes"]
        here = Text("yes", style="green") if row["available"] else Text("no", style="yellow")
        made.add_row(
            row["name"],
            here,
            "no limit stated" if memory is None else about(memory, "bytes"),
            row["example"],
            row["description"],
        )
    out.print(made)
    for reason, remedy in dict.fromkeys((row["reason"], row["remedy"]) for row in rows if not row["available"]):
        line(out, f"{reason}. To add it: {remedy}")


def show_manifest(body: Mapping[str, Any]) -> None:
    """Print a manifest in full."""
    out = console()
    arch = body["architecture"]
    line(
        out,
        f"{body['name']}  ({body['origin'].replace('_', ' ')}{', ' + body['path'] if body['path'] else ''})",
        style="bold",
    )
    for label, value in (
        ("family", arch["family"]),
        ("Hugging Face id", arch["huggingface_id"]),
        ("source", body["source"]),
        ("notes", " ".join(arch["notes"].split())),
        ("digest", body["digest"]),
    ):
        if value:
            line(out, f"{label}: {value}")
    made = table("parameters", "scalars", "about", right=("scalars", "about"))
    for name, value in flat(body["parameters"]):
        made.add_row(name, exact(value), about(value, "bytes" if "bytes" in name else "scalars"))
    out.print(made)
    if body["published"]:
        made = table("published count", "relation", "residual", "source", right=("published count", "residual"))
        for item in body["published"]:
            made.add_row(exact(item["count"]), item["relation"], exact(item["residual"]), item["source"])
        out.print(made)
    made = table("field", "value")
    hidden = ("name", "family", "huggingface_id", "source", "notes")
    for name, value in _fields({key: item for key, item in arch.items() if key not in hidden}):
        made.add_row(name, value)
    out.print(made)
    if body["liveness"]:
        made = table("supplied event", "kind", "bytes", "birth", "death", right=("bytes", "birth", "death"))
        for item in body["liveness"]["objects"]:
            made.add_row(item["name"], item["kind"], exact(item["bytes"]), exact(item["birth"]), exact(item["death"]))
        out.print(made)
    if body["expected"]:
        made = table("expected", "value", right=("value",))
        for path, value in body["expected"].items():
            made.add_row(path, exact(value))
        out.print(made)
    if "formulas" in body:
        for phase, formulas in body["formulas"].items():
            made = table(phase, "formula")
            for name, formula in formulas.items():
                made.add_row(name, formula)
            out.print(made)
        line(out, _SYMBOLS)


def _fields(data: Any, prefix: str = "") -> Iterable[tuple[str, str]]:
    if isinstance(data, dict) and data:
        for name, value in data.items():
            yield from _fields(value, f"{prefix}.{name}" if prefix else name)
    elif isinstance(data, list) and data and isinstance(data[0], dict):
        for index, value in enumerate(data):
            yield from _fields(value, f"{prefix}.{index}")
    elif isinstance(data, list):
        yield prefix, ", ".join(map(str, data)) or "none"
    elif isinstance(data, float):
        yield prefix, repr(data)
    else:
        yield prefix, "none" if data is None else exact(data)


def _show_case(out: Console, case: Mapping[str, Any]) -> None:
    name = case["architecture"]["name"]
    line(out, f"{name}  case {case['digest'][:16]}", style="bold")
    line(out, "values used: " + "  ".join(f"{option}={value}" for option, value in case_values(case)))


def show_estimate(data: Mapping[str, Any], rows: bool = False) -> None:
    """Print the ledgers of an estimate, one table each; `rows` adds what each total is made of."""
    out = console()
    _show_case(out, data["case"])
    out.print()
    for ledger, content in data["ledgers"].items():
        _show_ledger(out, ledger, content)
        if rows and content["rows"]:
            _show_rows(out, content["rows"])
    if data.get("expected"):
        _show_expected(out, data["expected"])
    if data.get("targets"):
        _show_targets(out, data["targets"])
    if data.get("assumptions"):
        line(out, "Assumptions", style="bold")
        for text in data["assumptions"]:
            line(out, f"- {text}")


def _show_targets(out: Console, targets: Sequence[Mapping[str, Any]]) -> None:
    """The predicted live peak on each target, and whether it fits; `unknown` where the interval holds the limit."""
    fractions = list(targets[0]["fits"])
    right = ("lower", "peak", "upper", "about", "device memory")
    made = table(
        "target", *right, *(f"fits {fraction}" for fraction in fractions), title="fits, predicted", right=right
    )
    for item in targets:
        peak, memory = item["peak_bytes"], item["device_memory_bytes"]
        made.add_row(
            item["target"],
            *(exact(peak[side]) for side in ("lower", "expected", "upper")),
            about(peak["expected"], "bytes"),
            "no limit stated" if memory is None else about(memory, "bytes"),
            *("unknown" if item["fits"][name] is None else exact(item["fits"][name]) for name in fractions),
        )
    out.print(made)
    for item in targets:
        for reason in (item["peak_bytes"].get("reason"), (item["rematerialises"] or {}).get("starts")):
            if reason is True:
                line(out, f"{item['target']}: XLA left to itself rematerialises: {item['rematerialises']['reason']}")
            elif reason:
                line(out, f"{item['target']}: {reason}")


def _show_ledger(out: Console, ledger: str, content: Mapping[str, Any]) -> None:
    title, reasons = ledger.replace("_", " "), unknown_reasons(content)
    totals = {name: value for name, value in content["totals"].items() if name != "reason"}
    by_phase = totals.pop("by_phase", None)
    values = flat(totals)
    if by_phase:
        _show_phases(out, title, totals, by_phase)
    elif all(value == 0 for _, value in values):
        line(out, f"{title}: every total is 0")
        out.print()
        return
    else:
        made = table(title, "exact", "about", "unit", right=("exact", "about"))
        for column, width in zip(made.columns, (34, 20, 10), strict=False):
            column.min_width = width
        for name, value in values:
            unit = unit_of(ledger, name)
            made.add_row(name, exact(value), about(value, unit), unit)
        out.print(made)
    for name, reason in reasons.items():
        line(out, f"{name} unknown: {reason}")
    if reasons:
        out.print()


def _show_phases(
    out: Console, title: str, totals: Mapping[str, Any], by_phase: Mapping[str, Mapping[str, Any]]
) -> None:
    made = table(title, *by_phase, "total", right=(*by_phase, "total"))
    for name, value in totals.items():
        made.add_row(name, *(exact(counts.get(name, 0)) for counts in by_phase.values()), exact(value))
    out.print(made)


def _show_rows(out: Console, rows: Sequence[Mapping[str, Any]]) -> None:
    made = table("object", "scope", "phase", "value", "unit", right=("value",))
    for row in rows:
        made.add_row(row["object"], row["scope"], row["phase"], exact(row["value"]), row["unit"])
    out.print(made)


def _show_expected(out: Console, expected: Sequence[Mapping[str, Any]]) -> None:
    made = table("expected", "declared", "predicted", "status", right=("declared", "predicted"))
    for entry in expected:
        made.add_row(entry["path"], exact(entry["expected"]), exact(entry["predicted"]), status_text(entry["status"]))
    out.print(made)


def line(out: Console, text: str, style: str = "") -> None:
    """Print text wrapped between words; continued lines are set in."""
    for part in textwrap.wrap(
        printable(text), max(out.width, 40), subsequent_indent="    ", break_on_hyphens=False
    ) or [""]:
        out.print(Text(part, style=style), soft_wrap=True)
