"""Logits: the requested rows times the vocabulary. A tied head uses the embedding's storage at the same FLOPs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxcost.prediction.components.embedding import TABLE

if TYPE_CHECKING:
    from jaxcost.prediction.builder import Builder


def head(b: Builder, x: str) -> str:
    """Append the head on x [b, s, d] and return logits [b, r, v] in the logits dtype."""
    if b.case.workload.logits != "all":
        rows = b.tensor("head/rows", "b r d", scope="head")
        b.primitive("select_rows", "head", (x,), (rows,))
        x = rows
    axes = "r" if b.case.workload.logits != "all" else "s"
    dtype = b.case.state.logits_dtype
    if b.case.architecture.tied:
        weight = b.parameter("head/weight", "v d", storage=TABLE)
        return b.contract("head", f"b {axes} d, v d -> b {axes} v", x, weight, dtype)
    weight = b.parameter("head/weight", "d v")
    return b.contract("head", f"b {axes} d, d v -> b {axes} v", x, weight, dtype)
