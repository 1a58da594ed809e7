"""Devices as text: one line each, or one of them with its sources and conflicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jaxcost.report.console import console, table
from jaxcost.report.tables import line


def show_devices(devices: Sequence[Mapping[str, Any]]) -> None:
    """Print the devices, one line each; peaks in TFLOP/s, dense."""
    out = console()
    names = ("device", "alias", "BF16", "FP8", "memory", "GB/s", "ridge", "links", "conflicts")
    made = table(*names, right=("BF16", "FP8", "memory", "GB/s", "ridge", "conflicts"))
    for item in devices:
        memory = item["memory"]
        bf16 = _dense(item, "bf16")
        bandwidth = None if memory is None else memory["bandwidth_gb_per_s"]
        made.add_row(
            item["name"],
            item["aliases"][0],
            _number(bf16),
            _number(_dense(item, "fp8")),
            "unknown" if memory is None else f"{memory['capacity']:,} {memory['unit']}",
            _number(bandwidth),
            "unknown" if item["ridge_bf16"] is None else f"{item['ridge_bf16']:,.1f}",
            ", ".join(f"{link['name']} ({link['reach']})" for link in item["links"]) or "unknown",
            str(len(item["conflicts"])),
        )
    out.print(made)
    line(out, "TFLOP/s of dense products, GB/s = 10^9 bytes a second, ridge in FLOP/byte (BF16 over device memory); "
              "figures of one chip. `jaxcost hardware NAME` shows sources, sparse peaks and conflicts.")  # fmt: skip


def show_device(item: Mapping[str, Any]) -> None:
    """Print everything recorded of a device."""
    out = console()
    line(out, f"{item['description']} ({item['name']})", style="bold")
    line(out, f"aliases: {', '.join(item['aliases'])}" + (f"; target {item['target']}" if item["target"] else ""))
    made = table("element type", "path", "dense", "with sparsity", "unit", right=("dense", "with sparsity"))
    for peak in item["peaks"]:
        unit = "TOP/s" if peak["dtype"] == "int8" else "TFLOP/s"
        made.add_row(peak["dtype"], peak["path"], _number(peak["dense"]), _number(peak["sparse"]), unit)
    out.print(made)
    for nominal in item["nominals"]:
        line(out, f"also divided by: {nominal['tera_per_s']:g} ({nominal['dtype']}; {nominal['used_by']})")
    memory = item["memory"]
    if memory is not None:
        size = f"{memory['capacity']:,} {memory['unit']} {memory['type']}"
        line(out, f"memory: {size}, {memory['bandwidth_gb_per_s']:,} GB/s")
    for link in item["links"]:
        line(out, f"link: {_link(link)}")
    if item["tdp_w"]:
        line(out, f"power: {item['tdp_w']:,} W")
    if item["jax_devices_per_chip"] > 1:
        line(out, f"JAX devices on a chip: {item['jax_devices_per_chip']}")
    for title, texts in (
        ("not read", [f"{field}: {reason}" for field, reason in item["missing"].items()]),
        ("recalled, not read", list(item["unverified"])),
        ("conflicts", [_conflict(found) for found in item["conflicts"]]),
        ("notes", list(item["notes"])),
        ("sources", [f"{s['text']}{' (' + s['date'] + ')' if s['date'] else ''}" for s in item["sources"]]),
    ):
        if texts:
            line(out, f"{title}:", style="bold")
            for text in texts:
                line(out, f"- {text}")


def _link(link: Mapping[str, Any]) -> str:
    rates = [
        f"{link[field]:,} {unit}"
        for field, unit in (
            ("per_direction_gb_per_s", "GB/s in one direction"),
            ("bidirectional_gb_per_s", "GB/s in both directions together"),
            ("link_per_direction_gb_per_s", "GB/s of one link in one direction"),
            ("unstated_gbit_per_s", f"Gbit/s a {link['unstated_per']}, direction not stated"),
        )
        if link[field] is not None
    ]
    extent = f", up to {link['extent']:,} chips" if link["extent"] else ""
    shape = f"{link['dimensions']}D torus" if link["dimensions"] else link["topology"]
    unverified = "; recalled, not read: not used" if link["unverified"] else ""
    return f"{link['name']}, {link['reach']}, {shape}{extent}: {', '.join(rates)}{unverified}"


def _conflict(found: Mapping[str, Any]) -> str:
    note = f" ({found['note']})" if found["note"] else ""
    return f"{found['field']}: {found['used']} used, {found['other']} in {found['source']}{note}"


def _dense(item: Mapping[str, Any], dtype: str) -> float | None:
    return next((p["dense"] for p in item["peaks"] if (p["dtype"], p["path"]) == (dtype, "matrix")), None)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.10g}"
