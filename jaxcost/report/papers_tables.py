"""Published contracts and the comparison gate as tables, from the document that --json prints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from jaxcost.report.console import console, table
from jaxcost.report.numbers import about, exact, signed
from jaxcost.report.tables import line, status_text
from jaxcost.report.values import case_values

AXIS_NAMES = (
    "architecture", "coordinate", "phase", "operations", "backward", "replay", "state", "ownership", "output",
    "evidence",
)  # fmt: skip
KIND_NAMES = {
    "parameters": "parameters",
    "forward_flops": "forward FLOPs of the step",
    "model_flops": "model FLOPs of the step (forward and backward, nothing replayed)",
    "hardware_flops": "hardware FLOPs of the step (replay counted)",
    "saved_bytes_per_layer": "bytes one layer saves for its backward pass",
    "state_bytes": "bytes of state, all devices",
    "state_bytes_per_device": "bytes of state, one device",
}


def figure_text(number: Mapping[str, Any]) -> str:
    """Return a number in full where it is whole, else with seven digits."""
    value = number["value"]
    if value is None:
        return "unknown"
    if isinstance(value, int) and abs(value) < 10**18:
        return exact(value)
    return f"{number['about']:,.7g}"


def difference_text(number: Mapping[str, Any]) -> str:
    """Return the print less what was computed, with its sign."""
    if number["value"] is None:
        return ""
    return "0" if number["about"] == 0 else f"{number['about']:+.3g}"


def tally(cells: Sequence[Mapping[str, Any]]) -> str:
    """Return how many printed figures have which status, worst first, and how many forms were evaluated."""
    counts = Counter(cell["status"] for cell in cells if not cell["derived"])
    evaluated = Counter(cell["status"] for cell in cells if cell["derived"])
    order = ("open", "bounded", "explained", "exact")
    printed = ", ".join(f"{counts[status]} {status}" for status in order if counts[status])
    forms = ", ".join(f"{evaluated[status]} {status}" for status in order if evaluated[status])
    return "; forms evaluated: ".join(part for part in (printed or "none", forms) if part)


def printed_text(cell: Mapping[str, Any]) -> str:
    """Return a print as it stands; what the source does not print is in brackets."""
    return f"({cell['printed']})" if cell["derived"] else str(cell["printed"])


def percent_of(ratio: float) -> str:
    """Return a ratio to the ledger as a signed percentage."""
    if ratio == 1:
        return "0"
    percent = 100 * (ratio - 1)
    return f"{percent:+.2f}%" if abs(percent) >= 0.005 else "under 0.01%"


def _add(made: Table, *cells: str | Text) -> None:
    """Add a row of plain texts: a bracket in a paper's words is no markup."""
    made.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in cells))


def show_contracts(data: Mapping[str, Any]) -> None:
    """Print one line for each contract, and that their numbers are not compared."""
    out = console()
    made = table("name", "kind", "counts", "printed figures", "out of reach", "status")
    for item in data["contracts"]:
        cells = [cell for found in item["tables"] for cell in found["cells"]]
        missing = sum(len(found["unreproduced"]) for found in item["tables"])
        _add(
            made, item["name"], item["kind"], item["primary_object"], tally(cells),
            f"{missing} column{'s' * (missing != 1)}" if missing else "", status_text(item["status"]),
        )  # fmt: skip
    out.print(made)
    line(
        out,
        "The contracts differ in what they count. Their numbers are not comparable as they stand: "
        "`jaxcost papers --compare MODEL --seq N` brings them to one case.",
    )


