"""The declared step: tensors and ops with named axes, in execution order.

A contraction is one line, for example `b s d, d h e -> b s h e`. Everything said about it elsewhere (forward FLOPs,
the products of its backward pass, what they must have, one-pass traffic, shapes on a device) follows from that line
and from which operands need a gradient. Ops of a group of identical layers appear once, with `repeat` copies.

Saved activations, replay and dead replay are walks over `needs` (what an op's backward pass must have) and the
dataflow.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

from jaxcost.contracts.case import Case
from jaxcost.prediction.domain import exact_div
from jaxcost.prediction.sizes import Sizes, sizes_of

LEARNED = ("parameter", "view")


@dataclass(frozen=True, slots=True)
class Tensor:
    """One named array. Two names with one `storage` are one array (a tied head).

    Attributes:
        name: unique in the program; parameters are `scope/weight`, `scope/bias` or `scope/scale`.
        axes: space-separated axis names, in stored order.
        dtype: element type.
        role: `parameter`, `view` (the part of a fused parameter that one projection multiplies; stored and owned as its
            `storage`), `input` (an argument that is no parameter), `cache`, `activation`, `mask`, `statistic`, `onchip`
            (never leaves the kernel that makes it) or `output`.
        scope: the component it belongs to.
        group: index of its group of layers, None outside.
        repeat: how many layers have one.
        storage: name of the parameter that holds its scalars.
        trainable: for parameters, whether it receives a gradient.
    """

    name: str
    axes: str
    dtype: str
    role: str
    scope: str
    group: int | None = None
    repeat: Any = 1
    storage: str = ""
    trainable: bool = False


class Count(NamedTuple):
    """`coefficient` primitives of one kind for every point of `axes` (empty: one point)."""

    kind: str
    coefficient: int
    axes: str


@dataclass(frozen=True, slots=True)
class Op:
    """One step of the forward pass.

    Attributes:
        name: the last part of its scope, or a kind.
        scope: component scope, as in `group0/attn/q_proj`.
        inputs, outputs: tensor names.
        gradients: the inputs that need a gradient.
        needs: tensors its backward pass must have.
        region: `block` inside a layer, `outside` elsewhere, `boundary` where a layer's input enters.
        segment: the run of layers it stands in, empty outside; checkpoints do not cross it.
        first, repeat: it runs in the layers `first` to `first + repeat - 1` of its group.
    """

    name: str
    scope: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    gradients: tuple[str, ...]
    needs: tuple[str, ...]
    region: str
    segment: str
    group: int | None
    first: int
    repeat: Any


@dataclass(frozen=True, slots=True)
class Contraction(Op):
    """A product of two tensors summed over the axes that the output lacks."""

    spec: str
    out_dtype: str

    @property
    def operand_axes(self) -> tuple[str, str, str]:
        """Axes of the left operand, the right operand and the output."""
        return _parsed(self.spec)[0]

    @property
    def axes(self) -> str:
        """All distinct axes: the points at which one multiply-add happens."""
        return _parsed(self.spec)[1]

    @property
    def summed_axes(self) -> tuple[str, ...]:
        """Axes that the output lacks."""
        return tuple(axis for axis in self.axes.split() if axis not in self.operand_axes[2].split())

    @property
    def batch_axes(self) -> tuple[str, ...]:
        """Axes in both operands and in the output; a product with a weight has none."""
        left, right, out = (set(part.split()) for part in self.operand_axes)
        return tuple(sorted(left & right & out))

    def gradient_spec(self, operand: str) -> str:
        """Return the product that makes the gradient of an operand: the output's gradient stands in its place."""
        left, right, out = self.operand_axes
        return f"{out}, {right} -> {left}" if operand == self.inputs[0] else f"{left}, {out} -> {right}"


@lru_cache(maxsize=256)
def matrix_axes(spec: str) -> dict[str, str]:
    """Return the axes of a product read as `batch` times an m x k by k x n matrix product; k is summed over."""
    left, right, out = (part.split() for part in _parsed(spec)[0])
    return {
        "batch": " ".join(axis for axis in left if axis in right and axis in out),
        "m": " ".join(axis for axis in left if axis not in right),
        "n": " ".join(axis for axis in right if axis not in left),
        "k": " ".join(axis for axis in left if axis in right and axis not in out),
    }


