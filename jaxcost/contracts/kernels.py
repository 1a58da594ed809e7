"""Attention kernels of libraries: where each runs, what it cannot run, and the rows of its blocks.

`cudnn` is cuDNN's fused attention through `jax.nn.dot_product_attention`; `splash` is the Pallas kernel of
`jax.experimental.pallas.ops.tpu.splash_attention`. Both keep scores and probabilities on the chip and take a causal
mask, so a ledger treats them like the blockwise schedule; what differs is what their backward passes compute again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxcost.contracts.errors import Problem

if TYPE_CHECKING:
    from jaxcost.contracts.case import Case

# The compiler family a kernel is written for.
KERNEL_FAMILIES = {"cudnn": "cuda", "splash": "tpu"}
CUDNN_WIDTH = 128  # heads wider than this need a GPU that is present when the program is built
CUDNN_WIDTH_MULTIPLE = 8
SPLASH_ROWS = 128  # the lanes of a TPU register: blocks are multiples of it

_INSTEAD = "use blockwise (--attention blockwise)"


def splash_block(rows: int, largest: int) -> int:
    """Return the rows of a splash block, of queries and of keys, forward and backward alike.

    It is the largest multiple of 128 that divides `rows` and is not above `largest`, at least 128; `rows` is a multiple
    of 128. A causal mask then leaves rows (rows + block) / 2 pairs in blocks that are computed.
    """
    block = max(SPLASH_ROWS, min(largest, rows) // SPLASH_ROWS * SPLASH_ROWS)
    while block > SPLASH_ROWS and rows % block:
        block -= SPLASH_ROWS
    return block


def splash_scheduled_pairs(rows: int, block: int) -> int:
    """Return the (query, key) pairs of one head in the blocks that a causal mask leaves: n (n + 1) / 2 of n^2 blocks.

    `rows` new rows against as many keys, n = rows / block.
    """
    return rows * (rows + block) // 2


def kernel_problems(case: Case) -> Iterator[Problem]:
    """Yield why the library kernel of a case cannot run it; nothing for the attention plans written out in JAX."""
    work, arch, plan = case.workload, case.architecture, case.workload.attention
    if plan not in KERNEL_FAMILIES:
        return
    if work.phase == "decode":
        rule = f"{plan} is a kernel for many query rows, and decode has one"
        yield Problem("workload.attention", plan, rule, "use materialised (--attention materialised)")
    if work.dropout and arch.dropout.attention:
        yield Problem(
            "workload.dropout", True, f"{plan} is called without dropout of probabilities",
            "leave dropout out, or " + _INSTEAD,
        )  # fmt: skip
    elif plan == "splash" and work.new_tokens % SPLASH_ROWS:
        rule = f"splash works on blocks of {SPLASH_ROWS} rows"
        yield Problem("workload.new_tokens", work.new_tokens, rule, "use a multiple of 128, or " + _INSTEAD)
    if plan == "cudnn" and case.state.compute_dtype not in ("bf16", "fp16"):
        rule = "cudnn attends in bf16 or fp16"
        yield Problem("state.compute_dtype", case.state.compute_dtype, rule, "use --precision mixed, or " + _INSTEAD)
    for index, group in enumerate(arch.groups):
        where, attention = f"architecture.groups.{index}", group.layer.attention
        if group.windows:
            rule = f"the windows of the layers are data of one program, and {plan} takes a window as a constant"
            yield Problem(f"{where}.windows", list(group.windows[:4]), rule, _INSTEAD)
        where += ".layer.attention"
        if attention.alibi:
            yield Problem(f"{where}.alibi", True, f"{plan} adds no linear biases", _INSTEAD)
        if plan == "splash":
            continue
        if attention.score_softcap:
            yield Problem(f"{where}.score_softcap", attention.score_softcap, "cudnn caps no scores", _INSTEAD)
        if attention.head_dim > CUDNN_WIDTH or attention.head_dim % CUDNN_WIDTH_MULTIPLE:
            rule = f"without a GPU, cudnn takes heads whose width is a multiple of 8 up to {CUDNN_WIDTH}"
            yield Problem(f"{where}.head_dim", attention.head_dim, rule, _INSTEAD)
