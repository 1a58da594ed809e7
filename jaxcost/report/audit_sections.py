"""The sections of an audit's page that need no script: tables and bars, every name escaped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from jaxcost.audits.tree import COLUMNS, payload
from jaxcost.report import audit_rows as gather
from jaxcost.report.cells import amount, clipped, grid, plain_data, value_cell
from jaxcost.report.numbers import exact
from jaxcost.report.schedule import ordered

MOST_LISTED = 60
BUFFERS_SHOWN = 12
_TITLES = ("FLOPs", "bytes moved", "bytes at the peak", "collective bytes")


def text(value: Any, kind: str = "") -> str:
    """Return a cell of text."""
    marked = f' class="{escape(kind)}"' if kind else ""
    return f"<td{marked}>{escape(clipped(str(value)))}</td>"


def number(value: Any, unit: str = "") -> str:
    """Return a cell of a number; without a unit it is shown in full."""
    shown = amount(value, unit) if unit else value_cell("", value)
    return f'<td class="n">{shown}</td>'


def rows(cells: Iterable[Sequence[str]]) -> list[str]:
    """Return cells as rows."""
    return [f"<tr>{''.join(row)}</tr>" for row in cells]


def wide(table: str) -> str:
    """Return a table that scrolls by itself where the window is narrow."""
    return f'<div class="wide">{table}</div>'


def more(listed: int, total: int) -> str:
    """Say how many rows a table leaves out."""
    return f'<p class="dim">{total - listed:,} more, in the JSON</p>' if total > listed else ""


def head(document: Mapping[str, Any]) -> str:
    """What the numbers rest on, what the compiler refused, and the numbers to know first."""
    facts = "".join(
        f"<span>{escape(name)} <b>{escape(clipped(value))}</b></span>" for name, value in gather.facts(document)
    )
    parts = [f'<p class="case">{facts}</p>']
    refused = document["program"].get("refused")
    if refused:
        parts.append(f'<p class="alarm">the compiler refuses: {escape(clipped(str(refused), 2000))}</p>')
    cards = "".join(
        f'<li><span class="what">{escape(name)}</span><b>{amount(value, unit)}</b></li>'
        for name, value, unit in gather.headline(document)
    )
    unknowns = len(document["unknowns"])
    if unknowns:
        cards += (
            f'<li><span class="what">unknown</span><b class="unknown"><a href="#unknowns">{unknowns:,}</a></b></li>'
        )
    parts.append(f'<ul class="cards">{cards}</ul>')
    note = "Every number is of one device and one step. One multiplication and addition is 2 FLOPs."
    toggle = '<label><input type="checkbox" id="exact"> exact integers in the tables</label>'
    parts.append(f"<p>{note} {toggle}</p>")
    notes = [str(item) for item in document["program"].get("notes") or ()]
    if notes:
        items = "".join(f"<li>{escape(clipped(item))}</li>" for item in notes)
        parts.append(f'<ul class="dim">{items}</ul>')
    return "".join(parts)


def unknowns(document: Mapping[str, Any]) -> str:
    """What could not be told, with its reason, its shapes and its place."""
    found = document["unknowns"]
    if not found:
        return ""
    cells = [
        (
            text(row["what"]), text(row["kind"]), text(row["reason"]), text(gather.place(row)),
            text(", ".join(map(str, row.get("shapes") or ()))), text(row.get("source") or "", "dim"),
        )
        for row in found[:MOST_LISTED]
    ]  # fmt: skip
    table = grid(("what", "kind", "reason", "where", "shapes", "source line"), rows(cells))
    note = "<p>Not zero: a total that rests on one of these is unknown too, and says what is certain of it.</p>"
    return (
        f'<h2 id="unknowns">not known</h2><div class="note-box">{note}{wide(table)}{more(len(cells), len(found))}</div>'
    )


def findings(document: Mapping[str, Any]) -> str:
    """What is worth knowing beside the totals."""
    found = document["findings"]
    if not found:
        return ""
    items = []
    for row in found[:MOST_LISTED]:
        size = "".join(f" <b>{amount(row[key], unit)}</b>" for key, unit in _SIZES if row.get(key) is not None)
        where = f" <code>{escape(clipped(str(row['where'])))}</code>" if row.get("where") else ""
        kind = escape(str(row["kind"]).replace("_", " "))
        items.append(f"<li><b>{kind}</b>: {escape(clipped(str(row['text']), 1000))}{size}{where}</li>")
    return f"<h2>findings</h2><ul>{''.join(items)}</ul>{more(len(items), len(found))}"


_SIZES = (("bytes", "bytes"), ("flops", "FLOPs"))


def against(document: Mapping[str, Any]) -> str:
    """The audit against a recorded one: figures that moved, and what the compiler does differently."""
    data = document.get("against")
    if not data:
        return ""
    from jaxcost.report import regressed

    moved = [row for row in data["rows"] if row["status"] != "same"]
    moved.sort(key=lambda row: not row["failed"])
    cells = [
        (
            text(row["figure"]), text(regressed.side(row["old"], row)), text(regressed.side(row["new"], row)),
            text(regressed.growth(row)), text(row["bound"] or ""),
            f'<td{" class=" + chr(34) + "unknown" + chr(34) if row["failed"] else ""}>{escape(row["status"])}</td>',
            text(row["reason"] or "", "dim"),
        )
        for row in moved[:MOST_LISTED]
    ]  # fmt: skip
    heads = ("figure", "old", "new", "growth", "bound", "status", "reason")
    shown = wide(grid(heads, rows(cells), (1, 2, 3))) + more(len(cells), len(moved)) if cells else ""
    found = data["differences"]
    items = "".join(
        f"<li><b>{escape(str(row['about']))}</b>: {escape(clipped(str(row['text']), 1000))}</li>"
        for row in found[:MOST_LISTED]
    )
    listed = f"<h3>what differs</h3><ul>{items}</ul>{more(min(len(found), MOST_LISTED), len(found))}" if items else ""
    head = f"against {escape(clipped(str(data['file'] or 'the recorded audit')))}"
    return f'<h2 id="against">{head}</h2><p><b>{escape(regressed.verdict(data))}</b></p>{shown}{listed}'


def savings(document: Mapping[str, Any]) -> str:
    """The changes that would lower the peak most."""
    section = document["memory"].get("savings", document.get("savings"))
    found = gather.rows_of(section)
    if not found:
        return ""
    cells = []
    for row in found:
        least, upto = row.get("at_least_bytes"), row.get("saves_bytes")
        bound = f'<br><small class="dim">at least {amount(least, "bytes")}</small>' if least not in (None, upto) else ""
        how = "; ".join([str(row.get("derivation") or ""), *map(str, row.get("assumptions") or ())]).strip("; ")
        action = f"<b>{escape(clipped(str(row.get('action') or row.get('kind'))))}</b>"
        cells.append(
            (
                f'<td class="n">{amount(upto, "bytes")}{bound}</td>', number(row.get("peak_after_bytes"), "bytes"),
                f"<td>{action}<br><code>{escape(clipped(str(row.get('target', ''))))}</code></td>",
                text(str(row.get("bound") or "").replace("_", " ")), text(how, "dim"),
            )
        )  # fmt: skip
    table = grid(("saves", "peak then", "change", "bound", "how it was derived"), rows(cells), (0, 1))
    note = "Each is taken alone: two of them together need not save the sum."
    return f'<h2>what would lower the peak</h2><p class="dim">{note}</p>{wide(table)}'


def flops(document: Mapping[str, Any]) -> str:
    """FLOPs by class, phase and type, the largest instructions, and the jaxpr's own count."""
    section = document["flops"]
    parts = []
    if section.get("reason"):
        parts.append(f'<p class="note-box">no exact total: {escape(clipped(str(section["reason"]), 1000))}</p>')
    for name, label in (("by_class", "class"), ("by_phase", "phase"), ("by_dtype", "operands and result")):
        sums = gather.table_of(section.get(name))
        shown = {str(key).replace("_", " "): value for key, value in sums.items() if value != 0}
        pairs = [(text(key), number(value, "FLOPs")) for key, value in shown.items()]
        if pairs:
            parts.append(f'<div class="beside">{grid((label, "FLOPs"), rows(pairs), (1,))}</div>')
    apart = section.get("elementwise_products")
    if apart:
        parts.append(f"<p>of these, products that became multiply and reduce: {amount(apart, 'FLOPs')}</p>")
    listed = gather.rows_of(section.get("rows"))
    cells = [
        (
            number(row.get("total"), "FLOPs"), number(row.get("executions")), text(row.get("class", "")),
            text(gather.place(row)), text(f"{' x '.join(row.get('operands') or ())} -> {row.get('result', '')}"),
            text(row.get("basis", "")), text(row.get("source") or row.get("name", ""), "dim"),
        )
        for row in listed[:MOST_LISTED]
    ]  # fmt: skip
    if cells:
        heads = ("FLOPs", "times", "class", "where", "operands and result", "basis", "source line")
        inside = wide(grid(heads, rows(cells), (0, 1))) + more(len(cells), section.get("instructions", len(listed)))
        parts.append(f"<details><summary>the largest instructions</summary>{inside}</details>")
    if section.get("convention"):
        parts.append(f'<p class="dim">{escape(str(section["convention"]))}</p>')
    if document.get("primitives"):
        inside = plain_data(document["primitives"])
        parts.append(f"<details><summary>operations that are no FLOPs here</summary>{inside}</details>")
    if document.get("jaxpr"):
        parts.append(_jaxpr(gather.table_of(document["jaxpr"])))
    return f"<h2>FLOPs</h2>{''.join(parts)}"


