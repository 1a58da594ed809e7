"""The pool: which worker runs what, for how long, in how much memory, and what is said when one dies.

A worker serves one kind of request after another: its kind is the family of targets and the number of virtual CPU
devices, because those are fixed when jax starts. At most `size` workers live at a time; a request of another kind
replaces an idle one. Whatever happens to a worker is a value, `WorkerFailure`, and the next request gets a new worker.

The memory limit is watched from here, on the resident size of the worker. A limit on its address space
(RLIMIT_AS) would not do: jax and libtpu reserve far more than they touch, and would be refused at start. The size is
read every tenth of a second from /proc, so a burst may pass the limit briefly; without /proc there is no limit.
"""

from __future__ import annotations

import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NoReturn, Self

from jaxcost.contracts.errors import JaxcostError, Problem, RejectedError, UnavailableError
from jaxcost.observation.targets import Target
from jaxcost.observation.worker import OWN_TEMPORARY_DIRECTORY, from_line, to_line

Kind = Literal["parse", "cpu", "cuda", "tpu", "present"]
FailureKind = Literal["rejected", "unavailable", "raised", "crashed", "timed_out", "memory_exceeded", "not_started"]

DEFAULT_TIMEOUT_SECONDS = 600.0
DEFAULT_MEMORY_BYTES = 12 * 2**30
START_TIMEOUT_SECONDS = 120.0
_WATCH_SECONDS = 0.1
_TAIL_BYTES = 4000


@dataclass(frozen=True)
class Request:
    """One task for a worker: `function` is `module:name`, `payload` what JSON (and bytes) carry."""

    function: str
    payload: Any
    kind: Kind = "parse"
    cpu_devices: int = 1
    timeout_seconds: float | None = None
    memory_bytes: int | None = None
    label: str = ""

    @property
    def key(self) -> tuple[Kind, int]:
        """Return what a worker is started for."""
        return self.kind, self.cpu_devices


@dataclass(frozen=True)
class Reply:
    """What a task returned; `seconds` inside the task, `start_seconds` of a new worker (0 where one was reused).

    `worker_peak_resident_bytes` is over the life of the worker, not of the task; None where the system does not say.
    """

    value: Any
    seconds: float
    start_seconds: float
    worker_peak_resident_bytes: int | None


@dataclass(frozen=True)
class WorkerFailure:
    """Why a request has no value. `kind` is stable; `stderr_tail` is what the process said last."""

    kind: FailureKind
    reason: str
    stderr_tail: str = ""
    problems: tuple[Problem, ...] = ()
    details: Mapping[str, str] = field(default_factory=dict)

    def throw(self) -> NoReturn:
        """Raise the failure as the error the command line knows.

        Raises:
            RejectedError: the task rejected its input.
            UnavailableError: the task lacks a compiler.
            WorkerError: anything else.
        """
        if self.kind == "rejected":
            raise RejectedError(self.problems)
        if self.kind == "unavailable":
            raise UnavailableError(self.details["what"], self.reason, self.details["remedy"])
        raise WorkerError(self)


class WorkerError(JaxcostError):
    """A worker gave no value; `failure` says why."""

    def __init__(self, failure: WorkerFailure):
        self.failure = failure
        super().__init__(f"{failure.kind}: {failure.reason}")


@dataclass(frozen=True)
class Progress:
    """What the pool tells its caller: request number `index` began, or ended with `result`."""

    index: int
    request: Request
    result: Reply | WorkerFailure | None


def request_for(target: Target, function: str, payload: Any, **options: Any) -> Request:
    """Return a request for a worker that can compile for `target`; `options` are the other fields of `Request`."""
    cpu_devices = target.device_count if target.family == "cpu" else 1
    return Request(function, payload, kind=target.family, cpu_devices=cpu_devices, **options)


def worker_environment(kind: Kind, cpu_devices: int, directory: str) -> dict[str, str]:
    """Return the environment of a worker: the caller's, less everything that would change what is compiled.

    JAX, XLA and libtpu read flags from the environment; a flag of the user's own would make observations differ from
    machine to machine. Code, paths and locale stay. A worker of kind `present` runs on the devices of this machine as
    the caller's own program would: it keeps the caller's environment, and reports the flags.
    """
    dropped = ("JAX_", "XLA_", "LIBTPU_", "TPU_", "CUDA_", "NVIDIA_", "PYTHON", "TF_", "ENABLE_PJRT")
    own = {
        # jax is looked for where the caller found it; the package where the caller runs it.
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, sys.path)]),
        "PYTHONUNBUFFERED": "1",
        "TMPDIR": directory,
        OWN_TEMPORARY_DIRECTORY: directory,
    }
    if kind == "present":
        return {**os.environ, **own}
    environment = {name: value for name, value in os.environ.items() if not name.startswith(dropped)} | own
    environment |= {
        # Before any plugin is looked for: otherwise the CUDA plugin checks for a device and is lost.
        "JAX_PLATFORMS": "cpu",
        # A cache hit compiles nothing, hence dumps nothing.
        "JAX_ENABLE_COMPILATION_CACHE": "false",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={cpu_devices}",
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }
    if kind == "tpu":
        environment |= {
            # No TPU machine answers here, and several sessions may load libtpu.
            "TPU_SKIP_MDS_QUERY": "1",
            "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
            "TPU_LOG_DIR": "disabled",
            "TPU_MIN_LOG_LEVEL": "2",
            "TPU_STDERR_LOG_LEVEL": "2",
        }
    return environment


