"""The base of every declared record: frozen, strict, whole at birth, with a digest.

Records are pydantic models. Text comes in as JSON or TOML; unknown, missing and duplicated keys, wrong types
(booleans for integers, integral floats, NaN) and broken cross-field rules are collected into one `RejectedError`.
A digest is the SHA-256 of the canonical JSON of the fields that change the graph or a number; a field marked with
`outside_digest()` (names, sources, notes) is left out.
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from jaxcost.contracts.errors import Problem, RejectedError, reject

LARGEST_SIZE = 2**48
MAXIMUM_DEPTH = 64
MAXIMUM_TEXT_BYTES = 64 * 2**20
# Control characters but for tab and line feed, and the marks that turn the direction of writing.
_STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")

Size = Annotated[int, Field(gt=0, le=LARGEST_SIZE)]
Extent = Annotated[int, Field(ge=0, le=LARGEST_SIZE)]
Name = Annotated[str, Field(min_length=1, max_length=200)]


def outside_digest(default: Any = "") -> Any:
    """Declare a field that names or documents the record and changes no number."""
    return Field(default=default, json_schema_extra={"outside_digest": True})


class BrokenRules(ValueError):
    """Cross-field problems found by one record; flattened into the input's `RejectedError`."""

    def __init__(self, problems: Iterable[Problem]):
        self.problems = tuple(problems)
        super().__init__("; ".join(str(problem) for problem in self.problems))


