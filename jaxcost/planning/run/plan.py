"""A plan of a training run: the figures of its assumptions, checked two ways, with what they say and leave out."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any

from jaxcost.catalog import Manifest, load
from jaxcost.contracts.case import training
from jaxcost.contracts.errors import Problem, RejectedError
from jaxcost.planning.hardware import PEAK_TYPES, Device, PeakRate, device
from jaxcost.planning.run import budget, checkpoint, communication, cost, data, failures, memory, scaling, steps, work
from jaxcost.planning.run.batch import batch_problems, replicas
from jaxcost.planning.run.checks import Check, claim_checks, cross_checks, parse_claim
from jaxcost.planning.run.facts import GRAPH_OPTIONS, StageFacts, stage_facts, state_components, state_facts
from jaxcost.planning.run.inputs import SPECS, STAGED, RunInputs, Stage
from jaxcost.planning.run.sheet import Sheet, Unknown
from jaxcost.prediction.parameters import parameters as parameter_ledger
from jaxcost.prediction.program import program
from jaxcost.prediction.state import state as state_ledger

STATE_OPTIONS = ("precision", "optimizer", "frozen")
# The modules whose figures make a plan, in the order of the page.
SECTIONS = (work, budget, steps, failures, memory, checkpoint, communication, data, scaling, cost)


@dataclass(frozen=True)
class RunPlan:
    """A plan: its inputs, the model and device they name, and the sheet of figures over them."""

    inputs: RunInputs
    manifest: Manifest | None
    device: Device | None
    peak: PeakRate
    facts: dict[str, StageFacts]
    sheet: Sheet

    @cached_property
    def checks(self) -> list[Check]:
        """The plan two ways, for each stage."""
        return cross_checks(self.inputs, self.sheet)

    @cached_property
    def claims(self) -> list[Check]:
        """Figures found elsewhere against the plan's own."""
        return claim_checks(self.inputs, self.sheet)

    @property
    def target(self) -> str:
        """The figure that the plan is for.

        The end of a run whose tokens are given: `calendar_days`, or `healthy_days` where no calendar is known. Without
        tokens the run fills its budget, whatever the rate: `total_tokens`.
        """
        if self.inputs.tokens is None and not self.inputs.stages:
            return "total_tokens"
        return "calendar_days" if self.sheet.known("calendar_days") is not None else "healthy_days"

    def known(self, name: str, stage: Stage | str = "") -> Any:
        """Return a figure's value, None where it is unknown."""
        label = stage if isinstance(stage, str) else stage.name
        return self.sheet.known(name, label or self.inputs.parts[0].name)


def plan_run(inputs: RunInputs, manifest: Manifest | None = None, folder: Path | None = None) -> RunPlan:
    """Return the plan of a training run.

    Args:
        inputs: what is assumed.
        manifest: the model, where the caller has loaded it; else `inputs.model` is loaded.
        folder: where a relative path of a model begins.

    Raises:
        RejectedError: the model or the device is not known, or batch, mesh and model do not go together.
    """
    problems: list[Problem] = []
    if manifest is None and inputs.model is not None:
        try:
            manifest = load(inputs.model, folder=folder)
        except RejectedError as error:
            problems += error.problems
    found, peak = None, None
    try:
        found = device(inputs.device) if inputs.device is not None else None
        peak = _peak(inputs, found)
    except RejectedError as error:
        problems += error.problems
    for index, stage in enumerate(inputs.parts):
        path = f"stages.{index}." if inputs.stages else ""
        factors = {name: _whole(inputs, name, stage) for name in ("micro_batch", "seq", "accumulate")}
        problems += batch_problems(
            path, int(inputs.exact("devices") or 1), inputs.staged("mesh", stage),
            _whole(inputs, "data_parallel", stage), factors, _whole(inputs, "batch_tokens", stage),
        )  # fmt: skip
    if problems or peak is None:
        raise RejectedError(problems)
    architecture = manifest.architecture if manifest else None
    facts, state = {}, {}
    try:
        state = state_facts(inputs)
        for stage in inputs.parts:
            facts[stage.name] = stage_facts(inputs, stage, architecture, found)
    except RejectedError as error:
        raise RejectedError(Problem(f"case.{p.path}" if p.path in ("precision", "optimizer") else p.path, p.value,
                                    p.rule, p.remedy) for p in error.problems) from None  # fmt: skip
    given = _given(inputs, manifest, found, peak, state, facts)
    stages = {stage.name: _stage_values(inputs, stage, facts[stage.name]) for stage in inputs.parts}
    made = RunPlan(inputs, manifest, found, peak, facts, Sheet(given, stages))
    for label in inputs.claims:
        parse_claim(label, inputs)
    return made


