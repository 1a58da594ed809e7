"""`jaxcost show --formula` from the outside: each formula beside its number, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest
import sympy

from jaxcost.catalog import load
from jaxcost.cli import formula, main
from jaxcost.contracts.case import build_case
from jaxcost.prediction.forms import Form
from jaxcost.prediction.ledgers import FOLDS
from jaxcost.prediction.symbols import FORMULAS
from jaxcost.schema import schema

Capture = pytest.CaptureFixture[str]
CASE = ["--phase", "training", "--batch", "8", "--seq", "16", "--mesh", "data=2,fsdp=4", "--zero", "1"]


@pytest.fixture
def shown(capsys: Capture) -> Callable[..., Any]:
    """The document of `show ARGS --formula`."""

    def run(*arguments: str, code: int = 0) -> Any:
        assert main(["show", *arguments, "--formula", "--json"]) == code
        data = json.loads(capsys.readouterr().out)
        if code == 0:
            jsonschema.validate(data, schema("jaxcost.show.v1"))
        return data

    return run


def test_every_formula_gives_the_estimates_number(shown: Callable[..., Any], capsys: Capture) -> None:
    found = shown("llama-3.1-8b", *CASE, "--rows")["formula"]
    assert main(["estimate", "llama-3.1-8b", *CASE, "--json"]) == 0
    ledgers = json.loads(capsys.readouterr().out)["ledgers"]
    fields = {item["field"]: item for item in found["symbols"]}
    symbols = {item["symbol"]: sympy.Symbol(item["symbol"]) for item in found["symbols"]}
    values = {item["symbol"]: item["value"] for item in found["symbols"]}
    given = 0
    for item in found["totals"]:
        if item["formula"] is None:
            assert "peak" in item["path"] and item["reason"]
            continue
        ledger, _, rest = item["path"].partition(".")
        number: Any = ledgers[ledger]["totals"]
        while rest:  # a key may hold a dot of its own nowhere
            key, _, rest = rest.partition(".")
            number = number[key]
        assert item["value"] == item["substituted"] == number, item["path"]
        expression = sympy.sympify(item["formula"], locals=symbols)
        assert {str(name) for name in expression.free_symbols} == {fields[path]["symbol"] for path in item["fields"]}
        assert str(expression.subs(values)) == str(number), item["path"]
        given += 1
    assert given > 100 and {item["path"].split(".")[0] for item in found["totals"]} == set(FOLDS)
    rows = [row for name in FOLDS for row in ledgers[name]["rows"] if not row["object"].startswith("peak, ")]
    assert [row["value"] for row in found["rows"]] == [row["value"] for row in rows]
    assert all(row["substituted"] == row["value"] for row in found["rows"])
    assert fields["execution.mesh.fsdp"] == {"symbol": "fsdp", "field": "execution.mesh.fsdp", "value": 4}


def test_a_model_without_a_case(shown: Callable[..., Any]) -> None:
    body = shown("gemma-2-2b")
    assert set(body["formulas"]) == set(body["formula"]["phases"]) == {"training", "prefill", "decode"}
    assert set(body["formulas"]["training"]) <= set(FORMULAS)
    assert "Min(S, W)" in body["formulas"]["prefill"]["flops.forward_causal"]
    legend = {item["symbol"]: item for item in body["formula"]["symbols"]}
    assert legend["B"]["value"] is None and legend["B"]["reason"]
    assert legend["W"] == {"symbol": "W", "field": "architecture.groups.0.windows.0", "value": 4096}
    every = shown("gpt2", "--ledger", "primitives", "--ledger", "ownership")
    assert {path.split(".")[0] for path in every["formulas"]["decode"]} == {"primitives", "ownership"}
    assert every["formulas"]["training"]["primitives.by_phase.forward.log"] == "B*S"


def test_a_scope_shows_its_rows(shown: Callable[..., Any], capsys: Capture) -> None:
    words = ["gemma-2-2b", "--phase", "prefill", "--seq", "8192", "--ledger", "flops", "--scope", "group0/mlp"]
    found = shown(*words)["formula"]
    assert not found["totals"] and [row["formula"] for row in found["rows"]] == ["2*B*L*S*d*F"] * 3
    assert "W < S" in found["conditions"]["flops"]
    assert main(["show", *words, "--formula"]) == 0
    out = capsys.readouterr().out
    assert "2·B·L·S·d·F" in out and "architecture.groups.0.layer.mlp.width" in out and "They hold where W < S" in out


def test_the_table(capsys: Capture) -> None:
    assert main(["show", "llama-3.1-8b", "--formula", *CASE, "--ledger", "ownership", "--ledger", "device"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "16·d·(L·((2·E·(H + K) + 3·F)/fsdp + 2) + 2·V/fsdp + 1) + 4" in out
    assert "device: no formula for peak_bytes, peak_bytes_by_family" in out
    assert main(["show", "toy-tied", "--formula"]) == 0
    assert "of the case" in capsys.readouterr().out


def test_pipelines_and_lengths_say_that_they_are_numbers(capsys: Capture) -> None:
    words = ["--phase", "training", "--seq", "4", "--batch", "2", "--accumulate", "2", "--mesh", "pipeline=2"]
    assert main(["show", "toy-tied", "--formula", *words, "--ledger", "flops"]) == 0
    assert "execution.mesh.pipeline, workload.accumulate" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "path"),
    [
        (["gpt2", "--ledger", "flops"], "--ledger"),
        (["gpt2", "--phase", "decode"], "case options"),
        (["gpt2", "--formula", "--rows"], "--rows"),
        (["gpt2", "--formula", "--scope", "group0"], "--scope"),
        (["gpt2", "--formula", "--ledger", "flop"], "--ledger"),
        (["gpt2", "--formula", "--phase", "decode", "--past", "4", "--scope", "group7"], "--scope"),
        (["gpt2", "--formula", "--phase", "decode", "--past", "4", "--scope", "\x1b[31m"], "--scope"),
        (["gpt2", "--formula", "--batch", "2"], "phase"),
        (["gpt2", "--formula", "--phase", "prefill", "--seq", "4", "--batch", "0"], "workload.batch"),
        ([], "MODEL"),
        (["--formula"], "MODEL"),
    ],
)
def test_what_has_no_part_is_refused(words: list[str], path: str, capsys: Capture) -> None:
    assert main(["show", *words, "--json"]) == 2
    data = json.loads(capsys.readouterr().out)
    assert data["schema"] == "jaxcost.rejected.v1" and path in {error["path"] for error in data["errors"]}


def test_a_formula_that_gives_another_number_is_shown_and_exits_with_1(
    shown: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    real = formula.case_formulas

    def broken(*args: Any) -> Any:
        found = real(*args)
        first = found.of("flops.forward")
        object.__setattr__(first, "form", first.form + Form.of(1))  # type: ignore[operator]
        return found

    monkeypatch.setattr(formula, "case_formulas", broken)
    words = ["toy-tied", "--phase", "prefill", "--seq", "4", "--ledger", "flops"]
    (item,) = [item for item in shown(*words, code=1)["formula"]["totals"] if item["path"] == "flops.forward"]
    assert (item["value"], item["substituted"]) == (8960, 8961)
    assert main(["show", *words, "--formula"]) == 1
    assert "8,960, not 8,961" in capsys.readouterr().out


def test_the_manifest_alone_is_as_before(capsys: Capture) -> None:
    assert main(["show", "gpt2", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    jsonschema.validate(data, schema("jaxcost.show.v1"))
    assert "formula" not in data and data["digest"] == load("gpt2").architecture.digest


def test_the_formulas_of_a_case_need_neither_sympy_nor_jax() -> None:
    code = (
        "import sys; from jaxcost.cli import main; "
        "main(['show', 'gpt2', '--formula', '--phase', 'decode', '--past', '4', '--quiet']); "
        "print([name for name in ('jax', 'sympy', 'hypothesis') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_legend_has_every_symbol_that_a_condition_speaks_of() -> None:
    case = build_case(load("gemma-2-2b").architecture, {"phase": "prefill", "seq": 8192})
    data, _ = formula.formulas_of_case(case, ("flops",), None, False)
    assert any("rot" in text for texts in data["conditions"].values() for text in texts)
    (rot,) = [item for item in data["symbols"] if item["symbol"] == "rot"]
    assert rot["value"] == 256 and "rotary" in rot["field"]
