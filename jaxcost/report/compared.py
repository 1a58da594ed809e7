"""A comparison as text: one line per spec, what each compiler said, what changed, and what to change first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from jaxcost.report.console import console, table
from jaxcost.report.gather import count
from jaxcost.report.numbers import about, exact, signed
from jaxcost.report.tables import line, status_text
from jaxcost.report.values import case_values

CHANGES_SHOWN = 6
CLASS_COLUMNS = 6
_STEPS = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B"))
_EXACT = ("argument_bytes", "peak_bytes", "required_bytes", "headroom_bytes", "flops", "collective_bytes")


def show_compare(data: Mapping[str, Any], rows: bool = False) -> None:
    """Print a document `jaxcost.compare.v1`; `rows` adds exact integers and every row of what changed."""
    out = console()
    columns = data["columns"]
    values = [pair for pair in case_values(data["case"]) if pair[0] not in {"mesh", *_varied(columns)}]
    line(out, f"{data['model']}, {count(len(columns), 'column')}", style="bold")
    line(out, "values used in all columns: " + "  ".join(f"{name}={value}" for name, value in values))
    _show_columns(out, data)
    if rows:
        _show_exact(out, columns)
    _show_notes(out, columns)
    _show_classes(out, columns)
    _show_collectives(out, columns)
    for item in data["differences"]:
        _show_difference(out, item, rows)
    if data["advice"]:
        line(out, "what to change first", style="bold")
        for item in data["advice"]:
            line(out, f"- {item['text']}  ({item['basis']})")
    line(out, verdict(data), style="bold")


def unit_for(sizes: Iterable[int | None]) -> tuple[int, str]:
    """Return the binary unit, and its bytes, in which the largest of several sizes reads well."""
    largest = max((abs(size) for size in sizes if size is not None), default=0)
    return next(((step, name) for step, name in _STEPS if largest >= step), (1, "B"))


def verdict(data: Mapping[str, Any]) -> str:
    """Return one sentence: how many columns fit which fraction, and how many are refused or came to nothing."""
    columns = data["columns"]
    parts = []
    for fraction in data["fractions"]:
        known = [column["fits"][fraction] for column in columns]
        expected = [column["predicted"]["fits"][fraction] for column in columns if column["status"] == "unmeasured"]
        if any(answer is not None for answer in known):
            parts.append(f"{known.count(True)} of {len(columns)} fit {fraction} of the device")
        if any(answer is not None for answer in expected):
            parts.append(f"{expected.count(True)} of {len(columns)} predicted to fit {fraction}")
    for status in ("refused", "failed", "unmeasured"):
        number = sum(column["status"] == status for column in columns)
        if number:
            parts.append(f"{number} {status}")
    if not parts:
        parts.append(f"{count(len(columns), 'column')} compared; the target states no memory limit")
    return ", ".join(parts)


def fit_text(column: Mapping[str, Any], fraction: str) -> str:
    """Return `yes`, `no`, or where nothing was compiled what the prediction says, else `unknown`."""
    answer, predicted = column["fits"][fraction], column["predicted"]["fits"][fraction]
    if answer is not None:
        return "yes" if answer else "no"
    if column["status"] == "unmeasured" and predicted is not None:
        return f"{'yes' if predicted else 'no'} (predicted)"
    return "unknown"


def percent(value: float | None) -> str:
    """Return an error with its sign; `0` where the two sides are equal, empty where one is unknown."""
    if value is None:
        return ""
    return "0" if value == 0 else f"{100 * value:+.2f}%"


def totals(column: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return (predicted, compiled) of each number of a column; None where it is unknown."""
    first, second = column["predicted"], column["compiled"] or {}
    moved = [(side.get("collectives") or {}).get("bytes") for side in (first, second)]
    return {
        "argument_bytes": (first["argument_bytes"], second.get("argument_bytes")),
        "peak_bytes": (first["peak_bytes"]["expected"], second.get("live_peak_bytes")),
        "required_bytes": (None, second.get("required_bytes")),
        "headroom_bytes": (None, second.get("headroom_bytes")),
        "flops": (first["flops"], second.get("flops")),
        "collective_bytes": (moved[0], moved[1]),
    }


def _varied(columns: Sequence[Mapping[str, Any]]) -> set[str]:
    return {name.replace("_", "-") for column in columns for name in column["options"]}


