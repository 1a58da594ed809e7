"""Grouped-query attention: four projections, rotary positions, scores, softmax, values.

Query heads h are k groups of g; a key/value head serves its g query heads, so the pairwise products run over all query
heads whatever k is. Under the blockwise schedule scores and probabilities never leave the kernel: backward keeps the
output and one fp32 number per row, and rebuilds the rest (Dao et al. 2022, arXiv:2205.14135).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxcost.contracts.architecture import Attention, Rotary
from jaxcost.prediction.components.dropout import dropout
from jaxcost.prediction.program import Count

if TYPE_CHECKING:
    from jaxcost.prediction.builder import Builder

PAIRS, ROWS = "b k g s t", "b k g s"


def attention(b: Builder, spec: Attention, x: str, caches: list[str]) -> str:
    """Append attention on x [b, s, d] and return its output [b, s, d]; new cache tensors are appended to `caches`."""
    scope = f"{b.prefix}/attn"
    q = project(b, f"{scope}/q_proj", "b s d, d h e -> b s h e", x, "d h e", "h e" if spec.query_bias else "")
    k = project(b, f"{scope}/k_proj", "b s d, d k e -> b s k e", x, "d k e", "k e" if spec.key_bias else "")
    v = project(b, f"{scope}/v_proj", "b s d, d k e -> b s k e", x, "d k e", "k e" if spec.value_bias else "")
    if spec.rotary:
        q = rotary(b, f"{scope}/rotary", q, "q", "b s h", spec.rotary)
        k = rotary(b, f"{scope}/rotary", k, "k", "b s k", spec.rotary)
    if b.case.workload.phase != "training":
        k, v = (_cache(b, scope, name, new) for name, new in (("keys", k), ("values", v)))
        caches += [k, v]
    context = pairwise(b, scope, q, k, v)
    out = project(b, f"{scope}/o_proj", "b s h e, h e d -> b s d", context, "h e d", "d" if spec.output_bias else "")
    return dropout(b, scope, out, b.case.architecture.dropout.residual, "b s d", leaf="out_dropout")


def project(b: Builder, scope: str, spec: str, x: str, weight_axes: str, bias_axes: str) -> str:
    """Append x times a weight, plus a bias where it has one."""
    out = b.contract(scope, spec, x, b.parameter(f"{scope}/weight", weight_axes))
    if not bias_axes:
        return out
    bias = b.parameter(f"{scope}/bias", bias_axes)
    axes = b.tensors[out].axes
    biased = b.tensor(f"{scope}/biased", axes)
    adds = (Count("add", 1, axes),)
    b.primitive("bias", scope, (out, bias), (biased,), adds, (), adds)
    return biased


def rotary(b: Builder, scope: str, x: str, leaf: str, rows: str, spec: Rotary) -> str:
    """Turn pairs of coordinates: four multiplies and two adds a pair, backward as well. Tables are not counted."""
    out = b.tensor(f"{scope}/{leaf}", f"{rows} e")
    pairs = spec.dimensions // 2
    counts = (Count("multiply", 4 * pairs, rows), Count("add", 2 * pairs, rows))
    b.primitive("rotary", scope, (x,), (out,), counts, counts)
    return out


def _cache(b: Builder, scope: str, leaf: str, new: str) -> str:
    """Write the new rows into the cache; in prefill they are the cache."""
    dtype = b.case.state.kv_dtype
    out = b.tensor(f"{scope}/{leaf}", "b t k e", dtype, "cache", scope)
    inputs: tuple[str, ...] = (new,)
    if b.case.workload.phase == "decode":
        inputs = (new, b.tensor(f"{scope}/past_{leaf}", "b t k e", dtype, "input", scope))
    b.primitive("cache_write", scope, inputs, (out,))
    return out


def pairwise(b: Builder, scope: str, q: str, k: str, v: str) -> str:
    """Append scores, softmax and values; return the context [b, s, h, e]."""
    blockwise = b.case.workload.attention != "materialised"
    stored = b.case.state.score_dtype
    role = "onchip" if blockwise else "activation"
    scores = b.contract(f"{scope}/scores", "b s k g e, b t k e -> b k g s t", q, k, stored, role)
    probabilities = b.tensor(f"{scope}/softmax/out", PAIRS, stored, role)
    outputs: tuple[str, ...] = (probabilities,)
    forward: tuple[Count, ...] = (
        Count("multiply", 1, PAIRS),
        Count("compare", 1, PAIRS),
        Count("select", 1, PAIRS),
        Count("max", 1, PAIRS),
        Count("add", 2, PAIRS),
        Count("exp", 1, PAIRS),
        Count("divide", 1, PAIRS),
    )
    # dz = p * (dp - sum(dp * p)), then the mask's choice and the scale
    backward = (Count("multiply", 3, PAIRS), Count("add", 2, PAIRS), Count("select", 1, PAIRS))
    if blockwise:
        statistics = b.tensor(f"{scope}/softmax/row_statistics", ROWS, "fp32", "statistic")
        outputs = (probabilities, statistics)
        forward = forward + _online(b)
    b.primitive("softmax", f"{scope}/softmax", (scores,), outputs, forward, backward, needs=outputs)
    kept = dropout(b, f"{scope}/softmax", probabilities, b.case.architecture.dropout.attention, PAIRS, role)
    spec = "b k g s t, b t k e -> b s k g e"
    context = b.contract(f"{scope}/values", spec, kept, v)
    if blockwise and b.needs_gradient(context):
        b.also_needs(context)  # sum(dp * p) over keys equals sum(do * o) over the head's width
    return context


def _online(b: Builder) -> tuple[Count, ...]:
    """Rescaling of the running sum and of the accumulated output, once per key block."""
    visible = b.case.workload.visible_tokens
    blocks = visible // b.case.workload.block_for(visible)
    return (
        Count("max", blocks, ROWS),
        Count("add", blocks, ROWS),
        Count("exp", blocks, ROWS),
        Count("multiply", blocks, ROWS),
        Count("multiply", blocks, f"{ROWS} e"),
        Count("log", 1, ROWS),
        Count("add", 1, ROWS),
    )
