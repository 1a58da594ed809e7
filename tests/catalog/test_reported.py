"""Mistakes that other tools were reported for: the right value of each, and siblings of the same kind."""

from __future__ import annotations

from typing import Any

import pytest

from jaxcost.catalog import from_huggingface, load
from jaxcost.contracts.architecture import Architecture
from jaxcost.contracts.case import build_case
from jaxcost.contracts.errors import RejectedError
from jaxcost.prediction.ledgers import predict
from tests.catalog.counting import totals


def ledgers(architecture: Architecture, **options: Any) -> dict[str, Any]:
    found = predict(build_case(architecture, options)).to_dict()["ledgers"]
    assert isinstance(found, dict)
    return found


QWEN1_5_72B = {
    "model_type": "qwen2", "vocab_size": 152064, "hidden_size": 8192, "num_hidden_layers": 80,
    "num_attention_heads": 64, "num_key_value_heads": 64, "intermediate_size": 24576, "tie_word_embeddings": False,
}  # fmt: skip


def test_gated_mlps_have_three_matrices() -> None:
    """EleutherAI/cookbook#36: a calculator with a two-matrix MLP gave 56B for a 72B model."""
    found = from_huggingface(QWEN1_5_72B)
    assert totals(found)["unique"] == 72_287_920_128
    assert ledgers(found, phase="prefill", seq=1)["parameters"]["totals"]["unique"] == 72_287_920_128
    # What that calculator computed, without biases and norms, explains the report.
    layers, hidden, width = 80, 8192, 24576
    wrong = 2 * 152064 * hidden + layers * (4 * hidden * hidden + 2 * hidden * width)
    assert wrong == 56_178_507_776
    third, biases, norms = layers * hidden * width, layers * 3 * hidden, (2 * layers + 1) * hidden
    assert wrong + third + biases + norms == 72_287_920_128


@pytest.mark.parametrize(
    ("config", "bias"),
    [
        ({"model_type": "qwen2", "num_attention_heads": 8, "num_key_value_heads": 2}, (8 + 2 + 2) * 8),
        ({"model_type": "llama", "num_attention_heads": 8, "attention_bias": True}, 24 * 8 + 64),
        ({"model_type": "llama", "num_attention_heads": 8, "mlp_bias": True}, 2 * 96 + 64),
        ({"model_type": "starcoder2", "num_attention_heads": 8, "num_key_value_heads": 2}, 12 * 8 + 64 + 96 + 64),
        ({"model_type": "gpt_neox", "num_attention_heads": 8, "rotary_pct": 1.0}, 24 * 8 + 64 + 96 + 64),
        ({"model_type": "stablelm", "num_attention_heads": 8, "num_key_value_heads": 2, "use_qkv_bias": True}, 12 * 8),
    ],
)  # fmt: skip
def test_biases_of_a_layer(config: dict[str, Any], bias: int) -> None:
    sizes = {"hidden_size": 64, "num_hidden_layers": 1, "intermediate_size": 96, "vocab_size": 10}
    layer = from_huggingface({**sizes, **config}).groups[0].layer
    bare = layer.replaced(
        attention=layer.attention.replaced(query_bias=False, key_bias=False, value_bias=False, output_bias=False),
        mlp=layer.mlp.replaced(bias=False),
    )
    architecture = from_huggingface({**sizes, **config})
    absent = tuple(sorted({*architecture.absent, "attention_bias", "mlp_bias"}))
    without = architecture.replaced(groups=(architecture.groups[0].replaced(layer=bare),), absent=absent)
    assert totals(architecture)["unique"] - totals(without)["unique"] == bias


