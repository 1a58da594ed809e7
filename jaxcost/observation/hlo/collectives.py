"""Every transfer between devices, with its payload, its group and its trips.

What looks like one collective may be written in several ways: a start and a done (the start's tuple repeats the
operand), an async wrapper around a called computation, on TPU a fusion holding an all-reduce and a slice (a
reduce-scatter) or several clones of one gather spread over the fusions that hide it. Each transfer is one record
here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import gcd, prod

from jaxcost.observation.hlo.groups import Groups, MeshAxes, decode_groups, devices_of, numbering
from jaxcost.observation.hlo.module import Instruction, Module
from jaxcost.observation.hlo.opcodes import COLLECTIVES
from jaxcost.observation.hlo.origins import Places, argument_of, behind, source_of
from jaxcost.observation.hlo.shapes import Shape
from jaxcost.observation.hlo.trips import ZERO, Executions, Total, exact


@dataclass(frozen=True, slots=True)
class Part:
    """One array of a collective; compilers combine several arrays into one.

    `operand_dims` and `result_dims` are its extents before and after; `operand_bytes` and `result_bytes` leave out the
    padding of layouts. `argument` is the path of the program's argument that it is a copy of, `sliced` names the
    instructions that keep only this device's part of the result, `unpadded_elements` counts those before the program
    itself padded the array (0 where it did not); `op_name`, `scope` and `phase` are those of what made it.
    """

    dtype: str
    operand_dims: tuple[int, ...]
    result_dims: tuple[int, ...]
    operand_bytes: int
    result_bytes: int
    op_name: str
    scope: str
    phase: str
    argument: str
    sliced: tuple[str, ...]
    unpadded_elements: int = 0


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective. `operand_bytes` and `result_bytes` are one device's payload in and out, per execution.

    `groups` are the participants (for a permutation, (source, target) pairs); `axes` the mesh axes they run over, None
    without a mesh or when no axes match. `form` says how it was written: plain, async, or a TPU form. `nodes` is the
    number of nodes (or slices) that the widest group spans, None where the target has one or does not say; of a host
    transfer between slices it is the number of slices.
    """

    id: int
    name: str
    computation: str
    kind: str
    form: str
    op_name: str
    scope: str
    phase: str
    scope_exact: bool
    dtype: str
    operand_bytes: int
    result_bytes: int
    groups: Groups
    group_size: int
    axes: tuple[str, ...] | None
    channel: int
    executions: Total
    total_operand_bytes: Total
    total_result_bytes: Total
    source: str = ""
    parts: tuple[Part, ...] = ()
    nodes: int | None = None


@dataclass(frozen=True, slots=True)
class Collectives:
    """All transfers; sums by (kind, axes or None); how many TPU clones were left out."""

    rows: tuple[Collective, ...]
    operand_bytes: dict[tuple[str, tuple[str, ...] | None], Total]
    result_bytes: dict[tuple[str, tuple[str, ...] | None], Total]
    clones: int


def _bytes(shapes: Iterable[Shape]) -> int:
    return sum(leaf.bytes for shape in shapes for leaf in shape.leaves() if leaf.dtype != "token")


def _feeds(at: Instruction, target: str) -> bool:
    """Whether `at` reaches a custom call of this target inside its own computation."""
    seen, stack = {at.id}, list(at.users)
    while stack:
        user = stack.pop()
        if user.opcode == "custom-call" and user.proto.custom_call_target == target:
            return True
        if user.id not in seen:
            seen.add(user.id)
            stack.extend(user.users)
    return False


def _is_clone(at: Instruction, started: set[tuple[int, str]]) -> bool:
    """On TPU a hidden gather is repeated in every fusion that overlaps it; the one that starts it stands for all."""
    if not at.computation.is_fusion or at.proto.channel_id == 0:
        return False
    return (at.proto.channel_id, str(at.shape)) in started and not _feeds(at, "AsyncCollectiveStart")


def _zero_filled(at: Instruction) -> bool:
    """Whether the operand of an all-reduce is one shard written into zeros: a gather done by summing."""
    current: Instruction | None = at.operands[0]
    for _ in range(16):
        if current is None:
            return False
        if current.opcode == "dynamic-update-slice":
            base = current.operands[0]
            while base.opcode in ("broadcast", "bitcast", "convert", "copy"):
                base = base.operands[0]
            return base.opcode == "constant"
        current = behind(current) if current.opcode in ("fusion", "bitcast", "copy", "parameter", "convert") else None
    return False


def _leaves(at: Instruction) -> bool:
    """Whether a send or receive is between devices or slices: a transfer through the host, or one with its pairs."""
    return bool(at.proto.is_host_transfer) or "_xla_send_recv_source_target_pairs" in _attributes(at)


