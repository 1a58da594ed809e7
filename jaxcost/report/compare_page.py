"""A comparison as one HTML page: it asks the network for nothing, and says so in its content security policy.

Written from the document that --json prints. Tables, bars and matrices are plain HTML and SVG; one script
(`compare.js`) draws memory over the schedule and shows what is live under the cursor. Without it the page still has the
buffers at each peak.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from jaxcost.report.cells import amount, grid
from jaxcost.report.compare_bars import bars_svg
from jaxcost.report.compared import (
    all_notes,
    collective_rows,
    explanations,
    fit_text,
    has_limit,
    percent,
    totals,
    unit_for,
    verdict,
)
from jaxcost.report.numbers import about, exact, signed
from jaxcost.report.page import STYLE
from jaxcost.report.schedule import (
    POLICY,
    Series,
    colours,
    ordered,
    package_file,
    schedule_frame,
    schedule_script,
)
from jaxcost.report.values import case_values

BUFFERS_AT_PEAK = 16
CHANGES_SHOWN = 12


def compare_page(data: Mapping[str, Any]) -> str:
    """Return the page of a `jaxcost.compare.v1` document."""
    columns = data["columns"]
    classes = _classes(columns)
    parts = [
        _head(data),
        _summary(data),
        _notes(data),
        _bars(columns, classes),
        _schedule(columns),
        _matrices(columns),
        _differences(data["differences"]),
        _peaks(columns),
        _foot(columns),
    ]
    style = STYLE + package_file("compare.css") + colours(classes)
    title = f"{data['model']}: compare"
    body = "\n".join(part for part in parts if part)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f'<meta name="viewport" content="width=device-width"><style>{style}</style></head>\n'
        f"<body><h1>{escape(title)}</h1>\n{body}\n"
        f'<p class="dim">{escape(str(data["schema"]))}, jaxcost {escape(str(data["jaxcost"]))}</p>'
        f"{_script(columns, classes)}</body></html>\n"
    )


def _label(column: Mapping[str, Any]) -> str:
    return f"{column['name']} on {column['target']}"


def _classes(columns: Sequence[Mapping[str, Any]]) -> list[str]:
    """The classes that occur, in the order in which they are stacked."""
    found: set[str] = set()
    for column in columns:
        compiled = column["compiled"] or {}
        tables = [column["predicted"].get("by_class"), compiled.get("peak", {}).get("by_class")]
        tables += [point["by_class"] for point in (compiled.get("timeline") or {}).get("points", ())]
        found |= {name for table in tables if table for name, size in table.items() if size}
    return ordered(found)


def _head(data: Mapping[str, Any]) -> str:
    varied = {name.replace("_", "-") for column in data["columns"] for name in column["options"]}
    values = [pair for pair in case_values(data["case"]) if pair[0] not in {"mesh", *varied}]
    shown = "".join(f"<span>{escape(name)} <b>{escape(value)}</b></span>" for name, value in values)
    toggle = '<label><input type="checkbox" id="exact"> exact bytes and FLOPs</label>'
    return (
        f'<p><b>{escape(verdict(data))}</b></p><p class="case">{shown}</p>'
        f"<p>Every number is of one device, the worst one. {toggle}</p>"
    )


def _summary(data: Mapping[str, Any]) -> str:
    columns, fractions = data["columns"], data["fractions"]
    every = [totals(column) for column in columns]
    step = unit_for(size for found in every for name in ("argument_bytes", "peak_bytes") for size in found[name])
    several, limited = len({column["target"] for column in columns}) > 1, has_limit(columns)
    heads = [
        "spec", *(["target"] if several else []), "arguments", "peak, predicted", "peak, compiled", "error", "required",
        *(["headroom"] if limited else []), "FLOPs", "collectives",
        *(f"fits {fraction}" for fraction in fractions if limited),
    ]  # fmt: skip
    rows = []
    for column, found in zip(columns, every, strict=True):
        pick = {name: pair[1] if pair[1] is not None else pair[0] for name, pair in found.items()}
        peak = column["predicted"]["peak_bytes"]
        between = ""
        if peak["expected"] is not None:
            lower, upper = (amount(peak[side], "bytes", step) for side in ("lower", "upper"))
            between = f'<br><small class="dim">{lower} to {upper}</small>'
        fits = [fit_text(column, fraction) for fraction in fractions if limited]
        numbers = (
            amount(pick["argument_bytes"], "bytes", step), amount(found["peak_bytes"][0], "bytes", step) + between,
            amount(found["peak_bytes"][1], "bytes", step), escape(percent(column["error"]["peak_bytes"])),
            amount(found["required_bytes"][1], "bytes", step),
            *([amount(found["headroom_bytes"][1], "bytes", step)] if limited else []),
            amount(pick["flops"], "FLOPs"), amount(pick["collective_bytes"], "bytes"),
        )  # fmt: skip
        rows.append(
            f'<tr><th scope="row">{escape(column["name"])}</th>'
            + (f"<td>{escape(column['target'])}</td>" if several else "")
            + "".join(f'<td class="n">{text}</td>' for text in numbers)
            + "".join(f'<td class="{text.split()[0]}">{escape(text)}</td>' for text in fits)
            + "</tr>"
        )
    return f'<div class="wide">{grid(heads, rows, range(1 + several, 8 + several + limited))}</div>'


def _notes(data: Mapping[str, Any]) -> str:
    parts = []
    notes = [
        f'<li>{escape(where)}: <span class="{"no" if bad else ""}">{escape(text)}</span></li>'
        for text, bad, where in all_notes(data["columns"])
    ]
    reasons = explanations(data["columns"])
    if data["advice"]:
        items = "".join(
            f'<li>{escape(item["text"])} <span class="dim">({escape(item["basis"])})</span></li>'
            for item in data["advice"]
        )
        parts.append(f"<h2>what to change first</h2><ul>{items}</ul>")
    if notes:
        parts.append(f"<h2>notes</h2><ul>{''.join(notes)}</ul>")
    if reasons:
        items = "".join(f"<li>{escape(text)}</li>" for text in reasons)
        parts.append(
            f"<details><summary>differences of the two witnesses, explained</summary><ul>{items}</ul></details>"
        )
    return "".join(parts)


def _bars(columns: Sequence[Mapping[str, Any]], classes: Sequence[str]) -> str:
    drawing = bars_svg(columns, classes)
    if not drawing:
        return ""
    legend = "".join(f'<span><i class="s-{name}"></i>{escape(name.replace("_", " "))}</span>' for name in classes)
    return f'<h2>at the peak, by class</h2><p class="legend">{legend}</p>{drawing}'


def _schedule(columns: Sequence[Mapping[str, Any]]) -> str:
    note = "This plot needs its script; the buffers at each peak are listed below."
    return schedule_frame([_label(column) for column in _with_timeline(columns)], note)


def _with_timeline(columns: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [column for column in columns if ((column["compiled"] or {}).get("timeline") or {}).get("points")]


def _script(columns: Sequence[Mapping[str, Any]], classes: Sequence[str]) -> str:
    shown = [
        Series(_label(column), column["limits"], column["compiled"]["timeline"]) for column in _with_timeline(columns)
    ]
    return schedule_script(shown, classes)


def _matrices(columns: Sequence[Mapping[str, Any]]) -> str:
    """Kind by axis of each column: bytes of the compiled program, below them what was predicted where it differs."""
    largest = max(
        (row["bytes"] or 0 for column in columns for side in ("predicted", "compiled")
         for row in ((column[side] or {}).get("collectives") or {}).get("rows", ())),
        default=0,
    )  # fmt: skip
    if not largest:
        return ""
    parts = []
    for column in columns:
        sides: list[dict[tuple[str, str], int | None] | None] = []
        for side in ("compiled", "predicted"):
            found = (column[side] or {}).get("collectives")
            sides.append(None if found is None else {(row["kind"], row["axis"]): row["bytes"] for row in found["rows"]})
        keys = [(kind, axis) for kind, axis, _, _ in collective_rows(column)]
        kinds, axes = sorted({kind for kind, _ in keys}), sorted({axis for _, axis in keys})
        statuses = {row["scope"]: row["status"] for row in column["rows"] if row["counter"] == "collective_bytes"}
        rows = []
        for kind in kinds:
            cells = "".join(_matrix_cell(sides, (kind, axis), largest, statuses) for axis in axes)
            rows.append(f'<tr><th scope="row">{escape(kind)}</th>{cells}</tr>')
        if not rows:
            rows = ["<tr><td>no collective</td></tr>"]
        table = grid(["", *(f"over {axis}" for axis in axes)], rows, range(1, len(axes) + 1), _label(column))
        parts.append(f'<div class="matrix">{table}</div>')
    note = (
        "payload of one device in one step, trips included: the whole array that moves; below it the prediction where "
        "it differs"
    )
    return f'<h2>collectives</h2><p class="dim">{note}</p><div class="matrices wide">{"".join(parts)}</div>'


def _matrix_cell(
    sides: Sequence[dict[tuple[str, str], int | None] | None],
    key: tuple[str, str],
    largest: int,
    statuses: Mapping[str, str],
) -> str:
    compiled, predicted = (None if side is None else side.get(key, 0) for side in sides)
    shown, below = compiled, ""
    if sides[0] is None:
        shown, below = predicted, "<small>predicted</small>"
    elif sides[1] is not None and predicted != compiled:
        status = statuses.get("/".join(key), "")
        below = f'<small>predicted {amount(predicted, "bytes")}<br><span class="{status}">{status}</span></small>'
    if not shown and not below:
        return '<td class="n dim">-</td>'
    shade = 0.06 + 0.5 * (shown or 0) / largest
    text = amount(shown, "bytes") + below
    return f'<td class="n" style="background: rgb(66 105 208 / {shade:.2f})">{text}</td>'


def _differences(found: Sequence[Mapping[str, Any]]) -> str:
    parts: list[str] = []
    for item in found:
        sums = ", ".join(
            f"{name.removesuffix('_bytes').replace('_', ' ')} {_signed(value, 'FLOPs' if name == 'flops' else 'bytes')}"
            for name, value in item["totals"].items()
            if value is not None
        )
        note = f"<p>{escape(item['note'])}</p>" if item.get("note") else ""
        where = (
            item["target"] if item["target"] == item["from_target"] else f"{item['from_target']} to {item['target']}"
        )
        head = f"<b>{escape(item['from'])} &rarr; {escape(item['to'])}</b> on {escape(where)}, {item['basis']}"
        unfolded = "" if parts else " open"
        parts.append(f"<details{unfolded}><summary>{head}<br>{sums}</summary>{note}{_changes(item['rows'])}</details>")
    return f"<h2>what changed</h2>{''.join(parts)}" if parts else ""


def _changes(rows: Sequence[Mapping[str, Any]]) -> str:
    cells = []
    for what in ("buffers", "collectives", "flops"):
        found = [row for row in rows if row["what"] == what]
        for row in found[:CHANGES_SHOWN]:
            unit = row["unit"]
            cells.append(
                f"<tr><td>{what}</td><td>{escape(row['scope'] or '-')}</td><td>{escape(row['detail'])}</td>"
                + "".join(f'<td class="n">{amount(row[name], unit)}</td>' for name in ("before", "after"))
                + f'<td class="n">{_signed(row["change"], unit)}</td></tr>'
            )
        rest = found[CHANGES_SHOWN:]
        if rest:
            left = sum(row["change"] for row in rest)
            cells.append(
                f'<tr class="dim"><td>{what}</td><td colspan="4">{len(rest)} more, in the JSON</td>'
                f'<td class="n">{_signed(left, rest[0]["unit"])}</td></tr>'
            )
    if not cells:
        return "<p>nothing changed</p>"
    heads = ("what", "scope", "class, collective or phase", "before", "after", "change")
    return f'<div class="wide">{grid(heads, cells, (3, 4, 5))}</div>'


def _signed(value: int, unit: str) -> str:
    if not value:
        return "unchanged"
    text = about(value, unit) or f"{exact(value)} {unit}"
    exactly = signed(value)
    return (
        f'<span class="rounded" title="{exactly} {unit}">{"+" if value > 0 else ""}{escape(text)}</span>'
        f'<span class="exactly">{exactly}</span>'
    )


def _peaks(columns: Sequence[Mapping[str, Any]]) -> str:
    """The largest buffers at each peak, without a script."""
    parts = []
    for column in columns:
        buffers = (column["compiled"] or {}).get("peak", {}).get("buffers") or ()
        if not buffers:
            continue
        rows = [
            f"<tr><td>{escape(str(row.get('class') or row['kind']).replace('_', ' '))}</td>"
            f'<td class="n">{amount(row["bytes"], "bytes")}</td><td>{escape(row["shape"])}</td>'
            f"<td>{escape(', '.join(part for part in (row['scope'], row['phase']) if part) or row['op_name'])}</td>"
            f'<td class="dim">{escape(row["source"] or row["instruction"])}</td></tr>'
            for row in buffers[:BUFFERS_AT_PEAK]
        ]
        table = grid(("class", "bytes", "shape", "scope or argument", "source line or instruction"), rows, (1,))
        parts.append(f'<details><summary>{escape(_label(column))}</summary><div class="wide">{table}</div></details>')
    return f"<h2>largest buffers at the peak</h2>{''.join(parts)}" if parts else ""


def _foot(columns: Sequence[Mapping[str, Any]]) -> str:
    lines = []
    for column in columns:
        environment = (column["compiled"] or {}).get("environment") or {}
        versions = "  ".join(f"{name} {version}" for name, version in (environment.get("versions") or {}).items())
        digest = str(environment.get("module_digest") or "")[:16]
        policy = column["predicted"].get("policy") or "no policy for the peak"
        lines.append(
            f"<li>{escape(_label(column))}: case <code>{escape(column['case_digest'][:16])}</code>"
            + (f", module <code>{escape(digest)}</code>" if digest else "")
            + f", {escape(policy)}{', ' + escape(versions) if versions else ''}</li>"
        )
    return f"<details><summary>evidence: digests, policies, versions</summary><ul>{''.join(lines)}</ul></details>"
