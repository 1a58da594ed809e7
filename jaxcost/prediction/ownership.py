"""Who holds what on a mesh, in bytes, on the device that holds most.

Matrices: the hidden axis over `fsdp`; heads, MLP width and vocabulary over `tensor`. Vectors (norm scales, all biases)
and scalars: whole on every device. `data` replicates, unless a ZeRO stage (Rajbhandari et al. 2020, arXiv:1910.02054)
splits each array evenly over it: 1 optimizer state and master copies, 2 gradients as well, 3 parameters as well.
An extent that its degree does not divide is padded up, and the padding is shown.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jaxcost.contracts.dtypes import payload_bytes
from jaxcost.contracts.execution import Execution
from jaxcost.contracts.state import StateObject
from jaxcost.prediction.domain import ceil_div
from jaxcost.prediction.parameters import Entry
from jaxcost.prediction.program import Program
from jaxcost.prediction.rows import Ledger, Row
from jaxcost.prediction.state import array_shape, factored_axes, population

SHARDED = {"d": "fsdp", "h": "tensor", "k": "tensor", "f": "tensor", "v": "tensor"}
ROLE_STAGE = {"parameter": 3, "gradient": 2, "gradient_copy": 2}
COUNTED_STEPS = ("adam", "adamw", "lion", "adafactor")


@dataclass(frozen=True, slots=True)
class Holding:
    """One argument or result: global bytes, bytes on the worst device, and how much of the latter is padding."""

    object: str
    scope: str
    role: str
    bytes: Any
    per_device: Any
    padding: Any


def degrees(entry: Entry, run: Execution) -> tuple[int, ...]:
    """Return the shard degree of each axis of a parameter array."""
    if entry.name.rsplit("/", 1)[1] != "weight":
        return (1,) * len(entry.axes)
    return tuple(run.degree(SHARDED[axis]) if axis in SHARDED else 1 for axis in entry.axes)


def _kept_degrees(item: StateObject, entry: Entry, run: Execution) -> tuple[int, ...]:
    """Return the degrees of a state object's array; a factor keeps those of its axes, a placeholder has none."""
    own, axes = degrees(entry, run), factored_axes(entry.shape)
    if item.count == "dense" or (item.count == "unfactored" and axes is None):
        return own
    if axes is None or item.count == "unfactored":
        return (1,)
    gone = axes[1] if item.count == "row" else axes[0]
    return own[:gone] + own[gone + 1 :]


def local_scalars(shape: tuple[Any, ...], split: tuple[int, ...], even: int = 1) -> Any:
    """Return the scalars of the largest shard: every axis rounded up, then the whole split evenly over `even` ranks."""
    count: Any = 1
    for extent, degree in zip(shape, split, strict=True):
        count = count * ceil_div(extent, degree)
    return ceil_div(count, even)


def held(program: Program, item: StateObject, stage: int | None = None) -> Holding:
    """Return what a state object occupies globally and on the worst device under the case's mesh and ZeRO stage."""
    run = program.case.execution
    stage = run.zero if stage is None else stage
    even = run.degree("data") if stage >= ROLE_STAGE.get(item.role, 1) else 1
    if item.count == "scalar":
        size = payload_bytes(1, item.dtype) * item.copies
        return Holding(item.name, "", item.role, size, size, 0)
    total, here, exact = 0, 0, 0
    for entry in population(program, item.basis):
        shape, split = array_shape(item, entry), _kept_degrees(item, entry, run)
        full = local_scalars(shape, (1,) * len(shape)) * entry.copies
        mine = local_scalars(shape, split, even) * entry.copies
        shards = even
        for degree in split:
            shards *= degree
        total, here, exact = total + full, here + mine, exact + (mine * shards - full) / shards if mine * shards != full else exact
    whole, local = (payload_bytes(count, item.dtype) * item.copies for count in (total, here))
    return Holding(item.name, "", item.role, whole, local, exact)


def ownership(program: Program) -> Ledger:
    """Return persistent state bytes per device by role, for the mesh and every ZeRO stage over its data axis."""
    run = program.case.execution
    live = [item for item in program.case.state.objects if item.placement == "device" and item.live_at("in_first_step")]
    by_stage = {stage: [held(program, item, stage) for item in live] for stage in range(4)}
    rows = tuple(
        Row(found.object, "", "in_first_step", found.bytes, "bytes", {"role": found.role, "zero": run.zero, "padding": found.padding},
            "worst device", "activations, gathered weights, communication buffers", per_device=found.per_device)
        for found in by_stage[run.zero]
    )  # fmt: skip
    totals: dict[str, Any] = {
        "persistent_bytes": sum(item.per_device for item in by_stage[run.zero]),
        "by_role": {row.fields["role"]: row.per_device for row in rows},
        "by_zero_stage": {str(stage): sum(item.per_device for item in found) for stage, found in by_stage.items()},
        "tokens_per_device": program.device_sizes.product("b s"),
    }
    return Ledger("ownership", totals, rows)


def arguments(program: Program) -> tuple[Holding, ...]:
    """Return the step's arguments: parameters, master copies and optimizer state, cache, tokens, position, key.

    Gradients and their copies do not cross the step's border. A policy of the literature that lists no step counter still
    runs on an optimizer that keeps one, int32.
    """
    objects = [item for item in program.case.state.objects if item.role not in ("gradient", "gradient_copy")]
    found = [held(program, item) for item in objects]
    roles = {item.role for item in objects}
    if program.case.state.optimizer in COUNTED_STEPS and "step" not in roles:
        found.append(Holding("step", "", "step", 4, 4, 0))
    found += [_tensor(program, name, "input") for name, tensor in program.tensors.items() if tensor.role == "input"]
    return tuple(found)


def results(program: Program) -> tuple[Holding, ...]:
    """Return what the step gives back: loss, parameters and optimizer state in training, else logits and cache."""
    state = [item for item in arguments(program) if item.role != "input"] if program.case.workload.phase == "training" else []
    return (*state, *(_tensor(program, name, "output") for name in program.results))


def _tensor(program: Program, name: str, role: str) -> Holding:
    """Return a batch tensor: b over data and fsdp, k and v over tensor; scalars and keys whole."""
    tensor = program.tensors[name]
    sizes = (program.sizes, program.device_sizes)
    whole, local = (payload_bytes(program.elements(tensor, s), tensor.dtype) * tensor.repeat for s in sizes)
    return Holding(name, tensor.scope, role, whole, local, 0)


def device(program: Program) -> Ledger:
    """Return per-device bytes of the step's arguments and results.

    `peak_bytes` has a lower bound, the arguments, which are alive throughout; the rest depends on a schedule that is not
    derived here.
    """
    incoming, outgoing = arguments(program), results(program)
    rows = tuple(
        Row(item.object, item.scope, kind, item.bytes, "bytes", {"role": item.role, "padding": item.padding}, "worst device",
            "allocator padding", per_device=item.per_device)
        for kind, items in (("argument", incoming), ("result", outgoing)) for item in items
    )  # fmt: skip
    argument = sum(item.per_device for item in incoming)
    reason = "the schedule and buffer reuse of a compiler are not predicted in this version"
    totals = {
        "argument_bytes": argument,
        "output_bytes": sum(item.per_device for item in outgoing),
        "state_bytes": sum(item.per_device for item in incoming if item.role != "input"),
        "input_bytes": sum(item.per_device for item in incoming if item.role == "input"),
        "peak_bytes": {"lower": argument, "expected": None, "upper": None},
    }
    return Ledger("device", totals, rows, {"peak_bytes.expected": reason, "peak_bytes.upper": reason})
