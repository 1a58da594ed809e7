"""The arithmetic of a row: what closes it, what does not, and which rows decide a report."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxcost.reconciliation.rows import STATUSES, Explanation, Interval, Report, Row, worst

NUMBERS = st.integers(-(10**18), 10**18)


def row(prediction: int | Interval | None, observation: int | None, *amounts: int, **rest: object) -> Row:
    explanations = tuple(Explanation(amount, "because", "seen") for amount in amounts)
    return Row("c", "", "", "FLOPs", prediction, observation, explanations, **rest)  # type: ignore[arg-type]  # by name


@given(NUMBERS, NUMBERS, st.lists(NUMBERS, max_size=4))
def test_a_row_closes_when_its_explanations_sum_to_the_residual_to_the_unit(p: int, o: int, amounts: list[int]) -> None:
    made = row(p, o, *amounts)
    assert made.residual == o - p
    assert (made.status != "open") == (sum(amounts) == o - p)
    assert (made.status == "exact") == (p == o and not amounts)
    nearly = row(p, o + 1, *amounts)
    assert not {made.status, nearly.status} <= {"exact", "explained"}


@pytest.mark.parametrize(
    ("made", "status"),
    [
        (row(448, 576), "open"),
        (row(448, 576, 128), "explained"),
        (row(448, 576, 64), "open"),
        (row(448, 576, 100, 28), "explained"),
        (row(448, 448, 5, -5), "explained"),
        (row(448, 448, 1), "open"),
        (row(448, None, 128), "unmeasured"),
        (row(None, 576), "unmeasured"),
        (row(None, None, forced_open=True), "open"),
        (row(5, 5, forced_open=True), "open"),
        (row(0, 0), "exact"),
        (row(Interval(10, 20, 3), 10), "bounded"),
        (row(Interval(10, 20, 3), 20), "bounded"),
        (row(Interval(10, 20, 3), 9), "open"),
        (row(Interval(10, 20, 3), 21), "open"),
        (row(Interval(10, 20, 3), 25, 5), "bounded"),
        (row(Interval(10, 20, 3), 26, 5), "open"),
        (row(Interval(10, 20, 3), 8, -2), "bounded"),
        (row(Interval(10, 31, 3), 15), "open"),  # too wide to say anything
        (row(Interval(0, 20, 3), 15), "open"),  # no ratio holds above zero
        (row(Interval(0, 20, None), 0), "bounded"),  # a limit: only its upper end says something
        (row(Interval(0, 20, None), 21), "open"),
        (row(Interval(10, 20, 3), None), "unmeasured"),
        # Around an expected value: two fifths of it are wide enough to bound, one more is not.
        (row(Interval(90, 130, expected=100, maximum_width=Fraction(2, 5)), 130), "bounded"),
        (row(Interval(90, 131, expected=100, maximum_width=Fraction(2, 5)), 130), "open"),
        (row(Interval(90, 130, expected=100, maximum_width=Fraction(2, 5)), 131), "open"),
        (row(5, 7, verdict="misleading"), "unmeasured"),
        (row(5, 5, verdict="exact"), "exact"),
    ],
)
def test_status(made: Row, status: str) -> None:
    assert made.status == status
    assert made.to_dict()["status"] == status


def test_an_interval_s_residual_is_the_distance_outside_it() -> None:
    assert row(Interval(10, 20, 3), 25).residual == 5
    assert row(Interval(10, 20, 3), 7).residual == -3
    assert row(Interval(10, 20, 3), 25, 4).residual == 1
    assert row(Interval(10, 20, 3), 15).residual == 0


def test_statuses_stand_from_worst_to_best() -> None:
    assert STATUSES == ("rejected", "open", "unmeasured", "bounded", "explained", "exact")
    for index, status in enumerate(STATUSES):
        assert worst([*reversed(STATUSES[index:])]) == status
    assert worst([]) == "unmeasured"


def test_a_report_is_its_worst_row_and_verdict_rows_do_not_decide() -> None:
    exact, explained, wrong = row(5, 5), row(5, 6, 1), row(5, 50, verdict="wrong: 10 times too high")
    assert Report({}, "cpu", {}, (exact, wrong)).status == "exact"
    assert Report({}, "cpu", {}, (exact, explained, wrong)).status == "explained"
    assert Report({}, "cpu", {}, (exact, row(5, 6))).status == "open"
    assert Report({}, "cpu", {}, (wrong,)).status == "unmeasured"


def test_neither_side_is_changed_by_comparing() -> None:
    data = row(448, 576, 64).to_dict()
    assert (data["prediction"], data["observation"], data["residual"]) == (448, 576, 128)
    assert data["explanations"] == [{"amount": 64, "reason": "because", "evidence": "seen"}]


def test_keys_leave_out_what_is_empty() -> None:
    assert Row("c", "s", "p", "u", 1, 1).key == "c:s:p"
    assert Row("c", "", "", "u", 1, 1).key == "c"
    assert Row("c", "s", "", "u", 1, 1).key == "c:s"
