"""Where the cost is: by module path, function, source line and phase.

Four columns, of one step on one device:

    flops             contractions and known kernels, trips included
    bytes             what instructions read and write in device memory, trips included
    peak_bytes        what is live at the fullest moment, each buffer once
    collective_bytes  payload: the whole array that moves (the result of a gather, the operand of a reduction)

Each amount has a place by two witnesses: the named scopes of its operation name, and the Python stack that traced it.
So there are two trees over the same amounts, and the root of each is the whole. What has no name lies in a node of its
own, by the modules whose calls are on its stack, and what the reader placed by its neighbours is summed as `inferred`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from jaxcost.audits.evidence import Evidence, Notes
from jaxcost.audits.tree import COLUMNS, UNITS, Node, Value, added, folded, most
from jaxcost.audits.weights import Weights, weights_tree
from jaxcost.observation.hlo.amounts import Amount
from jaxcost.observation.hlo.frames import Frame, Stacks, user_frame
from jaxcost.observation.hlo.memory import LiveBuffer
from jaxcost.observation.hlo.module import Instruction
from jaxcost.observation.hlo.products import placed
from jaxcost.observation.sections import short_path

MOST_NODES = 6000  # of each tree in the document
MOST_ROWS = 1000  # of each list
MOST_DEPTH = 64  # of a scope; a deeper one keeps its tail in one name
NO_SCOPE, NO_SOURCE, RESIDENT = "(no scope)", "(no source)", "(arguments and results)"
_RESIDENT_PHASE = "resident"
_NOTHING = Amount(0, 0)
_MODULE_CALL = re.compile(r"(?:^|\.)(\w+)\.__call__\Z")
# Ends of the names of callable objects that wrap a function.
_WRAPPERS = ("Fn", "Fun", "Function", "Method", "Partial", "Wrapper", "Wrapped", "Transformed", "_jvp", "_vjp")
_FLOPS, _BYTES, _PEAK, _COLLECTIVE = range(len(COLUMNS))


class _Tree:
    """Nodes by (parent, key), parents first."""

    def __init__(self, name: str) -> None:
        self.nodes: list[Node] = [{"parent": None, "name": name, "kind": "root"}]
        self._known: dict[tuple[int, Any], int] = {}

    def child(self, parent: int, key: Any, node: Mapping[str, Any]) -> int:
        found = self._known.get((parent, key))
        if found is None:
            found = self._known[(parent, key)] = len(self.nodes)
            self.nodes.append({"parent": parent, **node})
        return found


class _List:
    """Rows by key."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self._known: dict[Any, int] = {}

    def row(self, key: Any, row: Mapping[str, Any]) -> int:
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = len(self.rows)
            self.rows.append(dict(row))
        return found


