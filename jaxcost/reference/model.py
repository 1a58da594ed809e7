"""The decoder: embedding, groups of identical layers, final norm, head.

One declaration builds every form of the model. `build(case, make)` calls `make` once per stored array with what is
known of it (`Parameter`: scope, name, axes, shape, dtype) and puts what it returns at that place of the tree; so the
abstract model, a random one, the axes and the shardings are the same tree with different leaves. Nothing is allocated
unless `make` allocates.

Paths read like scopes. Scanned layers are one `Layer` whose arrays have a leading `layer` axis, at
`.groups[0].attn.q_proj.weight`; unrolled layers are a tuple, at `.groups[0][3].attn.q_proj.weight`. A tied head has no
array of its own: the token table is used twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from jaxcost.contracts import architecture as declared
from jaxcost.contracts.case import Case
from jaxcost.reference.attention import attend
from jaxcost.reference.cache import Cache
from jaxcost.reference.layers import JAX_DTYPES, Linear, Mlp, Norm, Run, dropout
from jaxcost.reference.rotary import rotate
from jaxcost.reference.sharding import LOOKED_UP, STORED_WEIGHT
from jaxcost.reference.support import require_known_architecture


@dataclass(frozen=True)
class Parameter:
    """One stored array: its component scope (`group0/attn/q_proj`), field, named axes, shape and dtype."""

    scope: str
    name: str
    axes: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: Any


Make = Callable[[Parameter], Any]


@dataclass(frozen=True)
class Place:
    """Where a layer stands in a step.

    `first_row` is the position of its first row, `angles` its rotary angles, `layers_before` the layers of earlier
    groups, `layer` its number in the group, `key` its dropout key.
    """

    first_row: jax.Array
    angles: tuple[jax.Array, jax.Array] | None
    layers_before: int = 0
    cache: Cache | None = None
    layer: jax.Array | int = 0
    key: jax.Array | None = None

    def site_key(self, site: int) -> jax.Array | None:
        """Return the dropout key of one site of the layer, None where nothing is dropped."""
        return None if self.key is None else jax.random.fold_in(self.key, site)


class Attention(eqx.Module):
    """Grouped-query attention with separate projections."""

    q_proj: Linear
    k_proj: Linear
    v_proj: Linear
    o_proj: Linear

    def __call__(self, x: jax.Array, place: Place, run: Run) -> tuple[jax.Array, Cache]:
        """Map `[b, s, d]` to `[b, s, d]`; also return the rows of K and V, or the cache with them written."""
        with jax.named_scope("attn"):
            q, k, v = self.q_proj(x, run), self.k_proj(x, run), self.v_proj(x, run)
            with jax.named_scope("rotary"):
                q, k = rotate(q, place.angles), rotate(k, place.angles)
            if place.cache is None:
                cache = Cache(k.astype(run.cache), v.astype(run.cache))
            else:
                with jax.named_scope("cache"):
                    cache = place.cache.write(k, v, place.first_row, place.layer)
                    k, v = (rows.astype(run.compute) for rows in cache.read(place.layer))
            batch, rows, heads, width = q.shape
            grouped = q.reshape(batch, rows, k.shape[2], heads // k.shape[2], width)
            mixed = attend(grouped, k, v, place.first_row, run, run.dropout.attention, place.site_key(0))
            mixed = run.layout.pin(mixed.reshape(q.shape), "bshe")
            return self.o_proj(mixed, run), cache


class Layer(eqx.Module):
    """x + attn(norm(x)), then x + mlp(norm(x))."""

    attn_norm: Norm
    attn: Attention
    mlp_norm: Norm
    mlp: Mlp

    def __call__(self, x: jax.Array, place: Place, run: Run) -> tuple[jax.Array, Cache]:
        """Map `[b, s, d]` to `[b, s, d]`; also return the layer's cache."""
        out, cache = self.attn(self.attn_norm(x, run), place, run)
        with jax.named_scope("residual"):
            x = run.layout.pin(x + dropout(out, run.dropout.residual, place.site_key(1)), "bsd")
        out = self.mlp(self.mlp_norm(x, run), run)
        with jax.named_scope("residual"):
            return run.layout.pin(x + dropout(out, run.dropout.residual, place.site_key(2)), "bsd"), cache


