"""Which mutants there are: the operators of mutmut over a module's syntax tree, less what the rules leave out.

The rules were written before the first result. Each leaves out a kind of mutant that no test ought to kill, or a
second spelling of one that stays, so that neither flatters the share:

1. Annotations, imports, decorators, `__all__`, type aliases and `if TYPE_CHECKING` are for readers and type checkers.
2. Prose: a literal, or a constant that holds one, with two words of three letters; documentation is prose too.
3. What an error or an assertion says: `raise`, `assert`, the arguments of `reject`, `Problem` and `*.problem`.
4. `strict=` of zip and the start 0 of sum say what already holds; arguments of `cast`, `isinstance` and `len`.
5. A string has one mutant (`XX` around it), not also its two cases.
6. An argument has one mutant: by position it becomes None, by keyword it is left out.
7. A mutant whose byte code is the original's is none.
"""

from __future__ import annotations

import ast
import difflib
import hashlib
import re
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from types import CodeType
from typing import Any

import libcst as cst
import libcst.matchers as m
from libcst.metadata import CodeRange, MetadataWrapper, PositionProvider, WhitespaceInclusivePositionProvider
from mutmut.mutation.mutators import mutation_operators

ROOT = Path(__file__).resolve().parent.parent.parent
ROOMS = {
    "contracts": "jaxcost/contracts",
    "prediction": "jaxcost/prediction",
    "reconciliation": "jaxcost/reconciliation",
    "counting": "jaxcost/observation/hlo",
}
ERRORS = {"reject", "Problem", "problem", "RejectedError"}
WORD = re.compile(r"[^\W\d_]{3,}")


@dataclass(frozen=True)
class Mutant:
    """One change of one module.

    Attributes:
        module: path from the root.
        room: of `ROOMS`.
        operator: mutmut's name of it.
        line: where the changed node starts, from 1.
        before, after: the changed node's text, on one line.
        nth: of equal changes on equal lines of the module, from 0.
        context: the line's text.
        start, end, new: which characters of the module become which.
        original: the module's text.
    """

    module: str
    room: str
    operator: str
    line: int
    before: str
    after: str
    nth: int
    context: str
    start: int
    end: int
    new: str
    original: str

    @property
    def source(self) -> str:
        """The module's text with the change."""
        return self.original[: self.start] + self.new + self.original[self.end :]

    @property
    def is_one(self) -> bool:
        """Does it compile, to another byte code than the original's?"""
        try:
            code = compile(self.source, self.module, "exec", dont_inherit=True)
        except (SyntaxError, ValueError):
            return False
        return not _same(_compiled(self.original), code)

    @property
    def name(self) -> str:
        """What it is called wherever the module keeps that line, whatever moves around it."""
        words = (self.module, self.operator, self.context, self.before, self.after, str(self.nth))
        return hashlib.sha256("\0".join(words).encode()).hexdigest()[:16]

    def rank(self, seed: str) -> str:
        """A number in [0, 1) in hexadecimal, drawn by the seed; the least of a room are its sample."""
        return hashlib.sha256(f"{seed}\0{self.name}".encode()).hexdigest()

    @property
    def difference(self) -> list[str]:
        """The lines that differ, before with `-` and after with `+`."""
        lines = list(difflib.unified_diff(self.original.splitlines(), self.source.splitlines(), n=0, lineterm=""))
        return [line for line in lines[2:] if not line.startswith("@@")]


class Module:
    """A module's syntax tree and its mutants."""

    def __init__(self, path: Path):
        self.path, self.name = path, path.relative_to(ROOT).as_posix()
        self.room = next(room for room, folder in ROOMS.items() if self.name.startswith(folder + "/"))
        self.text = path.read_text(encoding="utf-8")
        self.wrapper = MetadataWrapper(cst.parse_module(self.text))

    @cached_property
    def mutants(self) -> tuple[Mutant, ...]:
        """All of them, in the order of the text; rule 7 is left to `Mutant.is_one`, which compiles."""
        visitor = _Visitor(self.wrapper.module)
        self.wrapper.visit(visitor)
        lines = self.text.splitlines(keepends=True)
        starts = [0]
        for line in lines:
            starts.append(starts[-1] + len(line))
        seen: dict[tuple[str, ...], int] = {}
        made = []
        for line, operator, span, node, mutated in visitor.found:
            start, end = (starts[at.line - 1] + at.column for at in (span.start, span.end))
            old, new = (self.wrapper.module.code_for_node(at) for at in (node, mutated))
            # A node on its own is written without the indentation of its further lines, which parentheses make void.
            assert self.text[start:end].split() == old.split(), f"{self.name}:{line}: the tree and the text differ"
            before, after, context = " ".join(old.split()), " ".join(new.split()), lines[line - 1].strip()
            key = (operator, context, before, after)
            nth = seen[key] = seen.get(key, -1) + 1
            made.append(
                Mutant(self.name, self.room, operator, line, before, after, nth, context, start, end, new, self.text)
            )
        return tuple(made)


@lru_cache(maxsize=1)
def _compiled(text: str) -> CodeType:
    return compile(text, "original", "exec", dont_inherit=True)


def folds() -> frozenset[str]:
    """The modules of `FOLDS` in prediction/ledgers.py, read from its text: importing it would load the package."""
    tree = ast.parse((ROOT / "jaxcost/prediction/ledgers.py").read_text(encoding="utf-8"))
    (table,) = (
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "FOLDS"
    )
    assert isinstance(table, ast.Dict)
    names = {node.id for node in table.values if isinstance(node, ast.Name)}
    homes = {
        alias.name: node.module
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }
    return frozenset(homes[name].replace(".", "/") + ".py" for name in names)


