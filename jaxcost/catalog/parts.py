"""Parts that many families share: norms, rotary positions, windows by layer, and the record they make.

A family's reader returns the plain data of an `Architecture`. `record` fills in what follows from the parts: which
optional branches are absent, and whether the width of the heads is decoupled from the hidden size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jaxcost.catalog.keys import COPY, Keys
from jaxcost.contracts.architecture import absences

Data = dict[str, Any]


def rms_norm(keys: Keys, key: str, default: float, unit_offset: bool = False) -> Data:
    """A root mean square norm with a learned scale; `key` holds its epsilon."""
    norm: Data = {"kind": "rms", "epsilon": keys.positive(key, default), "scale": True, "bias": False}
    return {**norm, "unit_offset": True} if unit_offset else norm


def layer_norm(keys: Keys, key: str | None, default: float, scale: bool = True, bias: bool = True) -> Data:
    """A layer norm; `key` holds its epsilon, None where the class fixes it."""
    epsilon = default if key is None else keys.positive(key, default)
    return {"kind": "layer", "epsilon": epsilon, "scale": scale, "bias": bias}


def heads(keys: Keys, head_key: str, default: int, kv_key: str, kv_default: int | None) -> tuple[int, int]:
    """Query heads and K/V heads; a null, or a missing default, gives each query head its own."""
    query = keys.size(head_key, default)
    kv = keys.size(kv_key, kv_default or query, null=query)
    if query % kv and keys.sound(head_key, kv_key):
        keys.problem(kv_key, kv, f"must divide {head_key} ({query})", "use a divisor, as in the released config")
    return query, kv


def divided(keys: Keys, hidden: int, count: int, hidden_key: str, head_key: str) -> int:
    """The width of a head, hidden / heads, which must be exact."""
    if hidden % count and keys.sound(hidden_key, head_key):
        rule = f"must divide {hidden_key} ({hidden}) where head_dim is not given"
        keys.problem(head_key, count, rule, "use a divisor, or give head_dim")
    return max(hidden // count, 1)


def rotary(
    keys: Keys,
    head_dim: int,
    theta: tuple[str, float] = ("rope_theta", 10000.0),
    fraction: tuple[str, float] | None = None,
    interleaved: bool = False,
) -> Data:
    """Rotary positions from rope_theta and rope_scaling (transformers 4) or rope_parameters (transformers 5).

    Args:
        head_dim: width of a head.
        theta: the key of the base and its default.
        fraction: the key of the rotated fraction and its default; None where the class rotates whole heads.
        interleaved: whether neighbouring coordinates turn together.
    """
    base = keys.positive(*theta)
    share = _share(keys, fraction) if fraction else 1.0
    if fraction is None:
        keys.only("partial_rotary_factor", (None, 1, 1.0), "rotates part of each head")
    names = [key for key in ("rope_scaling", "rope_parameters") if keys.given(key)]
    keys.read.update(("rope_scaling", "rope_parameters"))
    if len(names) == 2:
        value = keys.data["rope_parameters"]
        keys.problem("rope_parameters", value, "given together with rope_scaling", "keep one of the two")
    scaling = None
    for key in names:
        inner = keys.table(key)
        if inner is None:
            continue
        scaling = _scaling(inner)
        if key == "rope_parameters":
            base = inner.positive("rope_theta", base)
            if fraction:
                share = _share(inner, ("partial_rotary_factor", share))
            else:
                inner.only("partial_rotary_factor", (None, 1, 1.0), "rotates part of each head")
        keys.absorb(inner)
    dimensions = int(head_dim * share)
    if (dimensions % 2 or not dimensions) and not keys.problems:  # a bad size was replaced by 1
        rule = f"rotary positions turn pairs of coordinates, and {dimensions} of {head_dim} are rotated"
        keys.problem(fraction[0] if fraction and share < 1 else "head_dim", dimensions, rule, "use an even number")
    found: Data = {"theta": base, "dimensions": dimensions, "scaling": scaling}
    return {**found, "interleaved": True} if interleaved else found


def _share(keys: Keys, fraction: tuple[str, float]) -> float:
    share = keys.positive(*fraction)
    if share > 1:
        keys.problem(fraction[0], share, "a fraction of a head lies in (0, 1]", COPY)
    return min(share, 1.0)


def _scaling(inner: Keys) -> Data | None:
    names = [key for key in ("rope_type", "type") if key in inner.data]
    inner.read.update(names)
    kinds = [inner.data[key] for key in names]
    if not kinds or any(kind != kinds[0] for kind in kinds) or kinds[0] not in ("default", "llama3"):
        rule = "not a rotary scaling that is understood"
        remedy = "default and llama3 are; for another write a manifest"
        inner.problem("rope_type", kinds[0] if kinds else None, rule, remedy)
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
            inner.problem(key, None, "llama3 scaling needs it", COPY)
    scaling: Data = {new: inner.number(key, 1.0) for key, new in renamed.items()}
    original = inner.size("original_max_position_embeddings", 1)
    return {"kind": "llama3", **scaling, "original_positions": original}


def layer_kinds(keys: Keys, layers: int, default: Sequence[bool]) -> list[bool]:
    """For each layer whether it sees a window only; `layer_types` names the kinds, null and absent mean `default`."""
    types = keys.get("layer_types")
    if types is None:
        return list(default)
    known = {"full_attention": False, "sliding_attention": True}
    if not isinstance(types, list) or any(not isinstance(kind, str) or kind not in known for kind in types):
        names = " and ".join(known)
        keys.problem("layer_types", types, f"must be a list; {names} are understood", "write a manifest for others")
        return list(default)
    if len(types) != layers:
        rule = f"one kind for each layer ({layers}), and {len(types)} are given"
        keys.problem("layer_types", len(types), rule, "copy both from the released config")
        return list(default)
    return [known[kind] for kind in types]


def windows(kinds: Sequence[bool], window: int | None) -> list[int]:
    """The shortest cycle of windows that gives these layers, 0 for full attention; empty where no layer has one."""
    if not window or not any(kinds):
        return []
    each = [window if sliding else 0 for sliding in kinds]
    for period in range(1, len(each) + 1):
        if all(value == each[index % period] for index, value in enumerate(each)):
            return each[:period]
    return each


def optional_window(keys: Keys, default: int | None, key: str = "sliding_window") -> int | None:
    """A window in tokens; null is full attention. MLC-LLM writes the same number as sliding_window_size."""
    window = None if keys.data.get(key, default) is None else keys.size(key, default)
    keys.read.add(key)
    if "sliding_window_size" in keys.data:
        again = keys.get("sliding_window_size")
        if type(again) is not type(window) or again != window:
            rule = f"MLC-LLM's name of {key}, which is {window}"
            keys.problem("sliding_window_size", again, rule, "keep the released key, or make them equal")
    return window


def biases(query: bool, key: bool | None = None, value: bool | None = None, output: bool | None = None) -> Data:
    """The four bias flags of an attention; those left out follow the first."""
    given = {"key_bias": key, "value_bias": value, "output_bias": output}
    return {"query_bias": query, **{name: query if flag is None else flag for name, flag in given.items()}}


def group(repeat: int, layer: Mapping[str, Any], cycle: Sequence[int] = ()) -> Data:
    """A group of identical layers."""
    return {"repeat": repeat, "layer": dict(layer), **({"windows": list(cycle)} if cycle else {})}


def pre_norm(attention: Data, mlp: Data, norm: Data) -> Data:
    """A layer with one norm before each branch."""
    return {"residual": "pre", "attention": attention, "mlp": mlp, "attention_norm": norm, "mlp_norm": norm}


def dropout(embedding: float = 0.0, attention: float = 0.0, residual: float = 0.0) -> Data:
    """The three rates."""
    return {"embedding": embedding, "attention": attention, "residual": residual}


def record(hidden: int, vocabulary: int, groups: list[Data], final_norm: Data | None, tied: bool, **rest: Any) -> Data:
    """The data of an `Architecture`, with decoupled widths marked and absent branches named."""
    present: set[str] = set()
    norms = [final_norm, rest.get("embedding_norm")]
    for part in groups:
        layer = part["layer"]
        attention, mlp = layer["attention"], layer["mlp"]
        attention["decoupled_width"] = attention["query_heads"] * attention["head_dim"] != hidden
        norms += [layer.get(name) for name in _LAYER_NORMS]
        found = {
            "attention_bias": any(attention[f"{name}_bias"] for name in ("query", "key", "value", "output")),
            "mlp_bias": mlp["bias"],
            "rotary_positions": attention.get("rotary") is not None,
            "qk_norm": attention.get("qk_norm") is not None,
        }
        if attention.get("qk_norm"):
            norms.append(attention["qk_norm"]["norm"])
        present |= {name for name, there in found.items() if there}
    present |= {"norm_bias"} if any(norm and norm["bias"] for norm in norms) else set()
    present |= {name for name in ("learned_positions", "embedding_norm") if rest.get(name)}
    present |= {"embedding_projection"} if rest.get("embedding_width") else set()
    return {
        "hidden_size": hidden,
        "vocabulary_size": vocabulary,
        "groups": groups,
        "final_norm": final_norm,
        "tied": tied,
        "dropout": rest.pop("dropout", None) or dropout(),
        **rest,
        "absent": list(absences(present)),
    }


_LAYER_NORMS = ("attention_norm", "mlp_norm", "attention_post_norm", "mlp_post_norm")