def _jaxpr(section: Mapping[str, Any]) -> str:
    """The jaxpr's own count, and what the compiler made of each place that differs."""
    devices = int(section.get("devices") or 1)
    over = f" over all {devices:,} devices" if devices > 1 else ""
    parts = [f"<h3>the jaxpr beside it</h3><p>It counts {amount(section.get('flops'), 'FLOPs')}{over}. "]
    found = gather.rows_of(section.get("differences"))
    parts.append("</p>" if found else "No place differs.</p>")
    cells = []
    for row in found[:MOST_LISTED]:
        cells.append(
            (
                text(gather.compared(row)), number(row.get("jaxpr"), "FLOPs"),
                number(row.get("compiled"), "FLOPs"), number(row.get("difference")), number(row.get("unexplained")),
                text(gather.why(row)),
            )
        )  # fmt: skip
    if cells:
        heads = ("where", "jaxpr", "compiled", "difference", "unexplained", "why")
        parts.append(wide(grid(heads, rows(cells), (1, 2, 3, 4))) + more(len(cells), len(found)))
    rest = {key: value for key, value in section.items() if key not in ("flops", "counted", "devices", "differences")}
    return f"{''.join(parts)}<details><summary>more of the jaxpr</summary>{plain_data(rest)}</details>"


def places(document: Mapping[str, Any]) -> str:
    """The largest modules as a table, for a reader without a script."""
    found = gather.largest(document, "scopes", 0.01, 30)
    cells = [
        (
            f'<td style="padding-left:{min(depth, 30)}em">{escape(clipped(node["name"]))}</td>',
            *(number(node["total"].get(column, 0), "FLOPs" if column == "flops" else "bytes") for column in COLUMNS),
        )
        for depth, node in found
    ]
    return wide(grid(("module", *_TITLES), rows(cells), range(1, 5)))


