"""The decoder: embedding, groups of identical layers, final norm, head.

One declaration builds every form of the model. `build(case, make)` calls `make` once per stored array with what is
known of it (`Parameter`: scope, name, axes, shape, dtype) and puts what it returns at that place of the tree; so the
abstract model, a random one, the axes and the shardings are the same tree with different leaves. Nothing is allocated
unless `make` allocates. An absent part is None at its place.

Paths read like scopes. Scanned layers are one `Layer` whose arrays have a leading `layer` axis, at
`.groups[0].attn.q_proj.weight`; unrolled layers are a tuple, at `.groups[0][3].attn.q_proj.weight`. A tied head has no
array of its own: the token table is used twice. Fused storage has one array at `.attn.qkv` or `.mlp.gate_up`.
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
from jaxcost.reference.attention import Rows, Scoring
from jaxcost.reference.cache import Cache
from jaxcost.reference.context import attend
from jaxcost.reference.layers import JAX_DTYPES, Linear, Mlp, Norm, Packed, Run, dropout, named, normed, softcap
from jaxcost.reference.rotary import rotate, sinusoid
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
    groups, `layer` its number in the group, `window` how many rows its queries see (None: all, in every layer of the
    group), `key` its dropout key.
    """

    first_row: jax.Array
    angles: tuple[jax.Array, jax.Array] | None
    layers_before: int = 0
    cache: Cache | None = None
    layer: jax.Array | int = 0
    window: jax.Array | None = None
    key: jax.Array | None = None

    def site_key(self, site: int) -> jax.Array | None:
        """Return the dropout key of one site of the layer, None where nothing is dropped."""
        return None if self.key is None else jax.random.fold_in(self.key, site)