def _whole(inputs: RunInputs, name: str, stage: Stage) -> int | None:
    value = inputs.exact(name, stage)
    return None if value is None else int(value)


def _peak(inputs: RunInputs, found: Device | None) -> PeakRate:
    """Return the dense peak of the declared precision: the device's own, or a declared one that it allows."""
    declared = inputs.exact("peak")
    if found is None:
        if inputs.dtype not in PEAK_TYPES:
            raise RejectedError(
                [Problem("dtype", inputs.dtype, "no precision with a peak", f"use {', '.join(PEAK_TYPES)}")]
            )
        return PeakRate("a device of that peak", PEAK_TYPES[inputs.dtype], "matrix", Fraction(declared or 0) * 10**12,
                        "declared by the caller")  # fmt: skip
    return found.peak(inputs.dtype) if declared is None else found.declared_peak(inputs.dtype, Fraction(declared))


def _given(
    inputs: RunInputs,
    manifest: Manifest | None,
    found: Device | None,
    peak: PeakRate,
    state: dict[str, Any],
    facts: dict[str, StageFacts],
) -> dict[str, Any]:
    """Return what the run's figures follow from, by name."""
    given: dict[str, Any] = {name: inputs.exact(name) for name in SPECS}
    choices = ("downtime", "mfu_window", "checkpoint", "interval_counts", "simulated_runs", "seed")
    given |= {name: getattr(inputs, name) for name in choices}
    given |= state | {"device_peak": peak, "device_memory_bytes": _memory(found, facts)}
    given |= {
        "ledger_state_bytes": None,
        "ledger_resume_bytes": None,
        "work": inputs.work or ("ledger" if manifest else "six_p"),
    }
    price = inputs.assumed("price")
    given |= {
        "price_low": None if price is None or price.low is None else Fraction(price.low),
        "price_high": None if price is None or price.high is None else Fraction(price.high),
    }
    link = found.link("node") if found is not None else None
    rate = link.per_direction_gb_per_s if link is not None else None
    given["node_bytes_per_s"] = None if rate is None else Fraction(str(rate)) * 10**9
    if manifest is not None:
        options = {name: value for name, value in (inputs.case or {}).items() if name in STATE_OPTIONS}
        built = program(training(manifest.architecture, batch=1, seq=1, **options))
        totals = parameter_ledger(built).totals
        whole = state_ledger(built).totals
        given["state_objects"] = [
            (row.object, row.value) for row in state_ledger(built).rows if "in_first_step" in row.fields["live_at"]
        ]
        given |= {"parameters": totals["unique"], "active": totals["active"], "ledger_state_bytes": whole["bytes"],
                  "ledger_resume_bytes": whole["checkpoint_bytes"]}  # fmt: skip
    else:
        given["active"] = given["active"] or given["parameters"]
        given["state_objects"] = state_components(inputs, given["parameters"])
    return given


def _memory(found: Device | None, facts: dict[str, StageFacts]) -> Any:
    """Return what a program may address of a device: the target's number, else the printed capacity."""
    if found is None or found.memory is None:
        return Unknown("the device's memory is not on record")
    if found.target is not None:
        from jaxcost.observation.targets import parse_target

        known = parse_target(found.target).device_memory_bytes
        if known is not None:
            return known
    return found.memory.capacity_bytes


def _stage_values(inputs: RunInputs, stage: Stage, facts: StageFacts) -> dict[str, Any]:
    """Return what a stage's figures follow from, by name."""
    values: dict[str, Any] = {name: inputs.exact(name, stage) for name in STAGED}
    values["data_parallel_degree"] = replicas(inputs.staged("mesh", stage), _whole(inputs, "data_parallel", stage))
    if values["data_parallel_degree"] is None:
        values["data_parallel_degree"] = Unknown("not given: mesh or data_parallel")
    values |= {"token_work": facts.token_work, "persistent": facts.persistent, "peak": facts.peak}
    values["transfers"] = facts.transfers
    reason = Unknown(str(facts.sends.get("reason") or facts.peak.get("reason") or "not predicted"))
    for name in ("inside", "between"):
        known = facts.sends.get(f"{name}_bytes")
        values[f"sends_{name}"] = reason if known is None else known
    return values


def graph_options(inputs: RunInputs) -> tuple[tuple[str, Any], ...]:
    """Return the options of the run that change the work of a token, as `token_work` takes them."""
    options = inputs.case or {}
    found = ((name, options[name]) for name in GRAPH_OPTIONS if name in options)
    return tuple((name, tuple(value) if isinstance(value, list) else value) for name, value in found)
