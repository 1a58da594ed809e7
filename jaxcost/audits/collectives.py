"""Every transfer between devices: what moves, between whom, how often, and whether it leaves a node or a slice.

A row is one collective as compiled; all its numbers are of one device. `operand_bytes` and `result_bytes` are elements
alone, without the padding of a layout; what combined collectives move is summed, and the tuple of a `-start` is not
counted twice. `wire_bytes` is what the device sends, by a stated convention (a ring of the n members of its group):

    all-gather, collective-broadcast    (n - 1) / n of the result
    reduce-scatter, all-to-all          (n - 1) / n of the operand
    all-reduce                          2 (n - 1) / n of the operand
    collective-permute, send            the operand, where the device sends to another
    ragged-all-to-all                   unknown: its sizes are data

A compiler may move another type than the program says (sums widened to f32 on CPU): `user_dtype` and `user_bytes` are
the program's, null where a conversion may be either's; `dtype` and `operand_bytes` are those that move.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from jaxcost.audits.evidence import Evidence, Notes, number
from jaxcost.observation.hlo.collectives import Collective
from jaxcost.observation.hlo.groups import Groups, MeshAxes
from jaxcost.observation.hlo.module import Instruction, Module
from jaxcost.observation.hlo.opcodes import COLLECTIVES
from jaxcost.observation.hlo.origins import behind
from jaxcost.observation.hlo.schema import Proto
from jaxcost.observation.hlo.scope import names_of, primitive_of
from jaxcost.observation.hlo.shapes import bits_of
from jaxcost.observation.hlo.trips import Total

WIRE = "bytes that one device sends, all members of its group in a ring"
INSIDE, BETWEEN = "inside", "between"
_MAX_WALK = 64
_MAX_USES = 256
_LISTED = 4096  # members of all groups of a row, beyond which only their layout is given
_CAST = "convert_element_type"
_FRAMES = ("fusion", "call", "async-start")
_MOVES = frozenset(
    "bitcast copy reshape transpose get-tuple-element slice all-reduce-done all-gather-done async-done opt-barrier "
    "collective-permute-done concatenate tuple".split()
)
_PAIRED = ("collective-permute", "send", "recv")
_THROUGH_HOST = "host transfer"
_PARTITIONER = "named by the partitioner, not by the program"


def section(evidence: Evidence, notes: Notes) -> list[dict[str, Any]]:
    """Return one row per collective, in the order of the module."""
    return [row.to_dict() for row in _rows(evidence, notes)]


def totals(evidence: Evidence, notes: Notes) -> dict[str, Any]:
    """Return sums over one step on one device: in all, by kind, axes and link, and by link.

    A sum is its integer, an interval where a branch decides, or None where a loop's count is unknown. `count` is
    instructions, `executions` how often they run.
    """
    rows = _rows(evidence, Notes())
    fields = ("executions", "operand_bytes", "result_bytes", "user_bytes", "wire_bytes")
    own: dict[int, dict[tuple[str, ...], int]] = {}
    silent: set[tuple[str, ...]] = set()
    counts: dict[tuple[str, ...], int] = {}
    for row in rows:
        axes = "?" if row.axes is None else "\0".join(row.axes)
        keys = [(), ("kind", row.kind), ("link", row.link or ""), ("all", row.kind, axes, row.link or "")]
        amounts = dict(zip(fields, (1, row.operand, row.result, row.user, row.wire), strict=True))
        for key in keys:
            counts[key] = counts.get(key, 0) + 1
            for name, amount in amounts.items():
                if amount is None:
                    silent.add((*key, name))
                else:
                    own.setdefault(row.id, {})[(*key, name)] = amount
    found = evidence.graph.executions.totals(own)

    def sums(key: tuple[str, ...]) -> dict[str, Any]:
        made = {
            name: None if (*key, name) in silent else number(found.get((*key, name), Total(0, 0))) for name in fields
        }
        return {"count": counts.get(key, 0), **made}

    detailed = sorted(key for key in counts if key[:1] == ("all",))
    return {
        "wire": WIRE,
        "total": sums(()),
        "by_kind": {key[1]: sums(key) for key in sorted(counts) if key[:1] == ("kind",)},
        "by_link": {key[1] or "unknown": sums(key) for key in sorted(counts) if key[:1] == ("link",)},
        "by_kind_axes": [
            {
                "kind": key[1], "axes": None if key[2] == "?" else [axis for axis in key[2].split("\0") if axis],
                "link": key[3] or None, **sums(key),
            }
            for key in detailed
        ],
        "clones": evidence.reading.collectives.clones,
    }  # fmt: skip


@dataclass(frozen=True)
class _Row:
    """One collective, with what the program meant beside what was compiled."""

    found: Collective
    axes: tuple[str, ...] | None
    along: tuple[str, ...] | None
    axes_reason: str
    operand: int
    result: int
    stored: int
    user_dtype: str | None
    user: int | None
    wire: int | None
    wire_reason: str
    link: str | None
    nodes: int | None
    crossing: int | None
    source: str

    @property
    def id(self) -> int:
        return self.found.id

    @property
    def kind(self) -> str:
        return self.found.kind

    def to_dict(self) -> dict[str, Any]:
        row = self.found
        executions = row.executions
        sizes = sorted({len(group) for group in row.groups})
        return {
            "name": row.name, "kind": row.kind, "form": row.form,
            "axes": None if self.axes is None else list(self.axes),
            "along": None if self.along is None else list(self.along), "axes_reason": self.axes_reason,
            "layout": _layout(row.groups, row.kind),
            "groups": _listed(row.groups),
            "group_size": row.group_size, "group_sizes": sizes, "group_count": len(row.groups), "dtype": row.dtype,
            "user_dtype": self.user_dtype, "arrays": max(1, len(row.parts)), "operand_bytes": self.operand,
            "result_bytes": self.result, "stored_bytes": self.stored, "user_bytes": self.user, "wire_bytes": self.wire,
            "wire_reason": self.wire_reason, "executions": number(executions),
            "reason": executions.reason if executions.minimum is None else "",
            "total_operand_bytes": _times(executions, self.operand),
            "total_result_bytes": _times(executions, self.result),
            "total_user_bytes": None if self.user is None else _times(executions, self.user),
            "total_wire_bytes": None if self.wire is None else _times(executions, self.wire),
            "link": self.link, "nodes": self.nodes,
            "pairs": len(row.groups) if row.kind in _PAIRED and row.groups else None,
            "pairs_between": self.crossing, "scope": row.scope, "phase": row.phase, "op_name": row.op_name,
            "channel": row.channel, "source": self.source,
        }  # fmt: skip


def _times(executions: Total, amount: int) -> int | dict[str, int] | None:
    return number(executions.times(Total(amount, amount)))


def _rows(evidence: Evidence, notes: Notes) -> list[_Row]:
    named = _named_mesh(evidence)
    casts = _Casts(evidence.graph.module)
    rows = [_row(evidence, found, named, casts) for found in evidence.reading.collectives.rows]
    _note(evidence, rows, notes)
    return rows


def _note(evidence: Evidence, rows: list[_Row], notes: Notes) -> None:
    """Name what a count keyed on the compiled type would misjudge, by pair of types, and what is unknown."""
    changed: dict[tuple[str, str], list[_Row]] = {}
    for row in rows:
        if row.user is not None and row.user != row.operand:
            changed.setdefault((str(row.user_dtype), row.found.dtype), []).append(row)
    for (meant, moved), group in changed.items():
        asked = sum(row.user for row in group if row.user is not None)
        wider = sum(row.operand for row in group) > asked
        names = ", ".join(row.found.name for row in group[:3]) + (" ..." if len(group) > 3 else "")
        some = f"{len(group)} collectives ({names}) move" if len(group) > 1 else f"{names} ({group[0].kind}) moves"
        text = (
            f"{some} {sum(row.operand for row in group):,} bytes of {moved} an execution where the program has "
            f"{asked:,} of {meant}: {'widened' if wider else 'narrowed'} by the compiler"
        )
        if evidence.platform == "cpu":
            text += "; no evidence for a GPU or TPU, which may keep the type"
        notes.find(
            "collective_widened" if wider else "collective_narrowed", text, where=group[0].found.name,
            bytes=sum(row.operand for row in group) - asked,
        )  # fmt: skip
    for row in rows:
        found = row.found
        if found.executions.minimum is None:
            notes.unknown(
                found.name, "collective", f"how often it runs is unknown: {found.executions.reason}",
                scope=found.scope, source=row.source,
            )  # fmt: skip


def _row(evidence: Evidence, found: Collective, named: Mapping[str, int], casts: _Casts) -> _Row:
    at = evidence.graph.module.instructions[found.id]
    operand = sum(part.operand_bytes for part in found.parts)
    result = sum(part.result_bytes for part in found.parts)
    if found.kind in ("all-reduce", "collective-broadcast", "collective-permute"):
        result = operand
    axes, along, reason = _axes(found, at, evidence.mesh or named, evidence.reading.device_count)
    if axes and not evidence.mesh:
        reason = _PARTITIONER
    dtype, user = _meant(casts, at, found, operand)
    wire, wire_reason = _wire(found, operand, result)
    crossing = _crossing(evidence, found)
    nodes, link, target = found.nodes, None, evidence.program.target
    if found.form.startswith(_THROUGH_HOST):
        nodes, link = target.slice_count if target is not None else None, BETWEEN
    elif nodes is not None:
        link = BETWEEN if nodes > 1 or crossing else INSIDE
    elif target is not None and target.family != "cpu" and target.node_count == target.slice_count == 1:
        link = INSIDE
    return _Row(
        found, axes, along, reason, operand, result, found.operand_bytes, dtype, user, wire, wire_reason, link, nodes,
        crossing, evidence.user_source(at),
    )  # fmt: skip


def _listed(groups: Groups) -> list[list[int]] | None:
    """The members of each group, logical ids in order; None where they are too many to list (see `layout`)."""
    return [list(group) for group in groups] if sum(map(len, groups)) <= _LISTED else None


# Who takes part ---------------------------------------------------------------------------------------------------


def _named_mesh(evidence: Evidence) -> dict[str, int]:
    """The mesh that the module's own collectives are written over, where they agree on one in plain order.

    The partitioner names axes `axis_0`, ...; axes of one device say nothing and are left out.
    """
    found: set[tuple[tuple[str, int], ...]] = set()
    for row in evidence.reading.collectives.rows:
        at = evidence.graph.module.instructions[row.id]
        if not at.proto.HasField("mesh_axes_replica_group_list"):
            continue
        mesh = at.proto.mesh_axes_replica_group_list.mesh
        if mesh.device_ids or mesh.iota_transform.reshape_dims:
            return {}
        found.add(tuple((axis.name, axis.size) for axis in mesh.axes if axis.size > 1))
    largest = max(found, key=len, default=())
    return dict(largest) if _refines(largest, found) else {}


def _refines(mesh: tuple[tuple[str, int], ...], others: set[tuple[tuple[str, int], ...]]) -> bool:
    """Whether every other mesh is this one, or has no axis to name."""
    return all(other == mesh or not other for other in others)


def _layout(groups: Groups, kind: str) -> str:
    """Groups in words that need no mesh: `4 devices, stride 1`; '' for a permutation, and for groups of one."""
    if kind in _PAIRED or not groups or max(map(len, groups)) < 2:
        return ""
    steps = {b - a for group in groups for a, b in zip(sorted(group), sorted(group)[1:], strict=False)}
    sizes = {len(group) for group in groups}
    if len(steps) == 1 and len(sizes) == 1:
        return f"{sizes.pop()} devices, stride {steps.pop()}"
    return "of irregular sizes" if len(sizes) > 1 else f"{sizes.pop()} devices, irregular"


def _axes(
    found: Collective, at: Instruction, mesh: Mapping[str, int], devices: int
) -> tuple[tuple[str, ...] | None, tuple[str, ...] | None, str]:
    """(the mesh axes a group runs over, the axes along which its members differ, why there are none)."""
    if found.axes is not None:
        return found.axes, found.axes, ""
    if found.kind in ("send", "recv") and not found.groups:
        return None, None, "a transfer between slices, with no groups"
    if mesh and prod(mesh.values()) > 1:
        axes = MeshAxes(mesh)
        whole = axes.of_pairs(found.groups) if found.kind in _PAIRED else axes.of_groups(found.groups)
        if whole is not None:
            return whole, whole, ""
        neighbours = tuple((group[0], member) for group in found.groups if group for member in group[1:])
        along = axes.of_pairs(neighbours)
        return None, along, "its groups are no whole axes of the mesh" if along else "its devices are not the mesh's"
    if at.proto.HasField("mesh_axes_replica_group_list"):
        own = _own_axes(at.proto.mesh_axes_replica_group_list)
        return own, own, _PARTITIONER
    everyone = len(found.groups) == 1 and len(found.groups[0]) == devices
    who = "every device of the program" if everyone else "the module lists devices alone"
    return None, None, f"no mesh is known: {who}"


def _own_axes(proto: Proto) -> tuple[str, ...]:
    """Axes as a collective names them itself; a part of one with its place in it."""
    names = []
    for ref in proto.axes:
        name = proto.mesh.axes[ref.mesh_axis_index].name or f"axis_{ref.mesh_axis_index}"
        if ref.HasField("sub_axis_info"):
            name += f":({ref.sub_axis_info.pre_size}){ref.sub_axis_info.size}"
        names.append(name)
    return tuple(names)


def _crossing(evidence: Evidence, found: Collective) -> int | None:
    """How many pairs of a permutation leave their node or slice; None for a group, or a target of one island."""
    target = evidence.program.target
    if found.kind not in _PAIRED or target is None or not found.groups:
        return None
    islands = max(target.node_count, target.slice_count)
    if islands < 2:
        return None
    each = target.device_count // islands
    physical = evidence.graph.module.device_ids

    def island(device: int) -> int:
        return (physical[device] if device < len(physical) else device) // each

    return sum(1 for source, sink in found.groups if island(source) != island(sink))


# What moves -------------------------------------------------------------------------------------------------------


def _wire(found: Collective, operand: int, result: int) -> tuple[int | None, str]:
    """Bytes that a device sends in one execution, rounded up; of uneven groups in the largest."""
    kind, n = found.kind, max(1, found.group_size)
    if kind == "ragged-all-to-all":
        return None, f"how much each device sends is data, at most {operand:,} bytes"
    if kind == "recv":
        return 0, "counted where it is sent"
    if kind in ("collective-permute", "send"):
        moving = any(source != sink for source, sink in _pairs(found.groups)) or not found.groups
        return operand if moving and (found.groups or kind == "send") else 0, ""
    whole = result if kind in ("all-gather", "collective-broadcast") else operand
    times = 2 if kind == "all-reduce" else 1
    return -(-times * (n - 1) * whole // n), ""


def _pairs(groups: Groups) -> list[tuple[int, int]]:
    return [(group[0], group[1]) for group in groups if len(group) == 2]


class _Casts:
    """Whether the program converts anything, looked up once."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.found: bool | None = None

    def any(self) -> bool:
        if self.found is None:
            self.found = any(_cast(one.op_name) for one in self.module.walk())
        return self.found


