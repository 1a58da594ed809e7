"""Opening files of a checkpoint, and only of it.

A name that a checkpoint gives is foreign text. It must be one plain file name; the file behind it must be a regular
file whose real place, links resolved, lies in the checkpoint's folder. The descriptor is opened on that real place
without following links, so that a link made in between is not followed either.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from jaxcost.contracts.errors import reject


@contextmanager
def opened(path: Path, where: str) -> Iterator[tuple[BinaryIO, int]]:
    """Open a regular file that is no link; yield it with its size.

    Raises:
        RejectedError: it is no regular file, is a link, or cannot be read.
    """
    try:
        # Not blocking: a named pipe would otherwise wait for a writer before it could be refused.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise reject(where, path.name, f"cannot be opened ({reason})", "check the file and its permissions") from None
    with os.fdopen(descriptor, "rb", buffering=0) as raw:
        status = os.fstat(raw.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise reject(where, path.name, "is no regular file", "copy its content to a file")
        try:
            yield raw, status.st_size
        except OSError as error:
            reason = f"cannot be read ({error.strerror})"
            raise reject(where, path.name, reason, "check the file and its permissions") from None


def read_exactly(file: BinaryIO, count: int, where: str, what: str) -> bytes:
    """Return `count` bytes.

    Raises:
        RejectedError: the file ends before.
    """
    parts, missing = [], count
    while missing:
        part = file.read(min(missing, 1 << 24))
        if not part:
            rule = f"the file ends inside {what}: {count} bytes are needed, {count - missing} are there"
            raise reject(where, count - missing, rule, "the file is truncated; copy it again")
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)


def inside(folder: Path, name: object, where: str) -> Path:
    """Return the real path of a file that `folder` holds under a plain name.

    Raises:
        RejectedError: the name has a path in it, no such file exists, or the file lies outside the folder.
    """
    remedy = "write the plain name of a file that lies in the same folder"
    if not isinstance(name, str) or not name or name in (".", "..") or len(name) > 255:
        raise reject(where, name, "is no file name", remedy)
    if any(sign in name for sign in "/\\\0") or not name.isprintable():
        raise reject(where, name, "has a path or a control character in it", remedy)
    try:
        root = folder.resolve(strict=True)
        real = (folder / name).resolve(strict=True)
    except (OSError, RuntimeError, ValueError):
        raise reject(where, name, "no such file in the checkpoint", "the checkpoint is incomplete") from None
    if not real.is_relative_to(root):
        raise reject(
            where, name, "is a link to a file outside the checkpoint's folder, which is not followed",
            "name the folder that holds the files themselves, or replace the link by the file",
        )  # fmt: skip
    return real


def read_small(path: Path, where: str, limit: int) -> bytes:
    """Return a whole file of at most `limit` bytes.

    Raises:
        RejectedError: it is larger, or cannot be read.
    """
    with opened(path, where) as (file, size):
        if size > limit:
            raise reject(where, size, f"larger than {limit} bytes", "this is not such a file")
        return read_exactly(file, size, where, "the file")


def no_way_out(folder: Path, where: str, most: int = 1_000_000) -> int:
    """Walk a folder and return the bytes of its files.

    Raises:
        RejectedError: it holds a link that leads out of it, something that is neither file nor folder, or more than
            `most` entries.
    """
    root, total, count = folder.resolve(strict=True), 0, 0
    for parent, folders, names in os.walk(root, followlinks=False):
        for name in (*folders, *names):
            count += 1
            path = Path(parent, name)
            status = path.lstat()
            shown = str(path.relative_to(root))
            if count > most:
                raise reject(where, count, f"more than {most} entries", "name one checkpoint")
            if stat.S_ISLNK(status.st_mode) and not path.resolve().is_relative_to(root):
                rule = "is a link to a place outside the checkpoint's folder, which is not followed"
                raise reject(where, shown, rule, "replace the link by the file")
            if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode) or stat.S_ISLNK(status.st_mode)):
                raise reject(where, shown, "is neither a file nor a folder", "remove it from the checkpoint")
            total += status.st_size if stat.S_ISREG(status.st_mode) else 0
    return total
