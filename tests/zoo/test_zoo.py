"""Programs that no one here wrote: audited without a crash, and their FLOPs agree with the independent count.

The count (tests/zoo/count.py) runs the traced program; the audit reads the compiled one. Where the two differ, the
audit must say why: each reason is the FLOPs of instructions or equations that it names. What is then left is an open
gap; the gaps known today are listed below, so that closing one fails here until it is taken off the list.
"""

from __future__ import annotations

import copy
import json

import pytest

from tests.zoo.programs import ZOO
from tests.zoo.table import README, RESULTS, TARGETS, render

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
    total = document["flops"]["total"]
    assert total == counted.total + explained(document), _gap(document, total - counted.total)
    assert not any(row["unexplained"] for row in document["jaxpr"]["differences"])  # nor in any place


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in FAST else [pytest.mark.slow]) for n in ZOO])
def test_the_jaxpr_count_is_what_was_executed(name, zoo_audit, zoo_count):
    """The audit's own count of the traced program, by formulas and derived trips, against the one that ran."""
    assert zoo_audit(name, "cpu")["jaxpr"]["flops"] == zoo_count(name).total


@pytest.mark.parametrize("name", sorted(FAST))
def test_memory_and_attribution_are_whole(name, zoo_audit):
    document = zoo_audit(name, "cpu")
    memory = document["memory"]
    assert memory["required_bytes"] >= memory["argument_bytes"] > 0
    assert memory["live_peak_bytes"] <= memory["required_bytes"]
    assert sum(row["flops"] for row in document["flops"]["by_scope"]) == document["flops"]["total"]


@pytest.mark.cuda
def test_a_reason_taken_away_opens_the_difference(zoo_audit, zoo_count):
    """The check can fail: an audit that needs its reasons no longer agrees without them."""
    document, counted = zoo_audit("equinox_mixed", "h100"), zoo_count("equinox_mixed")
    assert document["flops"]["total"] == counted.total + explained(document)
    without = copy.deepcopy(document)
    for row in without["jaxpr"]["differences"]:
        row["reasons"] = []
    assert without["flops"]["total"] != counted.total + explained(without)


def test_a_program_is_audited_by_its_name(run_jaxcost, zoo_program, zoo_count):
    zoo_program("graph_attention")  # skips where its package is missing
    ran = run_jaxcost("audit", "--function", "tests.zoo.programs:graph_attention", "--json", timeout=300)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["flops"]["total"] == zoo_count("graph_attention").total


def test_the_table_is_what_was_recorded():
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    assert set(results["programs"]) == set(ZOO)
    assert render(results) in README.read_text(encoding="utf-8")
    gaps = {(n, t) for n, row in results["programs"].items() for t in TARGETS if row["targets"][t]["unexplained"]}
    assert gaps == set(GAPS)


def _gap(document, difference: int) -> str:
    rows = [
        f"{row['scope']} {row['phase']}: compiled - jaxpr {row['difference']}, unexplained {row['unexplained']}"
        for row in document["jaxpr"]["differences"]
        if row["unexplained"]
    ]
    return f"compiled - counted = {difference}, explained {explained(document)}\n" + "\n".join(rows)
