"""Architectures for the tests of the prediction, from a few keywords."""

from __future__ import annotations

import random
from typing import Any

from jaxcost.contracts.architecture import Architecture, absences
from jaxcost.contracts.case import Case, build_case

RUNNING = {"L": 32, "d": 4096, "h": 32, "k": 8, "e": 128, "f": 14336, "V": 128256}
TOY = {"L": 2, "d": 8, "h": 4, "k": 2, "e": 2, "f": 12, "V": 16}
CLASSIC = {
    "L": 32,
    "d": 4096,
    "h": 32,
    "k": 32,
    "e": 128,
    "f": 16384,
    "V": 512,
    "form": "classic",
    "activation": "gelu",
    "norm": "layer",
    "bias": True,
    "rotary": False,
}


def architecture(
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
    norm: str = "rms",
    bias: bool = False,
    qkv_bias: bool = False,
    rotary: bool = True,
    positions: int = 0,
    dropout: float = 0.0,
    split: tuple[int, ...] = (),
) -> Architecture:
    """Return an architecture; `split` gives the repeats of several equal groups instead of one group of L."""
    one = {"kind": norm, "epsilon": 1e-5, "scale": True, "bias": norm == "layer"}
    attention = {
        "query_heads": h,
        "kv_heads": k,
        "head_dim": e,
        "output_bias": bias,
        **{f"{name}_bias": bias or qkv_bias for name in ("query", "key", "value")},
        "rotary": {"theta": 10000.0, "dimensions": e} if rotary else None,
        "decoupled_width": h * e != d,
    }
    layer = {
        "residual": "pre",
        "attention": attention,
        "attention_norm": one,
        "mlp_norm": one,
        "mlp": {"form": form, "width": f, "activation": activation, "bias": bias},
    }
    there = {
        "attention_bias": bias or qkv_bias,
        "mlp_bias": bias,
        "norm_bias": norm == "layer",
        "learned_positions": bool(positions),
        "rotary_positions": rotary,
    }
    return Architecture.from_data(
        {
            "hidden_size": d,
            "vocabulary_size": V,
            "groups": [{"repeat": n, "layer": layer} for n in split or (L,)],
            "final_norm": one,
            "tied": tied,
            "dropout": {"embedding": dropout, "attention": dropout, "residual": dropout},
            "absent": list(absences(name for name, present in there.items() if present)),
            "learned_positions": {"rows": positions} if positions else None,
        }
    )


def case(sizes: dict[str, Any], phase: str, **options: Any) -> Case:
    """Return a case of an architecture; sizes are keywords of `architecture`."""
    return build_case(architecture(**sizes), {"phase": phase, **options})


def draw(seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return random keywords of an architecture, and random sizes of a training case."""
    rng = random.Random(seed)
    k, g, e = rng.randint(1, 3), rng.randint(1, 3), 2 * rng.randint(1, 4)
    sizes = {
        "L": rng.randint(1, 4),
        "d": rng.choice([k * g * e, 2 * rng.randint(3, 9)]),
        "h": k * g,
        "k": k,
        "e": e,
        "f": rng.randint(3, 20),
        "V": rng.randint(5, 40),
        "tied": rng.random() < 0.5,
        "form": rng.choice(["gated", "classic"]),
        "activation": rng.choice(["silu", "gelu", "gelu_tanh", "relu"]),
        "norm": rng.choice(["rms", "layer"]),
        "bias": rng.random() < 0.5,
        "rotary": rng.random() < 0.5,
        "positions": rng.choice([0, 64]),
        "dropout": rng.choice([0.0, 0.1]),
    }
    options = {"batch": rng.randint(1, 5), "seq": rng.randint(2, 17), "dropout": rng.random() < 0.5}
    return sizes, options
