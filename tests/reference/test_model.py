"""The declaration of the network: paths, axes, shapes, and that nothing is allocated."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcost.catalog import load_architecture
from jaxcost.contracts.case import build_case
from jaxcost.reference import abstract_model, init_model, parameter_tree, parameters
from jaxcost.reference.rotary import angles, frequencies, rotate
from tests.reference.small import ARCHITECTURES, LLAMA, make_case

NAMES = tuple(ARCHITECTURES)


@pytest.mark.parametrize("layers", ["scan", "unrolled"])
@pytest.mark.parametrize("name", NAMES)
def test_abstract_and_random_models_agree(name, layers):
    case = make_case(ARCHITECTURES[name], batch=2, seq=8, layers=layers)
    abstract, real = abstract_model(case), init_model(case, jax.random.key(0))
    assert jax.tree.structure(abstract) == jax.tree.structure(real) == jax.tree.structure(parameter_tree(case))
    for shape, array, (_, record) in zip(
        jax.tree.leaves(abstract), jax.tree.leaves(real), parameters(case), strict=True
    ):
        assert (shape.shape, shape.dtype) == (array.shape, array.dtype) == (record.shape, record.dtype)
        assert len(record.axes) == array.ndim
        assert float(jnp.std(array)) > 0  # no constant could hide a missing use


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
