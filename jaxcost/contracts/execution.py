"""Who owns what on a mesh, and what is recomputed.

Axes mean: `pipeline` splits the layers into stages; `data` replicates state and splits sequences; `fsdp` splits
sequences and shards every matrix along the hidden axis (with `data` beside it this is hybrid sharding); `context`
splits the rows of every sequence; `tensor` shards heads, MLP width and vocabulary; `expert` is declared for
architectures with experts. Vectors (norm scales, biases) are replicated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from jaxcost.contracts.errors import Problem
from jaxcost.contracts.record import Extent, Name, Record, Size, outside_digest

MESH_AXES = ("pipeline", "data", "fsdp", "context", "tensor", "expert")
Remat = Literal[
    "none", "attention", "block", "everything", "dots_saveable", "dots_with_no_batch_dims_saveable", "nothing_saveable",
    "everything_saveable", "save_only_these_names", "save_and_offload_only_these_names",
]  # fmt: skip
REMATS: tuple[str, ...] = Remat.__args__  # type: ignore[attr-defined]  # typing's own tuple of the literal values
# What a layer names for the policies that go by name, in execution order; those a layer lacks are refused by the case.
SAVEABLE_NAMES = (
    "attn_norm", "q_proj", "k_proj", "v_proj", "q_norm", "k_norm", "q_rotary", "k_rotary", "scores", "probabilities",
    "context", "o_proj", "attn_residual", "mlp_norm", "gate", "up", "activation", "down",
)  # fmt: skip
OFFLOADABLE = ("parameter", "master", "gradient", "optimizer")


def mesh_axes(mesh: object) -> object:
    """Return a `{axis: size}` table as the list of axes a record holds; anything else is left for validation."""
    if isinstance(mesh, Mapping):
        return [{"name": name, "size": size} for name, size in mesh.items()]
    return mesh


class MeshAxis(Record):
    """One named mesh axis."""

    name: Literal["pipeline", "data", "fsdp", "context", "tensor", "expert"]
    size: Size


class Fsdp(Record):
    """What is gathered at a time, how long the gathered weights stay, and how many groups are fetched ahead.

    It acts where parameters are sharded: over an fsdp axis, and over data under ZeRO stage 3.
    `group`: the whole model at once (`root`), one block and the root's remainder (`block`), or each matrix where it is
    used (`matrix`; what the reference program does). With `reshard` weights are gathered again for the backward pass.
    """

    group: Literal["root", "block", "matrix"] = "matrix"
    reshard: bool = True
    prefetch: Extent = 0

    def problems(self) -> Iterable[Problem]:
        if self.group == "root" and self.prefetch:
            rule = "the group root is the whole model: there is no other group to gather ahead"
            yield Problem("prefetch", self.prefetch, rule, "leave it out, or gather by block or matrix")


class Pipeline(Record):
    """How stages take turns. Microbatches are those of the workload's accumulation.

    `layers` gives the layers of each stage (of each virtual stage in turn where `virtual` > 1), empty for even stages;
    the embedding stands in stage `embedding_stage`, final norm and head in `head_stage`, negative counts from the end.
    A tied table stands in both, and its gradients are summed over the two.
    """

    schedule: Literal["gpipe", "1f1b", "interleaved"] = "gpipe"
    layers: tuple[Extent, ...] = ()
    virtual: Size = 1
    embedding_stage: int = 0
    head_stage: int = -1

    def problems(self) -> Iterable[Problem]:
        if (self.virtual > 1) != (self.schedule == "interleaved"):
            rule = f"schedule {self.schedule} and {self.virtual} virtual stages do not go together"
            yield Problem("virtual", self.virtual, rule, "interleaved has at least 2 virtual stages, the others 1")


class Execution(Record):
    """How a step is executed.

    `remat`: `attention` saves every projection output and recomputes the pairwise products; `block` replays each whole
    layer; `everything` replays the whole forward pass, head included; the others are JAX's policies applied to a layer,
    of which the last two keep `remat_names` (on the device, or on the host).
    `vocabulary_multiple` pads the vocabulary rows up to a multiple, `head_multiple` query heads; the padding is counted
    and shown. With fewer K/V heads than `tensor` ranks each K/V head is held by tensor / kv_heads ranks.
    `sequence_parallel` splits the rows of what lies between the tensor-parallel regions over `tensor` (Korthikanti et
    al. 2022, arXiv:2205.05198). `gradient_sync` says after which microbatches gradients are reduced. `offload` lists
    the state that rests in host memory between its uses.
    """

    name: str = outside_digest("")
    mesh: tuple[MeshAxis, ...] = ()
    zero: Literal[0, 1, 2, 3] = 0
    fsdp: Fsdp = Fsdp()
    pipeline: Pipeline = Pipeline()
    sequence_parallel: bool = False
    context_method: Literal["all_gather", "ring"] = "all_gather"
    gradient_sync: Literal["every_microbatch", "last_microbatch"] = "every_microbatch"
    offload: tuple[Literal["parameter", "master", "gradient", "optimizer"], ...] = ()
    remat: Remat = "none"
    remat_names: tuple[Name, ...] = ()
    layers: Literal["scan", "unrolled"] = "scan"
    sharding: Literal["explicit", "auto"] = "explicit"
    donate: bool = True
    vocabulary_multiple: Size = 1
    head_multiple: Size = 1
    materialisation: Literal["program-order-v1"] = "program-order-v1"

    def problems(self) -> Iterable[Problem]:
        names = [axis.name for axis in self.mesh]
        for name in sorted({name for name in names if names.count(name) > 1}):
            yield Problem("mesh", name, "the axis appears twice", "give each axis one size")
        if self.zero and self.degree("data") == 1:
            rule = "ZeRO shards state over a data axis, and the mesh has none"
            yield Problem("zero", self.zero, rule, "add data=N to the mesh, or write zero = 0")
        needs: tuple[tuple[str, object, bool, str], ...] = (
            ("fsdp", self.fsdp.to_data(), self.fsdp != Fsdp() and self.zero != 3, "fsdp"),
            ("pipeline", self.pipeline.to_data(), self.pipeline != Pipeline(), "pipeline"),
            ("sequence_parallel", True, self.sequence_parallel, "tensor"),
            ("context_method", self.context_method, self.context_method != "all_gather", "context"),
        )
        for field, value, used, axis in needs:
            if used and self.degree(axis) == 1:
                rule = f"it acts over a {axis} axis, and the mesh has none"
                yield Problem(field, value, rule, f"add {axis}=N to the mesh, or leave it out")
        by_name = self.remat in ("save_only_these_names", "save_and_offload_only_these_names")
        if by_name != bool(self.remat_names):
            rule = f"remat {self.remat} and {len(self.remat_names)} names do not go together"
            yield Problem(
                "remat_names", list(self.remat_names), rule, "names belong to the two policies that go by name"
            )
        for saved in self.remat_names:
            if saved not in SAVEABLE_NAMES:
                yield Problem(
                    "remat_names", saved, "no tensor of a layer has this name", f"use {', '.join(SAVEABLE_NAMES)}"
                )
        listed: tuple[tuple[str, tuple[str, ...]], ...] = (("remat_names", self.remat_names), ("offload", self.offload))
        for field, values in listed:
            for twice in sorted({value for value in values if values.count(value) > 1}):
                yield Problem(field, twice, "named twice", "name it once")

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