class Table(eqx.Module):
    """A lookup table `[v, d]` (tokens) or `[p, d]` (positions)."""

    weight: jax.Array


class Embedding(eqx.Module):
    """Token table and, where the model has one, a learned position table."""

    tokens: Table
    positions: Table | None

    def __call__(self, tokens: jax.Array, first_row: jax.Array | int, run: Run, key: jax.Array | None) -> jax.Array:
        """Return `[b, s, d]` in the compute type for token ids `[b, s]` at positions from `first_row` on."""
        with jax.named_scope("embed"):
            with jax.named_scope("tokens"):
                ids = run.layout.pin(tokens, "bs", LOOKED_UP)
                table = run.layout.pin(self.tokens.weight, "vd", STORED_WEIGHT)
                x = run.layout.pin(jnp.take(table, ids, axis=0, mode="clip"), "bsd", LOOKED_UP)
                x = run.layout.pin(x.astype(run.compute), "bsd")
            if self.positions is not None:
                with jax.named_scope("positions"):
                    rows = jax.lax.dynamic_slice_in_dim(self.positions.weight, first_row, tokens.shape[1], axis=0)
                    x = x + run.layout.use(rows.astype(run.compute), "sd")
            return run.layout.pin(dropout(x, run.dropout.embedding, key), "bsd")


class Head(eqx.Module):
    """The output projection `[d, v]` of an untied model."""

    weight: jax.Array


class Decoder(eqx.Module):
    """A decoder-only Transformer; the steps in `training` and `serving` say how its parts are run."""

    embed: Embedding
    groups: tuple[Layer | tuple[Layer, ...], ...]
    final_norm: Norm
    head: Head | None

    def logits(self, x: jax.Array, run: Run) -> jax.Array:
        """Return `[b, s, v]` in the logits type for `[b, s, d]`; padding rows of the vocabulary are masked."""
        x = self.final_norm(x, run)
        with jax.named_scope("head"):
            if self.head is None:
                weight, axes = self.embed.tokens.weight, "vd"
            else:
                weight, axes = self.head.weight, "dv"
            weight = run.layout.use(weight.astype(run.compute), axes)
            logits = jnp.einsum(f"bsd,{axes}->bsv", x, weight, preferred_element_type=run.logits)
            if logits.shape[-1] > run.vocabulary_size:
                column = jax.lax.broadcasted_iota(jnp.int32, (1, 1, logits.shape[-1]), 2)
                logits = jnp.where(column < run.vocabulary_size, logits, jnp.finfo(run.logits).min)
            return run.layout.pin(logits, "bsv")


def build(case: Case, make: Make) -> Decoder:
    """Return the decoder of a case with `make(parameter)` at the place of every stored array.

    Raises:
        RejectedError: for an architecture with parts the network does not have (see `support`).
    """
    require_known_architecture(case)
    arch = case.architecture
    dtype = JAX_DTYPES[case.state.parameter_dtype]
    sizes = {"d": arch.hidden_size, "v": case.vocabulary_rows}
    if arch.learned_positions is not None:
        sizes["p"] = arch.learned_positions.rows

    def leaf(
        group: str, stack: tuple[str, ...], extents: dict[str, int], scope: str, name: str, own: Sequence[str]
    ) -> Any:
        axes = (*stack, *own)
        return make(Parameter(group + scope, name, axes, tuple(extents[axis] for axis in axes), dtype))

    groups: list[Layer | tuple[Layer, ...]] = []
    for index, group in enumerate(arch.groups):
        attention = group.layer.attention
        extents = {
            **sizes, "layer": group.repeat, "h": attention.query_heads, "k": attention.kv_heads,
            "e": attention.head_dim, "f": group.layer.mlp.width,
        }  # fmt: skip
        scanned = case.execution.layers == "scan"
        inside = partial(leaf, f"group{index}/", ("layer",) if scanned else (), extents)
        layers = [_layer(group.layer, inside) for _ in range(1 if scanned else group.repeat)]
        groups.append(layers[0] if scanned else tuple(layers))
    outside = partial(leaf, "", (), sizes)
    tokens = Table(outside("embed/tokens", "weight", "vd"))
    positions = Table(outside("embed/positions", "weight", "pd")) if arch.learned_positions else None
    return Decoder(
        embed=Embedding(tokens, positions),
        groups=tuple(groups),
        final_norm=_norm("final_norm", arch.final_norm, outside),
        head=None if arch.tied else Head(outside("head", "weight", "dv")),
    )


