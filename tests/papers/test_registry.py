"""The registry is whole or refused: required contracts, duplicates, composites, strict files."""

from __future__ import annotations

import copy
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jaxcost.contracts.errors import RejectedError
from jaxcost.data import room
from jaxcost.papers.contract import AXES, Contract
from jaxcost.papers.registry import COMPOSITE, REQUIRED, Registry, load_registry, read_contract, registry

SIX = {"teaching-article", "kaplan", "chinchilla", "palm", "megatron", "korthikanti"}
FURTHER = {"gpt3", "zero", "maxtext", "torchtitan", "llama3"}


def data(name: str = "megatron") -> dict[str, Any]:
    return tomllib.loads((room("papers") / f"{name}.toml").read_text(encoding="utf-8"))


def test_every_required_contract_is_there_and_source_scoped() -> None:
    assert set(REQUIRED) == SIX | FURTHER
    for contract in registry().values():
        assert contract.source.url and contract.source.locators
        assert all(getattr(contract.axes, axis) for axis in AXES)
        assert not contract.numeric_comparison.allowed
        for table in contract.tables:
            assert table.locator


def test_the_composite_source_is_marked_and_bound_part_by_part() -> None:
    found = [name for name, contract in registry().items() if contract.kind == "composite"]
    assert tuple(found) == COMPOSITE
    article = registry()["teaching-article"]
    assert {part.inherits for part in article.subsections} == {"zero", "korthikanti", "megatron", "kaplan"}
    assert {item.subsection for item in article.quantities} <= {part.name for part in article.subsections}


def test_symbols_that_mean_something_else_here_are_translated() -> None:
    kaplan = {symbol.paper: symbol.jaxcost for symbol in registry()["kaplan"].symbols}
    assert kaplan["B"] == "B*S"  # tokens, not sequences
    assert kaplan["S"] == ""  # updates: nothing here corresponds to them
    assert {s.paper: s.jaxcost for s in registry()["korthikanti"].symbols}["a"] == "H"


@pytest.mark.parametrize("name", REQUIRED)
def test_without_a_required_contract_the_registry_is_refused(name: str) -> None:
    with pytest.raises(RejectedError, match="a required contract is missing") as caught:
        Registry(contract for contract in registry().values() if contract.name != name)
    assert name in [problem.value for problem in caught.value.problems]


def test_a_contract_twice_is_refused() -> None:
    with pytest.raises(RejectedError, match="two files declare"):
        Registry([*registry().values(), registry()["zero"]])


def test_a_composite_that_is_not_marked_or_not_bound_is_refused() -> None:
    article = registry()["teaching-article"]
    plain = article.model_copy(update={"kind": "paper"})
    with pytest.raises(RejectedError, match="whose parts have different coordinates"):
        Registry([c if c.name != article.name else plain for c in registry().values()])
    parts = data("teaching-article")
    parts["subsections"][0]["inherits"] = "nobody"
    with pytest.raises(RejectedError, match="no primary contract"):
        Registry([c if c.name != article.name else Contract.from_data(parts) for c in registry().values()])
    parts["subsections"][0]["inherits"] = "teaching-article"
    with pytest.raises(RejectedError, match="no primary contract"):
        Registry([c if c.name != article.name else Contract.from_data(parts) for c in registry().values()])


def test_an_unknown_name_is_refused_with_those_there_are() -> None:
    with pytest.raises(RejectedError, match="use one of teaching-article, kaplan"):
        registry().contract("nobody")