def _show_columns(out: Console, data: Mapping[str, Any]) -> None:
    columns = data["columns"]
    several = len({column["target"] for column in columns}) > 1
    every = [totals(column) for column in columns]
    sizes = [
        size for found in every for name in ("argument_bytes", "peak_bytes", "required_bytes") for size in found[name]
    ]
    step, unit = unit_for(sizes)
    limited, compiled = has_limit(columns), any(column["compiled"] for column in columns)
    numbers = {
        f"arguments {unit}": True, "peak predicted": True, "peak compiled": compiled, "error": compiled,
        "required": compiled, "headroom": compiled and limited, "FLOPs": True, "collectives": True,
    }  # fmt: skip
    shown = tuple(name for name, kept in numbers.items() if kept)
    fits = [fraction for fraction in data["fractions"] if limited]
    made = table(
        "spec", *(["target"] if several else []), *shown, *(f"fits {fraction}" for fraction in fits), right=shown
    )  # fmt: skip
    for column, found in zip(columns, every, strict=True):
        best = {name: pair[1] if pair[1] is not None else pair[0] for name, pair in found.items()}
        cells = (
            _size(best["argument_bytes"], step),
            _size(found["peak_bytes"][0], step),
            _size(found["peak_bytes"][1], step),
            percent(column["error"]["peak_bytes"]),
            _size(found["required_bytes"][1], step),
            _size(found["headroom_bytes"][1], step),
            about(best["flops"], "FLOPs") or exact(best["flops"]),
            about(best["collective_bytes"], "bytes") or exact(best["collective_bytes"]),
        )
        made.add_row(
            column["name"],
            *([column["target"]] if several else []),
            *(cell for cell, kept in zip(cells, numbers.values(), strict=True) if kept),
            *(_fit(fit_text(column, fraction)) for fraction in fits),
        )
    out.print(made)
    device = {column["target"]: column["device_memory_bytes"] for column in columns}
    for target, memory in device.items():
        if memory is not None:
            line(out, f"{target}: {memory:,} bytes of device memory ({about(memory, 'bytes')})")


def _fit(text: str) -> Text:
    word = text.split()[0]
    return Text(text, style={"yes": "green", "no": "bold red"}.get(word, "yellow"))


def _size(value: int | None, step: int) -> str:
    return "unknown" if value is None else f"{value / step:,.2f}"


def _show_exact(out: Console, columns: Sequence[Mapping[str, Any]]) -> None:
    for column in columns:
        made = table("per device", "predicted", "compiled", "error", "status", right=("predicted", "compiled", "error"),
                     title=f"{column['name']} on {column['target']}")  # fmt: skip
        statuses = {row["counter"]: row["status"] for row in column["rows"] if not row["scope"]}
        named = {"flops": "matmul_flops", "peak_bytes": "live_peak_bytes"}
        for name, (first, second) in totals(column).items():
            made.add_row(name, exact(first), exact(second), percent(column["error"].get(name)),
                         statuses.get(named.get(name, name), ""))  # fmt: skip
        peak = column["predicted"]["peak_bytes"]
        made.add_row("peak_bytes interval", f"{exact(peak['lower'])} .. {exact(peak['upper'])}", "", "", "")
        out.print(made)


def _show_notes(out: Console, columns: Sequence[Mapping[str, Any]]) -> None:
    """What stands beside the numbers: refusals, XLA's own rematerialisation, dead workers, explanations."""
    for text, bad, where in all_notes(columns):
        line(out, f"{where}: {text}", style="bold red" if bad else "")
    for text in explanations(columns):
        line(out, text, style="dim")


def all_notes(columns: Sequence[Mapping[str, Any]]) -> list[tuple[str, bool, str]]:
    """Return (text, whether it is bad news, where it holds) of what is to be said of columns, each text once."""
    found: dict[tuple[str, bool], list[str]] = {}
    for column in columns:
        for note in column_notes(column):
            found.setdefault(note, []).append(f"{column['name']} on {column['target']}")
    return [
        (text, bad, "all columns" if len(where) == len(columns) > 1 else "; ".join(where))
        for (text, bad), where in found.items()
    ]


