"""Differences of compiled programs, on recorded ones and on programs compiled here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from jaxcost.contracts.case import Case
from jaxcost.contracts.errors import RejectedError
from jaxcost.observation.observe import failed
from jaxcost.observation.observed import Observed
from jaxcost.observation.pool import WorkerFailure
from jaxcost.observation.targets import parse_target
from jaxcost.planning.compare import Planned, Spec
from jaxcost.planning.sensitivity import Sensitivity, vary
from jaxcost.planning.sensitivity.observed import (
    Compared,
    difference_row,
    fitting,
    observe_differences,
    put_together,
)
from jaxcost.reconciliation.rows import Explanation, Interval, Row
from jaxcost.verify.failures.subjects import prefill
from tests.reconciliation.recorded import named, observed

FSDP, TENSOR = (named("llama-3.1-8b_training_h100-8_", **mesh) for mesh in ({"fsdp": 8}, {"tensor": 8}))
Change = Callable[[dict[str, Any]], object]


@pytest.fixture(scope="module")
def varied() -> Sensitivity:
    """FSDP over eight devices, and tensor parallelism in its place."""
    found = vary(Case.from_data(observed(FSDP).data["case"]), ["mesh=tensor=8"], formulas=False)
    assert found.cases[0].scenario.case.digest == observed(TENSOR).case_digest
    return found


def recorded(
    varied: Sensitivity, before: Change | Observed | None = None, after: Change | Observed | None = None
) -> Compared:
    """The comparison of the two records, each whole, changed, or replaced."""
    sides = [
        change if isinstance(change, Observed) else observed(name, change)
        for name, change in ((FSDP, before), (TENSOR, after))
    ]
    cases = [varied.base.case, varied.cases[0].scenario.case]
    target = parse_target("h100:8")
    names = ["base", varied.cases[0].scenario.name]
    planned = [Planned(Spec(label=name), case, target) for name, case in zip(names, cases, strict=True)]
    [found] = put_together(varied, planned, sides)
    return found


def row_of(found: Compared, key: str) -> Row:
    return next(row for row in found.rows if row.key == key)


def test_the_difference_of_two_recorded_programs_closes(varied: Sensitivity) -> None:
    found = recorded(varied)
    assert not found.infeasible and not found.reason
    before, after = found.before.rows, found.after.rows
    for row in found.rows:
        assert row.status in ("exact", "explained", "bounded", "unmeasured"), row.key
        known = isinstance(row.prediction, int) and row.observation is not None
        if row.key in before and row.key in after and known:
            assert row.prediction == after[row.key].prediction - before[row.key].prediction  # type: ignore[operator]
            assert row.observation == after[row.key].observation - before[row.key].observation  # type: ignore[operator]
            assert row.residual == row.explained
    assert row_of(found, "argument_bytes").status == "exact" and row_of(found, "argument_bytes").observation
    assert row_of(found, "matmul_flops").status == "explained"
    kinds = {row.scope for row in found.rows if row.counter == "collective_bytes" and row.scope}
    assert {"all-gather/fsdp", "all-reduce/tensor"} <= kinds  # one program has the one, the other the other


def one_more(document: dict[str, Any]) -> None:
    """One FLOP more in the compiled program."""
    document["hlo"]["flops"] += 1
    document["hlo"]["by_scope_phase"][0]["flops"] += 1


def test_one_flop_opens_the_difference_on_either_side_and_cancels_on_both(varied: Sensitivity) -> None:
    for sides in ((one_more, None), (None, one_more)):
        found = recorded(varied, *sides)
        assert row_of(found, "matmul_flops").status == "open" and found.infeasible
        assert row_of(found, "argument_bytes").status == "exact"
    assert row_of(recorded(varied, one_more, one_more), "matmul_flops").status == "explained"


def test_one_argument_byte_opens_the_difference(varied: Sensitivity) -> None:
    def change(document: dict[str, Any]) -> None:
        document["memory"]["argument_bytes"] += 1

    row = row_of(recorded(varied, None, change), "argument_bytes")
    assert (row.status, row.residual) == ("open", 1)


def died(varied: Sensitivity, kind: str) -> Observed:
    case = varied.cases[0].scenario.case
    return failed(case, parse_target("h100:8"), "h100:8", WorkerFailure(kind, "no answer"))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["timed_out", "memory_exceeded", "crashed", "raised"])
def test_a_compile_that_died_leaves_nothing_to_compare(varied: Sensitivity, kind: str) -> None:
    found = recorded(varied, None, died(varied, kind))
    assert found.rows == () and found.infeasible and "no answer" in found.reason
    assert found.to_dict()["status"] == "failed"


def test_a_refused_program_is_compared_and_ends_with_1(varied: Sensitivity) -> None:
    def refused(document: dict[str, Any]) -> None:
        document["status"], document["reason"] = "refused", "RESOURCE_EXHAUSTED"

    found = recorded(varied, None, refused)
    assert found.rows and found.infeasible and "RESOURCE_EXHAUSTED" in found.reason


# -- the arithmetic of a difference -----------------------------------------------------------------------------------


def row(prediction: Any, observation: int | None, *explained: tuple[int, str], counter: str = "n", **more: Any) -> Row:
    reasons = tuple(Explanation(amount, reason, "seen") for amount, reason in explained)
    return Row(counter, more.pop("scope", ""), "", "bytes", prediction, observation, reasons, **more)


def test_explanations_are_subtracted_by_reason_and_what_cancels_stays_named() -> None:
    found = difference_row(row(10, 14, (3, "a"), (1, "b")), row(20, 29, (3, "a"), (4, "b"), (2, "c")))
    assert (found.prediction, found.observation, found.residual) == (10, 15, 5)
    assert {item.reason: item.amount for item in found.explanations} == {"a": 0, "b": 3, "c": 2}
    assert found.status == "explained" and "case +4: seen; base +1: seen" in found.explanations[1].evidence
    alike = difference_row(row(10, 13, (3, "a")), row(20, 23, (3, "a")))
    assert alike.residual == 0 and alike.status == "explained"
    assert difference_row(row(10, 10), row(20, 20)).status == "exact"


def test_an_explanation_that_is_one_short_leaves_the_difference_open() -> None:
    assert difference_row(row(10, 14, (4, "a")), row(20, 29, (8, "a"))).status == "open"


@pytest.mark.parametrize(("before", "after"), [((10, None), (20, 20)), ((None, 10), (20, 20)), ((10, 10), (20, None))])
def test_an_unknown_side_leaves_the_difference_unmeasured(before: tuple[Any, Any], after: tuple[Any, Any]) -> None:
    assert difference_row(row(*before), row(*after)).status == "unmeasured"


def test_the_difference_of_intervals_runs_from_the_least_to_the_largest() -> None:
    before, after = row(Interval(10, 20, expected=15), 12), row(Interval(100, 130, expected=110), 120)
    found = difference_row(before, after)
    assert found.prediction == Interval(80, 120, expected=95) and found.status == "bounded"
    outside = difference_row(before, row(Interval(100, 130, expected=110), 140))
    assert (outside.status, outside.residual) == ("open", 8)
    mixed = difference_row(row(10, 12), row(Interval(100, 130), 120))
    assert mixed.prediction == Interval(90, 120)


def test_intervals_that_leave_the_sign_open_predict_no_difference() -> None:
    found = difference_row(row(Interval(10, 20), 12), row(Interval(15, 30), 20))
    assert found.status == "unmeasured" and "leave the sign of the difference open (-5 to 20)" in found.reason


@pytest.mark.parametrize("counter", ["collective_bytes", "state.first_moment"])
def test_what_a_side_has_none_of_is_no_bytes(counter: str) -> None:
    there = row(8, 8, counter=counter, scope="all-reduce/data" if counter == "collective_bytes" else "")
    gained, lost = difference_row(None, there), difference_row(there, None)
    assert (gained.prediction, gained.observation, gained.status) == (8, 8, "exact")
    assert (lost.prediction, lost.observation, lost.status) == (-8, -8, "exact")


def test_any_other_row_of_one_side_is_unmeasured() -> None:
    found = difference_row(None, row(8, 8, counter="saved_bytes"))
    assert found.status == "unmeasured" and found.reason == "the base has no such row"
    assert difference_row(row(8, 8), None).reason == "the case has no such row"


def test_a_row_that_is_open_without_a_number_opens_the_difference() -> None:
    assert difference_row(row(1, 1, forced_open=True), row(2, 2)).status == "open"


# -- compiled here ----------------------------------------------------------------------------------------------------


def test_a_case_that_does_not_fit_the_target_is_refused_before_anything_is_compiled() -> None:
    check = fitting(["cpu:1"])
    check(prefill())
    with pytest.raises(RejectedError, match="2 devices and the target cpu:1 has 1"):
        vary(prefill(), ["mesh=tensor=2"], formulas=False, fits=check)
    left = vary(prefill(), formulas=False, fits=check).left_out
    assert any(item["field"] == "mesh" for item in left)


def test_base_and_cases_are_compiled_and_their_differences_close() -> None:
    sets = ["batch=4", "kv_heads=1", "parameter_dtype=fp32", "visible=9", "mesh=tensor=2"]
    found = vary(prefill(batch=2), sets, ["batch=4,logits=all"], formulas=False)
    lines: list[str] = []
    seen = observe_differences(found, ["cpu"], progress=lines.append)
    assert [item.after.name for item in seen] == [item.scenario.name for item in found.results]
    assert len(lines) == 1 + len(found.results) and not any(item.infeasible for item in seen)
    batch, heads, dtype, visible, mesh, vector = seen
    for item, flops in ((batch, found.cases[0]), (heads, found.cases[1]), (vector, found.vectors[0])):
        one = row_of(item, "matmul_flops")
        assert one.status == "exact" and one.observation == flops.delta("flops.forward").difference != 0
    assert row_of(dtype, "parameters.bytes").observation == dtype.after.prediction.value("parameters.unique") * 2
    assert visible.rows == () and visible.after.status == "unmeasured" and "empty cache" in visible.reason
    assert mesh.after.target.text == "cpu:2" and row_of(mesh, "collective_bytes").status == "explained"
    for item in seen:
        assert set(item.to_dict()) >= {"name", "digest", "target", "base_target", "status", "rows"}
