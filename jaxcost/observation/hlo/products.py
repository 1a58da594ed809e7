"""What is recorded of the products of a module: counted ones, those that became multiply and reduce, opaque calls."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from jaxcost.observation.hlo.trips import Total


@dataclass(frozen=True, slots=True)
class Share:
    """One of the products merged into a dot: `flops` of each execution belong to it.

    `argument` is the op_name of the program argument behind the operand (a weight's path), '' when the operand is
    computed; `scope` is '' where nothing tells it.
    """

    op_name: str
    argument: str
    scope: str
    fraction: tuple[int, int]
    flops: int


@dataclass(frozen=True, slots=True)
class Contraction:
    """One dot, convolution or matrix-product call. `flops` is one execution, `total` all of one step on one device.

    `logical_flops` leaves out K, M or N that the compiler padded (None when it cannot be told); `m`, `k`, `n` are
    None for a convolution that is no plain product. `scope_exact` is False when the scope was inferred, or when the
    dot holds several products that could not be told apart (then `scope` encloses them all). `addend` names the array
    whose sum with the product a library call returns.
    """

    id: int
    name: str
    computation: str
    opcode: str
    target: str
    op_name: str
    scope: str
    phase: str
    scope_exact: bool
    batch: int | None
    m: int | None
    k: int | None
    n: int | None
    lhs: str
    rhs: str
    out: str
    flops: int | None
    logical_flops: int | None
    split_k: int
    executions: Total
    total: Total
    shares: tuple[Share, ...] = ()
    remat: bool = False
    source: str = ""
    addend: str = ""


@dataclass(frozen=True, slots=True)
class StrengthReduced:
    """A product that became multiply and reduce. `flops` of one execution are not part of any contraction total.

    `multiply` is the instruction that multiplies; where K is one it is the product itself.
    """

    id: int
    name: str
    computation: str
    opcode: str
    op_name: str
    scope: str
    phase: str
    flops: int
    executions: Total
    total: Total
    multiply: int


@dataclass(frozen=True, slots=True)
class Opaque:
    """A library call or kernel whose FLOPs its shapes do not tell. `declared` is what the kernel says of itself.

    In `declared`: a cost estimate (`flops`, `transcendentals`, `bytes_accessed`); of cuDNN's attention `scores_shape`
    and `mask_type`; of a Pallas kernel its name, `kernel`, and the integers of its metadata, `metadata`.
    """

    id: int
    name: str
    computation: str
    target: str
    op_name: str
    scope: str
    phase: str
    operands: tuple[str, ...]
    result: str
    executions: Total
    declared: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Contractions:
    """All contractions, and their totals: by (scope, phase), by phase, and in all."""

    rows: tuple[Contraction, ...]
    strength_reduced: tuple[StrengthReduced, ...]
    opaque: tuple[Opaque, ...]
    by_place: dict[tuple[str, str], Total]
    by_phase: dict[str, Total]
    total: Total
    strength_reduced_total: Total


def real_operations(*dtypes: str) -> int:
    """Real FMAs in one of these operands: four of two complex numbers, two of a real and a complex one."""
    return {0: 1, 1: 2}.get(sum(dtype in ("c64", "c128") for dtype in dtypes), 4)


def placed(row: Contraction) -> list[tuple[str, int]]:
    """The scopes a contraction's FLOPs belong to, with the FLOPs of one execution of each; none where it is unknown."""
    if row.flops is None:
        return []
    if row.shares and row.scope_exact:
        return [(share.scope, share.flops) for share in row.shares]
    return [(row.scope, row.flops)]
