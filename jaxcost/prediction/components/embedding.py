"""Token rows gathered from the vocabulary table, then what stands before the first layer. A gather does no FLOPs.

In order: scale, projection to the hidden width, positions (learned ones are looked up, sinusoidal ones are a table that
is not stored), norm, dropout.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxcost.prediction.components.dropout import dropout
from jaxcost.prediction.components.norm import norm
from jaxcost.prediction.components.projection import project
from jaxcost.prediction.program import Count

if TYPE_CHECKING:
    from jaxcost.prediction.builder import Builder

TABLE = "embed/tokens/weight"


def embed(b: Builder) -> str:
    """Append the embedding and return the residual stream [b, s, d]."""
    arch = b.case.architecture
    tokens = b.tensor("tokens", "b s", "int32", "input", "embed")
    if b.case.workload.continues:  # also where no table needs it: it places the new rows in the cache
        b.tensor("position", "", "int32", "input", "embed")
    width = "w" if arch.embedding_width else "d"
    x = b.lookup("embed/tokens", b.parameter(TABLE, f"v {width}"), tokens, f"b s {width}")
    if arch.embedding_scale is not None:
        scaled = b.tensor("embed/scale/out", f"b s {width}")
        multiplies = (Count("multiply", 1, f"b s {width}"),)
        b.primitive("scale", "embed/scale", (x,), (scaled,), multiplies, multiplies)
        x = scaled
    if arch.embedding_width:
        x = project(b, "embed/project_in", "b s w, w d -> b s d", x, "w d")
    x = _positions(b, x, tokens)
    x = norm(b, "embed/norm", arch.embedding_norm, x)
    return dropout(b, "embed", x, arch.dropout.embedding, "b s d")


def _positions(b: Builder, x: str, tokens: str) -> str:
    """Append the positions added to the embedding [b, s, d], where there are any."""
    arch = b.case.architecture
    added: tuple[str, ...] = ()
    if arch.learned_positions:
        rows = b.parameter("embed/positions/weight", "p d")
        if b.case.workload.phase == "decode":
            found = b.lookup("embed/positions", rows, "position", "d")
        else:
            found = b.lookup("embed/positions", rows, tokens, "s d")
        added = (found,)
    elif not arch.sinusoidal_positions:
        return x
    out = b.tensor("embed/sum", "b s d", scope="embed")
    adds = (Count("add", 1, "b s d"),)
    b.primitive("positions", "embed", (x, *added), (out,), adds, adds)
    return out
