"""Memory of one device as the compiler planned it."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from jaxcost.audits.evidence import Evidence, Notes
from jaxcost.observation.sections import Values, plain


def section(evidence: Evidence, notes: Notes) -> dict[str, Any]:
    """Return the bytes of arguments, results and temporaries, and what is live at the peak."""
    memory, values = evidence.reading.memory, Values()
    found = {f.name: plain(getattr(memory, f.name), values) for f in fields(memory) if f.name != "live"}
    return {**found, "at_peak": [plain(row, values) for row in memory.live]}
