"""Every failure row is caught; with its check removed it is missed, and the command says so with exit code 1."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from jaxcost.contracts.architecture import Architecture
from jaxcost.contracts.observation import Observation
from jaxcost.reconciliation import rows, supplied
from jaxcost.reconciliation.rows import Row
from jaxcost.verify.command import verify
from jaxcost.verify.failures import failures, run_failures
from jaxcost.verify.properties import PROPERTIES
from jaxcost.verify.request import VerifyRequest

TABLES = {
    "0x02J": 11,
    "0x03K": 11,
    "0x04J": 13,
    "0x05K": 9,
    "0x07K": 12,
    "0x06J": 11,
    "0x09G": 10,
    "0x0AH": 5,
    "0x0DA": 12,
}


def test_every_row_of_every_table_is_there() -> None:
    rows_of = Counter(row.id.split("/")[0] for row in failures() if row.id.split("/")[1].isdigit())
    assert rows_of == TABLES
    assert len({row.id for row in failures()}) == len(failures())


def test_every_row_is_caught_or_says_why_it_is_not_reached() -> None:
    found = run_failures()
    assert [row for row in found if row.status == "missed"] == []
    for row in found:
        assert row.status in ("caught", "not reached")
        assert bool(row.reason) == (row.status == "not reached")
        assert row.fault and row.symptom and row.check
    later = {row.id for row in found if row.status == "not reached"}
    assert later == {"0x06J/10", "0x09G/3", "0x09G/10", "0x0DA/7", "0x0DA/8", "0x0DA/10", "0x0DA/12"}
    json.dumps([row.to_dict() for row in found], allow_nan=False)


@pytest.mark.parametrize(
    "name", sorted({row.check.removeprefix("property ") for row in failures()} & PROPERTIES.keys())
)
def test_without_a_property_its_rows_are_missed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = [row.id for row in failures() if row.check == f"property {name}"]
    monkeypatch.setitem(PROPERTIES, name, replace(PROPERTIES[name], check=lambda case: None))
    assert wanted
    assert {row.status for row in run_failures(wanted)} == {"missed"}


def no_difference(*arguments: Any) -> list[str]:
    return []


def blind(*arguments: Any, **more: Any) -> tuple[()]:
    return ()


REMOVED: dict[str, tuple[Any, str, Any, list[str]]] = {
    "stored axes": (supplied, "_differences", no_difference, ["0x0AH/1", "0x0DA/1"]),
    "storage identity": (supplied, "_tie_differences", no_difference, []),
    "evidence classes": (Observation, "problems", blind, ["0x0AH/4", "0x0DA/3", "0x09G/2"]),
    "residuals": (rows.Row, "status", property(lambda self: "exact"), ["0x0AH/3", "0x0DA/4", "0x0DA/11", "0x05K/1"]),
    "unknown keys": (Architecture, "from_data", classmethod(lambda cls, data, where="": data), ["0x02J/11"]),
}


@pytest.mark.parametrize("name", REMOVED)
def test_without_a_check_its_rows_are_missed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, attribute, nothing, ids = REMOVED[name]
    monkeypatch.setattr(owner, attribute, nothing)
    assert {row.status for row in run_failures(ids) if ids} <= {"missed"}


def test_a_missed_row_makes_the_command_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    good = verify(VerifyRequest(failures=True))
    assert good.exit_code == 0
    monkeypatch.setattr(supplied, "_differences", no_difference)
    bad = verify(VerifyRequest(failures=True))
    assert bad.exit_code == 1
    entries = {row["id"]: row for row in bad.to_dict()["failures"]}
    assert entries["0x0AH/1"]["status"] == "missed"
    assert {"fault", "symptom", "check", "status"} <= entries["0x0AH/1"].keys()


def test_a_row_whose_sound_input_fails_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check that refuses everything catches nothing."""
    monkeypatch.setattr(Row, "status", property(lambda self: "open"))
    assert {row.status for row in run_failures(["0x0AH/1", "0x0DA/4"])} == {"missed"}
