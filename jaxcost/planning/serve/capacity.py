"""What is left for the K/V cache on a device, and how many tokens and requests that is.

    available = device memory x utilisation - weights - profiled activations - memory outside of the allocator

The two last are measured by the engine when it starts. Where they are not given nothing is subtracted for them, and the
capacity is a limit from above, not an estimate; beside it stands what it becomes under this package's predicted peak of
a prefill, where a policy covers one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from jaxcost.contracts.architecture import Architecture
from jaxcost.contracts.case import Case, build_case
from jaxcost.contracts.dtypes import payload_bytes
from jaxcost.contracts.errors import reject
from jaxcost.observation.targets import Target
from jaxcost.planning.expected import predicted_peak
from jaxcost.planning.limits import NO_LIMIT
from jaxcost.planning.quantities import number
from jaxcost.planning.serve.inputs import Engine
from jaxcost.planning.serve.pages import KeptLayer, Pool, groups_of, pool
from jaxcost.planning.serve.weights import RankWeights, rank_weights, stage_of_layers, stored_program
from jaxcost.prediction.ledgers import predict
from jaxcost.prediction.program import Program, program

UNSEEN = {
    "activation_bytes": "the engine's profiled peak of activations",
    "other_bytes": "memory outside of the allocator: communication buffers, contexts, captured graphs",
    "rotary_rows": "the table of rotary sines and cosines that stands beside the weights",
}


@dataclass(frozen=True)
class Budget:
    """Bytes of a device of each rank: what may be used, what stands there, what is left."""

    device_memory: int
    source: str
    usable: int
    weights: tuple[RankWeights, ...]
    activation: int | None
    other: int | None

    @property
    def available(self) -> tuple[int, ...]:
        """Bytes left for pages on a device of each rank; negative where the rest does not fit."""
        taken = (self.activation or 0) + (self.other or 0)
        return tuple(self.usable - each.total - taken for each in self.weights)

    @property
    def fullest(self) -> int:
        """The rank with the least left."""
        return min(range(len(self.weights)), key=lambda rank: self.available[rank])


@dataclass(frozen=True)
class Capacity:
    """A replica's budget and its pool of pages."""

    engine: Engine
    budget: Budget
    pool: Pool
    unseen: dict[str, str]

    @property
    def starts(self) -> bool:
        """Whether one request of the longest length fits; the engine refuses to start where none does."""
        return self.pool.request_blocks(self.engine.max_model_len) <= self.pool.blocks


def budget(architecture: Architecture, engine: Engine, target: Target, stored: Program | None = None) -> Budget:
    """Return the budget of one device of each rank.

    Raises:
        RejectedError: the target states no memory and none is declared.
    """
    memory, source = target.device_memory_bytes, target.device_memory_source
    if engine.device_memory_bytes is not None:
        memory, source = engine.device_memory_bytes, "declared by the caller"
    if memory is None:
        raise reject("--target", target.text, NO_LIMIT, "declare it with --device-memory")
    usable = int(memory * number(engine.gpu_memory_utilization, "--gpu-memory-utilization"))
    weights = rank_weights(stored or stored_program(architecture, engine), engine)
    return Budget(memory, str(source), usable, weights, engine.activation_bytes, engine.other_bytes)


def kept_layers(architecture: Architecture, engine: Engine, stored: Program) -> tuple[KeptLayer, ...]:
    """Return what each layer keeps on a device; K/V heads fewer than ranks are held whole by several."""
    dtype, scale = engine.kv
    sizes = program(serving_case(architecture, engine, {"phase": "decode", "past": 1})).device_sizes
    rank_of = stage_of_layers(stored)
    found: list[KeptLayer] = []
    for index, group in enumerate(architecture.groups):
        heads = int(sizes.product("k", index))
        page = 2 * payload_bytes(engine.block_size * int(sizes.product("k e", index)), dtype)
        page += 2 * engine.block_size * heads * scale
        for layer in range(group.repeat):
            found.append(KeptLayer(page, group.window(layer), rank_of[len(found)]))
    return tuple(found)


