"""Attention by library kernels: the same numbers as the plans written out in JAX, and the products each kernel does."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask, splash_attention_mask_info

from jaxcost.contracts.architecture import Architecture
from jaxcost.contracts.errors import RejectedError
from jaxcost.contracts.kernels import splash_block, splash_scheduled_pairs
from jaxcost.reconciliation.kernels import PRODUCTS
from jaxcost.reference import kernels
from jaxcost.reference.attention import Blocks, Scoring, blockwise
from jaxcost.reference.step import make_step
from tests.reference.small import GEMMA, LLAMA, OLMO, PLAIN, difference, make_case

ROWS = jnp.int32(0)


def arrays(rows: int = 256, kv_heads: int = 2, group: int = 2, width: int = 8) -> tuple[jax.Array, ...]:
    draw = np.random.default_rng(0).standard_normal
    shapes = ((2, rows, kv_heads, group, width), (2, rows, kv_heads, width), (2, rows, kv_heads, width))
    return tuple(jnp.asarray(draw(shape), jnp.float32) for shape in shapes)


def in_jax(q, k, v, scoring):
    return blockwise(q, k, v, ROWS, None, None, Blocks(64, 64, 0.0, jnp.float32, scoring))


def with_gradients(attend, q, k, v):
    return jax.jit(jax.value_and_grad(lambda *x: jnp.sum(jnp.sin(attend(*x))), argnums=(0, 1, 2)))(q, k, v)


@pytest.mark.parametrize("cap", [None, 2.0])
def test_splash_gives_what_the_blockwise_plan_gives(cap):
    scoring, inputs = Scoring(0.3, cap, False), arrays()
    by_kernel = with_gradients(lambda *x: kernels.splash(*x, scoring, 128, PLAIN, interpret=True), *inputs)
    assert difference(by_kernel, with_gradients(partial(in_jax, scoring=scoring), *inputs)) < 1e-5
    other = Scoring(0.31, cap, False)
    assert difference(by_kernel, with_gradients(partial(in_jax, scoring=other), *inputs)) > 1e-3


def test_cudnn_is_asked_for_the_same_attention(monkeypatch):
    """The call's arguments, run by jax's own implementation; cuDNN itself needs a GPU."""
    ours = jax.nn.dot_product_attention
    asked = []

    def by_xla(*inputs, implementation, **options):
        asked.append(implementation)
        return ours(*inputs, implementation="xla", **options)

    monkeypatch.setattr(jax.nn, "dot_product_attention", by_xla)
    scoring, inputs = Scoring(0.3, None, False), arrays(rows=16)
    by_call = kernels.cudnn(*inputs, scoring.scale, PLAIN)
    shown = blockwise(*inputs, ROWS, None, None, Blocks(8, 8, 0.0, jnp.float32, scoring))
    assert asked == ["cudnn"] and difference(by_call, shown) < 1e-5


def dots(jaxpr) -> dict[str, int]:
    """Products inside each Pallas kernel of a jaxpr, by the kernel's name."""
    found: dict[str, int] = {}

    def walk(inner, kernel):
        for eqn in inner.eqns:
            here = str(eqn.source_info.name_stack).rsplit("/", 1)[-1] if eqn.primitive.name == "pallas_call" else kernel
            if eqn.primitive.name == "dot_general" and kernel:
                found[kernel] = found.get(kernel, 0) + 1
            for value in eqn.params.values():
                for item in value if isinstance(value, tuple | list) else (value,):
                    below = getattr(item, "jaxpr", item)
                    if hasattr(below, "eqns"):
                        walk(below, here)

    walk(jaxpr.jaxpr, "")
    return found


def test_the_declared_products_of_splash_are_those_of_its_kernels():
    def loss(*x):
        return jnp.sum(kernels.splash(*x, Scoring(0.3, None, False), 128, PLAIN))

    found = dots(jax.make_jaxpr(jax.grad(loss, argnums=(0, 1, 2)))(*arrays(rows=128)))
    declared = {name: sum(counts.values()) for name, counts in PRODUCTS.items()}
    assert found == {
        "splash_mha_fwd_residuals": declared["splash fwd"],
        "splash_mha_dq_no_residuals": declared["splash dq"],
        "splash_mha_dkv_no_residuals": declared["splash dkv"],
    }
    assert found != dict.fromkeys(found, 2)


@pytest.mark.parametrize(
    ("rows", "largest", "block"), [(512, 128, 128), (768, 512, 384), (640, 300, 128), (128, 1, 128)]
)
def test_scheduled_pairs_are_those_of_the_mask_that_splash_makes(rows, largest, block):
    assert splash_block(rows, largest) == block
    mask = splash_attention_mask.MultiHeadMask([splash_attention_mask.CausalMask((rows, rows))])
    info, _ = splash_attention_mask_info.process_mask(mask, (block, block))
    computed = int(np.count_nonzero(np.asarray(info.block_mask))) if info.block_mask is not None else 1
    assert splash_scheduled_pairs(rows, block) == computed * block * block
    assert splash_scheduled_pairs(rows, block) >= rows * (rows + 1) // 2


BF16 = {"precision": "mixed", "attention": "cudnn", "batch": 2, "seq": 8}


def wide(arch, head_dim: int = 8):
    """The architecture with heads of a width that cuDNN takes."""
    data = arch.to_data()
    for group in data["groups"]:
        group["layer"]["attention"] |= {"head_dim": head_dim, "decoupled_width": True}
    return Architecture.from_data(data)


@pytest.mark.parametrize(
    ("arch", "options", "path"),
    [
        (wide(LLAMA), {"precision": "fp32"}, "state.compute_dtype"),
        (LLAMA, {}, "architecture.groups.0.layer.attention.head_dim"),
        (wide(LLAMA, 136), {}, "architecture.groups.0.layer.attention.head_dim"),
        (wide(LLAMA), {"dropout": True}, "workload.dropout"),
        (wide(GEMMA), {}, "architecture.groups.0.windows"),
        (wide(GEMMA), {}, "architecture.groups.0.layer.attention.score_softcap"),
        (wide(OLMO), {}, "architecture.groups.1.layer.attention.alibi"),
        (LLAMA, {"attention": "splash"}, "workload.new_tokens"),
        (LLAMA, {"attention": "splash", "phase": "decode", "past": 255, "seq": 1, "precision": "bf16_inference"},
         "workload.attention"),
        (wide(LLAMA), {"phase": "decode", "past": 7, "seq": 1, "precision": "bf16_inference"}, "workload.attention"),
    ],
)  # fmt: skip
def test_what_a_kernel_cannot_run_is_refused_with_a_remedy(arch, options, path):
    with pytest.raises(RejectedError) as caught:
        make_step(make_case(arch, **(BF16 | options)))
    problem = next(p for p in caught.value.problems if p.path == path)
    assert "--attention" in problem.remedy or "--precision" in problem.remedy


def test_what_it_can_run_is_not_refused():
    make_step(make_case(wide(LLAMA), **BF16))
    make_step(make_case(LLAMA, **(BF16 | {"attention": "splash", "seq": 256})))
