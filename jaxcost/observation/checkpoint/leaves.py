"""Equinox leaves: what `equinox.tree_serialise_leaves` writes, one `.npy` array after another without names.

Each array is a `.npy` header (NEP 1: magic, version, length, a dictionary of descr, fortran_order and shape) and its
payload, which is skipped by its size. bfloat16 has no code in that format; jax writes it as two opaque bytes, `V2`. A
first line of JSON, the hyperparameters of Equinox's own recipe, is stepped over.
"""

from __future__ import annotations

import ast
import math
import re
from pathlib import Path
from typing import BinaryIO

from jaxcost.contracts.errors import reject
from jaxcost.contracts.record import LARGEST_SIZE, parse_json
from jaxcost.observation.checkpoint.files import opened, read_exactly
from jaxcost.observation.checkpoint.stored import StoredFile, StoredTensor

MAGIC = b"\x93NUMPY"
MAXIMUM_LEAVES = 100_000
MAXIMUM_HEADER_BYTES = 10_000  # numpy.lib.format's own limit for headers it does not trust
MAXIMUM_LINE_BYTES = 65_536
_NAMES = {
    "f8": "fp64", "f4": "fp32", "f2": "fp16", "V2": "bf16", "i8": "int64", "i4": "int32", "i2": "int16", "i1": "int8",
    "u8": "uint64", "u4": "uint32", "u2": "uint16", "u1": "uint8", "b1": "bool", "c8": "complex64", "c16": "complex128",
    "V1": "opaque8",
}  # fmt: skip


def read_leaves(path: Path, shown: str) -> tuple[StoredFile, tuple[StoredTensor, ...], tuple[str, ...]]:
    """Return the file, its arrays in order (`leaf 0`, `leaf 1`, ...) and notes.

    Raises:
        RejectedError: a header breaks the format, needs unpickling, or the file ends within an array.
    """
    with opened(path, shown) as (file, size):
        at, notes = _first_line(file, shown)
        headers = at
        tensors: list[StoredTensor] = []
        while at < size:
            if len(tensors) == MAXIMUM_LEAVES:
                raise reject(shown, MAXIMUM_LEAVES, "more arrays than can be a checkpoint", "check the file")
            where = f"{shown}.leaf {len(tensors)}"
            file.seek(at)
            length, shape, dtype, width = _header(file, where)
            payload = math.prod(shape) * width
            if payload > size - at - length:
                rule = f"{dtype}{list(shape)} takes {payload} bytes, {size - at - length} are left"
                raise reject(where, list(shape), rule, "the file is truncated; copy it again")
            name = f"leaf {len(tensors)}"
            tensors.append(StoredTensor(name, shape, dtype, payload, shown, name))
            headers += length
            at += length + payload
    if any(tensor.dtype == "bf16" for tensor in tensors):
        notes = (*notes, "two opaque bytes (V2) are read as bf16: the format has no code for it, and jax writes it so")
    return StoredFile(shown, size, headers, size - headers), tuple(tensors), notes


def _first_line(file: BinaryIO, shown: str) -> tuple[int, tuple[str, ...]]:
    start = file.read(1)
    file.seek(0)
    if start != b"{":
        return 0, ()
    line = file.read(MAXIMUM_LINE_BYTES)
    end = line.find(b"\n")
    if end < 0:
        raise reject(shown, "text", "the first line has no end", "this is no file of Equinox leaves")
    parse_json(line[:end], f"{shown}.first line")
    return end + 1, ("the first line is JSON (hyperparameters); it was stepped over",)


def _header(file: BinaryIO, where: str) -> tuple[int, tuple[int, ...], str, int]:
    """Return the header's bytes, the shape, the dtype's name and its bytes."""
    magic = read_exactly(file, 8, where, "an array's magic")
    if magic[:6] != MAGIC or (magic[6], magic[7]) not in ((1, 0), (2, 0), (3, 0)):
        raise reject(where, magic, "an .npy array must begin here", "this is no file of Equinox leaves, or is damaged")
    width = 2 if magic[6] == 1 else 4
    length = int.from_bytes(read_exactly(file, width, where, "the header's length"), "little")
    if length > MAXIMUM_HEADER_BYTES:
        raise reject(where, length, f"the header is longer than {MAXIMUM_HEADER_BYTES} bytes", "the file is damaged")
    text = read_exactly(file, length, where, "the header")
    try:
        data = ast.literal_eval(text.decode("utf-8" if magic[6] == 3 else "latin-1").strip())
    except (ValueError, SyntaxError, RecursionError, MemoryError, UnicodeDecodeError):
        raise reject(where, text[:40], "the header is no dictionary", "the file is damaged") from None
    if not isinstance(data, dict) or set(data) != {"descr", "fortran_order", "shape"}:
        raise reject(where, text[:40], "the header must give descr, fortran_order and shape", "the file is damaged")
    descr, order, shape = data["descr"], data["fortran_order"], data["shape"]
    found = re.fullmatch(r"[<>|=]?([a-zA-Z][0-9]{1,3})", descr) if isinstance(descr, str) else None
    if found is None or found[1] not in _NAMES:
        rule = "not a plain array type (objects would have to be unpickled, which is not done)"
        raise reject(f"{where}.descr", descr, rule, "save arrays only")
    good = isinstance(shape, tuple) and len(shape) <= 64 and all(type(n) is int and n >= 0 for n in shape)
    if not good or type(order) is not bool or math.prod(shape) > LARGEST_SIZE:
        raise reject(f"{where}.shape", shape, f"must list whole numbers of product up to {LARGEST_SIZE}", "damaged")
    return 8 + width + length, shape, _NAMES[found[1]], int(found[1][1:])
