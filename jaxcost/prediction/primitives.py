"""Typed counts of non-matmul work: exponentials, roots, comparisons, random numbers and the rest, each kind apart.

There is no common unit: an exponential is not a FLOP. A lookup is a gather; its backward pass a scatter-add; a bias
gradient a reduction. The optimizer's update is counted per updated scalar.
"""

from __future__ import annotations

from typing import Any

from jaxcost.prediction.program import Count, Lookup, Op, Primitive, Program
from jaxcost.prediction.replay import declared, split_backward, walk
from jaxcost.prediction.rows import Ledger, Row
from jaxcost.prediction.state import factored_axes, population

# Per updated scalar, as optax 0.2 writes the update, the final addition to the parameter included.
OPTIMIZERS: dict[str, dict[str, int]] = {
    "none": {},
    "sgd": {"multiply": 1, "add": 1},
    "momentum": {"multiply": 2, "add": 2},
    "lion": {"multiply": 5, "add": 3, "sign": 1},
    "adam": {"multiply": 6, "add": 4, "divide": 3, "sqrt": 1},
    "adamw": {"multiply": 7, "add": 5, "divide": 3, "sqrt": 1},
}
# Adafactor: square, epsilon, means over rows and columns (factored) or a moving average (dense), scaling, clipping by
# the update's root mean square, scaling by the parameter's.
ADAFACTOR_FACTORED = {"multiply": 7, "add": 6, "divide": 1}
ADAFACTOR_DENSE = {"multiply": 8, "add": 5, "divide": 1, "rsqrt": 1}
CONVENTION = "one per element; subtraction is add; a reduction over n values counts n"
OMITTED = "type conversions, layout changes, tables of rotary, sinusoidal and alibi positions, loop control"


def counts_of(program: Program, op: Op, phase: str) -> tuple[Count, ...]:
    """Return an op's own counts, `forward` or `backward`."""
    if isinstance(op, Primitive):
        return op.forward if phase == "forward" else op.backward
    if isinstance(op, Lookup):
        axes = program.tensors[op.outputs[0]].axes
        if phase == "forward":
            return (Count("gather", 1, axes),)
        return (Count("scatter_add", 1, axes),) if op.gradients else ()
    return ()


def primitives(program: Program) -> Ledger:
    """Return the primitive ledger; totals are sums over phases by kind, `by_phase` keeps the phases apart."""
    rows: list[Row] = []
    for op in program.ops:
        for phase in ("forward", "backward"):
            rows.extend(_rows(program, op, phase, counts_of(program, op, phase)))
    for op in declared(program):
        rows.extend(_rows(program, op, "replay", counts_of(program, op, "forward"), "recomputation policy"))
    for op in walk(program).kernel:
        rows.extend(_rows(program, op, "replay", counts_of(program, op, "forward"), "blockwise backward"))
    for op in split_backward(program):
        rows.extend(_rows(program, op, "replay", counts_of(program, op, "forward"), "dQ apart from dK and dV"))
    rows.extend(optimizer_rows(program))
    totals: dict[str, Any] = {}
    by_phase: dict[str, dict[str, Any]] = {}
    for row in rows:
        totals[row.object] = totals.get(row.object, 0) + row.value
        apart = by_phase.setdefault(row.phase, {})
        apart[row.object] = apart.get(row.object, 0) + row.value
    return Ledger("primitives", {**dict(sorted(totals.items())), "by_phase": by_phase}, tuple(rows))


def _rows(program: Program, op: Op, phase: str, counts: tuple[Count, ...], cause: str = "") -> list[Row]:
    terms: dict[str, list[dict[str, Any]]] = {}
    for count in counts:
        extent = program.sizes.product(count.axes, op.group)
        term = {"coefficient": count.coefficient, "axes": count.axes, "extent": extent}
        terms.setdefault(count.kind, []).append(term)
    fields: dict[str, Any] = {"op": getattr(op, "kind", "lookup"), "makes": op.outputs[0], "layers": op.repeat}
    if cause:
        fields["cause"] = cause
    return [_row(kind, op.scope, phase, {**fields, "terms": each}, op.region) for kind, each in terms.items()]


def _row(kind: str, scope: str, phase: str, fields: dict[str, Any], region: str = "") -> Row:
    """Return a row whose value is the layers times the sum of coefficient x extent over its terms."""
    value = fields["layers"] * sum(term["coefficient"] * term["extent"] for term in fields["terms"])
    return Row(kind, scope, phase, value, "primitives", fields, CONVENTION, OMITTED, region=region)


def optimizer_rows(program: Program) -> list[Row]:
    """Return the counts of one update of every trainable array."""
    optimizer = program.case.state.optimizer
    scalars: dict[str, dict[int, Any]] = {}
    for entry in population(program, "updated"):
        per = OPTIMIZERS.get(optimizer)
        if per is None:
            per = ADAFACTOR_FACTORED if factored_axes(entry.shape) else ADAFACTOR_DENSE
        for kind, coefficient in per.items():
            counted = scalars.setdefault(kind, {})
            counted[coefficient] = counted.get(coefficient, 0) + entry.stored
    rows = []
    for kind, counted in scalars.items():
        terms = [
            {"coefficient": coefficient, "axes": "updated scalars", "extent": extent}
            for coefficient, extent in counted.items()
        ]
        fields = {"op": "update", "layers": 1, "optimizer": optimizer, "per": "updated scalar", "terms": terms}
        rows.append(_row(kind, "optimizer", "optimizer", fields))
    return rows
