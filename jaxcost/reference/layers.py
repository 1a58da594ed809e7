"""The parts of a layer that own weights: linear maps, norms, the MLP; and `Run`, what they need to know about a step.

Weights are stored as declared by the model (fp32 or bf16) and cast where they are used. A linear map is one einsum over
named axes, so it is one contraction of the compiled program; fused storage only changes where its weight lies. Norms
compute in fp32.
"""

from __future__ import annotations

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.typing import DTypeLike

from jaxcost.contracts.architecture import Dropout
from jaxcost.contracts.execution import SAVEABLE_NAMES
from jaxcost.reference.kernels import Kernel
from jaxcost.reference.sharding import Layout

JAX_DTYPES = {
    "fp32": jnp.float32, "bf16": jnp.bfloat16, "fp16": jnp.float16, "int32": jnp.int32,
    "uint32": jnp.uint32,
}  # fmt: skip
ACTIVATIONS = {
    "silu": jax.nn.silu,
    "relu": jax.nn.relu,
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "gelu_tanh": lambda x: jax.nn.gelu(x, approximate=True),
}


@dataclass(frozen=True)
class Run:
    """What a step does with the weights: types, attention plan, dropout, sharding. Nothing here is an array."""

    compute: DTypeLike
    scores: DTypeLike
    logits: DTypeLike
    cache: DTypeLike
    blockwise: bool
    query_block: int
    key_block: int
    dropout: Dropout
    vocabulary_size: int
    embedding_scale: float | None
    sinusoidal: bool
    position_offset: int
    logit_softcap: float | None
    layout: Layout
    kernel: Kernel | None = None
    context_ring: bool = False
    keeps_probabilities: bool = False  # whether a policy names them
    cached: bool = False  # whether the step hands on a K/V cache
    # Whether linear maps gather their weights again in the backward pass, and, where they do, whether a barrier keeps
    # the compiler from merging both gathers (as it does in straight-line code).
    regather: bool = False
    barrier: bool = True


class Packed(eqx.Module):
    """Several linear maps in one array `[d, parts]` or `[d, parts, e]`, and their biases where all have one."""

    weight: jax.Array
    bias: jax.Array | None

    def cut(self, start: int, size: int) -> Packed:
        """Return the parts from `start` on; the axis cut is the second of the weight, the first of the bias."""
        weight = jax.lax.slice_in_dim(self.weight, start, start + size, axis=1)
        bias = None if self.bias is None else jax.lax.slice_in_dim(self.bias, start, start + size, axis=0)
        return Packed(weight, bias)


class Linear(eqx.Module):
    """y = x W + b under the scope `name`. `inputs` and `outputs` are the axis letters of W, e.g. "d" and "he".

    A map in fused storage has no weight of its own, and a bias only where the packed array holds none.
    """

    weight: jax.Array | None
    bias: jax.Array | None
    name: str = eqx.field(static=True)
    inputs: str = eqx.field(static=True)
    outputs: str = eqx.field(static=True)

    def __call__(
        self, x: jax.Array, run: Run, packed: Packed | None = None, place: tuple[int, int] = (0, 0)
    ) -> jax.Array:
        """Map `[b, s, *inputs]` to `[b, s, *outputs]` in the compute type; `place` is (start, size) in `packed`."""
        with jax.named_scope(self.name):
            axes = self.inputs + self.outputs
            stored, bias = self.weight, self.bias
            if packed is not None:
                piece = packed.cut(*place)
                stored, bias = piece.weight, bias if piece.bias is None else piece.bias
            assert stored is not None

            def product(x: jax.Array, stored: jax.Array, start: int, size: int) -> jax.Array:
                if size:
                    stored = Packed(stored, None).cut(start, size).weight
                weight = run.layout.use(stored.astype(run.compute), axes)
                return jnp.einsum(f"bs{self.inputs},{axes}->bs{self.outputs}", x, weight)

            if run.regather:
                # Without recomputation the backward pass keeps the weight as it was multiplied: gathered. Now it keeps
                # the stored array and gathers once more; the product is dead in that replay and is not repeated.
                whole, cut = (stored, (0, 0)) if packed is None else (packed.weight, place)
                y = jax.checkpoint(product, prevent_cse=run.barrier, static_argnums=(2, 3))(x, whole, *cut)
            else:
                y = product(x, stored, 0, 0)
            if bias is not None:
                y = y + bias.astype(run.compute)
            y = run.layout.leave(y) if self.outputs == "d" else run.layout.pin(y, "bs" + self.outputs)
            return named(y, self.name)


