"""Rooflines as text: the step between its idealisations, each scope, each op, the collectives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jaxcost.report.console import console, table
from jaxcost.report.numbers import about, exact
from jaxcost.report.tables import line
from jaxcost.report.values import case_values

IDEALISATIONS = {
    "full_overlap": "every resource works all the time: the longest of the three",
    "ops_in_order": "ops follow one another, each overlaps its own two; exposed communication on top",
    "serialised": "arithmetic, then traffic, then communication",
}
NEITHER = "Idealisations, not promises: none of them bounds a real program from above."
_PREFIXES = ((1, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))
_OPS_SHOWN = 12
REGIME_COLUMNS = (
    "phase", "batch", "visible", "weights alone", "projections", "attention", "projections bound by",
    "attention bound by", "step", "time", "tokens/s", "arguments",
)  # fmt: skip
POINT_COLUMNS = (
    "FLOPs", "bytes", "FLOP/byte", "ceiling", "a: arithmetic", "b: traffic", "max(a, b)", "a + b", "bound by"
)  # fmt: skip
# What the other columns say again, or nearly.
DISPENSABLE = ("a + b", "ceiling", "b: traffic", "a: arithmetic", "bytes")


def seconds_text(value: float | None) -> str:
    """Return a time with its unit; unknown is said."""
    if value is None:
        return "unknown"
    if value == 0:
        return "0"
    step, unit = next(((step, unit) for step, unit in _PREFIXES if abs(value) >= step), _PREFIXES[-1])
    return f"{value / step:.4g} {unit}"


def rate_text(value: float | None, unit: str = "FLOP/s") -> str:
    """Return a rate in 10^12 a second, or smaller where it is small; `none` for an op without FLOPs."""
    if value is None:
        return "none"
    step, name = next(((s, n) for s, n in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")) if value >= s), (1.0, ""))
    return f"{value / step:,.4g} {name}{unit}"


def intensity_text(value: float | None) -> str:
    """Return FLOPs a byte."""
    return "unknown" if value is None else f"{value:,.4g}"


def show_roofline(data: Mapping[str, Any], rows: bool = False) -> None:
    """Print a document `jaxcost.roofline.v1`; `rows` shows every op and collective."""
    out = console()
    device, step = data["device"], data["step"]
    number = device["devices"]
    line(out, f"{data['case']['architecture']['name']} on {number} x {device['name']}", style="bold")
    line(out, "values used: " + "  ".join(f"{name}={value}" for name, value in case_values(data["case"])))
    line(out, f"peak: {device['peak']['label']}")
    for text in ridge_lines(data):
        line(out, text)
    made = table("step", "time", "MFU there", "what it assumes", right=("time", "MFU there"))
    for name, text in IDEALISATIONS.items():
        at = step["mfu_at"][name]
        made.add_row(
            name.replace("_", " "), seconds_text(step["seconds"][name]), "" if at is None else f"{100 * at:.1f}%", text
        )
    out.print(made)
    line(out, verdict(data), style="bold")
    line(out, NEITHER)
    if step["reason"]:
        line(out, f"unknown: {step['reason']}")
    _show_points(out, "scope", data["scopes"], len(data["scopes"]))
    ops = sorted(data["ops"], key=lambda op: -op["overlapped_seconds"])
    _show_points(out, "op", ops, len(ops) if rows else _OPS_SHOWN)
    _show_collectives(out, data, rows)
    if data["regimes"]:
        made = table(*REGIME_COLUMNS, right=REGIME_COLUMNS[1:6] + REGIME_COLUMNS[8:])
        for cells in regime_rows(data):
            made.add_row(*cells)
        out.print(made)
        line(out, crossing_line(data))
    if data["measured"]:
        for text in measured_lines(data["measured"]):
            line(out, text)
    for text in compiler_lines(data):
        line(out, text)
    for title, texts in (("conflicting figures", conflict_lines(device)), ("notes", data["notes"])):
        if texts:
            line(out, f"{title}:", style="bold")
            for text in texts:
                line(out, f"- {text}")
    line(out, "left out: " + "; ".join(data["omitted"]))


def verdict(data: Mapping[str, Any]) -> str:
    """Return in one sentence which resource takes longest, with the three times."""
    step = data["step"]
    times = {
        "arithmetic": step["compute_seconds"],
        "memory traffic": step["memory_seconds"],
        "communication": step["communication_seconds"],
    }
    longest = {"compute": "arithmetic", "memory": "memory traffic", "interconnect": "communication"}.get(step["bound"])
    told = ", ".join(f"{name} {seconds_text(value)}" for name, value in times.items())
    return f"{longest or 'unknown which'} takes longest: {told}"


def ridge_lines(data: Mapping[str, Any]) -> list[str]:
    """Return a line per boundary: its rate, its ridge point, and the step's intensity against it."""
    device, found = data["device"], []
    sent = sum(c["times"] * (c["inside_bytes"] or 0) for c in data["collectives"])
    across = sum(c["times"] * (c["between_bytes"] or 0) for c in data["collectives"])
    flops = data["step"]["flops"]
    links = {link["reach"]: link for link in device["links"]}
    for name, ridge in data["ridge_points"].items():
        if name == "device memory":
            rate, size = device["memory_bytes_per_second"], data["step"]["bytes"]
        else:
            rate, size = links[name]["bytes_per_second"], across if name == "between" else sent
        if name != "device memory" and not size:  # nothing of the step crosses it
            continue
        if ridge is None:
            found.append(f"ridge against {name}: unknown ({links[name]['reason']})")
            continue
        step = intensity_text(flops / size if size else None)
        found.append(f"ridge against {name}: {ridge:,.4g} FLOP/byte at {rate / 1e9:,.5g} GB/s; the step has {step}")
    return found


