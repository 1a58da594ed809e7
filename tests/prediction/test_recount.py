"""Recounts by brute force, written without the program: arrays that numpy multiplies, numbers that count operations."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest

from jaxcost.contracts.case import Case
from jaxcost.prediction import flops as flops_module
from jaxcost.prediction import predict, program
from jaxcost.prediction.components.mlp import ACTIVATIONS
from jaxcost.prediction.flops import flops, six_nd
from jaxcost.prediction.primitives import primitives
from tests.prediction.cases import case, draw

SEEDS = range(12)


class Matmul:
    """Multiplies arrays and counts 2 x m x k x n, batched products one by one."""

    def __init__(self) -> None:
        self.flops = 0

    def __call__(self, x: np.ndarray, w: np.ndarray) -> np.ndarray:
        out = np.matmul(x, w)
        self.flops += 2 * out.size * x.shape[-1]
        return out


def network(sizes: dict[str, Any], batch: int, seq: int, last: bool = False) -> tuple[int, int]:
    """Run a bare decoder on zeros and return (FLOPs of its layers' pairwise products, of everything)."""
    d, h, k, e, f, v = (sizes[name] for name in "dhkefV")
    product, pairs = Matmul(), Matmul()
    x = np.zeros((batch * seq, d))
    for _ in range(sizes["L"]):
        q = product(x, np.zeros((d, h * e))).reshape(batch, seq, h, e).swapaxes(1, 2)
        key, value = (product(x, np.zeros((d, k * e))).reshape(batch, seq, k, e).swapaxes(1, 2) for _ in range(2))
        key, value = (np.repeat(one, h // k, axis=1) for one in (key, value))
        context = pairs(pairs(q, key.swapaxes(2, 3)), value)
        x = product(context.swapaxes(1, 2).reshape(batch * seq, h * e), np.zeros((h * e, d)))
        wide = product(x, np.zeros((d, f)))
        if sizes["form"] == "gated":
            product(x, np.zeros((d, f)))
        x = product(wide, np.zeros((f, d)))
    rows = x.reshape(batch, seq, d)[:, -1] if last else x
    product(rows, np.zeros((d, v)))
    return pairs.flops, pairs.flops + product.flops


@pytest.mark.parametrize("seed", SEEDS)
def test_flops_equal_multiplied_arrays(seed: int) -> None:
    sizes, options = draw(seed)
    pairs, everything = network(sizes, options["batch"], options["seq"])
    built = program(case(sizes, "training", **options))
    found = flops(built).totals
    assert found["forward"] == everything
    assert found["backward"] == 2 * everything
    assert six_nd(built)["pairwise"] == 3 * pairs
    assert six_nd(built)["total"] == found["forward"] + found["backward"]
    served = predict(case(sizes, "prefill", batch=options["batch"], seq=options["seq"]))
    assert served.value("flops.forward") == network(sizes, options["batch"], options["seq"], last=True)[1]


def test_a_lost_factor_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    real = flops_module.contraction_flops
    monkeypatch.setattr(flops_module, "contraction_flops", lambda *args: real(*args) // 2)
    sizes, options = draw(0)
    built = program(case(sizes, "training", **options))
    assert flops(built).totals["forward"] != network(sizes, options["batch"], options["seq"])[1]


@pytest.mark.parametrize("past", [0, 3, 40])
@pytest.mark.parametrize("new", [1, 5])
def test_legal_pairs_one_by_one(past: int, new: int) -> None:
    from jaxcost.prediction.sizes import Sizes

    sizes = Sizes({"b": 2, "s": new, "t": past + new, "r": 1}, (), ())
    legal = sum(1 for query in range(new) for key in range(past + new) if key <= past + query)
    assert sizes.product("b s t", pairs="legal") == 2 * legal
    assert sizes.product("b s t") == 2 * new * (past + new)


def naive_parameters(sizes: dict[str, Any]) -> int:
    d, h, k, e, f, v = (sizes[name] for name in "dhkefV")
    bias, layer = sizes["bias"], sizes["norm"] == "layer"
    norm = d * (2 if layer else 1)
    attention = d * h * e + 2 * d * k * e + h * e * d + (h * e + 2 * k * e + d if bias else 0)
    matrices = 3 if sizes["form"] == "gated" else 2
    mlp = matrices * d * f + ((matrices - 1) * f + d if bias else 0)
    outside = v * d * (1 if sizes["tied"] else 2) + norm + sizes["positions"] * d
    return int(sizes["L"] * (attention + mlp + 2 * norm) + outside)


@pytest.mark.parametrize("seed", SEEDS)
def test_parameters_summed_by_hand(seed: int) -> None:
    sizes, options = draw(seed)
    found = predict(case(sizes, "training", **options))
    assert found.value("parameters.unique") == naive_parameters(sizes)
    assert found.value("parameters.named") == naive_parameters(sizes) + sizes["tied"] * sizes["V"] * sizes["d"]
    assert found.value("state.bytes") == 16 * naive_parameters(sizes) + 4


COUNTS: Counter[str] = Counter()


class Number:
    """A float that counts what is done to it."""

    def __init__(self, value: float):
        self.value = value

    def _new(self, kind: str, value: float) -> Number:
        COUNTS[kind] += 1
        return Number(value)

    def __add__(self, other: Any) -> Number:
        return self._new("add", self.value + _value(other))

    def __sub__(self, other: Any) -> Number:
        return self._new("add", self.value - _value(other))

    def __mul__(self, other: Any) -> Number:
        return self._new("multiply", self.value * _value(other))

    def __truediv__(self, other: Any) -> Number:
        return self._new("divide", self.value / _value(other))

    def call(self, kind: str, function: Any) -> Number:
        return self._new(kind, function(self.value))


def _value(other: Any) -> float:
    return other.value if isinstance(other, Number) else float(other)


def total(values: list[Number]) -> Number:
    result = Number(0.0)
    for value in values:
        result = result + value
    return result


def largest(values: list[Number]) -> Number:
    result = Number(-math.inf)
    for value in values:
        COUNTS["max"] += 1
        result = Number(max(result.value, value.value))
    return result


def numbers(n: int) -> list[Number]:
    return [Number(0.1 * (i + 1)) for i in range(n)]


def count(function: Any, *args: Any) -> Counter[str]:
    COUNTS.clear()
    function(*args)
    return Counter(COUNTS)


def rms(x: list[Number]) -> None:
    r = (total([v * v for v in x]) / len(x) + 1e-5).call("rsqrt", lambda v: v**-0.5)
    [v * r * Number(1.0) for v in x]


def layer(x: list[Number]) -> None:
    mean = total(x) / len(x)
    centred = [v - mean for v in x]
    r = (total([v * v for v in centred]) / len(x) + 1e-5).call("rsqrt", lambda v: v**-0.5)
    [v * r * Number(1.0) + Number(0.0) for v in centred]


def softmax(x: list[Number]) -> None:
    scores = [v * 0.5 for v in x]
    COUNTS["compare"] += len(x)
    COUNTS["select"] += len(x)
    top = largest(scores)
    powers = [(v - top).call("exp", math.exp) for v in scores]
    bottom = total(powers)
    [v / bottom for v in powers]


def silu(x: Number) -> Number:
    return x / (x.call("exp", lambda v: math.exp(-v)) + 1.0)


def gelu(x: Number) -> Number:
    return ((x * 0.7071).call("erf", math.erf) + 1.0) * 0.5 * x


def gelu_tanh(x: Number) -> Number:
    cube = x * x * x
    return (((cube * 0.044715 + x) * 0.7979).call("tanh", math.tanh) + 1.0) * 0.5 * x


def adam(g: Number) -> None:
    m = Number(0.0) * 0.9 + g * 0.1
    v = Number(0.0) * 0.999 + g * g * 0.001
    step = (m / 0.1) / ((v / 0.001).call("sqrt", math.sqrt) + 1e-8)
    _ = Number(1.0) + step * -0.001


def momentum(g: Number) -> None:
    _ = Number(1.0) + (g + Number(0.0) * 0.9) * -0.001


def lion(g: Number) -> None:
    direction = (g * 0.1 + Number(0.0) * 0.9).call("sign", lambda v: (v > 0) - (v < 0))
    _ = Number(1.0) + direction * -0.001
    _ = Number(0.0) * 0.99 + g * 0.01


def sums(built_case: Case, scope: str, phase: str = "forward") -> Counter[str]:
    found: Counter[str] = Counter()
    for row in primitives(program(built_case)).rows:
        if row.phase == phase and row.scope == scope:
            found[row.object] += row.value
    return found


def times(counts: Counter[str], n: int) -> Counter[str]:
    return Counter({kind: value * n for kind, value in counts.items()})


SMALL = {"L": 3, "d": 6, "h": 6, "k": 3, "e": 2, "f": 5, "V": 7}


@pytest.mark.parametrize(("kind", "function"), [("rms", rms), ("layer", layer)])
def test_norm_counts(kind: str, function: Any) -> None:
    built = case(SMALL | {"norm": kind, "d": 12}, "training", seq=4, batch=2)
    assert sums(built, "group0/attn_norm") == times(count(function, numbers(12)), 3 * 2 * 4)


def test_softmax_counts() -> None:
    built = case(SMALL | {"d": 12}, "training", seq=4, batch=2)
    assert sums(built, "group0/attn/softmax") == times(count(softmax, numbers(4)), 3 * 2 * 6 * 4)


@pytest.mark.parametrize("function", [silu, gelu, gelu_tanh], ids=lambda f: f.__name__)
def test_activation_counts(function: Any) -> None:
    built = case(SMALL | {"d": 12, "form": "classic", "activation": function.__name__}, "training", seq=4, batch=2)
    assert sums(built, "group0/mlp/activation") == times(count(function, Number(0.3)), 3 * 2 * 4 * 5)
    assert dict(ACTIVATIONS[function.__name__][0]) == count(function, Number(0.3))


@pytest.mark.parametrize("function", [adam, momentum, lion], ids=lambda f: f.__name__)
def test_optimizer_counts(function: Any) -> None:
    built = case(SMALL | {"d": 12}, "training", seq=4, optimizer=function.__name__)
    unique = predict(built).value("parameters.unique")
    assert sums(built, "optimizer", "optimizer") == times(count(function, Number(0.3)), unique)


def test_lookup_and_bias_backward_are_no_products() -> None:
    built = case(SMALL | {"d": 12, "norm": "layer", "bias": True, "positions": 9}, "training", seq=4, batch=2)
    assert sums(built, "embed/tokens", "backward") == {"scatter_add": 2 * 4 * 12}
    assert sums(built, "embed/positions", "backward") == {"scatter_add": 4 * 12}
    assert sums(built, "group0/attn/q_proj", "backward") == {"add": 3 * 2 * 4 * 12}
    assert sums(built, "group0/attn/q_proj") == {"add": 3 * 2 * 4 * 12}


def test_dropout_draws_one_number_per_element() -> None:
    sizes = SMALL | {"d": 12, "dropout": 0.1}
    assert "rng" not in predict(case(sizes, "training", seq=4)).ledgers["primitives"].totals
    draws = predict(case(sizes, "training", seq=4, batch=2, dropout=True)).value("primitives.by_phase.forward.rng")
    assert draws == 2 * 4 * 12 + 3 * (2 * 6 * 4 * 4 + 2 * (2 * 4 * 12))


def test_recomputation_repeats_primitives_of_the_block() -> None:
    plain = predict(case(SMALL | {"d": 12}, "training", seq=4))
    block = predict(case(SMALL | {"d": 12}, "training", seq=4, remat="block"))
    inside = sum(
        row.value
        for row in plain.ledgers["primitives"].rows
        if row.phase == "forward" and row.region == "block" and row.object == "exp"
    )
    assert "replay" not in plain.value("primitives.by_phase")
    assert block.value("primitives.by_phase.replay.exp") == inside > 0