class _Worker:
    """One child process, owned by one thread at a time."""

    def __init__(self, key: tuple[Kind, int], allow: Sequence[str]):
        started = time.perf_counter()
        self.key = key
        self.directory = tempfile.mkdtemp(prefix="jaxcost-")
        self.stderr = tempfile.TemporaryFile()  # noqa: SIM115  closed in stop()
        command = [sys.executable, "-P", "-m", "jaxcost.observation.worker"]
        self.process = subprocess.Popen(
            [*command, *(part for package in allow for part in ("--allow", package))],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.stderr,
            env=worker_environment(*key, self.directory),
            start_new_session=True,  # an interrupt at the terminal is for the parent, which stops its workers itself
        )  # fmt: skip
        self.lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        self.ready = False
        self.start_seconds = 0.0
        first = self._wait(START_TIMEOUT_SECONDS, DEFAULT_MEMORY_BYTES)
        self.startup: WorkerFailure | None = None
        if isinstance(first, WorkerFailure):
            self.startup = WorkerFailure("not_started", first.reason, first.stderr_tail)
        self.start_seconds = time.perf_counter() - started

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in iter(self.process.stdout.readline, b""):
            self.lines.put(line)
        self.lines.put(b"")

    def run(self, request: Request, timeout_seconds: float, memory_bytes: int) -> Reply | WorkerFailure:
        """Run one request to its end. After a failure of the process the worker is of no use."""
        if self.startup is not None:
            return self.startup
        start_seconds, self.start_seconds = self.start_seconds, 0.0
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # then the wait below finds the dead process and says how it died
            self.process.stdin.write(to_line({"function": request.function, "payload": request.payload}))
            self.process.stdin.flush()
        line = self._wait(timeout_seconds, memory_bytes)
        if isinstance(line, WorkerFailure):
            return line
        try:
            message = from_line(line)
        except ValueError as error:
            return self._end("crashed", f"unreadable reply ({error})")
        if "failed" not in message:
            return Reply(message["value"], message["seconds"], start_seconds, _memory(self.process.pid, "VmHWM"))
        kind, reason = message["failed"], message["reason"]
        if kind == "rejected":
            problems = tuple(Problem(**problem) for problem in message["problems"])
            details = {"not_executed": "yes"} if message["not_executed"] else {}
            return WorkerFailure(kind, reason, problems=problems, details=details)
        if kind == "unavailable":
            return WorkerFailure(kind, reason, details={"what": message["what"], "remedy": message["remedy"]})
        return WorkerFailure(kind, reason, message.get("traceback", "")[-_TAIL_BYTES:])

    def _wait(self, timeout_seconds: float, memory_bytes: int) -> bytes | WorkerFailure:
        deadline = time.monotonic() + timeout_seconds
        while True:
            try:
                line = self.lines.get(timeout=_WATCH_SECONDS)
            except queue.Empty:
                used = _memory(self.process.pid, "VmRSS")
                if used is not None and used > memory_bytes:
                    return self._end("memory_exceeded", f"the worker held {used} bytes, the limit is {memory_bytes}")
                if time.monotonic() > deadline:
                    return self._end("timed_out", f"no answer within {timeout_seconds:g} s")
                continue
            return line or self._end("crashed", "")

    def _end(self, kind: FailureKind, reason: str) -> WorkerFailure:
        if kind != "crashed":
            self.kill()
        code = self.process.wait()
        if not reason and code < 0:
            reason = f"the worker died of {signal.Signals(-code).name}"
        failure = WorkerFailure(kind, reason or f"the worker left with code {code}", self._tail())
        self.stop()
        return failure

    def _tail(self) -> str:
        self.stderr.seek(max(0, self.stderr.seek(0, os.SEEK_END) - _TAIL_BYTES))
        return self.stderr.read().decode(errors="replace")

    def kill(self) -> None:
        """Kill the worker and what it started. Its session is its own, so nothing else is hit."""
        if self.process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def stop(self) -> None:
        """Kill the process and remove what it left. Safe to call twice."""
        self.kill()
        self.process.wait()
        self.reader.join(timeout=5)
        for stream in (self.process.stdin, self.process.stdout):
            with suppress(BrokenPipeError):
                if stream is not None:
                    stream.close()
        self.stderr.close()
        shutil.rmtree(self.directory, ignore_errors=True)


