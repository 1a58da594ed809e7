"""A plan of a training run as text: answers, what stands against it, assumptions, figures by section, checks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from jaxcost.report.console import console, table
from jaxcost.report.numbers import about
from jaxcost.report.tables import line, status_text

TITLES = {
    "run": "the run", "budget": "budget", "work": "work of a token", "batch": "batch", "steps": "steps",
    "failures": "failures and restart", "checkpoint": "checkpoints", "memory": "memory", "data": "data path",
    "communication": "communication", "scaling": "scaling", "tail": "fan-out tail", "cost": "cost",
}  # fmt: skip
STATUS = {
    "complete": "every question is answered and the checks agree",
    "incomplete": "a question is not answered; what is missing is named",
    "open": "a check or a claim disagrees with the plan",
    "infeasible": "the plan exceeds its budget, calendar or memory",
}
TRUST_SHOWN = 6


def show_run_plan(data: Mapping[str, Any], rows: bool = False) -> None:
    """Print a document `jaxcost.plan_run.v1`; `rows` adds conventions, and the figures that are not known."""
    out = console()
    line(out, title(data), style="bold")
    if data["note"]:
        line(out, data["note"])
    _questions(out, data)
    _assumptions(out, data["assumptions"])
    line(out, "chosen: " + "  ".join(choice_texts(data["choices"])))
    for section, listed in sections(data):
        _section(out, section, listed, rows, len(data["stages"]) > 1)
    _components(out, data)
    if rows:
        _transfers(out, data["transfers"])
    else:
        _missing(out, data["figures"])
    _contexts(out, data["contexts"])
    if rows:
        _iso(out, data["iso_budget"])
    _checks(out, data)
    _trust(out, data["trust"])
    if data["changes"] is not None:
        _changes(out, data["changes"])
    for item in data["findings"]:
        out.print(Text.assemble((f"{item['kind']}: ", "bold"), item["text"]))
    line(out, f"{data['status']}: {STATUS[data['status']]}", style="bold")


def title(data: Mapping[str, Any]) -> str:
    """Return what the plan is of: its name, the model, the devices."""
    inputs = data["inputs"]
    what = data["model"] or f"{float(inputs['parameters']['value']) / 10**9:,.6g}B parameters"
    peak = data["device"]["name"] or "devices"
    run = f"{what} on {inputs['devices']['value']} x {peak}, {inputs['days']['value']} days"
    return f"{data['name']}: {run}" if data["name"] else run


def sections(data: Mapping[str, Any]) -> Iterator[tuple[str, list[Mapping[str, Any]]]]:
    """Yield the sections with their figures, in order."""
    for section in TITLES:
        listed = [item for item in data["figures"] if item["section"] == section]
        if listed:
            yield section, listed


def number(value: Any, unit: str = "") -> str:
    """Return a number to read: whole ones in full up to 15 digits, shares in percent, bytes also in decimal units."""
    if value is None:
        return "unknown"
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "yes" if value else "no"
    if unit == "ratio":
        return f"{100 * value:.4g}%"
    if isinstance(value, int) or float(value).is_integer():
        return f"{int(value):,}" if abs(value) < 10**15 else f"{float(value):.6g}"
    return f"{value:,.6g}" if 1e-4 <= abs(value) < 10**9 else f"{value:.6g}"


def beside(value: Any, unit: str) -> str:
    """Return the size beside a number: decimal and binary bytes, or a rounded count; empty where it is short."""
    if not isinstance(value, int | float) or isinstance(value, bool) or abs(value) < 10**5:
        return ""
    if unit.startswith("bytes"):
        decimal = next((f"{value / step:.4g} {name}" for step, name in _DECIMAL if abs(value) >= step), "")
        return f"{decimal} = {about(int(value), 'bytes')}" if unit == "bytes" else f"{decimal}/s"
    return f"{value:.3g}" if abs(value) >= 10**7 and abs(value) < 10**15 else ""


_DECIMAL = ((10**15, "PB"), (10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB"))


def unknown(listed: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return the names of figures without a value, by the reason."""
    found: dict[str, list[str]] = {}
    for item in listed:
        if item["value"] is None and item["name"] not in found.setdefault(item["reason"], []):
            found[item["reason"]].append(item["name"])
    return found


def assumption_text(item: Mapping[str, Any]) -> str:
    """Return an assumption's value with its range, as it was written."""
    text = number(item["value"], item["unit"]) if item["unit"] == "ratio" else number(item["value"])
    if item["low"] is not None:
        ends = (number(item[end], item["unit"]) for end in ("low", "high"))
        text += f" ({' to '.join(ends)})"
    return text


def evidence_text(item: Mapping[str, Any]) -> str:
    """Return where an assumption comes from: its class, source and date, or that it is a default."""
    parts = ["default" if item["default"] else item["evidence"], item["source"], item["date"] or ""]
    return ", ".join(part for part in parts if part)