def regime_rows(data: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return the cells of one line for each regime, by `REGIME_COLUMNS`."""
    return [
        (
            item["phase"], exact(item["batch"]), exact(item["visible_tokens"]),
            *(intensity_text(item[f"{name}_intensity"]) for name in ("weight_only", "projections", "attention")),
            item["projections_bound"], item["attention_bound"], intensity_text(item["step_intensity"]),
            seconds_text(item["overlapped_seconds"]), f"{item['tokens_per_second']:,.4g}",
            (about(item["argument_bytes"], "bytes") or exact(item["argument_bytes"]))
            + (" exceed the device" if item["arguments_fit"] is False else ""),
        )
        for item in data["regimes"]
    ]  # fmt: skip


def crossing_line(data: Mapping[str, Any]) -> str:
    """Return at which of the batches products with weights leave the memory bound, and that attention may not."""
    ridge = f"the ridge of {data['ridge_points']['device memory']:,.4g} FLOP/byte"
    crossed = [item["batch"] for item in data["regimes"] if item["projections_bound"] != "memory"]
    if not crossed:
        return f"at none of these batches do the products with weights cross {ridge}"
    held = [i["batch"] for i in data["regimes"] if i["projections_bound"] != "memory" and i["step_bound"] == "memory"]
    still = "; attention keeps the step bound by memory there" if held else ""
    lost = [item["batch"] for item in data["regimes"] if item["arguments_fit"] is False]
    over = f"; from {min(lost):,} on the arguments alone exceed the device" if lost else ""
    return f"{min(crossed):,} is the first of these batches whose products with weights cross {ridge}{still}{over}"


def measured_lines(found: Mapping[str, Any]) -> list[str]:
    """Return what a measured time says."""
    mfu, hfu = found["mfu"], found["hfu"]
    share = found["share_of_full_overlap"]
    part = "" if share is None else f", {100 * share:.1f}% of the rate at full overlap"
    lines = [
        f"measured {seconds_text(found['seconds'])}: MFU {100 * mfu['value']:.2f}%, HFU {100 * hfu['value']:.2f}%{part}"
    ]
    lines += [
        f"{found['status'].upper()}: faster than the bound, which no program with these counts is. Likely causes:"
    ] * (found["status"] == "inconsistent")
    return lines + [f"- {cause['text']}" for cause in found["causes"]]


def compiler_lines(data: Mapping[str, Any]) -> list[str]:
    """Return the compiler's own estimates in words, with the shares of its cycles by scope beside ours."""
    found = data["compiler"]
    value = "unknown"
    if found["seconds"] is not None:
        value = f"{found['seconds']:.4g} s" if found["seconds"] <= 0 else seconds_text(found["seconds"])
    place = f" for {found['target']}" if found["target"] else ""
    lines = [f"the compiler's own estimate{place}: {value}, covering {found['covers']} ({found['reason']})"]
    if found["target"] and found["cycles"] is None:
        lines.append(f"its cycles: unknown ({found['cycles_reason']})")
    if found["cycles"] is not None:
        at = ", a time only at a clock rate (--clock-ghz)"
        if found["cycle_seconds"] is not None:
            at = f", {seconds_text(found['cycle_seconds'])} at {found['clock_hz'] / 1e9:g} GHz as declared"
        lines.append(f"its cycles of the compute units, loops counted: {found['cycles']:,}{at}")
        lines.append(f"share of its cycles, and of our time: {', '.join(_shares(data))}")
        none = ", ".join(f"{name} {exact(count)}" for name, count in found["without_estimate"].items())
        lines.append(f"executions it gives no estimate: {none or 'none'}")
    return lines


def _shares(data: Mapping[str, Any]) -> list[str]:
    """Return `scope 40% and 38%` for each scope, the compiler's share first; work in no scope is `elsewhere`."""
    theirs: dict[str, int] = {}
    for row in data["compiler"]["cycles_by_place"]:
        parts = row["scope"].split("/")
        scope = "/".join(parts[: 2 if parts[0].startswith("group") else 1])
        theirs[scope] = theirs.get(scope, 0) + (row["cycles"] or 0)
    ours = {item["scope"]: item["overlapped_seconds"] for item in data["scopes"]}
    whole, time = sum(theirs.values()) or 1, sum(ours.values()) or 1
    named = [name for name in ours if name in theirs]
    told = [f"{name} {100 * theirs[name] / whole:.0f}% and {100 * ours[name] / time:.0f}%" for name in named]
    rest = sum(cycles for name, cycles in theirs.items() if name not in named)
    return [*told, f"elsewhere {100 * rest / whole:.0f}%"]


def conflict_lines(device: Mapping[str, Any]) -> list[str]:
    """Return the figures of a device on which sources disagree."""
    return [
        f"{item['field']}: {item['used']} used, {item['other']} in {item['source']}"
        + (f" ({item['note']})" if item["note"] else "")
        for item in device["conflicts"]
    ]


def _show_points(out: Any, kind: str, points: Sequence[Mapping[str, Any]], shown: int) -> None:
    phases = any(point["phase"] for point in points)
    names = (kind, *(("phase",) if phases else ()), *POINT_COLUMNS)
    made = table(*names, right=names[2 if phases else 1 : -1], optional=DISPENSABLE)
    for point in points[:shown]:
        made.add_row(
            point["scope"],
            *((point["phase"],) if phases else ()),
            about(point["flops"], "FLOPs") or exact(point["flops"]),
            about(point["bytes"], "bytes") or exact(point["bytes"]),
            intensity_text(point["intensity"]),
            rate_text(point["ceiling_flops_per_second"]),
            seconds_text(point["compute_seconds"]),
            seconds_text(point["memory_seconds"]),
            seconds_text(point["overlapped_seconds"]),
            seconds_text(point["serial_seconds"]),
            point["bound"],
        )
    out.print(made)
    if len(points) > shown:
        line(out, f"{len(points) - shown} more {kind}s with --rows")


def _show_collectives(out: Any, data: Mapping[str, Any], rows: bool) -> None:
    if not data["collectives"]:
        return
    made = table("axis", "communication", "overlap declared", right=("communication", "overlap declared"))
    for axis, seconds in data["communication_by_axis"].items():
        given = "none"
        if data["overlap"] is not None:
            given = f"{100 * min(data['overlap'].get(part, 0) for part in axis.split(',')):.0f}%"
        made.add_row(axis, seconds_text(seconds), given)
    out.print(made)
    if not rows:
        return
    names = ("collective", "phase", "kind", "axis", "times", "inside", "between", "time")
    made = table(*names, right=("times", "inside", "between", "time"))
    for item in data["collectives"]:
        sizes = (
            about(item[f"{reach}_bytes"], "bytes") or exact(item[f"{reach}_bytes"]) for reach in ("inside", "between")
        )
        made.add_row(
            item["object"], item["phase"], item["kind"], item["axis"], exact(item["times"]), *sizes,
            seconds_text(item["seconds"]),
        )  # fmt: skip
    out.print(made)
