"""The global batch from its factors, and what of it is useful.

    positions of a step = microbatch x context x accumulation x replicas with data of their own

Replicas are the ranks of data and fsdp. Ranks of tensor, pipeline, context and expert work on the same sequences of
one replica: they are no factor.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from jaxcost.contracts.errors import Problem
from jaxcost.planning.run.sheet import Unknown, figure

DATA_AXES = ("data", "fsdp")
MODEL_AXES = ("pipeline", "context", "tensor", "expert")


def replicas(mesh: Mapping[str, int] | None, data_parallel: int | None) -> int | None:
    """Return the replicas with data of their own: data x fsdp of a mesh, else what is declared, None without either."""
    if mesh is None:
        return data_parallel
    found = 1
    for axis in DATA_AXES:
        found *= mesh.get(axis, 1)
    return found


def batch_problems(
    path: str,
    devices: int,
    mesh: Mapping[str, int] | None,
    data_parallel: int | None,
    factors: Mapping[str, int | None],
    batch_tokens: int | None,
) -> list[Problem]:
    """Return what does not go together of a mesh, its replicas, the factors of a batch and a batch given beside them.

    Args:
        path: of the stage or the run, for the problems.
        devices: of the allocation.
        mesh: axis to size, None where none is given.
        data_parallel: replicas as declared, None where they follow from the mesh.
        factors: `micro_batch`, `seq` and `accumulate`, each None where it is not given.
        batch_tokens: positions of a step as declared.
    """
    found = []
    if mesh is not None:
        count = 1
        for size in mesh.values():
            count *= size
        if count != devices:
            rule = f"the mesh has {count} devices, the allocation {devices}"
            found.append(Problem(f"{path}mesh", dict(mesh), rule, "plan the devices that the run uses"))
        own = replicas(mesh, None)
        if data_parallel is not None and data_parallel != own:
            rule = f"the mesh has {own} replicas with data of their own (data x fsdp){_cause(data_parallel, own, mesh)}"
            found.append(Problem(f"{path}data_parallel", data_parallel, rule, "leave it out: the mesh says it"))
    elif data_parallel is not None and devices % data_parallel:
        rule = f"{devices} devices are no whole number of groups for {data_parallel} replicas"
        found.append(Problem(f"{path}data_parallel", data_parallel, rule, "use a divisor of the devices"))
    sizes: list[int | None] = [*factors.values(), replicas(mesh, data_parallel)]
    if batch_tokens is None or None in sizes or found:
        return found
    product = 1
    for factor in sizes:
        product *= factor or 1
    if product != batch_tokens:
        text = " x ".join(str(size) for size in sizes)
        rule = f"microbatch x context x accumulation x replicas = {text} = {product}"
        given = factors.get("accumulate") or 1
        cause = _cause(batch_tokens, product, mesh or {}, given)
        missing = f", or give accumulate {given * batch_tokens // product}" if "is missing" in cause else ""
        remedy = f"leave it out: the factors say it{missing}"
        found.append(Problem(f"{path}batch_tokens", batch_tokens, rule + cause, remedy))
    return found


def _cause(claimed: int, right: int | None, mesh: Mapping[str, int], accumulate: int = 1) -> str:
    """Return the mistake that would lead from the right product to the claimed one, if it is one of the usual."""
    ratio = Fraction(claimed, right or 1)
    degrees = {axis: mesh[axis] for axis in MODEL_AXES if mesh.get(axis, 1) > 1}
    every = 1
    for size in degrees.values():
        every *= size
    for axis, size in degrees.items():
        if ratio == size:
            return f"; this is {size} times that: ranks of {axis} share the sequences of a replica and are no factor"
    if degrees and ratio == every:
        return f"; this is {every} times that: {' x '.join(degrees)} ranks share sequences and are no factor"
    if accumulate > 1 and ratio == Fraction(1, accumulate):
        return f"; this is that without the accumulation over {accumulate} microbatches"
    if ratio > 1 and ratio.denominator == 1:
        return f"; this is {ratio} times that: the accumulation over {accumulate * ratio} microbatches is missing"
    return ""


@figure("batch", "sequences", scope="step", staged=True, convention="all replicas, all microbatches")
def global_sequences(micro_batch: Any, accumulate: Any, data_parallel_degree: Any) -> Any:
    """Sequences of one optimizer step."""
    return micro_batch * accumulate * data_parallel_degree


@figure(
    "batch",
    "tokens",
    scope="step",
    staged=True,
    convention="microbatch x context x accumulation x (data x fsdp); padding and masked positions counted",
)
def step_positions(global_sequences: Any = None, seq: Any = None, batch_tokens: Any = None) -> Any:
    """Positions of one optimizer step."""
    if global_sequences is not None and seq is not None:
        return global_sequences * seq
    return batch_tokens if batch_tokens is not None else Unknown("not given: batch_tokens, or its factors")


@figure("batch", "tokens", scope="step", staged=True, convention="positions that hold no padding")
def step_useful_tokens(step_positions: Any, padding: Any) -> Any:
    """Useful tokens of one optimizer step."""
    return step_positions * (1 - padding)


@figure("batch", "tokens", scope="step", staged=True, convention="useful tokens that a loss is taken on")
def step_target_tokens(step_useful_tokens: Any, masked: Any) -> Any:
    """Training targets of one optimizer step."""
    return step_useful_tokens * (1 - masked)


@figure("batch", "devices", scope="stage", staged=True, convention="ranks that cooperate on one replica's sequences")
def devices_per_replica(devices: Any, data_parallel_degree: Any) -> Any:
    """Devices of one data-parallel replica."""
    return Fraction(devices, data_parallel_degree)
