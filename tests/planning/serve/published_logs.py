"""Lines that engines printed when they started, as users quoted them. GiB are printed with two or four decimals.

`half` is half of the last printed digit, in GiB: the printed memory stands for an interval of so much to either side.
"""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple


class Log(NamedTuple):
    """One start of an engine: what was left for the cache, and what it made of it."""

    source: str
    model: str
    available_gib: str
    half: Fraction
    tokens: int
    max_model_len: int | None
    printed: str | None


HALF = Fraction(5, 1000)
LOGS = (
    Log("github.com/vllm-project/vllm/issues/10517, comment of 2024-12-02, RTX 3090", "llama-3.1-8b", "3.81", HALF,
        1952 * 16, 20000, "1.56x"),
    Log("github.com/vllm-project/vllm/issues/10517, comment of 2024-12-02, RTX 3090", "llama-3.1-8b", "2.89", HALF,
        1478 * 16, 29000, "0.82x"),
    Log("github.com/vllm-project/vllm/issues/33263, 2026-01-28, 24 GB", "qwen3-1.7b", "18.78", HALF, 175_856, None,
        None),
)  # fmt: skip
# gpt-oss-120b: 36 layers, full attention and a window of 128 in turn, 8 K/V heads of 64, two bytes, pages of 16 tokens
HYBRID = Log("github.com/alvarobartt/hf-mem/issues/60, 2026-05-06", "gpt-oss-120b", "5.38", HALF, 78_384, None, None)
# "Model loading took": one device, weights and rotary table, GiB of four decimals; and by how much our four decimals
# stand below: of the quantised model one in the last place (0.1 MB of 73 GB) is not explained.
WEIGHTS = (
    ("github.com/vllm-project/vllm/issues/10517", "llama-3.1-8b", {"rotary_rows": 131072}, "14.9888", "0"),
    ("github.com/vllm-project/vllm/pull/12569", "llama-3.1-70b",
     {"rotary_rows": 131072, "weight_dtype": "int8", "weight_scales": "channel"}, "67.7229", "0.0001"),
)  # fmt: skip
# (source, blocks of 16 tokens, max_model_len, what was printed)
CONCURRENCY = (
    ("github.com/vllm-project/vllm/pull/12569, Llama-3.1-70B w8a8", 1381, 2048, "10.79x"),
    ("vllm nixl integration test, 2025-05-18, Llama-3.1-8B", 442_160 // 16, 131_072, "3.37x"),
)
# A device's memory as an engine split it, GiB of two decimals (github.com/vllm-project/vllm/pull/10511, comment of
# 2024-12-14, Meta-Llama-3-8B, which has the shapes of 3.1): ranks, device, weights, outside of torch, activations and
# what was left.
SPLIT = (
    (1, "79.22", "14.96", "1.79", "1.26", "53.29"),
    (2, "79.22", "7.48", "3.58", "1.26", None),  # what was left is cut off in the copy read
)
