"""Faults in reading bytes and intensities (table 0x09G): what is stored, what is moved, what was seen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from jaxcost.contracts.case import Case
from jaxcost.contracts.dtypes import BITS
from jaxcost.planning.machine import machine
from jaxcost.planning.roofline import point
from jaxcost.prediction import ledgers
from jaxcost.reconciliation.rows import Report
from jaxcost.verify import recount
from jaxcost.verify.failures.common import (
    Failure,
    against,
    bundle,
    compare,
    counter,
    judged,
    reconciled,
    rejected,
    shifted,
    swapped,
)
from jaxcost.verify.failures.guards import PROVENANCE, Guard
from jaxcost.verify.failures.subjects import decode, prefill, toy, train
from jaxcost.verify.holding import variant

COUNTERS = "reconciliation of counters"


def _moved(value: int, *reasons: tuple[int, str]) -> Report:
    case = prefill()
    seen = counter("traffic.attention_bytes", value, "bytes", "selected boundary; not a memory measurement", *reasons)
    return compare(case, bundle(case, counters=[seen]))


def _scheduled(case: Case) -> int:
    """Bytes of the materialised schedule of the toy's two layers, added by hand: Q, K, S twice, P twice, V, O."""
    rows, pairs = case.workload.new_tokens, case.workload.new_tokens**2
    return 2 * 2 * (2 * rows * 8 + 2 * rows * 4 + 4 * pairs * 4)


def _stored(case: Case) -> int:
    return recount.unique_parameters(case) * BITS[case.state.parameter_dtype] // 8


def _weights_only(case: Case, _: int) -> int:
    """One-pass bytes in the regime where the weight dominates, claimed everywhere."""
    return sum(2 * p.inner * p.outputs for p in recount.products(case) if p.weight)


def _one_row(times: int) -> str:
    """The bound of a product with one row of 4096 by 4096, across a boundary so many times as fast as the memory."""
    case = decode(batch=1)
    device = machine("h100", case)
    faster = replace(device, bytes_per_second=device.bytes_per_second * times)
    rows, inner, outputs = 1, 4096, 4096
    size = 2 * (rows * inner + inner * outputs + rows * outputs)
    return point("projection", "forward", 2 * rows * inner * outputs, size, faster).bound


def _served(name: str, value: int, unit: str) -> Report:
    case = decode()
    return compare(
        case, bundle(case, [counter(name, value, unit, "payload of keys and values; no pages, no scheduler")])
    )


def _blockwise(case: Case) -> Any:
    return ledgers.predict(variant(case, attention="blockwise", attention_block=2))


def failures() -> list[Failure]:
    """Return the rows of table 0x09G."""
    right = _scheduled(prefill())
    return [
        reconciled(
            "0x09G/1",
            "stored bytes are called memory traffic",
            "residency is confused with transfers",
            COUNTERS,
            sound=lambda: _moved(right),
            faulty=lambda: _moved(_stored(prefill())),
        ),
        rejected(
            "0x09G/2",
            "a one-pass payload is called measured traffic",
            "no hardware, framework or raw artefact stands behind it",
            "validation of the observation",
            sound=lambda: bundle(prefill()),
            faulty=lambda: bundle(prefill(), evidence_class="locally_measured"),
            guard=PROVENANCE,
        ),
        judged(
            "0x09G/3",
            "every operator with M = 1 is labelled bandwidth-bound",
            "where its weight rests on the chip, the same shape is bound by arithmetic",
            "roofline point on a machine",
            sound=lambda: _one_row(1),
            faulty=lambda: _one_row(1000),
            passes="memory",
            wanted="compute",
            guard=Guard("jaxcost.planning.roofline:Point.bound", lambda _: property(lambda point: "memory")),
        ),
        against(
            "0x09G/4",
            "the weight-dominated intensity is used outside of its regime",
            "activation terms are dropped",
            "one_pass_keeps_all_operands",
            prefill,
            shifted("traffic", "gemm_one_pass_bytes", _weights_only),
        ),
        against(
            "0x09G/5",
            "query heads are used for stored keys and values",
            "the cache is too large by the group size",
            "cache_equals_the_walk",
            decode,
            shifted("kv_cache", "bytes", lambda case, n: n * 2),
        ),
        against(
            "0x09G/6",
            "context is called free because it cancels from the intensity",
            "cached bytes do not grow",
            "cache_grows_with_context",
            decode,
            shifted("kv_cache", "bytes", lambda case, n: 2048),
        ),
        rejected(
            "0x09G/7",
            "training is treated as the same call as prefill",
            "no gradient, state or cache tells them apart",
            "validation of the case",
            sound=train,
            faulty=lambda: train().replaced(state=prefill().state),
            guard="jaxcost.contracts.case:Case.problems",
        ),
        against(
            "0x09G/8",
            "all prompt rows are projected for a final-row interface",
            "logits are computed that nobody reads",
            "logits_rows_scale_the_head",
            prefill,
            swapped(lambda case: variant(case, logits="all")),
        ),
        against(
            "0x09G/9",
            "an online softmax is put in place of the declared schedule",
            "scores and probabilities vanish from the rows",
            "attention_moves_eight_payloads",
            lambda: prefill(toy()),
            _blockwise,
        ),
        reconciled(
            "0x09G/10",
            "cache bytes are turned into a claim about serving capacity",
            "allocation and scheduler state are left out",
            "a counter without a prediction",
            sound=lambda: _served("kv_cache.bytes", recount.cache_bytes(decode()), "bytes"),
            faulty=lambda: _served("kv_cache.requests", 2**40 // recount.cache_bytes(decode()), "requests"),
            status="unmeasured",
        ),
    ]