def memory(document: Mapping[str, Any]) -> str:
    """The bytes of one device, what is live at the peak, donation, and what else was asked of each buffer."""
    section = document["memory"]
    reasons = gather.table_of(section.get("reasons"))
    cells = []
    for name, label in gather.MEMORY.items():
        if name in section:
            why = reasons.get(name, "") if section[name] is None else ""
            cells.append((text(label), number(section[name], "bytes"), text(why, "dim")))
    parts = ["<h2>memory of one device</h2>", wide(grid(("", "bytes", ""), rows(cells), (1,)))]
    limit = gather.table_of(document["program"].get("target")).get("device_memory_bytes")
    required = section.get("required_bytes")
    if limit and required is not None:
        fits, word = ("fits", "fits") if required <= limit else ("no", "does not fit")
        parts.append(
            f'<p>It <span class="{fits}">{word}</span> in {amount(limit, "bytes")} of device memory: '
            f"{100 * required / limit:.1f}% required.</p>"
        )
    parts.append(_bar(section))
    parts.append(_live(section))
    if section.get("donation"):
        parts.append(_donation(gather.table_of(section["donation"])))
    for name, label in gather.DETAILS.items():
        if name in section and not gather.empty(section[name]):
            shown = section[name] if name != "moments" else [
                {key: row[key] for key in ("name", "bytes", "scope", "phase", "instruction")} for row in section[name]
            ]  # fmt: skip
            parts.append(f"<details><summary>{escape(label)}</summary>{plain_data(shown)}</details>")
    return "".join(parts)