def _meant(casts: _Casts, at: Instruction, found: Collective, operand: int) -> tuple[str | None, int | None]:
    """Type and bytes of the operand as the program has it, before what the compiler changed; None where that cannot
    be told.
    """
    sent = at.operands[:1] if found.kind == "ragged-all-to-all" else at.operands
    sizes = [value.shape.logical_bytes for value in sent]
    if found.kind in ("send", "recv") or sum(sizes) != operand:
        return found.dtype, operand
    dtypes: set[str] = set()
    total = 0
    for index, (value, size) in enumerate(zip(sent, sizes, strict=True)):
        moved = next(value.shape.leaves(), value.shape).dtype
        before = _before_conversion(casts, at, index, moved)
        if before is None:
            return None, None
        dtypes.add(before)
        total += size * bits_of(before) // bits_of(moved) if before != moved else size
    return (dtypes.pop() if len(dtypes) == 1 else "mixed types"), total


def _before_conversion(casts: _Casts, at: Instruction, index: int, moved: str) -> str | None:
    """The type that the program sends: `moved`, unless the compiler converted it on the way; None where it may have.

    A conversion that the program asked for ends its name, or that of the collective, in `/convert_element_type`.
    Widening is the compiler's where the result is converted back. Narrowing is where an argument is converted and the
    program converts nothing; a result of arithmetic is of the type that the program gives it, however it was
    accumulated.
    """
    convert = _first(at.operands[index], "convert")
    if convert is None or _cast(convert.op_name) or _cast(at.op_name):
        return moved
    before = convert.operands[0].shape.dtype
    if not bits_of(before) or bits_of(before) == bits_of(convert.shape.dtype):
        return moved
    if bits_of(before) < bits_of(convert.shape.dtype):
        return before if _restored(at, index, before) else moved
    source = _first(convert.operands[0], "parameter")
    if source is None or source.computation is not casts.module.entry:
        return moved
    return None if casts.any() else before


