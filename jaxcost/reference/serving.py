"""The two serving steps: prefill a prompt into a new cache, and decode one token against a cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from jaxcost.contracts.case import Case
from jaxcost.reference.cache import Cache
from jaxcost.reference.layers import JAX_DTYPES
from jaxcost.reference.model import Decoder
from jaxcost.reference.sharding import ACTIVATION, Layout, WholeRows
from jaxcost.reference.stack import GroupCache, hidden, make_run

CACHE_AXES = ("b", "t", "k", "e")


def abstract_caches(case: Case) -> tuple[GroupCache, ...]:
    """Return the caches after this step as shapes: `visible_tokens` rows in each group."""
    dtype = JAX_DTYPES[case.state.kv_dtype]

    def store(group: Any, stacked: bool) -> Cache:
        attention = group.layer.attention
        shape = (case.workload.batch, case.workload.visible_tokens, attention.kv_heads, attention.head_dim)
        rows: Any = jax.ShapeDtypeStruct((group.repeat, *shape) if stacked else shape, dtype)
        return Cache(rows, rows)

    if case.execution.layers == "scan":
        return tuple(store(group, True) for group in case.architecture.groups)
    return tuple(tuple(store(group, False) for _ in range(group.repeat)) for group in case.architecture.groups)


def cache_shardings(case: Case, layout: Layout) -> Any:
    """Return the sharding of every array of the caches: sequences over data and fsdp, K/V heads over tensor."""
    return jax.tree.map(
        lambda x: layout.named(("layer", *CACHE_AXES)[-len(x.shape) :], ACTIVATION), abstract_caches(case)
    )


def make_prefill_step(case: Case, layout: Layout) -> Callable[..., tuple[jax.Array, tuple[GroupCache, ...]]]:
    """Return prefill_step(parameters, tokens `[b, s]`) -> (logits `[b, rows, v]` of the last rows, caches)."""
    run, rows = make_run(case, layout), case.workload.logits_rows_per_sequence
    split = (layout.context > 1 or layout.sequence_parallel) and case.workload.logits != "all"
    # The last rows lie on the last ranks: every rank gets them, and none splits them further.
    last = replace(run, layout=WholeRows(layout.mesh, layout.explicit)) if split else run

    def prefill_step(parameters: Decoder, tokens: jax.Array) -> tuple[jax.Array, tuple[GroupCache, ...]]:
        x, caches = hidden(parameters, case, run, tokens, jnp.int32(0))
        x = x[:, -rows:]
        return parameters.logits(last.layout.pin(x, "bsd") if split else x, last), caches

    return prefill_step


def make_decode_step(case: Case, layout: Layout) -> Callable[..., tuple[jax.Array, tuple[GroupCache, ...]]]:
    """Return decode_step(parameters, caches, tokens `[b, 1]`, position) -> (logits `[b, 1, v]`, caches).

    `position` counts the tokens already in the caches; the new row is written there and attention sees rows up to it.
    """
    run = make_run(case, layout)

    def decode_step(
        parameters: Decoder, caches: tuple[GroupCache, ...], tokens: jax.Array, position: jax.Array
    ) -> tuple[jax.Array, tuple[GroupCache, ...]]:
        x, caches = hidden(parameters, case, run, tokens, position, caches)
        return parameters.logits(x, run), caches

    return decode_step
