"""The walk that finds what crosses devices: forward, replay and backward, weights, gradients, stages.

`collectives` says why each transfer is there and makes rows of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from jaxcost.contracts.dtypes import BITS
from jaxcost.prediction.domain import ceil_div
from jaxcost.prediction.groups import fsdp_groups
from jaxcost.prediction.program import Contraction, Lookup, Op, Primitive, Program, Tensor
from jaxcost.prediction.replay import walk
from jaxcost.prediction.stages import Rank, ranks, route, share

SPLIT_BY = {"b": ("data", "fsdp"), "s": ("context",), "h": ("tensor",), "f": ("tensor",), "v": ("tensor",)}
NORMS = ("rms_norm", "layer_norm")


class Transfer(NamedTuple):
    """One collective before it is a row. `elements` of the payload; `layers` x `microbatches` executions."""

    kind: str
    axes: tuple[str, ...]
    object: str
    scope: str
    phase: str
    dtype: str
    elements: Any
    layers: Any
    microbatches: Any
    made_by: str
    needed_by: str
    terms: tuple[str, ...] = ()


def kv_replicas(program: Program) -> int:
    """Return the ranks of the tensor axis that hold one K/V head; 1 where the sizes are symbols."""
    return max(program.case.kv_replicas(index) for index in range(len(program.sizes.repeats)))


def participants(program: Program, axes: Iterable[str]) -> int:
    """Return how many devices take part in a collective over some mesh axes.

    Where K/V heads are fewer than tensor ranks, `tensor_replica` are the ranks that share a head and `tensor_heads` one
    rank of each head.
    """
    run, copies = program.case.execution, kv_replicas(program)
    parts = {"tensor_replica": copies, "tensor_heads": run.degree("tensor") // copies}
    count = 1
    for axis in axes:
        count *= parts.get(axis) or run.degree(axis)
    return count


def transfers(program: Program, rank: Rank) -> list[Transfer]:
    """Return the transfers of the devices of a pipeline rank, forward pass first; none over groups of one device."""
    fold = _Fold(program, rank)
    return [found for found in fold.all() if found.layers != 0 and participants(program, found.axes) > 1]


class _Fold:
    """The walk over one program, for one pipeline rank."""

    def __init__(self, program: Program, rank: Rank):
        run, work = program.case.execution, program.case.workload
        self.program, self.rank = program, rank
        self.training = work.phase == "training"
        # One checkpoint around everything: a whole second forward pass, which drops its weights before the backward.
        self.whole = self.training and run.remat == "everything"
        self.useful = {id(op) for op in walk(program).useful} if self.training else set()
        self.sizes = program.device_microbatch_sizes
        # Where ranks share K/V heads, k separates the heads and g, the query heads of one, the ranks that share it.
        heads = {"k": ("tensor_heads",), "g": ("tensor_replica",)} if kv_replicas(program) > 1 else {"k": ("tensor",)}
        self.split_by = {**SPLIT_BY, **heads}
        self.micro: int = work.accumulate
        self.synced: int = 1 if run.gradient_sync == "last_microbatch" else work.accumulate

    # -- what splits an axis ------------------------------------------------------------------------------------------

    def present(self, *axes: str) -> tuple[str, ...]:
        """Return the mesh axes among `axes` that have more than one device, in mesh order.

        The whole tensor axis stands for its two parts.
        """
        wanted = set(axes)
        if "tensor" in wanted:
            wanted -= {"tensor_heads", "tensor_replica"}
        order = []
        for name in self.program.case.execution.mesh_sizes:
            order += ["tensor", "tensor_heads", "tensor_replica"] if name == "tensor" else [name]
        return tuple(name for name in order if name in wanted and participants(self.program, [name]) > 1)

    def splits(self, letters: Iterable[str]) -> tuple[str, ...]:
        """Return the mesh axes that split any of some tensor axes, while a device computes with them."""
        found: set[str] = set()
        for letter in letters:
            found.update(self.split_by.get(letter, ()))
        return self.present(*found)

    def count(self, axes: str, group: int | None) -> Any:
        """Return the elements of an array with these axes, as a device computes with it."""
        return self.sizes.product(axes, group)

    def layers(self, op: Op) -> Any:
        """Return how many layers of an op stand on the rank."""
        if len(ranks(self.program)) == 1:
            return op.repeat
        return share(self.program, self.rank.stages, op.scope, op.group, op.first, op.repeat)

    @property
    def sequence(self) -> bool:
        """Whether the stream between tensor-parallel regions is split by rows over `tensor`."""
        return self.program.case.execution.sequence_parallel and self.present("tensor") != ()

    def is_stream(self, tensor: Tensor) -> bool:
        """Return whether sequence parallelism splits a tensor's rows."""
        return self.sequence and tensor.axes == "b s d" and tensor.role == "activation"

    def rows_split(self, tensor: Tensor) -> int:
        """Return over how many tensor ranks sequence parallelism splits the rows of a tensor."""
        return self.program.case.execution.degree("tensor") if self.is_stream(tensor) else 1

    # -- the walk -----------------------------------------------------------------------------------------------------

    def all(self) -> Iterator[Transfer]:
        """Yield every transfer: forward, replay and backward, gradients, pipeline, optimizer."""
        yield from self._weights("forward")
        for op in self.program.ops:
            yield from self._forward(op, "forward")
        if self.training:
            yield from self._weights("backward")
            if self.whole:
                yield from self._weights("replay")
            for op in self.program.ops:
                if id(op) in self.useful or (self.whole and self._makes_loss(op)):
                    yield from self._forward(op, "replay")
            for op in reversed(self.program.ops):
                yield from self._backward(op)
        yield from self._pipeline()

    def _makes_loss(self, op: Op) -> bool:
        return isinstance(op, Primitive) and op.kind == "cross_entropy"

    def _forward(self, op: Op, phase: str) -> Iterator[Transfer]:
        if isinstance(op, Contraction):
            yield from self._row_inputs(op, phase)
            yield from self._rows_of_context(op, phase)
            over = self.splits(op.summed_axes)
            if over:
                yield self._reduced(over, op.outputs[0], op, phase, op.out_dtype, op.scope)
        elif isinstance(op, Lookup):
            yield from self._lookup(op, phase)
        elif isinstance(op, Primitive) and self._makes_loss(op):
            yield from self._loss(op, phase)
        elif isinstance(op, Primitive) and op.kind in NORMS:
            yield from self._statistics(op, phase)
        elif isinstance(op, Primitive) and op.kind == "select_rows":
            yield from self._last_rows(op, phase)

    def _reduced(
        self, over: tuple[str, ...], name: str, op: Op, phase: str, dtype: str, scope: str, terms: tuple[str, ...] = ()
    ) -> Transfer:
        """A partial sum of `name`, reduced; where its rows are split next, a device keeps only its own."""
        tensor = self.program.tensors[name]
        scattered = self.is_stream(tensor) and over == self.present("tensor")
        kind = "reduce-scatter" if scattered else "all-reduce"
        needed = name if phase != "backward" else f"d {name}"
        elements = self.count(tensor.axes, op.group)
        made = ", ".join(terms) or op.scope
        return Transfer(
            kind, over, needed, scope, phase, dtype, elements, self.layers(op), self.micro, made, tensor.scope, terms
        )

    def _row_inputs(self, op: Contraction, phase: str) -> Iterator[Transfer]:
        """Rows gathered for a column-parallel product, once for all products of one input."""
        for name in op.inputs:
            tensor = self.program.tensors[name]
            if self.is_stream(tensor) and self._first_use(name) is op:
                elements = self.count(tensor.axes, op.group)
                yield Transfer(
                    "all-gather", self.present("tensor"), name, tensor.scope, phase, tensor.dtype, elements,
                    self.layers(op), self.micro, tensor.scope, op.scope,
                )  # fmt: skip

    def _first_use(self, name: str) -> Op | None:
        return next((op for op in self.program.contractions if name in op.inputs), None)

    def _rows_of_context(self, op: Contraction, phase: str) -> Iterator[Transfer]:
        """Key and value rows of other ranks: gathered whole, or handed around a ring."""
        over = self.present("context")
        if not over or not self.program.is_pairwise(op):
            return
        name = op.inputs[1]
        tensor, size = self.program.tensors[name], participants(self.program, over)
        elements = self.sizes.product("b t k e", op.group)
        common = (over, name, op.scope, phase, self.program.case.state.compute_dtype)
        ends = (self.micro, tensor.scope, op.scope)
        if self.program.case.execution.context_method == "ring" and tensor.role != "cache":
            yield Transfer("collective-permute", *common, ceil_div(elements, size), self.layers(op) * (size - 1), *ends)
        else:
            yield Transfer("all-gather", *common, elements, self.layers(op), *ends)

    # -- weights ------------------------------------------------------------------------------------------------------

    def _gathered(self, op: Op) -> str:
        """Return the name of the matrix of an op that is gathered before use, or nothing."""
        for name in op.inputs:
            tensor = self.program.tensors[name]
            if self.program.is_weight(name) and isinstance(op, Contraction) and "d" in tensor.axes.split():
                return name
        return ""

    def _weights(self, phase: str) -> Iterator[Transfer]:
        """Weights gathered for a pass: each matrix where it is used, or group by group."""
        run, over = self.program.case.execution, self._weight_axes()
        if not over:
            return
        again = phase == "backward"
        if again and not run.fsdp.reshard:
            return
        if run.fsdp.group != "matrix" or run.zero == 3:
            for group in fsdp_groups(self.program, self.rank):
                dtype = self.program.case.state.compute_dtype
                elements = group.gathered_bytes * 8 // BITS[dtype]
                if elements:
                    yield Transfer(
                        "all-gather", over, group.name, group.name if group.name.startswith("group") else "", phase,
                        dtype, elements, group.copies, self.micro, "parameters", phase,
                    )  # fmt: skip
            return
        for op in self.program.ops:
            name = self._gathered(op)
            if not name:
                continue
            # What stands outside the layers is used for its backward pass at once, and kept until then.
            if again and op.region != "block":
                continue
            replayed = id(op) in self.useful
            if again and not (replayed and not self.whole) and not self._multiplied_again(op, name):
                continue
            if phase == "replay" and not (replayed or op.region != "block"):
                continue
            elements = self.count(self.program.tensors[name].axes, op.group)
            yield Transfer(
                "all-gather", over, name, op.scope, phase, self.program.case.state.compute_dtype, elements,
                self.layers(op), self.micro, "parameters", op.scope,
            )  # fmt: skip

    def _multiplied_again(self, op: Op, weight: str) -> bool:
        """Return whether the backward pass multiplies by a weight: some other operand needs a gradient."""
        return any(name != weight for name in op.gradients)

    def _weight_axes(self) -> tuple[str, ...]:
        if self.program.case.execution.zero == 3:
            return self.present("data", "fsdp")
        return self.present("fsdp")

    # -- backward -----------------------------------------------------------------------------------------------------

    def _backward(self, op: Op) -> Iterator[Transfer]:
        if isinstance(op, Contraction):
            yield from self._gradient_rows(op)
            for name in op.gradients:
                if self.program.is_weight(name):
                    summed = [axis for axis in op.axes.split() if axis not in self.program.tensors[name].axes.split()]
                    yield from self._weight_gradient(op, name, op.out_dtype, self.splits(summed))
            yield from self._input_gradients(op)
        elif isinstance(op, Lookup):
            yield from self._scatter(op)
        elif isinstance(op, Primitive):
            if op.gradients and op.kind in NORMS:
                yield from self._statistics(op, "backward")
            yield from self._vectors(op)

    def _gradient_rows(self, op: Contraction) -> Iterator[Transfer]:
        """Under sequence parallelism: rows of the gradient of a row-parallel output, and of an input not kept whole."""
        if not op.gradients:
            return
        out = self.program.tensors[op.outputs[0]]
        common = (self.layers(op), self.micro)
        if self.is_stream(out):
            elements = self.count(out.axes, op.group)
            yield Transfer(
                "all-gather", self.present("tensor"), f"d {out.name}", op.scope, "backward", out.dtype, elements,
                *common, out.scope, op.scope,
            )  # fmt: skip
        for name in op.inputs:
            tensor = self.program.tensors[name]
            replayed = any(id(other) in self.useful for other in self.program.ops if name in other.inputs)
            # Outside the layers the backward pass follows at once, and the gathered rows are still there.
            kept = replayed or op.region != "block"
            if self.is_stream(tensor) and self._first_use(name) is op and not kept:
                yield Transfer(
                    "all-gather", self.present("tensor"), name, tensor.scope, "backward", tensor.dtype,
                    self.count(tensor.axes, op.group), *common, tensor.scope, op.scope,
                )  # fmt: skip

    def _input_gradients(self, op: Contraction) -> Iterator[Transfer]:
        """The gradient of an activation, after the last of the products that make parts of it."""
        for name in op.gradients:
            if self.program.is_weight(name):
                continue
            makers = [other for other in self.program.contractions if name in other.gradients]
            if makers[0] is not op:
                continue
            sums: dict[tuple[str, ...], list[str]] = {}
            for other in makers:
                own = other.operand_axes[other.inputs.index(name)].split()
                split = self.splits(axis for axis in other.axes.split() if axis not in own)
                if split:
                    sums.setdefault(split, []).append(other.scope)
            for over, terms in sums.items():
                yield from self._partial_input(op, name, over, tuple(terms))

    def _partial_input(
        self, op: Contraction, name: str, over: tuple[str, ...], terms: tuple[str, ...]
    ) -> Iterator[Transfer]:
        if not over:
            return
        if not self.program.is_pairwise(op):
            scope = terms[0] if len(terms) == 1 else terms[0].rsplit("/", 1)[0]
            yield self._reduced(over, name, op, "backward", op.out_dtype, scope, terms)
            return
        # Each query head of a shared K/V head makes a part; then rows go back to the ranks that own them.
        tensor = self.program.tensors[name]
        elements = self.sizes.product("b t k e", op.group)
        common = (f"d {name}", op.scope, "backward", tensor.dtype)
        ends = (self.micro, op.scope, tensor.scope)
        shared = tuple(axis for axis in over if axis != "context")
        if shared:
            yield Transfer("all-reduce", shared, *common, elements, self.layers(op), *ends)
        if "context" not in over:
            return
        size = self.program.case.execution.degree("context")
        if self.program.case.execution.context_method == "ring":
            piece, layers = ceil_div(elements, size), self.layers(op)
            again = (name, op.scope, "backward", tensor.dtype)
            # Gradients travel with the rows, and once more to get home.
            for what, turns in ((again, size - 1), (common, size - 1), (common, 1)):
                yield Transfer("collective-permute", ("context",), *what, piece, layers * turns, *ends)
        else:
            yield Transfer("reduce-scatter", ("context",), *common, elements, self.layers(op), *ends)

    def _weight_gradient(self, op: Op, name: str, dtype: str, over: tuple[str, ...]) -> Iterator[Transfer]:
        """The gradient of a matrix: scattered over `fsdp` where it is sharded, then summed over the other axes.

        A ZeRO stage scatters it over `data` instead of summing it, and gathers what was updated (Rajbhandari et al.
        2020, arXiv:1910.02054, section 7).
        """
        tensor, run = self.program.tensors[name], self.program.case.execution
        elements = self.count(tensor.axes, op.group)
        if self.synced < self.micro:
            gradient = self.program.case.state.object("gradient")
            dtype = gradient.dtype if gradient else dtype
        common = (f"d {name}", op.scope, "backward", dtype)
        ends = (self.layers(op), self.synced, op.scope, "optimizer")
        if "fsdp" in over and "d" in tensor.axes.split():
            yield Transfer("reduce-scatter", ("fsdp",), *common, elements, *ends)
            elements = ceil_div(elements, run.degree("fsdp"))
            over = tuple(axis for axis in over if axis != "fsdp")
        if not (tensor.name == self.tied_head and over == self.present("data", "context")):
            yield from self._summed(over, tensor, common, elements, ends)

    @cached_property
    def tied_head(self) -> str:
        """The name of a head whose gradient is added to that of the table it shares, before both are summed."""
        for tensor in self.program.parameters:
            table = self.program.tensors[tensor.storage]
            if tensor.name != tensor.storage and table.trainable and not self.present("pipeline"):
                return tensor.name
        return ""

    def _summed(
        self,
        over: tuple[str, ...],
        tensor: Tensor,
        common: tuple[str, ...],
        elements: Any,
        ends: Sequence[Any],
        terms: tuple[str, ...] = (),
    ) -> Iterator[Transfer]:
        """The rest of a gradient's sum, and what a ZeRO stage does in its place."""
        run = self.program.case.execution
        name, scope, phase, dtype = common
        layers, times, made, needed = ends
        if run.zero and "data" in over:
            yield Transfer(
                "reduce-scatter", ("data",), name, scope, phase, dtype, elements, layers, times, made, needed
            )
            if run.zero < 3:
                yield Transfer(
                    "all-gather", ("data",), tensor.name, tensor.scope, "optimizer", tensor.dtype, elements, layers, 1,
                    "optimizer", "parameters",
                )  # fmt: skip
            elements = ceil_div(elements, run.degree("data"))
            over = tuple(axis for axis in over if axis != "data")
        if over:
            yield Transfer("all-reduce", over, name, scope, phase, dtype, elements, layers, times, made, needed, terms)

    def _statistics(self, op: Primitive, phase: str) -> Iterator[Transfer]:
        """Row statistics of a norm over a width that is split: the mean square, and the mean of a layer norm.

        In backward as many means of the gradient (times the normalised input) are taken over the same width.
        """
        learned = [name for name in op.inputs[1:] if self.program.is_weight(name)]
        width = self.program.tensors[learned[0]].axes.split() if learned else []
        over = self.splits(axis for axis in width if axis in "hkfv")
        if over and width:
            rows = " ".join(axis for axis in self.program.tensors[op.inputs[0]].axes.split() if axis not in width)
            for name in ("mean square", "mean")[: 1 if op.kind == "rms_norm" else 2]:
                yield Transfer(
                    "all-reduce", over, name, op.scope, phase, "fp32", self.count(rows, op.group), self.layers(op),
                    self.micro, op.scope, op.scope,
                )  # fmt: skip

    def _vectors(self, op: Primitive) -> Iterator[Transfer]:
        """Gradients of norm scales and biases: summed over rows and sequences; whole on every device afterwards."""
        for name in op.gradients:
            if not self.program.is_weight(name):
                continue
            tensor, stream = self.program.tensors[name], self.program.tensors[op.inputs[0]]
            own = tensor.axes.split()
            over = set(self.splits(axis for axis in stream.axes.split() if axis not in own))
            if self.is_stream(self.program.tensors[op.outputs[0]]):
                over.add("tensor")
            dtype = "fp32" if op.kind in NORMS else stream.dtype
            elements = self.count(tensor.axes, op.group)
            common = (f"d {name}", op.scope, "backward", dtype)
            ends = (self.layers(op), self.synced, op.scope, "optimizer")
            yield from self._summed(self.present(*over), tensor, common, elements, ends)
            split = self.splits(axis for axis in own if axis in "hkfv")
            if split:
                yield self._vector_gather(op, tensor, split)

    def _vector_gather(self, op: Primitive, tensor: Tensor, over: tuple[str, ...]) -> Transfer:
        """The pieces of a vector's gradient that each rank made, put together; of a loop's layers all at once."""
        gradient = self.program.case.state.object("gradient")
        dtype = gradient.dtype if gradient else tensor.dtype
        elements = self.program.elements(tensor)
        layers = self.layers(op)
        if self.program.case.execution.layers == "scan" and op.group is not None:
            elements, layers = elements * layers, 1
        return Transfer(
            "all-gather", over, f"d {tensor.name}", op.scope, "backward", dtype, elements, layers, self.micro, op.scope,
            "optimizer",
        )  # fmt: skip

    # -- the ends of the model ----------------------------------------------------------------------------------------

    def _lookup(self, op: Lookup, phase: str) -> Iterator[Transfer]:
        """Tokens travel, the table does not: ids are gathered over `fsdp`, rows come back by an exchange.

        A table split by vocabulary rows over `tensor` gives zeros for ids of other ranks, and the sum is the row.
        """
        table, out = self.program.tensors[op.inputs[0]], self.program.tensors[op.outputs[0]]
        fsdp, tensor = self.present("fsdp"), self.present("tensor")
        common = (self.layers(op), self.micro, op.scope, out.scope)
        degree = self.program.case.execution.degree("fsdp")
        if table.axes.startswith("p"):
            if fsdp:
                elements = self.count(out.axes, None)
                dtype = self.program.case.state.compute_dtype
                yield Transfer("all-gather", fsdp, table.name, op.scope, phase, dtype, elements, *common)
            return
        columns = table.axes.split()[1]
        rows = self.count(out.axes, None)
        if fsdp:
            ids = self.count("b s", None) * degree
            yield Transfer("all-gather", fsdp, op.inputs[1], op.scope, phase, "int32", ids, *common)
        if tensor:
            found = rows if columns == "d" else rows * degree
            kind = "reduce-scatter" if self.is_stream(out) else "all-reduce"
            yield Transfer(kind, tensor, out.name, op.scope, phase, table.dtype, found, *common)
        if fsdp and columns == "d":
            own = ceil_div(rows, self.rows_split(out))
            yield Transfer("all-to-all", fsdp, out.name, op.scope, phase, out.dtype, own, *common)

    def _scatter(self, op: Lookup) -> Iterator[Transfer]:
        """The gradient of looked-up rows goes back to the columns of the table that a device holds."""
        if not op.gradients:
            return
        table, out = self.program.tensors[op.inputs[0]], self.program.tensors[op.outputs[0]]
        fsdp, degree = self.present("fsdp"), self.program.case.execution.degree("fsdp")
        common = (self.layers(op), self.micro, out.scope, op.scope)
        if table.axes.startswith("p"):
            yield from self._positions(op, table, out)
            return
        columns, rows = table.axes.split()[1], self.count(out.axes, None)
        if fsdp and columns == "d":
            own = ceil_div(rows, self.rows_split(out))
            yield Transfer("all-to-all", fsdp, f"d {out.name}", op.scope, "backward", out.dtype, own, *common)
        elif fsdp:
            elements = rows * degree
            yield Transfer("all-gather", fsdp, f"d {out.name}", op.scope, "backward", out.dtype, elements, *common)
        if self.is_stream(out):
            tensor = self.present("tensor")
            yield Transfer("all-gather", tensor, f"d {out.name}", op.scope, "backward", out.dtype, rows, *common)
        elements = self.count(table.axes, None)
        if columns == "d":
            elements = ceil_div(elements, degree)
        names = (f"d {table.name}", op.scope, "backward", table.dtype)
        # A tied head makes the other part of this gradient, with the same shards unless its columns have none.
        joined = self.tied_head and (columns == "d" or not fsdp)
        terms = (self.program.tensors[self.tied_head].scope, op.scope) if joined else ()
        ends = (self.layers(op), self.synced, ", ".join(terms) or op.scope, "optimizer")
        yield from self._summed(self.present("data", "context"), table, names, elements, ends, terms)

    def _positions(self, op: Lookup, table: Tensor, out: Tensor) -> Iterator[Transfer]:
        elements = self.count(out.axes, None)
        common = (f"d {table.name}", op.scope, "backward", out.dtype)
        ends = (self.layers(op), self.synced, op.scope, "optimizer")
        if self.present("fsdp"):
            yield Transfer("reduce-scatter", ("fsdp",), *common, elements, *ends)
            elements = ceil_div(elements, self.program.case.execution.degree("fsdp"))
        yield from self._summed(self.present("data"), table, common, elements, ends)

    def _last_rows(self, op: Primitive, phase: str) -> Iterator[Transfer]:
        """The rows that get logits lie on the last ranks; the others add zeros to them, and all have them."""
        over = self.present("context", *(["tensor"] if self.sequence else []))
        if over:
            tensor = self.program.tensors[op.outputs[0]]
            elements = self.count(tensor.axes, None)
            yield Transfer(
                "all-reduce", over, tensor.name, op.scope, phase, tensor.dtype, elements, self.layers(op), self.micro,
                "the last rank", op.scope,
            )  # fmt: skip

    def _loss(self, op: Primitive, phase: str) -> Iterator[Transfer]:
        """Cross entropy over a split vocabulary: the row's maximum, its sum of exponentials, the label's logit.

        The label of a rank's last row is the first of the next rank; the mean is one number over all that split rows.
        """
        tensor, rows = self.present("tensor"), self.count("b s", None)
        common = (self.layers(op), self.micro, "head", op.scope)
        if tensor:
            # A replay needs the statistics of its backward pass, not the loss.
            for name in ("row maximum", "row sum", "label's logit")[: 2 if phase == "replay" else 3]:
                yield Transfer("all-reduce", tensor, name, op.scope, phase, "fp32", rows, *common)
        if phase == "replay":
            return
        if self.present("context"):
            column = self.count("b", None)
            yield Transfer(
                "collective-permute", self.present("context"), "tokens", op.scope, phase, "int32", column, *common
            )
        mean = self.present("data", "fsdp", "context")
        if mean:
            yield Transfer("all-reduce", mean, op.outputs[0], op.scope, phase, "fp32", 1, *common)

    def _pipeline(self) -> Iterator[Transfer]:
        """Activations handed to the next stage and gradients handed back; a tied table's gradient summed over both.

        Stages are scheduled in training only.
        """
        over = self.present("pipeline")
        if not over:
            return
        program = self.program
        stream = program.tensors["group0/in"]
        elements = program.device_elements(stream, self.sizes)
        path = route(program.case)
        forward, backward = path[:-1].count(self.rank.number), path[1:].count(self.rank.number)
        for phase, times, name in (("forward", forward, stream.name), ("backward", backward, f"d {stream.name}")):
            if times:
                yield Transfer(
                    "collective-permute", over, name, "", phase, stream.dtype, elements, times, self.micro,
                    "this stage", "the stage before" if phase == "backward" else "the stage that follows",
                )  # fmt: skip
        apart = len([rank for rank in ranks(program) if rank.embedding or rank.head]) == 2
        if program.case.architecture.tied and apart and (self.rank.embedding or self.rank.head):
            table = next(t for t in program.tensors.values() if t.name == "embed/tokens/weight")
            if table.trainable:
                gradient = program.case.state.object("gradient")
                held = self.count(table.axes, None)
                held = ceil_div(held, program.case.execution.degree("fsdp")) if "d" in table.axes.split() else held
                yield Transfer(
                    "all-reduce", over, f"d {table.name}", "embed/tokens", "backward",
                    gradient.dtype if gradient else table.dtype, held, 1, 1, "first and last stage", "optimizer",
                )  # fmt: skip
