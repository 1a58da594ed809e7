"""Attention through the kernels of libraries: cuDNN on NVIDIA GPUs, splash on TPUs.

To the compiler a kernel is one opaque call, forward and backward, under the scope `kernel`. Both take grouped-query
attention as it is: K and V are never repeated. The mask is causal over as many keys as queries, so a kernel skips what
lies ahead of the diagonal as far as its blocks allow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from jaxcost.contracts.case import Case
from jaxcost.contracts.kernels import KERNEL_FAMILIES, splash_block
from jaxcost.reference.sharding import ACTIVATION, Layout

if TYPE_CHECKING:
    from jaxcost.reference.attention import Scoring


@dataclass(frozen=True)
class Kernel:
    """A library's kernel and the rows of its blocks (splash alone chooses them)."""

    name: str
    block: int


def kernel_of(case: Case) -> Kernel | None:
    """Return the kernel a case asks for, None where attention is written out in JAX."""
    work = case.workload
    if work.attention not in KERNEL_FAMILIES:
        return None
    return Kernel(work.attention, splash_block(work.new_tokens, work.attention_block))


def attend(q: jax.Array, k: jax.Array, v: jax.Array, scoring: Scoring, kernel: Kernel, layout: Layout) -> jax.Array:
    """Return causal softmax(scale q k^T) v for q `[b, s, k, g, e]`, k and v `[b, s, k, e]`, as `[b, s, k, g, e]`."""
    with jax.named_scope("kernel"):
        if kernel.name == "cudnn":
            return cudnn(q, k, v, scoring.scale, layout)
        return splash(q, k, v, scoring, kernel.block, layout)


def cudnn(q: jax.Array, k: jax.Array, v: jax.Array, scale: float, layout: Layout) -> jax.Array:
    """Attention by cuDNN; it shards over sequences and heads, q, k and v alike."""
    batch, rows, kv_heads, group, width = q.shape
    joined = q.reshape(batch, rows, kv_heads * group, width)
    joined, k, v = (layout.pin(x, axes) for x, axes in ((joined, "bshe"), (k, "bsje"), (v, "bsje")))
    out = jax.nn.dot_product_attention(joined, k, v, scale=scale, is_causal=True, implementation="cudnn")
    return out.reshape(q.shape)


def splash(
    q: jax.Array, k: jax.Array, v: jax.Array, scoring: Scoring, block: int, layout: Layout, interpret: bool = False
) -> jax.Array:
    """Attention by the splash kernels; on a mesh each device runs them on its own sequences and heads.

    The scale goes into the queries. Backward is the kernel's own default, one call for dQ and one for dK and dV, each
    of which computes q k^T and dO V^T.
    """
    # Imported where it is used: Pallas takes long to load, and few steps need it.
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel, splash_attention_mask

    blocks = splash_attention_kernel.BlockSizes(
        block_q=block, block_kv=block, block_kv_compute=block, block_q_dkv=block, block_kv_dkv=block,
        block_kv_dkv_compute=block, block_q_dq=block, block_kv_dq=block,
    )  # fmt: skip

    def local(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        batch, rows, kv_heads, group, width = q.shape
        mask = splash_attention_mask.CausalMask((rows, k.shape[1]))
        kernel = splash_attention_kernel.make_splash_mha(
            splash_attention_mask.MultiHeadMask([mask] * (kv_heads * group)), block_sizes=blocks,
            head_shards=1, q_seq_shards=1, attn_logits_soft_cap=scoring.softcap, interpret=interpret,
        )  # fmt: skip
        scaled = (q * scoring.scale).astype(q.dtype).reshape(batch, rows, kv_heads * group, width)
        out = jax.vmap(kernel)(*(jnp.moveaxis(x, 1, 2) for x in (scaled, k, v)))
        return jnp.moveaxis(out, 1, 2).reshape(q.shape)

    if layout.mesh is None:
        return local(q, k, v)
    grouped, rows = layout.spec("bsjge", ACTIVATION), layout.spec("bsje", ACTIVATION)
    return jax.shard_map(
        local, mesh=layout.mesh, in_specs=(grouped, rows, rows), out_specs=grouped, check_vma=False
    )(q, k, v)  # fmt: skip
