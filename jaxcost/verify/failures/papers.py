"""Faults in comparing published figures (row 10 of table 0x06J, rows 10 and 12 of table 0x0DA)."""

from __future__ import annotations

from functools import cache
from typing import Any

from jaxcost.contracts.case import Case, build_case
from jaxcost.papers.contract import Contract, Quantity
from jaxcost.papers.gate import Claim, values
from jaxcost.papers.graphs import architecture
from jaxcost.papers.registry import Registry, registry
from jaxcost.verify.failures.common import Failure, rejected
from jaxcost.verify.failures.guards import Guard

GATE = "the gate: every axis on one target manifest"
CONTRACT = "jaxcost.papers.contract"


def _claim(contract: str, quantity: str) -> Claim:
    found = registry().contract(contract)
    return Claim(found, found.quantity(quantity))


@cache
def _target() -> Case:
    """A training step of two layers of multi-head attention and a classic MLP, with dropout: every form applies."""
    made = architecture(registry().contract("korthikanti").graph("gpt"))
    return build_case(made, {"phase": "training", "batch": 2, "seq": 8, "precision": "bf16", "dropout": True})


def _values(*claims: tuple[str, str], target: Case | None) -> Any:
    return values([_claim(*claim) for claim in claims], target)


def _kaplan(**changes: Any) -> Contract:
    return Contract.from_data({**registry().contract("kaplan").to_data(), **changes})


def _backed() -> dict[str, Any]:
    return {"allowed": True, "normalized_to_common_manifest": True, "target_case_id": _target().digest}


def _quantity(**changes: Any) -> Quantity:
    data = registry().contract("megatron").quantity("iteration_flops").to_data()
    return Quantity.from_data({**data, **changes})


def _open(original: Any) -> Any:
    """Return the verdict of a gate that lets every comparison through."""
    return property(lambda self: "normalized")


def failures() -> list[Failure]:
    """Return the rows about published contracts."""
    six_n, per_token = ("kaplan", "training_flops"), ("palm", "model_flops")
    layer, total = ("korthikanti", "layer_bytes"), ("korthikanti", "model_flops")
    return [
        rejected(
            "0x06J/10",
            "totals of papers are compared by their titles",
            "parameter sets, attention, logits and replay differ",
            GATE,
            sound=lambda: _values(six_n, per_token, target=_target()),
            faulty=lambda: _values(six_n, per_token, target=None),
            guard=Guard("jaxcost.papers.gate:Comparison.status", _open),
        ),
        rejected(
            "0x0DA/10",
            "numeric comparison is enabled on a paper's row (Kaplan) that no common manifest backs",
            "similar symbols look comparable",
            "comparison asks for a common manifest and the digest of its case",
            sound=lambda: _kaplan(numeric_comparison=_backed()),
            faulty=lambda: _kaplan(numeric_comparison={"allowed": True}),
            guard=f"{CONTRACT}:NumericComparison.problems",
        ),
        rejected(
            "0x0DA/10b",
            "activation bytes are compared as if they were training FLOPs",
            "two totals of one paper stand in one column",
            "kinds and their units",
            sound=lambda: _values(layer, ("teaching-article", "layer_bytes"), target=_target()),
            faulty=lambda: _values(layer, total, target=_target()),
            guard="jaxcost.papers.gate:unlike",
        ),
        rejected(
            "0x0DA/10c",
            "model FLOPs and hardware FLOPs share a denominator",
            "a run that recomputes looks better used",
            "kinds by what they replay",
            sound=lambda: _values(per_token, total, target=_target()),
            faulty=lambda: _values(per_token, ("palm", "with_attention_replay"), target=_target()),
            guard="jaxcost.papers.gate:unlike",
        ),
        rejected(
            "0x0DA/10d",
            "a paper's global total is relabelled as one rank's",
            "arithmetic of all devices stands as the work of one",
            "each kind is global or of one device",
            sound=_quantity,
            faulty=lambda: _quantity(rank_local=True),
            guard=f"{CONTRACT}:Quantity._ownership_problems",
        ),
        rejected(
            "0x0DA/12",
            "one of the required published contracts (a paper's) is removed",
            "an incompatible coordinate is lost in silence",
            "the registry's list of required contracts",
            sound=lambda: Registry(registry().values()),
            faulty=lambda: Registry(item for item in registry().values() if item.name != "palm"),
            guard="jaxcost.papers.registry:missing",
        ),
    ]
