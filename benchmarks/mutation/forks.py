"""Running one mutant: a forked child of a session that has collected its tests, with one function's code exchanged.

A group's session imports the tests and collects them once; it never runs one itself, so that no cache is filled and no
thread started before a fork. A child exchanges the code object of the function that a mutant changes, in place, so
that every name bound to the function sees it; clears the caches; and runs tests until one fails. What is outside a
function (a constant, a class body, a default) is run from a fresh import with the changed module in the original's
place. A function that also runs at import keeps what it made then: such a mutant may survive here and die from a fresh
import, never the reverse.
"""

from __future__ import annotations

import functools
import gc
import importlib.abc
import importlib.machinery
import importlib.util
import json
import math
import os
import resource
import select
import signal
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
OPTIONS = ["-q", "--capture=sys", "-p", "no:cacheprovider", "-p", "no:xdist", "--no-header", "--tb=line"]
NOT_RUN = "not slow and not tpu and not cuda"
OPTIMIZED = 0x1  # the flag of a function's code; a class body has it not


class Watch:
    """Notes the first test that failed."""

    def __init__(self) -> None:
        self.failed = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.failed:
            self.failed = report.nodeid


def run(
    session: pytest.Session, items: Sequence[pytest.Item], then: pytest.Item | None = None, limit_s: float = math.inf
) -> str:
    """Run tests until one fails or the processor's time is spent, `then` being the next to come.

    Returns:
        The id of the test that failed, or nothing.
    """
    watch, begun = Watch(), time.process_time()
    session.config.pluginmanager.register(watch)
    for at, item in enumerate(items):
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=items[at + 1] if at + 1 < len(items) else then)
        if watch.failed or time.process_time() - begun > limit_s:
            break
    session.config.pluginmanager.unregister(watch)
    return watch.failed


@dataclass(frozen=True)
class Child:
    """A forked child at work, and the end of the pipe that its answer comes from."""

    pid: int
    reading: int


def begin(work: Callable[[], Any], cpu_s: float, log: Path) -> Child:
    """Fork a child that runs `work` for at most some seconds of its processor time, its output going to a file."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pid = os.fork()
    if pid == 0:
        try:
            os.close(reading)
            os.setsid()
            output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(output, 1)
            os.dup2(output, 2)
            signal.signal(signal.SIGXCPU, signal.SIG_DFL)
            limit = int(cpu_s) + 1
            resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5))
            answer = json.dumps(work()).encode()
            while answer:
                answer = answer[os.write(writing, answer) :]
            os._exit(0)
        except BaseException:  # noqa: BLE001  # whatever it is, a child must not go on as if it were the parent
            import traceback

            traceback.print_exc()
            os._exit(3)
    os.close(writing)
    return Child(pid, reading)


def finish(at_work: Child, wall_s: float) -> tuple[str, Any]:
    """Wait for a child.

    Returns:
        `done` and its answer (JSON); `timeout` where it spent its time; `stalled` where it waited instead, as for a
        thread that a fork left behind; `died` where it ended otherwise.
    """
    received, deadline, ended = b"", time.monotonic() + wall_s, True
    while True:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([at_work.reading], [], [], left)[0]:
            ended = False
            break
        piece = os.read(at_work.reading, 1 << 16)
        if not piece:
            break
        received += piece
    os.close(at_work.reading)
    if not ended:
        os.killpg(at_work.pid, signal.SIGKILL)
    _, status, used = os.wait4(at_work.pid, 0)
    if not ended:
        return ("timeout" if used.ru_utime + used.ru_stime > 0.2 * wall_s else "stalled"), None
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL):
        return "timeout", None
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0 and received:
        return "done", json.loads(received)
    return "died", None


def child(work: Callable[[], Any], cpu_s: float, wall_s: float, log: Path) -> tuple[str, Any]:
    """Run `work` in a forked child; see `begin` and `finish`."""
    return finish(begin(work, cpu_s, log), wall_s)


def shared(items: Sequence[Any], workers: int, work: Callable[[list[Any]], Any], log: Path) -> list[Any]:
    """Deal items out to children, run `work` on each hand, and return the answers.

    Raises:
        RuntimeError: a child did not come to its end.
    """
    hands = [list(items[at::workers]) for at in range(min(workers, len(items)))]
    begun = [begin(lambda hand=hand: work(hand), 36000, log.with_suffix(f".{at}.log")) for at, hand in enumerate(hands)]
    ended = [finish(each, 36000) for each in begun]
    if any(how != "done" for how, _ in ended):
        raise RuntimeError(f"a worker {next(how for how, _ in ended if how != 'done')}, see {log.parent}")
    return [answer for _, answer in ended]


class Collected:
    """Takes over a collected session's run: `work(session)` instead of the tests."""

    def __init__(self, work: Callable[[pytest.Session], None]):
        self.work = work

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.work(session)
        return True


