"""A soft cap, c tanh(x / c): bounds scores or logits to (-c, c). Backward needs the capped values alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxcost.prediction.program import Count

if TYPE_CHECKING:
    from jaxcost.prediction.builder import Builder


def softcap(b: Builder, scope: str, x: str, cap: float | None, scaled: bool = False) -> str:
    """Append the cap on x where there is one and return the output; `scaled` also multiplies x by a constant first.

    dx = dy * (1 - (y / c)^2), since the c before the tanh and that inside cancel.
    """
    if cap is None:
        return x
    tensor = b.tensors[x]
    out = b.tensor(f"{scope}/out", tensor.axes, tensor.dtype, tensor.role)
    scale = int(scaled)
    forward = (
        Count("multiply", 1 + scale, tensor.axes),
        Count("divide", 1, tensor.axes),
        Count("tanh", 1, tensor.axes),
    )
    backward = (
        Count("multiply", 2 + scale, tensor.axes),
        Count("divide", 1, tensor.axes),
        Count("add", 1, tensor.axes),
    )
    b.primitive("softcap", scope, (x,), (out,), forward, backward, needs=(out,))
    return out
