"""MaxText files: the model of a file, the options of its step, and what is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from jaxcost.catalog import load, load_case_file, read_maxtext
from jaxcost.catalog.maxtext import BLOCKS, REFUSED_BLOCKS, REMATS, from_maxtext
from jaxcost.catalog.yaml_text import parse_yaml
from jaxcost.contracts.case import build_case
from jaxcost.contracts.errors import RejectedError

# src/maxtext/configs/models/llama3.1-8b.yml at commit e591f30cbbf217ed67ef71263ec0538239f9c3b8 of
# github.com/AI-Hypercomputer/maxtext, with rope_type, which MaxText takes from the model's name, and a run around it.
LLAMA = """
base_config: "base.yml"
base_emb_dim: 4096
base_num_query_heads: 32
base_num_kv_heads: 8
base_num_decoder_layers: 32
base_mlp_dim: 14336
head_dim: 128
mlp_activations: ["silu","linear"]
vocab_size: 128256
enable_dropout: false
logits_via_embedding: false
normalization_layer_epsilon: 1.0e-5
rope_max_timescale: 500_000
rope_type: "llama3.1"
decoder_block: "llama2" # Uses the same decoder block as llama2
per_device_batch_size: 2.0
gradient_accumulation_steps: 2
max_target_length: 4096
remat_policy: "full"
scan_layers: true
attention: "dot_product"
ici_fsdp_parallelism: 4
ici_tensor_parallelism: 2
dcn_data_parallelism: 2
"""
QWEN3 = {
    "base_emb_dim": 1024, "base_num_query_heads": 16, "base_num_kv_heads": 8, "base_mlp_dim": 3072,
    "base_num_decoder_layers": 28, "head_dim": 128, "vocab_size": 151936, "decoder_block": "qwen3",
    "normalization_layer_epsilon": 1e-6, "rope_max_timescale": 1000000, "use_qk_norm": True,
    "logits_via_embedding": True, "normalize_embedding_logits": False,
}  # fmt: skip
QWEN2 = {
    "base_emb_dim": 3584, "base_num_query_heads": 28, "base_num_kv_heads": 4, "base_mlp_dim": 18944,
    "base_num_decoder_layers": 28, "head_dim": 128, "vocab_size": 152064, "decoder_block": "qwen2",
    "normalization_layer_epsilon": 1e-6, "rope_max_timescale": 1000000.0, "attention_bias": True,
}  # fmt: skip


def refused(**keys: Any) -> dict[str, str]:
    with pytest.raises(RejectedError) as caught:
        from_maxtext(keys)
    assert all(problem.remedy for problem in caught.value.problems)
    return {problem.path: problem.rule for problem in caught.value.problems}


def test_the_model_and_the_step_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "run.yml"
    path.write_text(LLAMA, encoding="utf-8")
    found = read_maxtext(path)
    assert found.architecture.digest == load("llama-3.1-8b").architecture.digest
    assert dict(found.options) == {
        "phase": "training", "seq": 4096, "batch": 2 * 16 * 2, "accumulate": 2, "layers": "scan", "remat": "block",
        "mesh": {"data": 2, "fsdp": 4, "tensor": 2}, "attention": "materialised", "precision": "mixed",
        "optimizer": "adamw",
    }  # fmt: skip
    assert load(path).origin == "maxtext_config" and load(path).architecture.name == "run"
    file = load_case_file(path)
    assert file.options == found.options and file.manifest is not None
    case = build_case(file.manifest.architecture, file.options)
    assert case.workload.batch == 64 and case.execution.remat == "block"


@pytest.mark.parametrize(("config", "name"), [(QWEN3, "qwen3-0.6b"), (QWEN2, "qwen2.5-7b")])
def test_models_that_the_catalogue_has(config: dict[str, Any], name: str) -> None:
    assert from_maxtext(config).architecture.digest == load(name).architecture.digest


def test_defaults_are_those_of_the_base_file() -> None:
    found = from_maxtext({})
    layer = found.architecture.groups[0].layer
    assert (found.architecture.hidden_size, found.architecture.layer_count, layer.mlp.width) == (2048, 16, 7168)
    assert (layer.attention.kv_heads, layer.attention.head_dim, found.architecture.tied) == (16, 128, False)
    assert found.options["batch"] == 12 and found.options["remat"] == "block" and "mesh" not in found.options
    assert "attention" not in found.options


def test_what_is_the_same_function_only_is_said() -> None:
    tied = from_maxtext({"logits_via_embedding": True})
    assert tied.architecture.tied and any("divides the logits" in note for note in tied.notes)
    assert any("query weights" in note for note in tied.notes)
    assert "divides the logits" in tied.architecture.notes
    assert not any("divides the logits" in note for note in from_maxtext(QWEN3).notes)


def test_storage_activations_and_states() -> None:
    fused = from_maxtext({"fused_qkv": True, "fused_mlp": True}).architecture.groups[0].layer
    assert (fused.attention.storage, fused.mlp.storage) == ("fused", "fused")
    assert from_maxtext({"mlp_activations": ["gelu"]}).architecture.groups[0].layer.mlp.form == "classic"
    assert from_maxtext({"dtype": "float32"}).options["precision"] == "fp32"
    assert from_maxtext({"attention": "flash"}).options["attention"] == "splash"
    assert from_maxtext({"attention": "cudnn_flash_te", "hardware": "gpu"}).options["attention"] == "cudnn"
    assert from_maxtext({"remat_policy": "minimal"}).options["remat"] == "attention"
    assert from_maxtext({"scan_layers": False}).options["layers"] == "unrolled"
    axes = {"ici_fsdp_parallelism": 2, "dcn_fsdp_parallelism": 3, "per_device_batch_size": 0.5}
    assert from_maxtext(axes).options["batch"] == 3 and from_maxtext(axes).options["mesh"] == {"fsdp": 6}


@pytest.mark.parametrize(
    ("keys", "path"),
    [
        *[({"decoder_block": block}, "decoder_block") for block in REFUSED_BLOCKS],
        *[
            ({"remat_policy": policy}, "remat_policy")
            for policy in ("minimal_with_context", "save_qkv_proj", "minimal_offloaded", "custom", "none", "most", 3)
        ],
        ({"decoder_block": ["llama2"]}, "decoder_block"),
        ({"model_name": "llama3.1-8b"}, "model_name"),
        ({"global_parameter_scale": 2}, "global_parameter_scale"),
        ({"num_experts": 8}, "num_experts"),
        ({"base_emb_dim": 4096.0}, "base_emb_dim"),
        ({"base_emb_dim": "4096"}, "base_emb_dim"),
        ({"base_num_kv_heads": 3}, "base_num_kv_heads"),
        ({"head_dim": 127}, "head_dim"),
        ({"mlp_activations": []}, "mlp_activations"),
        ({"mlp_activations": "silu"}, "mlp_activations"),
        ({"mlp_activations": ["silu", "silu"]}, "mlp_activations"),
        ({"mlp_activations": [["silu"], "linear"]}, "mlp_activations"),
        ({"attention_bias": True}, "attention_bias"),
        ({"use_qk_norm": True}, "use_qk_norm"),
        ({"dropout_rate": 0.1}, "dropout_rate"),
        ({"quantization": "int8"}, "quantization"),
        ({"attention": "paged"}, "attention"),
        ({"attention": "flash", "hardware": "gpu"}, "attention"),
        ({"attention_type": "local_sliding"}, "attention_type"),
        ({"sliding_window_size": 4096}, "sliding_window_size"),
        ({"rope_type": "yarn"}, "rope_type"),
        ({"opt_type": "muon"}, "opt_type"),
        ({"weight_dtype": "int8"}, "weight_dtype"),
        ({"ici_fsdp_parallelism": -1}, "ici_fsdp_parallelism"),
        ({"ici_tensor_parallelism": 4}, "ici_fsdp_parallelism"),
        ({"ici_fsdp_parallelism": 0}, "ici_fsdp_parallelism"),
        ({"ici_fsdp_parallelism": 2.0}, "ici_fsdp_parallelism"),
        ({"ici_fsdp_parallelism": 1, "ici_expert_parallelism": 4}, "ici_expert_parallelism"),
        ({"ici_fsdp_parallelism": 1, "dcn_pipeline_parallelism": 2}, "dcn_pipeline_parallelism"),
        ({"per_device_batch_size": 0.3}, "per_device_batch_size"),
        ({"per_device_batch_size": 0}, "per_device_batch_size"),
        ({"shiny_new_layer": True}, "shiny_new_layer"),
    ],
)
def test_refused_by_name(keys: dict[str, Any], path: str) -> None:
    assert path in refused(**keys)


def test_every_equivalence_has_its_reason() -> None:
    assert all(name and why for name, why in REMATS.values())
    assert not set(BLOCKS) & set(REFUSED_BLOCKS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\na: 2\n", "appears twice"),
        ("x: {a: 1, a: 2}\n", "appears twice"),
        ("a: &b [1]\nc: *b\n", "aliases"),
        ("a: !!python/object/apply:os.system [ls]\n", "not YAML"),
        ("a: [1\n", "not YAML"),
        ("\t- a", "not YAML"),
        ("{a: 1}: 2\n", "not YAML"),
        ("a: " + "[" * 20_000 + "]" * 20_000, "nested too deeply"),
        ("--- 1\n--- 2\n", "not YAML"),
        (b"a: \xff", "not UTF-8"),
        (b"\0\0", "not YAML"),
    ],
)
def test_bad_yaml(text: str | bytes, message: str) -> None:
    with pytest.raises(RejectedError, match=message):
        parse_yaml(text, "f.yml")


def test_numbers_without_a_point_are_numbers() -> None:
    assert parse_yaml("a: 1e-06\nb: 500_000\nc: 1.e-05\nd: '1e-06'\n") == {
        "a": 1e-6, "b": 500000, "c": 1e-5, "d": "1e-06",
    }  # fmt: skip


@pytest.mark.parametrize("text", ["", "3\n", "- a\n", "null\n"])
def test_a_file_without_a_table(tmp_path: Path, text: str) -> None:
    path = tmp_path / "f.yml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(RejectedError, match="object"):
        load(path)
