"""XLA's cost analysis of a module, done again from the module alone, once as XLA does it and once with loops counted.

XLA's analysis visits every instruction once. An elementwise operation is one FLOP an element, or one transcendental;
a dot is two FLOPs a product; a reduction applies its function `inputs - results` times; a loop is one iteration of its
body and condition; a conditional is the largest of its branches, figure by figure; a custom call is nothing (some
backends even take one off). Bytes are those of operands and results, of a fusion those of its own border.
The same rules with trip counts give what XLA's figure would be for one execution of the program.

The rules are those of XLA's `HloCostAnalysis` (xla/service/hlo_cost_analysis.cc); backends that have rules of their
own (TPU, and GPU with its utilisations) are not what this describes. Nothing here shares code with the FLOP reader.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import gcd, prod
from typing import NamedTuple

from jaxcost.observation.hlo.module import Instruction, Module
from jaxcost.observation.hlo.shapes import Shape
from jaxcost.observation.hlo.trips import ZERO, Executions, Total

TRANSCENDENTAL = frozenset(
    """exponential log logistic power sqrt cbrt rsqrt tanh sine cosine tan erf exponential-minus-one log-plus-one
    atan2""".split()
)
ELEMENTWISE = frozenset(
    """abs add and bitcast-convert ceil clamp compare complex convert count-leading-zeros divide floor imag is-finite
    maximum minimum multiply negate not or popcnt real reduce-precision remainder round-nearest-afz round-nearest-even
    select shift-left shift-right-arithmetic shift-right-logical sign stochastic-convert subtract xor""".split()
)
_NO_BYTES = frozenset("parameter constant get-tuple-element bitcast domain after-all add-dependency".split())
_NO_ELEMENTS = ("token", "opaque")
_POINTER_BYTES = 8
_MOST_TAPS = 1 << 20  # of one spatial dimension; a larger one is damage


class Counts(NamedTuple):
    """What the analysis adds up. `bytes` is a multiple of one half where a triangular operand is read."""

    flops: int = 0
    transcendentals: int = 0
    bytes: float = 0
    terms: int = 0

    def plus(self, other: Counts) -> Counts:
        """The sum; `terms` counts additions."""
        return Counts(
            self.flops + other.flops, self.transcendentals + other.transcendentals, self.bytes + other.bytes,
            self.terms + other.terms + 1,
        )  # fmt: skip

    @classmethod
    def total(cls, found: Sequence[Counts]) -> Counts:
        """The sum of many."""
        return cls(
            sum([one.flops for one in found]), sum([one.transcendentals for one in found]),
            sum([one.bytes for one in found]), sum([one.terms for one in found]) + len(found),
        )  # fmt: skip

    def times(self, factor: int) -> Counts:
        """So many executions."""
        return Counts(self.flops * factor, self.transcendentals * factor, self.bytes * factor, self.terms)

    def moving(self, amount: float) -> Counts:
        """The same work with so many bytes at its own border."""
        return Counts(self.flops, self.transcendentals, amount, self.terms)

    def largest(self, other: Counts) -> Counts:
        """The larger of two branches, figure by figure."""
        return Counts(
            max(self.flops, other.flops), max(self.transcendentals, other.transcendentals),
            max(self.bytes, other.bytes), self.terms + other.terms,
        )  # fmt: skip


NOTHING = Counts()


@dataclass(frozen=True, slots=True)
class Recount:
    """The analysis of a module: `once` as XLA adds it up; `flops`, `transcendentals` and `bytes` with every loop
    counted: an interval where branches differ, unknown where a trip count is.

    `loops` counts the loops whose trips are not one. `calls` are the custom calls of which XLA sees nothing, by
    target; `unmodelled` names opcodes that these rules do not cover.
    """

    once: Counts
    flops: Total
    transcendentals: Total
    bytes: Total
    loops: int
    calls: Mapping[str, int]
    unmodelled: tuple[str, ...]


def _is_view(at: Instruction) -> bool:
    """Whether a transpose only renames the dimensions of what lies in memory: then it counts as no transfer."""
    before, after = at.operands[0].shape.dims, at.shape.dims
    moved = list(at.proto.dimensions)
    orders = [list(o.shape.layout.minor_to_major) for o in (at.operands[0].proto, at.proto)]
    if len(orders[0]) != len(before) or len(orders[1]) != len(after):
        return False
    kept = [d for d in orders[0] if before[d] != 1]
    return kept == [moved[d] for d in orders[1] if after[d] != 1]


def _elements(shape: Shape) -> int:
    if not shape.is_tuple:
        return 0 if shape.dtype in _NO_ELEMENTS else shape.size
    return sum(leaf.size for leaf in shape.leaves() if leaf.dtype not in _NO_ELEMENTS)


def _first(shape: Shape) -> Shape:
    return next(shape.leaves(), shape)


def _dot(at: Instruction) -> int:
    lhs, numbers = at.operands[0].shape.dims, at.proto.dot_dimension_numbers
    return 2 * at.shape.size * prod(int(lhs[d]) for d in numbers.lhs_contracting_dimensions)


def _places(shift: int, stride: int, base: int, inputs: int, outputs: int) -> int:
    """How many of the outputs put a tap on an input: `shift + o stride` is a multiple of `base` below `inputs base`."""
    if stride == 0:
        return outputs if shift % base == 0 and 0 <= shift < inputs * base else 0
    step = gcd(stride, base)
    if shift % step:
        return 0
    every = base // step
    first = -shift // step * pow(stride // step, -1, every) % every if every > 1 else 0
    low, high = max(0, -(shift // stride)), min(outputs - 1, (inputs * base - 1 - shift) // stride)
    return max(0, (high - first) // every - (low - first - 1) // every) if high >= low else 0


def _convolution(at: Instruction) -> int:
    numbers, window = at.proto.convolution_dimension_numbers, at.proto.window.dimensions
    lhs, rhs, out = at.operands[0].shape.dims, at.operands[1].shape.dims, at.shape.dims
    pairs = 1
    for i, step in enumerate(window):
        taps = rhs[numbers.kernel_spatial_dimensions[i]]
        inputs, outputs = lhs[numbers.input_spatial_dimensions[i]], out[numbers.output_spatial_dimensions[i]]
        if taps > _MOST_TAPS or min(step.stride, step.base_dilation, step.window_dilation) < 0:
            raise ValueError(f"a window of {taps} taps is not counted")
        base = max(1, step.base_dilation)
        pairs *= sum(
            _places(tap * max(1, step.window_dilation) - step.padding_low, step.stride, base, inputs, outputs)
            for tap in range(taps)
        )
    features = lhs[numbers.input_feature_dimension] // max(1, at.proto.feature_group_count)
    batch = lhs[numbers.input_batch_dimension] // max(1, at.proto.batch_group_count)
    return int(2 * features * out[numbers.output_feature_dimension] * batch * pairs)


def _fft(at: Instruction) -> int:
    factor = prod(int(length).bit_length() - 1 for length in at.proto.fft_length)
    return 2 * 4 * factor * _first(at.operands[0].shape).size


def _window(at: Instruction) -> int:
    return prod(int(step.size) for step in at.proto.window.dimensions)


def _applied(at: Instruction) -> int:
    """How often the function of a reduction, a scan over windows, a scatter or a map is applied."""
    if at.opcode == "reduce":
        return at.operands[0].shape.size - _first(at.shape).size
    if at.opcode == "reduce-window":
        steps = at.proto.window.dimensions
        wide = [i for i, step in enumerate(steps) if step.size != 1]
        padded = [i for i, step in enumerate(steps) if step.padding_low or step.padding_high]
        if len(wide) == 1 and len(padded) == 1 and not at.shape.is_tuple and wide == padded:
            i = wide[0]
            low, high, extent = steps[i].padding_low, steps[i].padding_high, at.shape.dims[i]
            # a window over everything at every place: one reduction and a broadcast
            if low == high and steps[i].size == 2 * low + 1 and low == extent - 1:
                return at.shape.size // extent + extent - 1
        return (_window(at) - 1) * _first(at.shape).size
    if at.opcode == "scatter":
        return at.operands[(len(at.operands) - 1) // 2 + 1].shape.size
    return at.shape.size  # map


def _operand_bytes(at: Instruction) -> int:
    return sum([operand.shape.bytes for operand in at.operands])


def _parameter_reads(value: Instruction) -> int:
    """Bytes of a fusion's operand that the fusion reads: slices by their size, everything else once."""
    total, whole = 0, False
    for user in value.users:
        if user.opcode == "fusion":
            given = [user.called[0].parameters[n] for n, operand in enumerate(user.operands) if operand is value]
            total += sum(_parameter_reads(inner) for inner in given)
        elif user.opcode == "slice" or (user.opcode == "dynamic-slice" and user.operands[0] is value):
            total += user.shape.bytes
        elif user.opcode in ("broadcast", "reshape"):
            total += value.shape.bytes
        elif not (user.opcode == "dynamic-update-slice" and user.operands[0] is value) and not whole:
            whole = True
            total += value.shape.bytes
    return total


