"""The one place where a plan asks the prediction for a live peak, whether that fits, and when XLA would recompute.

`expected_fit` answers for a target without compiling anything: `jaxcost estimate ... --target h100`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jaxcost.observation.observe import target_for
from jaxcost.observation.targets import Target
from jaxcost.planning.limits import FRACTIONS, NO_LIMIT, fill_target, interval_within, limit_bytes
from jaxcost.prediction.collectives import collectives
from jaxcost.prediction.ledgers import Prediction
from jaxcost.prediction.peak import Unpredicted, predict_peak
from jaxcost.prediction.rematerialisation import onset
from jaxcost.reconciliation.storage import donated_bytes


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


def predicted_onset(prediction: Prediction, target: Target, peak: Mapping[str, Any]) -> dict[str, Any]:
    """Return whether XLA, left to itself, would recompute: `starts` and the `reason`.

    `starts` is None where that is not known: the interval holds the limit, the family has no known rule, the target
    states no memory, or the peak has no policy.
    """
    memory = target.device_memory_bytes
    if memory is None:
        return {"starts": None, "reason": NO_LIMIT}
    if peak["upper"] is None:
        return {"starts": None, "reason": f"the peak is not known: {peak['reason']}"}
    totals = prediction.ledgers["device"].totals
    found = onset(
        target.family, memory, arguments=totals["argument_bytes"], results=totals["output_bytes"],
        aliased=donated_bytes(prediction), lower=peak["lower"], upper=peak["upper"],
    )  # fmt: skip
    if found is None:
        return {"starts": None, "reason": f"no rule is known by which compilers for {target.family} begin to recompute"}
    return {"starts": found.starts, "reason": found.reason}


def predicted_reasons(peak: Mapping[str, Any], target: Target) -> dict[str, str]:
    """Return why parts of a predicted peak, of its limits or of whether it fits are not known, under `*_reason`."""
    found: dict[str, str] = {}
    if target.device_memory_bytes is None:
        found = dict.fromkeys(("device_memory_bytes_reason", "limits_reason", "fits_reason"), NO_LIMIT)
    elif "reason" in peak:
        found["fits_reason"] = peak["reason"]
    else:
        found["fits_reason"] = "the limit lies inside the interval of the peak"
    if peak.get("policy") is None:
        found |= dict.fromkeys(("by_class_reason", "at_reason", "policy_reason"), peak["reason"])
    return found


def stated(data: Mapping[str, Any], reasons: Mapping[str, str]) -> dict[str, Any]:
    """Return a document with the reasons of those of its parts that are null, or hold a null."""

    def unknown(name: str) -> bool:
        value = data.get(name, "")
        return value is None or (isinstance(value, Mapping) and None in value.values())

    return {**data, **{name: text for name, text in reasons.items() if text and unknown(name.removesuffix("_reason"))}}


def expected_fit(prediction: Prediction, text: str, fractions: Sequence[str] = FRACTIONS) -> dict[str, Any]:
    """Return the predicted peak on a target and whether it fits fractions of the device.

    Args:
        text: a target; without a shape it takes the devices of the mesh.

    Raises:
        RejectedError: the text is no target, or its number of devices is not the mesh's.
    """
    target = target_for(prediction.case, fill_target(text, prediction.case.execution.device_count))
    peak = predicted_peak(prediction, target.family)
    limits = {fraction: limit_bytes(target, fraction) for fraction in fractions}
    found = {
        "target": target.text,
        "device_memory_bytes": target.device_memory_bytes,
        "limits": limits,
        "peak_bytes": {name: peak[name] for name in ("lower", "expected", "upper", "reason") if name in peak},
        "by_class": peak.get("by_class"),
        "at": peak.get("at"),
        "policy": peak.get("policy"),
        "fits": {fraction: interval_within(peak, limit) for fraction, limit in limits.items()},
        "rematerialises": predicted_onset(prediction, target, peak),
        "sends": expected_sends(prediction, target),
    }
    return stated(found, predicted_reasons(peak, target))


def expected_sends(prediction: Prediction, target: Target) -> dict[str, Any]:
    """Return what one device sends in a step inside its node (or slice) and between them, level by level.

    Both are None with a `reason` where collectives are not predicted, or where a group lies unevenly on the nodes.
    """
    islands = max(target.node_count, target.slice_count)
    each = target.device_count // islands
    found = {"devices_per_node": each, "inside_bytes": None, "between_bytes": None}
    ledger = collectives(prediction.program, each)
    if ledger.totals["payload_bytes"] is None:
        return found | {"reason": ledger.reasons["payload_bytes"]}
    uneven = [row.object for row in ledger.rows if row.fields["inside_send_bytes"] is None]
    if uneven:
        return found | {"reason": f"the groups of {uneven[0]} lie unevenly on nodes of {each} devices"}
    for name in ("inside", "between"):
        found[f"{name}_bytes"] = sum(row.fields[f"{name}_send_bytes"] * row.fields["times"] for row in ledger.rows)
    return found