class Pool:
    """Workers for the length of a `with` block.

    Args:
        size: workers alive at the same time.
        timeout_seconds, memory_bytes: limits of one request that names none; memory is that of the worker process.
        on_progress: called from the pool's threads, one call at a time, when a request begins and when it ends.
        allow: packages beside `jaxcost.observation` whose tasks may be called.

    Example:
        with Pool() as pool:
            reply = pool.call(Request("jaxcost.observation.worker:ping", [1, 2]))
    """

    def __init__(
        self,
        size: int = 2,
        *,
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
        memory_bytes: int = DEFAULT_MEMORY_BYTES,
        on_progress: Callable[[Progress], None] | None = None,
        allow: Sequence[str] = (),
    ):
        if size < 1:
            raise ValueError("a pool has at least one worker")
        self.size, self.timeout_seconds, self.memory_bytes = size, timeout_seconds, memory_bytes
        self.allow = tuple(allow)
        self.on_progress = on_progress
        self._telling = threading.Lock()
        self._changed = threading.Condition()
        self._idle: list[_Worker] = []
        self._busy: set[_Worker] = set()
        self._starting = 0
        self._closed = threading.Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop every worker, also those at work."""
        with self._changed:
            self._closed.set()
            idle, self._idle = self._idle, []
            self._changed.notify_all()
            for worker in self._busy:
                worker.kill()  # the thread that waits for its answer takes it down
        for worker in idle:
            worker.stop()
        with self._changed:
            self._changed.wait_for(lambda: not self._busy and not self._starting, timeout=10)

    def call(self, request: Request) -> Reply | WorkerFailure:
        """Run one request and return its reply or its failure."""
        return self.map([request])[0]

    def value(self, request: Request) -> Any:
        """Run one request and return what the task returned.

        Raises:
            RejectedError, UnavailableError, WorkerError: see `WorkerFailure.throw`.
        """
        result = self.call(request)
        if isinstance(result, WorkerFailure):
            result.throw()
        return result.value

    def map(self, requests: Iterable[Request]) -> list[Reply | WorkerFailure]:
        """Run requests on the workers and return their results in the order of the requests.

        An interrupt stops every worker and is raised again.
        """
        pending = dict(enumerate(requests))
        results: list[Any] = [None] * len(pending)
        faults: list[BaseException] = []

        def serve() -> None:
            key: tuple[Kind, int] | None = None
            while True:
                with self._changed:
                    # The next request of the kind just served, else the first: a worker that is warm stays warm.
                    same = (index for index, request in pending.items() if request.key == key)
                    index = next(same, next(iter(pending), None))
                    if index is None or self._closed.is_set() or faults:
                        return
                    request = pending.pop(index)
                key = request.key
                try:
                    self._tell(Progress(index, request, None))
                    results[index] = self._serve_one(request)
                    self._tell(Progress(index, request, results[index]))
                except BaseException as error:  # noqa: BLE001  raised again below, in the caller's thread
                    faults.append(error)
                    return

        threads = [threading.Thread(target=serve, daemon=True) for _ in range(min(self.size, len(pending)))]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        except BaseException:
            self.close()
            raise
        if faults:
            raise faults[0]
        if self._closed.is_set():
            raise RuntimeError("the pool is closed")
        return results

    def _tell(self, progress: Progress) -> None:
        if self.on_progress is not None:
            with self._telling:
                self.on_progress(progress)

    def _serve_one(self, request: Request) -> Reply | WorkerFailure:
        worker = self._take(request.key)
        try:
            timeout = request.timeout_seconds if request.timeout_seconds is not None else self.timeout_seconds
            memory = request.memory_bytes if request.memory_bytes is not None else self.memory_bytes
            return worker.run(request, timeout, memory)
        finally:
            self._give_back(worker)

    def _take(self, key: tuple[Kind, int]) -> _Worker:
        """Return a worker of this kind: an idle one, else a new one, in place of an idle one where the pool is full."""
        with self._changed:
            while True:
                if self._closed.is_set():
                    raise RuntimeError("the pool is closed")
                worker = next((idle for idle in self._idle if idle.key == key and idle.alive), None)
                if worker is not None:
                    self._idle.remove(worker)
                    self._busy.add(worker)
                    return worker
                full = len(self._idle) + len(self._busy) + self._starting >= self.size
                replaced = self._idle.pop(0) if full and self._idle else None
                if not full or replaced is not None:
                    self._starting += 1
                    break
                self._changed.wait()
        try:
            if replaced is not None:
                replaced.stop()
            started = _Worker(key, self.allow)
        except BaseException:
            with self._changed:
                self._starting -= 1
                self._changed.notify_all()
            raise
        with self._changed:
            self._starting -= 1
            self._busy.add(started)
            if self._closed.is_set():
                started.kill()
        return started

    def _give_back(self, worker: _Worker) -> None:
        if not worker.alive:
            worker.stop()
        with self._changed:
            if worker.alive and not self._closed.is_set():
                self._idle.append(worker)
            else:
                worker.stop()
            self._busy.discard(worker)
            self._changed.notify_all()


def _memory(process: int, name: str) -> int | None:
    """Return a size of a process from Linux's /proc in bytes; None elsewhere, where memory is then not limited."""
    with suppress(OSError):
        for line in Path(f"/proc/{process}/status").read_text().splitlines():
            if line.startswith(name + ":"):
                return int(line.split()[1]) * 1024
    return None
