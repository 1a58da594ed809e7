"""FLOPs of an XLA convolution, exactly: one multiply and one add for each kernel tap that meets a real input element.

For spatial dimension d let V_d be the number of pairs (kernel position k, output position o) with

    p = o stride + k window_dilation - padding_low,   0 <= p <= (in - 1) base_dilation,   p % base_dilation == 0

(taps on padding or on the zeros between dilated inputs cost nothing). Then

    FLOPs = 2 prod_d V_d * (input features / feature groups) * output features * (batch / batch groups)

This covers TPU, where every matrix product is written as a convolution and batch dimensions become windows.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from jaxcost.observation.hlo.module import Instruction
from jaxcost.observation.hlo.origins import behind, source_of
from jaxcost.observation.hlo.schema import Proto, message, rejected
from jaxcost.observation.hlo.scope import primitive_of

_MAX_TAPS = 1 << 22  # beyond this a window is not counted tap by tap; the largest met has 4096
_MOST_READERS = 256  # of one result; a cut has one
_SAME_ORDER = frozenset(["bitcast", "copy"])
_ANY_ORDER = frozenset(["bitcast", "copy", "transpose", "reshape"])


@dataclass(frozen=True, slots=True)
class ConvolutionCount:
    """FLOPs of one execution and, where the convolution is a plain matrix product, its sizes (else None)."""

    flops: int | None
    batch: int | None
    m: int | None
    k: int | None
    n: int | None


def valid_pairs(
    kernel: int, size: int, out: int, *, stride: int = 1, low: int = 0, window_dilation: int = 1, base_dilation: int = 1
) -> int | None:
    """V_d of one spatial dimension (`size` inputs, `kernel` taps, `out` outputs); None when it is too large to walk."""
    if 0 in (kernel, size, out):
        return 0
    if kernel > out:  # the pairs are symmetric in (k, window_dilation) and (o, stride): walk the shorter side
        kernel, out, stride, window_dilation = out, kernel, window_dilation, stride
    if kernel > _MAX_TAPS:
        return None
    top = (size - 1) * base_dilation
    common = gcd(stride, base_dilation)
    period = base_dilation // common
    inverse = pow(stride // common, -1, period) if period > 1 else 0
    pairs = 0
    for k in range(kernel):
        shift = k * window_dilation - low  # p = o stride + shift
        if shift % common:
            continue
        first = max(0, -(shift // stride))
        last = min(out - 1, (top - shift) // stride)
        residue = (-shift // common) * inverse % period if period > 1 else 0
        if last >= first:
            pairs += (last - residue) // period - (first - 1 - residue) // period
    return pairs


def _take(dims: tuple[int, ...], index: int, what: str) -> int:
    if not 0 <= index < len(dims):
        raise rejected(
            "hlo.convolution", index, f"{what} must be one of {len(dims)} dimensions", "dump the module again"
        )
    return dims[index]


def count_convolution(
    lhs: tuple[int, ...], rhs: tuple[int, ...], out: tuple[int, ...], proto: Proto
) -> ConvolutionCount:
    """Count a convolution (or a library call that carries the same fields) with input `lhs`, kernel `rhs`, result
    `out`.

    Raises RejectedError when window, dimension numbers and shapes contradict each other.
    """
    numbers, window = proto.convolution_dimension_numbers, proto.window.dimensions
    batch = _take(lhs, numbers.input_batch_dimension, "input batch")
    features_in = _take(rhs, numbers.kernel_input_feature_dimension, "kernel input feature")
    features_out = _take(rhs, numbers.kernel_output_feature_dimension, "kernel output feature")
    spatial = list(
        zip(
            numbers.input_spatial_dimensions, numbers.kernel_spatial_dimensions, numbers.output_spatial_dimensions,
            window, strict=False,
        )
    )  # fmt: skip
    if not len(spatial) == len(window) == len(numbers.input_spatial_dimensions) == len(rhs) - 2 == len(lhs) - 2:
        raise rejected(
            "hlo.convolution.window", len(window), "needs one window per spatial dimension", "dump the module again"
        )
    groups, batch_groups = proto.feature_group_count or 1, proto.batch_group_count or 1
    if groups < 1 or batch_groups < 1 or batch % batch_groups:
        raise rejected("hlo.convolution", (groups, batch_groups), "group counts must divide", "dump the module again")
    pairs, windows_batch, m, k, n = 1, 1, batch // batch_groups, features_in, features_out
    plain = groups == 1 and batch_groups == 1
    for in_dim, kernel_dim, out_dim, w in spatial:
        size, taps = _take(lhs, in_dim, "input spatial"), _take(rhs, kernel_dim, "kernel spatial")
        result = _take(out, out_dim, "output spatial")
        stride, dilation, base = w.stride or 1, w.window_dilation or 1, w.base_dilation or 1
        span = max(0, (size - 1) * base + 1) + w.padding_low + w.padding_high - ((taps - 1) * dilation + 1)
        if min(stride, dilation, base) < 1 or w.size != taps or result != max(0, span // stride + 1):
            raise rejected(
                "hlo.convolution.window",
                f"{size} -> {result} with {taps} taps",
                "window and sizes contradict each other",
                "dump the module again",
            )
        valid = valid_pairs(
            taps, size, result, stride=stride, low=w.padding_low, window_dilation=dilation, base_dilation=base
        )
        if valid is None:
            return ConvolutionCount(None, None, None, None, None)
        pairs *= valid
        if taps == 1 and valid == result:
            m *= result
        elif result == 1 and valid == taps == size:
            k *= taps
        elif size == 1 and valid == taps == result:
            n *= taps
        elif valid == taps == size == result:
            windows_batch *= valid  # a batch dimension written as a window: each output meets one tap
        else:
            plain = False
    flops = 2 * pairs * features_in * features_out * (batch // batch_groups)
    if not plain:
        return ConvolutionCount(flops, None, None, None, None)
    return ConvolutionCount(flops, windows_batch, m, k, n)


def count_unpadded(
    before: tuple[int, ...], rhs: tuple[int, ...], out: tuple[int, ...], proto: Proto, padding: Proto | None,
    kernel_padding: Proto | None = None,
) -> int | None:  # fmt: skip
    """FLOPs of a convolution whose input of sizes `before`, or kernel of sizes `rhs`, was padded (and dilated) by an
    instruction of its own: taps on what was written out are left out again. None where batch or features were padded
    too, or a kernel at its ends.
    """
    numbers = proto.convolution_dimension_numbers
    bare = message("HloInstructionProto")
    bare.convolution_dimension_numbers.CopyFrom(numbers)
    bare.window.CopyFrom(proto.window)
    bare.feature_group_count, bare.batch_group_count = proto.feature_group_count, proto.batch_group_count
    for written, sizes, spatial in (
        (padding, before, list(numbers.input_spatial_dimensions)),
        (kernel_padding, rhs, list(numbers.kernel_spatial_dimensions)),
    ):
        if written is not None and len(written.dimensions) != len(sizes):
            return None
        for index, edge in enumerate(written.dimensions if written is not None else ()):
            if index not in spatial:
                if edge.edge_padding_low or edge.edge_padding_high or edge.interior_padding:
                    return None
                continue
            window = bare.window.dimensions[spatial.index(index)]
            if written is kernel_padding:
                if edge.edge_padding_low or edge.edge_padding_high:
                    return None
                window.size = sizes[index]
                window.window_dilation = (window.window_dilation or 1) * (edge.interior_padding + 1)
                continue
            if edge.interior_padding and window.base_dilation > 1:
                return None
            window.padding_low += edge.edge_padding_low
            window.padding_high += edge.edge_padding_high
            window.base_dilation = (window.base_dilation or 1) * (edge.interior_padding + 1)
    return count_convolution(before, rhs, out, bare).flops


def padding_behind(operand: Instruction) -> tuple[tuple[int, ...], Proto] | None:
    """The sizes before the compiler's own pad behind an operand, and that padding, both in the operand's order of
    dimensions; None where there is no such pad (a program's own ends its name in `/pad`), and no sizes where it cannot
    be followed.
    """
    at: Instruction | None = operand
    order: list[int] | None = list(range(len(operand.shape.dims)))
    for _ in range(16):
        if at is None or at.opcode == "pad":
            break
        if at.opcode == "transpose" and order is not None:
            moved = list(at.proto.dimensions)
            order = [moved[axis] for axis in order] if len(moved) == len(order) else None
        elif at.opcode in ("bitcast", "reshape") and at.operands[0].shape.dims != at.shape.dims:
            order = None
        at = behind(at) if at.opcode in (*_ANY_ORDER, "convert", "fusion", "parameter") else None
    if at is None or (at.op_name and primitive_of(at.op_name) == "pad"):
        return None
    before, edges = at.operands[0].shape.dims, at.proto.padding_config.dimensions
    if order is None or not len(order) == len(before) == len(edges):
        return (), message("PaddingConfig")
    config = message("PaddingConfig")
    config.dimensions.extend([edges[axis] for axis in order])
    return tuple(before[axis] for axis in order), config


def cut_of(at: Instruction) -> tuple[tuple[int, ...], Proto] | None:
    """What is left of a library call's result where every reader sees it through one cut of the call's own name: the
    sizes kept, and the borders cut away as a padding. So a gradient is made of an input that the compiler padded. None
    where anything else reads the result, or the cuts differ.
    """
    cuts: dict[tuple[tuple[int, int, int], ...], tuple[Instruction, Instruction]] = {}
    for value, user in readers(at, _SAME_ORDER):
        if user.opcode != "slice" or user.op_name != at.op_name:
            return None
        cuts[tuple((c.start, c.limit, c.stride) for c in user.proto.slice_dimensions)] = (value, user)
    if len(cuts) != 1:
        return None
    ((bounds, (value, cut)),) = cuts.items()
    if any(stride > 1 for _, _, stride in bounds) or len(bounds) != len(value.shape.dims):
        return None
    borders = message("PaddingConfig")
    for (start, limit, _), size in zip(bounds, value.shape.dims, strict=True):
        borders.dimensions.add(edge_padding_low=start, edge_padding_high=size - limit)
    return cut.shape.dims, borders


def diagonal_groups(at: Instruction) -> int:
    """How many groups of a convolution were multiplied densely, each with every other: of its result only the entries
    where two counters agree (input feature = output feature) are kept, and the window over the rest is summed away. So
    XLA writes the gradient of a depthwise kernel for CPUs. 1 where the result is read in any other way.
    """
    kept = readers(at, _ANY_ORDER)
    if len(kept) != 1 or kept[0][1].opcode != "select":
        return 1
    masked = kept[0][1]
    mask = source_of(masked.operands[0], frozenset(["compare"]))
    if mask.opcode != "compare" or mask.proto.comparison_direction != "EQ":
        return 1
    if [source_of(side, frozenset(["iota"])).opcode for side in mask.operands] != ["iota", "iota"]:
        return 1
    summed = readers(masked, _ANY_ORDER)
    if len(summed) != 1 or summed[0][1].opcode != "reduce-window":
        return 1
    groups, rest = divmod(at.shape.size, max(1, summed[0][1].shape.size))
    return groups if rest == 0 and groups in at.shape.dims else 1


def readers(at: Instruction, through: frozenset[str]) -> list[tuple[Instruction, Instruction]]:
    """(what is read, who reads it) of a value, behind fusions, the first element of a tuple and opcodes of `through`.
    Empty where the program returns it, or there are too many.
    """
    found: list[tuple[Instruction, Instruction]] = []
    waiting = [at]
    for _ in range(_MOST_READERS):
        if not waiting:
            return found
        value = waiting.pop()
        if value is value.computation.root:
            callers = value.computation.callers
            if len(callers) != 1 or callers[0].opcode != "fusion":
                return []
            waiting.append(callers[0])
        for user in value.users:
            if user.opcode == "fusion":
                bound = user.called[0].parameters.values()
                waiting += [inner for inner in bound if user.operands[inner.number] is value]
            elif user.opcode in through:
                waiting.append(user)
            elif user.opcode != "get-tuple-element":
                found.append((value, user))
            elif user.number == 0:
                waiting.append(user)
    return []
