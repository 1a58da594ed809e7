"""Matmul FLOPs of every contraction: forward, gradients of its operands, replay.

A contraction over distinct axes does 2 x their product FLOPs (one multiply-add is two). The gradient of either operand
is again a contraction over the same axes, hence as many FLOPs; it is counted where that operand needs one. Rows say
`dw` for a weight and `dx` for any other operand. Accumulating over microbatches splits the work and changes no total.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from jaxcost.contracts.kernels import SPLASH_ROWS, splash_block, splash_scheduled_pairs
from jaxcost.prediction.program import Contraction, Op, Program, matrix_axes
from jaxcost.prediction.replay import declared, split_backward, walk
from jaxcost.prediction.rows import Ledger, Row
from jaxcost.prediction.sizes import Sizes
from jaxcost.prediction.stages import Rank, overlap, ranks, share

FMA = "one multiply-add is two FLOPs; "
PAIRS = {"rectangular": "every query-key pair", "legal": "query-key pairs the mask lets through, windows included"}
OMITTED = "non-matmul primitives, embedding lookup, collectives"


def contraction_flops(program: Program, op: Contraction, pairs: str = "rectangular") -> Any:
    """Return 2 x the product of the contraction's axes over all its layers; 0 if no axis is summed over."""
    return product_flops(program.sizes, op, pairs)


def product_flops(sizes: Sizes, op: Contraction, pairs: str = "rectangular") -> Any:
    """Return `contraction_flops` of a contraction that stands alone, from the extents of its axes."""
    if not op.summed_axes:
        return 0
    return 2 * sizes.over_layers(op.axes, op.group, op.first, op.repeat, pairs)


def rank_contraction_flops(program: Program, op: Contraction, rank: Rank, pairs: str = "rectangular") -> Any:
    """Return `contraction_flops` of the layers that stand on a pipeline rank."""
    if not op.summed_axes:
        return 0
    if op.group is None:
        here = share(program, rank.stages, op.scope, None, 0, 1)
        return 2 * program.sizes.over_layers(op.axes, None, 0, 1, pairs) * here
    spans = (overlap(stage, op.group, op.first, op.repeat) for stage in rank.stages)
    return sum(2 * program.sizes.over_layers(op.axes, op.group, first, n, pairs) for first, n in spans)


def rank_flops(program: Program, rank: Rank, on_device: bool = False) -> Any:
    """Return the FLOPs of a pipeline rank, all phases and microbatches: of all its devices together, or of each."""
    pairs, sized = program.case.convention.attention_pairs, program.on_device if on_device else program
    return sum(rank_contraction_flops(sized, op, rank, pairs) for op in _executed(program))


@lru_cache(maxsize=16)
def busiest_rank(program: Program) -> Rank:
    """Return the pipeline rank whose devices have the most FLOPs; of equals the first."""
    found = ranks(program)
    return found[0] if len(found) == 1 else max(found, key=lambda rank: rank_flops(program, rank, on_device=True))


def _executed(program: Program) -> Iterator[Contraction]:
    """Yield every contraction as often as a step executes it: forward, for each gradient, for each replay."""
    for op in program.contractions:
        yield from (op for _ in range(1 + len(op.gradients)))
    for _, ops in _replays(program):
        yield from (op for op in ops if isinstance(op, Contraction))


def _replays(program: Program) -> tuple[tuple[str, tuple[Op, ...]], ...]:
    return (
        (f"remat {program.case.execution.remat}", declared(program)),
        ("blockwise backward", walk(program).kernel),
        ("dQ apart from dK and dV", split_backward(program)),
    )


