"""A compiled module as a graph: computations, instructions, operands, users, callers.

XLA writes a computation after the computations it calls and an instruction after its operands, and its own reader
insists on it. This one does too, so everything downstream may recurse without fear of a cycle; what breaks the order,
or refers to something absent, is rejected.
"""

from __future__ import annotations

import gc
import json
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, cached_property, lru_cache
from itertools import chain, repeat
from typing import Any, TypeVar

from jaxcost.observation.hlo.schema import Header, Proto, Split, part, schema, split
from jaxcost.observation.hlo.shapes import Shape
from jaxcost.observation.hlo.table import Table

T = TypeVar("T")


class Instruction:
    """One instruction. `operands` and `users` lie in the same computation.

    `metadata` is its OpMetadata; `number` the parameter number or tuple index of what has one, else 0; `proto` the
    whole HloInstructionProto, for the rarer fields. `proto` and `users` are made when they are first asked for.
    Instructions are made by `_Maker` alone, which sets their slots: an initialiser would be a third of its time.
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
            self.proto = _instruction()(self.raw)
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


@cache
def _instruction() -> Callable[[bytes], Proto]:
    """Bytes to an HloInstructionProto; `split` has seen that they are well-formed."""
    read: Callable[[bytes], Proto] = schema().classes["HloInstructionProto"].FromString
    return read


@lru_cache(maxsize=4096)
def _json(raw: bytes) -> dict[str, Any]:
    if not raw.startswith(b"{"):
        return {}
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


class Computation:
    """A list of instructions in dependency order; `callers` are the instructions that call it. `position` is its place
    in the module. The instructions are made when they are first asked for.
    """

    __slots__ = (
        "callers", "id", "instructions", "is_fusion", "maker", "name", "parameters", "position", "root", "thread",
    )  # fmt: skip
    instructions: list[Instruction]
    parameters: dict[int, Instruction]
    callers: list[Instruction]
    root: Instruction

    def __init__(self, maker: _Maker, position: int, header: Header) -> None:
        self.maker, self.position = maker, position
        self.id, self.name, _, self.is_fusion, self.thread = header

    def __getattr__(self, name: str) -> Any:
        # Only reached while a slot is empty.
        maker, position = self.maker, self.position
        if name == "instructions":
            self.instructions = maker.of(position)
        elif name == "parameters":
            self.parameters = {at.number: at for at in self.instructions if at.opcode == "parameter"}
        elif name == "root":
            self.root = maker.at(maker.table.roots[position])
        elif name == "callers":
            self.callers = list(map(maker.at, maker.table.callers[position]))
        else:
            raise AttributeError(name)
        return getattr(self, name)

    def link(self) -> None:
        """Find the users of every instruction."""
        for at in self.instructions:
            at.users = []
        for at in self.instructions:
            for operand in at.operands:
                operand.users.append(at)

    def __repr__(self) -> str:
        return f"<computation {self.name}>"


class Module:
    """The whole program. `computations` is ordered callees first; `unknowns` names what this reader did not know;
    `table` are the columns that the instructions are made of.
    """

    def __init__(self, table: Table) -> None:
        self.maker = maker = _Maker(table)
        self.name: str = table.proto.name
        self.proto = table.proto
        self.computations = maker.computations
        self.entry = maker.computations[table.entry]
        self.size, self.table = table.total, table
        self._lines: dict[int, str] = {}  # by stack frame
        unknowns = sorted(table.unknowns.items())
        self.unknowns = [name if count == 1 else f"{name} x{count}" for name, count in unknowns]

    @cached_property
    def instructions(self) -> dict[int, Instruction]:
        """All instructions by id, callees first."""
        return {at.id: at for at in self.walk()}

    def walk(self) -> Iterator[Instruction]:
        """All instructions, callees first."""
        return chain.from_iterable(computation.instructions for computation in self.computations)

    def op_names(self) -> list[str]:
        """The op_names of all instructions, alike metadata once."""
        return [self.maker.metadata[raw][1] for raw in dict.fromkeys(self.table.metadata)]

    def source(self, instruction: Instruction) -> str:
        """`file:line` of the user's code that made the instruction, or '' when the compiler kept none."""
        frame_id = instruction.metadata.stack_frame_id
        found = self._lines.get(frame_id)
        if found is None:
            if not 1 <= frame_id <= len(self.proto.stack_frame_index.stack_frames):
                # Earlier versions wrote the place itself.
                file, line = instruction.metadata.source_file, instruction.metadata.source_line
                return f"{file}:{line}" if file else ""
            found = self._lines[frame_id] = self._line(frame_id)
        return found

    def _line(self, frame_id: int) -> str:
        index = self.proto.stack_frame_index
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


