"""Programs that no one here wrote: audited without a crash, and their FLOPs agree with the independent count.

The count (tests/zoo/count.py) runs the traced program; the audit reads the compiled one. Where the two differ, the audit
must say why: each reason is the FLOPs of instructions or equations that it names. What is then left is an open gap; the
gaps known today are listed below, so that closing one fails here until it is taken off the list.
"""

from __future__ import annotations

import pytest

from tests.zoo.programs import ZOO

# Compiled and counted in a few seconds; the others are left to the full run.
FAST = {"linen_encoder", "graph_attention", "graph_network", "equinox_mixed"}

# (program, target) -> why the audit does not explain the whole difference.
GAPS: dict[tuple[str, str], str] = {}


def _cases() -> list[object]:
    cases = []
    for name in ZOO:
        for target in ("cpu", "h100"):
            marks = [] if name in FAST else [pytest.mark.slow]
            if target == "h100":
                marks.append(pytest.mark.cuda)
            if (name, target) in GAPS:
                marks.append(pytest.mark.xfail(strict=True, raises=AssertionError, reason=GAPS[name, target]))
            cases.append(pytest.param(name, target, marks=marks, id=f"{name}-{target}"))
    return cases


def explained(document) -> int:
    """The sum of every reason the audit gives for a difference between jaxpr and compiled program."""
    return sum(reason["flops"] for row in document["jaxpr"]["differences"] for reason in row["reasons"])


@pytest.mark.parametrize("name, target", _cases())
def test_flops_agree_with_the_independent_count(name, target, zoo_audit, zoo_count):
    document, counted = zoo_audit(name, target), zoo_count(name)
    assert document["program"]["refused"] is None
    assert document["unknowns"] == []
    by_class = document["flops"]["by_class"]
    products = by_class["contraction"] + by_class["convolution"] + by_class["kernel"]
    assert products == counted.flops + explained(document), _gap(document, products - counted.flops)
    if not counted.transforms:
        assert document["flops"]["total"] == products


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in FAST else [pytest.mark.slow]) for n in ZOO])
def test_the_jaxpr_count_is_what_was_executed(name, zoo_audit, zoo_count):
    """The audit's own count of the traced program, by formulas and derived trips, against the one that ran."""
    document, counted = zoo_audit(name, "cpu"), zoo_count(name)
    rows = [row for row in document["jaxpr"]["rows"] if row.get("basis") != "convention"]
    transforms = document["jaxpr"]["flops"] - counted.flops
    if not counted.transforms:
        assert transforms == 0
    else:
        assert transforms == sum(
            row["total"] for row in document["jaxpr"]["rows"] if row.get("basis") == "convention"
        ), rows


@pytest.mark.parametrize("name", sorted(FAST))
def test_memory_and_attribution_are_whole(name, zoo_audit):
    document = zoo_audit(name, "cpu")
    memory = document["memory"]
    assert memory["required_bytes"] >= memory["argument_bytes"] > 0
    assert memory["live_peak_bytes"] <= memory["required_bytes"]
    assert sum(row["flops"] for row in document["flops"]["by_scope"]) == document["flops"]["total"]


def test_a_reason_taken_away_opens_the_difference(zoo_audit, zoo_count):
    """The check can fail: without its reasons, an audit that needs them no longer agrees."""
    document, counted = zoo_audit("graph_network", "cpu"), zoo_count("graph_network")
    assert document["flops"]["total"] == counted.flops + explained(document)
    assert document["flops"]["total"] + 2 != counted.flops + explained(document)
    assert counted.flops > 0


def _gap(document, difference: int) -> str:
    rows = [
        f"{row['scope']} {row['phase']}: compiled - jaxpr {row['difference']}, unexplained {row['unexplained']}"
        for row in document["jaxpr"]["differences"]
        if row["unexplained"]
    ]
    return f"compiled - counted = {difference}, explained {explained(document)}\n" + "\n".join(rows)
