"""Arithmetic as XLA does it on one element: integers wrap at their width, floats round to their type."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from math import prod

from jaxcost.observation.hlo.module import Instruction

Number = int | float

INTEGERS = {"s8": 8, "s16": 16, "s32": 32, "s64": 64, "u8": 8, "u16": 16, "u32": 32, "u64": 64, "pred": 1}
_FLOATS = {"f64": "<d", "f32": "<f", "f16": "<e"}
_LITERALS = {
    "s32": "s32s", "s64": "s64s", "u32": "u32s", "u64": "u64s", "pred": "preds", "f32": "f32s", "f64": "f64s",
}  # fmt: skip
_PACKED = {"s8": "<b", "u8": "<B", "s16": "<h", "u16": "<H", "f16": "<e"}

COMPARE: dict[str, Callable[[Number, Number], bool]] = {
    "LT": lambda a, b: a < b, "LE": lambda a, b: a <= b, "GT": lambda a, b: a > b, "GE": lambda a, b: a >= b,
    "EQ": lambda a, b: a == b, "NE": lambda a, b: a != b,
}  # fmt: skip

# One output element from the elements at the same place of the operands.
ELEMENTWISE = frozenset(
    """add subtract multiply divide remainder maximum minimum negate abs sign power and or xor not compare convert
    shift-left shift-right-logical shift-right-arithmetic floor ceil round-nearest-even is-finite""".split()
)
# One output element is one element of an operand, wherever it stands.
MOVES = frozenset("bitcast reshape broadcast slice transpose reverse concatenate pad".split())


def values_of(dtype: str) -> range:
    """What a scalar of an integer type can be."""
    bits = INTEGERS[dtype]
    return range(-(1 << (bits - 1)), 1 << (bits - 1)) if dtype.startswith("s") else range(1 << bits)


def wrapped(value: Number, dtype: str) -> Number | None:
    """A number in a type: an integer modulo its width, a float rounded to nearest; None where XLA's choice is not
    known (a float beyond an integer's range).
    """
    if dtype == "pred":
        return bool(value)
    if dtype in INTEGERS:
        possible = values_of(dtype)
        if isinstance(value, float):
            if not math.isfinite(value) or int(value) not in possible:
                return None
            value = int(value)
        return (value - possible.start) % len_of(possible) + possible.start
    if isinstance(value, int) and abs(value) > 1 << 53:
        return None
    value = float(value)
    if dtype in _FLOATS:
        try:
            rounded: float = struct.unpack(_FLOATS[dtype], struct.pack(_FLOATS[dtype], value))[0]
        except OverflowError:
            return None
        return rounded
    if dtype == "bf16":
        return _bfloat16(value)
    return None


def len_of(values: range) -> int:
    """The number of values, also where it exceeds what `len` can say."""
    return values.stop - values.start


def _bfloat16(value: float) -> float | None:
    if not math.isfinite(value):
        return value
    try:
        bits = struct.unpack("<I", struct.pack("<f", value))[0]
    except OverflowError:
        return None
    exact: float = struct.unpack("<f", struct.pack("<I", bits))[0]
    if exact != value:
        return None  # two roundings need not be one
    bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
    rounded: float = struct.unpack("<f", struct.pack("<I", bits & 0xFFFFFFFF))[0]
    return rounded


def compute(opcode: str, numbers: list[Number], dtype: str) -> Number | None:
    """An elementwise operation on numbers of type `dtype`; None for what has no defined or exact result."""
    try:
        value = _integer(opcode, [int(n) for n in numbers], dtype) if dtype in INTEGERS else _float(opcode, numbers)
    except (OverflowError, ValueError, ZeroDivisionError):
        return None
    if value is None or opcode == "is-finite":
        return value
    return wrapped(value, dtype)


def _integer(opcode: str, numbers: list[int], dtype: str) -> Number | None:
    a, b = numbers[0], numbers[-1]
    bits = INTEGERS[dtype]
    if opcode.startswith("shift"):
        if not 0 <= b < bits:
            return None
        if opcode == "shift-left":
            return a << b
        return (a % (1 << bits) if opcode == "shift-right-logical" else a) >> b
    if opcode in ("divide", "remainder"):
        if b == 0:
            return None
        quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
        return quotient if opcode == "divide" else a - quotient * b
    if opcode == "power":
        return a**b if 0 <= b <= 64 else None
    if opcode == "not":
        return ~a
    simple: dict[str, Callable[[int, int], int]] = {
        "add": lambda a, b: a + b, "subtract": lambda a, b: a - b, "multiply": lambda a, b: a * b, "maximum": max,
        "minimum": min, "negate": lambda a, _: -a, "abs": lambda a, _: abs(a), "and": lambda a, b: a & b,
        "sign": lambda a, _: (a > 0) - (a < 0), "or": lambda a, b: a | b, "xor": lambda a, b: a ^ b,
    }  # fmt: skip
    return simple[opcode](a, b) if opcode in simple else None


def _float(opcode: str, numbers: list[Number]) -> Number | None:
    a, b = float(numbers[0]), float(numbers[-1])
    if opcode == "is-finite":
        return math.isfinite(a)
    if any(math.isnan(n) for n in (a, b)):
        return math.nan
    simple: dict[str, Callable[[float, float], float]] = {
        "add": lambda a, b: a + b, "subtract": lambda a, b: a - b, "multiply": lambda a, b: a * b,
        "divide": lambda a, b: a / b, "maximum": max, "minimum": min, "negate": lambda a, _: -a,
        "abs": lambda a, _: abs(a), "floor": lambda a, _: math.floor(a), "ceil": lambda a, _: math.ceil(a),
        "round-nearest-even": lambda a, _: round(a), "sign": lambda a, _: (a > 0) - (a < 0),
    }  # fmt: skip
    return simple[opcode](a, b) if opcode in simple else None


def literal_element(constant: Instruction, index: tuple[int, ...]) -> Number | None:
    """One element of a constant; None for a type that is not read."""
    literal, dtype, dims = constant.proto.literal, constant.shape.dtype, constant.shape.dims
    order = tuple(literal.shape.layout.minor_to_major) or tuple(reversed(range(len(dims))))
    if sorted(order) != list(range(len(dims))):
        return None
    place, stride = 0, 1
    for dimension in order:
        place += index[dimension] * stride
        stride *= dims[dimension]
    if dtype in _LITERALS:
        values = getattr(literal, _LITERALS[dtype])
        if len(values) != prod(dims):
            return None
        found: Number = values[place]
        return found
    if dtype in _PACKED:
        raw: bytes = getattr(literal, f"{dtype}s")
        size = struct.calcsize(_PACKED[dtype])
        if len(raw) != prod(dims) * size:
            return None
        unpacked: Number = struct.unpack_from(_PACKED[dtype], raw, place * size)[0]
        return unpacked
    return None


def source_index(at: Instruction, index: tuple[int, ...]) -> tuple[int, tuple[int, ...]] | None:
    """(operand, its index) of the element that a moving instruction puts at `index`; None when it cannot be told."""
    opcode, proto, operand = at.opcode, at.proto, at.operands[0].shape
    dimensions = tuple(proto.dimensions)
    if opcode in ("bitcast", "reshape"):
        if operand.dims == at.shape.dims:
            return (0, index) if operand.dtype == at.shape.dtype else None
        ordered = opcode == "reshape" or (len(operand.dims) <= 1 and len(at.shape.dims) <= 1) or operand.size == 1
        if not ordered or operand.size != at.shape.size or operand.dtype != at.shape.dtype:
            return None
        flat = 0
        for i, size in zip(index, at.shape.dims, strict=True):
            flat = flat * size + i
        found = []
        for size in reversed(operand.dims):
            flat, rest = divmod(flat, size)
            found.append(rest)
        return 0, tuple(reversed(found))
    if opcode == "broadcast":
        if len(dimensions) != len(operand.dims):
            return None
        return 0, tuple(index[d] for d in dimensions)
    if opcode == "slice":
        cuts = proto.slice_dimensions
        if len(cuts) != len(index):
            return None
        return 0, tuple(cut.start + i * max(1, cut.stride) for cut, i in zip(cuts, index, strict=True))
    if opcode == "transpose":
        if sorted(dimensions) != list(range(len(index))):
            return None
        return 0, tuple(index[dimensions.index(d)] for d in range(len(index)))
    if opcode == "reverse":
        sizes = operand.dims
        return 0, tuple(sizes[d] - 1 - i if d in dimensions else i for d, i in enumerate(index))
    if opcode == "concatenate" and len(dimensions) == 1:
        (axis,) = dimensions
        at_axis = index[axis]
        for number, piece in enumerate(at.operands):
            size = piece.shape.dims[axis]
            if at_axis < size:
                return number, (*index[:axis], at_axis, *index[axis + 1 :])
            at_axis -= size
        return None
    if opcode == "pad":
        inside = []
        for i, size, cut in zip(index, operand.dims, proto.padding_config.dimensions, strict=False):
            where, rest = divmod(i - cut.edge_padding_low, cut.interior_padding + 1)
            if rest or not 0 <= where < size:
                return 1, ()
            inside.append(where)
        return (0, tuple(inside)) if len(inside) == len(index) else None
    return None
