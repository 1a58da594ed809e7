"""Bounds of prefill and decode against figures by hand, and what must hold of any bound."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from jaxcost.contracts.errors import RejectedError
from jaxcost.planning.serve.latency import largest
from tests.planning.serve.plans import model

PEAK, MEMORY = Fraction("989.4") * 10**12, Fraction(3350) * 10**9
# Llama-3.1 8B: matrices of 32 layers and the head
MATRICES = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336) + 128256 * 4096


def test_decode_reads_weights_once_and_every_sequence_its_rows() -> None:
    for batch in (1, 7, 64):
        step = model().decode(batch, 1000)
        assert step.weight_bytes == 2 * MATRICES
        assert step.kv_bytes == batch * 1001 * 32 * 2 * 8 * 128 * 2
        assert step.flops == batch * (2 * MATRICES + 32 * 2 * 2 * 32 * 128 * 1001)
        assert step.memory == Fraction(step.weight_bytes + step.kv_bytes + step.other_bytes) / MEMORY
        assert step.compute == Fraction(step.flops) / PEAK


def test_prefill_is_bound_by_arithmetic_and_decode_by_memory() -> None:
    prompt, step = model().prefill(4096), model().decode(1, 4096)
    assert (prompt.by, step.by) == ("compute", "memory")
    pairs = 4096 * 4097 // 2
    head = 2 * 128256 * 4096
    assert prompt.flops == 4096 * (2 * MATRICES - head) + head + 32 * 2 * 2 * 32 * 128 * pairs


def test_chunks_do_the_same_work_and_read_weights_again() -> None:
    whole, parts = model().prefill(4096), model().prefill(4096, 1024)
    head = 2 * 128256 * 4096  # each chunk projects its last row
    assert parts.flops == whole.flops + 3 * head
    assert parts.weight_bytes == 4 * whole.weight_bytes and parts.full_overlap >= whole.full_overlap
    assert model().prefill(4096, 4096) == whole


@pytest.mark.parametrize("prompt", [1, 2, 509, 8191])
def test_a_prompt_of_any_length_reads_keys_and_values_once(prompt: int) -> None:
    found = model().prefill(prompt)
    assert found.kv_bytes == prompt * 32 * 2 * 8 * 128 * 2
    assert found.full_overlap <= found.serialised


def test_a_quantised_cache_and_quantised_weights_move_less() -> None:
    plain = model().decode(8, 4096)
    cache = model(kv_cache_dtype="fp8").decode(8, 4096)
    assert 2 * cache.kv_bytes == plain.kv_bytes and cache.weight_bytes == plain.weight_bytes
    codes = model(weight_dtype="fp8", weight_scales="tensor").decode(8, 4096)
    assert codes.weight_bytes < plain.weight_bytes * 6 // 10 and codes.compute == plain.compute
    faster = model(weight_dtype="fp8", weight_scales="tensor", arithmetic="fp8").decode(8, 4096)
    assert faster.compute == Fraction(faster.flops) / (Fraction("1978.9") * 10**12)


def test_windows_cut_what_decode_reads() -> None:
    step = model("mistral-7b", max_model_len=32768).decode(1, 20_000)
    assert step.kv_bytes == 4096 * 32 * 2 * 8 * 128 * 2
    mixed = model("gemma-2-9b", max_model_len=32768).decode(1, 20_000)
    assert mixed.kv_bytes == 21 * (4096 + 20_001) * 2 * 8 * 256 * 2


def test_tensor_ranks_share_and_send() -> None:
    one, eight = model("llama-3.1-70b").decode(4, 1000), model("llama-3.1-70b", "h100:8").decode(4, 1000)
    assert eight.weight_bytes * 8 == one.weight_bytes and eight.sent > 0 == one.sent
    assert eight.kv_bytes * 8 == one.kv_bytes


def test_a_pipeline_cuts_the_batch_and_sends_between_stages() -> None:
    flat, stages = model(), model(target="h100:4", pipeline=4)
    assert stages.decode(8, 1000).weight_bytes == flat.decode(2, 1000).weight_bytes
    size = 2 * 4096 * 2
    assert stages.decode(8, 1000).sent == 3 * Fraction(size) / (450 * 10**9)
    with pytest.raises(RejectedError, match="between"):
        model(target="h100:2x2", pipeline=4, wires={"devices_per_node": 2}).decode(8, 1000)


def test_more_work_never_takes_less_time() -> None:
    found = model()
    times = [found.decode(batch, 2048).full_overlap for batch in (1, 2, 3, 64, 65, 1000)]
    assert times == sorted(times)
    times = [found.decode(8, past).full_overlap for past in (1, 16, 4096, 8191)]
    assert times == sorted(times)


@pytest.mark.parametrize("limit", [0, 1, 2, 3, 100, 1023, 1024, 5000])
def test_largest_finds_the_last_that_fits(limit: int) -> None:
    assert largest(lambda n: n <= limit, 1024) == min(limit, 1024)


def test_a_bound_with_a_fault_is_seen() -> None:
    """Weights once for each sequence, or rows of one sequence only, would break the figures by hand."""

    def figures(step: Any, batch: int) -> bool:
        return step.weight_bytes == 2 * MATRICES and step.kv_bytes == batch * 1001 * 32 * 2 * 8 * 128 * 2

    step = model().decode(4, 1000)
    assert figures(step, 4) and not figures(step, 1) and not figures(model().decode(4, 1001), 4)


@pytest.mark.parametrize("name", ["llama-3.2-1b", "gemma-2-2b", "mistral-7b"])
@pytest.mark.parametrize(("prompt", "chunk"), [(9000, 700), (5000, 512), (4097, 4096), (6000, 6000), (10_000, 3000)])
def test_chunks_by_runs_are_the_sum_of_every_chunk(name: str, prompt: int, chunk: int) -> None:
    found = model(name, max_model_len=20_000)
    parts = [found._step(1, min(chunk, prompt - start), start, final=True) for start in range(0, prompt, chunk)]
    total = parts[0]
    for part in parts[1:]:
        total = total.plus(part)
    assert found.prefill(prompt, chunk) == total


def test_a_prompt_in_very_many_chunks_is_answered_at_once() -> None:
    found = model("gemma-2-2b", max_model_len=2**30)
    made = found.prefill(10**9, 1)
    assert len(found._found) < 20 and made.weight_bytes == 10**9 * found.prefill(1).weight_bytes
