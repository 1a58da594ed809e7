"""A compiled module as a graph: computations, instructions, operands, users, callers.

XLA writes a computation after the computations it calls and an instruction after its operands, and its own reader
insists on it. This one does too, so everything downstream may recurse without fear of a cycle; what breaks the order,
or refers to something absent, is rejected.
"""

from __future__ import annotations

import gc
import json
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain, repeat
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from jaxcost.contracts.errors import Problem, RejectedError
from jaxcost.observation.hlo.opcodes import KNOWN_OPCODES, called_by, operands_of
from jaxcost.observation.hlo.schema import NOTHING, Proto, Split, part, split
from jaxcost.observation.hlo.shapes import Shape, read_shape

_REMEDY = "the dump is damaged or hand-edited: dump the module again"
_MAX_PROBLEMS = 20
MAX_CALL_DEPTH = 128  # computations that call one another; the deepest met is 9
MAX_DEVICES = 1 << 20
_RULED = frozenset("get-tuple-element tuple fusion call while".split())

Ints: TypeAlias = NDArray[np.int64]
T = TypeVar("T")


class Instruction:
    """One instruction. `operands` and `users` lie in the same computation.

    `metadata` is its OpMetadata; `number` the parameter number or tuple index of what has one, else 0; `proto` the
    whole HloInstructionProto, for the rarer fields. `proto` and `users` are made when they are first asked for.
    Instructions are made by `read_module` alone, which sets their slots: an initialiser would be a third of its time.
    """

    __slots__ = (
        "called", "computation", "id", "metadata", "name", "number", "op_name", "opcode", "operands", "proto", "raw",
        "shape", "users",
    )  # fmt: skip
    id: int
    name: str
    opcode: str
    shape: Shape
    op_name: str
    metadata: Proto
    number: int
    computation: Computation
    operands: tuple[Instruction, ...]
    called: tuple[Computation, ...]
    users: list[Instruction]
    proto: Proto
    raw: bytes

    def __getattr__(self, name: str) -> Any:
        # Only reached while a slot is empty.
        if name == "proto":
            self.proto = part("HloInstructionProto", self.raw)
            return self.proto
        if name == "users":
            self.computation.link()
            return self.users
        raise AttributeError(name)

    def backend_config(self) -> dict[str, Any]:
        """The JSON of the backend configuration, not to be changed; {} when there is none or it is of another form."""
        return _json(self.proto.backend_config)

    def __repr__(self) -> str:
        return f"<{self.name}: {self.shape} {self.opcode}>"


@lru_cache(maxsize=4096)
def _json(raw: bytes) -> dict[str, Any]:
    if not raw.startswith(b"{"):
        return {}
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


@dataclass(eq=False, slots=True)
class Computation:
    """A list of instructions in dependency order; `callers` are the instructions that call it."""

    id: int
    name: str
    is_fusion: bool
    thread: str
    instructions: list[Instruction] = field(default_factory=list)
    parameters: dict[int, Instruction] = field(default_factory=dict)
    callers: list[Instruction] = field(default_factory=list)
    root: Instruction = field(init=False)

    def link(self) -> None:
        """Find the users of every instruction."""
        for at in self.instructions:
            at.users = []
        for at in self.instructions:
            for operand in at.operands:
                operand.users.append(at)

    def __repr__(self) -> str:
        return f"<computation {self.name}>"


