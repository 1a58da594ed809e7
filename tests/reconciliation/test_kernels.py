"""Opaque attention calls in two recorded programs: explained by their own shapes, or not at all.

The records are of smollm-135m (9 query heads, 3 key/value heads of width 64), made by

    jaxcost verify smollm-135m --phase training --batch 2 --seq 512 --remat block --attention cudnn --target h100 \
        --record tests/reconciliation/kernels
    jaxcost verify smollm-135m --phase training --batch 2 --seq 512 --attention splash --target tpu-v5e \
        --record tests/reconciliation/kernels
"""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jaxcost.contracts.case import Case
from jaxcost.observation.hlo.schema import Proto
from jaxcost.observation.observed import Observed
from jaxcost.observation.record import read_record
from jaxcost.prediction.ledgers import Prediction, predict
from jaxcost.reconciliation.report import reconcile
from jaxcost.reconciliation.rows import Report
from tests.reconciliation.recorded import row_of, with_module

RECORDS = Path(__file__).with_name("kernels")
CUDNN, SPLASH = "smollm-135m_training_h100-1_7f71bfc2", "smollm-135m_training_tpu-v5e-1x1_966f92a7"
PAIR = 2 * 2 * 9 * 512 * 512 * 64 * 30  # two FLOPs, batch, heads, pairs, width, layers
REASON = "opaque kernel: declared closed form"
BF16 = 16  # its number in XLA's PrimitiveType
COUNTERS = ("jaxpr_matmul_flops", "matmul_flops")


@functools.cache
def read(name: str) -> Observed:
    return read_record(RECORDS / f"{name}.json")


@functools.cache
def prediction(name: str) -> Prediction:
    return predict(Case.from_data(read(name).data["case"]))


def report(name: str, change: Callable[[dict[str, Any]], object] | None = None) -> Report:
    document = copy.deepcopy(dict(read(name).data))
    if change is not None:
        change(document)
    return reconcile(prediction(name), Observed(document))


def statuses(found: Report) -> set[str]:
    return {row.status for row in found.rows if row.counter in (*COUNTERS, "opaque_flops")}


def amount(found: Report, key: str) -> int:
    return sum(item.amount for item in row_of(found, key).explanations if item.reason == REASON)


@pytest.mark.parametrize(("name", "products"), [(CUDNN, 9), (SPLASH, 9)])
def test_every_row_closes_and_the_calls_are_named(name: str, products: int) -> None:
    """cuDNN with a replayed forward: 2 + 2 + 5 products; splash: 2 + 7."""
    found = report(name)
    assert statuses(found) == {"exact", "explained"}
    for counter in COUNTERS:
        assert amount(found, counter) == -products * PAIR
    item = row_of(found, "matmul_flops:group0/attn/scores:forward").explanations[0]
    call = {CUDNN: "dot_product_attention_fwd", SPLASH: "splash_mha_fwd_residuals"}[name]
    assert call in item.evidence and "2 x 9 heads x 512 x 512 rows, width 64" in item.evidence
    assert sum(finding.kind == "opaque kernel" for finding in found.findings) == 3


def test_what_the_kernels_say_of_themselves_is_read() -> None:
    cudnn = {row["declared"]["mask_type"] for row in read(CUDNN).data["hlo"]["opaque"]}
    shapes = [row["declared"]["scores_shape"] for row in read(CUDNN).data["hlo"]["opaque"]]
    assert cudnn == {"CAUSAL"} and shapes == 3 * [[2, 9, 512, 512]]
    splash = {row["declared"]["kernel"]: row["declared"]["metadata"] for row in read(SPLASH).data["hlo"]["opaque"]}
    assert set(splash) == {"splash_mha_fwd_residuals", "splash_mha_dq_no_residuals", "splash_mha_dkv_no_residuals"}
    assert splash["splash_mha_dq_no_residuals"]["block_q_dq"] == 512


def test_splash_states_the_pairs_in_the_blocks_it_computes() -> None:
    def smaller(document: dict[str, Any]) -> None:
        for row in document["hlo"]["opaque"]:
            row["declared"]["metadata"] = dict.fromkeys(row["declared"]["metadata"], 128)

    def texts(found: Report) -> list[str]:
        return [finding.text for finding in found.findings if finding.kind == "opaque kernel"]

    assert all("262144 of 262144 pairs" in text for text in texts(report(SPLASH)))
    assert all("163840 of 262144 pairs" in text for text in texts(report(SPLASH, smaller)))


# Its own shapes, and nothing else ---------------------------------------------------------------------------------


def calls(module: Proto, word: str) -> list[Proto]:
    found = [i for c in module.computations for i in c.instructions if word in i.custom_call_target]
    return [i for i in found if i.name.startswith(("dot_product_attention", "splash"))]


