"""What moves when an input changes: every figure of two plans side by side, from one value to the other."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any

from jaxcost.contracts.errors import Problem, RejectedError, reject
from jaxcost.planning.run.assumed import parse_assumed
from jaxcost.planning.run.inputs import SPECS, STAGED, RunInputs, read_inputs
from jaxcost.planning.run.plan import RunPlan, plan_run
from jaxcost.planning.run.sheet import FIGURES, Unknown

TEXTS = ("model", "device", "dtype", "work", "downtime", "mfu_window", "checkpoint", "interval_counts", "currency")
WHOLE = ("seed", "simulated_runs")


def changed(inputs: RunInputs, changes: Iterable[str]) -> RunInputs:
    """Return the inputs with `field=value` set; `stages.NAME.field=value` sets one of a stage.

    A number may be a range, low..value..high; `mesh=data=16,tensor=16` sets a mesh, `case.remat=block` an option of the
    case, `none` takes a value away.

    Raises:
        RejectedError: with every change that sets no field, and every rule that the new inputs break.
    """
    data = inputs.to_data()
    problems: list[Problem] = []
    for text in changes:
        try:
            _set(data, text, inputs)
        except RejectedError as error:
            problems += error.problems
    if problems:
        raise RejectedError(problems)
    return read_inputs(data, "changed plan")


def _set(data: dict[str, Any], text: str, inputs: RunInputs) -> None:
    path, equals, value = (part.strip() for part in text.partition("="))
    path = path.replace("-", "_")
    if not equals or not value:
        raise reject("--change", text, "not of the form FIELD=VALUE", "write for example --change mfu=0.35")
    table, name = data, path
    if path.startswith("stages."):
        _, label, name = [*path.split(".", 2), "", ""][:3]
        found = [item for item in data["stages"] if item["name"].replace("-", "_") == label]
        if not found:
            known = ", ".join(stage.name for stage in inputs.stages) or "none"
            raise reject("--change", text, "no stage has this name", f"the stages are {known}")
        table = found[0]
        if name not in (*STAGED, "mesh") and not name.startswith("case."):
            raise reject("--change", text, "not a field of a stage", f"use {', '.join((*STAGED, 'mesh'))}")
    if name.startswith("case."):
        case = dict(table.get("case") or {})
        case[name.removeprefix("case.")] = _plain(value)
        table["case"] = case
    elif name in SPECS:
        table[name] = None if value == "none" else parse_assumed(value, name)
    elif name in TEXTS:
        table[name] = None if value == "none" else value
    elif name in WHOLE:
        table[name] = _plain(value)
    elif name == "mesh":
        table[name] = parse_mesh_text(value)
    else:
        known = ", ".join((*SPECS, *TEXTS, *WHOLE, "mesh", "case.OPTION", "stages.NAME.FIELD"))
        raise reject("--change", text, "sets no field of a plan", f"the fields are {known}")


def _plain(value: str) -> Any:
    if re.fullmatch(r"-?[0-9]{1,18}", value):
        return int(value)
    return {"true": True, "yes": True, "false": False, "no": False}.get(value, value)


def parse_mesh_text(text: str) -> dict[str, int] | None:
    """Return the mesh of `data=16,tensor=16`; None for `none`.

    Raises:
        RejectedError: it is neither.
    """
    if text == "none":
        return None
    parts = [re.fullmatch(r"\s*([a-z]+)\s*=\s*([0-9]{1,9})\s*", part) for part in text.split(",")]
    names = [part[1] for part in parts if part]
    if not all(parts) or len(set(names)) < len(parts):
        raise reject("mesh", text, "not of the form AXIS=N,...", "write for example mesh=data=32,tensor=8")
    return {part[1]: int(part[2]) for part in parts if part}


def compare_plans(before: RunPlan, after: RunPlan) -> dict[str, Any]:
    """Return what differs between two plans: inputs that changed, figures that moved, those that did not.

    `moved` has both values and, where both are numbers and the first is not zero, their ratio; `unmoved` names the
    figures with one value in both; `unknown` those without a value in either.
    """
    inputs = list(_inputs_changed(before.inputs.to_data(), after.inputs.to_data()))
    moved, unmoved, unknown = [], [], []
    for name, item in FIGURES.items():
        if not item.section:
            continue
        for stage in _stages(before, after, item.staged):
            values = [_value(plan, name, stage) for plan in (before, after)]
            label = f"{stage}: {name}" if stage and len(before.inputs.parts) + len(after.inputs.parts) > 2 else name
            if all(isinstance(value, Unknown) for value in values):
                unknown.append(label)
            elif values[0] == values[1]:
                unmoved.append(label)
            else:
                moved.append(_moved(label, item.section, item.unit, item.what, values))
    return {"inputs": inputs, "moved": moved, "unmoved": unmoved, "unknown": unknown}


def _stages(before: RunPlan, after: RunPlan, staged: bool) -> list[str]:
    names = [stage.name for plan in (before, after) for stage in plan.inputs.parts]
    return list(dict.fromkeys(names)) if staged else [""]


def _value(plan: RunPlan, name: str, stage: str) -> Any:
    if stage and stage not in plan.sheet.stages:
        return Unknown("no such stage")
    found = plan.sheet.value(name, stage or plan.inputs.parts[0].name)
    return found


def _moved(label: str, section: str, unit: str, what: str, values: list[Any]) -> dict[str, Any]:
    before, after = (None if isinstance(value, Unknown) else value for value in values)
    numbers = all(isinstance(value, int | float | Fraction) for value in (before, after))
    ratio = float(Fraction(after or 0) / Fraction(before)) if numbers and before else None
    reasons = [value.reason for value in values if isinstance(value, Unknown)]
    found = {"name": label, "section": section, "unit": unit, "what": what, "from": before, "to": after, "ratio": ratio}
    return found | ({"reason": reasons[0]} if reasons else {})


def _inputs_changed(before: Mapping[str, Any], after: Mapping[str, Any], prefix: str = "") -> Iterable[dict[str, Any]]:
    for name in dict.fromkeys((*before, *after)):
        old, new = before.get(name), after.get(name)
        if old == new or name in ("name", "note"):
            continue
        if name == "stages":
            yield {
                "name": "stages",
                "from": [item["name"] for item in old or ()],
                "to": [item["name"] for item in new or ()],
            }
            pairs = {item["name"]: item for item in old or ()}
            for item in new or ():
                if item["name"] in pairs:
                    yield from _inputs_changed(pairs[item["name"]], item, f"stages.{item['name']}.")
            continue
        yield {"name": prefix + name, "from": _shown(old), "to": _shown(new)}


def _shown(value: Any) -> Any:
    if isinstance(value, dict) and "value" in value:
        ends = "" if value.get("low") is None else f" ({value['low']} .. {value['high']})"
        return f"{value['value']}{ends}"
    if isinstance(value, dict):
        return ",".join(f"{name}={item}" for name, item in value.items())
    return value


def plan_change(base: RunPlan, changes: Iterable[str]) -> tuple[RunPlan, dict[str, Any]]:
    """Return the changed plan, and what moved from the base to it."""
    inputs = changed(base.inputs, changes)
    manifest = base.manifest if inputs.model == base.inputs.model else None
    after = plan_run(inputs, manifest)
    return after, compare_plans(base, after)
