"""Bytes that a TPU gives to arrays, by their shape and type."""

from __future__ import annotations

import pytest

import jaxcost
from jaxcost.contracts.case import decode, training
from jaxcost.contracts.errors import RejectedError
from jaxcost.prediction.peak.tiles import tile_padded_bytes, tiled_arguments
from jaxcost.prediction.program import program

# dtype, shape, bytes: sizes of arguments as libtpu 0.0.42.1 laid them out; one of each kind of layout it chose.
OBSERVED = [
    ("bf16", (640,), 2048), ("bf16", (14, 5), 2048), ("bf16", (256, 3), 2048), ("bf16", (1, 120, 224), 57344),
    ("bf16", (2, 120, 14), 7168), ("bf16", (12, 2, 256), 12288), ("bf16", (32, 112, 5), 40960),
    ("bf16", (112, 320, 24), 1966080), ("bf16", (1, 192, 14, 14), 114688), ("bf16", (2, 7, 3, 1), 1536),
    ("bf16", (2, 7, 256, 100), 716800), ("bf16", (2, 56, 16, 3), 24576), ("bf16", (2, 96, 100, 256), 9830400),
    ("bf16", (4, 100, 5, 5), 25600), ("bf16", (4, 100, 64, 4), 262144), ("bf16", (24, 12, 112, 100), 7372800),
    ("bf16", (24, 24, 4, 80), 589824), ("bf16", (2, 1, 2048, 8, 256), 16777216), ("bf16", (2, 2, 7, 1, 128), 7168),
    ("bf16", (24, 2, 7, 2, 128), 172032), ("bf16", (24, 4, 2048, 1, 80), 31457280), ("fp32", (1,), 512),
    ("fp32", (129,), 1024), ("fp32", (257,), 2048), ("fp32", (2, 1), 512), ("fp32", (224, 384), 344064),
    ("fp32", (1024, 2), 8192), ("fp32", (1, 1, 112), 512), ("fp32", (1, 3, 56), 1536), ("fp32", (2, 120, 14), 14336),
    ("fp32", (3, 5, 120), 10240), ("fp32", (7, 24, 96), 86016), ("fp32", (12, 2, 256), 24576),
    ("fp32", (16, 1, 1), 512), ("fp32", (24, 3, 2), 3072), ("fp32", (112, 320, 24), 3932160),
    ("fp32", (1, 4, 14, 4), 8192), ("fp32", (2, 7, 3, 1), 3072), ("fp32", (2, 16, 16, 128), 262144),
    ("fp32", (4, 1, 12, 448), 98304), ("fp32", (4, 3, 14, 3), 18432), ("fp32", (4, 24, 896, 7), 2408448),
    ("fp32", (4, 448, 896, 1), 6422528), ("fp32", (24, 2, 320, 2), 147456), ("fp32", (24, 12, 112, 100), 14745600),
    ("fp32", (24, 24, 4, 80), 1179648), ("fp32", (24, 4, 2048, 1, 80), 62914560), ("int32", (1,), 512),
    ("int32", (129,), 1024), ("int32", (640,), 4096), ("int32", (1, 448), 2048), ("int32", (2, 1), 512),
    ("int32", (3, 5), 2048), ("int32", (14, 5), 4096), ("int32", (224, 384), 344064), ("int32", (1024, 2), 8192),
    ("int32", (1, 3, 56), 1536), ("int32", (1, 120, 224), 114688), ("int32", (3, 5, 120), 10240),
    ("int32", (7, 24, 96), 86016), ("int32", (16, 1, 1), 512), ("int32", (24, 3, 2), 3072),
    ("int32", (1, 4, 14, 4), 8192), ("int32", (2, 16, 16, 128), 262144), ("int32", (4, 5, 1120, 32), 2949120),
    ("int32", (24, 2, 2, 80), 49152), ("int32", (24, 2, 320, 2), 147456), ("int32", (24, 12, 112, 100), 14745600),
    ("int32", (24, 3, 7, 1, 256), 516096), ("int32", (24, 3, 2048, 3, 128), 226492416),
]  # fmt: skip


@pytest.mark.parametrize(("dtype", "shape", "size"), OBSERVED)
def test_bytes_are_those_the_compiler_gave(dtype: str, shape: tuple[int, ...], size: int) -> None:
    assert tile_padded_bytes(shape, dtype) == size


def test_a_padding_of_the_written_order_alone_would_be_wrong() -> None:
    # 64 columns in 128 lanes would double this array; the compiler takes the axis of 256 as columns.
    assert tile_padded_bytes((16, 256, 32, 64), "fp32") == 16 * 256 * 32 * 64 * 4


def test_no_elements_take_no_bytes_and_a_scalar_a_tile() -> None:
    assert tile_padded_bytes((4, 0, 8), "bf16") == 0
    assert tile_padded_bytes((), "int32") == 512


def test_a_type_whose_tiles_are_unknown_is_refused() -> None:
    with pytest.raises(RejectedError, match="two and four bytes"):
        tile_padded_bytes((8, 128), "int8")


def test_arguments_are_padded_array_by_array() -> None:
    arch = jaxcost.load("qwen2.5-0.5b")
    # 896 / 8 = 112 rows of each matrix: no axis of q, k, v but that one comes near a multiple of 128.
    found = {item.object: item for item in tiled_arguments(program(training(arch, batch=8, seq=128, mesh={"fsdp": 8})))}
    assert found["parameters"].padded > found["parameters"].bytes
    assert found["tokens"].padded == found["tokens"].bytes == 128 * 4


def test_a_cache_with_narrow_heads_is_not_doubled() -> None:
    arch = jaxcost.load("llama-3.2-1b")
    found = {item.object: item for item in tiled_arguments(program(decode(arch, batch=8, past=2047)))}
    assert found["group0/attn/past_keys"].padded == found["group0/attn/past_keys"].bytes
