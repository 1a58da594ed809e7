"""Write a manifest as TOML text. tomllib only reads; the records need no more than tables, lists and scalars."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from jaxcost.contracts.architecture import Architecture
from jaxcost.contracts.record import Record


def manifest_toml(architecture: Architecture, comment: str = "") -> str:
    """Return the manifest file of an architecture; reading it back gives an equal record.

    Fields that have their default are left out, as a hand-written manifest leaves them out.
    """
    lines = [f"# {line}" for line in comment.splitlines()]
    lines += _table(_trimmed(architecture), ())
    return "\n".join(lines) + "\n"


def options_toml(options: Mapping[str, Any]) -> str:
    """Return the options of a case as the text of a case file."""
    return "".join(f"{key} = {_value(value)}\n" for key, value in options.items())


def _trimmed(record: Record) -> dict[str, Any]:
    fields = type(record).model_fields
    values = {name: getattr(record, name) for name in fields}
    return {
        name: _data(value)
        for name, value in values.items()
        if fields[name].is_required()
        or not (type(value) is type(fields[name].default) and value == fields[name].default)
    }


def _data(value: Any) -> Any:
    if isinstance(value, Record):
        return _trimmed(value)
    return [_data(item) for item in value] if isinstance(value, tuple) else value


def _table(data: Mapping[str, Any], path: tuple[str, ...]) -> Iterable[str]:
    kept = {key: value for key, value in data.items() if value is not None and value != ""}
    nested = [key for key, value in kept.items() if _is_table(value) and _needs_header(value)]
    lists = [key for key, value in kept.items() if isinstance(value, list) and value and all(map(_is_table, value))]
    for key, value in kept.items():
        if key not in nested and key not in lists:
            text = _value(value)
            if isinstance(value, list) and len(text) > 100:
                text = "[\n" + "".join(f"    {_value(item)},\n" for item in value) + "]"
            yield f"{key} = {text}"
    for key in nested:
        yield f"\n[{'.'.join((*path, key))}]"
        yield from _table(kept[key], (*path, key))
    for key in lists:
        for item in kept[key]:
            yield f"\n[[{'.'.join((*path, key))}]]"
            yield from _table(item, (*path, key))


def _needs_header(table: Mapping[str, Any]) -> bool:
    return any(map(_is_table, table.values())) or len(_value(table)) > 100


def _is_table(value: Any) -> bool:
    return isinstance(value, dict)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        # TOML's basic strings know JSON's escapes, except surrogate pairs; and they refuse a bare DEL.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F")
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    return "{ " + ", ".join(f"{key} = {_value(item)}" for key, item in value.items() if item is not None) + " }"
