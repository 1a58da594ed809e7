"""What the ledgers of a model say about a stage: work of a token, state, memory of a device, transfers of a step.

Nothing here divides by the number of devices: who holds what follows from the mesh, in the ledgers. A stage without a
context, a microbatch or a mesh has no case, and its facts are unknown with that reason.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from jaxcost.contracts.architecture import Architecture
from jaxcost.contracts.case import Case, training
from jaxcost.contracts.dtypes import BITS, payload_bytes
from jaxcost.contracts.errors import Problem, RejectedError
from jaxcost.contracts.state import LIFECYCLE, StatePolicy, state_policy
from jaxcost.planning.expected import expected_sends, predicted_peak
from jaxcost.planning.hardware import Device
from jaxcost.planning.limits import fill_target
from jaxcost.planning.run.batch import replicas
from jaxcost.planning.run.inputs import RunInputs, Stage
from jaxcost.planning.run.sheet import Unknown
from jaxcost.planning.run.work import TokenWork, token_work
from jaxcost.prediction.ledgers import Prediction, predict
from jaxcost.prediction.state import CHECKPOINTED

GRAPH_OPTIONS = ("attention", "attention_block", "dropout", "pairs", "remat", "remat_names", "frozen", "layers")
NO_MODEL = "only a MODEL with a mesh says what a device holds: activations, gathers and buffers follow from its shapes"


KEPT_CASES = 32


@dataclass(frozen=True)
class StageFacts:
    """One stage as the ledgers see it; every part is None or `Unknown` where it cannot be had."""

    prediction: Prediction | None
    token_work: TokenWork | Unknown
    persistent: Any
    components: tuple[tuple[str, int, str], ...]
    peak: dict[str, Any]
    transfers: Any
    sends: dict[str, Any]


_SEEN: dict[tuple[str, str, str], StageFacts] = {}


def state_facts(inputs: RunInputs) -> dict[str, Any]:
    """Return bytes a parameter by the state policy, from its objects: all, those of a checkpoint, and the weights.

    Raises:
        RejectedError: the options name no policy.
    """
    policy = policy_of(inputs)
    live = [item for item in policy.objects if item.live_at("in_first_step") and item.placement == "device"]
    kept = [item for item in policy.objects if item.live_at(LIFECYCLE[-1]) and item.role in CHECKPOINTED]
    dense = all(item.count in ("dense", "scalar") for item in policy.objects)
    scalar = sum(BITS[item.dtype] // 8 * item.copies for item in live if item.count == "scalar")
    return {
        "state_bytes_per_parameter": _per_parameter(live) if dense else None,
        "resume_bytes_per_parameter": _per_parameter(kept) if dense else None,
        "scalar_bytes": scalar,
        "weight_bytes": Fraction(BITS[policy.compute_dtype], 8),
    }


def policy_of(inputs: RunInputs) -> StatePolicy:
    """Return the state policy of the run's case options."""
    options = inputs.case or {}
    return state_policy(options.get("precision", "mixed"), options.get("optimizer", "adam"))


def state_components(inputs: RunInputs, parameters: int) -> list[tuple[str, int]]:
    """Return the bytes of each object of the state policy over a whole model; those that shapes decide are left out."""
    live = [item for item in policy_of(inputs).objects if item.live_at("in_first_step") and item.placement == "device"]
    counts = {"dense": parameters, "scalar": 1}
    sized = [(item, counts[item.count]) for item in live if item.count in counts]
    return [(item.name, payload_bytes(count, item.dtype) * item.copies) for item, count in sized]


def _per_parameter(objects: Any) -> Fraction:
    return sum((Fraction(BITS[item.dtype], 8) * item.copies for item in objects if item.count == "dense"), Fraction(0))


