"""A MaxText configuration (.yml) becomes an architecture and the options of a case.

Read after MaxText at commit e591f30cbbf217ed67ef71263ec0538239f9c3b8 (github.com/AI-Hypercomputer/maxtext): defaults of
src/maxtext/configs/base.yml where a key is left out, layer forms of src/maxtext/models/, batch sizes of
configs/types.py, remat policies of layers/nnx_decoders.py. Keys are read like those of a config.json: what could change
the graph or the step and is not understood is rejected by name.

Two things are the same function and not the same operations; both are stated in `notes`. MaxText divides the initial
query weights by the root of head_dim and does not scale scores in its llama2 and mistral blocks; scores are declared as
scaled. With logits_via_embedding it divides the logits by the root of base_emb_dim unless normalize_embedding_logits is
false; a manifest has no such product.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from jaxcost.catalog.keys import ABSENT, Keys
from jaxcost.catalog.maxtext_keys import inert_reason
from jaxcost.catalog.parts import Data, biases, group, pre_norm, record, rms_norm
from jaxcost.contracts.architecture import Architecture
from jaxcost.contracts.errors import RejectedError
from jaxcost.contracts.record import as_table

BLOCKS = ("llama2", "mistral", "qwen2", "qwen3")
REFUSED_BLOCKS = {
    "gemma": "norms and embeddings of Gemma in MaxText's own form",
    "gemma2": "two layers in one block, norms of Gemma in MaxText's own form",
    "gemma3": "two rotary bases",
    "gpt3": "layer norms and positions of GPT-3 in MaxText's own form",
    "olmo3": "windows by layer with yarn positions",
    "mixtral": "routed experts",
    "deepseek": "latent attention and routed experts",
    "llama4": "routed experts",
    "gpt_oss": "routed experts",
    "qwen3_moe": "routed experts",
    "qwen3_next": "linear attention and routed experts",
}
# remat_policy -> (this project's name, why it is the same). Names of saved tensors: nnx_decoders.get_remat_policy.
REMATS: Mapping[str, tuple[str, str]] = {
    "full": ("block", "no tensor of a layer is saved, so the whole layer is replayed"),
    "minimal": ("attention", "the outputs of all projections are saved, scores and values are replayed"),
}
_REMAT_REASONS = {
    "minimal_with_context": "also saves the output of attention",
    "minimal_flash": "also saves the output of attention",
    "save_dot_with_context_except_mlp": "saves projections of the attention and its output alone",
    "save_dot_except_mlpwi": "saves some projections of a layer and not others",
    "save_dot_except_mlp": "saves some projections of a layer and not others",
    "save_qkv_proj": "saves some projections of a layer and not others",
    "save_out_proj": "saves some projections of a layer and not others",
    "qkv_proj_offloaded": "moves saved tensors to the host",
    "minimal_offloaded": "moves saved tensors to the host",
    "custom": "chooses tensor by tensor",
    "none": "the two decoders of MaxText differ: one replays nothing, the other whole layers",
}
ATTENTION = {"dot_product": "materialised", "cudnn_flash_te": "cudnn"}
MESH = {"data": "data", "fsdp": "fsdp", "tensor": "tensor"}
_OTHER_AXES = (
    "diloco", "fsdp_transpose", "sequence", "context", "context_usp_ulysses", "context_autoregressive",
    "tensor_transpose", "tensor_sequence", "pipeline", "expert", "autoregressive",
)  # fmt: skip
# Axes of the same name as one here, and not the same layout.
_NOT_THE_SAME = {
    "context": "shards weights over context as well, where a context axis here replicates them",
    "pipeline": "runs stages over microbatches of its own, and splits the batch over them outside the stack",
}
_STATES = {("float32", "bfloat16"): "mixed", ("float32", "float32"): "fp32"}


@dataclass(frozen=True)
class MaxText:
    """What a MaxText file says: the graph, the options of a training case, and what was understood with a note."""

    architecture: Architecture
    options: Mapping[str, Any]
    notes: tuple[str, ...]


def from_maxtext(config: object, name: str = "unnamed", source: str = "", where: str = "") -> MaxText:
    """Return the architecture and the case options of a parsed MaxText configuration.

    Raises:
        RejectedError: for each key that is not understood, and for each bad value.
    """
    keys = Keys(as_table(config, where or "config"), where)
    notes: list[str] = []
    data = _architecture(keys, notes)
    options = _options(keys, notes)
    for key, value in keys.data.items():
        if key not in keys.read and inert_reason(str(key)) is None:
            keys.problem(str(key), value, "not a key that is understood", "remove it if it has no effect on a step")
    if keys.problems:
        raise RejectedError(keys.problems)
    head = {"name": name, "family": "maxtext", "source": source, "notes": "; ".join(notes)}
    return MaxText(Architecture.from_data({**head, **data}, where), options, tuple(notes))


def _architecture(keys: Keys, notes: list[str]) -> Data:
    block = keys.get("decoder_block", "llama2")
    if block not in BLOCKS:
        why = REFUSED_BLOCKS.get(block, "a block of its own") if isinstance(block, str) else "must be text"
        keys.problem("decoder_block", block, f"not understood: {why}", f"the blocks are {', '.join(BLOCKS)}")
    _fixed(keys)
    hidden, heads = keys.size("base_emb_dim", 2048), keys.size("base_num_query_heads", 16)
    kv_heads, head_dim = keys.size("base_num_kv_heads", 16), keys.size("head_dim", 128)
    if heads % kv_heads and keys.sound("base_num_query_heads", "base_num_kv_heads"):
        rule = f"must divide base_num_query_heads ({heads})"
        keys.problem("base_num_kv_heads", kv_heads, rule, "use a divisor")
    if head_dim % 2 and not keys.problems:
        keys.problem("head_dim", head_dim, "rotary positions turn pairs of coordinates", "use an even head_dim")
    norm = rms_norm(keys, "normalization_layer_epsilon", 1e-5)
    biased = keys.flag("attention_bias", False)
    if biased and block != "qwen2":
        keys.problem("attention_bias", True, f"the block {block} has no biases", "write false, or use qwen2")
    attention: Data = {
        "query_heads": heads, "kv_heads": kv_heads, "head_dim": head_dim,
        **biases(biased, output=False),
        "rotary": _rotary(keys, head_dim),
    }  # fmt: skip
    normed = keys.flag("use_qk_norm", False)
    if normed and block in ("qwen2", "qwen3"):
        attention["qk_norm"] = {"over": "head", "norm": norm}
    elif normed:
        keys.problem("use_qk_norm", True, f"the block {block} does not read it", "write false, or use qwen3")
    if keys.flag("fused_qkv", False):
        attention["storage"] = "fused"
    if block in ("llama2", "mistral"):
        notes.append("scores are declared as scaled; MaxText divides the initial query weights instead")
    tied = keys.flag("logits_via_embedding", False)
    if keys.flag("normalize_embedding_logits", True) and tied:
        notes.append("MaxText divides the logits of a tied head by the root of base_emb_dim; this is not counted")
    cap = keys.number("final_logits_soft_cap", 0.0)
    score_cap = keys.number("attn_logits_soft_cap", 0.0)
    if score_cap:
        attention["score_softcap"] = score_cap
    layer = pre_norm(attention, _mlp(keys), norm)
    return record(
        hidden,
        keys.size("vocab_size", 32000),
        [group(keys.size("base_num_decoder_layers", 16), layer)],
        norm,
        tied,
        **({"logit_softcap": cap} if cap else {}),
    )


def _fixed(keys: Keys) -> None:
    """Keys that change the graph and of which one value is understood."""
    keys.only("model_name", ("default",), "names another file that overrides this one; give that file")
    keys.only("global_parameter_scale", (1,), "multiplies the sizes; write them out")
    keys.only("num_experts", (1,), "routed experts")
    keys.only("mtp_num_layers", (0,), "layers for further tokens")
    keys.only("dropout_rate", (0, 0.0), "dropout in places of its own")
    keys.only("quantization", ("", None), "computes in other types")
    keys.only("attention_type", ("global",), "layers would see a part of the tokens")
    keys.only("sliding_window_size", (0,), "layers would see a window of the tokens")
    keys.only("partial_rotary_factor", (1, 1.0), "rotates part of each head")
    keys.only("trainable_position_size", (-1,), "a learned position table")
    keys.only("mlp_bias", (False,), "the blocks that are read have no such biases")
    keys.only("mlp_activations_limit", (-1, -1.0), "clamps activations")
    keys.only("share_kv_projections", (False,), "keys and values of one projection")
    keys.only("attention_sink", (False,), "a learned logit beside the scores")
    keys.only("model_call_mode", ("", "train"), "another step than training")
    for key in ("logits_dot_in_fp32", "float32_qk_product", "float32_logits", "activations_in_float32"):
        keys.only(key, (False,), "computes in other types than the state policy says")
    keys.only("num_vocab_tiling", (1,), "computes the loss in pieces")
    for key in ("use_iota_embed", "use_untrainable_positional_embedding", "use_post_attn_norm", "use_post_ffw_norm",
                "use_multimodal", "use_qk_clip", "enable_dropout_in_serving"):  # fmt: skip
        keys.only(key, (False,), "changes how tokens are embedded or where norms stand")


def _mlp(keys: Keys) -> Data:
    names = keys.get("mlp_activations", ["silu", "linear"])
    known = {"silu": "silu", "swish": "silu", "gelu": "gelu_tanh", "relu": "relu"}  # jax.nn.gelu is the tanh form
    first = names[0] if isinstance(names, list) and names else None
    gated = isinstance(names, list) and names[1:] == ["linear"]
    if not isinstance(first, str) or first not in known or not (gated or len(names) == 1):
        rule = "must be one activation, or one and linear for a gated MLP"
        keys.problem("mlp_activations", names, rule, f"the activations are {', '.join(known)}")
        first = "silu"
    mlp: Data = {
        "form": "gated" if gated else "classic",
        "width": keys.size("base_mlp_dim", 7168),
        "activation": known[first],
        "bias": False,
    }
    if keys.flag("fused_mlp", False) and gated:
        mlp["storage"] = "fused"
    return mlp


def _rotary(keys: Keys, head_dim: int) -> Data:
    """rope_type default, or llama3.1, whose four constants stand in the code (LLaMARotaryEmbedding)."""
    theta = keys.positive("rope_max_timescale", 10000.0)
    keys.only("rope_min_timescale", (1,), "another base of the slow coordinates")
    keys.only("rope_linear_scaling_factor", (1, 1.0), "divides positions")
    kind = keys.get("rope_type", "default")
    scaled = keys.flag("rope_use_scale", True)
    if kind not in ("default", "llama3.1"):
        keys.problem("rope_type", kind, "not a rotary scaling that is understood", "default and llama3.1 are")
    constants = {
        "kind": "llama3",
        "factor": 8.0,
        "low_frequency_factor": 1.0,
        "high_frequency_factor": 4.0,
        "original_positions": 8192,
    }
    return {"theta": theta, "dimensions": head_dim, "scaling": constants if kind == "llama3.1" and scaled else None}


def _options(keys: Keys, notes: list[str]) -> dict[str, Any]:
    options: dict[str, Any] = {"phase": "training", "seq": keys.size("max_target_length", 2048)}
    mesh = _mesh(keys, notes)
    devices = prod(mesh.values())
    accumulate = keys.size("gradient_accumulation_steps", 1)
    each = keys.positive("per_device_batch_size", 12.0)
    batch = each * devices
    if batch != int(batch):
        rule = f"{devices} devices would have {batch} sequences"
        keys.problem("per_device_batch_size", each, rule, "choose a number that gives a whole batch")
    options["batch"] = max(int(batch), 1) * accumulate
    if accumulate > 1:
        options["accumulate"] = accumulate
    if mesh:
        options["mesh"] = mesh
    options["layers"] = "scan" if keys.flag("scan_layers", True) else "unrolled"
    policy = keys.get("remat_policy", "full")
    if isinstance(policy, str) and policy in REMATS:
        options["remat"], why = REMATS[policy]
        notes.append(f"remat_policy {policy} is remat {options['remat']}: {why}")
    else:
        why = _REMAT_REASONS.get(policy, "not a policy of MaxText") if isinstance(policy, str) else "must be text"
        keys.problem("remat_policy", policy, f"has no equal here: {why}", f"{' and '.join(REMATS)} are understood")
    _attention(keys, options, notes)
    state = (keys.get("weight_dtype", "float32"), keys.get("dtype", "bfloat16"))
    if state in _STATES:
        options["precision"] = _STATES[state]
    else:
        rule = "weight_dtype and dtype together are no state policy that is understood"
        pairs = " or ".join("/".join(pair) for pair in _STATES)
        keys.problem("weight_dtype", "/".join(map(str, state)), rule, f"understood are {pairs}")
    optimizer = keys.get("opt_type", "adamw")
    if optimizer not in ("adamw", "sgd"):
        keys.problem("opt_type", optimizer, "not an optimizer that is understood", "adamw and sgd are")
    options["optimizer"] = optimizer
    if keys.number("gradient_clipping_threshold", 1.0):
        notes.append("gradients are clipped by their norm in MaxText; the counted step does not clip")
    return options


def _attention(keys: Keys, options: dict[str, Any], notes: list[str]) -> None:
    plan, hardware = keys.get("attention", "autoselected"), keys.get("hardware", "tpu")
    if plan == "flash" and hardware == "tpu":
        options["attention"] = "splash"
    elif isinstance(plan, str) and plan in ATTENTION:
        options["attention"] = ATTENTION[plan]
    elif plan == "autoselected":
        notes.append("attention is autoselected by MaxText when it runs; name a plan with --attention")
    else:
        rule = f"not an attention plan that is understood on {hardware}"
        keys.problem("attention", plan, rule, f"{', '.join(ATTENTION)}, flash on a TPU and autoselected are")


def _mesh(keys: Keys, notes: list[str]) -> dict[str, int]:
    """ici_X_parallelism times dcn_X_parallelism, axis by axis. -1 is filled from the devices of a run: refused."""
    for prefix in ("ici", "dcn"):
        for axis in _OTHER_AXES:
            why = _NOT_THE_SAME.get(axis, f"shards over {axis}, which no layout here does")
            keys.only(f"{prefix}_{axis}_parallelism", (1,), why)
    names = [f"{prefix}_{axis}_parallelism" for prefix in ("ici", "dcn") for axis in MESH]
    given = [name for name in names if name in keys.data]
    mesh: dict[str, int] = {}
    for axis in MESH:
        size = 1
        for prefix in ("ici", "dcn"):
            name = f"{prefix}_{axis}_parallelism"
            value = keys.data.get(name, ABSENT)
            if type(value) is int and value == -1:
                keys.read.add(name)
                rule = "-1 is filled from the devices of a run, which the file does not say"
                keys.problem(name, value, rule, "write the number")
            else:
                size *= keys.size(name, 1)
        if size > 1:
            mesh[axis] = size
    if given and "ici_fsdp_parallelism" not in keys.data:
        rule = "left out it is -1, filled from the devices of a run"
        keys.problem("ici_fsdp_parallelism", None, rule, "write the number")
    elif not given:
        notes.append("no ici_ or dcn_ axis is given: one device")
    elif "dcn_data_parallelism" not in keys.data:
        notes.append("dcn_data_parallelism is left out: one slice")
    return mesh
