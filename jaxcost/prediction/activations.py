"""Saved activations: the unique tensors that backward needs and the recomputation policy keeps.

The saved set follows from `needs` alone (see `replay`). For a classic layer (MHA, GELU, width 4d, dropout, bf16,
masks of one byte) it is 34 b s d + 5 b h s^2 bytes, 34 b s d when what is quadratic is recomputed, 2 b s d when whole
layers are: the coefficients of Korthikanti et al. 2022 (arXiv:2205.05198) are this fold on that graph.
"""

from __future__ import annotations

from typing import Any

from jaxcost.contracts.dtypes import payload_bytes
from jaxcost.prediction.domain import is_formula
from jaxcost.prediction.liveness import Peak, program_peak, supplied_peak
from jaxcost.prediction.program import Program
from jaxcost.prediction.replay import Saved, saveable_name, walk
from jaxcost.prediction.rows import Ledger, Row
from jaxcost.prediction.stages import Rank, Stage, ranks, share

CONVENTION = "unique tensors needed by backward, one microbatch"
OMITTED = "norm row statistics (rebuilt), compute-dtype copies of weights, index tables, workspace"


def stage_copies(program: Program, item: Saved, stage: Stage) -> Any:
    """Return how many copies of a saved tensor stand in a stage; the head keeps what the last layer hands on."""
    op = program.producers[item.name]
    if item.region == "outside" and op.group is not None:
        return item.copies if stage.head else 0
    return share(program, (stage,), op.scope, op.group, op.first, op.repeat)


def stage_saved_bytes(program: Program) -> dict[int, Any]:
    """Return the bytes that one microbatch leaves on a device of each virtual stage, by its number."""
    if program.case.workload.phase != "training":
        return {}
    kept = walk(program).saved
    found = {}
    for stage in (stage for rank in ranks(program) for stage in rank.stages):
        counts = ((program.tensors[item.name], stage_copies(program, item, stage)) for item in kept)
        found[stage.number] = sum(
            payload_bytes(program.device_elements(tensor), tensor.dtype) * copies for tensor, copies in counts
        )
    return found


def _fullest_rank(program: Program) -> Rank:
    """Return the pipeline rank on which one microbatch leaves most; of equals the first."""
    each = stage_saved_bytes(program)
    return max(ranks(program), key=lambda rank: sum(each[stage.number] for stage in rank.stages))


def saved(program: Program, remat: str | None = None) -> tuple[Row, ...]:
    """Return a row per saved tensor of one microbatch under a policy (default: the case's; see `replay.POLICIES`).

    Rows of region `block` are a layer's own; `outside` are the embedding's, the head's and what the last layer hands
    on. Under a pipeline `per_device` is of the rank on which one microbatch leaves most.
    """
    if program.case.workload.phase != "training":
        return ()
    whole = program.microbatch_sizes
    piped = program.case.execution.degree("pipeline") > 1
    stages = _fullest_rank(program).stages if piped else ()
    rows = []
    for item in walk(program, remat).saved:
        copies = sum(stage_copies(program, item, stage) for stage in stages) if piped else item.copies
        tensor = program.tensors[item.name]
        counts = (program.elements(tensor, whole), program.device_elements(tensor))
        each, here = (payload_bytes(count, tensor.dtype) for count in counts)
        last = item.needed_by[-1]
        fields = {
            "axes": tensor.axes,
            "dtype": tensor.dtype,
            "layers": item.copies,
            "role": tensor.role,
            "elements": counts[0],
            "bytes_per_layer": each,
            "copies": item.copies,
            "placement": "host" if on_host(program, item) else "device",
            "needed_by": item.needed_by,
            "created": f"{program.producers[item.name].scope} forward",
            "last_use": last,
            "released": f"after {last}",
        }
        rows.append(
            Row(
                tensor.name,
                tensor.scope,
                "forward",
                each * item.copies,
                "bytes",
                fields,
                CONVENTION,
                OMITTED,
                region=item.region,
                per_device=here * copies,
            )
        )
    return tuple(rows)


def on_host(program: Program, item: Saved) -> bool:
    """Return whether the case's policy rests a saved tensor in host memory."""
    run = program.case.execution
    by_name = run.remat == "save_and_offload_only_these_names"
    return by_name and saveable_name(program, item.name) in run.remat_names


def activations(program: Program) -> Ledger:
    """Return the activation ledger.

    `peak_bytes` is the cut through the supplied liveness events, None without them: no events is not a peak of zero.
    `program_order_peak_bytes` replays the program's own tensors in declared order, per device, one microbatch.
    """
    rows = saved(program)
    totals: dict[str, Any] = {
        "saved_bytes": sum((row.value for row in rows), 0),
        "saved_bytes_per_device": sum((row.per_device for row in rows), 0),
        "peak_bytes": None,
    }
    reasons = {}
    supplied = program.case.liveness
    if supplied is None:
        reasons["peak_bytes"] = "no liveness events supplied"
    else:
        peak = supplied_peak(supplied)
        totals.update(peak_bytes=peak.bytes, process_peak_bytes=peak.bytes + supplied.persistent_bytes)
        rows += (_peak_row(peak, "supplied events", "half-open intervals, release before birth"),)
    if is_formula(program.sizes.axis("b"), program.sizes.axis("s")):
        totals["program_order_peak_bytes"] = None
        reasons["program_order_peak_bytes"] = "a largest cut is a choice between sizes, which symbols do not have"
        return Ledger("activations", totals, rows, reasons)
    own = program_peak(program)
    totals["program_order_peak_bytes"] = own.bytes
    rows += (
        _peak_row(own, "program order", "program-order-v1: a tensor lives from its op to its last use, nothing fused"),
    )
    return Ledger("activations", totals, rows, reasons)


def _peak_row(peak: Peak, name: str, convention: str) -> Row:
    fields = {"at": peak.at, "alive": dict(peak.alive)}
    return Row(
        f"peak, {name}",
        "",
        peak.phase,
        peak.bytes,
        "bytes",
        fields,
        convention,
        "allocator rounding, workspace not declared",
    )
