"""Record the logits of Hugging Face transformers for the configurations in `seeded.py`.

    pip install torch transformers && python -m tests.reference.record_transformers [NAME ...]

Writes records/<model>.npz (token ids, logits) and records/<model>.json (configuration, seed, versions), of the models
named or of all. The test reads them without torch; where torch and transformers are installed it runs `logits_of`
again.
"""

from __future__ import annotations

import copy
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.reference import seeded


@dataclass(frozen=True)
class Names:
    """Where transformers keeps what we keep, module by module; a weight is a weight, our scale is their weight.

    `layer` is the prefix of a layer. `cut` is how a fused q, k, v lies in its rows: `parts` one after the other, or
    `group` by K/V head: its queries, its key, its value. Linear keeps [out, in], GPT-2's Conv1D (`conv`) [in, out].
    """

    model: str
    outside: Mapping[str, str]
    layer: str
    inside: Mapping[str, str]
    cut: str = "parts"
    conv: bool = False


LLAMA_OUTSIDE = {"embed.tokens": "model.embed_tokens", "final_norm": "model.norm", "head": "lm_head"}
LLAMA_INSIDE = {
    **{f"attn.{name}_proj": f"self_attn.{name}_proj" for name in "qkvo"},
    **{f"attn.{name}_norm": f"self_attn.{name}_norm" for name in "qk"},
    **{f"mlp.{name}": f"mlp.{name}_proj" for name in ("gate", "up", "gate_up", "down")},
    "attn.qkv": "self_attn.qkv_proj",
}
PRE = {"attn_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
BLOOM_INSIDE = {
    **PRE, "mlp.up": "mlp.dense_h_to_4h", "mlp.down": "mlp.dense_4h_to_h",
    "attn.qkv": "self_attention.query_key_value", "attn.o_proj": "self_attention.dense",
}  # fmt: skip
HUB_OUTSIDE = {"embed.tokens": "transformer.word_embeddings", "final_norm": "transformer.ln_f", "head": "lm_head"}


def _like_llama(model: str, norms: Mapping[str, str]) -> Names:
    return Names(model, LLAMA_OUTSIDE, "model.layers.{}.", {**LLAMA_INSIDE, **norms})


NAMES = {
    "llama": _like_llama("LlamaForCausalLM", PRE),
    "mistral": _like_llama("MistralForCausalLM", PRE),
    "qwen2": _like_llama("Qwen2ForCausalLM", PRE),
    "qwen3": _like_llama("Qwen3ForCausalLM", PRE),
    "gemma": _like_llama("GemmaForCausalLM", PRE),
    "phi3": _like_llama("Phi3ForCausalLM", PRE),
    "gemma2": _like_llama("Gemma2ForCausalLM", {
        "attn_norm": "input_layernorm", "attn_post_norm": "post_attention_layernorm",
        "mlp_norm": "pre_feedforward_layernorm", "mlp_post_norm": "post_feedforward_layernorm",
    }),
    "olmo2": _like_llama("Olmo2ForCausalLM", {
        "attn_post_norm": "post_attention_layernorm", "mlp_post_norm": "post_feedforward_layernorm",
    }),
    "gpt2": Names(
        "GPT2LMHeadModel",
        {"embed.tokens": "transformer.wte", "embed.positions": "transformer.wpe", "final_norm": "transformer.ln_f"},
        "transformer.h.{}.",
        {"attn_norm": "ln_1", "mlp_norm": "ln_2", "attn.qkv": "attn.c_attn", "attn.o_proj": "attn.c_proj",
         "mlp.up": "mlp.c_fc", "mlp.down": "mlp.c_proj"},
        conv=True,
    ),
    "opt": Names(
        "OPTForCausalLM",
        {"embed.tokens": "model.decoder.embed_tokens", "embed.positions": "model.decoder.embed_positions",
         "embed.project_in": "model.decoder.project_in", "head.project_out": "model.decoder.project_out",
         "final_norm": "model.decoder.final_layer_norm"},
        "model.decoder.layers.{}.",
        # Norms keep their names where they stand before or after their block.
        {**LLAMA_INSIDE, "attn.o_proj": "self_attn.out_proj", "mlp.up": "fc1", "mlp.down": "fc2",
         "attn_norm": "self_attn_layer_norm", "attn_post_norm": "self_attn_layer_norm",
         "mlp_norm": "final_layer_norm", "mlp_post_norm": "final_layer_norm"},
    ),
    "gpt_neox": Names(
        "GPTNeoXForCausalLM",
        {"embed.tokens": "gpt_neox.embed_in", "final_norm": "gpt_neox.final_layer_norm", "head": "embed_out"},
        "gpt_neox.layers.{}.",
        {**BLOOM_INSIDE, "attn.qkv": "attention.query_key_value", "attn.o_proj": "attention.dense"},
        cut="group",
    ),
    "falcon": Names("FalconForCausalLM", HUB_OUTSIDE, "transformer.h.{}.", BLOOM_INSIDE, cut="group"),
    "bloom": Names(
        "BloomForCausalLM", {**HUB_OUTSIDE, "embed.norm": "transformer.word_embeddings_layernorm"},
        "transformer.h.{}.", BLOOM_INSIDE, cut="group",
    ),
    "mpt": Names(
        "MptForCausalLM", {"embed.tokens": "transformer.wte", "final_norm": "transformer.norm_f"},
        "transformer.blocks.{}.",
        {"attn_norm": "norm_1", "mlp_norm": "norm_2", "attn.qkv": "attn.Wqkv", "attn.o_proj": "attn.out_proj",
         "mlp.up": "ffn.up_proj", "mlp.down": "ffn.down_proj"},
    ),
}  # fmt: skip


def state_dict_of(config: dict[str, Any], arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Rename and reshape the network's arrays for transformers; a model that ties the head gets no head."""
    names = NAMES[config["model_type"]]
    inside = dict(names.inside)
    if config.get("new_decoder_architecture"):  # Falcon 40B
        inside |= {"attn_norm": "ln_attn", "mlp_norm": "ln_mlp"}
    attention = seeded.case_of(config).architecture.groups[0].layer.attention
    state: dict[str, np.ndarray] = {}
    packed: dict[str, list[np.ndarray]] = {}
    for path, array in arrays.items():
        if path.startswith(".groups[0]["):
            layer, rest = path.removeprefix(".groups[0][").split("].", 1)
            prefix = names.layer.format(layer)
        else:
            rest, prefix = path.removeprefix("."), ""
        module, part = rest.rsplit(".", 1)
        suffix = ".bias" if part == "bias" else ".weight"
        if names.conv and module in ("attn.q_proj", "attn.k_proj", "attn.v_proj"):
            # One array [in, 3 out] holds q, k and v, in this order.
            packed.setdefault(prefix + inside["attn.qkv"] + suffix, []).append(_as_matrix(module, array))
            continue
        if module == "attn.qkv" and names.cut == "group":
            array = _by_group(array, attention.query_heads, attention.kv_heads)
        flat = _as_matrix(module, array)
        linear = part == "weight" and module not in ("embed.tokens", "embed.positions")
        state[prefix + (inside if prefix else names.outside)[module] + suffix] = (
            flat.T if linear and not names.conv else flat
        )
    return state | {name: np.concatenate(parts, axis=-1) for name, parts in packed.items()}


def _by_group(array: np.ndarray, heads: int, kv_heads: int) -> np.ndarray:
    """Reorder the heads axis, the last but one, from queries, keys, values to K/V group by group."""
    q, k, v = np.split(array, [heads, heads + kv_heads], axis=-2)
    lead, width = array.shape[:-2], array.shape[-1]
    groups = [x.reshape(*lead, kv_heads, -1, width) for x in (q, k, v)]
    return np.concatenate(groups, axis=-2).reshape(array.shape)


def _as_matrix(module: str, array: np.ndarray) -> np.ndarray:
    """Flatten head axes: [d, n, e] to [d, n e], [h, e, d] to [h e, d], [h, e] to [h e]."""
    if not module.startswith("attn."):
        return array
    if array.ndim == 3:
        shape = (-1, array.shape[-1]) if module == "attn.o_proj" else (array.shape[0], -1)
        return array.reshape(shape)
    return array.reshape(-1) if module != "attn.o_proj" else array


def logits_of(config: dict[str, Any]) -> np.ndarray:
    """Run transformers on the seeded weights and return its logits, fp32 `[batch, rows, vocabulary]`."""
    import torch
    import transformers

    theirs = copy.deepcopy(config)  # transformers writes into nested tables
    kind = theirs.pop("model_type")
    made = transformers.AutoConfig.for_model(kind, **theirs)
    made._attn_implementation = "eager"
    model = getattr(transformers, NAMES[kind].model)(made).to(torch.float32).eval()
    state = state_dict_of(config, seeded.weights_of(seeded.case_of(config)))
    if "embed_out.weight" in state and "lm_head.weight" in model.state_dict():
        state["lm_head.weight"] = state.pop("embed_out.weight")  # transformers 5 renames it when it reads a file
    missing, unexpected = model.load_state_dict({n: torch.from_numpy(a.copy()) for n, a in state.items()}, strict=False)
    tied = {"lm_head.weight"} if config["tie_word_embeddings"] else set()
    left = {name for name in missing if not name.endswith((".attn.bias", ".attn.masked_bias"))} - tied
    if left or unexpected:
        raise ValueError(f"weights do not match the model: missing {sorted(left)}, unexpected {sorted(unexpected)}")
    model.tie_weights()
    with torch.no_grad():
        out = model(torch.from_numpy(seeded.tokens_of(config)).long(), use_cache=False).logits
    return out.numpy()


def main(names: list[str], folder: Path = seeded.RECORDS) -> None:
    """Write the records named, or all."""
    import torch
    import transformers

    folder.mkdir(exist_ok=True)
    for name in names or seeded.CONFIGS:
        config = seeded.CONFIGS[name]
        logits = logits_of(config)
        np.savez_compressed(folder / f"{name}.npz", tokens=seeded.tokens_of(config), logits=logits)
        record = {
            "config": config,
            "seed": seeded.SEED,
            "versions": {
                "transformers": transformers.__version__, "torch": torch.__version__, "numpy": np.__version__,
                "python": platform.python_version(),
            },
            "command": "python -m tests.reference.record_transformers",
        }  # fmt: skip
        (folder / f"{name}.json").write_text(seeded.to_json(record), encoding="utf-8")
        print(f"{name}: logits {logits.shape}, largest {abs(logits).max():.3f}", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1:])
