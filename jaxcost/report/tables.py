"""Results as tables for a terminal, from the same documents that --json prints."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from jaxcost.report.console import console, table
from jaxcost.report.numbers import about, exact, flat, signed, unit_of
from jaxcost.report.values import case_values, unknown_reasons

_SYMBOLS = (
    "B sequences, S new tokens, T visible tokens in decode, d hidden size, V vocabulary, P position rows; for "
    "each group of layers L layers, H query heads, K K/V heads, E head width, F MLP width. Defaults of each phase "
    "(precision, optimizer, logits rows) as in `jaxcost estimate`; one device."
)
_EXPLAINED_ROWS = 40
COLOURS = {
    "rejected": "bold red",
    "open": "bold red",
    "refused": "bold red",
    "failed": "bold red",
    "broken": "bold red",
    "lapsed": "bold red",
    "unused": "bold red",
    "unmeasured": "yellow",
    "unavailable": "yellow",
    "bounded": "cyan",
    "explained": "cyan",
    "exact": "green",
    "holds": "green",
    "passed": "green",
    "caught": "green",
    "missed": "bold red",
    "not reached": "yellow",
}


def status_text(status: str) -> Text:
    """Return a status in its colour."""
    return Text(status, style=COLOURS.get(status, ""))


def show_models(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the catalogue."""
    made = table(
        "name", "family", "parameters", "about", "active", "Hugging Face id", right=("parameters", "about", "active")
    )
    for row in rows:
        count = row["parameters"]
        made.add_row(
            row["name"],
            row["family"],
            exact(count),
            about(count, "scalars"),
            exact(row["active_parameters"]),
            row["huggingface_id"],
        )
    console().print(made)


