"""`vary`: one declared field, one new prediction, all ledgers again, and the base verified afterwards.

    found = vary(case, sets=["kv_heads=32", {"batch": 8}], vectors=["kv_heads=8,kv_dtype=fp8_e4m3"])
    found.cases[0].delta("parameters.unique").difference

For a base m, a total y and a field x the difference is y(m[x <- x']) - y(m) and the ratio y(m[x <- x']) / y(m). A
vector moves several fields: its difference is of all of them, and what is left after the differences of each alone is
their interaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jaxcost.contracts.case import Case
from jaxcost.contracts.errors import Problem, RejectedError, reject
from jaxcost.planning.sensitivity.derivatives import Slopes
from jaxcost.planning.sensitivity.scenario import Base, Change, Scenario, changed, scenario, several, shown, single
from jaxcost.planning.sensitivity.surface import default_surface, design_notes
from jaxcost.planning.sensitivity.totals import PRINCIPAL, Delta, deltas, reasons, totals
from jaxcost.prediction.ledgers import Prediction, predict
from jaxcost.prediction.rows import plain

INVARIANT = "a dash is a ledger that does not move: invariant, which is not no effect at run time"
VECTOR = "several fields moved together; no part of a difference is any one field's"
ISOLATED = "one field of the arithmetic, not a change of a model that could be deployed by itself"


@dataclass(frozen=True)
class Result:
    """A case of one field, or a vector of several, beside the base.

    `alone` is given for vectors: the case of each field by itself, or why the contracts refuse it.
    """

    scenario: Scenario
    prediction: Prediction
    deltas: tuple[Delta, ...]
    no_derivative: str = ""
    alone: tuple[Result | str, ...] = ()

    @property
    def is_vector(self) -> bool:
        """Whether several fields moved."""
        return len(self.scenario.fields) > 1

    def delta(self, path: str) -> Delta:
        """Return the row of a total.

        Raises:
            KeyError: naming the path, where there is none.
        """
        for row in self.deltas:
            if row.path == path:
                return row
        raise KeyError(f"{path} is not a total of this case")

    def interaction(self, path: str) -> tuple[Any, Any, str]:
        """Return the sum of the differences of each field alone, what the vector's has beside it, and why unknown."""
        refused = [text for text in self.alone if isinstance(text, str)]
        if refused:
            return None, None, f"not every field can move alone: {refused[0]}"
        whole = self.delta(path).difference
        parts = [item.delta(path).difference for item in self.alone if isinstance(item, Result) and _has(item, path)]
        if whole is None or len(parts) < len(self.alone) or None in parts:
            return None, None, "a difference is unknown"
        return sum(parts), whole - sum(parts), ""

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        found = self.scenario
        data: dict[str, Any] = {
            "kind": "vector" if self.is_vector else "single",
            "name": found.name,
            "fields": [
                {"field": own.name, "owns": list(own.owns), "before": plain(old), "after": plain(change.value)}
                for own, old, change in zip(found.fields, found.before, found.changes, strict=True)
            ],
            "moved": [leaf.to_dict() for leaf in found.moved],
            "digest": found.case.digest,
            "notes": [VECTOR if self.is_vector else ISOLATED, *design_notes([own.name for own in found.fields])],
            "totals": [self._row(row) for row in self.deltas],
        }
        if self.no_derivative:
            data["no_derivative"] = self.no_derivative
        if self.is_vector:
            data["alone"] = [
                {"name": change.field, "refused": item} if isinstance(item, str) else
                {"name": item.scenario.name, "digest": item.scenario.case.digest}
                for change, item in zip(found.changes, self.alone, strict=True)
            ]  # fmt: skip
        return data

    def _row(self, row: Delta) -> dict[str, Any]:
        data = row.to_dict()
        if self.is_vector:
            parts, remainder, why = self.interaction(row.path)
            data["sum_of_singles"], data["interaction"] = plain(parts), plain(remainder)
            if why:
                data["interaction_reason"] = why
        return data