def _attributes(at: Instruction) -> dict[str, str]:
    return {entry.key: entry.value for entry in at.proto.frontend_attributes.map}


def _pairs(text: str) -> Groups:
    """The pairs of `{{0,1},{1,2}}`."""
    return tuple((int(source), int(target)) for source, target in _PAIR.findall(text[:_LONGEST]))


def _sent(at: Instruction) -> Shape:
    """The array of a send or a receive, without the token and the context beside it."""
    whole = at.operands[0].shape if at.opcode == "send" else at.shape
    return next(whole.leaves(), whole)


def one_slice(mesh: Mapping[str, int], devices: int | None) -> dict[str, int]:
    """The part of a mesh on so many consecutive devices, axis by axis; {} where they are no block of the mesh."""
    if devices is None or not mesh:
        return {}
    slices, rest = divmod(prod(mesh.values()), devices)
    found = {}
    for name, size in mesh.items():
        outside = gcd(size, slices)
        found[name], slices = size // outside, slices // outside
        if slices > 1 and found[name] > 1:
            return {}
    return {} if rest else found  # every part is then taken: a slice that no axis holds ended the loop


def _laid_in_a_row(at: Instruction) -> list[Instruction]:
    """The arrays that make up the flat operand of a combined all-reduce; the operand alone where it is no such row."""
    row: Instruction | None = at
    for _ in range(16):
        if row is None:
            break
        if row.opcode == "concatenate" and len(row.shape.dims) == 1:
            return list(row.operands)
        row = behind(row) if row.opcode in ("fusion", "bitcast", "copy") else None
    return [at]


_SAME = frozenset(
    "bitcast copy get-tuple-element convert all-reduce-done async-done reshape transpose opt-barrier".split()
)
_MAX_DEPTH = 32
_PAIR = re.compile(r"\{\s*([0-9]{1,9})\s*,\s*([0-9]{1,9})\s*\}")
_LONGEST = 1 << 22


def _cuts(at: Instruction, index: int | None) -> list[Instruction]:
    """The instructions that take a device's own part of an array (element `index` of a tuple): slices at an offset that
    is computed, alone or inside fusions. None where anything uses the array whole.
    """
    found: dict[int, Instruction] = {}
    for user in at.users:
        if (index is None or _takes(user, index)) and not _cut(at, user, None, found, 0):
            return []
    return list(found.values())


def _takes(user: Instruction, index: int) -> bool:
    return user.opcode != "get-tuple-element" or bool(user.number == index)


def _cut(
    value: Instruction, user: Instruction, fusion: Instruction | None, found: dict[int, Instruction], depth: int
) -> bool:
    """Whether all that `user` does with `value` is to slice it; `fusion` is the outermost one around, if any."""
    if depth > _MAX_DEPTH:
        return False
    if user.opcode == "dynamic-slice":
        top = fusion or user
        found[top.id] = top
        return user.operands[0] is value and user.shape.size < value.shape.size
    if user.opcode == "fusion":
        inner = [user.called[0].parameters[number] for number, given in enumerate(user.operands) if given is value]
        outer = fusion or user
        return all(_cut(one, step, outer, found, depth + 1) for given in inner for one, step in _uses(given))
    if user.opcode not in _SAME:
        return False
    for one, step in _uses(user):
        inside = fusion if step.computation.is_fusion else None
        if not _cut(one, step, inside, found, depth + 1):
            return False
    return True


def _uses(value: Instruction) -> list[tuple[Instruction, Instruction]]:
    """(value, user) pairs: in its computation and, where it is the result of a fusion, around that."""
    inside = value.computation
    pairs = [(value, user) for user in value.users]
    if value is inside.root and inside.is_fusion and len(inside.callers) == 1:
        pairs += _uses(inside.callers[0])
    return pairs


