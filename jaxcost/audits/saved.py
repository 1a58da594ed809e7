"""A saved audit as it is read again: the file, its JSON, and the shape of the document, before any of it is used."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import NoneType
from typing import Any, NoReturn

from jaxcost.contracts.errors import Problem, RejectedError, UnavailableError, reject

LARGEST_DOCUMENT_BYTES = 2**29
REMEDY = "give the output of `jaxcost audit --json`, or record it again"

_MOST = 20  # problems named of one document
_PARTS: Mapping[str, tuple[type, ...]] = {
    "program": (dict,), "flops": (dict,), "primitives": (dict,), "jaxpr": (dict, NoneType), "xla": (dict,),
    "memory": (dict,), "collectives": (list,), "loops": (list,), "attribution": (dict,), "unknowns": (list,),
    "findings": (list,),
}  # fmt: skip
_PROGRAM: Mapping[str, tuple[type, ...]] = {
    "name": (str,), "origin": (str,), "module": (str,), "platform": (str,), "target": (dict, NoneType),
    "device_count": (int,), "mesh": (dict,), "digest": (str,), "instructions": (int,), "environment": (dict,),
    "refused": (str, NoneType), "notes": (list,),
}  # fmt: skip
_ROWS: Mapping[str, Mapping[str, tuple[type, ...]]] = {
    "collectives": {"kind": (str,), "axes": (list, NoneType)}, "loops": {},
    "unknowns": {"what": (str,), "kind": (str,), "reason": (str,)}, "findings": {"kind": (str,), "text": (str,)},
}  # fmt: skip
_NAMES = {dict: "an object", list: "an array", str: "a text", int: "a whole number", NoneType: "null"}


def read_document(path: Path, where: str) -> Any:
    """Return what the JSON of a file holds. A device or a pipe is not opened: it may never end.

    Args:
        path: the file.
        where: what names it to the reader of an error.

    Raises:
        UnavailableError: there is no such file.
        RejectedError: it is no plain file, larger than LARGEST_DOCUMENT_BYTES, or no JSON.
    """
    try:
        if not path.exists():
            raise UnavailableError(str(path), "there is no such file", "record one: jaxcost audit ... --json > FILE")
        if not path.is_file():
            raise reject(where, str(path), "is no plain file", "copy its content to a file")
        if path.stat().st_size > LARGEST_DOCUMENT_BYTES:
            raise reject(where, str(path), f"larger than {LARGEST_DOCUMENT_BYTES} bytes", REMEDY)
        return json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_number)
    except OSError as error:
        raise reject(where, str(path), f"cannot be read ({error.strerror})", "check the path") from None
    except (ValueError, RecursionError) as error:
        reason = str(error)[:200] if isinstance(error, ValueError) else "nested too deeply"
        raise reject(where, str(path), f"is no whole JSON document ({reason})", REMEDY) from None


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number of JSON")


def check_shape(data: Mapping[str, Any], where: str) -> None:
    """Refuse a document whose parts are missing or of another kind, or that holds a number that none can be.

    Every interval is {"minimum", "maximum"} with the lower end first, every number is finite.

    Raises:
        RejectedError: with each problem, up to 20.
    """
    problems = [*_fields(data, _PARTS, where)]
    if isinstance(data.get("program"), dict):
        problems += _fields(data["program"], _PROGRAM, f"{where}.program")
    for name, fields in _ROWS.items():
        rows = data.get(name)
        for index, row in enumerate(rows if isinstance(rows, list) else ()):
            problems += _fields(row, fields, f"{where}.{name}[{index}]")
    problems += _numbers(data, where)
    if problems:
        raise RejectedError(problems[:_MOST])


def _fields(row: object, fields: Mapping[str, tuple[type, ...]], where: str) -> Iterator[Problem]:
    if not isinstance(row, dict):
        yield Problem(where, type(row).__name__, "an object is expected", REMEDY)
        return
    for name, kinds in fields.items():
        at = f"{where}.{name}"
        if name not in row:
            yield Problem(at, None, "is missing", REMEDY)
        elif not isinstance(row[name], kinds) or isinstance(row[name], bool):
            expected = " or ".join(_NAMES[kind] for kind in kinds)
            yield Problem(at, type(row[name]).__name__, f"{expected} is expected", REMEDY)


def _numbers(data: object, where: str) -> Iterator[Problem]:
    """What no number can be: a stack of parts, for a document may be nested as deep as JSON is read."""
    stack: list[tuple[str, object]] = [(where, data)]
    while stack:
        at, value = stack.pop()
        if isinstance(value, float) and not math.isfinite(value):
            yield Problem(at, str(value), "a number is finite", REMEDY)
        elif isinstance(value, dict):
            low, high = value.get("minimum"), value.get("maximum")
            if isinstance(low, int) and isinstance(high, int) and low > high:
                yield Problem(at, f"{low} to {high}", "an interval has its lower end first", REMEDY)
            stack += ((f"{at}.{name}", item) for name, item in value.items())
        elif isinstance(value, list):
            stack += ((f"{at}[{index}]", item) for index, item in enumerate(value))
