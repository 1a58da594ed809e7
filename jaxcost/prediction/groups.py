"""FSDP groups: what is gathered at a time, what of it a device lacks, and how much stands whole at once.

Sharded parameters (over `fsdp`, or over `data` under ZeRO stage 3) are gathered before they are used, in the compute
dtype, and dropped again. A group is what one gather brings: the whole model (`root`), one block with the root's
remainder a group of its own (`block`), or every array where it is used (`matrix`). Groups follow each other in
execution order; at any moment the current group and `prefetch` groups ahead of it stand whole (Zhao et al. 2023,
arXiv:2304.11277, section 3). Without resharding a group stays whole until its backward pass, so at the end of the
forward pass all of them do. A pipeline rank gathers its own groups alone, each as its tensor slice.

The values that a device lacks are what an ideal gather in place brings; a runtime may gather into a buffer of the full
size beside its shard, so the shard is not taken off the full bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import groupby
from typing import Any, NamedTuple

from jaxcost.contracts.dtypes import payload_bytes
from jaxcost.prediction.domain import ceil_div
from jaxcost.prediction.parameters import Entry
from jaxcost.prediction.program import Program
from jaxcost.prediction.rows import Row
from jaxcost.prediction.sharding import SHARDED, degrees, on_rank
from jaxcost.prediction.stages import EMBEDDING, Rank, ranks
from jaxcost.prediction.state import population

CONVENTION = "one group whole, as its tensor slice, in the compute dtype; no shard is taken off it"
OMITTED = "a runtime's buffers beside the group, padding of its buckets"
Use = tuple[str, int | None]


class Group(NamedTuple):
    """What one gather brings, of one copy.

    Attributes:
        name: `root`, `remainder`, `group0` (one layer of it) or the name of a parameter.
        copies: how many the rank has: layers, or 1.
        parameters: scalars of its arrays, as tensor slices.
        full_bytes: all of them in the compute dtype, replicated ones (vectors under fsdp) included.
        gathered_bytes: those that are sharded, padding included; 0 where nothing needs a gather.
        shard_bytes: the part of the gathered bytes that a device has.
    """

    name: str
    copies: int
    parameters: int
    full_bytes: int
    gathered_bytes: int
    shard_bytes: int

    @property
    def missing_bytes(self) -> int:
        """Bytes of peers that a gather in place brings."""
        return self.gathered_bytes - self.shard_bytes


class _Part(NamedTuple):
    """One array of one layer: scalars of its tensor slice, and of a device's shard of that with the sharing devices."""

    full: int
    shard: int
    degree: int


def gathers(program: Program) -> bool:
    """Return whether parameters are sharded over devices that each compute with all of them."""
    return _even(program) > 1 or program.case.execution.degree("fsdp") > 1


def _even(program: Program) -> int:
    run = program.case.execution
    return run.degree("data") if run.zero == 3 else 1


@lru_cache(maxsize=64)
def fsdp_groups(program: Program, rank: Rank) -> tuple[Group, ...]:
    """Return the groups of a pipeline rank in order of first use, none where nothing is sharded."""
    if not gathers(program):
        return ()
    parts: dict[str, _Part] = {}
    layers: dict[str, int] = {}
    for entry in population(program, "loaded"):
        here = on_rank(program, entry, rank)
        if here is not None:
            parts[entry.name] = _part(program, here)
            layers[entry.name] = here.shape[0] if here.axes[0] == "layer" else here.copies
    members: dict[str, dict[str, None]] = {}
    for name, group in _uses(program, rank):
        members.setdefault(_group_of(program, name, group)[0], {})[name] = None
    found = []
    for group_name, names in members.items():
        # A root gathers all layers at once; any other group is of one layer.
        whole = [(parts[name], layers[name] if group_name == "root" else 1) for name in names]
        copies = 1 if group_name in ("root", "remainder") else layers[next(iter(names))]
        found.append(_group(program, group_name, copies, whole))
    return tuple(found)


def _group(program: Program, name: str, copies: int, parts: Iterable[tuple[_Part, int]]) -> Group:
    dtype = program.case.state.compute_dtype
    full = gathered = shard = 0
    for part, times in parts:
        full += part.full * times
        if part.degree > 1:
            gathered += part.shard * part.degree * times
            shard += part.shard * times
    return Group(name, copies, full, *(payload_bytes(count, dtype) for count in (full, gathered, shard)))


def _part(program: Program, entry: Entry) -> _Part:
    run, full, shard, degree = program.case.execution, 1, 1, _even(program)
    for axis, extent, cut in zip(entry.axes, entry.shape, degrees(entry, run), strict=True):
        if axis == "layer":
            continue
        if SHARDED.get(axis) == "fsdp" and cut > 1:
            full, shard, degree = full * extent, shard * ceil_div(extent, cut), degree * cut
        else:
            full, shard = full * ceil_div(extent, cut), shard * ceil_div(extent, cut)
    return _Part(full, ceil_div(shard, _even(program)), degree)


