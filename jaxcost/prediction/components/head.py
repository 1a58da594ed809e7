"""Logits: the requested rows times the vocabulary. A tied head uses the embedding's storage at the same FLOPs.

Where the token table is narrower than the layers a projection leads to its width first; a soft cap comes last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxcost.prediction.components.embedding import TABLE
from jaxcost.prediction.components.projection import project
from jaxcost.prediction.components.softcap import softcap

if TYPE_CHECKING:
    from jaxcost.prediction.builder import Builder


def head(b: Builder, x: str) -> str:
    """Append the head on x [b, s, d] and return logits [b, r, v] in the logits dtype."""
    arch = b.case.architecture
    if b.case.workload.logits != "all":
        rows = b.tensor("head/rows", "b r d", scope="head")
        b.primitive("select_rows", "head", (x,), (rows,))
        x = rows
    axes = "r" if b.case.workload.logits != "all" else "s"
    width = "w" if arch.embedding_width else "d"
    if arch.embedding_width:
        x = project(b, "head/project_out", f"b {axes} d, d w -> b {axes} w", x, "d w")
    stored = f"v {width}" if arch.tied else f"{width} v"
    weight = b.parameter("head/weight", stored, storage=TABLE if arch.tied else None)
    spec = f"b {axes} {width}, {stored} -> b {axes} v"
    logits = b.contract("head", spec, x, weight, b.case.state.logits_dtype)
    return softcap(b, "head/softcap", logits, arch.logit_softcap)
