"""What changed between two columns: buffers live at the peak, collectives and FLOPs, by scope, largest first.

Both columns are read by the same instrument: two compiled programs where both were compiled, else two predictions. The
buffer rows of two compiled programs sum to the change of the live peak, to the byte; a peak that moves to another part
of the step is said beside it, since buffers may then differ because of when they are looked at.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from jaxcost.planning.column import Column

COUNTS = ("buffers", "collectives", "flops")
UNKNOWN = "one of the two columns does not have this number; its own reason stands there"
_PLACE = re.compile(r"(?:groups\[(\d+)\]|(embed|head|final_norm)\b)(.*)")


class Change(NamedTuple):
    """One row. `detail` is a class of buffers, `kind over axis` of collectives, or a phase of FLOPs."""

    what: str
    scope: str
    detail: str
    before: int
    after: int

    @property
    def change(self) -> int:
        """After minus before."""
        return self.after - self.before


@dataclass(frozen=True)
class Difference:
    """`after` against `before`. `basis` is `compiled` or `predicted`; `totals` are changes of whole numbers."""

    before: Column
    after: Column
    basis: str
    totals: Mapping[str, int | None]
    rows: tuple[Change, ...]
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        data: dict[str, Any] = {
            "from": self.before.name, "from_target": self.before.target.text, "to": self.after.name,
            "target": self.after.target.text, "basis": self.basis, "totals": dict(self.totals),
            "rows": [
                {**row._asdict(), "change": row.change, "unit": "FLOPs" if row.what == "flops" else "bytes"}
                for row in self.rows
            ],
        }  # fmt: skip
        if None in self.totals.values():
            data["totals_reason"] = (
                "what must be allocated is known of compiled programs only" if self.basis == "predicted" else UNKNOWN
            )
        return data | ({"note": self.note} if self.note else {})


def differences(columns: Sequence[Column], base: str | None = None) -> Iterable[Difference]:
    """Yield the difference of each column from its base: the one named, else the first, on the same target.

    The base of another target is compared with that of the first target.
    """
    bases: dict[str, Column] = {}
    for column in columns:
        if base is None or column.name == base:
            bases.setdefault(column.target.text, column)
    first = next(iter(bases.values()))
    for column in columns:
        other = bases.get(column.target.text, first)
        other = first if other is column else other
        if other is not column:
            yield difference(other, column)


def difference(before: Column, after: Column) -> Difference:
    """Return what changed between two columns."""
    compiled = all(column.memory and column.memory.get("live_peak_bytes") is not None for column in (before, after))
    read = _compiled if compiled else _predicted
    first, second = read(before), read(after)
    rows = []
    for what in COUNTS:
        left, right = first[what], second[what]
        found = [Change(what, *key, left.get(key, 0), right.get(key, 0)) for key in sorted({*left, *right})]
        rows += sorted((row for row in found if row.change), key=lambda row: -abs(row.change))
    note = ""
    if compiled and before.moment != after.moment:
        note = f"the peak falls in {before.moment or 'an unnamed part'} before, in {after.moment or 'one'} after"
    sides = [_totals(column, compiled) for column in (before, after)]
    totals = {
        name: None if None in (sides[0][name], sides[1][name]) else sides[1][name] - sides[0][name] for name in sides[0]
    }
    return Difference(before, after, "compiled" if compiled else "predicted", totals, tuple(rows), note)


def place_of(path: str) -> str:
    """Return the component scope of an argument's path: `state.parameters.groups[0].mlp.gate.weight` is
    `group0/mlp/gate`; empty for what belongs to no component.
    """
    match = _PLACE.search(path)
    if match is None:
        return ""
    parts = [part for part in match[3].split(".") if part]
    return "/".join([f"group{match[1]}" if match[1] else match[2], *parts[:-1]])


def buffers_by_class(memory: Mapping[str, Any]) -> dict[tuple[str, str], int]:
    """Return the bytes live at the peak by (scope, class) of a memory section; they sum to the live peak."""
    found: dict[tuple[str, str], int] = {}
    for row in memory["at_peak"]:
        scope = row["scope"] or (place_of(row["op_name"]) if row["kind"] == "parameter" else "")
        key = (scope, str(row.get("class") or row["kind"]))
        found[key] = found.get(key, 0) + row["bytes"]
    return found


def _compiled(column: Column) -> dict[str, dict[tuple[str, str], int]]:
    assert column.seen is not None
    collectives: dict[tuple[str, str], int] = {}
    for row in (column.seen.data["collectives"] or {}).get("rows", ()):
        axes = ",".join(row["axes"]) if row["axes"] else "unnamed"
        key = (row["scope"], f"{row['kind']} over {axes}")
        size = max(row["total_operand_bytes"] or 0, row["total_result_bytes"] or 0)
        collectives[key] = collectives.get(key, 0) + size
    flops = {
        (row["scope"], row["phase"]): row["flops"] or 0
        for row in (column.seen.data["hlo"] or {}).get("by_scope_phase", ())
    }
    return {"buffers": buffers_by_class(column.memory), "collectives": collectives, "flops": flops}


def _predicted(column: Column) -> dict[str, dict[tuple[str, str], int]]:
    """What a predicted peak holds, without one the arguments by role; FLOPs by scope and phase; collectives by axis."""
    buffers: dict[tuple[str, str], int] = dict(column.peak.get("held") or {})
    if not buffers:
        for row in column.prediction.ledgers["device"].rows:
            if row.phase == "argument":
                key = (row.scope, str(row.fields["role"]))
                buffers[key] = buffers.get(key, 0) + row.per_device
    flops: dict[tuple[str, str], int] = {}
    for row in column.prediction.ledgers["flops"].rows:
        flops[(row.scope, row.phase)] = flops.get((row.scope, row.phase), 0) + row.per_device
    found = column.predicted()["collectives"] or {"rows": ()}
    collectives = {("", f"{row['kind']} over {row['axis']}"): row["bytes"] or 0 for row in found["rows"]}
    return {"buffers": buffers, "collectives": collectives, "flops": flops}


def _totals(column: Column, compiled: bool) -> dict[str, Any]:
    if compiled:
        found = column.compiled() or {}
        names = ("argument_bytes", "live_peak_bytes", "required_bytes", "flops")
        values = {name: found.get(name) for name in names}
    else:
        found = column.predicted()
        peak = {"live_peak_bytes": found["peak_bytes"]["expected"], "required_bytes": None}
        values = {"argument_bytes": found["argument_bytes"], **peak, "flops": found["flops"]}
    return values | {"collective_bytes": (found.get("collectives") or {}).get("bytes")}
