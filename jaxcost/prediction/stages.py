"""Pipeline stages: which layers stand where, how many microbatches are in flight, what crosses a boundary, what idles.

Virtual stages take the layers in order; virtual stage i lies on rank i mod P (Narayanan et al. 2021, arXiv:2104.04473,
section 2.2; one virtual stage a rank is the plain pipeline). The embedding stands in one of them, final norm and head
in one, and a tied table in both ranks. Every rank runs the same microbatches, in an order that the schedule fixes:

- GPipe (Huang et al. 2019, arXiv:1811.06965): all m forward passes, then all backward passes; m in flight.
- 1F1B: P - p - 1 forward passes ahead, then one of each in turn; min(m, P - p) in flight on rank p.
- interleaved: 2 (P - p - 1) + (v - 1) P forward passes of chunks ahead, then one of each in turn; microbatches run in
  groups of P, chunk by chunk. With even chunks the first rank keeps (1 + (P - 1) / (P v)) L / P layers' worth of P
  microbatches (Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.3). Uneven chunks are replayed in order.

Without a pipeline axis there is one rank, and it holds everything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple

from jaxcost.contracts.case import Case
from jaxcost.contracts.dtypes import payload_bytes
from jaxcost.prediction.domain import exact_div
from jaxcost.prediction.program import Program

EMBEDDING = "embed"


class Stage(NamedTuple):
    """A virtual stage: for each group of layers its (first layer, number of layers), and what stands outside the stack.

    `number` counts virtual stages in execution order, `rank` is the pipeline rank that holds it.
    """

    number: int
    rank: int
    spans: tuple[tuple[Any, Any], ...]
    embedding: bool
    head: bool

    @property
    def layers(self) -> Any:
        """Layers of the stage."""
        return sum(count for _, count in self.spans)


class Rank(NamedTuple):
    """A rank of the pipeline axis and its virtual stages, in execution order."""

    number: int
    stages: tuple[Stage, ...]

    @property
    def embedding(self) -> bool:
        """Whether the token embedding stands here."""
        return any(stage.embedding for stage in self.stages)

    @property
    def head(self) -> bool:
        """Whether final norm and head stand here."""
        return any(stage.head for stage in self.stages)

    def layers(self, group: int) -> Any:
        """Return how many layers of a group stand here."""
        return sum(stage.spans[group][1] for stage in self.stages)

    def holds(self, scope: str, tied: bool = False) -> bool:
        """Return whether a component outside the stack stands here; a tied table does where the head does, too."""
        if scope.split("/", 1)[0] == EMBEDDING:
            return self.embedding or (tied and scope == "embed/tokens" and self.head)
        return self.head

    def why(self) -> str:
        """Return what stands here, in words."""
        parts = [f"{sum(stage.layers for stage in self.stages)} layers"]
        parts += ["embedding"] if self.embedding else []
        parts += ["final norm and head"] if self.head else []
        return ", ".join(parts)


@lru_cache(maxsize=32)
def ranks(program: Program) -> tuple[Rank, ...]:
    """Return the ranks of the pipeline axis; one rank of everything where there is none."""
    run, plan, repeats = program.case.execution, program.case.execution.pipeline, program.sizes.repeats
    size = run.degree("pipeline")
    if size == 1:
        return (Rank(0, (Stage(0, 0, tuple((0, repeat) for repeat in repeats), True, True),)),)
    count = size * plan.virtual
    layers = plan.layers or (exact_div(sum(repeats), count),) * count
    embedding, head = plan.embedding_stage % count, plan.head_stage % count
    stages, first = [], 0
    for index, number in enumerate(layers):
        spans, base = [], 0
        for repeat in repeats:
            start, end = max(first, base), min(first + number, base + repeat)
            spans.append((start - base, end - start) if end > start else (0, 0))
            base += repeat
        stages.append(Stage(index, index % size, tuple(spans), index == embedding, index == head))
        first += number
    return tuple(Rank(p, tuple(stage for stage in stages if stage.rank == p)) for p in range(size))


def overlap(stage: Stage, group: int, first: Any, repeat: Any) -> tuple[Any, Any]:
    """Return (first, number) of the layers `first` to `first + repeat - 1` of a group that stand in a stage."""
    start, count = stage.spans[group]
    if start == 0 and first == 0 and count == repeat:
        return first, repeat
    low, high = max(start, first), min(start + count, first + repeat)
    return low, max(0, high - low)


def share(program: Program, stages: Iterable[Stage], scope: str, group: int | None, first: Any, repeat: Any) -> Any:
    """Return how many of an op's layers stand in some stages; outside the stack, 1 or 0."""
    if group is None:
        at_start = scope.split("/", 1)[0] == EMBEDDING
        return int(any(stage.embedding if at_start else stage.head for stage in stages))
    return sum(overlap(stage, group, first, repeat)[1] for stage in stages)