def collect(arguments: Sequence[str], work: Callable[[pytest.Session], None], without: Sequence[str] = ()) -> int:
    """Collect tests, but for some files, and call `work` with the session; return pytest's exit status."""
    ignored = [f"--ignore-glob=*{name}" for name in without]
    found = [name for name in arguments if (ROOT / name.split("::")[0]).exists()]
    return int(pytest.main([*OPTIONS, *ignored, "-m", NOT_RUN, *found], plugins=[Collected(work)]))


# One function exchanged


def exchanged(original: str, mutated: str, name: str) -> list[tuple[CodeType, CodeType]] | None:
    """Return the pairs of code objects of functions that differ; None where something outside a function does."""
    one, other = (compile(text, name, "exec", dont_inherit=True) for text in (original, mutated))
    return _pairs(one, other)


def _pairs(one: CodeType, other: CodeType) -> list[tuple[CodeType, CodeType]] | None:
    def bare(code: CodeType) -> tuple[Any, ...]:
        consts = tuple((type(item), repr(item)) for item in code.co_consts if not isinstance(item, CodeType))
        return code.co_code, code.co_names, code.co_varnames, consts

    if bare(one) != bare(other):
        return None
    found: list[tuple[CodeType, CodeType]] = []
    inner = [[item for item in code.co_consts if isinstance(item, CodeType)] for code in (one, other)]
    if len(inner[0]) != len(inner[1]):
        return None
    for a, b in zip(*inner, strict=True):
        if a == b:
            continue
        if a.co_name.startswith("<") or a.co_freevars != b.co_freevars:
            return None
        if a.co_flags & OPTIMIZED:
            found.append((a, b))
            continue
        below = _pairs(a, b)
        if below is None:
            return None
        found += below
    return found


class Functions:
    """The package's functions and caches in this process, found once before the forks."""

    def __init__(self) -> None:
        self.by_code: dict[tuple[str, str, int], list[FunctionType]] = {}
        self.caches: list[Any] = []
        for found in gc.get_objects():
            if isinstance(found, FunctionType):
                code = found.__code__
                if "/jaxcost/" in code.co_filename:
                    self.by_code.setdefault((code.co_filename, code.co_qualname, code.co_firstlineno), []).append(found)
            elif isinstance(found, functools._lru_cache_wrapper) and _ours(found):
                self.caches.append(found)

    def clear(self) -> None:
        for cache in self.caches:
            cache.cache_clear()

    def exchange(self, path: str, pairs: list[tuple[CodeType, CodeType]]) -> bool:
        """Put the second code of each pair in the first's place; False where a function is not there."""
        for one, other in pairs:
            found = self.by_code.get((path, one.co_qualname, one.co_firstlineno), [])
            if not found:
                return False
            for function in found:
                function.__code__ = other.replace(co_filename=path)
        return True


def _ours(found: object) -> bool:
    return str(getattr(found, "__module__", "")).split(".")[0] in ("jaxcost", "tests")


# One module exchanged


class _Changed(importlib.machinery.SourceFileLoader):
    source = ""

    def get_code(self, fullname: str) -> CodeType:
        return compile(self.source, self.path, "exec", dont_inherit=True)


class Instead(importlib.abc.MetaPathFinder):
    """Finds one module with another text in its place."""

    def __init__(self, path: str, source: str):
        self.path, self.source = path, source
        self.name = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname != self.name:
            return None
        loader = _Changed(fullname, str(ROOT / self.path))
        loader.source = self.source
        package = [str((ROOT / self.path).parent)] if self.path.endswith("__init__.py") else None
        return importlib.util.spec_from_file_location(
            fullname, str(ROOT / self.path), loader=loader, submodule_search_locations=package
        )


def fresh(path: str, source: str, tests: Sequence[str], limit_s: float) -> str:
    """Import everything anew with one module changed and run tests in the order given; return what failed."""
    sys.meta_path.insert(0, Instead(path, source))
    failed = "import"

    def work(session: pytest.Session) -> None:
        nonlocal failed
        by_name = {item.nodeid: item for item in session.items}
        failed = run(session, [by_name[name] for name in tests if name in by_name], None, limit_s)

    collect(list(dict.fromkeys(name.split("::")[0] for name in tests)), work)
    return failed
