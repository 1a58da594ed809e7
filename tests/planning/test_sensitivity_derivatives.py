"""Derivatives: against sympy on the symbolic folds, linear and not, and where a formula stops holding."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
import sympy

import jaxcost
from jaxcost.contracts.case import Case, build_case
from jaxcost.planning.sensitivity import vary
from jaxcost.planning.sensitivity.derivatives import derivative, growth, powers, slope
from jaxcost.planning.sensitivity.run import Result
from jaxcost.prediction.forms import Call, Form
from jaxcost.prediction.symbols import FORMULAS, formula, symbol
from jaxcost.verify.failures.subjects import decode, prefill, toy, train, with_attention


def only(case: Case, text: str) -> Result:
    [found] = vary(case, [text]).cases
    return found


def of(case: Case, text: str, path: str) -> Any:
    found = only(case, text).delta(path).derivative
    assert found is not None
    return found


# case, change, symbol
ASKED = [
    (prefill(), "kv_heads=1", "K"),
    (prefill(), "batch=8", "B"),
    (train(batch=2, remat="block"), "seq=8", "S"),
    (train(batch=2), "layer_count=5", "L"),
    (decode(), "visible=40", "T"),
    (prefill(logits=2), "logits=3", "R"),
    (train(toy(False)), "vocabulary_size=40", "V"),
    (train(), "mlp_width=20", "F"),
]


@pytest.mark.parametrize(("case", "text", "name"), ASKED, ids=[name for _, _, name in ASKED])
def test_a_derivative_is_what_sympy_makes_of_the_symbolic_fold(case: Case, text: str, name: str) -> None:
    """Two ways: the form of traced integers, and sympy's derivative of the fold run on its symbols."""
    found = only(case, text)
    compared = 0
    for path in FORMULAS:
        own = found.delta(path).derivative
        expected = sympy.expand(sympy.diff(formula(case, path), symbol(name)))
        if own is None:
            assert expected == 0, path
            continue
        names = {item.name: item for item in expected.free_symbols} | {
            part: symbol(part) for part in ("B", "S", "T", "R", "V", "P", "d", "w", "L", "H", "K", "E", "F")
        }
        assert sympy.expand(sympy.sympify(own["formula"], locals=names) - expected) == 0, path
        assert own["symbol"] == name and own["agrees"]
        compared += expected != 0
    assert compared


def test_linear_means_that_the_derivative_times_the_step_is_the_difference() -> None:
    found = of(prefill(), "kv_heads=1", "parameters.unique")
    assert found["linear"] and found["step"] == -1 and found["at_base"] * -1 == found["difference"]
    assert found["difference_formula"] == f"{found['at_base']}*h"


def test_what_is_not_linear_shows_the_exact_polynomial() -> None:
    row = only(prefill(logits="all"), "seq=8").delta("flops.forward")
    found = row.derivative
    assert found is not None and not found["linear"] and found["agrees"]
    assert found["at_base"] * found["step"] != row.difference
    h = sympy.Symbol("h")
    assert sympy.sympify(found["difference_formula"]).subs(h, found["step"]) == row.difference
    assert "h**2" in found["difference_formula"]


def test_a_mesh_degree_is_a_size() -> None:
    case = build_case(toy(False), {"phase": "training", "batch": 8, "seq": 4, "mesh": {"data": 2}})
    found = of(case, "mesh=data=4", "device.argument_bytes")
    assert found["symbol"] == "data" and found["agrees"] and not found["linear"]
    assert found["difference_formula"] is None  # an inverse power
    nothing = only(case, "mesh=data=2,fsdp=2")
    assert nothing.no_derivative and all(row.derivative is None for row in nothing.deltas)


@pytest.mark.parametrize(
    "text", ["tied=no", "kv_dtype=fp32", "attention=blockwise", "parameter_dtype=fp32", "logits=all"]
)
def test_a_kind_has_no_derivative(text: str) -> None:
    found = only(prefill(), text)
    assert "no size" in found.no_derivative and all(row.derivative is None for row in found.deltas)


