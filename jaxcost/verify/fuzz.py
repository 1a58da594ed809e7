"""Random cases against both witnesses: every property of the ledgers, and the compiled program against the ledgers.

The draws follow from the seed alone: Hypothesis generates them before anything is checked, one third for each phase, so
neither an outcome nor a clock can change them. Cases are tiny, because XLA's time does not depend on sizes and a wrong
axis shows in any size. The CPU compiler runs at optimisation level 0, which leaves contractions as they are.

What fails comes back as a case file: save it and run `jaxcost verify --case FILE`.
"""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase, given, settings

from jaxcost.contracts.case import Case
from jaxcost.contracts.workload import PHASES
from jaxcost.observation.observe import Wish, observe_many
from jaxcost.observation.pool import Pool
from jaxcost.prediction.ledgers import predict
from jaxcost.reconciliation.report import reconcile
from jaxcost.reconciliation.rows import Report
from jaxcost.verify.properties import PROPERTIES, broken
from jaxcost.verify.strategies import cases, options_of

# Counter -> the statuses that pass. FLOPs admit explanations, parameters that of declared vocabulary padding, argument
# bytes that of state handed on unused.
REQUIRED: dict[str, tuple[str, ...]] = {
    "jaxpr_matmul_flops": ("exact", "explained"),
    "matmul_flops": ("exact", "explained"),
    "argument_bytes": ("exact", "explained"),
    "tensor": ("exact",),
    "parameters.unique": ("exact", "explained"),
    "parameters.bytes": ("exact",),
}
COMPILED = "compiled_equals_the_ledger"
CHUNK = 12


class _EnoughError(Exception):
    """Ends a Hypothesis run that has drawn what was asked for."""


@dataclass(frozen=True)
class FuzzFailure:
    """One case that broke something, as the file that repeats it."""

    index: int
    property: str
    message: str
    case_file: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"draw": self.index, "property": self.property, "message": self.message, "case_file": self.case_file}


@dataclass(frozen=True)
class FuzzResult:
    """What a run found. `compiled` counts programs compiled, `checks` properties held against a case."""

    count: int
    seed: int
    target: str
    drawn: int
    checks: int
    compiled: int
    rows: dict[str, int] = field(default_factory=dict)
    failures: tuple[FuzzFailure, ...] = ()
    seconds: float = 0.0

    @property
    def status(self) -> str:
        """`passed`, or `failed` where a property broke."""
        return "failed" if self.failures else "passed"

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "status": self.status, "count": self.count, "seed": self.seed, "target": self.target, "drawn": self.drawn,
            "checks": self.checks, "compiled": self.compiled, "rows": dict(self.rows),
            "seconds": round(self.seconds, 1),
            "properties": {name: entry.claim for name, entry in PROPERTIES.items()} | {COMPILED: CLAIM},
            "failures": [failure.to_dict() for failure in self.failures],
        }  # fmt: skip


CLAIM = "contractions of the compiled program, its argument bytes and its parameters are the ledger's"


def fuzz(
    count: int, seed: int, target: str, pool: Pool, progress: Callable[[str], None] = lambda text: None
) -> FuzzResult:
    """Draw `count` cases from `seed` and hold them against the properties and the compiler of `target`.

    Args:
        count: number of cases; draw i has phase i modulo three.
        seed: any integer; the same seed draws the same cases from the same strategies.
        target: a target of one device; optimisation level 0 where it is a CPU.
        pool: workers that compile.
        progress: takes one line at a time.

    Stops after the chunk in which the first program disagrees.
    """
    started = time.monotonic()
    drawn = draw_cases(count, seed)
    failures: list[FuzzFailure] = []
    for index, case in enumerate(drawn):
        for name, message in broken(case):
            failures.append(FuzzFailure(index, name, message, case_file(case)))
    checks = sum(case.workload.phase in entry.phases for case in drawn for entry in PROPERTIES.values())
    progress(f"{count} cases drawn from seed {seed}; {checks} property checks, {len(failures)} broken")
    if failures:
        failures = [_shrunk(min(failures, key=_weight))]
    statuses: Counter[str] = Counter()
    compiled = 0
    if not failures:
        for indices, reports in _compiled(drawn, target, pool):
            compiled += len(indices)
            for index, report in zip(indices, reports, strict=True):
                statuses.update(row.status for row in report.rows if not row.verdict)
                for message in disagreements(report):
                    failures.append(FuzzFailure(index, COMPILED, message, case_file(drawn[index])))
            progress(f"[{compiled}/{count}] compiled for {target}")
            if failures:
                failures.sort(key=_weight)
                break
    for failure in failures[:1]:
        progress(
            f"{failure.property}: {failure.message}\nThe case, for jaxcost verify --case FILE.json --target {target}:"
        )
        progress(json.dumps(failure.case_file, indent=2))
    return FuzzResult(
        count, seed, target, len(drawn), checks, compiled, dict(statuses), tuple(failures), time.monotonic() - started
    )