class Attention(eqx.Module):
    """Grouped-query attention."""

    qkv: Packed | None
    q_proj: Linear
    k_proj: Linear
    v_proj: Linear
    q_norm: Norm | None
    k_norm: Norm | None
    o_proj: Linear
    heads: tuple[int, int] = eqx.field(static=True)
    scoring: Scoring = eqx.field(static=True)
    interleaved: bool = eqx.field(static=True)

    def __call__(self, x: jax.Array, place: Place, run: Run) -> tuple[jax.Array, Cache]:
        """Map `[b, s, d]` to `[b, s, d]`; also return the rows of K and V, or the cache with them written."""
        heads, kv_heads = self.heads
        with jax.named_scope("attn"):
            q = self.q_proj(x, run, self.qkv, (0, heads))
            k = self.k_proj(x, run, self.qkv, (heads, kv_heads))
            v = self.v_proj(x, run, self.qkv, (heads + kv_heads, kv_heads))
            q, k = normed(self.q_norm, q, run), normed(self.k_norm, k, run)
            with jax.named_scope("rotary"):
                if place.angles is not None:
                    q = named(rotate(q, place.angles, self.interleaved), "q_rotary")
                    k = named(rotate(k, place.angles, self.interleaved), "k_rotary")
            if run.cached:
                k, v = (run.layout.whole_rows(rows, "btke") for rows in (k, v))
            if place.cache is None:
                cache = Cache(k.astype(run.cache), v.astype(run.cache))
            else:
                with jax.named_scope("cache"):
                    cache = place.cache.write(k, v, place.first_row, place.layer)
                    k, v = (rows.astype(run.compute) for rows in cache.read(place.layer))
            k, v = (_each_rank(rows, run) for rows in (k, v))
            batch, rows, _, width = q.shape
            grouped = q.reshape(batch, rows, k.shape[2], heads // k.shape[2], width)
            where = Rows(place.first_row, place.window)
            mixed = attend(grouped, k, v, where, self.scoring, run, run.dropout.attention, place.site_key(0))
            mixed = run.layout.pin(mixed.reshape(q.shape), "bshe")
            # Blocks name it where their backward pass finds it, before the heads are joined.
            mixed = mixed if run.blockwise else named(mixed, "context")
            return self.o_proj(mixed, run), cache


def _each_rank(rows: jax.Array, run: Run) -> jax.Array:
    """Return K or V `[b, t, k, e]` as `[b, t, j, e]`, every rank of `tensor` with a head of its own.

    A head held by several ranks is repeated along the axis that separates them, so no rank repeats anything and the
    pairwise products need no transfer; the gradient sums over that axis once.
    """
    copies = run.layout.kv_replicas
    if copies == 1:
        return rows
    batch, count, heads, width = rows.shape
    spread = jnp.broadcast_to(rows[:, :, :, None], (batch, count, heads, copies, width))
    return run.layout.pin(spread.reshape(batch, count, heads * copies, width), "btje")


class Layer(eqx.Module):
    """One layer, in the forms of `declared.Layer`.

    Which norms there are decides the form, but for two: `post` norms the sums instead of the branches, and `parallel`
    adds both branches to the layer's input; they share the first norm where there is no second.
    """

    attn_norm: Norm | None
    attn: Attention
    attn_post_norm: Norm | None
    mlp_norm: Norm | None
    mlp: Mlp
    mlp_post_norm: Norm | None
    residual: declared.Residual = eqx.field(static=True)

    def __call__(self, x: jax.Array, place: Place, run: Run) -> tuple[jax.Array, Cache]:
        """Map `[b, s, d]` to `[b, s, d]`; also return the layer's cache."""
        first = run.layout.enter(normed(self.attn_norm, x, run))
        out, cache = self.attn(first, place, run)
        if self.residual == "parallel":
            other = self.mlp(first if self.mlp_norm is None else run.layout.enter(self.mlp_norm(x, run)), run)
            return self._add(x, (out, other), (1, 2), place, run), cache
        x = self._join(x, out, self.attn_post_norm, 1, place, run)
        out = self.mlp(run.layout.enter(normed(self.mlp_norm, x, run)), run)
        return self._join(x, out, self.mlp_post_norm, 2, place, run), cache

    def _join(self, x: jax.Array, out: jax.Array, norm: Norm | None, site: int, place: Place, run: Run) -> jax.Array:
        """Add one branch to the stream, with the norm that follows it: of the sum, or of the branch."""
        name = "attn_residual" if site == 1 else ""
        if self.residual == "post":
            return normed(norm, named(self._add(x, (out,), (site,), place, run), name), run)
        if norm is None:
            return named(self._add(x, (out,), (site,), place, run), name)
        with jax.named_scope("residual"):
            out = dropout(out, run.dropout.residual, place.site_key(site))
        out = norm(out, run)
        with jax.named_scope("residual"):
            return named(run.layout.pin(x + out, "bid"), name)

    def _add(
        self, x: jax.Array, branches: tuple[jax.Array, ...], sites: tuple[int, ...], place: Place, run: Run
    ) -> jax.Array:
        with jax.named_scope("residual"):
            for out, site in zip(branches, sites, strict=True):
                x = x + dropout(out, run.dropout.residual, place.site_key(site))
            return run.layout.pin(x, "bid")


class Table(eqx.Module):
    """A lookup table `[v, w]` (tokens) or `[p, d]` (positions)."""

    weight: jax.Array


class Embedding(eqx.Module):
    """Tokens looked up, scaled, projected to the hidden width; positions added; then a norm. Only tokens are a must.

    The columns of the token table are named w where a projection follows, d otherwise.
    """

    tokens: Table
    positions: Table | None
    project_in: Linear | None
    norm: Norm | None

    def __call__(self, tokens: jax.Array, first_row: jax.Array, run: Run, key: jax.Array | None) -> jax.Array:
        """Return `[b, s, d]` in the compute type for token ids `[b, s]` at positions from `first_row` on."""
        with jax.named_scope("embed"):
            x = self._look_up(tokens, run)
            if run.embedding_scale is not None:
                with jax.named_scope("scale"):
                    x = x * jnp.asarray(run.embedding_scale, run.compute)
            if self.project_in is not None:
                x = self.project_in(x, run)
            with jax.named_scope("positions"):
                if self.positions is not None:
                    start = first_row + run.position_offset
                    rows = jax.lax.dynamic_slice_in_dim(self.positions.weight, start, tokens.shape[1], axis=0)
                    x = x + run.layout.use(rows.astype(run.compute), "sd")
                elif run.sinusoidal:
                    places = first_row + jnp.arange(tokens.shape[1], dtype=jnp.int32)
                    x = x + sinusoid(places, x.shape[-1]).astype(run.compute)
            x = normed(self.norm, x, run)
            return run.layout.pin(dropout(x, run.dropout.embedding, key), "bid")

    def _look_up(self, tokens: jax.Array, run: Run) -> jax.Array:
        width = "d" if self.project_in is None else "w"
        with jax.named_scope("tokens"):
            ids = run.layout.pin(tokens, "bs", LOOKED_UP)
            table = run.layout.pin(self.tokens.weight, "v" + width, STORED_WEIGHT)
            axes = "bid" if width == "d" else "bsw"
            x = run.layout.pin(jnp.take(table, ids, axis=0, mode="clip"), axes, LOOKED_UP)
            return run.layout.pin(x.astype(run.compute), axes)


class Head(eqx.Module):
    """What the head stores: its matrix `[w, v]` unless tied, and the projection before it where there is one."""

    project_out: Linear | None
    weight: jax.Array | None


class Decoder(eqx.Module):
    """A decoder-only Transformer; the steps in `training` and `serving` say how its parts are run."""

    embed: Embedding
    groups: tuple[Layer | tuple[Layer, ...], ...]
    final_norm: Norm | None
    head: Head | None

    def logits(self, x: jax.Array, run: Run) -> jax.Array:
        """Return `[b, s, v]` in the logits type for `[b, s, d]`; padding rows of the vocabulary are masked."""
        x = run.layout.enter(normed(self.final_norm, x, run))
        with jax.named_scope("head"):
            width = "d"
            if self.head is not None and self.head.project_out is not None:
                x, width = self.head.project_out(x, run), "w"
            if self.head is None or self.head.weight is None:
                weight, axes = self.embed.tokens.weight, "v" + width
            else:
                weight, axes = self.head.weight, width + "v"
            weight = run.layout.use(weight.astype(run.compute), axes)
            logits = jnp.einsum(f"bs{width},{axes}->bsv", x, weight, preferred_element_type=run.logits)
            logits = softcap(logits, run.logit_softcap)
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
    sizes = {"d": arch.hidden_size, "v": case.vocabulary_rows, "w": arch.table_width}
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
            "e": attention.head_dim, "f": group.layer.mlp.width, "u": 2 * group.layer.mlp.width,
            "n": attention.query_heads + 2 * attention.kv_heads,
        }  # fmt: skip
        scanned = case.execution.layers == "scan"
        inside = partial(leaf, f"group{index}/", ("layer",) if scanned else (), extents)
        layers = [_layer(group.layer, inside) for _ in range(1 if scanned else group.repeat)]
        groups.append(layers[0] if scanned else tuple(layers))
    outside = partial(leaf, "", (), sizes)
    projected = arch.embedding_width is not None
    width = "w" if projected else "d"
    weight = None if arch.tied else outside("head", "weight", width + "v")
    project_out = _linear(outside, "head/project_out", "d", "w") if projected else None
    return Decoder(
        embed=Embedding(
            tokens=Table(outside("embed/tokens", "weight", "v" + width)),
            positions=Table(outside("embed/positions", "weight", "pd")) if arch.learned_positions else None,
            project_in=_linear(outside, "embed/project_in", "w", "d") if projected else None,
            norm=_norm(outside, "embed/norm", arch.embedding_norm),
        ),
        groups=tuple(groups),
        final_norm=_norm(outside, "final_norm", arch.final_norm),
        head=None if weight is None and project_out is None else Head(project_out, weight),
    )


