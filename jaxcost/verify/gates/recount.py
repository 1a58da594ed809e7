"""Every value is counted again from the fields of its own row, and every total from its rows.

That a value follows from its fields is what makes a row a contract; a fact that a fold used and did not list shows as a
difference here. That no field is listed in vain is shown the other way: an axis is stretched, and only the rows that
list it may change.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod
from typing import Any

from jaxcost.contracts.dtypes import payload_bytes
from jaxcost.prediction.ledgers import FOLDS
from jaxcost.prediction.program import program
from jaxcost.prediction.rows import Row
from jaxcost.prediction.sizes import Sizes, sizes_of
from jaxcost.verify.gates.common import Items, Subject, at, equal, holds
from jaxcost.verify.gates.rows import is_peak


def product_axes(row: Row) -> list[str]:
    """Return the distinct axes of a FLOP row's contraction."""
    return list(dict.fromkeys(str(row.fields.get("contraction", "")).split("->")[0].replace(",", " ").split()))


def extents(row: Row, without: str = "") -> Any:
    """Return the product of the extents of a FLOP row's axes, some left out."""
    return prod(row.fields.get(axis, 0) for axis in product_axes(row) if axis not in without)


@holds("parameters.recount", "a parameter row's scalars and padding are its shape times its copies")
def _parameters(subject: Subject) -> Items:
    for ledger, row in subject.rows("parameters"):
        count = prod(row.fields["shape"]) * row.fields["copies"]
        yield equal(at(ledger, row), row.value + row.fields["padding"], count)


@holds("state.recount", "a state row's bytes are its scalars in its type, times its copies")
def _state(subject: Subject) -> Items:
    for ledger, row in subject.rows("state"):
        want = payload_bytes(row.fields["scalars"], row.fields.get("dtype", "fp32")) * row.fields.get("copies", 1)
        yield equal(at(ledger, row), row.value, want)


@holds("flops.recount", "a FLOP row is 2 x its rows (or pairs) x its other axes x its layers")
def _flops(subject: Subject) -> Items:
    for ledger, row in subject.rows("flops"):
        if "pair_count" in row.fields:
            want = 2 * row.fields["pair_count"] * extents(row, "bst")
        else:
            want = 2 * row.fields.get("rows", 0) * extents(row, "bstr") * row.fields["layers"]
        yield equal(at(ledger, row), row.value, want)


@holds("primitives.recount", "a primitive row is its layers times the sum of coefficient x extent")
def _primitives(subject: Subject) -> Items:
    for ledger, row in subject.rows("primitives"):
        terms = sum(term["coefficient"] * term["extent"] for term in row.fields.get("terms", ()))
        yield equal(at(ledger, row), row.value, row.fields.get("layers", 1) * terms)


@holds("saved.recount", "a saved or cached row is its elements in their type, times its layers")
def _saved(subject: Subject) -> Items:
    for ledger, row in subject.rows("activations", "kv_cache"):
        if not is_peak(row):
            each = payload_bytes(row.fields["elements"], row.fields.get("dtype", "fp32"))
            yield equal(at(ledger, row), row.value, each * row.fields["layers"])


@holds("traffic.recount", "a traffic row is its elements in their type, times how often they cross, times its layers")
def _traffic(subject: Subject) -> Items:
    for ledger, row in subject.rows("traffic"):
        each = payload_bytes(row.fields["elements"], row.fields["dtype"])
        yield equal(at(ledger, row), row.value, each * row.fields["multiplicity"] * row.fields["layers"])


@holds("collectives.recount", "a collective row is its elements in their type, times its executions")
def _collectives(subject: Subject) -> Items:
    for ledger, row in subject.rows("collectives"):
        payload = payload_bytes(row.fields["elements"], row.fields["dtype"])
        times = row.fields["layers"] * row.fields["microbatches"]
        yield equal(at(ledger, row), row.value, payload * times)


