"""One command for each job, from a fresh checkout, with nothing but Python and pip.

    python dev.py verify [ARGS]          run `python -m jaxcost.verify`; ARGS are passed on
    python dev.py test [--fast] [ARGS]   run the tests (--fast: without the slow ones); ARGS are passed on to pytest
    python dev.py lint [--fix]           style, format, types, import contracts; --fix mends what can be mended
    python dev.py setup                  install only, and try again the extras that were missing

Each makes sure that `.venv/` beside this file holds the project (editable) and what the job needs. It installs only
when pyproject.toml, constraints.txt or the interpreter changed. The extras [cuda] and [tpu] are tried; where one has
no wheel, the job goes on without it and says what is missing. Standard library only.
"""

import sys

# Before anything that an old interpreter cannot run, so that it gets an answer and not a traceback.
if sys.version_info < (3, 11):  # noqa: UP036  (this file is what an old interpreter meets first)
    import shutil

    _this = sys.version.split()[0] + " at " + sys.executable
    _newer = [name for name in ("python3.11", "python3.12", "python3.13") if shutil.which(name)]
    _line = " ".join([(_newer or ["python3.11"])[0], *sys.argv])
    sys.exit("jaxcost needs Python 3.11 or newer; this is Python " + _this + ".\nTry: " + _line)

import contextlib
import hashlib
import json
import os
import platform
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
SCRIPTS = VENV / ("Scripts" if os.name == "nt" else "bin")
PYTHON = SCRIPTS / ("python.exe" if os.name == "nt" else "python")
STAMP = VENV / "jaxcost-setup.json"
CONSTRAINTS = ROOT / "constraints.txt"  # the versions of JAX and its compilers

# What each optional extra makes possible, for the message where it cannot be installed.
EXTRAS = {"cuda": "NVIDIA GPU targets (h100:8, ...)", "tpu": "TPU targets (tpu-v5e:2x4, ...)"}


def say(text: str) -> None:
    """Messages go to standard error, so that `dev.py verify --json` leaves one document on standard output."""
    print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def step(title: str) -> Iterator[None]:
    """Announce a step, and say at its end how long it took, whether or not it succeeded."""
    say(f"==> {title}")
    start = time.monotonic()
    try:
        yield
    finally:
        say(f"    {time.monotonic() - start:.1f} s")


def run(*command: str | Path, cwd: Path | None = ROOT) -> int:
    """Run a command with its output shown; its exit code (128 + n if signal n ended it)."""
    words = [str(word) for word in command]
    say(f"    $ {shlex.join(word.removeprefix(str(ROOT) + os.sep) for word in words)}")
    code = subprocess.run(words, cwd=cwd, check=False).returncode
    return code if code >= 0 else 128 - code


def pip_line(requirement: str) -> str:
    """The line that a user would type in the checkout for the same installation."""
    return f"{PYTHON.relative_to(ROOT)} -m pip install -c {CONSTRAINTS.name} -e {shlex.quote(requirement)}"


