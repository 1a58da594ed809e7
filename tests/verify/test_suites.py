"""Suites, claims and known gaps: a broken claim, a claim nothing tested, a gap that lapsed each fail the run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jaxcost.cli import main
from jaxcost.contracts.errors import RejectedError, UnavailableError
from jaxcost.reconciliation.rows import Explanation, Report, Row
from jaxcost.verify import command
from jaxcost.verify.suites import Claim, Gap, check_claims, covers, load_claims, load_suite
from tests.reconciliation.recorded import named, observed
from tests.verify.test_command import NoPool

Capture = pytest.CaptureFixture[str]
CASE = """
[[case]]
name = "toy"
model = "toy-tied"
targets = ["cpu"]
options = { phase = "training", batch = 2, seq = 8 }
"""


def report(*rows: Row, family: str = "cpu", name: str = "toy", target: str = "cpu:1") -> Report:
    return Report({}, target, {"family": family}, rows, (), name)


EXACT = Row("a.b", "", "", "u", 1, 1)
EXPLAINED = Row("a.b", "", "", "u", 1, 3, (Explanation(2, "r", "e"),))
OPEN = Row("a.b", "s", "p", "u", 1, 3)
UNMEASURED = Row("a.b", "", "", "u", 1, None)
XLA = Row("a.b", "", "", "u", 1, 3, verdict="wrong")


def claim(relation: str = "exact", counter: str = "a.*", family: str = "any") -> Claim:
    return Claim.from_data({"counter": counter, "family": family, "relation": relation, "reason": "because"})


def gap(row: str = "a.b:s:p", report: str = "*", target: str = "*") -> Gap:
    return Gap.from_data({"report": report, "target": target, "row": row, "explanation": "known", "lapses": "later"})


@pytest.mark.parametrize(
    ("made", "rows", "outcome"),
    [
        (claim("exact"), [EXACT], "holds"),
        (claim("explained"), [EXACT], "holds"),
        (claim("explained"), [EXPLAINED], "holds"),
        (claim("exact"), [EXPLAINED], "broken"),
        (claim("exact"), [EXACT, OPEN], "broken"),
        (claim("bounded"), [OPEN], "broken"),
        (claim("exact"), [], "unused"),
        (claim("exact"), [UNMEASURED], "unused"),
        (claim("exact"), [XLA], "unused"),
        (claim("exact", counter="c.*"), [EXACT], "unused"),
    ],
)
def test_claims(made: Claim, rows: list[Row], outcome: str) -> None:
    (result,) = check_claims([made], [], [report(*rows)], ["cpu"])
    assert result.outcome == outcome
    assert result.failed == (outcome != "holds")
    assert bool(result.rows) == (outcome == "broken")


def test_a_claim_about_a_family_that_was_not_compiled_for_is_left_out() -> None:
    assert check_claims([claim(family="tpu")], [], [report(EXACT)], ["cpu"]) == []
    (result,) = check_claims([claim(family="tpu")], [], [report(EXACT)], ["cpu", "tpu"])
    assert result.outcome == "unused"


def test_a_gap_admits_one_open_row_and_lapses_without_it() -> None:
    assert check_claims([], [gap()], [report(OPEN)], ["cpu"])[0].outcome == "holds"
    assert check_claims([], [gap()], [report(EXACT)], ["cpu"])[0].outcome == "lapsed"
    assert check_claims([], [gap(target="tpu*")], [report(OPEN)], ["cpu"])[0].outcome == "lapsed"
    assert covers(gap("a.b:*"), report(OPEN), OPEN)
    assert not covers(gap("a.c"), report(OPEN), OPEN)
    assert not covers(gap(report="other"), report(OPEN), OPEN)


def test_the_exit_code_of_a_run_admits_what_a_gap_covers_and_no_more() -> None:
    other = Row("a.c", "", "", "u", 1, 3)
    assert command.VerifyResult((report(OPEN),)).exit_code == 1
    assert command.VerifyResult((report(OPEN),), gaps=(gap(),)).exit_code == 0
    assert command.VerifyResult((report(OPEN, other),), gaps=(gap(),)).exit_code == 1
    assert command.VerifyResult((report(OPEN),), gaps=(gap("a.c"),)).exit_code == 1
    assert command.VerifyResult((report(OPEN),), gaps=(gap(),)).status == "open"  # admitted, and still said


# Files ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def recorded_compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The compiler answers with the recorded training step of the toy."""
    monkeypatch.setattr(command, "Pool", NoPool)
    monkeypatch.setattr(command, "_calibrate", lambda pool: None)
    name = named("toy-tied_training_cpu")
    monkeypatch.setattr(command, "observe_many", lambda wishes, pool: [observed(name) for _ in wishes])
    yield