class _Accounts:
    """Turns places into the sums they belong to. A sum is named by a tuple, and by a number in `sums`."""

    def __init__(self, stacks: Stacks, short: Mapping[str, str]) -> None:
        self.stacks, self.short = stacks, short
        self.scopes, self.calls = _Tree("program"), _Tree("program")
        self.functions, self.lines = _List(), _List()
        self.sums: dict[tuple[Any, ...], int] = {}
        self.members: list[tuple[int, ...]] = []  # of each place, the sums it is part of
        self._places: dict[tuple[Any, ...], int] = {}
        self._frames: dict[int, int] = {}

    def _place(self, key: tuple[Any, ...], names: Iterable[tuple[Any, ...]]) -> int:
        self._places[key] = place = len(self.members)
        self.members.append(tuple(self.sums.setdefault(name, len(self.sums)) for name in names))
        return place

    def scope(self, scope: str, phase: str, sure: bool) -> int:
        """The place of a scope and a phase."""
        key = (scope, phase, sure)
        place = self._places.get(key)
        if place is not None:
            return place
        parts = tuple(scope.split("/")) if scope else (NO_SCOPE,)
        if len(parts) > MOST_DEPTH:
            parts = (*parts[: MOST_DEPTH - 1], "/".join(parts[MOST_DEPTH - 1 :]))
        names = [*self._path(parts, "scope" if scope else "none", phase), *([] if sure else [("inferred",)])]
        return self._place(key, names)

    def unnamed(self, frame_id: int, phase: str, sure: bool) -> int:
        """The place of what has no scope: below that node the modules whose calls are on its stack, where there are."""
        calls = module_calls(self.stacks.at(frame_id))
        if not calls:
            return self.scope("", phase, sure)
        key = ("unnamed", calls, phase, sure)
        place = self._places.get(key)
        if place is not None:
            return place
        names = [*self._path((NO_SCOPE, *calls), "none", phase), *([] if sure else [("inferred",)])]
        return self._place(key, names)

    def resident(self, parts: tuple[str, ...]) -> tuple[int, int]:
        """The places, in both trees, of what holds its memory throughout."""
        key = ("resident", *parts)
        place = self._places.get(key)
        if place is None:
            place = self._place(key, self._path((RESIDENT, *parts), "resident", _RESIDENT_PHASE))
        key = ("resident source", *parts[:1])
        source = self._places.get(key)
        if source is None:
            source = self._place(key, self._named((RESIDENT, *parts[:1]), "resident"))
        return place, source

    def source(self, frame_id: int) -> int:
        """The place of a stack by the number of its innermost frame."""
        place = self._frames.get(frame_id)
        if place is None:
            stack = self.stacks.at(frame_id)
            key = ("source", stack)
            place = self._places.get(key)
            if place is None:
                place = self._place(key, self._stack(stack) if stack else self._named((NO_SOURCE,), "none"))
            self._frames[frame_id] = place
        return place

    def _path(self, parts: tuple[str, ...], kind: str, phase: str) -> Iterator[tuple[Any, ...]]:
        at = 0
        yield ("phase", phase)
        yield ("scope", at)
        yield ("scope phase", at, phase)
        for depth, name in enumerate(parts):
            here = kind if depth == 0 or kind == "resident" else "called" if kind == "none" else "scope"
            at = self.scopes.child(at, (here, name), {"name": name, "kind": here})
            yield ("scope", at)
            yield ("scope phase", at, phase)
        yield ("scope own", at)

    def _named(self, parts: tuple[str, ...], kind: str) -> Iterator[tuple[Any, ...]]:
        at = 0
        yield ("call", at)
        for name in parts:
            at = self.calls.child(at, (kind, name), {"name": name, "kind": kind})
            yield ("call", at)
        yield ("call own", at)

    def _stack(self, stack: tuple[Frame, ...]) -> Iterator[tuple[Any, ...]]:
        at = 0
        yield ("call", at)
        entered: set[int] = set()
        for frame in reversed(stack):
            at = self.calls.child(at, frame, {**self._shown(frame), "kind": "library" if frame.library else "call"})
            yield ("call", at)
            function = self._function(frame)
            if function not in entered:
                entered.add(function)
                yield ("function", function)
        yield ("call own", at)
        own = user_frame(stack)
        if own is not None:
            yield ("function own", self._function(own))
            yield ("line", self.lines.row((own.file, own.function, own.line), self._shown(own)))

    def _function(self, frame: Frame) -> int:
        shown = {"name": frame.function, "file": self.short[frame.file], "library": frame.library}
        return self.functions.row((frame.file, frame.function), shown)

    def _shown(self, frame: Frame) -> dict[str, Any]:
        return {"name": frame.function or "(no name)", "file": self.short[frame.file], "line": frame.line}