_BLOCK = 4096
_NEW = object.__new__
_UNMADE = _NEW(Instruction)


class _Maker:
    """Makes instructions: those of the computations that begin within the same _BLOCK numbers together. `made` are all,
    by number.
    """

    def __init__(self, table: Table) -> None:
        self.table, self.starts = table, table.parts.starts
        self.computations = [Computation(self, n, header) for n, header in enumerate(table.computations)]
        self.made: list[Instruction] = [_UNMADE] * table.total
        self.metadata = _Once(_metadata)
        self.ids: list[int] = table.ids.tolist()
        self.operands: list[int] = table.operands.tolist()
        self.operand_ends: list[int] = [0, *table.operand_ends.tolist()]
        self.numbers: list[int] = table.numbers.tolist()

    def at(self, number: int) -> Instruction:
        """The instruction of a number."""
        if self.made[number] is _UNMADE:
            self.make(int(self.table.owners[number]))
        return self.made[number]

    def of(self, position: int) -> list[Instruction]:
        """The instructions of a computation."""
        start, end = self.starts[position : position + 2]
        if start < end and self.made[start] is _UNMADE:
            self.make(position)
        return self.made[start:end]

    def make(self, position: int) -> None:
        """Make the block of a computation."""
        table, starts = self.table, self.starts
        block = starts[position] // _BLOCK
        low, high = (bisect_left(starts, edge * _BLOCK, 0, len(starts) - 1) for edge in (block, block + 1))
        start, end = starts[low], starts[high]
        made = self.made
        own = made[start:end] = list(map(_NEW, repeat(Instruction, end - start)))
        first = self.operand_ends[start]
        operands = tuple(map(made.__getitem__, self.operands[first : self.operand_ends[end]]))
        sizes = table.sizes[low:high].tolist()
        last = 0
        for (
            at, at.id, at.name, at.opcode, at.shape, (at.metadata, at.op_name), at.number, at.computation, at.raw, upto,
        ) in zip(
            own, self.ids[start:end], table.names[start:end],
            map(table.opcode_of.__getitem__, table.opcodes[start:end]),
            map(table.shape_of.__getitem__, table.shape_bytes[start:end]),
            map(self.metadata.__getitem__, table.metadata[start:end]), self.numbers[start:end],
            chain.from_iterable(map(repeat, self.computations[low:high], sizes)), table.raw[start:end],
            self.operand_ends[start + 1 : end + 1], strict=True,
        ):  # fmt: skip
            upto -= first
            at.operands = operands[last:upto]
            at.called = ()
            last = upto
        for number in chain.from_iterable(table.calling[low:high]):
            made[number].called = tuple(map(self.computations.__getitem__, table.called[number]))


def read_module(source: Proto | Split) -> Module:
    """The graph of a HloModuleProto, or of the parts of one. All is checked, and instructions are made when asked for.

    Raises RejectedError when it does not hold together, or exceeds a limit of `table`.
    """
    parts = source if isinstance(source, Split) else split(source.SerializeToString())
    with not_collecting():
        return Module(Table(parts))


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
