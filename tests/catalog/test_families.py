"""Each model type: class defaults, the forms of its layers, null against absent, lists by layer, refusals by name."""

from __future__ import annotations

import math
from typing import Any

import pytest

from jaxcost.catalog import from_huggingface
from jaxcost.catalog.families import FAMILIES
from jaxcost.catalog.inert import INERT
from jaxcost.catalog.refused import REFUSED
from jaxcost.contracts.architecture import Architecture
from jaxcost.contracts.errors import RejectedError
from tests.catalog.counting import totals


def read(kind: str, **keys: Any) -> Architecture:
    return from_huggingface({"model_type": kind, **keys})


def refused(kind: str, **keys: Any) -> dict[str, str]:
    """Path to rule of every problem of a config that must be refused."""
    with pytest.raises(RejectedError) as caught:
        read(kind, **keys)
    assert all(problem.remedy for problem in caught.value.problems)
    return {problem.path: problem.rule for problem in caught.value.problems}


# Unique parameters of a config that says its type alone, counted by transformers 5.24.0 on torch's meta device.
DEFAULTS = {
    "llama": 6738415616,
    "mistral": 7241732096,
    "qwen2": 12049846272,
    "qwen3": 12049461248,
    "phi3": 3821079552,
    "olmo": 6888095744,
    "olmo2": 6888624128,
    "olmo3": 6888624128,
    "smollm3": 3075098624,
    "seed_oss": 28921040896,
    "gemma": 8537680896,
    "gemma2": 2614341888,
    "gpt2": 124439808,
    "gpt_bigcode": 111446784,
    "opt": 125239296,
    "starcoder2": 3030371328,
    "gpt_neox": 20554567680,
    "falcon": 6921720704,
    "stablelm": 2795443200,
    "bloom": 16156544,
    "mpt": 1311213568,
}


# What a config must say beside its type: here the default is not understood, or versions of the class differ.
EXTRA: dict[str, dict[str, Any]] = {"seed_oss": {"residual_dropout": 0.0}, "olmo3": {"rope_theta": 500000.0}}


@pytest.mark.parametrize("kind", DEFAULTS)
def test_class_defaults(kind: str) -> None:
    assert totals(read(kind, **EXTRA.get(kind, {})))["unique"] == DEFAULTS[kind]


def test_every_type_is_read_or_refused_with_a_reason() -> None:
    assert set(DEFAULTS) == set(FAMILIES)
    assert not set(FAMILIES) & set(REFUSED)
    assert all(REFUSED.values()) and all(entry.reason for entry in INERT.values())
    for kind, reason in REFUSED.items():
        assert reason in refused(kind)["model_type"]
    assert "not a model type" in refused("perceiver")["model_type"]


def test_forms_of_layers() -> None:
    forms = {kind: read(kind, **EXTRA.get(kind, {})) for kind in FAMILIES}
    residual = {kind: found.groups[0].layer.residual for kind, found in forms.items()}
    assert {kind for kind, form in residual.items() if form == "parallel"} == {"gpt_neox", "falcon"}
    assert {kind for kind, form in residual.items() if form == "post_branch"} == {"olmo2", "olmo3"}
    assert {kind for kind, form in residual.items() if form == "both"} == {"gemma2"}
    fused = {kind for kind, found in forms.items() if found.groups[0].layer.attention.storage == "fused"}
    assert fused == {"phi3", "gpt_bigcode", "gpt_neox", "falcon", "bloom", "mpt"}
    assert {kind for kind, found in forms.items() if found.groups[0].layer.attention.alibi} == {"bloom", "mpt"}
    assert {kind for kind, found in forms.items() if found.embedding_scale} == {"gemma", "gemma2"}
    assert {kind for kind, found in forms.items() if found.learned_positions} == {"gpt2", "gpt_bigcode", "opt"}
    tied = {"bloom", "falcon", "gemma", "gemma2", "gpt2", "gpt_bigcode", "mpt", "opt", "smollm3", "starcoder2"}
    assert {kind for kind, found in forms.items() if found.tied} == tied


def test_opt_in_its_three_forms() -> None:
    before = read("opt")
    assert before.final_norm is not None and before.groups[0].layer.residual == "pre"
    assert read("opt", _remove_final_layer_norm=True).final_norm is None
    after = read("opt", do_layer_norm_before=False, word_embed_proj_dim=512)
    assert (after.groups[0].layer.residual, after.final_norm, after.embedding_width) == ("post", None, 512)
    assert read("opt", word_embed_proj_dim=None).embedding_width is None
    assert read("opt", word_embed_proj_dim=768).embedding_width is None
    positions = read("opt", max_position_embeddings=100).learned_positions
    assert positions is not None and (positions.rows, positions.offset) == (102, 2)
    bare = read("opt", layer_norm_elementwise_affine=False, enable_bias=False)
    assert bare.branches == {"learned_positions"}


