"""Rooflines as one HTML page: a log-log picture of each boundary, and the tables behind it. No script, no address.

Across is intensity, FLOPs a byte over the named boundary; up is the rate. A sloped roof is a bandwidth, the flat one
the peak; they meet at the ridge point. A disc is an op at its ceiling, its area the op's share of the time at full
overlap of each op; ops at one place share a disc.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

from jaxcost.report.numbers import about, exact
from jaxcost.report.page import STYLE
from jaxcost.report.rooflines import (
    IDEALISATIONS,
    NEITHER,
    POINT_COLUMNS,
    REGIME_COLUMNS,
    compiler_lines,
    conflict_lines,
    crossing_line,
    intensity_text,
    measured_lines,
    rate_text,
    regime_rows,
    ridge_lines,
    seconds_text,
    verdict,
)
from jaxcost.report.values import case_values

_STYLE = """
svg.roof { width: 100%; max-width: 62rem; height: auto; } svg.roof text { font-size: 12px; }
svg.roof .grid { stroke: var(--line); } svg.roof .roof { stroke: currentColor; stroke-width: 2; fill: none; }
svg.roof .ridge { stroke: currentColor; stroke-dasharray: 3 4; opacity: .6; }
svg.roof .memory { fill: #4269d0; } svg.roof .compute { fill: #ef8a1d; } svg.roof .both { fill: #3ca951; }
svg.roof circle { fill-opacity: .55; stroke: currentColor; stroke-opacity: .5; }
svg.roof .measured { stroke: var(--bad); stroke-width: 3; } svg.roof .dim { opacity: .7; }
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 980, 440, 96, 46, 24, 20
_LARGEST_RADIUS, _LABELS = 24, 3
# What a label may not cover, discs and other labels: x, y, half of the width, half of the height.
_Area = tuple[float, float, float, float]


def roofline_page(data: Mapping[str, Any]) -> str:
    """Return the page of a `jaxcost.roofline.v1` document."""
    name = data["case"]["architecture"]["name"]
    device = data["device"]
    title = f"{name} on {device['devices']} x {device['name']}: roofline"
    values = "".join(f"<span>{escape(n)} <b>{escape(v)}</b></span>" for n, v in case_values(data["case"]))
    ops = sorted(data["ops"], key=lambda op: -op["overlapped_seconds"])
    parts = [
        f'<p class="case">{values}</p><p class="dim">case <code>{escape(data["case"]["digest"])}</code></p>',
        f"<p><b>{escape(verdict(data))}.</b> {escape(NEITHER)}</p>",
        _list([f"peak: {device['peak']['label']}", *ridge_lines(data)]),
        _step(data),
        _pictures(data, ops),
        _points("scopes", data["scopes"], numbered=False),
        _points("ops, longest first", ops, numbered=True),
        _collectives(data),
        _regimes(data),
    ]
    if data["measured"]:
        parts.append("<h2>measured</h2>" + _list(measured_lines(data["measured"])))
    parts.append("<h2>the compiler</h2>" + _list(compiler_lines(data)))
    for heading, texts in (
        ("figures on which sources disagree", conflict_lines(device)),
        ("notes", data["notes"]),
        ("left out", data["omitted"]),
        ("assumptions", data["assumptions"]),
        ("sources of the device's figures", device["sources"]),
    ):
        if texts:
            parts.append(f"<h2>{heading}</h2>{_list(texts)}")
    body = "\n".join(part for part in parts if part)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}{_STYLE}</style></head>\n'
        f"<body><h1>{escape(title)}</h1>\n{body}\n"
        f'<p class="dim">{escape(str(data["schema"]))}, jaxcost {escape(str(data["jaxcost"]))}</p></body></html>\n'
    )


class Disc(NamedTuple):
    """Something with an intensity and a ceiling: its label, its share of the time, and what bounds it."""

    label: str
    intensity: float
    per_second: float
    seconds: float
    bound: str


class Roof(NamedTuple):
    """A boundary: its bytes a second, and the peak above it, operations a second."""

    name: str
    bytes_per_second: float
    peak: float
    unit: str

    @property
    def ridge(self) -> float:
        """Where the two roofs meet."""
        return self.peak / self.bytes_per_second