def show_targets(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the targets, and for each missing compiler the line that adds it."""
    out = console()
    made = table(
        "target", "compiles here", "device memory", "example", "device", right=("device memory",), wrap=("device",)
    )
    for row in rows:
        memory = row["device_memory_bytes"]
        here = Text("yes", style="green") if row["available"] else Text("no", style="yellow")
        made.add_row(
            row["name"],
            here,
            "no limit stated" if memory is None else about(memory, "bytes"),
            row["example"],
            row["description"],
        )
    out.print(made)
    for reason, remedy in dict.fromkeys((row["reason"], row["remedy"]) for row in rows if not row["available"]):
        _line(out, f"{reason}. To add it: {remedy}")


def show_manifest(body: Mapping[str, Any]) -> None:
    """Print a manifest in full."""
    out = console()
    arch = body["architecture"]
    _line(
        out,
        f"{body['name']}  ({body['origin'].replace('_', ' ')}{', ' + body['path'] if body['path'] else ''})",
        style="bold",
    )
    for label, value in (
        ("family", arch["family"]),
        ("Hugging Face id", arch["huggingface_id"]),
        ("source", body["source"]),
        ("notes", " ".join(arch["notes"].split())),
        ("digest", body["digest"]),
    ):
        if value:
            _line(out, f"{label}: {value}")
    made = table("parameters", "scalars", "about", right=("scalars", "about"))
    for name, value in flat(body["parameters"]):
        made.add_row(name, exact(value), about(value, "bytes" if "bytes" in name else "scalars"))
    out.print(made)
    made = table("field", "value", wrap=("value",))
    hidden = ("name", "family", "huggingface_id", "source", "notes")
    for name, value in _fields({key: item for key, item in arch.items() if key not in hidden}):
        made.add_row(name, value)
    out.print(made)
    if body["liveness"]:
        made = table("supplied event", "kind", "bytes", "birth", "death", right=("bytes", "birth", "death"))
        for item in body["liveness"]["objects"]:
            made.add_row(item["name"], item["kind"], exact(item["bytes"]), exact(item["birth"]), exact(item["death"]))
        out.print(made)
    if body["expected"]:
        made = table("expected", "value", right=("value",))
        for path, value in body["expected"].items():
            made.add_row(path, exact(value))
        out.print(made)
    if "formulas" in body:
        for phase, formulas in body["formulas"].items():
            made = table(phase, "formula", wrap=("formula",))
            for name, formula in formulas.items():
                made.add_row(name, formula)
            out.print(made)
        _line(out, _SYMBOLS)


def _fields(data: Any, prefix: str = "") -> Iterable[tuple[str, str]]:
    if isinstance(data, dict) and data:
        for name, value in data.items():
            yield from _fields(value, f"{prefix}.{name}" if prefix else name)
    elif isinstance(data, list) and data and isinstance(data[0], dict):
        for index, value in enumerate(data):
            yield from _fields(value, f"{prefix}.{index}")
    elif isinstance(data, list):
        yield prefix, ", ".join(map(str, data)) or "none"
    elif isinstance(data, float):
        yield prefix, repr(data)
    else:
        yield prefix, "none" if data is None else exact(data)


def _show_case(out: Console, case: Mapping[str, Any]) -> None:
    name = case["architecture"]["name"]
    _line(out, f"{name}  case {case['digest'][:16]}", style="bold")
    _line(out, "values used: " + "  ".join(f"{option}={value}" for option, value in case_values(case)))


def show_estimate(data: Mapping[str, Any], rows: bool = False) -> None:
    """Print the ledgers of an estimate, one table each; `rows` adds what each total is made of."""
    out = console()
    _show_case(out, data["case"])
    out.print()
    for ledger, content in data["ledgers"].items():
        _show_ledger(out, ledger, content)
        if rows and content["rows"]:
            _show_rows(out, content["rows"])
    if data.get("expected"):
        _show_expected(out, data["expected"])
    if data.get("assumptions"):
        _line(out, "Assumptions", style="bold")
        for text in data["assumptions"]:
            _line(out, f"- {text}")


def _show_ledger(out: Console, ledger: str, content: Mapping[str, Any]) -> None:
    title, reasons = ledger.replace("_", " "), unknown_reasons(content)
    totals = {name: value for name, value in content["totals"].items() if name != "reason"}
    by_phase = totals.pop("by_phase", None)
    values = flat(totals)
    if by_phase:
        _show_phases(out, title, totals, by_phase)
    elif all(value == 0 for _, value in values):
        _line(out, f"{title}: every total is 0")
        out.print()
        return
    else:
        made = table(title, "exact", "about", "unit", right=("exact", "about"), wrap=(title,))
        for column, width in zip(made.columns, (34, 20, 12), strict=False):
            column.min_width = width
        for name, value in values:
            unit = unit_of(ledger, name)
            made.add_row(name, exact(value), about(value, unit), unit)
        out.print(made)
    for name, reason in reasons.items():
        _line(out, f"{name} unknown: {reason}")
    if reasons:
        out.print()


def _show_phases(
    out: Console, title: str, totals: Mapping[str, Any], by_phase: Mapping[str, Mapping[str, Any]]
) -> None:
    made = table(title, *by_phase, "total", right=(*by_phase, "total"), wrap=(title,))
    for name, value in totals.items():
        made.add_row(name, *(exact(counts.get(name, 0)) for counts in by_phase.values()), exact(value))
    out.print(made)


def _show_rows(out: Console, rows: Sequence[Mapping[str, Any]]) -> None:
    made = table("object", "scope", "phase", "value", "unit", right=("value",), wrap=("object", "scope"))
    for row in rows:
        made.add_row(row["object"], row["scope"], row["phase"], exact(row["value"]), row["unit"])
    out.print(made)


def _show_expected(out: Console, expected: Sequence[Mapping[str, Any]]) -> None:
    made = table("expected", "declared", "predicted", "status", right=("declared", "predicted"))
    for entry in expected:
        made.add_row(entry["path"], exact(entry["expected"]), exact(entry["predicted"]), status_text(entry["status"]))
    out.print(made)


def show_verify(data: Mapping[str, Any], rows: bool = False) -> None:
    """Print the reports of a verification, the rest of it, and one line of sums.

    Of more than two reports the exact rows are counted, not listed, unless `rows` asks for them.
    """
    out = console()
    reports = data.get("reports", ())
    for report in reports:
        _show_report(out, report, every=rows or len(reports) <= 2)
    for explained in data.get("explain", ()):
        _show_explained(out, explained)
    if data.get("failures"):
        made = table("fault", "symptom", "check", "status", wrap=("fault", "symptom", "check"))
        for row in data["failures"]:
            made.add_row(row["fault"], row["symptom"], row["check"], status_text(row["status"]))
        out.print(made)
    if data.get("fuzz"):
        _show_fuzz(out, data["fuzz"])
    for claim in data.get("claims", ()):
        if claim["outcome"] != "holds":
            _line(out, f"claim {claim['outcome']}: {claim['claim']}", style=COLOURS.get(claim["outcome"], ""))
            for row in claim["rows"]:
                _line(out, f"  {row}")
    for item in data.get("unavailable", ()):
        _line(out, f"not compiled for {item['family']}: {item['reason']}. To add it: {item['remedy']}", style="yellow")
    _line(out, summary(data), style="bold")


def _show_fuzz(out: Console, fuzz: Mapping[str, Any]) -> None:
    head = Text("random cases: ", style="bold")
    head.append_text(status_text(fuzz["status"]))
    out.print(head)
    _line(out, f"{fuzz['drawn']} of {fuzz['count']} drawn from seed {fuzz['seed']}, {fuzz['checks']} checks, "
               f"{fuzz['compiled']} programs compiled for {fuzz['target']}, {fuzz['seconds']} s")  # fmt: skip
    cases: dict[str, int] = {}
    for failure in fuzz["failures"]:
        _line(out, f"draw {failure['draw']}, {failure['property']}: {failure['message']}", style="bold red")
        cases.setdefault(json.dumps(failure["case_file"]), failure["draw"])
    for case, draw in cases.items():
        _line(out, f"draw {draw} as a case file (jaxcost verify --case FILE.json):")
        out.print(Text(case), soft_wrap=True)


def _show_explained(out: Console, explained: Mapping[str, Any]) -> None:
    _line(out, f"{explained['row']} of {explained['report']} on {explained['target']}", style="bold")
    for number, step in enumerate(explained["steps"], start=1):
        rows = step["rows"]
        if not rows:
            _line(out, f"{number}. {step['step']}: nothing of this row")
            continue
        shown = [
            name for name in rows[0] if name not in ("fields", "convention", "omitted", "evidence", "explanations")
        ]
        made = table(*shown, title=f"{number}. {step['step']}", wrap=tuple(shown))
        for row in rows[:_EXPLAINED_ROWS]:
            made.add_row(*(_cell(row.get(name)) for name in shown))
        out.print(made)
        if len(rows) > _EXPLAINED_ROWS:
            _line(out, f"... and {len(rows) - _EXPLAINED_ROWS} more; --json has them all")


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, dict) and not {"lower", "upper"} <= value.keys():
        return ", ".join(f"{name}={_cell(item)}" for name, item in value.items() if item not in (None, ""))
    return "" if value == "" else exact(value)


def _show_report(out: Console, report: Mapping[str, Any], every: bool) -> None:
    title = report.get("name") or report["case"].get("architecture", {}).get("name", "")
    head = Text(f"{title} on {report['target']}: ", style="bold")
    head.append_text(status_text(report["status"]))
    out.print(head)
    case = report["case"]
    if {"workload", "execution", "state", "convention"} <= case.keys():
        _line(out, "values used: " + "  ".join(f"{option}={value}" for option, value in case_values(case)))
    versions = report.get("environment", {}).get("versions")
    if versions:
        _line(out, "environment: " + "  ".join(f"{name} {version}" for name, version in versions.items()))
    compared = [row for row in report["rows"] if not row.get("verdict")]
    shown = [row for row in compared if every or row["status"] != "exact"]
    if shown:
        _show_compared(out, shown)
    if len(shown) < len(compared):
        _line(out, f"{_count(len(compared) - len(shown), 'row')} exact (--rows lists them)")
    for row in shown:
        _show_notes(out, row)
    _show_verdicts(out, [row for row in report["rows"] if row.get("verdict")], every)
    for finding in report.get("findings", ()):
        _line(out, f"finding ({finding['kind']}): {finding['text']}")
        for item in finding.get("evidence", ())[:3]:
            _line(out, f"    {item}")
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
    _line(out, "")
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
            line = f"{label}{first.rjust(space - len(label))}  {second.rjust(widths[1])}  {third.rjust(widths[2])}  "
            text = Text(line)
            text.append_text(status_text(rows[index]["status"]))
            out.print(text, soft_wrap=True)
    _line(out, "")


def _show_verdicts(out: Console, rows: Sequence[Mapping[str, Any]], every: bool) -> None:
    kept = [row for row in rows if row["observation"] not in (0, None)]
    if kept and every:
        made = table("the compiler's own counter", "says", "verdict", right=("says",), wrap=("verdict",))
        made.padding = (0, 1, 0, 0)
        for row in kept:
            made.add_row(row["counter"], exact(row["observation"]), row["verdict"])
        out.print(made)
    elif kept:
        counts = _counts_of([row["verdict"].split(":")[0] for row in kept])
        _line(out, f"the compiler's own counters: {counts} (--rows lists them)")


def _counts_of(words: Sequence[str]) -> str:
    return ", ".join(f"{words.count(word)} {word}" for word in dict.fromkeys(words))


def _show_notes(out: Console, row: Mapping[str, Any]) -> None:
    name = ":".join(part for part in (row["counter"], row["scope"], row["phase"]) if part)
    for item in row["explanations"]:
        evidence = f"  [{item['evidence']}]" if item["evidence"] else ""
        _line(out, f"{name}  {signed(item['amount'])}  {item['reason']}{evidence}")
    if row.get("reason") and row["status"] != "exact":
        _line(out, f"{name}  {row['status']}: {row['reason']}")


def summary(data: Mapping[str, Any]) -> str:
    """Return one line: how many reports, rows and failure rows have which status, and how long it took."""
    reports, parts = data.get("reports", ()), []
    if reports:
        parts.append(_count(len(reports), "report"))
        parts += _counts(
            [row["status"] for report in reports for row in report["rows"] if not row.get("verdict")], "row"
        )
    parts += _counts([row["status"] for row in data.get("failures", ())], "failure row")
    status = data["status"] if reports else data["fuzz"]["status"] if data.get("fuzz") else ""
    ending = f"Status: {status}." if status else ""
    time = f"{data['seconds']:.1f} s" if data.get("seconds") else ""
    if data.get("calibration_seconds"):
        time += f" (a calibration compile takes {data['calibration_seconds']} s here)"
    return (
        " ".join(part for part in (", ".join(parts) + "." if parts else "", ending, time) if part)
        or "Nothing to report."
    )


def _counts(statuses: Sequence[str], what: str) -> list[str]:
    known = dict.fromkeys([status for status in COLOURS if status in statuses] + list(statuses))
    return [f"{_count(statuses.count(status), what)} {status}" for status in known]


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _line(out: Console, text: str, style: str = "") -> None:
    for part in textwrap.wrap(text, max(out.width, 40), subsequent_indent="    ", break_on_hyphens=False) or [""]:
        out.print(Text(part, style=style), soft_wrap=True)
