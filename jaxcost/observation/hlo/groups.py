"""Which devices talk to each other: XLA's three spellings of replica groups, and the mesh axes behind them.

    mesh axes   an axis list over a named mesh; devices numbered in order, by ids, or by a reshaped and transposed iota
    iota        [groups, size] <= reshape dims, transposed by a permutation
    explicit    the lists themselves

Ids are logical: positions in the program's mesh order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from math import prod
from typing import Literal

from jaxcost.observation.hlo.schema import Proto, rejected

Groups = tuple[tuple[int, ...], ...]

_MAX_DEVICES = 1 << 20
_REMEDY = "the dump is damaged: dump the module again"


def transpose(ids: Sequence[int], dims: Sequence[int], permutation: Sequence[int]) -> list[int]:
    """Row-major `ids` of shape `dims`, transposed, as a row-major list."""
    if sorted(permutation) != list(range(len(dims))) or prod(dims) != len(ids):
        raise rejected("hlo.replica_groups", (list(dims), list(permutation)), "must transpose all devices", _REMEDY)
    strides = [prod(dims[i + 1 :]) for i in range(len(dims))]
    result = [0]
    for axis in permutation:
        result = [base + strides[axis] * i for base in result for i in range(dims[axis])]
    return [ids[i] for i in result]


def _count(sizes: Sequence[int]) -> int:
    total = 1
    for size in sizes:
        total *= size
        if size < 1 or total > _MAX_DEVICES:
            raise rejected("hlo.replica_groups", list(sizes)[:8], f"1 to {_MAX_DEVICES} devices", _REMEDY)
    return total


def _iota(count: int, reshape: Sequence[int], permutation: Sequence[int]) -> list[int]:
    if not reshape:
        return list(range(count))
    return transpose(range(count), reshape, permutation or list(range(len(reshape))))


def _from_mesh(proto: Proto) -> Groups:
    mesh = proto.mesh
    sizes = [axis.size for axis in mesh.axes]
    count = _count(sizes)
    if mesh.device_ids:
        ids = list(mesh.device_ids)
    else:
        ids = _iota(count, list(mesh.iota_transform.reshape_dims), list(mesh.iota_transform.transpose_perm))
    if len(ids) != count:
        raise rejected("hlo.replica_groups.mesh", len(ids), f"the mesh has {count} devices", _REMEDY)
    # A sub-axis is the middle part of an axis cut into (pre, size, rest).
    dims: list[int] = []
    start: list[int] = []
    cuts: dict[int, list[int]] = {}
    for ref in proto.axes:
        if not 0 <= ref.mesh_axis_index < len(sizes):
            raise rejected("hlo.replica_groups.axes", ref.mesh_axis_index, f"one of {len(sizes)} axes", _REMEDY)
        if ref.HasField("sub_axis_info"):
            if ref.mesh_axis_index in cuts:
                raise rejected("hlo.replica_groups.axes", ref.mesh_axis_index, "one part of an axis at a time", _REMEDY)
            pre, size = ref.sub_axis_info.pre_size, ref.sub_axis_info.size
            whole = sizes[ref.mesh_axis_index]
            if pre < 1 or size < 1 or whole % (pre * size):
                raise rejected("hlo.replica_groups.axes", (pre, size), f"must divide {whole}", _REMEDY)
            cuts[ref.mesh_axis_index] = [pre, size, whole // (pre * size)]
    for axis, size in enumerate(sizes):
        start.append(len(dims))
        dims.extend(cuts.get(axis, [size]))
    grouped = [start[r.mesh_axis_index] + (1 if r.HasField("sub_axis_info") else 0) for r in proto.axes]
    if len(set(grouped)) != len(grouped):
        raise rejected("hlo.replica_groups.axes", grouped, "axes must be distinct", _REMEDY)
    rest = [i for i in range(len(dims)) if i not in grouped]
    flat = transpose(ids, dims, rest + grouped)
    return _cut(flat, prod(dims[i] for i in grouped))


def _cut(flat: Sequence[int], size: int) -> Groups:
    return tuple(tuple(flat[i : i + size]) for i in range(0, len(flat), size))


def decode_groups(proto: Proto, device_count: int) -> Groups:
    """The groups of a collective instruction, ids in order. No groups at all means one group of all devices."""
    if proto.HasField("mesh_axes_replica_group_list"):
        groups = _from_mesh(proto.mesh_axes_replica_group_list)
    elif proto.HasField("iota_collective_device_list"):
        listed = proto.iota_collective_device_list
        count = _count([listed.num_replica_groups, listed.num_devices_per_group])
        dims = list(listed.iota_reshape_dims)
        flat = _iota(_count(dims) if dims else count, dims, list(listed.iota_transpose_perm))
        if len(flat) != count:
            raise rejected("hlo.replica_groups.iota", len(flat), f"must list {count} devices", _REMEDY)
        groups = _cut(flat, listed.num_devices_per_group)
    else:
        given = [*proto.collective_device_list.replica_groups, *proto.replica_groups]
        groups = tuple(tuple(group.replica_ids) for group in given)
        if not groups or groups == ((),):
            groups = (tuple(range(device_count)),)
    members = [i for group in groups for i in group]
    if len(set(members)) != len(members) or any(i < 0 for i in members):
        raise rejected("hlo.replica_groups", f"{len(members)} members", "each device is in at most one group", _REMEDY)
    return groups


Numbering = Literal["replicas", "partitions", "both", "devices"]
_OVER_BOTH = frozenset("all-reduce all-gather reduce-scatter all-reduce-start all-gather-start".split())


def numbering(opcode: str, channel: int, use_global_device_ids: bool) -> Numbering:
    """What the ids of a collective's groups number.

    Device `r p` of a program with R replicas of P partitions is `r P + p`. Ids are `devices`, or `replicas` (a group
    for each partition), `partitions` (a group for each replica), or replicas with all their partitions (`both`).
    """
    if use_global_device_ids:
        return "devices"
    if not channel:
        return "replicas"
    return "both" if opcode in _OVER_BOTH else "partitions"


def devices_of(groups: Groups, ids: Numbering, replicas: int, partitions: int) -> Groups:
    """Groups of devices from groups of what their ids number; as they are where an id lies outside that range."""
    largest = max((member for group in groups for member in group), default=0)
    if ids == "devices" or largest >= (partitions if ids == "partitions" else replicas):
        return groups
    if ids == "partitions":
        return tuple(tuple(r * partitions + p for p in group) for r in range(replicas) for group in groups)
    if ids == "replicas":
        return tuple(tuple(r * partitions + p for r in group) for group in groups for p in range(partitions))
    return tuple(tuple(r * partitions + p for r in group for p in range(partitions)) for group in groups)


class MeshAxes:
    """Recognises groups as the axes of a mesh, given as an ordered mapping from axis name to size (row-major device
    ids).
    """

    def __init__(self, mesh: Mapping[str, int]) -> None:
        self.names, self.sizes = list(mesh), list(mesh.values())
        if any(type(s) is not int for s in self.sizes):
            raise rejected("mesh", dict(mesh), "axis sizes are whole numbers", "give axis=size")
        self.count = _count(self.sizes)
        self.by_groups: dict[frozenset[frozenset[int]], tuple[str, ...]] = {}
        axes = [i for i, size in enumerate(self.sizes) if size > 1]
        for n in range(1, len(axes) + 1):
            for chosen in combinations(axes, n):
                rest = [i for i in range(len(self.sizes)) if i not in chosen]
                flat = transpose(range(self.count), self.sizes, rest + list(chosen))
                key = frozenset(map(frozenset, _cut(flat, prod(self.sizes[i] for i in chosen))))
                self.by_groups[key] = self._declared(chosen)
        self.known: dict[Groups, tuple[str, ...] | None] = {}

    def of_groups(self, groups: Groups) -> tuple[str, ...] | None:
        """The axes whose members each group runs over; () when every group is one device; None when no axes match."""
        if groups not in self.known:
            alone = all(len(group) == 1 for group in groups)
            self.known[groups] = () if alone else self.by_groups.get(frozenset(map(frozenset, groups)))
        return self.known[groups]

    def of_pairs(self, pairs: Groups) -> tuple[str, ...] | None:
        """The axes along which (source, target) pairs move; None when a device is outside the mesh."""
        moved: set[int] = set()
        for source, target in pairs:
            if not (0 <= source < self.count and 0 <= target < self.count):
                return None
            for axis, (a, b) in enumerate(zip(self._at(source), self._at(target), strict=True)):
                if a != b:
                    moved.add(axis)
        return self._declared(sorted(moved))

    def _declared(self, axes: Iterable[int]) -> tuple[str, ...]:
        """Axes by the names of a case, in which `tensor` and `tensor_replica` together are `tensor`.

        The outer part alone, which separates ranks with different K/V heads, is then `tensor_heads`.
        """
        names = [self.names[i] for i in axes]
        if "tensor_replica" not in self.names or "tensor" not in names:
            return tuple(names)
        if "tensor_replica" in names:
            return tuple(name for name in names if name != "tensor_replica")
        return tuple("tensor_heads" if name == "tensor" else name for name in names)

    def _at(self, device: int) -> list[int]:
        return [device // prod(self.sizes[i + 1 :]) % size for i, size in enumerate(self.sizes)]
