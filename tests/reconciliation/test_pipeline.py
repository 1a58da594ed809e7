"""What one program of all stages does beyond them is explained where the module shows it, and else open."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import pytest

from jaxcost.observation.observe import observe
from jaxcost.observation.observed import Observed
from jaxcost.prediction.ledgers import predict
from jaxcost.reconciliation.report import reconcile
from jaxcost.reconciliation.rows import Report
from tests.prediction.cases import TOY, case

OPTIONS: dict[str, Any] = {"batch": 16, "seq": 8, "accumulate": 4, "mesh": {"pipeline": 2, "data": 2}, "remat": "block"}


@cache
def seen(tied: bool) -> tuple[Any, Observed]:
    wanted = case(TOY | {"tied": tied}, "training", **OPTIONS)
    return predict(wanted), observe(wanted, "cpu:4", optimisation_level=0)


def report(tied: bool = False, change: Any = None) -> Report:
    prediction, found = seen(tied)
    data = copy.deepcopy(dict(found.data))
    if change is not None:
        change(data)
    return reconcile(prediction, Observed(data))


def opened(found: Report) -> set[str]:
    return {row.counter for row in found.rows if row.status == "open"}


def reasons(found: Report, counter: str) -> set[str]:
    return {item.reason for row in found.rows if row.counter == counter for item in row.explanations}


@pytest.mark.parametrize("tied", [False, True])
def test_all_is_exact_or_explained(tied: bool) -> None:
    found = report(tied)
    assert not opened(found) and not [f for f in found.findings if f.kind == "undeclared collective"]
    bubble = "stages run in the bubble of their pipeline too"
    assert bubble in reasons(found, "matmul_flops") and bubble in reasons(found, "jaxpr_matmul_flops")
    held = "both ends of the pipeline held by every rank"
    assert (held in reasons(found, "argument_bytes")) == (not tied)
    sent = reasons(found, "collective")
    assert {"handed on in every tick of the pipeline, the bubble's too",
            "sent by another rank of the pipeline: one program runs on all",
            "rows for the ends of the pipeline, which every rank computes",
            "a loss computed once, of all microbatches of the pipeline"} <= sent  # fmt: skip
    assert ("the gradient of a tied table, which every rank of the pipeline has whole" in sent) == tied


def no_loop(data: dict[str, Any]) -> None:
    data["hlo"]["loops"] = []


def no_table(data: dict[str, Any]) -> None:
    data["hlo"]["arguments"] = [row for row in data["hlo"]["arguments"] if "embed" not in row["path"]]


def fewer(data: dict[str, Any]) -> None:
    for row in data["collectives"]["rows"]:
        if row["kind"] == "collective-permute":
            row["executions"] -= 1


def once_more(data: dict[str, Any]) -> None:
    rows = data["collectives"]["rows"]
    rows.append(next(row for row in rows if row["axes"] == ["pipeline"] and row["kind"] == "all-reduce"))


@pytest.mark.parametrize(
    ("tied", "change", "counter"),
    [(False, no_loop, "matmul_flops"), (False, no_table, "argument_bytes"), (True, no_table, "collective"),
     (False, fewer, "collective"), (False, once_more, "collective")],
)  # fmt: skip
def test_without_its_evidence_a_row_is_open(tied: bool, change: Any, counter: str) -> None:
    assert counter in opened(report(tied, change))
