"""Products under replay that the compiler found equal to another one and computes once.

Two ways, told apart by the jaxpr:

- A layer replayed around a blockwise kernel has Q K^T twice under replay, once for the layer and once inside the
  kernel's backward pass. With one block the loops around both are gone, and both multiply the same Q and K.
- Where no loop stands between a layer's forward pass and its replay, a replayed product is equal to its forward twin
  once the barrier between them is gone; the one that stays bears the name of either. Equality starts at the layer's
  saved input, so what is merged is closed upstream: a merged product has merged operands. Anything else that is
  missing stays open.

In both cases as many products as forward has, and all of backward, must be there. Dots whose names the compiler dropped
are told apart by size alone and taken for backward products first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jaxcost.contracts.case import Case

Place = tuple[str, str]
REASON = "replay merged with an equal product by the compiler"
# Component: the products that make its operands. Order is that of execution.
UPSTREAM: dict[str, tuple[str, ...]] = {
    "attn/q_proj": (), "attn/k_proj": (), "attn/v_proj": (), "attn/scores": ("attn/q_proj", "attn/k_proj"),
    "attn/values": ("attn/scores", "attn/v_proj"), "attn/o_proj": ("attn/values",), "mlp/gate": ("attn/o_proj",),
    "mlp/up": ("attn/o_proj",), "mlp/down": ("mlp/gate", "mlp/up"),
}  # fmt: skip


@dataclass(frozen=True)
class Done:
    """Executions of products of one size in one place, by an equation of the jaxpr or an instruction of the module."""

    scope: str
    phase: str
    flops: int
    executions: int
    name: str = ""


def merged(case: Case, equations: Iterable[Done], products: Iterable[Done]) -> dict[Place, tuple[int, str]]:
    """Return, by scope and phase, the FLOPs that were merged away and the evidence; one device.

    Args:
        case: tells which groups are loops, and which layers are parallel.
        equations: what the jaxpr does.
        products: what the compiled module does, strength-reduced products included.
    """
    written, there = list(equations), list(products)
    found: dict[Place, tuple[int, str]] = {}
    for index, group in enumerate(case.architecture.groups):
        top = f"group{index}"
        inside = [item for item in written if item.scope.startswith(top + "/")]
        kept = [item for item in there if item.scope == top or item.scope.startswith(top + "/")]
        looped = case.execution.layers == "scan" and group.repeat > 1
        found |= _of_group(top, inside, kept, looped, group.layer.residual == "parallel")
    return found


@dataclass(frozen=True)
class _Lost:
    """Executions missing in one component: under replay and forward, and how many of them have a twin under replay."""

    replay: int
    forward: int
    twins: int
    flops: int


def _of_group(
    top: str, inside: Sequence[Done], kept: Sequence[Done], looped: bool, parallel: bool
) -> dict[Place, tuple[int, str]]:
    wanted, lost = _counted(inside), _lost(top, inside, kept)
    found: dict[Place, tuple[int, str]] = {}
    equal: Counter[str] = Counter()  # executions merged with the other pass, by component
    for name, operands in UPSTREAM.items():
        if name not in lost:
            continue
        item, scope = lost[name], f"{top}/{name}"
        across = item.replay + item.forward - item.twins
        if parallel and name.startswith("mlp/"):
            operands = tuple(other for other in operands if other.startswith("mlp/"))
        replayed = [other for other in operands if wanted.replays[f"{top}/{other}"]]
        if across and (looped or any(equal[other] < across for other in replayed)):
            continue
        equal[name] = across
        names = [one.name for one in kept if one.flops == item.flops and one.phase in ("forward", "replay")]
        for phase, count in (("replay", item.replay), ("forward", item.forward)):
            if count:
                evidence = (
                    f"{count} of {wanted[scope, phase, item.flops]} {phase} executions in {scope} have no product of "
                    f"their own, {item.twins} of {item.replay + item.forward} for an equal one under replay, the "
                    f"others for one of the other pass; kept: {', '.join(names[:6])}"
                )
                found[scope, phase] = (-count * item.flops, evidence)
    return found


def _lost(top: str, inside: Sequence[Done], kept: Sequence[Done]) -> dict[str, _Lost]:
    """Return what is missing by component, size by size; nothing of a size of which a backward product is missing."""
    wanted, dots = _counted(inside), _counted(kept)
    found: dict[str, _Lost] = {}
    for size in sorted({item.flops for item in inside if item.phase == "replay"}):

        def gap(name: str, phase: str, size: int = size) -> int:
            return wanted[f"{top}/{name}", phase, size] - dots[f"{top}/{name}", phase, size]

        gaps = {(name, phase): gap(name, phase) for name in UPSTREAM for phase in ("forward", "backward", "replay")}
        times = {item.executions for item in inside if item.flops == size}
        odd = any(item.executions not in times for item in kept if item.flops == size)
        backward = sum(count for (_, phase), count in gaps.items() if phase == "backward")
        nameless = sum(n for (scope, _, flops), n in dots.items() if flops == size and scope not in wanted.scopes)
        if odd or min(gaps.values()) < 0 or backward > nameless:
            continue  # not what the jaxpr says, or more is missing than replay and its twins
        gone = sum(gaps.values()) - nameless
        for name in UPSTREAM:  # upstream first
            replays, forward = (wanted[f"{top}/{name}", phase, size] for phase in ("replay", "forward"))
            both = gaps[name, "replay"] + gaps[name, "forward"]
            taken = min(max(gone, 0), both, replays)
            if taken and (nameless or both <= replays):  # as many as forward has are there
                under_replay = min(taken, gaps[name, "replay"])
                twins = min(under_replay, max(replays - forward, 0))
                found[name] = _Lost(under_replay, taken - under_replay, twins, size)
                gone -= taken
    return found


class _Counts(Counter[tuple[str, str, int]]):
    """Executions by scope, phase and size."""

    @property
    def scopes(self) -> set[str]:
        """The scopes that do something."""
        return {scope for scope, _, _ in self}

    @property
    def replays(self) -> Counter[str]:
        """Executions under replay by scope."""
        found: Counter[str] = Counter()
        for (scope, phase, _), count in self.items():
            if phase == "replay":
                found[scope] += count
        return found


def _counted(items: Iterable[Done]) -> _Counts:
    found = _Counts()
    for item in items:
        found[item.scope, item.phase, item.flops] += item.executions
    return found


def done(rows: Iterable[Mapping[str, Any]]) -> list[Done] | None:
    """Return rows with `scope`, `phase`, `flops` and `total` in this form; None where a number is unknown."""
    found = []
    for row in rows:
        if not row["flops"] or row["total"] is None:
            return None
        found.append(Done(row["scope"], row["phase"], row["flops"], row["total"] // row["flops"], row["name"]))
    return found
