"""dev.py installs what is needed, when it is needed, and says what could not be installed.

pip is replaced by a list of what it was asked for; continuous integration runs the real thing from a clean checkout.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

NO_WHEEL = "WARNING: index\nERROR: No matching distribution found for jax-cuda13-plugin\n"


@pytest.fixture
def dev(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """dev.py, standing in a folder of its own. `asked` lists what was installed or run; `refused` what pip refuses."""
    place = tmp_path / "a folder with spaces"
    place.mkdir()
    (place / "pyproject.toml").write_text("[project]\n", encoding="utf-8")
    (place / "constraints.txt").write_text("jax==0.1\n", encoding="utf-8")
    spec = importlib.util.spec_from_file_location("dev_under_test", root / "dev.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    scripts = place / ".venv" / "bin"
    for name, value in {
        "ROOT": place,
        "VENV": place / ".venv",
        "SCRIPTS": scripts,
        "PYTHON": scripts / "python",
        "STAMP": place / ".venv" / "stamp.json",
        "CONSTRAINTS": place / "constraints.txt",
    }.items():
        monkeypatch.setattr(module, name, value)
    module.asked, module.refused = [], set()

    def install(requirement: str) -> str | None:
        module.asked.append(requirement)
        return NO_WHEEL if requirement in module.refused else None

    def run(*command: object, cwd: Path | None = place) -> int:
        words = [str(word) for word in command]
        if words[1:3] == ["-m", "venv"]:
            scripts.mkdir(parents=True)
            module.PYTHON.touch()
            module.asked.append("venv")
        else:
            module.asked.append(" ".join(words[1:]))
        return 0

    monkeypatch.setattr(module, "pip_install", install)
    monkeypatch.setattr(module, "run", run)
    return module


def asked(dev: ModuleType) -> list[str]:
    """What was asked for since the last call."""
    found, dev.asked = dev.asked, []
    return found


def test_first_run_installs_and_the_second_does_not(dev: ModuleType) -> None:
    dev.setup(dev=True)
    assert asked(dev) == ["venv", ".[dev]", ".[cuda]", ".[tpu]"]
    dev.setup(dev=True)
    dev.setup(dev=False)
    assert asked(dev) == []


def test_verify_needs_no_tools_and_test_adds_them(dev: ModuleType) -> None:
    assert dev.main(["verify", "--json", "llama-3.1-8b"]) == 0
    assert asked(dev) == ["venv", ".", ".[cuda]", ".[tpu]", "-m jaxcost.verify --json llama-3.1-8b"]
    dev.setup(dev=True)
    assert asked(dev)[0] == ".[dev]"


@pytest.mark.parametrize("changed", ["pyproject.toml", "constraints.txt"])
def test_changed_project_is_installed_again_in_the_same_place(dev: ModuleType, changed: str) -> None:
    dev.setup(dev=True)
    asked(dev)
    (dev.ROOT / changed).write_text("[project]\nname = 'x'\n", encoding="utf-8")
    dev.setup(dev=True)
    assert asked(dev) == [".[dev]", ".[cuda]", ".[tpu]"]


def test_another_interpreter_gets_another_environment(dev: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    dev.setup(dev=True)
    asked(dev)
    monkeypatch.setattr(dev, "place", lambda: "elsewhere")
    dev.setup(dev=True)
    assert asked(dev)[0] == "venv"


def test_spoiled_stamp_means_set_up_again(dev: ModuleType) -> None:
    dev.setup(dev=True)
    asked(dev)
    dev.STAMP.write_text("{", encoding="utf-8")
    dev.setup(dev=True)
    assert asked(dev)[0] == "venv"


def test_missing_extra_is_named_each_time_and_tried_again_by_setup(
    dev: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    dev.refused.add(".[cuda]")
    for _ in range(2):
        dev.setup(dev=True)
        said = capsys.readouterr().err
        assert "NVIDIA GPU targets (h100:8, ...) are unavailable" in said
        assert "ERROR: No matching distribution found" in said and "WARNING" not in said
        assert "python -m pip install -c constraints.txt -e '.[cuda]'" in said
        assert "TPU targets (tpu-v5e:2x4, ...) are unavailable" not in said
    assert asked(dev) == ["venv", ".[dev]", ".[cuda]", ".[tpu]"]
    dev.refused.clear()
    assert dev.main(["setup"]) == 0
    assert asked(dev) == [".[dev]", ".[cuda]", ".[tpu]"]
    assert "unavailable" not in capsys.readouterr().err


def test_failed_installation_stops_and_the_next_run_tries_again(dev: ModuleType) -> None:
    dev.refused.add(".[dev]")
    with pytest.raises(SystemExit, match="jaxcost could not be installed"):
        dev.setup(dev=True)
    assert asked(dev) == ["venv", ".[dev]"]
    dev.refused.clear()
    dev.setup(dev=True)
    assert asked(dev) == [".[dev]", ".[cuda]", ".[tpu]"]


def test_environment_of_the_user_is_used_or_left_alone(dev: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    dev.SCRIPTS.mkdir(parents=True)
    (dev.VENV / "theirs").touch()
    with pytest.raises(SystemExit, match="was not made by dev.py"):
        dev.setup(dev=True)
    dev.PYTHON.symlink_to(sys.executable)
    dev.setup(dev=True)
    assert asked(dev) == [".[dev]", ".[cuda]", ".[tpu]"]
    assert (dev.VENV / "theirs").exists()


def test_arguments_reach_pytest(dev: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dev.os, "cpu_count", lambda: 2)
    dev.setup(dev=True)
    asked(dev)
    dev.main(["test", "--fast", "tests/test_dev.py", "-k", "stamp"])
    dev.main(["test", "-n0", "-x"])
    assert asked(dev) == [
        "-m pytest -m not slow -n 2 --dist loadfile tests/test_dev.py -k stamp",
        "-m pytest -n0 -x",
    ]


def test_lint_runs_everything_and_fails_if_one_does(dev: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    dev.setup(dev=True)
    ran: list[str] = []

    def run(*command: object, cwd: Path | None = None) -> int:
        ran.append(" ".join(Path(str(word)).name for word in command))
        return 1 if "mypy" in ran[-1] else 0

    monkeypatch.setattr(dev, "run", run)
    assert dev.main(["lint"]) == 1
    assert ran == ["python -m ruff check", "python -m ruff format --check", "python -m mypy", "lint-imports --no-logo"]


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [([], 2, "python dev.py verify"), (["--help"], 0, "python dev.py verify"), (["tests"], 2, "no job tests")],
)
def test_help_from_any_folder(root: Path, tmp_path: Path, words: list[str], code: int, text: str) -> None:
    done = subprocess.run(
        [sys.executable, str(root / "dev.py"), *words], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == code
    assert text in done.stderr


def test_old_interpreter_is_told_what_to_do(root: Path, tmp_path: Path) -> None:
    # No old interpreter is needed: this one pretends to be one, before the file is read.
    code = (
        "import sys, runpy; sys.version_info = (3, 8, 1, 'final', 0); sys.argv = ['dev.py', 'test'];"
        f"runpy.run_path({str(root / 'dev.py')!r}, run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("jaxcost needs Python 3.11 or newer; this is Python ")
    assert "dev.py test" in done.stderr and "Traceback" not in done.stderr
