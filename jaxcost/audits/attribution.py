"""Where the cost is: by module path, function and source line."""

from __future__ import annotations

from typing import Any

from jaxcost.audits.evidence import Evidence, Notes


def section(evidence: Evidence, notes: Notes) -> dict[str, Any]:
    """Return the tree of scopes with the FLOPs and bytes below each."""
    return {"tree": []}
