"""The few operations whose form depends on the number domain: exact integers, sympy expressions, numpy arrays.

Folds use `+ - *` directly; whatever needs division, a maximum or a choice comes from here, so that one fold runs on
all three. A sympy value is recognised by its type's module, and sympy is imported only when one arrives. A traced
integer (`traced`) divides and compares as the integer it is.
"""

from __future__ import annotations

from typing import Any

from jaxcost.prediction.traced import Traced


def domain_of(*values: Any) -> str:
    """Return `sympy` or `numpy` if any value belongs to it, else `int`."""
    for value in values:
        root = type(value).__module__.split(".", 1)[0]
        if root in ("sympy", "numpy"):
            return root
    return "int"


def is_formula(*values: Any) -> bool:
    """Return whether a value stands for a formula: where a cut is a choice between sizes, there is none of it."""
    return any(isinstance(value, Traced) for value in values) or domain_of(*values) == "sympy"


def ceil_div(a: Any, b: Any) -> Any:
    """Return a / b rounded up to a whole number, exactly."""
    if domain_of(a, b) == "sympy":
        import sympy

        return sympy.ceiling(sympy.sympify(a) / b)
    return -(-a // b)


def exact_div(a: Any, b: Any) -> Any:
    """Return a / b where b is known to divide a.

    Raises:
        ValueError: for integers (or arrays of them) that leave a remainder.
    """
    if domain_of(a, b) == "sympy":
        import sympy

        return sympy.sympify(a) / b
    remainder = a % b
    if remainder.any() if hasattr(remainder, "any") else remainder:
        raise ValueError(f"{b} does not divide {a}")
    return a // b


def maximum(a: Any, b: Any) -> Any:
    """Return the larger value, elementwise for arrays."""
    kind = domain_of(a, b)
    if kind == "sympy":
        import sympy

        return sympy.Max(a, b)
    if kind == "numpy":
        import numpy

        return numpy.maximum(a, b)
    return max(a, b)


def minimum(a: Any, b: Any) -> Any:
    """Return the smaller of two values of the number domain int or sympy."""
    if domain_of(a, b) == "sympy":
        import sympy

        return sympy.Min(a, b)
    return min(a, b)


def where(condition: Any, a: Any, b: Any) -> Any:
    """Return a where the condition holds, else b."""
    kind = domain_of(condition, a, b)
    if kind == "sympy":
        import sympy

        return sympy.Piecewise((a, condition), (b, True))
    if kind == "numpy":
        import numpy

        return numpy.where(condition, a, b)
    return a if condition else b
