"""What gzip and xz hold, up to a limit: a few packed kilobytes can be gigabytes."""

from __future__ import annotations

import lzma
import zlib
from typing import Any

from jaxcost.contracts.errors import reject

MAX_UNPACKED_BYTES = 256 << 20  # what is larger is given unpacked
_GZIP, _XZ = b"\x1f\x8b", b"\xfd7zXZ\x00"
_XZ_MEMORY_BYTES = 512 << 20


def unpacked(data: bytes, name: str = "hlo") -> bytes:
    """Bytes without gzip or xz around them; several packed parts, one after the other, are one whole.

    Raises RejectedError where the packing is damaged or cut, where something else follows it, or where it holds more
    than MAX_UNPACKED_BYTES.
    """
    if not data.startswith((_GZIP, _XZ)):
        return data
    found: list[bytes] = []
    size, rest = 0, data
    while rest:
        decoder: Any = (
            zlib.decompressobj(wbits=31)
            if rest.startswith(_GZIP)
            else lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=_XZ_MEMORY_BYTES)
        )
        try:
            found.append(decoder.decompress(rest, MAX_UNPACKED_BYTES - size + 1))
        except (zlib.error, lzma.LZMAError) as error:
            raise reject(name, str(error), "packed data must be whole", "dump the module again") from None
        size += len(found[-1])
        if not decoder.eof or size > MAX_UNPACKED_BYTES:
            rule = f"packed data must be whole and unpack to at most {MAX_UNPACKED_BYTES} bytes"
            raise reject(name, len(data), rule, "dump the module again, or give the unpacked file")
        rest = decoder.unused_data.lstrip(b"\0")  # both formats may be padded
    return b"".join(found)
