"""docs/add-a-model.md does what it shows: its files are written and its commands run in one folder, in order.

A fenced block with a file name after its language is that file. A `shell` block holds commands; `fails` marks those
that must be refused, `slow` those that compile.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jaxcost.catalog import catalogue_names, load
from tests.test_readme import ROOT, fenced, missing_lines

PAGE = (ROOT / "docs" / "add-a-model.md").read_text(encoding="utf-8")


def follow(text: str, folder: Path, run: Callable[..., Any], slow: bool) -> int:
    """Write the files and run the commands of a page; return how many commands were run."""
    done = 0
    for language, marks, body in fenced(text):
        if language in ("json", "toml", "yaml") and marks:
            (folder / marks[0]).write_text(body, encoding="utf-8")
        if language != "shell" or ("slow" in marks and not slow):
            continue
        for part in body.removeprefix("$ ").split("\n$ "):
            command, *shown = part.splitlines()
            result = run(*shlex.split(command)[1:], cwd=folder)
            assert result.returncode == (2 if "fails" in marks else 0), f"$ {command}\n{result.stdout}{result.stderr}"
            output = result.stderr if "fails" in marks else result.stdout
            assert not missing_lines(tuple(line for line in shown if line.strip()), output), output
            done += 1
    return done


def test_the_commands_in_order(run_jaxcost: Callable[..., Any], tmp_path: Path) -> None:
    assert follow(PAGE, tmp_path, run_jaxcost, slow=False) >= 6
    first, second = load(tmp_path / "smollm-360m.toml").architecture, load(tmp_path / "same.toml").architecture
    assert first.replaced(name="same") != second  # MaxText says something about the scores in its notes
    assert first.digest == second.digest


@pytest.mark.slow
def test_the_commands_in_order_with_the_compiler(run_jaxcost: Callable[..., Any], tmp_path: Path) -> None:
    follow(PAGE, tmp_path, run_jaxcost, slow=True)


def test_the_model_is_not_in_the_catalogue() -> None:
    assert "smollm-360m" not in catalogue_names()


def test_following_the_page_can_fail(run_jaxcost: Callable[..., Any], tmp_path: Path) -> None:
    wrong = PAGE.replace('"parameters.unique" = 361821120', '"parameters.unique" = 361821121')
    with pytest.raises(AssertionError, match=r"estimate --case case\.toml"):
        follow(wrong, tmp_path, run_jaxcost, slow=False)
    with pytest.raises(AssertionError):
        follow(PAGE.replace("unique 361,821,120 362 M", "unique 361,821,121 362 M"), tmp_path, run_jaxcost, slow=False)
