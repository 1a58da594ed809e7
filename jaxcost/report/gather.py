"""What the reports of a verification have in common, said once.

A table and a page show the same thing: the values, versions, assumptions and unmeasured counters that many reports
share stand once, and a report shows what is its own. Nothing here changes a status or a number.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jaxcost.reconciliation.rows import STATUSES
from jaxcost.report.numbers import exact
from jaxcost.report.values import case_values

Report = Mapping[str, Any]
Row = Mapping[str, Any]


def compared(report: Report) -> list[Row]:
    """Return the rows that count; those about the compiler's own counters carry a verdict instead."""
    return [row for row in report["rows"] if not row.get("verdict")]


def headline(status: str, rows: Sequence[Row]) -> tuple[str, str]:
    """Return the status to show for a report (or a run) and what to say beside it.

    `unmeasured` alone would hide that everything which could be compared agrees: then the worst status of the measured
    rows is shown, with the number of unmeasured ones. The status in the document stays the worst of all rows.
    """
    measured = [row["status"] for row in rows if row["status"] != "unmeasured"]
    if status != "unmeasured" or not measured:
        return status, ""
    return min(measured, key=STATUSES.index), f"({count(len(rows) - len(measured), 'row')} unmeasured)"


def count(number: int, what: str) -> str:
    """Return `1 row`, `2 rows`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def key(row: Row) -> str:
    """Return `counter[:scope][:phase]`, the name that --explain takes."""
    return ":".join(part for part in (row["counter"], row["scope"], row["phase"]) if part)


@dataclass
class Note:
    """An explanation, or the reason of a status, with the rows that it is about."""

    amount: int | None
    reason: str
    evidence: str
    keys: list[str] = field(default_factory=list)


def notes(rows: Iterable[Row]) -> list[Note]:
    """Return the explanations and reasons of rows, each once; reasons of exact and unmeasured rows are left out."""
    found: dict[tuple[Any, ...], Note] = {}
    for row in rows:
        for item in row["explanations"]:
            made = Note(item["amount"], item["reason"], item["evidence"])
            found.setdefault((made.amount, made.reason, made.evidence), made).keys.append(key(row))
        if row.get("reason") and row["status"] not in ("exact", "unmeasured"):
            made = Note(None, f"{row['status']}: {row['reason']}", "")
            found.setdefault((None, made.reason, ""), made).keys.append(key(row))
    return list(found.values())


def verdict(row: Row) -> str:
    """Return the verdict on a counter of the compiler's own; one of a single word other than exact with its reason."""
    text = str(row["verdict"])
    return text if ":" in text or text == "exact" or not row.get("reason") else f"{text}: {row['reason']}"


def overview(reports: Sequence[Report]) -> tuple[list[str], list[tuple[str, str, list[int], str]]]:
    """Return the statuses that occur, best first, and per report: its name, target, rows of each, status to show."""
    statuses = [[row["status"] for row in compared(report)] for report in reports]
    columns = [status for status in reversed(STATUSES) if any(status in found for found in statuses)]
    lines = []
    for report, found in zip(reports, statuses, strict=True):
        status, _ = headline(report["status"], compared(report))
        lines.append((title(report), str(report["target"]), [found.count(name) for name in columns], status))
    return list(columns), lines


def title(report: Report) -> str:
    """Return the name a report goes by."""
    return str(report.get("name") or report["case"].get("architecture", {}).get("name", ""))


def common_values(reports: Sequence[Report]) -> list[tuple[str, str]]:
    """Return the (option, value) pairs that all of several reports share; none for a single report."""
    tables = [values(report) for report in reports]
    if len(tables) < 2 or not all(tables):
        return []
    return [pair for pair in tables[0] if all(pair in other for other in tables[1:])]


def values(report: Report) -> list[tuple[str, str]]:
    """Return the values that a report rests on; none where its case is not given in full."""
    case = report["case"]
    return case_values(case) if {"workload", "execution", "state", "convention"} <= case.keys() else []


def versions(reports: Sequence[Report]) -> dict[str, str] | None:
    """Return the versions of all reports together, or None where two reports name different ones."""
    joined: dict[str, str] = {}
    for report in reports:
        for name, version in (report.get("environment", {}).get("versions") or {}).items():
            if joined.setdefault(name, version) != version:
                return None
    return joined


def unmeasured(reports: Sequence[Report]) -> list[tuple[str, list[str], int]]:
    """Return (reason, counters, reports that have it) for what was not measured, in order of appearance."""
    found: dict[str, tuple[dict[str, None], set[int]]] = {}
    for index, report in enumerate(reports):
        for row in compared(report):
            if row["status"] == "unmeasured":
                counters, where = found.setdefault(row.get("reason") or "no reason given", ({}, set()))
                counters[key(row)] = None
                where.add(index)
    return [(reason, list(counters), len(where)) for reason, (counters, where) in found.items()]


def assumptions(reports: Sequence[Report]) -> list[tuple[str, int]]:
    """Return each assumption of the observations once, with the number of reports that make it."""
    found: dict[str, int] = {}
    for report in reports:
        for item in report.get("findings", ()):
            if item["kind"] == "assumption":
                found[item["text"]] = found.get(item["text"], 0) + 1
    return list(found.items())


def of_reports(number: int, total: int) -> str:
    """Return where a shared line holds: nothing for a single report, else how many of them."""
    return "" if total == 1 else " (all reports)" if number == total else f" ({number} of {total} reports)"


def failure_sections(rows: Sequence[Row]) -> Iterator[tuple[str, list[Row]]]:
    """Yield the heading of each section of failure rows, with how many are caught, and its rows; in the order given."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(f"{row.get('section', '')} {row.get('subject', '')}".strip(), []).append(row)
    for name, members in found.items():
        caught = sum(row["status"] == "caught" for row in members)
        yield f"{name}: {caught} of {count(len(members), 'row')} caught".lstrip(": "), members


def answered(row: Row) -> str:
    """Return the status with what the check answered to the fault."""
    return f"{row['status']}: {row['outcome']}" if row.get("outcome") else str(row["status"])


def side(value: Any) -> str:
    """Return one side of a walk's line: a shape, a number, an interval, a word."""
    if isinstance(value, list):
        return f"[{', '.join(map(str, value))}]"
    return "-" if value is None else exact(value)
