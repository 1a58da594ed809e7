from __future__ import annotations

import pytest

from jaxcost.contracts.errors import RejectedError
from jaxcost.observation.hlo.schema import message
from jaxcost.observation.hlo.shapes import read_shape
from tests.observation.hlo.building import set_shape


@pytest.mark.parametrize(
    "dtype, dims, tiles, bits, expected",
    [
        ("f32", (5, 3), [], 0, 60),
        ("s4", (5, 3), [], 4, 8),
        ("s2", (4, 4), [], 2, 4),
        ("pred", (7,), [], 0, 7),
        ("bf16", (100, 100), [(8, 128), (2, 1)], 0, 26_624),
        ("s8", (3, 1000), [(4, 128), (4, 1)], 0, 4_096),
        ("f32", (5, 3), [(4, 128)], 0, 4_096),
        ("f32", (2, 5, 3), [(8, 128)], 0, 8_192),
        ("f32", (7,), [(128,)], 0, 512),
        ("f32", (7,), [(8, 128)], 0, 4_096),
        ("s4", (64, 100), [(64, 128), (8, 1)], 4, 4_096),
    ],
)
def test_bytes(dtype, dims, tiles, bits, expected):
    proto = message("ShapeProto")
    set_shape(proto, (dtype, *dims))
    proto.layout.element_size_in_bits = bits
    for tile in tiles:
        proto.layout.tiles.add().dimensions.extend(tile)
    assert read_shape(proto).bytes == expected


def test_layout_order_decides_which_dimensions_are_tiled():
    proto = message("ShapeProto")
    set_shape(proto, ("f32", 3, 200))
    proto.layout.tiles.add().dimensions.extend((8, 128))
    assert read_shape(proto).bytes == 8 * 256 * 4
    proto.layout.minor_to_major[:] = [0, 1]
    assert read_shape(proto).bytes == 200 * 128 * 4


def test_tuples_and_nonsense():
    proto = message("ShapeProto")
    set_shape(proto, [("f32", 2), [("s8", 3), ("token",)]])
    shape = read_shape(proto)
    assert (shape.bytes, str(shape)) == (11, "(f32[2], (s8[3], token[]))")
    assert shape.at((1, 0)).dims == (3,) and shape.at((2,)) is None
    for change in ({"element_type": 99}, {"dimensions": -1}):
        broken = message("ShapeProto")
        set_shape(broken, ("f32", 2))
        if "dimensions" in change:
            broken.dimensions[0] = -1
        else:
            broken.element_type = 99
        with pytest.raises(RejectedError):
            read_shape(broken)