@dataclass(eq=False, slots=True)
class Module:
    """The whole program. `computations` is ordered callees first; `unknowns` names what this reader did not know."""

    name: str
    proto: Proto
    computations: list[Computation]
    instructions: dict[int, Instruction]
    entry: Computation
    unknowns: list[str]

    def walk(self) -> Iterator[Instruction]:
        """All instructions, callees first."""
        return iter(self.instructions.values())

    def source(self, instruction: Instruction) -> str:
        """`file:line` of the user's code that made the instruction, or '' when the compiler kept none."""
        index = self.proto.stack_frame_index
        frame_id = instruction.metadata.stack_frame_id
        if not 1 <= frame_id <= len(index.stack_frames):
            # Earlier versions wrote the place itself.
            file, line = instruction.metadata.source_file, instruction.metadata.source_line
            return f"{file}:{line}" if file else ""
        location_id = index.stack_frames[frame_id - 1].file_location_id
        if not 1 <= location_id <= len(index.file_locations):
            return ""
        location = index.file_locations[location_id - 1]
        if not 1 <= location.file_name_id <= len(index.file_names):
            return ""
        return f"{index.file_names[location.file_name_id - 1]}:{location.line}"

    @property
    def device_ids(self) -> tuple[int, ...]:
        """Physical ids of the program's devices in logical order; empty without a device assignment of one replica."""
        computations = self.proto.device_assignment.computation_devices
        if any(len(computation.replica_device_ids) != 1 for computation in computations):
            return ()
        return tuple(computation.replica_device_ids[0] for computation in computations)

    @property
    def device_count(self) -> int:
        """Devices of the program by its device assignment; 1 when it has none."""
        assignment = self.proto.device_assignment
        devices: int = max(1, assignment.replica_count) * max(1, assignment.computation_count)
        return devices


class _Once(dict[bytes, T]):
    """What is made of bytes, once for all that are the same."""

    def __init__(self, make: Callable[[bytes], T]) -> None:
        self.make = make

    def __missing__(self, raw: bytes) -> T:
        made = self[raw] = self.make(raw)
        return made


def _metadata(raw: bytes) -> tuple[Proto, str]:
    found = part("OpMetadata", raw)
    return found, found.op_name


