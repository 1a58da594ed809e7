"""An audit as files of viewers that exist.

    *.speedscope.json   https://www.speedscope.app: one profile for each column and tree, widths in FLOPs or bytes
    *.trace.json        https://ui.perfetto.dev: memory over the schedule, by class; a microsecond stands for a step

Both are written from the document that --json prints. Where a cost is an interval its upper end is drawn, where it has
no upper end what is counted, and the name of the profile says so.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxcost.audits.tree import COLUMNS, UNITS, least, most, paths
from jaxcost.contracts.errors import reject

SPEEDSCOPE_SCHEMA = "https://www.speedscope.app/file-format-schema.json"
TITLES = {
    "flops": "FLOPs",
    "bytes": "bytes moved",
    "peak_bytes": "bytes at the peak",
    "collective_bytes": "collective bytes",
}
_TREES = {"scopes": "module", "calls": "source"}
_COUNTERS = 1  # the process under which a trace shows its counters


def speedscope(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a speedscope file of an audit: sampled profiles, the stack of a node weighted with what is its own.

    Raises:
        RejectedError: the audit has no trees.
    """
    if not document["attribution"].get("scopes"):
        rule, remedy = "the audit has no trees of places: the record of a test keeps none", "save the audit with --save"
        raise reject("export", str(document["program"]["name"]), rule, remedy)
    frames: list[dict[str, Any]] = []
    profiles: list[dict[str, Any]] = []
    for tree, by in _TREES.items():
        nodes = document["attribution"][tree]
        first = len(frames)
        frames += [_frame(node) for node in nodes]
        stacks = paths(nodes)
        profiles += [
            profile
            for column in COLUMNS
            if (profile := _profile(f"{TITLES[column]} by {by}", column, nodes, stacks, first)) is not None
        ]
    return {
        "$schema": SPEEDSCOPE_SCHEMA,
        "name": str(document["program"]["name"]),
        "exporter": f"jaxcost {document.get('jaxcost', '')}".rstrip(),
        "activeProfileIndex": 0,
        "shared": {"frames": frames},
        "profiles": profiles,
    }


def _frame(node: Mapping[str, Any]) -> dict[str, Any]:
    frame = {"name": node["name"] or "(no name)"}
    return {**frame, **{key: node[key] for key in ("file", "line") if node.get(key)}}


def _profile(
    name: str, column: str, nodes: Sequence[Mapping[str, Any]], stacks: Sequence[tuple[int, ...]], first: int
) -> dict[str, Any] | None:
    samples: list[list[int]] = []
    weights: list[int] = []
    for number, node in enumerate(nodes):
        own = node["own"].get(column, 0)
        weight = most(own) or least(own)
        if weight:
            samples.append([first + i for i in stacks[number] or (number,)])
            weights.append(weight)
    if not samples:
        return None
    whole = nodes[0]["total"].get(column, 0)
    bound = "" if isinstance(whole, int) else ", counted part" if most(whole) is None else ", at most"
    return {
        "type": "sampled", "name": name + bound, "unit": "bytes" if UNITS[column] == "bytes" else "none",
        "startValue": 0, "endValue": sum(weights), "samples": samples, "weights": weights,
    }  # fmt: skip


def trace(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return memory over the schedule in the trace event format: a counter by class, a slice for each part of the step.

    Raises:
        RejectedError: the audit has no timeline.
    """
    timeline = document["memory"].get("timeline")
    if not timeline:
        reasons = document["memory"].get("reasons") or {}
        reason = reasons.get("timeline") or reasons.get("live_peak_bytes")
        rule = "the audit has no timeline of memory" + (f": {reason}" if reason else "")
        remedy = "dump the module as proto with its buffer assignment (--xla_dump_hlo_as_proto), or give the function"
        raise reject("export", str(document["program"]["name"]), rule, remedy)
    events: list[dict[str, Any]] = [
        {"ph": "M", "pid": _COUNTERS, "tid": 0, "name": "process_name",
         "args": {"name": f"{document['program']['name']}: memory of one device"}},
    ]  # fmt: skip
    points = timeline["points"] or [_held(timeline)]
    classes = sorted({name for point in points for name in point["by_class"]})
    start = points[0]
    for point, after in zip(points, [*points[1:], None], strict=True):
        sizes = {name: point["by_class"].get(name, 0) for name in classes}
        events.append({"ph": "C", "pid": _COUNTERS, "tid": 0, "ts": point["step"], "name": "live bytes", "args": sizes})
        if after is None or after["moment"] != start["moment"]:
            end = timeline["steps"] if after is None else after["step"]
            events.append(
                {"ph": "X", "pid": _COUNTERS, "tid": 1, "ts": start["step"], "dur": max(end - start["step"], 1),
                 "name": start["moment"]}
            )  # fmt: skip
            start = after or start
    return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": {"unit": "one microsecond is one step"}}


def _held(timeline: Mapping[str, Any]) -> dict[str, Any]:
    """The one moment of a program without temporary memory: what is held throughout."""
    sizes: dict[str, int] = {}
    for name in timeline["resident"]:
        buffer = timeline["buffers"][name]
        sizes[buffer["class"]] = sizes.get(buffer["class"], 0) + buffer["bytes"]
    return {"step": 0, "moment": "no temporary memory", "by_class": sizes}


_FORMATS: Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    ".speedscope.json": speedscope,
    ".trace.json": trace,
}


def check_export(name: str, option: str = "export") -> None:
    """Refuse a file whose name stands for no viewer.

    Raises:
        RejectedError: no viewer's format has this ending.
    """
    if not name.endswith(tuple(_FORMATS)):
        raise reject(option, name, f"must end in {' or '.join(_FORMATS)}", "name the file after the viewer it is for")


def export_text(document: Mapping[str, Any], name: str) -> str:
    """Return the text of a file for a viewer; the end of its name chooses which.

    Raises:
        RejectedError: no viewer's format has this ending, or the audit lacks what the format shows.
    """
    check_export(name)
    made = next(made for ending, made in _FORMATS.items() if name.endswith(ending))
    return json.dumps(made(document), separators=(",", ":"), allow_nan=False) + "\n"
