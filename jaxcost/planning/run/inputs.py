"""What a plan of a training run assumes: one strict record, every number of it an `Assumed` value.

A number that is not given stays unknown, and so does what follows from it; the few defaults are in `DEFAULTS` and are
shown like any other assumption. `Stage` may replace, for a part of the tokens, what the run declares once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Annotated, Any, Literal

from pydantic import Field

from jaxcost.contracts.case import OPTION_NAMES
from jaxcost.contracts.errors import Problem
from jaxcost.contracts.execution import MESH_AXES
from jaxcost.contracts.record import Name, Record, Size, as_table, outside_digest
from jaxcost.planning.run.assumed import Assumed, Spec

# What an accelerator-hour may or may not pay for; a plan says which, and the rest is excluded by name.
BOUNDARY = (
    "accelerators", "hosts", "network", "storage", "support", "evaluation", "idle allocation", "failed runs",
    "engineering", "power", "cooling", "facilities", "operations",
)  # fmt: skip
SPECS: dict[str, Spec] = {
    "devices": Spec("devices", "Accelerators of the allocation.", "the provider's written reservation", whole=True,
                    most=10**7),
    "days": Spec("days", "Length of the allocation.", "the provider's written reservation", most=10**5),
    "peak": Spec("TFLOP/s", "Dense peak of one device; without it the one on record for --device and --dtype.",
                 "a large matmul of the run's own shapes, timed alone"),
    "mfu": Spec("ratio", "Model FLOPs over peak, in healthy steps.",
                "a rehearsal of the full stack: some hundred healthy steps at this mesh, batch and context, timed",
                most=1, why="a share of the peak; above it units, precision, sparsity or the device count are wrong"),
    "reserve": Spec("ratio", "Share of the allocation kept from the main run.",
                    "the hours that integration, evaluation and failures took in the last run", below=1,
                    why="the main run never has the entire allocation: evaluation, failures and finishing take a part"),
    "parameters": Spec("scalars", "Stored parameters, all experts counted.", "the model's manifest", whole=True),
    "active": Spec("scalars", "Parameters that one token uses; of a dense model all.", "the model's manifest",
                   whole=True),
    "tokens": Spec("tokens", "Useful tokens to train on, padding not counted; without it what the budget affords.",
                   "a count of the tokenised corpus after filtering and deduplication"),
    "seq": Spec("tokens", "Context: positions of one sequence.", "the data loader's packed length", whole=True),
    "micro_batch": Spec("sequences", "Sequences of one microbatch on one data-parallel replica.",
                        "the largest that fits, compiled for the target", whole=True),
    "accumulate": Spec("microbatches", "Microbatches of one optimizer step.", "the launcher's configuration",
                       whole=True),
    "batch_tokens": Spec("tokens", "Positions of one optimizer step over all replicas; with its factors it must be "
                         "their product.", "the launcher's configuration", whole=True),
    "data_parallel": Spec("replicas", "Replicas with data of their own; with a mesh it must be data x fsdp.",
                          "the launcher's configuration", whole=True),
    "padding": Spec("ratio", "Share of positions that hold padding.", "a count over some thousand packed batches",
                    above=None, least=0, below=1),
    "masked": Spec("ratio", "Share of useful tokens that no loss is taken on.",
                   "a count over some thousand packed batches", above=None, least=0, below=1),
    "measured_step": Spec("s", "A healthy step as timed; the plan is compared with it, not fitted to it.",
                          "some hundred steps at this mesh, batch and context, each waited for"),
    "memory_fraction": Spec("ratio", "Share of device memory that the step may fill.",
                            "allocated and reserved peaks of a complete step on the device", most=1),
    "checkpoint_bandwidth": Spec("GB/s", "Aggregate write bandwidth of the checkpoint store, 10^9 bytes a second.",
                                 "a checkpoint of the full size, written from all hosts at once"),
    "checkpoint_pause": Spec("s", "Pause of training for one checkpoint.",
                             "the pause of a full-size checkpoint in a rehearsal, with synchronisation and metadata"),
    "checkpoint_interval": Spec("s", "Time from one checkpoint to the next; --interval-counts says which.",
                                "the launcher's configuration"),
    "kept": Spec("checkpoints", "Checkpoints kept at a time.", "the retention policy", whole=True),
    "copies": Spec("copies", "Stored copies of each checkpoint.", "the store's replication policy", whole=True),
    "job_mtbf_hours": Spec("h", "Mean time between interruptions of the job.",
                           "interruptions over job-hours in the logs of a run of this size"),
    "device_mtbf_hours": Spec("h", "Mean time between failures of one device; the job's is this over the devices.",
                              "failures over device-hours in the fleet's logs, correlated ones counted once"),
    "restart_seconds": Spec("s", "From a failure to the first step after it: detection, restore, reconfiguration.",
                            "an injected failure in a rehearsal, timed to the first accepted step", above=None,
                            least=0),
    "token_bytes": Spec("bytes", "Stored bytes of one token id.", "the size of a tokenised shard over its tokens"),
    "read_days": Spec("days", "Days over which the data is read; without it those of healthy steps.",
                      "the schedule of the run"),
    "loader_seconds": Spec("s", "From a request of one batch to its arrival at the devices.",
                           "p99 of the loader under the run's own request rate"),
    "price": Spec("currency per accelerator-hour", "Price, with its date.", "a written offer with a date"),
    "baseline_devices": Spec("devices", "Devices of the run that scaling is compared with.", "the earlier run's record",
                             whole=True),
    "baseline_tokens": Spec("tokens", "Useful tokens of that run.", "the earlier run's record"),
    "baseline_days": Spec("days", "Days of that run, by the measure of this one's end.", "the earlier run's record"),
    "serial_fraction": Spec("ratio", "Share of the baseline's time that more devices do not shorten.",
                            "the same step timed at two or more device counts", above=None, least=0, below=1),
    "slow_probability": Spec("ratio", "Probability that one rank is slow in one step.",
                             "step times by rank over some thousand steps", above=None, least=0, below=1),
    "slow_factor": Spec("ratio", "Duration of a step with a slow rank over one without.",
                        "step times by rank over some thousand steps", above=None, least=1),
}  # fmt: skip
# What a plan takes where nothing is said; shown among the assumptions, marked as defaults.
DEFAULTS: Mapping[str, str] = {
    "padding": "0", "masked": "0", "token_bytes": "4", "memory_fraction": "0.75", "copies": "1", "accumulate": "1",
}  # fmt: skip
STAGED = (
    "tokens", "seq", "micro_batch", "accumulate", "batch_tokens", "data_parallel", "padding", "masked", "mfu",
    "measured_step",
)  # fmt: skip
REQUIRED = ("devices", "days", "mfu", "reserve")
CASE_OPTIONS = tuple(name for name in OPTION_NAMES if name not in ("phase", "batch", "seq", "accumulate", "mesh"))
# What a plan without a model can use of the options of a case.
STATE_OPTIONS = ("precision", "optimizer")

Mesh = dict[str, Size]


class _Staged(Record):
    """What a run declares once and a stage may replace."""

    tokens: Assumed | None = None
    seq: Assumed | None = None
    micro_batch: Assumed | None = None
    accumulate: Assumed | None = None
    batch_tokens: Assumed | None = None
    data_parallel: Assumed | None = None
    padding: Assumed | None = None
    masked: Assumed | None = None
    mfu: Assumed | None = None
    measured_step: Assumed | None = None
    mesh: Mesh | None = None
    case: dict[str, Any] | None = None

    def _staged_problems(self) -> Iterable[Problem]:
        for axis in self.mesh or {}:
            if axis not in MESH_AXES:
                yield Problem(f"mesh.{axis}", axis, "not an axis of a mesh", f"the axes are {', '.join(MESH_AXES)}")
        for name, value in (self.case or {}).items():
            if name not in CASE_OPTIONS:
                remedy = f"a plan sets phase, batch, seq, accumulate and mesh; the others are {', '.join(CASE_OPTIONS)}"
                yield Problem(f"case.{name}", value, "not an option of a case that a plan leaves open", remedy)
        for name in type(self).model_fields:
            found = getattr(self, name)
            if isinstance(found, Assumed):
                yield from found.checked(name, SPECS[name])


class Stage(_Staged):
    """A part of the run: what it says replaces what the run says."""

    name: Name

    def problems(self) -> Iterable[Problem]:
        yield from self._staged_problems()


class RunInputs(_Staged):
    """Everything a plan rests on.

    `downtime`: whether checkpoint pauses, rollback and restarts are paid from the reserve or apart from it.
    `mfu_window`: whether the utilisation was taken over healthy steps, or over the calendar and so contains downtime.
    `work`: FLOPs of a token from the ledger of MODEL at the context, or 6 x active parameters.
    `checkpoint`: what is saved: `weights` (in the compute type), `resume` (what a checkpoint of the state policy
    holds), `full` (all state, gradients too). `interval_counts`: whether the interval is elapsed time with the pause
    in it, or useful time between pauses. `claims`: figures found elsewhere, by name, to be compared.
    """

    name: Annotated[str, Field(max_length=200)] = outside_digest("")
    note: Annotated[str, Field(max_length=2000)] = outside_digest("")
    model: Name | None = None
    device: Name | None = None
    dtype: Name = "bf16"
    work: Literal["ledger", "six_p"] | None = None
    downtime: Literal["in_reserve", "apart"] = "in_reserve"
    mfu_window: Literal["healthy", "calendar"] = "healthy"
    checkpoint: Literal["weights", "resume", "full"] = "resume"
    interval_counts: Literal["elapsed", "useful"] = "elapsed"
    currency: Annotated[str, Field(max_length=20)] = ""
    includes: tuple[str, ...] = ("accelerators",)
    contexts: Annotated[tuple[Size, ...], Field(max_length=12)] = (2048, 8192, 32768, 131072)
    simulated_runs: Annotated[int, Field(ge=16, le=4096)] = 256
    seed: Annotated[int, Field(ge=0, le=2**32 - 1)] = 0
    devices: Assumed | None = None
    days: Assumed | None = None
    peak: Assumed | None = None
    reserve: Assumed | None = None
    parameters: Assumed | None = None
    active: Assumed | None = None
    memory_fraction: Assumed | None = None
    checkpoint_bandwidth: Assumed | None = None
    checkpoint_pause: Assumed | None = None
    checkpoint_interval: Assumed | None = None
    kept: Assumed | None = None
    copies: Assumed | None = None
    job_mtbf_hours: Assumed | None = None
    device_mtbf_hours: Assumed | None = None
    restart_seconds: Assumed | None = None
    token_bytes: Assumed | None = None
    read_days: Assumed | None = None
    loader_seconds: Assumed | None = None
    price: Assumed | None = None
    baseline_devices: Assumed | None = None
    baseline_tokens: Assumed | None = None
    baseline_days: Assumed | None = None
    serial_fraction: Assumed | None = None
    slow_probability: Assumed | None = None
    slow_factor: Assumed | None = None
    stages: Annotated[tuple[Stage, ...], Field(max_length=32)] = ()
    claims: dict[Name, Assumed] = {}  # noqa: RUF012  # a field of a frozen record

    def problems(self) -> Iterable[Problem]:
        yield from self._staged_problems()
        for name in REQUIRED:
            if getattr(self, name) is None:
                where = "in the file, or as the option"
                yield Problem(name, None, "a plan needs it", f"give {name} {where} --{name.replace('_', '-')}")
        yield from self._model_problems()
        yield from self._price_problems()
        yield from self._checkpoint_problems()
        names = [stage.name for stage in self.stages]
        for twice in sorted({name for name in names if names.count(name) > 1}):
            yield Problem("stages", twice, "two stages share a name", "give each its own")
        for index, stage in enumerate(self.stages):
            if stage.tokens is None:
                rule = "a stage has a number of tokens of its own"
                yield Problem(f"stages.{index}.tokens", None, rule, "give the tokens of each stage")
        if self.stages and self.tokens is not None:
            rule = "the stages have tokens of their own; a total beside them would be counted again"
            yield Problem("tokens", str(self.tokens.value), rule, "leave it out")

    def _model_problems(self) -> Iterable[Problem]:
        if self.model is None and self.parameters is None:
            yield Problem("model", None, "a plan is of a model", "give MODEL, or --parameters N (and --active N)")
        for name in ("parameters", "active"):
            if self.model is not None and getattr(self, name) is not None:
                value = getattr(self, name).value
                yield Problem(name, str(value), "the model's own ledger counts it", "leave it out, or leave MODEL out")
        if self.model is None:
            for path, holder in (("", self), *((f"stages.{i}.", stage) for i, stage in enumerate(self.stages))):
                for name in sorted(set(holder.case or {}) - set(STATE_OPTIONS)):
                    rule = "it acts on the graph of a model, and there is none"
                    yield Problem(f"{path}case.{name}", (holder.case or {})[name], rule, "give MODEL, or leave it out")
        if self.work == "ledger" and self.model is None:
            yield Problem("work", "ledger", "there is no ledger without a model", "give MODEL, or write six_p")
        if self.parameters is not None and self.active is not None and self.active.value > self.parameters.value:
            rule = f"more active than stored parameters ({self.parameters.value}): total and active are exchanged"
            yield Problem("active", str(self.active.value), rule, "state is sized by the total, work by the active")
        if self.device is None and self.peak is None:
            yield Problem("device", None, "nothing says what a device does", "give --device, or --peak TFLOP/s")
        if self.device is not None and ":" in self.device:
            rule = "a shape says how many devices there are, and devices says it here"
            yield Problem("device", self.device, rule, f"write {self.device.partition(':')[0]}, the number as devices")

    def _price_problems(self) -> Iterable[Problem]:
        if self.price is not None and self.price.date is None:
            rule = "an undated price says nothing: rates change from month to month"
            yield Problem("price.date", None, rule, "give the date of the offer (--price-date 2026-03)")
        if self.price is not None and not self.currency:
            yield Problem("currency", "", "a price has a currency", "give it, as in --currency EUR")
        for item in self.includes:
            if item not in BOUNDARY:
                yield Problem("includes", item, "not a part of the boundary", f"use some of {', '.join(BOUNDARY)}")

    def _checkpoint_problems(self) -> Iterable[Problem]:
        pause, interval = self.checkpoint_pause, self.checkpoint_interval
        if pause and interval and self.interval_counts == "elapsed" and interval.value <= pause.value:
            rule = f"an elapsed interval holds its pause ({pause.value} s) and more"
            yield Problem("checkpoint_interval", str(interval.value), rule, "lengthen it, or write interval_counts")
        if self.mfu_window == "calendar" and self.downtime == "apart":
            rule = "the utilisation contains downtime already; charging it apart would charge it twice"
            yield Problem("downtime", "apart", rule, "measure the utilisation over healthy steps, or write in_reserve")
        if self.job_mtbf_hours and self.device_mtbf_hours:
            rule = "the job's is given, and the devices' gives another"
            yield Problem("device_mtbf_hours", str(self.device_mtbf_hours.value), rule, "give one of the two")

    def covered(self) -> dict[str, Any]:
        """Return what the digest covers: claims are compared with the plan and change no number of it."""
        return {name: value for name, value in super().covered().items() if name != "claims"}

    @property
    def parts(self) -> tuple[Stage, ...]:
        """The stages; a run without any is one stage, `main`."""
        return self.stages or (Stage(name="main"),)

    def assumed(self, name: str, stage: Stage | None = None) -> Assumed | None:
        """Return an assumption as a stage has it: its own, else the run's, else the default."""
        own = getattr(stage, name, None) if stage is not None and name in STAGED else None
        found = own or getattr(self, name)
        if found is None and name in DEFAULTS:
            return Assumed.from_data({"value": DEFAULTS[name]}, name)
        return found if isinstance(found, Assumed) else None

    def exact(self, name: str, stage: Stage | None = None) -> Fraction | int | None:
        """Return the value of an assumption, whole numbers as integers; None where it is not given."""
        found = self.assumed(name, stage)
        if found is None:
            return None
        return int(found.exact) if SPECS[name].whole else found.exact

    def staged(self, name: str, stage: Stage) -> Any:
        """Return the mesh or the case options of a stage: options of a stage go over those of the run."""
        own, shared = getattr(stage, name), getattr(self, name)
        if name == "case":
            return {**(shared or {}), **(own or {})}
        return own if own is not None else shared


def read_inputs(data: object, where: str = "plan") -> RunInputs:
    """Return the record of plain data, in which a number stands for an assumption with that value.

    Raises:
        RejectedError: with every problem of the data.
    """
    table = dict(as_table(data, where))
    found = {name: _opened(name, value) for name, value in table.items()}
    if isinstance(table.get("stages"), list):
        found["stages"] = [
            {name: _opened(name, value) for name, value in stage.items()} if isinstance(stage, dict) else stage
            for stage in table["stages"]
        ]
    if isinstance(table.get("claims"), dict):
        found["claims"] = {name: _number(value) for name, value in table["claims"].items()}
    return RunInputs.from_data(found, where)


def _opened(name: str, value: Any) -> Any:
    return _number(value) if name in SPECS else value


def _number(value: Any) -> Any:
    return {"value": value} if isinstance(value, int | float | str) and not isinstance(value, bool) else value
