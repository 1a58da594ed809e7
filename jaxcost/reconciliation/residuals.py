"""Saved activations: the declared list against what JAX's differentiation keeps of a scanned layer.

Under a policy that saves by operation or by name both lists are the same arrays. Without recomputation JAX keeps what
its own derivative rules ask for: fp32 interiors of norms and softmax, factors of an activation, weights as they were
multiplied. Each such array is told by its place and form, listed, and added up by the rule that recognises it. An array
that no rule recognises, or a declared one that is not there, leaves the row open.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import Any

from jaxcost.observation.observed import Observed
from jaxcost.prediction.activations import saved
from jaxcost.prediction.ledgers import Prediction
from jaxcost.prediction.program import Program
from jaxcost.prediction.replay import saveable_name
from jaxcost.prediction.rows import Row as Declared
from jaxcost.reconciliation.rows import Explanation, Row

COUNTER, OFFLOADED = "saved_bytes", "offloaded_saved_bytes"
_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "int32": "int32", "uint8": "uint8", "bool": "bool"}
_NORMS = ("attn_norm", "mlp_norm", "attn_post_norm", "mlp_post_norm", "q_norm", "k_norm")
_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate", "up", "down")
# Components inside which JAX's derivative keeps arrays of its own beside the declared tensors.
_INTERIORS = {
    **dict.fromkeys(_NORMS, "norm"),
    **{name: name for name in ("activation", "softmax", "softcap", "rotary")},
}
UNCAST = "a product kept as it comes, in fp32, before it is scaled and cast"
OTHER_FORM = "kept in the form that its reader's derivative asks for, and not as declared"


def residual_rows(prediction: Prediction, seen: Observed) -> list[Row]:
    """Return the row of saved bytes in training, and of those that rest in host memory where the policy offloads.

    Nothing where the observation has no list of residuals.
    """
    section = seen.data["jaxpr"] or {}
    if prediction.case.workload.phase != "training" or "residuals" not in section:
        return []
    batch = int(prediction.program.microbatch_sizes.axis("b"))
    declared = [row for row in saved(prediction.program) if row.region == "block"]
    total = sum(int(row.value) for row in declared)
    reason = _not_comparable(prediction)
    if reason:
        return [Row(COUNTER, "", "forward", "bytes", total, None, reason=reason)]
    kept: Sequence[Mapping[str, Any]] = section["residuals"]
    missing, extra = _unmatched(prediction.program, declared, kept, batch)
    explanations = tuple(_explained(prediction.program, missing, extra))
    amount, found = sum(item.amount for item in explanations), sum(int(item["bytes"]) for item in kept)
    left = amount != found - total
    unknown = [_text(item) for item in extra if not _rule(prediction.program, item)]
    told = " ".join(item.evidence for item in explanations)
    absent = [row.object for row in missing if f"{row.object}:" not in told]
    reason = f"kept and recognised by no rule: {unknown}; declared and not found: {absent}" if left else ""
    rows = [Row(COUNTER, "", "forward", "bytes", total, found, explanations, reason)]
    if prediction.case.execution.remat == "save_and_offload_only_these_names":
        names = prediction.case.execution.remat_names
        away = sum(int(row.value) for row in declared if saveable_name(prediction.program, row.object) in names)
        rows.append(Row(OFFLOADED, "", "forward", "bytes", away, sum(int(i["bytes"]) for i in kept if i.get("host"))))
    return rows


def _not_comparable(prediction: Prediction) -> str:
    """Return why the two lists are not about the same arrays, or nothing."""
    case = prediction.case
    if case.execution.layers != "scan":
        return "layers are unrolled: what is kept of one is not told from what the next one reads"
    if case.execution.remat == "everything":
        return "the whole forward pass is one checkpoint: its layers are stacked up inside the replay"
    if case.execution.degree("context") > 1 or case.execution.degree("pipeline") > 1:
        return "inside a program per device, residuals are counted once for every device that holds a copy"
    if any(case.kv_replicas(index) > 1 for index in range(len(case.architecture.groups))):
        return "keys and values are kept once for every rank that holds them"
    return ""


def _unmatched(
    program: Program, declared: Iterable[Declared], kept: Iterable[Mapping[str, Any]], batch: int
) -> tuple[list[Declared], list[Mapping[str, Any]]]:
    """Return the declared rows and the residuals that have no partner of the same size and type in the same place."""
    extra, waiting = list(kept), []
    for row in declared:
        alike = [item for item in extra if _same(program, row, item, batch)]
        surest = [item for item in alike if item["name"] or item["scope"] == row.scope]
        if surest:
            extra.remove(max(surest, key=lambda item: item["name"] != ""))
        else:
            waiting.append(row)
    missing = []
    # What is left stands in a scope above, where heads are grouped: its columns tell whose it is, then its order.
    for row in reversed(waiting):
        columns = program.sizes.axis(row.fields["axes"].split()[-1], program.tensors[row.object].group)
        alike = [item for item in extra if _same(program, row, item, batch) and item["shape"][-1] == columns]
        match = next(iter(alike), None)
        if match is None:
            missing.append(row)
        else:
            extra.remove(match)
    return missing[::-1], extra


def _same(program: Program, row: Declared, item: Mapping[str, Any], batch: int) -> bool:
    within = row.scope == item["scope"] or row.scope.startswith(item["scope"] + "/")
    # A layer's input has no equation of its own. Weights have no batch axis, whatever their size.
    entry = row.object.rsplit("/", 1)[-1].split("#")[0] == "in"
    if not within or entry != (item["primitive"] == "input") or item["shape"][1] != batch:
        return False
    if item["name"] and item["name"] != saveable_name(program, row.object):
        return False
    # Inside an activation lie factors of its derivative; its result has its name.
    if _component(item["scope"]) == "activation" and _rule(program, item):
        return False
    return bool(row.value == item["bytes"] and _DTYPES.get(row.fields["dtype"]) == item["dtype"])


def _rule(program: Program, item: Mapping[str, Any]) -> str:
    """Return the kind of a residual that is recognised, or nothing: a policy keeps what it says, and no interiors."""
    component = _component(item["scope"])
    if program.case.execution.remat not in ("none", "everything_saveable") or item["name"]:
        return ""
    if component == "attn" and item["primitive"] == "reshape":
        return "reshape"
    if component in _INTERIORS:
        return _INTERIORS[component]
    if component in _PROJECTIONS and item["primitive"] in ("convert_element_type", "sharding_constraint"):
        weight = program.tensors.get(f"{item['scope']}/weight")
        if weight is not None and program.elements(weight) * item["layers"] == prod(item["shape"]):
            return "weight"
    return ""


def _explained(
    program: Program, missing: Iterable[Declared], extra: Sequence[Mapping[str, Any]]
) -> Iterator[Explanation]:
    for kind, reason in (
        ("norm", "the interior of a norm, in fp32"),
        ("activation", "factors of an activation's derivative"),
        ("softmax", "the interior of a softmax"),
        ("softcap", "the factor of a soft cap's derivative"),
        ("rotary", "factors of a rotation"),
        ("weight", "weights as they are multiplied, in the compute type"),
        ("reshape", "heads joined for the output projection, beside the same values with heads apart"),
    ):
        items = [item for item in extra if _rule(program, item) == kind]
        if items:
            yield Explanation(sum(int(item["bytes"]) for item in items), reason, ", ".join(map(_text, items)))
    for row in missing:
        readers = {op.scope for op in program.ops if row.object in op.needs and _component(op.scope) in _INTERIORS}
        forms = [item for item in extra if item["scope"] in readers and prod(item["shape"]) == _elements(row)]
        if forms:
            yield Explanation(-int(row.value), OTHER_FORM, f"{row.object}: {_text(forms[0])}")
            continue
        for item in extra:
            product = item["scope"] == row.scope and item["dtype"] == "float32" and not _rule(program, item)
            if product and row.fields["dtype"] != "fp32" and prod(item["shape"]) == _elements(row):
                yield Explanation(int(item["bytes"]) - int(row.value), UNCAST, f"{row.object}: {_text(item)}")
                break


def _component(scope: str) -> str:
    return scope.rsplit("/", 1)[-1]


def _elements(row: Declared) -> int:
    return int(row.value) // {"bf16": 2, "fp16": 2, "fp32": 4}.get(row.fields["dtype"], 1)


def _text(item: Mapping[str, Any]) -> str:
    shape = ",".join(str(size) for size in item["shape"])
    return f"{item['dtype']}[{shape}] of {item['primitive']} in {item['scope']}"
