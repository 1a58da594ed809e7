"""The jaxpr's count beside the compiled one."""

from __future__ import annotations

from typing import Any

from jaxcost.audits.evidence import Evidence, Notes


def section(evidence: Evidence, notes: Notes) -> dict[str, Any] | None:
    """Return the count of the jaxpr; None where the source had none."""
    lowered = evidence.program.lowered
    return dict(lowered.jaxpr) if lowered is not None and lowered.jaxpr is not None else None
