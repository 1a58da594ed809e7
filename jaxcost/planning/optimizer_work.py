"""Work of an optimizer that multiplies matrices: Muon's Newton-Schulz steps, who owns which matrix, and launches.

Elementwise optimizers cost the same for every scalar, so equal shards are equal work. Newton-Schulz does not. For
X of m x n with m <= n, one iteration of the quintic multiplies three times:

    gram    A = X X^T        2 m^2 n
    square  A A              2 m^3       (in b A + c A A)
    apply   (..) X           2 m^2 n

The usual estimate 4 K m^2 n counts two of the three. A square matrix costs more than a flat one of as many scalars, and
a matrix must be whole where it is multiplied; so ranks own whole matrices, and a static partition by estimated cost
balances what one by size does not.

References: Jordan et al. 2024, Muon (the iteration); Graham 1969, Bounds on multiprocessing timing anomalies (longest
first: at most 4/3 - 1/(3 ranks) of the best).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

from jaxcost.contracts.case import Case
from jaxcost.contracts.dtypes import payload_bytes
from jaxcost.contracts.errors import reject
from jaxcost.planning.quantities import Number, count, not_negative, positive
from jaxcost.planning.work import work
from jaxcost.prediction.program import Contraction, Program, matrix_axes, program

Split = Literal["stored", "projection", "head"]
SPLITS: tuple[Split, ...] = ("stored", "projection", "head")
# Products of one iteration, over axes m (the shorter side, also p and q) and n.
PRODUCTS: Mapping[str, str] = {
    "gram": "m n, p n -> m p",
    "square": "m p, p q -> m q",
    "apply": "m p, p n -> m n",
}
USUAL = ("gram", "apply")  # what the estimate 4 K m^2 n counts
ITERATIONS = 5
MOST_MATRICES = 2_000_000
MOST_RANKS = 100_000
MOST_ITERATIONS = 100
# Axes along which a projection holds one matrix a head.
HEADS = ("h", "k")


@dataclass(frozen=True)
class Matrix:
    """Equal matrices that are orthogonalised one by one: `copies` of `rows` x `columns`."""

    name: str
    rows: int
    columns: int
    copies: int

    @property
    def elements(self) -> int:
        """Scalars of one copy."""
        return self.rows * self.columns


def iteration_flops(rows: int, columns: int, products: Sequence[str] = tuple(PRODUCTS)) -> dict[str, int]:
    """Return the FLOPs of the named products of one iteration on a matrix.

    Args:
        rows, columns: extents, in either order.
        products: names of `PRODUCTS` that are counted.

    Raises:
        RejectedError: an extent is no whole number above zero, or a name is no product.
    """
    short, long = sorted((count(rows, "rows"), count(columns, "columns")))
    extents = {"m": short, "p": short, "q": short, "n": long}
    unknown = [name for name in products if name not in PRODUCTS]
    if unknown or not products:
        raise reject(
            "products", ", ".join(unknown), "not a product of the iteration", f"use some of {', '.join(PRODUCTS)}"
        )
    return {
        name: work(PRODUCTS[name], {axis: extents[axis] for axis in set(PRODUCTS[name]) & set(extents)}).flops
        for name in products
    }


def orthogonalisation_flops(
    rows: int, columns: int, iterations: int = ITERATIONS, products: Sequence[str] = tuple(PRODUCTS)
) -> int:
    """Return the FLOPs of all iterations on one matrix; norms, scaling and the momentum update are not products."""
    return _iterations(iterations) * sum(iteration_flops(rows, columns, products).values())


def _iterations(value: object) -> int:
    found = count(value, "--iterations")
    if found > MOST_ITERATIONS:
        raise reject("--iterations", found, f"more than {MOST_ITERATIONS}", "the iteration is done after about 5")
    return found


def matrices(case: Case, split: Split = "projection") -> tuple[tuple[Matrix, ...], tuple[str, ...]]:
    """Return the matrices of the layers that such an optimizer updates, and the parameters it leaves to another.

    Args:
        case: any case of the model.
        split: `stored` (one matrix for each stored array, fused projections together), `projection` (each product's own
            part) or `head` (q, k, v and o by head).

    Raises:
        RejectedError: the split is not known.
    """
    if split not in SPLITS:
        raise reject("--split", split, "not a way to split", f"use one of {', '.join(SPLITS)}")
    built = program(case)
    found: dict[str, Matrix] = {}
    covered = set()
    for op in built.contractions:
        weight = op.inputs[1]
        if op.group is None or not built.is_weight(weight):
            continue
        tensor = built.tensors[weight]
        covered.add(tensor.storage)
        name, part = _matrix(built, op, split)
        if split == "stored" and tensor.storage in found:
            old = found[tensor.storage]
            part = Matrix(name, old.rows, old.columns + part.columns, old.copies)
        found[tensor.storage if split == "stored" else weight] = part
    others = tuple(tensor.name for tensor in built.unique_parameters if tensor.name not in covered)
    return tuple(found.values()), others


def _matrix(built: Program, op: Contraction, split: Split) -> tuple[str, Matrix]:
    """Return the matrix of a projection: contracted axes by output axes, or one of each head."""
    axes = matrix_axes(op.spec)
    rows, columns = axes["k"].split(), axes["n"].split()
    tensor = built.tensors[op.inputs[1]]
    name = tensor.storage if split == "stored" else op.inputs[1]
    copies = int(op.repeat)
    if split == "head":
        heads = [axis for axis in (*rows, *columns) if axis in HEADS]
        copies *= int(built.sizes.product(" ".join(heads), op.group)) if heads else 1
        rows, columns = ([axis for axis in side if axis not in HEADS] for side in (rows, columns))
    sides = [int(built.sizes.product(" ".join(side), op.group)) for side in (rows, columns)]
    return name, Matrix(name, sides[0], sides[1], copies)


@dataclass(frozen=True)
class Ownership:
    """Whole matrices on ranks.

    `flops` and `elements` are by rank. `balance` is the largest share of work over the mean: 1 is even.
    """

    rule: str
    flops: tuple[int, ...]
    elements: tuple[int, ...]

    @property
    def critical_rank(self) -> int:
        """The rank with the most work."""
        return max(range(len(self.flops)), key=lambda rank: self.flops[rank])

    @property
    def critical_flops(self) -> int:
        """Its work, which everyone waits for."""
        return max(self.flops)

    @property
    def balance(self) -> Fraction:
        """Largest over mean."""
        return Fraction(max(self.flops) * len(self.flops), sum(self.flops))

    def to_data(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "rule": self.rule, "flops": list(self.flops), "elements": list(self.elements),
            "critical_rank": self.critical_rank, "critical_flops": self.critical_flops, "balance": float(self.balance),
        }  # fmt: skip


def own(
    found: Iterable[Matrix], ranks: int, cost: Callable[[Matrix], int], by: Literal["cost", "size"] = "cost"
) -> Ownership:
    """Return a static partition of whole matrices: the heaviest first, each to the rank with the least so far.

    Args:
        found: matrices with their copies.
        ranks: data-parallel ranks that own them.
        cost: FLOPs of one copy.
        by: what is balanced: estimated cost, or scalars as a size-based sharding does.

    Raises:
        RejectedError: there are too many ranks or matrices to place, or none.
    """
    number, kinds = _placeable(found, ranks)
    flops, elements = [0] * number, [0] * number
    heap = [(0, rank) for rank in range(number)]

    def weight(item: Matrix) -> int:
        return cost(item) if by == "cost" else item.elements

    for item in sorted(kinds, key=lambda kind: (-weight(kind), kind.name)):
        for _ in range(item.copies):
            load, rank = heapq.heappop(heap)
            flops[rank] += cost(item)
            elements[rank] += item.elements
            heapq.heappush(heap, (load + weight(item), rank))
    rule = "longest first by estimated cost" if by == "cost" else "longest first by scalars"
    return Ownership(rule, tuple(flops), tuple(elements))


def own_by_offset(found: Iterable[Matrix], ranks: int, cost: Callable[[Matrix], int]) -> Ownership:
    """Return who multiplies what where the scalars lie in one flat buffer cut into equal parts, layer after layer.

    A matrix that a cut goes through is multiplied by the rank that holds its first scalar.

    Raises:
        RejectedError: there are too many ranks or matrices to place, or none.
    """
    number, kinds = _placeable(found, ranks)
    part = -(-sum(item.elements * item.copies for item in kinds) // number)
    flops, elements, offset = [0] * number, [0] * number, 0
    for layer in range(max(item.copies for item in kinds)):
        for item in kinds:
            if layer < item.copies:
                rank = offset // part
                flops[rank] += cost(item)
                elements[rank] += item.elements
                offset += item.elements
    return Ownership("equal parts of a flat buffer", tuple(flops), tuple(elements))


def _placeable(found: Iterable[Matrix], ranks: int) -> tuple[int, tuple[Matrix, ...]]:
    number = count(ranks, "--ranks")
    if number > MOST_RANKS:
        raise reject("--ranks", number, f"more than {MOST_RANKS:,}", "use the data-parallel degree")
    kinds = tuple(found)
    copies = sum(item.copies for item in kinds)
    if not 0 < copies <= MOST_MATRICES:
        raise reject("matrices", copies, f"must be from 1 to {MOST_MATRICES:,}", "choose a coarser split")
    return number, kinds


def least_critical_flops(found: Iterable[Matrix], ranks: int, cost: Callable[[Matrix], int]) -> int:
    """Return a bound no partition of whole matrices can beat: the mean, or the heaviest matrix.

    The mean is rounded up to a multiple of the largest number that divides the cost of every matrix.
    """
    kinds = tuple(found)
    total = sum(cost(item) * item.copies for item in kinds)
    unit = math.gcd(*(cost(item) for item in kinds))
    return max(-(-total // (unit * count(ranks, "--ranks"))) * unit, max(cost(item) for item in kinds))


def launches(found: Iterable[Matrix], iterations: int = ITERATIONS, elementwise: int = 3) -> dict[str, int]:
    """Return the kernel launches of the updates: one by one, and with equal matrices batched into one call.

    `elementwise` kernels of an iteration go with its products; a first one scales by the norm. A captured graph is
    dispatched once and still runs its kernels.
    """
    each = 1 + _iterations(iterations) * (len(PRODUCTS) + elementwise)
    kinds = tuple(found)
    shapes = {tuple(sorted((item.rows, item.columns))) for item in kinds}
    return {
        "kernels_per_matrix": each,
        "one_by_one": each * sum(item.copies for item in kinds),
        "batched_by_shape": each * len(shapes),
        "graph_dispatches": 1,
    }


@dataclass(frozen=True)
class OptimizerPlan:
    """All of it for one model; see `to_data`."""

    data: Mapping[str, Any]

    def to_data(self) -> dict[str, Any]:
        """Return the JSON form."""
        return dict(self.data)


def plan_optimizer(
    case: Case,
    ranks: int,
    *,
    split: Split = "projection",
    iterations: int = ITERATIONS,
    tensor: int = 1,
    rate_flops_per_s: Number | None = None,
    launch_seconds: Number | None = None,
) -> OptimizerPlan:
    """Return matrices, work by product, both partitions, launches and the bytes that make matrices whole.

    Args:
        case: a training case of the model.
        ranks: data-parallel ranks that share the matrices.
        tensor: ranks over which each matrix lies in pieces; its owner gathers it and returns the update.
        rate_flops_per_s: achieved rate of one rank, for times; None leaves times unknown.
        launch_seconds: dispatch time of one kernel, for times; None leaves them unknown.

    Raises:
        RejectedError: a number is out of range.
    """
    found, others = matrices(case, split)
    pieces = count(tensor, "--tensor")
    dtype = case.state.compute_dtype

    def cost(item: Matrix) -> int:
        return orthogonalisation_flops(item.rows, item.columns, iterations)

    by_cost, by_size, flat = own(found, ranks, cost), own(found, ranks, cost, "size"), own_by_offset(found, ranks, cost)
    counted = launches(found, iterations)
    total = sum(cost(item) * item.copies for item in found)
    rows = [
        {
            "name": item.name, "rows": item.rows, "columns": item.columns, "copies": item.copies,
            "elements": item.elements, "flops": cost(item), "all_flops": cost(item) * item.copies,
        }
        for item in found
    ]  # fmt: skip
    by_product = {
        name: sum(orthogonalisation_flops(i.rows, i.columns, iterations, (name,)) * i.copies for i in found)
        for name in PRODUCTS
    }
    bytes_each = sum(payload_bytes(item.elements * item.copies, dtype) for item in found)
    gathered = bytes_each - bytes_each // pieces if pieces > 1 else 0
    owners = {"by_cost": by_cost, "by_size": by_size, "by_offset": flat}
    times = _times(owners, counted, ranks, rate_flops_per_s, launch_seconds)
    data = {
        "split": split, "iterations": iterations, "ranks": ranks, "tensor": pieces, "matrices": rows,
        "matrix_count": sum(item.copies for item in found), "elements": sum(i.elements * i.copies for i in found),
        "others": list(others), "flops": total, "by_product": by_product,
        "usual_estimate_flops": sum(by_product[name] for name in USUAL), "usual_estimate_counts": list(USUAL),
        "by_cost": by_cost.to_data(), "by_size": by_size.to_data(),
        "by_offset": flat.to_data(),
        "least_critical_flops": least_critical_flops(found, ranks, cost), "launches": counted,
        "exchange": {
            "dtype": dtype, "gathered_bytes": gathered, "returned_bytes": gathered,
            "buffer_bytes": max(payload_bytes(item.elements, dtype) for item in found) if pieces > 1 else 0,
            "convention": "each matrix lies in equal pieces on the tensor ranks; the owner receives the others' pieces "
                          "and returns their parts of the update",
        },
        "times": times,
        "omitted": "momentum, norms, scaling, weight decay; the update of the other parameters; optimizer state bytes",
    }  # fmt: skip
    return OptimizerPlan(data)


def _times(
    owners: Mapping[str, Ownership], counted: Mapping[str, int], ranks: int, rate: Number | None, launch: Number | None
) -> dict[str, Any]:
    """Return seconds of the critical rank's products, and of dispatching an even share of the kernels."""
    found: dict[str, Any] = {**{f"products_{name}": None for name in owners}, "dispatch": None, "bound": None}
    reasons = []
    if rate is not None:
        speed = positive(rate, "--rate")
        found |= {f"products_{name}": float(owner.critical_flops / speed) for name, owner in owners.items()}
    else:
        reasons.append("no achieved rate was given")
    if launch is not None:
        share = Fraction(counted["one_by_one"], count(ranks, "--ranks"))
        found["dispatch"] = float(share * not_negative(launch, "--launch"))
    else:
        reasons.append("no launch time was given")
    if rate is not None and launch is not None:
        found["bound"] = "launches" if found["dispatch"] > found["products_by_cost"] else "products"
    if reasons:
        found["reason"] = "; ".join(reasons)
    return found
