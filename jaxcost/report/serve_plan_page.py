"""A serving plan as one HTML page: tables, and two pictures as inline SVG. No script, no address outside the file.

Left, how many requests fit against the tokens of each; right, the bound of an output token against the batch, with
the batch that memory allows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from jaxcost.report.page import STYLE
from jaxcost.report.rooflines import seconds_text
from jaxcost.report.serve_plan import (
    capacity_rows,
    engine_values,
    latency_rows,
    lifetime_rows,
    limits,
    load_rows,
    memory_rows,
    pool_rows,
    speculation_rows,
    title,
    verdict,
)

_STYLE = """
svg.curve { width: 100%; max-width: 46rem; height: auto; } svg.curve .grid { stroke: var(--line); }
svg.curve .line { fill: none; stroke: var(--bar); stroke-width: 2; } svg.curve .second { stroke-dasharray: 5 4; }
svg.curve .limit { stroke: var(--bad); stroke-dasharray: 3 4; } svg.curve .over { fill: var(--bad); fill-opacity: .08; }
svg.curve circle { fill: var(--bar); }
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 320, 112, 24, 18, 44
Points = Sequence[tuple[float, float]]


def serve_plan_page(data: Mapping[str, Any]) -> str:
    """Return the page of a `jaxcost.plan_serve.v1` document."""
    name = title(data)
    values = "".join(f"<span>{escape(n)} <b>{escape(v)}</b></span>" for n, v in engine_values(data))
    status = "exact" if data["capacity"]["starts"] else "failed"
    parts = [
        f'<p class="case">{values}</p>',
        f'<p class="{status}"><b>{escape(verdict(data))}</b></p>',
        *(f"<p>{escape(text)}</p>" for text in limits(data)),
        "<h2>memory of one device</h2>" + _table(("", "bytes", "about", ""), memory_rows(data), (1, 2)),
        "<h2>K/V cache of one replica</h2>" + _table(("", "value", ""), capacity_rows(data), (1,)),
        concurrency_svg(data),
        "<h2>bounds</h2>"
        + _table(("", "full overlap", "serialised", "bound by", ""), latency_rows(data), (1, 2))
        + f"<p>{escape(data['latency']['convention'])}</p>",
        tpot_svg(data),
    ]
    for heading, rows in (
        ("load", load_rows(data)), ("pools of their own", pool_rows(data)),
        ("speculative decode", speculation_rows(data)), ("lifetime cost", lifetime_rows(data)),
    ):  # fmt: skip
        listed = list(rows)
        if listed:
            parts.append(f"<h2>{heading}</h2>" + _table(("", "value", ""), listed, (1,)))
    figures = [
        (f["name"], f"{f['value']:,}" if isinstance(f["value"], int) else f"{f['value']:.6g}", f["unit"], f["scope"],
         f["convention"], f["evidence"])
        for f in data["figures"]
    ]  # fmt: skip
    heads = ("figure", "value", "unit", "scope", "convention", "evidence")
    parts.append("<h2>figures and their contracts</h2>" + _table(heads, figures, (1,)))
    answers = [f"“{item['claim']}”: {item['answer']}" for item in data["answers"]]
    for heading, texts in (
        ("left out", data["omitted"]), ("what this answers", answers), ("assumptions", data["assumptions"]),
    ):  # fmt: skip
        parts.append(f"<h2>{heading}</h2><ul>{''.join(f'<li>{escape(text)}</li>' for text in texts)}</ul>")
    formula = data["formula"]
    source = f"page formula: {formula['repository']} at {formula['commit']}, {', '.join(formula['files'])}"
    parts.append(f'<p class="dim">{escape(source)}</p>')
    body = "\n".join(part for part in parts if part)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(name)}</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}{_STYLE}</style></head>\n'
        f"<body><h1>{escape(name)}</h1>\n{body}\n"
        f'<p class="dim">{escape(str(data["schema"]))}, jaxcost {escape(str(data["jaxcost"]))}</p></body></html>\n'
    )


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[int]) -> str:
    kind = ['class="n"' if index in numbers else "" for index in range(len(heads))]
    head = "".join(f"<th {kind[index]}>{escape(text)}</th>" for index, text in enumerate(heads))
    body = "".join(
        "<tr>" + "".join(f"<td {kind[index]}>{escape(cell)}</td>" for index, cell in enumerate(row)) + "</tr>"
        for row in rows
    )
    return f"<table><tr>{head}</tr>{body}</table>"


def concurrency_svg(data: Mapping[str, Any]) -> str:
    """Return the picture of requests that fit against the tokens of each, empty where none fit."""
    found = [(float(p["tokens"]), float(p["requests"])) for p in data["curves"]["concurrency"] if p["requests"] > 0]
    if len(found) < 2:
        return ""
    labels = [f"{int(x):,} tokens: {y:,.2f} requests" for x, y in found]
    return _plot(
        "requests that fit, by the tokens of each", [(found, labels, "")], "tokens of a request", "requests", 1
    )


