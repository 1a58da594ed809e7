"""Both routes to the duration agree exactly; a disagreement stays open beside the mistake that would account for it."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxcost.planning.run.checks import Check, agrees, cross_checks
from jaxcost.planning.run.sheet import FIGURES, Sheet
from tests.planning.run.plans import scenario, with_model

FACTORS: dict[str, Any] = {
    "batch_tokens": None, "micro_batch": 1, "seq": 8192, "accumulate": 16, "mesh": {"data": 4, "fsdp": 8, "tensor": 8},
}  # fmt: skip


@given(
    tokens=st.integers(1, 10**14), micro=st.integers(1, 8), accumulate=st.integers(1, 64),
    percent=st.integers(1, 100), padding=st.integers(0, 99), active=st.integers(1, 10**12),
)  # fmt: skip
def test_arithmetic_over_rate_is_steps_times_step(
    tokens: int, micro: int, accumulate: int, percent: int, padding: int, active: int
) -> None:
    plan = scenario(
        **{**FACTORS, "tokens": tokens, "micro_batch": micro, "accumulate": accumulate, "mfu": f"{percent / 100:.2f}",
           "padding": f"{padding / 100:.2f}", "parameters": 10**12, "active": active},
    )  # fmt: skip
    check = plan.checks[0]
    assert check.status in ("exact", "explained")
    assert check.residual == sum(amount for amount, _, _ in check.explanations)
    assert check.residual >= 0


def test_the_scenario_agrees_without_any_explanation() -> None:
    check = scenario().checks[0]
    assert check.status == "exact" and check.explanations == () and check.residual == 0


def test_whole_steps_are_the_only_explanation() -> None:
    check = scenario(**FACTORS).checks[0]
    assert check.status == "explained"
    ((amount, reason, _),) = check.explanations
    assert reason == "rounding up to whole steps" and 0 < amount < scenario(**FACTORS).known("step_seconds")


def test_a_planted_fault_in_either_route_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = scenario(**FACTORS)
    for name in ("step_seconds", "stage_flops"):
        right = FIGURES[name]

        def wrong(*, compute: Any = right.compute, **values: Any) -> Any:
            return compute(**values) * 2

        planted = replace(right, compute=wrong)
        planted.__dict__["needs"], planted.__dict__["optional"] = right.needs, right.optional
        sheet = Sheet(plan.sheet.given, plan.sheet.stages, {**FIGURES, name: planted})
        assert cross_checks(plan.inputs, sheet)[0].status == "open", name


def test_formula_and_simulation_are_bounded_by_the_standard_error() -> None:
    (played,) = [check for check in scenario().checks if check.name.startswith("productive")]
    assert played.status == "bounded" and "standard error" in played.observation_of
    assert replace(played, observation=played.prediction + 0.1, rounded=False).status == "open"


def test_an_explanation_that_does_not_sum_leaves_the_row_open() -> None:
    check = Check("x", "", "s", Fraction(1), Fraction(3), "a", "b", ((Fraction(1), "why", "where"),))
    assert check.status == "open"
    assert replace(check, explanations=((Fraction(2), "why", "where"),)).status == "explained"
    assert replace(check, prediction=None).status == "unmeasured"


def test_a_claim_is_compared_to_its_own_digits() -> None:
    assert agrees(Decimal("67.5"), Fraction("67.474")) and agrees(Decimal("67"), Fraction("67.474"))
    assert not agrees(Decimal("67.4"), Fraction("67.474")) and not agrees(Decimal("67.47"), Fraction("67.4649"))
    assert agrees(Decimal("3.28E12"), 3281264640000) and not agrees(Decimal("3280000000000"), 3281264640000)
    assert not agrees(Decimal("820001"), 820000)


# claim: (figure, its value, changes to the scenario, what accounts for it)
CLAIMS: dict[str, tuple[str, Any, dict[str, Any], str]] = {
    "multiplied by tensor ranks": ("step_positions", 33_554_432, FACTORS, "8 ranks of tensor"),
    "without accumulation": ("step_positions", 262_144, FACTORS, "without the accumulation"),
    "state of the active parameters": ("checkpoint_bytes", "4.8e10", {"active": 3 * 10**9}, "active parameters where"),
    "work of the total parameters": ("flops_per_token", 180 * 10**9, {"active": 3 * 10**9}, "total parameters where"),
    "healthy days as a calendar": ("calendar_days", "67.47", {}, "healthy time called calendar time"),
    "the whole allocation": ("main_run_flops", "7.875e23", {}, "entire allocation"),
    "the utilisation twice": ("tokens_per_s", 225_052, {}, "applied twice"),
    "a sparse peak": ("budget_flops", "1.575e24", {}, "sparsity"),
    "GB for GiB": ("checkpoint_bytes", "447e9", {}, "GB and GiB"),
    "remat charged again": ("step_seconds", "9.479", {}, "8/6"),
}


@pytest.mark.parametrize("name", CLAIMS)
def test_a_wrong_claim_is_open_beside_its_usual_mistake(name: str) -> None:
    figure, value, changes, cause = CLAIMS[name]
    (check,) = scenario(**changes, claims={figure: value}).claims
    assert check.status == "open" and any(cause in text for text in check.causes), check.causes


def test_right_claims_are_exact_or_bounded() -> None:
    plan = scenario(claims={"optimizer_steps": 820_000, "healthy_days": "67.47", "main:step_seconds": "7.1"})
    assert [check.status for check in plan.claims] == ["exact", "bounded", "bounded"]
    assert scenario(claims={"peak_upper_bytes": 1}).claims[0].status == "unmeasured"


def test_six_p_claimed_at_a_long_context_is_open() -> None:
    plan = with_model(seq=65536, micro_batch=1, claims={"flops_per_token": 6 * with_model().known("active")})
    (check,) = plan.claims
    assert check.status == "open" and any("6PT taken as exact" in text for text in check.causes)


def test_perfect_division_claimed_for_a_mesh_with_replicas_is_open() -> None:
    divided = with_model().known("perfect_shard_bytes")
    (check,) = with_model(claims={"state_bytes_per_device": int(divided)}).claims
    assert check.status == "open" and any("divided by every device" in text for text in check.causes)


def test_a_timed_step_is_compared_and_the_plan_is_not_fitted_to_it() -> None:
    agreed, slow = scenario(measured_step="7.1"), scenario(measured_step="9.9")
    assert agreed.checks[1].status == "bounded" and slow.checks[1].status == "open"
    assert slow.known("step_seconds") == agreed.known("step_seconds")
    assert slow.checks[1].look_at and "28.7" in slow.checks[1].causes[0]
    assert any("power of ten" in text for text in scenario(measured_step="0.71").checks[1].causes)
