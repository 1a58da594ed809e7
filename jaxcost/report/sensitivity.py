"""A sensitivity as text: ratios of every case, then what moved in each, then the differences of compiled programs.

A dash is a ledger that does not move. Where the base is zero there is no ratio, and the difference stands instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from jaxcost.report.console import console, table
from jaxcost.report.gather import count
from jaxcost.report.numbers import about, exact, signed
from jaxcost.report.tables import line, status_text
from jaxcost.report.values import case_values

# How the tables call the totals.
LABELS = {
    "parameters.unique": "unique parameters", "parameters.bytes": "parameter payload", "state.bytes": "state",
    "flops.forward": "forward FLOPs", "flops.total": "FLOPs", "kv_cache.bytes": "K/V payload",
    "activations.saved_bytes": "saved activations", "traffic.attention_bytes": "attention transfer",
    "collectives.payload_bytes": "collectives", "rank_local.parameter_bytes": "rank-local parameters",
    "device.argument_bytes": "arguments of a device",
}  # fmt: skip
# The same, as short as a column of ratios.
HEADS = {
    "parameters.unique": "unique", "parameters.bytes": "payload", "state.bytes": "state", "flops.forward": "FLOPs",
    "flops.total": "FLOPs", "kv_cache.bytes": "K/V", "activations.saved_bytes": "saved",
    "traffic.attention_bytes": "attention", "collectives.payload_bytes": "collectives",
    "rank_local.parameter_bytes": "rank-local", "device.argument_bytes": "arguments",
}  # fmt: skip
DASH, UNKNOWN = "-", "unknown"
NAME_ROOM, COLUMN_ROOM, LEAVES_SHOWN = 44, 14, 6


def label(path: str) -> str:
    """Return how tables call a total."""
    return LABELS.get(path, path)


def results(data: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the cases of a document, then its vectors."""
    return [*data["cases"], *data["vectors"]]


def ratio_text(row: Mapping[str, Any]) -> str:
    """Return a ratio, a dash where nothing moves, and the difference where the base is zero."""
    if row["invariant"]:
        return DASH
    if row["difference"] is None:
        return UNKNOWN
    if row["ratio"] is None:
        return change_text(row["difference"], row["unit"])
    return f"{row['ratio']:.3f}x" if 0.001 <= row["ratio"] < 10_000 else f"{row['ratio']:.3g}x"


def moved_rows(item: Mapping[str, Any], columns: Sequence[str] | None = None) -> list[Mapping[str, Any]]:
    """Return the totals of a case that are not invariant: all, or those of the columns in their order."""
    moved = {row["path"]: row for row in item["totals"] if not row["invariant"]}
    return list(moved.values()) if columns is None else [moved[path] for path in columns if path in moved]


def together(item: Mapping[str, Any]) -> str:
    """Return the leaves that moved as one field, the first of many."""
    paths = [leaf["path"] for leaf in item["moved"]]
    rest = len(paths) - LEAVES_SHOWN
    return ", ".join(paths[:LEAVES_SHOWN]) + (f" and {rest} more" if rest > 0 else "")


def change_text(value: Any, unit: str) -> str:
    """Return a difference as a rounded size with its sign."""
    text = about(value, unit) or signed(value)
    return text if text[:1] in "+-" else f"+{text}"


def derivative_text(row: Mapping[str, Any]) -> str:
    """Return the derivative of a total, and what it gives over the step."""
    found = row.get("derivative")
    if not found:
        return ""
    slope = f"no derivative by {found['symbol']}: the formula has it in steps"
    if found["formula"] is not None:
        slope = f"d/d{found['symbol']} = {found['formula']} = {exact(found['at_base'])}"
    if not found["agrees"]:
        return f"{slope}; {found['reason']}"
    if found["linear"]:
        return f"{slope}; linear: times {signed(found['step'])} is the difference, exactly"
    if found["difference_formula"] is None:
        return f"{slope}; no polynomial: exact by evaluation"
    return f"{slope}; not linear: {found['difference_formula']} at h = {signed(found['step'])}"


def show_sensitivity(data: Mapping[str, Any], rows: bool = False) -> None:
    """Print a document `jaxcost.sensitivity.v1`; `rows` adds every total that moves."""
    out = console()
    found = results(data)
    line(out, f"{data['model']}: sensitivity, {count(len(data['cases']), 'case')}"
              + (f", {count(len(data['vectors']), 'vector')}" if data["vectors"] else ""), style="bold")  # fmt: skip
    line(out, "base: " + "  ".join(f"{name}={value}" for name, value in case_values(data["case"])))
    line(out, f"base digest {data['base_digest']['before'][:16]}, the same after all cases")
    _show_ratios(out, data, found)
    line(out, "; ".join(data["conventions"]))
    _show_moved(out, data, rows)
    for item in data["vectors"]:
        _show_vector(out, data, item)
    if data["left_out"]:
        line(out, "left out of the default surface:")
        for item in data["left_out"]:
            line(out, f"- {item['field']}={exact(item['value'])}: {item['reason']}")
    for item in data["formula_disagreements"]:
        if rows or item["path"] in data["columns"]:
            line(out, f"{item['name']}: {label(item['path'])}: {item['reason']}")
    for seen in data.get("observed", ()):
        _show_observed(out, seen, rows)


