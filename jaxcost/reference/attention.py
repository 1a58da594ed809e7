"""Causal grouped-query attention, as a matrix of scores or block by block.

Query row r (at position first_row + r) sees key rows up to its own position. Both plans compute the whole rectangle of
query and key rows and mask what lies ahead, so the two pairwise contractions do not depend on the mask. K and V are
never repeated: queries are grouped by their K/V head instead, [b, s, k, g, e] against [b, t, k, e].
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from jaxcost.reference.layers import Run, dropout

Pair = tuple[jax.Array, jax.Array]
Triple = tuple[jax.Array, jax.Array, jax.Array]
FORBIDDEN = float(np.finfo(np.float32).min) / 2  # finite, so that a wholly masked block gives no NaN


def attend(
    q: jax.Array, k: jax.Array, v: jax.Array, first_row: jax.Array, run: Run, rate: float, key: jax.Array | None
) -> jax.Array:
    """Return softmax(q k^T / sqrt(e)) v for q `[b, s, k, g, e]`, k and v `[b, t, k, e]`, as `[b, s, k, g, e]`."""
    if run.blockwise:
        blocks = Blocks(run.query_block, run.key_block, rate if key is not None else 0.0, run.scores)
        return blockwise(q, k, v, first_row, key, blocks)
    return materialised(q, k, v, first_row, run, rate, key)


def materialised(
    q: jax.Array, k: jax.Array, v: jax.Array, first_row: jax.Array, run: Run, rate: float, key: jax.Array | None
) -> jax.Array:
    """Attention through stored scores and probabilities `[b, k, g, s, t]`."""
    with jax.named_scope("scores"):
        scores = jnp.einsum("bskge,btke->bkgst", q, k, preferred_element_type=jnp.float32)
        scores = (scores * q.shape[-1] ** -0.5).astype(run.scores)
        scores = run.layout.pin(scores, "bkgst")
    with jax.named_scope("softmax"):
        visible = _visible(first_row, q.shape[1], 0, k.shape[1])
        logits = jnp.where(visible, scores.astype(jnp.float32), FORBIDDEN)
        probabilities = jax.nn.softmax(logits, axis=-1).astype(run.scores)
        probabilities = dropout(probabilities, rate, key)
    with jax.named_scope("values"):
        return jnp.einsum("bkgst,btke->bskge", probabilities, v)


@dataclass(frozen=True)
class Blocks:
    """Rows per block of queries and keys, the dropout rate, and the type in which probabilities meet V."""

    query: int
    key: int
    rate: float
    scores: DTypeLike


@partial(jax.custom_vjp, nondiff_argnums=(5,))
def blockwise(
    q: jax.Array, k: jax.Array, v: jax.Array, first_row: jax.Array, key: jax.Array | None, blocks: Blocks
) -> jax.Array:
    """Attention over blocks with a running softmax (Dao et al. 2022, arXiv:2205.14135); shapes as in `attend`.

    Backward keeps q, k, v, the output and one log-sum-exp per row, and computes q k^T of each block once more (scope
    `replay`): five contractions per pair against two in forward.
    """
    return _forward(q, k, v, first_row, key, blocks)[0]


def _forward(
    q: jax.Array, k: jax.Array, v: jax.Array, first_row: jax.Array, key: jax.Array | None, blocks: Blocks
) -> tuple[jax.Array, jax.Array]:
    """Return the output and the log-sum-exp of each row, `[b, s, k, g]` in fp32."""
    keys, values = _split(k, blocks.key), _split(v, blocks.key)

    def row(_: None, item: Pair) -> tuple[None, Pair]:
        i, query = item

        def column(state: Triple, item: Triple) -> tuple[Triple, None]:
            highest, total, mixed = state
            j, k_block, v_block = item
            with jax.named_scope("scores"):
                scores = _scores(query, k_block)
            with jax.named_scope("softmax"):
                scores = _mask(scores, first_row, i, j, blocks)
                new = jnp.maximum(highest, jnp.max(scores, axis=-1))
                shrink = jnp.exp(highest - new)
                weights = jnp.exp(scores - new[..., None])
                total = total * shrink + jnp.sum(weights, axis=-1)
                kept = dropout(weights, blocks.rate, _block_key(key, i, j, k)).astype(blocks.scores)
            with jax.named_scope("values"):
                part = jnp.einsum("bskgt,btke->bskge", kept, v_block, preferred_element_type=jnp.float32)
                return (new, total, mixed * shrink[..., None] + part), None

        shape = query.shape[:-1]
        empty = (jnp.full(shape, FORBIDDEN), jnp.zeros(shape), jnp.zeros(query.shape))
        (highest, total, mixed), _ = jax.lax.scan(column, empty, (jnp.arange(len(keys)), keys, values))
        with jax.named_scope("softmax"):
            return None, ((mixed / total[..., None]).astype(q.dtype), highest + jnp.log(total))

    queries = _split(q, blocks.query)
    _, (out, lse) = jax.lax.scan(row, None, (jnp.arange(len(queries)), queries))
    return _join(out), _join(lse)


def _forward_rule(
    q: jax.Array, k: jax.Array, v: jax.Array, first_row: jax.Array, key: jax.Array | None, blocks: Blocks
) -> tuple[jax.Array, tuple[jax.Array | None, ...]]:
    out, lse = _forward(q, k, v, first_row, key, blocks)
    return out, (q, k, v, first_row, key, out, lse)


def _backward_rule(blocks: Blocks, saved: tuple[jax.Array, ...], g: jax.Array) -> tuple[jax.Array | None, ...]:
    """Return the cotangents of q, k, v.

    With P = exp(S - lse): dV = P^T dO, dP = dO V^T, dS = P * (dP - rowsum(dO * O)), dQ = dS K, dK = dS^T Q. Dropout
    multiplies P in dV and dP by the same mask; rowsum(P * dP) remains rowsum(dO * O).
    """
    q, k, v, first_row, key, out, lse = saved
    scale = q.shape[-1] ** -0.5
    with jax.named_scope("softmax"):
        delta = jnp.sum(g.astype(jnp.float32) * out.astype(jnp.float32), axis=-1)
    rows = tuple(_split(x, blocks.query) for x in (q, g, lse, delta))
    row_numbers = jnp.arange(len(rows[0]))

    def column(dq: jax.Array, item: Triple) -> tuple[jax.Array, Pair]:
        j, k_block, v_block = item

        def row(state: Pair, item: tuple[jax.Array, ...]) -> tuple[Pair, jax.Array]:
            dk, dv = state
            i, query, dout, row_lse, row_delta = item
            with jax.named_scope("replay"):
                with jax.named_scope("scores"):
                    scores = _scores(query, k_block)
                with jax.named_scope("softmax"):
                    weights = jnp.exp(_mask(scores, first_row, i, j, blocks) - row_lse[..., None])
            block_key = _block_key(key, i, j, k)
            with jax.named_scope("values"):
                kept = dropout(weights, blocks.rate, block_key).astype(blocks.scores)
                dv = dv + jnp.einsum("bskgt,bskge->btke", kept, dout, preferred_element_type=jnp.float32)
                dp = jnp.einsum("bskge,btke->bskgt", dout, v_block, preferred_element_type=jnp.float32)
            with jax.named_scope("softmax"):
                dp = dropout(dp, blocks.rate, block_key)
                ds = (weights * (dp - row_delta[..., None]) * scale).astype(blocks.scores)
            with jax.named_scope("scores"):
                dk = dk + jnp.einsum("bskgt,bskge->btke", ds, query, preferred_element_type=jnp.float32)
                return (dk, dv), jnp.einsum("bskgt,btke->bskge", ds, k_block, preferred_element_type=jnp.float32)

        empty = (jnp.zeros(k_block.shape), jnp.zeros(v_block.shape))
        (dk, dv), parts = jax.lax.scan(row, empty, (row_numbers, *rows))
        return dq + parts, (dk, dv)

    keys, values = _split(k, blocks.key), _split(v, blocks.key)
    dq, (dk, dv) = jax.lax.scan(column, jnp.zeros(rows[0].shape), (jnp.arange(len(keys)), keys, values))
    return _join(dq).astype(q.dtype), _join(dk).astype(k.dtype), _join(dv).astype(v.dtype), None, None


blockwise.defvjp(_forward_rule, _backward_rule)


def _scores(query: jax.Array, key: jax.Array) -> jax.Array:
    scores: jax.Array = jnp.einsum("bskge,btke->bskgt", query, key, preferred_element_type=jnp.float32)
    return scores * float(query.shape[-1] ** -0.5)


def _mask(scores: jax.Array, first_row: jax.Array, i: jax.Array, j: jax.Array, blocks: Blocks) -> jax.Array:
    visible = _visible(first_row + i * blocks.query, blocks.query, j * blocks.key, blocks.key)
    return jnp.where(visible[:, None, None, :], scores, FORBIDDEN)


def _visible(first_row: jax.Array, rows: int, first_column: jax.Array | int, columns: int) -> jax.Array:
    """Return the boolean `[rows, columns]` of key rows not ahead of their query."""
    row = first_row + jax.lax.broadcasted_iota(jnp.int32, (rows, columns), 0)
    return first_column + jax.lax.broadcasted_iota(jnp.int32, (rows, columns), 1) <= row


def _block_key(key: jax.Array | None, i: jax.Array, j: jax.Array, k: jax.Array) -> jax.Array | None:
    """Return the dropout key of block (i, j): the same in forward and backward, different in each block."""
    return None if key is None else jax.random.fold_in(key, i * k.shape[1] + j)


def _split(x: jax.Array, rows: int) -> jax.Array:
    """Return `[b, s, ...]` as blocks `[s / rows, b, rows, ...]`."""
    return jnp.moveaxis(x.reshape(x.shape[0], x.shape[1] // rows, rows, *x.shape[2:]), 1, 0)


def _join(x: jax.Array) -> jax.Array:
    """Undo `_split`."""
    x = jnp.moveaxis(x, 0, 1)
    return x.reshape(x.shape[0], x.shape[1] * x.shape[2], *x.shape[3:])