class _Builder:
    """Columns first, objects last: what can be asked of all instructions together is asked of lists and arrays."""

    def __init__(self, parts: Split) -> None:
        self.proto = parts.module
        self.problems: list[Problem] = []
        self.unknowns = Counter({f"field {name}": count for name, count in parts.unknown.items()})
        self.parts, self.raw, self.starts = parts, parts.raw, parts.starts
        self.computations: list[Computation] = []
        self.roots: list[int] = []
        for computation in self.proto.computations:
            self.roots.append(computation.root_id)
            self.computations.append(
                Computation(
                    computation.id, computation.name, computation.is_fusion_computation, computation.execution_thread
                )
            )
        self.names: list[str] = []
        self.made: list[Instruction] = []

    def problem(self, path: str, value: object, rule: str) -> None:
        self.problems.append(Problem(path, value, rule, _REMEDY))
        if len(self.problems) >= _MAX_PROBLEMS:
            raise RejectedError(self.problems)

    def path(self, number: int) -> str:
        """Where the instruction of that number stands."""
        return f"hlo.{self.computations[bisect_right(self.starts, number) - 1].name}.{self.names[number]}"

    def stop(self) -> None:
        if self.problems:
            raise RejectedError(self.problems)

    def unique(self, ids: Ints) -> tuple[Ints, Ints]:
        """The ids in order, and the number of the instruction of each."""
        order = np.argsort(ids, kind="stable")
        ordered = ids[order]
        for twice in np.flatnonzero(ordered[1:] == ordered[:-1])[:_MAX_PROBLEMS].tolist():
            number = int(order[twice + 1])
            self.problem(self.path(number), int(ids[number]), "instruction ids must be unique")
        self.stop()
        return ordered, order

    def operands(self, flat: Ints, ends: Ints, counts: Ints, ordered: Ints, order: Ints) -> list[int]:
        """The numbers of all operands, one list."""
        wanted = np.delete(flat, ends)
        place = np.minimum(np.searchsorted(ordered, wanted), len(ordered) - 1)
        found = order[place]
        of = np.repeat(np.arange(len(counts)), counts)
        first = np.repeat(self.starts[:-1], np.diff(self.starts))[of]
        bad = (ordered[place] != wanted) | (found >= of) | (found < first)
        for number in dict.fromkeys(of[bad].tolist()):
            start = int(counts[:number].sum())
            self.problem(
                self.path(number), wanted[start : start + int(counts[number])].tolist(),
                "operands must come before, in the same computation",
            )  # fmt: skip
        self.stop()
        return found.tolist()  # type: ignore[no-any-return]

    def build(self) -> Module:
        total = len(self.raw)
        if not total:
            raise RejectedError([Problem("hlo", 0, "a module has at least one instruction", _REMEDY)])
        fields = _Fields(self.parts)
        self.names = fields.names
        ids = fields.ids
        ordered, order = self.unique(ids)
        flat, ends, counts = fields.operands
        operand_numbers = self.operands(flat, ends, counts, ordered, order)
        shapes = self.shapes(fields.shapes)
        called = self.called(*fields.called)
        # What is the same for many is looked up once for each, and made once for all alike.
        metadata = _Once(_metadata)
        same: dict[str, str] = {}
        opcodes = list(map(same.setdefault, fields.opcodes, fields.opcodes))
        owners = chain.from_iterable(map(repeat, self.computations, np.diff(self.starts).tolist()))
        made = self.made = list(map(object.__new__, repeat(Instruction, total)))
        operands = tuple(map(made.__getitem__, operand_numbers))
        listed, last = fields.listed, 0
        for (
            at, at.id, at.name, at.opcode, at.shape, (at.metadata, at.op_name), at.number, at.computation, at.raw, end,
        ) in zip(
            made, listed, self.names, opcodes, shapes, map(metadata.__getitem__, fields.metadata),
            fields.numbers, owners, self.raw, np.cumsum(counts).tolist(), strict=True,
        ):  # fmt: skip
            at.operands = operands[last:end]
            at.called = ()
            last = end
        for number, callees in called.items():
            made[number].called = callees
            for callee in callees:
                callee.callers.append(made[number])
        self.count_rules(opcodes, counts, fields.called[2])
        self.fill(opcodes, fields.numbers)
        self.rules(opcodes)
        self.limits()
        return self.module(dict(zip(listed, made, strict=True)))

    def shapes(self, raw: list[bytes]) -> list[Shape]:
        known = _Once(lambda one: read_shape(part("ShapeProto", one)))
        found = list(map(known.__getitem__, raw))
        dynamic = sum(shape.dynamic for shape in known.values())
        if dynamic:
            self.unknowns["dynamic dimension (bounded size counted)"] = dynamic
        return found

    def called(self, flat: Ints, ends: Ints, counts: Ints) -> dict[int, tuple[Computation, ...]]:
        """What is called, by the number of the instruction."""
        known: dict[int, int] = {}
        for position, computation in enumerate(self.computations):
            if computation.id in known:
                self.problem(f"hlo.{computation.name}", computation.id, "computation ids must be unique")
            known[computation.id] = position
        numbers, nowhere = np.flatnonzero(counts), len(self.computations)
        wanted = np.delete(flat, ends).tolist()
        found = [known.get(id, nowhere) for id in wanted]
        own = np.searchsorted(np.array(self.starts), numbers, side="right") - 1
        last = np.cumsum(counts[numbers])
        bad = np.flatnonzero(np.array(found, dtype=np.int64) >= np.repeat(own, counts[numbers]))
        for at in dict.fromkeys(np.searchsorted(last, bad, side="right").tolist()):
            number, many = int(numbers[at]), int(counts[numbers[at]])
            of = wanted[int(last[at]) - many : int(last[at])]
            self.problem(self.path(number), of, "called computations must come before")
        self.stop()
        callees = tuple(map(self.computations.__getitem__, found))
        ends_at = last.tolist()
        return {
            number: callees[start:end]
            for number, start, end in zip(numbers.tolist(), [0, *ends_at], ends_at, strict=False)
        }

    def count_rules(self, opcodes: list[str], operand_counts: Ints, called_counts: Ints) -> None:
        """How many operands and computations each opcode takes; which opcodes are not known."""
        for opcode, times in Counter(opcodes).items():
            if opcode not in KNOWN_OPCODES:
                self.unknowns[f"opcode {opcode!r}"] = times
        wrong: dict[tuple[str, int, int], str] = {}
        for key in set(zip(opcodes, operand_counts.tolist(), called_counts.tolist(), strict=True)):
            opcode, operands, called = key
            low, high = operands_of(opcode)
            if not low <= operands <= high:
                wrong[key] = f"{opcode} takes {low}{'' if low == high else ' or more'} operands"
            low, high = called_by(opcode)
            if not low <= called <= high:
                wrong.setdefault(key, f"{opcode} calls {low}{'' if low == high else ' or more'} computations")
        if not wrong:
            return
        for number, at in enumerate(self.made):
            rule = wrong.get((at.opcode, len(at.operands), len(at.called)))
            if rule is not None:
                self.problem(self.path(number), len(at.called) if " calls " in rule else len(at.operands), rule)
        self.stop()

    def fill(self, opcodes: list[str], numbers: list[int]) -> None:
        """The instructions and parameters of each computation."""
        chosen = [number for number, opcode in enumerate(opcodes) if opcode == "parameter"]
        which = list(map(numbers.__getitem__, chosen))
        ats = list(map(self.made.__getitem__, chosen))
        first = np.searchsorted(np.array(chosen, dtype=np.int64), np.array(self.starts)).tolist()
        for computation, start, end, low, high in zip(
            self.computations, self.starts, self.starts[1:], first, first[1:], strict=False
        ):
            computation.instructions = self.made[start:end]
            computation.parameters = parameters = dict(zip(which[low:high], ats[low:high], strict=True))
            if len(parameters) != high - low or (parameters and min(parameters) < 0):
                rule = "parameter numbers must be unique and not negative"
                self.problem(f"hlo.{computation.name}", which[low:high][:8], rule)

    def rules(self, opcodes: list[str]) -> None:
        """What tuples and calls must agree on."""
        for number in [number for number, opcode in enumerate(opcodes) if opcode in _RULED]:
            at = self.made[number]
            opcode = at.opcode
            if opcode == "get-tuple-element":
                if not 0 <= at.number < len(at.operands[0].shape.elements):
                    self.problem(self.path(number), at.number, f"must index {at.operands[0].shape}")
            elif opcode == "tuple":
                if len(at.shape.elements) != len(at.operands):
                    self.problem(self.path(number), str(at.shape), f"must have {len(at.operands)} elements")
            elif opcode == "fusion" or opcode == "call":
                called = at.called[0]
                if len(called.parameters) != len(at.operands):
                    rule = f"{called.name} takes {len(called.parameters)} operands"
                    self.problem(self.path(number), len(at.operands), rule)
            elif opcode == "while" and any(len(c.parameters) != 1 for c in at.called):
                rule = "a loop's body and condition take one parameter"
                self.problem(self.path(number), [c.name for c in at.called], rule)

    def limits(self) -> None:
        """How deep computations call one another, and how many devices there are."""
        depth = {computation.id: 1 for computation in self.computations}
        for computation in self.computations:
            own = depth[computation.id]
            if own > MAX_CALL_DEPTH:
                rule = f"computations call one another at most {MAX_CALL_DEPTH} deep"
                raise RejectedError([Problem(f"hlo.{computation.name}", own, rule, _REMEDY)])
            for caller in computation.callers:
                depth[caller.computation.id] = max(depth[caller.computation.id], own + 1)
        assignment = self.proto.device_assignment
        counts = (assignment.replica_count, assignment.computation_count)
        if min(counts) < 0 or max(1, counts[0]) * max(1, counts[1]) > MAX_DEVICES:
            self.problem("hlo.device_assignment", list(counts), f"0 to {MAX_DEVICES} devices")

    def module(self, instructions: dict[int, Instruction]) -> Module:
        for computation, root_id in zip(self.computations, self.roots, strict=True):
            root, parameters = instructions.get(root_id), computation.parameters
            if root is None or root.computation is not computation:
                rule = "the root must be an instruction of the computation"
                self.problem(f"hlo.{computation.name}", root_id, rule)
                continue
            if parameters and max(parameters) >= len(parameters):
                rule = "parameters must be numbered from 0 without gaps"
                self.problem(f"hlo.{computation.name}", sorted(parameters)[:8], rule)
            computation.root = root
        wanted = self.proto.entry_computation_id
        entry = next((c for c in self.computations if c.id == wanted), None)
        if entry is None and not self.problems:
            self.problem("hlo.entry_computation_id", wanted, "must be a computation of the module")
        if self.problems or entry is None:
            raise RejectedError(self.problems)
        unknowns = [name if count == 1 else f"{name} x{count}" for name, count in sorted(self.unknowns.items())]
        return Module(self.proto.name, self.proto, self.computations, instructions, entry, unknowns)