def roof_svg(roof: Roof, discs: Sequence[Disc], marks: Sequence[tuple[float, float]] = ()) -> str:
    """Return the log-log picture of one boundary. Discs at one place are drawn as one, with all their labels."""
    xs = [disc.intensity for disc in discs] + [roof.ridge] + [x for x, _ in marks]
    ys = [disc.per_second for disc in discs] + [roof.peak] + [y for _, y in marks]
    low_x, high_x = math.floor(math.log10(min(xs)) - 0.2), math.ceil(math.log10(max(xs)) + 0.2)
    low_y, high_y = math.log10(min(*ys, roof.bytes_per_second * 10.0**low_x)) - 0.4, math.log10(max(ys)) + 0.3

    def place(intensity: float, per_second: float) -> tuple[float, float]:
        across = (math.log10(intensity) - low_x) / (high_x - low_x)
        up = (math.log10(per_second) - low_y) / (high_y - low_y)
        return LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - BOTTOM - TOP)

    floor, end = HEIGHT - BOTTOM, WIDTH - RIGHT
    lines = []
    for power in range(low_x, high_x + 1):
        x, _ = place(10.0**power, roof.peak)
        lines.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{floor}"/>')
        lines.append(f'<text x="{x:.1f}" y="{floor + 16}" text-anchor="middle">{10.0**power:,.6g}</text>')
    for power in range(math.ceil(low_y), math.floor(high_y) + 1):
        _, y = place(roof.ridge, 10.0**power)
        lines.append(f'<line class="grid" x1="{LEFT}" x2="{end}" y1="{y:.1f}" y2="{y:.1f}"/>')
        label = escape(rate_text(10.0**power, roof.unit))
        lines.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{label}</text>')
    start, corner = place(10.0**low_x, roof.bytes_per_second * 10.0**low_x), place(roof.ridge, roof.peak)
    shape = f"M{start[0]:.1f},{start[1]:.1f}L{corner[0]:.1f},{corner[1]:.1f}H{end}"
    lines.append(f'<path class="roof" d="{shape}"/>')
    dashes = f'x1="{corner[0]:.1f}" x2="{corner[0]:.1f}" y1="{corner[1]:.1f}" y2="{floor}"'
    lines.append(f'<line class="ridge" {dashes}/>')
    lines.append(f'<text x="{corner[0] + 6:.1f}" y="{floor - 6}">ridge {roof.ridge:,.4g} FLOP/byte</text>')
    peak = escape(rate_text(roof.peak, roof.unit))
    lines.append(f'<text x="{end}" y="{corner[1] - 10:.1f}" text-anchor="end">{peak}</text>')
    bandwidth = f"{roof.bytes_per_second / 1e9:,.5g} GB/s, {escape(roof.name)}"
    lines.append(f'<text x="{start[0] + 24:.1f}" y="{min(start[1] + 4, floor - 8):.1f}">{bandwidth}</text>')
    reserved = [(x + 50, y + 4, 62.0, 8.0) for x, y in (place(*mark) for mark in marks)]
    lines += _discs([(disc, place(disc.intensity, disc.per_second)) for disc in discs], reserved)
    for mark in marks:
        x, y = place(*mark)
        lines.append(f'<path class="measured" d="M{x - 6:.1f},{y - 6:.1f}l12,12m0,-12l-12,12"/>')
        lines.append(f'<text x="{x + 10:.1f}" y="{y + 4:.1f}">measured step</text>')
    axis = f"FLOPs a byte across the boundary: {escape(roof.name)}"
    lines.append(f'<text x="{(LEFT + WIDTH) / 2:.0f}" y="{HEIGHT - 8}" text-anchor="middle">{axis}</text>')
    size = f'viewBox="0 0 {WIDTH} {HEIGHT}"'
    label = f"roofline against {escape(roof.name)}"
    return f'<svg class="roof" role="img" aria-label="{label}" {size}>{"".join(lines)}</svg>'


