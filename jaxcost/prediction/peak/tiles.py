"""Bytes of an array on TPU, whose memory is laid out in tiles.

The last two axes of a layout are padded up to a tile. The compiler is free to choose which axes those are, and chooses
those that pad least: for bf16[24, 112, 14, 64] the last axis is the one of 112, not of 64. The rule below was held
against the layouts that the compiler (libtpu 0.0.42.1) gave to 1,035 arguments of one to five axes in fp32, bf16 and
int32: all sizes are equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

from jaxcost.contracts.dtypes import payload_bytes
from jaxcost.contracts.errors import reject
from jaxcost.prediction.domain import ceil_div
from jaxcost.prediction.parameters import Entry
from jaxcost.prediction.program import Program, Tensor
from jaxcost.prediction.sharding import degrees, kept_axes
from jaxcost.prediction.state import array_shape, population

LANES = 128  # columns of a tile
SUBLANES = 8  # rows of a tile
LONGEST = 1024  # the tile of an array with one axis, at most
WORD_BYTES = 4


def tile_padded_bytes(shape: Sequence[int], dtype: str) -> int:
    """Return the bytes of an array in the compact tiled layout of a TPU.

    Args:
        shape: its extents on one device.
        dtype: a type of two or four bytes.

    Raises:
        RejectedError: a type of another width; its tiles are others.
    """
    width = payload_bytes(1, dtype)
    if width not in (2, WORD_BYTES):
        raise reject("dtype", dtype, "tiles are known of types of two and four bytes", "use fp32, bf16 or int32")
    packed = WORD_BYTES // width  # rows that share a word
    extents = tuple(int(n) for n in shape)
    if 0 in extents:
        return 0
    if not extents:
        return LANES * WORD_BYTES
    if len(extents) == 1:
        tile = _tile(extents[0], LANES * packed, LONGEST)
        return _up(extents[0], tile) * width
    return width * min(
        prod(extents)
        // (extents[row] * extents[column])
        * _up(extents[row], _tile(extents[row], packed, SUBLANES))
        * _up(extents[column], LANES)
        for row in range(len(extents))
        for column in range(len(extents))
        if row != column
    )


def _tile(extent: int, least: int, most: int) -> int:
    """The smallest power of two times `least` that holds an extent, `most` at most."""
    tile = least
    while tile < extent and tile < most:
        tile *= 2
    return tile


def _up(extent: int, step: int) -> int:
    return -(-extent // step) * step


class Tiled(NamedTuple):
    """Arrays of one argument on the worst device: what they hold, and what they take with their tiles."""

    object: str
    role: str
    bytes: int
    padded: int


def tiled_arguments(program: Program) -> tuple[Tiled, ...]:
    """Return the step's arguments on the worst device, array by array of each state object."""
    from jaxcost.prediction.ownership import arguments

    objects = {item.name: item for item in program.case.state.objects}
    found = []
    for item in arguments(program):
        if item.role == "input":
            shape = local_shape(program, program.tensors[item.object])
            tensor = program.tensors[item.object]
            copies = 1 if program.case.execution.layers == "scan" else tensor.repeat
            padded = copies * tile_padded_bytes(shape, tensor.dtype)
        elif item.object not in objects or objects[item.object].count == "scalar":
            padded = tile_padded_bytes((), "int32")
        else:
            state = objects[item.object]
            padded = 0
            for entry in population(program, state.basis):
                own, kept = stored_shape(program, entry), kept_axes(state, entry)
                if kept is None:
                    padded += entry.copies * state.copies * tile_padded_bytes(array_shape(state, entry), state.dtype)
                    continue
                size = tile_padded_bytes([own[axis] for axis in kept], state.dtype)
                padded += entry.copies * state.copies * size
        found.append(Tiled(item.object, item.role, int(item.per_device), padded))
    return tuple(found)


def stored_shape(program: Program, entry: Entry) -> tuple[int, ...]:
    """Return the extents of the largest shard of a parameter array."""
    divided = degrees(entry, program.case.execution)
    return tuple(int(ceil_div(extent, degree)) for extent, degree in zip(entry.shape, divided, strict=True))


def local_shape(program: Program, tensor: Tensor) -> tuple[int, ...]:
    """Return the extents of an activation, input or cache on the worst device, stacked where the layers are."""
    own: tuple[Any, ...] = program.device_sizes.shape(tensor.axes, tensor.group)
    stacked = tensor.group is not None and program.case.execution.layers == "scan"
    return tuple(int(n) for n in ((tensor.repeat, *own) if stacked else own))
