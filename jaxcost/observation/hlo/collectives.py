"""Every transfer between devices, with its payload, its group and its trips.

What looks like one collective may be written in several ways: a start and a done (the start's tuple repeats the
operand), an async wrapper around a called computation, on TPU a fusion holding an all-reduce and a slice (a
reduce-scatter) or several clones of one gather spread over the fusions that hide it. Each transfer is one record
here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from jaxcost.observation.hlo.groups import Groups, MeshAxes, decode_groups
from jaxcost.observation.hlo.module import Instruction, Module
from jaxcost.observation.hlo.opcodes import COLLECTIVES
from jaxcost.observation.hlo.origins import Places, behind
from jaxcost.observation.hlo.shapes import Shape
from jaxcost.observation.hlo.trips import ZERO, Executions, Total, exact


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective. `operand_bytes` and `result_bytes` are one device's payload in and out, per execution.

    `groups` are the participants (for a permutation, (source, target) pairs); `axes` the mesh axes they run over, None
    without a mesh or when no axes match. `form` says how it was written: plain, async, or a TPU form.
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


class _Reader:
    def __init__(self, module: Module, executions: Executions, places: Places, mesh: Mapping[str, int] | None) -> None:
        self.module, self.places = module, places
        self.counts = executions.counts()
        self.mesh = MeshAxes(mesh) if mesh else None
        self.devices = self.mesh.count if self.mesh else module.device_count
        self.decoded: dict[bytes, Groups] = {}

    def groups(self, at: Instruction) -> Groups:
        if at.proto.source_target_pairs:
            return tuple((pair.source, pair.target) for pair in at.proto.source_target_pairs)
        if at.opcode in ("send", "recv"):
            return ()
        parts = [
            at.proto.mesh_axes_replica_group_list, at.proto.iota_collective_device_list,
            at.proto.collective_device_list, *at.proto.replica_groups,
        ]  # fmt: skip
        key = b"|".join(p.SerializeToString() for p in parts)
        if key not in self.decoded:
            self.decoded[key] = decode_groups(at.proto, self.devices)
        return self.decoded[key]

    def row(self, at: Instruction) -> Collective:
        kind, form = at.opcode.removesuffix("-start"), "plain"
        operands = _bytes(o.shape for o in at.operands)
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
            else:
                form = "fused"
        if kind == "all-reduce" and _zero_filled(at):
            form += ", gathers by summing into zeros"
        if at.opcode in ("send", "recv"):
            attributes = {e.key: e.value for e in at.proto.frontend_attributes.map}
            form = f"host transfer {attributes.get('_xla_megascale_transfer_type', '')}".strip()
            operands, result = (_bytes(o.shape for o in at.operands[:1]), 0) if kind == "send" else (0, result)
        groups = self.groups(at)
        pairs = kind == "collective-permute"
        axes = None
        if self.mesh and groups:
            axes = self.mesh.of_pairs(groups) if pairs else self.mesh.of_groups(groups)
        place, op_name = self.places.named(at)
        times = self.counts[at.computation.id]
        shape = next((leaf for o in at.operands for leaf in o.shape.leaves()), at.shape)
        return Collective(
            id=at.id, name=at.name, computation=at.computation.name, kind=kind, form=form, op_name=op_name,
            scope=place.scope, phase=place.phase, scope_exact=place.exact, dtype=shape.dtype, operand_bytes=operands,
            result_bytes=result, groups=groups, group_size=2 if pairs else max(map(len, groups), default=0), axes=axes,
            channel=at.proto.channel_id, executions=times, total_operand_bytes=times.times(exact(operands)),
            total_result_bytes=times.times(exact(result)), source=self.module.source(at),
        )  # fmt: skip


def read_collectives(
    module: Module, executions: Executions, places: Places, mesh: Mapping[str, int] | None
) -> Collectives:
    """All collectives of the module. `mesh`: ordered axis sizes, to name the axes of each group."""
    reader = _Reader(module, executions, places, mesh)
    found = [
        at
        for at in module.walk()
        if (at.opcode in COLLECTIVES or (at.opcode in ("send", "recv") and at.proto.is_host_transfer))
        and reader.counts[at.computation.id] != ZERO
    ]
    started = {(at.proto.channel_id, str(at.shape)) for at in found if _feeds(at, "AsyncCollectiveStart")}
    rows = tuple(reader.row(at) for at in found if not _is_clone(at, started))
    keys = {r.id: (r.kind, r.axes) for r in rows}
    operand = executions.totals({r.id: {keys[r.id]: r.operand_bytes} for r in rows})
    result = executions.totals({r.id: {keys[r.id]: r.result_bytes} for r in rows})
    return Collectives(rows, operand, result, len(found) - len(rows))