def _show_ratios(out: Console, data: Mapping[str, Any], found: Sequence[Mapping[str, Any]]) -> None:
    units, base, columns = _units(found), data["base"], data["columns"]
    step = max(1, (out.width - NAME_ROOM) // COLUMN_ROOM)  # a narrow terminal gets several tables, all with names
    for start in range(0, len(columns), step):
        part = columns[start : start + step]
        heads = [HEADS.get(path, path) for path in part]
        made = table("field", *heads, right=tuple(heads), title="" if start else "ratio to the base")
        made.add_row("base", *(about(base[path], units.get(path, "")) or exact(base[path]) for path in part))
        for item in found:
            by_path = {row["path"]: row for row in item["totals"]}
            name = item["name"] if item["kind"] == "single" else f"vector: {item['name']}"
            made.add_row(name, *(ratio_text(by_path[path]) for path in part))
        out.print(made)


def _units(found: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    return {row["path"]: row["unit"] for item in found for row in item["totals"]}


def _show_moved(out: Console, data: Mapping[str, Any], every: bool) -> None:
    numbers = ("base", "value", "difference", "ratio")
    made = table("field", "total", *numbers, right=numbers, title="what moves")
    notes = []
    for item in data["cases"]:
        shown = moved_rows(item, None if every else data["columns"])
        for index, row in enumerate(shown):
            name = row["path"] if every else label(row["path"])
            made.add_row(
                "" if index else item["name"], name, exact(row["base"]), exact(row["value"]),
                signed(row["difference"]) or UNKNOWN, ratio_text(row),
            )  # fmt: skip
            if row.get("derivative") and row["derivative"]["formula"] != "0":
                notes.append(f"{item['name']}: {name}: {derivative_text(row)}")
        if not shown:
            made.add_row(item["name"], "nothing shown here", *[DASH] * 4)
    if made.row_count:
        out.print(made)
    for item in data["cases"]:
        if len(item["moved"]) > 1:
            line(out, f"{item['name']}: moved as one: {together(item)}")
    if notes:
        line(out, "derivatives", style="bold")
        for note in notes:
            line(out, f"- {note}")


def _show_vector(out: Console, data: Mapping[str, Any], item: Mapping[str, Any]) -> None:
    numbers = ("base", "value", "difference", "sum of the fields alone", "interaction")
    made = table("total", *numbers, right=numbers, title=f"vector: {item['name']}")
    why: dict[str, None] = {}
    for row in item["totals"]:
        if row["path"] in data["columns"] and not row["invariant"]:
            parts = [UNKNOWN if row[name] is None else signed(row[name]) for name in ("sum_of_singles", "interaction")]
            made.add_row(label(row["path"]), exact(row["base"]), exact(row["value"]),
                         signed(row["difference"]) or UNKNOWN, *parts)  # fmt: skip
            if row.get("interaction_reason"):
                why.setdefault(row["interaction_reason"])
    out.print(made)
    for note in (*item["notes"], *why):
        line(out, f"- {note}")


def _show_observed(out: Console, seen: Mapping[str, Any], every: bool) -> None:
    where = seen["target"] if seen["target"] == seen["base_target"] else f"{seen['base_target']} to {seen['target']}"
    statuses = [row["status"] for row in seen["rows"]]
    counts = ", ".join(f"{statuses.count(name)} {name}" for name in dict.fromkeys(statuses))
    line(out, f"observed: {seen['name']} on {where}: {counts or seen['status']}", style="bold")
    if seen.get("reason"):
        line(out, seen["reason"][:600])
    numbers = ("predicted difference", "observed difference", "residual")
    made = table("counter", "unit", *numbers, "status", right=numbers)
    reasons = []
    for row in seen["rows"]:
        moved = row["status"] != "unmeasured" and (row["prediction"] or row["observation"] or row["residual"])
        if not (every or moved or row["status"] == "open"):
            continue
        name = " ".join(part for part in (row["counter"], row["scope"], row["phase"]) if part)
        made.add_row(
            name, row["unit"], exact(row["prediction"]), exact(row["observation"]), signed(row["residual"]),
            status_text(row["status"]),
        )  # fmt: skip
        reasons += [f"{name}: {signed(item['amount'])} {item['reason']}" for item in row["explanations"]]
        if every and row.get("reason") and row["status"] == "unmeasured":
            reasons.append(f"{name}: {row['reason']}")
    if made.row_count:
        out.print(made)
    for reason in reasons:
        line(out, f"- {reason}")


def show_fields(found: Sequence[Mapping[str, Any]]) -> None:
    """Print the fields that can be varied."""
    out = console()
    valued = any("value" in entry for entry in found)
    made = table("field", *(["value"] if valued else []), "moves", "what it says")
    for entry in found:
        value = [exact(entry["value"]) if entry.get("value") is not None else "none"] if valued else []
        made.add_row(entry["field"], *value, ", ".join(entry["owns"]), entry["what"])
    out.print(made)
