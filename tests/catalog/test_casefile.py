"""Case files: a model, options, and what is supplied or expected with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from jaxcost.catalog import load, load_case_file, manifest_toml
from jaxcost.contracts.errors import RejectedError


def write(folder: Path, text: str, name: str = "case.toml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_model_by_name_with_options(tmp_path: Path) -> None:
    file = load_case_file(write(tmp_path, 'model = "llama3.1-8b"\nphase = "training"\nseq = 64\nmesh = { fsdp = 8 }\n'))
    assert file.manifest is not None and file.manifest.architecture == load("llama-3.1-8b").architecture
    assert file.options == {"phase": "training", "seq": 64, "mesh": {"fsdp": 8}}


def test_a_path_is_relative_to_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, elsewhere = tmp_path / "cases", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()
    arch = load("toy-untied").architecture
    write(folder, manifest_toml(arch), "mine.toml")
    write(elsewhere, manifest_toml(arch), "other.toml")
    monkeypatch.chdir(elsewhere)
    file = load_case_file(write(folder, 'model = "mine.toml"\nphase = "prefill"\n'))
    assert file.manifest is not None and file.manifest.architecture == arch
    with pytest.raises(RejectedError, match="no such file"):
        load_case_file(write(folder, 'model = "other.toml"\nphase = "prefill"\n'))


def test_inline_architecture_in_json(tmp_path: Path) -> None:
    import json

    data = {
        "architecture": load("toy-tied").architecture.to_data(),
        "phase": "decode",
        "expected": {"parameters.unique": 1},
    }
    file = load_case_file(write(tmp_path, json.dumps(data), "case.json"))
    assert file.manifest is not None and file.manifest.origin == "case_file"
    assert file.manifest.expected == {"parameters.unique": 1}


def test_own_tables_replace_those_of_the_model(tmp_path: Path) -> None:
    events = '[liveness]\nobjects = [{ name = "a", bytes = 7, birth = 0, death = 1 }]\n'
    file = load_case_file(write(tmp_path, 'model = "toy-tied"\n' + events))
    assert file.manifest is not None and file.manifest.liveness is not None
    assert [item.bytes for item in file.manifest.liveness.objects] == [7]
    assert load("toy-tied").liveness != file.manifest.liveness


def test_options_alone(tmp_path: Path) -> None:
    file = load_case_file(write(tmp_path, 'phase = "decode"\npast = 7\n'))
    assert file.manifest is None and file.options == {"phase": "decode", "past": 7}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("modle = 'gpt2'\n", "not a key of a case file"),
        ("model = 'nothing-like-it'\n", "not in the catalogue"),
        ("model = 3\n", "must be text"),
        ("[expected]\na = 1\n", "belong to a model"),
        ("model = 'gpt2'\n[architecture]\nhidden_size = 1\n", "a case has one model"),
        ("architecture = 3\n", "groups"),
    ],
)
def test_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(RejectedError, match=message):
        load_case_file(write(tmp_path, text))
