"""Parameters: which scalars are learned, how often they are named, where they are stored.

`unique` counts released scalars with every storage once; `stored` adds the padding of vocabulary and heads; `named`
counts a tied table at each of its names. Buffers (rotary tables, masks, keys) are not parameters and do not appear.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from jaxcost.contracts.dtypes import payload_bytes
from jaxcost.prediction.program import Program, Tensor
from jaxcost.prediction.rows import Ledger, Row


@dataclass(frozen=True)
class Entry:
    """One array of the parameter tree: a layer's own, or one stacked over the layers of a scanned group.

    Attributes:
        name: parameter name as in `Program.tensors`; `alias` is the name that owns the storage (itself when not tied).
        axes: axis names, `layer` first when stacked.
        shape: extents in the same order, padding included.
        scalars: released scalars over all `copies`; `padding` are the extra stored ones.
        copies: how many arrays of this shape there are (layers, when unrolled).
    """

    name: str
    scope: str
    axes: tuple[str, ...]
    shape: tuple[Any, ...]
    dtype: str
    alias: str
    trainable: bool
    scalars: Any
    padding: Any
    copies: Any

    @property
    def stored(self) -> Any:
        """Stored scalars over all copies."""
        return self.scalars + self.padding

    @property
    def is_alias(self) -> bool:
        """Whether another name owns the storage."""
        return self.alias != self.name


def entry(program: Program, tensor: Tensor) -> Entry:
    """Return the array of one parameter."""
    sizes, stacked = program.sizes, tensor.group is not None and program.case.execution.layers == "scan"
    shape = sizes.shape(tensor.axes, tensor.group)
    axes = tuple(tensor.axes.split())
    stored: Any = sizes.product(tensor.axes, tensor.group) * tensor.repeat
    scalars: Any = tensor.repeat
    for axis in axes:
        scalars = scalars * sizes.released(axis, tensor.group)
    return Entry(
        tensor.name,
        tensor.scope,
        ("layer", *axes) if stacked else axes,
        (tensor.repeat, *shape) if stacked else shape,
        tensor.dtype,
        tensor.storage,
        tensor.trainable,
        scalars,
        stored - scalars,
        1 if stacked else tensor.repeat,
    )


@lru_cache(maxsize=8)
def entries(program: Program) -> tuple[Entry, ...]:
    """Return every named parameter, aliases included."""
    return tuple(entry(program, tensor) for tensor in program.parameters)


def parameters(program: Program) -> Ledger:
    """Return the parameter ledger: one row per name, an alias counting in `named` alone."""
    found = entries(program)
    unique = [item for item in found if not item.is_alias]
    rows = tuple(
        Row(
            item.name,
            item.scope,
            "",
            item.scalars,
            "scalars",
            {
                "axes": " ".join(item.axes),
                "shape": item.shape,
                "copies": item.copies,
                "dtype": item.dtype,
                "storage": item.alias,
                "alias": item.is_alias,
                "trainable": item.trainable,
                "padding": item.padding,
                "bytes": 0 if item.is_alias else payload_bytes(item.stored, item.dtype),
            },
            "an alias is named again, not stored again",
            "buffers: rotary tables, masks, random keys",
        )
        for item in found
    )
    totals = {
        "unique": sum(item.scalars for item in unique),
        "named": sum(item.scalars for item in found),
        "trainable": sum(item.scalars for item in unique if item.trainable),
        "active": sum(item.scalars for item in unique),
        "stored": sum(item.stored for item in unique),
        "padding": sum(item.padding for item in unique),
        "bytes": sum(payload_bytes(item.stored, item.dtype) for item in unique),
    }
    return Ledger("parameters", totals, rows)
