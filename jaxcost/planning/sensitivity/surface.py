"""What is varied where nothing is named, and which comparisons of designs are vectors by nature.

The default surface has one case for each mechanism of a phase; a case that the contracts refuse for this model, mesh or
target is left out, and why is listed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from jaxcost.contracts.case import Case
from jaxcost.contracts.dtypes import BITS
from jaxcost.contracts.errors import RejectedError
from jaxcost.planning.sensitivity.scenario import Change, changed

TIMES, RANKS = 8, 8
# Comparisons that move several fields together: name, a field that tells of it, what else moves in reality.
POLICIES: tuple[tuple[str, frozenset[str], str], ...] = (
    ("grouped or shared K/V heads", frozenset({"kv_heads"}), "checkpoint tensors, quality and its recovery, kernels"),
    ("online attention", frozenset({"attention"}), "schedule, saved state, replay, kernel and backend"),
    ("another weight format", frozenset({"parameter_dtype"}), "scales, zero points, packing, dequantisation, kernels"),
    ("another K/V format", frozenset({"kv_dtype"}), "scales, accumulators, kernels, quality"),
    ("sharded state", frozenset({"mesh"}), "process groups, materialisation, collectives, prefetch"),
    ("sharded state", frozenset({"shard"}), "process groups, materialisation, collectives, prefetch"),
    ("sharded state", frozenset({"zero"}), "process groups, materialisation, collectives, prefetch"),
    ("more logits rows", frozenset({"logits"}), "phase, consumer, loss or sampling contract"),
)  # fmt: skip


def default_surface(case: Case) -> Iterator[Change]:
    """Yield the changes that a phase is asked about, valid or not."""
    work, state, arch, run = case.workload, case.state, case.architecture, case.execution
    for index, group in enumerate(arch.groups):
        prefix = f"group{index}." if len(arch.groups) > 1 else ""
        heads = group.layer.attention
        for count in dict.fromkeys((heads.query_heads, 1)):
            if count != heads.kv_heads:
                yield Change(f"{prefix}kv_heads", count)
    yield Change("tied", not arch.tied)
    yield Change("parameter_dtype", "fp32" if BITS[state.parameter_dtype] < 32 else "bf16")
    yield Change("batch", TIMES * work.batch)
    if work.phase == "training":
        yield Change("seq", 2 * work.new_tokens)
        if work.accumulate == 1 and work.batch > 1:
            yield Change("accumulate", 2)
        yield Change("remat", "block" if run.remat == "none" else "none")
        yield Change("optimizer", "sgd" if state.optimizer != "sgd" else "adam")
    else:
        yield Change("visible", 2 * work.visible_tokens)
        if work.phase == "prefill":
            yield Change("logits", "all" if work.logits == "final" else "final")
        yield Change("kv_dtype", "fp8_e4m3" if BITS[state.kv_dtype] > 8 else "bf16")
    yield Change("attention", "blockwise" if work.attention == "materialised" else "materialised")
    yield from _meshes(case)


def _meshes(case: Case) -> Iterator[Change]:
    """Sharded parameters: over fsdp where the batch allows it, else over tensor; of the degrees tried the largest."""
    run, work = case.execution, case.workload
    if run.device_count > 1:
        world = run.degree("data") * run.degree("fsdp")
        if world > 1:
            yield Change("shard", 1 if run.degree("fsdp") > 1 else world)
        return
    for ranks in (RANKS, RANKS // 2, RANKS // 4):
        axis = "fsdp" if (work.batch // work.accumulate) % ranks == 0 else "tensor"
        try:
            changed(case, {"execution.mesh": [{"name": axis, "size": ranks}]})
        except RejectedError:
            continue
        yield Change("mesh", f"{axis}={ranks}")
        return
    yield Change("mesh", f"tensor={RANKS}")


def design_notes(names: Sequence[str]) -> list[str]:
    """Return what moves together in the comparisons of designs that these fields are part of."""
    own = {name.rpartition(".")[2] for name in names}
    found: dict[str, Any] = {}
    for title, marks, others in POLICIES:
        if marks <= own:
            found.setdefault(f"{title}: a deployment also moves {others}", None)
    return list(found)
