"""Causal grouped-query attention, as a matrix of scores or block by block.

Query row r (at position first_row + r) sees key rows up to its own position, at most `window` of them. Both plans
compute the whole rectangle of query and key rows and mask the rest, so the two pairwise contractions do not depend on
the mask. K and V are never repeated: queries are grouped by their K/V head, [b, s, k, g, e] against [b, t, k, e].

The score of a pair is cap(scale q.k) + slope (column - row), with a soft cap and linear biases where the model has
them; whatever follows q.k is fp32 inside.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from jaxcost.reference import kernels
from jaxcost.reference.layers import Run, dropout, named, softcap

Pair = tuple[jax.Array, jax.Array]
Triple = tuple[jax.Array, jax.Array, jax.Array]
FORBIDDEN = float(np.finfo(np.float32).min) / 2  # finite, so that a wholly masked block gives no NaN
EVERYTHING = 2**31 - 1  # the window of a layer with full attention in a group where others have windows


@dataclass(frozen=True)
class Scoring:
    """How the score of a pair follows from q.k: its factor, its soft cap, and whether distance is subtracted."""

    scale: float
    softcap: float | None
    alibi: bool


@dataclass(frozen=True)
class Rows:
    """Where query rows stand: the position of the first, and the window of the layer (None: no layer has one)."""

    first: jax.Array
    window: jax.Array | None


def slopes(heads: int) -> np.ndarray:
    """Return the fp32 slope of each head, `[heads]` (Press et al. 2021, arXiv:2108.12409, and their released code).

    2^(-8i/n) for i = 1 .. n; where n is no power of two, those of the power below it, then every other one of the next.
    """
    below = 1 << (heads.bit_length() - 1)
    powers = [8 * i / below for i in range(1, below + 1)] + [4 * i / below for i in range(1, 2 * below, 2)]
    return np.array([2.0**-power for power in powers[:heads]], dtype=np.float32)


def attend(
    q: jax.Array, k: jax.Array, v: jax.Array, rows: Rows, scoring: Scoring, run: Run, rate: float,
    key: jax.Array | None,
) -> jax.Array:  # fmt: skip
    """Return softmax(score(q, k)) v for q `[b, s, k, g, e]`, k and v `[b, t, k, e]`, as `[b, s, k, g, e]`."""
    if run.kernel is not None:
        return kernels.attend(q, k, v, scoring, run.kernel, run.layout)
    if run.blockwise:
        blocks = Blocks(run.query_block, run.key_block, rate if key is not None else 0.0, run.scores, scoring)
        return blockwise(q, k, v, rows.first, rows.window, key, blocks)
    return materialised(q, k, v, rows, scoring, run, rate, key)


def materialised(
    q: jax.Array, k: jax.Array, v: jax.Array, rows: Rows, scoring: Scoring, run: Run, rate: float,
    key: jax.Array | None,
) -> jax.Array:  # fmt: skip
    """Attention through stored scores and probabilities `[b, k, g, s, t]`."""
    with jax.named_scope("scores"):
        scores = jnp.einsum("bskge,btke->bkgst", q, k, preferred_element_type=jnp.float32)
        scores = (scores * scoring.scale).astype(run.scores)
        scores = named(run.layout.pin(scores, "bjgst"), "scores")
    scores = softcap(scores, scoring.softcap)
    with jax.named_scope("softmax"):
        row, column = rows.first + _count(q.shape[1])[:, None], _count(k.shape[1])
        logits = _mask(scores.astype(jnp.float32), row, column, rows.window, _slopes(q, scoring, 2))
        if run.keeps_probabilities:
            probabilities = kept_softmax(logits, run.scores)
        else:
            probabilities = jax.nn.softmax(logits, axis=-1).astype(run.scores)
        probabilities = dropout(probabilities, rate, key)
    with jax.named_scope("values"):
        return jnp.einsum("bkgst,btke->bskge", probabilities, v)


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def kept_softmax(logits: jax.Array, dtype: DTypeLike) -> jax.Array:
    """Return softmax over the last axis, cast to `dtype`; backward has this result alone, which a policy can name.

    JAX's own softmax needs its result before the cast, so keeping what came out of the cast would save no work.
    """
    return _softmax_forward(logits, dtype)[0]


def _softmax_forward(logits: jax.Array, dtype: DTypeLike) -> Pair:
    out = named(jax.nn.softmax(logits, axis=-1).astype(dtype), "probabilities")
    return out, out


def _softmax_backward(dtype: DTypeLike, out: jax.Array, g: jax.Array) -> tuple[jax.Array]:
    p, dp = out.astype(jnp.float32), g.astype(jnp.float32)
    return (p * (dp - jnp.sum(dp * p, axis=-1, keepdims=True)),)


kept_softmax.defvjp(_softmax_forward, _softmax_backward)


@dataclass(frozen=True)
class Blocks:
    """Rows per block of queries and keys, the dropout rate, the type in which probabilities meet V, and the scoring."""

    query: int
    key: int
    rate: float
    scores: DTypeLike
    scoring: Scoring


@partial(jax.custom_vjp, nondiff_argnums=(6,))
def blockwise(
    q: jax.Array, k: jax.Array, v: jax.Array, first_row: jax.Array, window: jax.Array | None, key: jax.Array | None,
    blocks: Blocks,
) -> jax.Array:  # fmt: skip
    """Attention over blocks with a running softmax (Dao et al. 2022, arXiv:2205.14135); shapes as in `attend`.

    Backward keeps q, k, v, the output and one log-sum-exp per row, and computes q k^T of each block once more (scope
    `replay`): five contractions per pair against two in forward.
    """
    return forward(q, k, v, Rows(first_row, window), key, blocks)[0]


def forward(
    q: jax.Array, k: jax.Array, v: jax.Array, rows: Rows, key: jax.Array | None, blocks: Blocks
) -> tuple[jax.Array, jax.Array]:
    """Return the output and the log-sum-exp of each row, `[b, s, k, g]` in fp32."""
    keys, values = _split(k, blocks.key), _split(v, blocks.key)

    def row(_: None, item: Pair) -> tuple[None, Pair]:
        i, query = item

        def column(state: Triple, item: Triple) -> tuple[Triple, None]:
            highest, total, mixed = state
            j, k_block, v_block = item
            with jax.named_scope("scores"):
                scores = _scores(query, k_block, blocks)
            scores = softcap(scores, blocks.scoring.softcap)
            with jax.named_scope("softmax"):
                scores = _mask_block(scores, query, rows, i, j, blocks)
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
    q: jax.Array, k: jax.Array, v: jax.Array, first_row: jax.Array, window: jax.Array | None, key: jax.Array | None,
    blocks: Blocks,
) -> tuple[jax.Array, tuple[jax.Array | None, ...]]:  # fmt: skip
    out, lse = (named(x, "context") for x in forward(q, k, v, Rows(first_row, window), key, blocks))
    return out, (q, k, v, first_row, window, key, out, lse)


def backward(blocks: Blocks, saved: tuple[Any, ...], g: jax.Array) -> tuple[jax.Array | None, ...]:
    """Return the cotangents of q, k, v.

    With P = exp(S - lse): dV = P^T dO, dP = dO V^T, dS = P * (dP - rowsum(dO * O)), dQ = dS K, dK = dS^T Q. Dropout
    multiplies P in dV and dP by the same mask; rowsum(P * dP) remains rowsum(dO * O). A soft cap S = c tanh(z / c)
    multiplies dS by 1 - (S / c)^2.
    """
    q, k, v, first_row, window, key, out, lse = saved
    places, scoring = Rows(first_row, window), blocks.scoring
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
                    scores = _scores(query, k_block, blocks)
                scores = softcap(scores, scoring.softcap)
                with jax.named_scope("softmax"):
                    weights = jnp.exp(_mask_block(scores, query, places, i, j, blocks) - row_lse[..., None])
            block_key = _block_key(key, i, j, k)
            with jax.named_scope("values"):
                kept = dropout(weights, blocks.rate, block_key).astype(blocks.scores)
                dv = dv + jnp.einsum("bskgt,bskge->btke", kept, dout, preferred_element_type=jnp.float32)
                dp = jnp.einsum("bskge,btke->bskgt", dout, v_block, preferred_element_type=jnp.float32)
            with jax.named_scope("softmax"):
                dp = dropout(dp, blocks.rate, block_key)
                ds = weights * (dp - row_delta[..., None])
            if scoring.softcap is not None:
                with jax.named_scope("softcap"):
                    ds = ds * (1 - jnp.square(scores / scoring.softcap))
            with jax.named_scope("softmax"):
                ds = (ds * scoring.scale).astype(blocks.scores)
            with jax.named_scope("scores"):
                dk = dk + jnp.einsum("bskgt,bskge->btke", ds, query, preferred_element_type=jnp.float32)
                return (dk, dv), jnp.einsum("bskgt,btke->bskge", ds, k_block, preferred_element_type=jnp.float32)

        empty = (jnp.zeros(k_block.shape), jnp.zeros(v_block.shape))
        (dk, dv), parts = jax.lax.scan(row, empty, (row_numbers, *rows))
        return dq + parts, (dk, dv)

    keys, values = _split(k, blocks.key), _split(v, blocks.key)
    dq, (dk, dv) = jax.lax.scan(column, jnp.zeros(rows[0].shape), (jnp.arange(len(keys)), keys, values))
    return _join(dq).astype(q.dtype), _join(dk).astype(k.dtype), _join(dv).astype(v.dtype), None, None, None


blockwise.defvjp(_forward_rule, backward)


def _scores(query: jax.Array, key: jax.Array, blocks: Blocks) -> jax.Array:
    scores: jax.Array = jnp.einsum("bskge,btke->bskgt", query, key, preferred_element_type=jnp.float32)
    return scores * blocks.scoring.scale


def _mask_block(
    scores: jax.Array, query: jax.Array, rows: Rows, i: jax.Array, j: jax.Array, blocks: Blocks
) -> jax.Array:
    row = rows.first + i * blocks.query + _count(blocks.query)[:, None, None, None]
    column = j * blocks.key + _count(blocks.key)
    return _mask(scores, row, column, rows.window, _slopes(query, blocks.scoring, 1))


def _mask(
    scores: jax.Array, row: jax.Array, column: jax.Array, window: jax.Array | None, slope: np.ndarray | None
) -> jax.Array:
    """Subtract slope times distance and hide what a row does not see; all broadcast to the scores."""
    if slope is not None:
        scores = scores + slope * (column - row).astype(jnp.float32)
    return jnp.where(_visible(row, column, window), scores, FORBIDDEN)


def _visible(row: jax.Array, column: jax.Array, window: jax.Array | None) -> jax.Array:
    """Whether a key row is not ahead of the query row and, with a window w, among the w rows that end at it."""
    visible = column <= row
    return visible if window is None else visible & (row - column < window)


def _slopes(query: jax.Array, scoring: Scoring, after: int) -> np.ndarray | None:
    """The slopes `[k, g]` of the heads of `[b, s, k, g, e]`, with `after` more axes; None without linear biases."""
    kv_heads, group = query.shape[2], query.shape[3]
    return slopes(kv_heads * group).reshape(kv_heads, group, *(1,) * after) if scoring.alibi else None


def _count(rows: int) -> jax.Array:
    return jnp.arange(rows, dtype=jnp.int32)


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
