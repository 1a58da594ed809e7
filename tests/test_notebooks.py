"""The notebook runs, and shows what is stored in it as far as that does not depend on a compiler's version."""

from __future__ import annotations

import copy
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOK = ROOT / "notebooks" / "first_report.ipynb"
_SPEC = importlib.util.spec_from_file_location("notebook_runner", ROOT / "notebooks" / "run.py")
assert _SPEC and _SPEC.loader
runner = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(runner)


def stored() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    return data


@pytest.mark.slow
def test_cells_run_and_show_what_is_stored() -> None:
    # jax is in this process already, which the second cell would deny; a fresh process is what a reader has.
    done = subprocess.run(
        [sys.executable, str(ROOT / "notebooks" / "run.py"), str(NOTEBOOK)],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert not done.stderr.strip().startswith("Traceback"), done.stderr
    compiled = ("seen = ", "report = ", 'row = report.row("output_bytes")')
    differing = [line for line in done.stdout.splitlines() if line.startswith("cell ")]
    assert [line for line in differing if not line.partition(": ")[2].startswith(compiled)] == []


def test_stored_outputs_are_complete() -> None:
    code = [cell for cell in stored()["cells"] if cell["cell_type"] == "code"]
    assert len(code) >= 8
    assert all(cell["outputs"] for cell in code)
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert len({cell["id"] for cell in stored()["cells"]}) == len(stored()["cells"])
    assert any("image/svg+xml" in output.get("data", {}) for cell in code for output in cell["outputs"])


def test_runner_shows_prints_and_values_and_a_difference() -> None:
    cell = {"cell_type": "code", "id": "a", "metadata": {}, "source": ["print(1)\n", "2 + 3"], "outputs": []}
    notebook = {"cells": [{"cell_type": "markdown", "source": ["text"]}, cell]}
    fresh = runner.executed(notebook)
    printed, value = fresh["cells"][1]["outputs"]
    assert (printed["text"], value["data"]) == (["1\n"], {"text/plain": ["5"]})
    assert runner.differences(fresh, fresh) == []
    changed = copy.deepcopy(fresh)
    changed["cells"][1]["outputs"][0]["text"] = ["2\n"]
    assert runner.differences(changed, fresh) == ["cell 1: print(1)"]
    with pytest.raises(ZeroDivisionError):
        runner.executed({"cells": [{**cell, "source": ["1 / 0"]}]})
