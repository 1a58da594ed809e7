"""Architectures of the dense family for the tests of the prediction, and cases of them."""

from __future__ import annotations

import random
from typing import Any

from jaxcost.contracts.architecture import RESIDUAL_NORMS, Architecture, absences
from jaxcost.contracts.case import Case, build_case

NORM_NAMES = ("attention_norm", "mlp_norm", "attention_post_norm", "mlp_post_norm")


def a_norm(kind: str = "rms", **changes: Any) -> dict[str, Any]:
    return {"kind": kind, "epsilon": 1e-5, "scale": True, "bias": kind == "layer", **changes}


def dense(
    *,
    L: int = 2,
    d: int = 8,
    h: int = 4,
    k: int = 2,
    e: int = 2,
    f: int = 12,
    V: int = 16,
    tied: bool = False,
    form: str = "gated",
    activation: str = "silu",
    residual: str = "pre",
    norm: dict[str, Any] | None = None,
    shared: bool = False,
    qkv_bias: bool = False,
    output_bias: bool = False,
    mlp_bias: bool = False,
    rotary: int = 0,
    windows: tuple[int, ...] = (),
    fused: bool = False,
    final: bool = True,
    positions: tuple[int, int] | None = None,
    dropout: float = 0.0,
    attention: dict[str, Any] | None = None,
    **outside: Any,
) -> Architecture:
    """Return an architecture of one group of layers.

    `shared` leaves the second norm of parallel branches out; `rotary` gives the dimensions turned; `positions` rows and
    offset; `attention` and `outside` are fields of the records of those names.
    """
    one = norm or a_norm()
    required, allowed = RESIDUAL_NORMS[residual]
    names = required if shared else required + allowed
    storage = "fused" if fused else "separate"
    layer = {
        "residual": residual,
        "attention": {
            "query_heads": h,
            "kv_heads": k,
            "head_dim": e,
            "output_bias": output_bias,
            **{f"{name}_bias": qkv_bias for name in ("query", "key", "value")},
            "rotary": {"theta": 10000.0, "dimensions": rotary} if rotary else None,
            "decoupled_width": h * e != d,
            "storage": storage,
            **(attention or {}),
        },
        "mlp": {
            "form": form,
            "width": f,
            "activation": activation,
            "bias": mlp_bias,
            "storage": storage if form == "gated" else "separate",
        },
        **dict.fromkeys(names, one),
    }
    qk = layer["attention"].get("qk_norm")
    there = {
        "attention_bias": qkv_bias or output_bias,
        "mlp_bias": mlp_bias,
        "norm_bias": bool((names and one["bias"]) or (qk and qk["norm"]["bias"]))
        or bool(final and one["bias"])
        or bool(outside.get("embedding_norm") and outside["embedding_norm"]["bias"]),
        "learned_positions": positions is not None,
        "rotary_positions": bool(layer["attention"]["rotary"]),
        "qk_norm": bool(qk),
        "embedding_norm": bool(outside.get("embedding_norm")),
        "embedding_projection": bool(outside.get("embedding_width")),
    }
    return Architecture.from_data(
        {
            "hidden_size": d,
            "vocabulary_size": V,
            "groups": [{"repeat": L, "layer": layer, "windows": list(windows)}],
            "final_norm": one if final else None,
            "tied": tied,
            "dropout": {"embedding": dropout, "attention": dropout, "residual": dropout},
            "absent": list(absences(name for name, present in there.items() if present)),
            "learned_positions": {"rows": positions[0], "offset": positions[1]} if positions else None,
            **outside,
        }
    )


def case_of(architecture: Architecture, phase: str, **options: Any) -> Case:
    """Return a case of options."""
    return build_case(architecture, {"phase": phase, **options})


def draw_family(seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return random keywords of `dense`, and random sizes of a training case."""
    rng = random.Random(seed)
    k, g, e = rng.randint(1, 3), rng.randint(1, 3), 2 * rng.randint(1, 4)
    kind = rng.choice(["rms", "layer"])
    norm = a_norm(kind, scale=(scale := rng.random() < 0.8), bias=scale and kind == "layer" and rng.random() < 0.7)
    norm["unit_offset"] = scale and rng.random() < 0.3
    d = rng.choice([k * g * e, 2 * rng.randint(3, 9)])
    sizes: dict[str, Any] = {
        "L": rng.randint(1, 5),
        "d": d,
        "h": k * g,
        "k": k,
        "e": e,
        "f": rng.randint(3, 20),
        "V": rng.randint(5, 40),
        "tied": rng.random() < 0.5,
        "form": rng.choice(["gated", "classic"]),
        "activation": rng.choice(["silu", "gelu", "gelu_tanh", "relu"]),
        "residual": rng.choice(list(RESIDUAL_NORMS)),
        "norm": norm,
        "shared": rng.random() < 0.5,
        "qkv_bias": rng.random() < 0.5,
        "output_bias": rng.random() < 0.5,
        "mlp_bias": rng.random() < 0.5,
        "rotary": rng.choice([0, 2, e]),
        "windows": rng.choice([(), (3,), (3, 0), (0, 2, 5)]),
        "fused": rng.random() < 0.5,
        "final": rng.random() < 0.7,
        "positions": rng.choice([None, (64, 0), (66, 2)]),
        "dropout": rng.choice([0.0, 0.1]),
        "attention": {
            "qk_norm": rng.choice([None, {"over": "head", "norm": norm}, {"over": "width", "norm": norm}]),
            "alibi": rng.random() < 0.3,
            "scale": rng.choice([None, 0.25]),
            "score_softcap": rng.choice([None, 50.0]),
        },
        "embedding_width": rng.choice([None, d + 2]),
        "embedding_norm": rng.choice([None, norm]),
        "embedding_scale": rng.choice([None, 3.0]),
        "logit_softcap": rng.choice([None, 30.0]),
    }
    if sizes["positions"] is None:
        sizes["sinusoidal_positions"] = rng.random() < 0.5
    options = {"batch": rng.randint(1, 5), "seq": rng.randint(2, 17), "dropout": rng.random() < 0.5}
    return sizes, options
