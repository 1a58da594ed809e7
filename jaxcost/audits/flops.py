"""FLOPs of the compiled program, per device and step, and the counts of everything that is no contraction."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from jaxcost.audits.evidence import Evidence, Notes, number
from jaxcost.audits.weights import Weights
from jaxcost.observation.hlo.amounts import Amount
from jaxcost.observation.hlo.flops import FlopCount, FlopRow, Unknown
from jaxcost.observation.hlo.primitives import count_primitives
from jaxcost.observation.hlo.trips import ZERO
from jaxcost.observation.sections import short_path

LISTED = 100  # instructions listed one by one, largest first; the sums hold all of them
CONVENTION = (
    "one multiplication and addition is 2 FLOPs (8 where both factors are complex); contractions, convolutions, "
    "kernels by shape or by their own declaration, linear algebra by the conventions named; attention over the full "
    "square; products executed as multiply and reduce too; primitives apart"
)


def section(evidence: Evidence, notes: Notes) -> dict[str, Any]:
    """Return FLOPs in total, by phase, scope, class and type, and the largest instructions.

    `total` is an integer, the interval that a conditional leaves, or null with `reason` while something is unknown;
    `minimum` is what is certainly executed and `maximum` null where nothing bounds it. `active` leaves out masked
    groups of ragged products; `elementwise_products` are the part of the total that the compiler executes as multiply
    and reduce. `weight` of a row is the path of the argument that it multiplies, or whose gradient it is.
    """
    work = evidence.work
    for unknown in work.unknowns:
        _note(unknown, notes)
    _findings(work, notes)
    reasons: dict[str, str] = {}

    def value(amount: Amount, name: str) -> int | dict[str, int] | None:
        if amount.value is None:
            reasons[name] = amount.reason
        return amount_value(amount)

    weights = Weights(evidence)
    listed = sorted(work.rows, key=lambda row: -(row.total.maximum if row.total.maximum is not None else row.flops))
    return {
        "total": amount_value(work.amount), "minimum": work.minimum, "maximum": work.maximum, "reason": work.reason,
        "convention": CONVENTION,
        "by_phase": {phase: value(amount, phase) for phase, amount in work.by_phase.items()},
        "by_class": {name: value(amount, name) for name, amount in work.by_class.items()},
        "by_dtype": {dtype: value(amount, dtype) for dtype, amount in work.by_dtype.items()},
        "by_scope": [
            {"scope": scope, "phase": phase, "flops": value(amount, f"{scope} {phase}"), "minimum": amount.minimum}
            for (scope, phase), amount in work.by_place.items()
        ],
        "active": value(work.active, "active"),
        "elementwise_products": value(work.elementwise_products, "elementwise_products"),
        "conventions": sorted({row.convention for row in work.rows if row.basis == "convention"}),
        "instructions": len(work.rows),
        "rows": [{**_row(row, evidence), "weight": weights.label(row)} for row in listed[:LISTED]],
        "not_listed": {
            "count": len(listed[LISTED:]), "total": number(sum((row.total for row in listed[LISTED:]), ZERO)),
        },
        "reasons": reasons,
    }  # fmt: skip


def primitives(evidence: Evidence, notes: Notes) -> dict[str, Any]:
    """Return counts of operations that are no contraction, by kind; null where a loop has no trip count.

    An estimate (`sort_comparisons`) is a finding and no count; so are library calls whose own operations are not in the
    module.
    """
    found = count_primitives(evidence.graph, evidence.reading.contractions.strength_reduced)
    for name, amount in found.estimates.items():
        text = f"{name.replace('_', ' ')}: about {amount.minimum}, by n log2 n; an estimate, in no count"
        notes.find("estimate", text)
    if found.hidden:
        notes.find("hidden_primitives", f"what these calls do elementwise is in no count: {', '.join(found.hidden)}")
    return {name: amount_value(amount) for name, amount in found.totals.items()}


def amount_value(amount: Amount) -> int | dict[str, int] | None:
    """An amount in JSON: its integer, the interval it lies in, or None."""
    if amount.maximum is None:
        return None
    return amount.minimum if amount.value is not None else {"minimum": amount.minimum, "maximum": amount.maximum}


def _row(row: FlopRow, evidence: Evidence) -> dict[str, Any]:
    source = evidence.user_source(evidence.graph.module.instructions[row.id]) if row.source else ""
    return {
        "name": row.name, "target": row.target or row.opcode, "class": row.kind, "basis": row.basis,
        "convention": row.convention, "scope": row.scope, "phase": row.phase, "source": source,
        "op_name": row.op_name, "operands": list(row.operands), "result": row.result, "dtype": row.dtype,
        "flops": row.flops, "logical_flops": row.logical_flops, "active_flops": row.active_flops,
        "executions": number(row.executions), "total": number(row.total), "precision": row.precision,
        "passes": row.passes, "detail": row.detail,
    }  # fmt: skip


def _note(unknown: Unknown, notes: Notes) -> None:
    notes.unknown(
        unknown.name, unknown.kind, unknown.reason, target=unknown.target, scope=unknown.scope, phase=unknown.phase,
        shapes=[shape for shape in (*unknown.operands, unknown.result) if shape], source=short_path(unknown.source),
        executions=number(unknown.executions), voids_total=unknown.voids, estimate=unknown.estimate,
        convention=unknown.convention, detail=unknown.detail,
    )  # fmt: skip


def _findings(work: FlopCount, notes: Notes) -> None:
    for group in work.dense_groups:
        if group.flops.value is None or group.active.value is None:
            continue
        text = (
            f"{group.name} is a product of groups compiled dense over {group.groups} groups under a mask: "
            f"{group.flops.value:,} FLOPs are executed, {group.active.value:,} belong to a row's own group"
        )
        notes.find("compiled_dense", text, where=group.scope or group.name, flops=group.flops.value)
    products = work.elementwise_products
    if products.minimum:
        text = f"products of {products.minimum:,} FLOPs are executed as multiply and reduce, on no matrix unit"
        notes.find("elementwise_products", text, flops=products.minimum)
    padded = [row for row in work.rows if row.logical_flops is not None and row.logical_flops != row.flops]
    more = sum(_excess(padded))
    if more:
        text = f"{more} FLOPs multiply padding that the compiler wrote out, in {len(padded)} products or convolutions"
        notes.find("padding", text, flops=more)


def _excess(rows: Iterable[FlopRow]) -> Iterable[int]:
    for row in rows:
        times = row.executions.value
        if times is not None and row.logical_flops is not None:
            yield (row.flops - row.logical_flops) * times
