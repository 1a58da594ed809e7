"""A measurement as tables: time, memory by instrument, utilisation, and the rows that were compared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console

from jaxcost.report.console import console, table
from jaxcost.report.numbers import about, exact, signed
from jaxcost.report.tables import line, status_text


def show_measured(data: Mapping[str, Any]) -> None:
    """Print a document `jaxcost.measure.v1`."""
    out = console()
    hardware = data["hardware"]
    line(out, f"{data['model']}, {data['case']['workload']['phase']}, measured", style="bold")
    line(out, f"{hardware['used']} of {hardware['present']} x {hardware['name']} ({hardware['platform']}); "
              + ", ".join(f"{name} {version}" for name, version in data["framework"].items()))  # fmt: skip
    _show_time(out, data["time"], data["compile_seconds"])
    _show_memory(out, data["memory"])
    made = table(
        "row", "predicted", "measured", "residual", "status", "what was seen",
        right=("predicted", "measured", "residual"),
    )  # fmt: skip
    for row in data["report"]["rows"]:
        made.add_row(
            row["counter"], exact(row["prediction"]), exact(row["observation"]), signed(row["residual"]),
            status_text(row["status"]), row.get("reason", ""),
        )  # fmt: skip
    out.print(made)
    _show_utilisation(out, data["utilisation"])
    for finding in data["report"]["findings"]:
        line(out, f"{finding['kind']}: {finding['text']}", style="yellow")
    line(out, f"status: {data['report']['status']}", style="bold")


def _show_time(out: Console, time: Mapping[str, Any], compile_seconds: float) -> None:
    made = table("time of a step", "ns", "ms", right=("ns", "ms"))
    rows = [
        ("minimum", time["minimum_ns"]), *time["percentiles_ns"].items(), ("maximum", time["maximum_ns"]),
        (f"in a window of {time['window']['steps']}", time["window"]["step_ns"]),
        ("first step", time["first_step_ns"]),
    ]  # fmt: skip
    for label, value in rows:
        made.add_row(label, exact(value), f"{value / 1e6:,.3f}")
    out.print(made)
    line(out, f"{time['samples']} samples after {time['warmup_steps']} steps; {time['percentile_rule']}")
    line(out, f"compiled in {compile_seconds:.1f} s; {time['tokens_per_second']:,.1f} tokens/s at the median")


def _show_memory(out: Console, memory: Mapping[str, Any]) -> None:
    made = table("memory", "bytes", "about", "what the instrument sees", right=("bytes", "about"))

    def add(label: str, value: int | None, sees: str) -> None:
        made.add_row(label, exact(value), about(value, "bytes"), sees)

    arrays, driver, process = memory["arrays"], memory["driver"], memory["process"]
    add("arguments, fullest device", max(arrays["argument_bytes"]), arrays["sees"])
    add("results, fullest device", max(arrays["result_bytes"]), "")
    allocator = memory["allocator"]
    last = [item["after"] for item in allocator["devices"]]
    for label, field in (
        ("allocator, in use", "in_use_bytes"), ("allocator, peak", "peak_in_use_bytes"),
        ("allocator, limit", "limit_bytes"),
    ):  # fmt: skip
        values = [item[field] for item in last]
        known = [value for value in values if value is not None]
        add(label, max(known) if known else None, allocator["sees"] if known else last[0].get("reason", ""))
    add("driver, fullest device", max(driver["used_bytes"]) if driver["used_bytes"] else None,
        driver["sees"] if driver["used_bytes"] else driver["reason"])  # fmt: skip
    add("process, host peak", process["peak_resident_bytes"], process["sees"])
    out.print(made)


def _show_utilisation(out: Console, ratios: Mapping[str, Any]) -> None:
    for name in ("mfu", "hfu"):
        ratio = ratios.get(name)
        if ratio is None:
            line(out, f"{name.upper()} unknown: {ratios['reason']}", style="yellow")
            continue
        above, below = ratio["numerator"], ratio["denominator"]
        line(
            out,
            f"{ratio['name']} {100 * ratio['value']:.2f}% = {above['value']:.6g} {above['unit']} ({above['what']}) / "
            f"{below['value']:.6g} {below['unit']} ({below['what']}); {ratio['convention']}",
        )
        for cause in ratio["causes"]:
            line(out, f"  above 100%, perhaps: {cause['text']}", style="bold red")
