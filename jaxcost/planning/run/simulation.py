"""A run played out event by event: work, pause, failure, rollback, restart. Seeded, many runs side by side.

Time between failures is drawn from an exponential distribution; nothing else is random. A segment of work counts once
its checkpoint is written; a failure takes the job back to the last one, a failure during restart starts it over. One
turn of the loop goes from failure to failure, so a year of steps costs as many turns as it has failures.
"""

from __future__ import annotations

from dataclasses import dataclass

from jaxcost.planning.run.sheet import Unknown

# Turns of the loop after which a run is given up: it makes next to no progress.
MOST_FAILURES = 10_000
# Beyond it the segments of a run are no longer counted exactly in a double.
MOST_SEGMENTS = 2**53


@dataclass(frozen=True)
class Simulation:
    """Useful over wall-clock time: `mean` over `runs`, its standard error, and the failures of a run on average."""

    mean: float
    standard_error: float
    failures: float
    runs: int


def simulate(
    work: float, interval: float, pause: float, mtbf: float, restart: float, *, runs: int = 256, seed: int = 0
) -> Simulation | Unknown:
    """Return the productive fraction of `runs` simulated runs.

    Args:
        work: useful seconds of the run; the last segment may be short and has its checkpoint too.
        interval: useful seconds between pauses.
        pause: seconds of one checkpoint.
        mtbf: mean seconds between failures.
        restart: seconds from a failure to the first step after it.
        runs: independent runs.
        seed: of the random numbers; the same seed gives the same answer.
    """
    import numpy as np

    if work / interval > MOST_SEGMENTS:
        return Unknown(f"more than {MOST_SEGMENTS} intervals in a run")
    if work / mtbf > MOST_FAILURES:  # a run lasts no less than its work
        return Unknown(f"more than {MOST_FAILURES} failures in a run")
    draws = np.random.default_rng(seed)
    segments = max(int(-(-work // interval)), 1)
    last = work - (segments - 1) * interval
    clock, done, failures = np.zeros(runs), np.zeros(runs, dtype=np.int64), np.zeros(runs, dtype=np.int64)
    failing = draws.exponential(mtbf, runs)
    running = np.ones(runs, dtype=bool)
    for _ in range(MOST_FAILURES):
        left = np.where(running, segments - done, 0)
        whole = np.floor((failing - clock) / (interval + pause))
        ends = clock + (left - 1) * (interval + pause) + last + pause
        finished = running & (ends <= failing)
        clock = np.where(finished, ends, clock)
        running &= ~finished
        if not running.any():
            share = work / clock
            error = float(share.std(ddof=1) / np.sqrt(runs))
            return Simulation(float(share.mean()), error, float(failures.mean()), runs)
        done = np.where(running, done + np.minimum(whole, left - 1).astype(np.int64), done)
        clock = np.where(running, failing, clock)
        failures += running
        waiting = running.copy()
        while waiting.any():  # a restart that fails begins again
            gap = draws.exponential(mtbf, runs)
            short = waiting & (gap < restart)
            clock = np.where(short, clock + gap, np.where(waiting, clock + restart, clock))
            failing = np.where(waiting & ~short, clock + gap - restart, failing)
            failures += short
            waiting = short
            if failures.max() > MOST_FAILURES:
                return Unknown(f"no end within {MOST_FAILURES} failures of a run")
    return Unknown(f"no end within {MOST_FAILURES} failures of a run")
