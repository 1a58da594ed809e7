"""Small values in a jaxpr that follow from constants: counters, indices, predicates, tables of them.

They decide which branch runs and how often a loop does. Evaluated with numpy on whole arrays of at most a few thousand
elements; anything else, and anything with an unknown operand, is None. Nothing of the program's data is ever made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAX_ELEMENTS = 4096

Array = NDArray[Any]
Known = Array | None


def known_constant(value: Any) -> Known:
    """A captured constant or literal, where it is a small array of integers, floats or truth values."""
    shape, dtype = getattr(value, "shape", ()), getattr(value, "dtype", None)
    if prod(shape) > MAX_ELEMENTS or isinstance(value, str | bytes):
        return None
    if dtype is not None and not _plain(dtype):
        return None
    try:
        made = np.asarray(value)
    except (TypeError, ValueError, RuntimeError):
        return None
    return made if made.dtype.kind in "biuf" else None


def _plain(dtype: Any) -> bool:
    return isinstance(dtype, np.dtype) and dtype.kind in "biuf"


def scalar(value: Known) -> int | None:
    """The integer of a scalar; None for anything else."""
    if value is None or value.size != 1 or value.dtype.kind not in "biu":
        return None
    return int(value.reshape(()))


def _divide(a: Array, b: Array) -> Array:
    if a.dtype.kind == "f":
        return np.asarray(a / b)
    if np.any(b == 0):
        raise ZeroDivisionError
    quotient = np.abs(a) // np.abs(b)
    return np.asarray(np.where((a < 0) == (b < 0), quotient, -quotient))


def _remainder(a: Array, b: Array) -> Array:
    if a.dtype.kind != "f" and np.any(b == 0):
        raise ZeroDivisionError
    return np.asarray(np.fmod(a, b))


_ELEMENTWISE: dict[str, Callable[..., Any]] = {
    "add": np.add, "add_any": np.add, "sub": np.subtract, "mul": np.multiply, "max": np.maximum, "min": np.minimum,
    "neg": np.negative, "abs": np.abs, "sign": np.sign, "eq": np.equal, "ne": np.not_equal, "lt": np.less,
    "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "and": np.bitwise_and, "or": np.bitwise_or,
    "xor": np.bitwise_xor, "not": np.invert, "floor": np.floor, "ceil": np.ceil, "div": _divide, "rem": _remainder,
    "square": np.square, "copy": np.asarray, "copy_p": np.asarray, "stop_gradient": np.asarray,
    "convert_element_type": np.asarray, "reshape": np.asarray, "squeeze": np.asarray, "expand_dims": np.asarray,
    "optimization_barrier": np.asarray,
}  # fmt: skip
_REDUCE: dict[str, Callable[..., Any]] = {
    "reduce_sum": np.sum, "reduce_max": np.max, "reduce_min": np.min, "reduce_and": np.all, "reduce_or": np.any,
}  # fmt: skip


def evaluate(primitive: str, params: Mapping[str, Any], values: Sequence[Known], out: Any) -> Known:
    """The single result of an equation on known operands; `out` is its abstract value."""
    shape, dtype = tuple(getattr(out, "shape", ())), getattr(out, "dtype", None)
    if not _plain(dtype) or not all(isinstance(d, int) for d in shape) or prod(shape) > MAX_ELEMENTS:
        return None
    if primitive == "and" and dtype == np.bool_ and any(v is not None and not v.any() for v in values):
        return np.zeros(shape, np.bool_)
    if primitive == "or" and dtype == np.bool_ and any(v is not None and v.all() for v in values):
        return np.ones(shape, np.bool_)
    operands = [v for v in values if v is not None]
    if len(operands) != len(values):
        return None
    try:
        with np.errstate(all="ignore"):
            made = _evaluate(primitive, params, operands, shape)
    except (TypeError, ValueError, IndexError, KeyError, ZeroDivisionError, OverflowError):
        return None
    if made is None or made.size != prod(shape):
        return None
    if made.dtype.kind == "f" and np.dtype(dtype).kind in "iu" and not np.all(np.isfinite(made)):
        return None
    with np.errstate(all="ignore"):
        return made.astype(dtype).reshape(shape)


def _evaluate(primitive: str, params: Mapping[str, Any], v: list[Array], shape: tuple[int, ...]) -> Array | None:
    if primitive in _ELEMENTWISE:
        return np.asarray(_ELEMENTWISE[primitive](*v))
    if primitive in _REDUCE:
        return np.asarray(_REDUCE[primitive](v[0], axis=tuple(params["axes"])))
    if primitive == "iota":
        axis = params["dimension"]
        along = np.arange(shape[axis]).reshape([-1 if d == axis else 1 for d in range(len(shape))])
        return np.broadcast_to(along, shape)
    if primitive == "broadcast_in_dim":
        inner = [1] * len(shape)
        for d, size in zip(params["broadcast_dimensions"], v[0].shape, strict=True):
            inner[d] = size
        return np.broadcast_to(v[0].reshape(inner), shape)
    if primitive == "select_n":
        which = v[0].astype(np.int64)
        return np.choose(np.broadcast_to(which, shape), v[1:]) if len(v) <= 32 else None
    if primitive == "clamp":
        return np.asarray(np.minimum(np.maximum(v[1], v[0]), v[2]))
    if primitive == "integer_pow":
        return np.asarray(v[0] ** params["y"]) if params["y"] >= 0 else None
    if primitive == "transpose":
        return np.transpose(v[0], params["permutation"])
    if primitive == "rev":
        return np.flip(v[0], params["dimensions"])
    if primitive == "concatenate":
        return np.concatenate(v, axis=params["dimension"])
    if primitive == "slice":
        strides = params["strides"] or (1,) * v[0].ndim
        cuts = zip(params["start_indices"], params["limit_indices"], strides, strict=True)
        return v[0][tuple(slice(*cut) for cut in cuts)]
    if primitive == "dynamic_slice":
        sizes = params["slice_sizes"]
        starts = [
            max(0, min(int(start), whole - size)) for start, whole, size in zip(v[1:], v[0].shape, sizes, strict=True)
        ]
        return v[0][tuple(slice(a, a + size) for a, size in zip(starts, sizes, strict=True))]
    return None


def bare(value: Any) -> Any:
    """The jaxpr itself of a Jaxpr or a closed one (in jax 0.11 they are one class), else None."""
    inner = getattr(value, "jaxpr", value)
    return inner if hasattr(inner, "eqns") else None


def read(variable: Any, env: Mapping[Any, Any]) -> Any:
    """What is known of a variable or literal."""
    return known_constant(variable.val) if hasattr(variable, "val") else env.get(variable)