def _discs(places: Sequence[tuple[Disc, tuple[float, float]]], reserved: Sequence[_Area]) -> list[str]:
    """Draw discs, those that would cover one another as one; each label in the first row below with room for it."""
    groups: list[tuple[float, float, list[Disc]]] = []
    for disc, (x, y) in sorted(places, key=lambda item: (item[1][0], item[1][1])):
        if groups and abs(groups[-1][0] - x) < 12 and abs(groups[-1][1] - y) < 12:
            groups[-1][2].append(disc)
        else:
            groups.append((x, y, [disc]))
    time = sum(disc.seconds for disc, _ in places) or 1.0
    lines = []
    shares = [sum(disc.seconds for disc in discs) / time for _, _, discs in groups]
    radii = [max(4.0, _LARGEST_RADIUS * math.sqrt(share)) for share in shares]
    taken = [*reserved, *((x, y - 4, radius, radius) for (x, y, _), radius in zip(groups, radii, strict=True))]
    for (x, y, found), share, radius in zip(groups, shares, radii, strict=True):
        discs = sorted(found, key=lambda disc: -disc.seconds)
        title = "; ".join(f"{disc.label}: {intensity_text(disc.intensity)} FLOP/byte, {seconds_text(disc.seconds)}, "
                          f"bound by {disc.bound}" for disc in discs)  # fmt: skip
        bound = discs[0].bound
        place = f'cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}"'
        lines.append(f'<circle class="{escape(bound)}" {place}><title>{escape(title)}</title></circle>')
        told = ", ".join(disc.label.partition(" ")[0] for disc in discs[:_LABELS])
        told += f" and {len(discs) - _LABELS} more" if len(discs) > _LABELS else ""
        told += f" ({100 * share:.0f}%)"
        half = 3.6 * len(told)
        rows = (y + 40 + 17 * row for row in range(12))
        below = next((row for row in rows if not _covers(x, row, half, taken)), y + 40)
        taken.append((x, below, half, 7))
        lines.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{y + radius:.1f}" y2="{below - 11:.1f}"/>')
        lines.append(f'<text x="{x:.1f}" y="{below:.1f}" text-anchor="middle">{escape(told)}</text>')
    return lines


def _covers(x: float, y: float, half: float, taken: Sequence[_Area]) -> bool:
    """Return whether a label of that half width at a place would cover what stands already."""
    return any(abs(y - v) < height + 6 and abs(x - u) < half + width for u, v, width, height in taken)


def _pictures(data: Mapping[str, Any], ops: Sequence[Mapping[str, Any]]) -> str:
    """Draw device memory with every op, then each path that collectives cross with every scope that sends."""
    peak, unit = data["device"]["peak"]["per_second"], data["device"]["peak"]["unit"]
    memory = Roof("device memory", data["device"]["memory_bytes_per_second"], peak, unit)
    discs = [
        Disc(f"{index} {op['scope']} {op['phase']}", op["intensity"], op["ceiling_flops_per_second"],
             op["overlapped_seconds"], op["bound"])
        for index, op in enumerate(ops, 1) if op["flops"] and op["intensity"]
    ]  # fmt: skip
    key = "blue: bound by memory, orange: by compute; area: share of time; numbers are those of the table of ops"
    absent = [f"{op['scope']} {op['phase']}" for op in ops if not op["flops"]]
    note = f"; without FLOPs, and so not drawn: {', '.join(absent)}" if absent else ""
    parts = [
        "<h2>device memory</h2>",
        roof_svg(memory, discs, _measured(data)),
        f'<p class="dim">{escape(key + note)}</p>',
    ]
    for link in data["device"]["links"]:
        field = "between_bytes" if link["reach"] == "between" else "inside_bytes"
        sent: dict[str, int] = {}
        for item in data["collectives"]:
            scope = "/".join(item["scope"].split("/")[:2])
            sent[scope] = sent.get(scope, 0) + item["times"] * (item[field] or 0)
        rate = link["bytes_per_second"]
        shown = [scope for scope in data["scopes"] if scope["flops"] and sent.get(scope["scope"])]
        if rate is None or not shown:
            continue
        roof = Roof(f"interconnect, {link['reach']} ({link['name']})", rate, peak, unit)
        found = []
        for scope in shown:
            intensity = scope["flops"] / sent[scope["scope"]]
            bound = "compute" if intensity >= roof.ridge else "memory"
            seconds = max(scope["flops"] / peak, sent[scope["scope"]] / rate)
            found.append(Disc(scope["scope"], intensity, min(peak, intensity * rate), seconds, bound))
        told = "blue: bound by this path, orange: by compute; area: share of the longer of the two times"
        parts += [f"<h2>{escape(roof.name)}</h2>", roof_svg(roof, found), f'<p class="dim">{told}</p>']
    return "".join(parts)


