"""Reconciling a checkpoint: the declared arrays against what its headers say, name by name and in total.

An array is exact where name, axes and type agree. The same number of scalars in another shape stays open. A tie is one
storage: equal values are no tie, and are not read. Three rules explain a difference, each from evidence in the headers:
codes packed by a quantisation that left its scales beside them, a tied table stored under both of its names, and a
whole checkpoint in another type than the case's where no type was asked for. Known buffers are no parameters.

Bytes have three answers: resident (parameters in the case's type), optimizer, and checkpoint (what is stored).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jaxcost.contracts.dtypes import payload_bytes
from jaxcost.observation.checkpoint.stored import Checkpoint, StoredTensor
from jaxcost.prediction.ledgers import Prediction
from jaxcost.reconciliation.checkpoint_names import (
    COMPANIONS,
    Choice,
    Held,
    beside,
    buffer_of,
    buffer_shape,
    choose_layout,
    held_tensors,
)
from jaxcost.reconciliation.checkpoint_state import expected_state, positional, state_rows
from jaxcost.reconciliation.layouts import ExpectedTensor
from jaxcost.reconciliation.rows import Explanation, Finding, Report, Row, Status

_EIGHT_BIT = {"int8": (".SCB",), "fp8_e4m3": ("_scale", "_scale_inv"), "fp8_e5m2": ("_scale", "_scale_inv")}


@dataclass(frozen=True)
class CheckpointReport:
    """A report about one checkpoint, with its layout and the numbers that are answers of their own."""

    report: Report
    checkpoint: Checkpoint
    layout: Choice
    totals: Mapping[str, int | None]
    answers: Mapping[str, Any]

    @property
    def status(self) -> Status:
        """The worst status of the rows that count."""
        return self.report.status

    def to_dict(self) -> dict[str, Any]:
        """Return the body of a `jaxcost.reconcile.v1` document."""
        return {
            "checkpoint": {
                **self.checkpoint.to_dict(),
                "layout": self.layout.name,
                "layout_exact": self.layout.exact,
                "layout_basis": self.layout.basis,
            },
            "answers": dict(self.answers),
            "totals": dict(self.totals),
            "reports": [self.report.to_dict()],
            "status": self.status,
        }


@dataclass
class _Tally:
    """Explanations of the totals, collected while the arrays are compared."""

    scalars: list[Explanation] = field(default_factory=list)
    unique: list[Explanation] = field(default_factory=list)
    bytes: list[Explanation] = field(default_factory=list)
    ties: list[Explanation] = field(default_factory=list)
    logical: int = 0
    unknown: list[str] = field(default_factory=list)

    def add(self, kinds: str, amounts: Sequence[int], reason: str, evidence: str) -> None:
        """Add one explanation to each total of `kinds`."""
        for kind, amount in zip(kinds.split(), amounts, strict=True):
            getattr(self, kind).append(Explanation(amount, reason, evidence))


def reconcile_checkpoint(
    prediction: Prediction,
    seen: Checkpoint,
    layout: str | None = None,
    *,
    typed: bool = False,
    training: Prediction | None = None,
) -> CheckpointReport:
    """Compare the declared arrays of a case with a checkpoint.

    Args:
        prediction: of the case; its parameter type is the declared one.
        seen: the checkpoint's headers.
        layout: a layout by name, None to take the one whose names agree exactly.
        typed: whether the case's type was asked for, so that a checkpoint of another type is open, not explained.
        training: a prediction of a training case, for the optimizer's bytes where `prediction` is of inference.

    Raises:
        RejectedError: the layout is not known.
    """
    program = prediction.program
    if seen.named:
        held = held_tensors(seen)
        parameters = {item.path: item.tensor for item in held if item.role == "parameter"}
        choice = choose_layout(program, list(parameters), layout)
    else:
        choice, held = positional(program, seen, layout)
        parameters = {item.path: item.tensor for item in held if item.role == "parameter"}
    others = [item for item in held if item.role != "parameter"]
    tally = _Tally()
    moments = {item.path for item in others if item.role in ("first_moment", "second_moment")}
    rows, findings = _parameter_rows(prediction, choice, parameters, moments, typed, seen, tally)
    state = state_rows(program, choice.expected, others) if others else []
    rows += state
    totals = _totals(choice.expected, parameters, tally)
    rows += _total_rows(prediction, choice, parameters, seen, others, tally)
    rows += _claim_rows(seen)
    if not choice.exact:
        rows.insert(0, Row("layout", choice.name, "", "names", len(_owned(choice.expected)),
                           len({t.name for t in choice.expected} & parameters.keys()), reason=choice.basis,
                           forced_open=True))  # fmt: skip
    findings.insert(0, Finding("layout", f"names read as {choice.name}: {choice.basis}"))
    findings += [Finding("assumption", note) for note in seen.notes]
    environment = {"family": "checkpoint", "origin": "headers", "layout": choice.name}
    case = {**prediction.case.to_data(), "digest": prediction.case.digest}
    report = Report(case, seen.format, environment, tuple(rows), tuple(findings), prediction.case.architecture.name)
    return CheckpointReport(report, seen, choice, totals, _answers(prediction, training, seen, others))


def _owned(expected: Sequence[ExpectedTensor]) -> list[ExpectedTensor]:
    return [tensor for tensor in expected if tensor.alias == tensor.name]


def _parameter_rows(
    prediction: Prediction,
    choice: Choice,
    stored: Mapping[str, StoredTensor],
    moments: set[str],
    typed: bool,
    seen: Checkpoint,
    tally: _Tally,
) -> tuple[list[Row], list[Finding]]:
    expected = {tensor.name: tensor for tensor in choice.expected}
    companions: dict[str, list[StoredTensor]] = {}
    for name, tensor in stored.items():
        weight = "" if name in expected else beside(name, expected)
        if weight:
            companions.setdefault(weight, []).append(tensor)
    packings = {
        name: _packing(wanted, stored[name], companions.get(name, ()), seen)
        for name, wanted in expected.items()
        if name in stored
    }
    usual = _usual_type(expected, stored, packings)
    rows: list[Row] = []
    findings: list[Finding] = []
    for name, wanted in expected.items():
        found = stored.get(name)
        if wanted.alias != name and (found is None or wanted.alias not in expected):
            continue  # a tied name that is not stored: the tie is its storage
        row, logical = _tensor_row(wanted, found, packings.get(name), usual, typed, moments, tally)
        tally.logical += logical
        if found is not None and wanted.alias != name and wanted.alias in stored:
            row, finding = _stored_twice(wanted, found, row, tally)
            findings.append(finding)
        rows.append(row)
    _casts(expected, stored, packings, usual, typed, tally)
    for name, tensor in stored.items():
        if name in expected:
            continue
        weight = beside(name, expected)
        if weight and packings.get(weight):
            what = next(text for suffix, text in COMPANIONS.items() if name.endswith(suffix))
            tally.add("scalars bytes", (tensor.scalars, tensor.bytes), what, f"{name} beside {weight}")
            rows.append(_explained(name, 0, tensor.scalars, tensor.scalars, what, f"lies beside {weight}"))
            continue
        rows += _extra_rows(prediction, name, tensor, tally, findings)
    orders = sorted({tensor.order for tensor in choice.expected if tensor.order and tensor.name in stored})
    findings += [Finding("order", f"{text}; headers show the shape, not the order") for text in orders]
    return rows, findings


def _tensor_row(
    wanted: ExpectedTensor,
    found: StoredTensor | None,
    packing: Explanation | None,
    usual: str,
    typed: bool,
    moments: set[str],
    tally: _Tally,
) -> tuple[Row, int]:
    """Return the row of one declared array and the scalars it stands for."""
    if found is None:
        return _open(wanted.name, wanted.scalars, 0, ["declared, and no array is stored under this name"]), 0
    if packing is not None:
        bytes_amount = found.bytes - payload_bytes(wanted.scalars, wanted.dtype)
        tally.add("scalars bytes", (packing.amount, bytes_amount), packing.reason, packing.evidence)
        row = Row("tensor", wanted.name, "", "scalars", wanted.scalars, found.scalars, (packing,))
        return row, wanted.scalars
    differences = list(_differences(wanted, found, usual, typed, moments))
    if not differences:
        return Row("tensor", wanted.name, "", "scalars", wanted.scalars, found.scalars), found.scalars
    return _open(wanted.name, wanted.scalars, found.scalars, differences), found.scalars


def _differences(
    wanted: ExpectedTensor, found: StoredTensor, usual: str, typed: bool, moments: set[str]
) -> Iterable[str]:
    if found.shape != wanted.shape:
        same = f", the same {wanted.scalars} scalars in another shape" if found.scalars == wanted.scalars else ""
        turned = ", which is the declared shape transposed" if found.shape == wanted.shape[::-1] != wanted.shape else ""
        yield f"stored as {list(found.shape)}, declared {list(wanted.shape)}{turned or same}"
        if wanted.linear and found.dtype == "uint8" and 2 * found.scalars == wanted.scalars:
            yield f"half of the declared {wanted.scalars} scalars in bytes: packed, if two codes share a byte, but " \
                  "neither scales beside it nor a quantization_config says so"  # fmt: skip
    if typed and found.dtype != wanted.dtype:
        yield f"type {found.dtype}, declared {wanted.dtype}"
    elif found.dtype != usual:
        yield f"type {found.dtype}, where most parameters here are {usual}"
    if moments and wanted.trainable != (wanted.name in moments):
        said = "no moments are stored for it, though it is declared trainable"
        yield said if wanted.trainable else "moments are stored for it, though it is declared frozen"


def _packing(
    wanted: ExpectedTensor, found: StoredTensor, companions: Sequence[StoredTensor], seen: Checkpoint
) -> Explanation | None:
    """Return why a quantised array has the scalars it has, None where nothing in the checkpoint says so.

    4 bits: two codes in a byte, stored flat as [n / 2, 1] or with the last axis halved (bitsandbytes, others). 8 bits:
    the declared shape in an 8-bit type. Either needs its scales beside it, or a quantization_config of those bits.
    """
    if not wanted.linear:
        return None
    names = [tensor.name for tensor in companions]
    shown = f"{found.dtype}{list(found.shape)}"
    half = -(-wanted.scalars // 2)
    *rows, last = wanted.shape
    if found.dtype == "uint8" and found.shape in ((half, 1), (half,), (*rows, -(-last // 2))):
        by_scale = any(name.endswith((".absmax", "_scale", "_scale_inv")) for name in names)
        if not by_scale and not _declares_four_bits(seen.quantisation):
            return None
        said = ", ".join(sorted(names)[:3]) if names else "quantization_config"
        return Explanation(half - wanted.scalars, "two 4-bit codes share each stored byte", f"{shown}; {said}")
    suffixes = _EIGHT_BIT.get(found.dtype, ())
    scales = [name for name in names if suffixes and name.endswith(suffixes)]
    if found.shape == wanted.shape and scales:
        return Explanation(0, "8-bit codes, their scales stored beside them", f"{shown}; {scales[0]}")
    return None


def _declares_four_bits(quantisation: Mapping[str, Any] | None) -> bool:
    found = quantisation or {}
    return found.get("load_in_4bit") is True or found.get("_load_in_4bit") is True or found.get("bits") == 4


def _usual_type(
    expected: Mapping[str, ExpectedTensor],
    stored: Mapping[str, StoredTensor],
    packings: Mapping[str, Explanation | None],
) -> str:
    """Return the type that most declared scalars are stored in, quantised ones apart."""
    weights: dict[str, int] = {}
    for name, wanted in expected.items():
        if name in stored and packings.get(name) is None:
            weights[stored[name].dtype] = weights.get(stored[name].dtype, 0) + wanted.scalars
    return max(weights, key=lambda dtype: (weights[dtype], dtype), default="")


def _casts(
    expected: Mapping[str, ExpectedTensor],
    stored: Mapping[str, StoredTensor],
    packings: Mapping[str, Explanation | None],
    usual: str,
    typed: bool,
    tally: _Tally,
) -> None:
    """Explain the bytes of a checkpoint in one other type than the case's, where no type was asked for."""
    cast = [
        (wanted, stored[name])
        for name, wanted in expected.items()
        if name in stored and wanted.alias == name and packings.get(name) is None and not typed
        and stored[name].dtype == usual != wanted.dtype and stored[name].shape == wanted.shape
    ]  # fmt: skip
    if not cast:
        return
    scalars = sum(wanted.scalars for wanted, _ in cast)
    amount = sum(found.bytes - payload_bytes(wanted.scalars, wanted.dtype) for wanted, found in cast)
    declared = cast[0][0].dtype
    reason = f"{scalars:,} scalars are stored as {usual}; the case keeps them as {declared}"
    tally.add("bytes", (amount,), reason, f"dtype {usual} in the headers of {len(cast)} arrays")


