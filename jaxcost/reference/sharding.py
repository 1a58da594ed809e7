"""Sharding: one table from named axes to mesh axes, and the two ways of applying it.

Every tensor of the network names its axes (`layer` scan stack, b batch, s rows, t key rows, which every query needs, i
rows of the stream between the tensor-parallel regions, d hidden, h query heads, k K/V heads, j K/V heads counted once
for every rank that holds them, e head width, f MLP width, v vocabulary rows, p position rows, r the rows of a prompt
that get logits, w columns of a token table narrower than the layers, n, u the cut axes of fused q, k, v and of fused
gate and up). The tables below say which mesh axes shard them. Mesh axes that a mesh does not have drop out.

`auto` shards the arguments and leaves the rest to the partitioner. `explicit` also pins, inside the program, what is
otherwise a choice of the partitioner: each matrix is gathered over `fsdp` where it is used, its gradient is scattered
again, and activations keep their batch and head shards. Then a device executes 1/devices of every contraction. The pins
are `with_sharding_constraint` on named shardings: unlike meshes of explicit axis type they need no output sharding at
each einsum, gather and reshape, and they lower alike for devices that are not there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxcost.contracts.case import Case
from jaxcost.contracts.errors import reject
from jaxcost.contracts.mesh import program_mesh

Rules = Mapping[str, tuple[str, ...]]

BATCH = ("data", "fsdp")
# `tensor_replica` is the rest of the tensor axis where K/V heads are fewer than its ranks: ranks along it hold the same
# stored head.
RANKS = ("tensor", "tensor_replica")
SPLIT: Rules = {"h": RANKS, "k": ("tensor",), "j": RANKS, "f": RANKS, "v": RANKS}
STAGES: Rules = {"layer": ("pipeline",)}
STORED_WEIGHT: Rules = {"d": ("fsdp",), **SPLIT, **STAGES}
USED_WEIGHT: Rules = SPLIT
ACTIVATION: Rules = {"b": BATCH, "s": ("context",), "i": ("context",), **SPLIT}
# A lookup moves tokens, not the table: the table keeps its hidden shards, so only `data` splits the looked-up rows.
LOOKED_UP: Rules = {"b": ("data",), "s": ("context",), "i": ("context",), "d": ("fsdp",)}


def make_mesh(case: Case, devices: Sequence[Any]) -> Mesh:
    """Return the mesh of a case over the first `device_count` of `devices`, in their order.

    A case without mesh axes gets one `data` axis of size one, so that a single absent device can be named.

    Raises:
        RejectedError: where there are fewer devices than the mesh needs.
    """
    sizes = program_mesh(case) or {"data": 1}
    count = case.execution.device_count
    if len(devices) < count:
        raise reject(
            "execution.mesh", sizes, f"needs {count} devices, the target has {len(devices)}", "use a larger target"
        )
    return Mesh(np.array(list(devices[:count]), dtype=object).reshape(tuple(sizes.values())), tuple(sizes))


def is_vector(axes: Sequence[str]) -> bool:
    """Whether a parameter is a norm scale or a bias (`[d]`, `[h, e]`, ...), which every device holds whole."""
    own = [axis for axis in axes if axis != "layer"]
    return len(own) == 1 or not {"d", "v"} & set(own)


@dataclass(frozen=True)
class Layout:
    """A mesh, or none, whether the program pins shardings inside (`explicit`), and whether `tensor` also splits the
    rows of the stream (`sequence_parallel`: Korthikanti et al. 2022, arXiv:2205.05198).
    """

    mesh: Mesh | None
    explicit: bool
    sequence_parallel: bool = False

    @property
    def kv_replicas(self) -> int:
        """How many ranks hold each K/V head."""
        return 1 if self.mesh is None else int(self.mesh.shape.get("tensor_replica", 1))

    @property
    def axes(self) -> tuple[str, ...]:
        """The names of the mesh's axes."""
        return () if self.mesh is None else tuple(self.mesh.axis_names)

    @property
    def context(self) -> int:
        """Over how many ranks the rows of a sequence are split."""
        return 1 if self.mesh is None else int(self.mesh.shape.get("context", 1))

    def spec(self, axes: Sequence[str], rules: Rules) -> PartitionSpec:
        """Return the partition spec of a tensor with named `axes` on this mesh."""
        names = self.axes
        if self.sequence_parallel and "i" in rules:
            rules = {**rules, "i": ("context", *RANKS)}
        entries: list[str | tuple[str, ...] | None] = []
        for axis in axes:
            held = tuple(name for name in rules.get(axis, ()) if name in names)
            entries.append(held[0] if len(held) == 1 else held or None)
        return PartitionSpec(*entries)

    def named(self, axes: Sequence[str], rules: Rules) -> NamedSharding | None:
        """Return the sharding of a tensor with named `axes`, None without a mesh."""
        return self.of_spec(self.spec(axes, rules))

    def of_spec(self, spec: PartitionSpec) -> NamedSharding | None:
        """Return the sharding of a spec, None without a mesh."""
        return None if self.mesh is None else NamedSharding(self.mesh, spec)

    def parameter_spec(self, axes: Sequence[str]) -> PartitionSpec:
        """Return how a parameter is stored: matrices by the table, vectors whole on every device of their stage."""
        return self.spec(axes, STAGES if is_vector(axes) else STORED_WEIGHT)

    def parameter(self, axes: Sequence[str]) -> NamedSharding | None:
        """Return the sharding of a stored parameter, None without a mesh."""
        return self.of_spec(self.parameter_spec(axes))

    def use(self, weight: jax.Array, axes: str) -> jax.Array:
        """Return a matrix gathered over `fsdp`; its gradient goes back to the stored shards."""
        if self.mesh is None or not self.explicit:
            return weight
        stored, used = (NamedSharding(self.mesh, self.spec(axes, rules)) for rules in (STORED_WEIGHT, USED_WEIGHT))
        # No axis of the embedding projections lies over `tensor`; left alone, the partitioner splits their gradient.
        whole = "w" in axes and not {"v"} & set(axes) and "tensor" in self.mesh.axis_names
        return _gather(weight, stored, used, whole)

    def pin(self, x: jax.Array, axes: str, rules: Rules = ACTIVATION) -> jax.Array:
        """Return an activation held to its shards (the cotangent too)."""
        if self.mesh is None or not self.explicit:
            return x
        held: jax.Array = jax.lax.with_sharding_constraint(x, NamedSharding(self.mesh, self.spec(axes, rules)))
        return held

    def enter(self, x: jax.Array) -> jax.Array:
        """Return the stream's rows gathered over `tensor` for a tensor-parallel region; its gradient is scattered."""
        return self._moved(x, "bid", "bsd") if self.sequence_parallel else x

    def leave(self, x: jax.Array) -> jax.Array:
        """Return what a tensor-parallel region adds to the stream, each rank with its own rows of the sum."""
        return self._moved(x, "bsd", "bid") if self.sequence_parallel else self.pin(x, "bsd")

    def whole_rows(self, x: jax.Array, axes: str) -> jax.Array:
        """Return rows `s` gathered over `context`; `axes` name the gathered form."""
        return self._moved(x, axes.replace("t", "s"), axes) if self.context > 1 else x

    def _moved(self, x: jax.Array, held: str, wanted: str) -> jax.Array:
        if self.mesh is None or not self.explicit:
            return x
        here, there = (NamedSharding(self.mesh, self.spec(axes, ACTIVATION)) for axes in (held, wanted))
        return _gather(x, here, there, False)


class WholeRows(Layout):
    """A layout under which no axis splits rows."""

    def spec(self, axes: Sequence[str], rules: Rules) -> PartitionSpec:
        return super().spec(axes, {axis: names for axis, names in rules.items() if axis not in "si"})


def _gather(weight: jax.Array, stored: NamedSharding, used: NamedSharding, whole: bool) -> jax.Array:
    """Constrain to `used`, and the cotangent to `stored`: an all-gather whose transpose is a reduce-scatter.

    The transpose of a plain constraint would hold the gradient to the gathered form and so reduce it everywhere, which
    `whole` asks for.
    """

    @jax.custom_vjp
    def gather(w: jax.Array) -> jax.Array:
        held: jax.Array = jax.lax.with_sharding_constraint(w, used)
        return held

    def forward(w: jax.Array) -> tuple[jax.Array, None]:
        return gather(w), None

    def backward(_: None, g: jax.Array) -> tuple[jax.Array]:
        return (jax.lax.with_sharding_constraint(jax.lax.with_sharding_constraint(g, used) if whole else g, stored),)

    gather.defvjp(forward, backward)
    return gather(weight)