class _Reader:
    def __init__(self, evidence: Evidence) -> None:
        self.evidence, self.graph, self.reading = evidence, evidence.graph, evidence.reading
        self.counts = self.graph.executions.counts()
        names = self.graph.module.proto.stack_frame_index.file_names
        self.accounts = _Accounts(evidence.stacks, short_paths(names))
        # computation -> column -> place -> bytes or FLOPs of one execution
        self.once: dict[int, list[dict[int, int]]] = {}
        self.unknown: list[tuple[int, int, str]] = []

    def places(self, at: Instruction | None, scope: str, phase: str, sure: bool) -> tuple[int, int]:
        """The places of an amount in both trees."""
        frame_id = _frame_id(at) if at is not None else 0
        if not scope and frame_id:
            return self.accounts.unnamed(frame_id, phase, sure), self.accounts.source(frame_id)
        return self.accounts.scope(scope, phase, sure), self.accounts.source(frame_id)

    def add(self, at: Instruction, column: int, places: tuple[int, int], amount: int) -> None:
        columns = self.once.get(at.computation.id)
        if columns is None:
            columns = self.once[at.computation.id] = [{} for _ in COLUMNS]
        own = columns[column]
        for place in places:
            own[place] = own.get(place, 0) + amount

    def flops(self) -> None:
        found, instructions = self.evidence.work, self.graph.module.instructions
        products = {row.id: row for row in self.reading.contractions.rows}
        for row in found.rows:
            product = products.get(row.id)
            shares = placed(product) if product is not None else [(row.scope, row.flops)]
            sure = product is None or product.scope_exact
            for scope, flops in shares:
                self.add(instructions[row.id], _FLOPS, self.places(instructions[row.id], scope, row.phase, sure), flops)
        named = {unknown.name for unknown in found.unknowns}
        made = {at.name: at for at in self.graph.module.walk() if at.name in named}
        for unknown in found.unknowns:
            if unknown.voids and unknown.kind != "loop":  # what an uncounted loop holds is unknown by itself
                reason = f"{unknown.name} ({unknown.target}): {unknown.reason}"
                for place in self.places(made.get(unknown.name), unknown.scope, unknown.phase, True):
                    self.unknown.append((place, _FLOPS, reason))

    def bytes(self) -> None:
        for number, amount in self.graph.moved_bytes.items():
            if amount:
                at = self.graph.module.instructions[number]
                place = self.graph.places.of(at)
                self.add(at, _BYTES, self.places(at, place.scope, place.phase, place.exact), amount)

    def collectives(self) -> None:
        for row in self.reading.collectives.rows:
            at = self.graph.module.instructions[row.id]
            # Elements alone, as in the rows of `collectives`: a row's own bytes are as stored, tiles padded.
            whole = max(sum(p.operand_bytes for p in row.parts), sum(p.result_bytes for p in row.parts))
            amounts = [max(p.operand_bytes, p.result_bytes) for p in row.parts]
            found = [(row.scope, row.phase, whole)]
            if sum(amounts) == whole and all(p.scope for p in row.parts):
                found = [(p.scope, p.phase, amount) for p, amount in zip(row.parts, amounts, strict=True)]
            for scope, phase, amount in found:
                self.add(at, _COLLECTIVE, self.places(at, scope, phase, row.scope_exact), amount)

    def peak(self) -> Iterator[tuple[tuple[int, int], int]]:
        live = self.reading.memory.live
        named = {name for row in live for name in (row.instruction, row.value) if name}
        made = {at.name: at for at in self.graph.module.walk() if at.name in named}
        for row in live:
            if row.kind == "temporary" or row.scope:
                value = made.get(row.value)
                told = value if value is not None and value.op_name and value.opcode != "parameter" else None
                yield self.places(told or made.get(row.instruction), row.scope, row.phase, row.scope_exact), row.bytes
            else:
                yield self.accounts.resident(_argument(row)), row.bytes

    def totals(self) -> dict[int, Amount]:
        """Every sum of every column, under the number of the sum times the number of columns plus the column."""
        members, width = self.accounts.members, len(COLUMNS)
        own: dict[int, dict[int, int]] = {}
        for computation in self.graph.module.computations:
            sums: dict[int, int] = {}
            for column, leaves in enumerate(self.once.get(computation.id, ())):
                for place, amount in leaves.items():
                    for name in members[place]:
                        key = name * width + column
                        sums[key] = sums.get(key, 0) + amount
            if sums:
                own[computation.instructions[0].id] = sums
        found = self._amounts(own)
        for place, column, reason in self.unknown:
            for name in members[place]:
                key = name * width + column
                found[key] = Amount(found[key].minimum if key in found else 0, None, reason)
        if self.reading.memory.live_peak_bytes is not None:
            peak: dict[int, int] = {}
            for places, amount in self.peak():
                for place in places:
                    for name in members[place]:
                        peak[name] = peak.get(name, 0) + amount
            found.update({name * width + _PEAK: Amount(amount, amount) for name, amount in peak.items()})
        return found

    def _amounts(self, own: Mapping[int, Mapping[int, int]]) -> dict[int, Amount]:
        """The sums over the program, and what is certain of those that are unknown."""
        totals = self.graph.executions.totals(own)
        certain: dict[int, int] = {}
        if any(total.minimum is None for total in totals.values()):
            for number, sums in own.items():
                times = self.counts[self.graph.module.instructions[number].computation.id].minimum or 0
                for key, amount in sums.items():
                    certain[key] = certain.get(key, 0) + times * amount
        return {
            key: Amount(certain.get(key, 0), None, total.reason)
            if total.minimum is None
            else Amount(total.minimum, total.maximum)
            for key, total in totals.items()
        }


