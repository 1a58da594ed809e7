"""A verification as text: per report what differs, and once what the reports share."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from jaxcost.report import gather
from jaxcost.report.console import console, table
from jaxcost.report.explained import show_explained
from jaxcost.report.failures import show_failures
from jaxcost.report.numbers import exact, signed
from jaxcost.report.tables import COLOURS, line, status_text

_SCOPES_SHOWN = 6
_ALWAYS = ("matmul_flops", "parameters.unique", "argument_bytes")  # of many reports too, where they are exact


def show_verify(data: Mapping[str, Any], rows: bool = False) -> None:
    """Print the reports of a verification, the rest of it, and one line of sums.

    `rows` lists every row. Otherwise exact rows of single scopes are counted, and of more than two reports all of them.
    """
    out = console()
    if data.get("explain"):  # of one row, the rest of the report would be in the way
        for explained in data["explain"]:
            show_explained(out, explained)
        line(out, summary(data), style="bold")
        return
    reports = data.get("reports", ())
    shared, versions = gather.common_values(reports), gather.versions(reports)
    if shared:
        line(out, "values used in all reports: " + "  ".join(f"{name}={value}" for name, value in shared))
    if versions and len(reports) > 1:
        line(out, _environment(versions))
    if len(reports) > 1:
        out.print()
    for report in reports:
        _show_report(out, report, shared, versions is None or len(reports) == 1, rows, whole=len(reports) <= 2)
    if len(reports) > 1:
        _show_overview(out, reports)
    _show_shared(out, reports)
    if data.get("failures"):
        show_failures(out, data["failures"])
    if data.get("fuzz"):
        _show_fuzz(out, data["fuzz"])
    _show_claims(out, data.get("claims", ()))
    for item in data.get("unavailable", ()):
        line(out, f"not compiled for {item['family']}: {item['reason']}. To add it: {item['remedy']}", style="yellow")
    line(out, summary(data), style="bold")


def _show_claims(out: Console, claims: Sequence[Mapping[str, Any]]) -> None:
    held = [claim for claim in claims if claim["outcome"] == "holds"]
    if held:
        line(out, f"{gather.count(len(held), 'claim')} of verify/claims.toml hold{'s' if len(held) == 1 else ''}")
    for claim in claims:
        if claim["outcome"] != "holds":
            line(out, f"claim {claim['outcome']}: {claim['claim']}", style=COLOURS.get(claim["outcome"], ""))
            for row in claim["rows"]:
                line(out, f"  {row}")


def _show_fuzz(out: Console, fuzz: Mapping[str, Any]) -> None:
    head = Text("random cases: ", style="bold")
    head.append_text(status_text(fuzz["status"]))
    out.print(head)
    line(out, f"{fuzz['drawn']} of {fuzz['count']} drawn from seed {fuzz['seed']}, {fuzz['checks']} checks, "
              f"{fuzz['compiled']} programs compiled for {fuzz['target']}, {fuzz['seconds']} s")  # fmt: skip
    cases: dict[str, int] = {}
    for failure in fuzz["failures"]:
        line(out, f"draw {failure['draw']}, {failure['property']}: {failure['message']}", style="bold red")
        cases.setdefault(json.dumps(failure["case_file"]), failure["draw"])
    for case, draw in cases.items():
        line(out, f"draw {draw} as a case file (jaxcost verify --case FILE.json):")
        out.print(Text(case), soft_wrap=True)


def _show_report(
    out: Console,
    report: Mapping[str, Any],
    shared: Sequence[tuple[str, str]],
    environment: bool,
    every: bool,
    whole: bool,
) -> None:
    rows = gather.compared(report)
    status, beside = gather.headline(report["status"], rows)
    head = Text(f"{gather.title(report)} on {report['target']}: ", style="bold")
    head.append_text(status_text(status))
    head.append(f" {beside}" if beside else "")
    out.print(head)
    own = [pair for pair in gather.values(report) if pair not in shared]
    if own:
        line(out, "values used: " + "  ".join(f"{name}={value}" for name, value in own))
    versions = report.get("environment", {}).get("versions")
    if versions and environment:
        line(out, _environment(versions))
    shown = [
        row
        for row in rows
        if every or row["status"] != "exact" or (not row["scope"] and (whole or gather.key(row) in _ALWAYS))
    ]
    if shown:
        _show_compared(out, shown)
    _show_folded(out, [row for row in rows if row not in shown], whole)
    for note in gather.notes(rows):
        amount = f"{signed(note.amount)}  " if note.amount is not None else ""
        keys = note.keys[:_SCOPES_SHOWN] + [f"{len(note.keys) - _SCOPES_SHOWN} more"] * (len(note.keys) > _SCOPES_SHOWN)
        line(out, f"{amount}{note.reason}  ({', '.join(keys)})")
        if note.evidence:
            line(out, f"    {note.evidence}")
    _show_verdicts(out, [row for row in report["rows"] if row.get("verdict")], every or whole)
    for finding in report.get("findings", ()):
        if finding["kind"] != "assumption":
            line(out, f"finding ({finding['kind']}): {finding['text']}")
            for item in finding.get("evidence", ())[:3]:
                line(out, f"    {item}")
    out.print()


def _environment(versions: Mapping[str, str]) -> str:
    return "environment: " + "  ".join(f"{name} {version}" for name, version in versions.items())


def _show_folded(out: Console, rows: Sequence[Mapping[str, Any]], named: bool) -> None:
    """Say how many exact rows are not listed; `named` says which, by counter and phase."""
    if rows and not named:
        line(out, f"{gather.count(len(rows), 'row')} exact (--rows lists them)")
        return
    sections: dict[str, int] = {}
    for row in rows:
        name = " ".join(part for part in (row["counter"], row["phase"]) if part)
        sections[name] = sections.get(name, 0) + 1
    if sections:
        parts = ", ".join(name if number == 1 else f"{name} ({number} scopes)" for name, number in sections.items())
        line(out, f"{gather.count(len(rows), 'row')} exact, listed by --rows: {parts}")


def _show_overview(out: Console, reports: Sequence[Mapping[str, Any]]) -> None:
    columns, lines = gather.overview(reports)
    made = table("report", "target", *columns, "status", right=tuple(columns))
    for title, target, counts, status in lines:
        made.add_row(title, target, *(str(count or "") for count in counts), status_text(status))
    out.print(made)


def _show_shared(out: Console, reports: Sequence[Mapping[str, Any]]) -> None:
    """Print what was not measured and what was assumed, once for all reports."""
    missing, assumed = gather.unmeasured(reports), gather.assumptions(reports)
    if missing:
        line(out, "Not measured, which is not zero", style="bold")
        for reason, counters, number in missing:
            line(out, f"- {', '.join(counters)}: {reason}{gather.of_reports(number, len(reports))}")
    if assumed:
        line(out, "Assumptions of the observations", style="bold")
        for text, number in assumed:
            line(out, f"- {text}{gather.of_reports(number, len(reports))}")
    if missing or assumed:
        out.print()


def _show_compared(out: Console, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print one section per counter and phase, one line per scope.

    Laid out by hand: a label may reach into the blank before its prediction, or take a line of its own, so that three
    long integers always stand beside each other, whole.
    """
    cells = [(exact(row["prediction"]), exact(row["observation"]), signed(row["residual"])) for row in rows]
    plain = [cell for row, cell in zip(rows, cells, strict=True) if not isinstance(row["prediction"], dict)] or cells
    heads = ("prediction", "observation", "residual")
    widths = [max(len(head), *(len(cell[i]) for cell in plain)) for i, head in enumerate(heads)]
    widths[1:] = [max(width, *(len(cell[i]) for cell in cells)) for i, width in enumerate(widths[1:], start=1)]
    room = max(out.width - sum(widths) - 2 * 3 - 2 - 10, 8)
    sections: dict[tuple[str, str, str], list[int]] = {}
    for index, row in enumerate(rows):
        sections.setdefault((row["counter"], row["phase"], row["unit"]), []).append(index)
    labels = {index: f"  {rows[index]['scope'] or 'whole'}" for members in sections.values() for index in members}
    for (counter, phase, unit), members in sections.items():
        if len(members) == 1 and not rows[members[0]]["scope"]:
            labels[members[0]] = " ".join(part for part in (counter, phase, f"({unit})") if part)
    left = min(room, max(map(len, labels.values())))
    line(out, "")
    head = "counter".ljust(left + 3) + "  ".join(text.rjust(width) for text, width in zip(heads, widths, strict=True))
    out.print(Text(f"{head}  status", style="bold underline"), soft_wrap=True)
    for (counter, phase, unit), members in sections.items():
        if len(members) > 1 or rows[members[0]]["scope"]:
            out.print(
                Text(" ".join(part for part in (counter, phase, f"({unit})") if part), style="bold"), soft_wrap=True
            )
        for index in members:
            label, (first, second, third) = labels[index], cells[index]
            space = left + 3 + widths[0]
            if len(label) + 2 + len(first) > space:
                out.print(Text(label), soft_wrap=True)
                label = ""
            body = f"{label}{first.rjust(space - len(label))}  {second.rjust(widths[1])}  {third.rjust(widths[2])}  "
            text = Text(body)
            text.append_text(status_text(rows[index]["status"]))
            out.print(text, soft_wrap=True)
    line(out, "")


