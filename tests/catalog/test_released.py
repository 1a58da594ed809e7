"""The catalogue against the releases: each config imports to its manifest, each count follows, published ones too.

`released/NAME.json` holds the facts of a released config.json with their public source, and what transformers counts
for it (`record_counts.py`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from jaxcost.catalog import catalogue_names, from_huggingface, load
from jaxcost.catalog.published import Published
from jaxcost.contracts.case import build_case
from jaxcost.contracts.errors import RejectedError
from jaxcost.prediction.ledgers import predict
from tests.catalog.counting import totals

FOLDER = Path(__file__).parent / "released"
RELEASED = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.json"))}
FIXTURES = {"running", "toy-tied", "toy-untied"}
LISTED = (
    "gpt2", "gpt2-xl", "opt-350m", "pythia-6.9b", "falcon-7b", "bloom-176b", "mpt-7b", "llama-2-7b", "llama-2-70b",
    "llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b", "llama-3.2-1b", "mistral-7b", "qwen2.5-0.5b", "qwen2.5-7b",
    "qwen3-0.6b", "gemma-2-9b", "phi-3-mini-4k", "olmo-2-7b",
)  # fmt: skip


def ledger(name: str, **options: Any) -> dict[str, Any]:
    """The ledgers of a catalogue model."""
    case = build_case(load(name).architecture, {"phase": "prefill", "seq": 1, **options})
    found = predict(case).to_dict()["ledgers"]
    assert isinstance(found, dict)
    return found


def test_every_model_of_the_catalogue_has_its_release() -> None:
    assert set(catalogue_names()) == set(RELEASED) | FIXTURES
    assert set(LISTED) <= set(RELEASED)
    assert all(data["source"].strip() for data in RELEASED.values())


@pytest.mark.parametrize("name", RELEASED)
def test_the_config_is_the_manifest(name: str, tmp_path: Path) -> None:
    data = RELEASED[name]
    manifest = load(name)
    assert from_huggingface(data["config"]).digest == manifest.architecture.digest
    assert load(data["huggingface_id"]).architecture == manifest.architecture
    (tmp_path / "config.json").write_text(json.dumps(data["config"]), encoding="utf-8")
    assert load(tmp_path).architecture.digest == manifest.architecture.digest
    assert manifest.architecture.source.startswith("https://huggingface.co/") and manifest.architecture.notes


@pytest.mark.parametrize("name", RELEASED)
def test_counts_equal_those_of_transformers(name: str) -> None:
    expected = RELEASED[name]["counts"]
    assert {**totals(load(name).architecture), "persistent_buffer_elements": 0} == expected
    parameters = ledger(name)["parameters"]["totals"]
    assert (parameters["unique"], parameters["named"]) == (expected["unique"], expected["named"])


def test_the_recount_can_fail() -> None:
    architecture = load("qwen2.5-0.5b").architecture
    for change in ({"tied": False}, {"vocabulary_size": 151937}):
        assert totals(architecture.replaced(**change)) != totals(architecture)


@pytest.mark.parametrize("name", RELEASED)
def test_published_counts_follow_by_their_relation(name: str) -> None:
    counts = RELEASED[name]["counts"]
    for item in load(name).published:
        assert item.explained(counts["unique"], counts["named"]) == item.count, item.relation
        assert item.source and not item.source.isspace()


def test_each_kind_of_relation_is_there() -> None:
    relations = {name: [item.relation for item in load(name).published] for name in RELEASED}
    assert relations["llama-2-7b"] == ["unique + 32 * 64 (rotary frequencies stored with a layer)", "unique"]
    assert relations["llama-3.2-1b"] == ["named"]
    assert relations["pythia-6.9b"][0].startswith("unique - 2 * 206,569,472")
    assert sum(map(len, relations.values())) > 25


def test_a_wrong_relation_leaves_a_residual() -> None:
    item = Published.from_data({"count": 110, "of": "unique", "source": "x", "parts": [{"what": "a", "elements": 5}]})
    assert item.explained(100, 200) == 105 != item.count
    assert item.replaced(of="named").explained(100, 200) == 205


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ([{"count": 1.0, "of": "unique", "source": "x"}], "count"),
        ([{"count": 1, "of": "stored", "source": "x"}], "published.0.of"),
        ([{"count": 1, "of": "unique", "source": ""}], "source"),
        ([{"count": 1, "of": "unique", "source": "x", "parts": [{"what": "a", "elements": 0}]}], "explains nothing"),
        ([1], "published.0"),
        ({"count": 1}, "array of tables"),
    ],
)
def test_a_bad_published_table_is_refused(table: object, message: str) -> None:
    from jaxcost.catalog.manifest import manifest_from_data

    data = {**load("toy-tied").architecture.to_data(), "published": table}
    with pytest.raises(RejectedError, match=message):
        manifest_from_data(data, "m.toml", None, "manifest")
