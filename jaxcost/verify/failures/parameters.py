"""Faults in counting parameters (table 0x02J): what is stored, under which name, once or twice."""

from __future__ import annotations

from typing import Any

from jaxcost.contracts.architecture import Architecture
from jaxcost.contracts.case import Case
from jaxcost.prediction import ledgers
from jaxcost.prediction.rows import Row
from jaxcost.verify import recount
from jaxcost.verify.failures.common import (
    Failure,
    against,
    bundle,
    compare,
    reconciled,
    rejected,
    shifted,
    swapped,
    tensor_entries,
    with_rows,
)
from jaxcost.verify.failures.guards import Guard, ignored
from jaxcost.verify.failures.subjects import biased, prefill, toy, train, with_attention, with_mlp
from jaxcost.verify.strategies import altered

TENSORS = "reconciliation of stored tensors"


def _schema(row: str, fault: str, symptom: str, truth: Architecture, believed: Architecture) -> Failure:
    """A fault in the declared graph: what is believed meets the tensors of what is there."""
    case = train(truth)

    def report(predict: Any = None) -> Any:
        return compare(case, bundle(case, tensors=True), predict)

    return reconciled(
        row, fault, symptom, TENSORS, sound=report, faulty=lambda: report(swapped(lambda _: train(believed)))
    )


def _extra(name: str, kind: str) -> Any:
    case = prefill()
    added = {"name": name, "shape": [2], "dtype": "bf16", "kind": kind, "trainable": False, "alias": name}
    return compare(case, bundle(case, tensors=[*tensor_entries(case), added]))


def _shared(tied: bool) -> Any:
    """Bundle of a head that is the embedding's storage, or one of equal values beside it."""
    case = prefill(toy(tied=True))
    entries = tensor_entries(case)
    entries[-1] = {**entries[-1], "alias": entries[-1]["alias"] if tied else "head/weight"}
    return compare(case, bundle(case, tensors=entries))


def _named_as_unique(case: Case, unique: int) -> int:
    return unique + case.architecture.vocabulary_size * case.architecture.hidden_size


def _halved_locally(case: Case) -> Any:
    """Every tensor cut by the tensor degree, as if nothing were replicated."""

    def cut(row: Row) -> Row:
        if row.object != "parameters" or row.phase != "argument":
            return row
        return Row(
            row.object,
            row.scope,
            row.phase,
            row.value,
            row.unit,
            row.fields,
            per_device=row.value // case.execution.device_count,
        )

    return with_rows(ledgers.predict(case), "device", cut)


def failures() -> list[Failure]:
    """Return the rows of table 0x02J."""
    mesh = {"tensor": 2}
    return [
        against(
            "0x02J/1",
            "batch x rows is added to the learned scalars",
            "the parameter total follows the workload",
            "parameters_ignore_the_workload",
            prefill,
            shifted("parameters", "unique", lambda case, n: n + case.workload.batch * case.workload.new_tokens),
        ),
        _schema(
            "0x02J/2",
            "all four attention matrices are taken to be d x d",
            "K and V of grouped-query attention are too large",
            toy(),
            with_attention(toy(), kv_heads=4),
        ),
        _schema(
            "0x02J/3",
            "the MLP width is inferred as 4 d from the activation's name",
            "gate, up and down have the wrong width",
            toy(),
            with_mlp(toy(), width=32),
        ),
        _schema(
            "0x02J/4",
            "small bias vectors are left out",
            "stored names without a declaration",
            biased(),
            with_attention(biased(), query_bias=False, key_bias=False, value_bias=False),
        ),
        reconciled(
            "0x02J/5",
            "a rotary table is counted among the learned weights",
            "more parameters than the graph declares",
            TENSORS,
            sound=lambda: _extra("rotary/inverse_frequencies", "buffer"),
            faulty=lambda: _extra("rotary/inverse_frequencies", "parameter"),
        ),
        _schema(
            "0x02J/6",
            "learned positions are left out",
            "a stored table outside the stack is not counted",
            biased(),
            altered(biased(), learned_positions=None),
        ),
        reconciled(
            "0x02J/7",
            "equal values of embedding and head are taken for a tie",
            "the head's own storage is not counted",
            TENSORS,
            sound=lambda: _shared(True),
            faulty=lambda: _shared(False),
        ),
        against(
            "0x02J/8",
            "alias names are summed as unique parameters",
            "the tied table counts twice",
            "parameters_equal_the_walk",
            prefill,
            shifted("parameters", "unique", _named_as_unique),
        ),
        against(
            "0x02J/9",
            "only what requires a gradient is counted",
            "frozen learned state disappears",
            "parameters_equal_the_walk",
            lambda: train(frozen=["embed"]),
            shifted("parameters", "unique", lambda case, n: recount.trainable_parameters(case)),
        ),
        against(
            "0x02J/10",
            "a global count is cut by the device count without an ownership rule",
            "replicated vectors are cut too",
            "shards_add_up",
            lambda: prefill(mesh=mesh),
            _halved_locally,
        ),
        rejected(
            "0x02J/11",
            "experts, adapters or projectors hide in one extra number",
            "the count describes another graph",
            "validation of the architecture",
            sound=lambda: Architecture.from_data(toy().to_data()),
            faulty=lambda: Architecture.from_data({**toy().to_data(), "extra_parameters": 1000}),
            guard=Guard("jaxcost.contracts.architecture:Architecture.model_config.extra", ignored),
        ),
    ]
