"""The feed-forward block: gated (gate, up, down) or classic (up, down)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxcost.contracts.architecture import Mlp
from jaxcost.prediction.components.dropout import dropout
from jaxcost.prediction.components.projection import project
from jaxcost.prediction.program import Count

if TYPE_CHECKING:
    from jaxcost.prediction.builder import Builder

WIDE = "b s f"
# Forward and backward counts per element. silu(x) = x / (1 + exp(-x)); gelu by erf; gelu_tanh as in GPT-2.
ACTIVATIONS: dict[str, tuple[tuple[tuple[str, int], ...], tuple[tuple[str, int], ...]]] = {
    "silu": ((("exp", 1), ("add", 1), ("divide", 1)), (("exp", 1), ("add", 3), ("divide", 1), ("multiply", 3))),
    "gelu": ((("erf", 1), ("add", 1), ("multiply", 3)), (("erf", 1), ("exp", 1), ("add", 2), ("multiply", 6))),
    "gelu_tanh": ((("tanh", 1), ("add", 2), ("multiply", 6)), (("tanh", 1), ("add", 4), ("multiply", 11))),
    "relu": ((("max", 1),), (("compare", 1), ("select", 1))),
}


def mlp(b: Builder, spec: Mlp, x: str) -> str:
    """Append the block on x [b, s, d] and return its output [b, s, d]."""
    scope = f"{b.prefix}/mlp"
    wide, narrow = ("f", "d") if spec.bias else ("", "")
    forward, backward = (tuple(Count(kind, n, WIDE) for kind, n in counts) for counts in ACTIVATIONS[spec.activation])
    inputs = []
    fused = f"{scope}/gate_up" if spec.storage == "fused" else ""
    if fused:
        b.parameter(f"{fused}/weight", "d u")
        if spec.bias:
            b.parameter(f"{fused}/bias", "u")
    if spec.form == "gated":
        inputs.append(project(b, f"{scope}/gate", "b s d, d f -> b s f", x, "d f", wide, fused))
        forward = (*forward, Count("multiply", 1, WIDE))
        # both factors of the product need a gradient; the activation itself is evaluated again for the second
        backward = (*backward, *forward[:-1], Count("multiply", 2, WIDE))
    inputs.append(project(b, f"{scope}/up", "b s d, d f -> b s f", x, "d f", wide, fused))
    mixed = b.tensor(f"{scope}/activation/out", WIDE)
    b.primitive(
        f"{spec.form}_{spec.activation}",
        f"{scope}/activation",
        tuple(inputs),
        (mixed,),
        forward,
        backward,
        needs=tuple(inputs),
    )
    out = project(b, f"{scope}/down", "b s f, f d -> b s d", mixed, "f d", narrow)
    return dropout(b, scope, out, b.case.architecture.dropout.residual, "b s d", leaf="out_dropout")
