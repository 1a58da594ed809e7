"""The instructions of a module as columns, and what must hold of them before anything is made of them.

A large module has hundreds of thousands of instructions and few distinct shapes, opcodes and metadata. What can be
asked of all instructions together is asked of arrays here; `module` makes the objects, when they are asked for.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from jaxcost.contracts.errors import Problem, RejectedError
from jaxcost.observation.hlo.opcodes import KNOWN_OPCODES, called_by, operands_of
from jaxcost.observation.hlo.schema import NOTHING, Split, part
from jaxcost.observation.hlo.shapes import Shape, read_shape

REMEDY = "the dump is damaged or hand-edited: dump the module again"
MAX_CALL_DEPTH = 128  # computations that call one another; the deepest met is 9
MAX_DEVICES = 1 << 20
_MAX_PROBLEMS = 20
_MOST = 1 << 62

Ints: TypeAlias = NDArray[np.int64]
Bools: TypeAlias = NDArray[np.bool_]


class Table:
    """All instructions, numbered from 0 in the order of the module; those of computation c are `starts[c]` to
    `starts[c + 1]`.

    `operands` are the numbers of all operands, those of instruction i from `operand_ends[i - 1]` to `operand_ends[i]`.
    `called` are the positions of the computations that some instructions call, by number; `calling` the numbers of
    those instructions in each computation, `callers` of those that call it.
    `numbers` are parameter numbers and tuple indices, 0 for what has neither. `roots` and `entry` are numbers and a
    position.

    Raises RejectedError when the module does not hold together, calls more than MAX_CALL_DEPTH deep, or is for more
    than MAX_DEVICES devices.
    """

    def __init__(self, parts: Split) -> None:
        self.proto, self.raw, self.total = parts.module, parts.raw, len(parts.raw)
        self.problems: list[Problem] = []
        self.unknowns = Counter({f"field {name}": count for name, count in parts.unknown.items()})
        if not self.total:
            raise RejectedError([Problem("hlo", 0, "a module has at least one instruction", REMEDY)])
        self.parts = parts
        self.computations = parts.computations
        self.starts: Ints = np.array(parts.starts, dtype=np.int64)
        self.sizes = np.diff(self.starts)
        self.owners = np.repeat(np.arange(len(self.sizes)), self.sizes)
        self.ids = self.last(parts.columns.id)
        self.opcodes, self.metadata, self.shape_bytes = parts.opcodes, parts.metadata, parts.shapes

        self.opcode_of = {opcode: opcode for opcode in self.opcodes}
        self.kinds = _numbered(self.opcode_of, self.opcodes)
        self.ordered, self.order = self.unique()
        self.operand_counts, self.operands = self.read_operands()
        self.operand_ends: Ints = np.cumsum(self.operand_counts)
        self.shape_of = self.read_shapes()
        self.shape_numbers = _numbered(self.shape_of, self.shape_bytes)
        self.called_counts, self.called = self.read_called()
        self.numbers = self.read_numbers()
        self.calling: list[list[int]] = [[] for _ in self.computations]
        self.callers: list[list[int]] = [[] for _ in self.computations]
        owners = self.owners[list(self.called)].tolist() if self.called else []
        for owner, (number, callees) in zip(owners, self.called.items(), strict=True):
            self.calling[owner].append(number)
            for callee in callees:
                self.callers[callee].append(number)
        self.check_counts()
        self.parameter_counts = self.check_parameters()
        self.check_frames()
        self.check_limits()
        self.roots = self.read_roots()
        self.entry = self.read_entry()

    @cached_property
    def names(self) -> list[str]:
        """The names of the instructions."""
        return self.parts.names

    # Problems -----------------------------------------------------------------------------------------------------

    def problem(self, path: str, value: object, rule: str) -> None:
        self.problems.append(Problem(path, value, rule, REMEDY))
        if len(self.problems) >= _MAX_PROBLEMS:
            raise RejectedError(self.problems)

    def path(self, number: int) -> str:
        """Where the instruction of that number stands."""
        position = bisect_right(self.parts.starts, number) - 1
        return f"hlo.{self.computations[position].name}.{self.names[number]}"

    def stop(self) -> None:
        if self.problems:
            raise RejectedError(self.problems)

    def of_kind(self, *opcodes: str) -> Bools:
        """Which instructions have one of the opcodes."""
        codes = [code for code, opcode in enumerate(self.opcode_of) if opcode in opcodes]
        return np.isin(self.kinds, codes)

    # The columns --------------------------------------------------------------------------------------------------

    def unique(self) -> tuple[Ints, Ints]:
        """The ids in order, and the number of the instruction of each."""
        order = np.argsort(self.ids, kind="stable")
        ordered = self.ids[order]
        for twice in np.flatnonzero(ordered[1:] == ordered[:-1])[:_MAX_PROBLEMS].tolist():
            number = int(order[twice + 1])
            self.problem(self.path(number), int(self.ids[number]), "instruction ids must be unique")
        self.stop()
        return ordered, order

    def numbers_of(self, ids: Ints) -> tuple[Ints, Bools]:
        """The numbers of the instructions of those ids, and which ids there are."""
        place = np.minimum(np.searchsorted(self.ordered, ids), self.total - 1)
        return self.order[place], self.ordered[place] == ids

    def ended(self, column: Any) -> tuple[Ints, Ints, Ints]:
        """A column of several items for each instruction: (items, where each one's end, how many each has)."""
        flat = np.fromiter(column[:], dtype=np.int64, count=len(column))
        ends = np.flatnonzero(flat == NOTHING)
        if len(ends) != self.total:
            raise RejectedError([Problem("hlo", NOTHING, "ids, indices and numbers must not be negative", REMEDY)])
        return flat, ends, np.diff(ends, prepend=-1) - 1

    def read_operands(self) -> tuple[Ints, Ints]:
        """How many operands each instruction has, and the numbers of them all."""
        flat, ends, counts = self.ended(self.parts.columns.operand_ids)
        wanted = np.delete(flat, ends)
        found, there = self.numbers_of(wanted)
        of = np.repeat(np.arange(self.total), counts)
        bad = ~there | (found >= of) | (found < self.starts[self.owners[of]])
        for number in dict.fromkeys(of[bad].tolist()):
            start = int(counts[:number].sum())
            self.problem(
                self.path(number), wanted[start : start + int(counts[number])].tolist(),
                "operands must come before, in the same computation",
            )  # fmt: skip
        self.stop()
        return counts, found

    def read_shapes(self) -> dict[bytes, Shape]:
        """The shape of each distinct string of bytes."""
        found = {raw: read_shape(part("ShapeProto", raw)) for raw in dict.fromkeys(self.shape_bytes)}
        dynamic = sum(shape.dynamic for shape in found.values())
        if dynamic:
            self.unknowns["dynamic dimension (bounded size counted)"] = dynamic
        return found

    def read_called(self) -> tuple[Ints, dict[int, tuple[int, ...]]]:
        """How many computations each instruction calls, and the positions of those of each that calls any."""
        flat, ends, counts = self.ended(self.parts.columns.called_computation_ids)
        known: dict[int, int] = {}
        for position, (identity, *_) in enumerate(self.computations):
            if identity in known:
                self.problem(f"hlo.{self.computations[position].name}", identity, "computation ids must be unique")
            known[identity] = position
        numbers, nowhere = np.flatnonzero(counts), len(known)
        wanted = np.delete(flat, ends).tolist()
        found = [known.get(identity, nowhere) for identity in wanted]
        many = counts[numbers]
        last = np.cumsum(many)
        bad = np.flatnonzero(np.array(found, dtype=np.int64) >= np.repeat(self.owners[numbers], many))
        for at in dict.fromkeys(np.searchsorted(last, bad, side="right").tolist()):
            of = wanted[int(last[at]) - int(many[at]) : int(last[at])]
            self.problem(self.path(int(numbers[at])), of, "called computations must come before")
        self.stop()
        ends_at = last.tolist()
        return counts, {
            number: tuple(found[start:end])
            for number, start, end in zip(numbers.tolist(), [0, *ends_at], ends_at, strict=False)
        }

    def read_numbers(self) -> Ints:
        parameter, index = self.last(self.parts.columns.parameter_number), self.last(self.parts.columns.tuple_index)
        return np.where(self.of_kind("parameter"), parameter, np.where(index != 0, index, parameter))

    def last(self, column: Any) -> Ints:
        """A column of one item at most for each instruction, 0 where there is none."""
        flat, ends, counts = self.ended(column)
        return np.where(counts > 0, flat[ends - 1], 0)

    # What must hold -----------------------------------------------------------------------------------------------

    def check_counts(self) -> None:
        """How many operands and computations each opcode takes; which opcodes are not known."""
        used = np.bincount(self.kinds, minlength=len(self.opcode_of)).tolist()
        self.unknowns.update(
            {f"opcode {opcode!r}": n for opcode, n in zip(self.opcode_of, used, strict=True)
             if opcode not in KNOWN_OPCODES}
        )  # fmt: skip
        wrong = np.zeros(self.total, dtype=np.bool_)
        rules = (("operands", operands_of, self.operand_counts), ("computations", called_by, self.called_counts))
        for _, bounds, counts in rules:
            limits = np.array([[min(end, _MOST) for end in bounds(opcode)] for opcode in self.opcode_of])
            wrong |= (counts < limits[self.kinds, 0]) | (counts > limits[self.kinds, 1])
        for number in np.flatnonzero(wrong).tolist():
            opcode = self.opcodes[number]
            for what, bounds, counts in rules:
                (low, high), many = bounds(opcode), int(counts[number])
                if not low <= many <= high:
                    verb, more = "takes" if what == "operands" else "calls", "" if low == high else " or more"
                    self.problem(self.path(number), many, f"{opcode} {verb} {low}{more} {what}")
                    break
        self.stop()

    def check_parameters(self) -> Ints:
        """How many parameters each computation has; they are numbered from 0 on."""
        chosen = np.flatnonzero(self.of_kind("parameter"))
        owners, numbers = self.owners[chosen], self.numbers[chosen]
        counts = np.bincount(owners, minlength=len(self.sizes))
        bad = (numbers < 0) | (numbers >= counts[owners])
        places = np.where(bad, 0, (np.cumsum(counts) - counts)[owners] + numbers)
        bad |= np.bincount(places[~bad], minlength=len(chosen))[places] > 1
        for position in np.unique(owners[bad]).tolist():
            given = numbers[owners == position].tolist()
            whole = len(set(given)) == len(given) and min(given) >= 0
            self.problem(
                f"hlo.{self.computations[position].name}", given[:8],
                "parameters must be numbered from 0 without gaps" if whole
                else "parameter numbers must be unique and not negative",
            )  # fmt: skip
        return counts

    def check_frames(self) -> None:
        """What tuples and calls must agree on."""
        elements = np.array([len(shape.elements) for shape in self.shape_of.values()])[self.shape_numbers]
        chosen = np.flatnonzero(self.of_kind("get-tuple-element"))
        given = self.operands[self.operand_ends[chosen] - 1]
        for at in np.flatnonzero((self.numbers[chosen] < 0) | (self.numbers[chosen] >= elements[given])).tolist():
            number, shape = int(chosen[at]), self.shape_of[self.shape_bytes[int(given[at])]]
            self.problem(self.path(number), int(self.numbers[number]), f"must index {shape}")
        for number in np.flatnonzero(self.of_kind("tuple") & (elements != self.operand_counts)).tolist():
            rule = f"must have {int(self.operand_counts[number])} elements"
            self.problem(self.path(number), str(self.shape_of[self.shape_bytes[number]]), rule)
        taken, many = self.parameter_counts.tolist(), self.operand_counts.tolist()
        for number in np.flatnonzero(self.of_kind("fusion", "call")).tolist():
            callee = self.called[number][0]
            if taken[callee] != many[number]:
                rule = f"{self.computations[callee].name} takes {taken[callee]} operands"
                self.problem(self.path(number), many[number], rule)
        for number in np.flatnonzero(self.of_kind("while")).tolist():
            if any(taken[callee] != 1 for callee in self.called[number]):
                rule = "a loop's body and condition take one parameter"
                self.problem(self.path(number), [self.computations[c].name for c in self.called[number]], rule)

    def check_limits(self) -> None:
        """How deep computations call one another, and how many devices there are."""
        depth = [1] * len(self.sizes)
        for owner, calling in enumerate(self.calling):
            for number in calling:
                depth[owner] = max(depth[owner], *(1 + depth[callee] for callee in self.called[number]))
        for position, own in enumerate(depth):
            if own > MAX_CALL_DEPTH:
                rule = f"computations call one another at most {MAX_CALL_DEPTH} deep"
                raise RejectedError([Problem(f"hlo.{self.computations[position].name}", own, rule, REMEDY)])
        assignment = self.proto.device_assignment
        counts = (assignment.replica_count, assignment.computation_count)
        if min(counts) < 0 or max(1, counts[0]) * max(1, counts[1]) > MAX_DEVICES:
            self.problem("hlo.device_assignment", list(counts), f"0 to {MAX_DEVICES} devices")

    def read_roots(self) -> list[int]:
        """The number of the root of each computation."""
        identities = np.array([computation.root_id for computation in self.computations], dtype=np.int64)
        found, there = self.numbers_of(identities)
        for position in np.flatnonzero(~there | (self.owners[found] != np.arange(len(found)))).tolist():
            rule = "the root must be an instruction of the computation"
            self.problem(f"hlo.{self.computations[position].name}", int(identities[position]), rule)
        roots: list[int] = found.tolist()
        return roots

    def read_entry(self) -> int:
        """The position of the entry."""
        wanted = self.proto.entry_computation_id
        found = next((n for n, computation in enumerate(self.computations) if computation.id == wanted), None)
        if found is not None:
            self.stop()
            return found
        if not self.problems:
            self.problem("hlo.entry_computation_id", wanted, "must be a computation of the module")
        raise RejectedError(self.problems)


def _numbered(known: dict[Any, Any], column: list[Any]) -> Ints:
    """For each item of a column its place among the distinct ones."""
    places = {value: place for place, value in enumerate(known)}
    return np.fromiter(map(places.__getitem__, column), dtype=np.int64, count=len(column))
