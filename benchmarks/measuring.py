"""What the benchmark scripts share: timing, the machine, and how an answer is printed and kept.

A script calls `run(question, measure, options)`. `measure` returns an `Answer`: seconds by name, and ratios made from
them in the same run, since seconds belong to a machine and ratios survive it.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = Path(__file__).resolve().parent / "results"
sys.path.insert(0, str(ROOT))  # a checkout that is not installed works too

PACKAGES = ("jaxcost", "jax", "jaxlib", "jax-cuda13-plugin", "libtpu", "equinox", "optax", "protobuf", "click", "rich")


@dataclass
class Answer:
    """What a script measured.

    `seconds` holds every repetition by name; `ratios` are made of the medians; `notes` say what stands beside them;
    `configuration` is all that the numbers depend on. `missing` says why there is no answer, and how to get one.
    """

    configuration: dict[str, Any]
    seconds: dict[str, list[float]] = field(default_factory=dict)
    ratios: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    missing: str = ""

    def median(self, name: str) -> float:
        """Seconds, the median of the repetitions."""
        return statistics.median(self.seconds[name])

    def ratio(self, name: str, numerator: str, denominator: str) -> None:
        """Record median over median, under a name that reads as a sentence."""
        self.ratios[name] = round(self.median(numerator) / self.median(denominator), 4)


def timed(function: Callable[[], Any], repeat: int) -> list[float]:
    """Seconds of each of `repeat` calls."""
    found = []
    for _ in range(repeat):
        started = time.perf_counter()
        function()
        found.append(time.perf_counter() - started)
    return found


def fresh(arguments: Sequence[str]) -> str:
    """Run a fresh interpreter from the checkout and return its standard output.

    Raises:
        SystemExit: the process failed; its last words are shown.
    """
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(arguments, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{shlex.join(arguments)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout


def machine() -> dict[str, Any]:
    """The hardware, as far as the system says, and how busy it is."""
    model = platform.processor() or platform.machine()
    memory = None
    try:
        model = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text("utf-8"), re.MULTILINE)[1]
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, TypeError, ValueError):
        pass  # not Linux: the name of the platform has to do
    load = round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None
    return {
        "processor": model,
        "cores": os.cpu_count(),
        "memory_bytes": memory,
        "system": platform.platform(terse=True),
        "load_average_at_start": load,
    }


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that are there."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def run(question: str, measure: Callable[[argparse.Namespace], Answer], parser: argparse.ArgumentParser) -> None:
    """Parse, measure, print; `--write` keeps the result under results/QUESTION-HARDWARE-DATE.json."""
    parser.add_argument("--repeat", type=int, default=3, help="repetitions of each measurement (default 3)")
    parser.add_argument("--smallest", action="store_true", help="the toy model once: does the script still run")
    parser.add_argument("--json", action="store_true", help="the result as one JSON document")
    parser.add_argument("--write", action="store_true", help="keep the result in benchmarks/results/")
    options = parser.parse_args()
    if options.repeat < 1:
        parser.error("--repeat must be at least 1")
    if options.smallest:
        options.repeat = 1
    hardware, date = machine(), datetime.datetime.now(datetime.UTC).date().isoformat()
    answer = measure(options)
    script = Path(sys.argv[0]).stem
    # An interpreter given by path is a path of this machine; the command says PYTHON in its place.
    words = ["PYTHON" if "/" in word else word for word in sys.argv[1:] if word != "--write"]
    result = {
        "question": question,
        "ratios": answer.ratios,
        "seconds": {
            name: {"median": round(statistics.median(found), 5), "all": [round(value, 5) for value in found]}
            for name, found in answer.seconds.items()
        },
        "notes": answer.notes,
        "configuration": {**answer.configuration, "repeat": options.repeat},
        "hardware": hardware,
        "versions": {**versions(), **answer.versions},
        "date": date,
        "repeat_with": shlex.join(["python", f"benchmarks/{script}.py", *words]),
    }
    if answer.missing:
        result["missing"] = answer.missing
    if options.write and not answer.missing:
        RESULTS.mkdir(exist_ok=True)
        place = f"{script}-{platform.machine()}-{os.cpu_count()}-cores-{date}.json"
        (RESULTS / place).write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=2) if options.json else text(result))


def text(result: dict[str, Any]) -> str:
    """The result for a reader."""
    lines = [result["question"]]
    lines += [f"  {name}: {value:,.4g}" for name, value in result["ratios"].items()]
    lines += [f"    {name}: {value['median']:.4f} s" for name, value in result["seconds"].items()]
    lines += [f"  {note}" for note in result["notes"]]
    if "missing" in result:
        lines.append(f"  no answer: {result['missing']}")
    hardware = result["hardware"]
    lines.append(f"  {hardware['processor']}, {hardware['cores']} cores, load {hardware['load_average_at_start']}, "
                 f"{result['date']}; --json has versions and configuration")  # fmt: skip
    return "\n".join(lines)
