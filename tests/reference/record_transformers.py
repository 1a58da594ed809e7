"""Record the logits of Hugging Face transformers for the configurations in `seeded.py`.

    pip install torch transformers && python -m tests.reference.record_transformers

Writes records/<model>.npz (token ids, logits) and records/<model>.json (configuration, seed, versions). The test reads
them without torch; where torch and transformers are installed it runs `logits_of` again.
"""

from __future__ import annotations

import copy
import itertools
import platform
import sys
from pathlib import Path
from typing import Any

import numpy as np

from tests.reference import seeded

# Our path below a layer, and theirs; each pair of names stands for a weight and, where there is one, a bias.
LLAMA_NAMES = {
    ".attn_norm.scale": "input_layernorm.weight",
    ".mlp_norm.scale": "post_attention_layernorm.weight",
    **{f".mlp.{name}.weight": f"mlp.{name}_proj.weight" for name in ("gate", "up", "down")},
    **{
        f".attn.{name}_proj.{part}": f"self_attn.{name}_proj.{part}"
        for name, part in itertools.product("qkvo", ("weight", "bias"))
    },
}
GPT2_PARTS = {".attn.o_proj": "attn.c_proj", ".mlp.up": "mlp.c_fc", ".mlp.down": "mlp.c_proj"}
GPT2_NORMS = {".attn_norm": "ln_1", ".mlp_norm": "ln_2"}
GPT2_NAMES = {
    **{f"{ours}.{part}": f"{theirs}.{part}" for ours, theirs in GPT2_PARTS.items() for part in ("weight", "bias")},
    **{f"{ours}.scale": f"{theirs}.weight" for ours, theirs in GPT2_NORMS.items()},
    **{f"{ours}.bias": f"{theirs}.bias" for ours, theirs in GPT2_NORMS.items()},
}
LLAMA_OUTSIDE = {
    ".embed.tokens.weight": "model.embed_tokens.weight",
    ".final_norm.scale": "model.norm.weight",
    ".head.weight": "lm_head.weight",
}
GPT2_OUTSIDE = {
    ".embed.tokens.weight": "transformer.wte.weight",
    ".embed.positions.weight": "transformer.wpe.weight",
    ".final_norm.scale": "transformer.ln_f.weight",
    ".final_norm.bias": "transformer.ln_f.bias",
}


def state_dict_of(kind: str, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Rename and reshape the network's arrays for transformers; a model that ties the head gets no head."""
    state: dict[str, np.ndarray] = {}
    packed: dict[str, list[np.ndarray]] = {}
    for path, array in arrays.items():
        if path.startswith(".groups[0]["):
            layer, rest = path.removeprefix(".groups[0][").split("]", 1)
            flat = _as_matrix(rest, array)
            if kind == "gpt2":
                prefix = f"transformer.h.{layer}."
                if rest.startswith((".attn.q_proj", ".attn.k_proj", ".attn.v_proj")):
                    # One Conv1D [in, 3 out] holds q, k and v, in this order.
                    packed.setdefault(f"{prefix}attn.c_attn.{rest.rsplit('.', 1)[1]}", []).append(flat)
                else:
                    state[prefix + GPT2_NAMES[rest]] = flat
            else:
                # Linear stores [out, in].
                state[f"model.layers.{layer}.{LLAMA_NAMES[rest]}"] = flat.T if rest.endswith("weight") else flat
        else:
            names = GPT2_OUTSIDE if kind == "gpt2" else LLAMA_OUTSIDE
            state[names[path]] = array.T if path == ".head.weight" else array
    return state | {name: np.concatenate(parts, axis=-1) for name, parts in packed.items()}


def _as_matrix(rest: str, array: np.ndarray) -> np.ndarray:
    """Flatten head axes: [d, h, e] to [d, h e], [h, e, d] to [h e, d], [h, e] to [h e]."""
    if ".attn." not in rest:
        return array
    if rest.endswith("bias"):
        return array.reshape(-1)
    return array.reshape(-1, array.shape[-1]) if "o_proj" in rest else array.reshape(array.shape[0], -1)


def logits_of(config: dict[str, Any]) -> np.ndarray:
    """Run transformers on the seeded weights and return its logits, fp32 `[batch, rows, vocabulary]`."""
    import torch
    import transformers

    classes = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "gpt2": "GPT2LMHeadModel"}
    theirs = copy.deepcopy(config)  # transformers writes into nested tables
    del theirs["model_type"]
    made = transformers.AutoConfig.for_model(config["model_type"], **theirs)
    made._attn_implementation = "eager"
    model = getattr(transformers, classes[config["model_type"]])(made).to(torch.float32).eval()
    state = state_dict_of(config["model_type"], seeded.weights_of(seeded.case_of(config)))
    missing, unexpected = model.load_state_dict({n: torch.from_numpy(a.copy()) for n, a in state.items()}, strict=False)
    tied = {"lm_head.weight"} if config["tie_word_embeddings"] else set()
    left = {name for name in missing if not name.endswith((".attn.bias", ".attn.masked_bias"))} - tied
    if left or unexpected:
        raise ValueError(f"weights do not match the model: missing {sorted(left)}, unexpected {sorted(unexpected)}")
    model.tie_weights()
    with torch.no_grad():
        out = model(torch.from_numpy(seeded.tokens_of(config)).long(), use_cache=False).logits
    return out.numpy()


def main(folder: Path = seeded.RECORDS) -> None:
    """Write all records."""
    import torch
    import transformers

    folder.mkdir(exist_ok=True)
    for name, config in seeded.CONFIGS.items():
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
    main()
