"""The example of a team's CI: its step, its recorded audit and its workflow, run as they stand there."""

from __future__ import annotations

import json
import shlex
import shutil
from importlib import metadata

import pytest
import yaml


@pytest.fixture
def folder(root, tmp_path):
    """A copy of the example, to be changed."""
    for name in ("audit_step.py", "audit_step.h100-8.json"):
        shutil.copy(root / "examples" / name, tmp_path)
    return tmp_path


def command(root):
    """The arguments of `jaxcost` in the workflow."""
    workflow = yaml.safe_load((root / "examples/ci/audit.yml").read_text())
    (step,) = (step for step in workflow["jobs"]["audit"]["steps"] if "jaxcost audit" in step.get("run", ""))
    assert step["working-directory"] == "examples"
    words = shlex.split(step["run"])
    assert words[0] == "jaxcost"
    return words[1:]


@pytest.mark.cuda
def test_the_workflow_passes_as_it_stands_and_fails_on_one_more_layer(root, folder, run_jaxcost):
    words = command(root)
    recorded = json.loads((folder / "audit_step.h100-8.json").read_text())
    versions = recorded["program"]["environment"]["versions"]
    here = {name: metadata.version(name) for name in versions if name.startswith("jax")}
    done = run_jaxcost(*words, cwd=folder, timeout=300)
    if here == {name: versions[name] for name in here}:
        assert done.returncode == 0, done.stdout + done.stderr
        assert "nothing is beyond its bound" in done.stdout
    else:
        assert "the compiler changed" in done.stdout
    assert (folder / "audit.html").stat().st_size > 10_000

    text = (folder / "audit_step.py").read_text()
    assert "LAYERS, WIDTH, BATCH = 8," in text
    (folder / "audit_step.py").write_text(text.replace("LAYERS, WIDTH, BATCH = 8,", "LAYERS, WIDTH, BATCH = 9,"))
    grown = run_jaxcost(*words, "--json", cwd=folder, timeout=300)
    assert grown.returncode == 1, grown.stderr
    against = json.loads(grown.stdout)["against"]
    failed = {row["figure"]: row for row in against["rows"] if row["failed"]}
    assert {"flops.total", "collectives.bytes", "memory.live_peak_bytes"} <= failed.keys()
    total = failed["flops.total"]
    assert total["new"] * 8 == total["old"] * 9
    assert against["differences"][0]["about"] == "program" and "float32[9,1024,1024]" in json.dumps(against)


def test_another_target_is_refused(folder, run_jaxcost):
    done = run_jaxcost(
        "audit", "--function", "audit_step:step", "--target", "cpu:8", "--against", "audit_step.h100-8.json",
        cwd=folder, timeout=300,
    )  # fmt: skip
    assert done.returncode == 2 and "this one of cpu:8" in done.stderr


def test_a_record_that_is_not_there(folder, run_jaxcost):
    done = run_jaxcost("audit", "audit_step.h100-8.json", "--against", "none.json", cwd=folder)
    assert done.returncode == 3 and "no such file" in done.stderr
    bound = run_jaxcost(
        "audit", "audit_step.h100-8.json", "--against", "audit_step.h100-8.json", "--bound", "flop=0", cwd=folder
    )
    assert bound.returncode == 2 and "names no section" in bound.stderr
    same = run_jaxcost("audit", "audit_step.h100-8.json", "--against", "audit_step.h100-8.json", cwd=folder)
    assert same.returncode == 0 and "nothing is beyond its bound" in same.stdout