@holds("device.recount", "a row of the state on a mesh, or of an argument, is its elements in their type")
def _device(subject: Subject) -> Items:
    for ledger, row in subject.rows("ownership", "device"):
        if "elements" in row.fields:
            want = payload_bytes(row.fields["elements"], row.fields.get("dtype") or "fp32")
            yield equal(at(ledger, row), row.value, want)


@holds("parameters.closure", "unique, named, stored and trainable counts are sums of the rows")
def _parameter_totals(subject: Subject) -> Items:
    rows = [row for _, row in subject.rows("parameters")]
    own = [row for row in rows if not row.fields["alias"]]
    sums = {
        "unique": sum(row.value for row in own),
        "named": sum(row.value for row in rows),
        "trainable": sum(row.value for row in own if row.fields["trainable"]),
        "padding": sum(row.fields["padding"] for row in own),
        "stored": sum(row.value + row.fields["padding"] for row in own),
        "bytes": sum(payload_bytes(row.value + row.fields["padding"], row.fields["dtype"]) for row in own),
    }
    yield from _closes(subject, "parameters", sums)


@holds("flops.closure", "forward, backward and replay are sums of rows of their own, and the total is theirs")
def _flop_totals(subject: Subject) -> Items:
    sums = {"forward": 0, "backward": 0, "replay": 0}
    local = dict(sums)
    for _, row in subject.rows("flops"):
        sums[row.phase] = sums.get(row.phase, 0) + row.value
        local[row.phase] = local.get(row.phase, 0) + row.per_device
    names = {"forward": "forward", "backward": "backward", "replay": "recompute"}
    found = {names.get(phase, phase): value for phase, value in sums.items()}
    found |= {f"per_device_{names.get(phase, phase)}": value for phase, value in local.items()}
    yield from _closes(subject, "flops", {**found, "total": sum(sums.values()), "per_device": sum(local.values())})


@holds("primitives.closure", "the count of every kind is the sum of its rows, over phases and in each")
def _primitive_totals(subject: Subject) -> Items:
    sums: dict[str, Any] = {}
    apart: dict[str, dict[str, Any]] = {}
    for _, row in subject.rows("primitives"):
        sums[row.object] = sums.get(row.object, 0) + row.value
        phase = apart.setdefault(row.phase, {})
        phase[row.object] = phase.get(row.object, 0) + row.value
    totals = subject.totals("primitives")
    yield equal("primitives by phase", totals["by_phase"], apart)
    yield equal("primitives", {kind: value for kind, value in totals.items() if kind != "by_phase"}, sums)


@holds("saved.closure", "the saved bytes are the sum of the saved tensors, the cached bytes of the cached ones")
def _saved_totals(subject: Subject) -> Items:
    rows = [row for _, row in subject.rows("activations") if not is_peak(row)]
    sums = {
        "saved_bytes": sum(row.value for row in rows),
        "saved_bytes_per_device": sum(row.per_device for row in rows),
    }
    yield from _closes(subject, "activations", sums)
    cached = [row for _, row in subject.rows("kv_cache")]
    sums = {
        "bytes": sum(row.value for row in cached),
        "minimum_bytes": sum(row.fields["minimum_bytes"] for row in cached),
    }
    yield from _closes(subject, "kv_cache", sums)


@holds("traffic.closure", "transfers of each schedule and phase add up to the totals")
def _traffic_totals(subject: Subject) -> Items:
    sums = {"bytes": 0}
    for kind in ("attention", "gemm"):
        sums |= {f"{kind}_{phase}bytes": 0 for phase in ("", "backward_", "replay_")}
    for _, row in subject.rows("traffic"):
        kind = "gemm" if row.fields["schedule"] == "one pass" else "attention"
        phase = {"forward": ""}.get(row.phase, f"{row.phase}_")
        sums[f"{kind}_{phase}bytes"] = sums.get(f"{kind}_{phase}bytes", 0) + row.value
        sums["bytes"] += row.value
    sums["gemm_one_pass_bytes"] = sums.pop("gemm_bytes")
    yield from _closes(subject, "traffic", sums)


