"""How much memory XLA's rematerialisation pass believes a program needs.

The pass does not look at the buffer assignment, which is made later. It walks the schedule and adds up the buffers that
are live, by rules of its own (openxla/xla, hlo_rematerialization.cc, MemoryUsageTracker):

- every instruction makes new buffers, in place or not, except views (bitcast, get-tuple-element) and a loop, which
  hands its operand's buffers on; a tuple makes a table of pointers;
- a buffer is freed after its last user, and a view or a tuple of it makes the view's users its users;
- parameters and results of a computation cost nothing in it: the caller pays;
- an instruction that calls computations also needs the peaks of all of them.

Its sum is above the planned temporaries where XLA later writes results over operands. When it exceeds a limit that
follows from the device, recomputation begins; see `limit_bytes`.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from jaxcost.observation.hlo.module import Computation, Instruction, Module
from jaxcost.observation.hlo.shapes import Shape

_POINTER_BYTES = 8
_VIEWS = frozenset("bitcast get-tuple-element opt-barrier add-dependency domain".split())
_CONTROL_FLOW = frozenset("while call conditional async-start async-update async-done".split())

Path = tuple[int, ...]


class Buffer(NamedTuple):
    """A buffer by the instruction and the place in its result that it is defined at."""

    instruction: int
    path: Path


def shape_bytes(shape: Shape) -> int:
    """Bytes of a whole result as XLA sizes it: arrays, and 8 bytes a pointer for each table of a tuple."""
    return sum(_own_bytes(part) for part, _ in _parts(shape))


def _own_bytes(shape: Shape) -> int:
    return _POINTER_BYTES * len(shape.elements) if shape.is_tuple else shape.bytes


def _parts(shape: Shape, path: Path = ()) -> list[tuple[Shape, Path]]:
    found = [(shape, path)]
    for i, element in enumerate(shape.elements):
        found += _parts(element, (*path, i))
    return found


class _Analysis:
    def __init__(self, module: Module) -> None:
        self.module = module
        self.order = {entry.key: list(entry.value.instruction_ids) for entry in module.proto.schedule.sequences}
        self.peaks: dict[int, int] = {}

    def sequence(self, computation: Computation) -> list[Instruction]:
        """The instructions of a computation as scheduled."""
        ids = self.order.get(computation.id)
        if not ids:
            return computation.instructions
        return [self.module.instructions[i] for i in ids if i in self.module.instructions]

    def peak(self, computation: Computation) -> int:
        """The most bytes that the buffers of one computation and of those it calls take."""
        found = self.peaks.get(computation.id)
        if found is None:
            found = self.peaks[computation.id] = self._find(computation)
        return found

    def _find(self, computation: Computation) -> int:
        sequence = self.sequence(computation)
        # What each place of each result points to, and which buffers each instruction uses.
        points: dict[tuple[int, Path], Buffer] = {}
        sizes: dict[Buffer, int] = {}
        users: dict[Buffer, set[int]] = {}
        defined: dict[int, list[Buffer]] = {}
        aliases: dict[Buffer, Buffer] = {}  # what a loop returns -> what it was given
        for at in sequence:
            defined[at.id] = []
            for part, path in _parts(at.shape):
                source = self._source(at, path)
                if source is not None and source in points:
                    points[at.id, path] = points[source]
                    continue
                buffer = Buffer(at.id, path)
                points[at.id, path] = buffer
                if at.opcode == "while":
                    aliases[buffer] = points.get((at.operands[0].id, path), buffer)
                    continue
                sizes[buffer] = 0 if at.opcode == "parameter" else _own_bytes(part)
                defined[at.id].append(buffer)

        def real(buffer: Buffer) -> Buffer:
            while buffer in aliases and aliases[buffer] != buffer:
                buffer = aliases[buffer]
            return buffer

        for at in sequence:
            for operand in at.operands:
                for _, path in _parts(operand.shape):
                    if at.opcode == "get-tuple-element" and path:
                        continue  # it reads the table alone
                    users.setdefault(real(points[operand.id, path]), set()).add(at.id)
        live_out = {real(points[computation.root.id, path]) for _, path in _parts(computation.root.shape)}
        left = Counter({buffer: len(found) for buffer, found in users.items()})
        used_by: dict[int, list[Buffer]] = {}
        for buffer, found in users.items():
            for identity in found:
                used_by.setdefault(identity, []).append(buffer)
        used = most = 0
        for at in sequence:
            for buffer in defined[at.id]:
                used += 0 if buffer in live_out else sizes[buffer]
            called = sum(self.peak(c) for c in at.called) if at.opcode in _CONTROL_FLOW else 0
            most = max(most, used + called)
            for buffer in used_by.get(at.id, ()):
                left[buffer] -= 1
                if left[buffer] == 0 and buffer not in live_out:
                    used -= sizes.get(buffer, 0)
            for buffer in defined[at.id]:
                if buffer not in users and buffer not in live_out:
                    used -= sizes[buffer]
        return most

    @staticmethod
    def _source(at: Instruction, path: Path) -> tuple[int, Path] | None:
        """The place of an operand that a place of the result is a view of, None where it is a buffer of its own."""
        opcode = at.opcode
        if opcode in _VIEWS:
            inner = (at.number, *path) if opcode == "get-tuple-element" else path
            return at.operands[0].id, inner
        if opcode == "tuple" and path:
            return at.operands[path[0]].id, path[1:]
        if opcode == "copy" and path:
            return at.operands[0].id, path
        if opcode == "copy-start":  # (result, operand, context)
            return (at.operands[0].id, ()) if path == (1,) else None
        if opcode == "copy-done":
            return at.operands[0].id, (0, *path)
        if opcode in ("async-done", "all-gather-done", "all-reduce-done", "collective-permute-done"):
            return _result_of_start(at.operands[0], path)
        if opcode.endswith("-start") and path:
            return _operand_of_start(at, path)
        return None


def _result_of_start(start: Instruction, path: Path) -> tuple[int, Path]:
    """Where a started operation keeps its result: second of ((operands), results), or all of it for an all-reduce."""
    if start.opcode in ("all-reduce-start",):
        return start.id, path
    return start.id, (1, *path)


def _operand_of_start(start: Instruction, path: Path) -> tuple[int, Path] | None:
    """The operands that a started operation carries in the first place of its result."""
    if start.opcode == "all-reduce-start" or path[0] != 0:
        return None
    operands, rest = start.operands, path[1:]
    first = start.shape.elements[0]
    if first.is_tuple and len(first.elements) == len(operands) and (start.opcode == "async-start" or len(operands) > 1):
        return (operands[rest[0]].id, rest[1:]) if rest else None
    return (operands[0].id, rest) if operands else None


def believed_bytes(module: Module) -> int | None:
    """Return the bytes of temporaries that XLA's rematerialisation pass believes a module needs; None where the module
    carries no schedule that its instructions follow.
    """
    if not module.proto.schedule.sequences:
        return None
    try:
        return _Analysis(module).peak(module.entry)
    except KeyError:  # an operand that the schedule places after its user
        return None


def border_bytes(module: Module) -> int:
    """Return the bytes of arguments and results as the scheduler counts them: tables of pointers too, and a result that
    takes over an argument once.
    """
    border = sum(shape_bytes(p.shape) for p in module.entry.parameters.values()) + shape_bytes(module.entry.root.shape)
    for entry in module.proto.input_output_alias.entries:
        shape = module.entry.root.shape.at(tuple(entry.output_shape_index))
        border -= shape_bytes(shape) if shape is not None else 0
    return border


def limit_bytes(border: int, device_memory_bytes: int) -> int:
    """Return the temporaries above which XLA for CUDA recomputes: 95% of (80% of memory - arguments and results).

    `border`: see `border_bytes`. The source is GetSchedulerMemoryLimit in openxla/xla, gpu_hlo_schedule.cc, with the
    default xla_gpu_memory_limit_slop_factor. The compiler prints this limit, with the results added, when it cannot get
    below it: its numbers are met to the byte for programs with and without donation and two sizes of memory.
    """
    return max(0, (device_memory_bytes * 80 // 100 - border) * 95 // 100)
