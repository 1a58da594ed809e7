"""The CUDA training peak: intervals in order over drawn cases, arguments exact, domains that say what is left out."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxcost
from jaxcost.prediction.ownership import arguments
from jaxcost.prediction.peak import PeakPrediction, Unpredicted, predict_peak
from jaxcost.prediction.program import program

MODELS = ("qwen2.5-0.5b", "llama-3.2-1b", "llama-3.1-8b", "gpt2", "qwen3-0.6b", "gemma-2-2b")


def predicted(model: str, **options: Any) -> PeakPrediction:
    found = predict_peak(program(jaxcost.training(jaxcost.load(model), **options)), "cuda")
    assert isinstance(found, PeakPrediction), found
    return found


@given(
    model=st.sampled_from(MODELS),
    batch=st.integers(1, 8),
    blocks=st.integers(1, 8),
    remat=st.sampled_from(["none", "attention", "block"]),
    attention=st.sampled_from(["blockwise", "materialised"]),
    precision=st.sampled_from(["mixed", "bf16", "fp32", "bf16_master_adam"]),
    mesh=st.sampled_from(
        [{}, {"data": 4}, {"fsdp": 2}, {"tensor": 2}, {"data": 2, "fsdp": 4}, {"fsdp": 4, "tensor": 2}]
    ),
    accumulate=st.sampled_from([1, 2]),
    layers=st.sampled_from(["scan", "unrolled"]),
)
def test_intervals_are_in_order_and_hold_the_arguments(
    model: str,
    batch: int,
    blocks: int,
    remat: str,
    attention: str,
    precision: str,
    mesh: dict[str, int],
    accumulate: int,
    layers: str,
) -> None:
    shards = mesh.get("data", 1) * mesh.get("fsdp", 1)
    options: dict[str, Any] = {"remat": remat, "attention": attention, "precision": precision, "mesh": mesh}
    options |= {"accumulate": accumulate, "layers": layers}
    options |= {"batch": batch * shards * accumulate, "seq": 128 * blocks, "vocabulary_multiple": 2}
    case = jaxcost.training(jaxcost.load(model), **options)
    step = program(case)
    found = predict_peak(step, "cuda")
    if isinstance(found, Unpredicted):
        assert found.reason
        return
    held = sum(item.per_device for item in arguments(step))
    assert held <= found.lower <= found.expected <= found.upper
    for moment in found.moments:
        state = sum(item.bytes.expected for item in moment.held if item.kind in ("parameter", "optimizer"))
        tokens = sum(item.bytes.expected for item in moment.held if item.kind == "input_output")
        assert state + tokens >= held
        assert sum(moment.by_class.values()) == moment.bytes.expected
    assert found.to_dict()["expected"] == found.expected


def test_a_longer_batch_never_needs_less() -> None:
    sizes = [predicted("llama-3.2-1b", batch=n, seq=1024, remat="block").expected for n in (1, 2, 4, 8)]
    assert sizes == sorted(sizes)


def test_written_out_layers_have_no_stacks_of_gradients() -> None:
    options = {"batch": 4, "seq": 1024, "remat": "block", "attention": "blockwise"}
    scanned, written = (predicted("llama-3.2-1b", layers=how, **options) for how in ("scan", "unrolled"))
    assert written.expected < scanned.expected
    assert "gradient" in scanned.by_class
    assert "gradient" not in written.by_class


def test_saving_more_holds_more_between_the_loops() -> None:
    def saved(remat: str) -> int:
        found = predicted("llama-3.1-8b", batch=8, seq=2048, remat=remat, attention="blockwise", mesh={"fsdp": 8})
        return sum(item.bytes.expected for item in found.moments[-2].held if item.kind == "saved")

    assert 0 < saved("block") < saved("attention") < saved("none")


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"remat": "everything"}, "everything"),
        ({"remat": "dots_saveable"}, "dots_saveable"),
        ({"attention": "cudnn"}, "cudnn"),
        ({"sharding": "auto", "mesh": {"fsdp": 2}}, "auto"),
        ({"mesh": {"data": 2}, "zero": 1}, "ZeRO"),
        ({"frozen": ("embed",)}, "freezes"),
    ],
)
def test_what_lies_outside_the_domain_is_unpredicted(options: dict[str, Any], word: str) -> None:
    case = jaxcost.training(jaxcost.load("llama-3.2-1b"), batch=2, seq=512, **options)
    found = predict_peak(program(case), "cuda")
    assert isinstance(found, Unpredicted)
    assert word in found.reason


def test_no_policy_covers_the_cpu() -> None:
    case = jaxcost.training(jaxcost.load("toy-tied"), batch=2, seq=8)
    found = predict_peak(program(case), "cpu")
    assert isinstance(found, Unpredicted)
    assert "cpu" in found.reason
