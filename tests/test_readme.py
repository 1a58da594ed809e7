"""What README.md and docs/ show is what happens.

In a fenced `console` block each line that begins `$ jaxcost` is run in a fresh process. It must exit with 0, and each
line shown below it must appear in its output, in this order. White space is compared as one blank, and `...` stands
for anything, inside a line or as a line of its own. Words after `console` are marks: `console slow cuda` takes long
and needs that compiler. A block that begins `>>>` is a doctest. A fenced `sh` block is for commands that install
something or run everything; those are run by continuous integration.
"""

from __future__ import annotations

import doctest
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w*)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Example:
    """A command as shown, and the lines shown below it."""

    command: str
    shown: tuple[str, ...]
    marks: tuple[str, ...] = ()


def fenced(text: str) -> list[tuple[str, tuple[str, ...], str]]:
    """(language, the words after it, body) of each fenced block, in order."""
    return [(found[1], tuple(found[2].split()), found[3]) for found in FENCE.finditer(text)]


def examples(text: str) -> list[Example]:
    """The `$ jaxcost` commands of a page, a trailing backslash continuing the line."""
    found: list[Example] = []
    for language, marks, body in fenced(text):
        if language != "console":
            continue
        for part in re.split(r"^\$ ", body.replace("\\\n", " "), flags=re.MULTILINE)[1:]:
            command, *shown = part.splitlines()
            if command.split()[0] == "jaxcost":
                found.append(Example(command, tuple(line for line in shown if line.strip()), marks))
    return found


def doctests(text: str) -> list[str]:
    """The blocks of a page that begin with a Python prompt."""
    return [body for _, _, body in fenced(text) if body.lstrip().startswith(">>>")]


def missing_lines(shown: tuple[str, ...], output: str) -> list[str]:
    """The shown lines that the output does not have, each looked for after the one before it."""
    lines = [" ".join(line.split()) for line in output.splitlines()]
    missing, start = [], 0
    for line in shown:
        if line.strip() == "...":
            continue
        pattern = ".*".join(re.escape(part) for part in " ".join(line.split()).split("..."))
        place = next((i for i in range(start, len(lines)) if re.fullmatch(pattern, lines[i])), None)
        if place is None:
            missing.append(line)
        else:
            start = place + 1
    return missing


COMMANDS = [
    pytest.param(example, id=f"{page.name}: {example.command}", marks=[getattr(pytest.mark, m) for m in example.marks])
    for page in PAGES
    for example in examples(page.read_text(encoding="utf-8"))
]
SESSIONS = [
    pytest.param(body, id=f"{page.name}: {body.splitlines()[0]}")
    for page in PAGES
    for body in doctests(page.read_text(encoding="utf-8"))
]


@pytest.mark.parametrize("example", COMMANDS)
def test_command_does_what_is_shown(example: Example, run_jaxcost: Callable[..., Any], tmp_path: Path) -> None:
    done = run_jaxcost(*shlex.split(example.command)[1:], cwd=tmp_path)
    assert done.returncode == 0, f"$ {example.command}\n{done.stdout}{done.stderr}"
    assert not missing_lines(example.shown, done.stdout), done.stdout


@pytest.mark.parametrize("body", SESSIONS)
def test_session_does_what_is_shown(body: str) -> None:
    test = doctest.DocTestParser().get_doctest(body, {}, "page", None, None)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    said: list[str] = []
    runner.run(test, out=said.append)
    assert runner.summarize(verbose=False).failed == 0, "".join(said)


def test_readme_shows_commands() -> None:
    # Guards the reader of pages: were no example found, every test above would pass by being empty.
    assert len(examples((ROOT / "README.md").read_text(encoding="utf-8"))) >= 2


def test_links_of_the_pages_lead_somewhere() -> None:
    pages = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *ROOT.glob("*/README.md")]
    broken = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in pages
        for target in re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8"))
        if not target.startswith("http") and not (page.parent / target).exists()
    ]
    assert not broken


PAGE = """
```console
$ jaxcost show toy \\
    --formula
unique  ...  parameters
...
total 12

$ other tool
$ jaxcost models
```

```console slow cuda
$ jaxcost verify toy
```

```sh
jaxcost verify
```
"""


def test_reader_takes_the_examples_and_nothing_else() -> None:
    assert examples(PAGE) == [
        Example("jaxcost show toy      --formula", ("unique  ...  parameters", "...", "total 12")),
        Example("jaxcost models", ()),
        Example("jaxcost verify toy", (), ("slow", "cuda")),
    ]
    assert doctests("```python\n>>> 1 + 1\n2\n```\n```python\nx = 1\n```\n") == [">>> 1 + 1\n2\n"]


@pytest.mark.parametrize(
    ("output", "missing"),
    [
        ("unique 1,024 parameters\nanything\ntotal   12\n", []),
        ("unique 1,024 parameters\nanything\ntotal 13\n", ["total 12"]),
        ("total 12\nunique 1,024 parameters\n", ["total 12"]),
        ("", ["unique  ...  parameters", "total 12"]),
    ],
)
def test_comparison_can_fail(output: str, missing: list[str]) -> None:
    assert missing_lines(("unique  ...  parameters", "...", "total 12"), output) == missing


def test_session_can_fail() -> None:
    with pytest.raises(AssertionError, match="Expected"):
        test_session_does_what_is_shown(">>> 1 + 1\n3\n")
