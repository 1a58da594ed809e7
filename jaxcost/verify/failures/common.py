"""How a failure row is executed: a fault is planted; the check that is named must refuse it and pass the sound input.

Four kinds of check, each the product's own code and none written for the row:

- `rejected`: building a record raises `RejectedError`;
- `reconciled`: a prediction against a supplied bundle leaves a row open, or unmeasured;
- `against`: a property of `jaxcost.verify.properties` breaks when the prediction carries the fault;
- `judged`: the product answers with a word of its own (a verdict, a status), another than to sound input.

A row is `caught` only if the sound input passes the same check; a check that refuses everything catches nothing. Each
row names its guard, the piece of the product that the check rests on (`jaxcost.verify.failures.guards`): without it the
fault passes too. Ids are `section/row`, the section as in `SECTIONS`, rows counted from 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

from jaxcost.contracts.case import Case
from jaxcost.contracts.errors import RejectedError
from jaxcost.contracts.observation import Observation
from jaxcost.prediction import ledgers
from jaxcost.prediction.rows import Row
from jaxcost.reconciliation.rows import Report
from jaxcost.reconciliation.supplied import reconcile_supplied
from jaxcost.verify import recount
from jaxcost.verify.failures.guards import Guard, held, passing_over
from jaxcost.verify.holding import Predict, predicting_with
from jaxcost.verify.properties import PROPERTIES

Build = Callable[[], object]
Answer = Callable[[], str]
# The tables and lists of the documents, in their order.
SECTIONS = {
    "0x01H": "what is declared and what is stored",
    "0x02H": "counts that agree by accident",
    "0x02J": "counting parameters",
    "0x03K": "persistent state",
    "0x04J": "activations",
    "0x05K": "forward FLOPs",
    "0x06J": "training FLOPs",
    "0x07K": "ownership on a mesh",
    "0x09G": "traffic, phases and caches",
    "0x0AB": "refusing before counting",
    "0x0AH": "adversarial tests of the estimator",
    "0x0DA": "closing a report",
    "0x0DB": "mistakes in reasoning",
    "worksheet": "a resource plan",
    "caveat": "further caveats on compute and memory",
}
# The rule by which a row stays open, or unmeasured, until its numbers close it.
CLOSURE = {
    status: Guard("jaxcost.reconciliation.rows:Row.status", passing_over(status)) for status in ("open", "unmeasured")
}


@dataclass(frozen=True)
class FailureResult:
    """What came of one row: `caught`, or `missed` with the reason.

    `outcome` is what the check answered to the fault: rejected, open, unmeasured, broken, or a word of the product.
    """

    id: str
    fault: str
    symptom: str
    check: str
    status: str
    reason: str = ""
    outcome: str = ""
    guard: str = ""

    @property
    def section(self) -> str:
        """The table of the document the row belongs to."""
        return self.id.split("/")[0]

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        data = {
            "id": self.id, "section": self.section, "subject": SECTIONS[self.section], "fault": self.fault,
            "symptom": self.symptom, "check": self.check, "status": self.status, "outcome": self.outcome,
            "guard": self.guard,
        }  # fmt: skip
        return {**data, "reason": self.reason} if self.reason else data


@dataclass(frozen=True)
class Failure:
    """One row of a failure table: what the check answers to sound input and to the fault, and what it should answer.

    `passes` are the answers that let an input through, `wanted` the one that catches the fault.
    """

    id: str
    fault: str
    symptom: str
    check: str
    sound: Answer
    faulty: Answer
    passes: tuple[str, ...]
    wanted: str
    guard: Guard

    def result(self) -> FailureResult:
        """Execute the row."""
        good = self.sound()
        if good not in self.passes:
            return self._answered("missed", good, f"the sound input is {good}")
        seen = self.faulty()
        if seen == self.wanted:
            return self._answered("caught", seen)
        return self._answered("missed", seen, f"the faulty input is {seen}, not {self.wanted}")

    def _answered(self, status: str, outcome: str, reason: str = "") -> FailureResult:
        return FailureResult(self.id, self.fault, self.symptom, self.check, status, reason, outcome, self.guard.target)


def judged(
    row: str,
    fault: str,
    symptom: str,
    check: str,
    *,
    faulty: Answer,
    sound: Answer,
    passes: str | tuple[str, ...],
    wanted: str,
    guard: Guard | str,
) -> Failure:
    """Return a row whose check answers with a word: one of `passes` to sound input, `wanted` to the fault."""
    named = Guard(guard) if isinstance(guard, str) else guard
    return Failure(
        row, fault, symptom, check, sound, faulty, (passes,) if isinstance(passes, str) else passes, wanted, named
    )


def rejected(
    row: str, fault: str, symptom: str, check: str, *, faulty: Build, sound: Build, guard: Guard | str
) -> Failure:
    """Return a row whose fault must be refused when a record is built."""

    def answer(build: Build) -> Answer:
        def answered() -> str:
            try:
                build()
            except RejectedError:
                return "rejected"
            return "accepted"

        return answered

    return judged(
        row, fault, symptom, check, faulty=answer(faulty), sound=answer(sound), passes="accepted", wanted="rejected",
        guard=guard,
    )  # fmt: skip


def reconciled(
    row: str,
    fault: str,
    symptom: str,
    check: str,
    *,
    faulty: Callable[[], Report],
    sound: Callable[[], Report],
    status: str = "open",
    guard: Guard | str | None = None,
) -> Failure:
    """Return a row whose fault must leave the report at `status`; the sound report is exact or explained.

    Without a `guard` of its own the row rests on the rule of closure: what differs and is not explained is open.
    """
    return judged(
        row, fault, symptom, check, faulty=lambda: faulty().status, sound=lambda: sound().status,
        passes=("exact", "explained"), wanted=status, guard=guard or CLOSURE[status],
    )  # fmt: skip


def against(
    row: str, fault: str, symptom: str, property_name: str, case: Callable[[], Case], wrong: Predict
) -> Failure:
    """Return a row whose faulty prediction must break a property that the sound prediction keeps."""

    def answer(planted: Callable[[], AbstractContextManager[None]]) -> Answer:
        def answered() -> str:
            subject = case()
            try:
                with planted():
                    PROPERTIES[property_name].check(subject)
            except AssertionError:
                return "broken"
            return "kept"

        return answered

    return judged(
        row, fault, symptom, f"property {property_name}",
        faulty=answer(lambda: predicting_with(wrong)), sound=answer(nullcontext),
        passes="kept", wanted="broken", guard=Guard(f"jaxcost.verify.holding:PROPERTIES.{property_name}", held),
    )  # fmt: skip


def with_totals(prediction: Any, ledger: str, **totals: Any) -> Any:
    """Return a prediction with totals of one ledger replaced."""
    old = prediction.ledgers[ledger]
    return replace(prediction, ledgers={**prediction.ledgers, ledger: replace(old, totals={**old.totals, **totals})})


def with_rows(prediction: Any, ledger: str, change: Callable[[Row], Row]) -> Any:
    """Return a prediction with every row of one ledger changed."""
    old = prediction.ledgers[ledger]
    return replace(prediction, ledgers={**prediction.ledgers, ledger: replace(old, rows=tuple(map(change, old.rows)))})


def shifted(ledger: str, total: str, by: Callable[[Case, int], int]) -> Predict:
    """Return a predictor whose total is `by(case, right value)`."""

    def predict(case: Case) -> Any:
        right = ledgers.predict(case)
        return with_totals(right, ledger, **{total: by(case, right.ledgers[ledger].totals[total])})

    return predict


def swapped(other: Callable[[Case], Case]) -> Predict:
    """Return a predictor that answers for another case than it was asked about."""
    return lambda case: ledgers.predict(other(case))


def bundle(
    case: Case,
    counters: Sequence[Mapping[str, Any]] = (),
    tensors: bool | Sequence[Mapping[str, Any]] = False,
    **claims: Any,
) -> Observation:
    """Return a supplied bundle; `tensors=True` lists those of a plain walk over the case."""
    listed = tensor_entries(case) if tensors is True else list(tensors) if tensors else None
    data = {
        "schema": "jaxcost.observation.v1",
        "evidence_class": "synthetic_contract_test",
        "producer": "a walk over the declared layers",
        "counters": list(counters),
        **({"tensors": listed} if listed is not None else {}),
        **claims,
    }
    return Observation.from_data(data, "bundle")


def counter(name: str, value: int, unit: str, visibility: str, *explanations: tuple[int, str]) -> dict[str, Any]:
    """Return one counter of a bundle."""
    given = [{"amount": amount, "reason": reason, "evidence": "made up here"} for amount, reason in explanations]
    return {
        "counter": name, "value": value, "unit": unit, "visibility": visibility, "explanations": given,
    }  # fmt: skip


def tensor_entries(case: Case) -> list[dict[str, Any]]:
    """Return the parameters of a plain walk as entries of a bundle, in the layout `jaxcost`."""
    found = []
    for tensor in recount.tensors(case, padded=True):
        scope = tensor.scope
        if scope.startswith("group"):
            group, rest = scope.split("/", 1)
            scope = f"{group}/{tensor.layer}/{rest}"
        found.append(_entry(f"{scope}/{tensor.part}", tensor.shape, case, tensor.scope))
    if case.architecture.tied:
        found.append({**found[0], "name": "head/weight", "alias": found[0]["name"]})
    return found


def _entry(name: str, shape: Sequence[int], case: Case, scope: str) -> dict[str, Any]:
    trainable = not case.is_frozen(scope)
    return {
        "name": name, "shape": list(shape), "dtype": case.state.parameter_dtype, "kind": "parameter",
        "trainable": trainable, "alias": name,
    }  # fmt: skip


def compare(case: Case, observation: Observation, predict: Predict | None = None) -> Report:
    """Predict a case and reconcile it with a bundle."""
    return reconcile_supplied((predict or ledgers.predict)(case), observation)
