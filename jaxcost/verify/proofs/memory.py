"""Memory: Korthikanti's 34 and 5 from the saved tensors, by object and on tensor ranks; the K/V cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jaxcost.prediction.rows import Row
from jaxcost.prediction.symbols import symbol
from jaxcost.verify.proofs.kinds import Derivations, one_layer, summed
from jaxcost.verify.proofs.prove import Proof

_SOURCE = "Korthikanti et al. 2022, arXiv:2205.05198, "
_TENSOR = "classic on t tensor ranks"
_ROWS = "classic, rows on t tensor ranks too"
_ATTENTION = ("group0/attn",)
_MLP = ("group0/mlp",)
_NORMS = ("group0/in", "group0/residual/")


def _quadratic(row: Row) -> bool:
    return {"s", "t"} <= set(row.fields["axes"].split())


def _saved(kind: str, remat: str | None = None, parts: tuple[str, ...] = (), device: bool = False) -> Any:
    def derive(found: Derivations) -> Any:
        rows = [row for row in found.saved(kind, remat) if not parts or row.object.startswith(parts)]
        return one_layer(sum(row.per_device for row in rows) if device else summed(rows))

    return derive


def _terms(kind: str, parts: tuple[str, ...] = ()) -> Callable[[Derivations], Sequence[tuple[str, Any]]]:
    def derive(found: Derivations) -> Sequence[tuple[str, Any]]:
        rows = [row for row in found.saved(kind) if not parts or row.object.startswith(parts)]
        return [(row.object.removeprefix("group0/"), one_layer(row.value)) for row in rows]

    return derive


def _crossover(found: Derivations) -> Any:
    """Return the number of rows at which the quadratic part of a layer's saved bytes is as large as the rest."""
    import sympy

    rows, size = found.saved("classic"), symbol("S")
    square = summed(row for row in rows if _quadratic(row))
    (root,) = sympy.solve(sympy.expand((2 * square - summed(rows)) / size), size)
    return root


def _cache(kind: str) -> Any:
    return lambda found: found.total(kind, "kv_cache.bytes")


_SAVED = ("activations.saved_bytes of group0",)
_SAVED_DEVICE = ("activations.saved_bytes_per_device of group0",)

PROOFS = (
    Proof(
        "korthikanti.layer", "a classic layer with dropout saves 34BSh + 5BaS^2 bytes in bf16, h = d, a = H",
        _SAVED, "classic", _saved("classic"), "34*B*S*d + 5*B*H*S**2", _SOURCE + "section 4.1; Table 2, no parallelism",
        terms=_terms("classic"),
    ),
    Proof(
        "korthikanti.attention", "of it 11BSh + 5BaS^2 are attention's",
        _SAVED, "classic", _saved("classic", parts=_ATTENTION), "11*B*S*d + 5*B*H*S**2",
        _SOURCE + "section 4.1", terms=_terms("classic", _ATTENTION),
    ),
    Proof(
        "korthikanti.mlp", "19BSh are the MLP's",
        _SAVED, "classic", _saved("classic", parts=_MLP), "19*B*S*d", _SOURCE + "section 4.1",
        terms=_terms("classic", _MLP),
    ),
    Proof(
        "korthikanti.norms", "and 4BSh the inputs of the two norms",
        _SAVED, "classic", _saved("classic", parts=_NORMS), "4*B*S*d", _SOURCE + "section 4.1",
        terms=_terms("classic", _NORMS),
    ),
    Proof(
        "korthikanti.crossover", "the quadratic part is the larger one from S = 34h/(5a) on",
        _SAVED, "classic", _crossover, "34*d/(5*H)", "5aS/h > 34, from the layer's two parts",
    ),
    Proof(
        "korthikanti.selective", "what is quadratic rebuilt, a layer saves 34BSh",
        _SAVED, "classic", _saved("classic", "selective"), "34*B*S*d", _SOURCE + "section 5, equation 6 with t = 1",
    ),
    Proof(
        "korthikanti.full", "whole layers rebuilt, a layer saves its input, 2BSh",
        _SAVED, "classic", _saved("classic", "block"), "2*B*S*d", _SOURCE + "Table 2, full recomputation",
    ),
    Proof(
        "korthikanti.tensor", "on t tensor ranks a layer saves BSh(10 + 24/t + 5aS/(ht))",
        _SAVED_DEVICE, _TENSOR, _saved(_TENSOR, device=True), "B*S*d*(10 + 24/t + 5*H*S/(d*t))",
        _SOURCE + "Table 2, tensor parallel",
    ),
    Proof(
        "korthikanti.tensor.selective", "on t tensor ranks, the quadratic rebuilt, BSh(10 + 24/t)",
        _SAVED_DEVICE, _TENSOR, _saved(_TENSOR, "selective", device=True), "B*S*d*(10 + 24/t)", _SOURCE + "Table 2",
    ),
    Proof(
        "korthikanti.sequence", "rows split too, BSh(34/t + 5aS/(ht))",
        _SAVED_DEVICE, _ROWS, _saved(_ROWS, device=True), "B*S*d*(34/t + 5*H*S/(d*t))",
        _SOURCE + "Table 2, tensor and sequence parallel",
    ),
    Proof(
        "korthikanti.sequence.selective", "rows split too, the quadratic rebuilt, BSh 34/t",
        _SAVED_DEVICE, _ROWS, _saved(_ROWS, "selective", device=True), "34*B*S*d/t",
        _SOURCE + "equation 6; Table 2",
    ),
    Proof(
        "kv_cache.bytes", "a bf16 cache of T rows takes 4BTLKE bytes",
        ("kv_cache.bytes",), "decode", _cache("decode"), "4*B*T*L*K*E", "two arrays, K heads of width E, two bytes",
    ),
)  # fmt: skip
