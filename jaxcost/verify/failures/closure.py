"""Faults in closing a report (tables 0x0AH and 0x0DA): schema, storage, provenance, visibility, drift."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jaxcost.contracts.case import Case, build_case
from jaxcost.contracts.liveness import Liveness
from jaxcost.prediction.ledgers import predict
from jaxcost.reconciliation.report import reconcile
from jaxcost.reconciliation.rows import Report
from jaxcost.verify.failures.common import (
    Failure,
    against,
    bundle,
    compare,
    counter,
    reconciled,
    rejected,
    tensor_entries,
    with_totals,
)
from jaxcost.verify.failures.guards import AXES, PROVENANCE, VISIBILITY
from jaxcost.verify.failures.subjects import EVENTS, prefill, toy
from jaxcost.verify.holding import totals

TENSORS = "reconciliation of stored tensors"
COUNTERS = "reconciliation of counters"
OBSERVATION = "validation of the observation"


def _case(**changes: Any) -> Case:
    return prefill().replaced(liveness=Liveness.from_data(EVENTS), **changes)


def _schema(change: Mapping[str, Mapping[str, Any]]) -> Report:
    """A bundle of the toy's tensors with fields of some entries changed."""
    case = prefill()
    entries = [{**entry, **change.get(str(entry["name"]), {})} for entry in tensor_entries(case)]
    return compare(case, bundle(case, tensors=entries))


def _peak(explained: Sequence[tuple[int, str]], seen: int = 128) -> Report:
    """An allocator-like peak `seen` bytes above the cut of the supplied events."""
    case = _case()
    value = totals(case, "activations")["peak_bytes"] + seen
    visibility = "synthetic allocator-like payload; no driver or hardware was observed"
    return compare(
        case, bundle(case, counters=[counter("activations.peak_bytes", value, "bytes", visibility, *explained)])
    )


def _provenance(**claims: Any) -> Any:
    return bundle(prefill(), evidence_class="locally_measured", **claims)


def _measured() -> Any:
    return _provenance(hardware="one device", framework="a framework", artefacts=["trace.json"])


def _invisible() -> Any:
    seen = counter("activations.peak_bytes", 576, "bytes", "a number")
    return bundle(prefill(), counters=[{key: value for key, value in seen.items() if key != "visibility"}])


def _zero_peak(case: Case) -> Any:
    right = predict(case)
    return right if case.liveness is not None else with_totals(right, "activations", peak_bytes=0)


def _expecting(unique: int) -> Report:
    case = prefill().replaced(expected={"parameters.unique": unique})
    return compare(case, bundle(case, tensors=True))


def _whole() -> Report:
    case = prefill()
    return compare(case, bundle(case, tensors=True))


def failures() -> list[Failure]:
    """Return the rows of tables 0x0AH and 0x0DA."""
    query = "group0/0/attn/q_proj/weight"
    reshaped = {query: {"shape": [4, 16]}}
    untied = {"head/weight": {"alias": "head/weight"}}
    partly = [(64, "sector padding")]
    fully = [(128, "padding and one temporary")]
    return [
        reconciled(
            "0x0AH/1",
            "the query weight is stored as [4, 16] instead of [8, 4, 2]",
            "both hold 64 scalars",
            TENSORS,
            sound=lambda: _schema({}),
            faulty=lambda: _schema(reshaped),
            guard=AXES,
        ),
        reconciled(
            "0x0AH/2",
            "the head gets a storage of its own",
            "names and shapes still match",
            TENSORS,
            sound=lambda: _schema({}),
            faulty=lambda: _schema(untied),
        ),
        reconciled(
            "0x0AH/3",
            "64 of 128 bytes of a residual are explained",
            "a narrative explanation exists",
            COUNTERS,
            sound=lambda: _peak(fully),
            faulty=lambda: _peak(partly),
        ),
        rejected(
            "0x0AH/4",
            "evidence is labelled locally measured without hardware or raw artefacts",
            "the counter's shape looks plausible",
            OBSERVATION,
            sound=_measured,
            faulty=_provenance,
            guard=PROVENANCE,
        ),
        reconciled(
            "0x0AH/5",
            "the observation is left out",
            "the ledgers still derive",
            "status of a report without an observation",
            sound=_whole,
            faulty=lambda: reconcile(predict(prefill()), None),
            status="unmeasured",
        ),
        reconciled(
            "0x0DA/1",
            "a weight is reshaped with its scalars kept",
            "total parameters look unchanged",
            TENSORS,
            sound=lambda: _schema({}),
            faulty=lambda: _schema(reshaped),
            guard=AXES,
        ),
        reconciled(
            "0x0DA/2",
            "the head is untied while names and shapes match",
            "named counts match, unique storage grows",
            TENSORS,
            sound=lambda: _schema({}),
            faulty=lambda: _schema(untied),
        ),
        rejected(
            "0x0DA/3",
            "a synthetic bundle is labelled locally measured",
            "no hardware, framework or artefact supports it",
            OBSERVATION,
            sound=_measured,
            faulty=_provenance,
            guard=PROVENANCE,
        ),
        reconciled(
            "0x0DA/4",
            "allocator-like bytes are compared with a tensor payload",
            "a residual appears",
            COUNTERS,
            sound=lambda: _peak(fully),
            faulty=lambda: _peak([]),
        ),
        rejected(
            "0x0DA/4b",
            "a counter comes without its visibility",
            "nobody knows what the instrument could see",
            OBSERVATION,
            sound=lambda: bundle(
                prefill(), counters=[counter("activations.peak_bytes", 576, "bytes", "tensor payload only")]
            ),
            faulty=_invisible,
            guard=VISIBILITY,
        ),
        reconciled(
            "0x0DA/5",
            "the observation bundle is left out",
            "a false zero or a false pass is tempting",
            "status of a report without an observation",
            sound=_whole,
            faulty=lambda: reconcile(predict(prefill()), None),
            status="unmeasured",
        ),
        against(
            "0x0DA/6",
            "all liveness events are left out",
            "a peak of zero bytes",
            "liveness_peak_is_a_cut",
            _case,
            _zero_peak,
        ),
        rejected(
            "0x0DA/9",
            "a shard degree of 3 meets extents it does not divide",
            "the ideal shard is no legal partition",
            "validation of the mesh",
            sound=lambda: build_case(
                toy(), {"phase": "prefill", "batch": 8, "seq": 4, "mesh": {"data": 4, "tensor": 2}}
            ),
            faulty=lambda: build_case(
                toy(), {"phase": "prefill", "batch": 8, "seq": 4, "mesh": {"data": 4, "tensor": 3}}
            ),
            guard="jaxcost.contracts.case:Case._tensor_problems",
        ),
        reconciled(
            "0x0DA/11",
            "a formula or a fixture's geometry changes",
            "the expected integer no longer comes out",
            "the expected contract",
            sound=lambda: _expecting(totals(prefill(), "parameters")["unique"]),
            faulty=lambda: _expecting(totals(prefill(), "parameters")["unique"] + 1),
        ),
    ]
