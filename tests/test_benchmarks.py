"""Each benchmark still runs, in its smallest form, and says what a kept result must say. No time is asserted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = sorted(path for path in (ROOT / "benchmarks").glob("*.py") if path.stem not in ("growing", "measuring"))
RESULTS = sorted((ROOT / "benchmarks" / "results").glob("*.json"))
STATED = ("question", "ratios", "seconds", "configuration", "hardware", "versions", "date", "repeat_with")


def test_each_script_is_in_the_readme_and_has_a_result() -> None:
    page = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    assert SCRIPTS and not [path.name for path in SCRIPTS if path.name not in page]
    assert {path.stem for path in SCRIPTS} == {path.name.split("-")[0] for path in RESULTS}


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_smallest_run(path: Path, fresh_environment: dict[str, str], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(path), "--smallest", "--json"],
        cwd=tmp_path, env=fresh_environment, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert set(STATED) <= result.keys() and result["seconds"]
    # Without an interpreter of its own the peer is missing, which is said with the line that adds it.
    assert ("pip install" in result["missing"]) if "missing" in result else result["ratios"]


def test_a_peer_that_lacks_its_packages_is_missing(fresh_environment: dict[str, str], tmp_path: Path) -> None:
    empty = tmp_path / "python"  # an interpreter without any package
    empty.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n', encoding="utf-8")
    empty.chmod(0o755)
    script = ROOT / "benchmarks" / "estimate_against_peer.py"
    done = subprocess.run(
        [sys.executable, str(script), "--smallest", "--json", "--peer", str(empty)],
        env=fresh_environment, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "peer not installed" in json.loads(done.stdout)["missing"]


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_a_kept_result_states_what_it_rests_on(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    result = json.loads(text)
    assert all(result[name] for name in STATED)
    assert {"processor", "cores", "memory_bytes"} <= result["hardware"].keys()
    assert "/" not in result["repeat_with"].removeprefix("python benchmarks/")
    assert result["date"] in path.name and path.name.startswith(result["repeat_with"].split("/")[1].split(".")[0])
