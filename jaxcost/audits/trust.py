"""What XLA says of itself, beside what was read from the module: right, wrong by how much, or not comparable."""

from __future__ import annotations

from typing import Any

from jaxcost.audits.evidence import Evidence, Notes


def section(evidence: Evidence, notes: Notes) -> dict[str, Any]:
    """Return XLA's own counters and a verdict for each of its figures."""
    table = evidence.program.cost_analysis or {}
    return {
        "flops": table.get("flops"), "bytes_accessed": table.get("bytes accessed"),
        "transcendentals": table.get("transcendentals"), "verdicts": [],
    }  # fmt: skip
