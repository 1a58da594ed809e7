"""Work and traffic of one contraction: each axis once, no factor of two without a sum, reuse from the axes alone."""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import jaxcost
from jaxcost.contracts.errors import RejectedError
from jaxcost.planning.work import contraction, with_gradients, work
from jaxcost.prediction.traffic import gemm_bytes


def test_a_batched_product_counts_its_batch_once() -> None:
    found = work("b m k, b k n -> b m n", {"b": 7, "m": 3, "k": 5, "n": 11})
    assert found.flops == 2 * 7 * 3 * 5 * 11
    assert found.axes == {"batch": ("b",), "contracted": ("k",), "left": ("m",), "right": ("n",)}
    assert found.weights == "by group"


@pytest.mark.parametrize(
    ("spec", "extents", "multiplications"),
    [
        ("m n, m n -> m n", {"m": 3, "n": 5}, 15),
        ("m, n -> m n", {"m": 3, "n": 5}, 15),
        ("b m, b n -> b m n", {"b": 2, "m": 3, "n": 5}, 30),
    ],
)
def test_elementwise_and_outer_products_get_no_factor_two(
    spec: str, extents: dict[str, int], multiplications: int
) -> None:
    found = work(spec, extents)
    assert (found.flops, found.factor) == (multiplications, 1)


@pytest.mark.parametrize(("m", "k", "n"), list(product((1, 3, 64), (1, 5), (1, 7))))
def test_a_matrix_product_reads_once_and_writes_once(m: int, k: int, n: int) -> None:
    found = work("m k, k n -> m n", {"m": m, "k": k, "n": n}, ("bf16", "int8", "fp32"))
    assert found.flops == 2 * m * k * n
    assert found.bytes == 2 * m * k + k * n + 4 * m * n == gemm_bytes(m, k, n, "bf16", "int8", "fp32")
    assert found.intensity == Fraction(found.flops, found.bytes)


def test_beta_and_bias_stand_apart() -> None:
    plain = work("m k, k n -> m n", {"m": 4, "k": 8, "n": 16})
    found = work("m k, k n -> m n", {"m": 4, "k": 8, "n": 16}, beta=True, bias="n")
    assert (found.bytes, found.flops) == (plain.bytes, plain.flops)
    assert (found.beta_bytes, found.beta_flops) == (2 * 64, 128)
    assert (found.bias_bytes, found.bias_flops) == (2 * 16, 64)
    assert (plain.beta_bytes, plain.bias_bytes) == (0, 0)


def test_forward_and_backward_are_six_mkn() -> None:
    m, k, n = 12, 20, 28
    parts = with_gradients("m k, k n -> m n", {"m": m, "k": k, "n": n})
    assert sum(part.flops for part in parts) == 6 * m * k * n
    assert [part.axes["contracted"] for part in parts] == [("k",), ("n",), ("m",)]


@pytest.mark.parametrize("batch", [1, 8, 32])
def test_reuse_follows_from_the_axes(batch: int) -> None:
    extents = {"b": batch, "d": 4096, "f": 16384}
    shared = work("b d, d f -> b f", extents)
    own = work("b d, b d f -> b f", extents)
    assert shared.flops == own.flops
    assert (shared.weight_intensity, own.weight_intensity) == (batch, 1), "B cancels where each row has its own matrix"
    assert (shared.weights, own.weights) == ("shared", "per row")
    assert shared.intensity < batch, "input and output keep the exact one below the weight-only estimate"
    assert Fraction(999, 1000) < own.intensity < 1


def test_fp32_add_and_its_fused_form() -> None:
    """Two reads and one write of four bytes: 1/12 FLOP a byte; the worksheet's ceilings on 1,555 GB/s."""
    from jaxcost.planning.hardware import device

    a100 = device("a100-40gb")
    add = work("n, n -> n", {"n": 1 << 20}, ("fp32", "fp32", "fp32"))
    assert add.intensity == Fraction(1, 12)
    assert round(float(add.intensity * a100.bandwidth()) / 1e9, 1) == 129.6
    fused = Fraction(1, 4) * a100.bandwidth()
    assert float(fused) / 1e9 == 388.75
    assert round(float(fused / a100.peak("fp32", "vector").per_second), 2) == 0.02