def classes_of(section: Mapping[str, Any]) -> list[str]:
    """Return the classes of buffers that occur, in the order in which they are stacked."""
    tables = [
        section.get("by_class_at_peak"),
        *(p["by_class"] for p in (section.get("timeline") or {}).get("points", ())),
    ]
    return ordered(name for table in tables if table for name, size in table.items() if size)


def _bar(section: Mapping[str, Any]) -> str:
    sizes = {name: size for name, size in (section.get("by_class_at_peak") or {}).items() if size}
    total = sum(sizes.values())
    if not total:
        return ""
    order = ordered(sizes)
    pieces = "".join(
        f'<i class="s-{escape(name)}" style="width:{100 * sizes[name] / total:.3f}%" '
        f'title="{escape(name.replace("_", " "))}: {sizes[name]:,} bytes"></i>'
        for name in order
    )
    legend = "".join(
        f'<span><i class="s-{escape(name)}"></i>{escape(name.replace("_", " "))} {amount(sizes[name], "bytes")}</span>'
        for name in sorted(order, key=lambda name: -sizes[name])
    )
    label = f"bytes at the peak by class, {total:,} in all"
    return (
        f"<h3>at the peak, by class</h3>"
        f'<div class="bar" role="img" aria-label="{label}">{pieces}</div><p class="legend">{legend}</p>'
    )


def _live(section: Mapping[str, Any]) -> str:
    found = gather.rows_of(section.get("at_peak"))
    if not found:
        return ""
    cells = [
        (
            number(row["bytes"], "bytes"), _class(row), text(row["shape"]),
            text(gather.place(row) or row.get("instruction", "")),
            text(row.get("source") or row.get("instruction", ""), "dim"), text(row.get("why", ""), "dim"),
        )
        for row in found[:MOST_LISTED]
    ]  # fmt: skip
    heads = ("bytes", "class", "shape", "where or argument", "source line or instruction", "why this class")
    first = wide(grid(heads, rows(cells[:BUFFERS_SHOWN]), (0,), f"largest buffers at the peak, {len(found):,} in all"))
    if len(cells) <= BUFFERS_SHOWN:
        return first
    rest = wide(grid(heads, rows(cells[BUFFERS_SHOWN:]), (0,))) + more(len(cells), len(found))
    return f"{first}<details><summary>the next {len(cells) - BUFFERS_SHOWN:,}</summary>{rest}</details>"


def _class(row: Mapping[str, Any]) -> str:
    name, doubt = escape(str(row["class"])), "" if row.get("sure", True) else " (unsure)"
    return f'<td class="kind"><i class="s-{name}"></i>{name.replace("_", " ")}{doubt}</td>'


def _donation(section: Mapping[str, Any]) -> str:
    parts = ["<h3>donation</h3>"]
    if section.get("known") is False:
        parts.append(
            f'<p class="unknown">what was donated is not known: {escape(str(section.get("reason") or ""))}</p>'
        )
    parts.append(f"<p>{gather.donated(section, lambda value: amount(value, 'bytes'))}.</p>")
    lost = [row for row in gather.rows_of(section.get("arguments")) if not row.get("used")]
    could = gather.rows_of(section.get("possible"))
    for found, label in ((lost, "donated in vain"), (could, "could be donated")):
        cells = [
            (text(row["path"]), text(row["shape"]), number(row["bytes"], "bytes"), text(row.get("why", "")))
            for row in found[:MOST_LISTED]
        ]
        if cells:
            table = wide(grid((label, "shape", "bytes", "why"), rows(cells), (2,))) + more(len(cells), len(found))
            parts.append(table)
    return "".join(parts)


