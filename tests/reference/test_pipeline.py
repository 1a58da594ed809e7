"""Stages as one program compute what one device does, and each rank stores its own layers alone."""

from __future__ import annotations

import jax
import pytest

from jaxcost.reference import make_mesh, make_step, pipeline
from tests.reference.small import (
    ARCHITECTURES,
    LITTLE_EFFORT,
    LLAMA3,
    ROTARY,
    architecture,
    arguments_of,
    difference,
    layer,
    make_case,
)

DEEP = architecture([(4, layer(4, 2, 24, rotary=ROTARY | {"scaling": LLAMA3}), (3, 0, 0, 5))], ["rotary_positions"])
OPTIONS = {"batch": 16, "seq": 8, "optimizer": "momentum"}
PLANS = {
    "block": (DEEP, {"pipeline": 2}, {"remat": "block"}),
    "data": (DEEP, {"pipeline": 2, "data": 2}, {}),
    "tied": (ARCHITECTURES["qwen"], {"data": 2, "pipeline": 2}, {"attention": "blockwise", "attention_block": 4}),
    "four": (DEEP, {"pipeline": 4}, {"accumulate": 1}),
}


def both(name):
    """Results of the step on one device, and in stages."""
    arch, mesh, extra = PLANS[name]
    options = OPTIONS | extra
    plain = make_case(arch, **{key: value for key, value in options.items() if key != "accumulate"})
    single = make_step(plain)
    arguments = arguments_of(plain, single)
    expected = jax.device_get(jax.jit(single.function, compiler_options=LITTLE_EFFORT)(*arguments))
    case = make_case(arch, mesh=mesh, **{"accumulate": 4} | options)
    step = make_step(case, make_mesh(case, jax.devices()))
    program = step.trace().lower().compile(compiler_options=LITTLE_EFFORT)
    return expected, jax.device_get(program(*jax.tree.map(jax.device_put, arguments, step.in_shardings)))


@pytest.mark.parametrize("name", PLANS)
def test_stages_equal_one_device(name):
    expected, found = both(name)
    assert difference(found, expected) < 1e-5


def rows_of_all(x, ranks):
    return jax.lax.psum(x, pipeline.AXIS) / ranks


def part_of_the_gradient(x, ranks):
    y = _OF_LAST(x, ranks)
    return y / ranks + jax.lax.stop_gradient(y - y / ranks)


_OF_LAST = pipeline._of_last


@pytest.mark.parametrize("wrong", [rows_of_all, part_of_the_gradient])
def test_equality_can_fail(wrong, monkeypatch):
    monkeypatch.setattr(pipeline, "_of_last", wrong)
    expected, found = both("block")
    assert difference(found, expected) > 1e-4


def test_a_rank_stores_its_own_layers():
    case = make_case(DEEP, mesh={"pipeline": 2, "data": 2}, accumulate=4, **OPTIONS)
    step = make_step(case, make_mesh(case, jax.devices()))
    state, shardings = step.arguments[0], step.in_shardings[0]
    shapes = jax.tree.map(lambda x, s: s.shard_shape(x.shape), state.parameters, shardings.parameters)
    layers = jax.tree.leaves(shapes.groups, is_leaf=lambda x: isinstance(x, tuple) and x and isinstance(x[0], int))
    assert {shape[0] for shape in layers} == {2}
    assert shapes.embed.tokens.weight == (24, 16) and shapes.head.weight == (16, 24)
