"""Who owns what on a mesh, and what is recomputed.

Axes mean: `data` replicates state and splits sequences; `fsdp` splits sequences and shards every matrix along the
hidden axis; `tensor` shards heads, MLP width and vocabulary. Vectors (norm scales, biases) are replicated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from jaxcost.contracts.errors import Problem
from jaxcost.contracts.record import Record, Size, outside_digest

MESH_AXES = ("data", "fsdp", "tensor")
Remat = Literal[
    "none", "attention", "block", "everything", "dots_saveable", "dots_with_no_batch_dims_saveable", "nothing_saveable",
    "everything_saveable",
]  # fmt: skip
REMATS: tuple[str, ...] = Remat.__args__  # type: ignore[attr-defined]  # typing's own tuple of the literal values


def mesh_axes(mesh: object) -> object:
    """Return a `{axis: size}` table as the list of axes a record holds; anything else is left for validation."""
    if isinstance(mesh, Mapping):
        return [{"name": name, "size": size} for name, size in mesh.items()]
    return mesh


class MeshAxis(Record):
    """One named mesh axis."""

    name: Literal["data", "fsdp", "tensor"]
    size: Size


class Execution(Record):
    """How a step is executed.

    `remat`: `attention` saves every projection output and recomputes the pairwise products; `block` replays each whole
    layer; `everything` replays the whole forward pass, head included; the others are JAX's policies applied to a layer.
    `vocabulary_multiple` pads the vocabulary rows up to a multiple; the padding is counted and shown.
    """

    name: str = outside_digest("")
    mesh: tuple[MeshAxis, ...] = ()
    zero: Literal[0, 1, 2, 3] = 0
    remat: Remat = "none"
    layers: Literal["scan", "unrolled"] = "scan"
    sharding: Literal["explicit", "auto"] = "explicit"
    donate: bool = True
    vocabulary_multiple: Size = 1
    materialisation: Literal["program-order-v1"] = "program-order-v1"

    def problems(self) -> Iterable[Problem]:
        names = [axis.name for axis in self.mesh]
        for name in sorted({name for name in names if names.count(name) > 1}):
            yield Problem("mesh", name, "the axis appears twice", "give each axis one size")
        if self.zero and self.degree("data") == 1:
            rule = "ZeRO shards state over a data axis, and the mesh has none"
            yield Problem("zero", self.zero, rule, "add data=N to the mesh, or write zero = 0")

    def degree(self, axis: str) -> int:
        """Return the size of a mesh axis, 1 when it is not in the mesh."""
        return next((item.size for item in self.mesh if item.name == axis), 1)

    @property
    def device_count(self) -> int:
        """The number of devices of the mesh."""
        count = 1
        for axis in self.mesh:
            count *= axis.size
        return count

    @property
    def mesh_sizes(self) -> dict[str, int]:
        """Axis name to size, in mesh order."""
        return {axis.name: axis.size for axis in self.mesh}
