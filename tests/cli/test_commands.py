"""The commands on good input: documents, tables, files, exit codes, and how they end."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import jaxcost
from jaxcost.catalog import catalogue_names, load, load_architecture
from jaxcost.cli import main, program
from jaxcost.schema import schema

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def document(capsys: Capture) -> Callable[..., Any]:
    """The JSON document of a command in this process, with its exit code; nothing else may be printed."""

    def run(*arguments: str, code: int = 0) -> Any:
        assert main([*arguments, "--json"]) == code
        out, err = capsys.readouterr()
        assert not err
        return json.loads(out)

    return run


def test_the_version_is_the_package_s(root: Path, capsys: Capture) -> None:
    settings = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    assert jaxcost.__version__ == settings["project"]["version"]
    assert main(["--version"]) == 0
    assert jaxcost.__version__ in capsys.readouterr().out


def test_every_public_name_loads_and_is_listed() -> None:
    assert set(jaxcost.__all__) <= set(dir(jaxcost))
    assert jaxcost.load("gpt2") == load_architecture("gpt2")
    assert jaxcost.training(jaxcost.load("toy-tied"), seq=4).workload.phase == "training"
    with pytest.raises(AttributeError, match="no attribute 'lode'"):
        jaxcost.lode  # noqa: B018


@pytest.mark.parametrize("name", [name for name in jaxcost.__all__ if name != "__version__"])
def test_public_name(name: str) -> None:
    assert callable(getattr(jaxcost, name))


@pytest.mark.parametrize("words", [[], ["--help"], *([name, "--help"] for name in program.COMMANDS)])
def test_help_has_an_example(words: list[str], capsys: Capture) -> None:
    assert main(words) == 0
    assert f"jaxcost {words[0] if len(words) == 2 else 'estimate'} " in capsys.readouterr().out.replace("Usage: ", "")


def test_models(document: Callable[..., Any], capsys: Capture) -> None:
    rows = {row["name"]: row for row in document("models")["models"]}
    assert set(rows) == set(catalogue_names())
    counts = {name: row["parameters"] for name, row in rows.items()}
    assert counts["llama-3.1-8b"] == counts["running"] == 8_030_261_248
    assert (counts["qwen2.5-0.5b"], counts["gpt2"], counts["toy-tied"], counts["toy-untied"]) == (
        494_032_768,
        124_439_808,
        1128,
        1256,
    )
    assert main(["models"]) == 0
    assert "8,030,261,248" in capsys.readouterr().out


def test_show(document: Callable[..., Any], capsys: Capture) -> None:
    shown = document("show", "Qwen/Qwen2.5-0.5B")
    assert shown["digest"] == load_architecture("qwen2.5-0.5b").digest
    assert shown["architecture"]["groups"][0]["layer"]["attention"]["query_heads"] == 14
    assert (shown["parameters"]["unique"], shown["parameters"]["named"]) == (494_032_768, 630_167_424)
    assert main(["show", "toy-tied"]) == 0
    text = capsys.readouterr().out
    assert shown["digest"] not in text and load_architecture("toy-tied").digest in text and "score_workspace" in text


def test_formulas_are_those_of_the_case(document: Callable[..., Any]) -> None:
    import sympy

    formulas = document("show", "toy-untied", "--formula")["formulas"]
    sizes = {"B": 1, "S": 4, "d": 8, "V": 16, "L": 2, "H": 4, "K": 2, "E": 2, "F": 12}
    symbols = {name: sympy.Symbol(name) for name in sizes}  # S and E mean something else to sympy
    assert sympy.sympify(formulas["training"]["parameters.unique"], locals=symbols).subs(sizes) == 1256
    assert sympy.sympify(formulas["prefill"]["flops.forward"], locals=symbols).subs(sizes) == 8960


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            "--phase training --batch 1 --seq 4096 --attention materialised",
            {
                "parameters.unique": 8_030_261_248,
                "flops.forward": 70_274_254_897_152,
                "flops.backward": 140_548_509_794_304,
                "flops.recompute": 0,
            },
        ),
        ("--phase training --seq 4096 --remat block", {"flops.recompute": 65_970_697_666_560}),
        ("--phase training --seq 4096 --remat attention", {"flops.recompute": 8_796_093_022_208}),
        ("--phase prefill --seq 4096 --logits final", {"flops.forward": 65_971_748_339_712}),
        ("--phase decode --past 32767", {"kv_cache.bytes": 4_294_967_296}),
    ],
)
def test_estimate(document: Callable[..., Any], arguments: str, expected: dict[str, int]) -> None:
    data = document("estimate", "llama-3.1-8b", *arguments.split())
    jsonschema.validate(data, schema("jaxcost.estimate.v1"))
    assert (data["schema"], data["jaxcost"]) == ("jaxcost.estimate.v1", jaxcost.__version__)
    for path, value in expected.items():
        ledger, name = path.split(".")
        assert data["ledgers"][ledger]["totals"][name] == value, path


def test_the_table_shows_the_exact_integers_of_the_document(document: Callable[..., Any], capsys: Capture) -> None:
    words = ["estimate", "llama-3.1-8b", "--phase", "training", "--seq", "4096", "--remat", "block"]
    totals = document(*words)["ledgers"]["flops"]["totals"]
    assert main([*words, "--rows"]) == 0
    text = capsys.readouterr().out
    for name in ("forward", "backward", "recompute", "total"):
        assert f"{totals[name]:,}" in text
    assert "remat=block" in text and "seq=4,096" in text and "group0/attn/q_proj" in text and "\x1b" not in text


def test_spellings_and_files_give_one_case(document: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "case.toml"
    path.write_text(
        'model = "llama3.1-8b"\nphase = "training"\nseq = 64\nbatch = 8\nmesh = { fsdp = 4, tensor = 2 }\n',
        encoding="utf-8",
    )
    by_file = document("estimate", "--case", str(path))
    by_flags = document(
        "estimate", "Llama-3.1-8B", *"--phase training --seq 64 --batch 8 --mesh fsdp=4,tensor=2".split()
    )
    assert by_file == by_flags
    overridden = document("estimate", "--case", str(path), "--batch", "16")
    assert overridden["case"]["workload"]["batch"] == 16
    assert overridden["case"]["digest"] != by_file["case"]["digest"]


def test_tying_changes_parameters_and_no_flops(document: Callable[..., Any], tmp_path: Path) -> None:
    # A head that shares the table of the embedding does the same work; the lookup is a gather and costs no FLOPs.
    config = {
        "model_type": "llama",
        "vocab_size": 151_936,
        "hidden_size": 1024,
        "num_hidden_layers": 2,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "intermediate_size": 3072,
    }
    totals = {}
    for tied in (False, True):
        path = tmp_path / f"{tied}.json"
        path.write_text(json.dumps(config | {"tie_word_embeddings": tied}), encoding="utf-8")
        data = document("estimate", str(path), "--phase", "training", "--seq", "1")
        totals[tied] = {name: ledger["totals"] for name, ledger in data["ledgers"].items()}
        head = [row for row in data["ledgers"]["flops"]["rows"] if row["scope"] == "head"]
        assert sum(row["value"] for row in head if row["phase"] == "forward") == 311_164_928
        assert sum(row["value"] for row in head) == 933_494_784
        assert not [row for row in data["ledgers"]["flops"]["rows"] if row["scope"].startswith("embed")]
    assert totals[False]["flops"] == totals[True]["flops"]
    assert totals[False]["parameters"]["unique"] - totals[True]["parameters"]["unique"] == 155_582_464
    assert totals[False]["parameters"]["named"] == totals[True]["parameters"]["named"]


def test_a_tied_table_counts_once_and_buffers_not_at_all(document: Callable[..., Any]) -> None:
    tied = document("estimate", "toy-tied", "--phase", "training", "--seq", "4")["ledgers"]["parameters"]
    assert (tied["totals"]["unique"], tied["totals"]["trainable"], tied["totals"]["named"]) == (1128, 1128, 1256)
    names = " ".join(row["object"] for row in tied["rows"])
    assert not any(buffer in names for buffer in ("inv_freq", "mask", "key "))


def test_expected_integers(document: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "case.toml"
    text = (
        'model = "toy-tied"\nphase = "prefill"\nseq = 4\n[expected]\n"parameters.unique" = 1128\n"flops.forward" = %d\n'
    )
    path.write_text(text % 8960, encoding="utf-8")
    data = document("estimate", "--case", str(path))
    jsonschema.validate(data, schema("jaxcost.estimate.v1"))
    assert [entry["status"] for entry in data["expected"]] == ["exact", "exact"]
    path.write_text(text % 8961, encoding="utf-8")
    assert [entry["status"] for entry in document("estimate", "--case", str(path), code=1)["expected"]] == [
        "exact",
        "open",
    ]


def test_import(document: Callable[..., Any], tmp_path: Path, capsys: Capture) -> None:
    config = {"model_type": "gpt2", "vocab_size": 50257}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    target = tmp_path / "mine.toml"
    assert main(["import", str(tmp_path), "-o", str(target)]) == 0
    assert capsys.readouterr().out == ""
    assert load(target).architecture.digest == load_architecture("gpt2").digest
    assert load(target).architecture.name == "mine"
    assert main(["import", str(tmp_path / "config.json")]) == 0
    assert tomllib.loads(capsys.readouterr().out)["hidden_size"] == 768
    assert document("import", str(tmp_path))["digest"] == load_architecture("gpt2").digest
    as_json = tmp_path / "mine.json"
    assert main(["import", str(tmp_path), "-o", str(as_json)]) == 0
    assert load(as_json).architecture.digest == load_architecture("gpt2").digest
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "mine.json", "mine.toml"]


def test_targets(document: Callable[..., Any], capsys: Capture) -> None:
    rows = {row["name"]: row for row in document("targets")["targets"]}
    assert {"cpu", "h100", "tpu-v5e"} <= set(rows) and rows["cpu"]["available"]
    assert all(row["available"] or row["remedy"] for row in rows.values())
    assert main(["targets"]) == 0
    assert "h100:8" in capsys.readouterr().out


def test_quiet_says_nothing(capsys: Capture) -> None:
    for words in (["models"], ["targets"], ["show", "gpt2"], ["estimate", "gpt2", "--phase", "prefill", "--seq", "4"]):
        assert main([*words, "--quiet"]) == 0
        assert capsys.readouterr() == ("", "")


def test_a_page_is_written_whole_and_leaves_nothing_else(tmp_path: Path, capsys: Capture) -> None:
    page = tmp_path / "page.html"
    page.write_text("old", encoding="utf-8")
    assert main(["estimate", "toy-tied", "--phase", "prefill", "--seq", "4", "--html", str(page), "--quiet"]) == 0
    text = page.read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>") and "8,960" in text
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
    capsys.readouterr()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_device_is_rejected_input(capsys: Capture) -> None:
    assert main(["estimate", "toy-tied", "--phase", "prefill", "--seq", "4", "--html", "/dev/full", "--quiet"]) == 2
    assert "--html" in capsys.readouterr().err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("words", [["models"], ["models", "--json"]])
def test_a_full_standard_output_is_no_bug(words: list[str], root: Path, fresh_environment: dict[str, str]) -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run(
            [sys.executable, "-m", "jaxcost", *words],
            cwd=root, env=fresh_environment, stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 2 and "cannot be written" in done.stderr and "Traceback" not in done.stderr


def test_closed_streams_leave_the_exit_code(root: Path, fresh_environment: dict[str, str]) -> None:
    for words, code in (("models", 0), ("models --json", 0), ("show nothing", 2)):
        line = f"'{sys.executable}' -m jaxcost {words} >&-"
        done = subprocess.run(["sh", "-c", line], cwd=root, env=fresh_environment, capture_output=True, check=False)
        assert (done.returncode, b"Traceback" in done.stderr, b"fault" in done.stderr) == (code, False, False)


def test_a_table_into_a_closed_pipe_ends_like_any_closed_pipe(root: Path, fresh_environment: dict[str, str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    words = [sys.executable, "-m", "jaxcost", "models"]
    done = subprocess.run(words, cwd=root, env=fresh_environment, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


def test_missing_evidence_is_3(capsys: Capture) -> None:
    for option in ("--observation", "--replay"):
        assert main(["verify", option, "no-such-place"]) == 3
        assert "does not exist" in capsys.readouterr().err
    assert main(["verify", "--replay", "no-such-place", "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["schema"] == "jaxcost.unavailable.v1"


def test_a_bug_is_4_and_one_line(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    def broken(case: object) -> object:
        raise ZeroDivisionError("planted\nfault")

    words = ["estimate", "toy-tied", "--phase", "prefill", "--seq", "4"]
    monkeypatch.setattr("jaxcost.prediction.ledgers.predict", broken)
    assert main(words) == 4
    out, err = capsys.readouterr()
    assert not out and err.count("\n") == 1 and "ZeroDivisionError: planted fault" in err
    assert main([*words, "--json"]) == 4
    assert json.loads(capsys.readouterr().out)["schema"] == "jaxcost.fault.v1"
    monkeypatch.setenv("JAXCOST_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        main(words)


def test_interruption_is_130(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    def interrupted(case: object) -> object:
        raise KeyboardInterrupt

    monkeypatch.setattr("jaxcost.prediction.ledgers.predict", interrupted)
    assert main(["estimate", "toy-tied", "--phase", "prefill", "--seq", "4"]) == 130
    assert capsys.readouterr() == ("", "Interrupted.\n")


def test_a_reader_that_goes_away_is_no_error(root: Path, fresh_environment: dict[str, str]) -> None:
    words = [sys.executable, "-m", "jaxcost", "estimate", "llama-3.1-8b", "--phase", "training", "--seq", "8", "--json"]
    process = subprocess.Popen(words, cwd=root, env=fresh_environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    error = process.stderr.read()
    process.stderr.close()
    assert (process.wait(timeout=60), error) == (128 + signal.SIGPIPE, b"")


def test_a_terminal_that_knows_only_ascii(
    run_jaxcost: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    text = load_architecture("toy-tied").replaced(source="Größe 𝛼").to_data()
    (tmp_path / "m.json").write_text(json.dumps(text), encoding="utf-8")
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONPATH": str(Path(jaxcost.__file__).parent.parent)}
    words = [sys.executable, "-m", "jaxcost", "show", "m.json"]
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert b"Gr\\xf6\\xdfe" in done.stdout


HEAVY = (
    "jax",
    "jaxlib",
    "equinox",
    "optax",
    "chex",
    "orbax",
    "numpy",
    "rich",
    "sympy",
    "hypothesis",
    "google.protobuf",
)


def loaded(words: list[str], root: Path, environment: dict[str, str]) -> list[str]:
    """Which of the slow packages a fresh process has loaded after a command."""
    look = f"print(json.dumps([name for name in {HEAVY!r} if name in sys.modules]), file=sys.stderr)"
    code = f"import json, sys; from jaxcost.cli import main; main({words!r}); {look}"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=True)
    names: list[str] = json.loads(done.stderr.splitlines()[-1])
    return names


@pytest.mark.parametrize(
    "words",
    [
        ["estimate", "llama-3.1-8b", "--phase", "training", "--seq", "4096", "--json"],
        ["models", "--json"],
        ["show", "gpt2", "--json"],
        ["--help"],
        ["estimate", "nothing", "--phase", "training"],
    ],
)
def test_a_fresh_process_loads_nothing_slow(root: Path, fresh_environment: dict[str, str], words: list[str]) -> None:
    assert loaded(words, root, fresh_environment) == []


def test_the_guard_sees_what_is_loaded(root: Path, fresh_environment: dict[str, str]) -> None:
    assert loaded(["models"], root, fresh_environment) == ["rich"]


def test_every_document_that_is_printed_has_a_schema(root: Path) -> None:
    """The ids in the command line's source, and in what it joins them from, against the files of jaxcost/schema."""
    from jaxcost.schema import names

    printed = set()
    for path in (root / "jaxcost" / "cli").glob("*.py"):
        printed |= set(re.findall(r'"(jaxcost\.[a-z_]+\.v1)"', path.read_text(encoding="utf-8")))
    assert len(printed) > 15
    assert printed <= set(names())


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("models",), 0),
        (("targets",), 0),
        (("sensitivity", "gpt2", "--phase", "prefill", "--seq", "4", "--fields"), 0),
        (("plan", "run", "--plan", "not/here.toml"), 3),
    ],
)
def test_lists_and_errors_are_as_their_schema_says(words: tuple[str, ...], code: int, run_jaxcost: Any) -> None:
    done = run_jaxcost(*words, "--json")
    assert done.returncode == code
    data = json.loads(done.stdout)
    jsonschema.validate(data, schema(data["schema"]))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**data, "more": 1}, schema(data["schema"]))


@pytest.mark.parametrize("row", ["", "::", "a:b:c:d", "matmul flops", ":head"])
def test_a_row_that_can_be_none_is_refused_before_anything_compiles(row: str, capsys: Capture) -> None:
    assert main(["verify", "--explain", row]) == 2
    assert "counter[:scope][:phase]" in capsys.readouterr().err
