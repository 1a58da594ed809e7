"""The tornado of a ledger: one bar a case from 1x to its ratio, on a logarithmic axis, the largest effect first.

Log ratios make 4x and 0.25x equally long. A case whose ledger does not move has no bar and a dash; one without a ratio
(the base is zero, a side is unknown) has its difference or `unknown` in words.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from jaxcost.report.numbers import exact, signed
from jaxcost.report.sensitivity import change_text, label, ratio_text

LEFT, WIDTH, TOP, ROW, LABEL = 300, 440, 26, 22, 150
_TICKS = (
    0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 0.8, 0.9, 0.95, 0.99, 1.0, 1.01, 1.05, 1.1, 1.25, 2.0, 4.0, 10.0, 20.0, 100.0,
    1000.0,
)  # fmt: skip


def tornado_svg(path: str, found: Sequence[Mapping[str, Any]], base: Any) -> str:
    """Return the panel of one total over cases and vectors, or a sentence where nothing moves it."""
    rows = [(item, next(row for row in item["totals"] if row["path"] == path)) for item in found]
    moved = sorted((pair for pair in rows if not pair[1]["invariant"]), key=lambda pair: -_size(pair[1]))
    if not moved:
        return '<p class="dim">no case moves it</p>'
    still = len(rows) - len(moved)
    low, high = _range([row["ratio"] for _, row in moved if row["ratio"]])
    height = TOP + ROW * len(moved) + 6
    parts = [*_axis(low, high, height), *(part for n, pair in enumerate(moved) for part in _bar(*pair, n, low, high))]
    title = f"{label(path)}: ratio of each case to the base {exact(base)}, logarithmic"
    box = f'viewBox="0 0 {LEFT + WIDTH + 2 * LABEL} {height}"'
    svg = f'<svg class="tornado" role="img" aria-label="{escape(title)}" {box}>{"".join(parts)}</svg>'
    return svg + (f'<p class="dim">- {still} more do not move it</p>' if still else "")


def _size(row: Mapping[str, Any]) -> float:
    """The length of a bar; without a ratio a row stands first."""
    return abs(math.log(row["ratio"])) if row["ratio"] and row["ratio"] > 0 else math.inf


def _range(ratios: Sequence[float]) -> tuple[float, float]:
    """The ends of the axis as logarithms, 0 (1x) inside, with a little room."""
    logs = [0.0, *(math.log(ratio) for ratio in ratios if ratio > 0)]
    low, high = min(logs), max(logs)
    room = 0.04 * (high - low) or 0.05
    return low - (room if low < 0 else 0.25 * room), high + (room if high > 0 else 0.25 * room)


def _x(value: float, low: float, high: float) -> float:
    return LEFT + LABEL + WIDTH * (value - low) / (high - low)


def _axis(low: float, high: float, height: int) -> Iterator[str]:
    last = -math.inf
    ones = _x(0.0, low, high)
    for tick in _TICKS:
        x = _x(math.log(tick), low, high)
        inside = low <= math.log(tick) <= high
        crowded = x - last < 46 or (tick != 1 and abs(x - ones) < 46)
        if inside and not crowded:
            last = x
            kind = "one" if tick == 1 else "tick"
            yield f'<line class="{kind}" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 6}" y2="{height - 4}"/>'
            yield f'<text class="dim" x="{x:.1f}" y="{TOP - 12}" text-anchor="middle">{tick:g}x</text>'


def _bar(item: Mapping[str, Any], row: Mapping[str, Any], number: int, low: float, high: float) -> Iterator[str]:
    y = TOP + ROW * number
    vector = item["kind"] == "vector"
    name = f"vector: {item['name']}" if vector else item["name"]
    shown = name if len(name) <= 52 else name[:49] + "..."
    yield f'<text x="0" y="{y + 14}">{escape(shown)}<title>{escape(name)}</title></text>'
    text = ratio_text(row)
    if not row["ratio"]:
        why = "the base is zero" if row["difference"] is not None else str(row.get("reason", ""))
        yield f'<text x="{_x(0.0, low, high) + 6:.1f}" y="{y + 14}">{escape(text)} ({escape(why)})</text>'
        return
    end, one = _x(math.log(row["ratio"]), low, high), _x(0.0, low, high)
    left, width = min(end, one), max(abs(end - one), 1.0)
    title = f"{name}: {exact(row['base'])} to {exact(row['value'])}, {signed(row['difference'])} {row['unit']}, {text}"
    kind = "vector" if vector else "more" if row["ratio"] > 1 else "less"
    place = f'x="{left:.1f}" y="{y + 3}" width="{width:.1f}" height="{ROW - 8}"'
    yield f'<rect class="{kind}" {place}><title>{escape(title)}</title></rect>'
    beside = f"{text} ({change_text(row['difference'], row['unit'])})"
    x, anchor = (end + 5, "start") if end >= one else (end - 5, "end")
    yield f'<text x="{x:.1f}" y="{y + 14}" text-anchor="{anchor}">{escape(beside)}</text>'
