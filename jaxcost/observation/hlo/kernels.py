"""FLOPs of library calls and kernels whose inside the module does not show, and where each number comes from.

    shape        the shapes and the call's own fields fix it: grouped and block-scaled products, fused attention
    convention   a factorisation or a transform, by a stated formula (see `linalg`)
    declared     the kernel says so itself: the `cost_estimate` of a Pallas kernel
    unknown      nothing tells: the call is opaque, never zero

Fused attention costs 2 products forward (scores, values) and 5 backward (the scores again, then the gradients of
values, probabilities, queries and keys), each over the full square of scores: a mask is named and earns no credit.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from math import isqrt, prod
from typing import Any, Literal

from jaxcost.observation.hlo.linalg import count_routine
from jaxcost.observation.hlo.module import Instruction
from jaxcost.observation.hlo.opcodes import HARMLESS_TARGETS
from jaxcost.observation.hlo.schema import Proto
from jaxcost.observation.hlo.scope import names_of, split_path

Basis = Literal["shape", "convention", "declared", "unknown"]
Kind = Literal[
    "contraction", "elementwise_product", "convolution", "linear_algebra", "kernel", "host", "opcode", "loop"
]  # fmt: skip

# Comparisons, random bits and moves of data: no FLOP of a product is in them. They are counted with the primitives.
ELEMENTWISE_TARGETS = frozenset(
    """TopK __gpu$TopK PartialReduce ApproxTopK cu_threefry2x32 cu_threefry2x32_ffi hip_threefry2x32
    hip_threefry2x32_ffi RngBitGenerator cu_lu_pivots_to_permutation hip_lu_pivots_to_permutation
    __cub$DeviceRadixSort __cub$DeviceRadixSortUnassignedScratchSize __cudnn$norm __onednn$softmax __onednn$layernorm
    X64SplitLow X64SplitHigh X64Combine SliceToDynamic PadToStatic DynamicReshape InspectSharding
    __cudnn$convReorderFilterAndBias __cudnn$convReorderFilter xla.gpu.zero mhlo.topk""".split()
)
_HOST = re.compile(
    r"(?:xla_(?:ffi_)?(?:python|partitioned_python)_.*callback|xla_python_.*callback|xla_buffer_python_.*callback"
    r"|CallbackTo.*|HostExecute|.*[Hh]ost[Cc]ompute.*)\Z"
)
_ATTENTION = "__cudnn$fmha"
_GROUPED = ("__cublas$lt$groupedMatmul", "__cublas$groupedMatmul")
_SCALED = ("__cudnn$blockScaledDot", "__op$block_scaled_dot")
_ONEDNN = "__onednn$matmul"
_PALLAS = "tpu_custom_call"
_METADATA = "ragged-dot-metadata"  # XLA's own name for the kernel that turns group sizes into offsets
_NAME = re.compile(rb'\bname\s*=\s*"([^"]{1,200})"')


@dataclass(frozen=True, slots=True)
class Work:
    """What one execution of a library call or kernel costs.

    `flops` is None, with a `reason`, where nothing tells; `estimate` is a published estimate of it, part of no total.
    `active_flops` is what the groups need where each row meets one of them.
    """

    kind: Kind
    basis: Basis
    convention: str
    flops: int | None
    reason: str = ""
    estimate: int | None = None
    detail: str = ""


def work_of(at: Instruction) -> Work | None:
    """What a library call or kernel costs; None for calls that only move, mark, compare or draw random bits.

    Products by cuBLAS and convolutions by cuDNN are contractions (see `contractions`); what arrives here of them had
    no readable configuration.
    """
    counted = count_routine(at)
    if counted is not None:
        basis: Basis = "convention" if counted.flops is not None else "unknown"
        return Work("linear_algebra", basis, counted.convention, counted.flops, counted.reason, counted.estimate)
    if at.opcode == "ragged-dot":
        return _ragged(at, at.proto.ragged_dot_dimension_numbers)
    if at.opcode != "custom-call":
        return None
    target: str = at.proto.custom_call_target
    if target in HARMLESS_TARGETS or target in ELEMENTWISE_TARGETS:
        return None
    if _HOST.match(target):
        return Work("host", "unknown", "", None, "Python on the host: no work of the device, and not to be read here")
    for spelt, read in ((_ATTENTION, _attention), (_GROUPED, _grouped), (_SCALED, _scaled), (_ONEDNN, _onednn)):
        if target.startswith(spelt):
            found = read(at)
            if found is not None:
                return found
    return _kernel(at)


def _kernel_name(at: Instruction) -> str:
    match = _NAME.search(at.proto.backend_config[:4096])
    return match[1].decode("utf-8", "replace") if match else ""


def _kernel(at: Instruction) -> Work:
    """A kernel that says what it costs, or one that says nothing."""
    if at.op_name == _METADATA and all(leaf.dtype in ("s32", "u32") for leaf in at.shape.leaves()):
        return Work("kernel", "shape", "offsets of the groups of a ragged product: integers alone", 0)
    said = declared_by(at)
    name = str(said.get("kernel") or _kernel_name(at))
    if "flops" in said:
        return Work("kernel", "declared", "the kernel's own cost estimate", said["flops"], detail=name)
    why = "a kernel that declares no cost: its inside is not in the module"
    return Work("kernel", "unknown", "", None, why, detail=name)


def _attention(at: Instruction) -> Work | None:
    config = at.backend_config().get("cudnn_fmha_backend_config")
    scores = _scores(config) if isinstance(config, dict) else None
    if not isinstance(config, dict) or not scores or len(scores) < 2 or not at.operands:
        return None
    rows, pairs = prod(scores[:-1]), prod(scores)
    made = list(at.shape.leaves())
    backward = "Backward" in at.proto.custom_call_target
    # Queries are [.., rows, width]; values and their gradient end in the width of a head, as the output does.
    width = _width(at.operands[0].shape.size, rows)
    if backward:
        value = made[2].dims[-1] if len(made) > 2 and made[2].dims else None
    else:
        value = _width(made[0].size, rows) if made else None
    if width is None or value is None:
        return None
    # Per pair: forward q k (width) and p v (value); backward q k, dq, dk (width) and dp, dv (value).
    flops = 2 * pairs * (3 * width + 2 * value) if backward else 2 * pairs * (width + value)
    mask = str(config.get("mask_type", "unspecified"))
    products = "5 products" if backward else "2 products"
    text = f"fused attention, {products} over the full square of scores; mask {mask} earns no credit"
    window = config.get("sliding_window_length")
    detail = f"mask {mask}" + (f", window {window}" if str(window).isdecimal() and str(window) != "0" else "")
    return Work("kernel", "shape", text, flops, detail=detail)


def _width(elements: int, rows: int) -> int | None:
    if rows == 0:
        return 0
    width, rest = divmod(elements, rows)
    return width if rest == 0 and width else None


def _ragged(at: Instruction, numbers: Proto) -> Work | None:
    inner = numbers.dot_dimension_numbers
    return _ragged_work(at, inner.rhs_contracting_dimensions, inner.rhs_batch_dimensions, numbers.rhs_group_dimensions)


def _ragged_work(
    at: Instruction, contracted: Iterable[int], batch: Iterable[int], groups: Iterable[int]
) -> Work | None:
    lhs, rhs = at.operands[0].shape, at.operands[1].shape
    apart = {*contracted, *batch, *groups}
    if any(not 0 <= d < len(rhs.dims) for d in apart):
        return None
    flops = 2 * lhs.size * prod(size for d, size in enumerate(rhs.dims) if d not in apart)
    text = "a ragged product: each element of the left operand meets one group (group sizes that sum to all rows)"
    return Work("contraction", "shape", text, flops)


def _grouped(at: Instruction) -> Work | None:
    config = at.backend_config().get("grouped_gemm_backend_config")
    numbers = config.get("ragged_dot_dimension_numbers") if isinstance(config, dict) else None
    inner = numbers.get("dot_dimension_numbers") if isinstance(numbers, dict) else None
    if not isinstance(numbers, dict) or not isinstance(inner, dict) or len(at.operands) < 2:
        return None
    contracted = _integers(inner.get("rhs_contracting_dimensions", []))
    batch = _integers(inner.get("rhs_batch_dimensions", []))
    groups = _integers(numbers.get("rhs_group_dimensions", []))
    if not contracted or batch is None or groups is None:
        return None
    return _ragged_work(at, contracted, batch, groups)


def _integers(values: object) -> list[int] | None:
    if not isinstance(values, list) or any(str(v) not in map(str, range(16)) for v in values):
        return None
    return [int(v) for v in values]


def _scaled(at: Instruction) -> Work | None:
    """A product of blocks that share scales: [.., m, k] with [.., n, k], whatever the scales' own shapes."""
    made = next(at.shape.leaves(), None)
    if made is None or len(at.operands) < 2:
        return None
    lhs, rhs, out = at.operands[0].shape.dims, at.operands[1].shape.dims, made.dims
    if min(len(lhs), len(rhs), len(out)) < 2 or lhs[-1] != rhs[-1] or out[-2:] != (lhs[-2], rhs[-2]):
        return None
    if not lhs[:-2] == rhs[:-2] == out[:-2]:
        return None
    return Work("contraction", "shape", "a block-scaled product; scales not counted", 2 * prod(out) * lhs[-1])


