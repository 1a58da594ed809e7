"""Root-mean-square and layer norm over the hidden axis, interior in fp32.

Backward needs the norm's input; the row statistics are rebuilt from it (they are small, and Korthikanti et al. 2022,
arXiv:2205.05198, leave them out too).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxcost.contracts.architecture import Norm
from jaxcost.prediction.program import Count

if TYPE_CHECKING:
    from jaxcost.prediction.builder import Builder

FULL, ROWS = "b s d", "b s"
STATISTICS = {
    # mean of squares, epsilon, reciprocal root
    "rms": (
        Count("multiply", 1, FULL),
        Count("add", 1, FULL),
        Count("divide", 1, ROWS),
        Count("add", 1, ROWS),
        Count("rsqrt", 1, ROWS),
    ),
    # mean, centred values, mean of squares, epsilon, reciprocal root
    "layer": (
        Count("add", 3, FULL),
        Count("multiply", 1, FULL),
        Count("divide", 2, ROWS),
        Count("add", 1, ROWS),
        Count("rsqrt", 1, ROWS),
    ),
}


def norm(b: Builder, scope: str, spec: Norm, x: str) -> str:
    """Append a norm of x [b, s, d] and return its output in the compute dtype.

    RMS: y = x * r * scale with r = rsqrt(mean(x^2) + epsilon); with g = dy * scale, dx = r * (g - x * r^2 * mean(g *
    x)). Layer norm is the same on x - mean(x), with mean(g) subtracted as well.
    """
    inputs = [x]
    forward: tuple[Count, ...] = (*STATISTICS[spec.kind], Count("multiply", 2 if spec.scale else 1, FULL))
    backward: tuple[Count, ...] = (
        *STATISTICS[spec.kind],
        Count("multiply", 4 if spec.scale else 3, FULL),
        Count("add", 2, FULL),
        Count("divide", 1, ROWS),
    )
    if spec.kind == "layer":
        backward = (*backward, Count("add", 2, FULL), Count("divide", 1, ROWS))
    own: tuple[Count, ...] = ()
    if spec.scale:
        inputs.append(b.parameter(f"{scope}/scale", "d"))
        own = (Count("multiply", 2, FULL), Count("add", 1, FULL))
    if spec.bias:
        inputs.append(b.parameter(f"{scope}/bias", "d"))
        forward = (*forward, Count("add", 1, FULL))
        own = (*own, Count("add", 1, FULL))
    out = b.tensor(f"{scope}/out", FULL)
    b.primitive(f"{spec.kind}_norm", scope, tuple(inputs), (out,), forward, backward, own, needs=(x,))
    return out
