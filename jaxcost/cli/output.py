"""How a command writes: a JSON document, a table, or a file that is either whole or not there."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jaxcost
from jaxcost.contracts.errors import reject


def document(schema: str, **body: Any) -> dict[str, Any]:
    """Return a document with its schema and the version of this package first."""
    return {"schema": schema, "jaxcost": jaxcost.__version__, **body}


def print_json(data: dict[str, Any]) -> None:
    """Print one JSON document: indented for a reader, on one line (json's fast path) into a pipe."""
    import json

    sys.stdout.write(json.dumps(data, indent=2 if sys.stdout.isatty() else None, allow_nan=False) + "\n")


class _Held(io.StringIO):
    """Text for standard output that is held back; to who asks, it is what standard output is."""

    def __init__(self) -> None:
        super().__init__()
        self.out = sys.stdout

    def isatty(self) -> bool:
        return self.out.isatty()

    @property
    def encoding(self) -> str:  # type: ignore[override]  # of io.StringIO an attribute, which cannot follow the stream
        return self.out.encoding or "utf-8"


def rendered(show: Callable[[], None]) -> str:
    """Return what `show` prints on standard output: all of it, or nothing where it raises."""
    held = _Held()
    with contextlib.redirect_stdout(held):
        show()
    return held.getvalue()


def check_writable(path: Path | None, option: str) -> None:
    """Refuse a file that cannot be written before any work is done.

    Raises:
        RejectedError: the folder does not exist or cannot be written to, or the path is a folder.
    """
    if path is None:
        return
    folder = path.parent
    if path.is_dir():
        raise reject(option, str(path), "is a folder", "name a file")
    if not folder.is_dir():
        raise reject(option, str(path), "the folder does not exist", f"create {folder}, or write elsewhere")
    if not os.access(folder, os.W_OK) or (path.exists() and not os.access(path, os.W_OK)):
        raise reject(option, str(path), "cannot be written", "write to a file and a folder of your own")


def check_folder(path: Path | None, option: str) -> None:
    """Refuse a folder that cannot be made or written to before any work is done.

    Raises:
        RejectedError: a part of the path is no folder, or the nearest that exists cannot be written to.
    """
    if path is None:
        return
    there = next(parent for parent in (path, *path.absolute().parents) if parent.exists())
    if not there.is_dir():
        raise reject(option, str(path), f"{there} is no folder", "name a folder")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise reject(option, str(path), f"cannot be made ({error.strerror})", "write elsewhere") from None
    if not os.access(path, os.W_OK):
        raise reject(option, str(path), "cannot be written", "write to a folder of your own")


def write_file(path: Path, text: str, option: str) -> None:
    """Write a file whole or not at all.

    Raises:
        RejectedError: the file cannot be written.
    """
    check_writable(path, option)
    if path.exists() and not path.is_file():  # a device or a pipe is written as it is
        try:
            path.write_text(text, encoding="utf-8")
        except BrokenPipeError:
            raise
        except OSError as error:
            raise reject(option, str(path), f"cannot be written ({error.strerror})", "write elsewhere") from None
        return
    temporary = None
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:40]}.")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, path)
    except OSError as error:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        raise reject(option, str(path), f"cannot be written ({error.strerror})", "write elsewhere") from None
