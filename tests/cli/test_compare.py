"""`jaxcost compare`: its options, its documents and its exit codes; programs small enough to compile here."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner

from jaxcost.cli.compare import parse_policy
from jaxcost.cli.program import main
from jaxcost.contracts.errors import RejectedError
from jaxcost.schema import schema

TOY = ("toy-tied", "--phase", "training", "--batch", "8", "--seq", "16")
ALONE = ("--no-compile", "--quiet")


def test_a_policy_sets_several_options_and_a_list_goes_on_after_a_comma() -> None:
    assert parse_policy("remat=block, attention-block=64,sequence-parallel=yes") == {
        "remat": "block", "attention_block": 64, "sequence_parallel": True,
    }  # fmt: skip
    assert parse_policy("remat=save_only_these_names,remat-names=q_proj,up,zero=1") == {
        "remat": "save_only_these_names", "remat_names": ["q_proj", "up"], "zero": 1,
    }  # fmt: skip
    assert parse_policy("pipeline-layers=3,1,freeze=embed") == {"pipeline_layers": [3, 1], "frozen": ["embed"]}
    assert parse_policy("none") == parse_policy("") == {}


@pytest.mark.parametrize(
    "text", ["remat", "mesh=fsdp=8", "nothing=1", "reshard=maybe", "remat=none,remat=block", "a,b=1"]
)
def test_a_policy_that_sets_no_option_is_rejected(text: str) -> None:
    with pytest.raises(RejectedError):
        parse_policy(text)


def columns(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, list[dict[str, Any]]]:
    code = main(["compare", *words, "--no-compile", "--json"])
    data = json.loads(capsys.readouterr().out)
    jsonschema.validate(data, schema("jaxcost.compare.v1"))
    return code, data["columns"]


def test_options_given_more_than_once_multiply_meshes_first(capsys: pytest.CaptureFixture[str]) -> None:
    code, found = columns(
        capsys, *TOY, "--mesh", "data=2", "--mesh", "none", "--remat", "none", "--remat", "block",
        "--vary", "none", "--vary", "precision=bf16,optimizer=sgd", "--target", "cpu", "--target", "h100",
    )  # fmt: skip
    assert code == 0 and len(found) == 16
    assert [(item["mesh"], item["options"], item["target"]) for item in found[:5]] == [
        ("data=2", {"remat": "none"}, "cpu:2"),
        ("data=2", {"remat": "none"}, "h100:2"),
        ("data=2", {"remat": "none", "precision": "bf16", "optimizer": "sgd"}, "cpu:2"),
        ("data=2", {"remat": "none", "precision": "bf16", "optimizer": "sgd"}, "h100:2"),
        ("data=2", {"remat": "block"}, "cpu:2"),
    ]
    assert (found[8]["mesh"], found[8]["target"], found[8]["mesh_sizes"]) == ("", "cpu:1", {})


def test_no_mesh_is_the_mesh_of_the_case_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "case.toml").write_text(
        'model = "toy-tied"\nphase = "training"\nseq = 16\nbatch = 4\nmesh = {fsdp = 2}\n'
    )
    _, found = columns(capsys, "--case", str(tmp_path / "case.toml"), "--remat", "none", "--remat", "block")
    assert [(item["mesh"], item["options"]["remat"]) for item in found] == [("fsdp=2", "none"), ("fsdp=2", "block")]


@pytest.mark.parametrize("mesh", ['"fsdp=2"', "8", "[8]", '[{name = "fsdp"}]', "{fsdp = {}}"])
def test_a_case_file_whose_mesh_is_no_table_is_rejected(
    mesh: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "case.toml").write_text(f'model = "toy-tied"\nphase = "training"\nseq = 16\nbatch = 4\nmesh = {mesh}\n')
    assert main(["compare", "--case", str(tmp_path / "case.toml"), *ALONE]) == 2
    assert "mesh" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--mesh", "data=2,data=4"), "the axis appears twice"),
        (("--mesh", "data"), "not of the form AXIS=N"),
        (("--mesh", "data=2", "--mesh", "data=2"), "the same case on the same target"),
        (("--mesh", "data=2", "--target", "h100:8"), "has 2 devices and the target h100:8 has 8"),
        (("--fraction", "2"), "above 0 and at most 1"),
        (("--base", "fsdp=9"), "no column has this name"),
        (("--timeout", "x"), "must be a whole number"),
        (("--vary", "nothing=1"), "sets no option of a case"),
        (("--remat", "some"), "remat"),
        (("--target", "h99"), "is not a chip known here"),
    ],
)
def test_what_is_wrong_is_rejected_before_anything_is_written(
    words: tuple[str, ...], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    code = main(["compare", *TOY, *words, *ALONE, "--html", str(page)])
    assert code == 2 and said in capsys.readouterr().err and not page.exists()


def test_help_has_examples_and_a_model_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "--phase", "training", "--seq", "4", *ALONE]) == 2
    assert "no model is named" in capsys.readouterr().err
    from jaxcost.cli.compare import compare

    assert "jaxcost compare llama-3.1-8b" in CliRunner().invoke(compare, ["--help"]).output


def test_two_specs_compiled_for_the_cpu(run_jaxcost: Callable[..., Any], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    done = run_jaxcost(
        "compare", *TOY, "--remat", "block", "--mesh", "data=2", "--mesh", "fsdp=2", "--json", "--html", str(page),
        timeout=600,
    )  # fmt: skip
    data = json.loads(done.stdout)
    jsonschema.validate(data, schema("jaxcost.compare.v1"))
    first, second = data["columns"]
    for column in (first, second):
        assert column["status"] == "observed" and column["error"]["argument_bytes"] == 0
        assert sum(column["compiled"]["peak"]["by_class"].values()) == column["compiled"]["live_peak_bytes"]
    assert second["compiled"]["argument_bytes"] < first["compiled"]["argument_bytes"]
    assert set(first["compiled"]["collectives"]["by_axis"]) == {"data"}
    (changed,) = data["differences"]
    buffers = [row["change"] for row in changed["rows"] if row["what"] == "buffers"]
    assert sum(buffers) == changed["totals"]["live_peak_bytes"]
    assert done.returncode == data["exit_code"] and "[2/2]" in done.stderr
    assert "data=2" in page.read_text(encoding="utf-8")


def test_a_compile_out_of_time_is_a_column_with_its_reason(run_jaxcost: Callable[..., Any]) -> None:
    done = run_jaxcost("compare", "smollm-135m", "--phase", "training", "--seq", "128", "--layers", "unrolled",
                       "--timeout", "1", "--json", timeout=600)  # fmt: skip
    (column,) = json.loads(done.stdout)["columns"]
    assert done.returncode == 1 and column["status"] == "failed" and column["compiled"] is None
    assert column["reason"] == "timed out: no answer within 1 s" and column["predicted"]["argument_bytes"] > 0


@pytest.mark.cuda
@pytest.mark.slow
def test_the_eight_billion_parameters_of_the_first_page(run_jaxcost: Callable[..., Any]) -> None:
    meshes = ("data=8", "fsdp=8", "fsdp=4,tensor=2", "tensor=8")
    words = [word for mesh in meshes for word in ("--mesh", mesh)]
    done = run_jaxcost(
        "compare", "llama-3.1-8b", "--phase", "training", "--batch", "16", "--seq", "4096", "--remat", "block",
        "--attention", "materialised", "--layers", "scan", "--target", "h100:8", *words, "--json", timeout=600,
    )  # fmt: skip
    data = json.loads(done.stdout)
    assert [column["mesh"] for column in data["columns"]] == list(meshes) and done.returncode == 1
    assert [column["fits"]["0.95"] for column in data["columns"]] == [False, True, True, True]
    assert all(column["compiled"]["flops"] == 522_800_599_138_304 for column in data["columns"])
    text = data["columns"][0]["rematerialisation"]["text"]
    assert "XLA would rematerialise silently" in text and "still not fit" in text
    assert data["columns"][1]["rematerialisation"] is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "refused"),
    [
        pytest.param("h100:64x8", False, marks=pytest.mark.cuda),
        pytest.param("tpu-v5p:8x8x8", True, marks=pytest.mark.tpu),
    ],
)
def test_four_hundred_billion_parameters_on_512_devices(
    target: str, refused: bool, run_jaxcost: Callable[..., Any]
) -> None:
    done = run_jaxcost(
        "compare", "llama-3.1-405b", "--phase", "training", "--batch", "512", "--seq", "4096", "--remat", "block",
        "--mesh", "fsdp=64,tensor=8", "--target", target, "--json", timeout=900,
    )  # fmt: skip
    (column,) = json.loads(done.stdout)["columns"]
    assert done.returncode == 1 and column["fits"] == {"0.75": False, "0.95": False}
    assert ("Ran out of memory" in column["refused"]) if refused else column["refused"] is None
    assert column["compiled"]["required_bytes"] > column["device_memory_bytes"] and column["rematerialisation"]