def explanations(columns: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what explains the differences of the two witnesses: counter, reason, amounts, each reason once."""
    found: dict[tuple[str, str], dict[str, None]] = {}
    for column in columns:
        for row in column["rows"]:
            for item in row["explanations"]:
                if not row["scope"]:
                    amounts = found.setdefault((row["counter"], item["reason"]), {})
                    amounts[f"{signed(item['amount'])} {row['unit']}"] = None
    return [f"{counter} explained: {reason} ({', '.join(amounts)})" for (counter, reason), amounts in found.items()]


def has_limit(columns: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether any column's target states how much memory its device has."""
    return any(column["device_memory_bytes"] is not None for column in columns)


def column_notes(column: Mapping[str, Any]) -> list[tuple[str, bool]]:
    """Return what is to be said of a column, and whether it is bad news."""
    notes: list[tuple[str, bool]] = []
    if column["refused"] is not None:
        notes.append((f"the compiler refuses: {' '.join(column['refused'].split())}", True))
    elif column["status"] != "observed":
        notes.append((f"{column['status']}: {column['reason']}", column["status"] == "failed"))
    if column["rematerialisation"]:
        notes.append((column["rematerialisation"]["text"], False))
    expected = column["predicted"]["rematerialises"]
    if expected and expected["starts"] and not column["rematerialisation"]:
        notes.append((f"XLA left to itself is predicted to rematerialise: {expected['reason']}", False))
    peak = column["predicted"]["peak_bytes"]
    if peak.get("reason"):
        notes.append((f"peak: {peak['reason']}", False))
    for row in column["rows"]:
        if row["status"] == "open":
            name = " ".join(part for part in (row["counter"], row["scope"]) if part)
            notes.append((f"{name} open: residual {signed(row['residual'])} {row['unit']}", True))
    return notes


def _show_classes(out: Console, columns: Sequence[Mapping[str, Any]]) -> None:
    """Bytes at the peak by class, for as many columns as stand side by side."""
    shown = [c for c in columns if (c["compiled"] or {}).get("peak", {}).get("by_class")][:CLASS_COLUMNS]
    if not shown:
        return
    tables = [column["compiled"]["peak"]["by_class"] for column in shown]
    step, unit = unit_for(size for found in tables for size in found.values())
    names = sorted({name for found in tables for name in found}, key=lambda n: -max(t.get(n, 0) for t in tables))
    several = len({column["target"] for column in columns}) > 1
    heads = [f"{column['name']} {column['target']}" if several else column["name"] for column in shown]
    made = table(f"at the peak, {unit}", *heads, right=tuple(heads))
    for name in names:
        if any(found.get(name) for found in tables):
            made.add_row(name, *(_size(found.get(name, 0), step) for found in tables))
    made.add_row("when", *(column["compiled"]["peak"]["moment"] for column in shown))
    out.print(made)


def _show_collectives(out: Console, columns: Sequence[Mapping[str, Any]]) -> None:
    made = table(
        "spec", "collective", "over", "predicted bytes", "compiled bytes", "status",
        right=("predicted bytes", "compiled bytes"),
    )  # fmt: skip
    several = len({column["target"] for column in columns}) > 1
    for column in columns:
        name = f"{column['name']} on {column['target']}" if several else column["name"]
        statuses = {row["scope"]: row["status"] for row in column["rows"] if row["counter"] == "collective_bytes"}
        for index, (kind, axis, first, second) in enumerate(collective_rows(column)):
            status = status_text(statuses.get(f"{kind}/{axis}", ""))
            made.add_row("" if index else name, kind, axis, first, second, status)
    if made.row_count:
        out.print(made)


def collective_rows(column: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """Return kind, axis, predicted and compiled bytes of each collective of a column."""
    sides: list[dict[tuple[str, str], int | None] | None] = []
    for side in (column["predicted"], column["compiled"] or {}):
        found = side.get("collectives")
        sides.append(None if found is None else {(row["kind"], row["axis"]): row["bytes"] for row in found["rows"]})
    keys = sorted({key for side in sides if side for key in side})
    texts = [["unknown" if side is None else exact(side.get(key, 0)) for side in sides] for key in keys]
    return [(kind, axis, first, second) for (kind, axis), (first, second) in zip(keys, texts, strict=True)]


def _show_difference(out: Console, item: Mapping[str, Any], every: bool) -> None:
    here = item["target"] if item["target"] == item["from_target"] else f"{item['from_target']} to {item['target']}"
    sums = ", ".join(
        f"{name.removesuffix('_bytes').replace('_', ' ')} {_changed(value, 'FLOPs' if name == 'flops' else 'bytes')}"
        for name, value in item["totals"].items()
        if value is not None
    )
    line(out, f"{item['from']} -> {item['to']} on {here} ({item['basis']}): {sums}", style="bold")
    if item.get("note"):
        line(out, item["note"])
    made = table(
        "what", "scope", "detail", "before", "after", "change", "about", right=("before", "after", "change", "about")
    )
    for what in ("buffers", "collectives", "flops"):
        found = [row for row in item["rows"] if row["what"] == what]
        kept = found if every else found[:CHANGES_SHOWN]
        for row in kept:
            made.add_row(what, row["scope"] or "-", row["detail"], exact(row["before"]), exact(row["after"]),
                         signed(row["change"]), about(row["change"], row["unit"]))  # fmt: skip
        rest = found[len(kept) :]
        if rest:
            left = sum(row["change"] for row in rest)
            made.add_row(what, f"{len(rest)} more", "", "", "", signed(left), about(left, rest[0]["unit"]))
    if made.row_count:
        out.print(made)


def _changed(value: int, unit: str) -> str:
    if not value:
        return "unchanged"
    text = about(value, unit) or f"{exact(value)} {unit}"
    return text if value < 0 else f"+{text}"
