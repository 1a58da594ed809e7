"""Faults in varying a case (rows 7 and 8 of table 0x0DA): two fields at once, a base that cases no longer share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxcost.contracts.case import Case
from jaxcost.planning.sensitivity import vary
from jaxcost.planning.sensitivity.scenario import changed
from jaxcost.prediction.ledgers import predict
from jaxcost.verify.failures.common import Failure, rejected
from jaxcost.verify.failures.subjects import prefill

PARSER = "one declared field a case"
SCENARIO = "jaxcost.planning.sensitivity.scenario"


def _varied(*sets: object, case: Case | None = None, **options: Any) -> Any:
    return vary(case or prefill(), sets, formulas=False, **options)


def _also_batch(base: Case, values: Mapping[str, Any]) -> Case:
    """Make the case that was asked for, with eight times its batch: a vector that calls itself a single field."""
    return changed(base, {**values, "workload.batch": 8 * base.workload.batch})


def _left_behind() -> Any:
    """Predict each case, and leave its workload behind in the base."""
    base = prefill()

    def spoiling(case: Case) -> Any:
        base.__dict__["workload"] = case.workload  # past the record's own lock
        return predict(case)

    return _varied("batch=8", "kv_heads=1", case=base, predict=spoiling)


def failures() -> list[Failure]:
    """Return the rows of table 0x0DA about sensitivity."""
    return [
        rejected(
            "0x0DA/7",
            "head count and batch are altered in one case",
            "the cause of a change is ambiguous",
            PARSER,
            sound=lambda: _varied("kv_heads=1", "batch=8"),
            faulty=lambda: _varied("kv_heads=1,batch=8"),
            guard=f"{SCENARIO}:second_field",
        ),
        rejected(
            "0x0DA/7b",
            "a vector is passed off as a single field: the batch moves with the head count that was named",
            "a difference is put down to one field and has two causes",
            "the leaves that moved against those the field owns",
            sound=lambda: _varied("kv_heads=1"),
            faulty=lambda: _varied("kv_heads=1", apply=_also_batch),
            guard=f"{SCENARIO}:strays",
        ),
        rejected(
            "0x0DA/7c",
            "a field is set to the value it has",
            "a case without an effect looks like an invariant ledger",
            "the change against the base",
            sound=lambda: _varied({"logits": "final"}, case=prefill(logits="all")),
            faulty=lambda: _varied({"logits": "final"}),
            guard=f"{SCENARIO}:no_change",
        ),
        rejected(
            "0x0DA/7d",
            "a path from which the rest of the case follows is varied like a field",
            "phases with unlike state stand in one table as if one field lay between them",
            "the paths that are no field",
            sound=lambda: _varied("batch=2", case=prefill(seq=1)),
            faulty=lambda: _varied("workload.phase=decode", case=prefill(seq=1)),
            guard="jaxcost.planning.sensitivity.fields:not_a_field",
        ),
        rejected(
            "0x0DA/8",
            "the shared base is changed between cases",
            "later rows depend on the order",
            "the base's digest and content after every case",
            sound=lambda: _varied("batch=8", "kv_heads=1"),
            faulty=_left_behind,
            guard=f"{SCENARIO}:Base.verify",
        ),
    ]