def show_contract(data: Mapping[str, Any]) -> None:
    """Print a contract: axes, symbols, forms with their proofs, tables row by row, findings."""
    out = console()
    line(out, f"{data['name']}: {data['title']}", style="bold")
    line(out, f"{data['source']['citation']}, {data['source']['url']}")
    for locator in data["source"]["locators"]:
        line(out, f"- {locator}")
    out.print()
    made = table("axis", "this contract", title="what is counted")
    for axis in AXIS_NAMES:
        _add(made, axis, data[axis])
    out.print(made)
    made = table("symbol", "in jaxcost", "meaning", title="symbols")
    for item in data["symbols"]:
        _add(made, item["paper"], item["jaxcost"] or "-", item["meaning"])
    out.print(made)
    if data["subsections"]:
        made = table("part", "follows", "says", title="parts of a composite source, each bound to its own")
        for item in data["subsections"]:
            _add(made, item["name"], item["inherits"], item["says"])
        out.print(made)
    _forms(out, data["quantities"])
    for item in data["tables"]:
        _table(out, item)
    if data["peaks"]:
        made = table("constant", "device", "printed", "recorded", "status", title="constants beside hardware/",
                     right=("printed", "recorded"))  # fmt: skip
        for item in data["peaks"]:
            _add(
            made,     item["reason"], item["row"], item["printed"], f"{item['computed']['about']:.6g}",
                status_text(item["status"]),
            )  # fmt: skip
        out.print(made)
    for item in data["findings"]:
        line(out, f"{item['kind'].replace('_', ' ')}: {item['text']}")
    out.print()


def _forms(out: Console, quantities: Sequence[Mapping[str, Any]]) -> None:
    for item in quantities:
        proof = item.get("proof")
        head = Text(f"{item['title']}, {item['equation']}: ", style="bold")
        head.append_text(
            status_text(proof["status"]) if proof else Text("on the rows of its tables alone", style="dim")
        )
        out.print(head, soft_wrap=True)
        line(out, f"    {item['formula']}")
        if proof is None:
            continue
        line(out, f"    ledger      {proof['ledger']}")
        for step, declared in zip(proof["differences"], item["differences"], strict=True):
            if step["closed_form"] != "0":
                line(out, f"    {step['name']}: {_plus(step['closed_form'])}    ({declared['why']})")
        line(out, f"    formula     {proof['formula']}")
        if proof["residual"] != "0":
            line(out, f"    not explained: {proof['residual']}", style="bold red")
    if quantities:
        out.print()


def _plus(form: str) -> str:
    return form if form.startswith("-") else f"+ {form}"


def _table(out: Console, data: Mapping[str, Any]) -> None:
    right = ("printed", "computed", "difference", "half unit")
    titles = {item["name"]: item["title"] for item in data["columns"]}
    if data["cells"]:
        made = table("row", "column", *right, "status", title=f"{data['title']} ({data['locator']})", right=right)
        for cell in data["cells"]:
            _add(
            made,     cell["row"], titles[cell["column"]], printed_text(cell), figure_text(cell["computed"]),
                difference_text(cell["difference"]), figure_text(cell["half_unit"]), status_text(cell["status"]),
            )  # fmt: skip
        out.print(made)
    else:
        line(out, f"{data['title']} ({data['locator']})", style="bold")
    for note in table_notes(data):
        line(out, f"- {note}")
    for item in data["unreproduced"]:
        line(out, f"- {titles[item['column']]}, not reproducible: {item['reason']}")
    for item in data["columns"]:
        if item["role"] == "derived":
            line(out, f"- {item['title']} is not printed: {item['note']}")
    out.print()


def table_notes(data: Mapping[str, Any]) -> list[str]:
    """Return what stands between the prints of a table and the ledger: one text for each step, over all its rows."""
    titles = {item["name"]: item["title"] for item in data["columns"]}
    found: dict[str, None] = {}
    steps: dict[tuple[str, str, str], list[tuple[str, float]]] = {}
    written: dict[str, list[str]] = {}
    for cell in data["cells"]:
        name = titles[cell["column"]]
        if cell["reason"]:
            found[f"{name}: {cell['reason']}"] = None
        for step in cell["between"]:
            steps.setdefault((name, step["name"], step["why"]), []).append((cell["row"], step["about"]))
        if cell["written"]:
            written.setdefault(name, []).append(f"{cell['written']['about']:.4g}")
        for used in cell["ledgers"]:
            if used["status"] == "open":
                found[f"{cell['row']}, {used['quantity']}: formula less ledger leaves {used['residual']}"] = None
    notes = list(found) + _differences(data["cells"])
    for name, texts in written.items():
        notes.append(f"{name}: by the text of the source it would be {', '.join(dict.fromkeys(texts))}")
    for (name, step_name, why), amounts in steps.items():
        each = ", ".join(f"{amount:+.4g}" for _, amount in amounts[:8])
        more = f" and {len(amounts) - 8} more" if len(amounts) > 8 else ""
        notes.append(f"{name}: {step_name}, {each}{more} ({why})")
    if any(cell["status"] == "bounded" for cell in data["cells"]):
        notes.append(
            "bounded: the print lies outside half a unit, and inside what the rounding of printed inputs allows"
        )
    return notes


