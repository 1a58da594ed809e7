"""Small architectures that have every branch the network knows, and short ways to run them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxcost.contracts.architecture import Architecture, absences
from jaxcost.contracts.case import Case, build_case
from jaxcost.reference.model import Decoder, Parameter, build
from jaxcost.reference.sharding import Layout
from jaxcost.reference.step import Step
from jaxcost.reference.training import TrainState, make_gradients

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
    heads: int, kv_heads: int, width: int, *, bias: bool = False, classic: bool = False, rotary: Any = None,
    activation: str = "", residual: str = "pre", norms: Any = None, attention: Any = None, mlp: Any = None,
) -> Any:  # fmt: skip
    """A layer of head width 4; `classic` is GPT-2's form with layer norms and all biases."""
    projections = {"query_heads": heads, "kv_heads": kv_heads, "head_dim": 4, "output_bias": classic}
    projections |= dict.fromkeys(("query_bias", "key_bias", "value_bias"), bias or classic)
    if rotary:
        projections["rotary"] = rotary
    form, usual = ("classic", "gelu_tanh") if classic else ("gated", "silu")
    norm = LAYER_NORM if classic else RMS
    return {
        "residual": residual, "attention": projections | (attention or {}),
        "mlp": {"form": form, "width": width, "activation": activation or usual, "bias": classic} | (mlp or {}),
        **(norms or {"attention_norm": norm, "mlp_norm": norm}),
    }  # fmt: skip


