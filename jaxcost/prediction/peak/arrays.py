"""Bytes on the worst device of the arrays that a peak is made of.

All of it is folded from the program's declarations: what is stored comes from the ownership fold, activations and
saved tensors from the program's tensors and the walk over what backward needs. This module adds no formula of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from jaxcost.contracts.dtypes import payload_bytes
from jaxcost.prediction.domain import ceil_div
from jaxcost.prediction.ownership import arguments, degrees
from jaxcost.prediction.parameters import entry
from jaxcost.prediction.peak.moments import Held, Span
from jaxcost.prediction.program import Program, Tensor

OPTIMIZER_ROLES = frozenset("step first_moment second_moment second_moment_row second_moment_column momentum".split())


@dataclass(frozen=True, slots=True)
class Weight:
    """One stored parameter on the worst device, in elements of one layer (`layers` of them).

    `stored` is its shard; `used` what a contraction multiplies by, that is gathered over `fsdp` and still cut over
    `tensor`; `minor` tells whether the fsdp shard lies along its last axis.
    """

    name: str
    scope: str
    group: int | None
    layers: int
    stored: int
    used: int
    dtype: str
    trainable: bool
    vector: bool
    minor: bool

    def stored_bytes(self, dtype: str = "") -> int:
        """Bytes of one layer's shard."""
        return payload_bytes(self.stored, dtype or self.dtype)

    def used_bytes(self, dtype: str) -> int:
        """Bytes of one layer's gathered weight."""
        return payload_bytes(self.used, dtype)

    @property
    def stack_elements(self) -> int:
        """Elements of the shards of all layers."""
        return self.stored * self.layers


@lru_cache(maxsize=32)
def weights(program: Program) -> tuple[Weight, ...]:
    """Return the stored parameters in declaration order, each storage once."""
    run, found = program.case.execution, []
    for tensor in program.unique_parameters:
        array = entry(program, tensor)
        own = degrees(array, run)
        stacked = int(array.axes[:1] == ("layer",))
        shard = prod(ceil_div(n, degree) for n, degree in zip(array.shape[stacked:], own[stacked:], strict=True))
        vector = not tensor.name.endswith("/weight")
        # A vector is held whole, and used as what the device's own heads or columns need of it.
        used = program.device_sizes.product(tensor.axes, tensor.group)
        minor = not vector and run.degree("fsdp") > 1 and tensor.axes.split()[-1] == "d"
        found.append(
            Weight(
                tensor.name, tensor.scope, tensor.group, tensor.repeat, shard, used, tensor.dtype, tensor.trainable,
                vector, minor,
            )
        )  # fmt: skip
    return tuple(found)


def bytes_of(program: Program, tensor: Tensor | str, dtype: str = "") -> int:
    """Return the bytes of one copy of a tensor on the worst device, for one microbatch."""
    found = program.tensors[tensor] if isinstance(tensor, str) else tensor
    return int(payload_bytes(program.device_elements(found), dtype or found.dtype))


def points(program: Program, axes: str, group: int | None = None) -> int:
    """Return the joint extent of axes on the worst device, for one microbatch."""
    return int(program.device_microbatch_sizes.product(axes, group))


def total(program: Program, wanted: Callable[[Weight], bool], dtype: str = "", *, used: bool = False) -> int:
    """Return the bytes over all layers of the weights that are wanted, as stored or as used."""
    return sum(
        weight.layers * payload_bytes(weight.used if used else weight.stored, dtype or weight.dtype)
        for weight in weights(program)
        if wanted(weight)
    )


def state_entries(program: Program) -> tuple[Held, ...]:
    """Return the step's arguments as entries: they are in use throughout."""
    found = []
    for item in arguments(program):
        kind = "input_output"
        if item.role == "parameter":
            kind = "parameter"
        elif item.role in OPTIMIZER_ROLES:
            kind = "optimizer"
        elif item.object.rsplit("/", 1)[-1].startswith("past_"):
            kind = "cache"
        found.append(Held(kind, item.object, item.scope, Span.exact(item.per_device)))
    return tuple(merged(found))


def merged(entries: Iterable[Held]) -> list[Held]:
    """Return entries with those of equal class, object, scope and rule added up."""
    sums: dict[tuple[str, str, str, str], Span] = {}
    for item in entries:
        key = (item.kind, item.object, item.scope, item.rule)
        sums[key] = sums[key].plus(item.bytes) if key in sums else item.bytes
    return [Held(kind, name, scope, span, rule) for (kind, name, scope, rule), span in sums.items()]
