"""`jaxcost sensitivity`: its table, document, page, refusals and exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from jaxcost.cli.program import main
from jaxcost.planning.sensitivity import observed
from jaxcost.schema import schema

BASE = ("sensitivity", "toy-tied", "--phase", "prefill", "--seq", "4")
RUNNING = ("sensitivity", "running", "--phase", "prefill", "--seq", "4096")


def document(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main([*words, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    jsonschema.validate(data, schema("jaxcost.sensitivity.v1"))
    assert isinstance(data, dict)
    return data


def test_each_set_is_a_case_and_a_vector_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    data = document(capsys, *BASE, "--set", "kv_heads=1", "--set", "batch=8", "--vector", "batch=8,visible=8")
    assert [item["name"] for item in data["cases"]] == ["kv_heads 2 -> 1", "batch 1 -> 8"]
    [vector] = data["vectors"]
    assert (vector["kind"], vector["name"]) == ("vector", "batch 1 -> 8, visible 4 -> 8")
    assert data["base_digest"]["before"] == data["base_digest"]["after"] == data["case"]["digest"]
    assert not data["default_surface"] and data["exit_code"] == 0
    rows = {row["path"]: row for row in data["cases"][0]["totals"]}
    assert rows["parameters.unique"]["difference"] == -64 and not rows["parameters.unique"]["invariant"]
    peak = rows["activations.peak_bytes"]  # the manifest supplies events, and they are of the base
    assert (peak["base"], peak["value"], peak["difference"]) == (448, None, None) and "of the base" in peak["reason"]


@pytest.mark.parametrize("phase", ["prefill --seq 4", "decode --past 7", "training --seq 4 --batch 8"])
def test_the_default_surface_fits_the_schema(capsys: pytest.CaptureFixture[str], phase: str) -> None:
    assert document(capsys, "sensitivity", "toy-tied", "--phase", *phase.split())["default_surface"]


def test_the_schema_can_fail(capsys: pytest.CaptureFixture[str]) -> None:
    data = document(capsys, *BASE, "--set", "kv_heads=1")
    data["cases"][0]["totals"][0]["value"] = 1.5
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(data, schema("jaxcost.sensitivity.v1"))


def test_the_table_has_ratios_differences_dashes_and_derivatives(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    sets = ("kv_heads=1", "tied=yes", "mesh=tensor=8")
    assert main([*RUNNING, *(word for text in sets for word in ("--set", text))]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "tied no -> yes 0.935x 0.935x - - - - 0.935x 0.935x" in lines
    assert "mesh none -> tensor=8 - - - - - +2.03 GiB 0.125x 0.125x" in lines
    assert "kv_heads 8 -> 1 unique parameters 8,030,261,248 7,795,380,224 -234,881,024 0.971x" in lines
    text = "\n".join(lines)
    assert "d/dK = 2*L*d*E = 33,554,432; linear: times -7 is the difference, exactly" in text
    assert "invariant, which is not no effect at run time" in text and "the same after all cases" in text


def test_a_narrow_terminal_keeps_the_names(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main([*BASE, "--set", "kv_heads=1"]) == 0
    text = capsys.readouterr().out
    assert text.count("kv_heads 2 -> 1") > 3 and max(map(len, text.splitlines())) <= 80


def test_rows_shows_every_total_that_moves(capsys: pytest.CaptureFixture[str]) -> None:
    for rows, shown in ((("--rows",), True), ((), False)):
        assert main([*BASE, "--set", "kv_heads=1", *rows]) == 0
        assert ("traffic.gemm_one_pass_bytes" in capsys.readouterr().out) == shown


def test_without_formulas_there_are_no_derivatives(capsys: pytest.CaptureFixture[str]) -> None:
    data = document(capsys, *BASE, "--set", "kv_heads=1", "--no-formulas")
    assert all("derivative" not in row for row in data["cases"][0]["totals"])


def test_quiet_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*BASE, "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")


def test_the_fields_are_listed_and_with_a_case_their_values(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sensitivity", "--fields", "--json"]) == 0
    bare = json.loads(capsys.readouterr().out)["fields"]
    assert {"kv_heads", "mesh", "visible"} <= {entry["field"] for entry in bare}
    assert all("value" not in entry for entry in bare)
    assert main([*BASE, "--fields", "--json"]) == 0
    valued = {entry["field"]: entry for entry in json.loads(capsys.readouterr().out)["fields"]}
    assert valued["kv_heads"]["value"] == 2 and valued["architecture.groups.0.layer.mlp.bias"]["value"] is False
    assert main(["sensitivity", "--fields"]) == 0
    assert "key/value rows a query sees" in capsys.readouterr().out


REFUSED = {
    "second field": (*BASE, "--set", "kv_heads=1,batch=8"),
    "unsupported": (*BASE, "--set", "colour=red"),
    "no-op": (*BASE, "--set", "kv_heads=2"),
    "divisibility": (*BASE, "--set", "kv_heads=3"),
    "shard degree": (*BASE, "--set", "mesh=tensor=3"),
    "wrong type": (*BASE, "--set", "batch=two"),
    "a vector of one": (*BASE, "--vector", "batch=2"),
    "no form": (*BASE, "--set", "batch"),
    "empty": (*BASE, "--set", ""),
    "target of another size": (*BASE, "--set", "mesh=tensor=2", "--target", "cpu:1"),
    "no target": (*BASE, "--set", "batch=2", "--target", "abacus"),
    "timeout": (*BASE, "--timeout", "0"),
    "memory text": (*BASE, "--memory", "much"),
    "html folder": (*BASE, "--html", "no/such/page.html"),
    "no model": ("sensitivity", "--set", "batch=2"),
    "past rows of a prompt as an option": (*BASE, "--past", "4"),
    "broken base": ("sensitivity", "toy-tied", "--phase", "prefill", "--seq", "0"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_says_path_rule_and_remedy(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*REFUSED[name], "--json"]) == 2
    errors = json.loads(capsys.readouterr().out)["errors"]
    assert all(error["rule"] and error["remedy"] and "value" in error for error in errors)
    assert main([*REFUSED[name]]) == 2
    out, err = capsys.readouterr()
    assert not out and err.startswith("rejected: ")


def test_past_rows_of_a_prompt_point_to_the_field_that_has_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", "toy-tied", "--phase", "prefill", "--seq", "4", "--past", "4"]) == 2
    assert "jaxcost sensitivity --set visible=N" in capsys.readouterr().err


@pytest.mark.parametrize("opened", [False, True], ids=["closed", "open"])
def test_an_observed_difference_that_is_open_ends_with_1(
    opened: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    right = observed.difference_row

    def one_off(before: Any, after: Any) -> Any:
        from dataclasses import replace

        row = right(before, after)
        return replace(row, observation=row.observation + 1) if opened and row.counter == "argument_bytes" else row

    monkeypatch.setattr(observed, "difference_row", one_off)
    page = tmp_path / "page.html"
    code = main([*BASE, "--set", "kv_heads=1", "--target", "cpu", "--json", "--html", str(page)])
    data = json.loads(capsys.readouterr().out)
    jsonschema.validate(data, schema("jaxcost.sensitivity.v1"))
    assert code == data["exit_code"] == int(opened)
    rows = {row["counter"]: row for row in data["observed"][0]["rows"]}
    assert rows["matmul_flops"]["status"] == "exact" and rows["matmul_flops"]["base"]["status"]
    assert rows["argument_bytes"]["status"] == ("open" if opened else "exact")
    assert "observed differences" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("words", [("--set", "batch=8"), ("--vector", "batch=8,kv_heads=1"), ("--target", "cpu"),
                                   ("--html", "page.html"), ("--rows",)])  # fmt: skip
def test_a_list_of_fields_varies_nothing(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*BASE, "--fields", *words, "--json"]) == 2
    [error] = json.loads(capsys.readouterr().out)["errors"]
    assert error["path"] == words[0] and error["remedy"] == f"leave out {words[0]}"
