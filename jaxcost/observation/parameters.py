"""What a module really holds: every array leaf, which storage it is, and whether it is trained.

A ledger predicts parameters from sizes; this module counts those that exist. Three rules decide:

- two names are one storage if and only if they are the same array object, or one is reached through
  `equinox.nn.Shared`. Equal values are two storages; a state mapping with both names holds both.
- trainable are the inexact (floating, complex) JAX arrays, which is what `equinox.is_inexact_array` filters, less the
  buffers. Rotary tables are floating too and nothing in a pytree says that they are no weights, so buffers are named
  by the caller or marked where they are declared: `inv_freq: jax.Array = eqx.field(metadata={"buffer": True})`.
- where the trainable names are declared, one that is not is refused: an undeclared parameter is in no ledger.

What was assumed is part of the result.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core as jex_core

from jaxcost.contracts.errors import Problem, RejectedError

# NumPy names to the names of jaxcost.contracts.dtypes; a type without one keeps NumPy's.
_NAMES = {
    "float64": "fp64", "float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "float8_e4m3fn": "fp8_e4m3",
    "float8_e5m2": "fp8_e5m2", "int4": "int4",
}  # fmt: skip


def dtype_name(dtype: Any) -> str:
    """Return the contract's name of a NumPy or JAX dtype (`float32` is `fp32`)."""
    return _NAMES.get(str(dtype), str(dtype))


def storage_bytes(count: int, dtype: Any) -> int:
    """Return the bytes of `count` elements; sub-byte types pack, key arrays count the words of their keys."""
    if jnp.issubdtype(dtype, jax.dtypes.prng_key):
        return count * int(dtype.itemsize)
    bits = {"int4": 4, "uint4": 4, "int2": 2, "uint2": 2, "float4_e2m1fn": 4}.get(str(dtype))
    return -(-count * bits // 8) if bits else count * int(np.dtype(dtype).itemsize)


@dataclass(frozen=True)
class Leaf:
    """One name of an array. `alias` is the first name of its storage; `axes` is None where nobody named the axes."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    kind: str
    trainable: bool
    alias: str
    bytes: int
    axes: tuple[str, ...] | None = None

    @property
    def scalars(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def owns(self) -> bool:
        """Whether this is the first name of its storage."""
        return self.alias == self.name

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form; `axes` pairs each axis name with its length."""
        axes = None if self.axes is None else [[name, size] for name, size in zip(self.axes, self.shape, strict=True)]
        return {
            "name": self.name, "kind": self.kind, "shape": list(self.shape), "axes": axes, "dtype": self.dtype,
            "scalars": self.scalars, "bytes": self.bytes, "trainable": self.trainable, "alias": self.alias,
        }  # fmt: skip


@dataclass(frozen=True)
class Parameters:
    """All named arrays of a module. `named` counts a tied storage once per name, the other totals once."""

    leaves: tuple[Leaf, ...]
    assumptions: tuple[str, ...]

    @property
    def parameters(self) -> tuple[Leaf, ...]:
        """The leaves that are not buffers."""
        return tuple(leaf for leaf in self.leaves if leaf.kind == "parameter")

    @property
    def unique(self) -> int:
        """Scalars of distinct parameter storages."""
        return sum(leaf.scalars for leaf in self.parameters if leaf.owns)

    @property
    def named(self) -> int:
        """Scalars over all parameter names."""
        return sum(leaf.scalars for leaf in self.parameters)

    @property
    def trainable(self) -> int:
        """Scalars of distinct trained storages."""
        return sum(leaf.scalars for leaf in self.parameters if leaf.owns and leaf.trainable)

    @property
    def bytes(self) -> int:
        """Bytes of distinct parameter storages."""
        return sum(leaf.bytes for leaf in self.parameters if leaf.owns)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "entries": [leaf.to_dict() for leaf in self.leaves], "unique": self.unique, "named": self.named,
            "trainable": self.trainable, "bytes": self.bytes, "assumptions": list(self.assumptions),
        }  # fmt: skip


