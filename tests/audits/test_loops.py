"""The loops of an audit: their counts, where those are from, what a trip costs and carries."""

from __future__ import annotations

import pytest

from jaxcost.audits import loops
from jaxcost.audits.evidence import Notes, gather
from jaxcost.observation.sources import Program
from tests.observation.hlo.building import Program as ByHand
from tests.observation.hlo.building import dot, loop
from tests.observation.hlo.test_trips import flagged, within_a_loop

ONCE = 2 * 2 * 3 * 4
COSTS = {"flops": 1.0}


def rows(made: ByHand, costs=COSTS, **options):
    notes = Notes()
    program = Program("proto", "hand", made.bytes(), "tpu", cost_analysis=costs)
    found = loops.section(gather(program, **options), notes)
    return {row["name"]: row for row in found}, notes


def test_a_loop_with_what_it_holds():
    made = ByHand()
    loop(made, 0, 1, 5, "LT", per_trip=lambda p: dot(p, 2, 3, 4))
    found, notes = rows(made)
    row = found["while.1"]
    assert (row["trips"], row["count_from"], row["reason"], row["supply"]) == (5, "derived", "", "")
    assert (row["flops_per_trip"], row["flops"], row["state_bytes"]) == (ONCE, 5 * ONCE, 4)
    assert (row["entries"], row["total_trips"]) == (1, 5)
    (finding,) = notes.findings
    assert finding["kind"] == "loop_counted_once" and finding["flops"] == 4 * ONCE
    assert "runs 5 times" in finding["text"]
    assert not rows(made, costs=None)[1].findings, "without a cost analysis there is none to be wrong"


def test_a_bounded_loop_is_an_interval_and_can_be_supplied():
    found, notes = rows(flagged(7))
    row = found["loop"]
    assert row["trips"] == {"minimum": 1, "maximum": 7} and "run-time" in row["reason"]
    assert row["flops"] == {"minimum": ONCE, "maximum": 7 * ONCE} and row["flops_per_trip"] == ONCE
    assert "--trips loop=N" in row["supply"] and "up to 7 times" in notes.findings[0]["text"]
    found, _ = rows(flagged(7), trips={"loop": 4})
    assert (found["loop"]["trips"], found["loop"]["count_from"], found["loop"]["flops"]) == (4, "supplied", 4 * ONCE)


def test_a_loop_that_the_one_around_it_sizes():
    found, _ = rows(within_a_loop("moves", called=False))
    inner, outer = found["inner"], found["outer"]
    assert inner["trips"] == {"minimum": 7, "maximum": 10} and inner["count_from"] == "derived"
    assert (inner["entries"], inner["total_trips"], inner["flops"]) == (4, 34, 34 * ONCE)
    assert (outer["trips"], outer["flops"]) == (4, 34 * ONCE)
    assert outer["flops_per_trip"] == {"minimum": 7 * ONCE, "maximum": 10 * ONCE}


@pytest.mark.parametrize("target", ["a_kernel"])
def test_a_kernel_in_a_body_leaves_its_flops_unknown(target):
    made = ByHand()
    loop(made, 0, 1, 5, "LT", per_trip=lambda p: p.add("custom-call", ("f32", 2), custom_call_target=target))
    found, _ = rows(made)
    row = found["while.1"]
    assert row["trips"] == 5 and row["flops"] is None and "kernel" in row["reason"]


def test_a_loop_without_products_is_listed_and_no_finding():
    made = ByHand()
    loop(made, 0, 1, 5, "LT", per_trip=lambda p: None)
    found, notes = rows(made)
    assert found["while.1"]["flops"] == 0 and notes.findings == []
