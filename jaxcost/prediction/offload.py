"""State that rests in host memory between its uses, and what that moves.

The update runs on the device, as in a jitted step whose arguments are placed in host memory: an object comes in before
each use and goes back after each change. Uses in training, with m microbatches:

- parameters: the forward and the backward pass of every microbatch, and the update, which changes them;
- gradients: every microbatch adds to them (the first writes without reading), the update reads them;
- master copies and optimizer state: the update reads and changes them.

Elsewhere a step reads the parameters once. Each device moves its own shard. (ZeRO-Offload, Ren et al. 2021,
arXiv:2101.06840, updates on the host instead and moves gradients out and parameters in; not this.)
"""

from __future__ import annotations

from typing import Any, NamedTuple

from jaxcost.contracts.case import Case
from jaxcost.contracts.state import StateObject
from jaxcost.prediction.program import Program
from jaxcost.prediction.rows import Row
from jaxcost.prediction.sharding import alive, rank_bytes, resting_place, worst_rank
from jaxcost.prediction.stages import ranks

DIRECTIONS = ("host_to_device", "device_to_host")


class Transfer(NamedTuple):
    """What one object moves in a step: its bytes on one device, and how often they go each way."""

    object: str
    role: str
    bytes: Any
    into: int
    out: int


def uses(case: Case, item: StateObject) -> tuple[int, int]:
    """Return how often an object that rests on the host comes to the device and goes back in one step."""
    micro = case.workload.accumulate
    if case.workload.phase != "training":
        return 1, 0
    if item.role == "parameter":
        return 2 * micro + 1, 1
    if item.role == "gradient":
        return micro, micro
    return 1, 1


def transfers(program: Program) -> tuple[Transfer, ...]:
    """Return the transfers of every object that rests on the host, on a device of the rank that holds most."""
    case, found = program.case, []
    rank = worst_rank(program, case.execution.zero)
    for item in alive(case):
        if resting_place(case, item) == "host":
            found.append(Transfer(item.name, item.role, rank_bytes(program, item, None, rank), *uses(case, item)))
    return tuple(found)


def transfer_rows(program: Program) -> tuple[Row, ...]:
    """Return a row per object and direction."""
    rows, case = [], program.case
    each = case.execution.device_count // case.execution.degree("pipeline")
    objects = {item.name: item for item in alive(case)}
    for item in transfers(program):
        everywhere = each * sum(rank_bytes(program, objects[item.object], None, rank) for rank in ranks(program))
        for direction, times in zip(DIRECTIONS, (item.into, item.out), strict=True):
            if times:
                fields = {
                    "role": item.role,
                    "dtype": objects[item.object].dtype,
                    "boundary": "host memory and device memory",
                    "times": times,
                    "bytes_each": item.bytes,
                    "direction": direction,
                }
                rows.append(
                    Row(
                        item.object,
                        "",
                        direction,
                        everywhere * times,
                        "bytes",
                        fields,
                        "in before each use, back after each change; the update runs on the device",
                        "staging buffers, pinning",
                        per_device=item.bytes * times,
                    )
                )
    return tuple(rows)
