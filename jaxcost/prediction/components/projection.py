"""A projection: a product with a weight, plus a bias where there is one.

Fused storage keeps several projections in one array. Each still multiplies its own part, so the products are those of
separate storage; what is stored, updated and owned is the one array.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxcost.prediction.program import Count

if TYPE_CHECKING:
    from jaxcost.prediction.builder import Builder


def project(b: Builder, scope: str, spec: str, x: str, weight_axes: str, bias_axes: str = "", fused: str = "") -> str:
    """Append x times a weight, plus a bias where `bias_axes` says so; `fused` is the scope of the array they lie in."""
    out = b.contract(scope, spec, x, _learned(b, f"{scope}/weight", weight_axes, fused))
    if not bias_axes:
        return out
    bias = _learned(b, f"{scope}/bias", bias_axes, fused)
    axes = b.tensors[out].axes
    biased = b.tensor(f"{scope}/biased", axes)
    adds = (Count("add", 1, axes),)
    b.primitive("bias", scope, (out, bias), (biased,), adds, (), adds)
    return biased


def _learned(b: Builder, name: str, axes: str, fused: str) -> str:
    whole = f"{fused}/{name.rsplit('/', 1)[1]}"
    return b.view(name, axes, whole) if fused and whole in b.tensors else b.parameter(name, axes)
