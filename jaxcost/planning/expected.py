"""The one place where a plan asks the prediction for a live peak."""

from __future__ import annotations

from typing import Any

from jaxcost.prediction.ledgers import Prediction
from jaxcost.prediction.peak import Unpredicted, predict_peak


def predicted_peak(prediction: Prediction, family: str) -> dict[str, Any]:
    """Return the predicted live peak of one device: lower, expected, upper, by_class, at, policy, assumptions, and
    `held`, the bytes by (scope, class).

    Outside of every policy `expected` and `upper` are None with a `reason`, and `lower` holds what is alive throughout:
    the step's arguments.
    """
    found = predict_peak(prediction.program, family)
    if isinstance(found, Unpredicted):
        arguments = prediction.value("device.argument_bytes")
        return {"lower": arguments, "expected": None, "upper": None, "reason": found.reason}
    held: dict[tuple[str, str], int] = {}
    for item in found.peak.held:
        held[(item.scope, item.kind)] = held.get((item.scope, item.kind), 0) + item.bytes.expected
    answer: dict[str, Any] = {
        "lower": found.lower, "expected": found.expected, "upper": found.upper, "by_class": dict(found.by_class),
        "at": found.at, "policy": found.policy, "assumptions": list(found.assumptions), "held": held,
    }  # fmt: skip
    if found.is_open:
        answer["reason"] = "the interval is too wide to bound anything"
    return answer