def _differences(cells: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the differences between ledger and form that the rows of a table use, each with its range."""
    amounts: dict[tuple[str, str], list[float]] = {}
    for cell in cells:
        for used in cell["ledgers"]:
            for step in used["differences"]:
                if step["about"]:
                    amounts.setdefault((used["quantity"], step["name"]), []).append(step["about"])
    found = []
    for (quantity, name), values in amounts.items():
        low, high = min(values), max(values)
        reach = f"{low:+,.4g}" if low == high else f"{low:+,.4g} to {high:+,.4g}"
        found.append(f"{quantity} is the ledger and: {name}, {reach}")
    return found


def show_comparison(data: Mapping[str, Any]) -> None:
    """Print the gate: for each kind what each contract gives on the target, and what is open where it gives nothing."""
    out = console()
    case = data["case"]
    line(out, f"{case['architecture']['name']}  case {case['digest'][:16]}", style="bold")
    line(out, "values used: " + "  ".join(f"{option}={value}" for option, value in case_values(case)))
    out.print()
    for kind in data["comparison"]["kinds"]:
        _kind(out, kind)
    closed = [
        (claim, item)
        for kind in data["comparison"]["kinds"]
        for claim in kind["claims"]
        for item in claim["open"]
    ]  # fmt: skip
    if closed:
        grouped: dict[tuple[str, str], list[str]] = {}
        for claim, item in closed:
            grouped.setdefault((item["axis"], item["reason"]), []).append(f"{claim['contract']}.{claim['quantity']}")
        made = table("open axis", "why", "not comparable", title="closed: no number is shown")
        for (axis, reason), names in grouped.items():
            _add(made, axis, reason, ", ".join(names))
        out.print(made)
    line(out, GATE_NOTE)


GATE_NOTE = (
    "Every figure here is of one target case. ledger + differences = contract, to the last unit; a contract with an "
    "open axis gives none."
)


def _kind(out: Console, data: Mapping[str, Any]) -> None:
    shown = [item for item in data["claims"] if not item["open"]]
    if not shown:
        return
    per = data["rows"]
    unit = data["unit"]
    heads = [
        "contract",
        "equation",
        "value",
        "about",
        *(["a token"] if per else []),
        "against the ledger",
        "differences",
    ]
    made = table(
        *heads, title=KIND_NAMES[data["kind"]], right=("value", "about", "a token", "against the ledger")
    )  # fmt: skip
    ledger = data["ledger"]
    token = [about(ledger // per, unit) or exact(ledger // per)] if per else []
    _add(made, Text("jaxcost's ledger", style="bold"), "", exact(ledger), about(ledger, unit), *token, "", "")
    for item in shown:
        value = item["value"]
        whole = value if isinstance(value, int) else None
        token = [about(whole // per, unit) or exact(whole // per)] if per and whole is not None else [""] * bool(per)
        steps = "; ".join(f"{signed_about(step, unit)} {step['name']}" for step in item["differences"])
        if item["cancels"]:
            steps += " (errors of both signs cancel)"
        figures = (exact(value), about(value, unit), *token, percent_of(item["ratio"]))
        _add(made, item["contract"], item["equation"], *figures, steps)
    out.print(made)


def signed_about(step: Mapping[str, Any], unit: str) -> str:
    """Return a step's amount, rounded, with its sign."""
    amount = step["amount"]
    if not isinstance(amount, int):
        return f"{step['about']:+.4g}"
    rounded = about(abs(amount), unit)
    return f"{'-' if amount < 0 else '+'}{rounded}" if rounded else signed(amount)
