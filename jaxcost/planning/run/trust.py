"""Which assumption to trust least: the one whose own range moves the end of the run most. And the test for it.

A run whose tokens are not given ends with its budget; there the tokens are what moves.

Every assumption that states a range is put at its two ends, one at a time, and the plan is computed again. Where none
states a range nothing can be ranked: the answer says so, and lists what one percent of each moves.
"""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from typing import Any

from jaxcost.contracts.errors import RejectedError
from jaxcost.planning.run.assumed import Assumed
from jaxcost.planning.run.inputs import SPECS, STAGED, RunInputs
from jaxcost.planning.run.plan import RunPlan, plan_run
from jaxcost.planning.run.sheet import FIGURES

PERCENT = Fraction(1, 100)
NO_RANGE = "no assumption states a range, so none can be called least trustworthy: give low..value..high"


def trust(plan: RunPlan) -> dict[str, Any]:
    """Return the assumptions by how far they move what the plan is for, the least trustworthy first.

    `target` names the figure; each row has it at the low and high value, the `spread` between them, and `one_percent`,
    by how much it moves when the value alone rises by one percent.
    """
    target = plan.target
    base = plan.known(target)
    rows: list[dict[str, Any]] = []
    for path, assumption in _assumptions(plan.inputs):
        name = path.rpartition(".")[2]
        spec = SPECS[name]
        ends = {
            side: None if value is None else _moved(plan, path, value, target)
            for side, value in (("low", assumption.low), ("high", assumption.high))
        }
        nudge = None if spec.whole else _moved(plan, path, assumption.exact * (1 + PERCENT), target)
        known = [value for value in (*ends.values(), base) if value is not None]
        ranged = assumption.low is not None
        rows.append({
            "name": path, "low": ends["low"], "high": ends["high"],
            "spread": float(max(known) - min(known)) if ranged and None not in ends.values() and known else None,
            "one_percent": None if nudge is None or base is None else float(nudge - base),
            "evidence": assumption.evidence, "test": assumption.test or spec.test,
        })  # fmt: skip
    ranked = sorted((row for row in rows if row["spread"] is not None), key=lambda row: -row["spread"])
    rest = [row for row in rows if row["spread"] is None]
    rest.sort(key=lambda row: -abs(row["one_percent"] or 0))
    least = ranked[0] if ranked and ranked[0]["spread"] else None
    found = {
        "target": target, "unit": FIGURES[target].unit, "value": base, "rows": [*ranked, *rest],
        "least": least["name"] if least else None, "test": least["test"] if least else None,
    }  # fmt: skip
    if least is None:
        found["reason"] = NO_RANGE if not ranked else "no stated range moves it"
    return found


def _assumptions(inputs: RunInputs) -> list[tuple[str, Assumed]]:
    """Return every assumption that is given, by its path; a stage's own under `stages.NAME.`."""
    found = [(name, getattr(inputs, name)) for name in SPECS if getattr(inputs, name, None) is not None]
    for stage in inputs.stages:
        own = [(name, getattr(stage, name)) for name in STAGED if getattr(stage, name) is not None]
        found += [(f"stages.{stage.name}.{name}", value) for name, value in own]
    return found


def _moved(plan: RunPlan, path: str, value: Any, target: str) -> Any:
    """Return the target with one assumption changed; None where the plan is then refused or unknown."""
    try:
        inputs = _with(plan.inputs, path, value)
        return plan_run(inputs, plan.manifest).known(target)
    except RejectedError:
        return None


def _with(inputs: RunInputs, path: str, value: Any) -> RunInputs:
    """Return the inputs with the value of one assumption replaced, and its range taken away."""
    number = Decimal(str(value)) if not isinstance(value, Fraction) else Decimal(format(float(value), ".12g"))
    head, _, name = path.rpartition(".")
    if not head:
        return inputs.replaced(**{name: getattr(inputs, name).replaced(value=number, low=None, high=None)})
    stages = tuple(
        stage.replaced(**{name: getattr(stage, name).replaced(value=number, low=None, high=None)})
        if stage.name == head.removeprefix("stages.")
        else stage
        for stage in inputs.stages
    )
    return inputs.replaced(stages=stages)