def _fusion_bytes(at: Instruction) -> int:
    inside = at.called[0]
    root, total = inside.root, 0
    made = list(zip(root.operands, at.shape.elements, strict=False)) if root.opcode == "tuple" else [(root, at.shape)]
    for value, shape in made:
        updated = value.opcode == "dynamic-update-slice"
        total += value.operands[1].shape.bytes if updated else shape.bytes
    for inner in inside.instructions:
        if inner.opcode == "constant" and inner.shape.size > 8:
            total += inner.shape.bytes
    for parameter in inside.parameters.values():
        if parameter.shape.is_tuple:
            total += sum(_parameter_reads(user) for user in parameter.users if user.opcode == "get-tuple-element")
        else:
            total += _parameter_reads(parameter)
    return total


def _bytes(at: Instruction) -> float:
    """Bytes of one instruction; none inside a fusion, which has those of its border."""
    opcode, operands = at.opcode, at.operands
    if opcode in _NO_BYTES or at.computation.is_fusion:
        return 0
    if opcode == "fusion":
        return _fusion_bytes(at)
    if opcode == "slice":
        return 2 * at.shape.bytes
    if opcode == "dynamic-slice":
        return 2 * at.shape.bytes + operands[1].shape.bytes
    if opcode == "dynamic-update-slice":
        return 2 * operands[1].shape.bytes + operands[2].shape.bytes
    if opcode == "tuple":
        return _POINTER_BYTES * len(at.shape.elements)
    if opcode == "transpose" and _is_view(at):
        return 0
    if opcode == "gather":
        return 2 * at.shape.bytes + operands[1].shape.bytes
    if opcode == "scatter":
        count = (len(operands) - 1) // 2
        updates = sum(operand.shape.bytes for operand in operands[count + 1 :])
        return 3 * updates + operands[count].shape.bytes
    if opcode == "cholesky":
        return operands[0].shape.bytes
    if opcode == "triangular-solve":
        return at.shape.bytes + operands[0].shape.bytes / 2 + operands[1].shape.bytes
    if opcode == "infeed":
        return at.shape.bytes
    if opcode == "outfeed":
        return _operand_bytes(at)
    return at.shape.bytes + _operand_bytes(at)