def _onednn(at: Instruction) -> Work | None:
    """With B batches, lhs x rhs x out elements are B^3 (m k n)^2, whichever operand is transposed."""
    made = next(at.shape.leaves(), None)
    if made is None or len(at.operands) < 2:
        return None
    lhs, rhs, out = at.operands[0].shape, at.operands[1].shape, made
    batch = prod(out.dims[:-2]) if lhs.dims[:-2] == rhs.dims[:-2] == out.dims[:-2] else 1
    whole, rest = divmod(lhs.size * rhs.size * out.size, max(batch, 1) ** 3)
    root = isqrt(whole)
    if rest or root * root != whole:
        return None
    return Work("contraction", "shape", "a product by oneDNN, from the sizes of its arrays", 2 * batch * root)


def host_transfer(at: Instruction) -> str:
    """The name under which an instruction hands data to the host program; '' where it does not.

    Traffic between slices of a TPU pod also goes through the host, and is a collective.
    """
    if at.opcode in ("infeed", "outfeed"):
        return at.opcode
    if at.opcode != "send" or not at.proto.is_host_transfer:
        return ""
    attributes = {entry.key: entry.value for entry in at.proto.frontend_attributes.map}
    if any(key.startswith("_xla_megascale") for key in attributes):
        return ""
    return f"send to {attributes.get('_xla_host_transfer_handler_name', 'the host')}"


