"""The publish gates hold for every model and phase; every line is there, and the command shows them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from subprocess import CompletedProcess
from typing import Any

import jsonschema
import pytest

from jaxcost.catalog import catalogue_names, load
from jaxcost.contracts.errors import RejectedError
from jaxcost.schema import schema
from jaxcost.verify.gates import CHECKS, SECTIONS, Package, items, outcome, run_gates, sentences
from jaxcost.verify.gates.outcome import GatesOutcome, hold_gates
from jaxcost.verify.gates.subjects import FEW, PLANS, catalogue, planned
from jaxcost.verify.request import VerifyRequest

# Lines of the gates of the cost-model document, counted there.
LINES = {
    "0x00F": 6, "0x01I": 6, "0x02J": 6, "0x03J": 5, "0x03K": 10, "0x04I": 5, "0x04J": 10, "0x05K": 10, "0x06J": 10,
    "0x07K": 10, "0x08D": 4, "0x09G": 6, "0x0AJ": 9, "0x0BE": 8, "0x0DA": 3, "0x0DD": 19,
}  # fmt: skip
# Grouped heads; windows and soft caps; learned positions; parallel and fused with one K/V head; norms of q and k.
FAMILIES = ("toy-tied", "gemma-2-2b", "gpt2", "falcon-7b", "qwen3-0.6b", "olmo-2-7b")


def broken(names: tuple[str, ...] | None, plans: Any) -> tuple[list[str], dict[str, int]]:
    """What is wrong with the cases of some models, and how many items each check looked at."""
    wrong: list[str] = []
    looked: Counter[str] = Counter()
    for found in catalogue(names, plans):
        for name, check in CHECKS.items():
            if check.over == "case":
                for item in items(check, found):
                    looked[name] += 1
                    if item:
                        wrong.append(f"{name}: {found.name}: {item}")
    return wrong, dict(looked)


@pytest.fixture(scope="module")
def whole() -> Package:
    """The package, read once."""
    return Package()


@pytest.fixture
def read_once(whole: Package, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the command look at the same package."""
    monkeypatch.setattr(outcome, "run_gates", partial(run_gates, package=whole))


def test_every_line_of_every_gate_is_there() -> None:
    assert Counter(line.section for line in sentences()) == LINES
    assert list(SECTIONS) == list(LINES)
    texts = [line.text for line in sentences() if not line.reason]
    assert all(texts) and all(line.reason or line.checks for line in sentences())


def test_every_check_stands_behind_a_line_and_every_line_on_checks_there_are() -> None:
    assert {name for line in sentences() for name in line.checks} == set(CHECKS)


def test_the_gates_hold_in_every_phase_of_the_families() -> None:
    wrong, looked = broken(FAMILIES, FEW)
    assert wrong == []
    assert looked["row.object"] > 3000


def test_every_model_of_the_catalogue_takes_every_plan() -> None:
    for name in catalogue_names():
        architecture = load(name).architecture
        for plan in PLANS:
            planned(architecture, plan)


@pytest.mark.slow
def test_the_gates_hold_for_every_model_and_phase() -> None:
    wrong, looked = broken(None, PLANS)
    assert wrong == []
    idle = {name for name, check in CHECKS.items() if check.over == "case" and not looked.get(name)}
    assert idle == set()


def test_the_results_say_what_holds_and_why_a_line_is_not_checked(whole: Package) -> None:
    found = run_gates(catalogue(["toy-tied"], FEW), whole)
    by_status = Counter(result.status for result in found)
    assert by_status["broken"] == 0
    assert by_status["not checkable"] == sum(bool(line.reason) for line in sentences()) == 11
    idle = {result.sentence.id for result in found if result.status == "nothing to check"}
    assert idle <= {"0x0DD/17"}  # no page has a picture
    assert all(result.checked for result in found if result.status == "holds")


def test_a_broken_line_gives_exit_code_1(read_once: None, monkeypatch: pytest.MonkeyPatch) -> None:
    unnamed = replace(CHECKS["row.object"], run=lambda found: iter(["a row has no object"]))
    monkeypatch.setitem(CHECKS, "row.object", unnamed)
    found = hold_gates(VerifyRequest(models=("toy-tied",), case_options={"phase": "prefill", "seq": 4}, gates=True))
    assert found.exit_code == 1
    lines = {result.sentence.id: result for result in found.gates if result.status == "broken"}
    assert set(lines) == {"0x00F/1", "0x03K/1"}
    assert lines["0x00F/1"].problems == ("toy-tied prefill: a row has no object",)


def test_what_cannot_be_read_is_broken_and_no_fault_of_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(found: Any) -> Any:
        yield {}["fields"]

    check = replace(CHECKS["row.object"], run=lost)
    assert list(items(check, None)) == ["row.object cannot be checked: KeyError: 'fields'"]


def test_one_case_is_held_where_one_is_given(read_once: None) -> None:
    found = hold_gates(VerifyRequest(models=("toy-tied",), case_options={"phase": "decode", "past": 3}, gates=True))
    assert isinstance(found, GatesOutcome) and found.cases == ("toy-tied decode",)
    with pytest.raises(RejectedError):
        hold_gates(VerifyRequest(case_options={"phase": "decode", "past": 3}, gates=True))
    with pytest.raises(RejectedError):
        hold_gates(VerifyRequest(models=("no-such-model",), gates=True))


def test_a_package_without_pages_has_nothing_to_check_there() -> None:
    bare = Package()
    bare.__dict__["pages"] = {}
    assert [list(items(CHECKS[name], bare)) for name in ("pages.links", "pages.delimiters")] == [[], []]


def test_the_command_prints_a_document_of_its_schema(run_jaxcost: Callable[..., CompletedProcess[str]]) -> None:
    done = run_jaxcost("verify", "toy-tied", "--phase", "prefill", "--seq", "4", "--gates", "--json")
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    jsonschema.validate(data, schema("jaxcost.verify.v1"))
    assert data["gate_cases"] == ["toy-tied prefill"] and len(data["gates"]) == sum(LINES.values())
    assert {"id", "section", "title", "gate", "checks", "checked", "status"} <= set(data["gates"][0])


@pytest.mark.parametrize("options", [["--target", "cpu:1"], ["--failures"], ["--suite", "default"], ["--proofs"]])
def test_what_has_no_part_in_it_is_refused(
    options: list[str], run_jaxcost: Callable[..., CompletedProcess[str]]
) -> None:
    assert run_jaxcost("verify", "toy-tied", "--gates", *options).returncode == 2
