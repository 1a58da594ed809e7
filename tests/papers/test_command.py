"""`jaxcost papers`: documents, tables, pages, exit codes, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from jaxcost.cli import main
from jaxcost.papers import registry as registry_module
from jaxcost.papers.registry import Registry, registry
from jaxcost.report.papers_page import papers_page
from jaxcost.schema import schema

Capture = pytest.CaptureFixture[str]
FIELDS = ("name", "coordinate", "operations", "backward", "replay", "ownership", "evidence", "source", "tables")


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "400")  # no text is broken over lines


@pytest.fixture
def document(capsys: Capture) -> Callable[..., Any]:
    def run(*arguments: str, code: int = 0) -> Any:
        assert main(["papers", *arguments, "--json"]) == code
        out, err = capsys.readouterr()
        assert not err
        data = json.loads(out)
        if code < 2:
            jsonschema.validate(data, schema("jaxcost.papers.v1"))
        return data

    return run


def plant(monkeypatch: pytest.MonkeyPatch, name: str, row: int, column: int, text: str) -> None:
    """Put another figure into a cell of a contract's first table."""
    contract = registry()[name]
    table = contract.tables[0]
    cells = list(table.rows[row])
    cells[column] = text
    rows = (*table.rows[:row], tuple(cells), *table.rows[row + 1 :])
    changed = contract.model_copy(update={"tables": (table.model_copy(update={"rows": rows}), *contract.tables[1:])})
    known = Registry(changed if item.name == name else item for item in registry().values())
    monkeypatch.setattr(registry_module, "registry", lambda: known)


def test_a_contract_s_document(document: Callable[..., Any]) -> None:
    data = document("megatron")
    [contract] = data["contracts"]
    assert set(FIELDS) <= contract.keys()
    assert {item["proof"]["status"] for item in contract["quantities"]} == {"exact", "explained"}
    cells = contract["tables"][0]["cells"]
    first = cells[0]
    assert (first["printed"], first["computed"]["value"]) == ("1.7", str(Fraction(1_652_226_048, 10**9)))
    assert first["ledgers"][0]["ledger"] == 1_652_230_656
    assert first["ledgers"][0]["formula"] == 1_652_226_048
    assert first["ledgers"][0]["differences"][0]["amount"] == -2 * 2304
    assert data["comparison"]["status"] == "not_comparable"
    assert {item["reason"] for item in data["comparison"]["open"]} == {"no target manifest"}


def test_every_contract_is_listed_and_nothing_is_open(document: Callable[..., Any]) -> None:
    data = document()
    assert [item["name"] for item in data["contracts"]] == list(registry())
    assert all(set(FIELDS) <= item.keys() for item in data["contracts"])
    assert data["status"] == "bounded"
    assert all(form["proof"] is None for item in data["contracts"] for form in item["quantities"])


def test_the_gate_in_a_document(document: Callable[..., Any]) -> None:
    data = document("--compare", "gpt2", "--seq", "64", "--batch", "2")
    kinds = {item["kind"]: item for item in data["comparison"]["kinds"]}
    assert data["comparison"]["target_case_id"] == data["case"]["digest"]
    assert data["case"]["workload"]["phase"] == "training"
    model = kinds["model_flops"]
    for item in model["claims"]:
        if item["open"]:
            assert item["value"] is None and item["differences"] == []
        else:
            assert item["value"] == model["ledger"] + sum(step["amount"] for step in item["differences"])
            assert item["ratio"] == pytest.approx(item["value"] / model["ledger"], rel=1e-12)
    assert model["rows"] == 128


def test_named_contracts_that_cannot_meet_make_exit_code_1(document: Callable[..., Any]) -> None:
    data = document("megatron", "korthikanti", "--compare", "llama-3.1-8b", "--seq", "64", code=1)
    assert data["status"] == "not_comparable"
    assert all(claim["value"] is None for kind in data["comparison"]["kinds"] for claim in kind["claims"])
    document("kaplan", "palm", "--compare", "llama-3.1-8b", "--seq", "64")
    document("palm", "--compare", "llama-3.1-8b", "--seq", "64")
    alone = document("chinchilla", "--compare", "llama-3.1-8b", "--seq", "64", code=1)
    assert alone["status"] == "not_comparable"
    some = document("--compare", "llama-3.1-8b", "--seq", "64")
    kinds = {kind["kind"]: kind["status"] for kind in some["comparison"]["kinds"]}
    assert kinds["model_flops"] == "partly_normalized" and kinds["state_bytes"] == "not_comparable"


