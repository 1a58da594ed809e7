"""The mutation benchmark: which mutants its rules let through, and that a running function is really exchanged."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
TEXT = '''"""A module."""
from functools import lru_cache
from typing import Any

__all__ = ["size"]
WORDS = "several words for a reader"
Pair = tuple[int, int]

@lru_cache(maxsize=2)
def size(rows: int, width: int = 4) -> Any:
    """Return it."""
    if rows < 0:
        raise reject("rows", rows, "must not be negative", "write 0")
    found = {"rows": rows, "note": WORDS, "sum": sum([1], 0)}
    for a, b in zip([1], [2], strict=True):
        found[a] = b * width
    return make(found, "key", "two words here", scale=2)
'''


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[ModuleType, ModuleType]]:
    pytest.importorskip("mutmut", reason="the mutation benchmark needs: pip install mutmut coverage statsmodels")
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks" / "mutation"))
    import forks
    import mutants

    yield mutants, forks
    for name in ("forks", "mutants"):
        sys.modules.pop(name, None)


@pytest.fixture
def found(tools: tuple[ModuleType, ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    mutants, _ = tools
    path = tmp_path / "jaxcost" / "contracts" / "made.py"
    path.parent.mkdir(parents=True)
    path.write_text(TEXT, encoding="utf-8")
    monkeypatch.setattr(mutants, "ROOT", tmp_path)
    return mutants.Module(path).mutants


def test_the_rules_leave_prose_types_and_refusals_alone(found: Any) -> None:
    changes = [(mutant.before, mutant.after) for mutant in found]
    assert ("rows < 0", "rows <= 0") in changes or ("< 0", "<= 0") in changes
    assert ("b * width", "b / width") in changes
    assert ('"rows"', '"XXrowsXX"') in changes and ("4", "5") in changes
    kept = 'make(found, "key", "two words here", scale=2)'
    arguments = {after for before, after in changes if before == kept}
    assert 'make(None, "key", "two words here", scale=2)' in arguments
    assert not [after for after in arguments if "None, scale" in after]
    for words in ("reader", "Pair", "__all__", "must not", "Return it", "maxsize", "strict"):
        assert not [one for one in found if words in one.before and words not in one.after], words
    assert len({mutant.name for mutant in found}) == len(found)
    assert all(mutant.is_one and mutant.source != TEXT for mutant in found)


def test_a_mutants_name_survives_what_moves_around_it(found: Any, tools: Any, tmp_path: Path) -> None:
    path = tmp_path / "jaxcost" / "contracts" / "made.py"
    path.write_text(TEXT.replace('"""A module."""', '"""A module."""\n\nMORE = 1'), encoding="utf-8")
    moved = {mutant.name: mutant for mutant in tools[0].Module(path).mutants}
    assert {mutant.name for mutant in found} < set(moved)
    assert all(moved[mutant.name].line == mutant.line + 2 for mutant in found)


def test_the_folds_are_those_of_the_ledgers(tools: Any) -> None:
    from jaxcost.prediction.ledgers import FOLDS

    homes = {fold.__module__.replace(".", "/") + ".py" for fold in FOLDS.values()}
    assert tools[0].folds() == homes


def twice(number: int) -> int:
    return number * 2


@functools.cache
def kept(number: int) -> int:
    return twice(number)


def test_a_function_is_exchanged_in_place(tools: Any) -> None:
    _, forks = tools
    source = Path(__file__).read_text(encoding="utf-8")
    (pair,) = forks.exchanged(source, source.replace("return number", "return 1 + number", 1), __file__)
    assert pair[0].co_name == "twice" and twice(4) == kept(4) == 8
    functions, code = forks.Functions(), twice.__code__
    functions.by_code = {(code.co_filename, code.co_qualname, code.co_firstlineno): [twice]}
    try:
        functions.clear()
        assert functions.exchange(code.co_filename, [pair])
        assert twice(4) == kept(4) == 9
    finally:
        twice.__code__ = code
        functions.clear()
    # A constant of the module, a default and a decorator stand outside of every function.
    for old, new in (("ROOT = Path", "ROOT = str"), ("A module.", "Another module."), ("functools.cache", "print")):
        assert forks.exchanged(source, source.replace(old, new, 1), __file__) is None


def test_a_child_that_never_ends_is_stopped(tools: Any, tmp_path: Path) -> None:
    def endless() -> None:
        while True:
            pass

    _, forks = tools
    assert forks.child(lambda: {"a": 1}, 10, 10, tmp_path / "log") == ("done", {"a": 1})
    assert forks.child(endless, 0, 60, tmp_path / "log") == ("timeout", None)
    assert forks.child(lambda: time.sleep(60), 10, 0.5, tmp_path / "log") == ("stalled", None)
    assert forks.child(lambda: 1 // 0, 10, 10, tmp_path / "log") == ("died", None)
