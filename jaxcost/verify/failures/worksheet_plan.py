"""A resource plan that is wrong about the run itself: its batch, its budget, its calendar and its price.

Rows `worksheet/...` are of the second document's closing list, rows `caveat/...` are warnings in passing. A mistake in
the inputs is refused; a figure found elsewhere is a claim, and a claim that is not the plan's figure is open.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

from jaxcost.catalog import load
from jaxcost.planning.run import RunPlan, plan_run, read_inputs
from jaxcost.planning.run.inputs import RunInputs
from jaxcost.planning.run.review import findings
from jaxcost.verify.failures.common import Failure, judged, rejected
from jaxcost.verify.failures.guards import Guard, passing_over

INPUTS = "planning.run, the record of a plan"
BATCH = "planning.run, the factors of a batch"
CLAIMS = "planning.run, a claim against the plan's figure"
REVIEW = "planning.run, what stands against signing"
CLAIMED = Guard("jaxcost.planning.run.checks:Check.status", passing_over("open"))
BOUNDS = "jaxcost.planning.run.assumed:Spec.problem"
FACTORS = "jaxcost.planning.run.plan:batch_problems"
MODEL = "llama-3.2-1b"

SCENARIO: dict[str, Any] = {
    "devices": 256, "device": "h100", "days": 90, "mfu": "0.40", "reserve": "0.25", "parameters": 30 * 10**9,
    "tokens": "3e12", "micro_batch": 1, "seq": 8192, "accumulate": 16, "mesh": {"data": 4, "fsdp": 8, "tensor": 8},
    "checkpoint_pause": 60, "checkpoint_interval": 1800, "job_mtbf_hours": 6, "restart_seconds": 600,
    "checkpoint_bandwidth": 20, "case": {"precision": "bf16_master_adam"}, "checkpoint": "full",
}  # fmt: skip
SHARDED: dict[str, Any] = {
    "devices": 8, "device": "h100", "days": 30, "mfu": "0.40", "reserve": "0.25", "model": MODEL, "tokens": "1e9",
    "micro_batch": 1, "seq": 4096, "accumulate": 1, "mesh": {"data": 2, "fsdp": 4}, "case": {"remat": "block"},
}  # fmt: skip
POSITIONS = 8192 * 16 * 32


def _inputs(base: dict[str, Any] = SCENARIO, **changes: Any) -> RunInputs:
    return read_inputs({name: value for name, value in {**base, **changes}.items() if value is not None})


def _plan(base: dict[str, Any] = SCENARIO, **changes: Any) -> RunPlan:
    return plan_run(_inputs(base, **changes), load(MODEL) if base is SHARDED else None)


@cache
def _figure(name: str, sharded: bool = False) -> Any:
    return _plan(SHARDED if sharded else SCENARIO).known(name)


def _claim(figure: str, value: Any, base: dict[str, Any] = SCENARIO, **changes: Any) -> Callable[[], str]:
    """The status of a figure that was found elsewhere; its value is asked for when the row is executed."""
    return lambda: _plan(base, **changes, claims={figure: value() if callable(value) else value}).claims[0].status


def _found(kind: str, base: dict[str, Any] = SCENARIO, **changes: Any) -> Callable[[], str]:
    """Whether a plan is noted to have something against it."""
    return lambda: "noted" if any(item["kind"] == kind for item in findings(_plan(base, **changes))) else "signed"


def _exact(name: str, sharded: bool = False) -> Callable[[], str]:
    return lambda: str(int(_figure(name, sharded)))


def _share(name: str, part: str) -> Callable[[], str]:
    """One figure times another, to five digits."""
    return lambda: format(float(_figure(name)) * float(_figure(part)), ".5g")


def failures() -> list[Failure]:
    """Return the rows of the worksheet that are about the run as a whole."""
    return [*_worksheet(), *_caveats()]


def _worksheet() -> list[Failure]:
    def claimed(row: str, fault: str, symptom: str, *, sound: Any, faulty: Any) -> Failure:
        return judged(
            row, fault, symptom, CLAIMS, sound=sound, faulty=faulty, passes=("exact", "bounded"), wanted="open",
            guard=CLAIMED,
        )  # fmt: skip

    return [
        claimed(
            "worksheet/2c",
            "a throughput is claimed with the utilisation in it twice",
            "the run lasts 1 / MFU times as long",
            sound=_claim("tokens_per_s", lambda: format(float(_figure("tokens_per_s")), ".6g")),
            faulty=_claim("tokens_per_s", lambda: format(0.4 * float(_figure("tokens_per_s")), ".6g")),
        ),
        rejected(
            "worksheet/3c",
            "total and active parameters are exchanged in a plan",
            "state is sized by what a token uses, work by what is stored",
            INPUTS,
            sound=lambda: _inputs(active=3 * 10**9),
            faulty=lambda: _inputs(parameters=3 * 10**9, active=30 * 10**9),
            guard="jaxcost.planning.run.inputs:RunInputs._model_problems",
        ),
        claimed(
            "worksheet/3d",
            "a checkpoint is sized by the active parameters",
            "experts that no token of a batch used are lost at a restart",
            sound=_claim("checkpoint_bytes", 16 * 30 * 10**9, active=3 * 10**9),
            faulty=_claim("checkpoint_bytes", 16 * 3 * 10**9, active=3 * 10**9),
        ),
        rejected(
            "worksheet/4",
            "the batch is multiplied by the ranks of tensor",
            "tokens and steps are wrong by the tensor degree",
            BATCH,
            sound=lambda: _plan(batch_tokens=POSITIONS),
            faulty=lambda: _plan(batch_tokens=POSITIONS * 8),
            guard=FACTORS,
        ),
        rejected(
            "worksheet/4b",
            "the number of devices is taken for the data-parallel degree",
            "ranks that share a replica's sequences count as replicas",
            BATCH,
            sound=lambda: _plan(data_parallel=32),
            faulty=lambda: _plan(data_parallel=256),
            guard=FACTORS,
        ),
        rejected(
            "worksheet/5",
            "the accumulation is missing from the batch",
            "optimizer steps are too many by the number of microbatches",
            BATCH,
            sound=lambda: _plan(batch_tokens=POSITIONS),
            faulty=lambda: _plan(batch_tokens=POSITIONS // 16),
            guard=FACTORS,
        ),
        claimed(
            "worksheet/6b",
            "the work of a token at a context of 65,536 is claimed to be 6P",
            "the run is planned for a fraction of its arithmetic",
            sound=_claim("flops_per_token", _context_work, SHARDED, seq=65536),
            faulty=_claim("flops_per_token", lambda: 6 * int(_plan(SHARDED).sheet.given["active"]), SHARDED, seq=65536),
        ),
        judged(
            "worksheet/6c",
            "a plan of a model is computed with 6PT though its ledger is there",
            "nothing says what attention adds at this context",
            REVIEW,
            sound=_found("6P is not exact", SHARDED),
            faulty=_found("6P is not exact", SHARDED, work="six_p"),
            passes="signed",
            wanted="noted",
            guard="jaxcost.planning.run.review:_stages",
        ),
        claimed(
            "worksheet/8b",
            "a device is claimed to hold all state divided by all devices",
            "replicas of the data axis and whole vectors are missing",
            sound=_claim("state_bytes_per_device", _exact("state_bytes_per_device", True), SHARDED),
            faulty=_claim("state_bytes_per_device", _exact("perfect_shard_bytes", True), SHARDED),
        ),
        claimed(
            "worksheet/10d",
            "a checkpoint of 480 GB is written down as GiB are counted",
            "7% of the storage are missing",
            sound=_claim("checkpoint_bytes", "480e9"),
            faulty=_claim("checkpoint_bytes", "447e9"),
        ),
        claimed(
            "worksheet/11c",
            "healthy steps times their duration are called the calendar",
            "pauses, rollback and restarts take no time",
            sound=_claim("calendar_days", lambda: format(_figure("calendar_days"), ".5g")),
            faulty=_claim("calendar_days", _share("calendar_days", "productive_fraction")),
        ),
        rejected(
            "worksheet/12",
            "the entire allocation is planned for the main run",
            "nothing is left for evaluation, failures and finishing",
            INPUTS,
            sound=_inputs,
            faulty=lambda: _inputs(reserve=0),
            guard=BOUNDS,
        ),
        claimed(
            "worksheet/12b",
            "the main run is claimed to have the whole budget",
            "the reserve is spent before it is needed",
            sound=_claim("main_run_flops", lambda: format(float(_figure("main_run_flops")), ".5g")),
            faulty=_claim("main_run_flops", lambda: format(float(_figure("budget_flops")), ".5g")),
        ),
        rejected(
            "worksheet/13",
            "a price has no date",
            "a rate of another year is quoted as today's",
            INPUTS,
            sound=lambda: _inputs(price={"value": 6, "date": "2026-10"}, currency="EUR"),
            faulty=lambda: _inputs(price=6, currency="EUR"),
            guard="jaxcost.planning.run.inputs:RunInputs._price_problems",
        ),
    ]


def _context_work() -> int:
    return int(_plan(SHARDED, seq=65536).known("flops_per_token"))


def _caveats() -> list[Failure]:
    def noted(row: str, fault: str, symptom: str, *, sound: Any, faulty: Any, guard: str) -> Failure:
        path = f"jaxcost.planning.run.review:{guard}"
        return judged(
            row, fault, symptom, REVIEW, sound=sound, faulty=faulty, passes="signed", wanted="noted", guard=path
        )

    stages: list[dict[str, Any]] = [
        {"name": "short", "tokens": "1e12"},
        {"name": "long", "tokens": "1e10", "seq": 65536},
    ]
    return [
        rejected(
            "caveat/60",
            "a utilisation over the calendar is discounted for downtime again",
            "the same days are lost twice",
            INPUTS,
            sound=lambda: _inputs(mfu_window="calendar"),
            faulty=lambda: _inputs(mfu_window="calendar", downtime="apart"),
            guard="jaxcost.planning.run.inputs:RunInputs._checkpoint_problems",
        ),
        noted(
            "caveat/61",
            "the transfer of a checkpoint is longer than the pause that is planned for it",
            "storage time is hidden by nothing",
            sound=_found("pause below transfer"),
            faulty=_found("pause below transfer", checkpoint_pause=10),
            guard="_restarts",
        ),
        noted(
            "caveat/62",
            "one utilisation is used for stages of different context and batch",
            "a short-context measurement stands for a long-context stage",
            sound=_found("utilisation reused", tokens=None, stages=[{**stage, "mfu": "0.4"} for stage in stages]),
            faulty=_found("utilisation reused", tokens=None, stages=stages),
            guard="_stages",
        ),
        noted(
            "caveat/63",
            "a duration of healthy steps is signed without any account of failures",
            "the end of the run is a lower bound that looks like a date",
            sound=_found("no calendar"),
            faulty=_found("no calendar", job_mtbf_hours=None),
            guard="_budget",
        ),
        noted(
            "caveat/64",
            "more work is planned than the reserve leaves",
            "the run ends when the allocation does",
            sound=_found("over budget"),
            faulty=_found("over budget", tokens="3.5e12"),
            guard="_budget",
        ),
        judged(
            "caveat/65",
            "a timed step is slower than the plan's, and the plan is kept",
            "the two cross-checks disagree and nobody sees it",
            "planning.run, the step as timed",
            sound=lambda: _plan(measured_step="7.452").checks[1].status,
            faulty=lambda: _plan(measured_step="9.9").checks[1].status,
            passes=("exact", "bounded"),
            wanted="open",
            guard=CLAIMED,
        ),
        rejected(
            "caveat/66",
            "an assumption is called measured, with no artefact",
            "an assigned number passes for evidence",
            INPUTS,
            sound=lambda: _inputs(
                mfu={"value": "0.4", "evidence": "locally_measured", "source": "run 12, steps 100-600"}
            ),
            faulty=lambda: _inputs(mfu={"value": "0.4", "evidence": "locally_measured"}),
            guard="jaxcost.planning.run.assumed:Assumed.problems",
        ),
        judged(
            "caveat/68",
            "runs of different token counts are compared as a speedup of fixed work",
            "a shorter run passes for a faster one",
            "planning.run, scaling against an earlier run",
            sound=lambda: _speedup("3e12"),
            faulty=lambda: _speedup("1e12"),
            passes="a speedup",
            wanted="none",
            guard=Guard("jaxcost.planning.run.sheet:FIGURES.measured_speedup", _any_tokens),
        ),
        judged(
            "caveat/69",
            "padding is counted as useful tokens",
            "the run takes fewer steps than its tokens need",
            CLAIMS,
            sound=_claim("optimizer_steps", 953675, padding="0.25"),
            faulty=_claim("optimizer_steps", 715256, padding="0.25"),
            passes=("exact", "bounded"),
            wanted="open",
            guard=CLAIMED,
        ),
        judged(
            "caveat/67",
            "a run is signed as fitting because its state, divided by all devices, fits",
            "activations, gathered weights and buffers have no room",
            "planning.run, whether a step fits",
            sound=lambda: str(_plan(SHARDED).known("fits")),
            faulty=lambda: str(_plan(SCENARIO).known("fits")),
            passes="yes",
            wanted="None",
            guard=Guard("jaxcost.planning.run.sheet:FIGURES.fits", _bound_alone),
        ),
    ]


def _speedup(tokens: str) -> str:
    return "none" if _plan(baseline_tokens=tokens, baseline_days=300).known("measured_speedup") is None else "a speedup"


def _any_tokens(original: Any) -> Any:
    """A removal: days are compared, whatever was trained in them."""

    def measured_speedup(baseline_days: Any, finish_days: Any) -> float:
        """Days over days."""
        return float(baseline_days) / float(finish_days)

    return replace(original, compute=measured_speedup)


def _bound_alone(original: Any) -> Any:
    """A removal: what a device holds at least is all that is asked for."""

    def fits(memory_limit_bytes: Any, peak_lower_bytes: Any) -> str:
        """Whether the lower end fits."""
        return "no" if peak_lower_bytes > memory_limit_bytes else "yes"

    return replace(original, compute=fits)