class _Visitor(cst.CSTVisitor):
    """Collects (line, operator, place, node, mutated node); a node for which `_left_out` holds is not entered."""

    METADATA_DEPENDENCIES = (PositionProvider, WhitespaceInclusivePositionProvider)

    def __init__(self, module: cst.Module):
        super().__init__()
        self.found: list[tuple[int, str, CodeRange, cst.CSTNode, cst.CSTNode]] = []
        self.prose = _constants_of_prose(module)

    def on_visit(self, node: cst.CSTNode) -> bool:
        if self._left_out(node):
            return False
        for kind, operator in mutation_operators:
            if isinstance(node, kind):
                for mutated in self._kept(node, operator.__name__, list(operator(node))):
                    line = self.get_metadata(PositionProvider, node).start.line
                    place = self.get_metadata(WhitespaceInclusivePositionProvider, node)
                    self.found.append((line, operator.__name__, place, node, mutated))
        # What an error says is left out; whether it is made is not.
        return not (isinstance(node, cst.Call) and _called(node) in ERRORS | {"cast", "len", "isinstance"})

    def _left_out(self, node: cst.CSTNode) -> bool:
        if isinstance(node, cst.Annotation | cst.Decorator | cst.Import | cst.ImportFrom | cst.Raise | cst.Assert):
            return True
        if isinstance(node, cst.Expr) and isinstance(node.value, cst.SimpleString | cst.ConcatenatedString):
            return True
        if isinstance(node, cst.If) and m.matches(node.test, m.Name("TYPE_CHECKING")):
            return True
        if isinstance(node, cst.Assign | cst.AnnAssign):
            target = node.targets[0].target if isinstance(node, cst.Assign) else node.target
            name = target.value if isinstance(target, cst.Name) else ""
            alias = (
                name[:1].isupper()
                and not name.isupper()
                and isinstance(node.value, cst.Subscript | cst.BinaryOperation)
            )
            return name in self.prose or name == "__all__" or alias
        if isinstance(node, cst.Arg) and node.keyword is not None and node.keyword.value == "strict":
            return True
        return isinstance(node, cst.BaseExpression) and self._is_prose(node)

    def _kept(self, node: cst.CSTNode, operator: str, made: list[Any]) -> list[Any]:
        if operator == "operator_string":
            return made[:1]
        if operator != "operator_arg_removal":
            return made
        assert isinstance(node, cst.Call)
        if _called(node) in ERRORS | {"cast"}:
            return []
        kept = []
        for mutated in made:
            removed = len(mutated.args) < len(node.args)
            (place,) = [
                at for at in range(len(node.args))
                if at >= len(mutated.args) or mutated.args[at] is not node.args[at]
            ][:1]  # fmt: skip
            arg = node.args[place]
            named = arg.keyword is not None or arg.star == "**"
            if self._is_prose(arg.value) or (arg.keyword is not None and arg.keyword.value == "strict"):
                continue
            if _called(node) == "sum" and place == 1 and removed:
                continue
            alone = len(node.args) == 1
            if removed == (named and not alone) or (arg.star == "*" and removed):
                kept.append(mutated)
        return kept

    def _is_prose(self, node: cst.BaseExpression) -> bool:
        """Does the value hold words for a reader?"""
        if isinstance(node, cst.SimpleString):
            return _words(str(node.evaluated_value))
        if isinstance(node, cst.ConcatenatedString):
            return self._is_prose(node.left) or self._is_prose(node.right)
        if isinstance(node, cst.FormattedString):
            shown = "".join(part.value if isinstance(part, cst.FormattedStringText) else "0" for part in node.parts)
            return _words(shown)
        if isinstance(node, cst.Name):
            return node.value in self.prose
        if isinstance(node, cst.IfExp):
            return self._is_prose(node.body) and self._is_prose(node.orelse)
        if isinstance(node, cst.BinaryOperation):
            return self._is_prose(node.left) or self._is_prose(node.right)
        return False


def _words(text: str) -> bool:
    return sum(bool(WORD.search(word)) for word in text.split()) >= 2


def _constants_of_prose(module: cst.Module) -> frozenset[str]:
    found: set[str] = set()
    for line in module.body:
        for statement in line.body if isinstance(line, cst.SimpleStatementLine) else ():
            if isinstance(statement, cst.Assign) and isinstance(statement.targets[0].target, cst.Name):
                value = statement.value
                if isinstance(value, cst.SimpleString | cst.ConcatenatedString):
                    text = value.evaluated_value
                    if isinstance(text, str) and _words(text):
                        found.add(statement.targets[0].target.value)
    return frozenset(found)


def _called(node: cst.Call) -> str:
    """The last name of what is called: `problem` for `found.problem(...)`."""
    if isinstance(node.func, cst.Attribute):
        return node.func.attr.value
    return node.func.value if isinstance(node.func, cst.Name) else ""


def _same(one: CodeType, other: CodeType) -> bool:
    """Is the byte code equal, wherever its lines are?"""
    if (one.co_code, one.co_names, one.co_varnames) != (other.co_code, other.co_names, other.co_varnames):
        return False
    if len(one.co_consts) != len(other.co_consts):
        return False
    for a, b in zip(one.co_consts, other.co_consts, strict=True):
        if isinstance(a, CodeType) and isinstance(b, CodeType):
            if not _same(a, b):
                return False
        elif type(a) is not type(b) or repr(a) != repr(b):
            return False
    return True
