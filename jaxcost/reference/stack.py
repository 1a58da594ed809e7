"""The stack of layers: scanned or unrolled, with or without recomputation, with or without a cache.

One function serves training, prefill and decode. A scanned group is a loop over stacked weights, an unrolled one the
same body written out; recomputation wraps that body, so both share every line.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxcost.contracts.architecture import LayerGroup
from jaxcost.contracts.case import Case
from jaxcost.reference.attention import EVERYTHING
from jaxcost.reference.cache import Cache
from jaxcost.reference.kernels import kernel_of
from jaxcost.reference.layers import JAX_DTYPES, Run
from jaxcost.reference.model import Decoder, Layer, Place
from jaxcost.reference.pipeline import through_stages
from jaxcost.reference.rotary import angles
from jaxcost.reference.sharding import Layout
from jaxcost.reference.support import require_supported

GroupCache = Cache | tuple[Cache, ...]

_SAVE = jax.checkpoint_policies
# `none` and `everything` leave the layer alone; `everything` wraps the whole loss (training.py).
Policy = Callable[..., Any]
LAYER_POLICIES: dict[str, Policy] = {
    "attention": _SAVE.dots_with_no_batch_dims_saveable,
    "block": _SAVE.nothing_saveable,
    "dots_saveable": _SAVE.dots_saveable,
    "dots_with_no_batch_dims_saveable": _SAVE.dots_with_no_batch_dims_saveable,
    "nothing_saveable": _SAVE.nothing_saveable,
    "everything_saveable": _SAVE.everything_saveable,
}

# The policies under which the backward pass of a layer finds its weights as they were multiplied.
_KEEP_WEIGHTS = ("none", "everything_saveable", "everything")


def layer_policy(case: Case) -> Policy | None:
    """Return what a checkpoint around a layer saves, None where a layer has no checkpoint."""
    run, names = case.execution, case.execution.remat_names
    if run.remat == "save_only_these_names":
        keep: Policy = _SAVE.save_only_these_names(*names)
        return keep
    if run.remat == "save_and_offload_only_these_names":
        keep = _SAVE.save_and_offload_only_these_names(
            names_which_can_be_saved=[], names_which_can_be_offloaded=list(names), offload_src="device",
            offload_dst="pinned_host",
        )  # fmt: skip
        return keep
    return LAYER_POLICIES.get(run.remat)


def make_run(case: Case, layout: Layout) -> Run:
    """Return what the modules need to know of a case.

    Raises:
        RejectedError: for what the network does not execute (see `support`).
    """
    work, policy, arch = case.workload, case.state, case.architecture
    require_supported(case)
    ring = case.execution.context_method == "ring"
    compute, scores, logits, cache = (
        JAX_DTYPES[d] for d in (policy.compute_dtype, policy.score_dtype, policy.logits_dtype, policy.kv_dtype)
    )
    return Run(
        compute=compute,
        scores=scores,
        logits=logits,
        cache=cache,
        blockwise=work.attention == "blockwise",
        query_block=work.block_for(work.new_tokens // case.execution.degree("context")),
        key_block=work.block_for(work.visible_tokens // (case.execution.degree("context") if ring else 1)),
        dropout=arch.dropout,
        vocabulary_size=arch.vocabulary_size,
        embedding_scale=arch.embedding_scale,
        sinusoidal=arch.sinusoidal_positions,
        position_offset=arch.learned_positions.offset if arch.learned_positions else 0,
        logit_softcap=arch.logit_softcap,
        layout=layout,
        kernel=kernel_of(case),
        context_ring=ring,
        keeps_probabilities="probabilities" in case.execution.remat_names,
        cached=work.phase != "training",
        regather=_regathers(case, layout),
    )


def _regathers(case: Case, layout: Layout) -> bool:
    """Whether linear maps must ask for a second gather: the other policies replay the gather with the layer anyway."""
    run = case.execution
    sharded = layout.explicit and layout.mesh is not None and run.degree("fsdp") > 1
    return sharded and case.workload.phase == "training" and run.fsdp.reshard and run.remat in _KEEP_WEIGHTS


def dropout_acts(case: Case) -> bool:
    """Whether the step draws random numbers."""
    rates = case.architecture.dropout
    return case.workload.dropout and any((rates.embedding, rates.attention, rates.residual))


def hidden(
    model: Decoder,
    case: Case,
    run: Run,
    tokens: jax.Array,
    first_row: jax.Array,
    caches: tuple[GroupCache, ...] | None = None,
    key: jax.Array | None = None,
) -> tuple[jax.Array, tuple[GroupCache, ...]]:
    """Return the last layer's output `[b, s, d]` and the caches of all groups.

    Args:
        tokens: `[b, s]` ids at positions `first_row`, `first_row + 1`, ...
        caches: one per group, to be written and attended to; without them attention sees the new rows alone, and the
            caches returned hold just these.
        key: dropout key; each layer folds in its number, each site of a layer its own, so that a replay draws alike.
    """
    x = model.embed(tokens, first_row, run, None if key is None else jax.random.fold_in(key, 0))
    positions = first_row + jnp.arange(tokens.shape[1], dtype=jnp.int32)
    written: list[GroupCache] = []
    # A checkpoint that saves everything would save the gathered weights too.
    policy = None if run.regather else layer_policy(case)
    layers_before = 0
    for index, (group, layers) in enumerate(zip(case.architecture.groups, model.groups, strict=True)):
        with jax.named_scope(f"group{index}"):
            with jax.named_scope("attn"), jax.named_scope("rotary"):
                turned = angles(group.layer.attention.rotary, positions)
            place = Place(first_row, turned, layers_before, key=key)
            given = None if caches is None else caches[index]
            if case.execution.degree("pipeline") > 1:
                x = _staged(layers, x, place, windows(group), policy, run, case.workload.accumulate)
                continue
            x, cache = _group(layers, x, place, windows(group), given, policy, run)
        written.append(cache)
        layers_before += group.repeat
    return x, tuple(written)


def windows(group: LayerGroup) -> np.ndarray | None:
    """Return the window of each layer, int32 `[repeat]`, `EVERYTHING` for full attention; None without windows."""
    if not group.windows:
        return None
    return np.array([group.window(layer) or EVERYTHING for layer in range(group.repeat)], dtype=np.int32)


def _group(
    layers: Layer | tuple[Layer, ...],
    x: jax.Array,
    place: Place,
    seen: np.ndarray | jax.Array | None,
    cache: GroupCache | None,
    policy: Policy | None,
    run: Run,
) -> tuple[jax.Array, GroupCache]:
    """Run one group; `seen` are the windows of its layers."""
    if isinstance(layers, tuple):
        pieces = []
        for number, layer in enumerate(layers):
            piece = cache[number] if isinstance(cache, tuple) else None
            window = None if seen is None else jnp.asarray(seen[number])
            x, piece = _body(place, policy, run, loop=False)(layer, x, number, window, piece)
            pieces.append(piece)
        return x, tuple(pieces)

    repeat = jax.tree.leaves(layers)[0].shape[0]
    items = (layers, jnp.arange(repeat, dtype=jnp.int32), None if seen is None else jnp.asarray(seen))
    body = _body(place, policy, run, loop=repeat > 1)
    if not isinstance(cache, Cache):

        def fresh(x: jax.Array, item: Item) -> tuple[jax.Array, Cache]:
            return body(item[0], x, item[1], item[2], None)

        return jax.lax.scan(fresh, x, items)

    def carried(state: tuple[jax.Array, Cache], item: Item) -> tuple[tuple[jax.Array, Cache], None]:
        return body(item[0], state[0], item[1], item[2], state[1]), None

    return jax.lax.scan(carried, (x, cache), items)[0]


def _staged(
    layers: Layer | tuple[Layer, ...],
    x: jax.Array,
    place: Place,
    seen: np.ndarray | None,
    policy: Policy | None,
    run: Run,
    microbatches: int,
) -> jax.Array:
    """Run one group in stages over `pipeline`."""
    alone = replace(run, layout=Layout(None, False))

    def stage(layers: Layer, seen: jax.Array | None, x: jax.Array) -> jax.Array:
        return _group(layers, x, place, seen, None, policy, alone)[0]

    window = None if seen is None else jnp.asarray(seen)
    return through_stages(stage, layers, window, x, microbatches, run.layout)


Item = tuple[Layer, jax.Array, "jax.Array | None"]  # weights, number in the group, window
Body = Callable[[Layer, jax.Array, "jax.Array | int", "jax.Array | None", "Cache | None"], "tuple[jax.Array, Cache]"]


def _body(place: Place, policy: Policy | None, run: Run, *, loop: bool) -> Body:
    """Return one layer, recomputed as declared: a function of weights, input, number in the group, window and cache."""
    # Inside a loop forward and replay cannot meet, so no barrier is needed; a loop of one is no loop.
    run = replace(run, barrier=not loop)

    def plain(
        layer: Layer, x: jax.Array, number: jax.Array | int, window: jax.Array | None, cache: Cache | None
    ) -> tuple[jax.Array, Cache]:
        key = None if place.key is None else jax.random.fold_in(place.key, place.layers_before + 1 + number)
        return layer(x, replace(place, cache=cache, layer=number, window=window, key=key), run)

    if policy is None:
        return plain
    return jax.checkpoint(plain, policy=policy, prevent_cse=not loop)