def test_a_folder_is_read_whole_and_its_problems_are_collected(tmp_path: Path) -> None:
    for path in room("papers").glob("*.toml"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    assert list(load_registry(tmp_path)) == list(registry())
    (tmp_path / "kaplan.toml").unlink()
    with pytest.raises(RejectedError, match="kaplan"):
        load_registry(tmp_path)
    (tmp_path / "zero.toml").write_text("name = 3", encoding="utf-8")
    (tmp_path / "palm.toml").write_text("not toml", encoding="utf-8")
    with pytest.raises(RejectedError) as caught:
        load_registry(tmp_path)
    assert {problem.path.split(".")[0] for problem in caught.value.problems} >= {"zero", "palm"}


def test_the_name_of_a_file_is_its_contract_s(tmp_path: Path) -> None:
    path = tmp_path / "other.toml"
    path.write_bytes((room("papers") / "zero.toml").read_bytes())
    with pytest.raises(RejectedError, match="differs from the name of its file"):
        read_contract(path)


def put(*path: Any, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(found: dict[str, Any]) -> None:
        at: Any = found
        for part in path[:-1]:
            at = at[part]
        at[path[-1]] = value

    return change


def drop(*path: Any) -> Callable[[dict[str, Any]], None]:
    def change(found: dict[str, Any]) -> None:
        at: Any = found
        for part in path[:-1]:
            at = at[part]
        del at[path[-1]]

    return change


FAULTS: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "an unknown field": (put("colour", value="red"), "not permitted"),
    "an unknown field inside": (put("axes", "mood", value="calm"), "not permitted"),
    "a missing axis": (drop("axes", "replay"), "required"),
    "an empty axis": (put("axes", "replay", value=""), "at least 1 character"),
    "no source": (drop("source"), "required"),
    "a control character": (put("title", value="a\x1b[2Jb"), "control characters"),
    "a symbol twice": (lambda found: found["symbols"].append(found["symbols"][0]), "appears twice"),
    "a quantity twice": (lambda found: found["quantities"].append(found["quantities"][0]), "appears twice"),
    "an untranslated symbol": (drop("symbols", 1), "has no translation"),
    "a formula that is no arithmetic": (put("quantities", 0, "formula", value="open('x')"), "the only function"),
    "the paper's symbol on the ledger's side": (put("quantities", 0, "ledger", value="12*l*h**2"), "no ledger of jax"),
    "a graph that is not there": (put("quantities", 0, "graph", value="other"), "no graph of this contract"),
    "a unit that is not the kind's": (put("quantities", 1, "unit", value="bytes"), "is counted in FLOPs"),
    "a global total as one rank's": (put("quantities", 1, "rank_local", value=True), "not relabelled"),
    "a kind nobody knows": (put("quantities", 1, "kind", value="flops"), "input should be"),
    "a short row": (lambda found: found["tables"][0]["rows"][0].pop(), "10 cells"),
    "a cell that is no figure": (put("tables", 0, "rows", 0, 0, value="about 2"), "not a printed number"),
    "a check of a column that is not there": (put("tables", 0, "checks", 0, "column", value="nothing"), "no column"),
    "a printed column passed over": (lambda found: found["tables"][0]["unreproduced"].clear() or
                                     found["tables"][0]["columns"].append({"name": "watts", "title": "watts"}) or
                                     [row.append("400") for row in found["tables"][0]["rows"]], "neither reproduced"),
    "a check with two ways to compute": (put("tables", 0, "checks", 0, "utilisation", value=["1", "1", "1", "1"]),
                                         "either computed or utilisation"),
    "a text that leads nowhere": (put("tables", 0, "checks", 0, "written", value="p"), "go together"),
    "a column named like a ledger": (put("tables", 0, "columns", 0, "name", value="parameters"), "name of a ledger"),
    "a last digit of no size": (put("tables", 0, "columns", 0, "digit", value="0"), "must be positive"),
    "a derived column without a note": (put("tables", 0, "columns", 1, "role", value="derived"), "says where it is"),
    "a graph without a size": (drop("graphs", 0, "sizes", "heads"), "a graph gives exactly"),
    "an open comparison": (put("numeric_comparison", value={"allowed": True}), "one target manifest only"),
    "a target that is no digest": (put("numeric_comparison", value={"target_case_id": "x"}), "should match pattern"),
    "parts of a source that is not composite": (put("subsections", value=[
        {"name": "a", "inherits": "zero", "locator": "x", "says": "y"}]), "part by part"),
}  # fmt: skip


def test_the_data_under_test_is_sound() -> None:
    Contract.from_data(data())


@pytest.mark.parametrize("name", FAULTS)
def test_a_faulty_contract_is_refused(name: str) -> None:
    change, rule = FAULTS[name]
    found = copy.deepcopy(data())
    change(found)
    with pytest.raises(RejectedError, match=rule):
        Contract.from_data(found)


def test_a_part_of_a_composite_without_a_name_is_refused() -> None:
    found = data("teaching-article")
    found["quantities"][0]["subsection"] = ""
    with pytest.raises(RejectedError, match="names the part it stands in"):
        Contract.from_data(found)
