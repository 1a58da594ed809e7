"""An audit against a recorded one: what grew, by how much, and whether that is within its bound.

    comparison = compare_audits(recorded, audit, bounds_of(["memory.live_peak_bytes=1%"]))
    comparison.failed, comparison.rows, comparison.differences

Figures are named by their place in the document (`flops.total`, `memory.required_bytes`, `collectives.bytes`). Held to
a bound of 0 unless told otherwise: `flops.total`; the argument, required and live-peak bytes of `memory`; executions
and payload bytes of `collectives`, in all and by kind and axes; the number of `unknowns`. The rest (by phase and scope,
primitives, loops; output, temporary and alias bytes) is shown, and held to a bound where one is given. Of the alias
bytes, results that lie in donated arguments, it is a loss that is held: less of them is more memory.

A bound covers the figure it names and all below it; the longest name decides. `flops` is short for `flops.total`,
`memory` for the three held, `collectives.bytes` covers the bytes of every kind.

Growth beyond its bound fails, and so does a figure that is unknown on either side: unknown is never "same". A bound
`unknown` accepts that, and still fails growth. Audits of different targets are not compared.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from jaxcost.audits.differences import Difference, differences
from jaxcost.audits.saved import REMEDY as _REMEDY
from jaxcost.audits.saved import check_shape, read_document
from jaxcost.audits.tree import payload
from jaxcost.contracts.errors import Problem, RejectedError, reject

SCHEMA = "jaxcost.audit.v1"
STATUSES = ("same", "shrunk", "grown", "changed", "new", "gone", "unknown")

# Held to a growth of 0 where no bound is given.
GATED = ("flops", "memory", "collectives", "unknowns.count")
_SHORT = {
    "flops": ("flops.total",),
    "memory": ("memory.argument_bytes", "memory.required_bytes", "memory.live_peak_bytes"),
}  # fmt: skip
_KEPT_MEMORY = ("alias_bytes", "constant_bytes", "fragmentation_bytes", "by_class_at_peak", "reasons")
_MEMORY = ("argument_bytes", "output_bytes", "temp_bytes", "required_bytes", "live_peak_bytes")
_ALIAS = "memory.alias_bytes"
_BOUND = re.compile(
    r"\s*(?P<name>[^=\s][^=]*?)\s*=\s*(?:(?P<unknown>unknown)|(?P<number>[0-9]+(?:\.[0-9]+)?)\s*(?P<unit>%|[KMGT]iB|B)?)\s*"
)
_UNITS = {"": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_ROOTS = ("flops", "primitives", "memory", "collectives", "loops", "unknowns", "findings")


@dataclass(frozen=True)
class Bound:
    """Growth allowed: an absolute number of the figure's unit, or a fraction of the old value; and whether a figure
    that is unknown is accepted.
    """

    absolute: int = 0
    fraction: Fraction | None = None
    unknown: bool = False

    def allows(self, old: int, growth: int) -> bool:
        """Whether a figure may grow so much."""
        return growth <= (self.absolute if self.fraction is None else self.fraction * old)

    def __str__(self) -> str:
        if self.unknown:
            return "unknown"
        return str(self.absolute) if self.fraction is None else f"{float(100 * self.fraction):g}%"


ZERO_GROWTH = Bound()


@dataclass(frozen=True)
class Range:
    """A figure: its integer, the interval of a conditional, or unknown (both None) with a reason."""

    low: int | None
    high: int | None
    reason: str = ""

    def to_json(self) -> int | dict[str, int | None] | None:
        """The integer, the interval, or None."""
        if self.low is None and self.high is None:
            return None
        return self.low if self.low == self.high else {"minimum": self.low, "maximum": self.high}


@dataclass(frozen=True)
class Row:
    """One figure on both sides; None on a side means that there it does not exist. `bound` None: not held to one.

    `growth` is of the upper ends; `failed` whether it is beyond its bound, or unknown where that is not accepted. Of
    `memory.alias_bytes` a loss is beyond it.
    """

    name: str
    unit: str
    old: Range | None
    new: Range | None
    growth: int | None
    bound: Bound | None
    status: str
    failed: bool
    reason: str = ""

    def __str__(self) -> str:
        sides = " -> ".join(_shown(side) for side in (self.old, self.new))
        growth = "" if self.growth is None else f" ({self.growth:+,} {self.unit})"
        bound = "" if self.bound is None else f", bound {self.bound}"
        why = f": {self.reason}" if self.reason else ""
        return f"{'FAILED ' if self.failed else ''}{self.name} {sides}{growth}, {self.status}{bound}{why}"

    def to_dict(self) -> dict[str, Any]:
        """Return the row as plain data."""
        return {
            "figure": self.name, "unit": self.unit, "old": self.old.to_json() if self.old else None,
            "new": self.new.to_json() if self.new else None, "growth": self.growth,
            "bound": None if self.bound is None else str(self.bound), "status": self.status, "failed": self.failed,
            "reason": self.reason,
        }  # fmt: skip


@dataclass(frozen=True)
class Comparison:
    """All figures of two audits, worst first, and what the compiler (or the program) does differently."""

    old: Mapping[str, Any]
    new: Mapping[str, Any]
    rows: tuple[Row, ...]
    differences: tuple[Difference, ...]
    against: str = ""

    @property
    def failures(self) -> tuple[Row, ...]:
        """The rows beyond their bounds."""
        return tuple(row for row in self.rows if row.failed)

    @property
    def failed(self) -> bool:
        """Whether anything is beyond its bound."""
        return any(row.failed for row in self.rows)

    @property
    def status(self) -> str:
        """`grown`, `unknown` (nothing grew, something cannot be told), `changed`, or `same`."""
        if any(row.status != "unknown" for row in self.failures):
            return "grown"
        if self.failed:
            return "unknown"
        return "changed" if any(row.status != "same" for row in self.rows) or self.differences else "same"

    def to_text(self, most: int = 20) -> str:
        """Return it as plain lines: what is beyond its bound, what else moved, and what differs."""
        lines = [f"{_identity(self.new)['name']} on {_place(self.new)} against {self.against or 'the recorded audit'}"]
        moved = [row for row in self.rows if row.failed or (row.status != "same" and row.bound is not None)]
        lines += [f"  {row}" for row in moved[:most]]
        if len(moved) > most:
            lines.append(f"  and {len(moved) - most} more")
        lines += [f"  {found.about}: {found.text}" for found in self.differences[:most]]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return the section `against` of an audit: every figure that is not the same, and those held to a bound."""
        return {
            "file": self.against, "status": self.status, "failed": self.failed,
            "old": _identity(self.old), "new": _identity(self.new),
            "rows": [row.to_dict() for row in self.rows if row.bound is not None or row.status != "same"],
            "unchanged": sum(1 for row in self.rows if row.bound is None and row.status == "same"),
            "differences": [found.to_dict() for found in self.differences],
        }  # fmt: skip