def run(folder: Path, text: str, *words: str) -> int:
    path = folder / "suite.toml"
    path.write_text(text, encoding="utf-8")
    return main(["verify", "--suite", str(path), "--json", *words])


CLAIM = '\n[[claim]]\ncounter = "{}"\nfamily = "{}"\nrelation = "{}"\nreason = "because"\n'
GAP = '\n[[gap]]\nreport = "*"\ntarget = "*"\nrow = "{}"\nexplanation = "known"\nlapses = "when mended"\n'


@pytest.mark.parametrize(
    ("more", "code", "outcome"),
    [
        ("", 0, None),
        (CLAIM.format("matmul_flops", "cpu", "exact"), 0, "holds"),
        (CLAIM.format("output_bytes", "cpu", "exact"), 1, "broken"),
        (CLAIM.format("nothing", "any", "exact"), 1, "unused"),
        (CLAIM.format("matmul_flops", "tpu", "exact"), 0, None),
        (GAP.format("matmul_flops"), 1, "lapsed"),
    ],
)
def test_a_suite_file_with_its_claims(
    recorded_compiler: None, tmp_path: Path, more: str, code: int, outcome: str | None, capsys: Capture
) -> None:
    assert run(tmp_path, CASE + more) == code
    data = json.loads(capsys.readouterr().out)
    assert [item["outcome"] for item in data["claims"]] == ([] if outcome is None else [outcome])
    assert [item["name"] for item in data["reports"]] == ["toy"]
    if code:
        assert main(["verify", "--suite", str(tmp_path / "suite.toml")]) == 1
        assert str(outcome) in capsys.readouterr().out


def test_a_selection_of_targets_tests_no_claims(recorded_compiler: None, tmp_path: Path, capsys: Capture) -> None:
    assert run(tmp_path, CASE + CLAIM.format("nothing", "any", "exact"), "--target", "cpu") == 0
    assert json.loads(capsys.readouterr().out)["claims"] == []


def test_the_default_suite_is_held_to_the_claims_of_the_room(
    recorded_compiler: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Capture
) -> None:
    path = tmp_path / "one.toml"
    path.write_text(CASE, encoding="utf-8")
    monkeypatch.setattr(command, "load_suite", lambda text: load_suite(str(path)))
    monkeypatch.setattr(command, "load_claims", lambda: ((claim("exact", "output_bytes"),), ()))
    assert main(["verify", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["claims"][0]["outcome"] == "broken"


def test_the_suites_and_claims_that_ship_are_whole() -> None:
    for name in ("default", "records"):
        suite = load_suite(name)
        assert suite.cases and not suite.claims
        assert len({case.name for case in suite.cases}) == len(suite.cases)
    claims, gaps = load_claims()
    assert claims and all(gap.explanation and gap.lapses for gap in gaps)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "case = 3",
        "[[case]]\nname = 'x'\n",
        CASE + "\n[other]\nx = 1\n",
        "claim = 3\n" + CASE,
        CASE.replace("targets", "target"),
        CASE.replace('["cpu"]', '"cpu"'),
        CASE.replace('["cpu"]', "[3]"),
        CASE.replace("options = {", "options = 3 #"),
        CASE + CLAIM.format("a", "gpu", "exact"),
        CASE + CLAIM.format("a", "any", "equal"),
        CASE + GAP.format("a").replace("lapses", "until"),
        CASE + "[[claim]]\n",
    ],
)
def test_a_malformed_suite_is_rejected_with_a_remedy(tmp_path: Path, text: str, capsys: Capture) -> None:
    assert run(tmp_path, text) == 2
    out, err = capsys.readouterr()
    assert all(item["remedy"] for item in json.loads(out)["errors"]) and "Traceback" not in out + err


def test_unknown_suites_say_which_there_are(tmp_path: Path) -> None:
    with pytest.raises(RejectedError, match="the suites are default, .*records"):
        load_suite("nightly")
    with pytest.raises(UnavailableError):
        load_suite(str(tmp_path / "none.toml"))


def test_a_suite_names_its_own_models(tmp_path: Path, capsys: Capture) -> None:
    words: list[Any] = ["verify", "toy-tied", "--phase", "prefill", "--seq", "4", "--suite", "default"]
    assert main(words) == 2
    assert "a suite names its own models" in capsys.readouterr().err