def _layer(layer: declared.Layer, leaf: Callable[[str, str, str], Any]) -> Layer:
    attention, mlp = layer.attention, layer.mlp

    def linear(scope: str, inputs: str, outputs: str, bias: bool) -> Linear:
        weight = leaf(scope, "weight", inputs + outputs)
        return Linear(weight, leaf(scope, "bias", outputs) if bias else None, scope.split("/")[-1], inputs, outputs)

    return Layer(
        attn_norm=_norm("attn_norm", layer.attention_norm, leaf),
        attn=Attention(
            q_proj=linear("attn/q_proj", "d", "he", attention.query_bias),
            k_proj=linear("attn/k_proj", "d", "ke", attention.key_bias),
            v_proj=linear("attn/v_proj", "d", "ke", attention.value_bias),
            o_proj=linear("attn/o_proj", "he", "d", attention.output_bias),
        ),
        mlp_norm=_norm("mlp_norm", layer.mlp_norm, leaf),
        mlp=Mlp(
            gate=linear("mlp/gate", "d", "f", mlp.bias) if mlp.form == "gated" else None,
            up=linear("mlp/up", "d", "f", mlp.bias),
            down=linear("mlp/down", "f", "d", mlp.bias),
            activation=mlp.activation,
        ),
    )


def _norm(scope: str, norm: declared.Norm | None, leaf: Callable[[str, str, str], Any]) -> Norm:
    assert norm is not None  # support.py refuses a case without it
    scale = leaf(scope, "scale", "d") if norm.scale else None
    bias = leaf(scope, "bias", "d") if norm.bias else None
    return Norm(scale, bias, scope, norm.kind == "layer", norm.epsilon)


def abstract_model(case: Case) -> Decoder:
    """Return the decoder with a `jax.ShapeDtypeStruct` for every stored array; nothing is allocated."""
    return build(case, lambda p: jax.ShapeDtypeStruct(p.shape, p.dtype))


def parameter_tree(case: Case) -> Decoder:
    """Return the decoder with its `Parameter` record at the place of every stored array."""
    return build(case, lambda p: p)


def parameters(case: Case) -> list[tuple[str, Parameter]]:
    """Return (pytree path, record) of every stored array, in tree order."""
    flat, _ = jax.tree_util.tree_flatten_with_path(parameter_tree(case))
    return [(jax.tree_util.keystr(path), parameter) for path, parameter in flat]


def init_model(case: Case, key: jax.Array) -> Decoder:
    """Return the decoder with random weights of unit output variance, scales near one and small biases.

    No bias is zero and no scale is one, so that a test notices when one is left out.
    """
    count = iter(range(1 << 20))

    def make(p: Parameter) -> jax.Array:
        noise = jax.random.normal(jax.random.fold_in(key, next(count)), p.shape, jnp.float32)
        if p.name == "scale":
            return (1 + 0.1 * noise).astype(p.dtype)
        if p.name == "bias":
            return (0.1 * noise).astype(p.dtype)
        inputs = p.axes[:-1] if p.scope.endswith("o_proj") else [a for a in p.axes if a != "layer"][:1]
        fan_in = 1
        for axis, extent in zip(p.axes, p.shape, strict=True):
            fan_in *= extent if axis in inputs and axis != "layer" else 1
        return (noise * (0.5 if p.scope.startswith("embed") else fan_in**-0.5)).astype(p.dtype)

    return build(case, make)
