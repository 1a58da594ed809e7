"""`jaxcost verify`: what reaches the run, what comes back, and the exit code."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from jaxcost.cli import main
from jaxcost.verify.request import VerifyRequest

Capture = pytest.CaptureFixture[str]


class Outcome:
    """A result as the run gives it."""

    def __init__(self, exit_code: int):
        self.exit_code = exit_code

    def to_dict(self) -> dict[str, Any]:
        return {"status": "exact", "reports": [], "seconds": 0.1}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Callable[..., VerifyRequest]:
    """The request that a command line makes; the run is replaced by one that returns `code`."""

    def run(*words: str, code: int = 0) -> VerifyRequest:
        seen: list[VerifyRequest] = []
        module = ModuleType("jaxcost.verify.command")
        module.verify = lambda request: (seen.append(request), Outcome(code))[1]  # type: ignore[attr-defined]  # a stand-in
        monkeypatch.setitem(sys.modules, "jaxcost.verify.command", module)
        assert main(["verify", *words]) == code
        return seen[0]

    return run


def test_nothing_given_is_nothing_asked(asked: Callable[..., VerifyRequest], capsys: Capture) -> None:
    request = asked()
    assert (request.models, request.targets, dict(request.case_options)) == ((), (), {})
    assert (request.case_file, request.suite, request.fuzz, request.seed, request.strict, request.quiet) == (
        None,
        None,
        None,
        0,
        False,
        False,
    )
    request.progress("one line")
    assert capsys.readouterr().err == "compiling ...\none line\n"


def test_everything_given_arrives(asked: Callable[..., VerifyRequest], tmp_path: Path, capsys: Capture) -> None:
    request = asked(
        "toy-tied",
        "gpt2",
        "--phase",
        "training",
        "--batch",
        "8",
        "--mesh",
        "fsdp=4,tensor=2",
        "--dropout",
        "--freeze",
        "embed",
        "--freeze",
        "group0/attn",
        "--vocabulary-multiple",
        "128",
        "--pairs",
        "legal",
        "--attention-block",
        "64",
        "--target",
        "cpu:8",
        "--target",
        "h100:8",
        "--strict",
        "--explain",
        "flops:head:forward",
        "--case",
        str(tmp_path / "c.toml"),
        "--record",
        str(tmp_path),
        "--fail-on-mismatch",
        "--quiet",
    )
    assert request.models == ("toy-tied", "gpt2")
    assert request.case_options == {
        "phase": "training",
        "batch": 8,
        "mesh": [{"name": "fsdp", "size": 4}, {"name": "tensor", "size": 2}],
        "dropout": True,
        "frozen": ["embed", "group0/attn"],
        "vocabulary_multiple": 128,
        "pairs": "legal",
        "attention_block": 64,
    }
    assert (request.targets, request.strict, request.quiet) == (("cpu:8", "h100:8"), True, True)
    assert (request.explain, request.record, request.case_file) == ("flops:head:forward", tmp_path, tmp_path / "c.toml")
    request.progress("silent")
    assert capsys.readouterr() == ("", "")


def test_fuzz_and_failures(asked: Callable[..., VerifyRequest]) -> None:
    request = asked("--fuzz", "200", "--seed", "1", "--target", "cpu:1")
    assert (request.fuzz, request.seed, request.targets) == (200, 1, ("cpu:1",))
    assert asked("--failures").failures
    assert asked("--suite", "default").suite == "default"


@pytest.mark.parametrize("code", [0, 1])
def test_the_exit_code_is_the_run_s(asked: Callable[..., VerifyRequest], code: int, capsys: Capture) -> None:
    asked("--json", code=code)
    data = json.loads(capsys.readouterr().out)
    assert (data["schema"], data["reports"]) == ("jaxcost.verify.v1", [])


def test_module_and_command_are_one(
    run_jaxcost: Callable[..., Any], root: Path, fresh_environment: dict[str, str]
) -> None:
    import subprocess

    words = [sys.executable, "-m", "jaxcost.verify", "--help"]
    done = subprocess.run(words, cwd=root, env=fresh_environment, capture_output=True, text=True, check=True)
    assert done.stdout == run_jaxcost("verify", "--help").stdout


BUNDLE = "examples/toy_observation.json"


@pytest.mark.parametrize(
    ("words", "path"),
    [
        (("toy-tied", "--replay", "hlo_dumps"), "MODEL"),
        (("--phase", "prefill", "--replay", "hlo_dumps"), "case options"),
        (("--target", "cpu:1", "--replay", "hlo_dumps"), "--target"),
        (("--suite", "records", "--replay", "hlo_dumps"), "--suite"),
        (("--case", "examples/toy_prefill.toml", "--observation", BUNDLE, "--target", "cpu:1"), "--target"),
        (("toy-tied", "--failures"), "MODEL"),
        (("--fuzz", "2", "--failures"), "--fuzz"),
    ],
)
def test_what_would_play_no_part_is_rejected(
    words: tuple[str, ...], path: str, root: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(root)
    assert main(["verify", *words, "--json"]) == 2
    assert [error["path"] for error in json.loads(capsys.readouterr().out)["errors"]] == [path]


def test_a_record_that_cannot_be_written_is_rejected_before_the_work(
    asked: Callable[..., VerifyRequest], tmp_path: Path, capsys: Capture
) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        assert main(["verify", "--record", str(folder), "--json"]) == 2
        assert json.loads(capsys.readouterr().out)["errors"][0]["path"] == "--record"
    asked("--record", str(tmp_path / "new" / "folder"))
    assert (tmp_path / "new" / "folder").is_dir()