def steps(case: Case, rank: int) -> Iterator[tuple[int, int]]:
    """Yield what a rank does in order: (+1, chunk) for a forward pass of one of its chunks, (-1, chunk) for a backward.

    Chunks count the rank's own virtual stages.
    """
    plan, size = case.execution.pipeline, case.execution.degree("pipeline")
    total, virtual = case.workload.accumulate * plan.virtual, plan.virtual
    if plan.schedule == "gpipe":
        ahead = total
    elif plan.schedule == "1f1b":
        ahead = size - rank - 1
    else:
        ahead = 2 * (size - rank - 1) + (virtual - 1) * size
    ahead = min(ahead, total)

    def chunk(step: int) -> int:
        return step % (size * virtual) // size

    yield from ((1, chunk(step)) for step in range(ahead))
    for step in range(total - ahead):
        yield 1, chunk(ahead + step)
        yield -1, virtual - 1 - chunk(step)
    yield from ((-1, virtual - 1 - chunk(step)) for step in range(total - ahead, total))


def in_flight(case: Case, rank: int) -> int:
    """Return the microbatch chunks whose forward pass is done and whose backward pass is not, at the fullest moment."""
    return _fullest(case, rank, (1,) * case.execution.pipeline.virtual)


def in_flight_bytes(case: Case, rank: int, each: Sequence[int]) -> int:
    """Return the bytes kept at the fullest moment, where a microbatch leaves `each` bytes in each chunk of a rank."""
    return _fullest(case, rank, tuple(each))


@lru_cache(maxsize=256)
def _fullest(case: Case, rank: int, each: tuple[int, ...]) -> int:
    if case.execution.degree("pipeline") == 1:
        return sum(each)
    now = most = 0
    for direction, chunk in steps(case, rank):
        now += direction * each[chunk]
        most = max(most, now)
    return most


def bubble(case: Case) -> tuple[Fraction, Fraction]:
    """Return idle time over ideal time, (P - 1) / (v m), and over all time, (P - 1) / (v m + P - 1).

    Equal stages, and a backward pass that takes the same multiple of the forward pass everywhere (arXiv:2104.04473,
    sections 2.2.1 and 2.2.2).
    """
    size, plan = case.execution.degree("pipeline"), case.execution.pipeline
    work = plan.virtual * case.workload.accumulate
    return Fraction(size - 1, work), Fraction(size - 1, work + size - 1)


def boundary_bytes(program: Program) -> Any:
    """Return the bytes of one microbatch's activations [b, s, d] that a device hands to the next stage.

    As many come back as gradients. Under sequence parallelism a device sends its own rows.
    """
    stream = program.tensors["group0/in"]
    return payload_bytes(program.device_elements(stream), stream.dtype)


def route(case: Case) -> tuple[int, ...]:
    """Return the ranks that a microbatch visits on its way forward, no two in a row the same.

    It runs through the stages in order, empty ones between others included. An embedding behind the first layers hands
    its rows back to them, and a head before the last layers takes theirs.
    """
    plan, size = case.execution.pipeline, case.execution.degree("pipeline")
    count = size * plan.virtual
    embedding, head = plan.embedding_stage % count, plan.head_stage % count
    holding = [stage for stage, layers in enumerate(plan.layers or (1,) * count) if layers]
    path = [embedding, *range(min(embedding, holding[0]), max(head, holding[-1]) + 1), head]
    visited = [stage % size for stage in path]
    return tuple(rank for rank, before in zip(visited, [None, *visited], strict=False) if rank != before)


def boundaries(case: Case) -> int:
    """Return how many times a microbatch crosses from one rank to another on its way forward."""
    return len(route(case)) - 1
