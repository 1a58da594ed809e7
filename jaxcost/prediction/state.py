"""Numerical state: the objects of the policy, times the parameters each counts, over their lifetimes.

Three populations are distinct: loaded (every unique scalar), trainable (those that nothing freezes) and updated (those
an optimizer moves: the trainable ones in training, none elsewhere). Resident, optimizer and checkpoint bytes are
three answers: gradients are
resident and in no checkpoint, parameters are in a checkpoint and no optimizer state.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any

from jaxcost.contracts.dtypes import payload_bytes
from jaxcost.contracts.state import LIFECYCLE, StateObject
from jaxcost.prediction.domain import is_formula
from jaxcost.prediction.parameters import Entry, entries
from jaxcost.prediction.program import Program
from jaxcost.prediction.rows import Ledger, Row

FACTORED_FROM = 128
CHECKPOINTED = (
    "parameter",
    "master",
    "first_moment",
    "second_moment",
    "second_moment_row",
    "second_moment_column",
    "step",
    "scale",
)


def factored_axes(shape: Sequence[int]) -> tuple[int, int] | None:
    """Return (second largest, largest) axis of a tensor whose second moment Adafactor factors, else None.

    As in optax 0.2: at least two axes, the second largest of 128 or more; `layer` counts as an axis of a stacked array.
    """
    if len(shape) < 2:
        return None
    order = sorted(range(len(shape)), key=lambda axis: shape[axis])
    return (order[-2], order[-1]) if shape[order[-2]] >= FACTORED_FROM else None


def array_shape(item: StateObject, entry: Entry) -> tuple[Any, ...]:
    """Return the shape of one array of a state object for one parameter array.

    `row` drops the largest axis and `column` the second largest. Where a rule does not apply to a tensor, optax keeps a
    placeholder of one scalar: rows and columns of an unfactored tensor, the dense moment of a factored one.
    """
    if item.count == "dense":
        return entry.shape
    axes = factored_axes(entry.shape)
    if item.count == "unfactored":
        return (1,) if axes else entry.shape
    if axes is None:
        return (1,)
    gone = axes[1] if item.count == "row" else axes[0]
    return entry.shape[:gone] + entry.shape[gone + 1 :]


@lru_cache(maxsize=16)
def population(program: Program, basis: str) -> tuple[Entry, ...]:
    """Return the unique parameter arrays of a population: `loaded`, `trainable` or `updated`."""
    if basis == "updated" and program.case.workload.phase != "training":
        return ()
    return tuple(item for item in entries(program) if not item.is_alias and (basis == "loaded" or item.trainable))


def object_scalars(program: Program, item: StateObject) -> Any:
    """Return the scalars of one copy of a state object over the whole model."""
    if item.count == "scalar":
        return 1
    count: Any = 0
    for entry in population(program, item.basis):
        if item.count == "dense":
            count = count + entry.stored
            continue
        size: Any = entry.copies
        for extent in array_shape(item, entry):
            size = size * extent
        count = count + size
    return count


def object_bytes(program: Program, item: StateObject) -> Any:
    """Return the bytes of a state object, all copies."""
    return payload_bytes(object_scalars(program, item), item.dtype) * item.copies


def state(program: Program, point: str = "in_first_step") -> Ledger:
    """Return the state ledger at a lifecycle point; `in_first_step` has gradients and optimizer state together."""
    rows = []
    for item in program.case.state.objects:
        scalars = object_scalars(program, item)
        live = [at for at in LIFECYCLE if item.live_at(at)]
        fields = {
            "role": item.role,
            "basis": item.basis,
            "count": item.count,
            "dtype": item.dtype,
            "copies": item.copies,
            "scalars": scalars,
            "placement": item.placement,
            "created": item.created,
            "released": item.released,
            "owner": item.owner,
            "live_at": live,
        }
        value = payload_bytes(scalars, item.dtype) * item.copies
        rows.append(
            Row(
                item.name,
                "",
                item.created,
                value,
                "bytes",
                fields,
                "logical payload",
                "allocator padding, buffers, workspace",
            )
        )

    def held(at: str, roles: Sequence[str] | None = None, placement: str = "device", owner: str = "") -> Any:
        return sum(
            row.value
            for row in rows
            if at in row.fields["live_at"]
            and (roles is None or row.fields["role"] in roles)
            and row.fields["placement"] == placement
            and owner in ("", row.fields["owner"])
        )

    unique = sum(item.scalars for item in population(program, "loaded"))
    total = held(point)
    per = total / unique if is_formula(total, unique) else Fraction(total, unique)
    roles = list(dict.fromkeys(row.fields["role"] for row in rows))
    totals = {
        "bytes": total,
        "bytes_per_parameter": per,
        "by_role": {role: held(point, (role,)) for role in roles},
        "resident_bytes": {at: held(at) for at in LIFECYCLE},
        "optimizer_bytes": held(point, owner="optimizer"),
        "checkpoint_bytes": held("after_release", CHECKPOINTED) + held("after_release", placement="checkpoint"),
        "host_bytes": held(point, placement="host"),
        "loaded": unique,
        "trainable": sum(item.scalars for item in population(program, "trainable")),
        "updated": sum(item.scalars for item in population(program, "updated")),
    }
    return Ledger("state", totals, tuple(rows))
