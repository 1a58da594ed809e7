"""What to change first: single changes of a spec that does not fit, each predicted, with the bytes it would save.

Nothing here is a rule of thumb. A change is a case of its own; one that the contracts refuse is no candidate. What it
saves is the difference of two compiled programs where both are columns, else of two predictions of the same kind: live
peaks where both are predicted, otherwise arguments and saved activations. A change that saves nothing is left out. Time
is not modelled: of several specs that fit, FLOPs and collective bytes are shown, not a winner in seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

from jaxcost.contracts.case import Case
from jaxcost.contracts.errors import RejectedError
from jaxcost.planning.column import Column
from jaxcost.planning.expected import predicted_peak
from jaxcost.prediction.ledgers import Prediction, predict
from jaxcost.report.numbers import about

CHANGES_SHOWN = 6
ACCUMULATED = (2, 4, 8)
CLASSES_SHOWN = 3
HELD = "arguments and saved activations"


def advice(columns: Sequence[Column], fractions: Sequence[str]) -> list[dict[str, Any]]:
    """Return what the numbers say: the columns that fit with what they cost, and for the column that comes nearest to
    fitting, target by target, what it holds and which single changes save most.
    """
    found: list[dict[str, Any]] = []
    largest = max(fractions, key=Fraction)
    for target in dict.fromkeys(column.target.text for column in columns):
        here = [column for column in columns if column.target.text == target]
        fitting = [column for column in here if _fits(column, largest)]
        missing = [column for column in here if _too_large(column, largest)]
        if fitting:
            found.append(_fitting(fitting, here, largest, target))
        if missing:
            nearest = min(missing, key=_needs)
            found.append(_short(nearest, largest))
            found += _changes(nearest, columns, largest)
    return found


def _fits(column: Column, largest: str) -> bool:
    """Return whether a column fits: by its compiled program, without one by its prediction."""
    return bool(column.predicted_fits(largest) if column.status == "unmeasured" else column.fits(largest))


def _too_large(column: Column, largest: str) -> bool:
    """Return whether it is known that a column does not fit; of a worker that died it is not."""
    return column.limit(largest) is not None and column.status != "failed" and column.infeasible(largest)


def _needs(column: Column) -> int:
    """Return the bytes a column needs: required if compiled, else the least that is predicted."""
    required = column.memory.get("required_bytes")
    return int(required if required is not None else column.peak["lower"])


def _fitting(fitting: Sequence[Column], here: Sequence[Column], largest: str, target: str) -> dict[str, Any]:
    costs: list[dict[str, Any]] = []
    compiled = all(column.compiled() for column in fitting)
    for column in fitting:
        seen = (column.compiled() if compiled else None) or column.predicted()
        moved = (seen["collectives"] or {}).get("bytes")
        costs.append({"column": column.name, "flops": seen["flops"], "collective_bytes": moved})
    listed = ", ".join(str(item["column"]) for item in costs)
    text = f"{len(fitting)} of {len(here)} fit {largest} of {target}: {listed}"
    known = [item for item in costs if item["collective_bytes"] is not None]
    if len(known) > 1 and len({item["flops"] for item in known}) == 1:
        least = min(known, key=lambda item: item["collective_bytes"])
        text += (
            f"; at equal FLOPs {least['column']} moves the fewest collective bytes: {_size(least['collective_bytes'])}"
        )
    basis = "compiled" if compiled else "predicted"
    return {"kind": "fits", "target": target, "column": None, "text": text, "basis": basis, "columns": costs}


def _short(column: Column, largest: str) -> dict[str, Any]:
    """What a column lacks, and the largest classes it holds at its peak."""
    limit, needs = column.limit(largest), _needs(column)
    assert limit is not None
    compiled = column.memory.get("required_bytes") is not None
    classes = (column.memory.get("by_class_at_peak") if compiled else column.peak.get("by_class")) or {}
    held = sorted(((size, name) for name, size in classes.items() if size), reverse=True)[:CLASSES_SHOWN]
    least = "" if compiled else "at least "
    text = f"{column.label} needs {least}{_size(needs - limit)} more than {largest} of the device"
    if needs <= limit:
        text = f"{column.label} is refused by the compiler"
    if held:
        text += "; at its peak it holds " + ", ".join(f"{name} {_size(size)}" for size, name in held)
    return {
        "kind": "short", "target": column.target.text, "column": column.name, "text": text, "bytes": needs - limit,
        "basis": "compiled" if compiled else "predicted", "classes": {name: size for size, name in held},
    }  # fmt: skip


def _changes(column: Column, columns: Sequence[Column], largest: str) -> list[dict[str, Any]]:
    """Return the single changes that save bytes, most first."""
    before, found = predict(column.case), []
    by_digest = {other.case.digest: other for other in columns if other.target == column.target}
    for change, case in candidates(column.case):
        other = by_digest.get(case.digest)
        saved = _compiled_saving(column, other) if other is not None else None
        if saved is None:
            saved = _predicted_saving(before, predict(case), column)
        if saved["bytes"] <= 0:
            continue
        cost = predict(case).value("flops.per_device") - before.value("flops.per_device")
        limit = column.limit(largest)
        enough = _enough(column, other, saved, limit)
        text = f"{change}: saves {_size(saved['bytes'])}, {saved['what']}"
        text += f"; {cost:+,} FLOPs per device" if cost else "; FLOPs per device unchanged"
        if enough is not None:
            text += "; then it fits" if enough else "; not enough by itself"
        found.append({
            "kind": "change", "target": column.target.text, "column": column.name, "change": change, "text": text,
            "bytes": saved["bytes"], "basis": saved["basis"], "quantity": saved["what"], "flops": cost,
            "enough": enough,
        })  # fmt: skip
    return sorted(_least(found), key=lambda item: -item["bytes"])[:CHANGES_SHOWN]


def _least(found: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Leave out steps of accumulation beyond the first that is enough, or without one all but the first."""
    steps = [item for item in found if item["change"].startswith("--accumulate")]
    kept = next((item for item in steps if item["enough"]), steps[0] if steps else None)
    yield from (item for item in found if item not in steps or item is kept)


