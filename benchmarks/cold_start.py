#!/usr/bin/env python
"""How long does `jaxcost estimate` take from the shell, against importing jax alone?

    python benchmarks/cold_start.py

An estimate that imported jax could not be faster than the import. A bare interpreter stands beside, since neither can
be faster than that.
"""

from __future__ import annotations

import argparse
import sys

from measuring import Answer, fresh, run, timed

QUESTION = "A cold `jaxcost estimate --json` against `import jax` in a fresh process: which part of it?"


def measure(options: argparse.Namespace) -> Answer:
    model, seq = ("toy-tied", "8") if options.smallest else ("llama-3.1-8b", "4096")
    case = ["--phase", "training", "--batch", "1", "--seq", seq]
    commands = {
        "jaxcost estimate --json": [sys.executable, "-m", "jaxcost", "estimate", model, *case, "--json"],
        "import jax": [sys.executable, "-c", "import jax"],
        "a bare interpreter": [sys.executable, "-c", "pass"],
    }
    answer = Answer({"command": " ".join(["jaxcost estimate", model, *case, "--json"])})
    for command in commands.values():
        fresh(command)  # bytecode and file cache are warm in daily use
    for _ in range(options.repeat):  # taken in turn, so that a busy moment falls on all of them
        for name, command in commands.items():
            answer.seconds.setdefault(name, []).extend(timed(lambda: fresh(command), 1))  # noqa: B023
    answer.ratio("estimate / import jax", "jaxcost estimate --json", "import jax")
    answer.ratio("estimate / a bare interpreter", "jaxcost estimate --json", "a bare interpreter")
    return answer


if __name__ == "__main__":
    run(QUESTION, measure, argparse.ArgumentParser(description=__doc__,
                                                   formatter_class=argparse.RawDescriptionHelpFormatter))  # fmt: skip