def parameters_of(
    module: Any, *, declared: Mapping[str, Sequence[str]] | Collection[str] | None = None, buffers: Iterable[str] = ()
) -> Parameters:
    """Return what an Equinox module (or any pytree of arrays, real or abstract) holds.

    Args:
        module: the pytree. Names are its paths: `layers.0.attn.q_proj.weight`.
        declared: the names that may be trained, all of them; a mapping also gives the names of their axes.
            None accepts what is found and says so.
        buffers: names, or patterns with `*`, of arrays that are not trained and are no parameters.

    Raises:
        RejectedError: a trainable array is not declared, a declared name is missing or has another rank, a tied name
            was declared twice with different axes, or a name of `buffers` matches nothing.
    """
    found = list(_walk(module, ""))
    names = [name for name, _, _ in found]
    patterns = tuple(buffers)
    problems = [
        Problem("buffers", pattern, "no array of the module has this name", f"the arrays are {_listed(names)}")
        for pattern in patterns
        if not any(fnmatch.fnmatchcase(name, pattern) for name in names)
    ]
    owner: dict[int, str] = {}
    leaves = []
    for name, leaf, marked in found:
        storage, value = leaf
        alias = owner.setdefault(storage, name)
        buffer = marked or any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
        kind = "parameter" if _is_inexact(value) and not buffer else "buffer"
        axes = tuple(declared[name]) if isinstance(declared, Mapping) and name in declared else None
        if axes is not None and len(axes) != len(value.shape):
            problems.append(Problem(name, list(axes), f"the array has rank {len(value.shape)}", "name every axis once"))
            axes = None
        size = storage_bytes(math.prod(value.shape), value.dtype)
        leaves.append(
            Leaf(name, tuple(value.shape), dtype_name(value.dtype), kind, kind == "parameter", alias, size, axes)
        )
    leaves = _one_kind_per_storage(leaves)
    if declared is not None:
        problems.extend(_undeclared(leaves, set(declared)))
    if problems:
        raise RejectedError(problems)
    return Parameters(tuple(leaves), tuple(_assumptions(found, leaves, patterns, declared is not None)))


def _undeclared(leaves: Sequence[Leaf], declared: set[str]) -> Iterator[Problem]:
    owners = {leaf.alias for leaf in leaves if leaf.name in declared}
    for leaf in leaves:
        if leaf.trainable and leaf.name not in declared and leaf.alias not in owners:
            yield Problem(
                leaf.name, f"{leaf.dtype}{list(leaf.shape)}", "trainable, and declared nowhere",
                "declare it, or name it in buffers if nothing trains it",
            )  # fmt: skip
    present = {leaf.name for leaf in leaves}
    for name in sorted(declared - present):
        yield Problem(name, None, "declared, and absent from the module", f"the arrays are {_listed(sorted(present))}")


def _one_kind_per_storage(leaves: list[Leaf]) -> list[Leaf]:
    """A storage named as a buffer under one name is a buffer under all."""
    buffered = {leaf.alias for leaf in leaves if leaf.kind == "buffer"}
    return [
        dataclasses.replace(leaf, kind="buffer", trainable=False) if leaf.alias in buffered else leaf for leaf in leaves
    ]


def _assumptions(
    found: Sequence[tuple[str, tuple[int, Any], bool]], leaves: Sequence[Leaf], patterns: Sequence[str], declared: bool
) -> Iterator[str]:
    if not declared:
        yield "no names were declared: every inexact JAX array that is no buffer counts as trainable"
    floating = [leaf.name for leaf, (_, (_, value), _) in zip(leaves, found, strict=True) if _is_inexact(value)]
    excluded = [leaf.name for leaf in leaves if leaf.kind == "buffer"]
    chosen = [name for name in excluded if name in floating]
    if chosen:
        yield f"floating arrays taken as buffers because they are named or marked so: {_listed(chosen)}"
    rest = [name for name in excluded if name not in floating]
    if rest:
        yield f"not trainable by type (integers, booleans, keys, NumPy arrays): {_listed(rest)}"
    if not patterns and not chosen:
        yield "no buffer was named or marked: rotary tables or other constants kept as floating arrays would be counted"
    if any(isinstance(value, jax.ShapeDtypeStruct) for _, (_, value), _ in found):
        yield "abstract leaves: one storage is one ShapeDtypeStruct object; jax.eval_shape gives each leaf its own"