def _cast(op_name: str) -> bool:
    return any(primitive_of(name) == _CAST for name in names_of(op_name)) if op_name else False


def _first(value: Instruction, opcode: str) -> Instruction | None:
    """The first instruction of this opcode on the way back through moves; of `parameter` one that nothing is behind."""
    at: Instruction | None = value
    for _ in range(_MAX_WALK):
        if at is None or at.opcode in COLLECTIVES:
            return None
        before = _step(at)
        if at.opcode == opcode and (opcode != "parameter" or before is None):
            return at
        at = before
    return None


def _restored(at: Instruction, index: int, dtype: str) -> bool:
    """Whether all that uses a result of a collective converts it to `dtype`, after moves at most."""
    stack, seen, restored = [at], {at.id}, False
    if len(at.operands) > 1 and at.shape.is_tuple and not at.opcode.endswith("-start"):
        stack = [user for user in at.users if user.opcode != "get-tuple-element" or user.proto.tuple_index == index]
    while stack:
        value = stack.pop()
        inside = value.computation
        users = [*value.users]
        if value is inside.root and len(inside.callers) == 1 and inside.callers[0].opcode in _FRAMES:
            users += inside.callers[0].users
        for user in users:
            if user.opcode == "convert" and user.shape.dtype == dtype:
                restored = True
                continue
            inner = [user]
            if user.opcode in ("fusion", "call"):
                given = user.called[0].parameters
                inner = [given[number] for number, one in enumerate(user.operands) if one is value and number in given]
            elif user.opcode not in _MOVES:
                return False
            for one in inner:
                if len(seen) > _MAX_USES:
                    return False
                if one.id not in seen:
                    seen.add(one.id)
                    stack.append(one)
    return restored


