"""Opaque attention calls: what each kernel multiplies, by a closed form declared here, on the call's own shapes.

A product of two pairwise operands costs 2 x batch x query heads x query rows x key rows x width FLOPs, every pair of
the rectangle. Products per call, by component, and whether they are new work or work done again (`replay`):

    cudnn forward      scores 1, values 1
    cudnn backward     scores 2 (dQ, dK) and 1 again (Q K^T), values 2 (dP, dV)
    splash fwd         scores 1, values 1
    splash dkv         scores 1 (dK) and 1 again (Q K^T), values 2 (dP, dV)
    splash dq          scores 1 (dQ) and 1 again (Q K^T), values 1 again (dP)

cuDNN's five products are those of Dao et al. 2022 (arXiv:2205.14135, algorithm 4); splash's seven are the `dot_general`
of `_flash_attention_dkv_kernel` and `_flash_attention_dq_kernel` in jax.experimental.pallas.ops.tpu.splash_attention.
A call that is not in this table, or whose shapes do not fit, stays unknown: no amount is ever taken from a residual.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from jaxcost.contracts.kernels import splash_scheduled_pairs
from jaxcost.reconciliation.rows import Finding

Place = tuple[str, str]

# kernel: {(component, done again): products}
PRODUCTS: Mapping[str, Mapping[tuple[str, bool], int]] = {
    "cudnn forward": {("scores", False): 1, ("values", False): 1},
    "cudnn backward": {("scores", False): 2, ("scores", True): 1, ("values", False): 2},
    "splash fwd": {("scores", False): 1, ("values", False): 1},
    "splash dkv": {("scores", False): 1, ("scores", True): 1, ("values", False): 2},
    "splash dq": {("scores", False): 1, ("scores", True): 1, ("values", True): 1},
}
_CUDNN = {
    "__cudnn$fmhaSoftmax": "cudnn forward",
    "__cudnn$fmhaSoftmaxBackward": "cudnn backward",
    "dot_product_attention_fwd_wrapper": "cudnn forward",
    "dot_product_attention_bwd_wrapper": "cudnn backward",
}
_PALLAS = ("tpu_custom_call", "pallas_call")
_SPLASH = re.compile(r"splash_mha_(fwd|dq|dkv)_(?:no_)?residuals")
_ARRAY = re.compile(r"([a-z]+[0-9]+)\[([0-9,]*)\]")
_FLOATS = ("bf16", "f16", "f32", "bfloat16", "float16", "float32")
_BLOCKS = {"fwd": "", "dq": "_dq", "dkv": "_dkv"}


@dataclass(frozen=True)
class Call:
    """One opaque call that the table explains.

    `amounts` are FLOPs of all its executions by the (scope, phase) of the ledger; `pairs` the (query, key) pairs of one
    head, `scheduled` those in blocks that the kernel computes, None where its blocks are not known.
    """

    name: str
    kernel: str
    amounts: Mapping[Place, int]
    shape: str
    pairs: int
    scheduled: int | None


def call_of(item: Mapping[str, Any]) -> Call | None:
    """Return what an opaque row of the compiled module or of the jaxpr multiplies, None where nobody declared it."""
    kernel = _kernel(item)
    if kernel is None:
        return None
    sizes, times = _sizes(kernel, item), item["executions"]
    attention, _, leaf = item["scope"].rpartition("/")
    if sizes is None or leaf != "kernel" or times is None:
        return None
    batch, heads, rows, keys, width, value_width = sizes
    amounts: dict[Place, int] = {}
    for (component, again), count in PRODUCTS[kernel].items():
        flops = 2 * batch * heads * rows * keys * (width if component == "scores" else value_width)
        place = (f"{attention}/{component}", "replay" if again else item["phase"])
        amounts[place] = amounts.get(place, 0) + count * flops * times
    shape = f"{batch} x {heads} heads x {rows} x {keys} rows, width {width}"
    block = _block(kernel, item)
    scheduled = None
    if block and rows == keys and rows % block == 0:
        scheduled = splash_scheduled_pairs(rows, block)
    name = item["name"]
    if "primitive" in item:  # an equation has no name but its path and its primitive
        name = item["primitive"] if kernel.startswith("cudnn") else name.rsplit("/", 1)[-1]
    return Call(name, kernel, amounts, shape, rows * keys, scheduled)


def _kernel(item: Mapping[str, Any]) -> str | None:
    target = item.get("target") or item.get("primitive")
    if target in _CUDNN:
        return _CUDNN[target]
    if target not in _PALLAS:
        return None
    declared = item["declared"]
    name = declared.get("kernel", "") if isinstance(declared, Mapping) else item["name"].rsplit("/", 1)[-1]
    match = _SPLASH.fullmatch(name)
    return f"splash {match[1]}" if match else None


def _sizes(kernel: str, item: Mapping[str, Any]) -> tuple[int, int, int, int, int, int] | None:
    """Return batch, query heads, query rows, key rows, width of q and k, width of v."""
    arrays = [_array(text) for text in item["operands"]]
    q, k, v = ([dims for dtype, dims in arrays if dtype in _FLOATS] + [(), (), ()])[:3]
    if kernel.startswith("splash") and len(q) == 3:  # Pallas leaves out a batch of one
        q, k, v = (1, *q), (1, *k), (1, *v)
    if len({len(q), len(k), len(v), 4}) != 1:
        return None
    if kernel.startswith("splash"):
        batch, heads, rows, width = q
        kv_heads, keys, value_width = k[1], k[2], v[3]
        fits = k[0] == v[0] == batch and k[3] == width and v[1:3] == k[1:3]
    else:
        batch, rows, heads, width = q
        kv_heads, keys, value_width = k[2], k[1], v[3]
        fits = k[0] == v[0] == batch and k[3] == width and v[1:3] == k[1:3]
        declared = item["declared"] if isinstance(item["declared"], Mapping) else {}
        scores = declared.get("scores_shape", [batch, heads, rows, keys])
        fits = fits and prod(scores) == batch * heads * rows * keys
    return (batch, heads, rows, keys, width, value_width) if fits and kv_heads and heads % kv_heads == 0 else None


def _array(text: str) -> tuple[str, tuple[int, ...]]:
    match = _ARRAY.fullmatch(text)
    if match is None:
        return "", ()
    return match[1], tuple(int(size) for size in match[2].split(",") if size)


def _block(kernel: str, item: Mapping[str, Any]) -> int | None:
    """Return the block of a splash call where those of queries and keys are one size."""
    metadata = item["declared"].get("metadata", {}) if isinstance(item["declared"], Mapping) else {}
    suffix = _BLOCKS.get(kernel.removeprefix("splash "), "")
    rows, keys = metadata.get(f"block_q{suffix}"), metadata.get(f"block_kv{suffix}")
    return int(rows) if rows and rows == keys else None


def undeclared(items: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the opaque rows that nobody declared."""
    return [item for item in items if call_of(item) is None]


def findings(items: Iterable[Mapping[str, Any]]) -> list[Finding]:
    """Say what the declared kernels of a compiled module really schedule, next to the rectangle that is counted."""
    found = []
    for call in filter(None, map(call_of, items)):
        work = "the library skips blocks ahead of the diagonal; its blocks are not in the program"
        if call.scheduled is not None:
            work = f"{call.scheduled} of {call.pairs} pairs per head lie in blocks that it computes"
        found.append(Finding("opaque kernel", f"{call.kernel} ({call.shape}): {work}", (call.name,)))
    return found
