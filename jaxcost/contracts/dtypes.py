"""Element types by their field names, with the bits one stored code takes.

Sub-byte types pack: `payload_bytes` rounds a whole tensor up to bytes, not each element. Scales and zero points of a
quantised tensor are state objects of their own, never part of the code's width.
"""

from __future__ import annotations

from typing import Literal

DType = Literal[
    "fp64",
    "fp32",
    "tf32",
    "bf16",
    "fp16",
    "fp8_e4m3",
    "fp8_e5m2",
    "int64",
    "int32",
    "int16",
    "int8",
    "uint8",
    "uint32",
    "int4",
    "bool",
]

BITS: dict[str, int] = {
    "fp64": 64, "fp32": 32, "tf32": 32, "bf16": 16, "fp16": 16, "fp8_e4m3": 8, "fp8_e5m2": 8,
    "int64": 64, "int32": 32, "int16": 16, "int8": 8, "uint8": 8, "uint32": 32, "int4": 4, "bool": 8,
}  # fmt: skip


def payload_bytes(count: int, dtype: str) -> int:
    """Return the bytes of `count` packed elements of `dtype`, rounded up to whole bytes."""
    bits = BITS[dtype]
    if bits % 8 == 0:
        return count * (bits // 8)
    return -(-count * bits // 8)
