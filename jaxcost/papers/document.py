"""The document that `jaxcost papers --json` prints, and from which its tables and its page are made.

Exact numbers are integers or, where a fraction does not come out whole, the text `p/q`; `about` beside it is a float.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from typing import Any

from jaxcost.contracts.case import Case
from jaxcost.papers.contract import AXES, KINDS, Contract
from jaxcost.papers.expression import Interval
from jaxcost.papers.gate import Comparison, Normalised, OpenAxis, compare_all
from jaxcost.papers.reproduce import Cell, Reproduction, reproduce, worst
from jaxcost.papers.translate import Step, Translation
from jaxcost.prediction.rows import plain


def contracts_document(
    contracts: Sequence[Contract], prove: bool, progress: Callable[[str], None] = lambda message: None
) -> dict[str, Any]:
    """Return contracts with their tables reproduced; `prove` adds each form on symbols.

    More than one contract in one document is no comparison: `comparison` says so, with every axis open.
    """
    found = []
    for index, item in enumerate(contracts):
        progress(f"[{index}/{len(contracts)}] {item.name}")
        found.append(reproduce(item, prove))
    statuses = [item.status for item in found if item.status != "unmeasured"]
    status = worst(statuses) if statuses else "unmeasured"
    closed = [{"axis": axis, "reason": "no target manifest"} for axis in AXES]
    comparison = {"status": "not_comparable", "target_case_id": None, "open": closed, "kinds": []}
    return {
        "status": status,
        "exit_code": int(status == "open"),
        "contracts": [contract_data(item) for item in found],
        "comparison": comparison,
    }


def comparison_document(contracts: Sequence[Contract], target: Case, named: bool) -> dict[str, Any]:
    """Return contracts on one target.

    Args:
        contracts: what is compared.
        target: the case all are brought to.
        named: the caller named these contracts, so a gate that stays closed for all of their figures is a refusal.
    """
    found = compare_all(contracts, target)
    wanted = min(2, len(contracts)) if named else 2
    opened = any(item.status == "normalized" and _sources(item) >= wanted for item in found)
    status = "normalized" if opened else max((_status(item) for item in found), key=_GATE.index)
    return {
        "status": status,
        "exit_code": int(named and not opened),
        "case": {**target.to_data(), "digest": target.digest},
        "contracts": [summary(item) for item in contracts],
        "comparison": {
            "status": status,
            "target_case_id": target.digest,
            "open": [],
            "kinds": [_kind(item, target) for item in found],
        },
    }


_GATE = ("not_comparable", "partly_normalized", "normalized")


def _sources(found: Comparison) -> int:
    return len({item.claim.contract.name for item in found.claims})


def _status(found: Comparison) -> str:
    """Return `partly_normalized` where some claims of a kind give numbers and others are closed."""
    given = any(not item.open for item in found.claims)
    return "partly_normalized" if found.status == "not_comparable" and given and not found.open else found.status


def summary(contract: Contract) -> dict[str, Any]:
    """Return what a contract declares, without its tables' cells."""
    axes = contract.axes.to_data()
    return {
        "name": contract.name,
        "title": contract.title,
        "kind": contract.kind,
        "primary_object": contract.primary_object,
        **{axis: axes[axis] for axis in AXES},
        "source": contract.source.to_data(),
        "symbols": [item.to_data() for item in contract.symbols],
        "subsections": [item.to_data() for item in contract.subsections],
        "findings": [item.to_data() for item in contract.findings],
        "numeric_comparison": contract.numeric_comparison.to_data(),
        "quantities": [_quantity(contract, name) for name in contract.names],
        "tables": [{"name": item.name, "title": item.title, "locator": item.locator} for item in contract.tables],
    }


