"""What a publish gate is made of: sentences, the checks they rest on, and what a check is run over.

A gate is the list of sentences that close one section of the cost-model document. A sentence holds when each of its
checks holds; several sections say the same thing, and then name the same check. A check goes over a `Subject` (one case
with its prediction and the document that is published of it) or over the `Package`, and yields one text for every item
it looked at: empty where the item holds, else what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from jaxcost.contracts.case import Case
from jaxcost.prediction.ledgers import Prediction, predict
from jaxcost.prediction.rows import Row

Items = Iterator[str]
Over = Literal["case", "package"]
PROBLEMS_KEPT = 5


@dataclass(frozen=True)
class Subject:
    """One case, what is predicted of it, and the document published: what `jaxcost estimate --json` prints."""

    name: str
    case: Case
    prediction: Prediction

    @cached_property
    def document(self) -> dict[str, Any]:
        """The JSON form of the prediction."""
        return self.prediction.to_dict()

    def rows(self, *ledgers: str) -> Iterator[tuple[str, Row]]:
        """Yield (ledger, row) of some ledgers, all by default."""
        for name in ledgers or self.prediction.ledgers:
            for row in self.prediction.ledgers[name].rows:
                yield name, row

    def totals(self, ledger: str) -> dict[str, Any]:
        """Return the totals of a ledger."""
        return self.prediction.ledgers[ledger].totals

    @property
    def training(self) -> bool:
        """Whether the case trains."""
        return self.case.workload.phase == "training"

    @property
    def one_device(self) -> bool:
        """Whether the mesh has one device."""
        return self.case.execution.device_count == 1


def subject(name: str, case: Case) -> Subject:
    """Return the subject of a case."""
    return Subject(name, case, predict(case))


@dataclass(frozen=True)
class Check:
    """One claim that can be executed. `says` completes: "it holds that ..."."""

    name: str
    says: str
    over: Over
    run: Callable[[Any], Items]


CHECKS: dict[str, Check] = {}


def items(check: Check, looked_at: Any) -> Items:
    """Yield the items of a check; what cannot even be read, for want of a field, is one that is wrong."""
    try:
        yield from check.run(looked_at)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        yield f"{check.name} cannot be checked: {type(error).__name__}: {error}"


def holds(name: str, says: str, over: Over = "case") -> Callable[[Callable[[Any], Items]], Callable[[Any], Items]]:
    """Register a check under a name."""

    def register(run: Callable[[Any], Items]) -> Callable[[Any], Items]:
        if name in CHECKS:
            raise ValueError(f"two checks are called {name}")
        CHECKS[name] = Check(name, says, over, run)
        return run

    return register


def each(rows: Iterable[tuple[str, Row]], right: Callable[[Row], bool], wrong: str) -> Items:
    """Yield an item per row; `wrong` says what a row lacks."""
    for ledger, row in rows:
        yield "" if right(row) else f"{at(ledger, row)}: {wrong}"


def equal(what: str, got: object, want: object) -> str:
    """Return the text of an item that two values decide."""
    return "" if got == want else f"{what}: {got}, should be {want}"


def at(ledger: str, row: Row) -> str:
    """Return where a row stands."""
    part = f", {row.part}" if row.part and row.part != row.phase else ""
    return f"{ledger} {row.object or '(no name)'} [{row.scope or 'whole'}, {row.phase or 'any time'}{part}]"


@dataclass(frozen=True)
class Sentence:
    """One line of a gate: the checks it rests on, or why it cannot be checked here."""

    section: str
    number: int
    text: str
    checks: tuple[str, ...] = ()
    reason: str = ""

    @property
    def id(self) -> str:
        """The section and the number of the line in it."""
        return f"{self.section}/{self.number}"


@dataclass
class Tally:
    """What a check found, over all that it was run on."""

    items: int = 0
    broken: int = 0
    problems: list[str] = field(default_factory=list)

    def add(self, name: str, items: Iterable[str]) -> None:
        """Count the items of one subject; only the first few problems are kept in words."""
        for item in items:
            self.items += 1
            if item:
                self.broken += 1
                if len(self.problems) < PROBLEMS_KEPT:
                    self.problems.append(f"{name}: {item}" if name else item)


@dataclass(frozen=True)
class GateResult:
    """What came of one sentence.

    `status` is `holds`, `broken`, `nothing to check` (no row of its kind in what was looked at) or `not checkable`.
    """

    sentence: Sentence
    status: str
    checked: int = 0
    problems: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        line = self.sentence
        data: dict[str, Any] = {
            "id": line.id, "section": line.section, "gate": line.text, "checks": list(line.checks),
            "checked": self.checked, "status": self.status,
        }  # fmt: skip
        if self.problems:
            data["problems"] = list(self.problems)
        return {**data, "reason": line.reason} if line.reason else data
