"""Saved activations: the unique tensors that backward needs and the recomputation policy keeps.

The saved set follows from `needs` alone (see `replay`). For a classic layer (MHA, GELU, width 4d, dropout, bf16,
masks of one byte) it is 34 b s d + 5 b h s^2 bytes, 34 b s d when what is quadratic is recomputed, 2 b s d when whole
layers are: the coefficients of Korthikanti et al. 2022 (arXiv:2205.05198) are this fold on that graph.
"""

from __future__ import annotations

from typing import Any

from jaxcost.contracts.dtypes import payload_bytes
from jaxcost.prediction.domain import domain_of
from jaxcost.prediction.liveness import Peak, program_peak, supplied_peak
from jaxcost.prediction.program import Program
from jaxcost.prediction.replay import walk
from jaxcost.prediction.rows import Ledger, Row

CONVENTION = "unique tensors needed by backward, one microbatch"
OMITTED = "norm row statistics (rebuilt), compute-dtype copies of weights, index tables, workspace"


def saved(program: Program, remat: str | None = None) -> tuple[Row, ...]:
    """Return a row per saved tensor of one microbatch under a policy (default: the case's; see `replay.POLICIES`).

    Rows of region `block` are a layer's own; `outside` are the embedding's, the head's and what the last layer hands
    on.
    """
    if program.case.workload.phase != "training":
        return ()
    whole = program.microbatch_sizes
    rows = []
    for item in walk(program, remat).saved:
        tensor = program.tensors[item.name]
        counts = (program.elements(tensor, whole), program.device_elements(tensor))
        each, here = (payload_bytes(count, tensor.dtype) for count in counts)
        fields = {
            "axes": tensor.axes,
            "dtype": tensor.dtype,
            "layers": item.copies,
            "role": tensor.role,
            "bytes_per_layer": each,
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
                per_device=here * item.copies,
            )
        )
    return tuple(rows)


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
    if domain_of(program.sizes.axis("b"), program.sizes.axis("s")) == "sympy":
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