def _show_verdicts(out: Console, rows: Sequence[Mapping[str, Any]], every: bool) -> None:
    kept = [row for row in rows if row["observation"] != 0]
    if kept and every:
        made = table("the compiler's own counter", "says", "verdict", right=("says",))
        made.padding = (0, 1, 0, 0)
        for row in kept:
            made.add_row(row["counter"], exact(row["observation"]), gather.verdict(row))
        out.print(made)
    elif kept:
        counts = _counts_of([row["verdict"].split(":")[0] for row in kept])
        line(out, f"the compiler's own counters: {counts} (--rows lists them)")


def _counts_of(words: Sequence[str]) -> str:
    return ", ".join(f"{words.count(word)} {word}" for word in dict.fromkeys(words))


def summary(data: Mapping[str, Any]) -> str:
    """Return one line: how many reports, rows and failure rows have which status, and how long it took."""
    reports, parts = data.get("reports", ()), []
    rows = [row for report in reports for row in gather.compared(report)]
    if reports:
        parts.append(gather.count(len(reports), "report"))
        parts += _counts([row["status"] for row in rows], "row")
    parts += _counts([row["status"] for row in data.get("failures", ())], "failure row")
    status, beside = gather.headline(data["status"], rows) if reports else ("", "")
    if data.get("fuzz") and not reports:
        status = data["fuzz"]["status"]
    ending = f"Status: {status}{f' {beside}' if beside else ''}." if status else ""
    known = sum(len(item["rows"]) for item in data.get("claims", ()) if item["claim"].startswith("known gap"))
    if known and status == "open":
        ending += f" {gather.count(known, 'open row')} {'is' if known == 1 else 'are'} known and named among the gaps."
    time = f"{data['seconds']:.1f} s" if data.get("seconds") else ""
    if data.get("calibration_seconds"):
        time += f" (a calibration compile takes {data['calibration_seconds']} s here)"
    return (
        " ".join(part for part in (", ".join(parts) + "." if parts else "", ending, time) if part)
        or "Nothing to report."
    )


def _counts(statuses: Sequence[str], what: str) -> list[str]:
    known = dict.fromkeys([status for status in COLOURS if status in statuses] + list(statuses))
    return [f"{gather.count(statuses.count(status), what)} {status}" for status in known]