def _compiled_saving(column: Column, other: Column) -> dict[str, Any] | None:
    first, second = column.memory.get("required_bytes"), other.memory.get("required_bytes")
    if first is None or second is None:
        return None
    return {"bytes": first - second, "basis": "compiled", "what": "required bytes of the two compiled programs"}


def _predicted_saving(before: Prediction, after: Prediction, column: Column) -> dict[str, Any]:
    """Return what a change saves of the predicted peak; where a side has none, of what both hold in any case."""
    first, second = predicted_peak(before, column.target.family), predicted_peak(after, column.target.family)
    if first["expected"] is not None and second["expected"] is not None:
        return {
            "bytes": first["expected"] - second["expected"], "basis": "predicted", "what": "predicted live peak",
            "upper": second["upper"], "lower": second["lower"],
        }  # fmt: skip
    return {"bytes": held(before) - held(after), "basis": "predicted", "what": HELD}


def held(prediction: Prediction) -> int:
    """Return the bytes of the step's arguments and, in training, of the activations saved for the backward pass."""
    return int(prediction.value("device.argument_bytes") + prediction.value("activations.saved_bytes_per_device"))


def _enough(column: Column, other: Column | None, saved: Mapping[str, Any], limit: int | None) -> bool | None:
    """Return whether the change makes the column fit: told by the compile, or by both ends of the interval."""
    if limit is None:
        return None
    if saved["basis"] == "compiled" and other is not None:
        required = other.memory["required_bytes"]
        return None if required is None else bool(required <= limit and other.refused is None)
    if saved.get("upper") is None:
        return None
    if saved["upper"] <= limit:
        return True
    return False if saved["lower"] > limit else None


def _size(size: int) -> str:
    rounded = about(size, "bytes")
    return f"{rounded} ({size:,} bytes)" if rounded else f"{size:,} bytes"


def candidates(case: Case) -> Iterator[tuple[str, Case]]:
    """Yield single changes of a case that its contracts accept, each with its name as options would say it."""
    seen = {case.digest}
    for name, change in _proposals(case):
        try:
            made = Case.from_data(change)
        except RejectedError:
            continue
        if made.digest not in seen:
            seen.add(made.digest)
            yield name, made


def _proposals(case: Case) -> Iterable[tuple[str, dict[str, Any]]]:
    run, work = case.execution, case.workload
    sizes = run.mesh_sizes
    for mesh in _meshes(sizes):
        text = ",".join(f"{axis}={size}" for axis, size in mesh.items())
        yield f"--mesh {text}", _with(case, "execution", mesh=_axes(mesh))
    if work.phase == "training":
        order = ("none", "attention", "block")
        now = order.index(run.remat) if run.remat in order else len(order)
        for remat in order[now + 1 :]:
            yield f"--remat {remat}", _with(case, "execution", remat=remat)
        for accumulate in (work.accumulate * factor for factor in ACCUMULATED):
            yield f"--accumulate {accumulate}", _with(case, "workload", accumulate=accumulate)
        if run.degree("data") > 1:
            yield f"--zero {min(run.zero + 1, 3)}", _with(case, "execution", zero=min(run.zero + 1, 3))
    if run.degree("tensor") > 1 and not run.sequence_parallel:
        yield "--sequence-parallel", _with(case, "execution", sequence_parallel=True)
    if work.attention == "materialised":
        yield "--attention blockwise", _with(case, "workload", attention="blockwise")


def _meshes(sizes: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Yield meshes of as many devices: all of data moved to fsdp, or a factor of two moved to tensor or off it."""
    data, fsdp, tensor = (sizes.get(axis, 1) for axis in ("data", "fsdp", "tensor"))
    if data > 1:
        yield _ordered({**sizes, "data": 1, "fsdp": fsdp * data})
    for axis, degree in (("data", data), ("fsdp", fsdp)):
        if degree % 2 == 0:
            yield _ordered({**sizes, axis: degree // 2, "tensor": tensor * 2})
    if tensor % 2 == 0:
        yield _ordered({**sizes, "fsdp": fsdp * 2, "tensor": tensor // 2})


def _ordered(sizes: Mapping[str, int]) -> dict[str, int]:
    order = ("pipeline", "data", "fsdp", "context", "tensor", "expert")
    return {axis: sizes[axis] for axis in order if sizes.get(axis, 1) > 1}


def _axes(mesh: Mapping[str, int]) -> list[dict[str, Any]]:
    return [{"name": name, "size": size} for name, size in mesh.items()]


def _with(case: Case, record: str, **changes: Any) -> dict[str, Any]:
    data = case.to_data()
    return {**data, record: {**data[record], **changes}}
