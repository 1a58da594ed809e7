"""`jaxcost verify --proofs` from the outside: the table, the document, the page, and what it does not go with."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from jaxcost.schema import schema
from jaxcost.verify.proofs import PROOFS


def test_the_document_and_the_page(run_jaxcost, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    page = tmp_path / "proofs.html"
    done = run_jaxcost("verify", "--proofs", "--json", "--html", str(page))
    data = json.loads(done.stdout)
    jsonschema.validate(data, schema("jaxcost.verify.v1"))
    assert done.returncode == 0 and data["schema"] == "jaxcost.verify.v1" and data["status"] == "exact"
    assert [item["name"] for item in data["proofs"]] == [proof.name for proof in PROOFS]
    assert {item["status"] for item in data["proofs"]} == {"holds"}
    zero = next(item for item in data["proofs"] if item["name"] == "zero.stage_3.20_bytes")
    assert "L*d*F/n is whole" in zero["where"]
    text = page.read_text(encoding="utf-8")
    assert "megatron.equation_3" in text and f"{len(PROOFS)} of {len(PROOFS)} proofs hold" in text


def test_the_table(run_jaxcost) -> None:  # type: ignore[no-untyped-def]
    done = run_jaxcost("verify", "--proofs")
    assert done.returncode == 0 and f"{len(PROOFS)} of {len(PROOFS)} proofs hold for all sizes" in done.stdout
    assert "attn/softmax/dropout_mask B*S**2*H" in " ".join(done.stdout.split())


@pytest.mark.parametrize("beside", [["gpt2"], ["--failures"], ["--suite", "default"], ["--phase", "decode"]])
def test_what_it_does_not_go_with(beside: list[str], run_jaxcost) -> None:  # type: ignore[no-untyped-def]
    done = run_jaxcost("verify", "--proofs", *beside)
    assert done.returncode == 2 and "the proofs bring their own cases" in done.stderr