def _stored_twice(wanted: ExpectedTensor, found: StoredTensor, row: Row, tally: _Tally) -> tuple[Row, Finding]:
    """A tied table stored under both of its names: one storage is declared, two are there."""
    reason = f"{wanted.name} is declared tied to {wanted.alias} and stored a second time"
    evidence = f"{found.dtype}{list(found.shape)} in {found.file}, apart from {wanted.alias}"
    tally.add("scalars unique bytes ties", (wanted.scalars, wanted.scalars, found.bytes, 1), reason, evidence)
    text = (
        f"{reason}. Two storages are no tie, whatever their values, which are not read: a loader that ties them drops "
        "one, a loader that does not has two tables"
    )
    if row.status == "open":
        return row, Finding("stored_twice", text, (evidence,))
    made = _explained(wanted.name, 0, found.scalars, wanted.scalars, reason, evidence)
    return made, Finding("stored_twice", text, (evidence,))


def _extra_rows(
    prediction: Prediction, name: str, tensor: StoredTensor, tally: _Tally, findings: list[Finding]
) -> list[Row]:
    buffer = buffer_of(name)
    if buffer is None:
        tally.logical += tensor.scalars
        shown = f"{tensor.dtype}{list(tensor.shape)}"
        return [_open(name, 0, tensor.scalars, [f"no declared parameter is stored under this name ({shown})"])]
    shape = buffer_shape(buffer, prediction.program)
    if shape is not None and shape != tensor.shape:
        said = [f"a buffer ({buffer.reason}) of shape {list(tensor.shape)}; the configuration gives {list(shape)}"]
        return [_open(name, 0, tensor.scalars, said)]
    evidence = f"{tensor.dtype}{list(tensor.shape)}"
    tally.add("scalars bytes", (tensor.scalars, tensor.bytes), f"a buffer: {buffer.reason}", f"{name}: {evidence}")
    findings.append(Finding("buffer", f"{name} is a buffer of {tensor.scalars} scalars: {buffer.reason}", (evidence,)))
    return []


