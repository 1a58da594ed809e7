"""What one equation of a jaxpr costs, by itself.

dot_general            2 * prod(result) * prod(contracted)
conv_general_dilated   2 * valid taps * (input features / groups) * output features * batch
ragged_dot_general     2 * prod(lhs) * free sizes of rhs: each row meets one group
scaled_matmul          2 * prod(result) * contracted; scales are not counted
factorisations, solves, transforms: the conventions of `hlo.linalg`, on the sizes the equation shows
everything else        operations by kind, beside the FLOPs, never in them (kinds as in `hlo.primitives`)
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from jaxcost.observation.hlo.convolution import valid_pairs
from jaxcost.observation.hlo.linalg import FFT_CONVENTION, ROUTINES, LibraryCount, Sizes, count_sizes, fft_flops
from jaxcost.observation.hlo.primitives import kind_of
from jaxcost.observation.hlo.products import real_operations

KERNELS = ("pallas_call", "ffi_call", "custom_call", "dot_product_attention", "mosaic", "triton")
HOST = frozenset("pure_callback io_callback debug_callback debug_print".split())


@dataclass(frozen=True, slots=True)
class Cost:
    """One execution of an equation.

    `flops` is None, with a `reason`, where nothing tells. `basis`: shape, convention, declared or unknown.
    """

    flops: int | None
    sizes: tuple[int | None, int | None, int | None, int | None] = (None, None, None, None)  # batch, m, k, n
    basis: str = "shape"
    convention: str = ""
    reason: str = ""
    declared: int | None = None


def cost_of(eqn: Any) -> Cost | None:
    """The cost of an equation that multiplies matrices, factorises, transforms, or runs what cannot be seen; None for
    all others.
    """
    name = eqn.primitive.name
    if name == "dot_general":
        return _dot(eqn)
    if name == "conv_general_dilated":
        flops = _convolution(eqn)
        return Cost(flops, reason="" if flops is not None else "the taps of its window are too many to walk")
    if name == "ragged_dot_general":
        return Cost(_ragged(eqn))
    if name.startswith("scaled_matmul"):
        out = eqn.outvars[0].aval.shape
        return Cost(
            2 * prod(out) * eqn.invars[0].aval.shape[-1], convention="a block-scaled product; scales not counted"
        )
    if name in HOST:
        return Cost(None, basis="unknown", reason="Python on the host: no work of the device, and not to be read here")
    if name.startswith(KERNELS):
        estimate = getattr(eqn.params.get("cost_estimate"), "flops", None)
        declared = int(estimate) if isinstance(estimate, int) else None
        return Cost(None, basis="unknown", reason="opaque", declared=declared)
    counted = _library(eqn, name)
    if counted is None:
        return None
    basis = "convention" if counted.flops is not None else "unknown"
    return Cost(counted.flops, basis=basis, convention=counted.convention, reason=counted.reason)


def _shapes(eqn: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    lhs, rhs = (v.aval.shape for v in eqn.invars[:2])
    return lhs, rhs


def _dot(eqn: Any) -> Cost:
    (lhs_k, rhs_k), (lhs_b, rhs_b) = eqn.params["dimension_numbers"]
    lhs, rhs = _shapes(eqn)
    batch, k = prod(lhs[d] for d in lhs_b), prod(lhs[d] for d in lhs_k)
    m = prod(size for d, size in enumerate(lhs) if d not in (*lhs_k, *lhs_b))
    n = prod(size for d, size in enumerate(rhs) if d not in (*rhs_k, *rhs_b))
    return Cost(2 * batch * m * k * n * _real(eqn), (batch, m, k, n))


def _real(eqn: Any) -> int:
    """Real products in one product of its operands."""
    return real_operations(*("c64" if v.aval.dtype.kind == "c" else "" for v in eqn.invars[:2]))


def _ragged(eqn: Any) -> int:
    numbers = eqn.params["ragged_dot_dimension_numbers"]
    (_, rhs_k), (_, rhs_b) = numbers.dot_dimension_numbers
    lhs, rhs = _shapes(eqn)
    apart = (*rhs_k, *rhs_b, *numbers.rhs_group_dimensions)
    return 2 * prod(lhs) * prod(size for d, size in enumerate(rhs) if d not in apart) * _real(eqn)


def _convolution(eqn: Any) -> int | None:
    params, (lhs, rhs) = eqn.params, _shapes(eqn)
    numbers, out = params["dimension_numbers"], eqn.outvars[0].aval.shape
    pairs = 1
    for i, (d_in, d_k, d_out) in enumerate(
        zip(numbers.lhs_spec[2:], numbers.rhs_spec[2:], numbers.out_spec[2:], strict=True)
    ):
        valid = valid_pairs(
            rhs[d_k], lhs[d_in], out[d_out], stride=params["window_strides"][i], low=params["padding"][i][0],
            window_dilation=params["rhs_dilation"][i], base_dilation=params["lhs_dilation"][i],
        )  # fmt: skip
        if valid is None:
            return None
        pairs *= valid
    batch: int = lhs[numbers.lhs_spec[0]] // params["batch_group_count"]
    flops: int = 2 * pairs * rhs[numbers.rhs_spec[1]] * rhs[numbers.rhs_spec[0]] * batch * _real(eqn)
    return flops


# Linear algebra -------------------------------------------------------------------------------------------------------

_SQUARE = {
    "cholesky": "potrf", "eigh": "syevd", "eig": "geev", "schur": "gees", "hessenberg": "gehrd", "tridiagonal": "sytrd",
    "cholesky_update": "cholesky_update",
}  # fmt: skip
_RECTANGULAR = {"lu": "getrf", "geqrf": "geqrf", "svd": "gesvd"}


def _library(eqn: Any, name: str) -> LibraryCount | None:
    """By the table of `hlo.linalg`; None for an equation that is no routine of it."""
    if name == "fft":
        return _fft(eqn)
    if name not in (*_SQUARE, *_RECTANGULAR, *_SHAPED) or not getattr(eqn.invars[0].aval, "shape", ()):
        return None
    first = eqn.invars[0].aval
    is_complex = first.dtype.kind == "c"
    if name in _SHAPED:
        return _shaped(eqn, name, is_complex)
    if len(first.shape) < 2:
        return None
    *outer, m, n = first.shape
    routine = ROUTINES[_SQUARE.get(name) or _RECTANGULAR[name]]
    asked = ("compute_uv", "compute_schur_vectors", "compute_left_eigenvectors", "compute_right_eigenvectors")
    vectors = name == "eigh" or any(eqn.params.get(key) is True for key in asked)
    return count_sizes(routine, Sizes(m, n, 0, prod(outer), is_complex, vectors))


_SHAPED = ("triangular_solve", "qr", "householder_product", "tridiagonal_solve", "symmetric_product")


def _shaped(eqn: Any, name: str, is_complex: bool) -> LibraryCount:
    first = eqn.invars[0].aval.shape
    if name == "triangular_solve":
        n, (*outer, rows, columns) = first[-1], eqn.invars[1].aval.shape
        sides = columns if eqn.params["left_side"] else rows
        return count_sizes(ROUTINES["trsm"], Sizes(n, n, sides, prod(outer), is_complex))
    if name == "tridiagonal_solve":
        right = eqn.invars[3].aval.shape
        batch, n = prod(first[:-1]), first[-1]
        each = prod(right) // (batch * n) if batch * n else 0
        return count_sizes(ROUTINES["gtsv"], Sizes(n, n, each, batch, is_complex))
    *outer, m, n = first
    if name == "symmetric_product":
        return count_sizes(ROUTINES["syrk"], Sizes(m, m, n, prod(outer), is_complex))
    made = eqn.outvars[0].aval.shape
    reflectors = eqn.invars[1].aval.shape[-1] if name == "householder_product" else min(m, n)
    product = count_sizes(ROUTINES["orgqr"], Sizes(m, made[-1], reflectors, prod(outer), is_complex))
    if name == "householder_product":
        return product
    factors = count_sizes(ROUTINES["geqrf"], Sizes(m, n, 0, prod(outer), is_complex))
    whole = (factors.flops or 0) + (product.flops or 0)
    return LibraryCount("qr", f"{factors.convention}; {product.convention}", whole)


def _fft(eqn: Any) -> LibraryCount:
    lengths = tuple(eqn.params["fft_lengths"])
    kind = str(getattr(eqn.params["fft_type"], "name", eqn.params["fft_type"]))
    whole = (eqn.outvars if kind == "IRFFT" else eqn.invars)[0].aval.shape
    transforms = prod(whole[: len(whole) - len(lengths)])
    real = kind in ("RFFT", "IRFFT")
    return LibraryCount("fft", FFT_CONVENTION, transforms * fft_flops(prod(lengths), real=real))


# Operations -----------------------------------------------------------------------------------------------------------

_ELEMENTWISE = {
    "exp": "exp", "exp2": "exp", "expm1": "expm1", "log": "log", "log1p": "log1p", "tanh": "tanh",
    "logistic": "logistic", "erf": "erf", "erf_inv": "erf_inv", "sin": "sin", "cos": "cos", "tan": "tan",
    "atan2": "atan2", "acos": "acos", "asin": "asin", "atan": "atan2", "acosh": "acosh", "asinh": "asinh",
    "atanh": "atanh", "cosh": "cosh", "sinh": "sinh", "pow": "power", "integer_pow": "power", "rsqrt": "rsqrt",
    "sqrt": "sqrt", "cbrt": "cbrt", "add": "add", "add_any": "add", "sub": "add", "mul": "multiply",
    "square": "multiply", "div": "divide", "rem": "remainder", "max": "max", "min": "max", "neg": "negate",
    "abs": "abs", "sign": "sign", "clamp": "clamp", "floor": "round", "ceil": "round", "round": "round",
    "reduce_precision": "round", "eq": "compare", "ne": "compare", "lt": "compare", "le": "compare", "gt": "compare",
    "ge": "compare", "is_finite": "compare", "select_n": "select", "and": "logic", "or": "logic", "xor": "logic",
    "not": "logic", "shift_left": "logic", "shift_right_logical": "logic", "shift_right_arithmetic": "logic",
    "population_count": "logic", "clz": "logic", "convert_element_type": "convert", "gather": "gather",
    "random_bits": "rng", "threefry2x32": "rng", "rng_bit_generator": "rng", "rng_uniform": "rng",
    "lgamma": "lgamma", "digamma": "digamma", "nextafter": "nextafter",
}  # fmt: skip
_OF_OPERAND = frozenset("eq ne lt le gt ge is_finite".split())
_REDUCTIONS = {
    "reduce_sum": "add", "reduce_max": "max", "reduce_min": "max", "reduce_prod": "multiply", "reduce_and": "logic",
    "reduce_or": "logic", "reduce_xor": "logic", "argmax": "compare", "argmin": "compare",
}  # fmt: skip
_CUMULATIVE = {"cumsum": "add", "cumprod": "multiply", "cummax": "max", "cummin": "max", "cumlogsumexp": "logsumexp"}
_SCATTERS = {"scatter-add": "add", "scatter_add": "add", "scatter-mul": "multiply", "scatter_mul": "multiply",
             "scatter-min": "max", "scatter_min": "max", "scatter-max": "max", "scatter_max": "max"}  # fmt: skip


def operations(eqn: Any) -> tuple[str, int] | None:
    """(kind, how many) of an equation that is no contraction; None for moves of data and for what holds equations."""
    name = eqn.primitive.name
    out: Any = eqn.outvars[-1].aval if eqn.outvars else None
    shape = getattr(out, "shape", None)
    if shape is None or not all(isinstance(d, int) for d in shape):
        return None
    first: Any = eqn.invars[0].aval if eqn.invars else out
    if name in _ELEMENTWISE:
        of = first if name in _OF_OPERAND else out
        return _typed(_ELEMENTWISE[name], of), prod(shape)
    if name in _REDUCTIONS:
        return _typed(_REDUCTIONS[name], first), max(prod(first.shape) - prod(shape), 0)
    if name in _CUMULATIVE:
        steps = prod(shape) // shape[eqn.params["axis"]] if prod(shape) else 0
        return _typed(_CUMULATIVE[name], first), prod(shape) - steps
    if name in _SCATTERS:
        return _typed(_SCATTERS[name], first), prod(eqn.invars[2].aval.shape)
    if name == "sort":
        return "sort", prod(first.shape)
    if name in ("top_k", "approx_top_k"):
        return "topk", prod(first.shape)
    return None


def _typed(kind: str, aval: Any) -> str:
    letter = getattr(getattr(aval, "dtype", None), "kind", "f")
    return kind_of(kind, {"i": "s32", "u": "u32", "b": "pred", "c": "c64"}.get(letter, "f32"))
