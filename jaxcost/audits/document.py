"""The audit document: every section from the same evidence, one JSON object (`jaxcost.audit.v1`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

from jaxcost.audits import attribution, collectives, fingerprint, flops, jaxpr, loops, memory, trust
from jaxcost.audits.evidence import FOREIGN, Evidence, Notes, gather
from jaxcost.observation.hlo.module import not_collecting
from jaxcost.observation.hlo.schema import agreeing
from jaxcost.observation.sections import target_section
from jaxcost.observation.sources import Program

SCHEMA = "jaxcost.audit.v1"

# In the order of the document. Each returns its section and leaves findings and unknowns in the notes.
SECTIONS: Mapping[str, Callable[[Evidence, Notes], Any]] = {
    "flops": flops.section,
    "primitives": flops.primitives,
    "jaxpr": jaxpr.section,
    "xla": trust.section,
    "memory": memory.section,
    "collectives": collectives.section,
    "collective_totals": collectives.totals,
    "loops": loops.section,
    "attribution": attribution.section,
    "compiled": fingerprint.section,
}


def audit_document(
    program: Program, *, mesh: Mapping[str, int] | None = None, trips: Mapping[str, int] | None = None
) -> dict[str, Any]:
    """Return the audit of a program as plain data, without the version of the package.

    Raises:
        RejectedError: the module cannot be read.
    """
    # Damage that reading let through shows as an impossible index later on; a compile of our own is not damaged.
    with not_collecting(), agreeing() if program.origin in FOREIGN else nullcontext():
        evidence, notes = gather(program, mesh=mesh, trips=trips), Notes()
        sections = {name: make(evidence, notes) for name, make in SECTIONS.items()}
    reading = evidence.reading
    said = {unknown["reason"] for unknown in notes.unknowns}
    for text in reading.unknowns:
        if text not in said:  # a loop that holds FLOPs is named by them already
            notes.unknown(text, "module", text)
    return {
        "schema": SCHEMA,
        "program": {
            "name": program.name, "origin": program.origin, "module": reading.module, "platform": program.platform,
            "target": target_section(program.target) if program.target else None, "device_count": reading.device_count,
            "mesh": dict(evidence.mesh), "digest": reading.digest,
            "instructions": evidence.graph.module.size,
            "environment": dict(program.environment), "refused": program.refused or None, "notes": list(program.notes),
        },
        "evidence_class": "compiled",
        **sections,
        "unknowns": notes.unknowns,
        "findings": notes.findings,
    }  # fmt: skip
