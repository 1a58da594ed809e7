"""The package finds its evidence rooms in a checkout and in an installed wheel, from any working directory.

The wheel is built and installed for real. Two mistakes are the reason: data that only the checkout has, and a mapping
made at build time that is not there when `python -m jaxcost` runs from inside the checkout, whose package comes first.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import jaxcost.data

WHERE = "import json, jaxcost.data as d; print(json.dumps([str(d.room(name)) for name in d.ROOMS]))"


def python(*arguments: str, cwd: Path, path: Path | None = None) -> str:
    """Standard output of a fresh interpreter in `cwd`, with `path` first among the installed packages."""
    environment = dict(os.environ)
    environment.pop("PYTHONPATH", None)
    if path is not None:
        environment["PYTHONPATH"] = str(path)
    done = subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{arguments} in {cwd}:\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the checkout with the build backend that is installed."""
    folder = tmp_path_factory.mktemp("wheel")
    build = "import sys, hatchling.build; print(hatchling.build.build_wheel(sys.argv[1]))"
    name = python("-c", build, str(folder), cwd=root).splitlines()[-1]
    return folder / name


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that the wheel alone is installed in."""
    folder = tmp_path_factory.mktemp("a place with spaces") / "site"
    options = ["--quiet", "--no-deps", "--no-index", "--disable-pip-version-check"]
    python("-m", "pip", "install", *options, "--target", str(folder), str(wheel), cwd=folder.parent)
    return folder


def test_rooms_of_the_checkout(root: Path) -> None:
    assert jaxcost.data.evidence_root() == root
    for name in jaxcost.data.ROOMS:
        assert jaxcost.data.room(name) == root / name
        assert (root / name / "README.md").is_file()


def test_unknown_room_is_named() -> None:
    with pytest.raises(ValueError, match=f"no room is called 'tests'; the rooms are {', '.join(jaxcost.data.ROOMS)}"):
        jaxcost.data.room("tests")


def test_broken_installation_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(jaxcost.data, "_INSTALLED", tmp_path / "jaxcost" / "_data")
    monkeypatch.setattr(jaxcost.data, "_CHECKOUT", tmp_path)
    (tmp_path / "models").mkdir()  # a stranger's folder of that name is not taken for ours
    with pytest.raises(FileNotFoundError, match="Install the package again"):
        jaxcost.data.room("models")
    (tmp_path / "jaxcost" / "_data").mkdir(parents=True)
    with pytest.raises(FileNotFoundError, match="room models/ is missing"):
        jaxcost.data.room("models")


def test_shipped_records_are_few_and_small(root: Path) -> None:
    settings = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    shipped = settings["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    records = [root / path for path in shipped if path.startswith("hlo_dumps/") and path != "hlo_dumps/README.md"]
    assert len(records) <= 6
    for record in records:
        files = [record] if record.is_file() else [file for file in record.rglob("*") if file.is_file()]
        assert 0 < sum(file.stat().st_size for file in files) <= 100_000, record


def test_wheel_holds_the_rooms_and_the_package_data(root: Path, wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for room in ("models", "verify"):
        files = {path.relative_to(root) for path in (root / room).rglob("*") if path.is_file()}
        assert {f"jaxcost/_data/{path.as_posix()}" for path in files} <= names
    sources = [path for path in (root / "jaxcost").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert {path.relative_to(root).as_posix() for path in sources} <= names
    outside = ("tests/", "models/", "papers/", "hardware/", "verify/", "hlo_dumps/")
    assert not [name for name in names if name.startswith(outside)]


@pytest.mark.parametrize("inside_checkout", [False, True])
def test_wheel_finds_its_rooms(root: Path, installed: Path, tmp_path: Path, inside_checkout: bool) -> None:
    cwd = root if inside_checkout else tmp_path
    # `python -m` and `python -c` put the working directory first: in the checkout, the checkout's package runs.
    expected = root if inside_checkout else installed / "jaxcost" / "_data"
    for room in jaxcost.data.ROOMS:
        assert str(expected / room) in python("-c", WHERE, cwd=cwd, path=installed)
    # A console script does not, so there the wheel runs with the checkout as its working directory.
    assert str(installed / "jaxcost" / "_data" / "models") in python("-P", "-c", WHERE, cwd=cwd, path=installed)


@pytest.mark.parametrize("inside_checkout", [False, True])
def test_wheel_launches(root: Path, installed: Path, tmp_path: Path, inside_checkout: bool) -> None:
    cwd = root if inside_checkout else tmp_path
    for isolation in ([], ["-P"]):
        listing = python(*isolation, "-m", "jaxcost", "models", cwd=cwd, path=installed)
        assert "llama-3.1-8b" in listing


def test_the_launch_test_can_fail(installed: Path, tmp_path: Path) -> None:
    (installed / "jaxcost" / "_data").rename(installed / "jaxcost" / "_gone")
    try:
        with pytest.raises(AssertionError, match="data is missing"):
            python("-c", WHERE, cwd=tmp_path, path=installed)
    finally:
        (installed / "jaxcost" / "_gone").rename(installed / "jaxcost" / "_data")
