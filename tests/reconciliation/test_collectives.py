"""Transfers of recorded programs: exact or explained; one taken away, one byte changed, one evidence less is open."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from jaxcost.reconciliation.collectives import Transfers
from jaxcost.reconciliation.rows import Row
from tests.reconciliation.recorded import named, observed, prediction

CPU, H100 = (named(f"llama-3.1-8b_training_{target}", fsdp=8) for target in ("cpu-8", "h100-8"))
TPU = named("llama-3.1-8b_training_tpu-v5p-2x2x4")
Change = Callable[[dict[str, Any]], object]


def transfers(name: str, change: Change | None = None) -> Transfers:
    return Transfers(prediction(name), observed(name, change))


def rows(name: str, change: Change | None = None) -> dict[str, Row]:
    return {row.key: row for row in transfers(name, change).rows()}


def sharded(document: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = document["collectives"]["rows"]
    return found


def first(document: dict[str, Any], kind: str, part: Callable[[dict[str, Any]], bool] = lambda part: True) -> Any:
    return next(row for row in sharded(document) if row["kind"] == kind and any(map(part, row["parts"])))


@pytest.mark.parametrize("name", [CPU, H100, TPU])
def test_every_transfer_of_the_record_is_exact_or_explained(name: str) -> None:
    found = rows(name)
    assert {row.status for row in found.values()} <= {"exact", "explained"}
    assert found["collective_bytes"].observation
    assert not list(transfers(name).findings())
    total = sum(row.prediction for key, row in found.items() if key.startswith("collective:"))  # type: ignore[misc]
    assert total == prediction(name).ledgers["collectives"].totals["payload_bytes"]


def test_each_explanation_names_instructions_of_the_module() -> None:
    for name in (CPU, H100, TPU):
        there = {row["name"] for row in sharded(dict(observed(name).data))}
        for row in rows(name).values():
            for item in row.explanations:
                assert any(instruction in item.evidence for instruction in there), (row.key, item)


def test_what_cpus_do_otherwise_is_named() -> None:
    reasons = {item.reason for row in rows(CPU).values() for item in row.explanations}
    assert reasons == {"sent in a wider type than declared", "an all-reduce and a slice in place of a reduce-scatter"}
    # fp32 in place of bf16 doubles what moves, and the swap of a reduce-scatter for an all-reduce adds nothing.
    whole = rows(CPU)["collective_bytes"]
    amounts = {item.reason: item.amount for item in whole.explanations}
    assert amounts["an all-reduce and a slice in place of a reduce-scatter"] == 0
    assert amounts["sent in a wider type than declared"] == whole.residual


@pytest.mark.parametrize("name", [CPU, H100, TPU])
@pytest.mark.parametrize("kind", ["all-gather", "all-reduce"])
def test_a_transfer_taken_away_or_added_opens_its_row(name: str, kind: str) -> None:
    def remove(document: dict[str, Any]) -> None:
        sharded(document).remove(first(document, kind))

    def add(document: dict[str, Any]) -> None:
        sharded(document).append(first(document, kind) | {"name": "added"})

    for change in (remove, add):
        found = rows(name, change)
        assert found["collective_bytes"].status == "open"
        assert [row for key, row in found.items() if key.startswith("collective:") and row.status == "open"]
    kinds = [finding.kind for finding in transfers(name, add).findings()]
    assert kinds and set(kinds) == {"undeclared collective"}  # one for each array of the added instruction


@pytest.mark.parametrize("name", [CPU, H100, TPU])
def test_one_byte_or_one_execution_more_opens_its_row(name: str) -> None:
    def byte(document: dict[str, Any]) -> None:
        part = first(document, "all-gather")["parts"][0]
        part["result_bytes"] += 1

    def execution(document: dict[str, Any]) -> None:
        first(document, "all-gather")["executions"] += 1

    def axes(document: dict[str, Any]) -> None:
        first(document, "all-gather")["axes"] = ["data"]

    for change in (byte, execution, axes):
        assert "open" in {row.status for row in rows(name, change).values()}


def test_an_explanation_without_its_evidence_is_none() -> None:
    """Without the slice that keeps a device's part, an all-reduce is no reduce-scatter."""

    def uncut(document: dict[str, Any]) -> None:
        part = next(p for p in first(document, "all-reduce", lambda p: bool(p["sliced"]))["parts"] if p["sliced"])
        part["sliced"] = []

    assert rows(CPU)["collective_bytes:reduce-scatter/fsdp"].status == "explained"
    assert rows(CPU, uncut)["collective_bytes:reduce-scatter/fsdp"].status == "open"

    def elsewhere(document: dict[str, Any]) -> None:
        for row in sharded(document):
            if row["kind"] == "collective-permute":
                row["scope"] = "group0/attn/elsewhere"
                for part in row["parts"]:
                    part["scope"] = row["scope"]

    assert rows(TPU)["collective_bytes"].status == "explained"
    assert rows(TPU, elsewhere)["collective_bytes"].status == "open"


def test_unknown_executions_are_not_zero() -> None:
    def forget(document: dict[str, Any]) -> None:
        first(document, "all-gather")["executions"] = None

    found = rows(H100, forget)
    assert found["collective_bytes"].observation is None
    assert found["collective_bytes:all-gather/fsdp"].status == "unmeasured"


def test_what_nobody_declared_is_found_with_its_line() -> None:
    def stray(document: dict[str, Any]) -> None:
        row = first(document, "all-reduce")
        part = row["parts"][0] | {"operand_bytes": 12, "result_bytes": 12, "scope": "head"}
        sharded(document).append(row | {"name": "stray", "source": "model.py:7", "parts": [part]})

    (finding,) = transfers(H100, stray).findings()
    assert finding.kind == "undeclared collective" and finding.evidence == ("stray",)
    assert "12 bytes" in finding.text and finding.text.endswith("at model.py:7")


def test_automatic_partitioning_and_several_slices_are_not_claimed() -> None:
    case = prediction(H100).case
    auto = case.replaced(execution=case.execution.replaced(sharding="auto"))
    from jaxcost.prediction.ledgers import predict

    seen = observed(H100, lambda document: document["collectives"]["rows"].remove(first(document, "all-gather")))
    found = Transfers(predict(auto), seen)
    assert {row.status for row in found.rows()} == {"unmeasured"}
    assert {finding.kind for finding in found.findings()} == {"automatic partitioning"}

    def two(document: dict[str, Any]) -> None:
        document["target"]["slice_count"] = 2
        row = first(document, "all-reduce")
        sent = row | {"kind": "send", "form": "host transfer ALL_REDUCE", "name": "send.1"}
        sharded(document).append(sent)

    assert {row.status for row in rows(TPU, two).values()} == {"unmeasured"}
    (finding,) = transfers(TPU, two).findings()
    assert finding.kind == "between slices" and "1 of 2 slices" in finding.text
