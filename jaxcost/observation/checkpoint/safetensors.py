"""The header of a safetensors file: eight bytes of length, little endian, then one JSON object.

Format: https://github.com/huggingface/safetensors#format. An entry is `{"dtype", "shape", "data_offsets"}`; offsets
count from the end of the header and must tile the rest of the file without gap or overlap; `__metadata__` maps text to
text. The reader stops at the end of the header.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from jaxcost.contracts.errors import Problem, RejectedError, reject
from jaxcost.contracts.record import LARGEST_SIZE, parse_json
from jaxcost.observation.checkpoint.files import opened, read_exactly
from jaxcost.observation.checkpoint.stored import StoredFile, StoredTensor

MAXIMUM_HEADER_BYTES = 100_000_000  # the limit of the released library (MAX_HEADER_SIZE in safetensors/src/tensor.rs)
MAXIMUM_PROBLEMS = 20
# dtype of the format -> bits of one element, name (the contract's where it has one)
DTYPES: dict[str, tuple[int, str]] = {
    "BOOL": (8, "bool"), "U8": (8, "uint8"), "I8": (8, "int8"), "U16": (16, "uint16"), "I16": (16, "int16"),
    "U32": (32, "uint32"), "I32": (32, "int32"), "U64": (64, "uint64"), "I64": (64, "int64"),
    "F4": (4, "fp4_e2m1"), "F6_E2M3": (6, "fp6_e2m3"), "F6_E3M2": (6, "fp6_e3m2"), "F8_E8M0": (8, "fp8_e8m0"),
    "F8_E5M2": (8, "fp8_e5m2"), "F8_E4M3": (8, "fp8_e4m3"), "F8_E5M2FNUZ": (8, "fp8_e5m2fnuz"),
    "F8_E4M3FNUZ": (8, "fp8_e4m3fnuz"), "F16": (16, "fp16"), "BF16": (16, "bf16"), "F32": (32, "fp32"),
    "F64": (64, "fp64"), "C64": (64, "complex64"),
}  # fmt: skip
_KEYS = {"dtype", "shape", "data_offsets"}


def read_header(path: Path, shown: str) -> tuple[StoredFile, tuple[StoredTensor, ...]]:
    """Return the file and its tensors in the order of their offsets.

    Args:
        path: the file itself; a link is refused.
        shown: the file's name in messages and in the result.

    Raises:
        RejectedError: with the problems of the header, where it breaks the format.
    """
    with opened(path, shown) as (file, size):
        if size < 8:
            raise reject(
                shown, size, "shorter than the eight bytes of a header's length", "this is no safetensors file"
            )
        (length,) = struct.unpack("<Q", read_exactly(file, 8, shown, "the header's length"))
        if length > MAXIMUM_HEADER_BYTES or length > size - 8:
            limit = min(MAXIMUM_HEADER_BYTES, size - 8)
            rule = f"the header's length must be at most {limit} bytes here (the file, and {MAXIMUM_HEADER_BYTES})"
            raise reject(shown, length, rule, "the file is truncated or no safetensors file")
        text = read_exactly(file, length, shown, "the header")
    if not text.startswith(b"{"):
        raise reject(shown, text[:20], "the header must begin with an object", "this is no safetensors file")
    header = parse_json(text, shown)
    payload = size - 8 - length
    tensors, problems = _tensors(header, payload, shown)
    if problems:
        raise RejectedError(problems[:MAXIMUM_PROBLEMS])
    return StoredFile(shown, size, 8 + length, payload), tensors


def _tensors(header: dict[str, Any], payload: int, shown: str) -> tuple[tuple[StoredTensor, ...], list[Problem]]:
    problems: list[Problem] = []
    found: list[tuple[int, int, str, StoredTensor]] = []
    for name, entry in header.items():
        if name == "__metadata__":
            problems += _metadata_problems(entry, f"{shown}.__metadata__")
            continue
        wrong = list(_entry_problems(name, entry, payload, shown))
        problems += wrong
        if not wrong:
            begin, end = entry["data_offsets"]
            dtype = DTYPES[entry["dtype"]][1]
            tensor = StoredTensor(name, tuple(entry["shape"]), dtype, end - begin, shown, f"{shown}:{begin}:{name}")
            found.append((begin, end, name, tensor))
        if len(problems) > MAXIMUM_PROBLEMS:
            return (), problems
    if problems:
        return (), problems
    found.sort(key=lambda item: item[:3])
    at = 0
    for begin, end, name, _ in found:
        if begin != at:
            what = "overlaps the tensor before it" if begin < at else "leaves a gap after the tensor before it"
            rule = f"{what}: it must begin at {at}"
            problems.append(Problem(f"{shown}.{name}.data_offsets", [begin, end], rule, "the header is damaged"))
            return (), problems
        at = end
    if at != payload:
        rule = f"the tensors take {at} bytes, the file holds {payload} after its header"
        problems.append(Problem(f"{shown}.data_offsets", at, rule, "the file is truncated, or has bytes of no tensor"))
    return tuple(item[3] for item in found), problems


def _metadata_problems(entry: object, where: str) -> Iterable[Problem]:
    if not isinstance(entry, dict) or not all(isinstance(value, str) for value in entry.values()):
        yield Problem(where, type(entry).__name__, "must map text to text", "the header is damaged")


def _entry_problems(name: str, entry: object, payload: int, shown: str) -> Iterable[Problem]:
    where, remedy = f"{shown}.{name}", "the header is damaged"
    if not name or not name.isprintable() or len(name) > 1000:
        yield Problem(shown, ascii(name), "is no printable tensor name", remedy)
        return
    if not isinstance(entry, dict) or set(entry) != _KEYS:
        shape = sorted(entry) if isinstance(entry, dict) else type(entry).__name__
        yield Problem(where, shape, f"must be an object of just {', '.join(sorted(_KEYS))}", remedy)
        return
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        yield Problem(f"{where}.dtype", dtype, f"must be one of {', '.join(DTYPES)}", remedy)
        return
    if not isinstance(shape, list) or len(shape) > 64 or not all(_is_size(extent) for extent in shape):
        yield Problem(f"{where}.shape", shape, f"must list whole numbers from 0 to {LARGEST_SIZE}", remedy)
        return
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(_is_size(offset) for offset in offsets):
        yield Problem(f"{where}.data_offsets", offsets, "must be two whole numbers", remedy)
        return
    begin, end = offsets
    if not begin <= end <= payload:
        rule = f"must be ordered and lie within the {payload} bytes after the header"
        yield Problem(f"{where}.data_offsets", offsets, rule, "the file is truncated, or its header is damaged")
        return
    bits = math.prod(shape) * DTYPES[dtype][0]
    if bits % 8 or end - begin != bits // 8:
        rule = f"{dtype}{shape} takes {bits} bits, its offsets hold {end - begin} bytes"
        yield Problem(f"{where}.data_offsets", offsets, rule, remedy)


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST_SIZE