_FLOPS: Mapping[str, Callable[[Instruction], int]] = {
    "dot": _dot, "convolution": _convolution, "fft": _fft,
    "triangular-solve": lambda at: 2 * at.operands[0].shape.dims[-1] * at.operands[1].shape.size,
    "cholesky": lambda at: at.operands[0].shape.dims[-1] * at.operands[0].shape.size // 3,
    "sort": lambda at: at.operands[0].shape.size * max(0, at.operands[0].shape.size - 1).bit_length(),
    "all-reduce": lambda at: _elements(at.shape), "all-reduce-start": lambda at: _elements(at.shape),
}  # fmt: skip
_UNMODELLED = frozenset(
    "ragged-dot scaled-dot scan topk batch-norm-grad batch-norm-inference batch-norm-training".split()
)
_FRAMES = frozenset(["while", "conditional", "call", "async-start"])
_APPLIES = frozenset(["reduce", "reduce-window", "scatter", "map"])


class _Analysis:
    """One pass, callees first. `done` is a computation with all that it runs; `own`, by the id of its root, what its
    instructions add by themselves, without the loops, branches and calls in it.
    """

    def __init__(self, module: Module) -> None:
        self.done: dict[int, Counts] = {}
        self.own: dict[int, Counts] = {}
        for computation in module.computations:
            own, inner = list[Counts](), list[Counts]()
            for at in computation.instructions:
                if at.opcode in _FRAMES:
                    inner.append(self._frame(at))
                else:
                    own.append(self._own(at))
            mine = Counts.total(own)
            if not computation.is_fusion:
                self.own[computation.root.id] = mine
            self.done[computation.id] = mine.plus(Counts.total(inner)) if inner else mine

    def _frame(self, at: Instruction) -> Counts:
        """What a loop runs once, a branch at most, a call."""
        if at.opcode == "while":
            body, condition = (self.done[inner.id] for inner in at.called)
            return body.plus(condition)
        if at.opcode == "conditional":
            most = self.done[at.called[0].id]
            for branch in at.called[1:]:
                most = most.largest(self.done[branch.id])
            return most
        return self.done[at.called[0].id] if at.called else NOTHING

    def _own(self, at: Instruction) -> Counts:
        opcode = at.opcode
        if opcode in ELEMENTWISE:
            return Counts(_elements(at.shape), 0, _bytes(at))
        if opcode in TRANSCENDENTAL or opcode in ("rng", "rng-bit-generator"):
            return Counts(0, _elements(at.shape), _bytes(at))
        if opcode in _FLOPS:
            return Counts(_FLOPS[opcode](at), 0, _bytes(at))
        if opcode in _APPLIES:
            inner = self.done[at.called[0].id] if at.called else NOTHING
            return inner.times(max(0, _applied(at))).moving(_bytes(at))
        if opcode == "select-and-scatter":
            source = at.operands[1].shape.size
            chosen = self.done[at.called[0].id].times(source * (_window(at) - 1))
            return chosen.plus(self.done[at.called[1].id].times(source)).moving(_bytes(at))
        if opcode == "fusion":
            return self.done[at.called[0].id].moving(_bytes(at))
        if opcode == "custom-call":
            return NOTHING
        moved = _bytes(at)
        return Counts(0, 0, moved) if moved else NOTHING


