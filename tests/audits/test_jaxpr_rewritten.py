"""Equations the compiler makes in another way: elementwise, or one axis after the other."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import jaxcost


def array(*dims, dtype="float32"):
    return jax.ShapeDtypeStruct(dims, dtype)


def masked(x, w, mask):
    """A product, and then every entry of it times its own factor, written as a product too."""
    return lax.dot_general(x @ w, mask, (((), ()), ((0, 1), (0, 1))))


def twice_masked(x, w, mask):
    """The factor is read by two fusions, each of which repeats the multiply."""
    a = lax.dot_general(jnp.tanh(x), mask, (((), ()), ((0, 1), (0, 1))))
    return a @ w, a.T @ w


SQUARE = array(128, 128)
PROGRAMS = {
    "masked": (masked, SQUARE, SQUARE, SQUARE),
    "twice masked": (twice_masked, SQUARE, SQUARE, SQUARE),
    "spectrum": (lambda x: jnp.fft.irfft2(x, (32, 32)), array(4, 32, 17, dtype="complex64")),
}
ELEMENTWISE = {"strength_reduced": -2 * 128 * 128}
# By 5 N log2 N: 4 x 17 complex columns of 32 and 4 x 32 real rows of 32, less 4 real grids of 32 x 32.
PASSES = {"split_transform": 4 * 17 * 5 * 32 * 5 + 4 * 32 * 5 * 32 * 5 // 2 - 4 * 5 * 1024 * 10 // 2}


@pytest.mark.parametrize(
    ("name", "target", "expected"),
    [
        ("masked", "cpu", ELEMENTWISE), pytest.param("masked", "h100", {}, marks=pytest.mark.cuda),
        ("twice masked", "cpu", {}), pytest.param("twice masked", "h100", {}, marks=pytest.mark.cuda),
        ("spectrum", "cpu", {}), pytest.param("spectrum", "h100", PASSES, marks=pytest.mark.cuda),
    ],
)  # fmt: skip
def test_what_is_made_in_another_way_is_told_by_its_equation(pool, name, target, expected):
    data = jaxcost.audit(*PROGRAMS[name], target=target, pool=pool).data
    found: dict[str, int] = {}
    for row in data["jaxpr"]["differences"]:
        assert row["unexplained"] == 0, row
        for reason in row["reasons"]:
            found[reason["kind"]] = found.get(reason["kind"], 0) + reason["flops"]
            assert reason["evidence"]
    assert found == expected
    assert data["jaxpr"]["flops"] + sum(found.values()) == data["flops"]["total"]
