"""Bytes that the instructions of a compiled module read from and write to device memory.

Only top-level instructions move data (the entry, loop bodies, branches, called computations); inside a fusion values
stay in registers or on the chip. Each reads its operands and writes its result once per execution, except that a
slice is counted as the slice: a fusion that takes `dynamic-slice(stack, i)` reads one layer, and one that ends in
`dynamic-update-slice` writes one. Buffers a TPU program keeps in on-chip memory are summed apart.

Sizes are counted twice, as stored and without the padding of tiles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from heapq import nsmallest
from operator import attrgetter, itemgetter

from jaxcost.observation.hlo.module import Computation, Instruction, Module
from jaxcost.observation.hlo.opcodes import BOOKKEEPING, COLLECTIVES, DONE, HARMLESS_TARGETS
from jaxcost.observation.hlo.origins import Places
from jaxcost.observation.hlo.shapes import Shape
from jaxcost.observation.hlo.trips import ZERO, Executions, Total

CATEGORIES = ("contraction", "fusion", "copy", "collective", "custom_call", "other")

_ALIASES = frozenset(["bitcast", "convert", "reshape"])  # the same elements, seen through
_MOVES = frozenset(
    """parameter bitcast bitcast-convert copy transpose reshape convert constant slice dynamic-slice
    dynamic-update-slice concatenate pad broadcast tuple get-tuple-element reverse""".split()
)
_PRODUCTS = frozenset(["dot", "convolution", "scaled-dot", "ragged-dot"])
_LIBRARY_PRODUCTS = ("__cublas$", "__cudnn$conv", "__onednn$matmul")


Measure = Callable[[Shape], int]


_stored: Measure = attrgetter("bytes")
_logical: Measure = attrgetter("logical_bytes")


@dataclass(frozen=True, slots=True)
class Move:
    """Bytes one execution of an instruction reads and writes in device memory, and touches on chip."""

    name: str
    opcode: str
    category: str
    scope: str
    phase: str
    read_bytes: int
    write_bytes: int
    on_chip_bytes: int
    executions: Total


@dataclass(frozen=True, slots=True)
class Traffic:
    """Sums of one step on one device. `workspace_bytes` is the scratch space that library products declare as a result,
    part of what they write; `padding_bytes` what tiles add, copies and collectives apart. `moves` are the instructions
    that move most, biggest total first.
    """

    read_bytes: dict[str, Total]
    write_bytes: dict[str, Total]
    by_place: dict[tuple[str, str], Total]
    total_read_bytes: Total
    total_write_bytes: Total
    on_chip_bytes: dict[str, Total]
    total_on_chip_bytes: Total
    workspace_bytes: Total
    padding_bytes: Total
    moves: tuple[Move, ...]


def _split(shapes: Iterable[Shape], size: Measure) -> tuple[int, int]:
    """(bytes in device memory, bytes elsewhere) of all leaves."""
    device = chip = 0
    for shape in shapes:
        for leaf in shape.leaves() if shape.is_tuple else (shape,):
            if leaf.memory_space == 0:
                device += size(leaf)
            else:
                chip += size(leaf)
    return device, chip


def frames(module: Module) -> set[int]:
    """Ids of the computations whose instructions run at top level."""
    found = {module.entry.id}
    for computation in reversed(module.computations):
        if computation.id in found:
            for at in computation.instructions:
                if at.opcode in ("while", "call", "conditional", "async-start"):
                    found.update(c.id for c in at.called)
    return found


class _Fusions:
    """What a fused computation reads of each operand and writes of its result, as fractions of whole arrays."""

    def __init__(self, size: Measure) -> None:
        self.size = size
        self.known: dict[int, dict[int, int | None]] = {}

    def reads(self, computation: Computation) -> dict[int, int | None]:
        """Parameter number -> bytes read of it, None for all of it."""
        if computation.id not in self.known:
            self.known[computation.id] = {
                number: self._read(parameter) for number, parameter in computation.parameters.items()
            }
        return self.known[computation.id]

    def _read(self, value: Instruction) -> int | None:
        total = 0
        if value is value.computation.root:
            return None
        for user in value.users:
            if user.opcode in _ALIASES:
                part = self._read(user)
            elif user.opcode in ("dynamic-slice", "slice", "gather") and user.operands[0] is value:
                part = self.size(user.shape) if value not in user.operands[1:] else None
            elif user.opcode == "dynamic-update-slice" and user.operands[0] is value and value not in user.operands[1:]:
                part = 0
            elif user.opcode == "fusion":
                inner = self.reads(user.called[0])
                parts = [inner.get(i) for i, operand in enumerate(user.operands) if operand is value]
                part = sum(p for p in parts if p is not None) if None not in parts else None
            else:
                part = None
            if part is None:
                return None
            total += part
        return total

    def writes(self, root: Instruction) -> tuple[int, int]:
        """(device, on-chip) bytes written by a fusion with this root."""
        if root.opcode == "tuple":
            pairs = [self.writes(o) for o in root.operands]
            return sum(d for d, _ in pairs), sum(c for _, c in pairs)
        at = root
        while at.opcode in _ALIASES:
            at = at.operands[0]
        if at.opcode == "dynamic-update-slice":
            device, chip = _split([root.shape], self.size)
            update = self.size(at.operands[1].shape)
            return (update, 0) if device else (0, min(chip, update))
        if at.opcode == "fusion" and at.shape == root.shape:
            return self.writes(at.called[0].root)
        return _split([root.shape], self.size)


def _fused(computation: Computation) -> Iterator[Instruction]:
    """What a fusion does, fusions inside it opened, each computation once however often it is called."""
    stack, seen = [computation], {computation.id}
    while stack:
        for at in stack.pop().instructions:
            if at.opcode != "fusion":
                yield at
            elif at.called[0].id not in seen:
                seen.add(at.called[0].id)
                stack.append(at.called[0])


def _only_moves(at: Instruction) -> bool:
    """Whether nothing is computed but the place of elements; arithmetic on scalar indices does not count."""
    return at.opcode in _MOVES or (at.shape.size == 1 and at.shape.dtype in ("s32", "u32", "pred"))


def category_of(at: Instruction) -> str:
    """The category of a top-level instruction."""
    opcode = at.opcode
    if opcode == "fusion":
        held = {one.opcode for one in _fused(at.called[0])}
        if not held.isdisjoint(_PRODUCTS):
            return "contraction"
        if not held.isdisjoint(COLLECTIVES):
            return "collective"
        return "copy" if all(_only_moves(one) for one in _fused(at.called[0])) else "fusion"
    if opcode in _PRODUCTS:
        return "contraction"
    if opcode in COLLECTIVES or opcode in ("send", "recv"):
        return "collective"
    if opcode in ("copy", "copy-start", "dynamic-slice", "dynamic-update-slice") or opcode in _MOVES:
        return "copy"
    if opcode == "custom-call":
        return "contraction" if at.proto.custom_call_target.startswith(_LIBRARY_PRODUCTS) else "custom_call"
    return "other"


def _moved(at: Instruction, fusions: _Fusions) -> tuple[int, int, int]:
    """(read, written, on-chip) bytes of one execution of a top-level instruction."""
    size = fusions.size
    opcode, operands = at.opcode, at.operands
    if len(operands) > 1 and opcode != "fusion":
        operands = tuple(dict.fromkeys(operands))
    if opcode == "fusion":
        reads = fusions.reads(at.called[0])
        read = chip = 0
        seen: set[int] = set()
        for number, operand in enumerate(at.operands):
            device, elsewhere = _split((operand.shape,), size)
            part = reads.get(number)
            if operand.id in seen and part is None:
                continue
            seen.add(operand.id)
            if device:
                read += device if part is None else min(device, part)
            chip += elsewhere if part is None else min(elsewhere, part)
        written, on_chip = fusions.writes(at.called[0].root)
        return read, written, chip + on_chip
    if opcode in ("dynamic-slice", "slice", "gather"):
        index, _ = _split((o.shape for o in operands[1:]), size)
        device, chip = _split([at.shape], size)
        source, _ = _split([operands[0].shape], size)
        return (size(at.shape) if source else 0) + index, device, chip + (0 if source else size(at.shape))
    if opcode == "dynamic-update-slice":
        update, chip = _split([at.operands[1].shape], size)
        target, _ = _split([at.shape], size)
        return update, size(at.operands[1].shape) if target else 0, chip
    if opcode == "scatter":
        rest, chip = _split((o.shape for o in at.operands[1:]), size)
        updates, _ = _split([at.operands[-1].shape], size)
        return rest + updates, updates, chip
    if opcode == "copy-start":
        read, chip = _split([at.operands[0].shape], size)
        written, other = _split(at.shape.elements[:1] or [at.shape], size)
        return read, written, chip + other
    read, chip = _split((o.shape for o in operands), size)
    if opcode in ("all-gather-start", "collective-permute-start") and len(at.shape.elements) >= 2:
        written, other = _split([at.shape.elements[1]], size)
    else:
        written, other = _split([at.shape], size)
    return read, written, chip + other


def _workspace(at: Instruction) -> int:
    """Bytes of the scratch space of a library product: a bare array of bytes beside its result."""
    if at.opcode != "custom-call" or not at.proto.custom_call_target.startswith(_LIBRARY_PRODUCTS):
        return 0
    return sum(leaf.bytes for leaf in at.shape.elements[1:] if leaf.dtype in ("s8", "u8") and len(leaf.dims) == 1)


def moving(module: Module, executions: Executions) -> Iterator[Instruction]:
    """The instructions that move data: those at top level that run at all and are no bookkeeping."""
    top = frames(module) & executions.reached
    for computation in module.computations:
        if computation.id not in top:
            continue
        for at in computation.instructions:
            if at.opcode in BOOKKEEPING or at.opcode in DONE or at.opcode == "async-start":
                continue
            if at.opcode == "custom-call" and at.proto.custom_call_target in HARMLESS_TARGETS:
                continue
            yield at


def read_traffic(
    module: Module, executions: Executions, places: Places, keep: int = 64
) -> tuple[Traffic, dict[int, int]]:
    """Traffic of the module, of which the `keep` instructions that move most are listed; and of each instruction that
    moves data the bytes it reads and writes in device memory in one execution.
    """
    counts = executions.counts()
    stored, logical = _Fusions(_stored), _Fusions(_logical)
    shapes = {id(at.shape): at.shape for at in module.walk()}.values()
    padded = any(shape.bytes != shape.logical_bytes for shape in shapes)
    heaviest: list[tuple[int, Instruction, str, tuple[int, int, int]]] = []
    moved: dict[int, int] = {}
    # By computation, category and place: bytes read, written, on chip, of scratch space, of padding.
    found: dict[int, dict[tuple[str, str, str], list[int]]] = {}
    for at in moving(module, executions):
        amounts = read, written, chip = _moved(at, stored)
        padding = read + written + chip - sum(_moved(at, logical)) if padded else 0
        category = category_of(at)
        moved[at.id] = read + written
        often = counts[at.computation.id].maximum or 1
        heaviest.append((-(read + written) * often, at, category, amounts))
        place = places.of(at)
        here = found.setdefault(at.computation.id, {})
        sums = here.setdefault((category, place.scope, place.phase), [0, 0, 0, 0, 0])
        sums[0] += read
        sums[1] += written
        sums[2] += chip
        sums[3] += _workspace(at)
        sums[4] += 0 if category in ("copy", "collective") else padding
    own: dict[int, dict[tuple[str, ...], int]] = {}
    for computation in module.computations:
        mine = own[computation.root.id] = {}
        for (category, scope, phase), (read, written, chip, workspace, padding) in found.get(
            computation.id, {}
        ).items():
            for key, amount in (
                (("read", category), read), (("write", category), written), (("chip", category), chip),
                (("workspace",), workspace), (("padding",), padding),
                (("place", scope, phase), read + written),
            ):  # fmt: skip
                mine[key] = mine.get(key, 0) + amount
    totals = executions.totals(own)
    moves = [
        Move(
            at.name, at.opcode, category, places.of(at).scope, places.of(at).phase, *amounts,
            executions=counts[at.computation.id],
        )
        for _, at, category, amounts in nsmallest(keep, heaviest, key=itemgetter(0))
    ]  # fmt: skip
    read_of = {c: totals.get(("read", c), ZERO) for c in CATEGORIES}
    write_of = {c: totals.get(("write", c), ZERO) for c in CATEGORIES}
    chip_of = {c: totals.get(("chip", c), ZERO) for c in CATEGORIES}
    traffic = Traffic(
        read_of, write_of,
        {(k[1], k[2]): v for k, v in totals.items() if k[0] == "place"},
        sum(read_of.values(), ZERO), sum(write_of.values(), ZERO), chip_of, sum(chip_of.values(), ZERO),
        totals.get(("workspace",), ZERO), totals.get(("padding",), ZERO), tuple(moves),
    )  # fmt: skip
    return traffic, moved