def _total_rows(
    prediction: Prediction,
    choice: Choice,
    stored: Mapping[str, StoredTensor],
    seen: Checkpoint,
    others: Sequence[Held],
    tally: _Tally,
) -> list[Row]:
    owned = _owned(choice.expected)
    unique = sum(tensor.scalars for tensor in owned)
    byte_count = sum(payload_bytes(tensor.scalars, tensor.dtype) for tensor in owned)
    parameters = {tensor.source: tensor for tensor in stored.values()}.values()
    expected = {tensor.name for tensor in choice.expected}
    storages = {
        tensor.source
        for name, tensor in stored.items()
        if name in expected or (not beside(name, expected) and buffer_of(name) is None)
    }
    rows = [
        Row("parameters.unique", "", "", "scalars", unique, tally.logical, tuple(tally.unique)),
        Row("parameters.storages", "", "", "storages", len(owned), len(storages), tuple(tally.ties)),
        Row("checkpoint.scalars", "", "", "scalars", unique, sum(t.scalars for t in parameters), _sums(tally.scalars)),
        Row("checkpoint.parameter_bytes", "", "", "bytes", byte_count, sum(t.bytes for t in parameters),
            _sums(tally.bytes)),
    ]  # fmt: skip
    if others:
        wanted = expected_state(prediction.program, choice.expected)
        predicted = sum(payload_bytes(item.scalars, item.dtype) for item in wanted)
        observed = sum(item.tensor.bytes for item in others)
        counters = [item for item in others if item.role == "step"]
        extra = len(counters) - sum(1 for item in wanted if item.role == "step")
        why: tuple[Explanation, ...] = ()
        if extra > 0:
            amount = sum(item.tensor.bytes for item in counters[-extra:])
            why = (Explanation(amount, "step counters the policy does not list", f"{len(counters)} counters"),)
        rows.append(Row("checkpoint.state_bytes", "", "", "bytes", predicted, observed, why))
    return rows


