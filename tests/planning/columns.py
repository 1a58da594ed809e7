"""Comparisons made of recorded observations, whole or with one thing changed; nothing is compiled."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from jaxcost.contracts.case import Case
from jaxcost.observation.observe import failed
from jaxcost.observation.observed import Observed
from jaxcost.observation.pool import WorkerFailure
from jaxcost.observation.targets import parse_target
from jaxcost.planning.compare import Comparison, Planned, Spec, put_together
from tests.reconciliation.recorded import named, observed

H100 = named("llama-3.1-8b_training_h100-8_", fsdp=8)
FRACTIONS = ("0.75", "0.95")
Change = Callable[[dict[str, Any]], object]


def planned(record: str = H100, name: str | None = None) -> Planned:
    """The column of a record; `name` stands for its mesh."""
    seen = observed(record)
    case = Case.from_data(seen.data["case"])
    spec = Spec(case.execution.mesh_sizes)
    if name is not None:
        spec = Spec({name: 8})
    return Planned(spec, case, parse_target(seen.target))


def compared(*changes: Change | Observed | None, record: str = H100, base: str | None = None) -> Comparison:
    """Columns `a`, `b`, ... of one record, each with its document changed, or replaced by another observation."""
    items, seen = [], []
    for index, change in enumerate(changes):
        items.append(planned(record, name="abcdefgh"[index]))
        found = change if isinstance(change, Observed) or change is None else observed(record, change)
        seen.append(found)
    return put_together(items, seen, FRACTIONS, base)


def same(document: dict[str, Any]) -> None:
    """Change nothing."""


def requiring(size: int) -> Change:
    """A program that needs another number of bytes."""

    def change(document: dict[str, Any]) -> None:
        document["memory"]["required_bytes"] = size

    return change


def refused(text: str = "RESOURCE_EXHAUSTED: <too> large") -> Change:
    """A program that the compiler refuses."""

    def change(document: dict[str, Any]) -> None:
        document["status"], document["reason"] = "refused", text

    return change


def rematerialised(required: int, excess: int = 1000, status: str = "compiled") -> Change:
    """A program that XLA compiles again with its own rematerialisation."""

    def change(document: dict[str, Any]) -> None:
        document["memory"]["required_bytes"] = 2 * 84942979072
        document["rematerialisation"] |= {
            "needed": True,
            "second_compile": {
                "status": status, "refusal": None, "flops": document["hlo"]["flops"] + excess, "excess_flops": excess,
                "remat_instructions": 3, "remat_instruction_flops": 0, "excess_by_scope_phase": [], "names": [],
                "required_bytes": required, "live_peak_bytes": required, "flags": {}, "module_digest": "0" * 64,
                "compile_seconds": 1.0,
            },
        }  # fmt: skip

    return change


def died(kind: str, reason: str = "no answer within 1 s") -> Observed:
    """What is left of a worker that died."""
    item = planned()
    return failed(item.case, item.target, item.target.text, WorkerFailure(kind, reason))  # type: ignore[arg-type]


def document_of(comparison: Comparison) -> dict[str, Any]:
    """The document that --json prints."""
    from jaxcost.cli.output import document

    return copy.deepcopy(document("jaxcost.compare.v1", model="<llama & co>", **comparison.to_dict()))
