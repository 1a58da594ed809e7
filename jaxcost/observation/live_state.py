"""What a train state really keeps: one row per array, by role, shape, dtype and device.

A ledger says how many bytes an optimizer should hold; the state that optax builds says how many it does. The state may
be abstract (`jax.eval_shape`: no memory is touched, any size) or initialised; `same_arrays` shows that the two agree.

A role is read from the names optax gives its fields (`mu`, `nu`, `count`, ...), never from shapes: moments have the
shapes of their parameters.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import chex  # type: ignore[import-untyped]  # ships no annotations
import jax

from jaxcost.observation.parameters import dtype_name, path_key, storage_bytes

# Fields of optax 0.2 states: ScaleByAdamState and ScaleByLionState (count, mu, nu), TraceState (trace), FactoredState
# (count, v_row, v_col, v), ScaleByScheduleState (count), ScaleByRmsState (nu), MultiStepsState.
OPTAX_FIELDS: Mapping[str, str] = {
    "mu": "first_moment", "trace": "first_moment", "nu": "second_moment", "v": "second_moment",
    "v_row": "second_moment_row", "v_col": "second_moment_column", "count": "step", "mini_step": "step",
    "gradient_step": "step", "acc_grads": "gradient_accumulator", "loss_scale": "scale",
}  # fmt: skip


@dataclass(frozen=True)
class StateRow:
    """One array. Bytes are global (`bytes`) and of the largest shard (`device_bytes`), without any layout padding.

    `name` is the path below the argument, `parameter` the part of it that names the parameter a moment belongs to.
    `sharding` is the partition specification, "" where there is none; `devices` is how many hold a shard, `device` who.
    """

    argument: str
    role: str
    name: str
    parameter: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    sharding: str
    device_shape: tuple[int, ...]
    device_bytes: int
    devices: int
    device: str

    @property
    def scalars(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "argument": self.argument, "role": self.role, "name": self.name, "parameter": self.parameter,
            "shape": list(self.shape), "dtype": self.dtype, "scalars": self.scalars, "bytes": self.bytes,
            "sharding": self.sharding, "device_shape": list(self.device_shape), "device_bytes": self.device_bytes,
            "devices": self.devices, "device": self.device,
        }  # fmt: skip


def live_state(state: Mapping[str, Any]) -> tuple[StateRow, ...]:
    """Return the rows of a state given as named arguments, e.g. `{"parameters": ..., "optimizer": ..., "tokens": ...}`.

    An argument's own name is the role of its arrays, except that `parameters` holds the role `parameter`, the fields of
    an optax state have roles of their own, and `caches` splits into `cache_keys` and `cache_values`.
    """
    rows: list[StateRow] = []
    for argument, tree in state.items():
        for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
            if hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
                rows.append(_row(argument, tuple(path_key(entry) for entry in path), leaf))
    return tuple(rows)


def by_role(rows: Iterable[StateRow]) -> dict[str, dict[str, int]]:
    """Return tensors, scalars, bytes and bytes on one device, per role."""
    totals: dict[str, dict[str, int]] = {}
    for row in rows:
        total = totals.setdefault(row.role, {"tensors": 0, "scalars": 0, "bytes": 0, "device_bytes": 0})
        total["tensors"] += 1
        total["scalars"] += row.scalars
        total["bytes"] += row.bytes
        total["device_bytes"] += row.device_bytes
    return dict(sorted(totals.items()))


def same_arrays(abstract: Any, real: Any) -> str:
    """Return "" where two states have the same tree, shapes and dtypes, else what differs."""
    try:
        chex.assert_trees_all_equal_structs(abstract, real)
        chex.assert_trees_all_equal_shapes_and_dtypes(abstract, real)
    except AssertionError as error:
        return str(error).strip()
    return ""


def _row(argument: str, path: tuple[str, ...], leaf: Any) -> StateRow:
    role, parameter = _role(argument, path)
    sharding = getattr(leaf, "sharding", None)
    shape = tuple(int(size) for size in leaf.shape)
    local = tuple(sharding.shard_shape(shape)) if sharding is not None else shape
    devices = len(sharding.device_set) if sharding is not None else 1
    return StateRow(
        argument, role, ".".join(path), parameter, shape, dtype_name(leaf.dtype),
        storage_bytes(math.prod(shape), leaf.dtype), _specification(sharding), local,
        storage_bytes(math.prod(local), leaf.dtype), devices, _device(sharding),
    )  # fmt: skip


def _role(argument: str, path: tuple[str, ...]) -> tuple[str, str]:
    if argument == "parameters":
        return "parameter", ".".join(path)
    if argument == "caches":
        part = next((part for part in path if part in ("keys", "values")), "other")
        return f"cache_{part}", ""
    if argument == "optimizer":
        for index, part in enumerate(path):
            if part in OPTAX_FIELDS:
                return OPTAX_FIELDS[part], ".".join(path[index + 1 :])
        return "other", ""
    return argument, ".".join(path)


def _specification(sharding: Any) -> str:
    spec = getattr(sharding, "spec", None)
    return "" if spec is None else "P(" + ", ".join(repr(part) for part in spec) + ")"


def _device(sharding: Any) -> str:
    if sharding is None:
        return ""
    kinds = sorted({str(device.device_kind) for device in sharding.device_set})
    return ", ".join(kinds)
