"""Declared replay whose results no backward op needs, found by walking needs and dataflow; nothing is named.

Automatic differentiation drops such work (in a pre-norm layer that is replayed whole, the last contraction: its
result only reaches the next layer's input, which is saved). The FLOPs ledger does not subtract it: the declaration
says replay.
"""

from __future__ import annotations

from jaxcost.prediction.flops import busiest_rank, contraction_flops, rank_contraction_flops
from jaxcost.prediction.program import Contraction, Program
from jaxcost.prediction.replay import declared, walk
from jaxcost.prediction.rows import Row


def dead_replay(program: Program) -> tuple[Row, ...]:
    """Return a row for every replayed contraction of no use; the value is its FLOPs over all layers,
    `per_device` those of the busiest pipeline rank.
    """
    useful = {id(op) for op in walk(program).useful}
    pairs = program.case.convention.attention_pairs
    local, rank = program.on_device, busiest_rank(program)
    return tuple(
        Row(
            op.name,
            op.scope,
            "replay",
            contraction_flops(program, op, pairs),
            "FLOPs",
            {"contraction": op.spec, "layers": op.repeat, "result": op.outputs[0]},
            "no backward op needs the result, or anything made from it inside the checkpoint",
            "",
            part="replay",
            region=op.region,
            per_device=rank_contraction_flops(local, op, rank, pairs),
        )
        for op in declared(program)
        if isinstance(op, Contraction) and id(op) not in useful
    )
