"""Root-mean-square and layer norm, over the hidden axis or over heads of queries and keys; interior in fp32.

Backward needs the norm's input; the row statistics are rebuilt from it (they are small, and Korthikanti et al. 2022,
arXiv:2205.05198, leave them out too).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxcost.contracts.architecture import Norm, QkNorm
from jaxcost.prediction.program import Count

if TYPE_CHECKING:
    from jaxcost.prediction.builder import Builder


def statistics(kind: str, full: str, rows: str) -> tuple[Count, ...]:
    """Return the counts of a norm's row statistics: of its points `full`, `rows` are those left after the mean."""
    if kind == "rms":  # mean of squares, epsilon, reciprocal root
        whole = (Count("multiply", 1, full), Count("add", 1, full))
        return (*whole, Count("divide", 1, rows), Count("add", 1, rows), Count("rsqrt", 1, rows))
    # mean, centred values, mean of squares, epsilon, reciprocal root
    whole = (Count("add", 3, full), Count("multiply", 1, full))
    return (*whole, Count("divide", 2, rows), Count("add", 1, rows), Count("rsqrt", 1, rows))


def norm(
    b: Builder, scope: str, spec: Norm | None, x: str, full: str = "b s d", over: str = "d", learned: str = ""
) -> str:
    """Append a norm of x and return its output in the compute dtype; without one, return x.

    `full` are the axes of x, `over` those it is normalised over, `learned` those of scale and bias (default `over`).

    RMS: y = x * r * scale with r = rsqrt(mean(x^2) + epsilon); with g = dy * scale, dx = r * (g - x * r^2 * mean(g *
    x)). Layer norm is the same on x - mean(x), with mean(g) subtracted as well. An offset of one adds once per scale.
    """
    if spec is None:
        return x
    rows = " ".join(axis for axis in full.split() if axis not in over.split())
    learned = learned or over
    inputs = [x]
    rebuilt = statistics(spec.kind, full, rows)
    if spec.unit_offset and spec.scale:
        rebuilt = (*rebuilt, Count("add", 1, learned))
    forward: tuple[Count, ...] = (*rebuilt, Count("multiply", 2 if spec.scale else 1, full))
    backward: tuple[Count, ...] = (
        *rebuilt,
        Count("multiply", 4 if spec.scale else 3, full),
        Count("add", 2, full),
        Count("divide", 1, rows),
    )
    if spec.kind == "layer":
        backward = (*backward, Count("add", 2, full), Count("divide", 1, rows))
    own: tuple[Count, ...] = ()
    if spec.scale:
        inputs.append(b.parameter(f"{scope}/scale", learned))
        own = (Count("multiply", 2, full), Count("add", 1, full))
    if spec.bias:
        inputs.append(b.parameter(f"{scope}/bias", learned))
        forward = (*forward, Count("add", 1, full))
        own = (*own, Count("add", 1, full))
    out = b.tensor(f"{scope}/out", full)
    b.primitive(f"{spec.kind}_norm", scope, tuple(inputs), (out,), forward, backward, own, needs=(x,))
    return out


def head_norm(b: Builder, scope: str, spec: QkNorm | None, x: str, heads: str) -> str:
    """Append a norm of queries or keys [b, s, heads, e]: every head by itself, or all heads as one width."""
    if spec is None:
        return x
    return norm(b, scope, spec.norm, x, f"b s {heads} e", "e" if spec.over == "head" else f"{heads} e")
