"""Sums of spans, and the peak as the largest moment."""

from __future__ import annotations

import pytest

from jaxcost.prediction.peak.moments import Held, Moment, Span, peak_of
from jaxcost.prediction.peak.policy import Policy, Rule

POLICY = Policy("p", "cuda", "c", "cases", {})
TWO = Rule("two", 2, (1, 2, 4), "why", ())


def test_a_rule_spans_its_alternatives() -> None:
    assert Span.of(TWO, 10) == Span(10, 20, 40)


def test_the_peak_is_the_moment_expected_to_be_the_fullest() -> None:
    state = Held("parameter", "w", "", Span.exact(100))
    early = Moment("early", "forward", (state, Held("workspace", "x", "", Span.of(TWO, 10))))
    late = Moment("late", "loss", (state, Held("logits", "y", "head", Span.exact(15))))
    found = peak_of(POLICY, [late, early])
    assert (found.lower, found.expected, found.upper) == (115, 120, 140)
    assert found.at == "early"
    assert found.by_class == {"parameter": 100, "workspace": 20}
    assert found.peak is found.moments[1]
    assert not found.is_open


def test_an_interval_wider_than_two_fifths_is_open() -> None:
    found = peak_of(POLICY, [Moment("m", "loss", (Held("workspace", "x", "", Span(50, 100, 150)),))])
    assert found.is_open


def test_an_entry_of_no_bytes_is_dropped_and_an_impossible_one_refused() -> None:
    found = peak_of(POLICY, [Moment("m", "loss", (Held("saved", "x", "", Span(0, 0, 0)),))])
    assert found.peak.held == ()
    with pytest.raises(AssertionError):
        Held("saved", "x", "", Span(2, 1, 3))
    with pytest.raises(AssertionError):
        Held("a class nobody knows", "x", "", Span(1, 1, 1))