def bounds_of(texts: Iterable[str], where: str = "--bound") -> dict[str, Bound]:
    """Read bounds such as `flops=0`, `memory.live_peak_bytes=1%`, `collectives.bytes=64MiB`, `flops=unknown`.

    Raises:
        RejectedError: one has another form, begins with no section of an audit, or is given twice.
    """
    found: dict[str, Bound] = {}
    problems = []
    for text in texts:
        match = _BOUND.fullmatch(text) if len(text) <= 400 else None
        if match is None:
            remedy = "write for example flops=0, memory.live_peak_bytes=1%, collectives.bytes=64MiB, flops=unknown"
            rule = "not of the form FIGURE=GROWTH, a growth of 0 or more: a number, with % or B, KiB, MiB, GiB, TiB"
            problems.append(Problem(where, text, rule, remedy))
            continue
        name = match["name"]
        if name.split(".")[0] not in _ROOTS:
            problems.append(Problem(where, text, "names no section with figures", f"begin with {', '.join(_ROOTS)}"))
        elif name in found:
            problems.append(Problem(where, text, f"{name} has a bound already", "give it once"))
        elif match["unknown"]:
            found[name] = Bound(unknown=True)
        elif match["unit"] == "%":
            found[name] = Bound(fraction=Fraction(match["number"]) / 100)
        else:
            amount = Fraction(match["number"]) * _UNITS[match["unit"] or ""]
            if amount.denominator != 1:
                problems.append(Problem(where, text, "a growth is a whole number", "write 0, 1024, 1MiB or 1%"))
                continue
            found[name] = Bound(absolute=int(amount))
    if problems:
        raise RejectedError(problems)
    return found