def narrow(module: Proto, word: str, axis: int, size: int) -> None:
    """Give q, k and v of every attention call another extent: each gets a copy of its operand with that shape."""
    wanted = {call.id for call in calls(module, word)}
    new = max(i.id for c in module.computations for i in c.instructions)
    for computation in module.computations:
        rewritten = []
        by_id = {at.id: at for at in computation.instructions}
        for at in computation.instructions:
            if at.id in wanted:
                arrays = [n for n, number in enumerate(at.operand_ids) if by_id[number].shape.element_type == BF16]
                for n in arrays[:3]:
                    new += 1
                    other = type(at)()
                    other.CopyFrom(by_id[at.operand_ids[n]])
                    other.id, other.name = new, f"{other.name}.narrow.{new}"
                    other.shape.dimensions[axis] = size
                    at.operand_ids[n] = new
                    rewritten.append(other)
            rewritten.append(at)
        copies = [type(at).FromString(at.SerializeToString()) for at in rewritten]
        del computation.instructions[:]
        computation.instructions.extend(copies)


@pytest.mark.parametrize("name", [CUDNN, SPLASH])
def test_another_width_in_the_module_opens_the_rows(name: str, tmp_path: Path) -> None:
    word = {CUDNN: "fmha", SPLASH: "tpu_custom_call"}[name]
    seen = with_module(name, tmp_path, lambda module: narrow(module, word, 3, 32), RECORDS)
    found = reconcile(prediction(name), seen)
    assert row_of(found, "matmul_flops").status == "open"
    assert row_of(found, "matmul_flops:group0/attn/scores:forward").status == "open"
    assert row_of(found, "jaxpr_matmul_flops").status == "explained"


@pytest.mark.parametrize("name", [CUDNN, SPLASH])
def test_one_execution_less_opens_the_rows(name: str) -> None:
    def fewer(document: dict[str, Any]) -> None:
        for row in document["hlo"]["opaque"]:
            row["executions"] -= 1

    found = report(name, fewer)
    for key in ("matmul_flops", "matmul_flops:group0/attn/values:forward"):
        assert row_of(found, key).status == "open"


def test_shapes_that_contradict_each_other_explain_nothing(tmp_path: Path) -> None:
    """The scores' shape in the configuration of the call no longer follows from q and k."""

    def edit(module: Proto) -> None:
        for call in calls(module, "fmha"):
            config = json.loads(call.backend_config)
            config["cudnn_fmha_backend_config"]["intermediate_tensor_shape"]["dimensions"][3] = "256"
            call.backend_config = json.dumps(config).encode()

    found = reconcile(prediction(CUDNN), with_module(CUDNN, tmp_path, edit, RECORDS))
    unknown_total(found)


# Kernels that nobody declared -------------------------------------------------------------------------------------


def unknown_total(found: Report) -> None:
    total = row_of(found, "matmul_flops")
    assert (total.status, total.observation) == ("unmeasured", None) and "nobody declared" in total.reason
    assert amount(found, "matmul_flops") == 0
    missing = [row for row in found.rows if row.counter == "matmul_flops" and row.status == "unmeasured"]
    assert {row.scope.split("/")[1] for row in missing if row.scope} == {"attn"}
    assert any(row.counter == "opaque_flops" for row in found.rows)
    assert row_of(found, "matmul_flops:group0/mlp/up:forward").status == "exact"


@pytest.mark.parametrize("target", ["__cudnn$fmhaScaleBiasSoftmax", "__cudnn$fmhaSoftmaxDropout", "mine"])
def test_a_call_of_another_name_is_unknown(target: str) -> None:
    def other(document: dict[str, Any]) -> None:
        for row in document["hlo"]["opaque"]:
            row["target"] = target

    unknown_total(report(CUDNN, other))


def test_a_pallas_kernel_of_another_name_is_unknown() -> None:
    def other(document: dict[str, Any]) -> None:
        for row in document["hlo"]["opaque"]:
            row["declared"]["kernel"] = "splash_mha_fwd_residuals_of_mine"

    unknown_total(report(SPLASH, other))


def test_a_known_kernel_in_another_place_is_unknown() -> None:
    def moved(document: dict[str, Any]) -> None:
        for row in document["hlo"]["opaque"]:
            row["scope"] = "group0/mlp"

    found = report(CUDNN, moved)
    assert row_of(found, "matmul_flops").observation is None


def test_a_call_too_many_opens_a_row_that_the_ledger_does_not_have() -> None:
    """A forward call under replay, which the ledger of splash without recomputation does not foresee."""

    def again(document: dict[str, Any]) -> None:
        rows = document["hlo"]["opaque"]
        forward = next(row for row in rows if row["phase"] == "forward")
        rows.append({**forward, "phase": "optimizer"})

    found = report(SPLASH, again)
    assert row_of(found, "matmul_flops:group0/attn/values:optimizer").status == "open"
    assert row_of(found, "matmul_flops").status == "open"
