"""Layers in stages over the mesh axis `pipeline`: GPipe (Huang et al. 2019, arXiv:1811.06965) as one SPMD program.

Every rank stores the arrays of its own layers and runs the same loop of m + P - 1 ticks. In a tick a rank applies its
stage to what the rank before handed on (the first rank: to the next microbatch) and hands the result on. In the P - 1
ticks in which a rank has no microbatch it computes all the same, on rows nobody takes: the bubble is executed here, not
waited out. Differentiation runs the loop backward, so it has the same bubble, with gradients of zero.

What stands outside of the stack - embedding, final norm, head, loss - is stored and computed by every rank, on all
microbatches at once. Gradients of a stage are added over the ticks, and over `data` after the last of them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from jaxcost.reference.sharding import Layout

AXIS = "pipeline"
Stage = Callable[[Any, "jax.Array | None", jax.Array], jax.Array]


def through_stages(
    stage: Stage, layers: Any, windows: jax.Array | None, x: jax.Array, microbatches: int, layout: Layout
) -> jax.Array:
    """Return the last stage's output `[b, s, d]`.

    Args:
        stage: (a rank's layers, their windows, rows of one microbatch `[b / m, s, d]`) -> rows.
        layers: arrays with a leading axis of all layers, which splits evenly over `pipeline`.
        windows: int32 of that axis, or None.
        x: `[b, s, d]`; microbatch i has every m-th sequence from i on, so each device keeps its own.
        microbatches: m.
        layout: where the mesh is.
    """
    assert layout.mesh is not None
    ranks = int(layout.mesh.shape[AXIS])
    onward = [(rank, rank + 1) for rank in range(ranks - 1)]

    def local(layers: Any, windows: jax.Array | None, micro: jax.Array) -> jax.Array:
        first = jax.lax.axis_index(AXIS) == 0

        def tick(held: jax.Array, number: jax.Array) -> tuple[jax.Array, jax.Array]:
            fresh = jax.lax.dynamic_index_in_dim(micro, jnp.minimum(number, microbatches - 1), keepdims=False)
            out = stage(layers, windows, jnp.where(first, fresh, held))
            return jax.lax.ppermute(out, AXIS, onward), out

        ticks = jnp.arange(microbatches + ranks - 1, dtype=jnp.int32)
        _, outs = jax.lax.scan(tick, jnp.zeros_like(micro[0]), ticks)
        return _of_last(outs[ranks - 1 :], ranks)

    batch = layout.spec("b", {"b": ("data",)})[0]
    rows = PartitionSpec(None, batch)
    micro = jnp.swapaxes(x.reshape(-1, microbatches, *x.shape[1:]), 0, 1)
    outs = jax.shard_map(
        local, mesh=layout.mesh, in_specs=(PartitionSpec(AXIS), PartitionSpec(AXIS), rows),
        out_specs=rows, check_vma=False,
    )(layers, windows, micro)  # fmt: skip
    return jnp.swapaxes(outs, 0, 1).reshape(x.shape)


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def _of_last(x: jax.Array, ranks: int) -> jax.Array:
    """Return the last rank's x on every rank, a sum with zeros; only that rank's x has a gradient.

    A result that every rank has comes back as 1/P of its gradient on each.
    """
    last = jax.lax.axis_index(AXIS) == ranks - 1
    summed: jax.Array = jax.lax.psum(jnp.where(last, x, jnp.zeros_like(x)), AXIS)
    return summed


def _of_last_forward(x: jax.Array, ranks: int) -> tuple[jax.Array, None]:
    return _of_last(x, ranks), None


def _of_last_backward(ranks: int, _: None, g: jax.Array) -> tuple[jax.Array]:
    return (jnp.where(jax.lax.axis_index(AXIS) == ranks - 1, g * ranks, jnp.zeros_like(g)),)


_of_last.defvjp(_of_last_forward, _of_last_backward)
