"""Gemma: scaled embeddings, norms of one plus the scale, GeGLU, tied heads of 256."""

from __future__ import annotations

import math

from jaxcost.catalog.keys import Keys
from jaxcost.catalog.parts import (
    Data,
    biases,
    dropout,
    group,
    heads,
    layer_kinds,
    optional_window,
    pre_norm,
    record,
    rms_norm,
    rotary,
    windows,
)


def gemma(keys: Keys) -> Data:
    """Gemma 1. hidden_activation, where given, overwrites the legacy hidden_act (docstring of GemmaConfig 4.57.6).

    The first releases say hidden_act gelu and mean its tanh form (GemmaConfig 5.24 replaces it and says so).
    """
    keys.only("use_bidirectional_attention", (None, False), "tokens would see the tokens after them")
    key = "hidden_activation" if keys.given("hidden_activation") else "hidden_act"
    keys.read.update(("hidden_activation", "hidden_act"))
    attention, mlp, norm, hidden = _parts(keys, key, (3072, 24576, 16, 16))
    if key == "hidden_act" and keys.data.get(key) == "gelu":
        mlp["activation"] = "gelu_tanh"
    layers = keys.size("num_hidden_layers", 28)
    return _record(keys, hidden, [group(layers, pre_norm(attention, mlp, norm))], norm)


def gemma2(keys: Keys) -> Data:
    """Gemma 2: norms on both sides of a branch, soft caps, and a window on every other layer from the first on."""
    keys.only("use_bidirectional_attention", (None, False), "tokens would see the tokens after them")
    attention, mlp, norm, hidden = _parts(keys, "hidden_activation", (2304, 9216, 8, 4))
    if "hidden_act" in keys.data and keys.get("hidden_act") != keys.data.get("hidden_activation", "gelu_pytorch_tanh"):
        rule = "the class reads hidden_activation alone, which differs"
        keys.problem("hidden_act", keys.data["hidden_act"], rule, "remove one of the two")
    scalar = keys.positive("query_pre_attn_scalar", 256.0)
    if scalar != attention["head_dim"]:
        attention["scale"] = 1 / math.sqrt(scalar)
    cap = keys.optional("attn_logit_softcapping", 50.0)
    attention |= {"score_softcap": cap} if cap else {}
    layers = keys.size("num_hidden_layers", 26)
    kinds = layer_kinds(keys, layers, [layer % 2 == 0 for layer in range(layers)])
    window = optional_window(keys, 4096)
    if window is None and any(kinds):
        rule = "layers with a window need its size"
        keys.problem("sliding_window", None, rule, "copy it, or give layer_types of full_attention alone")
    layer = {
        "residual": "both",
        "attention": attention,
        "mlp": mlp,
        **dict.fromkeys(("attention_norm", "mlp_norm", "attention_post_norm", "mlp_post_norm"), norm),
    }
    cap = keys.optional("final_logit_softcapping", 30.0)
    rest = {"logit_softcap": cap} if cap else {}
    return _record(keys, hidden, [group(layers, layer, windows(kinds, window))], norm, **rest)


def _parts(keys: Keys, activation: str, sizes: tuple[int, int, int, int]) -> tuple[Data, Data, Data, int]:
    hidden, width, query, kv = sizes
    hidden = keys.size("hidden_size", hidden)
    query, kv = heads(keys, "num_attention_heads", query, "num_key_value_heads", kv)
    head_dim = keys.size("head_dim", 256)
    attention = {
        "query_heads": query,
        "kv_heads": kv,
        "head_dim": head_dim,
        **biases(keys.flag("attention_bias", False)),
        "rotary": rotary(keys, head_dim),
    }
    mlp = {
        "form": "gated",
        "width": keys.size("intermediate_size", width),
        "activation": keys.activation(activation, "gelu_pytorch_tanh"),
        "bias": False,
    }
    return attention, mlp, rms_norm(keys, "rms_norm_eps", 1e-6, unit_offset=True), hidden


def _record(keys: Keys, hidden: int, groups: list[Data], norm: Data, **rest: float) -> Data:
    return record(
        hidden,
        keys.size("vocab_size", 256000),
        groups,
        norm,
        keys.flag("tie_word_embeddings", True),
        dropout=dropout(attention=keys.rate("attention_dropout", 0.0)),
        embedding_scale=math.sqrt(hidden),
        **rest,
    )
