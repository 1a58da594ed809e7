"""Attention and MLP side by side on one residual: GPT-NeoX, Falcon, StableLM (each can also be sequential)."""

from __future__ import annotations

from jaxcost.catalog.keys import Keys
from jaxcost.catalog.parts import Data, biases, divided, dropout, group, heads, layer_norm, pre_norm, record, rotary


def gpt_neox(keys: Keys) -> Data:
    """GPT-NeoX (Pythia): two norms in the parallel form, part of each head rotated, q, k and v in one array.

    The released array interleaves q, k and v head by head; the scalars are the same.
    """
    hidden, query = keys.size("hidden_size", 6144), keys.size("num_attention_heads", 64)
    head_dim = divided(keys, hidden, query, "hidden_size", "num_attention_heads")
    for alias, key in (("rope_theta", "rotary_emb_base"), ("partial_rotary_factor", "rotary_pct")):
        if alias in keys.data and keys.get(alias) != keys.data.get(key):
            rule = f"the class takes {key} instead, which is {keys.data.get(key)}"
            keys.problem(alias, keys.data[alias], rule, f"give {key}, or make them equal")
    norm = layer_norm(keys, "layer_norm_eps", 1e-5)
    attention = {
        "query_heads": query,
        "kv_heads": query,
        "head_dim": head_dim,
        **biases(keys.flag("attention_bias", True)),
        "rotary": rotary(keys, head_dim, ("rotary_emb_base", 10000.0), ("rotary_pct", 0.25)),
        "storage": "fused",
    }
    mlp = {
        "form": "classic",
        "width": keys.size("intermediate_size", 24576),
        "activation": keys.activation("hidden_act", "gelu"),
        "bias": True,
    }
    layer = pre_norm(attention, mlp, norm)
    layer["residual"] = "parallel" if keys.flag("use_parallel_residual", True) else "pre"
    rate = keys.rate("hidden_dropout", 0.0)
    return record(
        hidden,
        keys.size("vocab_size", 50432),
        [group(keys.size("num_hidden_layers", 44), layer)],
        norm,
        keys.flag("tie_word_embeddings", False),
        dropout=dropout(rate, keys.rate("attention_dropout", 0.0), rate),
    )


def falcon(keys: Keys) -> Data:
    """Falcon. The old form (7B) has one norm and one K/V head; the new one (40B, 180B) two norms and num_kv_heads.

    num_kv_heads is not read in the old form: multi_query decides between one head and as many as query heads.
    """
    if "n_embed" in keys.data:
        keys.problem("n_embed", keys.get("n_embed"), "versions of the class differ about it", "write hidden_size")
    keys.only("alibi", (False,), "FalconAttention scales its linear biases together with the scores")
    for key in ("hidden_dropout", "attention_dropout"):
        keys.only(key, (0, 0.0), "one mask over the sum of both branches")
    hidden, query = keys.size("hidden_size", 4544), keys.size("num_attention_heads", 71)
    head_dim = divided(keys, hidden, query, "hidden_size", "num_attention_heads")
    new, side = keys.flag("new_decoder_architecture", False), keys.flag("parallel_attn", True)
    one = keys.flag("multi_query", True)
    if new:
        kv = heads(keys, "num_attention_heads", 71, "num_kv_heads", None)[1]
    else:
        kv = 1 if one else query
        keys.read.add("num_kv_heads")
        if not one and keys.given("num_kv_heads") and keys.data["num_kv_heads"] != query:
            rule = "the old form without multi_query has as many K/V heads as query heads"
            keys.problem("num_kv_heads", keys.data["num_kv_heads"], rule, f"write {query}, or remove the key")
    norm = layer_norm(keys, "layer_norm_epsilon", 1e-5)
    bias = keys.flag("bias", False)
    attention = {
        "query_heads": query,
        "kv_heads": kv,
        "head_dim": head_dim,
        **biases(bias),
        "rotary": rotary(keys, head_dim),
        "storage": "fused",
    }
    mlp = {
        "form": "classic",
        "width": keys.size("ffn_hidden_size", 4 * hidden, null=4 * hidden),
        "activation": keys.activation("activation", "gelu"),
        "bias": bias,
    }
    layer = pre_norm(attention, mlp, norm)
    keys.only("num_ln_in_parallel_attn", (None, 1, 2) if new else (None, 1), "the layer has no such norms")
    if side:
        layer["residual"] = "parallel"
        if not new or keys.data.get("num_ln_in_parallel_attn") == 1:
            del layer["mlp_norm"]
    elif new:
        keys.problem("parallel_attn", False, "the new form is always parallel", "correct one of the two flags")
    return record(
        hidden,
        keys.size("vocab_size", 65024),
        [group(keys.size("num_hidden_layers", 32), layer)],
        norm,
        keys.flag("tie_word_embeddings", True),
    )


def stablelm(keys: Keys) -> Data:
    """StableLM: layer norms with a gated MLP, part of each head rotated; one shared norm in the parallel form."""
    keys.only("qk_layernorm", (False,), "a norm of its own for every head")
    keys.only("hidden_dropout", (0, 0.0), "dropout on the MLP branch alone")
    hidden = keys.size("hidden_size", 2560)
    query, kv = heads(keys, "num_attention_heads", 32, "num_key_value_heads", 32)
    head_dim = divided(keys, hidden, query, "hidden_size", "num_attention_heads")
    norm = layer_norm(keys, "layer_norm_eps", 1e-5)
    attention = {
        "query_heads": query,
        "kv_heads": kv,
        "head_dim": head_dim,
        **biases(keys.flag("use_qkv_bias", False), output=False),
        "rotary": rotary(keys, head_dim, fraction=("partial_rotary_factor", 0.25)),
    }
    mlp = {
        "form": "gated",
        "width": keys.size("intermediate_size", 6912),
        "activation": keys.activation("hidden_act", "silu"),
        "bias": False,
    }
    layer = pre_norm(attention, mlp, norm)
    if keys.flag("use_parallel_residual", False):
        layer["residual"] = "parallel"
        del layer["mlp_norm"]
    return record(
        hidden,
        keys.size("vocab_size", 50304),
        [group(keys.size("num_hidden_layers", 32), layer)],
        norm,
        keys.flag("tie_word_embeddings", False),
        dropout=dropout(attention=keys.rate("attention_dropout", 0.0)),
    )
