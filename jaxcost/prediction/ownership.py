"""Who holds what on a mesh, in bytes, on the device that holds most.

Matrices: the hidden axis over `fsdp`; heads, MLP width and vocabulary over `tensor`. Vectors (norm scales, all biases)
and scalars: whole on every device. `data` replicates, unless a ZeRO stage (Rajbhandari et al. 2020, arXiv:1910.02054)
splits each array evenly over it: 1 optimizer state and master copies, 2 gradients as well, 3 parameters as well.
The columns of a token table narrower than the layers lie along no mesh axis; fused projections have no tensor axis.
An extent that its degree does not divide is padded up, and the padding is shown.
"""

from __future__ import annotations

from typing import Any, NamedTuple

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


class Holding(NamedTuple):
    """One argument or result.

    `bytes` is one global copy, `per_device` what the worst device holds, `padding` what rounding up adds to a global
    copy: over all devices, per_device x devices is the replicas times (bytes + padding), array by array.
    """

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
    found = []
    for axis, extent in zip(entry.axes, entry.shape, strict=True):
        degree = run.degree(SHARDED[axis]) if axis in SHARDED else 1
        # Fewer K/V heads than ranks: each is held whole by several.
        found.append(extent if axis == "k" and isinstance(extent, int) and extent < degree else degree)
    return tuple(found)


def _kept_degrees(item: StateObject, entry: Entry, run: Execution) -> tuple[int, ...]:
    """Return the degrees of a state object's array; a factor keeps those of its axes, a placeholder has none."""
    own = degrees(entry, run)
    if item.count == "dense":
        return own
    axes = factored_axes(entry.shape)
    if item.count == "unfactored":
        return (1,) if axes else own
    if axes is None:
        return (1,)
    gone = axes[1] if item.count == "row" else axes[0]
    return own[:gone] + own[gone + 1 :]


class Shards(NamedTuple):
    """How one array lies on the mesh: global scalars, those of the largest shard, and the number of distinct shards."""

    name: str
    scope: str
    scalars: Any
    local: Any
    shards: int

    @property
    def padding(self) -> Any:
        """Scalars that rounding up adds to one global copy."""
        return self.local * self.shards - self.scalars


def shards(program: Program, item: StateObject, stage: int | None = None) -> tuple[Shards, ...]:
    """Return how each array of a state object is sharded under the case's mesh and ZeRO stage."""
    run = program.case.execution
    stage = run.zero if stage is None else stage
    even = run.degree("data") if stage >= ROLE_STAGE.get(item.role, 1) else 1
    if item.count == "scalar":
        return (Shards(item.name, "", 1, 1, 1),)
    found = []
    for entry in population(program, item.basis):
        count, local, pieces = entry.copies, 1, even
        for extent, degree in zip(array_shape(item, entry), _kept_degrees(item, entry, run), strict=True):
            count, local, pieces = (
                count * extent,
                local * (extent if degree == 1 else ceil_div(extent, degree)),
                pieces * degree,
            )
        if even > 1:
            local = ceil_div(local, even)
        found.append(Shards(entry.name, entry.scope, count, local * entry.copies, pieces))
    return tuple(found)


def held(program: Program, item: StateObject, stage: int | None = None) -> Holding:
    """Return what a state object occupies globally and on the worst device under the case's mesh and ZeRO stage."""
    arrays = shards(program, item, stage)
    counts = (sum(a.scalars for a in arrays), sum(a.local for a in arrays), sum(a.padding for a in arrays))
    whole, local, padding = (payload_bytes(count, item.dtype) * item.copies for count in counts)
    return Holding(item.name, "", item.role, whole, local, padding)


def ownership(program: Program) -> Ledger:
    """Return persistent state bytes per device by role, and for every ZeRO stage where a data axis allows one."""
    run = program.case.execution
    live = [item for item in program.case.state.objects if item.placement == "device" and item.live_at("in_first_step")]
    stages = range(4) if run.degree("data") > 1 else (run.zero,)
    by_stage = {stage: [held(program, item, stage) for item in live] for stage in stages}
    rows = tuple(
        Row(
            found.object,
            "",
            "in_first_step",
            found.bytes,
            "bytes",
            {"role": found.role, "zero": run.zero, "padding": found.padding},
            "worst device",
            "activations, gathered weights, communication buffers",
            per_device=found.per_device,
        )
        for found in by_stage[run.zero]
    )
    totals: dict[str, Any] = {
        "persistent_bytes": sum(item.per_device for item in by_stage[run.zero]),
        "by_role": {row.fields["role"]: row.per_device for row in rows},
        "by_zero_stage": {str(stage): sum(item.per_device for item in found) for stage, found in by_stage.items()},
        "tokens_per_device": program.device_sizes.product("b s"),
    }
    return Ledger("ownership", totals, rows)


def arguments(program: Program) -> tuple[Holding, ...]:
    """Return the step's arguments: parameters, master copies and optimizer state, cache, tokens, position, key.

    Gradients and their copies do not cross the step's border. A policy of the literature that lists no step counter
    still runs on an optimizer that keeps one, int32.
    """
    objects = [item for item in program.case.state.objects if item.role not in ("gradient", "gradient_copy")]
    found = [held(program, item) for item in objects]
    roles = {item.role for item in objects}
    if program.case.state.optimizer in COUNTED_STEPS and "step" not in roles:
        found.append(Holding("step", "", "step", 4, 4, 0))
    found += [_tensor(program, name, "input") for name, tensor in program.tensors.items() if tensor.role == "input"]
    return tuple(found)


def results(program: Program, incoming: tuple[Holding, ...]) -> tuple[Holding, ...]:
    """Return what the step gives back: loss, parameters and optimizer state in training, else logits and cache."""
    state = [item for item in incoming if item.role != "input"] if program.case.workload.phase == "training" else []
    return (*state, *(_tensor(program, name, "output") for name in program.results))


def _tensor(program: Program, name: str, role: str) -> Holding:
    """Return a batch tensor: b over data and fsdp, k and v over tensor; scalars and keys whole."""
    tensor = program.tensors[name]
    sizes = (program.sizes, program.device_sizes)
    whole, local = (payload_bytes(program.elements(tensor, s), tensor.dtype) * tensor.repeat for s in sizes)
    return Holding(name, tensor.scope, role, whole, local, 0)


def device(program: Program) -> Ledger:
    """Return per-device bytes of the step's arguments and results.

    `peak_bytes` has a lower bound, the arguments, which are alive throughout; the rest depends on a schedule that is
    not derived here.
    """
    incoming = arguments(program)
    outgoing = results(program, incoming)
    rows = tuple(
        Row(
            item.object,
            item.scope,
            kind,
            item.bytes,
            "bytes",
            {"role": item.role, "padding": item.padding},
            "worst device",
            "allocator padding",
            per_device=item.per_device,
        )
        for kind, items in (("argument", incoming), ("result", outgoing))
        for item in items
    )
    argument = sum(item.per_device for item in incoming)
    reason = "the schedule and buffer reuse of a compiler are not predicted in this version"
    totals = {
        "argument_bytes": argument,
        "output_bytes": sum(item.per_device for item in outgoing),
        "state_bytes": sum(item.per_device for item in incoming if item.role != "input"),
        "input_bytes": sum(item.per_device for item in incoming if item.role == "input"),
        "peak_bytes": {"lower": argument, "expected": None, "upper": None},
    }
    unknown = ("peak_bytes", "peak_bytes.expected", "peak_bytes.upper")
    return Ledger("device", totals, rows, dict.fromkeys(unknown, reason))