def contract_data(found: Reproduction) -> dict[str, Any]:
    """Return a contract with its forms, tables and peaks, each with its status."""
    contract = found.contract
    data = summary(contract)
    data["status"] = found.status
    proofs = {item.quantity.name: item for item in found.proofs}
    for item in data["quantities"]:
        item["proof"] = _proof(proofs.get(item["name"]))
    data["peaks"] = [_cell(item) for item in found.peaks]
    data["tables"] = []
    for table in contract.tables:
        cells = [item for item in found.cells if item.table == table.name]
        data["tables"].append(
            {
                "name": table.name,
                "title": table.title,
                "locator": table.locator,
                "columns": [
                    {"name": c.name, "title": c.title, "unit": c.unit, "role": c.role, "note": c.note}
                    for c in table.columns
                ],
                "rows": [list(row) for row in table.rows],
                "cells": [_cell(item) for item in cells if item.status != "unmeasured"],
                "unreproduced": [
                    {"column": item.column, "reason": item.reason} for item in cells if item.status == "unmeasured"
                ],
            }
        )
    return data


def _quantity(contract: Contract, name: str) -> dict[str, Any]:
    item = contract.quantity(name)
    data = item.to_data()
    return {
        key: data[key]
        for key in ("name", "title", "equation", "unit", "formula", "ledger", "remat", "differences", "kind",
                    "requires", "rank_local", "subsection")
    }  # fmt: skip


def _proof(found: Translation | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "status": found.status,
        "ledger": _symbolic(found.ledger),
        "differences": [{"name": item.name, "closed_form": _symbolic(item.amount)} for item in found.steps],
        "formula": _symbolic(found.formula),
        "residual": _symbolic(found.residual),
    }


def _symbolic(value: Any) -> str:
    import sympy

    return str(sympy.expand(sympy.sympify(value)))


def _number(value: Any) -> dict[str, Any]:
    """Return an exact number and a float of it; null for an unknown."""
    if value is None:
        return {"value": None, "about": None}
    exact = Fraction(value)
    return {"value": plain(exact), "about": float(exact)}


def _steps(steps: Iterable[Step]) -> list[dict[str, Any]]:
    return [
        {"name": item.name, "amount": plain(item.amount), "about": float(item.amount), "form": item.form,
         "why": item.why}
        for item in steps
    ]  # fmt: skip


def _interval(found: Interval | None) -> dict[str, Any] | None:
    return None if found is None else {"lower": float(found.low), "upper": float(found.high)}


def _cell(item: Cell) -> dict[str, Any]:
    return {
        "row": item.row,
        "column": item.column,
        "printed": item.printed,
        "derived": item.derived,
        "computed": _number(item.computed),
        "difference": _number(item.residual),
        "half_unit": _number(item.tolerance),
        "allowed": _interval(item.allowed),
        "written": None if item.written is None else _number(item.written),
        "between": _steps(item.between),
        "ledgers": [
            {
                "quantity": used.quantity.name,
                "ledger": plain(used.ledger),
                "differences": _steps(used.steps),
                "formula": plain(used.formula),
                "residual": plain(used.residual),
                "status": used.status,
            }
            for used in item.ledgers
        ],
        "status": item.status,
        "reason": item.reason,
    }


def _kind(found: Comparison, target: Case) -> dict[str, Any]:
    values = [item.ledger for item in found.claims if not item.open]
    rows = target.workload.batch * target.workload.new_tokens
    per = rows if KINDS[found.kind] == "FLOPs" and target.workload.lengths is None else None
    return {
        "kind": found.kind,
        "unit": KINDS[found.kind],
        "status": _status(found),
        "open": _open(found.open),
        "ledger": plain(values[0]) if values else None,
        "rows": per,
        "claims": [_claim(item) for item in found.claims],
    }


def _claim(item: Normalised) -> dict[str, Any]:
    ratio = None if item.open else float(Fraction(item.value) / Fraction(item.ledger))
    return {
        "contract": item.claim.contract.name,
        "quantity": item.claim.quantity.name,
        "title": item.claim.quantity.title,
        "equation": item.claim.quantity.equation,
        "status": item.status,
        "value": plain(item.value),
        "ratio": ratio,
        "differences": _steps(item.steps),
        "cancels": False if item.open else item.cancels,
        "open": _open(item.open),
    }


def _open(found: Iterable[OpenAxis]) -> list[dict[str, str]]:
    return [{"axis": item.axis, "reason": item.reason} for item in found]
