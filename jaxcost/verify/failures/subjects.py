"""The small cases on which faults are planted, each with the feature some fault needs. Built when first asked for."""

from __future__ import annotations

from functools import cache
from typing import Any

from jaxcost.catalog import load
from jaxcost.contracts.architecture import (
    Architecture,
    Attention,
    Dropout,
    Layer,
    LayerGroup,
    LearnedPositions,
    Mlp,
    Norm,
    Rotary,
)
from jaxcost.contracts.case import Case, build_case
from jaxcost.verify.strategies import altered, build_architecture

RMS = Norm(kind="rms", epsilon=1e-5, scale=True, bias=False)


@cache
def toy(tied: bool = True) -> Architecture:
    """Two layers of grouped-query attention (4 query, 2 K/V heads of width 2) and a gated MLP of width 12; V = 16."""
    attention = Attention(
        query_heads=4, kv_heads=2, head_dim=2, query_bias=False, key_bias=False, value_bias=False, output_bias=False,
        rotary=Rotary(theta=10000.0, dimensions=2),
    )  # fmt: skip
    layer = Layer(
        residual="pre", attention=attention, mlp=Mlp(form="gated", width=12, activation="silu", bias=False),
        attention_norm=RMS, mlp_norm=RMS,
    )  # fmt: skip
    return build_architecture(
        hidden_size=8, vocabulary_size=16, groups=(LayerGroup(repeat=2, layer=layer),), final_norm=RMS, tied=tied,
        dropout=Dropout(embedding=0.0, attention=0.0, residual=0.0), learned_positions=None,
    )  # fmt: skip


# The liveness fixture of the cost model: five intervals whose fullest cut is 448 bytes.
EVENTS = {
    "objects": [
        {"name": "hidden", "bytes": 64, "birth": 0.0, "death": 5.0, "kind": "tensor"},
        {"name": "projections", "bytes": 128, "birth": 1.0, "death": 5.0, "kind": "tensor"},
        {"name": "scores", "bytes": 128, "birth": 2.0, "death": 4.0, "kind": "tensor"},
        {"name": "workspace", "bytes": 128, "birth": 2.0, "death": 3.0, "kind": "workspace"},
        {"name": "probabilities", "bytes": 128, "birth": 3.0, "death": 5.0, "kind": "tensor"},
    ],
    "persistent_bytes": 0,
}


def with_attention(architecture: Architecture, **changes: Any) -> Architecture:
    """Return the architecture with fields of every layer's attention changed."""
    return _relayered(architecture, lambda layer: layer.replaced(attention=layer.attention.replaced(**changes)))


def with_mlp(architecture: Architecture, **changes: Any) -> Architecture:
    """Return the architecture with fields of every layer's MLP changed."""
    return _relayered(architecture, lambda layer: layer.replaced(mlp=layer.mlp.replaced(**changes)))


def _relayered(architecture: Architecture, change: Any) -> Architecture:
    groups = tuple(group.replaced(layer=change(group.layer)) for group in architecture.groups)
    return altered(architecture, groups=groups)


@cache
def biased() -> Architecture:
    """The toy with biases on q, k and v, layer norms with bias, learned positions instead of rotary."""
    plain = with_attention(toy(), query_bias=True, key_bias=True, value_bias=True, rotary=None)
    norm = Norm(kind="layer", epsilon=1e-5, scale=True, bias=True)
    return altered(plain, final_norm=norm, learned_positions=LearnedPositions(rows=6))


@cache
def released() -> Architecture:
    """A released model, wide enough for the peak policies to speak about: 0.49 B parameters."""
    return load("qwen2.5-0.5b").architecture


def train(architecture: Architecture | None = None, **options: Any) -> Case:
    """Return a training case of the toy: 2 sequences of 4 tokens."""
    return build_case(architecture or toy(), {"phase": "training", "batch": 2, "seq": 4, **options})


def prefill(architecture: Architecture | None = None, **options: Any) -> Case:
    """Return a prefill case of the toy: 1 prompt of 4 tokens, final-row logits."""
    return build_case(architecture or toy(), {"phase": "prefill", "batch": 1, "seq": 4, **options})


def decode(architecture: Architecture | None = None, **options: Any) -> Case:
    """Return a decode case of the toy: 2 sequences, one new token over 7 cached."""
    return build_case(architecture or toy(), {"phase": "decode", "batch": 2, "past": 7, **options})
