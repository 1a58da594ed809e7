"""Cells of a page: sizes in two forms, tables with a scope for each head, plain data as tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

from jaxcost.report.numbers import about, exact

MOST_ROWS = 60
_MOST_COLUMNS = 10
_MOST_DEEP = 4
_LONGEST = 400
_COMMANDS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def amount(value: Any, unit: str, step: tuple[int, str] | None = None) -> str:
    """Return a rounded size, and the exact one that the page's switch shows instead.

    None is unknown; {"minimum", "maximum"} is an interval, with no upper end where `maximum` is None.
    """
    if value is None:
        return '<span class="unknown">unknown</span>'
    if isinstance(value, Mapping):
        low = amount(value["minimum"], unit, step)
        if value["maximum"] is None:
            return f'{low} <span class="unknown">+ unknown</span>' if value["minimum"] else amount(None, unit)
        return f"{low} to {amount(value['maximum'], unit, step)}"
    text = f"{value / step[0]:,.2f} {step[1]}" if step else about(value, unit)
    text = text or (f"{value:,} B" if unit == "bytes" else exact(value))
    exactly = exact(value)
    return f'<span class="rounded" title="{exactly} {unit}">{escape(text)}</span><span class="exactly">{exactly}</span>'


def grid(heads: Iterable[str], rows: Iterable[str], numbers: Iterable[int] = (), caption: str = "") -> str:
    """Return a table: rows are written already, columns of `numbers` stand to the right."""
    right = set(numbers)
    head = "".join(
        f'<th scope="col"{" class=n" if index in right else ""}>{escape(name)}</th>' for index, name in enumerate(heads)
    )
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    return f"<table>{title}<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def unit_of(name: str) -> str:
    """Return the unit that the name of a field tells."""
    words = name.split("_")
    return "bytes" if "bytes" in words else "FLOPs" if "flops" in words else ""


def cleaned(text: str) -> str:
    """Return a text without characters that command a terminal or turn the direction of writing: each is one mark."""
    return _COMMANDS.sub("\ufffd", text)


def clipped(text: str, most: int = _LONGEST) -> str:
    """Return a text that others wrote, no longer than a page can bear, and `cleaned`."""
    text = cleaned(text)
    return text if len(text) <= most else f"{text[: most - 1]}\u2026"


def value_cell(name: str, value: Any) -> str:
    """Return a scalar or an interval of a field as markup."""
    unit = unit_of(name)
    interval = isinstance(value, Mapping) and set(value) == {"minimum", "maximum"}
    if interval or (unit and (value is None or (isinstance(value, int) and not isinstance(value, bool)))):
        return amount(value, unit)
    if value is None:
        return '<span class="unknown">unknown</span>'
    if isinstance(value, list | tuple) and all(not isinstance(item, list | tuple | Mapping) for item in value):
        return escape(clipped(", ".join(map(str, value)) or "none"))
    return escape(clipped(exact(value)))


def plain_data(value: Any, name: str = "", deep: int = 0) -> str:
    """Return plain data as tables, for what a page has no better form of."""
    if deep >= _MOST_DEEP:
        return "<p>deeper, in the JSON</p>"
    if isinstance(value, Mapping) and set(value) != {"minimum", "maximum"}:
        simple = {key: item for key, item in value.items() if _simple(item)}
        rows = [
            f"<tr><td>{escape(clipped(str(key).replace('_', ' ')))}</td>"
            f'<td class="n">{value_cell(_named(name, str(key)), item)}</td></tr>'
            for key, item in list(simple.items())[:MOST_ROWS]
        ]
        parts = [grid(("", ""), rows, (1,))] if rows else []
        if len(simple) > MOST_ROWS:
            parts.append(f"<p>{len(simple) - MOST_ROWS:,} more, in the JSON</p>")
        for key, item in [(key, item) for key, item in value.items() if not _simple(item)][:MOST_ROWS]:
            title = escape(clipped(str(key).replace("_", " ")))
            inner = plain_data(item, _named(name, str(key)), deep + 1)
            parts.append(f"<details><summary>{title}</summary>{inner}</details>")
        return "".join(parts)
    if isinstance(value, list | tuple) and value and all(isinstance(item, Mapping) for item in value):
        heads = list(dict.fromkeys(key for item in value for key in item if any(_simple(i.get(key)) for i in value)))
        heads = heads[:_MOST_COLUMNS]
        rows = [
            "<tr>" + "".join(f"<td>{_field(str(name), item)}</td>" for name in heads) + "</tr>"
            for item in value[:MOST_ROWS]
        ]
        more = f"<p>{len(value) - MOST_ROWS:,} more, in the JSON</p>" if len(value) > MOST_ROWS else ""
        return f'<div class="wide">{grid([str(h).replace("_", " ") for h in heads], rows)}</div>{more}'
    return f"<p>{value_cell(name, value)}</p>"


def _named(above: str, name: str) -> str:
    """The name by which the unit of a field is told: its own, or that of the table around it (`by_class_bytes`)."""
    return name if unit_of(name) or not unit_of(above) else f"{name}_{unit_of(above).lower()}"


def _field(name: str, row: Mapping[str, Any]) -> str:
    return value_cell(name, row[name]) if name in row and _simple(row[name]) else ""


def _simple(value: Any) -> bool:
    if isinstance(value, Mapping):
        return set(value) == {"minimum", "maximum"}
    if isinstance(value, list | tuple):
        return all(not isinstance(item, list | tuple | Mapping) for item in value)
    return True