Leaf = Callable[[str, str, str], Any]


def _layer(layer: declared.Layer, leaf: Leaf) -> Layer:
    return Layer(
        attn_norm=_norm(leaf, "attn_norm", layer.attention_norm),
        attn=_attention(layer.attention, leaf),
        attn_post_norm=_norm(leaf, "attn_post_norm", layer.attention_post_norm),
        mlp_norm=_norm(leaf, "mlp_norm", layer.mlp_norm),
        mlp=_mlp(layer.mlp, leaf),
        mlp_post_norm=_norm(leaf, "mlp_post_norm", layer.mlp_post_norm),
        residual=layer.residual,
    )


def _attention(attention: declared.Attention, leaf: Leaf) -> Attention:
    biases = (attention.query_bias, attention.key_bias, attention.value_bias)
    qkv, own = None, biases
    if attention.storage == "fused":
        qkv = Packed(leaf("attn/qkv", "weight", "dne"), leaf("attn/qkv", "bias", "ne") if all(biases) else None)
        own = (False, False, False) if all(biases) else biases
    names = zip(("q", "k", "v"), ("he", "ke", "ke"), own, strict=True)
    q, k, v = (_linear(leaf, f"attn/{n}_proj", "d", out, bias, stored=qkv is None) for n, out, bias in names)
    over, qk = (attention.qk_norm.over, attention.qk_norm.norm) if attention.qk_norm else ("head", None)
    return Attention(
        qkv=qkv,
        q_proj=q,
        k_proj=k,
        v_proj=v,
        q_norm=_norm(leaf, "attn/q_norm", qk, "bshe", "he" if over == "width" else "e"),
        k_norm=_norm(leaf, "attn/k_norm", qk, "bske", "ke" if over == "width" else "e"),
        o_proj=_linear(leaf, "attn/o_proj", "he", "d", attention.output_bias),
        heads=(attention.query_heads, attention.kv_heads),
        scoring=Scoring(
            attention.head_dim**-0.5 if attention.scale is None else attention.scale,
            attention.score_softcap,
            attention.alibi,
        ),
        interleaved=attention.rotary is not None and attention.rotary.interleaved,
    )


