"""Programs that compilers change, for the comparison of a jaxpr with its module."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax


def array(*dims, dtype="float32"):
    return jax.ShapeDtypeStruct(dims, dtype)


S = array(128, 128)
W, X = array(10, 1000, 1000), array(1000, 1000)  # the public report's


def relu_layer(w, x):
    return jax.nn.relu(w @ x + 1)


def network(x, ws, wrap=lambda f: f):
    for i in range(10):
        x = wrap(relu_layer)(ws[i], x)
    return x.sum()


def kernel_product(cost=None):
    from jax.experimental import pallas as pl

    def kernel(a, b, out):
        out[...] = a[...] @ b[...]

    whole, rows = pl.BlockSpec((512, 512), lambda i: (0, 0)), pl.BlockSpec((128, 512), lambda i: (i, 0))

    def product(a, b):
        return pl.pallas_call(
            kernel, grid=(4,), in_specs=[rows, whole], out_specs=rows, out_shape=array(512, 512), cost_estimate=cost
        )(a, b)

    return product


PROGRAMS = {
    "kept": (jax.value_and_grad(network), (X, W)),
    "whole function checkpointed": (jax.value_and_grad(jax.checkpoint(network)), (X, W)),
    "each layer checkpointed": (jax.value_and_grad(lambda x, ws: network(x, ws, jax.checkpoint)), (X, W)),
    "nobody reads it": (jax.grad(lambda x, w: jnp.sum(x @ w), 1), (S, S)),
    "the same in every trip": (
        lambda x, w, v: lax.scan(lambda c, _: (c @ (w @ v), None), x, None, length=6)[0], (S, S, S),
    ),
    "asked for twice": (lambda x, w: x @ w + jnp.tanh(x @ w), (S, S)),
    "groups": (lax.ragged_dot, (array(64, 128), array(8, 128, 256), array(8, dtype="int32"))),
    "a vector": (lambda x, w: jnp.tanh(x @ w), (array(1, 128), S)),
    "a convolution": (
        lambda x, w: lax.conv_general_dilated(x, w, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")),
        (array(2, 32, 32, 16), array(3, 3, 16, 32)),
    ),
    "a kernel": (kernel_product(), (array(512, 512), array(512, 512))),
}  # fmt: skip