def serving_case(architecture: Architecture, engine: Engine, options: dict[str, Any]) -> Case:
    """Return a serving case of one stage's tensor ranks, K/V in the engine's type, legal pairs, blockwise attention."""
    mesh = {"tensor": engine.tensor} if engine.tensor > 1 else {}
    every = {
        "attention": "blockwise", "pairs": "legal", "mesh": mesh, "vocabulary_multiple": engine.vocabulary_multiple,
    }  # fmt: skip
    case = build_case(architecture, {**every, **options})
    dtype = engine.kv[0]
    if dtype in (case.state.kv_dtype, "fp16"):  # fp16 and bf16 take the same room
        return case
    return case.replaced(state=case.state.replaced(kv_dtype=dtype))


def capacity(architecture: Architecture, engine: Engine, target: Target) -> Capacity:
    """Return how many tokens and requests a replica's cache holds.

    Raises:
        RejectedError: a degree does not divide what it splits, layers keep unlike pages, or no memory is known.
    """
    stored = stored_program(architecture, engine)
    found = budget(architecture, engine, target, stored)
    groups = groups_of(kept_layers(architecture, engine, stored), engine.hybrid)
    size = engine.block_size
    pages = pool(groups, found.available, size, engine.max_num_batched_tokens)
    missing = {name: why for name, why in UNSEEN.items() if getattr(engine, name) is None}
    if not any(group.layer.attention.rotary for group in architecture.groups):
        missing.pop("rotary_rows", None)
    return Capacity(engine, found, pages, missing)


def expected_activation(architecture: Architecture, engine: Engine, target: Target) -> dict[str, Any]:
    """Return the interval of what a prefill of max_num_batched_tokens holds beside weights and cache, or a reason.

    The tokens are those of whole prompts of the longest request, as many as fill the step.
    It is the live peak of XLA's program under a materialisation policy, not a profile of the engine's kernels.
    """
    unknown = {"lower": None, "expected": None, "upper": None}
    if engine.pipeline > 1:
        return unknown | {"reason": "no policy covers a pipeline stage on its own"}
    if engine.weight_dtype != "bf16" or engine.kv[0] not in ("bf16", "fp16"):
        return unknown | {"reason": "no policy covers quantised weights or a quantised cache"}
    seq = min(engine.max_num_batched_tokens, engine.max_model_len)
    options = {"phase": "prefill", "batch": engine.max_num_batched_tokens // seq, "seq": seq}
    found = predict(serving_case(architecture, engine, options))
    peak = predicted_peak(found, target.family)
    if peak["upper"] is None or not peak.get("by_class"):
        return unknown | {"reason": peak["reason"]}
    held = peak["by_class"].get("parameter", 0) + peak["by_class"].get("cache", 0)
    values = {name: max(0, peak[name] - held) for name in unknown}
    return values | {"policy": peak["policy"], "at": peak["at"]}


def with_activation(found: Capacity, size: int) -> Capacity:
    """Return the capacity with another peak of activations."""
    changed = replace(found.budget, activation=size)
    pages = pool(found.pool.groups, changed.available, found.pool.block_size, found.pool.batched_tokens)
    return replace(found, budget=changed, pool=pages)


def curve(found: Capacity, lengths: Sequence[int]) -> list[dict[str, Any]]:
    """Return concurrency against the tokens of a request."""
    return [{"tokens": tokens, "requests": float(found.pool.concurrency(tokens))} for tokens in lengths]


def lengths_to(most: int) -> list[int]:
    """Return lengths by doubling up to the longest request, itself included."""
    found, length = [], min(256, most)
    while length < most:
        found.append(length)
        length *= 2
    return [*found, most]


def printed(value: Fraction) -> str:
    """Return a concurrency as the engine prints it: two decimals and an x."""
    return f"{float(value):,.2f}x"
