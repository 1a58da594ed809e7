"""The pages name what the code has, and the code has what the pages name.

Commands and options against docs/cli.md; statuses, explanations, evidence classes, verdicts and findings against
docs/conventions.md; public names against docs/python.md. Each comparison goes both ways where the page has a table.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from pathlib import Path

import click
import pytest

import jaxcost
import jaxcost.data
from jaxcost.cli.options import case_options
from jaxcost.cli.program import COMMANDS, program
from jaxcost.contracts.observation import REQUIRED_FIELDS, EvidenceClass
from jaxcost.reconciliation.rows import STATUSES

ROOT = Path(__file__).resolve().parent.parent
CLI = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
CONVENTIONS = (ROOT / "docs" / "conventions.md").read_text(encoding="utf-8")
RECONCILIATION = sorted((ROOT / "jaxcost" / "reconciliation").glob("*.py"))


def section(page: str, title: str) -> str:
    """The text below a heading, up to the next one."""
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    assert found, title
    return found[1]


def first_cells(text: str) -> list[str]:
    """The first cell of each table row, without its head."""
    rows = [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("|")]
    return [cell for cell in rows[1:] if cell.strip("-")]


def flags(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])(--[a-z][a-z-]+|-o)\b", text))


def commands() -> list[str]:
    """Every command, those of a group by their full name: `plan recompute`."""
    found = []
    for name in COMMANDS:
        command = program.get_command(click.Context(program), name)
        below = command.list_commands(click.Context(command)) if isinstance(command, click.Group) else []
        found += [name, *(f"{name} {part}" for part in below)]
    return found


def options_of(name: str) -> set[str]:
    command: click.Command | None = program
    for part in name.split():
        assert isinstance(command, click.Group)
        command = command.get_command(click.Context(command), part)
    assert command is not None
    context = click.Context(command, info_name=name)
    return {
        flag
        for parameter in command.get_params(context)
        if isinstance(parameter, click.Option)
        for flag in (*parameter.opts, *parameter.secondary_opts)
        if flag.startswith("--") or len(parameter.opts) == 1
    }


@click.command()
@case_options
def _case() -> None:
    """A command with the options of a case alone."""


CASE_OPTIONS = {flag for parameter in _case.params for flag in (*parameter.opts, *parameter.secondary_opts)}


def test_case_options_are_on_the_page_and_no_others() -> None:
    assert {flag for cell in first_cells(section(CLI, "Options of a case")) for flag in flags(cell)} == CASE_OPTIONS


@pytest.mark.parametrize("name", commands())
def test_options_of_a_command_are_on_the_page_and_no_others(name: str) -> None:
    text = section(CLI, f"jaxcost {name}")
    options = {option for option in options_of(name) if option != "-h"}
    cells = first_cells(text)
    named = {flag for cell in cells for flag in flags(cell)} if any(map(flags, cells)) else flags(text)
    assert named <= options and named - CASE_OPTIONS == options - CASE_OPTIONS


@pytest.mark.parametrize("name", ["", *commands()])
def test_help_shows_an_example(name: str, run_jaxcost) -> None:  # type: ignore[no-untyped-def]
    text = run_jaxcost(*name.split(), "--help").stdout
    assert re.search(rf"^ +jaxcost {name or 'models'}\b", text, re.MULTILINE), text


def calls(tree: ast.AST, name: str) -> list[ast.Call]:
    """The calls of a name that have arguments by position, anywhere in a tree."""
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    return [call for call in found if call.func.id == name and call.args]  # type: ignore[attr-defined]


def explanation_reasons(source: str) -> set[str]:
    """The texts that a module gives as reasons of explanations: written in the call, or bound to a name it uses."""
    found = set()
    tree = ast.parse(source)
    constants = {
        target.id: line.value.value
        for line in tree.body
        if isinstance(line, ast.Assign) and isinstance(line.value, ast.Constant)
        for target in line.targets
        if isinstance(target, ast.Name)
    }
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        for call in calls(function, "Explanation"):
            reason = call.args[1]
            if isinstance(reason, ast.Name) and reason.id in constants:
                found.add(str(constants[reason.id]))
            else:
                found |= set(_texts(reason, function))
    return found


def _texts(node: ast.expr, function: ast.FunctionDef) -> Iterable[str]:
    if isinstance(node, ast.Constant):
        yield str(node.value)
    elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):  # a constant of a module beside
        for path in (path for path in RECONCILIATION if path.stem == node.value.id):
            for line in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(line, ast.Assign) and [getattr(t, "id", "") for t in line.targets] == [node.attr]:
                    yield from (str(c.value) for c in ast.walk(line.value) if isinstance(c, ast.Constant))
    elif isinstance(node, ast.Name):
        for other in ast.walk(function):
            if isinstance(other, ast.Assign) and any(
                isinstance(t, ast.Name) and t.id == node.id for t in other.targets
            ):
                yield from (str(c.value) for c in ast.walk(other.value) if isinstance(c, ast.Constant))
            if isinstance(other, ast.For) and isinstance(other.target, ast.Tuple) and isinstance(other.iter, ast.Tuple):
                names = [getattr(name, "id", "") for name in other.target.elts]
                if node.id in names:
                    place = names.index(node.id)
                    yield from (str(item.elts[place].value) for item in other.iter.elts)  # type: ignore[attr-defined]


def test_every_explanation_is_on_the_page_and_no_other() -> None:
    reasons = set().union(*(explanation_reasons(path.read_text(encoding="utf-8")) for path in RECONCILIATION))
    assert len(reasons) > 10
    assert set(first_cells(section(CONVENTIONS, "Explanations"))) == reasons


def test_reading_of_reasons_can_fail() -> None:
    source = "def f():\n    reason = 'new'\n    for a, b in (('x', 'y'),):\n        g(Explanation(1, b))\n"
    assert explanation_reasons(source + "    Explanation(2, reason)\n    Explanation(3, 'here')") == {
        "new",
        "y",
        "here",
    }


def test_statuses_and_evidence_classes_are_on_the_page_in_order() -> None:
    assert [cell.strip("`") for cell in first_cells(section(CONVENTIONS, "Statuses, worst first"))] == list(STATUSES)
    text = section(CONVENTIONS, "Evidence classes")
    assert [cell.strip("`") for cell in first_cells(text)] == list(EvidenceClass.__args__)
    for name, fields in REQUIRED_FIELDS.items():
        (row,) = [line for line in text.splitlines() if line.startswith(f"| `{name}` ")]
        assert re.findall(r"`(\w+)`", row.split("|")[3]) == list(fields)


def test_findings_are_on_the_page() -> None:
    text = section(CONVENTIONS, "Findings")
    kinds = set()
    for path in RECONCILIATION:
        for call in calls(ast.parse(path.read_text(encoding="utf-8")), "Finding"):
            if isinstance(call.args[0], ast.Constant):
                kinds.add(call.args[0].value)
    assert kinds and {f"`{kind}`" for kind in kinds} <= set(re.findall(r"`[^`]+`", text))


def test_public_names_are_on_the_page() -> None:
    page = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    shown = " ".join(first_cells(page.split("## A ledger")[0]))
    assert not [name for name in jaxcost.__all__ if not name.startswith("_") and not re.search(rf"\b{name}\b", shown)]


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    missing = [page.name for page in (ROOT / "docs").glob("*.md") if page.name != "index.md" and page.name not in index]
    assert not missing


def test_exit_codes_of_the_page_are_those_of_the_errors() -> None:
    from jaxcost.contracts.errors import JaxcostError, RejectedError, UnavailableError

    page = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    codes = {int(cell) for cell in first_cells(page.split("## ")[0]) if cell.isdecimal()}
    assert codes >= {0, 1, RejectedError.exit_code, UnavailableError.exit_code, JaxcostError.exit_code, 130}


def test_every_room_is_on_the_page_of_rooms() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rooms = {folder.parent.name for folder in (ROOT / "jaxcost").glob("*/__init__.py")} - {"schema"}
    assert {f"`{name}`" for name in rooms} <= set(first_cells(page))
    assert all(f"`{name}/`" in page for name in jaxcost.data.ROOMS)