@holds("collectives.closure", "payload by kind and by mesh axis, and what rings would send, are sums of the rows")
def _collective_totals(subject: Subject) -> Items:
    totals = subject.totals("collectives")
    if totals["payload_bytes"] is None:
        return
    kinds: dict[str, Any] = {}
    axes: dict[str, Any] = {}
    for _, row in subject.rows("collectives"):
        for sums, name in ((kinds, row.fields.get("kind", "")), (axes, row.fields.get("axis", ""))):
            sums[name] = sums.get(name, 0) + row.value
    ring = sum(row.fields["ring_send_bytes"] * row.fields["times"] for _, row in subject.rows("collectives"))
    whole = {"payload_bytes": sum(kinds.values()), "by_kind": kinds, "by_axis": axes, "ring_send_bytes": ring}
    yield from _closes(subject, "collectives", whole)


def _closes(subject: Subject, ledger: str, sums: dict[str, Any]) -> Items:
    totals = subject.totals(ledger)
    for name, value in sums.items():
        yield equal(f"{ledger}.{name}", totals.get(name), value)


def stretched(sizes: Sizes, axis: str) -> Sizes:
    """Return sizes in which one axis alone is longer."""
    if axis in sizes.values:
        return replace(sizes, values={**sizes.values, axis: sizes.values[axis] + 4})
    groups = tuple({**own, axis: own[axis] + 4} if axis in own else own for own in sizes.groups)
    return replace(sizes, groups=groups)


def listed_axes(ledger: str, row: Row) -> set[str]:
    """Return the axes that a row lists."""
    if ledger == "flops":
        return set(product_axes(row))
    if ledger == "primitives":
        return {axis for term in row.fields.get("terms", ()) for axis in str(term["axes"]).split()}
    return set(str(row.fields.get("axes", "")).split())


# Counts that a row lists as numbers of their own, whatever they come from.
COUNTS = ("layers", "copies", "multiplicity")
STRETCHED = ("parameters", "flops", "primitives", "activations", "kv_cache", "traffic")


@holds("axes.listed", "a row changes with every axis that it lists, and with no other")
def _axes_listed(subject: Subject) -> Items:
    """Only of one device, where every extent may be stretched, and of full rectangles, where axes are free."""
    if not subject.one_device or subject.case.workload.lengths or subject.case.convention.attention_pairs == "legal":
        return
    sizes = sizes_of(subject.case)
    before = {name: subject.prediction.ledgers[name].rows for name in STRETCHED}
    axes = dict.fromkeys([*sizes.values, *(axis for own in sizes.groups for axis in own)])
    for axis in axes:
        if axis == "p" and not sizes.values["p"]:
            continue
        changed = program(subject.case, stretched(sizes, axis))
        for name in STRETCHED:
            after = FOLDS[name](changed).rows
            yield from _moved(name, axis, before[name], after)


def _moved(name: str, axis: str, before: tuple[Row, ...], after: tuple[Row, ...]) -> Iterator[str]:
    for old, new in zip(before, after, strict=True):
        if is_peak(old) or old.phase == "optimizer":
            continue  # a sum over arrays of many axes
        if axis not in listed_axes(name, old):
            counted = any(old.fields.get(count) != new.fields.get(count) for count in COUNTS)
            still = _stored(name, old) == _stored(name, new) or counted
            yield "" if still else f"{at(name, old)}: changes with the axis {axis}, which it does not list"
        elif old.value:
            same = _stored(name, old) == _stored(name, new)
            yield f"{at(name, old)}: lists the axis {axis} and does not change with it" if same else ""


def _stored(name: str, row: Row) -> Any:
    """Return a row's value; of parameters as they are stored, since sizes stretch what is stored."""
    return row.value + row.fields["padding"] if name == "parameters" else row.value
