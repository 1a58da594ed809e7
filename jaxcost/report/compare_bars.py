"""Bytes at the peak by class as stacked bars: for each column the prediction above the compiled program, on one scale.

A whisker is the predicted interval, a dashed end what is required beyond the live peak (fragmentation), a dashed line
across all bars a stated fraction of a device.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

from jaxcost.report.compared import unit_for
from jaxcost.report.numbers import about

LEFT, WIDTH, TOP, ROW, GAP = 300, 640, 24, 20, 8


class Bar(NamedTuple):
    """One bar. `interval` is the predicted (lower, upper), `required` of a compiled program, 0 where there is none."""

    label: str
    witness: str
    classes: Mapping[str, int]
    interval: tuple[int, int]
    required: int

    @property
    def end(self) -> int:
        """The largest number the bar shows."""
        return max(sum(self.classes.values()), self.interval[1], self.required)


def bars_of(columns: Sequence[Mapping[str, Any]]) -> list[Bar]:
    """Return the bars of columns: the predicted peak by class and the compiled one, each where it is known."""
    found = []
    for column in columns:
        label, compiled, predicted = f"{column['name']} on {column['target']}", column["compiled"], column["predicted"]
        if predicted.get("by_class"):
            peak = predicted["peak_bytes"]
            found.append(Bar(label, "predicted", predicted["by_class"], (peak["lower"], peak["upper"]), 0))
        if compiled and compiled["peak"]["by_class"]:
            found.append(Bar(label, "compiled", compiled["peak"]["by_class"], (0, 0), compiled["required_bytes"] or 0))
    return found


def bars_svg(columns: Sequence[Mapping[str, Any]], classes: Sequence[str]) -> str:
    """Return the drawing, empty where no peak is known by class."""
    bars = bars_of(columns)
    if not bars:
        return ""
    limits = {
        f"{fraction} of {column['target'].split(':')[0]}": limit
        for column in columns
        for fraction, limit in column["limits"].items()
        if limit is not None
    }
    most = max(*(bar.end for bar in bars), *limits.values(), 1)
    scale = WIDTH / most / 1.02
    step, unit = unit_for([most])
    parts: list[str] = []
    y, before = TOP, ""
    for bar in bars:
        y += GAP if before and before != bar.label else 0
        if before != bar.label:
            parts.append(f'<text x="0" y="{y + 14}">{escape(bar.label)}</text>')
        before = bar.label
        parts.append(f'<text x="{LEFT - 8}" y="{y + 14}" text-anchor="end" class="dim">{bar.witness}</text>')
        parts += _drawn(bar, classes, y, scale)
        value = sum(bar.classes.values()) / step
        parts.append(f'<text x="{LEFT + bar.end * scale + 6:.1f}" y="{y + 14}">{value:,.2f} {unit}</text>')
        y += ROW
    for index, (name, limit) in enumerate(limits.items()):
        x = f"{LEFT + limit * scale:.1f}"
        title = f"<title>{escape(name)}: {limit:,} bytes</title>"
        parts.append(f'<line class="limit" x1="{x}" x2="{x}" y1="{TOP - 4}" y2="{y + 4}">{title}</line>')
        parts.append(f'<text x="{x}" dx="-4" y="{10 + 12 * (index % 2)}" text-anchor="end">{escape(name)}</text>')
    label = "bytes at the peak by class, of each column"
    return f'<svg class="bars" role="img" aria-label="{label}" viewBox="0 0 1040 {y + 8}">{"".join(parts)}</svg>'


def _drawn(bar: Bar, classes: Sequence[str], y: int, scale: float) -> Iterator[str]:
    """Yield the segments of a bar in the order of the classes, then fragmentation and the interval."""
    done = 0
    for name in classes:
        size = bar.classes.get(name, 0)
        if size:
            text = f"{bar.label}, {bar.witness}: {name.replace('_', ' ')} {size:,} bytes ({about(size, 'bytes')})"
            yield _rectangle(f"c-{name}", done, size, y, scale, text)
            done += size
    if bar.required > done:
        rest = bar.required - done
        yield _rectangle("out", done, rest, y, scale, f"fragmentation {rest:,} bytes")
    low, high = bar.interval
    if high:
        left, right, middle = LEFT + low * scale, LEFT + high * scale, y + ROW // 2 - 1
        ends = "".join(f"M{x:.1f},{middle - 4}v8" for x in (left, right))
        title = f"<title>predicted interval {low:,} to {high:,} bytes</title>"
        yield f'<path class="whisker" d="{ends}M{left:.1f},{middle}H{right:.1f}">{title}</path>'


def _rectangle(kind: str, start: int, size: int, y: int, scale: float, title: str) -> str:
    place = f'x="{LEFT + start * scale:.1f}" y="{y + 2}" width="{max(size * scale, 0.5):.1f}" height="{ROW - 6}"'
    return f'<rect class="{kind}" {place}><title>{escape(title)}</title></rect>'
