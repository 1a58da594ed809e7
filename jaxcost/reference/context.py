"""Attention when the rows of a sequence are split over the mesh axis `context`.

A rank has its queries and its rows of keys and values, and every query needs every key. Either the key rows are
gathered first (their gradients go back by reduce-scatter), or blocks of rows go round a ring while each rank attends to
the block it has (Liu et al. 2023, arXiv:2310.01889). Only `context` is manual here: sequences and heads stay with the
partitioner. Rows know their position in the whole sequence, so masks, windows and biases are those of one device;
dropout draws per rank.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from jaxcost.reference import attention
from jaxcost.reference.attention import Blocks, Rows, Scoring
from jaxcost.reference.layers import Run, named
from jaxcost.reference.sharding import ACTIVATION, Layout

AXIS = "context"
Pair = tuple[jax.Array, jax.Array]


def attend(
    q: jax.Array, k: jax.Array, v: jax.Array, rows: Rows, scoring: Scoring, run: Run, rate: float,
    key: jax.Array | None,
) -> jax.Array:  # fmt: skip
    """Return what `attention.attend` does, for q `[b, s, k, g, e]`, k and v `[b, s, k, e]` with s split over `context`.

    With a cache k and v are whole already.
    """
    layout = run.layout
    if layout.context == 1 or not layout.explicit:
        return attention.attend(q, k, v, rows, scoring, run, rate, key)

    alone = replace(run, layout=Layout(None, False))

    def local(
        q: jax.Array, k: jax.Array, v: jax.Array, first: jax.Array, window: jax.Array | None, key: jax.Array | None
    ) -> jax.Array:
        here = Rows(first + jax.lax.axis_index(AXIS) * q.shape[1], window)
        own = None if key is None else jax.random.fold_in(key, jax.lax.axis_index(tuple(layout.axes)))
        if run.context_ring and not run.cached:
            blocks = Blocks(run.query_block, run.key_block, rate if own is not None else 0.0, run.scores, scoring)
            return ring(q, k, v, here.first, window, own, (blocks, layout.context))
        if not run.cached:
            with jax.named_scope("scores"):
                k = jax.lax.all_gather(k, AXIS, axis=1, tiled=True)
            with jax.named_scope("values"):
                v = jax.lax.all_gather(v, AXIS, axis=1, tiled=True)
        return attention.attend(q, k, v, here, scoring, alone, rate, own)

    queries, whole = layout.spec("bsjge", ACTIVATION), PartitionSpec()
    keys = layout.spec("btje" if run.cached else "bsje", ACTIVATION)
    return jax.shard_map(
        local, mesh=layout.mesh, in_specs=(queries, keys, keys, whole, whole, whole), out_specs=queries, check_vma=False
    )(q, k, v, rows.first, rows.window, key)  # fmt: skip


def next_tokens(tokens: jax.Array, layout: Layout) -> jax.Array:
    """Return the successor of each token `[b, s]`; that of a rank's last one comes from the next rank."""
    if layout.context == 1 or not layout.explicit:
        return jnp.roll(tokens, -1, axis=1)

    def local(tokens: jax.Array) -> jax.Array:
        first = jax.lax.ppermute(tokens[:, :1], AXIS, _round(layout.context, -1))
        return jnp.concatenate([tokens[:, 1:], first], axis=1)

    split = layout.spec("bs", ACTIVATION)
    return jax.shard_map(
        local, mesh=layout.mesh, in_specs=split, out_specs=split, check_vma=False
    )(tokens)  # fmt: skip


@partial(jax.custom_vjp, nondiff_argnums=(6,))
def ring(
    q: jax.Array, k: jax.Array, v: jax.Array, first_row: jax.Array, window: jax.Array | None, key: jax.Array | None,
    plan: tuple[Blocks, int],
) -> jax.Array:  # fmt: skip
    """Attention with keys and values passed round the ranks; `first_row` is the position of this rank's first query.

    `plan` are the blocks within a rank's rows, and the number of ranks. Backward keeps q, k, v, the output and one
    log-sum-exp per row, as `attention.blockwise` does, and goes round once more with the gradients of k and v.
    """
    return _forward_rule(q, k, v, first_row, window, key, plan)[0]


