"""An audit as one HTML page: it asks the network for nothing, and says so in its content security policy.

Written from the document that --json prints. Tables and bars are plain HTML. Two scripts draw what moves: where the
cost is as a flame graph and a tree (`audit.js`), and memory over the schedule (`compare.js`). Names are the program's
own, so every one is escaped, or reaches the page as text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from jaxcost.audits.exports import TITLES
from jaxcost.audits.tree import COLUMNS, UNITS, Node, folded, itself
from jaxcost.report import audit_rows as gather
from jaxcost.report import audit_sections as sections
from jaxcost.report.cells import cleaned, clipped, grid, plain_data
from jaxcost.report.page import STYLE
from jaxcost.report.schedule import POLICY, Series, colours, package_file, schedule_frame, schedule_script, script_data

MOST_SCRIPT_BYTES = 1_500_000  # of a page, data included
SMALLEST_SHARE = 0.0002  # of every column; a smaller node is summed with its neighbours
_NODES = (2500, 1200, 600, 300, 150)  # of a tree: the most that lets the page keep within its bytes
_POINTS = (400, 200, 100, 50)
_LONGEST_NAME = 160
_EXACT = 2**53  # a larger number goes to the script as text
_TREES = {"scopes": "module", "calls": "source", "weights": "argument"}
_SHOWN = (
    "program", "flops", "primitives", "jaxpr", "xla", "memory", "collectives", "collective_totals", "loops",
    "attribution", "unknowns", "findings",
)  # fmt: skip
_FRACTIONS = ("0.75", "0.95")


def audit_page(document: Mapping[str, Any]) -> str:
    """Return the page of a `jaxcost.audit.v1` document."""
    title = clipped(f"{gather.title(document)}: audit")
    classes = sections.classes_of(document["memory"])
    scripts = _scripts(document, classes)
    parts = [
        sections.head(document), sections.against(document), sections.unknowns(document),
        sections.findings(document), sections.savings(document),
        _places(document), sections.flops(document), sections.memory(document), _schedule(document),
        sections.collectives(document), sections.loops(document), sections.trust(document), _foot(document),
    ]  # fmt: skip
    style = STYLE + package_file("compare.css") + colours(classes) + package_file("audit.css")
    body = "\n".join(part for part in parts if part)
    return cleaned(
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f'<meta name="viewport" content="width=device-width"><style>{style}</style></head>\n'
        f"<body><h1>{escape(title)}</h1>\n{body}\n"
        f'<p class="dim">{escape(str(document["schema"]))}, jaxcost {escape(str(document.get("jaxcost", "")))}</p>'
        f"{scripts}</body></html>\n"
    )


def _places(document: Mapping[str, Any]) -> str:
    """The frame that the script fills: what to show, the flame graph, the tree."""

    if not _trees(document):
        return "<h2>where the cost is</h2><p>no trees of places: the record of a test keeps none</p>"

    def choices(legend: str, prefix: str, of: Mapping[str, str]) -> str:
        found = "".join(
            f'<label><input type="radio" name="{prefix}" id="{prefix}-{key}"> {escape(label)}</label>'
            for key, label in of.items()
        )
        return f"<fieldset><legend>{legend}</legend>{found}</fieldset>"

    heads = "".join(f'<th scope="col" class="n">{escape(TITLES[column])}</th>' for column in COLUMNS)
    keys = "arrow keys move and open, Enter zooms, Escape shows all"
    return (
        f"<h2>where the cost is</h2><noscript>{sections.places(document)}</noscript>"
        f'<section id="places" hidden>{choices("by", "by", _trees(document))}{choices("width is", "of", TITLES)}'
        '<p><label>search <input type="search" id="search" autocomplete="off"></label> '
        '<span id="found" role="status"></span></p>'
        '<nav id="crumbs" aria-label="from the program to what is shown"></nav>'
        f'<div id="flame" role="tree" aria-label="flame graph: {keys}"></div>'
        '<p id="nothing" hidden>nothing of this program is in this column, or it is unknown</p><p id="told"></p>'
        '<p><button type="button" id="all-open">open all</button> '
        f'<button type="button" id="all-shut">close all</button> <span class="dim">{keys}</span></p>'
        '<div class="wide"><table id="tree" role="treegrid"><thead><tr><th scope="col" id="what">name</th>'
        f'<th scope="col">share</th>{heads}</tr></thead><tbody id="tree-body"></tbody></table></div>'
        '<p class="dim" id="pruned"></p></section>' + _columns(document)
    )


def _columns(document: Mapping[str, Any]) -> str:
    """How much of each column has no place of its own."""
    cells = []
    for column in COLUMNS:
        found = document["attribution"]["columns"][column]
        reason = found.get("reason", "")
        cells.append(
            (
                sections.text(TITLES[column]),
                *(
                    sections.number(found.get(name), UNITS[column]) if name in found else "<td></td>"
                    for name in ("total", "no_scope", "inferred", "no_source")
                ),
                sections.text(reason, "dim"),
            )
        )
    heads = ("", "total", "without a module", "module told by neighbours", "without a source line", "")
    table = sections.wide(grid(heads, sections.rows(cells), range(1, 5)))
    return f"<details><summary>what has no place of its own</summary>{table}</details>"


def _schedule(document: Mapping[str, Any]) -> str:
    timeline = gather.table_of(document["memory"].get("timeline"))
    if not timeline.get("points"):
        return ""
    return schedule_frame([gather.title(document)], "This plot needs its script; the buffers at the peak stand above.")


def _foot(document: Mapping[str, Any]) -> str:
    program = document["program"]
    shown = {key: program[key] for key in ("digest", "origin", "target", "environment") if program.get(key)}
    parts = [f"<details><summary>evidence: versions, flags, digest</summary>{plain_data(shown)}</details>"]
    known = {"schema", "jaxcost", "evidence_class", *_SHOWN}
    for name, section in document.items():
        if name not in known and not gather.empty(section):
            title = escape(clipped(name.replace("_", " ")))
            parts.append(f"<details><summary>{title}</summary>{plain_data(section)}</details>")
    return "".join(parts)


def _scripts(document: Mapping[str, Any], classes: Sequence[str]) -> str:
    """The scripts with as much of their data as keeps them within MOST_SCRIPT_BYTES."""
    if not _trees(document):
        return _timeline(document, classes, _POINTS[0])
    code = f"<script>{package_file('audit.js')}</script>"
    text = ""
    for nodes, points in zip(_NODES, (*_POINTS, 0), strict=True):
        text = script_data("audit-data", _data(document, nodes)) + code + _timeline(document, classes, points)
        if len(text.encode()) <= MOST_SCRIPT_BYTES:
            break
    return text


def _trees(document: Mapping[str, Any]) -> dict[str, str]:
    return {key: title for key, title in _TREES.items() if document["attribution"].get(key)}


def _data(document: Mapping[str, Any], most_nodes: int) -> dict[str, Any]:
    trees = []
    for key, title in _trees(document).items():
        nodes = document["attribution"][key]
        kept = folded(nodes, most_nodes, SMALLEST_SHARE)
        left = len(nodes) - sum(node["kind"] != "smaller" for node in kept)
        below = f"{100 * SMALLEST_SHARE:.2f}% of every column, or are not among the {most_nodes:,} largest"
        note = f"{left:,} of {len(nodes):,} nodes are summed with their neighbours: they have less than {below}"
        trees.append(
            {"key": key, "title": title, "note": note if left else "", "nodes": [_node(node) for node in itself(kept)]}
        )
    columns = [{"key": column, "title": TITLES[column], "unit": UNITS[column]} for column in COLUMNS]
    return {"columns": columns, "trees": trees}


def _node(node: Node) -> list[Any]:
    where = f"{node['file']}:{node['line']}" if node.get("file") else ""
    return [
        node["parent"], clipped(node["name"], _LONGEST_NAME), node["kind"], clipped(where, _LONGEST_NAME),
        [_value(node["total"].get(column, 0)) for column in COLUMNS],
        [_value(node["own"].get(column, 0)) for column in COLUMNS],
    ]  # fmt: skip


def _value(value: Any) -> Any:
    if isinstance(value, Mapping):
        return [_value(value["minimum"]), _value(value["maximum"])]
    return str(value) if isinstance(value, int) and value > _EXACT else value


def _timeline(document: Mapping[str, Any], classes: Sequence[str], most_points: int) -> str:
    timeline = gather.table_of(document["memory"].get("timeline"))
    points = timeline.get("points")
    if not points or not most_points:
        return ""
    every = -(-len(points) // most_points)
    kept = [p for i, p in enumerate(points) if i % every == 0 or p["step"] == timeline["peak_step"]]
    names = {str(key) for point in kept for key in point["live"]}
    buffers = {
        key: {name: clipped(item, _LONGEST_NAME) if isinstance(item, str) else item for name, item in row.items()}
        for key, row in timeline["buffers"].items()
        if key in names
    }
    limit = gather.table_of(document["program"].get("target")).get("device_memory_bytes")
    limits = {name: int(float(name) * limit) for name in _FRACTIONS} if limit else {}
    thin = {**timeline, "points": [_clipped(point) for point in kept], "buffers": buffers}
    return schedule_script([Series(gather.title(document), limits, thin)], classes)


def _clipped(point: Mapping[str, Any]) -> dict[str, Any]:
    return {name: clipped(item, _LONGEST_NAME) if isinstance(item, str) else item for name, item in point.items()}