def test_falcon_in_its_forms() -> None:
    old = read("falcon").groups[0].layer
    assert (old.attention.kv_heads, old.mlp_norm, old.attention.storage) == (1, None, "fused")
    # 40B: two norms and eight K/V heads; 11B: the same with one norm; num_kv_heads is not read in the old form.
    sizes = {"hidden_size": 8192, "num_attention_heads": 128, "new_decoder_architecture": True, "num_kv_heads": 8}
    new = read("falcon", **sizes).groups[0].layer
    assert (new.attention.kv_heads, new.mlp_norm is not None) == (8, True)
    assert read("falcon", **sizes, num_ln_in_parallel_attn=1).groups[0].layer.mlp_norm is None
    assert read("falcon", num_kv_heads=71).digest == read("falcon").digest
    assert read("falcon", multi_query=False).groups[0].layer.attention.kv_heads == 71
    assert read("falcon", parallel_attn=False).groups[0].layer.residual == "pre"
    assert "always parallel" in refused("falcon", **sizes, parallel_attn=False)["parallel_attn"]
    assert "scales its linear biases" in refused("falcon", alibi=True)["alibi"]
    assert "as many" in refused("falcon", multi_query=False, num_kv_heads=8)["num_kv_heads"]
    assert "versions of the class differ" in refused("falcon", n_embed=4544)["n_embed"]
    assert refused("falcon", num_ln_in_parallel_attn=2)["num_ln_in_parallel_attn"]


def test_gemma2_scores() -> None:
    small = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    layer = read("gemma2", **small, query_pre_attn_scalar=16).groups[0].layer
    assert (layer.attention.scale, layer.attention.score_softcap) == (None, 50.0)
    other = read("gemma2", **small, query_pre_attn_scalar=25, attn_logit_softcapping=None, final_logit_softcapping=None)
    assert other.groups[0].layer.attention.scale == 0.2 and other.logit_softcap is None
    assert other.groups[0].layer.attention.score_softcap is None
    assert math.isclose(other.embedding_scale or 0, 8.0)
    assert "hidden_activation" in refused("gemma2", hidden_act="relu")["hidden_act"]
    assert read("gemma2", hidden_act="gelu_pytorch_tanh").digest == read("gemma2").digest


def test_gemma_takes_the_newer_activation_key() -> None:
    def activation(**keys: Any) -> str:
        return read("gemma", **keys).groups[0].layer.mlp.activation

    assert activation(hidden_act="gelu") == activation() == "gelu_tanh"  # the first releases say gelu and mean tanh
    assert activation(hidden_act="gelu", hidden_activation="gelu_pytorch_tanh") == "gelu_tanh"
    assert activation(hidden_act="gelu_pytorch_tanh", hidden_activation="gelu") == "gelu"


WINDOWS: list[tuple[str, dict[str, Any], tuple[int, ...]]] = [
    ("mistral", {}, (4096,)),
    ("mistral", {"sliding_window": None}, ()),
    ("mistral", {"sliding_window": 17}, (17,)),
    ("phi3", {}, ()),
    ("phi3", {"sliding_window": 2047}, (2047,)),
    ("starcoder2", {"sliding_window": 4096}, (4096,)),
    ("gemma2", {}, (4096, 0)),
    ("gemma2", {"layer_types": ["full_attention"] * 26}, ()),
    ("gemma2", {"layer_types": ["full_attention", "sliding_attention"] * 13}, (0, 4096)),
    ("olmo3", {"rope_theta": 5e5}, (4096, 4096, 4096, 0)),
    ("qwen2", {}, ()),
    ("qwen2", {"sliding_window": 5}, ()),
    ("qwen2", {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 32}, ()),
    ("qwen2", {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 0}, (5,)),
    ("qwen3", {"use_sliding_window": True, "num_hidden_layers": 3, "max_window_layers": 2}, (0, 0, 4096)),
    ("qwen3", {"use_sliding_window": True, "sliding_window": None}, ()),
]


@pytest.mark.parametrize(("kind", "keys", "windows"), WINDOWS)
def test_windows_are_the_shortest_cycle(kind: str, keys: dict[str, Any], windows: tuple[int, ...]) -> None:
    (group,) = read(kind, **keys).groups
    assert group.windows == windows


