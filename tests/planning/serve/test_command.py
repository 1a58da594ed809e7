"""`jaxcost plan serve`: its document, its exit codes, its table and page, and what it refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from jaxcost.cli import main
from jaxcost.cli.output import document
from jaxcost.planning.serve.omitted import OMITTED
from jaxcost.report.serve_plan_page import serve_plan_page
from jaxcost.schema import schema
from tests.planning.serve.plans import plan

LOADED = (
    "--prompt", "2000", "--output", "500", "--rate", "8", "--ttft", "0.5", "--tpot", "0.02", "--link", "inside",
    "--draft", "llama-3.2-1b", "--speculate", "3", "--acceptance", "0.7", "--against", "llama-3.1-70b",
    "--train-tokens", "15e12", "--against-train-tokens", "1e12", "--train-utilization", "0.4",
    "--prefill-utilization", "0.4", "--decode-utilization", "0.02", "--volume", "1e13", "--price", "3", "--currency",
    "USD", "--price-date", "2026-03-01", "--price-includes", "accelerators",
)  # fmt: skip


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["plan", "serve", *words])
    told = capsys.readouterr()
    return code, told.out, told.err


def ask(capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> dict[str, Any]:
    code, out, err = run(capsys, *words, "--json")
    assert code == status, err
    data: dict[str, Any] = json.loads(out)
    return data


@pytest.mark.parametrize(
    "words",
    [
        ("llama-3.1-8b", "--target", "h100:1"),
        ("llama-3.1-70b", "--target", "h100:8"),
        ("gemma-2-9b", "--target", "h100:1", "--next-n", "4", "--acceptance", "1"),
        ("llama-3.1-8b", "--target", "h100:2", "--tensor", "1", *LOADED),
        ("llama-3.1-8b", "--target", "tpu-v5e:2x2", "--kv-cache-dtype", "fp8"),
        ("phi-3-mini-4k", "--target", "h100:1", "--prompt", "10", "--output", "10", "--tpot", "0.000001"),
    ],
)
def test_documents_fit_the_schema(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    data = ask(capsys, *words)
    jsonschema.validate(data, schema("jaxcost.plan_serve.v1"))
    assert data["omitted"] == list(OMITTED) and len(data["answers"]) == 2
    assert all(figure["convention"] and figure["scope"] for figure in data["figures"])


def test_a_broken_document_does_not_fit() -> None:
    data = document("jaxcost.plan_serve.v1", **plan())
    jsonschema.validate(data, schema("jaxcost.plan_serve.v1"))
    for change in ({"omitted": []}, {"capacity": {**data["capacity"], "blocks": -1}}, {"more": 1}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**data, **change}, schema("jaxcost.plan_serve.v1"))


def test_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    data = ask(capsys, "llama-3.1-70b", "--target", "h100:1", status=1)
    assert not data["capacity"]["starts"] and data["capacity"]["blocks"] == 0
    jsonschema.validate(data, schema("jaxcost.plan_serve.v1"))
    assert run(capsys, "llama-3.1-8b", "--target", "h100:1", "--quiet") == (0, "", "")


@pytest.mark.parametrize(
    "words",
    [
        ("--max-model-len", "0"), ("--max-model-len", "-5"), ("--max-model-len", "1e9"), ("--max-model-len", "9" * 30),
        ("--gpu-memory-utilization", "nan"), ("--gpu-memory-utilization", "inf"), ("--gpu-memory-utilization", "1.1"),
        ("--gpu-memory-utilization", "0"), ("--gpu-memory-utilization", "-0.5"), ("--block-size", "0"),
        ("--block-size", "true"), ("--block-size", "16.0"), ("--kv-cache-dtype", "fp4"),
        ("--kv-cache-dtype", "\x1b[31m"),
        ("--weight-dtype", "int8"), ("--weight-scales", "channel"),
        ("--weight-dtype", "int8", "--weight-scales", "row"),
        ("--tensor", "3"), ("--tensor", "0"), ("--tensor", "1" * 40), ("--pipeline", "2"), ("--pipeline", "-1"),
        ("--activation-bytes", "-1"), ("--device-memory", "0"), ("--prompt", "5"), ("--rate", "1"),
        ("--prompt", "9000", "--output", "1"), ("--prompt", "100", "--output", "100", "--rate", "1e9"),
        ("--prompt", "100", "--output", "100", "--rate", "nan"),
        ("--prompt", "1", "--output", "1", "--link", "outside"),
        ("--prompt", "1", "--output", "1", "--link", "between"), ("--speculate", "3"), ("--acceptance", "0.5"),
        ("--next-n", "4", "--speculate", "9", "--acceptance", "0.5"), ("--next-n", "1", "--acceptance", "0.5"),
        ("--draft", "nobody", "--speculate", "3", "--acceptance", "0.5"),
        ("--draft", "qwen2.5-0.5b", "--speculate", "3", "--acceptance", "0.5"),
        ("--draft", "llama-3.2-1b", "--speculate", "3", "--acceptance", "1.5"),
        ("--utilization", "0.4"), ("--against", "llama-3.1-70b"), ("--inside-gbs", "0"), ("--inside-gbs", "nan"),
        ("--startup", "-1"), ("--arithmetic", "fp4"), ("--vocabulary-multiple", "0"), ("--max-num-seqs", "0"),
        ("--pipeline-layers", "a,b"), ("--pipeline-layers", "16,16"), ("--batch", "0"), ("--rotary-rows", "0"),
    ],
)  # fmt: skip
def test_hostile_input_is_refused(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "llama-3.1-8b", "--target", "h100:1", *words)
    assert code == 2, out
    assert "rejected: " in err and "Traceback" not in err and "\x1b" not in err and out == ""


@pytest.mark.parametrize("target", ["", "h100:0", "h100:-1", "h100:x", "nobody:1", "cpu:1", "h100:99999999999999"])
def test_targets_that_are_none(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "llama-3.1-8b", "--target", target)
    assert code == 2 and "rejected: " in err and out == ""


def test_problems_come_together(capsys: pytest.CaptureFixture[str]) -> None:
    words = "nobody --target h100:1 --block-size 0 --prompt 0 --output 1 --acceptance 2 --against x".split()
    code, _, err = run(capsys, *words)
    assert code == 2
    for name in ("nobody", "block_size", "prompt", "acceptance", "train_tokens"):
        assert name in err


def test_the_table_says_what_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    text = " ".join(run(capsys, "llama-3.1-8b", "--target", "h100:1")[1].split())
    for part in ("upper limit", "Maximum concurrency for 8,192 tokens per request: 56.24x", "not given: not subtracted",
                 "prefix sharing", "tokenizer", "the weights fit, so inference fits", "a cache formula"):  # fmt: skip
        assert part in text, part


def test_the_page_holds_both_pictures_and_asks_for_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    page = tmp_path / "serve.html"
    ask(capsys, "llama-3.1-8b", "--target", "h100:2", "--tensor", "1", *LOADED, "--html", str(page))
    text = page.read_text(encoding="utf-8")
    assert text.count("<svg") == 2 and "memory: batch 183" in text and "target 20 ms" in text
    assert not re.search(r"<script|src=|href=|url\(|https?://", text)
    assert "left out" in text and "limit from above" in text


def test_names_on_the_page_are_escaped() -> None:
    data = document("jaxcost.plan_serve.v1", **plan())
    text = serve_plan_page({**data, "model": "<script>alert(1)</script>"})
    assert "<script" not in text and "&lt;script&gt;" in text
