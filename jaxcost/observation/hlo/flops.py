"""The FLOPs of one step on one device, with everything that could not be counted beside them.

`total` holds contractions, convolutions, library kernels by shape or by their own declaration, and linear algebra by a
stated convention. A product with a vector stays a product where XLA makes it multiply and reduce: it is counted in a
class of its own, and what it multiplies and adds is no primitive (`primitives`). While anything is unknown (a loop
without a trip count, an opaque kernel) there is no total, and `minimum` is what is certainly executed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from jaxcost.observation.hlo.amounts import Amount, Key, Sums
from jaxcost.observation.hlo.convolution import diagonal_groups
from jaxcost.observation.hlo.kernels import Kind, Work, host_transfer, work_of
from jaxcost.observation.hlo.module import Computation, Instruction
from jaxcost.observation.hlo.opcodes import KNOWN_OPCODES
from jaxcost.observation.hlo.origins import source_of
from jaxcost.observation.hlo.products import Contraction, Opaque, StrengthReduced, placed
from jaxcost.observation.hlo.reading import Graph, HloReading
from jaxcost.observation.hlo.schema import agreeing
from jaxcost.observation.hlo.scope import primitive_of
from jaxcost.observation.hlo.trips import ZERO, Total, exact

CLASSES = ("contraction", "elementwise_product", "convolution", "linear_algebra", "kernel")
_SELECT, _COMPARE, _PADDED = frozenset(["select"]), frozenset(["compare"]), frozenset(["pad"])
_MASK, _JOINED = frozenset(["and", "broadcast"]), frozenset(["concatenate", "add"])
_ROW_OR_VECTOR = frozenset(["iota", "broadcast"])
_PRECISIONS = ("DEFAULT", "HIGH", "HIGHEST")
# Multiplications of narrower numbers that one product in single precision becomes, by PrecisionConfig.Algorithm.
_ALGORITHMS = {
    1: ("ANY_F8_ANY_F8_F32", 1), 2: ("ANY_F8_ANY_F8_F32_FAST_ACCUM", 1), 3: ("F16_F16_F16", 1), 4: ("F16_F16_F32", 1),
    5: ("BF16_BF16_BF16", 1), 6: ("BF16_BF16_F32", 1), 7: ("BF16_BF16_F32_X3", 3), 8: ("BF16_BF16_F32_X6", 6),
    9: ("TF32_TF32_F32", 1), 10: ("TF32_TF32_F32_X3", 3), 11: ("F32_F32_F32", 1), 12: ("F64_F64_F64", 1),
    13: ("BF16_BF16_F32_X9", 9),
}  # fmt: skip
_TPU_PASSES = {"DEFAULT": 1, "HIGH": 3, "HIGHEST": 6}


@dataclass(frozen=True, slots=True)
class FlopRow:
    """One counted instruction. `flops` is one execution, `total` one step on one device.

    `basis`: shape, convention or declared, with the convention named. `dtype`: operands' and result's (the width in
    which a product is accumulated is not in the module). `logical_flops`: without what the compiler padded, None where
    that cannot be told. `active_flops`: of a ragged product compiled densely, what its
    groups need. `passes`: multiplications of narrower numbers that `precision` makes of one product; stated, not
    counted.
    """

    id: int
    name: str
    opcode: str
    target: str
    kind: Kind
    basis: str
    convention: str
    op_name: str
    scope: str
    phase: str
    source: str
    operands: tuple[str, ...]
    result: str
    dtype: str
    flops: int
    executions: Total
    total: Total
    logical_flops: int | None = None
    active_flops: int | None = None
    precision: str = ""
    passes: int = 1
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Unknown:
    """What is executed and not counted. `voids`: whether the total is unknown for it.

    Work that the program hands to Python on the host is named and voids nothing: it is no FLOP of the compiled program.
    """

    kind: Kind
    name: str
    target: str
    op_name: str
    scope: str
    phase: str
    source: str
    operands: tuple[str, ...]
    result: str
    executions: Total
    reason: str
    voids: bool = True
    estimate: int | None = None
    convention: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class DenseGroups:
    """A ragged product that was compiled as a dense one over all groups, under a mask."""

    name: str
    scope: str
    groups: int
    flops: Total
    active: Total


@dataclass(frozen=True, slots=True)
class FlopCount:
    """All FLOPs of one step on one device. `active` is the total with masked groups left out; `elementwise_products`
    are the part of it that is executed as multiply and reduce.
    """

    amount: Amount
    by_phase: dict[str, Amount]
    by_scope: dict[str, Amount]
    by_place: dict[tuple[str, str], Amount]
    by_class: dict[str, Amount]
    by_dtype: dict[str, Amount]
    active: Amount
    elementwise_products: Amount
    rows: tuple[FlopRow, ...]
    unknowns: tuple[Unknown, ...]
    dense_groups: tuple[DenseGroups, ...]

    @property
    def total(self) -> int | None:
        """The exact number; None where something is unknown or a conditional leaves an interval."""
        return self.amount.value

    @property
    def minimum(self) -> int:
        """What is executed at least, whatever the unknowns add."""
        return self.amount.minimum

    @property
    def maximum(self) -> int | None:
        """What is executed at most; None where that is unknown."""
        return self.amount.maximum

    @property
    def reason(self) -> str:
        """Why there is no total; '' where there is one."""
        return self.amount.reason


def count_flops(reading: HloReading, graph: Graph) -> FlopCount:
    """Everything executed that has FLOPs, and what cannot be told, from a reading and its graph.

    Raises RejectedError where parts of the module contradict each other.
    """
    with agreeing():
        return _count(reading, graph)


def _count(reading: HloReading, graph: Graph) -> FlopCount:
    rows, unknowns = _rows(reading, graph)
    places: dict[int, list[tuple[str, int]]] = {}
    for row in reading.contractions.rows:
        places[row.id] = placed(row)
    own = {row.id: _keys(row, places.get(row.id) or [(row.scope, row.flops)]) for row in rows}
    unknowns += _loops(graph, {row.id for row in rows} | {row.id for row in reading.contractions.opaque})
    sums = Sums(graph.module, graph.executions, own, _reasons(unknowns))
    return FlopCount(
        amount=sums[("total",)],
        by_phase={key[1]: sums[key] for key in sums.named("phase")},
        by_scope={key[1]: sums[key] for key in sums.named("scope")},
        by_place={(key[1], key[2]): sums[key] for key in sums.named("place")},
        by_class={name: sums[("class", name)] for name in CLASSES},
        by_dtype={key[1]: sums[key] for key in sums.named("dtype")},
        active=sums[("active",)],
        elementwise_products=sums[("class", "elementwise_product")],
        rows=tuple(rows), unknowns=tuple(unknowns),
        dense_groups=tuple(
            DenseGroups(row.name, row.scope, row.flops // row.active_flops, row.total,
                        row.executions.times(exact(row.active_flops)))
            for row in rows if row.active_flops
        ),
    )  # fmt: skip


# The rows -------------------------------------------------------------------------------------------------------------


def _rows(reading: HloReading, graph: Graph) -> tuple[list[FlopRow], list[Unknown]]:
    found, instructions = reading.contractions, graph.module.instructions
    rows: list[FlopRow] = []
    unknowns: list[Unknown] = []
    for product in found.rows:
        at = instructions[product.id]
        if product.flops is None:
            sparse = at.proto.sparsity_config.ByteSize() > 0
            reason = (
                "structured sparsity: how much of the product is executed is not counted"
                if sparse
                else "its window is too large to be walked"
            )
            unknowns.append(_unknown(graph, product, "contraction", at, reason))
        else:
            rows.append(_product(graph, product, product.flops, at, reading.platform))
    rows += [_elementwise(graph, product, instructions[product.multiply]) for product in found.strength_reduced]
    for call in found.opaque:
        at = instructions[call.id]
        work = work_of(at)
        if work is None:
            continue
        if work.flops is None:
            unknowns.append(_unknown(graph, call, work.kind, at, work.reason, work))
        else:
            rows.append(_call(graph, call, work, work.flops, at))
    counts = graph.executions.counts()
    for at in graph.module.walk():
        strange = at.opcode not in KNOWN_OPCODES
        if not strange and at.opcode not in ("send", "infeed", "outfeed"):
            continue
        times, target = counts[at.computation.id], host_transfer(at)
        if times == ZERO or not (strange or target):
            continue
        where, op_name = graph.places.named(at)
        kind: Kind = "opcode" if strange else "host"
        reason = f"opcode {at.opcode!r} is not known here" if strange else "data is handed to the host program"
        unknowns.append(
            Unknown(
                kind, at.name, target or at.opcode, op_name, where.scope, where.phase, graph.module.source(at),
                tuple(str(o.shape) for o in at.operands), str(at.shape), times, reason, voids=strange,
            )
        )  # fmt: skip
    return rows, unknowns


def _product(graph: Graph, row: Contraction, flops: int, at: Instruction, platform: str) -> FlopRow:
    precision, passes = _precision(at, platform)
    lhs, rhs, out = (text.split("[")[0] for text in (row.lhs, row.rhs, row.out))
    return FlopRow(
        row.id, row.name, row.opcode, row.target, _class_of(row, platform), "shape",
        "2 FLOPs per multiplication and addition" + (", 8 where both are complex" if "c" in (lhs[0], rhs[0]) else ""),
        row.op_name, row.scope, row.phase, row.source, (row.lhs, row.rhs), row.out,
        f"{lhs if lhs == rhs else f'{lhs} x {rhs}'} -> {out}", flops, row.executions, row.total,
        logical_flops=row.logical_flops, active_flops=_active(flops, at), precision=precision, passes=passes,
    )  # fmt: skip


def _elementwise(graph: Graph, row: StrengthReduced, at: Instruction) -> FlopRow:
    made = graph.module.instructions[row.id]
    operands = tuple(str(operand.shape) for operand in at.operands)
    dtype = f"{at.shape.dtype} -> {next(made.shape.leaves(), made.shape).dtype}"
    return FlopRow(
        row.id, row.name, row.opcode, "", "elementwise_product", "shape",
        "2 FLOPs per multiplication and addition, executed as multiply and reduce", row.op_name, row.scope, row.phase,
        graph.module.source(made), operands, str(made.shape), dtype, row.flops, row.executions, row.total,
        logical_flops=row.flops,
    )  # fmt: skip


def _class_of(row: Contraction, platform: str) -> Kind:
    if row.opcode == "custom-call":
        return "convolution" if row.target.startswith("__cudnn$conv") else "contraction"
    if row.opcode != "convolution":
        return "contraction"
    if platform == "tpu":  # there every product is written as a convolution: the program's name tells which it was
        primitive = primitive_of(row.op_name) if row.op_name else ""
        if "conv" in primitive:
            return "convolution"
        return "contraction" if "dot" in primitive or row.m is not None else "convolution"
    return "convolution"


def _precision(at: Instruction, platform: str) -> tuple[str, int]:
    config = at.proto.precision_config
    if config.algorithm in _ALGORITHMS:
        return _ALGORITHMS[config.algorithm]
    asked = max((p for p in config.operand_precision if 0 <= p < len(_PRECISIONS)), default=0)
    name = _PRECISIONS[asked]
    single = all(operand.shape.dtype == "f32" for operand in at.operands[:2])
    return (name if asked else "", _TPU_PASSES[name] if platform == "tpu" and single else 1)


def _active(flops: int, at: Instruction) -> int | None:
    """FLOPs that the groups of a ragged product need, where it was compiled densely: an operand then has a part for
    every group, and of part g only the rows from end[g - 1] to end[g] are not masked to zero. A convolution's groups
    can be multiplied densely too.
    """
    if at.opcode == "convolution":
        groups = diagonal_groups(at)
        if groups > 1:
            return flops // groups
    for operand in at.operands[:2]:
        masked = source_of(operand, _SELECT)
        groups = _groups(masked.operands[0]) if masked.opcode == "select" and masked.operands else 0
        if groups > 1 and flops % groups == 0:
            return flops // groups
    return None


def _groups(kept: Instruction) -> int:
    """How many consecutive intervals of rows a mask end[g - 1] <= row < end[g] keeps; 0 where it is another mask."""
    both = source_of(kept, _MASK)
    if both.opcode == "broadcast":
        both = source_of(both.operands[0], _MASK)
    if both.opcode != "and":
        return 0
    bounds = []
    for bound in both.operands:
        compare = source_of(bound, _COMPARE)
        sides = [source_of(side, _ROW_OR_VECTOR) for side in compare.operands] if compare.opcode == "compare" else []
        if sorted(side.opcode for side in sides) != ["broadcast", "iota"]:
            return 0
        bounds.append(next(side for side in sides if side.opcode == "broadcast").operands[0])
    for ends, starts in (bounds, reversed(bounds)):
        last = source_of(ends)
        if last is _moved_on(starts):
            return last.shape.size
    return 0


def _moved_on(starts: Instruction) -> Instruction | None:
    """The ends of intervals whose starts are the same vector moved on by one, with a first element put before it: a
    concatenation, or a sum of two padded vectors.
    """
    joint = source_of(starts, _JOINED)
    if joint.opcode == "concatenate":
        return source_of(joint.operands[1]) if len(joint.operands) == 2 else None
    for operand in joint.operands if joint.opcode == "add" else ():
        padded = source_of(operand, _PADDED)
        if padded.opcode == "pad" and [d.edge_padding_low for d in padded.proto.padding_config.dimensions] == [1]:
            return source_of(padded.operands[0])
    return None


def _call(graph: Graph, call: Opaque, work: Work, flops: int, at: Instruction) -> FlopRow:
    made = next(at.shape.leaves(), at.shape)
    taken = [operand.shape.dtype for operand in at.operands]
    first = next((dtype for dtype in taken if dtype[0] in "fbc"), taken[0] if taken else made.dtype)
    return FlopRow(
        call.id, call.name, at.opcode, call.target, work.kind, work.basis, work.convention, call.op_name, call.scope,
        call.phase, graph.module.source(at), call.operands, call.result, f"{first} -> {made.dtype}", flops,
        call.executions, call.executions.times(exact(flops)), logical_flops=flops, detail=work.detail,
    )  # fmt: skip


def _unknown(
    graph: Graph, row: Contraction | Opaque, kind: Kind, at: Instruction, reason: str, work: Work | None = None
) -> Unknown:
    return Unknown(
        kind, row.name, row.target, row.op_name, row.scope, row.phase, graph.module.source(at),
        tuple(str(operand.shape) for operand in at.operands), str(at.shape), row.executions, reason,
        voids=kind != "host", estimate=work.estimate if work else None, convention=work.convention if work else "",
        detail=work.detail if work else "",
    )  # fmt: skip


def _loops(graph: Graph, counted: set[int]) -> list[Unknown]:
    """Loops without a trip count that hold something with FLOPs; a loop of pure bookkeeping leaves the total alone."""
    holding = {graph.module.instructions[number].computation.id for number in counted}
    inside: dict[int, bool] = {}
    for computation in graph.module.computations:  # callees first
        inside[computation.id] = computation.id in holding or any(inside[called.id] for called in _callees(computation))
    found = []
    counts = graph.executions.counts()
    for number, loop in graph.loops.items():
        at = graph.module.instructions[number]
        times = counts[at.computation.id]
        uncounted = counts[at.called[0].id].minimum is None and loop.reason  # not one inside an uncounted loop
        if not uncounted or times == ZERO or not any(inside[c.id] for c in at.called):
            continue
        where, op_name = graph.places.named(at)
        found.append(
            Unknown("loop", loop.instruction, "while", op_name, where.scope, where.phase, graph.module.source(at),
                    (), "", times, loop.reason)
        )  # fmt: skip
    return found


def _callees(computation: Computation) -> Iterable[Computation]:
    for at in computation.instructions:
        yield from at.called


# The sums -------------------------------------------------------------------------------------------------------------


def _keys(row: FlopRow, places: Iterable[tuple[str, int]]) -> dict[Key, int]:
    keys: dict[Key, int] = {
        ("total",): row.flops, ("phase", row.phase): row.flops, ("class", row.kind): row.flops,
        ("dtype", row.dtype): row.flops,
        ("active",): row.flops if row.active_flops is None else row.active_flops,
    }  # fmt: skip
    for scope, flops in places:
        for key in (("scope", scope), ("place", scope, row.phase)):
            keys[key] = keys.get(key, 0) + flops
    return keys


def _reasons(unknowns: Iterable[Unknown]) -> dict[Key, list[str]]:
    """Why sums are unknown, by key. An uncounted loop is left out: what it holds is unknown by itself."""
    reasons: dict[Key, list[str]] = {}
    for unknown in unknowns:
        if unknown.kind == "loop" or not unknown.voids:
            continue
        kind = unknown.kind if unknown.kind in CLASSES else "kernel"
        for key in (
            ("total",), ("active",), ("phase", unknown.phase), ("class", kind), ("scope", unknown.scope),
            ("place", unknown.scope, unknown.phase),
        ):  # fmt: skip
            reasons.setdefault(key, []).append(f"{unknown.name} ({unknown.target}): {unknown.reason}")
    return reasons
