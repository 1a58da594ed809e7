"""The recorded configurations, and weights that numpy alone determines, for this network and for transformers.

No weight is special: biases are not zero and norm scales not one, so a part that is left out or wired wrongly shows in
the logits.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxcost.catalog import from_huggingface
from jaxcost.contracts.case import Case, build_case
from jaxcost.reference import Decoder, parameter_tree, parameters

RECORDS = Path(__file__).resolve().parent / "records"
SEED = 20240917
BATCH, ROWS = 2, 24

# The keys that most released configs share; two layers, and fewer K/V heads than query heads where that is possible.
LLAMA_KEYS: dict[str, Any] = {
    "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 6,
    "num_key_value_heads": 2, "vocab_size": 96, "max_position_embeddings": 128,
}  # fmt: skip
OPT_KEYS: dict[str, Any] = {
    "model_type": "opt", "hidden_size": 48, "ffn_dim": 80, "num_hidden_layers": 2, "num_attention_heads": 6,
    "vocab_size": 96, "max_position_embeddings": 32, "activation_function": "relu", "dropout": 0.1,
    "attention_dropout": 0.0, "layerdrop": 0.0, "enable_bias": True, "layer_norm_elementwise_affine": True,
}  # fmt: skip
FALCON_KEYS: dict[str, Any] = {
    "model_type": "falcon", "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 6, "vocab_size": 96,
    "layer_norm_epsilon": 1e-5, "alibi": False, "parallel_attn": True, "multi_query": True, "bias": False,
    "hidden_dropout": 0.0, "attention_dropout": 0.0,
}  # fmt: skip

# As a released config.json writes them. A window is smaller than the sequence, heads need not fill the hidden size.
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {
        "model_type": "llama", **LLAMA_KEYS, "head_dim": 8, "hidden_act": "silu",
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False,
        "attention_bias": False, "mlp_bias": False,
        "rope_scaling": {
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    },
    "mistral": {
        "model_type": "mistral", **LLAMA_KEYS, "head_dim": 8, "hidden_act": "silu", "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "sliding_window": 7, "tie_word_embeddings": False,
    },
    "qwen2": {
        "model_type": "qwen2", **LLAMA_KEYS, "hidden_act": "silu",
        "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "tie_word_embeddings": True,
    },
    "qwen3": {
        "model_type": "qwen3", **LLAMA_KEYS, "head_dim": 16, "hidden_act": "silu", "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0, "attention_bias": False, "use_sliding_window": False, "max_window_layers": 2,
        "tie_word_embeddings": True,
    },
    "gemma": {
        "model_type": "gemma", **LLAMA_KEYS, "head_dim": 16, "hidden_activation": "gelu_pytorch_tanh",
        "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "attention_bias": False, "tie_word_embeddings": True,
    },
    "gemma2": {
        "model_type": "gemma2", **LLAMA_KEYS, "head_dim": 16, "hidden_activation": "gelu_pytorch_tanh",
        "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "attention_bias": False, "sliding_window": 7,
        "query_pre_attn_scalar": 24, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0,
        "tie_word_embeddings": True,
    },
    "phi3": {
        "model_type": "phi3", **LLAMA_KEYS, "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "sliding_window": 7, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attention_dropout": 0.0,
        "tie_word_embeddings": False, "pad_token_id": 0, "partial_rotary_factor": 0.5,
    },
    "olmo2": {
        "model_type": "olmo2", **LLAMA_KEYS, "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 500000.0,
        "attention_bias": False, "tie_word_embeddings": False,
    },
    "gpt2": {
        "model_type": "gpt2", "n_embd": 48, "n_layer": 2, "n_head": 6, "n_positions": 32, "vocab_size": 96,
        "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "tie_word_embeddings": True,
        "resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1,
    },
    "opt": {**OPT_KEYS, "do_layer_norm_before": True, "word_embed_proj_dim": 48, "tie_word_embeddings": True},
    "opt-post": {**OPT_KEYS, "do_layer_norm_before": False, "word_embed_proj_dim": 32, "tie_word_embeddings": True},
    "gpt_neox": {
        "model_type": "gpt_neox", "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2,
        "num_attention_heads": 6, "vocab_size": 96, "max_position_embeddings": 128, "hidden_act": "gelu",
        "rotary_pct": 0.5, "rotary_emb_base": 10000, "layer_norm_eps": 1e-5, "use_parallel_residual": True,
        "tie_word_embeddings": False, "attention_bias": True, "hidden_dropout": 0.0, "attention_dropout": 0.0,
    },
    "falcon-7b": {**FALCON_KEYS, "new_decoder_architecture": False, "tie_word_embeddings": True},
    "falcon-40b": {
        **FALCON_KEYS, "new_decoder_architecture": True, "num_kv_heads": 2, "tie_word_embeddings": False,
    },
    "bloom": {
        "model_type": "bloom", "hidden_size": 48, "n_layer": 2, "n_head": 6, "vocab_size": 96,
        "layer_norm_epsilon": 1e-5, "apply_residual_connection_post_layernorm": False, "hidden_dropout": 0.0,
        "attention_dropout": 0.0, "slow_but_exact": False, "tie_word_embeddings": True,
    },
    "mpt": {
        "model_type": "mpt", "d_model": 48, "n_layers": 2, "n_heads": 6, "vocab_size": 96, "max_seq_len": 64,
        "expansion_ratio": 4, "no_bias": True, "layer_norm_epsilon": 1e-5, "tie_word_embeddings": True,
        "emb_pdrop": 0.0, "resid_pdrop": 0.0,
        "attn_config": {"alibi": True, "alibi_bias_max": 8, "attn_pdrop": 0, "softmax_scale": 0.25},
    },
}  # fmt: skip


def case_of(config: dict[str, Any]) -> Case:
    """A prefill of all rows in fp32, layers written out so that each has its own arrays."""
    options = {"phase": "prefill", "batch": BATCH, "seq": ROWS, "logits": "all", "precision": "fp32_inference"}
    return build_case(from_huggingface(config), options | {"layers": "unrolled"})


def tokens_of(config: dict[str, Any]) -> np.ndarray:
    """Token ids, int32 `[batch, rows]`."""
    return np.random.default_rng(SEED + 1).integers(0, config["vocab_size"], (BATCH, ROWS), dtype=np.int32)


def weights_of(case: Case) -> dict[str, np.ndarray]:
    """One fp32 array per path of the network, in tree order from one generator."""
    generator = np.random.default_rng(SEED)
    arrays = {}
    for path, parameter in parameters(case):
        noise = generator.standard_normal(parameter.shape, dtype=np.float32)
        if parameter.name == "scale":
            arrays[path] = 1 + 0.1 * noise
        elif parameter.name == "bias":
            arrays[path] = 0.1 * noise
        else:
            arrays[path] = noise * np.float32(0.5 if path.startswith((".embed.tokens", ".embed.positions")) else 0.15)
    return arrays


def model_of(case: Case, arrays: dict[str, np.ndarray]) -> Decoder:
    """Return the network with the given arrays, one per path in tree order."""
    return jax.tree.unflatten(jax.tree.structure(parameter_tree(case)), [jnp.asarray(x) for x in arrays.values()])


def to_json(record: dict[str, Any]) -> str:
    """The text form of a record's description."""
    return json.dumps(record, indent=1, sort_keys=True) + "\n"
