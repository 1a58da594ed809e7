"""A released Hugging Face config.json becomes an architecture, for the model types that are understood.

Every key of the file falls in one of three kinds. Keys of the graph are read, with the class's own default where a key
is left out (absent is not null: null has a meaning of its own, stated per key). Inert keys change neither the graph nor
a number and are listed with the reason. Anything else, and an inert key with a value that is not inert, is rejected by
name. Defaults and layer forms are those of transformers 4.57: `models/<type>/configuration_<type>.py` and
`modeling_<type>.py`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from jaxcost.catalog.inert import INERT, is_inert
from jaxcost.contracts.architecture import Architecture, absences
from jaxcost.contracts.errors import Problem, RejectedError, reject
from jaxcost.contracts.record import LARGEST_SIZE, as_table

# config name (transformers.activations.ACT2FN) -> the record's name
ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}
_ABSENT = object()


class _Keys:
    """Reads typed keys of one config, collects every problem, and knows which keys were read."""

    def __init__(self, data: Mapping[str, Any], where: str):
        self.data, self.where = data, where
        self.read: set[str] = set()
        self.problems: list[Problem] = []

    def problem(self, key: str, value: object, rule: str, remedy: str) -> None:
        self.problems.append(Problem(f"{self.where}.{key}" if self.where else key, value, rule, remedy))

    def _get(self, key: str, default: object) -> Any:
        self.read.add(key)
        return self.data.get(key, default)

    def size(self, key: str, default: int, null: int | None = None) -> int:
        """A positive exact integer; `null` is what a null means, None where null is not allowed."""
        value = self._get(key, default)
        if value is None and null is not None:
            return null
        if isinstance(value, bool) or not isinstance(value, int):
            self.problem(
                key,
                value,
                "must be an exact integer",
                "write a whole number without a decimal point, quotes or true/false",
            )
            return 1
        if not 0 < value <= LARGEST_SIZE:
            self.problem(key, value, f"must lie between 1 and {LARGEST_SIZE}", "copy the size from the released config")
            return 1
        return value

    def number(self, key: str, default: float, low: float = 0.0, high: float = math.inf) -> float:
        """A finite number in [low, high)."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.problem(key, value, "must be a number", "write a number without quotes")
        elif not low <= value < high or (isinstance(value, int) and value > 10**300):
            self.problem(key, value, f"must lie in [{low}, {high})", "copy it from the released config")
        else:
            return float(value)
        return low

    def flag(self, key: str, default: bool) -> bool:
        """A boolean."""
        value = self._get(key, default)
        if isinstance(value, bool):
            return value
        self.problem(key, value, "must be true or false", "write true or false")
        return default

    def activation(self, key: str, default: str) -> str:
        """An activation by its transformers name."""
        value = self._get(key, default)
        if isinstance(value, str) and value in ACTIVATIONS:
            return ACTIVATIONS[value]
        self.problem(
            key, value, "not an activation that is understood", f"the activations are {', '.join(ACTIVATIONS)}"
        )
        return "silu"

    def only(self, key: str, allowed: tuple[object, ...], why: str) -> None:
        """A key of the graph of which only some values are understood."""
        value = self._get(key, _ABSENT)
        if value is not _ABSENT and not any(type(value) is type(item) and value == item for item in allowed):
            shown = " or ".join("null" if item is None else str(item).lower() for item in allowed)
            self.problem(key, value, why, f"only {shown} is understood here")


