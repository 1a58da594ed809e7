"""Dropout: per element a random number, a comparison, a choice, a scaling. Backward needs the mask, one byte each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxcost.prediction.program import Count, Tensor

if TYPE_CHECKING:
    from jaxcost.prediction.builder import Builder


def dropout(
    b: Builder, scope: str, x: str, rate: float, axes: str, role: str = "activation", leaf: str = "dropout"
) -> str:
    """Append dropout on x where the workload asks for it and the rate is not zero; return the output."""
    if not b.case.workload.dropout or rate == 0:
        return x
    b.tensors.setdefault("key", _key())
    mask = b.tensor(f"{scope}/{leaf}_mask", axes, "bool", "onchip" if role == "onchip" else "mask", scope)
    draw = (Count("rng", 1, axes), Count("compare", 1, axes))
    b.primitive("dropout_mask", scope, ("key",), (mask,), draw)
    out = b.tensor(f"{scope}/{leaf}", axes, b.tensors[x].dtype, role, scope)
    apply = (Count("multiply", 1, axes), Count("select", 1, axes))
    b.primitive("dropout", scope, (x, mask), (out,), apply, apply, needs=(mask,))
    return out


def _key() -> Tensor:
    return Tensor("key", "", "uint32", "input", "key", storage="key", repeat=2)
