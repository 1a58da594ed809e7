"""The declaration of the network: paths, axes, shapes, and that nothing is allocated."""

from __future__ import annotations

import re
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcost.catalog import load_architecture
from jaxcost.contracts.case import build_case
from jaxcost.reference import abstract_model, init_model, parameter_tree, parameters
from jaxcost.reference.attention import EVERYTHING, Rows, Scoring, attend, slopes
from jaxcost.reference.layers import Norm, softcap
from jaxcost.reference.rotary import angles, frequencies, rotate, sinusoid
from jaxcost.reference.stack import make_run, windows
from tests.reference.small import ARCHITECTURES, LITTLE_EFFORT, LLAMA, PLAIN, compiled, make_case

NAMES = tuple(ARCHITECTURES)


@pytest.mark.parametrize("layers", ["scan", "unrolled"])
@pytest.mark.parametrize("name", NAMES)
def test_shapes_follow_the_declared_axes(name, layers):
    case = make_case(ARCHITECTURES[name], batch=2, seq=8, layers=layers)
    assert jax.tree.structure(abstract_model(case)) == jax.tree.structure(parameter_tree(case))
    for shape, (_, record) in zip(jax.tree.leaves(abstract_model(case)), parameters(case), strict=True):
        assert (shape.shape, shape.dtype) == (record.shape, record.dtype)
        assert len(record.axes) == len(record.shape) == len(shape.shape)
        assert (record.axes[0] == "layer") == (layers == "scan" and record.scope.startswith("group"))


def test_random_models_have_no_constant():
    """A constant weight could hide a missing use."""
    case = make_case(LLAMA, batch=2, seq=8)
    real = jax.jit(lambda key: init_model(case, key), compiler_options=LITTLE_EFFORT)(jax.random.key(0))
    assert jax.tree.structure(abstract_model(case)) == jax.tree.structure(real)
    for shape, array in zip(jax.tree.leaves(abstract_model(case)), jax.tree.leaves(real), strict=True):
        assert (shape.shape, shape.dtype) == (array.shape, array.dtype)
        assert np.std(array) > 0


@pytest.mark.parametrize("name", NAMES)
def test_paths_read_like_scopes(name):
    case = make_case(ARCHITECTURES[name], batch=2, seq=8)
    for path, record in parameters(case):
        scope = re.sub(r"groups\[(\d+)\]", r"group\1", path).removeprefix(".").replace(".", "/")
        assert scope == f"{record.scope}/{record.name}"


def test_unrolled_layers_are_separate_arrays():
    paths = [path for path, _ in parameters(make_case(LLAMA, batch=2, seq=8, layers="unrolled"))]
    assert [p for p in paths if "q_proj" in p] == [f".groups[0][{i}].attn.q_proj.weight" for i in range(3)]


def test_a_tied_head_has_no_array():
    tied, untied = (parameters(make_case(ARCHITECTURES[name], batch=2, seq=8)) for name in ("qwen", "llama"))
    assert not [path for path, _ in tied if "head" in path]
    assert [path for path, _ in untied if "head" in path] == [".head.weight"]


@pytest.mark.parametrize(
    ("name", "count"), [("llama-3.1-8b", 8_030_261_248), ("qwen2.5-0.5b", 494_032_768), ("gpt2", 124_439_808)]
)
def test_released_models_have_their_published_parameter_count(name, count):
    case = build_case(load_architecture(name), {"phase": "training", "seq": 8})
    leaves = jax.tree.leaves(abstract_model(case))
    assert all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves)
    assert sum(int(np.prod(leaf.shape, dtype=object)) for leaf in leaves) == count


def test_rotary_scores_depend_on_distance_alone():
    rotary = LLAMA.groups[0].layer.attention.rotary
    q, k = jax.random.normal(jax.random.key(0), (2, 1, 1, 1, 4))

    def score(row, column):
        turned = [rotate(x, angles(rotary, jnp.array([place]))) for x, place in ((q, row), (k, column))]
        return float(jnp.vdot(*turned))

    assert score(9, 4) == pytest.approx(score(5, 0), abs=1e-5)
    assert abs(score(9, 4) - score(9, 5)) > 1e-3


def test_llama3_scaling_keeps_fast_pairs_and_stretches_slow_ones():
    rotary = load_architecture("llama-3.1-8b").groups[0].layer.attention.rotary
    ratio = frequencies(rotary.replaced(scaling=None)) / frequencies(rotary)
    assert ratio[0] == 1 and ratio[-1] == pytest.approx(rotary.scaling.factor, rel=1e-5)
    assert (np.diff(ratio) >= -1e-5).all()