class Norm(eqx.Module):
    """Root mean square norm (Zhang & Sennrich 2019, arXiv:1910.07467) or, `centred`, layer norm (arXiv:1607.06450).

    `axes` are the letters of what is normalised, over its last `width` axes. `offset` is added to the learned scale.
    """

    scale: jax.Array | None
    bias: jax.Array | None
    name: str = eqx.field(static=True)
    centred: bool = eqx.field(static=True)
    epsilon: float = eqx.field(static=True)
    offset: float = eqx.field(static=True)
    axes: str = eqx.field(static=True)
    width: int = eqx.field(static=True)

    def __call__(self, x: jax.Array, run: Run) -> jax.Array:
        """Normalise; shapes are kept, the result is in the compute type."""
        over = tuple(range(-self.width, 0))
        with jax.named_scope(self.name):
            y = x.astype(jnp.float32)
            if self.centred:
                y = y - jnp.mean(y, axis=over, keepdims=True)
            y = y * jax.lax.rsqrt(jnp.mean(jnp.square(y), axis=over, keepdims=True) + self.epsilon)
            if self.scale is not None:
                scale = self.scale.astype(jnp.float32)
                y = y * (scale + self.offset if self.offset else scale)
            if self.bias is not None:
                y = y + self.bias.astype(jnp.float32)
            return named(run.layout.pin(y.astype(run.compute), self.axes), self.name)


def named(x: jax.Array, name: str) -> jax.Array:
    """Return x, known by name to recomputation policies where `SAVEABLE_NAMES` has the name; else as it is."""
    tagged: jax.Array = checkpoint_name(x, name) if name in SAVEABLE_NAMES else x
    return tagged


def normed(norm: Norm | None, x: jax.Array, run: Run) -> jax.Array:
    """Return norm(x), or x where there is no norm."""
    return x if norm is None else norm(x, run)


def softcap(x: jax.Array, cap: float | None) -> jax.Array:
    """Bound x to (-cap, cap) by cap tanh(x / cap), in fp32 (Gemma 2, arXiv:2408.00118, section 2)."""
    if cap is None:
        return x
    with jax.named_scope("softcap"):
        return (cap * jnp.tanh(x.astype(jnp.float32) / cap)).astype(x.dtype)


class Mlp(eqx.Module):
    """down(act(gate(x)) * up(x)) (Shazeer 2020, arXiv:2002.05202), or down(act(up(x))) without a gate."""

    gate_up: Packed | None
    gate: Linear | None
    up: Linear
    down: Linear
    activation: str = eqx.field(static=True)
    inner: int = eqx.field(static=True)

    def __call__(self, x: jax.Array, run: Run) -> jax.Array:
        """Map `[b, s, d]` to `[b, s, d]`."""
        act = ACTIVATIONS[self.activation]
        with jax.named_scope("mlp"):
            if self.gate is None:
                up = self.up(x, run)
                with jax.named_scope("activation"):
                    inner = act(up)
            else:
                gate = self.gate(x, run, self.gate_up, (0, self.inner))
                up = self.up(x, run, self.gate_up, (self.inner, self.inner))
                with jax.named_scope("activation"):
                    inner = act(gate) * up
            return self.down(named(inner, "activation"), run)


def dropout(x: jax.Array, rate: float, key: jax.Array | None) -> jax.Array:
    """Zero elements with probability `rate` and scale the rest by 1 / (1 - rate); no key, no dropout."""
    if key is None or rate == 0:
        return x
    keep = jax.random.bernoulli(key, 1 - rate, x.shape)
    return jnp.where(keep, x / (1 - rate), jnp.zeros_like(x))
