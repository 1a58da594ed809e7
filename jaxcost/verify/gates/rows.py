"""Checks on any row of any ledger: what it names, and that nothing unknown is passed off as a number."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any, get_args

from jaxcost.contracts.dtypes import BITS
from jaxcost.contracts.observation import EvidenceClass
from jaxcost.contracts.state import LIFECYCLE
from jaxcost.contracts.workload import PHASES
from jaxcost.prediction.rows import Row
from jaxcost.verify.gates.common import Items, Subject, at, each, holds

UNITS: dict[str, tuple[str, ...]] = {
    "parameters": ("scalars",),
    "state": ("bytes",),
    "flops": ("FLOPs",),
    "primitives": ("primitives",),
    "activations": ("bytes",),
    "kv_cache": ("bytes",),
    "traffic": ("bytes",),
    "ownership": ("bytes", "scalars"),
    "collectives": ("bytes",),
    "device": ("bytes",),
}
STEP = ("forward", "backward", "replay")
TIMES: dict[str, tuple[str, ...]] = {
    "parameters": ("",),
    "state": LIFECYCLE,
    "flops": STEP,
    "primitives": (*STEP, "optimizer"),
    "activations": (*STEP, ""),
    "kv_cache": PHASES,
    "traffic": STEP,
    "ownership": ("in_first_step", "forward", "host_to_device", "device_to_host"),
    "collectives": (*STEP, "optimizer"),
    "device": ("argument", "result"),
}


def is_peak(row: Row) -> bool:
    """Whether a row is a cut through what is alive, which has no type and lifetime of its own."""
    return "alive" in row.fields


def resident(subject: Subject) -> Iterator[tuple[str, Row]]:
    """Yield the rows of bytes that are held somewhere; what moves, and cuts through what is held, are other rows."""
    for ledger, row in subject.rows("state", "activations", "kv_cache", "ownership", "device"):
        if row.unit == "bytes" and "direction" not in row.fields and not is_peak(row):
            yield ledger, row


@holds("row.object", "every row names what it counts")
def _object(subject: Subject) -> Items:
    return each(subject.rows(), lambda row: bool(row.object.strip()), "no object")


@holds("row.unit", "every row has the unit of its ledger")
def _unit(subject: Subject) -> Items:
    for ledger, row in subject.rows():
        yield "" if row.unit in UNITS[ledger] else f"{at(ledger, row)}: unit {row.unit!r}"


@holds("row.convention", "every row says by which convention it is counted")
def _convention(subject: Subject) -> Items:
    return each(subject.rows(), lambda row: bool(row.convention.strip()), "no convention")


@holds("row.omitted", "every row says what it leaves out")
def _omitted(subject: Subject) -> Items:
    return each(subject.rows(), lambda row: bool(row.omitted.strip()), "nothing said to be left out")


@holds("row.evidence", "every predicted row is of the class analytical, and of no measured one")
def _evidence(subject: Subject) -> Items:
    known = get_args(EvidenceClass)
    for ledger, row in subject.rows():
        right = row.evidence == "analytical" and row.evidence in known
        yield "" if right else f"{at(ledger, row)}: evidence {row.evidence!r}"


@holds("row.phase", "every row stands in a phase, or at a lifecycle point, that its ledger knows")
def _phase(subject: Subject) -> Items:
    for ledger, row in subject.rows():
        yield "" if row.phase in TIMES[ledger] else f"{at(ledger, row)}: no phase of this ledger"


@holds("row.exact", "every value is an exact integer")
def _exact(subject: Subject) -> Items:
    return each(subject.rows(), lambda row: type(row.value) is int, "no integer")


@holds("row.fields", "every row lists the facts its value follows from, each of them a plain value")
def _fields(subject: Subject) -> Items:
    for ledger, row in subject.rows():
        wrong = [name for name, value in row.fields.items() if not _plain(value)]
        text = "no fields" if not row.fields else f"fields {wrong} are no plain values" if wrong else ""
        yield f"{at(ledger, row)}: {text}" if text else ""


def _plain(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _plain(item) for key, item in value.items())
    if isinstance(value, tuple | list):
        return all(map(_plain, value))
    return value is None or isinstance(value, bool | int | str | Fraction) or type(value) is float


@holds("row.apart", "no two rows of a ledger claim the same object at the same time for the same reason")
def _apart(subject: Subject) -> Items:
    seen: set[str] = set()
    for ledger, row in subject.rows():
        key = repr((ledger, row.object, row.scope, row.phase, row.part, row.region, dict(row.fields)))
        yield f"{at(ledger, row)}: stands there twice" if key in seen else ""
        seen.add(key)


@holds("null.reason", "beside every unknown number stands the reason")
def _null_reason(subject: Subject) -> Items:
    for name, ledger in subject.document["ledgers"].items():
        yield from unknowns(ledger["totals"], f"{name}.totals")
        for row in ledger["rows"]:
            yield from unknowns(row, f"{name} {row['object']}")


# Where null is an answer and not an unknown number: there is none.
NONE = ("refused", "rematerialisation", "refusal", "column", "moment")


def unknowns(value: Any, path: str, said: bool = False) -> Items:
    """Yield an item per null below a JSON value: wrong where nothing beside it says why.

    What says why is a `reason`, a `reasons` entry of the same name, or a `STEM_reason` that begins its name, beside the
    null or beside the object that it stands in.
    """
    if isinstance(value, Mapping):
        said = said or bool(value.get("reason"))
        stems = [name.removesuffix("_reason") for name, text in value.items() if name.endswith("_reason") and text]
        for key, item in value.items():
            own = any(key.startswith(stem) for stem in stems) or key in (value.get("reasons") or ())
            if item is None and key not in NONE:
                yield "" if said or own else f"{path}.{key} is null, and nothing says why"
            else:
                yield from unknowns(item, f"{path}.{key}", own)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield f"{path}[{index}] is null" if item is None else ""
            yield from unknowns(item, f"{path}[{index}]")


@holds("bytes.dtype", "every row of bytes that are held names their type")
def _dtype(subject: Subject) -> Items:
    return each(resident(subject), lambda row: row.fields.get("dtype") in BITS, "no type")


@holds("bytes.copies", "every row of bytes that are held says how many copies there are")
def _copies(subject: Subject) -> Items:
    def right(row: Row) -> bool:
        copies = row.fields.get("copies")
        return type(copies) is int and copies >= 0

    return each(resident(subject), right, "no number of copies")


@holds("bytes.placement", "every row of bytes that are held names the memory they are in")
def _placement(subject: Subject) -> Items:
    known = ("device", "host", "checkpoint")
    return each(resident(subject), lambda row: row.fields.get("placement") in known, "no placement")


@holds("bytes.lifetime", "every row of bytes that are held says when they come to be and when they go")
def _lifetime(subject: Subject) -> Items:
    ends = ("created", "released")
    return each(resident(subject), lambda row: all(row.fields.get(end) for end in ends), "no birth or no end")