def from_huggingface(config: object, name: str = "unnamed", source: str = "", where: str = "") -> Architecture:
    """Return the architecture of a parsed config.json of model type llama, qwen2 or gpt2.

    Args:
        config: the parsed file, a mapping with `model_type`.
        name: the architecture's name; outside the digest.
        source: where the config came from; outside the digest.
        where: a prefix for the paths in messages, usually the file's name.

    Raises:
        RejectedError: for another model type, for each key that is not understood, and for each bad value.
    """
    data = as_table(config, where or "config")
    try:
        json.dumps(data)
    except (TypeError, ValueError, RecursionError) as error:
        raise reject(
            where or "config", type(error).__name__, "not plain JSON data", "pass a parsed config.json"
        ) from None
    kind = data.get("model_type", _ABSENT)
    if not isinstance(kind, str) or kind not in _IMPORTERS:
        rule = "missing" if kind is _ABSENT else "not a model type that can be imported"
        remedy = f"the types are {', '.join(_IMPORTERS)}; for another model write a manifest"
        raise reject(f"{where}.model_type".lstrip("."), None if kind is _ABSENT else kind, rule, remedy)
    keys = _Keys(data, where)
    keys.read.add("model_type")
    record, known_class = _IMPORTERS[kind](keys)
    keys.only(
        "architectures", (None, [known_class]), "another class has other parameters (a different head, for example)"
    )
    for key in data:
        if key in keys.read:
            continue
        if key not in INERT:
            keys.problem(
                str(key),
                data[key],
                f"a key that model type {kind} does not define",
                "remove it if it has no effect, or write a manifest",
            )
        elif not is_inert(key, data[key]):
            keys.problem(
                key,
                data[key],
                f"changes the graph ({INERT[key].reason})",
                "such a model cannot be imported yet; write a manifest",
            )
    if keys.problems:
        raise RejectedError(keys.problems)
    return Architecture.from_data({"name": name, "family": kind, "source": source, **record}, where)


def _heads(keys: _Keys, heads: int, kv_heads: int, head_key: str, kv_key: str) -> None:
    if heads % kv_heads:
        keys.problem(kv_key, kv_heads, f"must divide {head_key} ({heads})", "use a divisor, as in the released config")