@pytest.mark.parametrize(
    ("vocabulary", "ranks", "multiple", "rows"),
    [
        (128256, 8, 64 * 8, 128_512),
        (129280, 24, 64 * 24, 130_560),
        (129280, 24, 192, 129_408),
        (151552, 6, 64 * 6, 151_680),
        (32000, 8, 64 * 8, 32_256),
        (50257, 1, 128, 50_304),
        (32768, 8, 512, 32_768),
    ],
)
def test_padded_vocabularies(vocabulary: int, ranks: int, multiple: int, rows: int) -> None:
    """hpcaitech/ColossalAI PR #6124, vllm#31474, sglang#31799: the table is padded to a multiple of 64 x ranks."""
    hidden = 4096
    config = {"model_type": "llama", "hidden_size": hidden, "num_hidden_layers": 1, "vocab_size": vocabulary}
    architecture = from_huggingface(config)
    padded = build_case(architecture, {"phase": "prefill", "seq": 1, "vocabulary_multiple": multiple})
    assert (padded.vocabulary_rows, padded.vocabulary_rows % ranks) == (rows, 0)
    found = predict(padded).to_dict()["ledgers"]["parameters"]["totals"]
    # The model's own count and the stored one are two numbers; each of the two tables gains the padding.
    assert found["unique"] == totals(architecture)["unique"]
    assert found["stored"] - found["unique"] == found["padding"] == 2 * (rows - vocabulary) * hidden


def test_heads_wider_than_hidden_over_heads() -> None:
    """LMCache/LMCache#688: hidden / heads (80) was taken for the head width of Qwen3-4B (128)."""
    found = load("qwen3-4b").architecture
    assert totals(found)["unique"] == 4_022_468_096
    cache = ledgers(found, phase="decode", past=0)["kv_cache"]["totals"]
    assert cache["bytes_per_token"] == 147_456
    wrong = 2 * 36 * 8 * (2560 // 32) * 2
    assert wrong == 92_160 != cache["bytes_per_token"]


@pytest.mark.parametrize(
    ("name", "layers", "kv_heads", "head_dim"),
    [("gemma-2-9b", 42, 8, 256), ("qwen3-0.6b", 28, 8, 128), ("phi-3-mini-4k", 32, 32, 96), ("falcon-7b", 32, 1, 64)],
)
def test_cache_of_a_token(name: str, layers: int, kv_heads: int, head_dim: int) -> None:
    cache = ledgers(load(name).architecture, phase="decode", past=0)["kv_cache"]["totals"]
    assert cache["bytes_per_token"] == 2 * layers * kv_heads * head_dim * 2


SMALL: dict[str, Any] = {
    "vocab_size": 1000, "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4,
    "num_key_value_heads": 4, "intermediate_size": 8,
}  # fmt: skip


def embedding(architecture: Architecture) -> int:
    """Scalars of the token table and of a head of its own."""
    return architecture.vocabulary_size * architecture.hidden_size * (1 if architecture.tied else 2)


@pytest.mark.parametrize(
    ("config", "unique"),
    [
        ({"model_type": "llama", "tie_word_embeddings": False}, 128_000),
        ({"model_type": "llama", "tie_word_embeddings": True}, 64_000),
        ({"model_type": "llama"}, 128_000),
        ({"model_type": "gemma"}, 64_000),
        ({"model_type": "gemma2"}, 64_000),
        ({"model_type": "qwen2"}, 128_000),
        ({"model_type": "gemma", "tie_word_embeddings": False}, 128_000),
        ({"model_type": "starcoder2"}, 64_000),
        ({"model_type": "smollm3"}, 64_000),
        ({"model_type": "phi3"}, 128_000),
    ],
)
def test_whose_tie_flag_wins(config: dict[str, Any], unique: int) -> None:
    """QwenLM/Qwen3-VL-Embedding#89, mlx-lm PR #1298, vllm#51063, transformers#38160: the flag, else the default."""
    assert embedding(from_huggingface({**SMALL, **config})) == unique


@pytest.mark.parametrize(
    ("outer", "inner", "unique"), [(True, False, 128_000), (False, True, 64_000), (True, None, 128_000)]
)
def test_in_a_nested_config_the_inner_flag_decides(outer: bool, inner: bool | None, unique: int) -> None:
    text = {**SMALL, "model_type": "mistral", **({} if inner is None else {"tie_word_embeddings": inner})}
    config: dict[str, Any] = {"model_type": "mistral3", "tie_word_embeddings": outer, "text_config": text}
    found = from_huggingface(config)
    assert embedding(found) == unique
    assert "outer tie_word_embeddings" in found.notes
    with pytest.raises(RejectedError, match="vision_config"):
        from_huggingface({**config, "vision_config": {"hidden_size": 8}})
    alone = from_huggingface({**config, "vision_config": {"hidden_size": 8}}, text_only=True)
    assert alone.digest == found.digest and "left aside: vision_config" in alone.notes