def test_another_name_of_the_window_may_not_differ() -> None:
    assert read("mistral", sliding_window_size=4096).digest == read("mistral").digest
    assert "which is 4096" in refused("mistral", sliding_window_size=8192)["sliding_window_size"]
    assert refused("mistral", sliding_window=None, sliding_window_size=4096)["sliding_window_size"]
    assert refused("qwen2", sliding_window_size=4096)["sliding_window_size"]


def test_layers_without_rotary_positions_are_groups_of_their_own() -> None:
    found = read("smollm3", num_hidden_layers=8)
    assert [(group.repeat, group.layer.attention.rotary is None) for group in found.groups] == [
        (3, False), (1, True), (3, False), (1, True),
    ]  # fmt: skip
    listed = read("smollm3", num_hidden_layers=4, no_rope_layers=[0, 0, 1, 1])
    assert [(group.repeat, group.layer.attention.rotary is None) for group in listed.groups] == [(2, True), (2, False)]


def test_rotary_dimensions() -> None:
    def dimensions(kind: str, **keys: Any) -> tuple[int, float]:
        rotary = read(kind, **keys).groups[0].layer.attention.rotary
        assert rotary is not None
        return rotary.dimensions, rotary.theta

    assert dimensions("gpt_neox", hidden_size=4096, num_attention_heads=32) == (32, 10000.0)
    assert dimensions("gpt_neox", hidden_size=64, num_attention_heads=4, rotary_pct=1.0)[0] == 16
    assert dimensions("stablelm") == (20, 10000.0)
    assert dimensions("phi3", partial_rotary_factor=0.75) == (72, 10000.0)
    table = {"rope_type": "default", "rope_theta": 5e5, "partial_rotary_factor": 0.5}
    assert dimensions("gpt_neox", hidden_size=4096, num_attention_heads=32, rope_parameters=table) == (64, 5e5)
    assert "pairs" in refused("gpt_neox", hidden_size=64, num_attention_heads=8, rotary_pct=0.4)["rotary_pct"]
    assert "(0, 1]" in refused("phi3", partial_rotary_factor=1.5)["partial_rotary_factor"]


NULLS: list[tuple[str, str, dict[str, Any]]] = [
    ("llama", "num_key_value_heads", {}),
    ("olmo2", "num_key_value_heads", {}),
    ("mistral", "head_dim", {}),
    ("falcon", "ffn_hidden_size", {}),
    ("gpt_bigcode", "n_inner", {}),
    ("opt", "word_embed_proj_dim", {}),
    ("gemma2", "layer_types", {}),
    ("mpt", "attn_config", {}),
]


@pytest.mark.parametrize(("kind", "key", "keys"), NULLS)
def test_a_null_that_means_the_default(kind: str, key: str, keys: dict[str, Any]) -> None:
    assert read(kind, **keys, **{key: None}).digest == read(kind, **keys).digest


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        ("mistral", "num_attention_heads"), ("qwen3", "head_dim"), ("gemma", "head_dim"), ("gpt_neox", "hidden_size"),
        ("bloom", "vocab_size"), ("opt", "ffn_dim"), ("mpt", "n_layers"), ("phi3", "rms_norm_eps"),
        ("falcon", "multi_query"), ("gemma2", "query_pre_attn_scalar"), ("gpt_neox", "rotary_pct"),
        ("stablelm", "layer_norm_eps"), ("qwen2", "max_window_layers"), ("llama", "rope_theta"),
    ],
)  # fmt: skip
def test_a_null_without_a_meaning(kind: str, key: str) -> None:
    assert key in refused(kind, **{key: None})


def test_null_heads_of_mistral_are_not_the_class_default() -> None:
    assert read("mistral").groups[0].layer.attention.kv_heads == 8
    assert read("mistral", num_key_value_heads=None).groups[0].layer.attention.kv_heads == 32


