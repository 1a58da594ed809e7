"""Which tensors of a layer to keep, so that a step fits a budget and replays least.

A policy by name keeps a set of tensors; the backward pass rebuilds the others from them. Under each set the walk over
the declared program says what is saved and which contractions run again. The search is exact. Sets form a tree, one
name decided at a time; at a node, keeping every undecided name as well gives a lower bound twice over:

- of replay: with more kept, fewer ops are of use again;
- of bytes: with more kept, less is needed, so a decided tensor that is needed even then is needed in every set below.

A branch whose bytes exceed the budget, or whose replay is no better than the best set found, is left.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from jaxcost.contracts.case import Case, saveable_names
from jaxcost.contracts.dtypes import payload_bytes
from jaxcost.contracts.errors import reject
from jaxcost.contracts.execution import SAVEABLE_NAMES
from jaxcost.contracts.kernels import KERNEL_FAMILIES
from jaxcost.prediction.flops import contraction_flops
from jaxcost.prediction.program import Contraction, Program, program
from jaxcost.prediction.replay import kept_by_name, saveable_name, walk

CONVENTION = (
    "contraction FLOPs run again, all devices and microbatches, without products that nothing then needs (which the "
    "declared recomputation of an estimate still counts); bytes saved on one device for one microbatch, layers "
    "and what stands outside them"
)


@dataclass(frozen=True)
class Policy:
    """A set of names, in execution order, with what it replays (FLOPs) and what it saves (bytes of one device)."""

    names: tuple[str, ...]
    replay_flops: int
    saved_bytes: int

    @property
    def options(self) -> str:
        """The options of the command line that ask for it."""
        if not self.names:
            return "--remat block"
        return f"--remat save_only_these_names --remat-names {','.join(self.names)}"

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "names": list(self.names), "replay_flops": self.replay_flops, "saved_bytes": self.saved_bytes,
            "options": self.options,
        }  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """The best policy under a budget, beside those that keep no name and every name; `visited` sets were weighed."""

    budget_bytes: int
    best: Policy
    least: Policy
    most: Policy
    visited: int

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        ends = {name: getattr(self, name).to_dict() for name in ("best", "least", "most")}
        return {"budget_bytes": self.budget_bytes, **ends, "visited": self.visited, "convention": CONVENTION}


def names_of(case: Case) -> tuple[str, ...]:
    """Return the names that the layers of a case have, as its attention makes them, in execution order."""
    known = {name for group in case.architecture.groups for name in saveable_names(group.layer)}
    if case.workload.attention != "materialised":
        known -= {"scores", "probabilities"}
    if case.workload.attention in KERNEL_FAMILIES:
        known -= {"context"}
    return tuple(name for name in SAVEABLE_NAMES if name in known)


def weigh(built: Program, names: Iterable[str]) -> Policy:
    """Return what keeping `names` replays and saves; names of which nothing needs the tensor are left out."""
    found = walk(built, policy=kept_by_name(frozenset(names)))
    flops = sum(contraction_flops(built, op) for op in found.useful if isinstance(op, Contraction))
    needed = {saveable_name(built, item.name) for item in found.saved}
    kept = tuple(name for name in SAVEABLE_NAMES if name in needed and name in set(names))
    return Policy(kept, flops, sum(_bytes(built, item.name, item.copies) for item in found.saved))


def plan_recompute(case: Case, budget_bytes: int, names: Iterable[str] | None = None) -> Plan:
    """Return the set of names that replays the fewest contraction FLOPs within a budget; of equals the smallest.

    Args:
        case: a training case; its own policy plays no part.
        budget_bytes: for the saved tensors of one microbatch on one device.
        names: what may be kept, by default everything that has a name.

    Raises:
        RejectedError: the case does not train, has pipeline stages, or even replaying whole layers saves more.
    """
    if case.workload.phase != "training":
        raise reject("phase", case.workload.phase, "only training saves anything for later", "plan a training case")
    if case.execution.degree("pipeline") > 1:
        rule = "stages keep several microbatches at once, which this search does not weigh"
        raise reject("execution.mesh.pipeline", case.execution.degree("pipeline"), rule, "leave the axis out")
    built = program(case)
    search = _Search(built, names_of(case) if names is None else tuple(names), budget_bytes)
    least, most = weigh(built, ()), weigh(built, search.names)
    if least.saved_bytes > budget_bytes:
        rule = f"replaying whole layers saves {least.saved_bytes} bytes already"
        raise reject(
            "budget", budget_bytes, rule, "raise the budget, use more devices, or accumulate over microbatches"
        )
    search.best = least
    search.run((), search.names)
    return Plan(budget_bytes, search.best, least, most, search.visited)


def every_set(case: Case, names: Iterable[str]) -> Iterator[Policy]:
    """Yield every subset of `names`, weighed: what the search must agree with on small sets."""
    built, listed = program(case), tuple(names)
    for count in range(len(listed) + 1):
        yield from (weigh(built, chosen) for chosen in combinations(listed, count))


class _Search:
    """Depth first, largest tensors first, with and then without each name."""

    def __init__(self, built: Program, names: tuple[str, ...], budget_bytes: int) -> None:
        self.built, self.budget, self.visited = built, budget_bytes, 0
        self.sizes: dict[str, int] = dict.fromkeys(names, 0)
        for name, tensor in built.tensors.items():
            label = saveable_name(built, name) if name in built.producers else ""
            if label in self.sizes:
                self.sizes[label] += _bytes(built, name, tensor.repeat)
        self.names = tuple(sorted(names, key=lambda name: -self.sizes[name]))
        self.best = Policy((), 0, 0)

    def run(self, kept: tuple[str, ...], undecided: tuple[str, ...]) -> None:
        """Search all sets that hold `kept` and any of `undecided`."""
        self.visited += 1
        bound = walk(self.built, policy=kept_by_name(frozenset((*kept, *undecided))))
        flops = sum(contraction_flops(self.built, op) for op in bound.useful if isinstance(op, Contraction))
        least = sum(
            _bytes(self.built, item.name, item.copies)
            for item in bound.saved
            if saveable_name(self.built, item.name) not in undecided
        )
        if least > self.budget or (flops, least) >= (self.best.replay_flops, self.best.saved_bytes):
            return
        whole = weigh(self.built, (*kept, *undecided))
        if whole.saved_bytes <= self.budget:
            self._take(whole)
        if undecided:
            first, rest = undecided[0], undecided[1:]
            self.run((*kept, first), rest)
            self.run(kept, rest)

    def _take(self, found: Policy) -> None:
        if (found.replay_flops, found.saved_bytes) < (self.best.replay_flops, self.best.saved_bytes):
            self.best = found


def _bytes(built: Program, name: str, copies: Any) -> int:
    tensor = built.tensors[name]
    return int(payload_bytes(built.device_elements(tensor), tensor.dtype) * copies)