def test_a_figure_that_is_not_reproduced_makes_exit_code_1(
    document: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    plant(monkeypatch, "megatron", 0, 0, "1.8")
    data = document("megatron", code=1)
    assert data["status"] == "open"
    assert [c["printed"] for t in data["contracts"][0]["tables"] for c in t["cells"] if c["status"] == "open"] == [
        "1.8"
    ]
    assert main(["papers", "megatron", "--quiet"]) == 1
    assert main(["papers", "kaplan", "--quiet"]) == 0
    assert main(["papers", "megatron"]) == 1
    assert "open" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "path"),
    [
        (("nobody",), "NAME"),
        (("zero", "zero"), "NAME"),
        (("zero", "--seq", "8"), "--seq"),
        (("--compare", "nobody", "--seq", "8"), "model"),
        (("--compare", "gpt2"), "seq"),
        (("--compare", "gpt2", "--seq", "nan"), "workload.new_tokens"),
        (("--compare", "gpt2", "--seq", "-1"), "workload.new_tokens"),
        (("zero", "--html", "/nowhere/at/all.html"), "--html"),
        (("--colour",), "--colour"),
    ],
)
def test_what_is_refused(arguments: tuple[str, ...], path: str, document: Callable[..., Any]) -> None:
    data = document(*arguments, code=2)
    assert data["schema"] == "jaxcost.rejected.v1"
    assert path in [item["path"] for item in data["errors"]]


def test_tables_for_a_reader(capsys: Capture) -> None:
    assert main(["papers", "chinchilla"]) == 0
    out = capsys.readouterr().out
    assert "without the final logits" in out and "not what appendix F says" in out and "0.99" in out
    assert main(["papers", "teaching-article"]) == 0
    out = capsys.readouterr().out
    assert "a composite source" in out and "+ 2*B*S*V*d" in out
    assert main(["papers", "--compare", "llama-3.1-8b", "--seq", "2048"]) == 0
    out = capsys.readouterr().out
    assert "errors of both signs cancel" in out and "groups its queries" in out
    assert main(["papers"]) == 0
    assert "not comparable as they stand" in capsys.readouterr().out


def test_pages_ask_the_network_for_nothing_and_escape_names(tmp_path: Path, capsys: Capture) -> None:
    one, two = tmp_path / "one.html", tmp_path / "two.html"
    assert main(["papers", "palm", "gqa", "--quiet", "--html", str(one)]) == 0
    assert main(["papers", "--compare", "gpt2", "--seq", "64", "--quiet", "--html", str(two)]) == 0
    assert capsys.readouterr().out == ""
    for path in (one, two):
        text = path.read_text(encoding="utf-8")
        assert "default-src 'none'" in text and "<script" not in text and "<svg" in text
        assert 'src="' not in text and "url(" not in text
    assert "in its rounding window" in one.read_text(encoding="utf-8")


def test_a_page_escapes_what_it_shows(document: Callable[..., Any]) -> None:
    data = document("palm")
    contract = data["contracts"][0]
    bad = "<img src=x onerror=alert(1)>"
    for key in ("name", "title", "architecture", "primary_object"):
        contract[key] = bad
    contract["findings"][0]["text"] = contract["symbols"][0]["meaning"] = contract["tables"][0]["title"] = bad
    contract["tables"][0]["cells"][0]["row"] = contract["tables"][0]["columns"][0]["title"] = bad
    assert "<img" not in papers_page({**data, "contracts": [contract, contract]})
    data = document("--compare", "gpt2", "--seq", "8")
    for claim in data["comparison"]["kinds"][2]["claims"]:
        claim["contract"] = claim["equation"] = bad
        for step in claim["differences"]:
            step["name"] = step["why"] = bad
        for item in claim["open"]:
            item["reason"] = bad
    assert "<img" not in papers_page(data)


def test_an_open_figure_is_seen_on_the_page(document: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, "pythia", 0, 4, "18915329")
    assert '<span class="open">open</span>' in papers_page(document("pythia", code=1))


def test_the_list_loads_neither_jax_nor_sympy(root: Path) -> None:
    script = (
        "import sys, jaxcost.cli as c; assert c.main(['papers']) == 0; "
        "print(sorted({'jax', 'sympy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("[]")


def test_the_example_of_the_page_runs(root: Path) -> None:
    page = (root / "docs" / "papers.md").read_text(encoding="utf-8")
    code = page.split("## From Python")[1].split("## ")[0]
    names: dict[str, Any] = {}
    exec("\n".join(line[4:] for line in code.splitlines() if line.startswith("    ")), names)
    assert names["found"].status == "bounded"
    assert names["compare"]([names["kaplan"], names["palm"]], names["case"]).status == "normalized"
