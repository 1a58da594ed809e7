"""A train step to keep the cost of: an MLP, Adam, weights sharded over every device.

    cd examples
    jaxcost audit --function audit_step:step --target h100:8
    jaxcost audit --function audit_step:step --target h100:8 --against audit_step.h100-8.json

`step` takes no arguments and returns the function with abstract ones, so nothing is allocated and no GPU is needed.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import NamedSharding, PartitionSpec

LAYERS, WIDTH, BATCH = 8, 1024, 512


def train_step(state: tuple[Any, Any], batch: tuple[jax.Array, jax.Array]) -> tuple[tuple[Any, Any], jax.Array]:
    """One step: forward through the stack of layers, mean squared error, Adam."""
    weights, optimizer = state

    def loss(weights: jax.Array) -> jax.Array:
        x, target = batch
        layer = jax.checkpoint(lambda x, w: (jnp.tanh(x @ w), None))
        return jnp.square(jax.lax.scan(layer, x, weights)[0] - target).mean()

    value, gradient = jax.value_and_grad(loss)(weights)
    updates, optimizer = optax.adam(1e-3).update(gradient, optimizer)
    return (optax.apply_updates(weights, updates), optimizer), value


def step() -> tuple[Any, tuple[Any, ...]]:
    """The jitted step and its abstract arguments on a mesh of every device."""
    mesh = jax.make_mesh((len(jax.devices()),), ("fsdp",))

    def placed(*spec: str | None) -> NamedSharding:
        return NamedSharding(mesh, PartitionSpec(*spec))

    weights = jax.ShapeDtypeStruct((LAYERS, WIDTH, WIDTH), jnp.float32, sharding=placed(None, "fsdp"))
    optimizer = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(
            leaf.shape, leaf.dtype, sharding=placed(None, "fsdp") if leaf.ndim else placed()
        ),
        jax.eval_shape(optax.adam(1e-3).init, weights),
    )
    row = jax.ShapeDtypeStruct((BATCH, WIDTH), jnp.float32, sharding=placed("fsdp"))
    return jax.jit(train_step, donate_argnums=0), ((weights, optimizer), (row, row))