def stage_facts(
    inputs: RunInputs, stage: Stage, architecture: Architecture | None, device: Device | None
) -> StageFacts:
    """Return the facts of a stage.

    Raises:
        RejectedError: the mesh, the batch or an option does not fit the model.
    """
    if architecture is None:
        unknown = Unknown(NO_MODEL)
        return StageFacts(None, Unknown("6 x active is all that is known without a MODEL"), unknown, (), {
            "lower": None, "expected": None, "upper": None, "reason": NO_MODEL}, unknown, {})  # fmt: skip
    seq = inputs.exact("seq", stage)
    options = inputs.staged("case", stage)
    graph = tuple((name, _frozen(options[name])) for name in GRAPH_OPTIONS if name in options)
    work: TokenWork | Unknown = Unknown("not given: seq")
    if seq is not None:
        work = token_work(architecture, int(seq), graph)
    case, reason = _case(inputs, stage, architecture, options)
    if case is None:
        unknown = Unknown(reason)
        empty = {"lower": None, "expected": None, "upper": None, "reason": reason}
        return StageFacts(None, work, unknown, (), empty, unknown, {})
    return replace(_of_case(case, device), token_work=work)


def _of_case(case: Case, device: Device | None) -> StageFacts:
    """Return the facts of a case on a device, from memory where the same was asked before: plans are varied a lot."""
    key = (case.digest, case.architecture.name, device.name if device is not None else "")
    if key not in _SEEN:
        found = predict(case)
        components = tuple((role, size, "ownership ledger") for role, size in found.value("ownership.by_role").items())
        peak, sends = _on_device(found, device)
        while len(_SEEN) >= KEPT_CASES:
            _SEEN.pop(next(iter(_SEEN)))
        held = found.value("ownership.persistent_bytes")
        _SEEN[key] = StageFacts(found, Unknown(""), held, components, peak, _transfers(found), sends)
    return _SEEN[key]


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _case(
    inputs: RunInputs, stage: Stage, architecture: Architecture, options: dict[str, Any]
) -> tuple[Case | None, str]:
    """Return the case of one step of a stage, or why there is none."""
    mesh = inputs.staged("mesh", stage)
    seq, micro, accumulate = (inputs.exact(name, stage) for name in ("seq", "micro_batch", "accumulate"))
    if seq is None or micro is None or accumulate is None or mesh is None:
        given = {"seq": seq, "micro_batch": micro, "accumulate": accumulate, "mesh": mesh}
        return None, f"not given: {', '.join(name for name, value in given.items() if value is None)}"
    batch = int(micro * accumulate * (replicas(mesh, None) or 1))
    try:
        return training(
            architecture, batch=batch, seq=int(seq), accumulate=int(accumulate), mesh=mesh,
            **options,
        ), ""  # fmt: skip
    except RejectedError as error:
        where = f"stage {stage.name}" if inputs.stages else "the run"
        raise RejectedError(Problem(f"{where}: {p.path}", p.value, p.rule, p.remedy) for p in error.problems) from None


def _on_device(found: Prediction, device: Device | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the predicted peak and the sends inside and between nodes, as far as the device is a target."""
    held = found.value("ownership.persistent_bytes")
    unknown = {"lower": held, "expected": None, "upper": None}
    if device is None or device.target is None:
        name = "no device is named" if device is None else f"{device.name} is no target of a compiler here"
        return {**unknown, "reason": name}, {}
    from jaxcost.observation.observe import target_for

    try:
        target = target_for(found.case, fill_target(device.target, found.case.execution.device_count))
    except RejectedError as error:
        return {**unknown, "reason": error.problems[0].rule}, {}
    return predicted_peak(found, target.family), expected_sends(found, target)


def _transfers(found: Prediction) -> Any:
    """Return what one device takes part in, in one step: executions, payload, ring sends, the largest array."""
    ledger = found.ledgers["collectives"]
    if ledger.totals["payload_bytes"] is None:
        return Unknown(ledger.reasons["payload_bytes"])
    rows = ledger.rows
    return {
        "executions": sum(row.fields["times"] for row in rows),
        "payload_bytes": ledger.totals["payload_bytes"],
        "ring_send_bytes": ledger.totals["ring_send_bytes"],
        "largest_bytes": max((row.fields["payload_bytes"] for row in rows), default=0),
        "rows": [
            {
                "object": row.object, "scope": row.scope, "phase": row.phase, "kind": row.fields["kind"],
                "axis": row.fields["axis"], "participants": row.fields["participants"],
                "payload_bytes": row.fields["payload_bytes"], "times": row.fields["times"],
                "step_bytes": row.value,
            }
            for row in rows
        ],
    }  # fmt: skip
