"""How stored arrays lie on a mesh, composed in order: stage, tensor slice, data shard, state object.

1. A pipeline rank holds the arrays of its layers and of what stands outside the stack there (`stages`).
2. Matrices are sliced by `tensor`: heads, MLP width and vocabulary. Vectors (norm scales, all biases) stay whole.
3. Matrices are sharded by `fsdp` along the hidden axis, and by a ZeRO stage evenly over `data`, array by array.
4. A state object (gradient, master copy, moment) follows its parameter, as far as its role goes under the ZeRO stage
   (Rajbhandari et al. 2020, arXiv:1910.02054): 1 optimizer state and master copies, 2 gradients too, 3 parameters too.

`data` replicates what no ZeRO stage splits, `context` everything: it splits rows, which no stored array has. Fewer K/V
heads than ranks are each held whole by several. An extent that its degree does not divide is padded up, and the
padding is shown. The columns of a token table narrower than the layers lie along no mesh axis; fused projections have
no tensor axis. Where gradients are reduced after the last microbatch only, they stand unreduced and whole (step 3 does
not apply to them) until then.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

from jaxcost.contracts.case import Case
from jaxcost.contracts.dtypes import payload_bytes
from jaxcost.contracts.execution import Execution
from jaxcost.contracts.state import StateObject
from jaxcost.prediction.domain import ceil_div, exact_div
from jaxcost.prediction.parameters import Entry
from jaxcost.prediction.program import Program
from jaxcost.prediction.stages import Rank, ranks
from jaxcost.prediction.state import array_shape, factored_axes, object_bytes, object_scalars, population

SHARDED = {"d": "fsdp", "h": "tensor", "k": "tensor", "f": "tensor", "v": "tensor"}
ROLE_STAGE = {"parameter": 3, "gradient": 2, "gradient_copy": 2}
OFFLOAD_ROLES = {"parameter": "parameter", "master": "master", "gradient": "gradient", "gradient_copy": "gradient"}


class Holding(NamedTuple):
    """One argument or result, or one state object.

    `bytes` is one global copy, `per_device` what the worst device holds in its own memory, `padding` what rounding up
    adds to a global copy, `host` what the worst device keeps in host memory. Over all devices of a mesh without a
    pipeline, (per_device + host) x devices is the replicas times (bytes + padding), array by array. `elements` are
    those of the global copy, all `copies` of it, without padding.
    """

    object: str
    scope: str
    role: str
    bytes: Any
    per_device: Any
    padding: Any
    host: Any = 0
    dtype: str = ""
    elements: Any = None
    copies: int = 1


class Shards(NamedTuple):
    """How one array lies on the mesh: its scalars, those of the largest shard, and the number of distinct shards.

    `divided` gives the degree by which each mesh axis divides it, 1 left out; `devices` / `shards` hold each shard. Of
    a stack that a pipeline cuts, all numbers are of the rank's own layers.
    """

    name: str
    scope: str
    scalars: Any
    local: Any
    shards: int
    divided: tuple[tuple[str, int], ...] = ()

    @property
    def padding(self) -> Any:
        """Scalars that rounding up adds to one global copy."""
        return self.local * self.shards - self.scalars


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


def kept_axes(item: StateObject, entry: Entry) -> tuple[int, ...] | None:
    """Return which axes of a parameter array a state object's array has; None for a placeholder of one scalar."""
    own = tuple(range(len(entry.shape)))
    if item.count == "dense":
        return own
    axes = factored_axes(entry.shape)
    if item.count == "unfactored":
        return None if axes else own
    if axes is None:
        return None
    gone = axes[1] if item.count == "row" else axes[0]
    return own[:gone] + own[gone + 1 :]


def unreduced(case: Case, item: StateObject) -> bool:
    """Return whether a state object is a gradient that stands whole between microbatches, not yet reduced."""
    return (
        item.role == "gradient" and case.workload.accumulate > 1 and case.execution.gradient_sync == "last_microbatch"
    )


def on_rank(program: Program, entry: Entry, rank: Rank) -> Entry | None:
    """Return the part of an array that stands on a pipeline rank, None where nothing does."""
    head = entry.scope.split("/", 1)[0]
    if not head.startswith("group"):
        return entry if rank.holds(entry.scope, program.case.architecture.tied) else None
    stacked = entry.axes[0] == "layer"
    layers, every = rank.layers(int(head.removeprefix("group"))), entry.shape[0] if stacked else entry.copies
    if layers == every:
        return entry
    if layers == 0:
        return None
    scalars, padding = (exact_div(count * layers, every) for count in (entry.scalars, entry.padding))
    if stacked:
        return replace(entry, shape=(layers, *entry.shape[1:]), scalars=scalars, padding=padding)
    return replace(entry, copies=layers, scalars=scalars, padding=padding)


