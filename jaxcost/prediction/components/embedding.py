"""Token rows gathered from the vocabulary table, learned positions added, embedding dropout. A gather does no FLOPs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxcost.prediction.components.dropout import dropout
from jaxcost.prediction.program import Count

if TYPE_CHECKING:
    from jaxcost.prediction.builder import Builder

TABLE = "embed/tokens/weight"


def embed(b: Builder) -> str:
    """Append the embedding and return the residual stream [b, s, d]."""
    arch = b.case.architecture
    tokens = b.tensor("tokens", "b s", "int32", "input", "embed")
    if b.case.workload.phase == "decode":  # also where no table needs it: it places the new rows in the cache
        b.tensor("position", "", "int32", "input", "embed")
    table = b.parameter(TABLE, "v d")
    x = b.lookup("embed/tokens", table, tokens, "b s d")
    if arch.learned_positions:
        rows = b.parameter("embed/positions/weight", "p d")
        if b.case.workload.phase == "decode":
            found = b.lookup("embed/positions", rows, "position", "d")
        else:
            found = b.lookup("embed/positions", rows, tokens, "s d")
        out = b.tensor("embed/sum", "b s d", scope="embed")
        adds = (Count("add", 1, "b s d"),)
        b.primitive("positions", "embed", (x, found), (out,), adds, adds)
        x = out
    return dropout(b, "embed", x, arch.dropout.embedding, "b s d")
