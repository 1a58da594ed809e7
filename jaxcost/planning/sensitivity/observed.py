"""The same differences of compiled programs: base and case are both compiled, and the difference is reconciled too.

Each side is a report of its own: prediction P, observation O, signed explanations E. The row of a difference has
P1 - P0, O1 - O0 and, by reason, E1 - E0; its residual and its status follow by the arithmetic of any row. What explains
both sides alike cancels and is still named, so such a row is explained, not exact. Where a prediction is an interval,
that of the difference runs from the least to the largest, and if it holds zero the sign is unknown: unmeasured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from jaxcost.contracts.case import Case
from jaxcost.contracts.errors import Problem
from jaxcost.observation.kernels import require_kernel
from jaxcost.observation.observe import target_for
from jaxcost.observation.observed import Observed
from jaxcost.observation.pool import DEFAULT_MEMORY_BYTES, DEFAULT_TIMEOUT_SECONDS
from jaxcost.observation.targets import Target, require
from jaxcost.planning.compare import Planned, Spec, compile_planned
from jaxcost.planning.limits import fill_target
from jaxcost.planning.sensitivity.run import Sensitivity
from jaxcost.prediction.ledgers import Prediction
from jaxcost.reconciliation.report import not_executed, reconcile
from jaxcost.reconciliation.rows import Explanation, Interval, Report, Row

BY_SCOPE = "collective_bytes"
ABSENT_IS_NONE = (BY_SCOPE, "state.")  # rows that a report has only where there is something of the kind
DIED = ("timed_out", "memory_exceeded", "crashed", "raised", "not_started")


@dataclass(frozen=True)
class Side:
    """One compiled case: its report, and why there is no program where there is none."""

    name: str
    target: Target
    prediction: Prediction
    seen: Observed

    @property
    def failure(self) -> str:
        """The kind of failure, empty where a program was compiled or refused."""
        return str((self.seen.data.get("failure") or {}).get("kind", ""))

    @property
    def status(self) -> str:
        """`observed`, `refused`, `failed`, or `unmeasured` where the reference program does not execute the case."""
        return "unmeasured" if self.failure == "rejected" else self.seen.status

    @property
    def reason(self) -> str:
        """Why the status is not `observed`."""
        return " ".join(self.seen.reason.split())

    @cached_property
    def report(self) -> Report:
        """The reconciled report."""
        if self.failure == "rejected":
            problems = [Problem(**problem) for problem in self.seen.data["failure"]["problems"]]
            return not_executed(self.prediction, self.target.text, problems)
        return reconcile(self.prediction, self.seen)

    @property
    def rows(self) -> dict[str, Row]:
        """The rows of totals, and of collectives by kind and axis, by key."""
        return {row.key: row for row in self.report.rows if _counts(row)}


def _counts(row: Row) -> bool:
    return not row.verdict and (not row.scope or row.counter == BY_SCOPE)


@dataclass(frozen=True)
class Compared:
    """A case on a target beside the base on its own."""

    before: Side
    after: Side

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """One row per counter; none where a side has no program."""
        if "observed" not in (self.before.status, self.after.status):
            return ()
        if any(side.status not in ("observed", "refused") for side in (self.before, self.after)):
            return ()
        old, new = self.before.rows, self.after.rows
        return tuple(difference_row(old.get(key), new.get(key)) for key in dict.fromkeys((*old, *new)))

    @property
    def reason(self) -> str:
        """Why there are no rows; empty where there are."""
        return "; ".join(
            f"{side.name}: {side.reason}" for side in (self.before, self.after) if side.status != "observed"
        )

    @property
    def infeasible(self) -> bool:
        """Whether a difference is open, or a program was refused or died."""
        died = any(side.status == "refused" or side.failure in DIED for side in (self.before, self.after))
        return died or any(row.status == "open" for row in self.rows)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        old, new = self.before.rows, self.after.rows
        data: dict[str, Any] = {
            "name": self.after.name, "digest": self.after.prediction.case.digest, "target": self.after.target.text,
            "base_target": self.before.target.text, "status": self.after.status,
            "base_status": self.before.status,
            "rows": [{**row.to_dict(), "base": _side(old.get(row.key)), "case": _side(new.get(row.key))}
                     for row in self.rows],
        }  # fmt: skip
        return data | ({"reason": self.reason} if self.reason else {})


def _side(row: Row | None) -> dict[str, Any] | None:
    if row is None:
        return None
    data = row.to_dict()
    return {name: data[name] for name in ("prediction", "observation", "residual", "explanations", "status")}


def difference_row(before: Row | None, after: Row | None) -> Row:
    """Return the row of a difference; a collective or state object that a side does not have has no bytes there."""
    some = after or before
    assert some is not None
    if before is None or after is None:
        if not some.counter.startswith(ABSENT_IS_NONE):
            reason = f"the {'base' if before is None else 'case'} has no such row"
            return Row(some.counter, some.scope, some.phase, some.unit, None, None, reason=reason)
        none = Row(some.counter, some.scope, some.phase, some.unit, 0, 0)
        before, after = before or none, after or none
    prediction, reason = _predicted(before, after)
    old, new = before.observation, after.observation
    observation = None if old is None or new is None else new - old
    reason = reason or "; ".join(dict.fromkeys(row.reason for row in (before, after) if row.reason))
    return Row(
        some.counter,
        some.scope,
        some.phase,
        some.unit,
        prediction,
        observation,
        tuple(_combined(before.explanations, after.explanations)),
        reason,
        forced_open=before.forced_open or after.forced_open,
    )


def _predicted(before: Row, after: Row) -> tuple[int | Interval | None, str]:
    old, new = before.prediction, after.prediction
    if old is None or new is None:
        return None, ""
    if isinstance(old, int) and isinstance(new, int):
        return new - old, ""
    first, second = _interval(old), _interval(new)
    lower, upper = second.lower - first.upper, second.upper - first.lower
    if lower <= 0 <= upper:
        return None, f"the predicted intervals leave the sign of the difference open ({lower:,} to {upper:,})"
    if first.expected is None or second.expected is None:
        return Interval(lower, upper), ""
    return Interval(lower, upper, expected=second.expected - first.expected), ""


def _interval(value: int | Interval) -> Interval:
    return Interval(value, value, expected=value) if isinstance(value, int) else value


def _combined(before: Iterable[Explanation], after: Iterable[Explanation]) -> list[Explanation]:
    """Return E1 - E0 by reason, each with the evidence of both sides."""
    amounts: dict[str, int] = {}
    evidence: dict[str, list[str]] = {}
    for sign, label, side in ((1, "case", after), (-1, "base", before)):
        for item in side:
            amounts[item.reason] = amounts.get(item.reason, 0) + sign * item.amount
            evidence.setdefault(item.reason, []).append(f"{label} {item.amount:+,}: {item.evidence}")
    return [Explanation(amount, reason, "; ".join(evidence[reason])) for reason, amount in amounts.items()]


def fitting(targets: Sequence[str]) -> Callable[[Case], None]:
    """Return the check that a case fits every target: its devices, its kernel, the compiler."""

    def check(case: Case) -> None:
        for text in targets:
            target = _target(case, text)
            require(target)
            require_kernel(case, target)

    return check


def _target(case: Case, text: str) -> Target:
    return target_for(case, fill_target(text, case.execution.device_count))


def observe_differences(
    found: Sensitivity,
    targets: Sequence[str],
    *,
    workers: int = 2,
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
    progress: Callable[[str], None] = lambda message: None,
) -> tuple[Compared, ...]:
    """Compile base, cases and vectors for each target and reconcile every difference; by target, then in their order.

    A target without a shape (`h100`) takes the devices of each mesh, so that a case of another mesh has its own.

    Raises:
        RejectedError: a case and a target do not fit together.
        UnavailableError: a target's compiler is not installed.
    """
    check = fitting(targets)
    named = [("base", found.base), *((item.scenario.name, item.prediction) for item in found.results)]
    planned = []
    for text in targets:
        for name, prediction in named:
            check(prediction.case)
            planned.append(Planned(Spec(label=name), prediction.case, _target(prediction.case, text)))
    seen = compile_planned(planned, workers, timeout_seconds, memory_bytes, progress)
    return put_together(found, planned, seen)


def put_together(found: Sensitivity, planned: Sequence[Planned], seen: Sequence[Observed]) -> tuple[Compared, ...]:
    """Return the comparisons of compiles that are done: for each target the base, then the cases in their order."""
    predictions = [found.base, *(item.prediction for item in found.results)]
    size = len(predictions)
    compared: list[Compared] = []
    for start in range(0, len(planned), size):
        sides = [
            Side(item.spec.name, item.target, prediction, document)
            for item, prediction, document in zip(
                planned[start : start + size], predictions, seen[start : start + size], strict=True
            )
        ]
        compared += [Compared(sides[0], side) for side in sides[1:]]
    return tuple(compared)
