"""Linear biases instead of positions: BLOOM and MPT."""

from __future__ import annotations

from jaxcost.catalog.inert import is_inert, is_known
from jaxcost.catalog.keys import Keys
from jaxcost.catalog.parts import Data, biases, divided, dropout, group, layer_norm, pre_norm, record


def bloom(keys: Keys) -> Data:
    """BLOOM: a norm on the embeddings, biases everywhere, q, k and v in one array, a width of 4 hidden in the code.

    n_embed, where given, overwrites hidden_size. The released array interleaves q, k and v head by head.
    """
    keys.rename({"num_hidden_layers": "n_layer", "num_attention_heads": "n_head"})
    why = "the residual would start from the norm's output"
    keys.only("apply_residual_connection_post_layernorm", (False,), why)
    keys.only("slow_but_exact", (False,), "splits products into slices")
    key = "n_embed" if keys.given("n_embed") else "hidden_size"
    keys.read.update(("n_embed", "hidden_size"))
    hidden, query = keys.size(key, 64), keys.size("n_head", 8)
    if "n_inner" in keys.data and keys.get("n_inner") not in (None, 4 * hidden):
        keys.problem("n_inner", keys.data["n_inner"], "the class takes 4 hidden and does not read it", "write null")
    norm = layer_norm(keys, "layer_norm_epsilon", 1e-5)
    attention = {
        "query_heads": query,
        "kv_heads": query,
        "head_dim": divided(keys, hidden, query, key, "n_head"),
        **biases(True),
        "alibi": True,
        "storage": "fused",
    }
    mlp = {"form": "classic", "width": 4 * hidden, "activation": "gelu_tanh", "bias": True}
    return record(
        hidden,
        keys.size("vocab_size", 250880),
        [group(keys.size("n_layer", 2), pre_norm(attention, mlp, norm))],
        norm,
        keys.flag("tie_word_embeddings", True),
        dropout=dropout(0.0, keys.rate("attention_dropout", 0.0), keys.rate("hidden_dropout", 0.0)),
        embedding_norm=norm,
    )


def mpt(keys: Keys) -> Data:
    """MPT as MptForCausalLM computes it: no biases at all, also none on the norms, and always linear biases.

    learned_pos_emb is true in released files although there is no position table: with alibi the key has no effect, in
    llm-foundry as in the class. Values for which the class and llm-foundry differ are refused.
    """
    keys.rename({"num_attention_heads": "n_heads", "hidden_size": "d_model", "num_hidden_layers": "n_layers"})
    keys.only("no_bias", (True,), "llm-foundry would add biases, the class has none")
    keys.only("expansion_ratio", (4,), "the class takes 4 and does not read it")
    keys.only("logit_scale", (None,), "scales the logits")
    keys.only("norm_type", ("low_precision_layernorm", "layernorm"), "the class has layer norms")
    keys.only("emb_pdrop", (0, 0.0), "the class has no dropout on embeddings")
    keys.only("resid_pdrop", (0, 0.0), "the class takes attn_pdrop for both branches")
    keys.only("embedding_fraction", (1, 1.0), "scales the gradient of the embeddings")
    inner = keys.table("attn_config")
    rate = 0.0
    scale = None
    if inner is not None:
        rate = inner.rate("attn_pdrop", 0.0)
        scale = inner.optional("softmax_scale", None)
        inner.only("attn_type", ("multihead_attention",), "the class has as many K/V heads as query heads")
        inner.only("clip_qkv", (None,), "clamps queries, keys and values")
        inner.only("prefix_lm", (False,), "tokens would see the tokens after them")
        inner.only("qk_ln", (False,), "norms of queries and keys, which the class does not have")
        inner.only("attn_uses_sequence_id", (False,), "tokens of one row would not all see each other")
        inner.only("alibi", (True,), "llm-foundry would learn positions, the class has linear biases anyway")
        inner.only("alibi_bias_max", (8,), "slopes other than those of Press et al. 2021")
        inner.only("architectures", (None,), "an attention has no class of its own")
        inner.read.add("tie_word_embeddings")  # an attention has no head
        inner.read.update(("attn_impl", "model_type"))  # which kernel runs; the workload's attention plan decides
        inner.read.update(key for key, value in inner.data.items() if is_known(key, "mpt") and is_inert(key, value))
        keys.absorb(inner)
    hidden, query = keys.size("d_model", 2048), keys.size("n_heads", 16)
    head_dim = divided(keys, hidden, query, "d_model", "n_heads")
    norm = layer_norm(keys, "layer_norm_epsilon", 1e-5, bias=False)
    attention = {
        "query_heads": query,
        "kv_heads": query,
        "head_dim": head_dim,
        **biases(False),
        "alibi": True,
        "storage": "fused",
        **({"scale": scale} if scale and scale != head_dim**-0.5 else {}),
    }
    mlp = {"form": "classic", "width": 4 * hidden, "activation": "gelu", "bias": False}
    return record(
        hidden,
        keys.size("vocab_size", 50368),
        [group(keys.size("n_layers", 24), pre_norm(attention, mlp, norm))],
        norm,
        keys.flag("tie_word_embeddings", True),
        dropout=dropout(0.0, rate, rate),
    )