def _mlp(mlp: declared.Mlp, leaf: Leaf) -> Mlp:
    fused = mlp.storage == "fused"
    bias = mlp.bias and not fused
    packed = None
    if fused:
        packed = Packed(leaf("mlp/gate_up", "weight", "du"), leaf("mlp/gate_up", "bias", "u") if mlp.bias else None)
    return Mlp(
        gate_up=packed,
        gate=_linear(leaf, "mlp/gate", "d", "f", bias, stored=not fused) if mlp.form == "gated" else None,
        up=_linear(leaf, "mlp/up", "d", "f", bias, stored=not fused),
        down=_linear(leaf, "mlp/down", "f", "d", mlp.bias),
        activation=mlp.activation,
        inner=mlp.width,
    )


def _linear(leaf: Leaf, scope: str, inputs: str, outputs: str, bias: bool = False, stored: bool = True) -> Linear:
    weight = leaf(scope, "weight", inputs + outputs) if stored else None
    return Linear(weight, leaf(scope, "bias", outputs) if bias else None, scope.split("/")[-1], inputs, outputs)


def _norm(leaf: Leaf, scope: str, norm: declared.Norm | None, axes: str = "bid", over: str = "d") -> Norm | None:
    if norm is None:
        return None
    scale = leaf(scope, "scale", over) if norm.scale else None
    bias = leaf(scope, "bias", over) if norm.bias else None
    offset = 1.0 if norm.unit_offset else 0.0
    return Norm(scale, bias, scope.split("/")[-1], norm.kind == "layer", norm.epsilon, offset, axes, len(over))


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
        return (noise * (0.5 if p.scope in ("embed/tokens", "embed/positions") else fan_in**-0.5)).astype(p.dtype)

    return build(case, make)