def _half(amount: int | None) -> int | None:
    return None if amount is None else amount // 2


def recount(module: Module, executions: Executions) -> Recount:
    """Analyse a module.

    Args:
        module: the compiled program.
        executions: how often its computations run.
    """
    analysis = _Analysis(module)
    # In halves, since sums over the program are of integers and half a triangular operand is read.
    totals = executions.totals({
        number: {"flops": own.flops, "transcendentals": own.transcendentals, "halves": round(2 * own.bytes)}
        for number, own in analysis.own.items()
    })  # fmt: skip
    halves = totals.get("halves", ZERO)
    calls: dict[str, int] = {}
    unmodelled: dict[str, None] = {}
    for at in module.walk():
        if at.opcode == "custom-call":
            target = at.proto.custom_call_target
            calls[target] = calls.get(target, 0) + 1
        elif at.opcode in _UNMODELLED:
            unmodelled[at.opcode] = None
    return Recount(
        once=analysis.done[module.entry.id],
        flops=totals.get("flops", ZERO), transcendentals=totals.get("transcendentals", ZERO),
        bytes=Total(_half(halves.minimum), _half(halves.maximum), halves.reason),
        loops=sum(1 for loop in executions.loops.values() if loop.trips != 1), calls=calls,
        unmodelled=tuple(unmodelled),
    )  # fmt: skip
