"""What automatic differentiation keeps: arrays that the forward scan over layers stacks up and a backward scan reads.

JAX splits a differentiated scan in two. Everything the backward pass needs of a layer leaves the forward scan as one
more stacked output, after policies and dead code have had their say; so the list is read from the program itself, and
no private interface is asked. Arrays made before the scan (rotary tables, masks without a batch) and the layers' own
weights reach the backward scan from outside and are not in it. Shapes are global.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from math import prod
from typing import Any

from jaxcost.observation.hlo.scope import place, scope_parts
from jaxcost.observation.jaxpr import carried_by_scan, inside
from jaxcost.observation.jaxpr_values import bare


@dataclass(frozen=True)
class Residual:
    """One stacked array: made by `primitive` under `scope`, or the layer's input (`input`).

    `name` is a policy's; `host` says whether it rests in host memory until the backward pass.
    """

    scope: str
    primitive: str
    name: str
    layers: int
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    host: bool

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {**asdict(self), "shape": list(self.shape)}


def saved_residuals(jaxpr: Any, scopes: Iterable[str] | None = None) -> list[Residual]:
    """Return what scans over layers keep for their backward passes, in program order.

    Args:
        jaxpr: a jaxpr or a closed one.
        scopes: component names to keep in scopes, as in `jaxpr.count_jaxpr`.
    """
    names = scope_parts(scopes)
    found: dict[tuple[str, int, int], Residual] = {}
    for level, above in _levels(getattr(jaxpr, "jaxpr", jaxpr), ""):
        read = {id(var) for eqn in level.eqns if "transpose(" in _stack(eqn, above) for var in eqn.invars}
        for number, eqn in enumerate(level.eqns):
            if eqn.primitive.name != "scan" or "transpose(" in _stack(eqn, above):
                continue
            body = bare(eqn.params["jaxpr"])
            carried = carried_by_scan(eqn, body)
            for index in range(carried, len(eqn.outvars)):
                if id(eqn.outvars[index]) in read:
                    made = _made(body, body.outvars[index], _stack(eqn, above))
                    found[above, number, index] = _residual(made, eqn.outvars[index], int(eqn.params["length"]), names)
    return list(found.values())


def _stack(eqn: Any, above: str) -> str:
    return "/".join(part for part in (above, str(eqn.source_info.name_stack)) if part)


def _levels(jaxpr: Any, above: str) -> Iterator[tuple[Any, str]]:
    yield jaxpr, above
    for eqn in jaxpr.eqns:
        for _, inner in inside(eqn):
            yield from _levels(inner, _stack(eqn, above))


def _made(jaxpr: Any, var: Any, above: str) -> tuple[str, str, str]:
    """Return name stack, primitive and policy name of the equation that makes a variable; of an input, `input`."""
    for eqn in reversed(jaxpr.eqns):
        for position, made in enumerate(eqn.outvars):
            if made is not var:
                continue
            stack, primitive = _stack(eqn, above), eqn.primitive.name
            if primitive == "device_put":  # to the host: the array is what was sent there
                return _made(jaxpr, eqn.invars[position], above)
            bodies = [inner for _, inner in inside(eqn)]
            if len(bodies) == 1 and primitive != "scan" and position < len(bodies[0].outvars):
                return _made(bodies[0], bodies[0].outvars[position], stack)
            return stack, primitive, str(eqn.params.get("name", "")) if primitive == "name" else ""
    return above, "input", ""


def _residual(made: tuple[str, str, str], var: Any, layers: int, scopes: frozenset[str] | None) -> Residual:
    stack, primitive, name = made
    aval = var.aval
    size = prod(aval.shape) * aval.dtype.itemsize
    where = place(stack, scopes, primitive=False).scope
    host = "host" in str(getattr(aval, "memory_space", "")).lower()
    return Residual(where, primitive, name, layers, tuple(aval.shape), str(aval.dtype), size, host)
