"""A training run as a plan: what it takes, how long, whether it fits, what it costs, and what to test first.

    >>> from jaxcost.planning.run import plan_run, read_inputs
    >>> plan = plan_run(read_inputs({"devices": 256, "device": "h100", "days": 90, "mfu": 0.40, "reserve": 0.25,
    ...                              "parameters": 30_000_000_000}))
    >>> plan.known("accelerator_hours")
    Fraction(552960, 1)

Which file to open: `inputs` (what is assumed), then a section (`budget`, `work`, `batch`, `steps`, `failures`,
`checkpoint`, `memory`, `communication`, `data`, `scaling`, `cost`), each a list of figures as `sheet` declares them;
`facts` (what the ledgers say), `checks`, `review`, `trust`, `change`, `document`.
"""

from __future__ import annotations

from jaxcost.planning.run.inputs import RunInputs, read_inputs
from jaxcost.planning.run.plan import RunPlan, plan_run

__all__ = ["RunInputs", "RunPlan", "plan_run", "read_inputs"]
