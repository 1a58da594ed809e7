"""The worker: a child process that runs named tasks, one at a time, until its parent goes.

Compilers are configured by environment variables read when jax starts, hold locks, and end the process when they meet
what they did not expect; text from outside may do the same to a parser. So none of them runs in the user's process.

    parent  --  one JSON line {"function": "module:name", "payload": ...}   -->  worker (standard input)
    parent  <-- one JSON line {"value": ...} or {"failed": ...}             --   worker (its own copy of descriptor 1)

File descriptor 1 is duplicated before anything is imported and then points at standard error, so that a library that
prints cannot break a line. Bytes travel as base64. A function can be called only if it is marked with `task` and its
module lies in a package the parent named when it started the worker.

A thread reads requests, so the worker sees at once that its parent is gone (the pipe ends), even while a compiler
runs; it then removes its temporary directory and leaves.
"""

from __future__ import annotations

import argparse
import base64
import binascii
import faulthandler
import importlib
import json
import os
import queue
import shutil
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, BinaryIO, TypeVar

from jaxcost.contracts.errors import NotExecutedError, RejectedError, UnavailableError

Function = TypeVar("Function", bound=Callable[[Any], Any])

TASK_PACKAGE = "jaxcost.observation"
OWN_TEMPORARY_DIRECTORY = "JAXCOST_WORKER_DIRECTORY"
_BYTES = "$bytes"
_MARK = "__jaxcost_task__"


def task(function: Function) -> Function:
    """Mark a function of one JSON payload as callable by a request; it returns what JSON (and bytes) can carry."""
    setattr(function, _MARK, True)
    return function


@task
def ping(payload: Any) -> Any:
    """Return the payload; shows that a worker lives."""
    return payload


def to_line(message: Any) -> bytes:
    """Return a message as one line of JSON; bytes become `{"$bytes": base64}`."""
    return json.dumps(message, default=_encode, separators=(",", ":")).encode() + b"\n"


def from_line(line: bytes) -> Any:
    """Return the message of a line.

    Raises:
        ValueError: where the line is not such a message.
    """
    return json.loads(line, object_hook=_decode)


def _encode(value: Any) -> Any:
    if isinstance(value, bytes | bytearray | memoryview):
        return {_BYTES: base64.b64encode(value).decode("ascii")}
    raise TypeError(f"a task returned {type(value).__name__}, which JSON does not carry")


def _decode(value: dict[str, Any]) -> Any:
    if value.keys() == {_BYTES}:
        try:
            return base64.b64decode(value[_BYTES], validate=True)
        except (binascii.Error, TypeError) as error:
            raise ValueError("broken base64") from error
    return value


def resolve(name: str, packages: Sequence[str]) -> Callable[[Any], Any]:
    """Return the task `module:function`.

    Raises:
        ValueError: where the module lies in none of `packages`, or the function is not a task.
    """
    module_name, _, function_name = name.partition(":")
    inside = any(module_name == package or module_name.startswith(package + ".") for package in packages)
    if not inside or not function_name.isidentifier():
        raise ValueError(f"{name!r} names no task of {', '.join(packages)}")
    function: Callable[[Any], Any] | None = getattr(importlib.import_module(module_name), function_name, None)
    if function is None or getattr(function, _MARK, False) is not True:
        raise ValueError(f"{name!r} is not marked as a task")
    return function


def answer(request: Mapping[str, Any], packages: Sequence[str]) -> bytes:
    """Run one request and return the line of its reply. Whatever a task raises becomes part of the reply."""
    started = time.perf_counter()
    try:
        value = resolve(request["function"], packages)(request["payload"])
        return to_line({"value": value, "seconds": time.perf_counter() - started})
    except RejectedError as error:
        refused = {"failed": "rejected", "reason": str(error), "problems": [p.to_dict() for p in error.problems]}
        return to_line({**refused, "not_executed": isinstance(error, NotExecutedError)})
    except UnavailableError as error:
        return to_line({"failed": "unavailable", "what": error.what, "reason": error.reason, "remedy": error.remedy})
    except (KeyboardInterrupt, SystemExit) as error:
        return to_line({"failed": "raised", "reason": type(error).__name__, "traceback": traceback.format_exc()})
    except Exception as error:  # noqa: BLE001  the boundary of the process: the parent decides what a fault means
        return to_line(
            {"failed": "raised", "reason": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
        )


def _read_requests(stream: BinaryIO, requests: queue.SimpleQueue[bytes]) -> None:
    for line in iter(stream.readline, b""):
        requests.put(line)
    # The parent closed the pipe or died. A compiler may be running in the main thread, so nothing is unwound.
    own_directory = os.environ.get(OWN_TEMPORARY_DIRECTORY)
    if own_directory and os.path.realpath(own_directory) == os.path.realpath(tempfile.gettempdir()):
        shutil.rmtree(own_directory, ignore_errors=True)
    os._exit(0)


def main(arguments: Sequence[str]) -> None:
    """Serve requests until standard input ends. The package that may be called is `TASK_PACKAGE`, and any `--allow`."""
    requests_stream, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    faulthandler.enable()  # a crash leaves its stack on standard error, whose end the parent keeps

    parser = argparse.ArgumentParser(prog="jaxcost.observation.worker")
    parser.add_argument("--allow", action="append", default=[])
    packages = (TASK_PACKAGE, *parser.parse_args(arguments).allow)

    requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read_requests, args=(requests_stream, requests), daemon=True).start()
    replies.write(to_line({"ready": os.getpid()}))
    replies.flush()
    while True:
        replies.write(answer(from_line(requests.get()), packages))
        replies.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