def read_recorded(path: Path | str) -> dict[str, Any]:
    """Read the document of a recorded audit.

    Raises:
        UnavailableError: there is no such file.
        RejectedError: it is no audit.
    """
    return checked(read_document(Path(path), "--against"), "--against")


def kept(data: Mapping[str, Any]) -> str:
    """Return the text of a record: all that a comparison reads, without lists of single buffers and instructions.

    It is still an audit document; a diff of two such files can be read.
    """
    memory = {name: value for name, value in data["memory"].items() if name in (*_MEMORY, *_KEPT_MEMORY)}
    flops = {name: value for name, value in data["flops"].items() if name not in ("rows",)}
    slim = {
        **data, "memory": {**memory, "at_peak": []}, "flops": flops, "jaxpr": None,
        "attribution": {name: value for name, value in data["attribution"].items() if name == "columns"},
        "xla": {**data["xla"], "verdicts": []},
    }  # fmt: skip
    return json.dumps(slim, indent=1, allow_nan=False, sort_keys=False) + "\n"


def checked(data: object, where: str) -> dict[str, Any]:
    """Return an audit document whose figures can be read.

    Raises:
        RejectedError: it is no document of this schema, a part of it is missing or of another kind, or a figure has no
            value that a figure can have.
    """
    if not isinstance(data, dict):
        raise reject(where, type(data).__name__, "an audit is an object", _REMEDY)
    if data.get("schema") != SCHEMA:
        raise reject(f"{where}.schema", data.get("schema"), f"must be {SCHEMA}", _REMEDY)
    check_shape(data, where)
    figures(data, where)
    return data


def compare_audits(
    old: Mapping[str, Any], new: Mapping[str, Any], bounds: Mapping[str, Bound] | None = None, *, against: str = "",
    across: bool = False,
) -> Comparison:  # fmt: skip
    """Compare two audit documents of one target.

    Args:
        old: the recorded document.
        new: the document of today.
        bounds: growth allowed, by the name of a figure or of all below it; see the module for what holds without.
        against: the file that `old` was read from, for the report.
        across: compare audits of different targets all the same: every row is then labelled and none fails.

    Raises:
        RejectedError: they are of different targets, or one is no audit.
    """
    before, after = figures(checked(old, "old"), "old"), figures(checked(new, "new"), "new")
    places = _place(old), _place(new)
    if places[0] != places[1] and not across:
        rule = f"the recorded audit is of {places[0]}, this one of {places[1]}: their figures mean different things"
        raise reject("--against", against or places[0], rule, f"audit for {places[0]}, or record one for {places[1]}")
    given = dict(bounds or {})
    rows = [
        _row(name, before.get(name), after.get(name), None if across else _bound(name, given))
        for name in dict.fromkeys([*after, *before])
    ]
    unused = [name for name in given if not any(_covers(name, row.name) for row in rows)]
    if unused:
        names = ", ".join(row.name for row in rows if row.name.startswith(unused[0].split(".")[0]))[:300]
        raise reject("--bound", unused[0], "names no figure of either audit", f"name one of {names or 'an audit'}")
    order = {True: 0, False: 1}
    ranked = sorted(rows, key=lambda row: (order[row.failed], row.bound is None, row.status == "same"))
    found = differences(old, new)
    if across:
        label = f"the audits are of different targets ({places[0]} and {places[1]}): no growth is judged"
        found = [Difference("target", label), *found]
    return Comparison(old, new, tuple(ranked), tuple(found), against)