def architecture(groups: list[tuple[Any, ...]], branches: list[str], **fields: Any) -> Architecture:
    """A decoder of width 16 and 24 words; a group is its repeat, its layer and, where it has them, its windows."""
    data = {
        "hidden_size": 16, "vocabulary_size": 24, "tied": False, "final_norm": RMS,
        "groups": [{"repeat": repeat, "layer": one, "windows": list(*windows)} for repeat, one, *windows in groups],
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
# The rest of the family, several kinds of layer in one stack. Each residual form, norm and storage is here once.
GEMMA_NORM = RMS | {"unit_offset": True}
BOTH = dict.fromkeys(("attention_norm", "mlp_norm", "attention_post_norm", "mlp_post_norm"), GEMMA_NORM)
POST = dict.fromkeys(("attention_post_norm", "mlp_post_norm"), LAYER_NORM)
QKV_BIASES = dict.fromkeys(("query_bias", "key_bias", "value_bias"), True)
GEMMA = architecture(
    [(3, layer(6, 2, 24, activation="gelu_tanh", residual="both", norms=BOTH, rotary=ROTARY,
               attention={"decoupled_width": True, "scale": 0.3, "score_softcap": 2.0}), (3, 0))],
    ["rotary_positions"], tied=True, final_norm=GEMMA_NORM, embedding_scale=4.0, logit_softcap=3.0,
)  # fmt: skip
OPT = architecture(
    [(2, layer(4, 4, 20, classic=True, activation="relu", residual="post", norms=POST))],
    ["attention_bias", "mlp_bias", "norm_bias", "learned_positions", "embedding_projection"],
    tied=True, final_norm=None, learned_positions={"rows": 18, "offset": 2}, embedding_width=12,
)  # fmt: skip
OLMO = architecture(
    [(2, layer(4, 2, 20, activation="gelu", residual="post_branch", norms=dict.fromkeys(POST, RMS), rotary=ROTARY,
               attention={"qk_norm": {"over": "width", "norm": RMS}})),
     (1, layer(4, 4, 16, attention={"alibi": True, "qk_norm": {"over": "head", "norm": LAYER_NORM}}), (3,))],
    ["rotary_positions", "qk_norm", "norm_bias", "embedding_norm", "embedding_projection"],
    sinusoidal_positions=True, embedding_norm=LAYER_NORM | {"bias": False}, embedding_width=12,
)  # fmt: skip
NEOX = architecture(
    [(2, layer(4, 4, 20, classic=True, residual="parallel", rotary=ROTARY | {"interleaved": True},
               attention={"storage": "fused"})),
     (1, layer(4, 1, 16, activation="relu", residual="parallel", norms={"attention_norm": LAYER_NORM},
               rotary=ROTARY | {"dimensions": 2}, attention={"storage": "fused"} | QKV_BIASES,
               mlp={"storage": "fused", "bias": True}))],
    ["attention_bias", "mlp_bias", "norm_bias", "rotary_positions"], final_norm=RMS | {"scale": False},
)  # fmt: skip
FAMILY = {"gemma": GEMMA, "opt": OPT, "olmo": OLMO, "neox": NEOX}
ARCHITECTURES = {"llama": LLAMA, "qwen": QWEN, "gpt2": GPT2, **FAMILY}


def make_case(arch: Architecture, **options: Any) -> Case:
    """A case in fp32, so that two ways to compute one thing differ by rounding alone."""
    phase = options.setdefault("phase", "training")
    options.setdefault("precision", "fp32" if phase == "training" else "fp32_inference")
    return build_case(arch, options)


def tokens_of(case: Case, seed: int = 0) -> jax.Array:
    """Random token ids `[batch, new rows]`."""
    shape = (case.workload.batch, case.workload.new_tokens)
    ids = np.random.default_rng(seed).integers(0, case.architecture.vocabulary_size, shape)
    return jnp.asarray(ids.astype(np.int32))


def model_of(case: Case, seed: int = 1) -> Decoder:
    """Random weights, made by numpy: nothing is compiled. No bias is zero and no scale is one."""
    generator = np.random.default_rng(seed)

    def make(p: Parameter) -> jax.Array:
        noise = generator.standard_normal(p.shape)
        inputs = [n for a, n in zip(p.axes, p.shape, strict=True) if a != "layer"][: 2 if "o_proj" in p.scope else 1]
        table = p.scope in ("embed/tokens", "embed/positions")
        spread = {"scale": 0.1, "bias": 0.1}.get(p.name, 0.5 if table else float(np.prod(inputs)) ** -0.5)
        return jnp.asarray(spread * noise + (p.name == "scale"), p.dtype)

    return build(case, make)


def arguments_of(case: Case, step: Step, seed: int = 2) -> tuple[Any, ...]:
    """Arguments of a step, on the host: the weights of `model_of`, caches and moments that are not zero."""
    generator = np.random.default_rng(seed)

    def fill(x: Any) -> Any:
        if jnp.issubdtype(x.dtype, np.floating):
            return np.asarray(jnp.asarray(generator.standard_normal(x.shape), x.dtype))
        return generator.integers(0, case.architecture.vocabulary_size, x.shape).astype(x.dtype)

    named = dict(zip(step.argument_names, jax.tree.map(fill, step.arguments), strict=True))
    model = jax.device_get(model_of(case))
    if "state" in named:
        named["state"] = TrainState(model, named["state"].master, named["state"].optimizer)
    else:
        named["parameters"] = model
    if "position" in named:
        named["position"] = np.int32(case.workload.past_tokens)
    return tuple(named.values())


def compiled(function: Any, *arguments: Any) -> Any:
    """Call a function compiled with little effort."""
    return jax.jit(function, compiler_options=LITTLE_EFFORT)(*arguments)


def gradients_of(case: Case) -> Any:
    """The compiled function of weights, tokens and dropout key that gives loss and gradients, on one device."""
    return jax.jit(make_gradients(case, PLAIN), compiler_options=LITTLE_EFFORT)


def loss_and_gradients(case: Case, model: Decoder, key: Any = None) -> Any:
    """The loss and the gradients of the trained arrays, on one device."""
    return gradients_of(case)(model, tokens_of(case), key)


def difference(left: Any, right: Any) -> float:
    """The largest absolute difference of two trees, relative to the largest value of each array (at least one)."""
    shapes = jax.tree.map(lambda x: x.shape, (left, right))
    assert jax.tree.structure(left) == jax.tree.structure(right) and shapes[0] == shapes[1]
    pairs = zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
    arrays = [(np.asarray(a, np.float64), np.asarray(b, np.float64)) for a, b in pairs]
    return max(float(np.abs(a - b).max() / max(np.abs(b).max(), 1.0)) for a, b in arrays)