def _step(at: Instruction) -> Instruction | None:
    """One step back; into a loop's first value only where the loop does not change it, out of a loop into what its
    body leaves there, and into what was stored in a stack.
    """
    if at.opcode == "get-tuple-element" and at.operands[0].opcode == "while":
        root = at.operands[0].called[0].root
        index = at.proto.tuple_index
        return root.operands[index] if root.opcode == "tuple" and index < len(root.operands) else None
    if at.opcode == "dynamic-update-slice":
        return at.operands[1]
    if at.opcode == "get-tuple-element" and at.operands[0].opcode == "parameter":
        loops = [c for c in at.operands[0].computation.callers if c.opcode == "while"]
        if loops and not _kept(loops[0], at.proto.tuple_index):
            return None
    return behind(at)


def _kept(loop: Instruction, index: int) -> bool:
    """Whether element `index` of a loop's state is handed on as it is."""
    root = loop.called[0].root
    if root.opcode != "tuple" or index >= len(root.operands):
        return False
    at = root.operands[index]
    for _ in range(_MAX_WALK):
        if at.opcode == "get-tuple-element":
            return at.proto.tuple_index == index and at.operands[0].opcode == "parameter"
        if at.opcode not in ("copy", "bitcast", "opt-barrier", "copy-done", "copy-start") or not at.operands:
            return False
        at = at.operands[0]
    return False
