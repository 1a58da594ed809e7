"""The arguments of a compiled program beside those of the call: which are taken, given away, pruned.

A lowered function knows its arguments as the caller passes them (global shapes, paths, donation); the module knows the
parameters it takes (shapes on one device, layouts). The two are joined in order: a module takes the kept arguments in
the order of the call. Where their numbers differ they are joined by name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from jaxcost.audits.evidence import Evidence
from jaxcost.observation.hlo.module import Instruction
from jaxcost.observation.hlo.shapes import Shape
from jaxcost.observation.sources import Argument

HOST_SPACE = 5  # xla::Layout::kHostMemorySpace; the colour of allocations in host memory too
DEVICE_SPACE = 0


@dataclass(frozen=True, slots=True)
class Bound:
    """One argument: what the module takes, what the caller gives, or both. `donated` is None where nobody knows."""

    path: str
    number: int | None
    parameter: Instruction | None
    given: Argument | None
    donated: bool | None

    @property
    def bytes(self) -> int:
        """Bytes on one device; of a pruned argument those that the caller holds."""
        return self.parameter.shape.bytes if self.parameter is not None else self.given.bytes if self.given else 0

    @property
    def shape(self) -> str:
        """The shape on one device; of a pruned argument the caller's."""
        if self.parameter is not None:
            return str(self.parameter.shape)
        return f"{self.given.dtype}[{','.join(map(str, self.given.shape))}]" if self.given else ""


@dataclass(frozen=True, slots=True)
class Returned:
    """One array that the program returns. `argument` is the parameter whose memory it takes over, else None."""

    index: tuple[int, ...]
    shape: Shape
    argument: int | None

    @property
    def name(self) -> str:
        """Its place in the results: `0`, or `1.2` of a nested one."""
        return ".".join(map(str, self.index)) or "0"


def bound_arguments(evidence: Evidence) -> tuple[list[Bound], str]:
    """Return every argument in order, and why donation is not known where it is not ('' where it is)."""
    module = evidence.graph.module
    parameters = [p for _, p in sorted(module.entry.parameters.items())]
    aliased = {e.parameter_number for e in module.proto.input_output_alias.entries}
    offered = {e.parameter_number for e in module.proto.buffer_donor.entries}
    lowered = evidence.program.lowered

    def alone(number: int, at: Instruction) -> Bound:
        known = True if number in aliased or number in offered else None
        return Bound(at.op_name or at.name, number, at, None, known)

    if lowered is None:
        why = "the module names what is given away and used, not what was given away in vain: the call is not at hand"
        return [alone(n, p) for n, p in enumerate(parameters)], why
    kept = [a for a in lowered.arguments if a.kept]
    if len(kept) == len(parameters):
        numbers = iter(range(len(parameters)))
    else:
        by_name = {p.op_name: n for n, p in enumerate(parameters) if p.op_name}
        if any(a.path not in by_name for a in kept) or len({a.path for a in kept}) != len(kept):
            why = f"the call has {len(kept)} kept arguments and the module takes {len(parameters)}: they cannot be told"
            return [alone(n, p) for n, p in enumerate(parameters)], why
        numbers = iter([by_name[a.path] for a in kept])
    found = []
    for argument in lowered.arguments:
        number = next(numbers) if argument.kept else None
        at = None if number is None else parameters[number]
        found.append(Bound(argument.path, number, at, argument, argument.donated))
    taken = {b.number for b in found}
    return [*found, *(alone(n, p) for n, p in enumerate(parameters) if n not in taken)], ""


def returned(evidence: Evidence) -> list[Returned]:
    """Return the arrays that the program returns, in order."""
    module = evidence.graph.module
    aliases = {tuple(e.output_shape_index): int(e.parameter_number) for e in module.proto.input_output_alias.entries}
    shape = module.entry.root.shape
    if not shape.is_tuple:
        return [Returned((), shape, aliases.get(()))]
    found = []
    for i, element in enumerate(shape.elements):
        parts = [((i,), element)] if not element.is_tuple else [((i, j), e) for j, e in enumerate(element.elements)]
        found += [Returned(index, part, aliases.get(index)) for index, part in parts]
    return found


def whole_argument(path: str) -> str:
    """The argument of the Python call that a leaf belongs to: `state` of `state['w'][0]`."""
    match = re.match(r"[^.\[]+", path)
    return match.group() if match else path


def layout_of(at: Instruction) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...], int]:
    """Order, tiles and memory space of an array's layout."""
    return layout(at.proto.shape)


def layout(shape: object) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...], int]:
    """Order, tiles and memory space of a ShapeProto's layout."""
    found = getattr(shape, "layout")  # noqa: B009 - the class of a ShapeProto exists only at run time
    order: tuple[int, ...] = tuple(found.minor_to_major)
    return order, tuple(tuple(tile.dimensions) for tile in found.tiles), int(found.memory_space)
