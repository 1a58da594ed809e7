"""Audits damaged inputs one after another and says how each ended; a process of its own, with limits.

    python -m tests.observation.hlo.corrupt_worker SEEDS FIRST COUNT

SEEDS is a directory of `*.pb` and `*.txt`. Each input has SECONDS of processor time; the process has MEMORY_BYTES of
address space. Each is a file that goes the way of `jaxcost audit FILE`, the worker's task included. Text is parsed in a
fork, because XLA's parser ends its process on some inputs. The last line of output is a JSON summary.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import tempfile
import traceback
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from jaxcost.audits.tasks import audit_file, audit_program
from jaxcost.contracts.errors import RejectedError
from jaxcost.observation.sources.files import read_program
from tests.observation.hlo.mutating import Mutant, mutants

SECONDS = 20
MEMORY_BYTES = 6 << 30  # jaxlib reserves more than it touches; what is touched is reported


class Slow(BaseException):
    """An input took longer than SECONDS."""


def _used() -> float:
    own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def _alarm(*_: Any) -> None:
    raise Slow


def audit(mutant: Mutant, path: Path) -> dict[str, Any]:
    """The document of an input. The seeds are of one platform: for another one its marks must not speak."""
    path.write_bytes(mutant.data)
    if mutant.platform == "cpu":
        return audit_file({"path": str(path)})["document"]
    program = replace(read_program(path), platform=mutant.platform)
    return audit_program({"program": program.to_data()})["document"]


def read(mutant: Mutant, path: Path) -> str:
    """`read`, `rejected`, or a traceback."""
    try:
        json.dumps(audit(mutant, path), allow_nan=False)
        return "read"
    except RejectedError as error:
        assert error.problems
        str(error)
        json.dumps([p.to_dict() for p in error.problems])
        assert all(p.path and p.rule and p.remedy for p in error.problems)
        return "rejected"


def outcome(mutant: Mutant) -> str:
    """How an input ended."""
    with tempfile.TemporaryDirectory() as folder:
        return _outcome(mutant, Path(folder) / "damaged")


def _outcome(mutant: Mutant, path: Path) -> str:
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    try:
        return read(mutant, path)
    except Slow:
        return "slow: " + "".join(traceback.format_exc(limit=-3))
    except Exception:  # noqa: BLE001  every other end is what is looked for
        return "".join(traceback.format_exc())
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def forked(mutant: Mutant) -> str:
    """The outcome in a child; a child that dies is the worker's end, which its pool reports as a refusal."""
    ours, theirs = os.pipe()
    child = os.fork()
    if not child:
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 2)
        os.write(theirs, outcome(mutant).encode()[:60_000])
        os._exit(0)
    os.close(theirs)
    with os.fdopen(ours, "rb") as stream:
        said = stream.read().decode()
    _, status = os.waitpid(child, 0)
    return said or f"died of {signal.Signals(os.WTERMSIG(status)).name}"


def main(folder: str, first: str, count: str) -> None:
    signal.signal(signal.SIGVTALRM, _alarm)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    seeds = [path.read_bytes() for path in sorted(Path(folder).glob("*.pb"))]
    texts = [path.read_text("utf-8") for path in sorted(Path(folder).glob("*.txt"))]
    ends: Counter[str] = Counter()
    wrong: list[dict[str, Any]] = []
    longest, slowest = 0.0, 0
    kinds: Counter[str] = Counter()
    for mutant in mutants(seeds, texts, range(int(first), int(first) + int(count))):
        started = _used()
        said = forked(mutant) if mutant.form == "text" else outcome(mutant)
        took = _used() - started
        if took > longest:
            longest, slowest = took, mutant.number
        word = said if said in ("read", "rejected") else "died" if said.startswith("died of ") else "wrong"
        ends[f"{mutant.form} {word}"] += 1
        kinds[mutant.kind] += 1
        if took > 1 or word == "wrong":
            print(mutant.number, mutant.kind, mutant.form, f"{took:.1f} s", said[-1500:], file=sys.stderr, flush=True)
        if word == "wrong":
            wrong.append({"number": mutant.number, "kind": mutant.kind, "form": mutant.form, "said": said[-1500:]})
    # The high water of this program: what getrusage gives begins with that of the process that started it.
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    peak = int(status.split("VmHWM:")[1].split()[0]) * 1024
    print(json.dumps({"ends": ends, "wrong": wrong, "longest_seconds": longest, "slowest": slowest,
                      "peak_resident_bytes": peak, "kinds": kinds}))  # fmt: skip


if __name__ == "__main__":
    main(*sys.argv[1:])