def _head_dim(keys: _Keys, hidden: int, heads: int, hidden_key: str, head_key: str) -> int:
    if hidden % heads:
        rule = f"must divide {hidden_key} ({hidden}) where head_dim is not given"
        keys.problem(head_key, heads, rule, "use a divisor, or give head_dim")
    return max(hidden // heads, 1)


def _rotary(keys: _Keys, dimensions: int) -> dict[str, Any]:
    """rope_theta with rope_scaling (transformers 4), or rope_parameters holding both (transformers 5)."""
    keys.only("partial_rotary_factor", (None, 1, 1.0), "rotates part of each head")
    theta = keys.number("rope_theta", 10000.0)
    tables = [key for key in ("rope_scaling", "rope_parameters") if keys._get(key, None) is not None]
    if len(tables) == 2:
        keys.problem(
            "rope_parameters", keys.data["rope_parameters"], "given together with rope_scaling", "keep one of the two"
        )
    scaling = None
    for key in tables:
        table = keys.data[key]
        if not isinstance(table, dict):
            keys.problem(key, table, "must be null or an object", "copy it from the released config")
            continue
        inner = _Keys(table, f"{keys.where}.{key}" if keys.where else key)
        scaling = _scaling(inner)
        if key == "rope_parameters":
            theta = inner.number("rope_theta", theta)
        for extra in table:
            if extra not in inner.read:
                inner.problem(
                    str(extra), table[extra], "not a key that is understood", "remove it, or write a manifest"
                )
        keys.problems += inner.problems
    if dimensions % 2 and not keys.problems:  # a bad size was replaced by 1
        keys.problem("head_dim", dimensions, "rotary positions turn pairs of coordinates", "use an even head_dim")
    return {"theta": theta, "dimensions": dimensions, "scaling": scaling}


def _scaling(inner: _Keys) -> dict[str, Any] | None:
    names = [key for key in ("rope_type", "type") if key in inner.data]
    inner.read.update(names)
    kinds = [inner.data[key] for key in names]
    if not kinds or any(kind != kinds[0] for kind in kinds) or kinds[0] not in ("default", "llama3"):
        rule = "not a rotary scaling that is understood"
        inner.problem(
            "rope_type", kinds[0] if kinds else None, rule, "default and llama3 are; for another write a manifest"
        )
        inner.read.update(inner.data)
        return None
    if kinds[0] == "default":
        return None
    renamed = {
        "factor": "factor",
        "low_freq_factor": "low_frequency_factor",
        "high_freq_factor": "high_frequency_factor",
    }
    for key in (*renamed, "original_max_position_embeddings"):
        if key not in inner.data:
            inner.problem(key, None, "llama3 scaling needs it", "copy it from the released config")
    scaling: dict[str, Any] = {new: inner.number(key, 1.0) for key, new in renamed.items()}
    original = inner.size("original_max_position_embeddings", 1)
    return {"kind": "llama3", **scaling, "original_positions": original}


def _layers(repeat: int, attention: dict[str, Any], mlp: dict[str, Any], norm: dict[str, Any]) -> list[dict[str, Any]]:
    layer = {"residual": "pre", "attention": attention, "mlp": mlp, "attention_norm": norm, "mlp_norm": norm}
    return [{"repeat": repeat, "layer": layer}]


def _decoder(
    keys: _Keys, defaults: Mapping[str, Any], head_dim: int | None, biases: tuple[bool, bool], mlp_bias: bool
) -> dict[str, Any]:
    """What llama and qwen2 share: RMSNorm, rotary positions, a gated MLP. `biases` are those of q, k, v and of o."""
    hidden = keys.size("hidden_size", 4096)
    heads = keys.size("num_attention_heads", 32)
    kv_heads = keys.size("num_key_value_heads", defaults["kv_heads"] or heads, null=heads)
    _heads(keys, heads, kv_heads, "num_attention_heads", "num_key_value_heads")
    head_dim = head_dim or _head_dim(keys, hidden, heads, "hidden_size", "num_attention_heads")
    norm = {"kind": "rms", "epsilon": keys.number("rms_norm_eps", 1e-6), "scale": True, "bias": False}
    if norm["epsilon"] == 0:
        keys.problem("rms_norm_eps", norm["epsilon"], "must be positive", "copy it from the released config")
    attention = {
        "query_heads": heads, "kv_heads": kv_heads, "head_dim": head_dim,
        "query_bias": biases[0], "key_bias": biases[0], "value_bias": biases[0], "output_bias": biases[1],
        "rotary": _rotary(keys, head_dim), "decoupled_width": heads * head_dim != hidden,
    }  # fmt: skip
    mlp = {
        "form": "gated",
        "width": keys.size("intermediate_size", defaults["width"]),
        "activation": keys.activation("hidden_act", "silu"),
        "bias": mlp_bias,
    }
    present = ["rotary_positions"] + ["attention_bias"] * any(biases) + ["mlp_bias"] * mlp_bias
    return {
        "hidden_size": hidden,
        "vocabulary_size": keys.size("vocab_size", defaults["vocabulary"]),
        "groups": _layers(keys.size("num_hidden_layers", 32), attention, mlp, norm),
        "final_norm": norm,
        "tied": keys.flag("tie_word_embeddings", False),
        "dropout": {"embedding": 0.0, "attention": keys.number("attention_dropout", 0.0, high=1.0), "residual": 0.0},
        "absent": list(absences(present)),
    }


def _llama(keys: _Keys) -> tuple[dict[str, Any], str]:
    bias = keys.flag("attention_bias", False)  # LlamaAttention gives it to all four projections
    head_dim = keys.size("head_dim", 0, null=0) if keys.data.get("head_dim") is not None else None
    keys.read.add("head_dim")
    keys.only("pretraining_tp", (1,), "splits the projections into slices")
    record = _decoder(
        keys,
        {"kv_heads": None, "width": 11008, "vocabulary": 32000},
        head_dim,
        (bias, bias),
        keys.flag("mlp_bias", False),
    )
    return record, "LlamaForCausalLM"


def _qwen2(keys: _Keys) -> tuple[dict[str, Any], str]:
    # Qwen2Attention: q, k and v have a bias, o has none, and no key says so. head_dim is read where it is given.
    head_dim = keys.size("head_dim", 1) if "head_dim" in keys.data else None
    keys.only("use_sliding_window", (False,), "layers would see a window of the tokens")
    keys.only("use_mrope", (False,), "multimodal rotary positions")
    _layer_types(keys)
    keys.read.update(("sliding_window", "max_window_layers"))  # without effect while use_sliding_window is false
    record = _decoder(keys, {"kv_heads": 32, "width": 22016, "vocabulary": 151936}, head_dim, (True, False), False)
    return record, "Qwen2ForCausalLM"


def _layer_types(keys: _Keys) -> None:
    types = keys._get("layer_types", None)
    if types is None:
        return
    layers = keys.size("num_hidden_layers", 32)
    if not isinstance(types, list) or any(kind != "full_attention" for kind in types):
        keys.problem(
            "layer_types", types, "only full_attention layers are understood", "write a manifest for other kinds"
        )
    elif len(types) != layers:
        keys.problem("layer_types", len(types), f"one kind per layer ({layers})", "copy both from the released config")


_GPT2_ALIASES = {
    "hidden_size": "n_embd",
    "max_position_embeddings": "n_positions",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
}


def _gpt2(keys: _Keys) -> tuple[dict[str, Any], str]:
    for alias, key in _GPT2_ALIASES.items():
        if alias in keys.data:
            keys.read.add(alias)
            if key in keys.data and keys.data[key] != keys.data[alias]:
                keys.problem(
                    alias, keys.data[alias], f"another name of {key}, which has another value", "keep one of the two"
                )
    renamed = {_GPT2_ALIASES.get(key, key): value for key, value in keys.data.items() if key in _GPT2_ALIASES}
    keys.data = {**keys.data, **renamed}
    hidden, heads = keys.size("n_embd", 768), keys.size("n_head", 12)
    head_dim = _head_dim(keys, hidden, heads, "n_embd", "n_head")
    for key, allowed in (
        ("scale_attn_weights", True),
        ("scale_attn_by_inverse_layer_idx", False),
        ("reorder_and_upcast_attn", False),
    ):
        keys.only(key, (allowed,), "changes how scores are computed")
    norm = {"kind": "layer", "epsilon": keys.number("layer_norm_epsilon", 1e-5), "scale": True, "bias": True}
    if norm["epsilon"] == 0:
        keys.problem("layer_norm_epsilon", norm["epsilon"], "must be positive", "copy it from the released config")
    attention = {
        "query_heads": heads, "kv_heads": heads, "head_dim": head_dim, "query_bias": True, "key_bias": True,
        "value_bias": True, "output_bias": True, "rotary": None, "decoupled_width": False,
    }  # fmt: skip
    mlp = {
        "form": "classic",
        "width": keys.size("n_inner", 4 * hidden, null=4 * hidden),
        "activation": keys.activation("activation_function", "gelu_new"),
        "bias": True,
    }
    rates = {"embedding": "embd_pdrop", "attention": "attn_pdrop", "residual": "resid_pdrop"}
    record = {
        "hidden_size": hidden,
        "vocabulary_size": keys.size("vocab_size", 50257),
        "groups": _layers(keys.size("n_layer", 12), attention, mlp, norm),
        "final_norm": norm,
        "tied": keys.flag("tie_word_embeddings", True),
        "dropout": {name: keys.number(key, 0.1, high=1.0) for name, key in rates.items()},
        "learned_positions": {"rows": keys.size("n_positions", 1024)},
        "absent": list(absences(("attention_bias", "mlp_bias", "norm_bias", "learned_positions"))),
    }
    return record, "GPT2LMHeadModel"


_IMPORTERS: Mapping[str, Callable[[_Keys], tuple[dict[str, Any], str]]] = {
    "llama": _llama,
    "qwen2": _qwen2,
    "gpt2": _gpt2,
}
