"""A MODEL by each of its names, and what a manifest file may hold."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from jaxcost.catalog import catalogue_names, load, load_architecture, manifest_toml
from jaxcost.catalog.manifest import manifest_from_data
from jaxcost.contracts.architecture import Architecture
from jaxcost.contracts.errors import RejectedError
from jaxcost.contracts.record import parse_toml
from jaxcost.data import room

NAMES = ("gpt2", "llama-3.1-8b", "qwen2.5-0.5b", "running", "toy-tied", "toy-untied")


def test_the_catalogue_is_the_folder_and_each_name_is_its_file() -> None:
    assert set(NAMES) <= set(catalogue_names())
    for name in catalogue_names():
        manifest = load(name)
        assert (manifest.architecture.name, manifest.origin) == (name, "catalogue")
        assert manifest.architecture.source, f"{name} says nowhere where its figures come from"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("llama3.1-8b", "llama-3.1-8b"),
        ("Llama-3.1-8B", "llama-3.1-8b"),
        ("meta-llama/Llama-3.1-8B", "llama-3.1-8b"),
        ("META-LLAMA/llama-3.1-8b", "llama-3.1-8b"),
        ("gpt-2", "gpt2"),
        ("openai-community/gpt2", "gpt2"),
        ("qwen-2.5-0.5b", "qwen2.5-0.5b"),
        ("Qwen/Qwen2.5-0.5B", "qwen2.5-0.5b"),
    ],
)
def test_spellings_of_one_name(text: str, name: str) -> None:
    assert load(text).architecture == load(name).architecture


@pytest.mark.parametrize("text", ["llama-3.1-80b", "lama-3.1-8b", "meta-llama/Llama-3.1-9B"])
def test_unknown_name_names_its_neighbours(text: str) -> None:
    with pytest.raises(RejectedError, match=r"not in the catalogue.*near: .*llama-3\.1-8b"):
        load(text)


def test_a_file_and_the_catalogue_do_not_mix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(room("models") / "toy-tied.toml", tmp_path / "gpt2")
    assert load("gpt2").origin == "catalogue"
    with pytest.raises(RejectedError, match="suffix says neither"):
        load("./gpt2")
    shutil.copy(room("models") / "toy-tied.toml", tmp_path / "gpt2.toml")
    assert load("gpt2.toml").origin == "manifest"
    assert load(Path("gpt2.toml")).architecture == load("toy-tied").architecture


@pytest.mark.parametrize("text", ["missing.toml", "./missing", "/no/such/place", "a/b/c", "~/missing.json"])
def test_a_path_that_is_not_there(text: str) -> None:
    with pytest.raises(RejectedError, match="no such file"):
        load(text)


@pytest.mark.parametrize("name", NAMES)
def test_toml_and_json_give_the_record_back(name: str, tmp_path: Path) -> None:
    arch = load_architecture(name)
    assert Architecture.from_data(parse_toml(manifest_toml(arch, "a comment\nin two lines"))) == arch
    path = tmp_path / "m.json"
    path.write_text(json.dumps(arch.to_data()), encoding="utf-8")
    assert load(path).architecture == arch


@pytest.mark.parametrize("text", ['quote " and \\', "tab\tline\nend", "ü€𝛼", "'''"])
def test_any_text_survives_toml(text: str) -> None:
    arch = load_architecture("toy-tied").replaced(notes=text, source=text)
    assert Architecture.from_data(parse_toml(manifest_toml(arch))) == arch


@pytest.mark.parametrize("text", ["\x1b[31mred", "\x7f", "\u202egnp.exe"])
@pytest.mark.parametrize("field", ["name", "notes"])
def test_text_that_steers_a_terminal_is_refused(field: str, text: str) -> None:
    with pytest.raises(RejectedError, match="control characters"):
        load_architecture("toy-tied").replaced(**{field: text})


def test_events_and_expected_integers_come_with_the_manifest(tmp_path: Path) -> None:
    manifest = load("toy-tied")
    assert manifest.liveness is not None and manifest.expected is None
    path = tmp_path / "m.toml"
    text = (room("models") / "toy-tied.toml").read_text(encoding="utf-8")
    path.write_text(text + '\n[expected]\n"parameters.unique" = 1128\n', encoding="utf-8")
    assert load(path).expected == {"parameters.unique": 1128}
    assert load(path).architecture.digest == manifest.architecture.digest


def test_the_supplied_events_have_the_totals_they_are_written_for() -> None:
    liveness = load("toy-tied").liveness
    assert liveness is not None
    totals = [sum(item.bytes for item in liveness.objects if item.birth <= time < item.death) for time in range(6)]
    assert totals == [64, 192, 448, 448, 384, 0]


def test_problems_of_all_parts_come_together() -> None:
    data = load("toy-tied").architecture.to_data()
    data |= {
        "hidden_size": True,
        "colour": 1,
        "liveness": {"objects": [{"name": "a"}]},
        "expected": {"parameters.unique": 1.0},
    }
    with pytest.raises(RejectedError) as caught:
        manifest_from_data(data, "m.toml", None, "manifest")
    paths = {problem.path for problem in caught.value.problems}
    assert {
        "m.toml.hidden_size",
        "m.toml.colour",
        "m.toml.liveness.objects.0.bytes",
        "m.toml.expected.parameters.unique",
    } <= paths


def test_name_source_and_notes_lie_outside_the_digest() -> None:
    arch = load_architecture("toy-tied")
    assert arch.replaced(name="x", source="y", notes="z", family="w", huggingface_id="v").digest == arch.digest
    assert arch.replaced(tied=False).digest != arch.digest
    assert load_architecture("toy-untied").digest == arch.replaced(tied=False).digest
