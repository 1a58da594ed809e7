"""A file to a program: HLO as proto or text, packed or not. Runs inside a worker, with its limits."""

from __future__ import annotations

import lzma
import zlib
from collections.abc import Sequence
from pathlib import Path

from jaxcost.contracts.errors import UnavailableError, reject
from jaxcost.observation.hlo.schema import MAX_PROTO_BYTES
from jaxcost.observation.private import proto_of_text
from jaxcost.observation.sources.program import Program
from jaxcost.observation.targets import Family, parse_target

_GZIP, _XZ = b"\x1f\x8b", b"\xfd7zXZ\x00"
_NOT_HLO = "give an HLO module: *after_optimizations.hlo.pb of --xla_dump_to with --xla_dump_hlo_as_proto, or its text"


def read_program(
    path: str | Path,
    *,
    platform: Family | None = None,
    target: str | None = None,
    name: str = "",
    origin: str = "",
    notes: Sequence[str] = (),
) -> Program:
    """Return the program of one file.

    Raises:
        RejectedError: the file cannot be read, or holds no HLO module.
        UnavailableError: it does not exist.
    """
    path = Path(path)
    data = unpacked(_bytes(path), path.name)
    text = is_text(data)
    if text:
        data = proto_of_text(data.decode("utf-8"))
    found = parse_target(target) if target else None
    family: Family = platform or (found.family if found else "cpu")
    return Program(
        origin=origin or ("text" if text else "proto"), name=name or path.name, hlo=data, platform=family, target=found,
        notes=tuple(notes),
    )  # fmt: skip


def _bytes(path: Path) -> bytes:
    try:
        if path.stat().st_size > MAX_PROTO_BYTES:
            raise reject(str(path), path.stat().st_size, f"at most {MAX_PROTO_BYTES} bytes", "give one HLO module")
        return path.read_bytes()
    except FileNotFoundError:
        raise UnavailableError(str(path), "no such file", "check the path") from None
    except OSError as error:
        raise reject(str(path), None, f"cannot be read ({error.strerror})", "check its permissions") from None


def unpacked(data: bytes, name: str) -> bytes:
    """Return the bytes of a file without gzip or xz around them.

    Raises:
        RejectedError: the packing is damaged, or unpacks to more than a module may have.
    """
    if not data:
        raise reject(name, None, "is empty", _NOT_HLO)
    if data[:2] != _GZIP and data[:6] != _XZ:
        return data
    try:
        if data[:2] == _GZIP:
            decoder = zlib.decompressobj(wbits=31)
            out, whole = decoder.decompress(data, MAX_PROTO_BYTES), decoder.eof
        else:
            unpacker = lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=512 * 2**20)
            out = unpacker.decompress(data, MAX_PROTO_BYTES)
            whole = unpacker.eof
    except (zlib.error, lzma.LZMAError) as error:
        raise reject(name, str(error), "packed data must be whole", "dump the module again") from None
    if not whole:
        rule = f"packed data must be whole and unpack to at most {MAX_PROTO_BYTES} bytes"
        raise reject(name, len(data), rule, "dump the module again, or give the unpacked file")
    return out


def is_text(data: bytes) -> bool:
    """Whether bytes are HLO printed as text: it opens with its module, after comments at most."""
    head = data[:4096].lstrip()
    while head.startswith((b"//", b"#")):
        head = head.partition(b"\n")[2].lstrip()
    return head.startswith((b"HloModule ", b"HloModule,"))