def shards(
    program: Program, item: StateObject, stage: int | None = None, rank: Rank | None = None, *, reduced: bool = False
) -> tuple[Shards, ...]:
    """Return how each array of a state object is sharded on a pipeline rank.

    Args:
        program: the declared step.
        item: the state object.
        stage: ZeRO stage, by default the case's.
        rank: pipeline rank, by default the one that holds most.
        reduced: gradients as they are after their reduction, also where that comes late.
    """
    run = program.case.execution
    stage = run.zero if stage is None else stage
    if rank is None:
        rank = worst_rank(program, stage)
    whole = unreduced(program.case, item) and not reduced
    even = run.degree("data") if stage >= ROLE_STAGE.get(item.role, 1) and not whole else 1
    if item.count == "scalar":
        return (Shards(item.name, "", 1, 1, 1),)
    found = []
    for entry in population(program, item.basis):
        here = on_rank(program, entry, rank)
        if here is not None:
            found.append(_shards(item, here, run, even, whole))
    return tuple(found)


def _shards(item: StateObject, entry: Entry, run: Execution, even: int, whole: bool) -> Shards:
    axes, of = kept_axes(item, entry), degrees(entry, run)
    cuts = [(entry.axes[axis], of[axis]) for axis in axes] if axes is not None else [("", 1)]
    count, local, pieces, divided = entry.copies, 1, even, {"data": even}
    for extent, (axis, degree) in zip(array_shape(item, entry), cuts, strict=True):
        if whole and SHARDED.get(axis) == "fsdp":
            degree = 1
        count, local, pieces = (
            count * extent,
            local * (extent if degree == 1 else ceil_div(extent, degree)),
            pieces * degree,
        )
        if degree > 1:
            divided[SHARDED[axis]] = degree
    if even > 1:
        local = ceil_div(local, even)
    by_axis = tuple((axis, divided[axis]) for axis in run.mesh_sizes if divided.get(axis, 1) > 1)
    return Shards(entry.name, entry.scope, count, local * entry.copies, pieces, by_axis)


def resting_place(case: Case, item: StateObject) -> str:
    """Return where a state object rests between its uses: `device`, `host` or `checkpoint`."""
    role = OFFLOAD_ROLES.get(item.role, "optimizer")
    return "host" if item.placement == "device" and role in case.execution.offload else item.placement


def rank_bytes(program: Program, item: StateObject, stage: int | None, rank: Rank, *, reduced: bool = False) -> Any:
    """Return the bytes of a state object that each device of a pipeline rank owns, wherever they rest."""
    local = sum(array.local for array in shards(program, item, stage, rank, reduced=reduced))
    return payload_bytes(local, item.dtype) * item.copies


@lru_cache(maxsize=64)
def worst_rank(program: Program, stage: int) -> Rank:
    """Return the pipeline rank whose devices hold the most persistent state in their own memory; of equals the first.

    The state is that of the first optimizer step in training, gradients included, and of a loaded model elsewhere.
    """
    found = ranks(program)
    if len(found) == 1:
        return found[0]
    held_there = [item for item in alive(program.case) if resting_place(program.case, item) == "device"]
    return max(found, key=lambda rank: sum(rank_bytes(program, item, stage, rank) for item in held_there))


def alive(case: Case) -> list[StateObject]:
    """Return the state objects that exist while the first step runs, checkpoints apart."""
    return [item for item in case.state.objects if item.placement != "checkpoint" and item.live_at("in_first_step")]


def held(program: Program, item: StateObject, stage: int | None = None, rank: Rank | None = None) -> Holding:
    """Return what a state object occupies globally and on a device under the case's mesh and ZeRO stage.

    The device is of the pipeline rank given, or of the one that holds most.
    """
    stage = program.case.execution.zero if stage is None else stage
    arrays = [array for each in ranks(program) for array in shards(program, item, stage, each)]
    if item.count == "scalar":
        arrays = arrays[:1]
    padding = payload_bytes(sum(array.padding for array in arrays), item.dtype) * item.copies
    local = rank_bytes(program, item, stage, rank or worst_rank(program, stage))
    host = resting_place(program.case, item) == "host"
    own, away = (0, local) if host else (local, 0)
    count = object_scalars(program, item) * item.copies
    return Holding(
        item.name, "", item.role, object_bytes(program, item), own, padding, away, item.dtype, count, item.copies
    )