def collectives(document: Mapping[str, Any]) -> str:
    """The transfers between devices by kind and axes, and the single ones that move most."""
    sums = gather.collectives(document)
    if not sums:
        return "<h2>collectives</h2><p>none: no data moves between devices</p>"
    several = any(row.link for row in sums)
    cells = [
        (
            text(row.kind), text(row.axes), *([text(row.link)] if several else []), number(row.group),
            number(row.rows), number(row.executions), number(row.bytes, "bytes"), number(row.wire, "bytes"),
        )
        for row in sums
    ]  # fmt: skip
    heads = ("kind", "over", *(["link"] if several else []), "group", "instructions", "executions", "payload", "sent")
    table = wide(grid(heads, rows(cells), range(2 + several, len(heads))))
    listed = sorted(gather.rows_of(document["collectives"]), key=lambda row: -(_top(payload(row))))
    single = [
        (
            number(payload(row), "bytes"), number(row.get("executions")), text(row["kind"]),
            text(", ".join(row.get("axes") or ()) or row.get("layout") or "unnamed"), text(row.get("dtype", "")),
            text(gather.place(row)),
            text(row.get("source") or row.get("name", ""), "dim"),
        )
        for row in listed[:MOST_LISTED]
    ]  # fmt: skip
    inside = wide(
        grid(("payload", "times", "kind", "over", "dtype", "where", "source line"), rows(single), (0, 1))
    ) + more(len(single), len(listed))
    totals = gather.table_of(document.get("collective_totals"))
    links = gather.table_of(totals.get("by_link"))
    sums_by_link = [{"link": name, **gather.table_of(found)} for name, found in links.items()]
    rest = f"<h3>inside and between nodes or slices</h3>{plain_data(sums_by_link)}" if links and several else ""
    sent = f"; sent: {totals['wire']}" if totals.get("wire") else ""
    note = escape(f"of one device in one step, trips included; payload: the whole array that moves{sent}")
    return (
        f'<h2>collectives</h2><p class="dim">{note}</p>{table}'
        f"<details><summary>one by one, {len(listed):,} in all</summary>{inside}</details>{rest}"
    )


def _top(value: Any) -> int:
    return int((value["maximum"] or value["minimum"]) if isinstance(value, Mapping) else value)


def loops(document: Mapping[str, Any]) -> str:
    """The loops, their trips, and where each count is from."""
    found = gather.rows_of(document.get("loops"))
    if not found:
        return "<h2>loops</h2><p>none</p>"
    cells = [
        (
            text(row["name"]), number(gather.trips(row)), number(row.get("entries")), number(row.get("flops"), "FLOPs"),
            number(row.get("state_bytes"), "bytes"), text(row.get("count_from", "")),
            text(". ".join(filter(None, (row.get("reason"), row.get("supply"))))), text(gather.place(row)),
            text(row.get("source") or "", "dim"),
        )
        for row in found[:MOST_LISTED]
    ]  # fmt: skip
    heads = (
        "loop",
        "trips",
        "times run",
        "FLOPs in all",
        "state carried",
        "count is",
        "reason",
        "where",
        "source line",
    )
    return f"<h2>loops</h2>{wide(grid(heads, rows(cells), (1, 2, 3, 4)))}{more(len(cells), len(found))}"


def trust(document: Mapping[str, Any]) -> str:
    """XLA's own figures, each with a verdict."""
    found = gather.rows_of(gather.table_of(document.get("xla")).get("verdicts"))
    if not found:
        return ""
    absent = [row for row in found if row["verdict"] == "absent"]
    cells = [
        (
            text(row["figure"]), text(row.get("where") or row.get("source", "")), number(row.get("value")),
            number(row.get("measured")), text(_ratio(row)), text(str(row["verdict"]).replace("_", " "), row["verdict"]),
            text(row.get("reason", "")),
        )
        for row in found
        if row["verdict"] != "absent"
    ][:MOST_LISTED]  # fmt: skip
    heads = ("XLA's figure", "of", "says", "counted here", "ratio", "verdict", "reason")
    parts = [wide(grid(heads, rows(cells), (2, 3, 4)))] if cells else []
    if absent:
        by_reason: dict[str, list[str]] = {}
        for row in absent:
            by_reason.setdefault(str(row.get("reason") or ""), []).append(str(row["figure"]))
        items = "".join(
            f"<li>{escape(clipped(', '.join(names)))}: {escape(clipped(reason))}</li>"
            for reason, names in by_reason.items()
        )
        parts.append(f"<details><summary>{len(absent):,} figures are absent</summary><ul>{items}</ul></details>")
    return f"<h2>XLA's own figures</h2>{''.join(parts)}"


def _ratio(row: Mapping[str, Any]) -> str:
    ratio = row.get("ratio")
    return "" if ratio is None else exact(float(ratio)) if not isinstance(ratio, str) else ratio
