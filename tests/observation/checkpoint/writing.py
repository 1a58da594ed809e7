"""Writes checkpoints for tests: headers in full, payloads as holes (sparse files), so that any size costs nothing."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from pathlib import Path

BITS = {"BF16": 16, "F16": 16, "F32": 32, "U8": 8, "I8": 8, "F8_E4M3": 8, "BOOL": 8, "I64": 64}
Tensors = Mapping[str, tuple[str, tuple[int, ...]]]


def header_of(tensors: Tensors) -> tuple[dict, int]:
    """Return the header of tensors laid out one after another, and the bytes of their payload."""
    header, at = {}, 0
    for name, (dtype, shape) in tensors.items():
        size = math.prod(shape) * BITS[dtype] // 8
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    return header, at


def write_header(path: Path, header: object, payload: int, length: int | None = None) -> None:
    """Write a file of one header (text, bytes or data) and a payload of zeros that takes no space."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text) if length is None else length) + text)
        file.truncate(file.tell() + payload)


def write_safetensors(path: Path, tensors: Tensors) -> None:
    """Write one file."""
    write_header(path, *header_of(tensors))


def write_sharded(folder: Path, tensors: Tensors, shards: int) -> Path:
    """Write shards and their index; return the index."""
    folder.mkdir(parents=True, exist_ok=True)
    names, places, total = list(tensors), {}, 0
    for shard in range(shards):
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        own = {name: tensors[name] for name in names[shard::shards]}
        write_safetensors(folder / file, own)
        total += header_of(own)[1]
        places.update(dict.fromkeys(own, file))
    index = folder / "model.safetensors.index.json"
    weight_map = {name: places[name] for name in names}
    index.write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}))
    return index
