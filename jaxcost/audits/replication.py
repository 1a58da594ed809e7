"""Products that several devices compute alike.

A device's product is a piece of an equation's: each of its sizes divides the equation's, and their quotients say into
how many pieces it was cut. With fewer pieces than devices, some devices compute the same one. That is said only where
the sizes leave no choice: one shape among the equations of a place fits, and it is executed as often as they ask for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from jaxcost.observation.hlo.flops import FlopRow
from jaxcost.observation.hlo.products import Contraction

Sizes = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Replicated:
    """A product that is computed `copies` times: `flops` of all devices, one execution, beyond the first of them."""

    row: FlopRow
    copies: int
    flops: int


def sizes_of(product: Contraction | Mapping[str, Any]) -> Sizes | None:
    """Return (batch, the smaller of m and n, the larger, k), so that a product and its transpose are one; or None."""
    if isinstance(product, Contraction):
        batch, m, k, n = product.batch, product.m, product.k, product.n
    else:
        batch, m, k, n = (product[key] for key in ("batch", "m", "k", "n"))
    if batch is None or m is None or k is None or n is None:
        return None
    return batch, min(m, n), max(m, n), k


def replicated(
    rows: Iterable[FlopRow],
    products: Mapping[int, Contraction],
    equations: Iterable[Mapping[str, Any]],
    devices: int,
) -> Iterator[Replicated]:
    """Yield the replicated products of one place.

    Args:
        rows: the instructions of the place.
        products: contractions by the id of their instruction.
        equations: rows of the jaxpr in the same place; sizes are of the whole program.
        devices: of the program.
    """
    shapes: dict[Sizes, list[Mapping[str, Any]]] = {}
    for equation in equations:
        sizes = sizes_of(equation)
        if sizes is not None and not equation["kernel"] and equation["basis"] == "shape":
            shapes.setdefault(sizes, []).append(equation)
    tied: dict[Sizes, list[tuple[FlopRow, int]]] = {}
    doubtful: set[Sizes] = set()
    for row in rows:
        product = products.get(row.id)
        own = sizes_of(product) if product is not None else None
        if product is None or own is None or product.shares or product.remat or row.executions.value is None:
            continue  # then some equation here lacks an execution below
        if row.logical_flops not in (None, row.flops) or row.active_flops not in (None, row.flops):
            continue
        fitting = {whole: cut for whole in shapes if (cut := _pieces(whole, own, devices)) is not None}
        if len(fitting) == 1:
            ((whole, cut),) = fitting.items()
            tied.setdefault(whole, []).append((row, devices // cut))
        else:
            doubtful.update(fitting)
    for whole, found in tied.items():
        alike = shapes[whole]
        if whole in doubtful or any(equation["executions"] is None for equation in alike):
            continue
        # Fewer executions than asked for are no doubt only where the jaxpr itself allows to leave some out; more are
        # pieces made one after the other.
        missing = sum(e["executions"] for e in alike) - sum(row.executions.value or 0 for row, _ in found)
        optional = sum(e["executions"] for e in alike if e["dead"] or e["repeats"] or e["alike"] > 1)
        if not 0 <= missing <= optional:
            continue
        for row, copies in found:
            if copies > 1:
                yield Replicated(row, copies, row.flops * devices - alike[0]["flops"])


def _pieces(whole: Sizes, own: Sizes, devices: int) -> int | None:
    """How many pieces a product was cut into so that each has the sizes `own`; None where it was not."""
    batch, narrow, wide, k = own
    found = set()
    for one in ((batch, narrow, wide, k), (batch, wide, narrow, k)):
        pieces = 1
        for size, part in zip(whole, one, strict=True):
            if part == 0 or size % part:
                break
            pieces *= size // part
        else:
            if devices % pieces == 0:
                found.add(pieces)
    return found.pop() if len(found) == 1 else None
