"""The three recorded configurations, and weights that numpy alone determines, for this network and for transformers.

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

# As a released config.json writes them; two layers each.
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {
        "model_type": "llama", "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2,
        "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 96, "hidden_act": "silu",
        "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False,
        "attention_bias": False, "mlp_bias": False,
        "rope_scaling": {
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    },
    "qwen2": {
        "model_type": "qwen2", "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2,
        "num_attention_heads": 6, "num_key_value_heads": 2, "vocab_size": 96, "hidden_act": "silu",
        "max_position_embeddings": 128, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "tie_word_embeddings": True,
    },
    "gpt2": {
        "model_type": "gpt2", "n_embd": 48, "n_layer": 2, "n_head": 6, "n_positions": 32, "vocab_size": 96,
        "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "tie_word_embeddings": True,
        "resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1,
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
            arrays[path] = noise * np.float32(0.5 if "embed" in path else 0.15)
    return arrays


def model_of(case: Case, arrays: dict[str, np.ndarray]) -> Decoder:
    """Return the network with the given arrays, one per path in tree order."""
    return jax.tree.unflatten(jax.tree.structure(parameter_tree(case)), [jnp.asarray(x) for x in arrays.values()])


def to_json(record: dict[str, Any]) -> str:
    """The text form of a record's description."""
    return json.dumps(record, indent=1, sort_keys=True) + "\n"
