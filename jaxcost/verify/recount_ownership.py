"""Who holds what, counted a second time from the case alone: rank by rank, array by array, gather by gather.

Like `recount`, nothing of `jaxcost.prediction` is used. Which axis of an array is cut by which mesh axis stands in one
table here, by the array's name; layers are dealt out to pipeline ranks one by one.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

from jaxcost.contracts.case import Case
from jaxcost.contracts.dtypes import BITS
from jaxcost.contracts.state import StateObject
from jaxcost.verify import recount

# Mesh axes that cut the axes of a matrix, by the last part of its scope; everything else is whole everywhere.
CUTS: dict[str, tuple[str, ...]] = {
    "tokens": ("tensor", "fsdp"), "positions": ("", "fsdp"), "project_in": ("", "fsdp"),
    "q_proj": ("fsdp", "tensor", ""), "k_proj": ("fsdp", "tensor", ""), "v_proj": ("fsdp", "tensor", ""),
    "qkv": ("fsdp", "", ""), "o_proj": ("tensor", "", "fsdp"), "gate": ("fsdp", "tensor"), "up": ("fsdp", "tensor"),
    "gate_up": ("fsdp", ""), "down": ("tensor", "fsdp"), "project_out": ("fsdp", ""), "head": ("fsdp", "tensor"),
}  # fmt: skip
STAGE_OF_ROLE = {"parameter": 3, "gradient": 2, "gradient_copy": 2}


@dataclass(frozen=True)
class Seat:
    """What stands on one pipeline rank: numbers of layers over the whole stack, and the two ends."""

    layers: frozenset[int]
    embedding: bool
    head: bool


def seats(case: Case) -> list[Seat]:
    """Return the pipeline ranks, layers dealt out one by one to the virtual stages and these to the ranks in turn."""
    run, plan = case.execution, case.execution.pipeline
    size, total = run.degree("pipeline"), sum(group.repeat for group in case.architecture.groups)
    stages = size * plan.virtual if size > 1 else 1
    counts = list(plan.layers) or [total // stages] * stages
    ends = [plan.embedding_stage % stages, plan.head_stage % stages]
    places = [stage for stage, count in enumerate(counts) for _ in range(count)]
    found = []
    for rank in range(size):
        mine = frozenset(layer for layer, stage in enumerate(places) if stage % size == rank)
        found.append(Seat(mine, ends[0] % size == rank, ends[1] % size == rank))
    return found


def seated(case: Case, seat: Seat) -> list[tuple[recount.Tensor, int]]:
    """Return the parameters of one layer that stand on a rank, each with the number of its layers there."""
    starts = _starts(case)
    kept: dict[tuple[str, str], tuple[recount.Tensor, int]] = {}
    for tensor in recount.tensors(case, padded=True):
        if tensor.scope.startswith("group"):
            group = int(tensor.scope.split("/")[0].removeprefix("group"))
            here = starts[group] + tensor.layer in seat.layers
        elif tensor.scope.startswith("embed"):
            here = seat.embedding or (tensor.scope == "embed/tokens" and case.architecture.tied and seat.head)
        else:
            here = seat.head
        if here:
            key = (tensor.scope, tensor.part)
            kept[key] = (tensor, kept[key][1] + 1 if key in kept else 1)
    return list(kept.values())


def cut(case: Case, tensor: recount.Tensor) -> list[tuple[int, str, int]]:
    """Return (extent, mesh axis, pieces) of each axis of a parameter."""
    name = tensor.scope.rsplit("/", 1)[-1]
    axes = CUTS.get(name, ()) if tensor.part == "weight" else ()
    narrow = case.architecture.embedding_width is not None and name in ("tokens", "head")
    found = []
    for place, extent in enumerate(tensor.shape):
        axis = axes[place] if axes else ""
        pieces = case.execution.degree(axis) if axis else 1
        if narrow and axis == "fsdp":
            pieces = 1
        if name in ("k_proj", "v_proj") and axis == "tensor":
            pieces = min(pieces, extent)
        found.append((extent, axis, pieces))
    return found


def owned_bytes(case: Case, item: StateObject, seat: Seat) -> int:
    """Return the bytes of a dense or scalar state object that each device of a rank owns."""
    width = BITS[item.dtype] // 8 * item.copies
    if item.count == "scalar":
        return width
    run = case.execution
    late = item.role == "gradient" and run.gradient_sync == "last_microbatch" and case.workload.accumulate > 1
    even = run.degree("data") if run.zero >= STAGE_OF_ROLE.get(item.role, 1) and not late else 1
    total = 0
    for tensor, layers in seated(case, seat):
        if item.basis != "loaded" and case.is_frozen(tensor.scope):
            continue
        count = 1
        for extent, axis, pieces in cut(case, tensor):
            count *= extent if late and axis == "fsdp" else -(-extent // pieces)
        stacked = tensor.scope.startswith("group") and run.layers == "scan"
        total += -(-count * layers // even) if stacked else -(-count // even) * layers
    return total * width


def counted(case: Case) -> list[StateObject]:
    """Return the state objects alive in the first step that this walk counts: all but factored moments."""
    alive = [item for item in case.state.objects if item.live_at("in_first_step")]
    trains = case.workload.phase == "training"
    return [item for item in alive if item.count in ("dense", "scalar") and (trains or item.basis == "loaded")]


def on_host(case: Case, item: StateObject) -> bool:
    """Return whether an object rests in host memory."""
    role = {"gradient_copy": "gradient"}.get(item.role, item.role)
    role = role if role in ("parameter", "master", "gradient") else "optimizer"
    return role in case.execution.offload or item.placement == "host"


def fullest(case: Case) -> Seat:
    """Return the rank whose devices own the most state in their own memory."""
    here = [item for item in counted(case) if not on_host(case, item)]
    return max(seats(case), key=lambda seat: sum(owned_bytes(case, item, seat) for item in here))


def gathers(case: Case, seat: Seat) -> list[tuple[str, str, int]]:
    """Return (group, array, bytes) for every gather of a forward pass of a rank, layer after layer.

    A layer's arrays come in the order in which they are listed, which is not quite that of their use.
    """
    run = case.execution
    even = run.degree("data") if run.zero == 3 else 1
    width = BITS[case.state.compute_dtype] // 8
    starts = _starts(case)
    before: list[tuple[str, str, int]] = []
    after: list[tuple[str, str, int]] = []
    inside: dict[int, list[tuple[str, str, int]]] = {}
    for tensor in recount.tensors(case, padded=True):
        shard, apart = 1, even
        for extent, axis, pieces in cut(case, tensor):
            shard *= -(-extent // pieces)
            apart *= pieces if axis == "fsdp" else 1
        size = -(-shard // even) * apart * width if apart > 1 else 0
        name = f"{tensor.scope}/{tensor.part}"
        if not tensor.scope.startswith("group"):
            group = {"root": "root", "block": "remainder"}.get(run.fsdp.group, name)
            (before if tensor.scope.startswith("embed") else after).append((group, name, size))
            if tensor.scope == "embed/tokens" and case.architecture.tied:
                after.append((group, name, size))
            continue
        number = starts[int(tensor.scope.split("/")[0].removeprefix("group"))] + tensor.layer
        group = {"root": "root", "block": f"layer {number}"}.get(run.fsdp.group, f"{name} {number}")
        inside.setdefault(number, []).append((group, f"{name} {number}", size))
    layers = [gather for number in sorted(seat.layers) for gather in inside.get(number, [])]
    found = (before if seat.embedding else []) + layers + (after if seat.head else [])
    return [gather for gather in found if gather[2]]


def gathered_at_once(case: Case, seat: Seat) -> int:
    """Return the most bytes of gathered groups that stand whole together: the current one and those fetched ahead."""
    every = gathers(case, seat)
    arrays = {array: size for _, array, size in every}
    if not case.execution.fsdp.reshard and case.workload.phase == "training":
        return sum(arrays.values())
    members: dict[str, set[str]] = {}
    for group, array, _ in every:
        members.setdefault(group, set()).add(array)
    sizes = {group: sum(arrays[array] for array in own) for group, own in members.items()}
    order = [group for group, _ in groupby(group for group, _, _ in every)]
    ahead = case.execution.fsdp.prefetch
    return max((sum(sizes[g] for g in set(order[i : i + 1 + ahead])) for i in range(len(order))), default=0)


def _starts(case: Case) -> list[int]:
    repeats = [group.repeat for group in case.architecture.groups]
    return [sum(repeats[:index]) for index in range(len(repeats))]