def flops(program: Program) -> Ledger:
    """Return the FLOPs ledger.

    Splash computes only the blocks that a causal mask leaves; its rows say so in `scheduled_pairs` per head, next to a
    value that follows the convention.

    A row's value is 2 x `rows` x its other axes x `layers`; of a pairwise product, 2 x `pair_count` (of all its layers)
    x its other axes. `matrix` reads the product that is executed, for a gradient `product`, as m x k by k x n.

    `forward_causal` counts legal pairs only, whatever the convention of the other totals. `per_device` values are those
    of the worst device: sequences over data and fsdp, their rows over context, heads, MLP width and vocabulary over
    tensor, the layers of the busiest pipeline rank.
    """
    pairs = program.case.convention.attention_pairs
    rows: list[Row] = []
    causal: Any = 0
    for op in program.contractions:
        causal = causal + contraction_flops(program, op, "legal")
        rows.append(_row(program, op, "forward", "forward", pairs))
        for operand in op.gradients:
            part = "dw" if program.is_weight(operand) else "dx"
            rows.append(_row(program, op, "backward", part, pairs, operand))
    for cause, ops in _replays(program):
        again = [op for op in ops if isinstance(op, Contraction)]
        rows += [_row(program, op, "replay", "replay", pairs, cause=cause) for op in again]
    phases = ("forward", "backward", "replay")
    sums = {phase: sum((row.value for row in rows if row.phase == phase), 0) for phase in phases}
    device = {phase: sum((row.per_device for row in rows if row.phase == phase), 0) for phase in phases}
    totals = {
        "forward": sums["forward"],
        "backward": sums["backward"],
        "recompute": sums["replay"],
        "total": sum(sums.values()),
        "forward_causal": causal,
        "per_device_forward": device["forward"],
        "per_device_backward": device["backward"],
        "per_device_recompute": device["replay"],
        "per_device": sum(device.values()),
    }
    return Ledger("flops", totals, tuple(rows))


def _row(
    program: Program, op: Contraction, phase: str, part: str, pairs: str, operand: str = "", cause: str = ""
) -> Row:
    value = contraction_flops(program, op, pairs)
    if program.case.execution.degree("pipeline") == 1:
        device = contraction_flops(program.on_device, op, pairs)
    else:
        device = rank_contraction_flops(program.on_device, op, busiest_rank(program), pairs)
    fields: dict[str, Any] = {
        "contraction": op.spec,
        "layers": op.repeat,
        "microbatches": program.case.workload.accumulate,
    }
    fields.update({axis: program.sizes.axis(axis, op.group) for axis in op.axes.split()})
    if operand:
        fields |= {"gradient_of": operand, "product": op.gradient_spec(operand)}
    fields["matrix"] = matrix_axes(fields.get("product", op.spec))
    joint = " ".join(axis for axis in op.axes.split() if axis in "bstr")
    if program.is_pairwise(op):
        fields["pairs"] = pairs
        fields["pair_count"] = program.sizes.over_layers(joint, op.group, op.first, op.repeat, pairs)
    else:
        fields["rows"] = program.sizes.product(joint, op.group)
    if program.case.workload.attention == "splash" and program.is_pairwise(op):
        fields |= _scheduled(program)
    windows = program.sizes.windows[op.group] if op.group is not None and program.sizes.windows else ()
    if windows and program.is_pairwise(op):
        fields["windows"] = windows
    if cause:
        fields["cause"] = cause
    return Row(
        op.name,
        op.scope,
        phase,
        value,
        "FLOPs",
        fields,
        FMA + PAIRS[pairs],
        OMITTED,
        part=part,
        region=op.region,
        per_device=device,
    )


def _scheduled(program: Program) -> dict[str, Any]:
    """Return the block of a splash kernel and the pairs per head that it computes, where it can run at all."""
    rows = program.sizes.axis("s")
    if not isinstance(rows, int) or rows % SPLASH_ROWS:
        return {}
    block = splash_block(rows, program.case.workload.attention_block)
    return {"block": block, "scheduled_pairs": splash_scheduled_pairs(rows, block)}


def six_nd(program: Program) -> dict[str, Any]:
    """Return the terms of 6 N D for this program.

    N counts the scalars of the weight matrices that forward contractions use, D the rows they process; the pairwise
    products are three times their forward FLOPs. With every gradient needed and all rows projected onto the vocabulary
    `product + pairwise` equals forward plus backward exactly.
    """
    used, pairwise = 0, 0
    for op in program.contractions:
        if program.is_pairwise(op):
            pairwise = pairwise + contraction_flops(program, op)
        else:
            weight = next(program.tensors[name] for name in op.inputs if program.is_weight(name))
            used = used + program.elements(weight) * op.repeat
    rows = program.sizes.product("b s")
    return {
        "n_used": used,
        "rows": rows,
        "product": 6 * used * rows,
        "pairwise": 3 * pairwise,
        "total": 6 * used * rows + 3 * pairwise,
    }
