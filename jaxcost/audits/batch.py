"""Which values of a step grow with its batch, told by where the batch goes and not by sizes.

The batch enters with the data, as the first dimension of an argument. From there it is traced through the instructions:
each knows which dimension of its operands becomes which of its result, and one that is summed over (the gradient of a
weight, a loss) ends there. Where shapes must agree the trace runs back as well: a mask that is added to an activation,
the zeros a stack of them starts from. A place is a dimension and the stride within it, as a reshape puts the batch into
one dimension with others. What an instruction does that is not known here is undecided, and so is what follows from it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from math import prod
from typing import NamedTuple

from jaxcost.observation.hlo.dots import shared_dimensions
from jaxcost.observation.hlo.module import Instruction, Module
from jaxcost.observation.hlo.shapes import Shape

_ALIKE = frozenset(
    """abs add and atan2 cbrt ceil clamp compare complex convert copy cosine divide erf exponential
    exponential-minus-one floor imag is-finite log log-plus-one logistic maximum minimum multiply negate not
    opt-barrier or popcnt power real reduce-precision remainder round-nearest-afz round-nearest-even rsqrt select
    shift-left shift-right-arithmetic shift-right-logical sign sine sqrt stochastic-convert subtract tan tanh xor
    all-reduce all-reduce-done collective-permute collective-broadcast reverse domain copy-done
    optimization-barrier cholesky triangular-solve""".split()
)
_SIZED = frozenset(
    """slice dynamic-slice pad concatenate dynamic-update-slice all-gather reduce-scatter all-to-all reduce-window
    select-and-scatter sort bitcast-convert fft topk""".split()
)
_NO_DATA = frozenset({"rng-bit-generator", "rng", "rng-get-and-update-state", "get-dimension-size"})
_FRAMES = frozenset({"fusion", "call", "async-start", "map"})
_MOST = 2_000_000  # steps of one trace


class Place(NamedTuple):
    """Where the batch lies in an array: a dimension, and how many elements of it lie between two examples."""

    dimension: int
    stride: int


Node = tuple[int, tuple[int, ...]]


class Batch:
    """The values of one module that hold the batch of `size` examples of the given parameters of the entry."""

    def __init__(self, module: Module, size: int, data: Sequence[Instruction]) -> None:
        self.module, self.size = module, size
        self.places: dict[Node, frozenset[Place]] = {}
        self._doubt: set[Node] = set()
        self._queue: deque[Instruction] = deque()
        self._queued: set[int] = set()
        for at in data:
            self._put(at, (), Place(0, 1))
        steps = 0
        while self._queue and steps < _MOST:
            at = self._queue.popleft()
            self._queued.discard(at.id)
            self._apply(at)
            steps += 1
        self.whole = not self._queue
        self._follow_doubt()

    def times(self, at: Instruction, index: tuple[int, ...] = ()) -> int:
        """In how many dimensions a value holds the batch: 0 where it does not grow with it."""
        return len({place.dimension for place in self.places.get((at.id, index), ())})

    def undecided(self, at: Instruction, index: tuple[int, ...] = ()) -> bool:
        """Whether it cannot be told if a value grows with the batch."""
        node = (at.id, index)
        return node not in self.places and (node in self._doubt or not self.whole)

    # Marks ----------------------------------------------------------------------------------------------------------

    def _of(self, at: Instruction, index: tuple[int, ...] = ()) -> frozenset[Place]:
        return self.places.get((at.id, index), frozenset())

    def _put(self, at: Instruction, index: tuple[int, ...], place: Place) -> None:
        shape = at.shape.at(index)
        known = self.places.get((at.id, index), frozenset())
        if shape is None or shape.is_tuple or place in known or len(known) >= 4:
            return
        if place.dimension >= len(shape.dims) or shape.dims[place.dimension] < place.stride * self.size:
            return
        self.places[at.id, index] = known | {place}
        around = [at, *at.users, *at.operands]
        if at is at.computation.root or at.opcode == "parameter":
            around += at.computation.callers
        for near in around:
            if near.id not in self._queued:
                self._queued.add(near.id)
                self._queue.append(near)

    def _same(self, one: Instruction, index: tuple[int, ...], other: Instruction, there: tuple[int, ...]) -> None:
        """Two names of one shape."""
        for place in self._of(one, index):
            self._put(other, there, place)
        for place in self._of(other, there):
            self._put(one, index, place)

    def _doubtful(self, at: Instruction) -> None:
        if any(self._marked(o) for o in at.operands):
            for index in _leaves(at):
                self._doubt.add((at.id, index))

    def _marked(self, at: Instruction) -> bool:
        return any((at.id, index) in self.places for index in _leaves(at))

    def _follow_doubt(self) -> None:
        """What is computed from an undecided value is undecided, where it is not known to hold the batch."""
        queue = deque(self.module.instructions[identity] for identity, _ in self._doubt)
        seen: set[int] = set()
        while queue:
            at = queue.popleft()
            if at.id in seen:
                continue
            seen.add(at.id)
            ahead = list(at.users)
            for user in at.users:
                if user.opcode in (*_FRAMES, "while"):
                    numbers = [0] if user.opcode == "while" else [n for n, o in enumerate(user.operands) if o is at]
                    ahead += [c.parameters[n] for c in user.called for n in numbers if n in c.parameters]
            if at is at.computation.root:
                ahead += at.computation.callers
            for other in ahead:
                self._doubt.update((other.id, index) for index in _leaves(other))
                queue.append(other)

    # One instruction ------------------------------------------------------------------------------------------------

    def _apply(self, at: Instruction) -> None:
        opcode = at.opcode
        if opcode == "tuple":
            for i, operand in enumerate(at.operands):
                for index in _leaves(operand):
                    self._same(operand, index, at, (i, *index))
        elif opcode == "get-tuple-element":
            for index in _leaves(at):
                self._same(at, index, at.operands[0], (at.number, *index))
        elif opcode == "while":
            for index in _leaves(at):
                for inside in at.called:
                    self._same(at, index, inside.parameters[0], index)
                self._same(at, index, at.called[0].root, index)
                self._same(at, index, at.operands[0], index)
        elif opcode == "conditional":
            for number, branch in enumerate(at.called):
                for index in _leaves(at):
                    self._same(at, index, branch.root, index)
                if number + 1 < len(at.operands) and 0 in branch.parameters:
                    for index in _leaves(branch.parameters[0]):
                        self._same(at.operands[number + 1], index, branch.parameters[0], index)
        elif opcode in _FRAMES and at.called:
            inside = at.called[0]
            for number, parameter in inside.parameters.items():
                for index in _leaves(parameter) if number < len(at.operands) else ():
                    self._same(at.operands[number], index, parameter, index)
            for index in _leaves(inside.root):
                self._same(inside.root, index, at, (1, *index) if opcode == "async-start" else index)
        elif opcode in ("async-done", "async-update"):
            for index in _leaves(at):
                self._same(at, index, at.operands[0], index if opcode == "async-update" else (1, *index))
        elif opcode in ("copy-start", "all-reduce-start", "collective-permute-start", "all-gather-start"):
            for index in _leaves(at):
                self._same_sizes(at.operands[0], at, index)
        elif opcode in _ALIKE:
            self._alike(at)
        elif opcode in ("reshape", "bitcast"):
            self._moved(at.operands[0], at)
            self._moved(at, at.operands[0])
        elif opcode in ("transpose", "broadcast"):
            dimensions = list(at.proto.dimensions)
            pairs = [(d, n) if opcode == "transpose" else (n, d) for n, d in enumerate(dimensions)]
            self._mapped(at.operands[0], at, pairs)
        elif opcode in ("reduce", "reduce-scatter-start"):
            gone = set(at.proto.dimensions)
            for operand in at.operands[: len(at.operands) // 2]:
                kept = [d for d in range(len(operand.shape.dims)) if d not in gone]
                for index in _leaves(at):
                    self._mapped(operand, at, [(d, n) for n, d in enumerate(kept)], index)
        elif opcode in ("dot", "ragged-dot", "custom-call", "convolution"):
            self._contracted(at)
        elif opcode == "gather":
            self._gathered(at)
        elif opcode == "scatter":
            self._scattered(at)
        elif opcode in _SIZED:
            for operand in at.operands:
                for index in _leaves(at):
                    self._same_sizes(operand, at, index)
        elif at.operands and opcode not in _NO_DATA:
            if opcode.endswith("-done"):
                for index in _leaves(at.operands[0]):
                    self._same_sizes_at(at.operands[0], index, at, ())
            else:
                self._doubtful(at)

    def _alike(self, at: Instruction) -> None:
        for index in _leaves(at):
            for n, operand in enumerate(at.operands):
                if at.shape.is_tuple and n != (index[0] if index else 0):
                    continue
                there = index[1:] if at.shape.is_tuple and not operand.shape.is_tuple else index
                mine, theirs = at.shape.at(index), operand.shape.at(there)
                if mine is not None and theirs is not None and mine.dims == theirs.dims:
                    self._same(at, index, operand, there)

    def _same_sizes(self, operand: Instruction, at: Instruction, index: tuple[int, ...]) -> None:
        self._same_sizes_at(operand, (), at, index)

    def _same_sizes_at(
        self, operand: Instruction, there: tuple[int, ...], at: Instruction, index: tuple[int, ...]
    ) -> None:
        """Between two arrays of one rank, each dimension that both have whole; a slice of the batch is in doubt."""
        mine, theirs = at.shape.at(index), operand.shape.at(there)
        if mine is None or theirs is None or len(mine.dims) != len(theirs.dims):
            return
        for place in self._of(operand, there):
            d = place.dimension
            if mine.dims[d] == theirs.dims[d] or mine.dims[d] > theirs.dims[d] >= self.size:
                self._put(at, index, place)
            elif mine.dims[d] >= 2:
                self._doubt.add((at.id, index))
        for place in self._of(at, index):
            d = place.dimension
            if mine.dims[d] == theirs.dims[d]:
                self._put(operand, there, place)

    def _mapped(
        self, operand: Instruction, at: Instruction, pairs: Sequence[tuple[int, int]], index: tuple[int, ...] = ()
    ) -> None:
        """Dimension `a` of the operand is dimension `b` of the result, both ways."""
        forward, back = dict(pairs), {b: a for a, b in pairs}
        for place in self._of(operand):
            if place.dimension in forward:
                self._put(at, index, Place(forward[place.dimension], place.stride))
        for place in self._of(at, index):
            if place.dimension in back:
                self._put(operand, (), Place(back[place.dimension], place.stride))

    def _moved(self, one: Instruction, other: Instruction) -> None:
        """Through a reshape, or a bitcast: the elements lie in memory as they did."""
        logical = "reshape" in (one.opcode, other.opcode) and "bitcast" not in (one.opcode, other.opcode)
        before, after = _order(one, logical), _order(other, logical)
        for place in self._of(one):
            at = before.index(place.dimension) if place.dimension in before else -1
            if at < 0:
                continue
            stride = place.stride * prod(one.shape.dims[d] for d in before[:at])
            end, below, found = stride * self.size, 1, False
            for d in after:
                above = below * other.shape.dims[d]
                if below <= stride and end <= above and stride % below == 0:
                    if other.shape.dims[d] > 1 or self.size == 1:
                        self._put(other, (), Place(d, stride // below))
                    found = True
                    break
                below = above
            if not found:
                self._doubt.add((other.id, ()))

    def _contracted(self, at: Instruction) -> None:
        pairs = operand_dimensions(at)
        if pairs is None:
            self._doubtful(at)
            return
        index = (0,) if at.shape.is_tuple else ()
        for operand, mapped in zip(at.operands, pairs, strict=False):
            self._mapped(operand, at, mapped, index)

    def _gathered(self, at: Instruction) -> None:
        numbers, (operand, indices) = at.proto.gather_dimension_numbers, at.operands[:2]
        offset = set(numbers.offset_dims)
        rest = [d for d in range(len(at.shape.dims)) if d not in offset]
        of_indices = [d for d in range(len(indices.shape.dims)) if d != numbers.index_vector_dim]
        self._mapped(indices, at, list(zip(of_indices, rest, strict=False)))
        gone = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
        window = [d for d in range(len(operand.shape.dims)) if d not in gone]
        pairs = [
            (a, b) for a, b in zip(window, sorted(offset), strict=False) if operand.shape.dims[a] == at.shape.dims[b]
        ]
        self._mapped(operand, at, pairs)
        batching = zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=False)
        places = dict(zip(of_indices, rest, strict=False))
        self._mapped(operand, at, [(a, places[b]) for a, b in batching if b in places])

    def _scattered(self, at: Instruction) -> None:
        numbers = at.proto.scatter_dimension_numbers
        count = (len(at.operands) - 1) // 2
        indices = at.operands[count]
        gone = {*numbers.inserted_window_dims, *numbers.input_batching_dims}
        for n in range(count):
            operand, updates = at.operands[n], at.operands[count + 1 + n]
            index = (n,) if at.shape.is_tuple else ()
            self._same(operand, (), at, index)
            window = [d for d in range(len(operand.shape.dims)) if d not in gone]
            pairs = [
                (a, b)
                for a, b in zip(sorted(numbers.update_window_dims), window, strict=False)
                if updates.shape.dims[a] == operand.shape.dims[b]
            ]
            self._mapped(updates, at, pairs, index)
            held = set(numbers.update_window_dims)
            rest = [d for d in range(len(updates.shape.dims)) if d not in held]
            of_indices = [d for d in range(len(indices.shape.dims)) if d != numbers.index_vector_dim]
            self._mapped(indices, updates, list(zip(of_indices, rest, strict=False)))
            places = dict(zip(of_indices, rest, strict=False))
            batching = zip(numbers.input_batching_dims, numbers.scatter_indices_batching_dims, strict=False)
            self._mapped(updates, at, [(places[b], a) for a, b in batching if b in places], index)


def operand_dimensions(at: Instruction) -> list[list[tuple[int, int]]] | None:
    """For each operand of a product which of its dimensions becomes which of the result; None where that is unknown."""
    if at.opcode == "convolution" or at.proto.HasField("convolution_dimension_numbers"):
        if at.proto.batch_group_count > 1 or at.proto.feature_group_count > 1:
            return None
        numbers = at.proto.convolution_dimension_numbers
        return [
            [(numbers.input_batch_dimension, numbers.output_batch_dimension)],
            [(numbers.kernel_output_feature_dimension, numbers.output_feature_dimension)],
        ]
    shared = shared_dimensions(at)
    if shared is None or len(at.operands) < 2:
        return None
    lhs, rhs = (len(o.shape.dims) for o in at.operands[:2])
    lhs_free = [d for d in range(lhs) if d not in (*shared[0], *shared[2])]
    rhs_free = [d for d in range(rhs) if d not in (*shared[1], *shared[3])]
    first = [(d, n) for n, d in enumerate((*shared[2], *lhs_free))]
    start = len(shared[2])
    second = [(d, n) for n, d in enumerate(shared[3])]
    return [first, second + [(d, start + len(lhs_free) + n) for n, d in enumerate(rhs_free)]]


def _order(at: Instruction, logical: bool) -> list[int]:
    """The dimensions from minor to major: in memory, or of the shape."""
    order = [int(d) for d in at.proto.shape.layout.minor_to_major]
    rank = len(at.shape.dims)
    return order if not logical and len(order) == rank else list(range(rank))[::-1]


def _leaves(at: Instruction) -> Iterator[tuple[int, ...]]:
    """The places of the arrays in what an instruction makes."""
    if not at.shape.is_tuple:
        yield ()
        return
    stack: list[tuple[tuple[int, ...], Shape]] = [((i,), e) for i, e in enumerate(at.shape.elements)]
    while stack:
        index, shape = stack.pop()
        if shape.is_tuple:
            stack += [((*index, i), e) for i, e in enumerate(shape.elements)]
        else:
            yield index
