"""`jaxcost roofline`: its document, table, page, exit codes, and the compiler's estimate beside it."""

from __future__ import annotations

import html
import json
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from jaxcost.catalog import load_architecture, manifest_toml
from jaxcost.cli import main
from jaxcost.contracts.errors import RejectedError
from jaxcost.data import room
from jaxcost.planning.compiler_time import compiler_time, from_compile
from jaxcost.schema import schema

TRAIN = ("llama-3.2-1b", "--phase", "training", "--batch", "64", "--seq", "1024", "--device", "h100")
TOY = ("toy-tied", "--phase", "training", "--seq", "16", "--device", "tpu-v5e")


def document(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> dict[str, Any]:
    assert main(["roofline", *words, "--json"]) == code
    data: dict[str, Any] = json.loads(capsys.readouterr().out)
    return data


@pytest.mark.parametrize(
    "words",
    [
        TRAIN,
        (*TRAIN, "--mesh", "fsdp=8", "--overlap", "0.5", "--startup", "1e-5"),
        (*TRAIN, "--mesh", "data=4,fsdp=4,tensor=2", "--device", "h100:4x8", "--remat", "block"),
        (*TRAIN, "--mesh", "data=4,fsdp=4,tensor=2", "--between-gbs", "50", "--overlap", "data=1,fsdp=0.9"),
        (*TRAIN, "--measured", "4.5"),
        ("llama-3.2-1b", "--phase", "decode", "--past", "4095", "--device", "tpu-v5e", "--attention", "blockwise"),
        ("llama-3.2-1b", "--phase", "prefill", "--seq", "512", "--precision", "fp32_inference", "--device", "a100"),
    ],
)
def test_documents_fit_the_schema(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    data = document(capsys, *words)
    jsonschema.validate(data, schema("jaxcost.roofline.v1"))
    step = data["step"]
    assert step["flops"] == sum(op["flops"] for op in data["ops"]) == sum(s["flops"] for s in data["scopes"])
    known = all(value is not None for value in step["seconds"].values())
    assert bool(step["reason"]) != known, "an unknown time has its reason"
    assert data["compiler"]["seconds"] is None and data["compiler"]["reason"]


def test_the_schema_can_fail(capsys: pytest.CaptureFixture[str]) -> None:
    data = document(capsys, *TRAIN)
    for broken in (
        {**data, "ops": [{**data["ops"][0], "flops": 1.5}]},
        {**data, "step": {key: value for key, value in data["step"].items() if key != "reason"}},
        {**data, "compiler": {}},
        {**data, "more": 1},
    ):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(broken, schema("jaxcost.roofline.v1"))


def test_the_table_names_bounds_and_says_what_they_are_not(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["roofline", *TRAIN, "--mesh", "fsdp=8"]) == 0
    text = capsys.readouterr().out
    for part in (
        "989.4 TFLOP/s, nvidia-h100-sxm5-80gb, dense bf16, matrix path, recorded",
        "ridge against device memory: 295.3 FLOP/byte at 3,350 GB/s",
        "none of them bounds a real program from above",
        "no overlap of communication with arithmetic is declared",
        "1,979 and 3,958 with sparsity",
        "no startup of a collective is declared",
        "left out: elementwise ops",
    ):
        assert part in text, part


def test_a_measured_time_that_cannot_be_is_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["roofline", *TRAIN, "--measured", "0.0001"]) == 1
    text = " ".join(capsys.readouterr().out.split())
    assert "INCONSISTENT" in text and "was not waited for" in text
    data = document(capsys, *TRAIN, "--measured", "0.0001", code=1)
    jsonschema.validate(data, schema("jaxcost.roofline.v1"))
    assert data["measured"]["mfu"]["value"] > 1
    assert main(["roofline", *TRAIN, "--measured", "9", "--quiet"]) == 0


@pytest.mark.parametrize(
    ("words", "path"),
    [
        ((), "--device"),
        (("--device", "h1000"), "device"),
        (("--device", "h100:4"), "--device"),
        (("--device", "h100", "--overlap", "1.5"), "overlap"),
        (("--device", "h100", "--overlap", "fsdp=0.5"), "overlap"),
        (("--device", "h100", "--overlap", "=0.5"), "--overlap"),
        (("--device", "h100", "--measured", "nan"), "measured_seconds"),
        (("--device", "h100", "--measured", "0"), "measured_seconds"),
        (("--device", "h100", "--measured", "1e99"), "measured_seconds"),
        (("--device", "h100", "--startup", "-1"), "startup_seconds"),
        (("--device", "h100", "--between-gbs", "fast"), "between_gb_per_s"),
        (("--device", "h100", "--peak-type", "fp8"), "dtype"),
        (("--device", "h100", "--peak-path", "vector"), "dtype"),
        (("--device", "h100", "--devices-per-node", "0"), "devices_per_node"),
        (("--device", "h100", "--replay", "."), "--replay"),
        (("--device", "h100", "--target", "tpu-v5e", "--replay", "/nowhere"), "record"),
        (("--device", "h100", "--html", "/nowhere/page.html"), "--html"),
    ],
)
def test_what_cannot_be_answered_is_refused(
    words: tuple[str, ...], path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["roofline", "toy-tied", "--phase", "training", "--seq", "16", *words, "--json"])
    data = json.loads(capsys.readouterr().out)
    assert code in (2, 3)
    assert any(path in problem["path"] for problem in data["errors"]), data
    assert all(problem["remedy"] for problem in data["errors"])


def test_the_sequence_length_is_never_the_model_s_largest(capsys: pytest.CaptureFixture[str]) -> None:
    """A rate over the largest context (202,752 rows where 2,048 ran) is off by 99 on the linear term."""
    assert main(["roofline", "llama-3.1-8b", "--phase", "training", "--device", "h100", "--json"]) == 2
    assert any("seq" in problem["path"] or "new_tokens" in problem["path"]
               for problem in json.loads(capsys.readouterr().out)["errors"])  # fmt: skip


def test_the_page_stands_alone_and_escapes_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evil = "<script>alert(1)</script>"
    manifest = tmp_path / "model.toml"
    manifest.write_text(manifest_toml(load_architecture("toy-tied").replaced(name=evil)))
    page = tmp_path / "page.html"
    words = ("--phase", "training", "--seq", "16", "--batch", "8", "--mesh", "fsdp=4", "--device", "h100",
             "--measured", "0.01", "--html", str(page), "--quiet")  # fmt: skip
    assert main(["roofline", str(manifest), *words]) == 0
    text = page.read_text(encoding="utf-8")
    assert evil not in text and html.escape(evil) in text
    assert "<script" not in text and not re.search(r"(src|href)=", text)
    assert text.count('<svg class="roof"') == 2, "device memory and the node's links"
    assert "measured step" in text and "ridge" in text


def test_the_compiler_s_estimate_says_what_it_covers(capsys: pytest.CaptureFixture[str]) -> None:
    """From a recorded compile: XLA's figure as it stands, and that the layers are a loop whose body counts once."""
    words = ("toy-tied", "--phase", "training", "--batch", "2", "--seq", "8", "--device", "tpu-v5e")
    data = document(capsys, *words, "--target", "tpu-v5e", "--replay", str(room("hlo_dumps")))
    jsonschema.validate(data, schema("jaxcost.roofline.v1"))
    record = json.loads((room("hlo_dumps") / "toy-tied_training_tpu-v5e-1x1_62ac7e0b.json").read_text())
    recorded = record["observed"]["compiler"]["raw"]["cost_analysis"]["optimal_seconds"]
    assert (data["compiler"]["target"], data["compiler"]["seconds"]) == ("tpu-v5e:1x1", recorded)
    assert data["compiler"]["covers"] == "loop bodies once"


@pytest.mark.parametrize(
    ("value", "loops", "family", "covers"),
    [
        (0.5, 0, "tpu", "step"),
        (0.5, 2, "tpu", "loop bodies once"),
        (-11.0, 0, "tpu", "nothing"),
        (0.0, 0, "tpu", "nothing"),
        (None, 0, "tpu", "nothing"),
        (0.5, 0, "cpu", "nothing"),
        (float("nan"), 0, "tpu", "nothing"),
    ],
)
def test_an_estimate_that_is_no_time_covers_nothing(value: Any, loops: int, family: str, covers: str) -> None:
    from jaxcost.observation.observed import Observed

    table = {} if value is None else {"optimal_seconds": value}
    data = {
        "status": "observed", "reason": "", "target": {"text": f"{family}:1", "family": family},
        "compiler": {"raw": {"cost_analysis": table, "cost_analysis_reason": ""}}, "hlo": {"loops": [{}] * loops},
    }  # fmt: skip
    found = compiler_time(Observed(data))
    assert found.covers == covers
    assert found.reason


CYCLES = {
    "target": "tpu-v5e:1x1", "failed": "", "cost_analysis": {"optimal_seconds": 0.5},
    "cost_analysis_reason": "", "loops": 0, "cycles": 3_000_000,
    "reason": "", "by_place": [{"scope": "group0/mlp/up", "phase": "forward", "cycles": 3_000_000}],
    "without_estimate": {"all-reduce": 4},
}  # fmt: skip


def test_cycles_are_a_time_only_at_a_clock() -> None:
    bare, clocked = from_compile(CYCLES, "tpu"), from_compile(CYCLES, "tpu", 1.5)
    assert (bare.cycles.total, bare.cycle_seconds) == (3_000_000, None)
    assert clocked.cycle_seconds == Fraction(1, 500)
    failed = from_compile({"target": "tpu-v5e:1x1", "failed": "timed out"}, "tpu")
    assert (failed.cycles.total, failed.covers, failed.reason) == (None, "nothing", "timed out")
    told = {**CYCLES, "cost_analysis": None, "cost_analysis_reason": "none ahead of time", "cycles": None}
    silent = from_compile(told, "cuda", 1.5)
    assert (silent.seconds, silent.reason, silent.cycle_seconds) == (None, "none ahead of time", None)
    for bad in (0, -1, True, float("nan"), "fast"):
        with pytest.raises(RejectedError, match="clock_ghz"):
            from_compile(CYCLES, "tpu", bad)  # type: ignore[arg-type]


def test_cycles_stand_beside_our_shares(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jaxcost.observation.cycles.compiler_cycles", lambda case, target: CYCLES)
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["roofline", *TOY, "--target", "tpu-v5e", "--clock-ghz", "1.5"]) == 0
    text = capsys.readouterr().out
    assert "3,000,000, 2 ms at 1.5 GHz as declared" in text
    assert "group0/mlp 100% and" in text and "elsewhere 0%" in text
    assert "no estimate: all-reduce 4" in text


@pytest.mark.tpu
def test_an_unrolled_step_is_estimated_whole(capsys: pytest.CaptureFixture[str]) -> None:
    data = document(capsys, *TOY, "--target", "tpu-v5e", "--layers", "unrolled", "--clock-ghz", "1.5")
    jsonschema.validate(data, schema("jaxcost.roofline.v1"))
    assert data["compiler"]["covers"] == "step"
    assert data["compiler"]["seconds"] > 0
    assert data["compiler"]["cycles"] == sum(row["cycles"] for row in data["compiler"]["cycles_by_place"]) > 0
    assert data["compiler"]["cycle_seconds"] == data["compiler"]["cycles"] / 1.5e9


@pytest.mark.tpu
@pytest.mark.slow
def test_loops_count_in_cycles_and_not_in_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    """The same step in a loop over layers: cycles stay of the unrolled step's size, `optimal_seconds` says why not."""
    scanned = document(capsys, *TOY, "--target", "tpu-v5e")["compiler"]
    unrolled = document(capsys, *TOY, "--target", "tpu-v5e", "--layers", "unrolled")["compiler"]
    assert scanned["covers"] == "loop bodies once"
    assert scanned["cycles"] > unrolled["cycles"] / 2