def tpot_svg(data: Mapping[str, Any]) -> str:
    """Return the picture of the bound of an output token against the batch, with the batch that memory allows."""
    curve = data["curves"]
    steps = curve["tpot"]
    if len(steps) < 2:
        return ""
    series = []
    for key, kind in (("full_overlap_seconds", ""), ("serialised_seconds", "second")):
        found = [(float(step["batch"]), 1000 * float(step[key])) for step in steps]
        labels = [f"batch {int(x):,}: {y:,.4g} ms, {(kind and 'serialised') or 'full overlap'}" for x, y in found]
        series.append((found, labels, kind))
    name = f"bound of an output token at {curve['context']:,} cached tokens"
    target = data["workload"]["tpot"]
    marks = [] if target is None else [(f"target {seconds_text(target)}", 1000 * float(target))]
    return _plot(name, series, "batch (dashed: serialised)", "ms", 1, float(curve["memory_batch"]), marks)


def _plot(
    name: str,
    series: Sequence[tuple[Points, Sequence[str], str]],
    across: str,
    unit: str,
    least: float,
    limit: float | None = None,
    marks: Sequence[tuple[str, float]] = (),
) -> str:
    """Return a log-log picture; `limit` is a batch beyond which nothing fits, `marks` are levels with a name."""
    xs = [x for points, _, _ in series for x, _ in points] + ([limit] if limit else [])
    ys = [y for points, _, _ in series for _, y in points] + [level for _, level in marks]
    low_x, high_x = math.log10(max(least, min(xs))), math.log10(max(xs)) + 0.02
    low_y, high_y = math.log10(min(ys)) - 0.08, math.log10(max(ys)) + 0.12
    span_x, span_y = max(high_x - low_x, 1e-9), max(high_y - low_y, 1e-9)
    floor, end = HEIGHT - BOTTOM, WIDTH - RIGHT

    def place(x: float, y: float) -> tuple[float, float]:
        return (
            LEFT + (math.log10(x) - low_x) / span_x * (end - LEFT),
            floor - (math.log10(y) - low_y) / span_y * (floor - TOP),
        )

    parts = []
    for tick in _ticks(low_x, high_x):
        x, _ = place(tick, 10**low_y)
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{floor}"/>')
        parts.append(f'<text x="{x:.1f}" y="{floor + 16}" text-anchor="middle">{tick:,.6g}</text>')
    for tick in _ticks(low_y, high_y):
        _, y = place(10**low_x, tick)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{end}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(
            f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{f"{tick:,.6g} {escape(unit)}".rstrip()}</text>'
        )
    if limit is not None:
        x, _ = place(max(limit, 10**low_x), 10**low_y)
        parts.append(f'<rect class="over" x="{x:.1f}" y="{TOP}" width="{max(0, end - x):.1f}" height="{floor - TOP}"/>')
        parts.append(f'<line class="limit" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{floor}"/>')
        side = "end" if x > WIDTH / 2 else "start"
        shift = -5 if side == "end" else 5
        text = f"memory: batch {int(limit):,}"
        parts.append(f'<text x="{x + shift:.1f}" y="{TOP + 12}" text-anchor="{side}">{text}</text>')
    for text, level in marks:
        _, y = place(10**low_x, level)
        parts.append(f'<line class="limit" x1="{LEFT}" x2="{end}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT + 6}" y="{y - 5:.1f}">{escape(text)}</text>')
    for points, labels, kind in series:
        path = "L".join("{:.1f},{:.1f}".format(*place(x, y)) for x, y in points)
        parts.append(f'<path class="line {kind}" d="M{path}"/>')
        for (x, y), label in zip(points, labels, strict=True):
            cx, cy = place(x, y)
            parts.append(f'<circle cx="{cx:.1f}" cy="{cy:.1f}" r="3.5"><title>{escape(label)}</title></circle>')
    middle = (LEFT + end) / 2
    parts.append(f'<text x="{middle:.0f}" y="{HEIGHT - 6}" text-anchor="middle">{escape(across)}</text>')
    shape = f'role="img" aria-label="{escape(name)}" viewBox="0 0 {WIDTH} {HEIGHT}"'
    return f'<p class="dim">{escape(name)}</p><svg class="curve" {shape}>{"".join(parts)}</svg>'


def _ticks(low: float, high: float) -> list[float]:
    """Return round numbers between two powers of ten: decades, or 1, 2, 5 where there are few decades."""
    steps = (1,) if high - low > 3 else (1, 2, 5)
    found = [m * 10.0**p for p in range(math.floor(low) - 1, math.ceil(high) + 1) for m in steps]
    inside = [value for value in found if low <= math.log10(value) <= high]
    return inside or [10 ** ((low + high) / 2)]
