"""Declared parameters, cut into the pieces that layouts put together.

A manifest may declare q, k and v (or gate and up) apart or fused, and so may a file, each for itself. Cutting what is
declared into separate pieces leaves a layout one table for both: a stored array is a list of pieces and its axes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from jaxcost.prediction.program import Program, Tensor

# A fused parameter of a layer -> its pieces, in declared order, with their axes. `n` is h + 2k, `u` is 2f.
_FUSED: dict[str, tuple[tuple[str, str], ...]] = {
    "attn/qkv/weight": (
        ("attn/q_proj/weight", "d h e"), ("attn/k_proj/weight", "d k e"), ("attn/v_proj/weight", "d k e"),
    ),
    "attn/qkv/bias": (("attn/q_proj/bias", "h e"), ("attn/k_proj/bias", "k e"), ("attn/v_proj/bias", "k e")),
    "mlp/gate_up/weight": (("mlp/gate/weight", "d f"), ("mlp/up/weight", "d f")),
    "mlp/gate_up/bias": (("mlp/gate/bias", "f"), ("mlp/up/bias", "f")),
}  # fmt: skip


@dataclass(frozen=True)
class ExpectedTensor:
    """One stored array as a layout names it. Equal `alias` means one storage.

    `parts` are the declared parameters it holds, in stored order; `linear` says that it is a matrix of a projection
    inside the layers, which is what weight-only quantisation packs. `order` is a note where rows are interleaved.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    trainable: bool
    alias: str
    parts: tuple[str, ...] = ()
    linear: bool = False
    order: str = ""

    @property
    def scalars(self) -> int:
        """The number of stored scalars."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Piece:
    """One separate parameter: `local` below its group, with its axes; `declared` is the tensor it is cut from."""

    local: str
    axes: str
    declared: Tensor


def pieces(tensor: Tensor) -> tuple[Piece, ...]:
    """Return the separate parameters that a declared one holds."""
    local = local_name(tensor)
    cut = _FUSED.get(local, ((local, tensor.axes),))
    return tuple(Piece(name, axes, tensor) for name, axes in cut)


def local_name(tensor: Tensor) -> str:
    """Return a parameter's name below its group of layers, where it has one."""
    return tensor.name if tensor.group is None else tensor.name.split("/", 1)[1]


def extent(program: Program, axis: str, group: int | None) -> int:
    """Return the extent of an axis, also of `n`, `u` and `w`, which follow from others."""
    sizes = program.sizes
    if axis == "n":
        return int(sizes.axis("h", group)) + 2 * int(sizes.axis("k", group))
    if axis == "u":
        return 2 * int(sizes.axis("f", group))
    if axis == "w":
        return program.case.architecture.table_width
    return int(sizes.axis(axis, group))


def product(program: Program, axes: str, group: int | None) -> int:
    """Return the product of space-separated axes."""
    return math.prod(extent(program, axis, group) for axis in axes.split())


def by_layer(program: Program) -> Iterator[tuple[int | None, int | None, int, list[Tensor]]]:
    """Yield (group, layer in the group, layer in the stack, parameters): first what stands outside, then each layer."""
    yield None, None, 0, [tensor for tensor in program.parameters if tensor.group is None]
    first = 0
    for group, repeat in enumerate(program.sizes.repeats):
        own = [tensor for tensor in program.parameters if tensor.group == group]
        for layer in range(repeat):
            yield group, layer, first + layer, own
        first += repeat


def layer_names(program: Program) -> tuple[ExpectedTensor, ...]:
    """Return the arrays under `group0/1/attn/q_proj/weight` (group, layer in it, parameter), axes as declared."""
    found = []
    for group, layer, _, tensors in by_layer(program):
        for tensor in tensors:
            shape = tuple(extent(program, axis, group) for axis in tensor.axes.split())
            names = [
                name if group is None else f"group{group}/{layer}/{name.split('/', 1)[1]}"
                for name in (tensor.name, tensor.storage)
            ]
            found.append(ExpectedTensor(names[0], shape, tensor.dtype, tensor.trainable, names[1], (tensor.name,),
                                        is_linear(tensor)))  # fmt: skip
    return tuple(found)


def is_linear(tensor: Tensor) -> bool:
    """Return whether a parameter is the matrix of a projection inside the layers."""
    return tensor.group is not None and tensor.name.endswith("/weight")
