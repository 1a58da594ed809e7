"""Grouped-query attention: four projections, norms of queries and keys, rotary positions, scores, softmax, values.

Query heads h are k groups of g; a key/value head serves its g query heads, so the pairwise products run over all query
heads whatever k is. Under the blockwise schedule scores and probabilities never leave the kernel: backward keeps the
output and one fp32 number per row, and rebuilds the rest (Dao et al. 2022, arXiv:2205.14135).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxcost.contracts.architecture import Attention, Rotary
from jaxcost.prediction.components.dropout import dropout
from jaxcost.prediction.components.norm import head_norm
from jaxcost.prediction.components.projection import project
from jaxcost.prediction.components.softcap import softcap
from jaxcost.prediction.program import Count

if TYPE_CHECKING:
    from jaxcost.prediction.builder import Builder

PAIRS, ROWS = "b k g s t", "b k g s"


def attention(b: Builder, spec: Attention, x: str, caches: list[str]) -> str:
    """Append attention on x [b, s, d] and return its output [b, s, d]; new cache tensors are appended to `caches`."""
    scope = f"{b.prefix}/attn"
    fused = _fused(b, f"{scope}/qkv", spec) if spec.storage == "fused" else ""
    q = project(b, f"{scope}/q_proj", "b s d, d h e -> b s h e", x, "d h e", "h e" if spec.query_bias else "", fused)
    k = project(b, f"{scope}/k_proj", "b s d, d k e -> b s k e", x, "d k e", "k e" if spec.key_bias else "", fused)
    v = project(b, f"{scope}/v_proj", "b s d, d k e -> b s k e", x, "d k e", "k e" if spec.value_bias else "", fused)
    q = head_norm(b, f"{scope}/q_norm", spec.qk_norm, q, "h")
    k = head_norm(b, f"{scope}/k_norm", spec.qk_norm, k, "k")
    if spec.rotary:
        q = rotary(b, f"{scope}/rotary", q, "q", "b s h", spec.rotary)
        k = rotary(b, f"{scope}/rotary", k, "k", "b s k", spec.rotary)
    if b.case.workload.phase != "training":
        k, v = (_cache(b, scope, name, new) for name, new in (("keys", k), ("values", v)))
        caches += [k, v]
    context = pairwise(b, scope, spec, q, k, v)
    out = project(b, f"{scope}/o_proj", "b s h e, h e d -> b s d", context, "h e d", "d" if spec.output_bias else "")
    return dropout(b, scope, out, b.case.architecture.dropout.residual, "b s d", leaf="out_dropout")


def _fused(b: Builder, scope: str, spec: Attention) -> str:
    """Declare the one array of q, k and v, and that of their biases where all three have one; return its scope."""
    b.parameter(f"{scope}/weight", "d n e")
    if spec.query_bias and spec.key_bias and spec.value_bias:
        b.parameter(f"{scope}/bias", "n e")
    return scope


def rotary(b: Builder, scope: str, x: str, leaf: str, rows: str, spec: Rotary) -> str:
    """Turn pairs of coordinates, neighbours or not: four multiplies and two adds a pair, backward as well.

    Tables of sines are not counted.
    """
    out = b.tensor(f"{scope}/{leaf}", f"{rows} e")
    pairs = spec.dimensions // 2
    counts = (Count("multiply", 4 * pairs, rows), Count("add", 2 * pairs, rows))
    b.primitive("rotary", scope, (x,), (out,), counts, counts)
    return out


def _cache(b: Builder, scope: str, leaf: str, new: str) -> str:
    """Write the new rows into the cache; of a whole prompt they are the cache."""
    dtype = b.case.state.kv_dtype
    out = b.tensor(f"{scope}/{leaf}", "b t k e", dtype, "cache", scope)
    inputs: tuple[str, ...] = (new,)
    if b.case.workload.continues:
        inputs = (new, b.tensor(f"{scope}/past_{leaf}", "b t k e", dtype, "input", scope))
    b.primitive("cache_write", scope, inputs, (out,))
    return out


def pairwise(b: Builder, scope: str, spec: Attention, q: str, k: str, v: str) -> str:
    """Append scores, softmax and values; return the context [b, s, h, e].

    Masking compares each pair with the diagonal, and in a group with windows with the window's edge too: the window is
    data there, so layers with full attention run the same comparison. Linear biases (alibi) add once per pair.
    """
    blockwise = b.case.workload.attention != "materialised"
    stored = b.case.state.score_dtype
    role = "onchip" if blockwise else "activation"
    scores = b.contract(f"{scope}/scores", "b s k g e, b t k e -> b k g s t", q, k, stored, role)
    scores = softcap(b, f"{scope}/softcap", scores, spec.score_softcap, scaled=True)
    scale = () if spec.score_softcap else (Count("multiply", 1, PAIRS),)
    windows = b.group is not None and bool(b.case.architecture.groups[b.group].windows)
    probabilities = b.tensor(f"{scope}/softmax/out", PAIRS, stored, role)
    outputs: tuple[str, ...] = (probabilities,)
    forward: tuple[Count, ...] = (
        *scale,
        Count("compare", 2 if windows else 1, PAIRS),
        Count("select", 1, PAIRS),
        Count("max", 1, PAIRS),
        Count("add", 3 if spec.alibi else 2, PAIRS),
        Count("exp", 1, PAIRS),
        Count("divide", 1, PAIRS),
    )
    # dz = p * (dp - sum(dp * p)), then the mask's choice and the scale
    backward = (*scale, Count("multiply", 2, PAIRS), Count("add", 2, PAIRS), Count("select", 1, PAIRS))
    if blockwise:
        statistics = b.tensor(f"{scope}/softmax/row_statistics", ROWS, "fp32", "statistic")
        outputs = (probabilities, statistics)
        forward = forward + _online(b)
    b.primitive("softmax", f"{scope}/softmax", (scores,), outputs, forward, backward, needs=outputs)
    kept = dropout(b, f"{scope}/softmax", probabilities, b.case.architecture.dropout.attention, PAIRS, role)
    context = b.contract(f"{scope}/values", "b k g s t, b t k e -> b s k g e", kept, v)
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
