"""Publish gates: what each section of the cost-model document requires before it is published, held here in code.

`jaxcost verify --gates` runs them: the checks over a case for the models named, or for every model of the catalogue in
every phase, alone and on meshes; the checks over the package once. A line that cannot be checked says why. `sections`
has the lines and the checks that each rests on; that every check can fail is tested, on a fault that it alone notices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from jaxcost.verify.gates import declared, holdings, mesh, pages, recount, rows, studies, work  # noqa: F401
from jaxcost.verify.gates.common import CHECKS, Check, GateResult, Sentence, Subject, Tally, items, subject
from jaxcost.verify.gates.package import Package
from jaxcost.verify.gates.sections import SECTIONS, sentences

__all__ = [
    "CHECKS",
    "SECTIONS",
    "Check",
    "GateResult",
    "Package",
    "Sentence",
    "Subject",
    "items",
    "run_gates",
    "sentences",
    "subject",
]


def run_gates(
    subjects: Iterable[Subject], package: Package | None = None, progress: Callable[[str], None] = lambda text: None
) -> list[GateResult]:
    """Run every check over its subjects and return what came of each line.

    Args:
        subjects: the cases; each is dropped before the next is made.
        package: what checks over the package look at; the package itself by default.
        progress: takes one line for each subject.
    """
    tallies = {name: Tally() for name in CHECKS}
    for one in subjects:
        for name, check in CHECKS.items():
            if check.over == "case":
                tallies[name].add(one.name, items(check, one))
        progress(one.name)
    whole = package or Package()
    for name, check in CHECKS.items():
        if check.over == "package":
            tallies[name].add("", items(check, whole))
    return [_result(line, tallies) for line in sentences()]


def _result(line: Sentence, tallies: dict[str, Tally]) -> GateResult:
    if line.reason:
        return GateResult(line, "not checkable")
    found = [tallies[name] for name in line.checks]
    problems = tuple(dict.fromkeys(problem for tally in found for problem in tally.problems))
    checked = sum(tally.items for tally in found)
    status = "broken" if any(tally.broken for tally in found) else "holds" if checked else "nothing to check"
    return GateResult(line, status, checked, problems)
