"""Lifetime cost: a smaller model trained longer against a larger one, by volume served.

    device-seconds = training FLOPs / (peak x its utilisation) + requests x (prefill FLOPs / (peak x its utilisation)
                                                                          + decode FLOPs / (peak x its utilisation))

FLOPs are the ledgers' (attention included, so not 6PT alone), utilisations the caller's, one a phase. Both models are
assumed to meet the same quality target; nothing here says that they do.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from jaxcost.contracts.architecture import Architecture
from jaxcost.contracts.case import build_case
from jaxcost.planning.quantities import positive, share
from jaxcost.planning.serve.inputs import Lifetime
from jaxcost.prediction.flops import flops
from jaxcost.prediction.parameters import parameters
from jaxcost.prediction.program import program

PHASES = ("train", "prefill", "decode")
QUALITY = "both models meet the same quality target; this is assumed, not shown"


@dataclass(frozen=True)
class Side:
    """One model: its parameters, the FLOPs of its training, and those of one request by phase."""

    name: str
    parameters: int
    train: Fraction
    prefill: Fraction
    decode: Fraction

    def seconds(self, peak: Fraction, used: dict[str, Fraction]) -> tuple[Fraction, Fraction]:
        """Return device-seconds of the training, and of one request."""
        serve = self.prefill / (peak * used["prefill"]) + self.decode / (peak * used["decode"])
        return self.train / (peak * used["train"]), serve


def side(name: str, architecture: Architecture, tokens: Fraction, seq: int, prompt: int, output: int) -> Side:
    """Return a model's FLOPs; decode is affine in the cached tokens, so the sum over an output is exact."""
    step = program(build_case(architecture, {"phase": "training", "seq": seq, "pairs": "legal"}))
    total = flops(step).totals
    each = Fraction(int(total["forward"] + total["backward"]), seq)
    first, last = (
        _served(architecture, {"phase": "decode", "past": past}) for past in (prompt, prompt + max(0, output - 1))
    )
    return Side(
        name, int(parameters(step).totals["unique"]), each * tokens,
        Fraction(_served(architecture, {"phase": "prefill", "seq": prompt})), Fraction(output * (first + last), 2),
    )  # fmt: skip


def _served(architecture: Architecture, options: dict[str, Any]) -> int:
    return int(flops(program(build_case(architecture, {**options, "pairs": "legal"}))).totals["forward"])


def compare(mine: Side, other: Side, asked: Lifetime, peak: Fraction, peak_label: str, request: tuple[int, int]) -> Any:
    """Return both models' device-seconds, and the volume in tokens from which this one costs less (or more).

    Args:
        mine: the model of the plan.
        other: the model it is compared with.
        asked: utilisations, volume and price.
        peak: FLOPs a second of one device.
        peak_label: the constant in words.
        request: prompt and output tokens of one request.
    """
    used = {name: share(getattr(asked, f"{name}_utilization"), f"--{name}-utilization") for name in PHASES}
    served = sum(request)
    sides = {"model": mine, "against": other}
    found = {name: each.seconds(peak, used) for name, each in sides.items()}
    data: dict[str, Any] = {
        "peak": peak_label, "utilizations": {name: float(value) for name, value in used.items()},
        "prompt": request[0], "output": request[1], "quality": QUALITY,
        "omitted": "idle capacity, failures, evaluation, data, and devices that memory rather than arithmetic demands",
        **{name: _side(each, found[name], served) for name, each in sides.items()},
        **crossover(found["model"], found["against"], served),
    }  # fmt: skip
    if asked.volume is not None:
        tokens = positive(asked.volume, "--volume")
        data["volume_tokens"] = float(tokens)
        hours = {name: float((train + serve * tokens / served) / 3600) for name, (train, serve) in found.items()}
        data["device_hours_at_volume"] = hours
        data["cost_at_volume"] = None
        if asked.price is not None:
            data["cost_at_volume"] = {
                **{name: value * asked.price for name, value in hours.items()}, "currency": asked.currency,
                "price_per_device_hour": asked.price, "price_date": asked.price_date, "includes": asked.price_includes,
            }  # fmt: skip
    return data


def _side(each: Side, seconds: tuple[Fraction, Fraction], served: int) -> dict[str, Any]:
    return {
        "name": each.name, "parameters": each.parameters, "train_flops": float(each.train),
        "prefill_flops_per_request": float(each.prefill), "decode_flops_per_request": float(each.decode),
        "train_device_hours": float(seconds[0] / 3600), "device_seconds_per_token": float(seconds[1] / served),
    }  # fmt: skip


def crossover(mine: tuple[Fraction, Fraction], other: tuple[Fraction, Fraction], served: int) -> dict[str, Any]:
    """Return the tokens served at which both cost the same, None with the reason where one is always cheaper."""
    saved, extra = other[1] - mine[1], mine[0] - other[0]
    if saved > 0 and extra > 0:
        return {"crossover_tokens": float(extra / saved * served), "cheaper_beyond": "model", "reason": ""}
    if saved < 0 and extra < 0:
        return {"crossover_tokens": float(extra / saved * served), "cheaper_beyond": "against", "reason": ""}
    who = "model" if saved >= 0 and extra <= 0 else "against"
    rule = "it costs no more to train and no more to serve" if saved or extra else "both cost the same at every volume"
    return {"crossover_tokens": None, "cheaper_beyond": who, "reason": f"no crossover: {rule}"}