def _listed(names: Sequence[str], most: int = 8) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _is_inexact(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return False
    return jnp.issubdtype(value.dtype, np.inexact)


def _is_array(value: Any) -> bool:
    return isinstance(value, jax.Array | jax.ShapeDtypeStruct | np.ndarray)


def _children(node: Any) -> list[tuple[str, Any, bool]]:
    """The children of one pytree node: key, child, and whether its field is marked as a buffer."""
    pairs, _ = jax.tree_util.tree_flatten_with_path(node, is_leaf=lambda child: child is not node)
    marked = set()
    if dataclasses.is_dataclass(node):
        marked = {field.name for field in dataclasses.fields(node) if field.metadata.get("buffer")}
    keyed = [(path_key(path[0]), child) for path, child in pairs if path]
    return [(key, child, key in marked) for key, child in keyed]


def path_key(entry: Any) -> str:
    """Return one step of a pytree path as text: a field's name, a dictionary's key, an index."""
    for attribute in ("name", "key", "idx"):
        if hasattr(entry, attribute):
            return str(getattr(entry, attribute))
    return str(entry)


def _walk(node: Any, path: str, marked: bool = False) -> Iterator[tuple[str, tuple[int, Any], bool]]:
    """Yield (name, (storage, array), marked) for every array below `node`."""
    if _is_array(node):
        yield path, (id(node), node), marked
        return
    if isinstance(node, eqx.nn.Shared):
        yield from _walk_shared(node, path, marked)
        return
    for key, child, field_marked in _children(node):
        yield from _walk(child, f"{path}.{key}" if path else key, marked or field_marked)


def _walk_shared(node: eqx.nn.Shared, path: str, marked: bool) -> Iterator[tuple[str, tuple[int, Any], bool]]:
    """The tied view of a `Shared`: its stored arrays, and each name that reads one of them, also transposed."""
    stored = dict(leaf for _, leaf, _ in _walk(node.pytree, "", False))
    tied = node()
    source = _sources(node, stored)
    for name, (storage, value), inner in _walk(tied, path, marked):
        yield name, (storage if storage in stored else source, value), inner


def _sources(node: eqx.nn.Shared, stored: Mapping[int, Any]) -> int:
    """The one stored array that a derived view (`get=lambda pair: pair[0].weight.T`) reads.

    Raises:
        RejectedError: it reads several or none, so it is no tie of one storage.
    """
    arrays, static = eqx.partition(node.pytree, _is_array)
    flat, treedef = jax.tree_util.tree_flatten(arrays)

    def view(*leaves: Any) -> list[Any]:
        shared = node.get(eqx.combine(jax.tree_util.tree_unflatten(treedef, leaves), static))
        return [leaf for leaf in jax.tree_util.tree_leaves(shared) if hasattr(leaf, "dtype")]

    graph = jax.make_jaxpr(view)(*flat).jaxpr
    needed = {variable for variable in graph.outvars if isinstance(variable, jex_core.Var)}
    for equation in reversed(graph.eqns):
        if needed & set(equation.outvars):
            needed |= {variable for variable in equation.invars if isinstance(variable, jex_core.Var)}
    used = [id(leaf) for leaf, variable in zip(flat, graph.invars, strict=True) if variable in needed]
    if len(used) != 1:
        raise RejectedError([
            Problem("Shared.get", len(used), "reads other than one stored array, so it ties no single storage",
                    "tie one array with one equinox.nn.Shared")
        ])  # fmt: skip
    return used[0]