def _uses(program: Program, rank: Rank) -> Iterator[Use]:
    """Yield (stored array, layer) for every use of a weight by the forward pass of a rank, in order; outside the stack
    the layer is None.
    """
    inside: dict[int, dict[str, None]] = {}
    before: dict[str, None] = {}
    after: dict[str, None] = {}
    for op in program.ops:
        for name in op.inputs:
            if program.is_weight(name):
                early = after if op.scope.split("/", 1)[0] != EMBEDDING else before
                place = early if op.group is None else inside.setdefault(op.group, {})
                place[program.tensors[name].storage] = None
    # Whatever stage they stand in, a microbatch meets the embedding before every layer and the head after all.
    if any(stage.embedding for stage in rank.stages):
        yield from ((name, None) for name in before)
    for stage in rank.stages:
        for group, (first, count) in enumerate(stage.spans):
            yield from ((name, layer) for layer in range(first, first + count) for name in inside.get(group, {}))
    if any(stage.head for stage in rank.stages):
        yield from ((name, None) for name in after)


def _group_of(program: Program, name: str, layer: int | None) -> Use:
    kind = program.case.execution.fsdp.group
    if kind == "root":
        return "root", None
    if kind == "block":
        return ("remainder", None) if layer is None else (name.split("/", 1)[0], layer)
    return name, layer


def gathered_at_once(program: Program, rank: Rank, prefetch: int | None = None) -> int:
    """Return the most bytes of gathered groups that stand whole together on a rank.

    Args:
        program: the declared step.
        rank: a pipeline rank.
        prefetch: groups fetched ahead of the one in use, by default the case's.
    """
    groups = {group.name: group for group in fsdp_groups(program, rank)}
    run = program.case.execution
    if not groups:
        return 0
    if not run.fsdp.reshard:  # in training only
        return sum(group.gathered_bytes * group.copies for group in groups.values())
    ahead = run.fsdp.prefetch if prefetch is None else prefetch
    every = (_group_of(program, name, layer) for name, layer in _uses(program, rank))
    order = [use for use, _ in groupby(every) if groups[use[0]].gathered_bytes]
    windows = (set(order[start : start + 1 + ahead]) for start in range(len(order)))
    return max((sum(groups[name].gathered_bytes for name, _ in window) for window in windows), default=0)


def gather_sweeps(program: Program) -> int:
    """Return how often a step gathers every group: once for each forward pass, with resharding for each backward.

    A whole second forward pass (remat `everything`) gathers once more, as its weights were dropped before it.
    """
    case = program.case
    if not gathers(program):
        return 0
    if case.workload.phase != "training":
        return 1
    run = case.execution
    return case.workload.accumulate * (1 + run.fsdp.reshard + (run.remat == "everything"))


def group_totals(program: Program, rank: Rank) -> dict[str, Any]:
    """Return the totals of a rank's groups; empty where nothing is gathered."""
    groups, run = fsdp_groups(program, rank), program.case.execution
    if not groups:
        return {}
    largest = max(groups, key=lambda group: group.full_bytes)
    return {
        "group": run.fsdp.group,
        "reshard": run.fsdp.reshard,
        "prefetch": run.fsdp.prefetch,
        "groups": sum(group.copies for group in groups),
        "largest_group": largest.name,
        "largest_group_bytes": largest.full_bytes,
        "largest_missing_bytes": max(group.missing_bytes for group in groups),
        "gathered_at_once_bytes": gathered_at_once(program, rank),
        "gather_sweeps": gather_sweeps(program),
    }


def group_rows(program: Program) -> tuple[Row, ...]:
    """Return a row per group of every pipeline rank."""
    rows = []
    for rank in ranks(program):
        for group in fsdp_groups(program, rank):
            fields = {
                "rank": rank.number,
                "copies": group.copies,
                "parameters": group.parameters,
                "gathered_bytes": group.gathered_bytes,
                "shard_bytes": group.shard_bytes,
                "missing_bytes": group.missing_bytes,
                "dtype": program.case.state.compute_dtype,
                "placement": "device",
                "created": "gathered before use",
                "released": "after the products of each pass"
                if program.case.execution.fsdp.reshard
                else "after backward",
            }
            scope = "" if group.name in ("root", "remainder") else group.name.rsplit("/", 1)[0]
            rows.append(
                Row(
                    f"gathered {group.name}",
                    scope,
                    "forward",
                    group.full_bytes,
                    "bytes",
                    fields,
                    CONVENTION,
                    OMITTED,
                    per_device=group.full_bytes,
                )
            )
    return tuple(rows)
