"""The records of a checkpoint: its files, its tensors, and what it claims about itself."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Format = Literal["safetensors", "safetensors_sharded", "orbax", "equinox_leaves"]


@dataclass(frozen=True)
class StoredTensor:
    """One array as its header describes it.

    Attributes:
        name: the stored name; for a format without names the position, `leaf 0`.
        dtype: the contract's name (`bf16`) where there is one, else the format's own in lower case.
        bytes: payload bytes of the array, uncompressed.
        file: the file it lies in, relative to the checkpoint.
        source: identity of the storage: two names with one source are one array.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    file: str
    source: str

    @property
    def scalars(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "name": self.name, "shape": list(self.shape), "dtype": self.dtype, "bytes": self.bytes, "file": self.file,
        }  # fmt: skip


@dataclass(frozen=True)
class StoredFile:
    """One file: its size, and what its headers and arrays take. Null where the format does not say."""

    name: str
    file_bytes: int
    header_bytes: int | None = None
    payload_bytes: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "name": self.name, "file_bytes": self.file_bytes, "header_bytes": self.header_bytes,
            "payload_bytes": self.payload_bytes,
        }  # fmt: skip


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint.

    Attributes:
        claims: numbers the checkpoint states about itself (`total_size`, `total_parameters` of an index).
        quantisation: the `quantization_config` of the config.json beside it, or None.
        notes: what was left aside or taken for granted while reading.
        named: whether the format stores names; without them tensors are known by position.
    """

    format: Format
    name: str
    tensors: tuple[StoredTensor, ...]
    files: tuple[StoredFile, ...]
    claims: Mapping[str, int] = field(default_factory=dict)
    quantisation: Mapping[str, Any] | None = None
    notes: tuple[str, ...] = ()
    named: bool = True

    @property
    def payload_bytes(self) -> int:
        """Bytes of all arrays, each storage once."""
        return sum({tensor.source: tensor.bytes for tensor in self.tensors}.values())

    @property
    def file_bytes(self) -> int:
        """Bytes of all files read, headers and compression included."""
        return sum(file.file_bytes for file in self.files)

    @property
    def scalars(self) -> int:
        """Stored elements, each storage once."""
        return sum({tensor.source: tensor.scalars for tensor in self.tensors}.values())

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form, without the tensors."""
        return {
            "format": self.format, "name": self.name, "tensors": len(self.tensors), "scalars": self.scalars,
            "payload_bytes": self.payload_bytes, "file_bytes": self.file_bytes,
            "files": [file.to_dict() for file in self.files], "claims": dict(self.claims),
            "quantisation": None if self.quantisation is None else dict(self.quantisation), "notes": list(self.notes),
        }  # fmt: skip