def choice_texts(choices: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what was chosen as `name=value`, a stage's own with its name before it."""
    return [f"{item['stage'] + ': ' if item['stage'] else ''}{item['name']}={item['value']}" for item in choices]


def target_text(trust: Mapping[str, Any]) -> str:
    """Return what the assumptions move, with its unit."""
    what = "the tokens that the budget reaches" if trust["target"] == "total_tokens" else "the end of the run"
    return f"{what} ({trust['target'].replace('_', ' ')}, {trust['unit']})"


def cell_text(value: float | None) -> str:
    """Return a number of the table of what moves: days to a thousandth, tokens rounded; empty where there is none."""
    return "" if value is None else f"{value:.3f}" if abs(value) < 10**6 else f"{value:.4g}"


def check_rows(data: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return checks and claims together."""
    return [*data["checks"], *data["claims"]]


def moved_text(item: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return a figure that moved as (from, to, by)."""
    before, after = (number(item[side], item["unit"]) for side in ("from", "to"))
    return before, after, "" if item["ratio"] is None else f"x {item['ratio']:.4g}"


def _questions(out: Console, data: Mapping[str, Any]) -> None:
    shown = table("question", "answer")
    for item in data["answers"]:
        shown.add_row(item["question"], Text(item["answer"], style="" if item["known"] else "yellow"))
    out.print(shown)


def _assumptions(out: Console, listed: Sequence[Mapping[str, Any]]) -> None:
    shown = table("assumption", "value", "unit", "evidence", title="assumptions", right=("value",))
    for item in listed:
        shown.add_row(item["name"], assumption_text(item), item["unit"], Text(evidence_text(item)))
    out.print(shown)


def _section(out: Console, section: str, listed: Sequence[Mapping[str, Any]], rows: bool, several: bool) -> None:
    known = [item for item in listed if item["value"] is not None]
    if known:
        extra = ("counted as",) if rows else ()
        shown = table("figure", "value", "unit", "about", *extra, title=TITLES[section], right=("value",))
        for item in known:
            label = item["name"] + (f" ({item['stage']})" if several and item["stage"] else "")
            contract = item["convention"] + (f"; without {item['omitted']}" if item["omitted"] else "")
            cells = (label, number(item["value"], item["unit"]), item["unit"], beside(item["value"], item["unit"]))
            shown.add_row(*cells, *((Text(contract),) if rows else ()))
        out.print(shown)
    if rows:
        for reason, names in unknown(listed).items():
            line(out, f"{TITLES[section]}, unknown: {', '.join(names)} ({reason})")


def _components(out: Console, data: Mapping[str, Any]) -> None:
    shown = table("component", "moment", "bytes", "about", "counted by", title="memory by component", right=("bytes",))
    for item in data["components"]:
        label = item["component"].replace("_", " ") + (f" ({item['stage']})" if len(data["stages"]) > 1 else "")
        size = item["bytes"]
        shown.add_row(label, item["moment"], number(size), beside(size, "bytes"), item["basis"])
    out.print(shown)


def _transfers(out: Console, listed: Sequence[Mapping[str, Any]]) -> None:
    if not listed:
        return
    numbers = ("ranks", "array bytes", "times", "bytes in a step")
    shown = table("array", "phase", "collective", "over", *numbers, title="largest transfers of a step", right=numbers)
    for item in listed:
        sizes = (number(item[key]) for key in ("participants", "payload_bytes", "times", "step_bytes"))
        shown.add_row(item["object"], item["phase"], item["kind"], item["axis"], *sizes)
    out.print(shown)


def _missing(out: Console, figures: Sequence[Mapping[str, Any]]) -> None:
    """Say what is not known, and for want of what; `--rows` lists the figures."""
    for reason, names in unknown(figures).items():
        if not reason.startswith("not given: "):
            line(out, f"unknown: {_count(names)} ({reason})")
    absent: dict[str, None] = {}
    for reason in unknown(figures):
        if reason.startswith("not given: "):
            absent.update(dict.fromkeys(reason.removeprefix("not given: ").split(";")[0].split(", ")))
    if absent:
        line(out, f"not given, and so unknown what follows from it (--rows): {', '.join(absent)}")


def _count(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) < 4 else f"{len(names)} figures"


def _contexts(out: Console, listed: Sequence[Mapping[str, Any]]) -> None:
    if not listed:
        return
    heads = ("context", "6P FLOPs/token", "ledger FLOPs/token", "6P leaves out", "tokens for the budget")
    shown = table(*heads, title="6PT against the ledger", right=heads)
    for item in listed:
        if item["ledger_flops_per_token"] is None:
            shown.add_row(number(item["context"]), number(item["six_p_flops_per_token"]), "unknown", "", item["reason"])
            continue
        cells = (item["context"], item["six_p_flops_per_token"], item["ledger_flops_per_token"])
        shown.add_row(*map(number, cells), number(item["shortfall"], "ratio"), f"{item['tokens'] or 0:.4g}")
    out.print(shown)


def _iso(out: Console, iso: Mapping[str, Any] | None) -> None:
    if iso is None:
        return
    shown = table("parameters", "tokens", title="one budget, under 6PT", right=("parameters", "tokens"))
    for item in iso["points"]:
        shown.add_row(f"{item['parameters']:.4g}" + (" (plan)" if item["own"] else ""), f"{item['tokens']:.4g}")
    out.print(shown)
    line(out, iso["note"])


def _checks(out: Console, data: Mapping[str, Any]) -> None:
    shown = table("check", "plan", "beside it", "residual", "unit", "status", title="checks",
                  right=("plan", "beside it", "residual"))  # fmt: skip
    for item in check_rows(data):
        label = item["name"] + (f" ({item['stage']})" if len(data["stages"]) > 1 and item["stage"] else "")
        cells = (number(item[name]) for name in ("prediction", "observation", "residual"))
        shown.add_row(label, *cells, item["unit"], status_text(item["status"]))
    out.print(shown)
    for item in check_rows(data):
        for found in item["explanations"]:
            line(
                out,
                f"{item['name']}: {number(found['amount'])} {item['unit']}, {found['reason']} ({found['evidence']})",
            )
        for cause in item["causes"]:
            line(out, f"{item['name']} would be accounted for by: {cause}")
        if item["look_at"]:
            line(out, f"{item['name']}: look at {', '.join(item['look_at'])}")
        if item.get("reason"):
            line(out, f"{item['name']}: {item['reason']}")


def _trust(out: Console, trust: Mapping[str, Any]) -> None:
    heads = ("at low", "at high", "spread", "for +1%")
    shown = table("assumption", *heads, "test", title=f"what moves {target_text(trust)}", right=heads)
    rows = [item for item in trust["rows"] if item["spread"] or item["one_percent"]]
    for item in rows[:TRUST_SHOWN]:
        cells = (item["low"], item["high"], item["spread"], item["one_percent"])
        shown.add_row(item["name"], *(cell_text(cell) for cell in cells), item["test"])
    out.print(shown)
    if trust["least"]:
        line(out, f"least trustworthy: {trust['least']}. To reduce it: {trust['test']}", style="bold")
    else:
        line(out, f"least trustworthy: not known, {trust['reason']}")


def _changes(out: Console, changes: Mapping[str, Any]) -> None:
    for item in changes["inputs"]:
        line(out, f"changed: {item['name']} from {item['from']} to {item['to']}", style="bold")
    shown = table("what moved", "from", "to", "by", "unit", title="what else moved", right=("from", "to", "by"))
    for item in changes["moved"]:
        shown.add_row(item["name"], *moved_text(item), item["unit"])
    out.print(shown)
    line(out, f"did not move: {', '.join(changes['unmoved'])}")


def show_published_runs(data: Mapping[str, Any]) -> None:
    """Print a document `jaxcost.plan_runs.v1`."""
    out = console()
    numbers = ("hours", "parameters", "tokens", "FLOPs, 6PT", "implied", "printed", "hours beyond")
    shown = table("run", *numbers, "peak TFLOP/s", title="published training runs", right=numbers)
    for item in data["runs"]:
        printed = "" if item["printed_mfu"] is None else _range(item["printed_mfu"], percent=True)
        beyond = "" if item["hours_beyond"] is None else _range(item["hours_beyond"])
        active = "" if item["active"] == item["parameters"] else f" ({item['active'] / 10**9:.4g}B active)"
        size = f"{item['parameters'] / 10**9:.4g}B{active}"
        for index, found in enumerate(item["implied"]):
            share = f"{100 * found['value']:.2f}%"
            cells = (item["name"], number(item["hours"]), size, f"{item['tokens']:.4g}", f"{item['flops']:.4g}")
            first = cells if index == 0 else ("",) * len(cells)
            rest = (printed, beyond) if index == 0 else ("", "")
            shown.add_row(*first, share, *rest, f"{found['tera_per_s']:,g} {found['dtype']}")
    out.print(shown)
    for item in data["runs"]:
        for key in ("assumption", "hours_include"):
            if item[key]:
                line(out, f"{item['name']}: {item[key]}")
    line(out, f"{data['convention']}; left out: {data['omitted']}")


def _range(ends: Sequence[float], percent: bool = False) -> str:
    texts = [f"{100 * end:.4g}%" if percent else f"{end:+,.0f}" for end in ends]
    return texts[0] if ends[0] == ends[1] else " to ".join(texts)
