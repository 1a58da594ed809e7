"""Small architectures that have every branch the network knows, and short ways to run them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxcost.contracts.architecture import Architecture, absences
from jaxcost.contracts.case import Case, build_case
from jaxcost.reference.model import Decoder, init_model
from jaxcost.reference.sharding import Layout
from jaxcost.reference.training import make_gradients

RMS = {"kind": "rms", "epsilon": 1e-5, "scale": True, "bias": False}
LAYER_NORM = {"kind": "layer", "epsilon": 1e-5, "scale": True, "bias": True}
LLAMA3 = {
    "kind": "llama3", "factor": 8.0, "low_frequency_factor": 1.0, "high_frequency_factor": 4.0,
    "original_positions": 16,
}  # fmt: skip
ROTARY = {"theta": 10000.0, "dimensions": 4}
PLAIN = Layout(None, True)
# Programs this small are compiled more slowly than they run.
LITTLE_EFFORT = {
    "xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_use_fusion_emitters": False,
}  # fmt: skip


def layer(
    heads: int, kv_heads: int, width: int, *, bias: bool = False, classic: bool = False, rotary: Any = None
) -> Any:
    """A layer of head width 4; `classic` is GPT-2's form with layer norms and all biases."""
    attention = {"query_heads": heads, "kv_heads": kv_heads, "head_dim": 4, "output_bias": classic}
    attention |= dict.fromkeys(("query_bias", "key_bias", "value_bias"), bias or classic)
    if rotary:
        attention["rotary"] = rotary
    form, activation = ("classic", "gelu_tanh") if classic else ("gated", "silu")
    norm = LAYER_NORM if classic else RMS
    mlp = {"form": form, "width": width, "activation": activation, "bias": classic}
    return {"residual": "pre", "attention": attention, "mlp": mlp, "attention_norm": norm, "mlp_norm": norm}


def architecture(groups: list[tuple[int, Any]], branches: list[str], **fields: Any) -> Architecture:
    """A decoder of width 16 and 24 words."""
    data = {
        "hidden_size": 16, "vocabulary_size": 24, "tied": False, "final_norm": RMS,
        "groups": [{"repeat": repeat, "layer": one} for repeat, one in groups],
        "dropout": {"embedding": 0.1, "attention": 0.1, "residual": 0.1}, "absent": list(absences(branches)), **fields,
    }  # fmt: skip
    return Architecture.from_data(data)


LLAMA = architecture([(3, layer(4, 2, 24, rotary=ROTARY | {"scaling": LLAMA3}))], ["rotary_positions"])
QWEN = architecture([(2, layer(4, 2, 24, bias=True, rotary=ROTARY))], ["rotary_positions", "attention_bias"], tied=True)
GPT2 = architecture(
    [(2, layer(4, 4, 32, classic=True))],
    ["attention_bias", "mlp_bias", "norm_bias", "learned_positions"],
    tied=True, final_norm=LAYER_NORM, learned_positions={"rows": 16},
)  # fmt: skip
# Two kinds of layer, one of them alone in its group, and rotary positions on half of each head.
MIXED = architecture(
    [(1, layer(4, 1, 16, rotary=ROTARY | {"dimensions": 2})), (2, layer(4, 4, 24, rotary=ROTARY))], ["rotary_positions"]
)
ARCHITECTURES = {"llama": LLAMA, "qwen": QWEN, "gpt2": GPT2, "mixed": MIXED}


def make_case(arch: Architecture, **options: Any) -> Case:
    """A case in fp32, so that two ways to compute one thing differ by rounding alone."""
    phase = options.setdefault("phase", "training")
    options.setdefault("precision", "fp32" if phase == "training" else "fp32_inference")
    return build_case(arch, options)


def tokens_of(case: Case, seed: int = 0) -> jax.Array:
    """Random token ids `[batch, new rows]`."""
    shape = (case.workload.batch, case.workload.new_tokens)
    return jax.random.randint(jax.random.key(seed), shape, 0, case.architecture.vocabulary_size, jnp.int32)


def model_of(case: Case, seed: int = 1) -> Decoder:
    """Random weights."""
    return init_model(case, jax.random.key(seed))


def compiled(function: Any, *arguments: Any) -> Any:
    """Call a function compiled with little effort."""
    return jax.jit(function, compiler_options=LITTLE_EFFORT)(*arguments)


def loss_and_gradients(case: Case, model: Decoder, key: Any = None) -> Any:
    """The loss and the gradients of the trained arrays, on one device."""
    return compiled(make_gradients(case, PLAIN), model, tokens_of(case), key)


def difference(left: Any, right: Any) -> float:
    """The largest absolute difference of two trees, relative to the largest value of each array (at least one)."""
    shapes = jax.tree.map(lambda x: x.shape, (left, right))
    assert jax.tree.structure(left) == jax.tree.structure(right) and shapes[0] == shapes[1]
    pairs = zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
    return max(float(jnp.max(jnp.abs(a - b)) / jnp.maximum(jnp.max(jnp.abs(b)), 1.0)) for a, b in pairs)
