"""One row walked through in the order in which a discrepancy is found.

Shapes, elements, bytes, FLOPs, transfers, phase, residual, and what the residual's explanations rest on.

The order is a debugging habit: a wrong shape explains everything after it, so it is looked at first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxcost.contracts.case import Case
from jaxcost.contracts.dtypes import payload_bytes
from jaxcost.prediction.ledgers import predict
from jaxcost.prediction.program import Program
from jaxcost.prediction.rows import Row as LedgerRow
from jaxcost.reconciliation.rows import Report, Row


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
    tensors = _tensors(program, row)
    ledger_rows = [
        {"ledger": ledger.name, **item.to_dict()}
        for ledger in prediction.ledgers.values()
        for item in ledger.rows
        if _concerns(row, ledger.name, item)
    ]
    named = {unit: [item for item in ledger_rows if item["unit"] == unit] for unit in ("FLOPs", "primitives")}
    held = [item for item in ledger_rows if item["ledger"] in ("parameters", "state", "device", "kv_cache")]
    return {
        "report": report.name,
        "target": report.target,
        "row": key,
        "steps": [
            {
                "step": "shapes",
                "rows": [{key: t[key] for key in ("tensor", "axes", "shape", "layers")} for t in tensors],
            },
            {"step": "elements", "rows": [{"tensor": t["tensor"], "elements": t["elements"]} for t in tensors]},
            {
                "step": "bytes",
                "rows": [{"tensor": t["tensor"], "dtype": t["dtype"], "bytes": t["bytes"]} for t in tensors],
            },
            {"step": "what the ledgers hold", "rows": held},
            {"step": "FLOPs", "rows": named["FLOPs"]},
            {"step": "primitives", "rows": named["primitives"]},
            {"step": "transfers", "rows": [item for item in ledger_rows if item["ledger"] == "traffic"]},
            {"step": "phase", "rows": [{"phase": row.phase or "whole step", "workload": case.workload.to_data()}]},
            {"step": "residual", "rows": [row.to_dict()]},
            {
                "step": "explanations",
                "rows": [
                    {"amount": item.amount, "reason": item.reason, "rests on": item.evidence}
                    for item in row.explanations
                ],
            },
        ],
    }


# The ledgers that a counter is about, by the start of its name; of the others all rows of its scope concern it.
_LEDGERS = {
    "parameters": ("parameters",), "tensor": ("parameters",), "state": ("state",), "kv_cache": ("kv_cache", "device"),
    "argument_bytes": ("device",), "output_bytes": ("device",), "alias_bytes": ("device",), "fits": ("device",),
    "required_bytes": ("device", "activations"), "live_peak_bytes": ("device", "activations"),
    "bytes_moved": ("traffic",), "matmul_flops": ("flops", "traffic"), "jaxpr_matmul_flops": ("flops",),
    "traffic": ("traffic",), "activations": ("activations",), "flops": ("flops",),
}  # fmt: skip
_ROLES = {"argument_bytes": "argument", "output_bytes": "result"}


def _concerns(row: Row, ledger: str, item: LedgerRow) -> bool:
    """Whether a ledger row is part of what a compared row is about."""
    name = row.counter.split(".", 1)[0]
    if ledger not in _LEDGERS.get(name, (ledger,)):
        return False
    if name == "tensor":
        return item.object == row.scope
    if name == "state":
        return item.fields.get("role") == row.counter.split(".", 1)[1]
    if name in _ROLES:
        return item.phase == _ROLES[name]
    return _inside(item.scope, row.scope) and (not row.phase or item.phase in ("", row.phase))


def _tensors(program: Program, row: Row) -> list[dict[str, Any]]:
    if row.counter == "tensor":
        names = [row.scope] if row.scope in program.tensors else []
    else:
        scope = row.scope
        named = (n for op in program.ops if scope and _inside(op.scope, scope) for n in (*op.inputs, *op.outputs))
        names = list(dict.fromkeys(named))
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
                "layers": tensor.repeat,
                "dtype": tensor.dtype,
                "elements": elements,
                "bytes": payload_bytes(elements, tensor.dtype),
            }
        )
    return found


def _inside(scope: str, outer: str) -> bool:
    return not outer or scope == outer or scope.startswith(outer + "/")