def draw_cases(count: int, seed: int, **options: Any) -> list[Case]:
    """Return `count` different cases; draw i has phase i modulo three and depends on `seed` and i alone.

    `options` go to the strategy `cases`. One Hypothesis run would draw variations of a few cases, so each has a run of
    its own; its first example is always the simplest one and is passed over.
    """
    drawn: dict[str, Case] = {}
    for index in range(count):
        phase = PHASES[index % len(PHASES)]
        attempt = 0
        while True:
            case = _draw((seed * 2**32 + index) * 2**8 + attempt, phase, {"compilable": True, **options})
            if case.digest not in drawn:
                break
            attempt += 1
        drawn[case.digest] = case
    return list(drawn.values())


def _draw(seed: int, phase: str, options: dict[str, Any]) -> Case:
    found: list[Case] = []

    @hypothesis.seed(seed)
    @_settings(max_examples=9)  # from 10 on Hypothesis begins with near-simplest examples
    @given(cases(phase, **options))
    def collect(case: Case) -> None:
        if len(found) > 1:
            raise _EnoughError
        found.append(case)

    with suppress(_EnoughError):
        collect()
    return found[-1]


def _settings(max_examples: int, phases: Sequence[Phase] = (Phase.generate,)) -> settings:
    return settings(
        max_examples=max_examples, database=None, derandomize=False, deadline=None, phases=phases,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck), print_blob=False, backend="hypothesis",
    )  # fmt: skip


def _compiled(drawn: Sequence[Case], target: str, pool: Pool) -> Iterator[tuple[list[int], list[Report]]]:
    """Observe the cases chunk by chunk, and yield their indices with the reports."""
    level = 0 if target.partition(":")[0] == "cpu" else None
    for start in range(0, len(drawn), CHUNK):
        indices = list(range(start, min(start + CHUNK, len(drawn))))
        wishes = [Wish(drawn[index], target, optimisation_level=level, second_compile=False) for index in indices]
        seen = observe_many(wishes, pool=pool)
        yield indices, [reconcile(predict(drawn[i]), o) for i, o in zip(indices, seen, strict=True)]


def disagreements(report: Report) -> list[str]:
    """Return what of a compiled program is not the ledger's: rows of `REQUIRED` counters, absent or not passing."""
    found = []
    for counter, passing in REQUIRED.items():
        rows = [row for row in report.rows if row.counter == counter and not row.verdict]
        if not rows:
            found.append(f"no row {counter}")
        for row in rows:
            if row.status not in passing:
                found.append(
                    f"{row.key}: predicted {row.prediction}, observed {row.observation}, residual {row.residual}, "
                    f"explained {row.explained}: {row.status}{f' ({row.reason})' if row.reason else ''}"
                )
    return found


def case_file(case: Case) -> dict[str, Any]:
    """Return the content of a case file that gives this case again: the architecture and all options."""
    architecture = {key: value for key, value in case.architecture.to_data().items() if value not in ("", None)}
    return {"architecture": architecture, **options_of(case)}


def _weight(failure: FuzzFailure) -> tuple[int, int]:
    return len(json.dumps(failure.case_file)), failure.index


def _shrunk(failure: FuzzFailure) -> FuzzFailure:
    """Return a smaller case that breaks the same property, where Hypothesis finds one."""
    name = failure.property
    try:
        smaller = hypothesis.find(
            cases(failure.case_file["phase"], compilable=True),
            lambda case: bool(broken(case, [name])),
            settings=_settings(200, (Phase.generate, Phase.shrink)),
            random=random.Random(failure.index),
        )
    except hypothesis.errors.NoSuchExample:
        return failure
    [(_, message)] = broken(smaller, [name])
    return FuzzFailure(failure.index, name, message, case_file(smaller))
