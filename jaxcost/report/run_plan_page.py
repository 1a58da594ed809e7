"""A plan of a training run as a page to print and sign: no script, no font, no address outside the file.

Written from the document that --json prints; every text of it passes through `html.escape`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Any

from jaxcost.report.page import STYLE
from jaxcost.report.run_plan import (
    STATUS,
    TITLES,
    TRUST_SHOWN,
    assumption_text,
    beside,
    cell_text,
    check_rows,
    choice_texts,
    evidence_text,
    moved_text,
    number,
    sections,
    target_text,
    title,
    unknown,
)

PAGE_STYLE = """
body { max-width: 62rem; }
h1 { margin-bottom: .2rem; } .verdict { font-weight: 600; }
.infeasible, .open { color: var(--bad); } .complete { color: var(--good); } .incomplete { color: var(--warn); }
table { width: 100%; font-size: .9em; } td, th { padding: .1rem .6rem .1rem 0; }
p { margin: .3rem 0; } .columns .n small { display: block; }
.answers th { width: 14em; font-weight: 600; } .columns { columns: 2; column-gap: 2rem; }
.columns section { break-inside: avoid; } h3 { margin: .8em 0 .1em; font-size: 1.05em; }
.columns table { margin: 0 0 .3rem; } small { opacity: .75; }
svg { width: 100%; height: auto; } .axis { stroke: var(--line); }
.curve { fill: none; stroke: var(--bar); stroke-width: 2; }
circle { fill: var(--bar); } .model { fill: var(--warn); }
.sign { display: flex; gap: 2rem; margin-top: 2.5rem; }
.sign div { flex: 1; border-top: 1px solid; padding-top: .2rem; }
.halves { display: flex; gap: 2rem; } .halves table { flex: 1; min-width: 0; align-self: flex-start; }
@media print {
  @page { size: A4; margin: 12mm; } :root { color-scheme: light; }
  body { font-size: 10px; line-height: 1.3; margin: 0; max-width: none; } h1 { font-size: 15px; }
  h2 { margin: .7rem 0 .2rem; font-size: 11.5px; break-after: avoid; } h2.appendix { break-before: page; }
  table { margin: .2rem 0; } td, th { padding: .06rem .5rem .06rem 0; } ul { margin: .2rem 0; }
  .sign { margin-top: 1.4rem; padding-top: 1.2rem; } tr, svg, .sign { break-inside: avoid; } details { display: none; }
}
"""
SIGNATURES = ("Prepared by", "Training lead", "Budget owner")
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
LEFT, WIDTH, TOP, HEIGHT = 70, 620, 14, 250


def run_plan_page(data: Mapping[str, Any]) -> str:
    """Return the page of a `jaxcost.plan_run.v1` document."""
    heading = title(data)
    parts = [
        f'<p class="verdict">Status <span class="{escape(data["status"])}">{escape(data["status"])}</span>: '
        f"{escape(STATUS[data['status']])}.</p>",
        f"<p>{escape(data['note'])}</p>" if data["note"] else "",
        _answers(data),
        _findings(data),
        _checks(data),
        _trust(data["trust"]),
        "<h2>What is assumed</h2>" + _assumptions(data["assumptions"]) + _choices(data["choices"]),
        f'<div class="sign">{"".join(f"<div>{who}, date</div>" for who in SIGNATURES)}</div>',
        _changes(data["changes"]),
        '<h2 class="appendix">What follows</h2>' + _figures(data),
        _curve(data),
        _components(data),
        _transfers(data["transfers"]),
        "<h2>What each assumption means, and the test that would measure it</h2>" + _tests(data["assumptions"]),
        _contracts(data),
    ]
    body = "\n".join(part for part in parts if part)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(heading)}</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}{PAGE_STYLE}</style></head>\n'
        f"<body><h1>{escape(heading)}</h1>\n{body}\n"
        f'<p class="dim">{escape(str(data["schema"]))}, jaxcost {escape(str(data["jaxcost"]))}, inputs '
        f"<code>{escape(data['digest'])}</code></p></body></html>\n"
    )


def _table(header: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[int] = ()) -> str:
    """A table of escaped cells; those of the columns in `numbers` are set right."""
    kind = [' class="n"' if index in numbers else "" for index in range(len(header))]
    head = "".join(f"<th{at}>{escape(name)}</th>" for at, name in zip(kind, header, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{at}>{cell}</td>" for at, cell in zip(kind, row, strict=True)) + "</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _answers(data: Mapping[str, Any]) -> str:
    rows = "".join(
        f'<tr><th scope="row">{escape(item["question"])}</th>'
        f'<td class="{"" if item["known"] else "unmeasured"}">{escape(item["answer"])}</td></tr>'
        for item in data["answers"]
    )
    return f'<table class="answers"><tbody>{rows}</tbody></table>'


def _findings(data: Mapping[str, Any]) -> str:
    items = "".join(f"<li><b>{escape(f['kind'])}</b>: {escape(f['text'])}</li>" for f in data["findings"])
    return f"<h2>Before signing</h2><ul>{items}</ul>" if items else ""


def _checks(data: Mapping[str, Any]) -> str:
    several = len(data["stages"]) > 1
    rows, notes = [], []
    for item in check_rows(data):
        label = item["name"] + (f" ({item['stage']})" if several and item["stage"] else "")
        sides = " against ".join(part for part in (item["prediction_of"], item["observation_of"]) if part)
        status = f'<span class="{escape(item["status"])}">{escape(item["status"])}</span>'
        cells = (escape(number(item[name])) for name in ("prediction", "observation", "residual"))
        rows.append((f"{escape(label)}<br><small>{escape(sides)}</small>", *cells, escape(item["unit"]), status))
        for found in item["explanations"]:
            text = f"{label}: {number(found['amount'])} {item['unit']}, {found['reason']}: {found['evidence']}"
            notes.append(escape(text))
        notes += [escape(f"{label} would be accounted for by: {cause}") for cause in item["causes"]]
        if item.get("reason"):
            notes.append(escape(f"{label}: {item['reason']}"))
    heads = ("check", "plan", "beside it", "residual", "unit", "status")
    return "<h2>Checked two ways</h2>" + _table(heads, rows, (1, 2, 3)) + "".join(f"<p>{note}</p>" for note in notes)


def _trust(trust: Mapping[str, Any]) -> str:
    if trust["least"]:
        first = f"Least trustworthy: <b>{escape(trust['least'])}</b>. To reduce it: {escape(trust['test'])}."
    else:
        first = f"Least trustworthy: not known, {escape(trust['reason'])}."
    listed = [item for item in trust["rows"] if item["spread"] or item["one_percent"]][:TRUST_SHOWN]
    rows = [
        (
            escape(item["name"]),
            *(cell_text(item[name]) for name in ("low", "high", "spread", "one_percent")),
            escape(item["test"]),
        )
        for item in listed
    ]
    heads = ("assumption", "at low", "at high", "spread", "for +1%", "test")
    moved = f"<p>{first}</p>" + (_table(heads, rows, (1, 2, 3, 4)) if rows else "")
    return f"<h2>What moves {escape(target_text(trust))}</h2>{moved}"


def _changes(changes: Mapping[str, Any] | None) -> str:
    if changes is None:
        return ""
    inputs = "; ".join(escape(f"{i['name']} from {i['from']} to {i['to']}") for i in changes["inputs"])
    rows = [(escape(item["name"]), *map(escape, moved_text(item)), escape(item["unit"])) for item in changes["moved"]]
    table = _table(("what moved", "from", "to", "by", "unit"), rows, (1, 2, 3))
    still = escape(", ".join(changes["unmoved"]))
    return f"<h2>What a change moves</h2><p>Changed: {inputs}.</p>{table}<p>Did not move: <small>{still}</small></p>"


def _assumptions(listed: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        (
            escape(item["name"]), escape(assumption_text(item)),
            f"{escape(item['unit'])} <small>{escape(evidence_text(item))}</small>",
        )
        for item in listed
    ]  # fmt: skip
    half = -(-len(rows) // 2)
    tables = (_table(("", "value", "unit, evidence, source, date"), part, (1,)) for part in (rows[:half], rows[half:]))
    return f'<div class="halves">{"".join(tables)}</div>'


def _tests(listed: Sequence[Mapping[str, Any]]) -> str:
    rows = [tuple(escape(item[key]) for key in ("name", "what", "test")) for item in listed]
    return _table(("assumption", "what it is", "test"), rows)


def _choices(listed: Sequence[Mapping[str, Any]]) -> str:
    shown = "".join(f"<span>{escape(text)}</span>" for text in choice_texts(listed))
    return f'<p class="case">Chosen: {shown}</p>'


def _figures(data: Mapping[str, Any]) -> str:
    several = len(data["stages"]) > 1
    parts = []
    for section, listed in sections(data):
        known = [item for item in listed if item["value"] is not None]
        rows = []
        for item in known:
            label = item["object"] + (f" ({item['stage']})" if several and item["stage"] else "")
            size = beside(item["value"], item["unit"])
            extra = f"<small>{escape(size)}</small>" if size else ""
            rows.append((escape(label), escape(number(item["value"], item["unit"])) + extra, escape(item["unit"])))
        reasons = "".join(f"<br>{escape(reason)}" for reason in unknown(listed))
        missing = f'<p class="unmeasured"><small>unknown, {len(listed) - len(known)}:{reasons}</small></p>'
        missing = missing if len(known) < len(listed) else ""
        table = _table(("", "value", "unit"), rows, (1,)) if rows else ""
        parts.append(f"<section><h3>{escape(TITLES[section])}</h3>{table}{missing}</section>")
    return f'<div class="columns">{"".join(parts)}</div>'


def _components(data: Mapping[str, Any]) -> str:
    if not data["components"]:
        return ""
    rows = [
        (
            escape(item["stage"]), escape(item["moment"]), escape(item["component"].replace("_", " ")),
            escape(number(item["bytes"])), escape(beside(item["bytes"], "bytes")), escape(item["basis"]),
        )
        for item in data["components"]
    ]  # fmt: skip
    heads = ("stage", "moment", "component", "bytes", "about", "counted by")
    return "<h2>Memory by component</h2>" + _table(heads, rows, (3, 4))


def _transfers(listed: Sequence[Mapping[str, Any]]) -> str:
    if not listed:
        return ""
    rows = [
        (
            *(escape(str(item[key])) for key in ("stage", "object", "scope", "phase", "kind", "axis")),
            *(escape(number(item[key])) for key in ("participants", "payload_bytes", "times", "step_bytes")),
        )
        for item in listed
    ]
    heads = ("stage", "array", "in", "phase", "collective", "over", "ranks", "array bytes", "times", "bytes in a step")
    return "<h2>Largest transfers of a step, one device</h2>" + _table(heads, rows, (6, 7, 8, 9))


def _contracts(data: Mapping[str, Any]) -> str:
    rows = []
    for item in data["figures"]:
        if item["value"] is not None:
            omitted = escape(item["omitted"])
            rows.append((escape(item["name"]), escape(item["scope"]), escape(item["convention"]), omitted,
                         escape(", ".join(item["fields"]))))  # fmt: skip
    heads = ("figure", "scope", "counted as", "left out", "follows from")
    return f"<details><summary>The contract of each figure</summary>{_table(heads, rows)}</details>"


def _curve(data: Mapping[str, Any]) -> str:
    """Parameters against tokens at the main run's budget, both on logarithmic scales."""
    iso = data["iso_budget"]
    if iso is None:
        return ""
    points = [(item["parameters"], item["tokens"]) for item in iso["points"]]
    own = [item for item in iso["points"] if item["own"]]
    models = [row for row in data["contexts"] if row["ledger_flops_per_token"] is not None and row["tokens"]]
    size = own[0]["parameters"] if own else None
    values = [tokens for _, tokens in points] + [row["tokens"] for row in models]
    x_ends = _decades(p for p, _ in points)
    y_ends = _decades(values)

    def place(parameters: float, tokens: float) -> tuple[float, float]:
        x = LEFT + WIDTH * (math.log10(parameters) - x_ends[0]) / max(x_ends[1] - x_ends[0], 1)
        y = TOP + HEIGHT * (1 - (math.log10(tokens) - y_ends[0]) / max(y_ends[1] - y_ends[0], 1))
        return round(x, 1), round(y, 1)

    parts = [*_grid(x_ends, y_ends)]
    line = " ".join(f"{x},{y}" for x, y in (place(*point) for point in points))
    parts.append(f'<polyline class="curve" points="{line}"><title>6 x parameters x tokens = budget</title></polyline>')
    for item in own:
        x, y = place(item["parameters"], item["tokens"])
        text = f"plan, 6PT: {item['tokens']:.3g} tokens"
        parts.append(f'<circle cx="{x}" cy="{y}" r="4"/><text x="{x + 8}" y="{y - 6}">{escape(text)}</text>')
    below = 0.0  # labels of near points stand one below the other
    for row in models:
        if size:
            x, y = place(size, row["tokens"])
            below = max(y + 4, below + 13)
            text = f"{row['context']:,}: {row['tokens']:.3g}"
            parts.append(f'<circle class="model" cx="{x}" cy="{y}" r="3"/>')
            parts.append(f'<text x="{x - 8}" y="{below:.1f}" text-anchor="end">{escape(text)}</text>')
    label = "tokens against parameters at one budget"
    svg = f'<svg role="img" aria-label="{label}" viewBox="0 0 720 300">{"".join(parts)}</svg>'
    note = f"<p><small>{escape(iso['note'][:1].upper() + iso['note'][1:])}.</small></p>"
    heading = "<h2>Parameters against tokens at the main run's budget</h2>"
    return f"{heading}{svg}{note}{_context_table(data['contexts'])}"


