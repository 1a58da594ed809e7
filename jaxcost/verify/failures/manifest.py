"""Faults before any counting (0x01H, 0x02H, 0x0AB): manifests that contradict themselves, graphs that are not there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jaxcost.contracts.architecture import Architecture
from jaxcost.contracts.case import Case, build_case
from jaxcost.contracts.observation import Observation
from jaxcost.contracts.state import StatePolicy
from jaxcost.reconciliation.rows import Report
from jaxcost.verify.failures.common import Failure, bundle, compare, reconciled, rejected, tensor_entries
from jaxcost.verify.failures.guards import AXES, Guard, any_text
from jaxcost.verify.failures.subjects import prefill, toy, train, with_attention

TENSORS = "reconciliation of stored tensors"
ARCHITECTURE, WORKLOAD, STATE = (
    "validation of the architecture",
    "validation of the workload",
    "validation of the state",
)
Entries = list[dict[str, Any]]


def _stored(change: Callable[[Entries], Entries]) -> Report:
    """The toy's prediction against its stored tensors, changed."""
    case = prefill()
    return compare(case, bundle(case, tensors=change(tensor_entries(case))))


def _same(entries: Entries) -> Entries:
    return entries


def _widened(entries: Entries) -> Entries:
    """Gate wider and up narrower by as much: [8, 16] and [8, 8] where [8, 12] twice is declared."""
    shapes = {"group0/0/mlp/gate/weight": [8, 16], "group0/0/mlp/up/weight": [8, 8]}
    return [{**entry, "shape": shapes.get(entry["name"], entry["shape"])} for entry in entries]


def _renamed(entries: Entries) -> Entries:
    """One norm scale under the name of another implementation."""
    old, new = "group0/0/attn_norm/scale", "group0/0/input_norm/scale"
    return [{**entry, "name": new, "alias": new} if entry["name"] == old else entry for entry in entries]


def _retyped(entries: Entries) -> Entries:
    return [{**entries[0], "dtype": "fp32"}, *entries[1:]]


def _untrained(entries: Entries) -> Entries:
    return [{**entries[0], "trainable": False}, *entries[1:]]


def _absent() -> list[str]:
    return list(toy().absent)


def _architecture(**changes: Any) -> Architecture:
    return Architecture.from_data({**toy().to_data(), **changes})


def _observation(version: str) -> Observation:
    data = {"schema": version, "evidence_class": "synthetic_contract_test", "producer": "a walk"}
    return Observation.from_data(data, "bundle")


def _named_twice() -> StatePolicy:
    policy = train().state
    first = policy.objects[1]
    return policy.replaced(objects=(*policy.objects[:2], policy.objects[2].replaced(name=first.name)))


def _phase(phase: str) -> Case:
    return build_case(toy(), {"phase": phase, "batch": 1, "seq": 4})


def _decode(rows: int) -> Case:
    return build_case(toy(), {"phase": "decode", "batch": 1, "seq": rows, "past": 3})


def _wide_type(dtype: str) -> Any:
    return StatePolicy.from_data({**prefill().state.to_data(), "kv_dtype": dtype})


def failures() -> list[Failure]:
    """Return the rows of sections 0x01H, 0x02H and 0x0AB."""
    fields = "jaxcost.contracts.{}.model_fields.{}".format
    return [
        rejected(
            "0x01H/1",
            "the packed query width differs from the hidden width, undeclared",
            "projections of another shape than the residual stream",
            ARCHITECTURE,
            sound=lambda: with_attention(toy(), head_dim=2),
            faulty=lambda: with_attention(toy(), head_dim=4, decoupled_width=False),
            guard="jaxcost.contracts.architecture:Architecture.problems",
        ),
        rejected(
            "0x01H/2",
            "the K/V heads do not divide the query heads",
            "a K/V head serves a part of a group",
            ARCHITECTURE,
            sound=lambda: with_attention(toy(), kv_heads=2),
            faulty=lambda: with_attention(toy(), kv_heads=3),
            guard="jaxcost.contracts.architecture:Attention.problems",
        ),
        reconciled(
            "0x01H/3",
            "a stored layer is missing",
            "names of the schema without a tensor",
            TENSORS,
            sound=lambda: _stored(_same),
            faulty=lambda: _stored(lambda entries: [e for e in entries if not e["name"].startswith("group0/1/")]),
        ),
        reconciled(
            "0x01H/4",
            "totals that agree are taken for a schema that does",
            "every total closes, one declared name is missing and one is not declared",
            TENSORS,
            sound=lambda: _stored(_same),
            faulty=lambda: _stored(_renamed),
        ),
        reconciled(
            "0x01H/5",
            "a tensor is stored in another type",
            "scalars agree, bytes do not",
            TENSORS,
            sound=lambda: _stored(_same),
            faulty=lambda: _stored(_retyped),
            guard=AXES,
        ),
        reconciled(
            "0x01H/6",
            "a tensor that is declared trainable is not",
            "scalars agree, gradients and moments do not",
            TENSORS,
            sound=lambda: _stored(_same),
            faulty=lambda: _stored(_untrained),
            guard=AXES,
        ),
        rejected(
            "0x01H/7",
            "an optional branch is neither declared nor declared absent",
            "nobody says whether biases exist",
            ARCHITECTURE,
            sound=_architecture,
            faulty=lambda: _architecture(absent=_absent()[1:]),
            guard="jaxcost.contracts.architecture:Architecture._absence_problems",
        ),
        reconciled(
            "0x02H/1",
            "two wrong shapes keep the right total",
            "the parameter count closes",
            TENSORS,
            sound=lambda: _stored(_same),
            faulty=lambda: _stored(_widened),
        ),
        rejected(
            "0x0AB/1",
            "a bundle of an unknown schema version is read as the known one",
            "fields may mean something else",
            "validation of the observation",
            sound=lambda: _observation("jaxcost.observation.v1"),
            faulty=lambda: _observation("jaxcost.observation.v0"),
            guard=Guard(fields("observation:Observation", "schema_version"), any_text),
        ),
        rejected(
            "0x0AB/2",
            "a phase that is none of training, prefill and decode",
            "rows, logits and state have no rule",
            WORKLOAD,
            sound=lambda: _phase("prefill"),
            faulty=lambda: _phase("serving"),
            guard=Guard(fields("workload:Workload", "phase"), any_text),
        ),
        rejected(
            "0x0AB/3",
            "an element type of no known width",
            "bytes have no rule",
            STATE,
            sound=lambda: _wide_type("fp8_e4m3"),
            faulty=lambda: _wide_type("fp0"),
            guard=Guard(fields("state:StatePolicy", "kv_dtype"), any_text),
        ),
        rejected(
            "0x0AB/4",
            "two state objects share a name",
            "one of them is lost where rows are keyed by it",
            STATE,
            sound=lambda: train().state,
            faulty=_named_twice,
            guard="jaxcost.contracts.state:StatePolicy.problems",
        ),
        rejected(
            "0x0AB/5",
            "decode with several new rows a sequence",
            "a prefill is counted under another name",
            WORKLOAD,
            sound=lambda: _decode(1),
            faulty=lambda: _decode(4),
            guard="jaxcost.contracts.workload:Workload.problems",
        ),
    ]
