"""The parts of a layer that own weights: linear maps, norms, the MLP; and `Run`, what they need to know about a step.

Weights are stored as declared by the model (fp32 or bf16) and cast where they are used. A linear map is one einsum over
named axes, so it is one contraction of the compiled program. Norms compute in fp32.
"""

from __future__ import annotations

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from jaxcost.contracts.architecture import Dropout
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
    layout: Layout


class Linear(eqx.Module):
    """y = x W + b under the scope `name`. `inputs` and `outputs` are the axis letters of W, e.g. "d" and "he"."""

    weight: jax.Array
    bias: jax.Array | None
    name: str = eqx.field(static=True)
    inputs: str = eqx.field(static=True)
    outputs: str = eqx.field(static=True)

    def __call__(self, x: jax.Array, run: Run) -> jax.Array:
        """Map `[b, s, *inputs]` to `[b, s, *outputs]` in the compute type."""
        with jax.named_scope(self.name):
            axes = self.inputs + self.outputs
            weight = run.layout.use(self.weight.astype(run.compute), axes)
            y = jnp.einsum(f"bs{self.inputs},{axes}->bs{self.outputs}", x, weight)
            if self.bias is not None:
                y = y + self.bias.astype(run.compute)
            return run.layout.pin(y, "bs" + self.outputs)


class Norm(eqx.Module):
    """Root mean square norm (Zhang & Sennrich 2019, arXiv:1910.07467) or, `centred`, layer norm (arXiv:1607.06450)."""

    scale: jax.Array | None
    bias: jax.Array | None
    name: str = eqx.field(static=True)
    centred: bool = eqx.field(static=True)
    epsilon: float = eqx.field(static=True)

    def __call__(self, x: jax.Array, run: Run) -> jax.Array:
        """Normalise `[..., d]` over its last axis."""
        with jax.named_scope(self.name):
            y = x.astype(jnp.float32)
            if self.centred:
                y = y - jnp.mean(y, axis=-1, keepdims=True)
            y = y * jax.lax.rsqrt(jnp.mean(jnp.square(y), axis=-1, keepdims=True) + self.epsilon)
            if self.scale is not None:
                y = y * self.scale.astype(jnp.float32)
            if self.bias is not None:
                y = y + self.bias.astype(jnp.float32)
            return run.layout.pin(y.astype(run.compute), "bsd")


class Mlp(eqx.Module):
    """down(act(gate(x)) * up(x)) (Shazeer 2020, arXiv:2002.05202), or down(act(up(x))) without a gate."""

    gate: Linear | None
    up: Linear
    down: Linear
    activation: str = eqx.field(static=True)

    def __call__(self, x: jax.Array, run: Run) -> jax.Array:
        """Map `[b, s, d]` to `[b, s, d]`."""
        act = ACTIVATIONS[self.activation]
        with jax.named_scope("mlp"):
            if self.gate is None:
                up = self.up(x, run)
                with jax.named_scope("activation"):
                    inner = act(up)
            else:
                gate, up = self.gate(x, run), self.up(x, run)
                with jax.named_scope("activation"):
                    inner = act(gate) * up
            return self.down(inner, run)


def dropout(x: jax.Array, rate: float, key: jax.Array | None) -> jax.Array:
    """Zero elements with probability `rate` and scale the rest by 1 / (1 - rate); no key, no dropout."""
    if key is None or rate == 0:
        return x
    keep = jax.random.bernoulli(key, 1 - rate, x.shape)
    return jnp.where(keep, x / (1 - rate), jnp.zeros_like(x))
