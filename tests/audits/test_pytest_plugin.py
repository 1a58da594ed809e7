"""The fixture `audit_regression` in test runs of its own: recorded, compared, grown, missing; no trace elsewhere."""

from __future__ import annotations

import json
import lzma
import subprocess
import sys

import pytest

from jaxcost.audits.document import audit_document
from jaxcost.observation.sources import Program
from jaxcost.observation.targets import parse_target

pytest_plugins = ["pytester"]


@pytest.fixture(scope="module")
def document(root):
    data = lzma.decompress((root / "hlo_dumps/toy-tied_training_cpu-1_62ac7e0b.hlo.xz").read_bytes())
    program = Program("proto", "toy", data, "cpu", parse_target("cpu:1"))
    return {**json.loads(json.dumps(audit_document(program))), "jaxcost": "0"}


@pytest.fixture
def suite(pytester, monkeypatch, document, root):
    """A folder with one test over the document of `today.json`; returns a function that runs it."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", str(root))
    pytester.makepyfile(
        """
        import json
        from pathlib import Path

        def test_step(audit_regression):
            audit_regression(json.loads(Path("today.json").read_text()), bounds=["memory.live_peak_bytes=1%"])
        """
    )

    def run(*options, **changes):
        made = json.loads(json.dumps(document))
        for path, value in changes.items():
            section, name = path.split("__")
            made[section][name] = value
        (pytester.path / "today.json").write_text(json.dumps(made))
        return pytester.runpytest_subprocess("-p", "jaxcost.pytest_plugin", "-p", "no:cacheprovider", *options)

    return run


def test_a_record_is_written_only_when_asked(suite, pytester):
    result = suite()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*there is no recorded audit*test_step.json: run pytest --audit-update once*"])
    assert not (pytester.path / "audits").exists()
    suite("--audit-update").assert_outcomes(passed=1)
    record = pytester.path / "audits" / "test_step.json"
    assert json.loads(record.read_text())["schema"] == "jaxcost.audit.v1"
    before = record.read_bytes()
    suite().assert_outcomes(passed=1)
    assert record.read_bytes() == before


def test_growth_fails_with_a_readable_difference(suite, document):
    suite("--audit-update").assert_outcomes(passed=1)
    grown = suite(flops__total=document["flops"]["total"] + 2)
    grown.assert_outcomes(failed=1)
    grown.stdout.fnmatch_lines(["*FAILED flops.total * -> * (+2 FLOPs), grown, bound 0*", "*if this is meant*"])
    peak = document["memory"]["live_peak_bytes"]
    suite(memory__live_peak_bytes=peak + peak // 200).assert_outcomes(passed=1)
    suite(memory__live_peak_bytes=peak + peak // 50).assert_outcomes(failed=1)
    suite(flops__total=1).assert_outcomes(passed=1)
    suite("--audit-update", flops__total=document["flops"]["total"] + 2).assert_outcomes(passed=1)
    suite(flops__total=document["flops"]["total"] + 2).assert_outcomes(passed=1)


def test_an_unknown_and_another_target_fail(suite, document):
    suite("--audit-update").assert_outcomes(passed=1)
    unknown = suite(flops__total=None)
    unknown.assert_outcomes(failed=1)
    unknown.stdout.fnmatch_lines(["*FAILED flops.total * -> unknown, unknown*"])
    target = {**document["program"]["target"], "text": "h100:1"}
    other = suite(program__target=target)
    other.assert_outcomes(failed=1)
    other.stdout.fnmatch_lines(["*is of cpu:1, this one of h100:1*"])


def test_a_damaged_record_and_a_bad_name(suite, pytester):
    suite("--audit-update").assert_outcomes(passed=1)
    (pytester.path / "audits" / "test_step.json").write_text("{}")
    damaged = suite()
    damaged.assert_outcomes(failed=1)
    damaged.stdout.fnmatch_lines(["*must be jaxcost.audit.v1*"])
    pytester.makepyfile("def test_name(audit_regression):\n    audit_regression({}, name='../escape')\n")
    named = suite()
    named.assert_outcomes(failed=1)
    named.stdout.fnmatch_lines(["*name = '../escape'*"])


def test_a_parametrised_test_has_a_file_for_each(suite, pytester):
    pytester.makepyfile(
        """
        import json, pytest
        from pathlib import Path

        @pytest.mark.parametrize("target", ["tpu-v5e:2x4", "a/b c"])
        def test_step(audit_regression, target):
            audit_regression(json.loads(Path("today.json").read_text()))
        """
    )
    suite("--audit-update").assert_outcomes(passed=2)
    names = sorted(path.name for path in (pytester.path / "audits").iterdir())
    assert names == ["test_step-a-b-c.json", "test_step-tpu-v5e-2x4.json"]


def test_a_function_is_compiled_and_compared(suite, pytester):
    pytester.makepyfile(
        """
        import jax, jax.numpy as jnp

        WIDTH = 32

        def step(w, x):
            return jax.grad(lambda w: jnp.tanh(x @ w).sum())(w)

        def test_step(audit_regression):
            w = jax.ShapeDtypeStruct((WIDTH, WIDTH), "float32")
            audit_regression(step, w, w, target="cpu", name="step", donate_argnums=0)
        """
    )
    suite("--audit-update").assert_outcomes(passed=1)
    suite().assert_outcomes(passed=1)
    path = pytester.path / "test_a_function_is_compiled_and_compared.py"
    path.write_text(path.read_text().replace("WIDTH = 32", "WIDTH = 64"))
    wider = suite()
    wider.assert_outcomes(failed=1)
    wider.stdout.fnmatch_lines(["*FAILED flops.total 131,072 -> 1,048,576*"])


def test_runs_that_do_not_use_it_are_not_changed(pytester, monkeypatch, root):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", str(root))
    pytester.makepyfile(
        """
        import sys

        def test_nothing_is_loaded():
            assert not {"jax", "google.protobuf", "rich", "jaxcost.audits"} & sys.modules.keys()
        """
    )
    pytester.runpytest_subprocess("-p", "jaxcost.pytest_plugin").assert_outcomes(passed=1)
    assert list(pytester.path.glob("audits")) == []


def test_importing_the_plugin_imports_nothing_slow(root):
    code = (
        "import sys, jaxcost.pytest_plugin; "
        "print(sorted({'jax', 'numpy', 'rich', 'jaxcost.audits', 'jaxcost.observation'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_two_tests_or_calls_do_not_share_a_record(suite, pytester):
    """One would be compared with the other's cost, or overwrite it."""
    body = """
        import json
        from pathlib import Path

        def test_same(audit_regression):
            audit_regression(json.loads(Path("today.json").read_text()))
        """
    pytester.makepyfile(test_one=body, test_two=body)
    first = suite("--audit-update", "test_one.py", "test_two.py")
    first.assert_outcomes(passed=1, failed=1)
    first.stdout.fnmatch_lines(["*test_same.json is of test_one.py::test_same too: give name= to one of them*"])
    pytester.makepyfile(
        """
        import json
        from pathlib import Path

        def test_twice(audit_regression):
            document = json.loads(Path("today.json").read_text())
            audit_regression(document, name="one")
            audit_regression(document, name="two")
            audit_regression(document, name="two")
        """
    )
    twice = suite("--audit-update", "test_two_tests_or_calls_do_not_share_a_record.py")
    twice.assert_outcomes(failed=1)
    twice.stdout.fnmatch_lines(["*two.json is of an audit before it in this test too*"])