def _decades(values: Iterable[float]) -> tuple[int, int]:
    logs = [math.log10(value) for value in values if value > 0]
    return math.floor(min(logs)), math.ceil(max(logs))


def _grid(x_ends: tuple[int, int], y_ends: tuple[int, int]) -> Iterator[str]:
    bottom = TOP + HEIGHT
    for power in range(x_ends[0], x_ends[1] + 1):
        x = LEFT + WIDTH * (power - x_ends[0]) / max(x_ends[1] - x_ends[0], 1)
        yield f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{bottom}"/>'
        yield f'<text x="{x:.1f}" y="{bottom + 14}" text-anchor="middle">{_power(power)}</text>'
    for power in range(y_ends[0], y_ends[1] + 1):
        y = TOP + HEIGHT * (1 - (power - y_ends[0]) / max(y_ends[1] - y_ends[0], 1))
        yield f'<line class="axis" x1="{LEFT}" x2="{LEFT + WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_power(power)}</text>'
    yield f'<text x="{LEFT + WIDTH / 2:.0f}" y="{bottom + 30}" text-anchor="middle">active parameters</text>'
    yield f'<text x="12" y="{TOP + HEIGHT / 2:.0f}" transform="rotate(-90 12 {TOP + HEIGHT / 2:.0f})">tokens</text>'


def _power(power: int) -> str:
    digits = str(power).translate(
        str.maketrans("0123456789-", "\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079\u207b")
    )
    return f"10{digits}"


def _context_table(listed: Sequence[Mapping[str, Any]]) -> str:
    if not listed:
        return ""
    rows = []
    for item in listed:
        known = item["ledger_flops_per_token"] is not None
        tail = (
            (number(item["ledger_flops_per_token"]), number(item["shortfall"], "ratio"), f"{item['tokens'] or 0:.4g}")
            if known
            else ("unknown", "", item["reason"])
        )
        rows.append(tuple(map(escape, (number(item["context"]), number(item["six_p_flops_per_token"]), *tail))))
    heads = ("context", "6P FLOPs/token", "ledger FLOPs/token", "6P leaves out", "tokens for the budget")
    return "<h3>6PT against the model's ledger</h3>" + _table(heads, rows, (0, 1, 2, 3, 4))
