"""Shapes and their bytes as XLA stores them: packed below one byte, padded to tiles on TPU.

A tile list such as `(8,128)(2,1)` pads the trailing dimensions (in layout order) up to multiples of the first tile; the
later tiles only reorder inside it. `bf16[100,100]` in `(8,128)(2,1)` takes 104 x 128 x 2 = 26,624 bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod

from jaxcost.observation.hlo.schema import Proto, rejected

# PrimitiveType of xla_data.proto: number -> (name, bits of one stored element). Name 'tuple' and the like store none.
ELEMENT_TYPES: dict[int, tuple[str, int]] = {
    1: ("pred", 8), 2: ("s8", 8), 3: ("s16", 16), 4: ("s32", 32), 5: ("s64", 64), 6: ("u8", 8), 7: ("u16", 16),
    8: ("u32", 32), 9: ("u64", 64), 10: ("f16", 16), 11: ("f32", 32), 12: ("f64", 64), 13: ("tuple", 0),
    14: ("opaque", 0), 15: ("c64", 64), 16: ("bf16", 16), 17: ("token", 0), 18: ("c128", 128), 19: ("f8e5m2", 8),
    20: ("f8e4m3fn", 8), 21: ("s4", 4), 22: ("u4", 4), 23: ("f8e4m3b11fnuz", 8), 24: ("f8e5m2fnuz", 8),
    25: ("f8e4m3fnuz", 8), 26: ("s2", 2), 27: ("u2", 2), 28: ("f8e4m3", 8), 29: ("f8e3m4", 8), 30: ("s1", 1),
    31: ("u1", 1), 32: ("f4e2m1fn", 4), 33: ("f8e8m0fnu", 8), 34: ("buffer", 0),
    35: ("f6e3m2fn", 6), 36: ("f6e2m3fn", 6),
}  # fmt: skip

_BITS = dict(ELEMENT_TYPES.values())
_TUPLE = 13
_COMBINE = -(1 << 63)  # xla::Tile::kCombineDimension: this dimension is merged into the next one before tiling
_MAX_DEPTH = 16
_REMEDY = "dump the module again"
MAX_SHAPE_BYTES = 2**63 - 1  # XLA's own: it counts the bytes of a shape in 64 bits


def bits_of(dtype: str) -> int:
    """Bits of one stored element; 0 for a tuple, a token, and what is no type known here."""
    return _BITS.get(dtype, 0)


@dataclass(frozen=True, slots=True)
class Shape:
    """One array, or a tuple of shapes. `bytes` is what the layout stores, all leaves together, without pointer
    tables; `size` the number of elements of an array; `logical_bytes` what the elements take without the padding of a
    layout, all leaves together.
    """

    dtype: str
    dims: tuple[int, ...]
    elements: tuple[Shape, ...]
    bytes: int
    memory_space: int
    dynamic: bool = False
    # What follows from these, worked out once: a module has few shapes and many instructions.
    is_tuple: bool = field(init=False, compare=False, repr=False)
    size: int = field(init=False, compare=False, repr=False)
    logical_bytes: int = field(init=False, compare=False, repr=False)
    text: str = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        is_tuple, size = self.dtype == "tuple", prod(self.dims)
        logical = sum(e.logical_bytes for e in self.elements) if is_tuple else -(-size * _BITS[self.dtype] // 8)
        text = (
            f"({', '.join(map(str, self.elements))})" if is_tuple else f"{self.dtype}[{','.join(map(str, self.dims))}]"
        )
        for name, value in (("is_tuple", is_tuple), ("size", size), ("logical_bytes", logical), ("text", text)):
            object.__setattr__(self, name, value)

    def leaves(self) -> Iterator[Shape]:
        """The arrays of a tuple, in order; an array is its own only leaf."""
        if not self.is_tuple:
            yield self
            return
        for element in self.elements:
            yield from element.leaves()

    def at(self, index: tuple[int, ...]) -> Shape | None:
        """The element at a tuple index path, or None when there is none."""
        shape = self
        for i in index:
            if not 0 <= i < len(shape.elements):
                return None
            shape = shape.elements[i]
        return shape

    def __str__(self) -> str:
        return self.text


def _stored_elements(dims: tuple[int, ...], layout: Proto) -> int:
    """Elements stored, padding included."""
    order: tuple[int, ...] = tuple(layout.minor_to_major)
    if not layout.tiles or len(order) != len(dims):
        return prod(dims)
    physical = [dims[d] for d in reversed(order)]  # major to minor
    tile: tuple[int, ...] = tuple(layout.tiles[0].dimensions)
    if len(tile) > len(physical):
        physical = [1] * (len(tile) - len(physical)) + physical
    head, tail = physical[: len(physical) - len(tile)], physical[len(physical) - len(tile) :]
    merged = 1
    for size, step in zip(tail, tile, strict=True):
        if step == _COMBINE:
            merged *= size
            continue
        size *= merged
        merged = 1
        if step <= 0:
            raise rejected("hlo.shape.layout.tiles", step, "a tile dimension must be positive", _REMEDY)
        head.append(-(-size // step) * step)
    count = prod(head) * merged
    align: int = layout.tail_padding_alignment_in_elements
    return -(-count // align) * align if align > 1 else count


def read_shape(proto: Proto, depth: int = 0) -> Shape:
    """The shape of a ShapeProto.

    Raises RejectedError for an unknown element type, an impossible dimension or layout, more than MAX_SHAPE_BYTES, or
    tuples nested more than 16 deep.
    """
    kind = ELEMENT_TYPES.get(proto.element_type)
    if kind is None:
        raise rejected(
            "hlo.shape.element_type",
            proto.element_type,
            f"must be one of {len(ELEMENT_TYPES)} known element types",
            "the dump is damaged, or newer than this jaxcost: update jaxcost",
        )
    name, bits = kind
    if proto.element_type == _TUPLE:
        if depth >= _MAX_DEPTH:
            raise rejected("hlo.shape", depth, f"tuples nest at most {_MAX_DEPTH} deep", _REMEDY)
        elements = tuple(read_shape(element, depth + 1) for element in proto.tuple_shapes)
        whole = sum(e.bytes for e in elements)
        if whole > MAX_SHAPE_BYTES:
            raise rejected("hlo.shape", f"{len(elements)} elements", "a shape has less than 2^63 bytes", _REMEDY)
        return Shape(name, (), elements, whole, 0, any(e.dynamic for e in elements))
    dims = tuple(proto.dimensions)
    if any(d < 0 for d in dims):
        raise rejected(
            "hlo.shape.dimensions", list(dims), "a compiled dimension is 0 or more", "compile with static shapes"
        )
    layout = proto.layout
    order = tuple(layout.minor_to_major)
    if order and sorted(order) != list(range(len(dims))):
        raise rejected(
            "hlo.shape.layout.minor_to_major",
            list(order),
            f"must order the {len(dims)} dimensions",
            _REMEDY,
        )
    width = layout.element_size_in_bits or bits
    if width < 0:
        raise rejected("hlo.shape.layout.element_size_in_bits", width, "a size is 0 or more", _REMEDY)
    size = _stored_elements(dims, layout) * width
    if max(size, prod(dims) * bits) > 8 * MAX_SHAPE_BYTES:
        raise rejected("hlo.shape.dimensions", list(dims[:8]), "a shape has less than 2^63 bytes", _REMEDY)
    return Shape(name, dims, (), -(-size // 8), layout.memory_space, any(proto.is_dynamic_dimension))