def _sums(items: Sequence[Explanation]) -> tuple[Explanation, ...]:
    """Join explanations of one reason, so that a total has a line per rule and not one per array."""
    joined: dict[str, list[Explanation]] = {}
    for item in items:
        joined.setdefault(item.reason, []).append(item)
    return tuple(
        Explanation(sum(item.amount for item in same), reason, _evidence(same)) for reason, same in joined.items()
    )


def _evidence(items: Sequence[Explanation]) -> str:
    return items[0].evidence if len(items) == 1 else f"{len(items)} arrays, the first: {items[0].evidence}"


def _claim_rows(seen: Checkpoint) -> list[Row]:
    """Hold what an index states against the headers: bytes must agree, its parameter count is another tool's."""
    rows = []
    if "total_size" in seen.claims:
        claimed, there = seen.claims["total_size"], seen.payload_bytes
        reason = "the index states another total than its shards hold" if claimed != there else ""
        rows.append(Row("index.total_size", "", "", "bytes", claimed, there, reason=reason))
    if "total_parameters" in seen.claims:
        claimed = seen.claims["total_parameters"]
        verdict = "exact" if claimed == seen.scalars else "counts something other than the stored scalars"
        rows.append(Row("index.total_parameters", "", "", "scalars", claimed, seen.scalars, verdict=verdict))
    return rows