def declared_by(at: Instruction) -> dict[str, Any]:
    """What a kernel says about itself: a cost estimate, a fused attention's score shape."""
    config = at.backend_config()
    found: dict[str, Any] = {}
    custom = config.get("custom_call_config")
    estimate = custom.get("cost_estimate") if isinstance(custom, dict) else None
    for key in ("flops", "transcendentals", "bytes_accessed"):
        value = estimate.get(key) if isinstance(estimate, dict) else None
        if str(value).isdecimal():
            found[key] = int(str(value))
    attention = config.get("cudnn_fmha_backend_config")
    if isinstance(attention, dict):
        scores = _scores(attention)
        if scores is not None:
            found["scores_shape"] = scores
        if isinstance(attention.get("mask_type"), str):
            found["mask_type"] = attention["mask_type"]
    if at.proto.custom_call_target == _PALLAS:
        found |= _pallas(at)
    return found


def _pallas(at: Instruction) -> dict[str, Any]:
    """The name of a Pallas kernel, which is the scope around its call, and the block sizes it was built with."""
    found: dict[str, Any] = {}
    path = split_path(names_of(at.op_name)[0])
    if len(path) > 1 and path[-1] == "pallas_call":
        found["kernel"] = path[-2]
    attributes = {entry.key: entry.value for entry in at.proto.frontend_attributes.map}
    outer = _json(attributes.get("kernel_metadata", ""))
    inner = _json(outer.get("xprof_metadata", ""))
    found["metadata"] = {str(key): value for key, value in inner.items() if isinstance(value, int)}
    return found


def _scores(attention: dict[str, Any]) -> list[int] | None:
    shape = attention.get("intermediate_tensor_shape")
    sizes = shape.get("dimensions") if isinstance(shape, dict) else None
    if isinstance(sizes, list) and all(str(size).isdecimal() for size in sizes):
        return [int(str(size)) for size in sizes]
    return None


def _json(text: object) -> dict[str, Any]:
    try:
        value = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