@pytest.mark.parametrize("batch", [1, 8, 32])
def test_weight_only_decode_intensity_of_a_model(batch: int) -> None:
    """2 B P FLOPs over 2 P bytes of BF16 weights: the batch, from the ledgers of a real model."""
    case = jaxcost.decode(jaxcost.load("llama-3.1-8b"), batch=batch, past=1023)
    program = jaxcost.predict(case).program
    weights = flops = 0
    for op in program.contractions:
        if not program.is_pairwise(op):
            weights += 2 * program.elements(program.tensors[op.inputs[1]]) * op.repeat
            flops += 2 * program.sizes.product(op.axes, op.group) * op.repeat
    assert Fraction(flops, weights) == batch


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ("m k k, k n -> m n", "repeats"),
        ("m k, k n -> m m", "repeats"),
        ("m k, k n -> m z", "neither operand"),
        ("m k x, k n -> m n", "reduction"),
        ("m k", "form"),
        ("m k, k n, n p -> m p", "form"),
        ("m k, -> m", "form|without axes"),
        (" , k -> k", "without axes"),
        (None, "form"),
        ("m k, k n -> m n" * 40, "form"),
        ("m\x00, m -> m", "form"),
    ],
)
def test_what_is_no_contraction_is_refused(spec: Any, problem: str) -> None:
    with pytest.raises(RejectedError, match=problem):
        contraction(spec)


@pytest.mark.parametrize("bad", [0, -1, True, 2.0, "4", None, 2**60])
def test_extents_are_whole_numbers(bad: Any) -> None:
    with pytest.raises(RejectedError, match="extents.m"):
        work("m k, k n -> m n", {"m": bad, "k": 2, "n": 2})


def test_every_problem_is_named_together() -> None:
    with pytest.raises(RejectedError) as caught:
        work("m k, k n -> m n", {"m": 0, "k": 2, "z": 1}, ("bf16", "bf17", "bf16"), bias="q")
    assert {problem.path for problem in caught.value.problems} == {
        "extents.m", "extents.n", "extents", "dtypes", "bias"
    }  # fmt: skip


@given(st.data())
def test_the_count_is_that_of_a_walk_over_all_points(data: st.DataObject) -> None:
    """An independent witness: one multiply-add for every assignment of the distinct axes, elements by hand."""
    axes = {name: data.draw(st.integers(1, 4), label=name) for name in "abcd"}
    kinds = {name: data.draw(st.sampled_from(("batch", "contracted", "left", "right", "absent")), label=f"{name} is")
             for name in axes}  # fmt: skip
    left = [n for n, kind in kinds.items() if kind in ("batch", "contracted", "left")]
    right = [n for n, kind in kinds.items() if kind in ("batch", "contracted", "right")]
    out = [n for n, kind in kinds.items() if kind in ("batch", "left", "right")]
    assume(left and right)  # an operand without an axis is no tensor, and the declaration refuses it
    used = {name: axes[name] for name in axes if kinds[name] != "absent"}
    found = work(f"{' '.join(left)}, {' '.join(right)} -> {' '.join(out)}", used, ("bf16", "fp32", "int8"))
    points = sum(1 for _ in product(*(range(size) for size in used.values())))
    contracted = any(kind == "contracted" for kind in kinds.values())
    assert found.flops == (2 if contracted else 1) * points
    cells = [sum(1 for _ in product(*(range(axes[name]) for name in names))) for names in (left, right, out)]
    assert found.bytes == 2 * cells[0] + 4 * cells[1] + cells[2]