class Record(BaseModel):
    """A frozen, strict record. Subclasses state their rules in `problems()`."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, validate_default=True)

    def problems(self) -> Iterable[Problem]:
        """Yield the cross-field rules this record breaks; paths are relative to the record."""
        return ()

    @model_validator(mode="after")
    def _check(self) -> Self:
        found = [*self._unprintable(), *self.problems()]
        if found:
            raise BrokenRules(found)
        return self

    def _unprintable(self) -> Iterable[Problem]:
        """Yield the texts that would steer the terminal that shows them: control characters, reversed writing."""
        for name in type(self).model_fields:
            value = getattr(self, name)
            if isinstance(value, str) and _STEERING.search(value):
                yield Problem(name, value, "holds control characters", "write printable text")

    @classmethod
    def from_data(cls, data: object, where: str = "") -> Self:
        """Build the record from plain data (dicts, lists, scalars).

        Raises:
            RejectedError: with every problem of `data`.
        """
        try:
            text = json.dumps(data)
        except (TypeError, ValueError, RecursionError) as error:
            raise reject(
                where, type(data).__name__, f"not plain JSON data ({error})", "use text, numbers, lists"
            ) from None
        return validated(lambda: cls.model_validate_json(text), where)

    def to_data(self) -> dict[str, Any]:
        """Return the record as plain JSON data, every field written out."""
        return self.model_dump(mode="json")

    def covered(self) -> dict[str, Any]:
        """Return the fields the digest covers, as plain data.

        A field that has its default is left out, so that a branch added to a record in a later version leaves the
        digests of everything without that branch as they were. Two values never share a form: only the default is left
        out.
        """
        fields = type(self).model_fields
        values = {name: getattr(self, name) for name in fields if not _is_outside(type(self), name)}
        return {name: _covered(value) for name, value in values.items() if not _is_default(fields[name], value)}

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON of the covered fields, in hexadecimal."""
        canonical = json.dumps(self.covered(), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(canonical.encode()).hexdigest()

    def replaced(self, **changes: Any) -> Self:
        """Return a new record with `changes`, validated like any other."""
        data = {name: getattr(self, name) for name in type(self).model_fields}
        return validated(lambda: type(self)(**{**data, **changes}), "")


def _is_outside(model: type[BaseModel], name: str) -> bool:
    extra = model.model_fields[name].json_schema_extra
    return isinstance(extra, dict) and bool(extra.get("outside_digest"))


def _is_default(field: FieldInfo, value: Any) -> bool:
    default = field.default
    same_kind = default is not PydanticUndefined and type(default) is type(value)
    return same_kind and bool(_covered(default) == _covered(value))


def _covered(value: Any) -> Any:
    if isinstance(value, Record):
        return value.covered()
    if isinstance(value, tuple):
        return [_covered(item) for item in value]
    return value


_REMEDIES = {
    "missing": "add the key; an absent part is declared, not left out",
    "extra_forbidden": "remove the key or correct its spelling",
    "int_type": "write a whole number without a decimal point, quotes or true/false",
    "int_from_float": "write a whole number without a decimal point",
    "bool_type": "write true or false",
    "float_type": "write a number",
    "finite_number": "write a finite number",
    "string_type": "write text in quotes",
    "literal_error": "use one of the allowed values",
}
T = TypeVar("T")


def validated(build: Callable[[], T], where: str) -> T:
    """Run `build` and turn pydantic's findings into one `RejectedError` with paths below `where`."""
    try:
        return build()
    except ValidationError as error:
        raise RejectedError(_problems(error, where)) from None


def _problems(error: ValidationError, where: str) -> Iterable[Problem]:
    seen: set[tuple[str, str]] = set()
    for found in error.errors(include_url=False):
        path = _join(where, ".".join(str(part) for part in found["loc"]))
        cause = found.get("ctx", {}).get("error")
        if isinstance(cause, BrokenRules):
            inner = [Problem(_join(path, p.path), p.value, p.rule, p.remedy) for p in cause.problems]
        else:
            rule = found["msg"][:1].lower() + found["msg"][1:]
            remedy = _REMEDIES.get(found["type"], "give a value that satisfies the rule")
            value = None if found["type"] == "missing" else found["input"]
            inner = [Problem(path, value, rule, remedy)]
        for problem in inner:
            if (problem.path, problem.rule) not in seen:
                seen.add((problem.path, problem.rule))
                yield problem


def _join(where: str, path: str) -> str:
    return f"{where}.{path}" if where and path else where or path


def parse_json(text: str | bytes, where: str = "input") -> Any:
    """Parse JSON strictly: duplicated keys, NaN and deep nesting are refused."""
    problems: list[Problem] = []

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        table: dict[str, Any] = {}
        for key, value in pairs:
            if key in table:
                problems.append(
                    Problem(f"{where}.{key}", value, "the key appears twice in one object", "keep one of the two")
                )
            table[key] = value
        return table

    def constant(token: str) -> Any:
        problems.append(Problem(where, token, "NaN and infinities are not JSON numbers", "write a finite number"))
        return None

    try:
        data = json.loads(_decoded(text, where), object_pairs_hook=unique, parse_constant=constant)
    except RecursionError:
        raise reject(where, "nesting", "nested too deeply", f"use at most {MAXIMUM_DEPTH} levels") from None
    except ValueError as error:
        raise reject(where, None, f"not JSON ({error})", "correct the syntax at that position") from None
    if problems:
        raise RejectedError(problems)
    return _bounded(data, where)


def parse_toml(text: str | bytes, where: str = "input") -> Any:
    """Parse TOML; duplicated keys are refused by the TOML grammar itself."""
    try:
        data = tomllib.loads(_decoded(text, where))
    except RecursionError:
        raise reject(where, "nesting", "nested too deeply", f"use at most {MAXIMUM_DEPTH} levels") from None
    except ValueError as error:
        raise reject(where, None, f"not TOML ({error})", "correct the syntax at that position") from None
    return _bounded(data, where)


def read_text(path: Path) -> bytes:
    """Read a small text file, refusing what cannot be one."""
    if path.is_dir():
        raise reject(str(path), "directory", "a file is expected", "name the file inside it")
    if path.exists() and not path.is_file():
        raise reject(str(path), "special file", "a regular file is expected", "copy its content to a file")
    try:
        if path.stat().st_size > MAXIMUM_TEXT_BYTES:
            raise reject(
                str(path), path.stat().st_size, f"larger than {MAXIMUM_TEXT_BYTES} bytes", "this is not a manifest"
            )
        return path.read_bytes()
    except OSError as error:
        raise reject(str(path), type(error).__name__, f"cannot be read ({error.strerror})", "check the path") from None


def parse_file(path: Path) -> Any:
    """Parse a .toml or .json file into plain data."""
    text = read_text(path)
    if path.suffix == ".toml":
        return parse_toml(text, path.name)
    if path.suffix == ".json":
        return parse_json(text, path.name)
    raise reject(str(path), path.suffix, "the suffix says neither TOML nor JSON", "name the file .toml or .json")


def as_table(data: object, where: str) -> Mapping[str, Any]:
    """Return `data` if it is an object with text keys, else refuse it."""
    if not isinstance(data, dict):
        raise reject(where, type(data).__name__, "an object (table) is expected at the top", "write key-value pairs")
    return data


def _decoded(text: str | bytes, where: str) -> str:
    if isinstance(text, str):
        return text
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError as error:
        raise reject(where, f"byte {error.start}", "not UTF-8 text", "save the file as UTF-8") from None


def _bounded(data: Any, where: str) -> Any:
    level = [data]
    for _ in range(MAXIMUM_DEPTH):
        level = [item for node in level if isinstance(node, dict | list) for item in _children(node)]
        if not level:
            return data
    raise reject(where, "nesting", "nested too deeply", f"use at most {MAXIMUM_DEPTH} levels")


def _children(node: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return node.values() if isinstance(node, dict) else node
