"""Results as one HTML page: no script, no font, no address outside the file; bars are inline SVG.

The page is written from the same document that --json prints, and every text of it passes through `html.escape`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import groupby
from typing import Any

from jaxcost.report import gates, gather, proofs
from jaxcost.report.numbers import about, exact, flat, signed, unit_of
from jaxcost.report.values import case_values, unknown_reasons

STYLE = """
:root { color-scheme: light dark; --line: #8884; --bar: #4a7ebb; --good: #2a7d46; --warn: #a06a00; --bad: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --bar: #7aa7e0; --good: #6fcf8e; --warn: #e2a93b; --bad: #ff8a80; } }
body { font: 15px/1.45 system-ui, sans-serif; max-width: 76rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
table { border-collapse: collapse; margin: .5rem 0 1rem; }
th, td { text-align: left; padding: .2rem .8rem .2rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.case span { display: inline-block; margin-right: 1rem; } .dim { opacity: .7; }
.exact, .holds, .passed, .caught { color: var(--good); } .explained, .bounded { color: var(--bar); }
.unmeasured, .unavailable { color: var(--warn); }
.open, .rejected, .refused, .failed, .broken, .lapsed, .unused, .missed, .fails { color: var(--bad); font-weight: 600; }
details { margin: .6rem 0; } summary { cursor: pointer; } td.note { padding-left: 2rem; }
rect { fill: var(--bar); } svg text { fill: currentColor; font-size: 12px; } code { overflow-wrap: anywhere; }
"""
_BARS_AT_MOST = 24


def estimate_page(data: Mapping[str, Any]) -> str:
    """Return the page of a `jaxcost.estimate.v1` document."""
    case = data["case"]
    parts = [_case(case)]
    for name, ledger in data["ledgers"].items():
        reasons = unknown_reasons(ledger)
        rows = []
        for total, value in flat({key: value for key, value in ledger["totals"].items() if key != "reason"}):
            unit = unit_of(name, total)
            rows.append((_text(total), _number(exact(value)), _number(about(value, unit)), _text(unit)))
        parts.append(
            f"<h2>{escape(name.replace('_', ' '))}</h2>"
            + _table(("total", "exact", "about", "unit"), rows, numbers=(1, 2))
        )
        parts += [f"<p>{escape(total)} unknown: {escape(reason)}</p>" for total, reason in reasons.items()]
        parts.append(_bars(ledger["rows"]))
    if data.get("expected"):
        rows = [
            (_text(e["path"]), _number(exact(e["expected"])), _number(exact(e["predicted"])), _status(e["status"]))
            for e in data["expected"]
        ]
        parts.append("<h2>expected</h2>" + _table(("path", "declared", "predicted", "status"), rows, numbers=(1, 2)))
    if data.get("targets"):
        parts.append("<h2>fits, predicted</h2>" + _targets(data["targets"]))
    if data.get("assumptions"):
        parts.append(f"<h2>assumptions</h2>{_list(data['assumptions'])}")
    return _page(f"{case['architecture']['name']}: estimate", data, parts)


def _targets(targets: Sequence[Mapping[str, Any]]) -> str:
    fractions = list(targets[0]["fits"])
    heads = ("target", "lower", "peak", "upper", *(f"fits {fraction}" for fraction in fractions), "")
    rows = [
        (
            _text(item["target"]),
            *(_number(exact(item["peak_bytes"][side])) for side in ("lower", "expected", "upper")),
            *(_text("unknown" if item["fits"][f] is None else exact(item["fits"][f])) for f in fractions),
            _text(item["peak_bytes"].get("reason", "")),
        )
        for item in targets
    ]
    return _table(heads, rows, numbers=(1, 2, 3))


STATUSES = (
    ("exact", "both witnesses give the same integer"),
    ("explained", "the residual is closed by signed explanations, each resting on named evidence"),
    ("bounded", "the observation lies inside the predicted interval"),
    ("unmeasured", "a side was not supplied, not measured, not supported or opaque; that is not zero"),
    ("open", "a difference that nothing explains"),
    ("rejected", "the input was not acceptable"),
)


def verify_page(data: Mapping[str, Any]) -> str:
    """Return the page of a `jaxcost.verify.v1` document."""
    reports = data.get("reports", ())
    parts = []
    if reports:
        every = [row for report in reports for row in gather.compared(report)]
        status, beside = gather.headline(data["status"], every)
        parts.append(f"<p>{gather.count(len(reports), 'report')}, {gather.count(len(every), 'row')}: "
                     f"{_span(status)} {escape(beside)}</p>")  # fmt: skip
    parts += [_explained(explained) for explained in data.get("explain", ())]
    if len(reports) > 1:
        parts.append(_overview(reports))
    parts += [_report(report, shown=len(reports) <= 2 and not data.get("explain")) for report in reports]
    missing = [
        f"{', '.join(counters)}: {reason}{gather.of_reports(number, len(reports))}"
        for reason, counters, number in gather.unmeasured(reports)
    ]
    assumed = [f"{text}{gather.of_reports(number, len(reports))}" for text, number in gather.assumptions(reports)]
    for title, texts in (("not measured, which is not zero", missing), ("assumptions of the observations", assumed)):
        if texts:
            parts.append(f"<h2>{title}</h2>{_list(texts)}")
    if data.get("failures"):
        parts.append("<h2>failure rows</h2>")
        heads = ("row", "fault", "symptom", "check", "status")
        for head, members in gather.failure_sections(data["failures"]):
            rows = [
                (
                    *(_text(row.get(key, "")) for key in ("id", *heads[1:-1])),
                    _status(row["status"], gather.answered(row)),
                )
                for row in members
            ]
            parts.append(f"<h3>{escape(head)}</h3>" + _table(heads, rows))
    if data.get("proofs"):
        parts.append(f"<h2>proofs</h2><p>{escape(proofs.sentence(data['proofs']))}</p>")
        for title, proved in groupby(data["proofs"], key=proofs.subject):
            rows = [
                (
                    _text(item["name"]),
                    _text(proofs.claim(item)),
                    _text(item["ledger"]),
                    _text(item["source"]),
                    _status(item["status"]),
                )
                for item in proved
            ]
            heads = ("proof", "what is claimed", "the ledger gives", "source", "status")
            parts.append(f"<h3>{escape(title)}</h3>" + _table(heads, rows))
    if data.get("gates"):
        parts.append(f"<h2>publish gates</h2><p>{escape(gates.sentence(data['gates'], data['gate_cases']))}</p>")
        heads = ("line", "it is required that", "rests on", "checked", "status")
        for title, lines in groupby(data["gates"], key=gates.head):
            rows = [
                (
                    _text(item["id"]),
                    _text(item["gate"]),
                    _text("; ".join((gates.basis(item), *item.get("problems", ())))),
                    _text(f"{item['checked']:,}"),
                    _status(item["status"]),
                )
                for item in lines
            ]
            parts.append(f"<h3>{escape(title)}</h3>" + _table(heads, rows))
    if data.get("claims"):
        rows = [(_text(row["claim"]), _status(row["outcome"])) for row in data["claims"]]
        parts.append("<h2>claims</h2>" + _table(("claim", "outcome"), rows))
    parts.append(
        "<h2>statuses</h2>" + _table(("status", "the row says"), [(_status(n), _text(t)) for n, t in STATUSES])
    )
    command = str(data["schema"]).split(".")[1]  # jaxcost.verify.v1: verify
    subject = f": {gather.title(reports[0])} on {reports[0]['target']}" if len(reports) == 1 else ""
    return _page(command + subject, data, parts)


def _explained(explained: Mapping[str, Any]) -> str:
    """The walk through one row, a table for each step; the steps are folded up to the first that disagrees."""
    head = f"{explained['row']} of {explained['report']} on {explained['target']}"
    ends = explained["conclusion"][:1].upper() + explained["conclusion"][1:]
    parts = [f"<h2>{escape(head)}: {_span(explained['status'])}</h2><p><b>{escape(ends)}.</b></p>"]
    words = {True: "agrees", False: "disagrees", None: "nothing to compare"}
    for step in explained["steps"]:
        rows = [
            (
                _text(row["what"]),
                *(_number(gather.side(row[name])) for name in ("predicted", "observed")),
                _text(row["unit"]),
                f"<td>{_span('open', 'differs') if row['agrees'] is False else '=' if row['agrees'] else ''}</td>",
                _text(row["note"]),
            )
            for row in step["rows"]
        ]
        title = f"{step['number']}. {step['step']}: {step['question']}"
        word = words[step["agrees"]] if rows else "nothing of this row"
        table = _table(("what", "predicted", "observed", "unit", "", "note"), rows, numbers=(1, 2)) if rows else ""
        shown = " open" if step["agrees"] is False or step["step"] == "residual" else ""
        parts.append(
            f'<details{shown}><summary>{escape(title)} <span class="dim">{word}</span></summary>{table}</details>'
        )
    return "".join(parts)


def _overview(reports: Sequence[Mapping[str, Any]]) -> str:
    """One line per report: how many of its rows have which status."""
    columns, lines = gather.overview(reports)
    rows = [
        (_text(title), _text(target), *(_number(str(count or "")) for count in counts), _status(status))
        for title, target, counts, status in lines
    ]
    return _table(("report", "target", *columns, "status"), rows, numbers=tuple(range(2, 2 + len(columns))))


def _report(report: Mapping[str, Any], shown: bool) -> str:
    """One report, folded where there are many; exact rows of single scopes are folded in any case."""
    rows = gather.compared(report)
    status, beside = gather.headline(report["status"], rows)
    parts = [_case(report["case"])] if gather.values(report) else []
    versions = report.get("environment", {}).get("versions") or {}
    if versions:
        parts.append(f'<p class="dim">{escape("  ".join(f"{name} {text}" for name, text in versions.items()))}</p>')
    folded = [row for row in rows if row["status"] == "exact" and row["scope"]]
    parts.append(_compared([row for row in rows if row not in folded]))
    if folded:
        parts.append(f"<details><summary>{gather.count(len(folded), 'row')} exact in single scopes</summary>"
                     f"{_compared(folded)}</details>")  # fmt: skip
    for finding in report.get("findings", ()):
        if finding["kind"] != "assumption":
            evidence = "".join(f"<br><code>{escape(str(item))}</code>" for item in finding.get("evidence", ())[:3])
            parts.append(f"<p><b>{escape(str(finding['kind']))}</b>: {escape(str(finding['text']))}{evidence}</p>")
    own = [row for row in report["rows"] if row.get("verdict") and row["observation"] != 0]
    if own:
        table = _table(
            ("the compiler's own counter", "says", "verdict"),
            [(_text(r["counter"]), _number(exact(r["observation"])), _text(gather.verdict(r))) for r in own],
            numbers=(1,),
        )
        parts.append(table)
    head = f"{escape(gather.title(report))} on {escape(str(report['target']))}: {_span(status)} {escape(beside)}"
    unfolded = shown or status in ("open", "rejected")
    return f"<details{' open' if unfolded else ''}><summary><b>{head}</b></summary>{''.join(parts)}</details>"


def _compared(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows of a report; what explains a row stands below it, over the whole width."""
    cells: list[tuple[str, ...]] = []
    for row in rows:
        label = escape(str(row["counter"])) + (f' <span class="dim">{escape(row["scope"])}</span>' * bool(row["scope"]))
        cells.append(
            (
                f"<td>{label}</td>",
                _text(row["phase"]),
                _text(row["unit"]),
                _number(exact(row["prediction"])),
                _number(exact(row["observation"])),
                _number(signed(row["residual"])),
                _status(row["status"]),
            )
        )
        for item in row["explanations"]:
            evidence = f'<br><span class="dim">{escape(item["evidence"])}</span>' if item["evidence"] else ""
            cells.append(
                (f'<td colspan="7" class="note">{signed(item["amount"])} {escape(item["reason"])}{evidence}</td>',)
            )
        if row.get("reason") and row["status"] not in ("exact", "unmeasured"):
            cells.append((f'<td colspan="7" class="note">{escape(row["reason"])}</td>',))
    header = ("counter", "phase", "unit", "prediction", "observation", "residual", "status")
    return _table(header, cells, numbers=(3, 4, 5))


def _list(texts: Iterable[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(text)}</li>' for text in texts)}</ul>"


def _case(case: Mapping[str, Any]) -> str:
    shown = "".join(f"<span>{escape(name)} <b>{escape(value)}</b></span>" for name, value in case_values(case))
    return f'<p class="case">{shown}</p><p class="dim">case <code>{escape(case["digest"])}</code></p>'


def _bars(rows: Sequence[Mapping[str, Any]]) -> str:
    """The largest rows of a ledger, summed by object and phase, as bars of one unit."""
    units = [row["unit"] for row in rows if isinstance(row["value"], int) and row["value"] > 0]
    if len(units) < 2:
        return ""
    unit = max(sorted(set(units)), key=units.count)
    sums: dict[str, int] = {}
    for row in rows:
        if row["unit"] == unit and isinstance(row["value"], int) and row["value"] > 0:
            label = " ".join(part for part in (row["scope"] or row["object"], row["phase"]) if part)
            sums[label] = sums.get(label, 0) + row["value"]
    largest = sorted(sums.items(), key=lambda item: -item[1])[:_BARS_AT_MOST]
    top = largest[0][1]
    lines = []
    for index, (label, value) in enumerate(largest):
        y = 20 * index
        width = max(400 * value // top, 1)
        lines.append(
            f'<text x="0" y="{y + 14}">{escape(label)}</text><rect x="300" y="{y + 3}" width="{width}" height="14"/>'
            f'<text x="{306 + width}" y="{y + 14}">{escape(about(value, unit) or exact(value))}</text>'
        )
    height = 20 * len(largest)
    size = f'viewBox="0 0 860 {height}" width="860" height="{height}"'
    return f'<svg role="img" aria-label="{escape(unit)} by row" {size}>{"".join(lines)}</svg>'


def _table(header: Iterable[str], rows: Iterable[Sequence[str]], numbers: tuple[int, ...] = ()) -> str:
    head = "".join(
        f'<th class="n">{name}</th>' if i in numbers else f"<th>{name}</th>" for i, name in enumerate(header)
    )
    body = "".join(f"<tr>{''.join(cells)}</tr>" for cells in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _text(value: Any) -> str:
    return f"<td>{escape(str(value))}</td>"


def _number(text: str) -> str:
    return f'<td class="n">{escape(text)}</td>'


def _span(status: str, text: str = "") -> str:
    return f'<span class="{escape(status)}">{escape(text or status)}</span>'


def _status(status: str, text: str = "") -> str:
    return f"<td>{_span(status, text)}</td>"


def _page(title: str, data: Mapping[str, Any], parts: Iterable[str]) -> str:
    body = "\n".join(part for part in parts if part)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style></head>\n'
        f"<body><h1>{escape(title)}</h1>\n{body}\n"
        f'<p class="dim">{escape(str(data["schema"]))}, jaxcost {escape(str(data["jaxcost"]))}</p></body></html>\n'
    )
