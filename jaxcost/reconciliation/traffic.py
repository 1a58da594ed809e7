"""Bytes that instructions move, against the declared schedule: an interval, because fusion decides.

The lower end is compulsory: arguments read once, results written once, but for a cache that copies hand on. The upper
end fuses nothing: every scalar operation of the declared primitives reads two operands and writes one, every product
reads both operands and writes its result, all of them four bytes wide, since interiors run in fp32 and a backend may
widen what it computes with. Moves that compute nothing, tile padding, scratch space of library calls and payloads of
collectives belong to no declared op: they are explanations with their own bytes. What remains must lie inside.
"""

from __future__ import annotations

from typing import Any

from jaxcost.observation.observed import Observed
from jaxcost.prediction.ledgers import Prediction
from jaxcost.prediction.primitives import primitives
from jaxcost.prediction.program import Program
from jaxcost.prediction.replay import declared
from jaxcost.reconciliation.rows import Explanation, Interval, Row

# Between perfect fusion and none lies the number of scalar operations that touch one stored byte: hundreds in one pass
# over a short sequence, thousands where scores grow with the square of a long one. Wider than this says nothing.
MAXIMUM_RATIO = 10_000
WIDEST_BYTES = 4


def traffic_rows(prediction: Prediction, observed: Observed) -> list[Row]:
    """Compare the bytes moved by top-level instructions of one device with the declared schedule's bounds."""
    seen: dict[str, Any] = observed.data["hlo"]["traffic"]
    parts = (seen["read_bytes"], seen["write_bytes"], seen["on_chip_bytes"])
    total = None if None in parts else sum(parts)
    totals = prediction.ledgers["device"].totals
    # A cache in decode is handed on and laid out anew by copies, which are named apart: neither its reading nor its
    # writing is then left to a declared op. Without it the lower end is lower, and still compulsory.
    moved = sum(row.per_device for row in prediction.ledgers["device"].rows if "/past_" in row.object)
    border = totals["argument_bytes"] + totals["output_bytes"]
    lower = border - 2 * moved
    upper = border + unfused_scalar_bytes(prediction.program.on_device)
    reason = "read, written and on-chip bytes of top-level instructions"
    return [
        Row("bytes_moved", "", "", "bytes", Interval(lower, upper, MAXIMUM_RATIO), total, _explanations(seen), reason)
    ]


def unfused_scalar_bytes(program: Program) -> int:
    """Return the bytes of a schedule that fuses nothing: three operands of four bytes per scalar operation, and both
    operands and the result of every product in every pass that runs it.
    """
    scalar = sum(count for count in primitives(program).totals.values() if isinstance(count, int))
    again = {id(op) for op in declared(program)}
    elements = 0
    for op in program.contractions:
        touched = sum(program.elements(program.tensors[name]) for name in (*op.inputs, *op.outputs))
        elements += touched * op.repeat * (1 + len(op.gradients) + (id(op) in again))
    return WIDEST_BYTES * (3 * scalar + elements)


def _explanations(seen: dict[str, Any]) -> tuple[Explanation, ...]:
    found = []
    categories = seen["by_category"]
    for name, reason in (
        ("copy", "moves that compute nothing: layouts, types, slices of stacked layers"),
        ("collective", "payloads of collectives, between devices"),
    ):
        parts = tuple(categories[name].values())
        if None not in parts and sum(parts):
            names = [move["name"] for move in seen["moves"] if move["category"] == name]
            shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
            found.append(Explanation(sum(parts), reason, f"category {name}: {shown}"))
    if seen["padding_bytes"]:
        evidence = "bytes of the layouts less those of the elements, instructions that compute"
        found.append(Explanation(seen["padding_bytes"], "tiles padded by the layout of the compiler", evidence))
    if seen["workspace_bytes"]:
        found.append(
            Explanation(seen["workspace_bytes"], "scratch space of library calls", "u8 or s8 results of custom calls")
        )
    return tuple(found)