def _forward_rule(
    q: jax.Array, k: jax.Array, v: jax.Array, first_row: jax.Array, window: jax.Array | None, key: jax.Array | None,
    plan: tuple[Blocks, int],
) -> tuple[jax.Array, tuple[jax.Array | None, ...]]:  # fmt: skip
    blocks, ranks = plan

    def part(held: Pair, turn: jax.Array | int) -> Pair:
        places, own = _places(q, first_row, window, key, turn, ranks)
        return attention.forward(q, *held, places, own, blocks)

    def step(state: tuple[Pair, Pair], turn: jax.Array) -> tuple[tuple[Pair, Pair], None]:
        held, (mixed, lse) = state
        held = _passed(held, ranks)
        out, more = part(held, turn)
        with jax.named_scope("softmax"):
            total = jnp.logaddexp(lse, more)
            mixed = mixed * jnp.exp(lse - total)[..., None] + out.astype(jnp.float32) * jnp.exp(more - total)[..., None]
        return (held, (mixed, total)), None

    out, lse = part((k, v), 0)  # a rank's own block: every query sees its own row, so no sum is empty
    start = ((k, v), (out.astype(jnp.float32), lse))
    (_, (mixed, lse)), _ = jax.lax.scan(step, start, jnp.arange(1, ranks, dtype=jnp.int32))
    out, lse = (named(x, "context") for x in (mixed.astype(q.dtype), lse))
    return out, (q, k, v, first_row, window, key, out, lse)


def _backward_rule(
    plan: tuple[Blocks, int], saved: tuple[jax.Array, ...], g: jax.Array
) -> tuple[jax.Array | None, ...]:
    """Return the cotangents of q, k, v: each block's are added where it stands, and travel with it."""
    q, k, v, first_row, window, key, out, lse = saved
    blocks, ranks = plan

    def part(held: Pair, turn: jax.Array | int) -> tuple[Any, ...]:
        places, own = _places(q, first_row, window, key, turn, ranks)
        return attention.backward(blocks, (q, *held, places.first, window, own, out, lse), g)[:3]

    def step(state: tuple[jax.Array, Pair, Pair], turn: jax.Array) -> tuple[tuple[jax.Array, Pair, Pair], None]:
        dq, held, gradients = state
        held, (dk, dv) = _passed(held, ranks), _passed(gradients, ranks)
        more, k_more, v_more = part(held, turn)
        return (dq + more.astype(jnp.float32), held, (dk + k_more, dv + v_more)), None

    dq, dk, dv = part((k, v), 0)
    start = (dq.astype(jnp.float32), (k, v), (dk, dv))
    (dq, _, gradients), _ = jax.lax.scan(step, start, jnp.arange(1, ranks, dtype=jnp.int32))
    dk, dv = _passed(gradients, ranks)  # home
    return dq.astype(q.dtype), dk, dv, None, None, None


ring.defvjp(_forward_rule, _backward_rule)


def _places(
    q: jax.Array, first_row: jax.Array, window: jax.Array | None, key: jax.Array | None, turn: jax.Array | int,
    ranks: int,
) -> tuple[Rows, jax.Array | None]:  # fmt: skip
    """Return where the queries stand relative to the block held in a turn, and the block's dropout key.

    Blocks move to the next rank each turn. Masks, windows and biases depend on the distance of rows alone, so the
    block's first row is taken for position 0.
    """
    rank = jax.lax.axis_index(AXIS)
    owner = (rank - turn) % ranks
    first = first_row - owner * q.shape[1]
    return Rows(first, window), None if key is None else jax.random.fold_in(key, owner)


def _passed(held: Pair, ranks: int) -> Pair:
    """Return what the previous rank held: keys, then values."""
    keys, values = held
    with jax.named_scope("scores"):
        keys = jax.lax.ppermute(keys, AXIS, _round(ranks, 1))
    with jax.named_scope("values"):
        values = jax.lax.ppermute(values, AXIS, _round(ranks, 1))
    return keys, values


def _round(ranks: int, step: int) -> list[tuple[int, int]]:
    return [(rank, (rank + step) % ranks) for rank in range(ranks)]
