"""Every transfer between devices, with payload, axes and trips."""

from __future__ import annotations

from typing import Any

from jaxcost.audits.evidence import Evidence, Notes, number


def section(evidence: Evidence, notes: Notes) -> list[dict[str, Any]]:
    """Return one row per collective."""
    return [
        {
            "name": row.name, "kind": row.kind, "form": row.form, "axes": None if row.axes is None else list(row.axes),
            "group_size": row.group_size, "dtype": row.dtype, "operand_bytes": row.operand_bytes,
            "result_bytes": row.result_bytes, "executions": number(row.executions),
            "total_operand_bytes": number(row.total_operand_bytes),
            "total_result_bytes": number(row.total_result_bytes), "scope": row.scope, "phase": row.phase,
            "source": row.source, "nodes": row.nodes,
        }
        for row in evidence.reading.collectives.rows
    ]  # fmt: skip
