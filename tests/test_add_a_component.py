"""docs/add-a-component.md does what it shows: its edits are made in a copy of the package and its commands run there.

An `edit` block names a file; lines that begin with `- ` are the text it has, those with `+ ` what takes their place.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.test_add_a_model import follow
from tests.test_readme import ROOT, fenced

PAGE = (ROOT / "docs" / "add-a-component.md").read_text(encoding="utf-8")


def copied(folder: Path) -> Path:
    """Return a copy of the checkout as far as the package needs it."""
    tree = folder / "checkout"
    for name in ("jaxcost", "models", "verify"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    (tree / "hlo_dumps").mkdir()
    shutil.copy(ROOT / "pyproject.toml", tree)
    return tree


def edited(tree: Path, page: str) -> int:
    """Make the edits of a page in a tree; each must fit in exactly one place."""
    done = 0
    for language, marks, body in fenced(page):
        if language != "edit":
            continue
        path, lines = tree / marks[0], body.splitlines()
        before = "\n".join(line[2:] for line in lines if line.startswith("- "))
        after = "\n".join(line[2:] for line in lines if line.startswith("+ "))
        text = path.read_text(encoding="utf-8")
        assert text.count(before) == 1, (path, before)
        path.write_text(text.replace(before, after), encoding="utf-8")
        done += 1
    return done


def runner(tree: Path, environment: dict[str, str]) -> Callable[..., Any]:
    """Return what runs `jaxcost` out of a tree."""
    return partial(_run, environment | {"PYTHONPATH": str(tree)})


def _run(environment: dict[str, str], *arguments: str, cwd: Path) -> Any:
    command = [sys.executable, "-P", "-m", "jaxcost", *arguments]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300, check=False)


def test_the_edits_and_the_commands(fresh_environment: dict[str, str], tmp_path: Path) -> None:
    tree = copied(tmp_path)
    assert edited(tree, PAGE) == 4
    assert follow(PAGE, tmp_path, runner(tree, fresh_environment), slow=False) == 1


@pytest.mark.slow
def test_the_edits_and_the_commands_with_the_compiler(fresh_environment: dict[str, str], tmp_path: Path) -> None:
    tree = copied(tmp_path)
    edited(tree, PAGE)
    assert follow(PAGE, tmp_path, runner(tree, fresh_environment), slow=True) == 3


def test_without_the_edits_the_component_is_refused(fresh_environment: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="relu_squared"):
        follow(PAGE, tmp_path, runner(copied(tmp_path), fresh_environment), slow=False)
