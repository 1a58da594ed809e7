"""A compiled module as a graph: computations, instructions, operands, users, callers.

XLA writes a computation after the computations it calls and an instruction after its operands, and its own reader
insists on it. This one does too, so everything downstream may recurse without fear of a cycle; what breaks the order,
or refers to something absent, is rejected.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from jaxcost.contracts.errors import Problem, RejectedError
from jaxcost.observation.hlo.opcodes import KNOWN_OPCODES, called_by, operands_of
from jaxcost.observation.hlo.schema import Proto, unknown_fields
from jaxcost.observation.hlo.shapes import Shape, read_shape

_REMEDY = "the dump is damaged or hand-edited: dump the module again"
_MAX_PROBLEMS = 20


@dataclass(eq=False, slots=True)
class Instruction:
    """One instruction. `operands` and `users` lie in the same computation; `proto` holds the rarer fields."""

    id: int
    name: str
    opcode: str
    shape: Shape
    op_name: str
    computation: Computation
    proto: Proto
    operands: tuple[Instruction, ...] = ()
    called: tuple[Computation, ...] = ()
    users: list[Instruction] = field(default_factory=list)

    def backend_config(self) -> dict[str, Any]:
        """The JSON of the backend configuration; {} when there is none or it is of another form."""
        raw = self.proto.backend_config
        if not raw.startswith(b"{"):
            return {}
        try:
            value = json.loads(raw)
        except (ValueError, RecursionError):
            return {}
        return value if isinstance(value, dict) else {}

    def __repr__(self) -> str:
        return f"<{self.name}: {self.shape} {self.opcode}>"


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
        frame_id = instruction.proto.metadata.stack_frame_id
        if not 1 <= frame_id <= len(index.stack_frames):
            return ""
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


class _Builder:
    def __init__(self, proto: Proto) -> None:
        self.proto = proto
        self.problems: list[Problem] = []
        self.unknowns: dict[str, int] = {}
        self.shapes: dict[bytes, Shape] = {}
        self.instructions: dict[int, Instruction] = {}
        self.computations: dict[int, Computation] = {}

    def problem(self, path: str, value: object, rule: str) -> None:
        self.problems.append(Problem(path, value, rule, _REMEDY))
        if len(self.problems) >= _MAX_PROBLEMS:
            raise RejectedError(self.problems)

    def note(self, what: str) -> None:
        self.unknowns[what] = self.unknowns.get(what, 0) + 1

    def shape(self, proto: Proto) -> Shape:
        key = proto.SerializeToString()
        shape = self.shapes.get(key)
        if shape is None:
            shape = self.shapes[key] = read_shape(proto)
            for name in unknown_fields(proto) + unknown_fields(proto.layout):
                self.note(f"field {name}")
            if shape.dynamic:
                self.note("dynamic dimension (bounded size counted)")
        return shape

    def instruction(self, proto: Proto, computation: Computation) -> None:
        path = f"hlo.{computation.name}.{proto.name}"
        if proto.id in self.instructions:
            return self.problem(path, proto.id, "instruction ids must be unique")
        self.unknowns_of(proto, path)
        made = Instruction(
            proto.id, proto.name, proto.opcode, self.shape(proto.shape), proto.metadata.op_name, computation, proto
        )
        operands = tuple(self.instructions.get(i) for i in proto.operand_ids)
        if any(o is None or o.computation is not computation for o in operands):
            return self.problem(path, list(proto.operand_ids), "operands must come before, in the same computation")
        made.operands = tuple(o for o in operands if o is not None)
        called = tuple(self.computations.get(i) for i in proto.called_computation_ids)
        if any(c is None for c in called):
            return self.problem(path, list(proto.called_computation_ids), "called computations must come before")
        made.called = tuple(c for c in called if c is not None)
        self.check(made, path)
        for operand in made.operands:
            operand.users.append(made)
        for callee in made.called:
            callee.callers.append(made)
        self.instructions[made.id] = made
        computation.instructions.append(made)

    def check(self, made: Instruction, path: str) -> None:
        opcode, operands, called = made.opcode, made.operands, made.called
        low, high = operands_of(opcode)
        if not low <= len(operands) <= high:
            self.problem(path, len(operands), f"{opcode} takes {low}{'' if low == high else ' or more'} operands")
            return
        low, high = called_by(opcode)
        if not low <= len(called) <= high:
            self.problem(path, len(called), f"{opcode} calls {low}{'' if low == high else ' or more'} computations")
            return
        if opcode == "parameter":
            number: int = made.proto.parameter_number
            if number < 0 or number in made.computation.parameters:
                self.problem(path, number, "parameter numbers must be unique and not negative")
            made.computation.parameters[number] = made
        elif opcode == "get-tuple-element":
            if operands[0].shape.at((made.proto.tuple_index,)) is None:
                self.problem(path, made.proto.tuple_index, f"must index {operands[0].shape}")
        elif opcode == "tuple":
            if len(made.shape.elements) != len(operands):
                self.problem(path, str(made.shape), f"must have {len(operands)} elements")
        elif opcode in ("fusion", "call"):
            if len(called[0].parameters) != len(operands):
                self.problem(path, len(operands), f"{called[0].name} takes {len(called[0].parameters)} operands")
        elif opcode == "while" and any(len(c.parameters) != 1 for c in called):
            self.problem(path, [c.name for c in called], "a loop's body and condition take one parameter")

    def unknowns_of(self, proto: Proto, path: str) -> None:
        for name in unknown_fields(proto):
            self.note(f"field {name}")
        if proto.opcode not in KNOWN_OPCODES:
            self.note(f"opcode {proto.opcode!r}")

    def build(self) -> Module:
        for name in unknown_fields(self.proto):
            self.note(f"field {name}")
        for proto in self.proto.computations:
            path = f"hlo.{proto.name}"
            if proto.id in self.computations:
                self.problem(path, proto.id, "computation ids must be unique")
                continue
            for name in unknown_fields(proto):
                self.note(f"field {name}")
            made = Computation(proto.id, proto.name, proto.is_fusion_computation, proto.execution_thread)
            for instruction in proto.instructions:
                self.instruction(instruction, made)
            root = self.instructions.get(proto.root_id)
            if root is None or root.computation is not made:
                self.problem(path, proto.root_id, "the root must be an instruction of the computation")
                continue
            if sorted(made.parameters) != list(range(len(made.parameters))):
                self.problem(path, sorted(made.parameters)[:8], "parameters must be numbered from 0 without gaps")
            made.root = root
            self.computations[made.id] = made
        entry = self.computations.get(self.proto.entry_computation_id)
        if entry is None and not self.problems:
            self.problem(
                "hlo.entry_computation_id", self.proto.entry_computation_id, "must be a computation of the module"
            )
        if self.problems or entry is None:
            raise RejectedError(self.problems)
        unknowns = [name if count == 1 else f"{name} x{count}" for name, count in sorted(self.unknowns.items())]
        return Module(self.proto.name, self.proto, list(self.computations.values()), self.instructions, entry, unknowns)


def read_module(proto: Proto) -> Module:
    """The graph of a HloModuleProto. Raises RejectedError when it does not hold together."""
    return _Builder(proto).build()
