"""Published contracts, or the comparison gate, as one self-contained page: no script, no address outside the file.

A printed figure is drawn as a dot in its own rounding window: the middle is what was computed, the ends are half a unit
of the last printed digit. A claim on a target is drawn as the path from jaxcost's ledger to the contract's figure, one
bar for each signed difference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from jaxcost.report.numbers import about, exact
from jaxcost.report.page import STYLE
from jaxcost.report.papers_tables import (
    AXIS_NAMES,
    GATE_NOTE,
    KIND_NAMES,
    difference_text,
    figure_text,
    percent_of,
    printed_text,
    signed_about,
    table_notes,
    tally,
)
from jaxcost.report.values import case_values

_OWN = """
.wide { overflow-x: auto; } code.form { display: block; margin: .1rem 0; } .step { padding-left: 1.5rem; }
svg.window { vertical-align: middle; } .axis { stroke: var(--line); } .edge { stroke: currentColor; opacity: .5; }
.dot { fill: var(--bar); } .dot.exact { fill: var(--good); } .dot.bounded { fill: var(--warn); }
.dot.open { fill: var(--bad); } .plus { fill: #d08a3c; } .minus { fill: #6a51a3; } .ledger { fill: var(--bar); }
.mark { stroke: currentColor; stroke-width: 2; } nav a { margin-right: 1rem; } .cancel { color: var(--warn); }
@media (prefers-color-scheme: dark) { .plus { fill: #e2a93b; } .minus { fill: #a594d8; } }
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_LEGEND = (
    "The dot shows where the computed value lies in the window that rounding leaves to the print: the middle is the "
    "printed figure, the two edges are half a unit of its last digit. A bounded dot lies outside, and the rounding of "
    "printed inputs (times, rates) reaches the window."
)


def papers_page(data: Mapping[str, Any]) -> str:
    """Return the page of a `jaxcost.papers.v1` document."""
    if data["comparison"]["kinds"]:
        title = f"{data['case']['architecture']['name']}: published contracts on one case"
        parts = _comparison(data)
    else:
        title = "published accounting contracts"
        several = len(data["contracts"]) > 1
        parts = [_navigation(data["contracts"])] if several else []
        parts += [f'<p class="dim">{escape(_LEGEND)}</p>']
        parts += [_contract(item) for item in data["contracts"]]
    body = "\n".join(parts)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}{_OWN}</style></head>\n'
        f"<body><h1>{escape(title)}</h1>\n{body}\n"
        f'<p class="dim">{escape(str(data["schema"]))}, jaxcost {escape(str(data["jaxcost"]))}</p></body></html>\n'
    )


def _navigation(contracts: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    for item in contracts:
        cells = [cell for found in item["tables"] for cell in found["cells"]]
        link = f'<a href="#{escape(item["name"])}">{escape(item["name"])}</a>'
        rows.append(
            f"<tr><td>{link}</td><td>{escape(item['kind'])}</td><td>{escape(item['primary_object'])}</td>"
            f"<td>{escape(tally(cells))}</td><td>{_status(item['status'])}</td></tr>"
        )
    heads = ("name", "kind", "counts", "printed figures", "status")
    note = "The contracts differ in what they count; their numbers are not comparable as they stand."
    return f"{_grid(heads, rows)}<p>{note}</p>"


def _contract(data: Mapping[str, Any]) -> str:
    source = data["source"]
    parts = [
        f'<h2 id="{escape(data["name"])}">{escape(data["title"])} {_status(data["status"])}</h2>'
        f'<p>{escape(source["citation"])}, <span class="dim">{escape(source["url"])}</span><br>'
        f'<span class="dim">{"; ".join(escape(text) for text in source["locators"])}</span></p>'
    ]
    axes = [f"<tr><td>{axis}</td><td>{escape(data[axis])}</td></tr>" for axis in AXIS_NAMES]
    parts.append(_grid(("axis", "this contract"), axes))
    symbols = [
        f"<tr><td><code>{escape(item['paper'])}</code></td><td><code>{escape(item['jaxcost'] or '-')}</code></td>"
        f"<td>{escape(item['meaning'])}</td></tr>"
        for item in data["symbols"]
    ]
    table = _grid(("symbol", "in jaxcost", "meaning"), symbols)
    parts.append(f"<details><summary>symbols</summary>{table}</details>")
    if data["subsections"]:
        bound = [
            f"<tr><td>{escape(item['name'])}</td><td>{escape(item['inherits'])}</td><td>{escape(item['says'])}</td></tr>"
            for item in data["subsections"]
        ]
        parts.append("<h3>a composite source: its parts</h3>" + _grid(("part", "follows", "says"), bound))
    parts += [_form(item) for item in data["quantities"]]
    parts += [_table(item) for item in data["tables"]]
    if data["findings"]:
        found = "".join(
            f"<li><b>{escape(item['kind'].replace('_', ' '))}</b>: {escape(item['text'])}</li>"
            for item in data["findings"]
        )
        parts.append(f"<h3>findings</h3><ul>{found}</ul>")
    return "\n".join(parts)


def _form(item: Mapping[str, Any]) -> str:
    proof = item.get("proof")
    head = f"{escape(item['title'])}, {escape(item['equation'])}"
    formula = f'<code class="form">{escape(item["formula"])}</code>'
    if proof is None:
        note = '<p class="dim">compared on the rows of its tables alone</p>'
        return f"<details><summary>{head}</summary>{formula}{note}</details>"
    steps = "".join(
        f'<div class="step">{escape(step["name"])}: <code>{escape(step["closed_form"])}</code> '
        f'<span class="dim">{escape(declared["why"])}</span></div>'
        for step, declared in zip(proof["differences"], item["differences"], strict=True)
        if step["closed_form"] != "0"
    )
    rest = f'<div class="open">not explained: {escape(proof["residual"])}</div>' if proof["residual"] != "0" else ""
    body = (
        f"{formula}<div>ledger <code>{escape(proof['ledger'])}</code></div>{steps}"
        f"<div>formula <code>{escape(proof['formula'])}</code></div>{rest}"
    )
    opened = " open" if proof["status"] == "open" else ""
    return f"<details{opened}><summary>{head}: {_status(proof['status'])}</summary>{body}</details>"


def _table(data: Mapping[str, Any]) -> str:
    titles = {item["name"]: item["title"] for item in data["columns"]}
    parts = [f'<h3>{escape(data["title"])}</h3><p class="dim">{escape(data["locator"])}</p>']
    if data["cells"]:
        rows = [
            f"<tr><td>{escape(cell['row'])}</td><td>{escape(titles[cell['column']])}</td>"
            f'<td class="n">{escape(printed_text(cell))}</td><td class="n">{escape(figure_text(cell["computed"]))}</td>'
            f'<td class="n">{escape(difference_text(cell["difference"]))}</td><td>{_window(cell)}</td>'
            f"<td>{_status(cell['status'])}</td></tr>"
            for cell in data["cells"]
        ]
        heads = ("row", "column", "printed", "computed", "difference", "in its rounding window", "status")
        grid = _grid(heads, rows, (2, 3, 4))
        folded = len(rows) > 60
        parts.append(f"<details><summary>{len(rows)} figures</summary>{grid}</details>" if folded else grid)
    notes = table_notes(data)
    notes += [f"{titles[item['column']]}, not reproducible: {item['reason']}" for item in data["unreproduced"]]
    notes += [
        f"{item['title']} is not printed: {item['note']}" for item in data["columns"] if item["role"] == "derived"
    ]
    if notes:
        parts.append(f"<ul>{''.join(f'<li>{escape(note)}</li>' for note in notes)}</ul>")
    return "\n".join(parts)


def _window(cell: Mapping[str, Any]) -> str:
    """A dot in the rounding window of a print; what lies further out than three windows stays at the edge."""
    if cell["difference"]["about"] is None or not cell["half_unit"]["about"]:
        return ""
    place = -cell["difference"]["about"] / cell["half_unit"]["about"]
    x = 60 + 20 * max(-2.8, min(2.8, place))
    label = f"{place:+.2f} half units from the print"
    return (
        f'<svg class="window" role="img" aria-label="{escape(label)}" viewBox="0 0 120 16" width="120" height="16">'
        '<line class="axis" x1="0" y1="8" x2="120" y2="8"/><line class="edge" x1="40" y1="2" x2="40" y2="14"/>'
        '<line class="edge" x1="80" y1="2" x2="80" y2="14"/>'
        f'<circle class="dot {escape(cell["status"])}" cx="{x:.1f}" cy="8" r="3.5">'
        f"<title>{escape(label)}</title></circle></svg>"
    )


def _comparison(data: Mapping[str, Any]) -> list[str]:
    case = data["case"]
    shown = "".join(f"<span>{escape(name)} <b>{escape(value)}</b></span>" for name, value in case_values(case))
    parts = [f'<p class="case">{shown}</p><p class="dim">case <code>{escape(case["digest"])}</code></p>']
    parts.append(f"<p>{escape(GATE_NOTE)}</p>")
    parts += [_kind(item) for item in data["comparison"]["kinds"]]
    closed = [
        f"<tr><td>{escape(claim['contract'])}.{escape(claim['quantity'])}</td><td>{escape(item['axis'])}</td>"
        f"<td>{escape(item['reason'])}</td></tr>"
        for kind in data["comparison"]["kinds"]
        for claim in kind["claims"]
        for item in claim["open"]
    ]
    if closed:
        grid = _grid(("figure", "open axis", "why"), closed)
        parts.append(f"<h2>closed: no number is shown</h2>{grid}")
    return parts


def _kind(data: Mapping[str, Any]) -> str:
    shown = [item for item in data["claims"] if not item["open"]]
    if not shown:
        return ""
    unit, ledger = data["unit"], data["ledger"]
    rows = [
        f'<tr><td><b>jaxcost</b></td><td class="dim">ledger</td><td class="n">{exact(ledger)}</td>'
        f'<td class="n">{escape(about(ledger, unit))}</td><td></td><td></td></tr>'
    ]
    for item in shown:
        steps = "<br>".join(
            f'{escape(signed_about(step, unit))} <span title="{escape(step["why"])}">{escape(step["name"])}</span>'
            for step in item["differences"]
        )
        if item["cancels"]:
            steps += '<br><span class="cancel">errors of both signs cancel</span>'
        rows.append(
            f"<tr><td>{escape(item['contract'])}</td><td>{escape(item['equation'])}</td>"
            f'<td class="n">{escape(exact(item["value"]))}</td><td class="n">{escape(about(item["value"], unit))}</td>'
            f'<td class="n">{percent_of(item["ratio"])}</td><td>{steps}</td></tr>'
        )
    heads = ("contract", "equation", "value", "about", "against the ledger", "differences")
    return f"<h2>{escape(KIND_NAMES[data['kind']])}</h2>{_paths(shown, ledger)}{_grid(heads, rows, (2, 3, 4))}"


def _paths(claims: Sequence[Mapping[str, Any]], ledger: int) -> str:
    """One line for each contract: from the ledger (the vertical line) each signed difference moves on to its figure."""
    reach = [0.0]
    for item in claims:
        at = 0.0
        for step in item["differences"]:
            at += step["about"] / ledger
            reach.append(at)
    low, high = min(reach), max(reach)
    span = max(high - low, 1e-9)
    if span < 1e-6:
        return ""
    width, left = 560, 170

    def place(ratio: float) -> float:
        return left + width * (ratio - low) / span

    lines = []
    for index, item in enumerate(claims):
        y, at = 24 * index, 0.0
        bars = []
        for step in item["differences"]:
            start, at = at, at + step["about"] / ledger
            x, end = sorted((place(start), place(at)))
            kind = "plus" if step["about"] > 0 else "minus"
            label = f"{100 * step['about'] / ledger:+.2f}% {step['name']}"
            bars.append(
                f'<rect class="{kind}" x="{x:.1f}" y="{y + 6}" width="{max(end - x, 1):.1f}" height="12">'
                f"<title>{escape(label)}</title></rect>"
            )
        mark = place(at)
        lines.append(
            f'<text x="0" y="{y + 16}">{escape(item["contract"])}</text>{"".join(bars)}'
            f'<line class="mark" x1="{mark:.1f}" y1="{y + 2}" x2="{mark:.1f}" y2="{y + 22}"/>'
            f'<text x="{left + width + 12}" y="{y + 16}">{percent_of(item["ratio"])}</text>'
        )
    height = 24 * len(claims)
    zero = place(0)
    own = f'<line class="edge" x1="{zero:.1f}" y1="0" x2="{zero:.1f}" y2="{height}"/>'
    size = f'viewBox="0 0 {left + width + 90} {height}" width="{left + width + 90}" height="{height}"'
    text = "from the ledger (thin line): what a contract adds (orange) and leaves out (violet), to its figure"
    note = f'<p class="dim">{text}</p>'
    return f'<svg role="img" aria-label="differences from the ledger" {size}>{own}{"".join(lines)}</svg>{note}'


def _grid(heads: Sequence[str], rows: Sequence[str], numbers: Sequence[int] = ()) -> str:
    head = "".join(f'<th scope="col"{" class=n" if i in numbers else ""}>{name}</th>' for i, name in enumerate(heads))
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'


def _status(status: str) -> str:
    return f'<span class="{escape(status)}">{escape(status)}</span>'
