"""Work and traffic of one contraction of two operands, from the declaration that the ledgers use.

`b m k, b k n -> b m n` names its axes: `b` is shared by all three and indexes independent products, `k` is contracted,
`m` and `n` belong to one operand each. Each distinct axis counts once: 2 x b m k n FLOPs, not 2 b^2 m k n. Without a
contracted axis a product is elementwise or an outer product: one multiplication a point, no factor of two.

Traffic is ideal: each input read once, the output written once, across one named boundary. `beta * Y` (the output read
and scaled too) and a bias stand apart. Whether rows share a weight follows from the axes alone: in `b d, d f -> b f`
they do, and a batch of B gives about B FLOPs a byte of weight; in `b d, b d f -> b f` each has its own, and B cancels.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import prod
from typing import Any

from jaxcost.contracts.dtypes import BITS, payload_bytes
from jaxcost.contracts.errors import Problem, RejectedError, reject
from jaxcost.contracts.record import LARGEST_SIZE
from jaxcost.prediction.flops import product_flops
from jaxcost.prediction.program import Contraction, matrix_axes
from jaxcost.prediction.sizes import Sizes

BOUNDARY = "device memory and chip"
OMITTED = "reloaded tiles, conversions, scales, intermediates, caches"


@dataclass(frozen=True)
class Work:
    """What one call of a contraction does and moves.

    `flops` counts 2 for a multiply-add where an axis is contracted, 1 for a multiplication where none is. Bytes are
    those of one pass across `boundary`; what `beta` and a bias add stands apart from them.
    """

    spec: str
    extents: Mapping[str, int]
    axes: Mapping[str, tuple[str, ...]]
    flops: int
    factor: int
    left_bytes: int
    right_bytes: int
    out_bytes: int
    beta_flops: int = 0
    beta_bytes: int = 0
    bias_flops: int = 0
    bias_bytes: int = 0
    boundary: str = BOUNDARY

    @property
    def bytes(self) -> int:
        """Both inputs read once and the output written once; beta and bias not."""
        return self.left_bytes + self.right_bytes + self.out_bytes

    @property
    def intensity(self) -> Fraction:
        """FLOPs a byte across the boundary; beta and bias not."""
        return Fraction(self.flops, self.bytes)

    @property
    def weight_intensity(self) -> Fraction:
        """FLOPs a byte of the right operand alone: what the intensity comes to where weights dominate the traffic."""
        return Fraction(self.flops, self.right_bytes)

    @property
    def weights(self) -> str:
        """`shared` where all rows use one right operand, `per row` where each has its own, `by group` where the rows of
        each shared index have one, `single` where there is one row.
        """
        if self.axes["batch"]:
            return "by group" if self.axes["left"] else "per row"
        return "shared" if self.axes["left"] else "single"

    def to_data(self) -> dict[str, Any]:
        """Return the JSON form."""
        names = ("spec", "flops", "factor", "left_bytes", "right_bytes", "out_bytes", "bytes", "beta_flops",
                 "beta_bytes", "bias_flops", "bias_bytes", "boundary", "weights")  # fmt: skip
        return {
            **{name: getattr(self, name) for name in names},
            "extents": dict(self.extents),
            "axes": {name: list(found) for name, found in self.axes.items()},
            "intensity": float(self.intensity),
            "weight_intensity": float(self.weight_intensity),
            "omitted": OMITTED,
        }


def contraction(spec: object) -> Contraction:
    """Return the declaration of a contraction of two operands, checked.

    Raises:
        RejectedError: it is not `axes, axes -> axes`, an axis repeats in one operand, an output axis stands in neither,
            or an axis of one operand is missing from the other and from the output (a reduction, not a contraction).
    """
    parts = re.fullmatch(r"([\w ]+),([\w ]+)->([\w ]*)", spec) if isinstance(spec, str) and len(spec) <= 200 else None
    if not isinstance(spec, str) or parts is None:
        rule = "not of the form `axes, axes -> axes` with axis names between blanks"
        raise reject("spec", spec, rule, "write for example b m k, b k n -> b m n")
    left, right, out = (part.split() for part in parts.groups())
    problems = []
    if not left or not right:
        problems.append(Problem("spec", spec, "an operand without axes", "name the axes of both operands"))
    for name, axes in (("left", left), ("right", right), ("output", out)):
        if len(set(axes)) < len(axes):
            rule = f"an axis repeats in the {name} operand" if name != "output" else "an axis repeats in the output"
            problems.append(Problem("spec", " ".join(axes), rule, "give each axis a name of its own"))
    for axis in out:
        if axis not in left and axis not in right:
            rule = f"output axis {axis} stands in neither operand"
            problems.append(Problem("spec", axis, rule, "a product makes no new axis; correct the name"))
    for axis in dict.fromkeys(left + right):
        if axis not in out and not (axis in left and axis in right):
            rule = f"axis {axis} is summed over in one operand alone: a reduction, not a contraction"
            problems.append(Problem("spec", axis, rule, "sum it before the product"))
    if problems:
        raise RejectedError(problems)
    return Contraction(
        name="product", scope="", inputs=("left", "right"), outputs=("out",), gradients=("left", "right"),
        needs=("left", "right"), region="outside", segment="", group=None, first=0, repeat=1, spec=spec, out_dtype="",
    )  # fmt: skip


def work(
    spec: str,
    extents: Mapping[str, int],
    dtypes: tuple[str, str, str] = ("bf16", "bf16", "bf16"),
    beta: bool = False,
    bias: str | None = None,
) -> Work:
    """Return the work and ideal traffic of a contraction.

    Args:
        spec: the declaration, such as `b m k, b k n -> b m n`.
        extents: size of each axis.
        dtypes: element types of the left operand, the right operand and the output.
        beta: the output is read, scaled and added to (beta * Y).
        bias: axes of a vector added to the output, such as `n`; None where there is none.

    Raises:
        RejectedError: with every problem of the declaration, extents, types and bias.
    """
    op = contraction(spec)
    left, right, out = op.operand_axes
    problems = list(_extent_problems(op, extents))
    problems += [
        Problem("dtypes", name, "not an element type", f"use one of {', '.join(BITS)}")
        for name in dtypes
        if name not in BITS
    ]
    vector = [] if bias is None else bias.split()
    if not set(vector) <= set(out.split()):
        problems.append(Problem("bias", bias, "has an axis that the output lacks", f"choose among {out}"))
    if problems:
        raise RejectedError(problems)
    matrix = matrix_axes(spec)
    axes = {
        "batch": tuple(matrix["batch"].split()),
        "contracted": op.summed_axes,
        "left": tuple(matrix["m"].split()),
        "right": tuple(matrix["n"].split()),
    }
    sizes = Sizes(dict(extents), (), ())
    points = sizes.product(op.axes)
    made = prod(extents[axis] for axis in out.split())
    return Work(
        spec=spec,
        extents={axis: extents[axis] for axis in op.axes.split()},
        axes=axes,
        flops=product_flops(sizes, op) if op.summed_axes else points,
        factor=2 if op.summed_axes else 1,
        left_bytes=payload_bytes(sizes.product(left), dtypes[0]),
        right_bytes=payload_bytes(sizes.product(right), dtypes[1]),
        out_bytes=payload_bytes(made, dtypes[2]),
        beta_flops=2 * made if beta else 0,
        beta_bytes=payload_bytes(made, dtypes[2]) if beta else 0,
        bias_flops=made if vector else 0,
        bias_bytes=payload_bytes(prod(extents[axis] for axis in vector), dtypes[2]) if vector else 0,
    )


def with_gradients(
    spec: str, extents: Mapping[str, int], dtypes: tuple[str, str, str] = ("bf16", "bf16", "bf16")
) -> tuple[Work, Work, Work]:
    """Return forward, dX and dW of a contraction: three products over the same axes, hence 6 M K N where W is shared.

    A frozen operand, a lookup and what is not a contraction cost less: count the products that are needed.
    """
    op = contraction(spec)
    of_left, of_right, of_out = dtypes
    forward = work(spec, extents, dtypes)
    left = work(op.gradient_spec("left"), extents, (of_out, of_right, of_left))
    right = work(op.gradient_spec("right"), extents, (of_left, of_out, of_right))
    return forward, left, right


def _extent_problems(op: Contraction, extents: Mapping[str, int]) -> list[Problem]:
    found = []
    for axis in op.axes.split():
        value = extents.get(axis)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= LARGEST_SIZE:
            found.append(Problem(f"extents.{axis}", value, "must be a whole number above zero", "give its size"))
    unused = sorted(set(extents) - set(op.axes.split()))
    if unused:
        found.append(Problem("extents", unused, "axes that the contraction lacks", "remove them or correct the names"))
    return found
