"""FLOPs of the compiled program, per device and step, and the counts of everything that is no contraction."""

from __future__ import annotations

from typing import Any

from jaxcost.audits.evidence import Evidence, Notes, number


def section(evidence: Evidence, notes: Notes) -> dict[str, Any]:
    """Return FLOPs in total, by phase and by scope (one FMA is two)."""
    found = evidence.reading.contractions
    for row in found.opaque:
        reason = f"{row.target} is opaque: no shape tells what it computes"
        notes.unknown(
            row.name, "kernel", reason, target=row.target, scope=row.scope, shapes=[*row.operands, row.result]
        )
    return {
        "total": number(found.total),
        "by_phase": {phase: number(total) for phase, total in sorted(found.by_phase.items())},
        "by_scope": [
            {"scope": scope, "phase": phase, "flops": number(total)}
            for (scope, phase), total in sorted(found.by_place.items())
        ],
    }


def primitives(evidence: Evidence, notes: Notes) -> dict[str, Any]:
    """Return counts of operations that are no contraction, by kind."""
    return {}
