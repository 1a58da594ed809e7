"""Which arrays cross devices, and why: each row follows from the axes of a contraction and what splits them.

A product whose summed axes are split leaves partial sums on every device: they are reduced over the mesh axes that
split them, in the type of the product. Several products that make parts of one gradient are added first and reduced
once. So column-parallel projections reduce the gradient of their input over `tensor`, row-parallel ones their output
(Shoeybi et al. 2019, arXiv:1909.08053, section 3), and the gradient of a weight is summed over what splits the
sequences and rows. A matrix sharded over `fsdp` is gathered in the compute dtype where it is multiplied, again for the
backward pass where it was dropped, and its gradient is reduced and scattered (Zhao et al. 2023, arXiv:2304.11277).
With sequence parallelism an all-reduce over `tensor` becomes a reduce-scatter and an all-gather of rows (Korthikanti
et al. 2022, arXiv:2205.05198). An array that is merely resident is no communication, and a group of one sends nothing.

Rows give one device's part: how often, what goes in and out each time, and what ideal algorithms would send
(`algorithms`). A pipeline's rows are those of the rank that moves most. A replayed product of which no backward op
needs anything is left out, with its collectives.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from jaxcost.contracts.dtypes import BITS, payload_bytes
from jaxcost.contracts.mesh import program_mesh
from jaxcost.prediction import algorithms
from jaxcost.prediction.domain import ceil_div
from jaxcost.prediction.program import Program
from jaxcost.prediction.rows import Ledger, Row
from jaxcost.prediction.stages import Rank, ranks
from jaxcost.prediction.transfers import Transfer, participants, transfers

CONVENTION = "payload of one device: the whole array before a reduction, after a gather, as sent otherwise"
OMITTED = "headers, retries, routes, padding of communication buckets"
NO_NODES = "how many devices share a node is a fact of the target, and none is named"
UNEVEN = "the groups of this collective lie differently on nodes"
UNKNOWN_FACTORS = "which factors of Adafactor are reduced over sharded axes is not predicted in this version"


def collectives(program: Program, devices_per_node: int | None = None) -> Ledger:
    """Return the collectives ledger: a row per transfer, its payload times its executions as the value.

    Args:
        program: the declared step.
        devices_per_node: consecutive devices that share a node (or a slice); rows then tell sends inside from sends
            between. None: not told apart.
    """
    case = program.case
    names = ("payload_bytes", "by_kind", "by_axis", "ring_send_bytes")
    if case.state.optimizer == "adafactor" and any(case.execution.degree(axis) > 1 for axis in ("fsdp", "tensor")):
        return Ledger("collectives", dict.fromkeys(names), (), dict.fromkeys(names, UNKNOWN_FACTORS))
    choices = [rank_rows(program, rank, devices_per_node) for rank in ranks(program)]
    rows = max(choices, key=lambda listed: sum(row.value for row in listed)) if len(choices) > 1 else choices[0]
    by_kind: dict[str, Any] = {}
    by_axis: dict[str, Any] = {}
    ring: Any = 0
    for row in rows:
        by_kind[row.fields["kind"]] = by_kind.get(row.fields["kind"], 0) + row.value
        by_axis[row.fields["axis"]] = by_axis.get(row.fields["axis"], 0) + row.value
        ring = ring + row.fields["ring_send_bytes"] * row.fields["times"]
    totals = dict(zip(names, (sum((row.value for row in rows), 0), by_kind, by_axis, ring), strict=True))
    return Ledger("collectives", totals, tuple(rows))


def rank_rows(program: Program, rank: Rank, devices_per_node: int | None = None) -> list[Row]:
    """Return the rows of one pipeline rank."""
    return [_row(program, found, devices_per_node) for found in transfers(program, rank)]


def _row(program: Program, found: Transfer, devices_per_node: int | None) -> Row:
    count = participants(program, found.axes)
    payload, times = payload_bytes(found.elements, found.dtype), found.layers * found.microbatches
    itemsize = BITS[found.dtype] // 8
    padded = ceil_div(found.elements, count) * count * itemsize
    inside = between = None
    reason = "" if devices_per_node is not None else NO_NODES
    if devices_per_node is not None:
        mesh, axes = _on_mesh(program, found.axes)
        level = algorithms.levels(mesh, axes, devices_per_node)
        reason = "" if level is not None else UNEVEN
        if level is not None:
            inside, between = algorithms.hierarchical_send_bytes(found.kind, padded, level)
    into, out = algorithms.ends(found.kind, payload, count)
    fields: dict[str, Any] = {
        "kind": found.kind,
        "boundary": "between devices",
        "axis": ",".join(found.axes),
        "participants": count,
        "dtype": found.dtype,
        "elements": found.elements,
        "payload_bytes": payload,
        "input_bytes": into,
        "output_bytes": out,
        "layers": found.layers,
        "microbatches": found.microbatches,
        "times": times,
        "made_by": found.made_by,
        "needed_by": found.needed_by,
        "ring_send_bytes": algorithms.ring_send_bytes(found.kind, padded, count),
        "tree_send_bytes": algorithms.tree_send_bytes(found.kind, padded, count),
        "inside_send_bytes": inside,
        "between_send_bytes": between,
    }
    if reason:
        fields["reason"] = reason
    if found.terms:
        fields["terms"] = found.terms
    return Row(
        found.object, found.scope, found.phase, payload * times, "bytes", fields, CONVENTION, OMITTED,
        region="block" if found.scope.startswith("group") else "outside", per_device=payload * times,
    )  # fmt: skip


def _on_mesh(program: Program, axes: Iterable[str]) -> tuple[list[tuple[str, int]], list[str]]:
    """Return the mesh that devices are numbered by, in which a tensor axis may be cut in two, and axes by its names."""
    names = {"tensor_heads": ("tensor",), "tensor": ("tensor", "tensor_replica")}
    return list(program_mesh(program.case).items()), [part for axis in axes for part in names.get(axis, (axis,))]