def _row(name: str, old: _Figure | None, new: _Figure | None, bound: Bound | None) -> Row:
    unit = (new or old or _Figure(Range(0, 0), "")).unit
    before, after = old.range if old else None, new.range if new else None
    if before is None or after is None:
        one = after or before
        assert one is not None
        if one.high is None:
            return _unknown(name, unit, before, after, bound, one.reason)
        growth = one.high if before is None else -one.high
        status = "same" if growth == 0 else "new" if before is None else "gone"
        failed = bound is not None and not bound.allows(0 if before is None else one.high, growth)
        return Row(name, unit, before, after, growth, bound, status, failed)
    if before.high is None or after.high is None:
        reason = after.reason if after.high is None else f"in the recorded audit: {before.reason}"
        return _unknown(name, unit, before, after, bound, reason)
    growth = after.high - before.high
    if growth:
        status = "grown" if growth > 0 else "shrunk"
    else:
        status = "same" if before.low == after.low else "changed"
    worse = -growth if name == _ALIAS else growth
    failed = bound is not None and not bound.allows(before.high, worse)
    return Row(name, unit, before, after, growth, bound, status, failed)


def _unknown(name: str, unit: str, old: Range | None, new: Range | None, bound: Bound | None, reason: str) -> Row:
    failed = bound is not None and not bound.unknown
    return Row(name, unit, old, new, None, bound, "unknown", failed, reason or "unknown")


def _covers(name: str, figure: str) -> bool:
    """Whether a bound on `name` holds for a figure: the one it names, those below it, and what its short form means."""
    if name in _SHORT:
        return figure in _SHORT[name]
    if name in ("collectives.bytes", "collectives.executions"):
        return figure.startswith("collectives.") and figure.endswith(name.removeprefix("collectives"))
    return figure == name or figure.startswith((f"{name}.", f"{name}["))


def _bound(figure: str, given: Mapping[str, Bound]) -> Bound | None:
    """The bound of a figure: the longest name given that covers it, else 0 for what is held without being named."""
    covering = [name for name in given if _covers(name, figure)]
    if covering:
        return given[max(covering, key=lambda name: (name == figure, len(name)))]
    return ZERO_GROWTH if any(_covers(name, figure) for name in GATED) else None


# The figures of a document ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Figure:
    range: Range
    unit: str


def figures(data: Mapping[str, Any], where: str = "audit") -> dict[str, _Figure]:
    """Every figure of an audit document that can be compared, by name, in the order of the document.

    Raises:
        RejectedError: a part is missing, or a figure is neither a whole number, an interval, nor null.
    """
    problems: list[Problem] = []
    found: dict[str, _Figure] = {}

    def add(name: str, value: object, unit: str, reason: object = "") -> None:
        made = _range(value, str(reason or ""))
        if made is None:
            rule = "a figure is a whole number that is not negative, {minimum, maximum}, or null"
            problems.append(Problem(f"{where}.{name}", value, rule, _REMEDY))
        elif len(problems) < 20:
            found[name] = _Figure(made, unit)

    def part(name: str, kind: type) -> Any:
        value = data.get(name)
        if not isinstance(value, kind):
            rule = f"an {'object' if kind is dict else 'array'} is expected"
            problems.append(Problem(f"{where}.{name}", type(value).__name__, rule, _REMEDY))
            return kind()
        return value

    flops, memory, primitives = part("flops", dict), part("memory", dict), part("primitives", dict)
    add("flops.total", flops.get("total"), "FLOPs", flops.get("reason"))
    reasons = flops.get("reasons") if isinstance(flops.get("reasons"), dict) else {}
    for phase, value in _items(flops.get("by_phase")):
        add(f"flops.by_phase.{phase}", value, "FLOPs", reasons.get(phase))
    for (scope, phase), value in _scopes(flops.get("by_scope")).items():
        add(f"flops.by_scope.{scope or '(no scope)'}.{phase}", value, "FLOPs", reasons.get(f"{scope} {phase}"))
    for name, value in _items(primitives):
        if not isinstance(value, dict) or {"minimum", "maximum"} <= value.keys():
            add(f"primitives.{name}", value, "operations")
    why = memory.get("reasons") if isinstance(memory.get("reasons"), dict) else {}
    for name in _MEMORY:
        add(f"memory.{name}", memory.get(name), "bytes", why.get(name))
    if "alias_bytes" in memory:
        add(_ALIAS, memory["alias_bytes"], "bytes")
    for name, value, unit in _collectives(part("collectives", list)):
        add(name, value, unit, "a loop around it has no known count")
    loops = part("loops", list)
    add("loops.count", len(loops), "loops")
    add("loops.trips", _sum(loop.get("total_trips", loop.get("trips")) for loop in loops if isinstance(loop, dict)),
        "trips", "a loop has no known count")  # fmt: skip
    add("unknowns.count", len(part("unknowns", list)), "unknowns")
    add("findings.count", len(part("findings", list)), "findings")
    if problems:
        raise RejectedError(problems[:20])
    return found


