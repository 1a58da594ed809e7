"""Counts of everything that is no contraction, by kind of operation: they stand beside the FLOPs, never in them.

There is no common unit: an exponential is not an addition. Each operation counts once per element of its result and
execution, as the module writes it (a tanh that the compiler expanded is the polynomial it became); subtraction is
addition, minimum is maximum. A reduction over n values applies its function n - 1 times, a scatter its function once
per update. Operations on integers and on complex numbers carry that in their name (`integer_add`).

Of a sort the elements are counted; its comparisons depend on the algorithm, so n log2 n is an estimate apart. What a
library kernel does inside is in no count; the kernels are named.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod

from jaxcost.observation.hlo.amounts import Amount, Key, Sums
from jaxcost.observation.hlo.convolution import valid_pairs
from jaxcost.observation.hlo.kernels import ELEMENTWISE_TARGETS, work_of
from jaxcost.observation.hlo.module import Computation, Instruction
from jaxcost.observation.hlo.products import StrengthReduced
from jaxcost.observation.hlo.reading import Graph
from jaxcost.observation.hlo.schema import agreeing
from jaxcost.observation.hlo.shapes import Shape

# opcode -> kind, where it counts once per element of its result.
_ELEMENTWISE: dict[str, str] = {
    "exponential": "exp", "exponential-minus-one": "expm1", "log": "log", "log-plus-one": "log1p", "tanh": "tanh",
    "logistic": "logistic", "erf": "erf", "sine": "sin", "cosine": "cos", "tan": "tan", "atan2": "atan2",
    "acos": "acos", "asin": "asin", "acosh": "acosh", "asinh": "asinh", "atanh": "atanh", "cosh": "cosh",
    "sinh": "sinh", "power": "power", "rsqrt": "rsqrt", "sqrt": "sqrt", "cbrt": "cbrt",
    "add": "add", "subtract": "add", "multiply": "multiply", "divide": "divide", "remainder": "remainder",
    "maximum": "max", "minimum": "max", "negate": "negate", "abs": "abs", "sign": "sign", "clamp": "clamp",
    "floor": "round", "ceil": "round", "round-nearest-afz": "round", "round-nearest-even": "round",
    "reduce-precision": "round", "compare": "compare", "is-finite": "compare", "select": "select",
    "and": "logic", "or": "logic", "xor": "logic", "not": "logic", "shift-left": "logic",
    "shift-right-arithmetic": "logic", "shift-right-logical": "logic", "popcnt": "logic",
    "count-leading-zeros": "logic", "convert": "convert", "stochastic-convert": "convert", "rng": "rng",
    "gather": "gather", "batch-norm-training": "batch_norm", "batch-norm-inference": "batch_norm",
    "batch-norm-grad": "batch_norm",
}  # fmt: skip
_OF_OPERAND = frozenset(["compare", "is-finite"])  # the result is a truth value whatever was compared
_UNTYPED = frozenset(["convert", "rng", "gather", "batch_norm", "logic", "select"])
_WITH_FUNCTION = frozenset(["reduce", "reduce-window", "select-and-scatter", "scatter", "map", "sort"])
_RARER = _WITH_FUNCTION | {"rng-bit-generator", "topk", "custom-call"}
_ESTIMATES = frozenset(["sort_comparisons"])
_RANDOM = ("threefry2x32", "RngBitGenerator")

_Place = tuple[str, str]  # (scope, phase)
_Once = dict[tuple[str, _Place], int]


@dataclass(frozen=True, slots=True)
class Primitives:
    """Executed operations of one step on one device, by kind; by (kind, phase); by (kind, scope, phase).

    `estimates` are no counts and part of none: `sort_comparisons`. `hidden` names library calls whose own operations
    are not in the module.
    """

    totals: dict[str, Amount]
    by_phase: dict[tuple[str, str], Amount]
    by_place: dict[tuple[str, str, str], Amount]
    estimates: dict[str, Amount]
    hidden: tuple[str, ...]


def count_primitives(graph: Graph, products: Iterable[StrengthReduced] = ()) -> Primitives:
    """Count the primitive operations of a module, in one pass over its instructions.

    `products` are those executed as multiply and reduce (`Contractions.strength_reduced`): their instructions are FLOPs
    and no primitives.
    Raises RejectedError where parts of the module contradict each other.
    """
    with agreeing():
        return _Counter(graph, {number for p in products for number in (p.id, p.multiply)}).count()


def kind_of(name: str, dtype: str) -> str:
    """The name of a kind for operands of a type: integers and complex numbers carry theirs."""
    if name in _UNTYPED:
        return name
    if dtype in ("c64", "c128"):
        return f"complex_{name}"
    return f"integer_{name}" if dtype[0] in "sup" else name


class _Counter:
    def __init__(self, graph: Graph, products: set[int]) -> None:
        self.products = products
        self.graph, self.places = graph, graph.places
        self.done: dict[int, _Once] = {}  # a computation with the fusions it holds
        self.functions: dict[int, dict[str, int]] = {}
        self.hidden: dict[str, None] = {}

    def count(self) -> Primitives:
        executions, module = self.graph.executions, self.graph.module
        reached = executions.reached
        own: dict[int, dict[Key, int]] = {}
        for computation in module.computations:
            if computation.is_fusion or computation.id not in reached:
                continue
            keys: dict[Key, int] = {}
            for (name, (scope, phase)), amount in self.inside(computation).items():
                made: tuple[Key, ...] = (("total", name), ("phase", name, phase), ("place", name, scope, phase))
                if name in _ESTIMATES:
                    made = (("estimate", name),)
                for key in made:
                    keys[key] = keys.get(key, 0) + amount
            own[computation.root.id] = keys
        sums = Sums(module, executions, own)
        return Primitives(
            {key[1]: sums[key] for key in sums.named("total")},
            {(key[1], key[2]): sums[key] for key in sums.named("phase")},
            {(key[1], key[2], key[3]): sums[key] for key in sums.named("place")},
            {key[1]: sums[key] for key in sums.named("estimate")},
            tuple(self.hidden),
        )

    def inside(self, computation: Computation) -> _Once:
        """One execution of a computation, fusions included; loops, calls and branches are left to the sums."""
        found = self.done.get(computation.id)
        if found is not None:
            return found
        once: _Once = {}
        for at in computation.instructions:
            if at.opcode == "fusion":
                for key, amount in self.inside(at.called[0]).items():
                    once[key] = once.get(key, 0) + amount
                continue
            if at.id in self.products:
                continue
            name = _ELEMENTWISE.get(at.opcode)
            if name is not None:
                shape = at.shape if not at.shape.is_tuple else next(at.shape.leaves(), at.shape)
                of = at.operands[0].shape if at.opcode in _OF_OPERAND and at.operands else shape
                found_here: Iterable[tuple[str, int]] = ((kind_of(name, of.dtype), shape.size),)
            elif at.opcode in _RARER:
                found_here = self.of(at)
            else:
                continue
            place: _Place | None = None
            for name, amount in found_here:
                if amount <= 0:
                    continue
                if place is None:
                    where = self.places.of(at)
                    place = where.scope, where.phase
                once[name, place] = once.get((name, place), 0) + amount
        self.done[computation.id] = once
        return once

    def of(self, at: Instruction) -> Iterator[tuple[str, int]]:
        """(kind, count) of one execution of an instruction that is neither elementwise nor a fusion."""
        opcode = at.opcode
        if opcode in _WITH_FUNCTION:
            yield from self._with_function(at)
        elif opcode == "rng-bit-generator":
            yield "rng", next((leaf.size for leaf in reversed(list(at.shape.leaves()))), 0)
        elif opcode == "topk":
            yield "topk", _searched(at)
        elif opcode == "custom-call":
            yield from self._call(at)

    def _with_function(self, at: Instruction) -> Iterator[tuple[str, int]]:
        opcode, made = at.opcode, next(at.shape.leaves(), None)
        if made is None or not at.operands:
            return
        first = at.operands[0].shape
        if opcode == "sort":
            dimension = at.proto.dimensions[0] if at.proto.dimensions else 0
            length = first.dims[dimension] if dimension < len(first.dims) else 1
            yield "sort", first.size
            yield "sort_comparisons", first.size * max(0, length - 1).bit_length()
        elif opcode == "scatter":
            updates = at.operands[-1].shape.size
            yield "scatter", updates
            yield from self._applied(at, 0, updates)
        elif opcode == "map":
            yield from self._applied(at, 0, made.size)
        elif opcode == "reduce":
            yield from self._applied(at, 0, first.size - made.size)
        elif opcode == "reduce-window":
            pairs = _window_pairs(at, first, made)
            if pairs is None:
                self.hidden[f"{at.name} (a window too large to walk)"] = None
            else:
                yield from self._applied(at, 0, pairs - made.size)
        elif (
            len(at.operands) > 1
        ):  # select-and-scatter: one choice in each window of the operand, one addition per element of the source
            source = at.operands[1].shape
            pairs = _window_pairs(at, first, source)
            if pairs is None:
                self.hidden[f"{at.name} (a window too large to walk)"] = None
            else:
                yield from self._applied(at, 0, pairs - source.size)
            yield from self._applied(at, 1, source.size)

    def _applied(self, at: Instruction, which: int, times: int) -> Iterator[tuple[str, int]]:
        if times <= 0 or which >= len(at.called):
            return
        for name, amount in self._function(at.called[which]).items():
            yield name, amount * times

    def _function(self, computation: Computation) -> dict[str, int]:
        """One application of a scalar function."""
        found = self.functions.get(computation.id)
        if found is None:
            found = self.functions[computation.id] = {}
            for (name, _), amount in self.inside(computation).items():
                found[name] = found.get(name, 0) + amount
        return found

    def _call(self, at: Instruction) -> Iterator[tuple[str, int]]:
        target: str = at.proto.custom_call_target
        if target not in ELEMENTWISE_TARGETS:
            if _hides(at, target):
                self.hidden[target] = None
            return
        if any(part in target for part in _RANDOM):
            yield "rng", sum(leaf.size for leaf in at.shape.leaves())
        elif "TopK" in target or "topk" in target or target == "PartialReduce":
            yield "topk", _searched(at)
        elif "Sort" in target:
            yield "sort", _searched(at)
        elif "softmax" in target or "norm" in target:
            self.hidden[target] = None


def _searched(at: Instruction) -> int:
    return at.operands[0].shape.size if at.operands else 0


def _hides(at: Instruction, target: str) -> bool:
    """Whether a library call does elementwise work of its own: all but products, factorisations and calls of the
    host.
    """
    work = work_of(at)
    if work is None or work.kind in ("host", "linear_algebra", "contraction"):
        return False
    if target.startswith("__cudnn$conv"):
        return "BiasActivation" in target
    if target.startswith("__cublas"):
        config = at.backend_config().get("gemm_backend_config")
        return isinstance(config, dict) and config.get("epilogue", "DEFAULT") != "DEFAULT"
    return True


def _window_pairs(at: Instruction, size: Shape, out: Shape) -> int | None:
    """Pairs of an output and an input element in its window, padding left out; None when it is too large to walk."""
    windows = at.proto.window.dimensions
    if not len(windows) == len(size.dims) == len(out.dims):
        return None
    factors: list[int] = []
    for window, inputs, outputs in zip(windows, size.dims, out.dims, strict=True):
        pairs = valid_pairs(
            window.size, inputs, outputs, stride=window.stride or 1, low=window.padding_low,
            window_dilation=window.window_dilation or 1, base_dilation=window.base_dilation or 1,
        )  # fmt: skip
        if pairs is None:
            return None
        factors.append(pairs)
    return prod(factors)
