"""Reconciling a supplied bundle: schema first, then counters, each residual against its signed explanations.

Names, axes, types, kinds, trainability and storage identity are compared before any total: the same number of scalars
in another shape stays open, and equal values are not a tie. A counter is compared with the ledger total of the same
name; one without a prediction, or a prediction without a counter, is unmeasured.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from jaxcost.contracts.errors import UnavailableError
from jaxcost.contracts.observation import Counter, Observation, ObservedTensor
from jaxcost.contracts.record import as_table, parse_file
from jaxcost.prediction.ledgers import Prediction
from jaxcost.reconciliation.declared import expected_rows
from jaxcost.reconciliation.layouts import ExpectedTensor, expected_tensors
from jaxcost.reconciliation.rows import Explanation, Finding, Report, Row


def load_bundle(path: Path) -> Observation:
    """Read an observation bundle from a .toml or .json file.

    Raises:
        UnavailableError: the file does not exist.
        RejectedError: it is malformed, or claims an evidence class whose proof it does not carry.
    """
    if not path.exists():
        raise UnavailableError(str(path), "the observation bundle does not exist", "check the path of --observation")
    return Observation.from_data(as_table(parse_file(path), path.name), path.name)


def reconcile_supplied(prediction: Prediction, observation: Observation) -> Report:
    """Compare a prediction with a supplied bundle; neither is changed."""
    rows: list[Row] = []
    findings: list[Finding] = []
    if observation.tensors is not None:
        expected = expected_tensors(prediction.program, observation.layout)
        schema, found = _schema_rows(expected, observation.tensors)
        rows += schema
        findings += found
    rows += [_counter_row(prediction, counter) for counter in observation.counters]
    if observation.evidence_class == "unmeasured":
        reason = "the bundle declares itself unmeasured"
        rows = [replace(row, observation=None, forced_open=False, reason=reason) for row in rows]
    if not rows:
        rows.append(
            Row("bundle", "", "", "entries", None, None, reason="the bundle holds neither tensors nor counters")
        )
    environment = {
        "family": "supplied",
        "evidence_class": observation.evidence_class,
        "producer": observation.producer,
        "visibility": {counter.counter: counter.visibility for counter in observation.counters},
    }
    rows += expected_rows(prediction)
    return Report(
        {**prediction.case.to_data(), "digest": prediction.case.digest},
        observation.target or "supplied",
        environment,
        tuple(rows),
        tuple(findings),
    )


def _schema_rows(expected: Sequence[ExpectedTensor], seen: Sequence[ObservedTensor]) -> tuple[list[Row], list[Finding]]:
    observed = {tensor.name: tensor for tensor in seen}
    rows, findings = [], []
    for tensor in expected:
        found = observed.get(tensor.name)
        differences = ["the name is missing"] if found is None else list(_differences(tensor, found))
        count = 0 if found is None else _scalars(found)
        rows.append(_tensor_row(tensor.name, tensor.scalars, count, differences))
    known = {tensor.name for tensor in expected}
    for name, found in observed.items():
        if name not in known and found.kind == "parameter":
            rows.append(_tensor_row(name, 0, _scalars(found), ["no declared parameter has this name"]))
        elif name not in known:
            findings.append(Finding("buffer", f"{name} is a buffer of {_scalars(found)} scalars; it is no parameter"))
    parameters = [tensor for tensor in seen if tensor.kind == "parameter"]
    storages = {tensor.alias: _scalars(tensor) for tensor in parameters}
    rows.append(
        Row("parameters.named", "", "", "scalars", sum(t.scalars for t in expected), sum(map(_scalars, parameters)))
    )
    unique = {tensor.alias: tensor.scalars for tensor in expected}
    rows.append(Row("parameters.unique", "", "", "scalars", sum(unique.values()), sum(storages.values())))
    ties = list(_tie_differences(expected, parameters))
    rows.append(
        Row(
            "parameters.ties",
            "",
            "",
            "storages",
            len(unique),
            len(storages),
            reason="; ".join(ties),
            forced_open=bool(ties),
        )
    )
    return rows, findings


def _tensor_row(name: str, predicted: int, seen: int, differences: Sequence[str]) -> Row:
    return Row(
        "tensor", name, "", "scalars", predicted, seen, reason="; ".join(differences), forced_open=bool(differences)
    )


def _differences(tensor: ExpectedTensor, found: ObservedTensor) -> Iterable[str]:
    if found.shape != tensor.shape:
        yield f"stored axes {list(found.shape)}, declared {list(tensor.shape)}"
    if found.dtype != tensor.dtype:
        yield f"type {found.dtype}, declared {tensor.dtype}"
    if found.kind != "parameter":
        yield f"kind {found.kind}, declared parameter"
    if found.trainable != tensor.trainable:
        yield f"trainable {str(found.trainable).lower()}, declared {str(tensor.trainable).lower()}"


def _tie_differences(expected: Sequence[ExpectedTensor], seen: Sequence[ObservedTensor]) -> Iterable[str]:
    declared, stored = _groups((t.alias, t.name) for t in expected), _groups((t.alias, t.name) for t in seen)
    for group in sorted(map(sorted, declared - stored)):
        yield f"declared to share one storage, stored apart: {', '.join(group)}"
    for group in sorted(map(sorted, stored - declared)):
        yield f"stored as one, not declared so: {', '.join(group)}"


def _groups(pairs: Iterable[tuple[str, str]]) -> set[frozenset[str]]:
    groups: dict[str, set[str]] = {}
    for alias, name in pairs:
        groups.setdefault(alias, set()).add(name)
    return {frozenset(names) for names in groups.values() if len(names) > 1}


def _scalars(tensor: ObservedTensor) -> int:
    count = 1
    for extent in tensor.shape:
        count *= extent
    return count


def _counter_row(prediction: Prediction, counter: Counter) -> Row:
    predicted, unit, reason = _predicted(prediction, counter)
    differs = "" if predicted is None else _unit_difference(unit, counter)
    if differs:
        return Row(
            counter.counter,
            counter.scope,
            counter.phase,
            counter.unit,
            predicted,
            counter.value,
            reason=differs,
            forced_open=True,
        )
    explanations = tuple(Explanation(item.amount, item.reason, item.evidence) for item in counter.explanations)
    reason = reason or f"as far as was seen: {counter.visibility}"
    return Row(
        counter.counter, counter.scope, counter.phase, counter.unit, predicted, counter.value, explanations, reason
    )


def _unit_difference(unit: str, counter: Counter) -> str:
    """Say that equal numbers of unequal units are compared; empty where the ledger names no unit, or the same."""
    return f"the counter is in {counter.unit}, the ledger in {unit}" if unit and unit != counter.unit else ""


def _predicted(prediction: Prediction, counter: Counter) -> tuple[int | None, str, str]:
    """Return the predicted value of a counter, its unit where rows say it, and why there is none."""
    name, _, total = counter.counter.partition(".")
    ledger = prediction.ledgers.get(name)
    if ledger is None or total not in ledger.totals:
        return None, "", f"no ledger total is called {counter.counter}"
    units = {row.unit for row in ledger.rows}
    unit = units.pop() if len(units) == 1 else ""
    if not counter.scope and not counter.phase:
        value: Any = ledger.totals[total]
        if not isinstance(value, int):
            return None, unit, ledger.reasons.get(total, "the ledger total is unknown")
        return value, unit, ""
    rows = [
        row
        for row in ledger.rows
        if (not counter.phase or row.phase == counter.phase)
        and (not counter.scope or row.scope == counter.scope or row.scope.startswith(counter.scope + "/"))
    ]
    if not rows:
        return None, unit, f"the ledger {name} has no row in scope {counter.scope!r} and phase {counter.phase!r}"
    return sum(row.value for row in rows), unit, ""
