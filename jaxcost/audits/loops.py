"""The loops of the compiled program and where their trip counts are from."""

from __future__ import annotations

from typing import Any

from jaxcost.audits.evidence import Evidence, Notes
from jaxcost.observation.sections import Values, plain


def section(evidence: Evidence, notes: Notes) -> list[dict[str, Any]]:
    """Return one row per loop."""
    return [plain(loop, Values()) for loop in evidence.reading.loops]
