"""The rest of a train state on disk: master copies, moments and counters, against the objects of the policy.

Entries meet by role and by the path of their parameter, never by shape: moments have the shapes of their parameters. A
file without names (Equinox leaves) is read by position: parameters in the order of the tree, then the master copy, then
the optimizer's arrays in the order of optax's fields.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from jaxcost.observation.checkpoint.stored import Checkpoint
from jaxcost.prediction.parameters import entries
from jaxcost.prediction.program import Program
from jaxcost.prediction.state import array_shape
from jaxcost.reconciliation.checkpoint_names import Choice, Held
from jaxcost.reconciliation.layouts import ExpectedTensor, expected_tensors, layout_name
from jaxcost.reconciliation.rows import Explanation, Row

_STORED_ROLES = (
    "master", "step", "first_moment", "second_moment_row", "second_moment_column", "second_moment", "scale",
)  # fmt: skip


@dataclass(frozen=True)
class ExpectedState:
    """One array of the state that a policy declares."""

    role: str
    path: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def scalars(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)


def expected_state(program: Program, expected: Sequence[ExpectedTensor]) -> list[ExpectedState]:
    """Return the arrays beside the parameters that the case's policy keeps, in the order of its objects."""
    known = {entry.name: entry for entry in entries(program)}
    found = []
    for item in program.case.state.objects:
        if item.role not in _STORED_ROLES:
            continue
        if item.count == "scalar":
            found.append(ExpectedState(item.role, "", (), item.dtype))
            continue
        for tensor in expected:
            entry = known.get(tensor.parts[0]) if len(tensor.parts) == 1 else None
            if tensor.alias != tensor.name or not (tensor.trainable or item.basis == "loaded"):
                continue
            shape = tensor.shape if item.count == "dense" or entry is None else tuple(array_shape(item, entry))
            found.append(ExpectedState(item.role, tensor.name, shape, item.dtype))
    return found


def state_rows(program: Program, expected: Sequence[ExpectedTensor], held: Sequence[Held]) -> list[Row]:
    """Return one row per array beside the parameters, declared or stored."""
    stored = {(item.role, item.path): item.tensor for item in held}
    rows = []
    wanted = expected_state(program, expected)
    for item in wanted:
        found = stored.pop((item.role, item.path), None)
        differences = []
        if found is None:
            differences.append("declared by the policy, and not stored")
        else:
            if found.shape != item.shape:
                differences.append(f"stored as {list(found.shape)}, declared {list(item.shape)}")
            if found.dtype != item.dtype:
                differences.append(f"type {found.dtype}, declared {item.dtype}")
        count = 0 if found is None else found.scalars
        rows.append(Row(f"state.{item.role}", item.path, "", "scalars", item.scalars, count,
                        reason="; ".join(differences), forced_open=bool(differences)))  # fmt: skip
    for (role, path), tensor in stored.items():
        if role == "step" and tensor.shape == ():
            why = Explanation(1, "a step counter the policy does not list", tensor.name)
            rows.append(Row("state.step", tensor.name, "", "scalars", 0, 1, (why,)))
            continue
        reason = f"stored ({tensor.dtype}{list(tensor.shape)}), and declared by no object of the policy"
        rows.append(Row(f"state.{role}", path, "", "scalars", 0, tensor.scalars, reason=reason, forced_open=True))
    return rows


def positional(program: Program, seen: Checkpoint, layout: str | None) -> tuple[Choice, list[Held]]:
    """Give the arrays of a file without names the names of the tree whose shapes they have, in order.

    Of the two tree layouts, each with and without the rest of the state, the one is taken whose sequence of shapes
    agrees exactly; where none does, parameters in the case's own layout are compared one by one.

    Raises:
        RejectedError: the wanted layout is not known.
    """
    own = "equinox" if program.case.execution.layers == "scan" else "equinox-unrolled"
    names = [layout_name(layout)] if layout else [own, *{"equinox", "equinox-unrolled"} - {own}]
    shapes = [tensor.shape for tensor in seen.tensors]
    fallback: tuple[Choice, list[Held]] | None = None
    for name in names:
        expected = expected_tensors(program, name)
        places = [("parameter", tensor.name, tensor.shape) for tensor in expected if tensor.alias == tensor.name]
        rest = [(item.role, item.path, item.shape) for item in expected_state(program, expected)]
        for sequence in (places, places + rest):
            if [shape for _, _, shape in sequence] == shapes:
                basis = f"{len(shapes)} arrays without names, by position: their shapes are those of the tree, in order"
                return Choice(name, expected, True, basis), _placed(sequence, seen)
        if fallback is None:
            sequence = places if len(shapes) <= len(places) else places + rest
            basis = (
                f"{len(shapes)} arrays without names; the tree has {len(places)}, or {len(places + rest)} with state"
            )
            fallback = Choice(name, expected, False, basis), _placed(sequence, seen)
    assert fallback is not None
    return fallback


def _placed(sequence: Sequence[tuple[str, str, tuple[int, ...]]], seen: Checkpoint) -> list[Held]:
    placed = [Held(role, path, tensor) for (role, path, _), tensor in zip(sequence, seen.tensors, strict=False)]
    return placed + [Held("parameter", tensor.name, tensor) for tensor in seen.tensors[len(sequence) :]]