def test_a_padded_size_follows_in_steps_and_has_no_derivative() -> None:
    case = build_case(toy(False), {"phase": "prefill", "seq": 4, "vocabulary_multiple": 5})
    assert of(case, "vocabulary_size=24", "parameters.unique")["linear"]
    stored = of(case, "vocabulary_size=24", "parameters.stored")  # 16 rows are stored as 20, and 24 as 25
    assert stored["formula"] is None and not stored["linear"] and stored["agrees"]
    assert stored["difference"] == 2 * 8 * 5
    assert only(case, "vocabulary_size=17").delta("parameters.stored").invariant
    padding = of(case, "vocabulary_size=17", "parameters.padding")
    assert padding["linear"] and padding["difference"] == -2 * 8  # the padded size stays


def test_a_formula_that_does_not_hold_over_the_step_says_what_must_hold() -> None:
    windowed = build_case(jaxcost.load("gemma-2-2b"), {"phase": "training", "seq": 4096})
    row = only(windowed, "seq=8192").delta("flops.forward_causal")
    assert row.derivative is not None and not row.derivative["agrees"]
    assert "W ≥ S" in row.derivative["reason"]
    assert row.difference == row.value - row.base  # the predictions stand as they are
    found = vary(windowed, ["seq=8192"])
    assert [item["path"] for item in found.disagreements] == ["flops.forward_causal"]


def test_a_whole_prompt_is_its_value_at_as_many_visible_rows() -> None:
    found = only(prefill(), "visible=9")
    assert of(prefill(), "visible=9", "flops.forward")["agrees"]
    device = found.delta("device.argument_bytes").derivative
    assert device is not None and not device["agrees"] and "over a cache" in device["reason"]


def test_new_rows_over_a_cache_move_two_sizes() -> None:
    case = prefill().replaced(workload=prefill().workload.replaced(past_tokens=4))
    assert "two sizes move" in only(case, "seq=8").no_derivative


def test_windows_fused_arrays_and_groups_have_derivatives() -> None:
    fused = build_case(with_attention(toy(), storage="fused"), {"phase": "prefill", "seq": 4})
    assert of(fused, "kv_heads=1", "parameters.unique")["agrees"]


# -- the calculus -----------------------------------------------------------------------------------------------------

X, Y = Form.of("x"), Form.of("y")


def test_calculus_of_a_form() -> None:
    form = X * X * Y * Form.of(3) + X * Form.of(5) + Y
    assert slope(form, "x") == X * Y * Form.of(6) + Form.of(5)
    assert growth(form, "x", {"x": 2, "y": 7}) == {1: 89, 2: 21}
    assert slope(form, "z") == Form.of(0) and growth(form, "z", {"x": 2, "y": 7, "z": 1}) == {}
    assert slope(Y / X, "x") == Form.of(-1) * Y / (X * X) and growth(Y / X, "x", {"x": 2, "y": 7}) is None


def test_a_size_inside_a_call_has_no_derivative() -> None:
    form = Form.of(Call("floor", (X / Form.of(2),))) + X
    assert powers(form, "x") is None and slope(form, "x") is None
    found = derivative(form, "x", ({"x": 4}, {"x": 6}), 6, 9)
    assert (found["formula"], found["at_base"], found["linear"], found["difference"]) == (None, None, False, 3)
    assert found["agrees"]
    assert powers(form, "y") == {0: form}


@pytest.mark.parametrize(("before", "after"), [(7, 9), (6, 10), (None, 9), (6, None)])
def test_one_unit_off_is_no_agreement(before: int | None, after: int | None) -> None:
    found = derivative(X + X * X * Form.of(Fraction(1, 8)), "x", ({"x": 4}, {"x": 6}), before, after, ["x > 1"])
    assert not found["agrees"] and found["reason"]
    sound = derivative(X + X * X * Form.of(Fraction(1, 8)), "x", ({"x": 4}, {"x": 8}), 6, 16)
    assert sound["agrees"] and "reason" not in sound