def test_interleaved_pairs_are_neighbours():
    """The same turn with the coordinates in another order, the rest of the head untouched."""
    rotary = LLAMA.groups[0].layer.attention.rotary.replaced(scaling=None)
    turn = angles(rotary, jnp.arange(5))
    x = jax.random.normal(jax.random.key(0), (1, 5, 2, 6))
    order = np.array([0, 2, 1, 3, 4, 5])
    np.testing.assert_allclose(rotate(x, turn, True)[..., order], rotate(x[..., order], turn), atol=1e-6)
    assert np.abs(rotate(x, turn, True) - rotate(x, turn)).max() > 0.1
    np.testing.assert_array_equal(rotate(x, turn, True)[..., 4:], x[..., 4:])


def test_sinusoidal_positions_are_those_of_the_paper():
    table = np.asarray(sinusoid(jnp.arange(4), 5))
    for position in range(4):
        for column in range(5):
            angle = position / 10000 ** (2 * (column // 2) / 5)
            assert table[position, column] == pytest.approx((np.cos if column % 2 else np.sin)(angle), abs=1e-6)


@pytest.mark.parametrize(
    ("heads", "expected"),
    [(4, [1 / 4, 1 / 16, 1 / 64, 1 / 256]), (6, [1 / 4, 1 / 16, 1 / 64, 1 / 256, 1 / 2, 1 / 8]), (1, [1 / 256])],
)
def test_slopes_of_linear_biases(heads, expected):
    np.testing.assert_allclose(slopes(heads), expected, rtol=1e-6)


def test_norms_are_those_of_their_papers():
    """Layer norm centres and divides by the standard deviation; an offset is added to the scale; width is two axes."""
    run = make_run(make_case(LLAMA, batch=2, seq=8), PLAIN)
    x = np.random.default_rng(0).normal(1, 2, (2, 3, 2, 4)).astype(np.float32)
    scale, bias = np.full(4, 0.5, np.float32), np.full(4, 0.25, np.float32)
    layer = Norm(jnp.asarray(scale), jnp.asarray(bias), "n", True, 1e-5, 1.0, "bshe", 1)(jnp.asarray(x), run)
    centred = x - x.mean(-1, keepdims=True)
    np.testing.assert_allclose(layer, centred / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * 1.5 + 0.25, atol=1e-5)
    rms = Norm(None, None, "n", False, 1e-5, 0.0, "bshe", 2)(jnp.asarray(x), run)
    np.testing.assert_allclose(rms, x / np.sqrt((x**2).mean((-1, -2), keepdims=True) + 1e-5), atol=1e-5)


@pytest.mark.parametrize("blocks", [{}, {"attention": "blockwise", "attention_block": 3}], ids=["plain", "blockwise"])
def test_attention_is_the_sum_over_visible_rows(blocks):
    """Brute force, pair by pair: factor, soft cap, linear bias, window, and rows that start later in the sequence."""
    case = make_case(LLAMA, phase="prefill", batch=2, seq=6, **blocks)
    run = make_run(case, PLAIN)
    generator = np.random.default_rng(0)
    q, k, v = (
        generator.normal(size=shape).astype(np.float32) for shape in ((2, 3, 2, 2, 4), (2, 6, 2, 4), (2, 6, 2, 4))
    )
    if blocks:
        run = replace(run, query_block=3, key_block=3)
    scoring = Scoring(0.7, 1.5, True)
    for window in (None, 2, EVERYTHING):
        rows = Rows(jnp.int32(3), None if window is None else jnp.int32(window))
        found = compiled(lambda *three, rows=rows: attend(*three, rows, scoring, run, 0.0, None), q, k, v)
        for b, s, h, g in np.ndindex(2, 3, 2, 2):
            seen = [t for t in range(6) if t <= 3 + s and (window is None or 3 + s - t < window)]
            scores = [1.5 * np.tanh(0.7 * q[b, s, h, g] @ k[b, t, h] / 1.5) for t in seen]
            scores = np.array(scores) + slopes(4)[2 * h + g] * (np.array(seen) - 3 - s)
            weights = np.exp(scores) / np.exp(scores).sum()
            expected = sum(w * v[b, t, h] for w, t in zip(weights, seen, strict=True))
            np.testing.assert_allclose(found[b, s, h, g], expected, atol=1e-5)


def test_soft_caps_bound_and_keep_small_values():
    x = jnp.array([-100.0, -0.01, 0.0, 0.01, 100.0])
    np.testing.assert_allclose(softcap(x, 2.0), [-2, -0.01, 0, 0.01, 2], atol=1e-6)
    assert softcap(x, None) is x


def test_windows_follow_the_cycle():
    group = ARCHITECTURES["gemma"].groups[0]
    assert windows(group).tolist() == [3, EVERYTHING, 3]
    assert windows(LLAMA.groups[0]) is None
