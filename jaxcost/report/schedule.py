"""Memory over the schedule as part of a page: the frame that `compare.js` fills, its data, and a colour for each class.

Pages that have a script share its rules: nothing is fetched, and what others named is text, never markup.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib import resources
from typing import Any, NamedTuple

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
# class -> its colour, readable on light and dark ground and told apart by readers who do not see all colours alike
CLASSES = {
    "parameter": "#4269d0", "optimizer": "#97bbf5", "gradient": "#ff725c", "saved": "#3ca951",
    "gathered_weight": "#6cc5b0", "attention": "#efb118", "logits": "#a463f2", "cache": "#9c6b4e",
    "input_output": "#9498a0", "workspace": "#ff8ab7", "temporary": "#d08a3c", "output": "#b0b4bc",
    "constant": "#7d828c", "argument": "#6b8ec7", "result": "#c7ccd4", "loop_stack": "#2c7a51", "recomputed": "#c9b037",
    "argument_copy": "#8f6fb8", "collective": "#d45fa0", "library_workspace": "#b98a9c",
}  # fmt: skip
_OTHER = "#888"


class Series(NamedTuple):
    """One program's timeline; `limits` are fractions of its device in bytes, by their text."""

    label: str
    limits: Mapping[str, int | None]
    timeline: Mapping[str, Any]


def package_file(name: str) -> str:
    """Return the text of a script or a style sheet of this room."""
    return resources.files("jaxcost.report").joinpath(name).read_text(encoding="utf-8")


def ordered(classes: Iterable[str]) -> list[str]:
    """Return classes in the order in which they are stacked."""
    order = list(CLASSES)
    return sorted(set(classes), key=lambda name: (order.index(name) if name in order else len(order), name))


def colours(classes: Iterable[str]) -> str:
    """Return the style of each class: `c-` fills a drawing, `s-` a swatch."""
    return "".join(
        f".c-{name} {{ fill: {CLASSES.get(name, _OTHER)}; }} .s-{name} {{ background: {CLASSES.get(name, _OTHER)}; }}"
        for name in classes
        if name.replace("_", "").isalnum()
    )


def script_data(name: str, data: Any) -> str:
    """Return JSON in a script element, in which no text can end the element."""
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    return f'<script type="application/json" id="{name}">{text}</script>'


def schedule_frame(labels: Sequence[str], note: str) -> str:
    """Return the frame that the script fills: a choice of program, the plot, the cursor, and what is live under it."""
    if not labels:
        return ""
    hidden = " hidden" if len(labels) == 1 else ""
    choices = "".join(
        f'<label><input type="radio" name="column" value="{index}"{" checked" if index == 0 else ""}> '
        f"{escape(label)}</label>"
        for index, label in enumerate(labels)
    )
    caption = "largest live buffers beside arguments and results, which stay throughout"
    heads = ("class", "bytes", "shape", "scope", "source line or instruction")
    head = "".join(f'<th scope="col"{" class=n" if name == "bytes" else ""}>{name}</th>' for name in heads)
    return (
        f"<h2>memory over the schedule</h2><noscript><p>{escape(note)}</p></noscript>"
        '<section id="schedule" hidden>'
        f"<fieldset{hidden}><legend class=dim>compiled program</legend>{choices}</fieldset>"
        '<svg id="plot" role="img" viewBox="0 0 960 330"></svg>'
        '<label class="dim" for="cursor">point of the schedule</label>'
        '<input type="range" id="cursor" min="0" max="0" value="0">'
        '<p id="live-head"></p><p id="live-classes"></p><button type="button" id="to-peak">to the peak</button>'
        f'<div class="wide"><table><caption>{caption}</caption><thead><tr>{head}</tr></thead>'
        '<tbody id="live"></tbody></table></div></section>'
    )


def schedule_script(shown: Sequence[Series], classes: Sequence[str]) -> str:
    """Return the data of the frame and the script that fills it; '' where there is nothing to show."""
    if not shown:
        return ""
    data = {
        "classes": list(classes),
        "columns": [{"label": one.label, "limits": one.limits, "timeline": _slim(one.timeline)} for one in shown],
    }
    return f"{script_data('schedule-data', data)}<script>{package_file('compare.js')}</script>"


def _slim(timeline: Mapping[str, Any]) -> dict[str, Any]:
    """A timeline without what the page does not show."""
    points = [
        {name: point[name] for name in ("step", "instruction", "scope", "phase", "moment", "bytes", "live")}
        | {"by_class": {name: size for name, size in point["by_class"].items() if size}}
        for point in timeline["points"]
    ]
    names = ("bytes", "shape", "class", "scope", "phase", "source", "instruction")
    buffers = {key: {name: row[name] for name in names} for key, row in timeline["buffers"].items()}
    return {"steps": timeline["steps"], "peak_step": timeline["peak_step"], "points": points, "buffers": buffers}
