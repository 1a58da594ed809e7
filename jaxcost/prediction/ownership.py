"""Who holds what on a mesh, in bytes. Four ledgers that are not one another, and are kept apart:

- global: one copy of the state, what `state` counts;
- cluster: what all devices hold together, replicas and padding counted;
- persistent: what one device holds between steps, on the device that holds most, which is named;
- peak: what a device holds at its fullest moment, in the ledger `device`.

The division of stored arrays is in `sharding`; beside it stand what is whole for a while (`groups`), products under
tensor parallelism (`tensor_parallel`), rows over devices (`sequence_shards`), stages (`stages`), and state on the host
(`offload`). Nothing here is divided by the number of devices: every division names the axis that does it.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from jaxcost.contracts.dtypes import payload_bytes
from jaxcost.prediction.activations import stage_saved_bytes
from jaxcost.prediction.domain import is_formula
from jaxcost.prediction.flops import rank_flops
from jaxcost.prediction.groups import gathers, group_rows, group_totals
from jaxcost.prediction.offload import transfer_rows
from jaxcost.prediction.program import Program
from jaxcost.prediction.rows import Ledger, Row
from jaxcost.prediction.sequence_shards import keys_values, row_rows, stream_bytes
from jaxcost.prediction.sharding import (
    ROLE_STAGE,
    SHARDED,
    Holding,
    Shards,
    alive,
    degrees,
    held,
    on_rank,
    rank_bytes,
    resting_place,
    shards,
    worst_rank,
)
from jaxcost.prediction.stages import Rank, boundaries, boundary_bytes, bubble, in_flight, in_flight_bytes, ranks
from jaxcost.prediction.state import population
from jaxcost.prediction.tensor_parallel import contraction_rows, locals_of

__all__ = [
    "ROLE_STAGE", "SHARDED", "Holding", "Shards", "arguments", "degrees", "held", "ownership", "results",
    "shards", "worst_device",
]  # fmt: skip
COUNTED_STEPS = ("adam", "adamw", "lion", "adafactor")
OMITTED = "activations, gathered weights, communication buffers"


def worst_device(program: Program) -> dict[str, str]:
    """Return which devices hold the most persistent state, and what stands there."""
    found = ranks(program)
    if len(found) == 1:
        return {"device": "any", "holds": "the same as every other: shards are padded to one size"}
    rank = worst_rank(program, program.case.execution.zero)
    return {"device": f"pipeline={rank.number}", "holds": rank.why()}


def ownership(program: Program) -> Ledger:
    """Return who holds the state: global, cluster and per-device bytes, by role, and under every ZeRO stage where a
    data axis allows one; and a table each for FSDP groups, stages, rows, gradients and offload, where there are any.
    """
    case, run = program.case, program.case.execution
    live = alive(case)
    stages = range(4) if run.degree("data") > 1 else (run.zero,)
    by_stage = {stage: [held(program, item, stage) for item in live] for stage in stages}
    own = by_stage[run.zero]
    state_rows = tuple(_state_row(program, item, found) for item, found in zip(live, own, strict=True))
    by_role: dict[str, Any] = {}
    for found in own:
        by_role[found.role] = by_role.get(found.role, 0) + found.per_device
    totals: dict[str, Any] = {
        "persistent_bytes": sum(item.per_device for item in own),
        "by_role": by_role,
        "by_zero_stage": {str(stage): sum(item.per_device for item in found) for stage, found in by_stage.items()},
        "global_bytes": sum(item.bytes for item in own),
        "cluster_bytes": sum(row.fields["cluster_bytes"] for row in state_rows),
        "padding_bytes": sum(item.padding for item in own),
        "host_bytes": sum(item.host for item in own),
        "worst_device": worst_device(program),
        "tokens_per_device": program.device_sizes.product("b s"),
    }
    rank = worst_rank(program, run.zero)
    if gathers(program):
        totals["fsdp"] = group_totals(program, rank)
    totals |= _axis_totals(program)
    rows = (*state_rows, *group_rows(program), *contraction_rows(program), *row_rows(program))
    if run.degree("pipeline") > 1:
        stage_rows = tuple(_stage_row(program, each) for each in ranks(program))
        totals["pipeline"] = _pipeline_totals(program, stage_rows)
        rows += stage_rows
    if case.workload.phase == "training":
        totals["gradients"] = _gradients(program, rank)
    moves = transfer_rows(program)
    if moves:
        for direction in ("host_to_device", "device_to_host"):
            amounts = (row.per_device for row in moves if row.phase == direction)
            totals[f"{direction}_bytes"] = sum(amounts)
    return Ledger("ownership", totals, (*rows, *moves))


def _state_row(program: Program, item: Any, found: Holding) -> Row:
    """Return the row of a state object: bytes a parameter, by which axes its bytes are divided, what all devices hold.

    `divided` gives the bytes of one global copy by the axes that divide them, `replicated_over` the axes over which
    those bytes are held again. A mesh axis `pipeline` does neither: it gives whole layers to ranks.
    """
    run = program.case.execution
    each, width = run.device_count // run.degree("pipeline"), item.copies
    divided: dict[str, Any] = {}
    replicated: dict[str, list[str]] = {}
    for rank in ranks(program):
        for array in shards(program, item, None, rank):
            label = " x ".join(f"{axis}={degree}" for axis, degree in array.divided) or "whole"
            divided[label] = divided.get(label, 0) + payload_bytes(array.scalars, item.dtype) * width
            cut = {"pipeline", *(axis for axis, _ in array.divided)}
            replicated[label] = [axis for axis in run.mesh_sizes if axis not in cut]
    unique = sum(entry.scalars for entry in population(program, "loaded"))
    per = found.bytes / unique if is_formula(found.bytes, unique) else Fraction(found.bytes, unique)
    cluster = each * sum(rank_bytes(program, item, None, rank) for rank in ranks(program))
    fields = {
        "role": found.role,
        "zero": run.zero,
        "dtype": item.dtype,
        "copies": item.copies,
        "bytes_per_parameter": per,
        "divided": divided,
        "replicated_over": replicated,
        "created": item.created,
        "released": item.released,
        "elements": found.elements,
        "padding": found.padding,
        "cluster_bytes": cluster,
        "placement": resting_place(program.case, item),
        "host_bytes": found.host,
    }
    return Row(
        found.object,
        "",
        "in_first_step",
        found.bytes,
        "bytes",
        fields,
        "worst device",
        OMITTED,
        per_device=found.per_device,
    )


def _axis_totals(program: Program) -> dict[str, Any]:
    """Return what tensor, context and sequence parallelism leave on a device, of one layer and microbatch."""
    run, totals = program.case.execution, dict[str, Any]()
    if run.degree("tensor") > 1:
        found = locals_of(program)
        partial = [local.output_bytes for local in found if local.collective]
        totals["tensor"] = {
            "sliced_weights": sum(bool(local.axis) for local in found),
            "whole_weights": sum(not local.axis for local in found),
            "kv_replicas": max(program.case.kv_replicas(group) for group in range(len(program.sizes.repeats))),
            "largest_partial_bytes": max(partial, default=0),
        }
    if run.sequence_parallel:
        whole, own = stream_bytes(program)
        totals["sequence"] = {"stream_bytes": whole, "stream_bytes_per_device": own}
    if run.degree("context") > 1:
        largest = max(keys_values(program), key=lambda item: item.full_bytes)
        totals["context"] = {
            "method": run.context_method,
            "layer_kv_bytes": largest.full_bytes,
            "local_kv_bytes": largest.local_bytes,
            "remote_kv_bytes": largest.remote_bytes,
            "buffer_bytes": largest.buffer_bytes,
        }
    return totals


def _stage_row(program: Program, rank: Rank) -> Row:
    """Return the row of a pipeline rank; its value is the learned scalars that stand there, padding apart."""
    case, kept = program.case, stage_saved_bytes(program)
    each = [kept[stage.number] for stage in rank.stages]
    found = [on_rank(program, entry, rank) for entry in population(program, "loaded")]
    here = [entry for entry in found if entry is not None]
    own = [item for item in alive(case) if resting_place(case, item) == "device"]
    fields = {
        "stages": [stage.number for stage in rank.stages],
        "layers": [stage.layers for stage in rank.stages],
        "embedding": rank.embedding,
        "head": rank.head,
        "padding": sum(entry.padding for entry in here),
        "state_bytes_per_device": sum(rank_bytes(program, item, None, rank) for item in own),
        "in_flight": in_flight(case, rank.number),
        "saved_bytes_per_microbatch": sum(each),
        "saved_bytes_in_flight": in_flight_bytes(case, rank.number, each),
        "flops": rank_flops(program, rank),
        "flops_per_device": rank_flops(program, rank, on_device=True),
    }
    return Row(
        f"pipeline rank {rank.number}",
        "",
        "in_first_step",
        sum(entry.scalars for entry in here),
        "scalars",
        fields,
        f"{case.execution.pipeline.schedule}, {case.workload.accumulate} microbatches; {rank.why()}",
        "boundary buffers, gathered weights, temporaries",
        per_device=None,
    )


def _pipeline_totals(program: Program, rows: tuple[Row, ...]) -> dict[str, Any]:
    case = program.case
    both = [row.fields["state_bytes_per_device"] + row.fields["saved_bytes_in_flight"] for row in rows]
    of_ideal, of_all = bubble(case)
    crossings = boundaries(case) * case.workload.accumulate
    return {
        "schedule": case.execution.pipeline.schedule,
        "microbatches": case.workload.accumulate,
        "parameters_by_rank": {str(index): row.value for index, row in enumerate(rows)},
        "state_bytes_by_rank": {str(index): row.fields["state_bytes_per_device"] for index, row in enumerate(rows)},
        "in_flight_by_rank": {str(index): row.fields["in_flight"] for index, row in enumerate(rows)},
        "saved_bytes_by_rank": {str(index): row.fields["saved_bytes_in_flight"] for index, row in enumerate(rows)},
        "flops_by_rank": {str(index): row.fields["flops_per_device"] for index, row in enumerate(rows)},
        "worst_rank_state": max(range(len(rows)), key=lambda i: rows[i].fields["state_bytes_per_device"]),
        "worst_rank_with_saved": max(range(len(rows)), key=lambda i: both[i]),
        "boundary_bytes": boundary_bytes(program),
        "boundary_sends": 2 * crossings,
        "bubble_over_ideal": of_ideal,
        "bubble_over_all": of_all,
    }


def _gradients(program: Program, rank: Rank) -> dict[str, Any]:
    """Return when gradients are reduced, and what of them stands on a device: between microbatches and at the end."""
    case, run = program.case, program.case.execution
    last = run.gradient_sync == "last_microbatch"
    replicas = run.degree("data") * run.degree("fsdp") * run.degree("context")
    totals: dict[str, Any] = {
        "sync": run.gradient_sync,
        "reductions": 0 if replicas == 1 else 1 if last else case.workload.accumulate,
    }
    item = next((item for item in alive(case) if item.role == "gradient"), None)
    if item is not None:
        totals["between_microbatches_bytes"] = rank_bytes(program, item, None, rank)
        totals["reduced_bytes"] = rank_bytes(program, item, None, rank, reduced=True)
    return totals


def arguments(program: Program) -> tuple[Holding, ...]:
    """Return the step's arguments: parameters, master copies and optimizer state, cache, tokens, position, key.

    Gradients and their copies do not cross the step's border. A policy of the literature that lists no step counter
    still runs on an optimizer that keeps one, int32.
    """
    objects = [item for item in program.case.state.objects if item.role not in ("gradient", "gradient_copy")]
    found = [held(program, item) for item in objects]
    roles = {item.role for item in objects}
    if program.case.state.optimizer in COUNTED_STEPS and "step" not in roles:
        found.append(Holding("step", "", "step", 4, 4, 0, dtype="int32", elements=1))
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
    elements = program.elements(tensor) * tensor.repeat
    return Holding(name, tensor.scope, role, whole, local, 0, dtype=tensor.dtype, elements=elements)
