"""The counter is held to programs of known cost and to published figures before anything is held to it."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from jax import lax

from tests.zoo.count import count
from tests.zoo.programs import ZOO, Program, floats, integers

PUBLISHED: dict[str, Any] = tomllib.loads((Path(__file__).parent / "published.toml").read_text(encoding="utf-8"))


def flops(function: Callable[..., Any], *arguments: Any, **options: Any) -> int:
    return count(function, arguments, **options).flops


def test_a_product_and_a_batch_of_products():
    assert flops(jnp.matmul, floats(3, 5), floats(5, 7)) == 2 * 3 * 5 * 7
    assert flops(lambda a, b: jnp.einsum("bqd,bkd->bqk", a, b), floats(2, 3, 5), floats(2, 7, 5)) == 2 * 2 * 3 * 7 * 5


def test_a_convolution_counts_what_lies_inside():
    def convolve(x: jax.Array, kernel: jax.Array) -> jax.Array:
        return lax.conv_general_dilated(x, kernel, (1,), [(1, 1)], dimension_numbers=("NWC", "WIO", "NWC"))

    # Eight outputs of three taps each; the first and the last have one tap on padding.
    assert flops(convolve, floats(1, 8, 2), floats(3, 2, 4)) == 2 * (3 * 8 - 2) * 2 * 4
    assert flops(convolve, floats(1, 8, 2), floats(3, 2, 4), padding_counts=True) == 2 * 3 * 8 * 2 * 4


def test_groups_and_strides():
    def convolve(x: jax.Array, kernel: jax.Array) -> jax.Array:
        return lax.conv_general_dilated(
            x, kernel, (2,), "VALID", dimension_numbers=("NWC", "WIO", "NWC"), feature_group_count=4
        )

    assert flops(convolve, floats(1, 9, 8), floats(3, 2, 12)) == 2 * 4 * 3 * 2 * 12


def test_loops_run():
    square = floats(8, 8)

    def nested(x: jax.Array, w: jax.Array) -> jax.Array:
        inner = lambda x: lax.fori_loop(0, 3, lambda _, x: x @ w, x)  # noqa: E731
        return lax.scan(lambda x, _: (inner(x), None), x, length=5)[0]

    assert flops(nested, square, square) == 2 * 8**3 * 15

    def until(x: jax.Array, w: jax.Array) -> jax.Array:
        # The number of trips is a value: 1, 2, 4, ... until it reaches 100.
        return lax.while_loop(lambda c: c[0] < 100, lambda c: (2 * c[0], c[1] @ w), (jnp.int32(1), x))[1]

    assert flops(until, square, square) == 2 * 8**3 * 7


def test_one_branch_runs():
    def either(x: jax.Array, w: jax.Array, which: jax.Array) -> jax.Array:
        return lax.cond(which > 0, lambda: x @ w @ w, lambda: x @ w)

    # Integers are zero: the second branch.
    assert flops(either, floats(8, 8), floats(8, 8), integers()) == 2 * 8**3


def test_recomputation_is_executed_and_a_dead_product_is_not():
    def loss(w: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.tanh(jnp.tanh(x @ w) @ w).sum()

    plain, again = jax.value_and_grad(loss), jax.value_and_grad(jax.checkpoint(loss))
    unit = 2 * 8**3
    # Forward 2, weights 2, the input of the second product 1; recomputing repeats the two of the forward pass.
    assert flops(plain, floats(8, 8), floats(8, 8)) == 5 * unit
    assert flops(again, floats(8, 8), floats(8, 8)) == (5 + 2) * unit

    def wasteful(x: jax.Array) -> jax.Array:
        x @ x @ x
        return x @ x

    assert flops(wasteful, floats(8, 8)) == unit
    assert flops(wasteful, floats(8, 8), live=False) == 3 * unit


def test_a_complex_product_is_four_real_ones():
    assert flops(lambda a, b: (a + 1j) @ (b + 1j), floats(3, 5), floats(5, 7)) == 4 * 2 * 3 * 5 * 7


def test_transforms_are_named():
    counted = count(lambda x: jnp.fft.rfft2(x), (floats(3, 8, 10),))
    assert counted.flops == 0
    assert counted.transforms == (("RFFT", (8, 10), 3),)
    assert count(lambda x: jnp.fft.fft(x + 0j), (floats(3, 8),)).total == 3 * 5 * 8 * 3


def test_what_is_not_known_is_refused():
    def kernel(x_ref: Any, out_ref: Any) -> None:
        out_ref[...] = x_ref[...] @ x_ref[...]

    from jax.experimental import pallas as pl

    call = pl.pallas_call(kernel, out_shape=floats(8, 8), interpret=True)
    with pytest.raises(NotImplementedError, match="pallas_call"):
        count(call, (floats(8, 8),))


# Published figures ------------------------------------------------------------------------------------------------


def _brought(module: str) -> Any:
    """A package of the networks of others, or a skip that says how to add it."""
    return pytest.importorskip(module, reason=f"{module} is not installed; add it with: pip install -e '.[dev]'")


def _haiku(make: Callable[[], Any], pixels: int = 224) -> Program:
    hk = _brought("haiku")
    model = hk.transform_with_state(lambda x: make()(x, is_training=True))
    image = floats(1, pixels, pixels, 3)
    parameters, state = jax.eval_shape(model.init, jax.eval_shape(lambda: jax.random.key(0)), image)
    return lambda parameters, state, image: model.apply(parameters, state, None, image)[0], (parameters, state, image)


def _equimo(name: str) -> Program:
    models = _brought("equimo.models")
    model = eqx.filter_eval_shape(getattr(models, name))
    arrays, static = eqx.partition(model, lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct))
    key = jax.eval_shape(lambda: jax.random.key(0))
    return lambda arrays, x, key: eqx.combine(arrays, static)(x, key=key), (arrays, floats(3, 224, 224), key)


def _resnet50() -> Program:
    hk = _brought("haiku")
    return _haiku(lambda: hk.nets.ResNet50(1000))


def _mobilenet_v1() -> Program:
    hk = _brought("haiku")
    # Haiku does not pad at the first convolution, the paper does: with two pixels more, shapes are the paper's.
    return _haiku(lambda: hk.nets.MobileNetV1(num_classes=1000), pixels=226)


FORWARD = {
    "resnet50": _resnet50,
    "mobilenet_v1": _mobilenet_v1,
    "vit_b_16": lambda: _equimo("vit_base_patch16_224"),
    "convnext_tiny": lambda: _equimo("convnext_t"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_figure(name):
    figure = Decimal(PUBLISHED[name]["figure"])
    multiply_adds = count(*FORWARD[name](), padding_counts=True).flops // 2
    assert (Decimal(multiply_adds) / PUBLISHED[name]["unit"]).quantize(figure) == figure


def test_every_program_of_the_zoo_has_its_own_name_and_package():
    assert len(ZOO) >= 12
    assert len({entry.package for entry in ZOO.values()}) >= 10