@dataclass(frozen=True)
class Sensitivity:
    """A base and what became of its totals in each case, then in each vector."""

    base: Prediction
    digest: str
    cases: tuple[Result, ...]
    vectors: tuple[Result, ...]
    left_out: tuple[Mapping[str, Any], ...] = ()
    default: bool = False

    @property
    def results(self) -> tuple[Result, ...]:
        """Cases, then vectors."""
        return (*self.cases, *self.vectors)

    @property
    def columns(self) -> tuple[str, ...]:
        """The totals the tables show, of those the base has."""
        have = totals(self.base)
        return tuple(path for path in PRINCIPAL[self.base.case.workload.phase] if path in have)

    @property
    def disagreements(self) -> tuple[dict[str, str], ...]:
        """The totals whose formula does not give the difference of the two predictions, with the reason."""
        return tuple(
            {"name": item.scenario.name, "path": row.path, "reason": str(row.derivative["reason"])}
            for item in self.cases
            for row in item.deltas
            if row.derivative is not None and not row.derivative["agrees"]
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the body of the document `jaxcost.sensitivity.v1`."""
        case = self.base.case
        return {
            "case": {"digest": self.digest, **case.to_data()},
            "base": {path: plain(value) for path, value in totals(self.base).items()},
            "base_digest": {"before": self.digest, "after": case.digest},
            "columns": list(self.columns),
            "default_surface": self.default,
            "cases": [item.to_dict() for item in self.cases],
            "vectors": [item.to_dict() for item in self.vectors],
            "left_out": [dict(item) for item in self.left_out],
            "formula_disagreements": list(self.disagreements),
            "conventions": [INVARIANT],
        }


Predict = Callable[[Case], Prediction]


def vary(
    case: Case,
    sets: Iterable[object] = (),
    vectors: Iterable[object] = (),
    *,
    formulas: bool = True,
    predict: Predict = predict,
    apply: Callable[..., Case] = changed,
    fits: Callable[[Case], object] = lambda case: None,
    progress: Callable[[str], None] = lambda message: None,
) -> Sensitivity:
    """Predict a case again with single fields, and with vectors of fields, changed.

    Args:
        case: the base; it is not changed, and its digest is verified after every case.
        sets: one change each: `"kv_heads=32"`, or `{"kv_heads": 32}`. With neither sets nor vectors: a default surface.
        vectors: two changes or more each, `"kv_heads=8,kv_dtype=fp8_e4m3"` or a mapping.
        formulas: also the symbolic derivatives.
        predict, apply: how a case is predicted, and made of a base and values by path; given to plant faults.
        fits: raises RejectedError for a case that is of no use, for example on a target.
        progress: takes one line per case that is predicted.

    Raises:
        RejectedError: with the problems of all cases together: a second field, an unknown path, a value that is there
            already, a rule the new case breaks, a base that was changed, the same case twice.
    """
    if not isinstance(case, Case):
        raise reject("case", type(case).__name__, "a sensitivity is of a case", "make one with jaxcost.prefill")
    base = Base(case)
    asked_sets, asked_vectors = list(sets), list(vectors)
    problems: list[Problem] = []
    left_out: list[Mapping[str, Any]] = []
    singles: list[Scenario] = []
    default = not asked_sets and not asked_vectors
    if default:
        for change in default_surface(case):
            try:
                item = scenario(base, [change], apply)
                fits(item.case)
                singles.append(item)
            except RejectedError as error:
                rules = "; ".join(dict.fromkeys(problem.rule for problem in error.problems))
                left_out.append({"field": change.field, "value": plain(change.value), "reason": rules})
    for given in asked_sets:
        _collect(problems, singles, base, single, given, apply, fits)
    together: list[Scenario] = []
    for given in asked_vectors:
        _collect(problems, together, base, several, given, apply, fits)
    problems += _repeated([*singles, *together])
    if problems:
        raise RejectedError(problems)
    first = predict(case)
    before = totals(first)
    slopes = Slopes(case) if formulas else None
    cases, grouped = [], []
    for item in singles:
        cases.append(_result(base, before, item, predict, slopes))
        progress(f"[{len(cases)}/{len(singles) + len(together)}] {item.name}")
    for item in together:
        grouped.append(_vector(base, before, item, predict, apply))
        progress(f"[{len(cases) + len(grouped)}/{len(singles) + len(together)}] {item.name}")
    base.verify("all cases")
    return Sensitivity(first, base.digest, tuple(cases), tuple(grouped), tuple(left_out), default)


def _collect(
    problems: list[Problem],
    found: list[Scenario],
    base: Base,
    read: Callable[[object], Sequence[Change]],
    given: object,
    apply: Callable[..., Case],
    fits: Callable[[Case], object],
) -> None:
    """Append the scenario of what was asked for, or what is wrong with it."""
    try:
        made = scenario(base, read(given), apply)
        fits(made.case)
        found.append(made)
    except RejectedError as error:
        problems.extend(error.problems)


def _repeated(found: Sequence[Scenario]) -> list[Problem]:
    seen: dict[str, str] = {}
    problems = []
    for item in found:
        if item.case.digest in seen:
            rule = f"the same case as {seen[item.case.digest]}"
            problems.append(Problem(item.name, item.case.digest[:12], rule, "leave one of the two out"))
        seen.setdefault(item.case.digest, item.name)
    return problems


def _result(base: Base, before: Mapping[str, Any], item: Scenario, predict: Predict, slopes: Slopes | None) -> Result:
    prediction = predict(item.case)
    base.verify(item.name)
    rows = deltas(before, totals(prediction), _unknown(base, prediction))
    if slopes is None:
        return Result(item, prediction, rows)
    found, reason = slopes.of(item, ((row.path, row.base, row.value) for row in rows))
    return Result(item, prediction, tuple(replace(row, derivative=found.get(row.path)) for row in rows), reason)


def _vector(
    base: Base, before: Mapping[str, Any], item: Scenario, predict: Predict, apply: Callable[..., Case]
) -> Result:
    prediction = predict(item.case)
    base.verify(item.name)
    alone: list[Result | str] = []
    for change in item.changes:
        try:
            alone.append(_result(base, before, scenario(base, [change], apply), predict, None))
        except RejectedError as error:
            rules = "; ".join(dict.fromkeys(problem.rule for problem in error.problems))
            alone.append(f"{change.field}={shown(change.value)}: {rules}")
    rows = deltas(before, totals(prediction), _unknown(base, prediction))
    return Result(item, prediction, rows, alone=tuple(alone))


def _unknown(base: Base, prediction: Prediction) -> dict[str, str]:
    """Return why totals are unknown. Liveness events that were supplied are the base's."""
    found = reasons(prediction)
    if base.case.liveness is not None:
        found["activations.peak_bytes"] = "the liveness events supplied are of the base"
    return found


def _has(item: Result, path: str) -> bool:
    return any(row.path == path for row in item.deltas)
