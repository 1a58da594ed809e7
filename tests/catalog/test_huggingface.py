"""Reading a config.json strictly: what every model type shares, on llama, qwen2 and gpt2 (others: test_families.py).

The three dictionaries below are the released files, where they differ from the class defaults.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from jaxcost.catalog import from_huggingface, load, load_architecture
from jaxcost.catalog.inert import INERT
from jaxcost.contracts.errors import RejectedError

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 128000,
    "eos_token_id": 128001,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.43.0.dev0",
    "use_cache": True,
    "vocab_size": 128256,
}
QWEN2: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "eos_token_id": 151643,
    "hidden_act": "silu",
    "hidden_size": 896,
    "initializer_range": 0.02,
    "intermediate_size": 4864,
    "max_position_embeddings": 32768,
    "max_window_layers": 24,
    "model_type": "qwen2",
    "num_attention_heads": 14,
    "num_hidden_layers": 24,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "sliding_window": 32768,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.40.1",
    "use_cache": True,
    "use_mrope": False,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
GPT2: dict[str, Any] = {
    "activation_function": "gelu_new",
    "architectures": ["GPT2LMHeadModel"],
    "attn_pdrop": 0.1,
    "bos_token_id": 50256,
    "embd_pdrop": 0.1,
    "eos_token_id": 50256,
    "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-05,
    "model_type": "gpt2",
    "n_ctx": 1024,
    "n_embd": 768,
    "n_head": 12,
    "n_layer": 12,
    "n_positions": 1024,
    "resid_pdrop": 0.1,
    "summary_activation": None,
    "summary_first_dropout": 0.1,
    "summary_proj_to_labels": True,
    "summary_type": "cls_index",
    "summary_use_proj": True,
    "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
    "vocab_size": 50257,
}
RELEASED = [(LLAMA, "llama-3.1-8b"), (QWEN2, "qwen2.5-0.5b"), (GPT2, "gpt2")]


def refused(config: object) -> dict[str, str]:
    """Path to rule of every problem of a config that must be refused."""
    with pytest.raises(RejectedError) as caught:
        from_huggingface(config)
    assert all(problem.remedy for problem in caught.value.problems)
    return {problem.path: problem.rule for problem in caught.value.problems}


@pytest.mark.parametrize(("config", "name"), RELEASED)
def test_released_config_is_the_manifest(config: dict[str, Any], name: str, tmp_path: Path) -> None:
    assert from_huggingface(config).digest == load_architecture(name).digest
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    for model in (str(tmp_path), str(tmp_path / "config.json")):
        manifest = load(model)
        assert (manifest.origin, manifest.architecture.digest) == ("huggingface_config", load_architecture(name).digest)


@pytest.mark.parametrize(
    ("config", "change"),
    [
        (LLAMA, {"rope_theta": 10000.0}),
        (LLAMA, {"rms_norm_eps": 1e-06}),
        (LLAMA, {"rope_scaling": None}),
        (LLAMA, {"tie_word_embeddings": True}),
        (LLAMA, {"attention_bias": True}),
        (LLAMA, {"mlp_bias": True}),
        (LLAMA, {"vocab_size": 128257}),
        (LLAMA, {"head_dim": 64}),
        (LLAMA, {"attention_dropout": 0.1}),
        (LLAMA, {"hidden_act": "gelu"}),
        (QWEN2, {"num_key_value_heads": 7}),
        (GPT2, {"n_inner": 3000}),
        (GPT2, {"n_positions": 2048}),
        (GPT2, {"attn_pdrop": 0.0}),
        (GPT2, {"tie_word_embeddings": False}),
    ],
)
def test_keys_of_the_graph_move_the_digest(config: dict[str, Any], change: dict[str, Any]) -> None:
    assert from_huggingface(config | change).digest != from_huggingface(config).digest


@pytest.mark.parametrize("config", [LLAMA, QWEN2, GPT2])
def test_inert_keys_move_nothing(config: dict[str, Any]) -> None:
    digest = from_huggingface(config).digest
    for key in ("torch_dtype", "use_cache", "bos_token_id", "transformers_version", "top_p", "id2label"):
        assert from_huggingface(config | {key: "something else"}).digest == digest
    assert all(entry.reason for entry in INERT.values())


def test_class_defaults_stand_for_keys_left_out() -> None:
    llama = from_huggingface({"model_type": "llama"})
    layer = llama.groups[0].layer
    assert (llama.vocabulary_size, llama.hidden_size, llama.layer_count, layer.mlp.width) == (32000, 4096, 32, 11008)
    assert (layer.attention.kv_heads, llama.tied, llama.final_norm.epsilon) == (32, False, 1e-6)
    qwen2 = from_huggingface({"model_type": "qwen2"})
    assert (qwen2.vocabulary_size, qwen2.groups[0].layer.mlp.width, qwen2.tied) == (151936, 22016, False)
    assert from_huggingface({"model_type": "gpt2"}).digest == load_architecture("gpt2").digest


def test_absent_is_not_null() -> None:
    # Qwen2Config: 32 K/V heads where the key is left out, as many as query heads where it is null.
    base = {"model_type": "qwen2", "hidden_size": 4096, "num_attention_heads": 64}
    assert from_huggingface(base).groups[0].layer.attention.kv_heads == 32
    assert from_huggingface(base | {"num_key_value_heads": None}).groups[0].layer.attention.kv_heads == 64
    # GPT2Config: n_inner null is 4 n_embd. LlamaConfig: head_dim null is hidden / heads. Elsewhere null is no size.
    assert from_huggingface(GPT2 | {"n_inner": None}).digest == from_huggingface(GPT2).digest
    assert from_huggingface(LLAMA | {"head_dim": None}).digest == from_huggingface(LLAMA).digest
    assert "must be an exact integer" in refused(QWEN2 | {"head_dim": None})["head_dim"]
    assert "must be an exact integer" in refused(LLAMA | {"hidden_size": None})["hidden_size"]


def test_transformers_5_writes_rotary_parameters_in_one_table() -> None:
    config = {key: value for key, value in LLAMA.items() if key not in ("rope_theta", "rope_scaling")}
    config["rope_parameters"] = {**LLAMA["rope_scaling"], "rope_theta": 500000.0}
    assert from_huggingface(config).digest == from_huggingface(LLAMA).digest


def test_head_dim_decouples_the_packed_width() -> None:
    attention = from_huggingface(LLAMA | {"head_dim": 64}).groups[0].layer.attention
    assert attention.decoupled_width and attention.head_dim == 64


@pytest.mark.parametrize(
    ("config", "change", "path"),
    [
        (LLAMA, {"num_experts": 8}, "num_experts"),
        (LLAMA, {"quantization_config": {"bits": 4}}, "quantization_config"),
        (LLAMA, {"auto_map": {"AutoConfig": "x"}}, "auto_map"),
        (LLAMA, {"architectures": ["LlamaForSequenceClassification"]}, "architectures"),
        (LLAMA, {"sliding_window": 4096}, "sliding_window"),
        (LLAMA, {"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        (LLAMA, {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope_scaling.rope_type"),
        (LLAMA, {"rope_scaling": {"type": "linear", "factor": 4.0}}, "rope_scaling.rope_type"),
        (LLAMA, {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "rope_scaling.low_freq_factor"),
        (LLAMA, {"rope_scaling": {**LLAMA["rope_scaling"], "attention_factor": 2}}, "rope_scaling.attention_factor"),
        (LLAMA, {"rope_scaling": "llama3"}, "rope_scaling"),
        (LLAMA, {"hidden_size": 4096.0}, "hidden_size"),
        (LLAMA, {"hidden_size": True}, "hidden_size"),
        (LLAMA, {"hidden_size": "4096"}, "hidden_size"),
        (LLAMA, {"hidden_size": -4096}, "hidden_size"),
        (LLAMA, {"vocab_size": 10**30}, "vocab_size"),
        (LLAMA, {"rms_norm_eps": float("nan")}, "rms_norm_eps"),
        (LLAMA, {"rms_norm_eps": 0}, "rms_norm_eps"),
        (LLAMA, {"rope_theta": 10**400}, "rope_theta"),
        (LLAMA, {"attention_bias": 1}, "attention_bias"),
        (LLAMA, {"hidden_act": "mish"}, "hidden_act"),
        (LLAMA, {"num_key_value_heads": 5}, "num_key_value_heads"),
        (LLAMA, {"num_attention_heads": 33, "num_key_value_heads": 11}, "num_attention_heads"),
        (LLAMA, {"is_encoder_decoder": True}, "is_encoder_decoder"),
        (LLAMA, {"chunk_size_feed_forward": 128}, "chunk_size_feed_forward"),
        (QWEN2, {"layer_types": ["full_attention"] * 23 + ["sliding_attention"]}, "layer_types"),
        (QWEN2, {"layer_types": ["full_attention"] * 23}, "layer_types"),
        (QWEN2, {"attention_bias": False}, "attention_bias"),
        (QWEN2, {"mlp_bias": False}, "mlp_bias"),
        (GPT2, {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx"),
        (GPT2, {"scale_attn_weights": False}, "scale_attn_weights"),
        (GPT2, {"add_cross_attention": True}, "add_cross_attention"),
        (GPT2, {"num_hidden_layers": 6}, "num_hidden_layers"),
        (GPT2, {"resid_pdrop": 1.0}, "resid_pdrop"),
        (GPT2, {"n_head": 7}, "n_head"),
        (GPT2, {"model_type": "mixtral"}, "model_type"),
        (GPT2, {"model_type": ["gpt2"]}, "model_type"),
    ],
)
def test_refused_by_name(config: dict[str, Any], change: dict[str, Any], path: str) -> None:
    assert path in refused(config | change)


def test_all_problems_of_a_config_come_together() -> None:
    found = refused(
        LLAMA | {"hidden_size": "x", "vocab_size": 0, "num_experts": 8, "rope_scaling": {"rope_type": "yarn"}}
    )
    assert {"hidden_size", "vocab_size", "num_experts", "rope_scaling.rope_type"} <= set(found)


def test_only_plain_data_is_a_config() -> None:
    nested: Any = []
    for _ in range(10_000):
        nested = [nested]
    for config in (None, [], "llama", {}, LLAMA | {"id2label": {1, 2}}, LLAMA | {"id2label": nested}):
        assert refused(config)
