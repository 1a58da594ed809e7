"""How a failure row is executed: a fault is planted; the check that is named must refuse it and pass the sound input.

Three kinds of check, each the product's own code and none written for the row:

- `rejected`: building a record raises `RejectedError`;
- `reconciled`: a prediction against a supplied bundle leaves a row open, or unmeasured;
- `property`: a property of `jaxcost.verify.properties` breaks when the prediction carries the fault.

A row is `caught` only if the sound input passes the same check; a check that refuses everything catches nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
from jaxcost.verify.holding import Predict, predicting_with
from jaxcost.verify.properties import PROPERTIES

Build = Callable[[], object]


@dataclass(frozen=True)
class FailureResult:
    """What came of one row: `caught`, `missed`, or `not reached` with the reason."""

    id: str
    fault: str
    symptom: str
    check: str
    status: str
    reason: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        data = {"id": self.id, "fault": self.fault, "symptom": self.symptom, "check": self.check, "status": self.status}
        return {**data, "reason": self.reason} if self.reason else data


@dataclass(frozen=True)
class Failure:
    """One row of a failure table. `run` returns "" when the fault is caught, else what went wrong."""

    id: str
    fault: str
    symptom: str
    check: str
    run: Callable[[], str] | None
    reason: str = ""

    def result(self) -> FailureResult:
        """Execute the row."""
        if self.run is None:
            return FailureResult(self.id, self.fault, self.symptom, self.check, "not reached", self.reason)
        problem = self.run()
        status = "missed" if problem else "caught"
        return FailureResult(self.id, self.fault, self.symptom, self.check, status, problem)


def not_reached(row: str, fault: str, symptom: str, reason: str) -> Failure:
    """Return a row about components that do not exist yet."""
    return Failure(row, fault, symptom, "none", None, reason)


def rejected(row: str, fault: str, symptom: str, check: str, *, faulty: Build, sound: Build) -> Failure:
    """Return a row whose fault must be refused when a record is built."""

    def run() -> str:
        try:
            sound()
        except RejectedError as error:
            return f"the sound input was rejected too: {error}"
        try:
            faulty()
        except RejectedError:
            return ""
        return "the faulty input was accepted"

    return Failure(row, fault, symptom, check, run)


def reconciled(
    row: str,
    fault: str,
    symptom: str,
    check: str,
    *,
    faulty: Callable[[], Report],
    sound: Callable[[], Report],
    status: str = "open",
) -> Failure:
    """Return a row whose fault must leave the report at `status`; the sound report is exact or explained."""

    def run() -> str:
        good = sound()
        if good.status not in ("exact", "explained"):
            worst = [item.key for item in good.rows if item.status == good.status]
            return f"the sound report is {good.status} ({', '.join(worst[:4])})"
        seen = faulty().status
        return "" if seen == status else f"the faulty report is {seen}, not {status}"

    return Failure(row, fault, symptom, check, run)


def against(
    row: str, fault: str, symptom: str, property_name: str, case: Callable[[], Case], wrong: Predict
) -> Failure:
    """Return a row whose faulty prediction must break a property that the sound prediction keeps."""

    def run() -> str:
        subject, check = case(), PROPERTIES[property_name].check
        try:
            check(subject)
        except AssertionError as error:
            return f"the sound prediction breaks it too: {error}"
        try:
            with predicting_with(wrong):
                check(subject)
        except AssertionError:
            return ""
        return "the faulty prediction keeps the property"

    return Failure(row, fault, symptom, f"property {property_name}", run)


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