class _Fields:
    """The columns of all instructions, each as long as there are instructions."""

    def __init__(self, parts: Split) -> None:
        raw, found = parts.raw, parts.columns
        self.total = len(raw)
        self.names: list[str] = found.name[:]
        self.opcodes: list[str] = found.opcode[:]
        self.shapes, self.metadata = parts.shapes, parts.metadata
        ids: list[int] = found.id[:]
        singles = (self.names, self.opcodes, self.shapes, self.metadata, ids)
        if any(len(column) != self.total for column in singles):
            # A field is absent (an id of 0, say) or repeated somewhere: ask each instruction.
            each = [part("HloInstructionProto", one) for one in raw]
            self.names, self.opcodes = [one.name for one in each], [one.opcode for one in each]
            self.shapes = [one.shape.SerializeToString() for one in each]
            self.metadata = [one.metadata.SerializeToString() for one in each]
            ids = [one.id for one in each]
        self.listed, self.ids = ids, np.array(ids, dtype=np.int64)
        self.operands = self.ended(found.operand_ids)
        self.called = self.ended(found.called_computation_ids)
        parameter, index = self.last(found.parameter_number), self.last(found.tuple_index)
        self.numbers: list[int] = (parameter + index).tolist()
        for both in np.flatnonzero((parameter != 0) & (index != 0)).tolist():
            self.numbers[both] = int((parameter if self.opcodes[both] == "parameter" else index)[both])

    def ended(self, column: Any) -> tuple[Ints, Ints, Ints]:
        """A column of several items for each instruction: (items, where each one's end, how many each has)."""
        flat = np.array(column[:], dtype=np.int64)
        ends = np.flatnonzero(flat == NOTHING)
        if len(ends) != self.total:
            raise RejectedError([Problem("hlo", NOTHING, "ids, indices and numbers must not be negative", _REMEDY)])
        return flat, ends, np.diff(ends, prepend=-1) - 1

    def last(self, column: Any) -> Ints:
        """A column of one item at most for each instruction, 0 where there is none."""
        flat, ends, counts = self.ended(column)
        return np.where(counts > 0, flat[ends - 1], 0)


def read_module(source: Proto | Split) -> Module:
    """The graph of a HloModuleProto, or of the parts of one.

    Raises RejectedError when it does not hold together, calls more than MAX_CALL_DEPTH deep, or is for more than
    MAX_DEVICES devices.
    """
    parts = source if isinstance(source, Split) else split(source.SerializeToString())
    with not_collecting():
        return _Builder(parts).build()


@contextmanager
def not_collecting() -> Iterator[None]:
    """No search for garbage meanwhile: little of what reading makes is, and looking costs as much as the rest. What was
    made goes to the oldest generation at the end, or the next small object would have all of it searched.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            if not gc.get_freeze_count():
                gc.freeze()
                gc.unfreeze()  # to the oldest, and without a search
            gc.enable()
