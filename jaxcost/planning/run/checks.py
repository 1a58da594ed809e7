"""The plan checked two ways, and figures found elsewhere checked against it.

A difference closes only through an explanation with a closed form of its own: rounding up to whole steps. What is left
stays open, beside the usual mistakes that would account for the ratio. A mistake named there explains nothing; it says
where to look.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from typing import Any

from jaxcost.contracts.errors import reject
from jaxcost.planning.run.assumed import Assumed
from jaxcost.planning.run.batch import MODEL_AXES
from jaxcost.planning.run.inputs import RunInputs, Stage
from jaxcost.planning.run.sheet import FIGURES, Sheet, Unknown
from jaxcost.planning.utilisation import mfu

# How far the mean of the simulated runs may lie from the formula, in its standard errors.
STANDARD_ERRORS = 4
LOOK_AT = (
    "what a token is: useful, or padding counted", "padding and masking", "accumulation",
    "stages with another context, batch or utilisation", "rounding", "what the timing window contains",
)  # fmt: skip


@dataclass(frozen=True)
class Check:
    """Two routes to one number. `explanations` are (amount, reason, evidence), signed like the residual."""

    name: str
    stage: str
    unit: str
    prediction: Any
    observation: Any
    prediction_of: str
    observation_of: str
    explanations: tuple[tuple[Any, str, str], ...] = ()
    causes: tuple[str, ...] = ()
    rounded: bool = False
    reason: str = ""
    look_at: tuple[str, ...] = field(default=())

    @property
    def residual(self) -> Any:
        """Observation less prediction; None where a side is unknown."""
        if self.prediction is None or self.observation is None:
            return None
        return Fraction(self.observation) - Fraction(self.prediction)

    @property
    def status(self) -> str:
        """`exact`, `explained`, `bounded` (within the digits given or an error), `open`, `unmeasured`."""
        if self.residual is None:
            return "unmeasured"
        if self.residual == 0:
            return "exact"
        if self.explanations and sum(amount for amount, _, _ in self.explanations) == self.residual:
            return "explained"
        return "bounded" if self.rounded else "open"


def cross_checks(inputs: RunInputs, sheet: Sheet) -> list[Check]:
    """Return, for each stage, arithmetic over rate against steps times step; and both against a timed step."""
    found = []
    for stage in inputs.parts:
        found.append(_two_routes(sheet, stage))
        measured = inputs.assumed("measured_step", stage)
        if measured is not None:
            found.append(_timed(inputs, sheet, stage, measured))
    played = _played(sheet)
    return found if played is None else [*found, played]


def _two_routes(sheet: Sheet, stage: Stage) -> Check:
    names = ("healthy_seconds", "healthy_seconds_by_steps")
    work, steps = (sheet.value(name, stage.name) for name in names)
    unknown = next((side.reason for side in (work, steps) if isinstance(side, Unknown)), "")
    explanations: tuple[tuple[Any, str, str], ...] = ()
    if not unknown:
        value = {
            name: sheet.value(name, stage.name)
            for name in ("optimizer_steps", "step_positions", "processed_tokens", "flops_per_token",
                         "useful_stage_flops_per_s")
        }  # fmt: skip
        extra = value["optimizer_steps"] * Fraction(value["step_positions"]) - value["processed_tokens"]
        if extra:
            amount = extra * value["flops_per_token"] / value["useful_stage_flops_per_s"]
            evidence = f"{float(extra):,.6g} positions of the last step are beyond the stage's tokens"
            explanations = ((amount, "rounding up to whole steps", evidence),)
    return Check(
        "healthy duration two ways", stage.name, "s", None if isinstance(work, Unknown) else work,
        None if isinstance(steps, Unknown) else steps, "all arithmetic / useful rate", "whole steps x one step",
        explanations, reason=unknown, look_at=LOOK_AT,
    )  # fmt: skip


def _played(sheet: Sheet) -> Check | None:
    """Return the productive fraction by formula against the simulation; None where failures are not described."""
    formula, mean = sheet.known("productive_fraction"), sheet.known("simulated_productive_fraction")
    if formula is None or mean is None:
        return None
    error = sheet.known("simulated_standard_error")
    inside = abs(mean - formula) <= STANDARD_ERRORS * error
    text = f"simulated, standard error {error:.3g}: {STANDARD_ERRORS} of them are allowed"
    return Check(
        "productive fraction two ways", "", "ratio", formula, mean, "Daly's formula", text, rounded=inside,
        look_at=("a run of few intervals, whose last one is short", "a restart longer than the time between failures"),
    )  # fmt: skip


def _timed(inputs: RunInputs, sheet: Sheet, stage: Stage, measured: Assumed) -> Check:
    planned = sheet.known("step_seconds", stage.name)
    if planned is None:
        return Check("step as timed", stage.name, "s", None, measured.exact, "the plan's step", measured.source,
                     reason=sheet.value("step_seconds", stage.name).reason)  # fmt: skip
    causes = list(usual_mistakes(inputs, sheet, stage, measured.value, planned))
    flops = sheet.value("step_positions", stage.name) * sheet.value("flops_per_token", stage.name)
    implied = mfu(flops, measured.exact, int(sheet.given["devices"]), sheet.given["device_peak"])
    causes.insert(0, f"the timed step would be {float(100 * implied.value):.4g}% of peak, the plan says "
                     f"{float(100 * (inputs.exact('mfu', stage) or 0)):.4g}%")  # fmt: skip
    causes += [cause.text for cause in implied.causes]
    return Check(
        "step as timed", stage.name, "s", planned, measured.exact, "the plan's step", measured.source or "as given",
        causes=tuple(causes), rounded=agrees(measured.value, planned), look_at=LOOK_AT,
    )  # fmt: skip


def claim_checks(inputs: RunInputs, sheet: Sheet) -> list[Check]:
    """Return the figures that `claims` found elsewhere, each against the plan's own."""
    found = []
    for label, claim in inputs.claims.items():
        name, stage = parse_claim(label, inputs)
        value = sheet.value(name, stage.name)
        unit = FIGURES[name].unit
        shown = stage.name if FIGURES[name].staged else ""
        if isinstance(value, Unknown) or not isinstance(value, int | float | Fraction):
            reason = value.reason if isinstance(value, Unknown) else "not a number"
            found.append(Check(name, shown, unit, None, claim.exact, "the plan", claim.source, reason=reason))
            continue
        right = agrees(claim.value, value)
        causes = () if right else tuple(usual_mistakes(inputs, sheet, stage, claim.value, value))
        found.append(
            Check(
                name,
                shown,
                unit,
                value,
                claim.exact,
                "the plan",
                claim.source or "claimed",
                causes=causes,
                rounded=right,
            )
        )
    return found