def module_calls(stack: Sequence[Frame]) -> tuple[str, ...]:
    """The modules whose `__call__` is on a stack, the outermost first, each with the line in the one above it.

    A framework that names no operations (Flax NNX, a class of one's own) still has its modules there. Wrappers of
    functions are callable objects too, and are left out where their names say so.
    """
    calls: list[str] = []
    above: Frame | None = None
    for frame in reversed(stack):
        match = _MODULE_CALL.search(frame.function)
        if match is None or match[1].startswith("_") or match[1].endswith(_WRAPPERS):
            continue
        calls.append(f"{match[1]}.__call__" + (f" (line {above.line})" if above is not None else ""))
        above = frame
    return tuple(calls[: MOST_DEPTH - 1])


def _frame_id(at: Instruction) -> int:
    """The innermost frame of an instruction; of a fusion without one, that of what it ends in, or of what it holds."""
    found: int = at.metadata.stack_frame_id
    if found or at.opcode not in ("fusion", "call", "async-start") or not at.called:
        return found
    inside = at.called[0]
    held = (inner.metadata.stack_frame_id for inner in (inside.root, *reversed(inside.instructions)))
    return next((frame_id for frame_id in held if frame_id), 0)


def _argument(row: LiveBuffer) -> tuple[str, ...]:
    """The place of what is resident: its class, then the names in its path."""
    kind = row.class_ if row.kind == "parameter" else row.kind
    words = "".join(c if c.isalnum() or c == "_" else " " for c in row.op_name).split()
    return (kind.replace("_", " "), *words[: MOST_DEPTH - 2])


def short_paths(names: Iterable[str]) -> dict[str, str]:
    """Each path without the machine's directories; where two would read alike, as much of each as tells them apart."""
    wanted = list(dict.fromkeys(names))
    short = {name: short_path(name) for name in wanted}
    for _ in range(32):
        groups: dict[str, list[str]] = {}
        for name, text in short.items():
            groups.setdefault(text, []).append(name)
        same = [group for group in groups.values() if len(group) > 1]
        if not same:
            break
        for name in (name for group in same for name in group):
            depth = short[name].count("/") + 2
            short[name] = "/".join(name.rsplit("/", depth)[-depth:]).lstrip("/")
    return short


def _value(amount: Amount) -> Value:
    return amount.minimum if amount.value is not None else {"minimum": amount.minimum, "maximum": amount.maximum}