OLMO3 = {"rope_type": "default", "rope_theta": 500000.0}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
REFUSALS: list[tuple[str, dict[str, Any], str]] = [
    ("gemma2", {"layer_types": ["full_attention"] * 25}, "layer_types"),
    ("gemma2", {"layer_types": ["full_attention"] * 25 + ["linear_attention"]}, "layer_types"),
    ("gemma2", {"layer_types": ["full_attention"] * 25 + [1]}, "layer_types"),
    ("gemma2", {"layer_types": "full_attention"}, "layer_types"),
    ("gemma2", {"layer_types": {"0": "full_attention"}}, "layer_types"),
    ("gemma2", {"sliding_window": None}, "sliding_window"),
    ("gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
    ("gemma2", {"attn_logit_softcapping": 0}, "attn_logit_softcapping"),
    ("qwen3", {"layer_types": ["sliding_attention"] * 32}, "layer_types"),
    ("olmo3", {"rope_scaling": {"rope_type": "yarn", "factor": 8.0}}, "rope_scaling.rope_type"),
    ("olmo3", {"rope_scaling": {**LLAMA3, "rope_type": "llama3"}}, "rope_scaling"),
    (
        "olmo3",
        {"rope_parameters": {"full_attention": OLMO3, "sliding_attention": {**OLMO3, "rope_theta": 1e4}}},
        "rope_parameters.rope_type",
    ),
    ("olmo3", {"rope_parameters": {"full_attention": OLMO3}}, "rope_parameters.rope_type"),
    ("olmo3", {"rope_parameters": {"full_attention": [], "sliding_attention": []}}, "rope_parameters.rope_type"),
    ("olmo3", {}, "rope_theta"),
    ("gpt_bigcode", {"num_key_value_heads": 12}, "num_key_value_heads"),
    ("mpt", {"attn_config": {"is_encoder_decoder": True}}, "attn_config.is_encoder_decoder"),
    ("olmo2", {"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling.rope_type"),
    ("olmo", {"clip_qkv": 8.0}, "clip_qkv"),
    ("phi3", {"rope_scaling": {"type": "longrope", "short_factor": [1], "long_factor": [1]}}, "rope_scaling.rope_type"),
    ("phi3", {"rope_scaling": {"rope_type": "default", "rope_theta": 1e4}}, "rope_scaling.rope_theta"),
    ("phi3", {"embd_pdrop": 0.1}, "embd_pdrop"),
    ("phi3", {"num_key_value_heads": 5}, "num_key_value_heads"),
    ("phi3", {"num_key_value_heads": [32] * 32}, "num_key_value_heads"),
    ("phi3", {"auto_map": {"AutoModelForCausalLM": "modeling_other.OtherForCausalLM"}}, "auto_map"),
    ("phi3", {"auto_map": {"AutoModelForCausalLM": 3}}, "auto_map"),
    ("llama", {"auto_map": {"AutoConfig": "configuration_llama.LlamaConfig"}}, "auto_map"),
    ("llama", {"num_key_value_heads": [8] * 32}, "num_key_value_heads"),
    ("llama", {"intermediate_size": [11008] * 32}, "intermediate_size"),
    ("llama", {"hidden_size": {"text": 4096}}, "hidden_size"),
    ("llama", {"architectures": []}, "architectures"),
    ("llama", {"architectures": ["LlamaForCausalLM", "LlamaModel"]}, "architectures"),
    ("llama", {"architectures": "LlamaForCausalLM"}, "architectures"),
    ("llama", {"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "rope_parameters.rope_type"),
    ("llama", {"rope_interleaved": True}, "rope_interleaved"),
    ("llama", {"n_special": 0}, "n_special"),
    ("llama", {"masked_softmax_fusion": True}, "masked_softmax_fusion"),
    ("mistral", {"attention_bias": True}, "attention_bias"),
    ("mistral", {"sliding_window": 0}, "sliding_window"),
    ("mistral", {"sliding_window": 4096.0}, "sliding_window"),
    ("mistral", {"sliding_window": [4096, None]}, "sliding_window"),
    ("smollm3", {"no_rope_layers": [1] * 35}, "no_rope_layers"),
    ("smollm3", {"no_rope_layers": [True] * 36}, "no_rope_layers"),
    ("smollm3", {"no_rope_layers": [2] * 36}, "no_rope_layers"),
    ("smollm3", {"use_sliding_window": True}, "use_sliding_window"),
    ("smollm3", {"layer_types": ["sliding_attention"] * 36}, "layer_types"),
    ("seed_oss", {}, "residual_dropout"),
    ("opt", {"layerdrop": 0.1}, "layerdrop"),
    ("opt", {"activation_dropout": 0.1}, "activation_dropout"),
    ("opt", {"num_key_value_heads": 4}, "num_key_value_heads"),
    ("gpt_neox", {"rope_theta": 5e5}, "rope_theta"),
    ("gpt_neox", {"num_attention_heads": 60}, "num_attention_heads"),
    ("stablelm", {"qk_layernorm": True}, "qk_layernorm"),
    ("stablelm", {"hidden_dropout": 0.1}, "hidden_dropout"),
    ("bloom", {"apply_residual_connection_post_layernorm": True}, "apply_residual_connection_post_layernorm"),
    ("bloom", {"slow_but_exact": True}, "slow_but_exact"),
    ("bloom", {"n_inner": 100}, "n_inner"),
    ("bloom", {"n_head": 8, "num_attention_heads": 16}, "num_attention_heads"),
    ("mpt", {"no_bias": False}, "no_bias"),
    ("mpt", {"expansion_ratio": 3}, "expansion_ratio"),
    ("mpt", {"expansion_ratio": 4.0}, "expansion_ratio"),
    ("mpt", {"logit_scale": "inv_sqrt_d_model"}, "logit_scale"),
    ("mpt", {"norm_type": "rmsnorm"}, "norm_type"),
    ("mpt", {"attn_config": []}, "attn_config"),
    ("mpt", {"attn_config": {"alibi": False}}, "attn_config.alibi"),
    ("mpt", {"attn_config": {"qk_ln": True}}, "attn_config.qk_ln"),
    ("mpt", {"attn_config": {"clip_qkv": 8}}, "attn_config.clip_qkv"),
    ("mpt", {"attn_config": {"attn_type": "multiquery_attention"}}, "attn_config.attn_type"),
    ("mpt", {"attn_config": {"attn_type": {"attn_type": {}}}}, "attn_config.attn_type"),
    ("mpt", {"attn_config": {"rope": True}}, "attn_config.rope"),
    ("starcoder2", {"norm_type": "rms_norm"}, "norm_type"),
    ("starcoder2", {"mlp_type": "gated"}, "mlp_type"),
    ("gpt_bigcode", {"scale_attn_weights": False}, "scale_attn_weights"),
    ("gpt_bigcode", {"activation_function": ["gelu"]}, "activation_function"),
]


@pytest.mark.parametrize(("kind", "keys", "path"), REFUSALS)
def test_refused_by_name(kind: str, keys: dict[str, Any], path: str) -> None:
    assert path in refused(kind, **keys)


@pytest.mark.parametrize("kind", FAMILIES)
def test_integral_floats_are_refused_everywhere(kind: str) -> None:
    assert "exact integer" in refused(kind, vocab_size=1000.0)["vocab_size"]
    assert refused(kind, num_local_experts=8)["num_local_experts"]
    assert refused(kind, is_encoder_decoder=True)["is_encoder_decoder"]


def test_the_data_type_of_the_weights_is_inert() -> None:
    for kind in FAMILIES:
        keys = EXTRA.get(kind, {})
        assert read(kind, torch_dtype="float16", dtype="bfloat16", **keys).digest == read(kind, **keys).digest


def test_tables_that_transformers_5_writes() -> None:
    """A table of rotary parameters for each kind of layer; the keys every config object has, also in a part of one."""
    table = {"full_attention": OLMO3, "sliding_attention": OLMO3}
    assert read("olmo3", rope_parameters=table).digest == read("olmo3", rope_theta=5e5).digest
    part = {"alibi": True, "_name_or_path": "", "architectures": None, "is_encoder_decoder": False, "id2label": {}}
    assert read("mpt", attn_config=part).digest == read("mpt").digest
    assert read("gpt_bigcode", num_key_value_heads=1).digest == read("gpt_bigcode").digest


def nested(**outer: Any) -> dict[str, Any]:
    return {"model_type": "llava", "text_config": {"model_type": "llama", "vocab_size": 320}, **outer}


def test_a_language_model_out_of_a_nested_config() -> None:
    found = from_huggingface(nested())
    assert found.digest == read("llama", vocab_size=320).digest
    with pytest.raises(RejectedError) as caught:
        from_huggingface(nested(vision_config={"a": 1}, image_token_index=3))
    assert {problem.path for problem in caught.value.problems} == {"vision_config", "image_token_index"}
    assert all("--text-only" in problem.remedy for problem in caught.value.problems)
    alone = from_huggingface(nested(vision_config={"a": 1}), text_only=True)
    assert alone.digest == found.digest and "vision_config" in alone.notes


@pytest.mark.parametrize(
    "inner", [None, [], "llama", 3, {}, {"model_type": None}, {"model_type": "llama", "text_config": {}}]
)
def test_a_bad_nested_config(inner: Any) -> None:
    with pytest.raises(RejectedError) as caught:
        from_huggingface(nested(text_config=inner), text_only=True)
    assert all(problem.path.startswith("text_config") for problem in caught.value.problems)
