"""Layer norms and a classic MLP, one branch after the other: GPT-2, GPT-BigCode, OPT, StarCoder2."""

from __future__ import annotations

from jaxcost.catalog.families.llama import present_head_dim
from jaxcost.catalog.keys import Keys
from jaxcost.catalog.parts import (
    Data,
    biases,
    divided,
    dropout,
    group,
    heads,
    layer_norm,
    optional_window,
    pre_norm,
    record,
    rotary,
)

GPT2_NAMES = {
    "hidden_size": "n_embd",
    "max_position_embeddings": "n_positions",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
}


def gpt2(keys: Keys) -> Data:
    """GPT-2. The released c_attn holds q, k and v side by side; they are declared apart, the same scalars."""
    return _gpt2(keys, kv_heads=None, activation="gelu_new")


def gpt_bigcode(keys: Keys) -> Data:
    """GPT-BigCode (SantaCoder, StarCoder): GPT-2 with one K/V head for all query heads."""
    for key in ("attention_softmax_in_fp32", "scale_attention_softmax_in_fp32"):
        keys.only(key, (True, False), "the state policy decides the type of scores, and softmax is inside fp32")
    one = keys.flag("multi_query", True)
    heads_key = next((key for key in ("n_head", "num_attention_heads") if key in keys.data), "n_head")
    keys.only("num_key_value_heads", (1 if one else keys.data.get(heads_key, 12),), "follows from multi_query")
    return _gpt2(keys, kv_heads=1 if one else None, activation="gelu_pytorch_tanh", storage="fused")


def _gpt2(keys: Keys, kv_heads: int | None, activation: str, storage: str = "separate") -> Data:
    keys.rename(GPT2_NAMES)
    hidden, query = keys.size("n_embd", 768), keys.size("n_head", 12)
    for key, allowed in (
        ("scale_attn_weights", True),
        ("scale_attn_by_inverse_layer_idx", False),
        ("reorder_and_upcast_attn", False),
    ):
        keys.only(key, (allowed,), "changes how scores are computed")
    norm = layer_norm(keys, "layer_norm_epsilon", 1e-5)
    attention: Data = {
        "query_heads": query,
        "kv_heads": kv_heads or query,
        "head_dim": divided(keys, hidden, query, "n_embd", "n_head"),
        **biases(True),
    }
    attention |= {"storage": storage} if storage != "separate" else {}
    mlp = {
        "form": "classic",
        "width": keys.size("n_inner", 4 * hidden, null=4 * hidden),
        "activation": keys.activation("activation_function", activation),
        "bias": True,
    }
    rates = {"embedding": "embd_pdrop", "attention": "attn_pdrop", "residual": "resid_pdrop"}
    return record(
        hidden,
        keys.size("vocab_size", 50257),
        [group(keys.size("n_layer", 12), pre_norm(attention, mlp, norm))],
        norm,
        keys.flag("tie_word_embeddings", True),
        dropout={name: keys.rate(key, 0.1) for name, key in rates.items()},
        learned_positions={"rows": keys.size("n_positions", 1024)},
    )


def opt(keys: Keys) -> Data:
    """OPT: two rows of the position table before the first position; norms after the residual in OPT-350M.

    word_embed_proj_dim, where it differs from hidden_size, adds unbiased projections after the token table and before
    the head. Post-norm models have no final norm, and neither have those with _remove_final_layer_norm.
    """
    keys.only("layerdrop", (0, 0.0), "drops whole layers in training")
    keys.only("activation_dropout", (0, 0.0), "the class has no dropout inside the MLP")
    hidden, query = keys.size("hidden_size", 768), keys.size("num_attention_heads", 12)
    bias = keys.flag("enable_bias", True)
    affine = keys.flag("layer_norm_elementwise_affine", True)
    norm = layer_norm(keys, None, 1e-5, scale=affine, bias=affine)
    attention: Data = {
        "query_heads": query,
        "kv_heads": query,
        "head_dim": divided(keys, hidden, query, "hidden_size", "num_attention_heads"),
        **biases(bias),
    }
    mlp = {
        "form": "classic",
        "width": keys.size("ffn_dim", 3072),
        "activation": keys.activation("activation_function", "relu"),
        "bias": bias,
    }
    before = keys.flag("do_layer_norm_before", True)
    layer = pre_norm(attention, mlp, norm)
    if not before:
        layer = {
            "residual": "post",
            "attention": attention,
            "mlp": mlp,
            "attention_post_norm": norm,
            "mlp_post_norm": norm,
        }
    removed = keys.flag("_remove_final_layer_norm", False)
    width = keys.size("word_embed_proj_dim", hidden, null=hidden)
    rest: Data = {"embedding_width": width} if width != hidden else {}
    return record(
        hidden,
        keys.size("vocab_size", 50272),
        [group(keys.size("num_hidden_layers", 12), layer)],
        norm if before and not removed else None,
        keys.flag("tie_word_embeddings", True),
        dropout=dropout(0.0, keys.rate("attention_dropout", 0.0), keys.rate("dropout", 0.1)),
        learned_positions={"rows": keys.size("max_position_embeddings", 2048) + 2, "offset": 2},
        **rest,
    )


def starcoder2(keys: Keys) -> Data:
    """StarCoder2: grouped queries with rotary positions, layer norms, a classic MLP; tied unless the key says no."""
    hidden = keys.size("hidden_size", 3072)
    query, kv = heads(keys, "num_attention_heads", 24, "num_key_value_heads", 2)
    head_dim = present_head_dim(keys) or divided(keys, hidden, query, "hidden_size", "num_attention_heads")
    bias = keys.flag("use_bias", True)
    norm = layer_norm(keys, "norm_epsilon", 1e-5)
    keys.only("norm_type", ("layer_norm",), "Starcoder2DecoderLayer has layer norms")
    keys.only("mlp_type", ("default",), "Starcoder2MLP is a classic MLP")
    attention = {
        "query_heads": query,
        "kv_heads": kv,
        "head_dim": head_dim,
        **biases(bias),
        "rotary": rotary(keys, head_dim),
    }
    mlp = {
        "form": "classic",
        "width": keys.size("intermediate_size", 12288),
        "activation": keys.activation("hidden_act", "gelu_pytorch_tanh"),
        "bias": bias,
    }
    window = optional_window(keys, None)
    rates = {"embedding": "embedding_dropout", "attention": "attention_dropout", "residual": "residual_dropout"}
    return record(
        hidden,
        keys.size("vocab_size", 49152),
        [group(keys.size("num_hidden_layers", 30), pre_norm(attention, mlp, norm), [window] if window else [])],
        norm,
        keys.flag("tie_word_embeddings", True),
        dropout={name: keys.rate(key, 0.0) for name, key in rates.items()},
    )
