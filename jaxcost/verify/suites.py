"""Suites, claims and known gaps: what is claimed, in files, and whether a run bears it out.

A suite lists cases with their targets, and may carry claims and gaps of its own. A claim says how well one counter
agrees on one family of targets, and why; a run in which no row tests it fails, so that claims cannot outlive what they
were about. A known gap admits one open row, with its explanation and the condition under which it lapses; a gap without
an open row has lapsed and fails too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

from jaxcost.contracts.errors import UnavailableError, reject
from jaxcost.contracts.record import Name, Record, as_table, parse_file
from jaxcost.data import room
from jaxcost.reconciliation.rows import STATUSES, Report, Row


class SuiteCase(Record):
    """One case of a suite: a model, the options of the command line, and the targets to compile for."""

    name: Name
    model: Name
    targets: tuple[Name, ...]


@dataclass(frozen=True)
class PlannedCase:
    """A suite's case with its options, which `build_case` validates."""

    name: str
    model: str
    targets: tuple[str, ...]
    options: dict[str, Any]


class Claim(Record):
    """`counter` agrees at least as well as `relation` on targets of `family`, because of `reason`."""

    counter: Name
    family: Literal["cpu", "cuda", "tpu", "any"]
    relation: Literal["exact", "explained", "bounded"]
    reason: Name


class Gap(Record):
    """An open row that is known: shell patterns of report, target and row key, its explanation, and when it lapses."""

    report: Name
    target: Name
    row: Name
    explanation: Name
    lapses: Name


@dataclass(frozen=True)
class Suite:
    """The cases of a suite, and the claims and gaps that its own file holds."""

    cases: tuple[PlannedCase, ...]
    claims: tuple[Claim, ...] = ()
    gaps: tuple[Gap, ...] = ()


def load_suite(text: str) -> Suite:
    """Return a suite named in `verify/suites` or given as a .toml or .json file.

    Raises:
        RejectedError: for a suite that is not one.
        UnavailableError: for a path that does not exist.
    """
    path = Path(text)
    if path.suffix not in (".toml", ".json"):
        path = room("verify") / "suites" / f"{text}.toml"
        if not path.exists():
            known = ", ".join(sorted(item.stem for item in path.parent.glob("*.toml")))
            raise reject(
                "suite", text, "not a suite of this package, nor a .toml or .json file", f"the suites are {known}"
            )
    if not path.exists():
        raise UnavailableError(str(path), "the suite file does not exist", "check the path")
    table = as_table(parse_file(path), path.name)
    lists = {name: table.get(name, []) for name in ("case", "claim", "gap")}
    if set(table) - set(lists) or not all(isinstance(item, list) for item in lists.values()) or not lists["case"]:
        raise reject(
            path.name,
            sorted(table),
            "a suite is a list of [[case]] tables, with [[claim]] and [[gap]] where it has its own",
            "write [[case]] with name, model, targets, options",
        )
    return Suite(
        tuple(_planned(entry, f"case.{index}") for index, entry in enumerate(lists["case"])),
        tuple(Claim.from_data(as_table(item, f"claim.{i}"), f"claim.{i}") for i, item in enumerate(lists["claim"])),
        tuple(Gap.from_data(as_table(item, f"gap.{i}"), f"gap.{i}") for i, item in enumerate(lists["gap"])),
    )


def _planned(entry: object, where: str) -> PlannedCase:
    table = dict(as_table(entry, where))
    options = dict(as_table(table.pop("options", {}), f"{where}.options"))
    case = SuiteCase.from_data(table, where)
    return PlannedCase(case.name, case.model, case.targets, options)


def load_claims() -> tuple[tuple[Claim, ...], tuple[Gap, ...]]:
    """Return the claims and the known gaps of the `verify` room."""
    claims = as_table(parse_file(room("verify") / "claims.toml"), "claims.toml")
    gaps = as_table(parse_file(room("verify") / "gaps.toml"), "gaps.toml")
    return (
        tuple(Claim.from_data(item, f"claim.{i}") for i, item in enumerate(claims.get("claim", []))),
        tuple(Gap.from_data(item, f"gap.{i}") for i, item in enumerate(gaps.get("gap", []))),
    )


@dataclass(frozen=True)
class ClaimResult:
    """A claim or gap against a run: `holds`, `broken` (with the rows), `unused` or `lapsed`."""

    text: str
    outcome: Literal["holds", "broken", "unused", "lapsed"]
    rows: tuple[str, ...] = ()

    @property
    def failed(self) -> bool:
        """Whether the run must not pass."""
        return self.outcome != "holds"

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"claim": self.text, "outcome": self.outcome, "rows": list(self.rows)}


def check_claims(
    claims: Sequence[Claim], gaps: Sequence[Gap], reports: Sequence[Report], families: Iterable[str]
) -> list[ClaimResult]:
    """Hold claims and gaps against reports; claims of families that were not compiled for are left out."""
    seen = {*families, "any"}
    measured = [
        (report, row) for report in reports for row in report.rows if row.status != "unmeasured" and not row.verdict
    ]
    results = [_claim_result(claim, measured) for claim in claims if claim.family in seen]
    return results + [_gap_result(gap, measured) for gap in gaps]


def _claim_result(claim: Claim, measured: Sequence[tuple[Report, Row]]) -> ClaimResult:
    text = f"{claim.counter} is {claim.relation} on {claim.family}"
    tested = [
        (report, row)
        for report, row in measured
        if fnmatchcase(row.counter, claim.counter) and claim.family in ("any", report.environment.get("family"))
    ]
    broken = [(r, row) for r, row in tested if STATUSES.index(row.status) < STATUSES.index(claim.relation)]
    outcome: Literal["holds", "broken", "unused"] = "broken" if broken else "holds" if tested else "unused"
    return ClaimResult(text, outcome, tuple(f"{r.name} on {r.target}: {row.key}" for r, row in broken))


def _gap_result(gap: Gap, measured: Sequence[tuple[Report, Row]]) -> ClaimResult:
    rows = [
        f"{report.name} on {report.target}: {row.key}"
        for report, row in measured
        if row.status == "open" and covers(gap, report, row)
    ]
    return ClaimResult(f"known gap {gap.row} ({gap.explanation})", "holds" if rows else "lapsed", tuple(rows))


def covers(gap: Gap, report: Report, row: Row) -> bool:
    """Return whether a gap is about this row."""
    return (
        fnmatchcase(report.name, gap.report)
        and fnmatchcase(report.target, gap.target)
        and fnmatchcase(row.key, gap.row)
    )
