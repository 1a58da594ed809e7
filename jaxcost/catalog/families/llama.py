"""RMS norms, rotary positions and a gated MLP: Llama and the types that change one or two things about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jaxcost.catalog.keys import COPY, Keys
from jaxcost.catalog.parts import (
    Data,
    biases,
    divided,
    dropout,
    group,
    heads,
    layer_kinds,
    layer_norm,
    optional_window,
    pre_norm,
    record,
    rms_norm,
    rotary,
    windows,
)


@dataclass(frozen=True)
class Defaults:
    """What the configuration class takes where a key is left out; `kv_heads` None is as many as query heads."""

    vocabulary: int
    width: int
    hidden: int = 4096
    layers: int = 32
    heads: int = 32
    kv_heads: int | None = None
    epsilon: float = 1e-6
    theta: float = 10000.0
    tied: bool = False
    attention_dropout: float = 0.0


@dataclass
class Parts:
    """The pieces of a stack that every type of this module has."""

    keys: Keys
    hidden: int
    vocabulary: int
    layers: int
    attention: Data
    mlp: Data
    norm: Data
    tied: bool
    rates: Data

    def finish(self, cycle: Sequence[int] = (), layer: Data | None = None, groups: list[Data] | None = None) -> Data:
        """The record: one group of pre-norm layers, unless `layer` or `groups` says otherwise."""
        if groups is None:
            layer = layer or pre_norm(self.attention, self.mlp, self.norm)
            groups = [group(self.layers, layer, cycle)]
        return record(self.hidden, self.vocabulary, groups, self.norm, self.tied, dropout=self.rates)


def parts(
    keys: Keys,
    default: Defaults,
    bias: Data,
    head_dim: int | None = None,
    mlp_bias: bool = False,
    norm: Data | None = None,
    fraction: tuple[str, float] | None = None,
    residual: float = 0.0,
) -> Parts:
    """Read what the types share; `head_dim` None is hidden / heads, `norm` None is an RMS norm with rms_norm_eps."""
    hidden = keys.size("hidden_size", default.hidden)
    query, kv = heads(keys, "num_attention_heads", default.heads, "num_key_value_heads", default.kv_heads)
    head_dim = head_dim or divided(keys, hidden, query, "hidden_size", "num_attention_heads")
    attention = {
        "query_heads": query,
        "kv_heads": kv,
        "head_dim": head_dim,
        **bias,
        "rotary": rotary(keys, head_dim, ("rope_theta", default.theta), fraction),
    }
    mlp = {
        "form": "gated",
        "width": keys.size("intermediate_size", default.width),
        "activation": keys.activation("hidden_act", "silu"),
        "bias": mlp_bias,
    }
    return Parts(
        keys,
        hidden,
        keys.size("vocab_size", default.vocabulary),
        keys.size("num_hidden_layers", default.layers),
        attention,
        mlp,
        norm or rms_norm(keys, "rms_norm_eps", default.epsilon),
        keys.flag("tie_word_embeddings", default.tied),
        dropout(attention=keys.rate("attention_dropout", default.attention_dropout), residual=residual),
    )


def optional_head_dim(keys: Keys) -> int | None:
    """head_dim where it is given; absent and null are hidden / heads."""
    keys.read.add("head_dim")
    return keys.size("head_dim") if keys.given("head_dim") else None


def present_head_dim(keys: Keys) -> int | None:
    """head_dim where the key is there. The class has no such field, so a null would break it."""
    keys.read.add("head_dim")
    return keys.size("head_dim") if "head_dim" in keys.data else None


def llama(keys: Keys) -> Data:
    """LlamaAttention gives attention_bias to all four projections."""
    bias = biases(keys.flag("attention_bias", False))
    mlp_bias = keys.flag("mlp_bias", False)
    return parts(keys, Defaults(32000, 11008), bias, optional_head_dim(keys), mlp_bias).finish()


def mistral(keys: Keys) -> Data:
    """Every layer sees the same window: 4096 where the key is left out, none where it is null."""
    found = parts(keys, Defaults(32000, 14336, kv_heads=8), biases(False), optional_head_dim(keys))
    window = optional_window(keys, 4096)
    return found.finish(cycle=[window] if window else [])


def qwen2(keys: Keys) -> Data:
    """Qwen2Attention: q, k and v have a bias, o has none, and no key says so."""
    keys.only("use_mrope", (False,), "multimodal rotary positions")
    bias = biases(True, output=False)
    found = parts(keys, Defaults(151936, 22016, kv_heads=32), bias, present_head_dim(keys))
    return found.finish(cycle=_late_windows(keys, found.layers))


def qwen3(keys: Keys) -> Data:
    """Qwen2 with heads of 128 by default, norms of q and k over each head, and a bias only where the key says so."""
    bias = biases(keys.flag("attention_bias", False))
    found = parts(keys, Defaults(151936, 22016, kv_heads=32), bias, keys.size("head_dim", 128))
    found.attention["qk_norm"] = {"over": "head", "norm": found.norm}
    return found.finish(cycle=_late_windows(keys, found.layers))


def _late_windows(keys: Keys, layers: int) -> list[int]:
    """The window acts only with use_sliding_window: from layer max_window_layers on, or where layer_types say."""
    used = keys.flag("use_sliding_window", False)
    first = keys.count("max_window_layers", 28)
    if not used:
        keys.read.add("sliding_window")
        if "sliding_window_size" in keys.data:
            rule = "a window while use_sliding_window is false"
            keys.problem("sliding_window_size", keys.get("sliding_window_size"), rule, "remove one of the two")
        kinds = layer_kinds(keys, layers, [False] * layers)
        if any(kinds):
            rule = "names windowed layers while use_sliding_window is false"
            keys.problem("layer_types", "sliding_attention", rule, "correct one of the two")
        return []
    window = optional_window(keys, 4096)
    return windows(layer_kinds(keys, layers, [layer >= first for layer in range(layers)]), window)


def phi3(keys: Keys) -> Data:
    """Phi3: q, k, v in one array and gate, up in another; part of each head may be rotated; a window on every layer."""
    keys.only("attention_bias", (False,), "Phi3Attention has no biases")
    keys.only("embd_pdrop", (0, 0.0), "the class does not apply it any more, older code did")
    found = parts(
        keys,
        Defaults(32064, 8192, hidden=3072, epsilon=1e-5),
        biases(False),
        present_head_dim(keys),
        fraction=("partial_rotary_factor", 1.0),
        residual=keys.rate("resid_pdrop", 0.0),
    )
    found.attention["storage"] = found.mlp["storage"] = "fused"
    window = optional_window(keys, None)
    return found.finish(cycle=[window] if window else [])


def olmo(keys: Keys) -> Data:
    """OLMo: layer norms without scale and bias, epsilon 1e-5 in the code."""
    keys.only("clip_qkv", (None,), "clamps queries, keys and values")
    norm = layer_norm(keys, None, 1e-5, scale=False, bias=False)
    return parts(keys, Defaults(50304, 11008), biases(keys.flag("attention_bias", False)), norm=norm).finish()


def olmo2(keys: Keys) -> Data:
    """OLMo-2: norms after each branch, inside the residual, and norms of q and k over the packed width."""
    found = _olmo2(keys)
    return found.finish(layer=_branch_norms(found))


def olmo3(keys: Keys) -> Data:
    """OLMo-3 is OLMo-2 with windows on three layers of four, or where layer_types say.

    Rotary scaling acts on full layers alone, so none is read. transformers 5 writes one table for each kind of layer;
    they must be equal. Left out, rope_theta is 10000 in 4.57.6 and 500000 in 5.24, so it must be given.
    """
    if keys.given("rope_scaling"):
        rule = "only full layers would be scaled, windowed ones would not"
        keys.problem("rope_scaling", keys.data["rope_scaling"], rule, "only null is read")
    table = keys.data.get("rope_parameters")
    if isinstance(table, dict) and {"full_attention", "sliding_attention"} == set(table):
        full, windowed = table["full_attention"], table["sliding_attention"]
        if isinstance(full, dict) and full == windowed:
            keys.data["rope_parameters"] = full
    if not keys.given("rope_parameters") and "rope_theta" not in keys.data:
        keys.problem("rope_theta", None, "versions of the class differ about its default", COPY)
    found = _olmo2(keys)
    kinds = layer_kinds(keys, found.layers, [(layer + 1) % 4 != 0 for layer in range(found.layers)])
    return found.finish(windows(kinds, optional_window(keys, 4096)), _branch_norms(found))


def _olmo2(keys: Keys) -> Parts:
    bias = biases(keys.flag("attention_bias", False))
    found = parts(keys, Defaults(50304, 11008, epsilon=1e-5), bias, present_head_dim(keys))
    found.attention["qk_norm"] = {"over": "width", "norm": found.norm}
    return found


def _branch_norms(found: Parts) -> Data:
    return {
        "residual": "post_branch",
        "attention": found.attention,
        "mlp": found.mlp,
        "attention_post_norm": found.norm,
        "mlp_post_norm": found.norm,
    }


def smollm3(keys: Keys) -> Data:
    """SmolLM3: Llama without rotary positions on every fourth layer, or where no_rope_layers has a 0; tied."""
    keys.only("use_sliding_window", (False,), "windows on the layers without rotary positions")
    keys.only("sliding_window", (None,), "layers would see a window of the tokens")
    default = Defaults(128256, 11008, hidden=2048, layers=36, heads=16, kv_heads=4, theta=2000000.0, tied=True)
    bias = biases(keys.flag("attention_bias", False))
    found = parts(keys, default, bias, present_head_dim(keys), keys.flag("mlp_bias", False))
    interval = keys.size("no_rope_layer_interval", 4)
    if any(layer_kinds(keys, found.layers, [False] * found.layers)):
        keys.problem("layer_types", "sliding_attention", "windows are not read for this type", "write a manifest")
    turned = [(layer + 1) % interval != 0 for layer in range(found.layers)]
    listed = keys.get("no_rope_layers")
    if listed is not None:
        if not isinstance(listed, list) or any(type(flag) is not int or flag not in (0, 1) for flag in listed):
            keys.problem("no_rope_layers", listed, "must be a list of 0 and 1", COPY)
        elif len(listed) != found.layers:
            rule = f"one flag for each layer ({found.layers})"
            keys.problem("no_rope_layers", len(listed), rule, "copy both from the released config")
        else:
            turned = [bool(flag) for flag in listed]
    runs: list[list[bool]] = []
    for flag in turned:
        if runs and runs[-1][0] == flag:
            runs[-1].append(flag)
        else:
            runs.append([flag])
    groups = []
    for run in runs:
        attention = {**found.attention, **({} if run[0] else {"rotary": None})}
        groups.append(group(len(run), pre_norm(attention, found.mlp, found.norm)))
    return found.finish(groups=groups)


def seed_oss(keys: Keys) -> Data:
    """Seed-OSS: heads of 128, biases on q, k and v, another flag for o, dropout on the attention branch alone."""
    keys.only("residual_dropout", (0, 0.0), "dropout on the attention branch alone")
    if "residual_dropout" not in keys.data:
        keys.problem("residual_dropout", None, "left out it is 0.1, on the attention branch alone", "only 0.0 is read")
    bias = biases(keys.flag("attention_bias", True), output=keys.flag("attention_out_bias", False))
    default = Defaults(155136, 27648, layers=64, heads=80, kv_heads=8, attention_dropout=0.1)
    null = optional_head_dim(keys) if "head_dim" in keys.data else 128
    return parts(keys, default, bias, null, keys.flag("mlp_bias", False)).finish()
