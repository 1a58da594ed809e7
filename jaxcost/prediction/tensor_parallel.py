"""What a device holds of each product with a weight: the slice of the weight, its operand and its result.

Tensor parallelism is derived one contraction at a time from its axes (Shoeybi et al. 2019, arXiv:1909.08053). An axis
of the weight that is sliced and kept makes the product column parallel: each rank has its own part of the output and
needs the whole operand. An axis that is sliced and summed over makes it row parallel: each rank has a partial sum of
the full output extent, which is reduced before anything else may use it. The vocabulary is sliced like a column in the
head, and looked up like a row in the embedding, where a rank knows the rows of its own tokens only.

Under sequence parallelism (Korthikanti et al. 2022, arXiv:2205.05198) the stream [b, s, d] between the products lies by
rows over the same ranks: it is gathered before a column and reduce-scattered after a row. Sizes are those of one
microbatch and one layer.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from jaxcost.contracts.dtypes import payload_bytes
from jaxcost.prediction.domain import ceil_div
from jaxcost.prediction.program import Contraction, Lookup, Op, Program, Tensor
from jaxcost.prediction.rows import Row
from jaxcost.prediction.sharding import SHARDED

CONVENTION = "one layer, one microbatch; weights in the compute dtype"
OMITTED = "workspace, copies made for a collective"


class Local(NamedTuple):
    """A product with a weight as one device has it.

    Attributes:
        scope: the component.
        kind: `column`, `row`, `vocabulary column`, `vocabulary row`, or `whole` where nothing is sliced.
        axis: the sliced axis, empty where there is none.
        ranks: tensor ranks.
        replicas: ranks that hold the same slice (K/V heads fewer than ranks; all of them where nothing is sliced).
        weight_bytes, weight_shard_bytes: the weight, and a device's slice of it.
        input_bytes: the operand that the product reads on a device, gathered where it must be.
        output_bytes: what the product leaves on a device; a partial sum for a row.
        kept_bytes: what is left of that after the collective.
        collective: `all_reduce`, `reduce_scatter` or empty, on the output in the forward pass.
        dtype: of the output.
    """

    scope: str
    kind: str
    axis: str
    ranks: int
    replicas: int
    weight_bytes: Any
    weight_shard_bytes: Any
    input_bytes: Any
    output_bytes: Any
    kept_bytes: Any
    collective: str
    dtype: str


def locals_of(program: Program) -> tuple[Local, ...]:
    """Return every product with a weight, and every lookup in a token table, in execution order."""
    found: list[Local] = []
    seen: set[tuple[str, str]] = set()
    for op in program.ops:
        weight = next((name for name in op.inputs if program.is_weight(name)), None)
        if weight is None or not isinstance(op, Contraction | Lookup) or (op.scope, op.outputs[0]) in seen:
            continue
        if op.first and any(local.scope == op.scope for local in found):
            continue  # a later section of the same layers
        seen.add((op.scope, op.outputs[0]))
        found.append(_local(program, op, program.tensors[weight]))
    return tuple(found)


def _local(program: Program, op: Op, weight: Tensor) -> Local:
    run, sizes = program.case.execution, program.device_microbatch_sizes
    ranks, width = run.degree("tensor"), program.case.state.compute_dtype
    out = program.tensors[op.outputs[0]]
    sliced = [axis for axis in weight.axes.split() if SHARDED.get(axis) == "tensor"] if ranks > 1 else []
    axis = sliced[0] if sliced else ""
    whole = program.elements(weight)
    own, replicas = whole, ranks
    if axis:
        extent = program.sizes.axis(axis, weight.group)
        pieces = extent if axis == "k" and extent < ranks else ranks
        own, replicas = whole // extent * ceil_div(extent, pieces), ranks // pieces
    kind, collective = "whole", ""
    if axis:
        summed = axis not in out.axes.split()
        kind = ("vocabulary " if axis == "v" else "") + ("row" if summed else "column")
        if summed:
            collective = "reduce_scatter" if run.sequence_parallel else "all_reduce"
    read = next((program.tensors[name] for name in op.inputs if not program.is_weight(name)), None)
    return Local(
        op.scope,
        kind,
        axis,
        ranks,
        replicas,
        payload_bytes(whole, width),
        payload_bytes(own, width),
        payload_bytes(program.elements(read, sizes), read.dtype) if read else 0,
        payload_bytes(program.elements(out, sizes), out.dtype),
        payload_bytes(program.device_elements(out), out.dtype) if kind.endswith("row") else
        payload_bytes(program.elements(out, sizes), out.dtype),
        collective,
        out.dtype,
    )  # fmt: skip


def contraction_rows(program: Program) -> tuple[Row, ...]:
    """Return a row per product with a weight, under a tensor axis; its value is what the product leaves on a device."""
    if program.case.execution.degree("tensor") == 1:
        return ()
    rows = []
    for local in locals_of(program):
        fields = {name: value for name, value in local._asdict().items() if name != "scope"}
        fields |= {"copies": 1, "placement": "device", "created": "by the product", "released": "after its last use"}
        rows.append(
            Row(
                f"{local.kind} parallel" if local.axis else "not sliced",
                local.scope,
                "forward",
                local.output_bytes,
                "bytes",
                fields,
                CONVENTION,
                OMITTED,
                per_device=local.output_bytes,
            )
        )
    return tuple(rows)
