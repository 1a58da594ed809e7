"""Regimes: the batch moves products with weights and not attention; a phase's name proves no bottleneck."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

import jaxcost
from jaxcost.contracts.errors import RejectedError
from jaxcost.planning.machine import machine
from jaxcost.planning.regimes import Regime, crossing, regime, regimes


def decoding(past: int, batches: list[object], name: str = "a100-40gb", **options: Any) -> tuple[Regime, ...]:
    case = jaxcost.decode(jaxcost.load("llama-3.1-8b"), past=past, **options)
    return regimes(case, machine(name, case), batches)


def test_weight_only_decode_intensity_is_the_batch() -> None:
    assert [item.weight_only for item in decoding(1023, [1, 8, 32])] == [1, 8, 32]


def test_none_of_them_crosses_the_bf16_ridge_and_what_does() -> None:
    found = decoding(0, [1, 8, 32, 128, 256, 512])
    assert [item.projections.bound for item in found[:3]] == ["memory"] * 3
    assert crossing(found[:4]) is None
    assert crossing(found) == 256
    for item in found:
        assert item.projections.intensity is not None and item.weight_only is not None
        assert item.projections.intensity < item.weight_only, "input and output keep it below the weight-only estimate"


def test_attention_has_its_own_intensity_whatever_the_batch() -> None:
    found = decoding(32767, [1, 8, 512])
    assert len({item.attention.intensity for item in found}) == 1
    last = found[-1]
    assert (last.projections.bound, last.attention.bound, last.whole.bound) == ("compute", "memory", "memory")


def test_a_phase_s_name_proves_nothing() -> None:
    short = jaxcost.prefill(jaxcost.load("llama-3.1-8b"), seq=16)
    assert regime(short, machine("h100", short)).whole.bound == "memory"
    [many] = decoding(0, [1024], "h100")
    assert (many.phase, many.whole.bound) == ("decode", "compute")


def test_a_faster_peak_does_not_make_memory_bound_work_faster() -> None:
    """The ridge moves right with the peak; what is below it takes as long as before."""
    case = jaxcost.decode(jaxcost.load("llama-3.1-8b"), past=1023)
    slow = machine("a100-40gb", case)
    from dataclasses import replace

    fast = replace(slow, peak=replace(slow.peak, per_second=2 * slow.peak.per_second))
    assert fast.ridge == 2 * slow.ridge
    assert regime(case, fast).whole.overlapped_seconds == regime(case, slow).whole.overlapped_seconds


def test_narrower_weights_move_bytes_not_the_batch() -> None:
    """An fp32 decode moves twice the bytes: half of the intensity at the same batch."""
    case = jaxcost.decode(jaxcost.load("llama-3.1-8b"), past=1023, batch=8, precision="fp32_inference")
    assert regime(case, machine("a100-40gb", case)).weight_only == Fraction(8, 2)


def test_on_a_mesh_the_weights_are_a_device_s() -> None:
    case = jaxcost.decode(jaxcost.load("llama-3.1-8b"), past=1023, batch=32, mesh={"tensor": 8})
    assert regime(case, machine("h100", case)).weight_only == 32


@pytest.mark.parametrize("bad", [[0], [-1], [True], [1.5], ["8"], [None], [], list(range(1, 66))])
def test_a_batch_is_a_whole_number(bad: list[object]) -> None:
    with pytest.raises(RejectedError, match="batches"):
        decoding(0, bad)


def test_a_batch_that_does_not_divide_is_refused() -> None:
    with pytest.raises(RejectedError):
        decoding(1023, [3], "h100", batch=8, mesh={"data": 8})


def test_a_batch_whose_cache_exceeds_the_device_says_so() -> None:
    """Qwen2.5-7B over 4,096 rows in bf16: 28 layers x 2 x 4 heads x 128 x 2 bytes a token, 15.2 GB of weights."""
    case = jaxcost.decode(jaxcost.load("qwen2.5-7b"), batch=1, past=4095)
    few, many = regimes(case, machine("h100", case), (32, 512))
    cache = 28 * 2 * 4 * 128 * 2 * 4096
    assert many.argument_bytes - few.argument_bytes == 480 * (cache + 4)  # and a token id each
    assert few.holds is True and many.holds is False
    assert many.to_data()["arguments_fit"] is False