@lru_cache(maxsize=256)
def _parsed(spec: str) -> tuple[tuple[str, str, str], str]:
    left, rest = spec.split(",")
    right, out = rest.split("->")
    return (left.strip(), right.strip(), out.strip()), " ".join(dict.fromkeys(left.split() + right.split()))


@dataclass(frozen=True, slots=True)
class Lookup(Op):
    """Rows gathered from a table: no FLOPs; its backward pass is a scatter-add into the table."""


@dataclass(frozen=True, slots=True)
class Primitive(Op):
    """Non-matmul work with typed counts, forward and backward; a bias gradient is a reduction."""

    kind: str
    forward: tuple[Count, ...]
    backward: tuple[Count, ...]


@dataclass(frozen=True, eq=False)
class Program:
    """One step of a case. Immutable; folds read it."""

    case: Case
    sizes: Sizes
    tensors: dict[str, Tensor]
    ops: tuple[Op, ...]
    results: tuple[str, ...] = field(default=())

    @cached_property
    def contractions(self) -> tuple[Contraction, ...]:
        """The contractions, in execution order."""
        return tuple(op for op in self.ops if isinstance(op, Contraction))

    @cached_property
    def producers(self) -> dict[str, Op]:
        """Tensor name to the op that makes it."""
        return {name: op for op in self.ops for name in op.outputs}

    @cached_property
    def parameters(self) -> tuple[Tensor, ...]:
        """Named parameter occurrences in declaration order; a tied head appears beside its table."""
        return tuple(tensor for tensor in self.tensors.values() if tensor.role == "parameter")

    @cached_property
    def unique_parameters(self) -> tuple[Tensor, ...]:
        """Parameters with one entry per storage."""
        return tuple(tensor for tensor in self.parameters if tensor.storage == tensor.name)

    def is_weight(self, name: str) -> bool:
        """Return whether a tensor is learned: a parameter, or a part of a fused one."""
        return self.tensors[name].role in LEARNED

    def is_pairwise(self, op: Contraction) -> bool:
        """Return whether no operand is a weight (QK and PV)."""
        return not any(self.is_weight(name) for name in op.inputs)

    def elements(self, tensor: Tensor, sizes: Sizes | None = None) -> Any:
        """Return the elements of one copy of a tensor."""
        return (sizes or self.sizes).product(tensor.axes, tensor.group)

    @cached_property
    def microbatch_sizes(self) -> Sizes:
        """Sizes of one microbatch."""
        return self.sizes.microbatch(self.case.workload.accumulate)

    def local(self, sizes: Sizes, microbatches: int = 1) -> Sizes:
        """Return what the worst device computes with of global `sizes` that hold so many microbatches."""
        run = self.case.execution
        shards = run.degree("data") * run.degree("fsdp")
        return sizes.local(shards, run.degree("tensor"), microbatches, run.degree("context"))

    @cached_property
    def device_sizes(self) -> Sizes:
        """Sizes of what the worst device computes with, over all microbatches."""
        return self.local(self.sizes, self.case.workload.accumulate)

    @cached_property
    def device_microbatch_sizes(self) -> Sizes:
        """Sizes of one microbatch on the worst device."""
        return self.local(self.microbatch_sizes)

    def device_elements(self, tensor: Tensor, sizes: Sizes | None = None) -> Any:
        """Return the elements of one copy on the worst device, of `sizes` (default: one microbatch there).

        Under sequence parallelism the stream between the tensor-parallel regions, [b, s, d], is split by rows over
        `tensor`, and so are the dropout masks on it (Korthikanti et al. 2022, arXiv:2205.05198, table 2).
        """
        count = self.elements(tensor, sizes or self.device_microbatch_sizes)
        run = self.case.execution
        if run.sequence_parallel and tensor.axes == "b s d" and tensor.role in ("activation", "mask"):
            return exact_div(count, run.degree("tensor"))
        return count

    @cached_property
    def on_device(self) -> Program:
        """The same program with the worst device's sizes."""
        return replace(self, sizes=self.device_sizes)


def program(case: Case, sizes: Sizes | None = None) -> Program:
    """Return the program of a case.

    Args:
        case: the declared step.
        sizes: extents to use instead of the case's integers, for example sympy symbols.
    """
    from jaxcost.prediction.builder import build

    return build(case, sizes or sizes_of(case))
