"""A sensitivity as one HTML page, from the document that --json prints: a tornado a ledger, then the exact numbers.

No script and no address outside the file; every text passes through `html.escape`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from jaxcost.report.numbers import about, exact, signed
from jaxcost.report.page import STYLE
from jaxcost.report.sensitivity import (
    DASH,
    HEADS,
    UNKNOWN,
    derivative_text,
    label,
    moved_rows,
    ratio_text,
    results,
    together,
)
from jaxcost.report.tornado import tornado_svg
from jaxcost.report.values import case_values

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_STYLE = """
.tornado { width: 100%; max-width: 64rem; height: auto; display: block; } .wide { overflow-x: auto; }
.tornado .more { fill: var(--warn); } .tornado .less { fill: var(--good); } .tornado .vector { fill: var(--bar); }
td code { white-space: nowrap; } td:first-child { min-width: 12rem; }
.tornado line { stroke: var(--line); } .tornado line.one { stroke: currentColor; stroke-width: 1.5; }
.legend i { display: inline-block; width: .8rem; height: .8rem; margin: 0 .3rem 0 .9rem; }
"""


def sensitivity_page(data: Mapping[str, Any]) -> str:
    """Return the page of a `jaxcost.sensitivity.v1` document."""
    found = results(data)
    title = f"{data['model']}: sensitivity"
    parts = [
        _head(data),
        _ratios(data, found),
        _tornados(data, found),
        *(_vector(data, item) for item in data["vectors"]),
        _observed(data.get("observed", ())),
        _moved(data),
        _left_out(data),
    ]
    body = "\n".join(part for part in parts if part)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}{_STYLE}</style></head>\n'
        f"<body><h1>{escape(title)}</h1>\n{body}\n"
        f'<p class="dim">{escape(str(data["schema"]))}, jaxcost {escape(str(data["jaxcost"]))}</p></body></html>\n'
    )


def _head(data: Mapping[str, Any]) -> str:
    shown = "".join(f"<span>{escape(name)} <b>{escape(value)}</b></span>" for name, value in case_values(data["case"]))
    digest = escape(data["base_digest"]["before"])
    return (
        f'<p class="case">base: {shown}</p><p class="dim">base <code>{digest}</code>, the same after every case</p>'
        f"<p>{escape('; '.join(data['conventions']))}</p>"
    )


def _grid(heads: Iterable[str], rows: Iterable[Sequence[str]], numbers: Iterable[int] = ()) -> str:
    right = set(numbers)
    head = "".join(
        f'<th scope="col"{" class=n" if index in right else ""}>{escape(name)}</th>' for index, name in enumerate(heads)
    )
    body = "".join(
        "<tr>"
        + "".join(f"<td{' class=n' if index in right else ''}>{cell}</td>" for index, cell in enumerate(cells))
        + "</tr>"
        for cells in rows
    )
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _ratios(data: Mapping[str, Any], found: Sequence[Mapping[str, Any]]) -> str:
    columns = data["columns"]
    units = {row["path"]: row["unit"] for item in found for row in item["totals"]}
    base = [escape(about(data["base"][path], units.get(path, "")) or exact(data["base"][path])) for path in columns]
    rows = [["base", *base]]
    for item in found:
        by_path = {row["path"]: row for row in item["totals"]}
        name = item["name"] if item["kind"] == "single" else f"vector: {item['name']}"
        rows.append([escape(name), *(escape(ratio_text(by_path[path])) for path in columns)])
    return "<h2>ratio to the base</h2>" + _grid(
        ("field", *(HEADS.get(path, path) for path in columns)), rows, range(1, len(columns) + 1)
    )


def _tornados(data: Mapping[str, Any], found: Sequence[Mapping[str, Any]]) -> str:
    if not found:
        return ""
    legend = "".join(
        f'<i style="background: var({colour})"></i>{text}'
        for colour, text in (("--warn", "more than the base"), ("--good", "less"), ("--bar", "a vector of fields"))
    )
    panels = "".join(
        f"<h3>{escape(label(path))} <span class=dim>{escape(path)}</span></h3>"
        f"{tornado_svg(path, found, data['base'][path])}"
        for path in data["columns"]
    )
    return f'<h2>effects, the largest first, on a logarithmic axis</h2><p class="legend">{legend}</p>{panels}'


def _moved(data: Mapping[str, Any]) -> str:
    if not data["cases"]:
        return ""
    every = _numbers(data["cases"])
    return (
        f"<h2>what moves</h2>{_numbers(data['cases'], data['columns'])}"
        f"<details><summary>every total that moves</summary>{every}</details>"
    )


def _numbers(cases: Sequence[Mapping[str, Any]], columns: Sequence[str] | None = None) -> str:
    """The exact numbers of cases: of all totals that move, or of the columns among them."""
    rows = []
    for item in cases:
        shown = moved_rows(item, columns)
        title = escape(item["name"])
        if len(item["moved"]) > 1:
            title += f'<br><span class="dim">as one: {escape(together(item))}</span>'
        for index, row in enumerate(shown):
            rows.append([
                "" if index else title, f"<code>{escape(row['path'])}</code>", escape(exact(row["base"])),
                escape(exact(row["value"])), escape(signed(row["difference"]) or UNKNOWN), escape(ratio_text(row)),
                f'<span class="dim">{escape(derivative_text(row))}</span>',
            ])  # fmt: skip
        if not shown:
            rows.append([title, "nothing moves", *[DASH] * 4, ""])
    return _grid(("field", "total", "base", "value", "difference", "ratio", "derivative"), rows, range(2, 6))


def _vector(data: Mapping[str, Any], item: Mapping[str, Any]) -> str:
    rows = [
        [
            f"<code>{escape(row['path'])}</code>", escape(exact(row["base"])), escape(exact(row["value"])),
            escape(signed(row["difference"]) or UNKNOWN),
            *(escape(UNKNOWN if row[key] is None else signed(row[key])) for key in ("sum_of_singles", "interaction")),
        ]
        for row in moved_rows(item, data["columns"])
    ]  # fmt: skip
    heads = ("total", "base", "value", "difference", "sum of the fields alone", "interaction")
    reasons = dict.fromkeys(
        row["interaction_reason"] for row in moved_rows(item, data["columns"]) if row.get("interaction_reason")
    )
    notes = "".join(f"<li>{escape(text)}</li>" for text in (*item["notes"], *reasons))
    return f"<h2>vector: {escape(item['name'])}</h2>{_grid(heads, rows, range(1, 6))}<ul>{notes}</ul>"


def _observed(found: Sequence[Mapping[str, Any]]) -> str:
    parts = []
    for seen in found:
        here = seen["target"] if seen["target"] == seen["base_target"] else f"{seen['base_target']} to {seen['target']}"
        rows = []
        for row in seen["rows"]:
            name = " ".join(part for part in (row["counter"], row["scope"], row["phase"]) if part)
            status = f'<span class="{escape(row["status"])}">{escape(row["status"])}</span>'
            reasons = [
                f"{escape(signed(item['amount']))} {escape(item['reason'])}" for item in row["explanations"]
            ] or [escape(row.get("reason", "") if row["status"] in ("unmeasured", "open") else "")]
            rows.append([
                escape(name), escape(row["unit"]), escape(exact(row["prediction"])), escape(exact(row["observation"])),
                escape(signed(row["residual"])), status, f'<span class="dim">{"<br>".join(reasons)}</span>',
            ])  # fmt: skip
        heads = ("counter", "unit", "predicted difference", "observed difference", "residual", "status", "why")
        why = f"<p>{escape(seen['reason'])}</p>" if seen.get("reason") else ""
        table = _grid(heads, rows, range(2, 5)) if rows else ""
        title = f"{escape(seen['name'])} on {escape(here)}: {escape(seen['status'])}"
        parts.append(f"<details open><summary><b>{title}</b></summary>{why}{table}</details>")
    return f"<h2>observed differences</h2>{''.join(parts)}" if parts else ""


def _left_out(data: Mapping[str, Any]) -> str:
    items = [f"{item['field']}={exact(item['value'])}: {item['reason']}" for item in data["left_out"]]
    gone = [f"{item['name']}: {item['path']}: {item['reason']}" for item in data["formula_disagreements"]]
    parts = [("left out of the default surface", items), ("where a formula does not give the difference", gone)]
    return "".join(
        f"<h2>{title}</h2><ul>{''.join(f'<li>{escape(text)}</li>' for text in texts)}</ul>"
        for title, texts in parts
        if texts
    )