def parse_claim(label: str, inputs: RunInputs) -> tuple[str, Stage]:
    """Return the figure and the stage of `figure` or `stage:figure`.

    Raises:
        RejectedError: there is no such figure, or no such stage.
    """
    stage, _, name = label.rpartition(":")
    stages = {item.name: item for item in inputs.parts}
    if name not in FIGURES:
        raise reject(f"claims.{label}", label, "not a figure of a plan", f"the figures are {', '.join(FIGURES)}")
    if stage and stage not in stages:
        raise reject(f"claims.{label}", stage, "not a stage of this plan", f"the stages are {', '.join(stages)}")
    if FIGURES[name].staged and not stage and len(stages) > 1:
        raise reject(f"claims.{label}", name, "a figure of each stage", f"write STAGE:{name}, with {', '.join(stages)}")
    return name, stages[stage] if stage else next(iter(stages.values()))


def agrees(claim: Decimal, value: Any) -> bool:
    """Return whether a claim is the value to the digits that it gives: 67.5 agrees with 67.474, 67.4 does not."""
    exponent = claim.as_tuple().exponent
    quantum = Fraction(10) ** exponent if isinstance(exponent, int) else Fraction(0)
    return abs(Fraction(claim) - Fraction(value)) <= quantum / 2


def usual_mistakes(inputs: RunInputs, sheet: Sheet, stage: Stage, claim: Decimal, value: Any) -> Iterator[str]:
    """Yield the mistakes whose factor turns the plan's value into the claim, to the digits that the claim gives."""
    if not value:
        return
    for factor, text in _factors(inputs, sheet, stage):
        if factor not in (None, 0, 1) and agrees(claim, Fraction(value) * Fraction(factor)):
            yield text


def _factors(inputs: RunInputs, sheet: Sheet, stage: Stage) -> Iterator[tuple[Any, str]]:
    mesh = inputs.staged("mesh", stage) or {}
    every = Fraction(1)
    for axis in MODEL_AXES:
        size = mesh.get(axis, 1)
        every *= size
        yield size, f"multiplied by the {size} ranks of {axis}, which share the sequences of a replica"
    yield every, "multiplied by all ranks that share the sequences of a replica"
    group = sheet.known("devices_per_replica", stage.name)
    yield group, "multiplied by the devices of a replica, which share its sequences"
    accumulate = inputs.exact("accumulate", stage)
    if accumulate:
        yield Fraction(1, int(accumulate)), "without the accumulation over microbatches"
        yield accumulate, "the accumulation counted twice"
    utilisation = inputs.exact("mfu", stage)
    yield utilisation, "the utilisation applied twice"
    yield 1 / Fraction(utilisation or 1), "the utilisation left out, or applied twice"
    yield 2, "a peak with structured sparsity, or an FMA counted as one FLOP"
    yield Fraction(1, 2), "a peak with structured sparsity, or an FMA counted as one FLOP"
    for text, ratio in (("a recomputation of 8/6 charged to a rate that contains it", Fraction(4, 3)),):
        yield ratio, text
        yield 1 / ratio, text
    again = sheet.known("executed_over_model", stage.name)
    yield again, "recomputation charged to a rate of useful FLOPs, which contains it"
    active, total = sheet.given["active"], sheet.given["parameters"]
    if active and total:
        yield Fraction(total, active), "total parameters where the active ones belong"
        yield Fraction(active, total), "active parameters where the total belongs"
    six, ledger = (sheet.known(f"{name}_flops_per_token", stage.name) for name in ("six_p", "ledger"))
    if six and ledger:
        yield six / ledger, "6PT taken as exact at this context"
        yield ledger / six, "6PT taken as exact at this context"
    yield Fraction(2**30, 10**9), "GB and GiB mixed"
    yield Fraction(10**9, 2**30), "GB and GiB mixed"
    state, divided = sheet.known("state_bytes_per_device", stage.name), sheet.known("perfect_shard_bytes")
    if state and divided:
        yield divided / state, "every component divided by every device"
    lasting = sheet.known("productive_fraction")
    if lasting:
        yield lasting, "healthy time called calendar time: pauses, rollback and restarts are missing"
        yield 1 / Fraction(lasting), "downtime charged twice"
    reserve, padding = sheet.given["reserve"], inputs.exact("padding", stage)
    yield 1 / Fraction(1 - reserve), "the reserve is missing: the entire allocation spent on the main run"
    yield 1 - reserve, "the reserve taken twice"
    yield 1 - Fraction(padding or 0), "padding counted as useful, or the reverse"
    yield 1 / Fraction(1 - (padding or 0)), "padding counted as useful, or the reverse"
    devices = sheet.given["devices"]
    yield devices, f"multiplied by the {devices} devices once too often"
    yield Fraction(1, devices), f"one of {devices} devices taken for all of them"