def _measured(data: Mapping[str, Any]) -> list[tuple[float, float]]:
    found, step = data["measured"], data["step"]
    if not found or not step["flops"] or not step["intensity"]:
        return []
    return [(step["intensity"], step["flops"] / found["seconds"])]


def _step(data: Mapping[str, Any]) -> str:
    step = data["step"]
    rows = []
    for name, text in IDEALISATIONS.items():
        at = step["mfu_at"][name]
        rows.append(
            (
                name.replace("_", " "),
                seconds_text(step["seconds"][name]),
                "" if at is None else f"{100 * at:.1f}%",
                text,
            )
        )
    unknown = f"<p>unknown: {escape(step['reason'])}</p>" if step["reason"] else ""
    return "<h2>step</h2>" + _table(("", "time", "MFU there", "what it assumes"), rows, numbers=(1, 2)) + unknown


def _points(heading: str, points: Sequence[Mapping[str, Any]], numbered: bool) -> str:
    phases = ("phase",) if numbered else ()
    header = ("scope", *phases, *POINT_COLUMNS)
    rows = []
    for index, point in enumerate(points, 1):
        row = (
            point["scope"], *((point["phase"],) if numbered else ()),
            about(point["flops"], "FLOPs") or exact(point["flops"]),
            about(point["bytes"], "bytes") or exact(point["bytes"]), intensity_text(point["intensity"]),
            rate_text(point["ceiling_flops_per_second"]), seconds_text(point["compute_seconds"]),
            seconds_text(point["memory_seconds"]), seconds_text(point["overlapped_seconds"]),
            seconds_text(point["serial_seconds"]), point["bound"],
        )  # fmt: skip
        rows.append((str(index), *row) if numbered else row)
    names = ("", *header) if numbered else header
    return f"<h2>{heading}</h2>" + _table(names, rows, numbers=tuple(range(len(names) - 9, len(names) - 1)))


def _regimes(data: Mapping[str, Any]) -> str:
    if not data["regimes"]:
        return ""
    table = _table(REGIME_COLUMNS, regime_rows(data), numbers=(1, 2, 3, 4, 5, 8, 9, 10))
    told = f"Intensities in FLOP/byte of device memory; {crossing_line(data)}."
    return f"<h2>regimes by batch</h2>{table}<p>{escape(told)}</p>"


def _collectives(data: Mapping[str, Any]) -> str:
    if not data["collectives"]:
        return ""
    rows = []
    for item in data["collectives"]:
        sizes = [about(item[f"{r}_bytes"], "bytes") or exact(item[f"{r}_bytes"]) for r in ("inside", "between")]
        rows.append((item["object"], item["phase"], item["kind"], item["axis"], exact(item["times"]), *sizes,
                     seconds_text(item["seconds"])))  # fmt: skip
    header = ("collective", "phase", "kind", "axis", "times", "inside", "between", "time")
    told = ", ".join(f"{axis} {seconds_text(value)}" for axis, value in data["communication_by_axis"].items())
    table = _table(header, rows, numbers=(4, 5, 6, 7))
    folded = f"<details><summary>{len(rows)} collectives</summary>{table}</details>"
    return f"<h2>communication</h2><p>by axis: {escape(told)}</p>{folded}"


def _table(header: Iterable[str], rows: Iterable[Sequence[str]], numbers: tuple[int, ...]) -> str:
    def cell(tag: str, index: int, text: str) -> str:
        kind = ' class="n"' if index in numbers else ""
        return f"<{tag}{kind}>{escape(text)}</{tag}>"

    head = "".join(cell("th", index, text) for index, text in enumerate(header))
    body = "".join("<tr>" + "".join(cell("td", i, text) for i, text in enumerate(row)) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _list(texts: Iterable[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(str(text))}</li>' for text in texts)}</ul>"