def pip_install(requirement: str) -> str | None:
    """Install the project with the named extras into `.venv`; None, or the whole of what pip said when it failed."""
    say(f"    $ {pip_line(requirement)}")
    done = subprocess.run(
        [str(PYTHON), "-m", "pip", "install", "--disable-pip-version-check", "--quiet", "-c", str(CONSTRAINTS), "-e",
         requirement],
        cwd=ROOT, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    return None if done.returncode == 0 else done.stdout.strip() or f"pip ended with exit code {done.returncode}"


def reason(pip_said: str) -> str:
    """The one line of pip's output that says why."""
    lines = pip_said.splitlines()
    return next((line for line in lines if line.startswith("ERROR")), lines[-1])


def place() -> str:
    """What a virtual environment is bound to: this interpreter, this machine, this folder."""
    return f"{sys.version} {platform.platform()} {ROOT}"


def project() -> str:
    """What an installation is bound to: the digest of pyproject.toml and of the versions it is held to."""
    return hashlib.sha256((ROOT / "pyproject.toml").read_bytes() + CONSTRAINTS.read_bytes()).hexdigest()


def last_setup() -> dict[str, Any]:
    """What the last complete set-up left behind; empty if there was none that still holds here."""
    if not PYTHON.exists() or not STAMP.exists():
        return {}
    try:
        stamp = json.loads(STAMP.read_text(encoding="utf-8"))
    except ValueError:
        return {}
    return stamp if isinstance(stamp, dict) and stamp.get("place") == place() else {}


def create_venv() -> None:
    """A new `.venv`, with pip. One that this script made by another interpreter or in another place is replaced; one
    that the user made is used if it runs the same Python, and is otherwise left alone.
    """
    if VENV.exists() and not STAMP.exists():
        if version_of(PYTHON) == sys.version:
            return
        sys.exit(f"{VENV} was not made by dev.py and does not run this Python. Move it away, then run this again.")
    if VENV.exists():
        shutil.rmtree(VENV)
    if run(sys.executable, "-m", "venv", VENV) != 0 or not PYTHON.exists():
        sys.exit(
            "The virtual environment could not be created. Where Python comes from Debian or Ubuntu, its module is a "
            "package of its own: apt install python3-venv"
        )


def version_of(interpreter: Path) -> str | None:
    """`sys.version` of an interpreter; None if it does not run."""
    try:
        done = subprocess.run([interpreter, "-c", "import sys; print(sys.version)"], capture_output=True, text=True)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def setup(*, dev: bool, retry: bool = False) -> None:
    """Bring `.venv` to what pyproject.toml asks for; nothing is installed when nothing changed.

    `dev` adds the tools of test and lint. An extra that could not be installed is tried again only with `retry`, so
    that a platform without it does not wait for pip each time.
    """
    stamp = last_setup()
    dev = dev or stamp.get("dev") is True
    missing: dict[str, str] = stamp.get("missing", {})
    current = stamp.get("project") == project() and stamp.get("dev") is dev
    if not current or (retry and missing):
        missing = {}
        if not stamp:
            with step(f"create .venv with Python {platform.python_version()}"):
                create_venv()
            # Written before anything is installed: an interrupted set-up goes on where it stopped.
            STAMP.write_text(json.dumps({"place": place()}))
        with step("install jaxcost" + (" and the tools of test and lint" if dev else "") + " (at first, some minutes)"):
            failure = pip_install(".[dev]" if dev else ".")
        if failure:
            say(failure)
            sys.exit(f"jaxcost could not be installed; pip's reason is above. The command was: {pip_line('.')}")
        for extra, what in EXTRAS.items():
            with step(f"install the extra [{extra}], the compiler of {what}"):
                failure = pip_install(f".[{extra}]")
            if failure:
                missing[extra] = reason(failure)
        STAMP.write_text(json.dumps({"place": place(), "project": project(), "dev": dev, "missing": missing}))
    for extra, why in missing.items():
        say(f"note: {EXTRAS[extra]} are unavailable, the extra [{extra}] could not be installed: {why}")
        say(f"      To add them: {pip_line(f'.[{extra}]')}   or: python dev.py setup")


def verify(arguments: list[str]) -> int:
    """The main job. It runs where the user stands, so that file names among the arguments mean what they say."""
    setup(dev=False)
    with step("verify"):
        return run(PYTHON, "-m", "jaxcost.verify", *arguments, cwd=None)


def test(arguments: list[str]) -> int:
    """The tests, shared among the processors by file: the tests of one file often share one compiled program."""
    setup(dev=True)
    options = ["-m", "not slow"] if "--fast" in arguments else []
    arguments = [word for word in arguments if word != "--fast"]
    workers = min(os.cpu_count() or 1, 4)
    if workers > 1 and not any(word.startswith(("-n", "--numprocesses", "--pdb")) for word in arguments):
        options += ["-n", str(workers), "--dist", "loadfile"]
    # No step here: pytest says how long it took, and its closing line stays the last one.
    say("==> test")
    return run(PYTHON, "-m", "pytest", *options, *arguments)


def lint(arguments: list[str]) -> int:
    """Style, format, types and import contracts; all four are run, so that one run shows all there is to mend."""
    unknown = [word for word in arguments if word != "--fix"]
    if unknown:
        sys.exit(f"dev.py lint takes no argument but --fix; got: {' '.join(unknown)}")
    setup(dev=True)
    fix = bool(arguments)
    jobs: dict[str, list[str | Path]] = {
        "style": [PYTHON, "-m", "ruff", "check", *(["--fix"] if fix else [])],
        "format": [PYTHON, "-m", "ruff", "format", *([] if fix else ["--check"])],
        "types": [PYTHON, "-m", "mypy"],
        "import contracts": [SCRIPTS / "lint-imports", "--no-logo"],
    }
    failed = []
    for name, command in jobs.items():
        with step(name):
            if run(*command) != 0:
                failed.append(name)
    say(f"lint: failed: {', '.join(failed)}" if failed else "lint: all passed")
    return 1 if failed else 0


def main(words: list[str]) -> int:
    """Choose the job by its name and give its exit code; 2 if there is no such job."""
    job, arguments = (words[0], words[1:]) if words else ("", [])
    if job in ("", "help", "-h", "--help"):
        say(__doc__)
        return 0 if job else 2
    if job == "setup" and not arguments:
        setup(dev=True, retry=True)
        return 0
    jobs = {"verify": verify, "test": test, "lint": lint}
    if job not in jobs:
        say(f"dev.py has no job {shlex.join(words)}; the jobs are verify, test, lint and setup.\n\n{__doc__}")
        return 2
    return jobs[job](arguments)


if __name__ == "__main__":
    try:
        code = main(sys.argv[1:])
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)
