"""The rooms import one way, and nothing slow is loaded before it is needed.

Both guards are shown to fail: the first on violations planted in a copy of the package, the second on a copy that
imports what it should not.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SLOW = ("jax", "jaxlib", "equinox", "optax", "chex", "orbax", "sympy", "rich", "hypothesis")
LINT_IMPORTS = "from importlinter.cli import lint_imports_command; lint_imports_command()"


@pytest.fixture
def copied(root: Path, tmp_path: Path) -> Path:
    """A copy of the package and its settings, to plant a violation in."""
    shutil.copytree(root / "jaxcost", tmp_path / "jaxcost", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(root / "pyproject.toml", tmp_path)
    return tmp_path


def lint_imports(tree: Path) -> subprocess.CompletedProcess[str]:
    """import-linter's verdict on the package in `tree`."""
    return subprocess.run(
        [sys.executable, "-c", LINT_IMPORTS, "--no-cache", "--no-logo"],
        cwd=tree,
        capture_output=True,
        text=True,
        check=False,
    )


def loaded(statement: str, tree: Path) -> set[str]:
    """Which of the slow packages are loaded after `statement`, run in a fresh process on the package in `tree`."""
    code = (
        f"import sys; sys.path.insert(0, {str(tree)!r})\n{statement}\n"
        f"import json, jaxcost; assert jaxcost.__path__[0].startswith({str(tree)!r}), jaxcost.__path__\n"
        f"print(json.dumps([name for name in {SLOW!r} if name in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tree, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


def every_module(*packages: str) -> str:
    """A statement that imports the packages and every module below them, `__main__` excepted."""
    return (
        "import importlib, pkgutil\n"
        f"for package in map(importlib.import_module, {packages!r}):\n"
        "    for found in pkgutil.walk_packages(package.__path__, package.__name__ + '.'):\n"
        "        if not found.name.endswith('__main__'): importlib.import_module(found.name)"
    )


def test_import_contracts_hold(root: Path) -> None:
    done = lint_imports(root)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout


@pytest.mark.parametrize(
    ("room", "line", "contract"),
    [
        ("prediction", "import jax", "The prediction never runs the model"),
        ("prediction", "def late():\n    import equinox", "The prediction never runs the model"),
        ("prediction", "import jaxcost.observation", "The prediction never runs the model"),
        ("prediction", "from jaxcost import reference", "The prediction never runs the model"),
        ("reference", "import jaxcost.prediction", "The network knows no ledger"),
        ("reference", "import jaxcost.reconciliation", "The network knows no ledger"),
        ("observation", "from jaxcost import prediction", "The observation never reads a ledger"),
        ("observation", "import jaxcost.reconciliation", "The observation never reads a ledger"),
        ("audits", "import jaxcost.prediction.ledgers", "An audit knows no ledger"),
        ("audits", "import jaxcost.reconciliation", "An audit knows no ledger"),
        ("contracts", "import jaxcost.catalog", "The records depend on no room and on no jax"),
        ("contracts", "import jax", "The records depend on no room and on no jax"),
        ("reconciliation", "import jaxcost.verify", "Rooms import downwards only"),
        ("planning", "import jaxcost.cli", "Rooms import downwards only"),
    ],
)
def test_planted_import_breaks_its_contract(copied: Path, room: str, line: str, contract: str) -> None:
    (copied / "jaxcost" / room / "planted.py").write_text(line + "\n", encoding="utf-8")
    done = lint_imports(copied)
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"{contract} BROKEN" in done.stdout
    assert f"jaxcost.{room}.planted" in done.stdout


def test_planted_import_through_another_room_is_seen_too(copied: Path) -> None:
    # prediction -> contracts is allowed and contracts -> jax is not; the prediction is broken by the chain as well.
    (copied / "jaxcost/contracts/planted.py").write_text("import jax\n", encoding="utf-8")
    (copied / "jaxcost/prediction/planted.py").write_text("import jaxcost.contracts.planted\n", encoding="utf-8")
    done = lint_imports(copied)
    assert done.returncode == 1
    assert "The prediction never runs the model BROKEN" in done.stdout


@pytest.mark.parametrize("statement", ["import jaxcost", "import jaxcost.prediction", "import jaxcost.cli"])
def test_nothing_slow_is_loaded(root: Path, statement: str) -> None:
    assert loaded(statement, root) == set()


def test_no_module_of_the_arithmetic_rooms_loads_jax(root: Path) -> None:
    # sympy is the business of those modules that print formulas; jax and what rests on it is nobody's here.
    rooms = every_module("jaxcost.contracts", "jaxcost.catalog", "jaxcost.prediction")
    assert loaded(rooms, root) <= {"sympy"}


@pytest.mark.parametrize("name", ["jax", "sympy", "rich", "hypothesis"])
def test_the_guard_sees_a_planted_import(copied: Path, name: str) -> None:
    package = copied / "jaxcost/prediction/__init__.py"
    with package.open("a", encoding="utf-8") as file:
        file.write(f"\nimport {name}\n")
    assert name in loaded("import jaxcost.prediction", copied)


def test_the_guard_sees_a_planted_import_in_any_module(copied: Path) -> None:
    (copied / "jaxcost/prediction/planted.py").write_text("import jax\n", encoding="utf-8")
    assert "jax" in loaded(every_module("jaxcost.prediction"), copied)
