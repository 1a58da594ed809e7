"""Every failure row is caught; with its check removed it is missed, and the command says so with exit code 1."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import jsonschema
import pytest

from jaxcost.cli.output import document
from jaxcost.reconciliation import supplied
from jaxcost.reconciliation.rows import Row
from jaxcost.schema import schema
from jaxcost.verify.command import verify
from jaxcost.verify.failures import SECTIONS, Failure, failures, run_failures
from jaxcost.verify.failures.guards import Guard
from jaxcost.verify.request import VerifyRequest
from tests.verify.failure_tables import FURTHER, TABLES

ENTRIES = [(f"{name}/{n}", *entry) for name, rows in TABLES.items() for n, entry in enumerate(rows, start=1)]


@pytest.mark.parametrize(("row", "title", "word"), ENTRIES)
def test_every_row_of_every_table_is_there_and_caught(row: str, title: str, word: str) -> None:
    [found] = run_failures([row])
    assert word.lower() in f"{found.fault} {found.symptom}".lower(), title
    assert found.status == "caught", found.reason


def test_no_row_stands_outside_of_a_section() -> None:
    rows_of = Counter(row.id.split("/")[0] for row in failures() if row.id.split("/")[1].isdigit())
    assert rows_of.keys() == SECTIONS.keys() == TABLES.keys() | FURTHER.keys()
    found = {row.id for row in failures()}
    assert {row for row, _, _ in ENTRIES} <= found
    assert all(rows_of[name] >= least for name, least in FURTHER.items())
    assert len({row.id for row in failures()}) == len(failures())


def test_every_entry_has_its_four_parts() -> None:
    found = run_failures()
    assert [row for row in found if row.status != "caught"] == []
    for row in found:
        assert row.fault and row.symptom and row.check and row.outcome and row.guard
    json.dumps([row.to_dict() for row in found], allow_nan=False)


@pytest.mark.parametrize("row", failures(), ids=lambda row: row.id)
def test_without_its_guard_a_row_is_missed(row: Failure) -> None:
    """The fault goes through just as the sound input does; put back, the guard catches it again."""
    with row.guard.removed():
        open_door = row.result()
    assert open_door.status == "missed"
    assert open_door.outcome in row.passes
    assert open_door.reason.startswith("the faulty input")
    assert row.result().status == "caught"


@pytest.mark.parametrize(
    "target", ["jaxcost.contracts.case:Case._no_such_rule", "jaxcost.verify.holding:PROPERTIES.no"]
)
def test_a_guard_that_is_not_there_is_no_guard(target: str) -> None:
    with pytest.raises((AttributeError, KeyError)), Guard(target).removed():
        pass


def no_difference(*arguments: Any) -> list[str]:
    return []


def test_a_missed_row_makes_the_command_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    good = verify(VerifyRequest(failures=True))
    assert good.exit_code == 0
    monkeypatch.setattr(supplied, "_differences", no_difference)
    bad = verify(VerifyRequest(failures=True))
    assert bad.exit_code == 1
    jsonschema.validate(document("jaxcost.verify.v1", **bad.to_dict()), schema("jaxcost.verify.v1"))
    entries = {row["id"]: row for row in bad.to_dict()["failures"]}
    assert entries["0x0AH/1"]["status"] == "missed"
    assert {"fault", "symptom", "check", "status"} <= entries["0x0AH/1"].keys()


def test_a_row_whose_sound_input_fails_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check that refuses everything catches nothing."""
    monkeypatch.setattr(Row, "status", property(lambda self: "open"))
    assert {row.status for row in run_failures(["0x0AH/1", "0x0DA/4"])} == {"missed"}