def section(evidence: Evidence, notes: Notes) -> dict[str, Any]:
    """Return two trees, two lists and the phases, each over the four columns.

    `columns`: of each column its unit, its total (None with a reason), and how much of it has no scope (`no_scope`), no
    source (`no_source`) or a scope told by its neighbours (`inferred`). `scopes` and `calls` are trees (see
    `audits.tree`); a node of `scopes` has its `phases`, one of `calls` its file and line; `weights` is a third tree, of
    FLOPs alone, by the argument that a product multiplies (`audits.weights`). `functions` have what was
    traced in them (`own`: by the innermost function of the program's own code) and below them (`total`); `lines` are
    the innermost lines of the program's own code. Beyond MOST_NODES and MOST_ROWS the smallest are summed in one.
    What is only known in part is {"minimum", "maximum"}, `maximum` None where there is no bound.
    """
    reader = _Reader(evidence)
    reader.flops()
    reader.bytes()
    reader.collectives()
    totals = reader.totals()
    accounts = reader.accounts

    def total(column: int, *name: Any) -> Amount:
        return totals.get(accounts.sums.get(name, -1) * len(COLUMNS) + column, _NOTHING)

    def amounts(*name: Any) -> dict[str, Value]:
        found = {column: _value(total(i, *name)) for i, column in enumerate(COLUMNS)}
        return {column: value for column, value in found.items() if value != 0}

    phases = sorted(name[1] for name in accounts.sums if name[0] == "phase")
    scopes = [
        {
            **node, "total": amounts("scope", i), "own": amounts("scope own", i),
            "phases": {p: found for p in phases if (found := amounts("scope phase", i, p))},
        }
        for i, node in enumerate(accounts.scopes.nodes)
    ]  # fmt: skip
    calls = [
        {**node, "total": amounts("call", i), "own": amounts("call own", i)}
        for i, node in enumerate(accounts.calls.nodes)
    ]
    functions = [
        {**row, "total": amounts("function", i), "own": amounts("function own", i)}
        for i, row in enumerate(accounts.functions.rows)
    ]
    lines = [{**row, "total": amounts("line", i)} for i, row in enumerate(accounts.lines.rows)]
    return {
        "columns": _columns(evidence, total, scopes, calls),
        "phases": {phase: amounts("phase", phase) for phase in phases},
        "scopes": folded(scopes, MOST_NODES),
        "calls": folded(calls, MOST_NODES),
        "weights": folded(weights_tree(Weights(evidence)), MOST_NODES),
        "functions": _largest(functions, scopes[0]),
        "lines": _largest(lines, scopes[0]),
    }


def _columns(
    evidence: Evidence, total: Callable[..., Amount], scopes: list[Node], calls: list[Node]
) -> dict[str, dict[str, Any]]:
    missing: dict[str, Mapping[str, Value]] = {
        "no_scope": next((n["total"] for n in scopes if n["kind"] == "none"), {}),
        "no_source": next((n["total"] for n in calls if n["kind"] == "none"), {}),
    }
    memory = evidence.reading.memory
    columns: dict[str, dict[str, Any]] = {}
    for i, column in enumerate(COLUMNS):
        whole = total(i, "scope", 0)
        if column == "peak_bytes" and memory.live_peak_bytes is None:
            reason = memory.reasons.get("live_peak_bytes", "the fullest moment is not known")
            columns[column] = {"unit": UNITS[column], "total": None, "reason": reason}
            continue
        columns[column] = {
            "unit": UNITS[column], "total": None if whole.maximum is None else _value(whole),
            **({"minimum": whole.minimum, "reason": whole.reason} if whole.maximum is None else {}),
            **{name: found.get(column, 0) for name, found in missing.items()},
            "inferred": _value(total(i, "inferred")),
        }  # fmt: skip
    return columns


def _largest(rows: list[dict[str, Any]], root: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Rows by FLOPs, then bytes, the largest first; those beyond MOST_ROWS in one (of lines: `total` adds up)."""

    def order(row: Mapping[str, Any]) -> tuple[int, ...]:
        return tuple(-(most(row["total"].get(column, 0)) or 0) for column in COLUMNS)

    rows = sorted((row for row in rows if row["total"]), key=order)
    if len(rows) <= MOST_ROWS:
        return rows
    rest = rows[MOST_ROWS:]
    merged: dict[str, Any] = {"name": f"({len(rest):,} smaller)"}
    for part in ("total", "own"):
        if part in rest[0]:
            merged[part] = {column: added(row[part].get(column, 0) for row in rest) for column in COLUMNS}
    return [*rows[:MOST_ROWS], merged]
