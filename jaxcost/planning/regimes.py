"""Regimes: how batch, context and phase move the intensity of a step, and which resource bounds it there.

Products with weights reuse each weight once a row, so their intensity grows with the batch (and with the rows of a
prompt); attention over cached keys and values reuses them within a group of query heads alone, whatever the batch. A
phase's name proves no bottleneck: batch, context and architecture decide, and each line here shows what decided.

`weight_only` counts the weights as the only traffic. Input, output and cache keep the actual intensity below it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from jaxcost.contracts.case import Case
from jaxcost.contracts.dtypes import payload_bytes
from jaxcost.contracts.errors import reject
from jaxcost.planning.machine import Machine
from jaxcost.planning.quantities import count
from jaxcost.planning.roofline import Point, points, total
from jaxcost.prediction.flops import product_flops
from jaxcost.prediction.ownership import arguments
from jaxcost.prediction.program import Program, program

MOST = 64


@dataclass(frozen=True)
class Regime:
    """One step at one batch: intensities in FLOPs a byte of device memory, and the resource that takes longer."""

    phase: str
    batch: int
    new_tokens: int
    visible_tokens: int
    weight_only: Fraction | None
    projections: Point
    attention: Point
    whole: Point
    argument_bytes: int
    memory_bytes: int | None

    @property
    def holds(self) -> bool | None:
        """Whether the arguments alone (weights, caches, state) stay within device memory; None where it is unknown.

        True promises no fit: activations and workspace come on top.
        """
        return None if self.memory_bytes is None else self.argument_bytes <= self.memory_bytes

    @property
    def tokens_per_second(self) -> Fraction:
        """New tokens a second of all devices, at full overlap of each op; an idealisation."""
        return self.batch * self.new_tokens / self.whole.overlapped_seconds

    def to_data(self) -> dict[str, Any]:
        """Return the JSON form."""
        parts = {"projections": self.projections, "attention": self.attention, "step": self.whole}
        return {
            "phase": self.phase,
            "batch": self.batch,
            "new_tokens": self.new_tokens,
            "visible_tokens": self.visible_tokens,
            "weight_only_intensity": None if self.weight_only is None else float(self.weight_only),
            **{f"{name}_intensity": _intensity(part) for name, part in parts.items()},
            **{f"{name}_bound": part.bound for name, part in parts.items()},
            "overlapped_seconds": float(self.whole.overlapped_seconds),
            "tokens_per_second": float(self.tokens_per_second),
            "argument_bytes": self.argument_bytes,
            "arguments_fit": self.holds,
        }


def regime(case: Case, machine: Machine) -> Regime:
    """Return the regime of a case on a machine: worst device, communication not counted."""
    built = program(case)
    found = [item for item in points(built, machine) if item.scope != "optimizer"]
    pairwise = {scope for scope in {item.scope for item in found} if _is_attention(scope)}
    return Regime(
        case.workload.phase,
        case.workload.batch,
        case.workload.new_tokens,
        case.workload.visible_tokens,
        weight_only_intensity(built),
        total(item for item in found if item.scope not in pairwise),
        total(item for item in found if item.scope in pairwise),
        total(found),
        int(sum(item.per_device for item in arguments(built))),
        machine.device.memory.capacity_bytes if machine.device.memory else None,
    )


def regimes(case: Case, machine: Machine, batches: Sequence[object]) -> tuple[Regime, ...]:
    """Return the regime of a case at each of several batches, all else as it is.

    Raises:
        RejectedError: a batch is no whole number above zero, or does not divide over the mesh; there are too many.
    """
    if not 0 < len(batches) <= MOST:
        raise reject("batches", len(batches), f"from 1 to {MOST} batches", "name for example 1,8,32")
    return tuple(regime(_at(case, count(batch, "batches")), machine) for batch in batches)


def weight_only_intensity(built: Program) -> Fraction | None:
    """Return forward FLOPs of the products with weights over the bytes of those weights, of one microbatch on a device.

    In a BF16 decode step this is the batch. None where nothing is multiplied by a weight.
    """
    sizes, work, size = built.device_microbatch_sizes, 0, 0
    for op in built.contractions:
        weights = [name for name in op.inputs if built.is_weight(name)]
        if weights:
            work += product_flops(sizes, op)
            elements = sizes.product(built.tensors[weights[0]].axes, op.group)
            size += payload_bytes(elements, built.case.state.compute_dtype) * op.repeat
    return Fraction(work, size) if size else None


def _at(case: Case, batch: int) -> Case:
    return case.replaced(workload=case.workload.replaced(batch=batch), expected=None)


def _is_attention(scope: str) -> bool:
    return scope.rsplit("/", 1)[-1] in ("attention", "scores", "values", "softmax", "mask", "softcap")


def _intensity(part: Point) -> float | None:
    return None if part.intensity is None else float(part.intensity)


def crossing(found: Iterable[Regime]) -> int | None:
    """Return the smallest of some batches at which the products with weights are not bound by memory, None if none."""
    crossed = [item.batch for item in found if item.projections.bound != "memory"]
    return min(crossed) if crossed else None
