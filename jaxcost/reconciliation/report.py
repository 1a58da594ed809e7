"""`reconcile`: a prediction and an observation of the same case, matched into a report."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from jaxcost.contracts.errors import Problem, reject
from jaxcost.observation.observed import Observed
from jaxcost.prediction.ledgers import Prediction
from jaxcost.reconciliation.collectives import Transfers
from jaxcost.reconciliation.compiler import compiler_rows
from jaxcost.reconciliation.declared import expected_rows
from jaxcost.reconciliation.matmuls import Matmuls
from jaxcost.reconciliation.peak import peak_rows
from jaxcost.reconciliation.residuals import residual_rows
from jaxcost.reconciliation.rows import Finding, Report, Row
from jaxcost.reconciliation.storage import device_rows, memory_findings, memory_rows, parameter_rows, state_rows
from jaxcost.reconciliation.traffic import traffic_rows

NOT_SAID = "read from a record, which keeps no times of the machine that made it"


def reconcile(prediction: Prediction, seen: Observed | None = None) -> Report:
    """Compare a prediction with what was seen of the same case; with nothing seen, every row is unmeasured.

    Raises:
        RejectedError: the observation is of another case.
    """
    case = {**prediction.case.to_data(), "digest": prediction.case.digest}
    if seen is None:
        reason = "no observation was supplied"
        rows = [*unmeasured_rows(prediction, reason), *expected_rows(prediction)]
        return Report(case, "none", {"family": "none", "evidence_class": "unmeasured"}, tuple(rows))
    if seen.case_digest != prediction.case.digest:
        rule = (
            f"the observation is of the case {seen.case_digest[:12]}, the prediction of {prediction.case.digest[:12]}"
        )
        raise reject("observation.case_digest", seen.case_digest, rule, "observe the case that was predicted")
    known = {name: value for name, value in seen.data["environment"].items() if name != "optimisation_level" or value}
    environment = {
        **known,
        **({"reason": NOT_SAID} if None in known.values() else {}),
        "family": seen.data["target"].get("family", "unknown"),
        "evidence_class": seen.data["evidence_class"],
        "origin": seen.data["origin"],
    }
    if seen.status == "failed" or seen.data["hlo"] is None:
        rows = [*unmeasured_rows(prediction, seen.reason), *expected_rows(prediction)]
        finding = Finding(seen.status, seen.reason)
        # A compile that crashed, ran out of time or was refused without a module is no missing target: it stays open.
        rows.append(Row("observation", "", "", "modules", 1, 0, reason=seen.reason, forced_open=True))
        return Report(case, seen.target, environment, tuple(rows), (finding,))
    matmuls, transfers = Matmuls(prediction, seen), Transfers(prediction, seen)
    rows = [
        *matmuls.rows(),
        *parameter_rows(prediction, seen),
        *state_rows(prediction, seen),
        *memory_rows(prediction, seen),
        *peak_rows(prediction, seen),
        *device_rows(seen),
        *residual_rows(prediction, seen),
        *traffic_rows(prediction, seen),
        *transfers.rows(),
        *expected_rows(prediction),
        *compiler_rows(prediction, seen),
    ]
    return Report(
        case,
        seen.target,
        environment,
        tuple(rows),
        (*matmuls.findings(), *memory_findings(seen), *transfers.findings()),
    )


def not_executed(prediction: Prediction, target: str, problems: Iterable[Problem]) -> Report:
    """Return the report of a sound case that the reference network does not execute: predicted, and unmeasured."""
    case = {**prediction.case.to_data(), "digest": prediction.case.digest}
    reasons = tuple(f"{problem.path}: {problem.rule}" for problem in problems)
    reason = "the reference network does not execute it: " + "; ".join(reasons)
    owned = prediction.ledgers["ownership"].totals
    rows = [
        *unmeasured_rows(prediction, reason),
        *(
            Row(f"ownership.{name}", "", "", "bytes", owned[name], None, reason=reason)
            for name in ("persistent_bytes", "cluster_bytes")
        ),
        *expected_rows(prediction),
    ]
    environment = {"family": "none", "evidence_class": "unmeasured"}
    return Report(case, target, environment, tuple(rows), (Finding("not_executed", reason, reasons),))


def unmeasured_rows(prediction: Prediction, reason: str) -> list[Row]:
    """Return one row per known ledger total, with nothing to compare it with."""
    wanted = {
        "parameters": ("unique", "named", "bytes"),
        "flops": ("forward", "backward", "recompute"),
        "kv_cache": ("bytes",),
        "traffic": ("attention_bytes",),
        "activations": ("peak_bytes",),
        "device": ("argument_bytes",),
    }
    units = {"parameters": "scalars", "flops": "FLOPs"}
    rows = []
    for ledger, totals in wanted.items():
        found: dict[str, Any] = prediction.ledgers[ledger].totals
        for name in totals:
            value = found.get(name)
            unit = "bytes" if name == "bytes" else units.get(ledger, "bytes")
            why = reason if isinstance(value, int) else f"not supplied; {reason}"
            rows.append(
                Row(f"{ledger}.{name}", "", "", unit, value if isinstance(value, int) else None, None, reason=why)
            )
    return rows
