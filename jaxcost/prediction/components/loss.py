"""Cross entropy of every row but the last, whose label lies outside the step; its logits are computed all the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxcost.prediction.program import Count

if TYPE_CHECKING:
    from jaxcost.prediction.builder import Builder

FULL, ROWS = "b s v", "b s"


def loss(b: Builder, logits: str) -> str:
    """Append log-sum-exp minus the label's logit, the mask and the mean; backward needs the logits."""
    out = b.tensor("loss/out", "", "fp32", "output")
    forward = (
        Count("max", 1, FULL),
        Count("add", 2, FULL),
        Count("exp", 1, FULL),
        Count("log", 1, ROWS),
        Count("add", 3, ROWS),
        Count("gather", 1, ROWS),
        Count("compare", 1, ROWS),
        Count("select", 1, ROWS),
        Count("divide", 1, ""),
    )
    # dlogits = (exp(logits - lse) - onehot) * weight
    backward = (Count("add", 2, FULL), Count("exp", 1, FULL), Count("compare", 1, FULL), Count("multiply", 1, FULL))
    b.primitive("cross_entropy", "loss", (logits, "tokens"), (out,), forward, backward, needs=(logits, "tokens"))
    return out
