"""An audit as text: what the program costs, whose word that is, what could not be told, and what to change first."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from jaxcost.audits.exports import TITLES
from jaxcost.audits.tree import COLUMNS, UNITS, most, unbounded
from jaxcost.report import audit_rows as gather
from jaxcost.report.console import console, printable, table
from jaxcost.report.numbers import about, exact
from jaxcost.report.tables import line as whole_line

LONGEST = 200  # characters of a name
_LONG = re.compile(rf"\S{{{LONGEST + 1},}}")
TREE_ROWS, TREE_SHARE = 24, 0.01
LINES_SHOWN, BUFFERS_SHOWN, LISTED = 8, 8, 12
_VERDICTS = {"right": "green", "wrong": "bold red", "not_comparable": "yellow", "absent": ""}
_ORDER = ("wrong", "not_comparable", "right")
_SIZES = (("bytes", "bytes"), ("flops", "FLOPs"))


def line(out: Console, text: str, style: str = "") -> None:
    """Print a line of text, its names `short`."""
    whole_line(out, short(text), style)


def short(text: str) -> str:
    """Return a text whose words have at most LONGEST characters: a name may be as long as its author liked."""
    return _LONG.sub(lambda word: f"{word[0][: LONGEST - 1]}\u2026", text)


def show_audit(document: Mapping[str, Any], rows: bool = False) -> None:
    """Print a document `jaxcost.audit.v1`; `rows` adds exact integers and what the tables leave out."""
    out = console()
    _head(out, document, rows)
    _unknowns(out, document, rows)
    _flops(out, document, rows)
    _tree(out, document, rows)
    _memory(out, document, rows)
    _donation(out, document, rows)
    _savings(out, document)
    _collectives(out, document)
    _loops(out, document, rows)
    _trust(out, document, rows)
    _findings(out, document, rows)


def size(value: Any, unit: str, whole: bool = False) -> str:
    """Return a number with its prefix, an interval with both ends, or `unknown`; `whole` gives exact integers."""
    if value is None:
        return "unknown"
    if isinstance(value, Mapping):
        low = size(value["minimum"], unit, whole)
        if value["maximum"] is None:
            return f"{low} + unknown" if value["minimum"] else "unknown"
        return f"{low} to {size(value['maximum'], unit, whole)}"
    return exact(value) if whole else about(value, unit) or f"{exact(value)}{' B' * (unit == 'bytes' and value != 0)}"


def _head(out: Console, document: Mapping[str, Any], rows: bool) -> None:
    line(out, gather.title(document), style="bold")
    line(out, "  ".join(f"{name}={value}" for name, value in gather.facts(document)))
    for note in document["program"].get("notes") or ():
        line(out, str(note))
    if document["program"].get("refused"):
        line(out, f"the compiler refuses: {document['program']['refused']}", style="bold red")
    made = table("of one device, one step", "", "exact", right=("", "exact"), optional=("exact",))
    for name, value, unit in gather.headline(document):
        _row(made, name, size(value, unit), size(value, unit, whole=True))
    out.print(made)
    reason = document["flops"].get("reason")
    if reason:
        line(out, f"no exact total of FLOPs: {reason}")


def _unknowns(out: Console, document: Mapping[str, Any], rows: bool) -> None:
    found = document["unknowns"]
    if not found:
        return
    line(out, f"not known, and not zero ({len(found):,} {'entry' if len(found) == 1 else 'entries'})", "yellow")
    for row in _some(found, rows):
        where = gather.place(row)
        shapes = f", {', '.join(map(str, row['shapes']))}" if row.get("shapes") else ""
        line(out, f"- {row['what']} ({row['kind']}){f' in {where}' if where else ''}: {row['reason']}{shapes}")
    _left(out, found, rows)


def _flops(out: Console, document: Mapping[str, Any], rows: bool) -> None:
    section = document["flops"]
    made = table("FLOPs", "", "exact", "share", right=("", "exact", "share"), optional=("exact",))
    whole = most(unbounded(section["total"]))
    for name in ("by_class", "by_phase", "by_dtype"):
        for key, value in gather.table_of(section.get(name)).items():
            if value != 0:
                part = _percent(value, whole)
                _row(made, str(key).replace("_", " "), size(value, "FLOPs"), size(value, "FLOPs", True), part)
        if made.row_count:
            made.add_section()
    if made.row_count:
        out.print(made)
    if section.get("elementwise_products"):
        amount = size(section["elementwise_products"], "FLOPs")
        line(out, f"of these, {amount} are products that became multiply and reduce")
    jaxpr = document.get("jaxpr")
    if isinstance(jaxpr, Mapping) and jaxpr.get("flops") is not None:
        devices = int(jaxpr.get("devices") or 1)
        over = f", over all {devices:,} devices" if devices > 1 else ""
        line(out, f"the jaxpr's own count{over}: {size(jaxpr['flops'], 'FLOPs')}")
        for row in _some(gather.rows_of(jaxpr.get("differences")), rows):
            reasons = gather.why(row)
            left = f", {row['unexplained']:+,} unexplained" if row["unexplained"] else ""
            amount = "unknown" if row["difference"] is None else f"{row['difference']:+,} FLOPs"
            line(out, f"- {gather.compared(row)}: compiled {amount}{left}: {reasons}")
    if rows and document.get("primitives"):
        made = table("operations that are no FLOPs here", "count", right=("count",))
        for name, value in document["primitives"].items():
            _row(made, str(name).replace("_", " "), size(value, "operations", True))
        out.print(made)


def _percent(value: Any, whole: int | None) -> str:
    part = most(value) if value is not None else None
    return "" if not whole or part is None else f"{100 * part / whole:.1f}%"


def _tree(out: Console, document: Mapping[str, Any], rows: bool) -> None:
    right = tuple(TITLES[column] for column in COLUMNS)
    made = table("module", *right, right=right, optional=(TITLES["collective_bytes"], TITLES["bytes"]))
    for depth, node in gather.largest(document, "scopes", 0.0 if rows else TREE_SHARE, 10_000 if rows else TREE_ROWS):
        cells = (size(node["total"].get(column, 0), UNITS[column]) for column in COLUMNS)
        _row(made, f"{'  ' * min(depth, 12)}{node['name']}", *("" if cell == "0" else cell for cell in cells))
    if not made.row_count:
        line(out, "no trees of places: the record of a test keeps none")
        return
    out.print(made)
    if rows or gather.unnamed(document):
        made = table("argument multiplied", "FLOPs", "exact", right=("FLOPs", "exact"), optional=("exact",))
        keep = (0.0, 10_000) if rows else (TREE_SHARE, TREE_ROWS)
        for depth, node in gather.largest(document, "weights", *keep):
            value = node["total"].get("flops", 0)
            _row(made, f"{'  ' * min(depth, 12)}{node['name']}", size(value, "FLOPs"), size(value, "FLOPs", True))
        if made.row_count > 1:
            out.print(made)
    lines = gather.lines(document, None if rows else LINES_SHOWN)
    made = table("source line", *right, right=right, optional=(TITLES["collective_bytes"], TITLES["peak_bytes"]))
    for row in lines:
        cells = (size(row["total"].get(column, 0), UNITS[column]) for column in COLUMNS)
        where = f"{row['file']}:{row['line']} {row['name']}" if row.get("line") else row["name"]
        _row(made, where, *("" if cell == "0" else cell for cell in cells))
    if lines:
        out.print(made)


def _memory(out: Console, document: Mapping[str, Any], rows: bool) -> None:
    section = document["memory"]
    made = table("memory of one device", "", "exact", right=("", "exact"), optional=("exact",))
    for name, label in gather.MEMORY.items():
        if name in section:
            _row(made, label, size(section[name], "bytes"), size(section[name], "bytes", whole=True))
    out.print(made)
    elsewhere = ", ".join(f"{size(held, 'bytes')} {space}" for space, held in _elsewhere(section).items())
    if elsewhere:
        line(out, f"beside device memory, and in none of these numbers: {elsewhere}")
    for reason, names in _reasons(section).items():
        line(out, f"unknown ({', '.join(names)}): {reason}")
    limit = gather.table_of(document["program"].get("target")).get("device_memory_bytes")
    required = section.get("required_bytes")
    if limit and required is not None:
        fits = required <= limit
        text = f"{'fits' if fits else 'does not fit'}: {100 * required / limit:.1f}% of {size(limit, 'bytes')}"
        line(out, text, style="green" if fits else "bold red")
    classes = {name: value for name, value in (section.get("by_class_at_peak") or {}).items() if value}
    if classes:
        made = table("at the peak", "", "share", right=("", "share"))
        for name, value in sorted(classes.items(), key=lambda item: -item[1]):
            _row(made, name.replace("_", " "), size(value, "bytes"), _percent(value, section["live_peak_bytes"]))
        out.print(made)
    live = gather.rows_of(section.get("at_peak"))
    if live:
        made = table("largest buffers", "", "class", "shape", "where", right=("",), optional=("class", "shape"))
        for row in live if rows else live[:BUFFERS_SHOWN]:
            where = row.get("source") or row.get("instruction", "")
            _row(
                made,
                gather.place(row),
                size(row["bytes"], "bytes"),
                row["class"].replace("_", " "),
                row["shape"],
                where,
            )
        out.print(made)


def _elsewhere(section: Mapping[str, Any]) -> dict[str, int]:
    """Bytes allocated in other memory than the device's, the most first: on a TPU temporaries lie on the chip."""
    found: dict[str, int] = {}
    for row in gather.rows_of(section.get("by_space")):
        if row["space"] != "device":
            found[str(row["space"])] = found.get(str(row["space"]), 0) + row["bytes"]
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _reasons(section: Mapping[str, Any]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, reason in gather.table_of(section.get("reasons")).items():
        found.setdefault(str(reason), []).append(name.replace("_", " "))
    return found


def _donation(out: Console, document: Mapping[str, Any], rows: bool) -> None:
    section = gather.table_of(document["memory"].get("donation"))
    if not section:
        return
    line(out, f"donation: {gather.donated(section, lambda value: size(value, 'bytes'))}")
    if section.get("known") is False and section.get("reason"):
        line(out, f"    {section['reason']}")
    lost = [row for row in gather.rows_of(section.get("arguments")) if not row.get("used")]
    for row in _some(lost, rows):
        line(out, f"- in vain: {row['path']} {row['shape']}: {row.get('why', '')}")
    could = gather.rows_of(section.get("possible"))
    for row in could if rows else could[:3]:
        line(out, f"- possible: {row['path']} {row['shape']}, {size(row['bytes'], 'bytes')}")


def _savings(out: Console, document: Mapping[str, Any]) -> None:
    found = gather.rows_of(document["memory"].get("savings"))
    if not found:
        return
    made = table("what would lower the peak, each alone", "saves", "bound", right=("saves",))
    for row in found:
        text = str(row.get("action") or row.get("kind"))
        target = str(row.get("target") or "")
        _row(made, text if target in text else f"{text}: {target}", _saved(row), str(row["bound"]))
    out.print(made)


def _saved(row: Mapping[str, Any]) -> str:
    """What a change saves: both ends where they differ."""
    upto, least = row.get("saves_bytes"), row.get("at_least_bytes")
    text = size(upto, "bytes")
    return text if least in (None, upto) else f"{size(least, 'bytes')} .. {text}"


def _collectives(out: Console, document: Mapping[str, Any]) -> None:
    found = gather.collectives(document)
    if not found:
        line(out, "collectives: none, no data moves between devices")
        return
    linked = any(row.link for row in found)
    right = ("group", "times", "payload", "sent")
    made = table("collective", "over", *(["link"] if linked else []), *right, right=right, optional=("group",))
    for row in found:
        _row(
            made, row.kind, row.axes, *([row.link] if linked else []), exact(row.group), size(row.executions, "", True),
            size(row.bytes, "bytes"), size(row.wire, "bytes"),
        )  # fmt: skip
    out.print(made)


def _loops(out: Console, document: Mapping[str, Any], rows: bool) -> None:
    found = gather.rows_of(document.get("loops"))
    if not found:
        return
    right = ("trips", "times run", "FLOPs in all", "state")
    made = table("loop", *right, "count is", "line", right=right, optional=("state", "FLOPs in all"))
    for row in _some(found, rows):
        _row(
            made, row["name"], size(gather.trips(row), "", True), size(row.get("entries"), "", True),
            size(row.get("flops"), "FLOPs"), size(row.get("state_bytes"), "bytes"), str(row.get("count_from", "")),
            row.get("source") or row.get("scope") or row.get("op_name", ""),
        )  # fmt: skip
    out.print(made)
    for row in _some([row for row in found if row.get("reason")], rows):
        line(out, f"{row['name']}: {row['reason']}{'; give ' if row.get('supply') else ''}{row.get('supply', '')}")
    _left(out, found, rows)


def _trust(out: Console, document: Mapping[str, Any], rows: bool) -> None:
    found = gather.rows_of(gather.table_of(document.get("xla")).get("verdicts"))
    shown = [row for row in found if row["verdict"] != "absent"]
    # What misleads comes first, and no memory of the host that is said to be unused takes a row.
    shown.sort(key=lambda row: _ORDER.index(row["verdict"]) if row["verdict"] in _ORDER else len(_ORDER))
    unused = [] if rows else [row for row in shown if _unused(row)]
    shown = [row for row in shown if row not in unused]
    if shown:
        made = table("XLA's own figure", "says", "counted here", "verdict", right=("says", "counted here"))
        for row in _some(shown, rows):
            verdict = Text(str(row["verdict"]).replace("_", " "), style=_VERDICTS.get(row["verdict"], ""))
            name = f"{row['figure']} {row['where']}" if row.get("where") else str(row["figure"])
            _row(made, name, exact(row.get("value")), exact(row.get("measured")), verdict)
        out.print(made)
        for row in _some([row for row in shown if row["verdict"] == "wrong"], rows):
            line(out, f"{row['figure']} {row.get('where') or ''}".rstrip() + f": {row['reason']}")
        _left(out, shown, rows)
    if unused:
        line(out, f"right too: {len(unused)} figures of host memory, each 0, of which the program uses none")
    absent: dict[str, list[str]] = {}
    for row in found:
        if row["verdict"] == "absent":
            absent.setdefault(str(row.get("reason") or "").split(";")[0], []).append(str(row["figure"]))
    for reason, names in absent.items():
        line(out, f"XLA gives no {', '.join(dict.fromkeys(names))}: {reason}")


def _unused(row: Mapping[str, Any]) -> bool:
    return str(row["figure"]).startswith("host_") and row["verdict"] == "right" and row.get("value") == 0


def _findings(out: Console, document: Mapping[str, Any], rows: bool) -> None:
    found = document["findings"]
    if found:
        line(out, "findings", style="bold")
    for row in _some(found, rows):
        sizes = "".join(f" ({size(row[key], unit)})" for key, unit in _SIZES if row.get(key) is not None)
        line(out, f"- {str(row['kind']).replace('_', ' ')}: {row['text']}{sizes}")
    _left(out, found, rows)


def _row(made: Table, *cells: str | Text) -> None:
    """Add a row of texts: names are the program's own, and a bracket in one is no markup, an escape no command."""
    made.add_row(*(cell if isinstance(cell, Text) else Text(printable(short(str(cell)))) for cell in cells))


def _some(found: Iterable[Any], rows: bool) -> list[Any]:
    listed = list(found)
    return listed if rows else listed[:LISTED]


def _left(out: Console, found: list[Any] | list[Mapping[str, Any]], rows: bool) -> None:
    if not rows and len(found) > LISTED:
        line(out, f"{len(found) - LISTED:,} more with --rows, and in the JSON")
