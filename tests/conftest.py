"""What every test may rely on: the environment of jax, the Hypothesis profiles, the command line in a fresh process.

The environment is set here, before any test module imports jax, because jax reads it once.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import hypothesis
import pytest

ROOT = Path(__file__).resolve().parent.parent

# Tests of the network run in this process, on eight CPU devices whatever machine this is. A program under observation
# is compiled in a worker process, which sets its own environment; `run_jaxcost` therefore starts without these.
IN_PROCESS = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "8"}
os.environ.update(IN_PROCESS)
# Tables are as wide as into a pipe, whatever terminal or test runner the tests are started from.
for _width in ("COLUMNS", "LINES"):
    os.environ.pop(_width, None)

# Deadlines are off: the first example of a test pays for an import or a compile.
hypothesis.settings.register_profile("dev", max_examples=30, deadline=None)
hypothesis.settings.register_profile("ci", max_examples=60, deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.register_profile("thorough", max_examples=2000, deadline=None, print_blob=True)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))

# mark -> (the module that the extra of the same name brings)
EXTRAS = {"tpu": "libtpu", "cuda": "jax_cuda13_plugin"}


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs a compiler that is not installed, and say how to add it."""
    for extra, module in EXTRAS.items():
        if item.get_closest_marker(extra) and importlib.util.find_spec(module) is None:
            pytest.skip(f"the extra [{extra}] is not installed ({module}); add it with: pip install -e '.[{extra}]'")


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout."""
    return ROOT


@pytest.fixture(scope="session")
def fresh_environment() -> dict[str, str]:
    """The environment of a user's shell: this process's, less what this page and the test runner added (a width)."""
    return {name: value for name, value in os.environ.items() if name not in {*IN_PROCESS, "COLUMNS", "LINES"}}


@pytest.fixture(scope="session")
def run_jaxcost(fresh_environment: dict[str, str]) -> Callable[..., subprocess.CompletedProcess[str]]:
    """`python -m jaxcost ARGS` in a fresh process: run_jaxcost("models", "--json", cwd=folder, timeout=60)."""

    def run(*arguments: str, cwd: Path = ROOT, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        environment = fresh_environment | {"PYTHONPATH": str(ROOT)}
        return subprocess.run(
            [sys.executable, "-m", "jaxcost", *arguments],
            cwd=cwd,
            env=environment,
            timeout=timeout,
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )

    return run
