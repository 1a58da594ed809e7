"""Faults in dividing what is owned (table 0x07K): which axis divides which object, what is whole for a while."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jaxcost.contracts.case import Case
from jaxcost.prediction import ledgers
from jaxcost.verify.failures.common import Failure, against, bundle, rejected, swapped, with_totals
from jaxcost.verify.failures.guards import PROVENANCE, Guard, any_text
from jaxcost.verify.failures.subjects import train
from jaxcost.verify.holding import variant

OWNED = "owned_state_equals_the_walk"
GATHERED = "gathered_groups_equal_the_walk"


def with_changes(change: Callable[[Case, dict[str, Any]], dict[str, Any]], ledger: str = "ownership") -> Any:
    """Return a predictor with totals of a ledger changed."""

    def predict(case: Case) -> Any:
        right = ledgers.predict(case)
        return with_totals(right, ledger, **change(case, right.ledgers[ledger].totals))

    return predict


def role_bytes(change: Callable[[Case, str, int], int]) -> Any:
    """Return a predictor with the bytes of each role changed, the total with them."""

    def totals(case: Case, right: dict[str, Any]) -> dict[str, Any]:
        roles = {role: change(case, role, count) for role, count in right["by_role"].items()}
        return {"by_role": roles, "persistent_bytes": sum(roles.values())}

    return with_changes(totals)


def _by_world(case: Case, right: dict[str, Any]) -> dict[str, Any]:
    return {"persistent_bytes": right["global_bytes"] // case.execution.device_count}


def steady_state(case: Case, right: dict[str, Any]) -> dict[str, Any]:
    """Return the ownership totals with nothing gathered at any time."""
    return {"fsdp": {**right["fsdp"], "gathered_at_once_bytes": 0}}


def _even_stages(case: Case, right: dict[str, Any]) -> dict[str, Any]:
    each = right["pipeline"]["parameters_by_rank"]
    mean = sum(each.values()) // len(each)
    return {"pipeline": {**right["pipeline"], "parameters_by_rank": dict.fromkeys(each, mean)}}


def _divided_partial(case: Case, right: dict[str, Any]) -> dict[str, Any]:
    partial = right["tensor"]["largest_partial_bytes"] // case.execution.degree("tensor")
    return {"tensor": {**right["tensor"], "largest_partial_bytes": partial}}


def _resident_copies(case: Case, right: dict[str, Any]) -> dict[str, Any]:
    """All resident copies of gradients (2 + 4 bytes a parameter) sent, instead of one of two bytes."""
    kinds = {kind: count * 3 for kind, count in right["by_kind"].items()}
    return {"by_kind": kinds, "payload_bytes": right["payload_bytes"] * 3}


def _piped(**options: Any) -> Case:
    return train(batch=4, accumulate=2, mesh={"pipeline": 2}, **options)


def failures() -> list[Failure]:
    """Return the rows of table 0x07K."""
    return [
        against(
            "0x07K/1",
            "every byte is divided by the world size",
            "topology is mistaken for the ownership of objects",
            OWNED,
            lambda: train(mesh={"tensor": 2}),
            with_changes(_by_world),
        ),
        rejected(
            "0x07K/1b",
            "state is sharded by a degree that does not divide it",
            "the ideal shard is no legal partition",
            "validation of the mesh",
            sound=lambda: train(batch=4, mesh={"fsdp": 4}),
            faulty=lambda: train(batch=3, mesh={"fsdp": 3}),
            guard="jaxcost.contracts.case:Case._mesh_problems",
        ),
        against(
            "0x07K/2",
            "ZeRO stage 1 is called one half of the training memory on two ranks",
            "weights and gradients are still replicated",
            OWNED,
            lambda: train(mesh={"data": 2}, zero=1),
            role_bytes(lambda case, role, n: n // 2 if role in ("parameter", "gradient") else n),
        ),
        against(
            "0x07K/3",
            "the steady state of ZeRO stage 3 is equated with its peak",
            "groups that stand whole for a while disappear",
            GATHERED,
            lambda: train(mesh={"data": 2}, zero=3),
            with_changes(steady_state),
        ),
        against(
            "0x07K/4",
            "ZeRO's 16 bytes a parameter are used for a policy of six objects",
            "another paper's state replaces the declared one",
            OWNED,
            lambda: train(mesh={"data": 2}, zero=2, precision="a16_six_object"),
            swapped(lambda case: variant(case, precision="bf16_master_adam")),
        ),
        against(
            "0x07K/5",
            "all resident gradient copies are communicated",
            "copies that rest are confused with what one reduction sends",
            "one_gradient_is_reduced",
            lambda: train(mesh={"data": 2}, precision="a16_six_object"),
            with_changes(_resident_copies, "collectives"),
        ),
        rejected(
            "0x07K/6",
            "the sends of an ideal ring are called measured traffic",
            "no hardware, framework or raw artefact stands behind them",
            "validation of the observation",
            sound=lambda: bundle(train(mesh={"data": 2})),
            faulty=lambda: bundle(train(mesh={"data": 2}), evidence_class="locally_measured"),
            guard=PROVENANCE,
        ),
        against(
            "0x07K/7",
            "tensor parallelism is said to divide every activation by its degree",
            "partial sums of full extent disappear",
            "partial_sums_keep_their_extent",
            lambda: train(mesh={"tensor": 2}),
            with_changes(_divided_partial),
        ),
        against(
            "0x07K/8",
            "a pipeline is said to divide memory by its degree",
            "embedding, head and uneven stages vanish",
            "stages_sum_to_the_model",
            lambda: _piped(pipeline_layers=[2, 0]),
            with_changes(_even_stages),
        ),
        rejected(
            "0x07K/9",
            "the world is multiplied by a sequence-parallel degree of its own",
            "sequence parallelism runs on the tensor ranks",
            "validation of the mesh",
            sound=lambda: train(mesh={"tensor": 2}, sequence_parallel=True),
            faulty=lambda: train(mesh={"tensor": 2, "sequence": 2}),
            guard=Guard("jaxcost.contracts.execution:MeshAxis.model_fields.name", any_text),
        ),
        against(
            "0x07K/10",
            "context parallelism is said to divide weights",
            "rows are owned, parameters are replicated",
            OWNED,
            lambda: train(mesh={"context": 2}),
            role_bytes(lambda case, role, n: n // case.execution.degree("context")),
        ),
        against(
            "0x07K/11",
            "a group fetched ahead is left out",
            "two whole groups stand together unseen",
            GATHERED,
            lambda: train(mesh={"fsdp": 2}, fsdp_group="block", prefetch=1),
            swapped(lambda case: variant(case, prefetch=0)),
        ),
        against(
            "0x07K/12",
            "gradients are reduced late, and the memory of early reduction is reported",
            "whole gradients stand between microbatches",
            OWNED,
            lambda: train(batch=4, accumulate=2, mesh={"fsdp": 2}, gradient_sync="last_microbatch"),
            swapped(lambda case: variant(case, gradient_sync="every_microbatch")),
        ),
    ]
