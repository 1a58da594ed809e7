"""What gzip and xz hold, up to a limit: a few packed kilobytes can be gigabytes."""

from __future__ import annotations

import gzip
import io
import lzma
import zlib

from jaxcost.contracts.errors import reject

MAX_UNPACKED_BYTES = 256 << 20  # what is larger is given unpacked
_GZIP, _XZ = b"\x1f\x8b", b"\xfd7zXZ\x00"
_XZ_MEMORY_BYTES = 512 << 20


def unpacked(data: bytes, name: str = "hlo") -> bytes:
    """Bytes without gzip or xz around them. Several gzip members, one after the other, are one whole; xz is one stream.

    Raises RejectedError where the packing is damaged or cut, where something else follows it, or where it holds more
    than MAX_UNPACKED_BYTES.
    """
    if not data.startswith((_GZIP, _XZ)):
        return data
    most = MAX_UNPACKED_BYTES
    try:
        # What is packed is smaller than what it holds, or there are parts without end that hold nothing.
        found = b"" if len(data) > most else _gunzip(data) if data.startswith(_GZIP) else _unxz(data)
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise reject(name, str(error), "packed data must be whole", "dump the module again") from None
    if max(len(data), len(found)) > most:
        rule = f"packed data, and what it unpacks to, have at most {most} bytes"
        raise reject(name, len(data), rule, "give the unpacked file")
    return found


def _gunzip(data: bytes) -> bytes:
    return gzip.GzipFile(fileobj=io.BytesIO(data)).read(MAX_UNPACKED_BYTES + 1)


def _unxz(data: bytes) -> bytes:
    decoder = lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=_XZ_MEMORY_BYTES)
    found = decoder.decompress(data, MAX_UNPACKED_BYTES + 1)
    if len(found) <= MAX_UNPACKED_BYTES and (not decoder.eof or decoder.unused_data.strip(b"\0")):
        raise EOFError("its end is missing, or something follows it")
    return found