def _collectives(rows: Sequence[Any]) -> Iterator[tuple[str, Any, str]]:
    """Executions and bytes (payload: the whole array that moves), in all and by kind and axes."""
    sums: dict[str, list[list[Any]]] = {}
    for row in rows:
        if not isinstance(row, dict):
            row = {}
        axes = row.get("axes")
        # Where no mesh is known the layout of the groups tells collectives apart.
        over = "+".join(map(str, axes)) if isinstance(axes, list) else str(row.get("layout") or "?")
        sides = [_range(row.get(f"total_{side}_bytes"), "") for side in ("operand", "result")]
        known = all(side is not None and side.low is not None and side.high is not None for side in sides)
        for name in ("collectives", f"collectives.{row.get('kind')}[{over}]"):
            found = sums.setdefault(name, [[], []])
            found[0].append(row.get("executions"))
            found[1].append(payload(row) if known else None)
    for name in sorted(sums or {"collectives": []}):
        executions, moved = sums.get(name, [[], []])
        yield f"{name}.executions", _sum(executions), "executions"
        yield f"{name}.bytes", _sum(moved), "bytes"


def _scopes(rows: object) -> dict[tuple[str, str], Any]:
    found: dict[tuple[str, str], Any] = {}
    for row in rows if isinstance(rows, list) else []:
        if isinstance(row, dict):
            found[str(row.get("scope", "")), str(row.get("phase", ""))] = row.get("flops")
    return found


def _items(value: object) -> list[tuple[str, Any]]:
    return [(str(name), item) for name, item in value.items()] if isinstance(value, dict) else []


def _range(value: object, reason: str) -> Range | None:
    """None where the value is no figure."""
    if value is None:
        return Range(None, None, reason)
    if isinstance(value, int) and not isinstance(value, bool):
        return Range(value, value) if value >= 0 else None
    if isinstance(value, dict) and {"minimum", "maximum"} <= value.keys():
        low, high = value["minimum"], value["maximum"]
        if all(end is None or (isinstance(end, int) and not isinstance(end, bool)) for end in (low, high)):
            if (low or 0) < 0 or (high is not None and high < (low or 0)):
                return None
            return Range(low, high, reason or "nothing bounds it from above")
    return None


def _sum(values: Iterable[Any]) -> int | dict[str, int | None] | None:
    low = high = 0
    for value in values:
        made = _range(value, "")
        if made is None or made.low is None or made.high is None:
            return None
        low, high = low + made.low, high + made.high
    return low if low == high else {"minimum": low, "maximum": high}


def _shown(side: Range | None) -> str:
    if side is None:
        return "none"
    ends = ["unknown" if end is None else f"{end:,}" for end in (side.low, side.high)]
    return ends[0] if ends[0] == ends[1] else " to ".join(ends)


def _place(data: Mapping[str, Any]) -> str:
    """What figures per device depend on: the target, or the platform and the number of devices."""
    program = data.get("program")
    program = program if isinstance(program, dict) else {}
    target = program.get("target")
    if isinstance(target, dict) and target.get("text"):
        return str(target["text"])
    count = program.get("device_count")
    return f"{program.get('platform')}, {count} device{'' if count == 1 else 's'}"


def _identity(data: Mapping[str, Any]) -> dict[str, Any]:
    program = data.get("program")
    program = program if isinstance(program, dict) else {}
    environment = program.get("environment")
    environment = environment if isinstance(environment, dict) else {}
    return {
        "name": program.get("name"), "target": _place(data), "module": program.get("module"),
        "digest": program.get("digest"), "versions": dict(environment.get("versions") or {}),
        "jaxcost": data.get("jaxcost"),
    }  # fmt: skip