def _totals(
    expected: Sequence[ExpectedTensor], stored: Mapping[str, StoredTensor], tally: _Tally
) -> dict[str, int | None]:
    sources = {tensor.source: tensor.scalars for tensor in stored.values()}
    return {
        "declared_unique": sum(tensor.scalars for tensor in _owned(expected)),
        "declared_named": sum(tensor.scalars for tensor in expected),
        "logical_scalars": tally.logical,
        "stored_scalars": sum(sources.values()),
    }


def _answers(
    prediction: Prediction, training: Prediction | None, seen: Checkpoint, others: Sequence[Held]
) -> dict[str, Any]:
    """Return resident, optimizer and checkpoint bytes; they answer three questions."""
    source = prediction if prediction.case.state.optimizer != "none" else training
    optimizer: dict[str, Any] = {"bytes": None, "reason": "no optimizer is declared"}
    if source is not None:
        policy = source.case.state
        basis = f"declared: precision {policy.name}, optimizer {policy.optimizer}"
        optimizer = {"bytes": source.value("state.optimizer_bytes"), "basis": basis}
    optimizer["stored_bytes"] = sum(item.tensor.bytes for item in others if item.role != "master") if others else None
    if not others:
        optimizer["stored_reason"] = "the checkpoint holds no optimizer state"
    by_role = prediction.value("state.by_role.parameter")
    resident = {"bytes": by_role, "basis": f"parameters as {prediction.case.state.parameter_dtype}, each storage once"}
    checkpoint = {"bytes": seen.payload_bytes, "file_bytes": seen.file_bytes, "basis": "arrays as their headers say"}
    return {"resident": resident, "optimizer": optimizer, "checkpoint": checkpoint}


def _open(name: str, predicted: int, seen: int, differences: Sequence[str]) -> Row:
    return Row("tensor", name, "", "scalars", predicted, seen, reason="; ".join(differences), forced_open=True)


def _explained(name: str, predicted: int, seen: int, amount: int, reason: str, evidence: str) -> Row:
    return Row("tensor", name, "", "scalars", predicted, seen, (Explanation(amount, reason, evidence),))
