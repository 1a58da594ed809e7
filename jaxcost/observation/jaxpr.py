"""The third witness: contractions counted in the jaxpr, before XLA rewrites anything.

Each equation is counted with the trips of the scans around it and named by the name stacks of the equations around
it, so its rows carry the same scopes and phases as those read from HLO. Inside `shard_map` shapes are per shard along
its manual axes: those counts are times their sizes, so that every total here is the whole program's, over all devices.

    dot_general            2 * prod(result) * prod(contracted)
    conv_general_dilated   2 * valid taps * (input features / groups) * output features * batch
    ragged_dot_general     2 * prod(lhs) * free sizes of rhs: each row meets one group
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

from jaxcost.observation.hlo.convolution import valid_pairs
from jaxcost.observation.hlo.scope import place, scope_parts
from jaxcost.observation.hlo.trips import ONE, ZERO, Total, exact

_KERNELS = ("pallas_call", "ffi_call", "custom_call", "dot_product_attention", "scaled_matmul", "mosaic", "triton")


@dataclass(frozen=True, slots=True)
class JaxprRow:
    """One contraction equation. `flops` is one execution; `executions` counts scan trips and, in a shard_map, devices.

    `batch`, `m`, `k`, `n` are None for a convolution. `flops` is None for a kernel, whose
    `operands` are all of them; `declared` is its own cost estimate.
    """

    primitive: str
    name: str
    scope: str
    phase: str
    batch: int | None
    m: int | None
    k: int | None
    n: int | None
    operands: tuple[str, ...]
    flops: int | None
    executions: Total
    total: Total
    declared: int | None = None


@dataclass(frozen=True, slots=True)
class JaxprCount:
    """All contractions of a jaxpr, kernels apart. Totals are whole-program; an uncounted loop or kernel is in
    `unknowns`.
    """

    rows: tuple[JaxprRow, ...]
    opaque: tuple[JaxprRow, ...]
    by_place: dict[tuple[str, str], Total]
    by_phase: dict[str, Total]
    total: Total
    unknowns: tuple[str, ...]


def _shapes(eqn: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    lhs, rhs = (v.aval.shape for v in eqn.invars[:2])
    return lhs, rhs


def _dot(eqn: Any) -> tuple[int, tuple[int, int, int, int]]:
    (lhs_k, rhs_k), (lhs_b, rhs_b) = eqn.params["dimension_numbers"]
    lhs, rhs = _shapes(eqn)
    batch, k = prod(lhs[d] for d in lhs_b), prod(lhs[d] for d in lhs_k)
    m = prod(size for d, size in enumerate(lhs) if d not in (*lhs_k, *lhs_b))
    n = prod(size for d, size in enumerate(rhs) if d not in (*rhs_k, *rhs_b))
    return 2 * batch * m * k * n, (batch, m, k, n)


def _ragged(eqn: Any) -> int:
    numbers = eqn.params["ragged_dot_dimension_numbers"]
    (_, rhs_k), (_, rhs_b) = numbers.dot_dimension_numbers
    lhs, rhs = _shapes(eqn)
    apart = (*rhs_k, *rhs_b, *numbers.rhs_group_dimensions)
    return 2 * prod(lhs) * prod(size for d, size in enumerate(rhs) if d not in apart)


def _convolution(eqn: Any) -> int | None:
    params, (lhs, rhs) = eqn.params, _shapes(eqn)
    numbers, out = params["dimension_numbers"], eqn.outvars[0].aval.shape
    pairs = 1
    for i, (d_in, d_k, d_out) in enumerate(
        zip(numbers.lhs_spec[2:], numbers.rhs_spec[2:], numbers.out_spec[2:], strict=True)
    ):
        valid = valid_pairs(
            rhs[d_k], lhs[d_in], out[d_out], stride=params["window_strides"][i], low=params["padding"][i][0],
            window_dilation=params["rhs_dilation"][i], base_dilation=params["lhs_dilation"][i],
        )  # fmt: skip
        if valid is None:
            return None
        pairs *= valid
    batch: int = lhs[numbers.lhs_spec[0]] // params["batch_group_count"]
    flops: int = 2 * pairs * rhs[numbers.rhs_spec[1]] * rhs[numbers.rhs_spec[0]] * batch
    return flops


def _open(value: Any) -> Any | None:
    """The bare jaxpr of a Jaxpr or ClosedJaxpr, else None."""
    inner = getattr(value, "jaxpr", value)
    return inner if hasattr(inner, "eqns") else None


def inside(eqn: Any) -> Iterator[tuple[str, Any]]:
    """(parameter name, jaxpr) of everything an equation calls."""
    for key, value in eqn.params.items():
        for item in value if isinstance(value, tuple | list) else (value,):
            inner = _open(item)
            if inner is not None:
                yield key, inner


class _Counter:
    def __init__(self, scopes: frozenset[str] | None) -> None:
        self.scopes = scopes
        self.unknowns: list[str] = []

    def walk(self, jaxpr: Any, above: str) -> tuple[list[JaxprRow], dict[tuple[str, str], Total]]:
        """Rows and totals of one execution of `jaxpr`, reached under the name stack `above`."""
        rows: list[JaxprRow] = []
        totals: dict[tuple[str, str], Total] = {}

        def add(found: dict[tuple[str, str], Total], times: Total = ONE) -> None:
            for key, amount in found.items():
                totals[key] = totals.get(key, ZERO) + amount.times(times)

        for eqn in jaxpr.eqns:
            own = str(eqn.source_info.name_stack)
            name = "/".join(part for part in (above, own) if part)
            primitive = eqn.primitive.name
            row = self._row(eqn, primitive, name)
            if row is not None:
                rows.append(row)
                if row.flops is not None:
                    add({(row.scope, row.phase): exact(row.flops)})
                continue
            inner = list(inside(eqn))
            if not inner:
                continue
            walked = [(key, *self.walk(j, name)) for key, j in inner]
            if primitive == "cond":
                branches = [found for _, _, found in walked]
                union: dict[tuple[str, str], Total] = {}
                for key in {k for b in branches for k in b}:
                    alternatives = [b.get(key, ZERO) for b in branches]
                    total = alternatives[0]
                    for other in alternatives[1:]:
                        total = total.either(other)
                    union[key] = total
                add(union)
                maybe = Total(0, 1) if len(branches) > 1 else ONE
                rows += [_again(r, maybe) for _, found_rows, _ in walked for r in found_rows]
                continue
            times = self._times(eqn, primitive, name, any(found_rows for _, found_rows, _ in walked))
            for _, found_rows, found in walked:
                rows += [_again(r, times) for r in found_rows]
                add(found, times)
        return rows, totals

    def _times(self, eqn: Any, primitive: str, name: str, counts: bool) -> Total:
        if primitive == "scan":
            return exact(int(eqn.params["length"]))
        if primitive == "while":
            reason = f"a while loop at {name or 'the top'} has no static trip count"
            if counts:
                self.unknowns.append(reason)
            return Total(None, None, reason)
        if primitive == "shard_map":
            # Axes that are not manual are left to the partitioner: along them shapes are whole.
            shape = eqn.params["mesh"].shape
            manual = eqn.params.get("newly_manual_axes") or tuple(shape)
            return exact(prod(shape[axis] for axis in manual))
        return ONE

    def _row(self, eqn: Any, primitive: str, name: str) -> JaxprRow | None:
        flops: int | None
        sizes: tuple[int | None, int | None, int | None, int | None] = (None, None, None, None)
        declared: int | None = None
        if primitive == "dot_general":
            flops, sizes = _dot(eqn)
        elif primitive == "conv_general_dilated":
            flops = _convolution(eqn)
        elif primitive == "ragged_dot_general":
            flops = _ragged(eqn)
        elif primitive.startswith(_KERNELS):
            flops = None
            estimate = getattr(eqn.params.get("cost_estimate"), "flops", None)
            declared = int(estimate) if isinstance(estimate, int) else None
        else:
            return None
        where = place(name, self.scopes, primitive=False)
        if flops is None:
            self.unknowns.append(f"{primitive} at {name or 'the top'} is not counted")
        total = exact(flops) if flops is not None else Total(None, None, f"{primitive} is opaque")
        return JaxprRow(
            primitive, name, where.scope, where.phase, *sizes,
            tuple(str(v.aval) for v in (eqn.invars if flops is None else eqn.invars[:2])), flops, ONE, total, declared,
        )  # fmt: skip


def _again(row: JaxprRow, times: Total) -> JaxprRow:
    return JaxprRow(
        row.primitive, row.name, row.scope, row.phase, row.batch, row.m, row.k, row.n, row.operands, row.flops,
        row.executions.times(times), row.total.times(times), row.declared,
    )  # fmt: skip


def count_jaxpr(closed_jaxpr: Any, scopes: frozenset[str] | None = None) -> JaxprCount:
    """Count the contractions of a jaxpr (`jax.make_jaxpr(f)(...)` or `jax.jit(f).trace(...).jaxpr`).

    `scopes`: names of the scope components to keep, as names or paths; None keeps every named scope.
    """
    jaxpr = _open(closed_jaxpr)
    if jaxpr is None:
        raise TypeError(f"count_jaxpr takes a jaxpr, got {type(closed_jaxpr).__name__}")
    counter = _Counter(scope_parts(scopes))
    rows, by_place = counter.walk(jaxpr, "")
    by_phase: dict[str, Total] = {}
    for (_, phase), amount in by_place.items():
        by_phase[phase] = by_phase.get(phase, ZERO) + amount
    # Alternatives of a conditional may lie in different scopes, so the sum of intervals encloses the true interval.
    total = sum(by_phase.values(), ZERO)
    counted = tuple(r for r in rows if r.flops is not None)
    opaque = tuple(r for r in rows if r.flops is None)
    return JaxprCount(counted, opaque, by_place, by_phase, total, tuple(dict.fromkeys(counter.unknowns)))
