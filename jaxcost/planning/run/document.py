"""A plan as one document: answers, assumptions, figures with their contracts, checks, what to trust least."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from jaxcost.planning.run.change import compare_plans
from jaxcost.planning.run.checks import Check
from jaxcost.planning.run.inputs import BOUNDARY, DEFAULTS, SPECS, STAGED, RunInputs, Stage
from jaxcost.planning.run.iso import by_context, iso_budget
from jaxcost.planning.run.plan import RunPlan, graph_options
from jaxcost.planning.run.review import answers, findings, status
from jaxcost.planning.run.sheet import FIGURES, Figure, Unknown
from jaxcost.planning.run.trust import trust
from jaxcost.report.values import case_values

SECTIONS = (
    "run", "budget", "work", "batch", "steps", "failures", "checkpoint", "memory", "communication", "data", "scaling",
    "tail", "cost",
)  # fmt: skip
TRANSFERS_SHOWN = 12
CHOICES = (
    "device", "dtype", "work", "downtime", "mfu_window", "checkpoint", "interval_counts", "simulated_runs", "seed",
)  # fmt: skip
# What a plan says itself, and need not be repeated from the values of its case.
OF_THE_PLAN = ("phase", "batch", "seq", "past", "logits", "accumulate", "mesh")


def plan_document(plan: RunPlan, base: RunPlan | None = None) -> dict[str, Any]:
    """Return the body of a `jaxcost.plan_run.v1` document: plain data, ready for JSON.

    Args:
        plan: the plan.
        base: another plan, with which it is compared: what moved from there to here.
    """
    model = plan.manifest.architecture if plan.manifest else None
    main, active = plan.sheet.known("main_run_flops"), plan.sheet.given["active"]
    iso = None if main is None else iso_budget(Fraction(main), active)
    contexts = []
    if model is not None:
        own = {int(seq) for stage in plan.inputs.parts if (seq := plan.inputs.exact("seq", stage)) is not None}
        listed = sorted({*plan.inputs.contexts, *own})
        contexts = by_context(model, active, listed, main, graph_options(plan.inputs))
    noted = findings(plan)
    body = {
        "name": plan.inputs.name, "note": plan.inputs.note, "status": status(plan, noted),
        "model": model.name if model else None,
        "device": {"name": plan.device.name if plan.device else None, "peak": plan.peak.label},
        "digest": plan.inputs.digest, "inputs": plan.inputs.to_data(),
        "answers": answers(plan), "findings": noted,
        "assumptions": list(_assumptions(plan.inputs)), "choices": list(_choices(plan)),
        "stages": [stage.name for stage in plan.inputs.parts],
        "figures": [_figure(plan, item, stage) for item, stage in _listed(plan)],
        "checks": [_check(item) for item in plan.checks], "claims": [_check(item) for item in plan.claims],
        "iso_budget": iso, "contexts": contexts,
        "components": list(_components(plan)), "transfers": list(_transfers(plan)),
        "boundary": {"includes": list(plan.inputs.includes),
                     "excludes": [item for item in BOUNDARY if item not in plan.inputs.includes],
                     "currency": plan.inputs.currency or None},
        "trust": trust(plan),
        "changes": None if base is None else compare_plans(base, plan),
    }  # fmt: skip
    return {name: _plain(value) for name, value in body.items()}


def _listed(plan: RunPlan) -> Iterator[tuple[Figure, str]]:
    for section in SECTIONS:
        for item in FIGURES.values():
            if item.section == section:
                yield from ((item, stage.name if item.staged else "") for stage in _of(plan, item))


def _of(plan: RunPlan, item: Figure) -> tuple[Stage, ...]:
    return plan.inputs.parts if item.staged else plan.inputs.parts[:1]


def _figure(plan: RunPlan, item: Figure, stage: str) -> dict[str, Any]:
    value = plan.sheet.value(item.name, stage or plan.inputs.parts[0].name)
    found: dict[str, Any] = {
        "name": item.name, "section": item.section, "stage": stage or None, "object": item.what,
        "value": None if isinstance(value, Unknown) else value, "exact": _exact(value),
        "unit": item.unit.replace("currency", plan.inputs.currency or "currency"),
        "scope": item.scope, "convention": item.convention, "omitted": item.omitted, "evidence": "analytical",
        "fields": list(plan.sheet.rests_on(item.name)),
    }  # fmt: skip
    return found | ({"reason": value.reason} if isinstance(value, Unknown) else {})


def _exact(value: Any) -> str | None:
    """Return an exact fraction as `p/q`; None for whole numbers, texts and what came through a root or exponential."""
    return str(value) if isinstance(value, Fraction) and value.denominator != 1 else None


def _assumptions(inputs: RunInputs) -> Iterator[dict[str, Any]]:
    for name in SPECS:
        found = inputs.assumed(name)
        if found is not None:
            yield _assumption(name, name, inputs, None)
    for stage in inputs.stages:
        yield from (
            _assumption(f"stages.{stage.name}.{name}", name, inputs, stage)
            for name in STAGED
            if getattr(stage, name) is not None
        )


def _assumption(path: str, name: str, inputs: RunInputs, stage: Stage | None) -> dict[str, Any]:
    found, spec = inputs.assumed(name, stage), SPECS[name]
    assert found is not None
    default = name in DEFAULTS and getattr(inputs, name) is None and stage is None
    return {
        "name": path, "what": spec.what, "value": found.exact, "printed": str(found.value),
        "low": None if found.low is None else Fraction(found.low),
        "high": None if found.high is None else Fraction(found.high), "unit": spec.unit, "evidence": found.evidence,
        "source": found.source, "date": found.date, "test": found.test or spec.test, "default": default,
    }  # fmt: skip


def _choices(plan: RunPlan) -> Iterator[dict[str, Any]]:
    """Yield what is chosen rather than measured: device, precision, conventions, mesh and the options of the case."""
    inputs = plan.inputs
    fields = type(inputs).model_fields
    for name in CHOICES:
        value = getattr(inputs, name)
        if name == "work":
            value = plan.sheet.given["work"]
        if value is not None:
            yield {
                "name": name,
                "stage": None,
                "value": value,
                "default": getattr(inputs, name) == fields[name].default,
            }
    for stage in inputs.parts:
        label = stage.name if inputs.stages else None
        mesh, prediction = inputs.staged("mesh", stage), plan.facts[stage.name].prediction
        if mesh is not None:
            text = ",".join(f"{axis}={size}" for axis, size in mesh.items())
            yield {"name": "mesh", "stage": label, "value": text, "default": False}
        given = inputs.staged("case", stage)
        if prediction is None:
            options = [(name, str(value)) for name, value in given.items()]
        else:
            options = [pair for pair in case_values(prediction.case.to_data()) if pair[0] not in OF_THE_PLAN]
        for option, text in options:
            yield {"name": option, "stage": label, "value": text, "default": option.replace("-", "_") not in given}


def _check(item: Check) -> dict[str, Any]:
    found: dict[str, Any] = {
        "name": item.name, "stage": item.stage or None, "unit": item.unit, "prediction": item.prediction,
        "observation": item.observation, "prediction_of": item.prediction_of, "observation_of": item.observation_of,
        "residual": item.residual, "status": item.status,
        "explanations": [
            {"amount": amount, "reason": reason, "evidence": evidence} for amount, reason, evidence in item.explanations
        ],
        "causes": list(item.causes) if item.status == "open" else [],
        "look_at": list(item.look_at) if item.status == "open" else [],
    }  # fmt: skip
    return found | ({"reason": item.reason} if item.reason else {})


def _components(plan: RunPlan) -> Iterator[dict[str, Any]]:
    for name, size in plan.sheet.given["state_objects"]:
        yield {
            "stage": "",
            "component": name,
            "moment": "whole model",
            "bytes": size,
            "basis": "state policy, one copy",
        }
    for name, facts in plan.facts.items():
        for role, size, basis in facts.components:
            yield {"stage": name, "component": role, "moment": "between steps", "bytes": size, "basis": basis}
        for kind, size in (facts.peak.get("by_class") or {}).items():
            yield {"stage": name, "component": kind, "moment": "at the peak", "bytes": size,
                   "basis": f"live arrays, policy {facts.peak.get('policy')}"}  # fmt: skip


def _transfers(plan: RunPlan) -> Iterator[dict[str, Any]]:
    for name, facts in plan.facts.items():
        if not isinstance(facts.transfers, Unknown):
            rows = sorted(facts.transfers["rows"], key=lambda row: -row["step_bytes"])
            yield from ({"stage": name, **row} for row in rows[:TRANSFERS_SHOWN])


def _plain(value: Any) -> Any:
    """Return JSON data: a whole fraction as an integer, any other as the nearest float, its exact text beside it."""
    if isinstance(value, Fraction):
        return value.numerator if value.denominator == 1 else float(value)
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)
