"""The sizes of a product of two matrices, from the shapes of its operands and the dimensions that they share."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import NamedTuple

from jaxcost.observation.hlo.module import Instruction
from jaxcost.observation.hlo.schema import Proto, rejected

GEMM = ("__cublas$lt$matmul", "__cublas$gemm")


@dataclass(frozen=True, slots=True)
class Dims:
    """Sizes of batch * (m, k) times (k, n)."""

    batch: int
    m: int
    k: int
    n: int

    @property
    def flops(self) -> int:
        """A multiplication and an addition for each term of each element of the result."""
        return 2 * self.batch * self.m * self.k * self.n


class Numbers(NamedTuple):
    """Contracted and batch dimensions of both operands."""

    lhs_k: tuple[int, ...]
    rhs_k: tuple[int, ...]
    lhs_b: tuple[int, ...]
    rhs_b: tuple[int, ...]


def numbers_of(proto: Proto) -> Numbers:
    """Those of a DotDimensionNumbers."""
    return Numbers(
        tuple(proto.lhs_contracting_dimensions), tuple(proto.rhs_contracting_dimensions),
        tuple(proto.lhs_batch_dimensions), tuple(proto.rhs_batch_dimensions),
    )  # fmt: skip


def numbers_of_gemm(at: Instruction) -> Numbers | None:
    """Those that a cuBLAS call keeps in its backend configuration; None where it does not say."""
    config = at.backend_config().get("gemm_backend_config")
    given = config.get("dot_dimension_numbers") if isinstance(config, dict) else None
    if not isinstance(given, dict):
        return None
    lists = []
    for key in (
        "lhs_contracting_dimensions",
        "rhs_contracting_dimensions",
        "lhs_batch_dimensions",
        "rhs_batch_dimensions",
    ):
        values = given.get(key, [])
        if not isinstance(values, list) or any(str(v) not in map(str, range(16)) for v in values):
            return None
        lists.append(tuple(int(v) for v in values))
    return Numbers(*lists)


def shared_dimensions(at: Instruction) -> tuple[tuple[int, ...], ...] | None:
    """Contracted dimensions of both operands of a dot or a product of cuBLAS, then the batch dimensions; else None."""
    if at.opcode == "dot":
        return numbers_of(at.proto.dot_dimension_numbers)
    return numbers_of_gemm(at) if at.proto.custom_call_target in GEMM else None


def dot_dims(lhs: tuple[int, ...], rhs: tuple[int, ...], numbers: Numbers, name: str, out: int | None) -> Dims:
    """Sizes of a dot. `out`: elements of its result, checked when given.

    Raises RejectedError, by the `name` of the instruction, where operands and result do not agree.
    """
    dims, value, rule = _sizes(lhs, rhs, numbers)
    if dims is not None:
        made = dims.batch * dims.m * dims.n
        if out is None or out == made:
            return dims
        value, rule = out, f"a result of {made} elements follows from the operands"
    raise rejected(f"hlo.{name}", value, rule, "the dump is damaged: dump the module again")


@lru_cache(maxsize=4096)
def _sizes(lhs: tuple[int, ...], rhs: tuple[int, ...], numbers: Numbers) -> tuple[Dims | None, object, str]:
    """Sizes of a dot; or None with what is wrong, and the rule."""
    for dims, used in ((lhs, numbers.lhs_k + numbers.lhs_b), (rhs, numbers.rhs_k + numbers.rhs_b)):
        if len(set(used)) != len(used) or any(not 0 <= d < len(dims) for d in used):
            return None, list(used), f"must name distinct dimensions of {list(dims)}"
    lhs_shared = [lhs[d] for d in numbers.lhs_k + numbers.lhs_b]
    if lhs_shared != [rhs[d] for d in numbers.rhs_k + numbers.rhs_b]:
        return None, f"{list(lhs)} x {list(rhs)}", "shared sizes of both operands must agree"
    batch, k = prod(lhs[d] for d in numbers.lhs_b), prod(lhs[d] for d in numbers.lhs_k)
    m = prod(d for i, d in enumerate(lhs) if i not in numbers.lhs_k + numbers.lhs_b)
    n = prod(d for i, d in enumerate(rhs) if i not in numbers.rhs_k + numbers.rhs_b)
    return Dims(batch, m, k, n), None, ""
