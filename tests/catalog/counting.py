"""A recount of a manifest's parameters that shares nothing with the prediction: a list of arrays, name and shape."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from jaxcost.contracts.architecture import Architecture, Layer, Norm

Array = tuple[str, tuple[int, ...]]


def arrays(architecture: Architecture) -> Iterator[Array]:
    """Every named array of the model, the head of a tied model included."""
    hidden, width, rows = architecture.hidden_size, architecture.table_width, architecture.vocabulary_size
    yield "embed/tokens", (rows, width)
    if architecture.embedding_width:
        yield "embed/project_in", (width, hidden)
        yield "head/project_out", (hidden, width)
    if architecture.learned_positions:
        yield "embed/positions", (architecture.learned_positions.rows, hidden)
    yield from _norm("embed/norm", architecture.embedding_norm, (hidden,))
    for index, group in enumerate(architecture.groups):
        for layer in range(group.repeat):
            yield from _layer(f"group{index}/{layer}", group.layer, hidden)
    yield from _norm("final_norm", architecture.final_norm, (hidden,))
    yield "head", (width, rows)


def _norm(name: str, norm: Norm | None, shape: tuple[int, ...]) -> Iterator[Array]:
    if norm is not None and norm.scale:
        yield f"{name}/scale", shape
    if norm is not None and norm.bias:
        yield f"{name}/bias", shape


def _layer(name: str, layer: Layer, hidden: int) -> Iterator[Array]:
    part, mlp = layer.attention, layer.mlp
    heads = {"q": part.query_heads, "k": part.kv_heads, "v": part.kv_heads}
    biases = {"q": part.query_bias, "k": part.key_bias, "v": part.value_bias}
    for letter, count in heads.items():
        yield f"{name}/{letter}", (hidden, count, part.head_dim)
        if biases[letter]:
            yield f"{name}/{letter}_bias", (count, part.head_dim)
    yield f"{name}/o", (part.query_heads, part.head_dim, hidden)
    if part.output_bias:
        yield f"{name}/o_bias", (hidden,)
    if part.qk_norm:
        whole = part.qk_norm.over == "width"
        for letter in ("q", "k"):
            shape = (heads[letter], part.head_dim) if whole else (part.head_dim,)
            yield from _norm(f"{name}/{letter}_norm", part.qk_norm.norm, shape)
    for letter in ("gate", "up") if mlp.form == "gated" else ("up",):
        yield f"{name}/{letter}", (hidden, mlp.width)
        if mlp.bias:
            yield f"{name}/{letter}_bias", (mlp.width,)
    yield f"{name}/down", (mlp.width, hidden)
    if mlp.bias:
        yield f"{name}/down_bias", (hidden,)
    for which in ("attention_norm", "mlp_norm", "attention_post_norm", "mlp_post_norm"):
        yield from _norm(f"{name}/{which}", getattr(layer, which), (hidden,))


def totals(architecture: Architecture) -> dict[str, int]:
    """Unique and named parameters, and ties."""
    sizes = {name: prod(shape) for name, shape in arrays(architecture)}
    named = sum(sizes.values())
    tied = architecture.tied
    return {"unique": named - (sizes["head"] if tied else 0), "named": named, "ties": int(tied)}