class _Reader:
    def __init__(
        self, module: Module, executions: Executions, places: Places, mesh: Mapping[str, int] | None,
        devices_per_node: int | None,
    ) -> None:  # fmt: skip
        self.module, self.places, self.devices_per_node = module, places, devices_per_node
        self.counts = executions.counts()
        self.mesh = MeshAxes(mesh) if mesh else None
        self.devices = self.mesh.count if self.mesh else module.device_count
        # A program for several slices is that of one of them; its groups name the devices of that slice.
        self.slice = one_slice(mesh or {}, devices_per_node)
        self.inside = MeshAxes(self.slice) if self.slice else None
        self.between = tuple(name for name, size in (mesh or {}).items() if self.slice and self.slice[name] < size)
        self.decoded: dict[tuple[bytes, int], Groups] = {}

    def groups(self, at: Instruction) -> Groups:
        if at.proto.source_target_pairs:
            return self.numbered(at, tuple((pair.source, pair.target) for pair in at.proto.source_target_pairs))
        if at.opcode in ("send", "recv") and not at.proto.is_host_transfer:
            return _pairs(_attributes(at).get("_xla_send_recv_source_target_pairs", ""))
        if at.opcode in ("send", "recv") or at.opcode.startswith("collective-permute"):
            return ()  # a permutation without pairs moves nothing
        parts = [
            at.proto.mesh_axes_replica_group_list, at.proto.iota_collective_device_list,
            at.proto.collective_device_list, *at.proto.replica_groups,
        ]  # fmt: skip
        count = self.all_of(at)
        key = b"|".join(p.SerializeToString() for p in parts), count
        if key not in self.decoded:
            self.decoded[key] = decode_groups(at.proto, count)
        return self.numbered(at, self.decoded[key])

    def all_of(self, at: Instruction) -> int:
        """How many ids no groups at all stand for."""
        assigned = self.module.proto.device_assignment
        if self.module.device_count == 1:
            return self.devices
        ids = numbering(at.opcode, at.proto.channel_id, at.proto.use_global_device_ids)
        return {"devices": self.devices, "partitions": int(assigned.computation_count)}.get(
            ids, int(assigned.replica_count)
        )

    def numbered(self, at: Instruction, groups: Groups) -> Groups:
        """The groups as devices, whatever their ids number."""
        assigned = self.module.proto.device_assignment
        if self.module.device_count == 1:
            return groups
        ids = numbering(at.opcode, at.proto.channel_id, at.proto.use_global_device_ids)
        return devices_of(groups, ids, max(1, assigned.replica_count), max(1, assigned.computation_count))

    def nodes(self, groups: Groups) -> int | None:
        """How many nodes (or slices) the widest group spans; ids are turned into those of physical devices.

        A host transfer reaches every slice that holds another part of the mesh.
        """
        per_node = self.devices_per_node
        if per_node is None:
            return None
        if not groups:
            return self.devices // per_node
        physical = self.module.device_ids
        places = [[physical[i] if i < len(physical) else i for i in group] for group in groups]
        return max(len({device // per_node for device in group}) for group in places)

    def parts(self, at: Instruction, kind: str, scattered: Instruction | None) -> tuple[Part, ...]:
        """One entry per array; an all-to-all in tuple form is one array in pieces. `scattered` is the fusion around an
        all-reduce of which a device keeps its own part.
        """
        if kind in ("send", "recv"):
            place, op_name = self.places.named(at)
            shape = _sent(at)
            into, out = (shape.logical_bytes, 0) if kind == "send" else (0, shape.logical_bytes)
            return (
                Part(shape.dtype, shape.dims, shape.dims, into, out, op_name, place.scope, place.phase, "", ()),
            )  # fmt: skip
        results = list((scattered.shape if scattered else self._result(at, kind)).leaves())
        pairs = len(results) == len(at.operands)
        if kind == "all-to-all" and pairs and len(results) > 1:
            pieces = [self._part(at, operand, result) for operand, result in zip(at.operands, results, strict=True)]
            into, out = (sum(sizes) for sizes in zip(*((p.operand_bytes, p.result_bytes) for p in pieces), strict=True))
            return (replace(pieces[0], operand_bytes=into, result_bytes=out),)
        found = []
        for index, operand in enumerate(at.operands[:1] if kind == "ragged-all-to-all" else at.operands):
            row = _laid_in_a_row(operand) if kind == "all-reduce" and scattered is None else [operand]
            if len(row) > 1:
                found += [self._part(at, piece, piece.shape) for piece in row]
                continue
            part = self._part(at, operand, results[index] if pairs else results[0])
            if kind == "all-reduce":
                cuts = _cuts(at, index if len(at.operands) > 1 else None)
                part = replace(part, sliced=tuple(user.name for user in cuts))
            found.append(part)
        return tuple(found)

    def _result(self, at: Instruction, kind: str) -> Shape:
        started = at.opcode.endswith("-start") and kind != "all-reduce" and len(at.shape.elements) >= 2
        return at.shape.elements[1] if started else at.shape

    def _part(self, at: Instruction, operand: Instruction, result: Shape) -> Part:
        alone = at.op_name != "" and (len(at.operands) == 1 or at.opcode == "all-to-all")
        place, op_name = self.places.named(at if alone else operand if operand.op_name else source_of(operand))
        if not op_name:
            place, op_name = self.places.named(at)
        given = argument_of(self.module, operand)
        shape = next(operand.shape.leaves(), operand.shape)
        return Part(
            dtype=shape.dtype, operand_dims=shape.dims, result_dims=result.dims,
            operand_bytes=operand.shape.logical_bytes, result_bytes=result.logical_bytes, op_name=op_name,
            scope=place.scope, phase=place.phase, argument=given.op_name if given is not None else "", sliced=(),
            unpadded_elements=operand.operands[0].shape.size if operand.opcode == "pad" else 0,
        )  # fmt: skip

    def row(self, at: Instruction) -> Collective:
        kind, form = at.opcode.removesuffix("-start"), "plain"
        scattered: Instruction | None = None
        # Of a ragged exchange the rest are the array received into, offsets and sizes.
        sent = at.operands[:1] if kind == "ragged-all-to-all" else at.operands
        operands = _bytes(o.shape for o in sent)
        result = _bytes([at.shape])
        callers = at.computation.callers
        caller = callers[0] if len(callers) == 1 else None
        if at.opcode.endswith("-start"):
            form = "async"
            if kind != "all-reduce" and len(at.shape.elements) >= 2:
                result = _bytes([at.shape.elements[1]])
        elif caller is not None and caller.opcode == "async-start":
            form = "async"
        elif caller is not None and caller.opcode == "fusion":
            scatters = any(u.opcode == "dynamic-slice" for u in at.users) or at.computation.name.startswith(
                "all-reduce-scatter"
            )
            if kind == "all-reduce" and scatters:
                kind, form, result = "reduce-scatter", "fused all-reduce and slice", _bytes([caller.shape])
                scattered = caller
            else:
                form = "fused"
        if kind == "all-reduce" and _zero_filled(at):
            form += ", gathers by summing into zeros"
        if at.opcode in ("send", "recv"):
            form = "point to point"
            if at.proto.is_host_transfer:
                form = f"host transfer {_attributes(at).get('_xla_megascale_transfer_type', '')}".strip()
            moved = _sent(at).logical_bytes
            operands, result = (moved, 0) if kind == "send" else (0, moved)
        groups = self.groups(at)
        pairs = kind in ("collective-permute", "send", "recv")
        axes = None
        if self.mesh and groups:
            axes = self.mesh.of_pairs(groups) if pairs else self.mesh.of_groups(groups)
            if axes is None and self.inside and not pairs:
                axes = self.inside.of_groups(groups)
        elif kind in ("send", "recv") and self.between:
            axes = self.between
        place, op_name = self.places.named(at)
        times = self.counts[at.computation.id]
        shape = next((leaf for o in at.operands for leaf in o.shape.leaves()), at.shape)
        if kind in ("send", "recv"):
            shape = _sent(at)
        return Collective(
            id=at.id, name=at.name, computation=at.computation.name, kind=kind, form=form, op_name=op_name,
            scope=place.scope, phase=place.phase, scope_exact=place.exact, dtype=shape.dtype, operand_bytes=operands,
            result_bytes=result, groups=groups, group_size=max(map(len, groups), default=0), axes=axes,
            parts=self.parts(at, kind, scattered), nodes=self.nodes(groups),
            channel=at.proto.channel_id, executions=times, total_operand_bytes=times.times(exact(operands)),
            total_result_bytes=times.times(exact(result)), source=self.module.source(at),
        )  # fmt: skip


def read_collectives(
    module: Module,
    executions: Executions,
    places: Places,
    mesh: Mapping[str, int] | None,
    devices_per_node: int | None = None,
) -> Collectives:
    """All collectives of the module.

    Args:
        module: the compiled program.
        executions: how often each computation runs.
        places: scopes and phases of instructions.
        mesh: ordered axis sizes, to name the axes of each group.
        devices_per_node: consecutive physical devices that share a node or a slice, None where there is one.
    """
    reader = _Reader(module, executions, places, mesh, devices_per_node)
    found = [
        at
        for at in module.walk()
        if (at.opcode in COLLECTIVES or (at.opcode in ("send", "recv") and _leaves(at)))
        and reader.counts[at.computation.id] != ZERO
    ]
    started = {(at.proto.channel_id, str(at.shape)) for at in found if _feeds(at, "AsyncCollectiveStart")}
    rows = tuple(reader.row(at) for at in found if not _is_clone(at, started))
    keys = {r.id: (r.kind, r.axes) for r in rows}
    operand = executions.totals({r.id: {keys[r.id]: r.operand_bytes} for r in rows})
    result = executions.totals({r.id: {keys[r.id]: r.result_bytes} for r in rows})
    return Collectives(rows, operand, result, len(found) - len(rows))
