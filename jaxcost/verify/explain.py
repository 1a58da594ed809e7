"""One row walked through in the order in which a discrepancy is found.

Shapes, elements, bytes, FLOPs, transfers, phase, residual.

The order is a debugging habit: a wrong shape explains everything after it, so it is looked at first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxcost.contracts.case import Case
from jaxcost.contracts.dtypes import payload_bytes
from jaxcost.prediction.ledgers import predict
from jaxcost.prediction.program import Program
from jaxcost.reconciliation.rows import Report


def explain_row(report: Report, key: str) -> Mapping[str, Any]:
    """Return the walk of one row of a report, as plain data with one entry per step.

    Raises:
        KeyError: the report has no such row.
    """
    row = report.row(key)
    if row is None:
        raise KeyError(key)
    case = Case.from_data({name: value for name, value in report.case.items() if name in Case.model_fields})
    prediction = predict(case)
    program = prediction.program
    tensors = _tensors(program, row.scope)
    ledger_rows = [
        {"ledger": ledger.name, **item.to_dict()}
        for ledger in prediction.ledgers.values()
        for item in ledger.rows
        if _inside(item.scope, row.scope) and (not row.phase or item.phase in ("", row.phase))
    ]
    named = {unit: [item for item in ledger_rows if item["unit"] == unit] for unit in ("FLOPs", "primitives")}
    return {
        "report": report.name,
        "target": report.target,
        "row": key,
        "steps": [
            {
                "step": "shapes",
                "rows": [{"tensor": t["tensor"], "axes": t["axes"], "shape": t["shape"]} for t in tensors],
            },
            {"step": "elements", "rows": [{"tensor": t["tensor"], "elements": t["elements"]} for t in tensors]},
            {
                "step": "bytes",
                "rows": [{"tensor": t["tensor"], "dtype": t["dtype"], "bytes": t["bytes"]} for t in tensors],
            },
            {"step": "FLOPs", "rows": named["FLOPs"]},
            {"step": "primitives", "rows": named["primitives"]},
            {"step": "transfers", "rows": [item for item in ledger_rows if item["ledger"] == "traffic"]},
            {"step": "phase", "rows": [{"phase": row.phase or "whole step", "workload": case.workload.to_data()}]},
            {"step": "residual", "rows": [row.to_dict()]},
        ],
    }


def _tensors(program: Program, scope: str) -> list[dict[str, Any]]:
    names = dict.fromkeys(
        name for op in program.ops if _inside(op.scope, scope) for name in (*op.inputs, *op.outputs) if scope
    )
    found = []
    for name in names:
        tensor = program.tensors[name]
        elements = program.elements(tensor) * tensor.repeat
        shape = program.sizes.shape(tensor.axes, tensor.group)
        found.append(
            {
                "tensor": name,
                "axes": tensor.axes,
                "shape": list(shape),
                "dtype": tensor.dtype,
                "elements": elements,
                "bytes": payload_bytes(elements, tensor.dtype),
            }
        )
    return found


def _inside(scope: str, outer: str) -> bool:
    return not outer or scope == outer or scope.startswith(outer + "/")
