"""Integers that remember which sizes they came from, and a case whose sizes are such integers.

A traced integer is an `int`: every comparison, branch, loop and maximum of a fold goes as it does in `predict`, by
value. Beside the value it carries its form (`forms`), which every operation extends. What was decided on the way (a
comparison, a division that came out whole) is recorded: a formula is true of all sizes for which the same decisions
fall. So any ledger of any case has a formula, meshes, windows and paddings included.

Where a size's share in a number is lost (a loop over devices, a number in a text), the formula is short of it: tests
evaluate formulas at other sizes than those they were found at.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple

from jaxcost.prediction.forms import Call, Form


@dataclass
class Decisions:
    """What a run decided about sizes: comparisons with zero, and quotients that came out whole."""

    compared: dict[tuple[Form, str], None] = field(default_factory=dict)
    whole: dict[Form, None] = field(default_factory=dict)

    def said_whole(self) -> list[Form]:
        """Return the quotients that came out whole, without those that follow from others."""
        positive = {form if _leads(form) else Form.of(-1) * form: None for form in self.whole}
        ordered = sorted(positive, key=lambda form: (len(form.terms), len(form.text())))
        kept: list[Form] = []
        for form in ordered:
            if not all(_follows(Form({mono: value}), kept) for mono, value in form.terms.items()):
                kept.append(form)
        return kept


def _leads(form: Form) -> bool:
    return next(iter(form.terms.values()), 1) > 0


def _follows(part: Form, known: list[Form]) -> bool:
    """Return whether a term is whole because it is a whole multiple of a quotient that is."""
    return part.is_integral() or any(len(one.terms) == 1 and (part / one).is_integral() for one in known)


_DECISIONS: ContextVar[Decisions | None] = ContextVar("decisions", default=None)


@contextmanager
def recording() -> Iterator[Decisions]:
    """Record decisions on traced integers while the context is open."""
    found = Decisions()
    token = _DECISIONS.set(found)
    try:
        yield found
    finally:
        _DECISIONS.reset(token)


def _compared(left: Any, right: Any, relation: str) -> None:
    found = _DECISIONS.get()
    difference = form_of(left) - form_of(right)
    if found is not None and difference.constant is None:
        found.compared[difference, relation] = None


class Quotient(Fraction):
    """A fraction that remembers its form."""

    form: Form

    def __new__(cls, top: Any, bottom: Any) -> Quotient:
        made = super().__new__(cls, int.__index__(top), int.__index__(bottom))
        made.form = form_of(top) / form_of(bottom)
        return made


def form_of(value: Any) -> Form:
    """Return the form of a traced or plain number."""
    if isinstance(value, Traced | Quotient):
        return value.form
    if isinstance(value, Fraction):
        return form_of(value.numerator) / form_of(value.denominator)
    return Form.of(value)


def _made(value: int, form: Form) -> int:
    return value if form.constant is not None else Traced(value, form)


class Traced(int):
    """An integer with the form it came from."""

    form: Form

    def __new__(cls, value: int, form: Form) -> Traced:
        made = super().__new__(cls, value)
        made.form = form
        return made

    def __add__(self, other: Any) -> Any:
        if not isinstance(other, int):
            return NotImplemented
        return _made(int.__add__(self, other), self.form + form_of(other))

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        if not isinstance(other, int):
            return NotImplemented
        return _made(int.__sub__(self, other), self.form - form_of(other))

    def __rsub__(self, other: Any) -> Any:
        if not isinstance(other, int):
            return NotImplemented
        return _made(int.__rsub__(self, other), form_of(other) - self.form)

    def __mul__(self, other: Any) -> Any:
        if not isinstance(other, int):
            return NotImplemented
        return _made(int.__mul__(self, other), self.form * form_of(other))

    def __rmul__(self, other: Any) -> Any:
        return self.__mul__(other)

    def __neg__(self) -> Any:
        return _made(int.__neg__(self), -self.form)

    def __pow__(self, power: Any, modulus: Any = None) -> Any:
        if modulus is not None or not isinstance(power, int) or isinstance(power, Traced) or power < 0:
            return NotImplemented
        made: Any = 1
        for _ in range(power):
            made = self * made
        return made

    def __floordiv__(self, other: Any) -> Any:
        return _divided(self, other)

    def __rfloordiv__(self, other: Any) -> Any:
        return _divided(other, self)

    def __mod__(self, other: Any) -> Any:
        return _remainder(self, other)

    def __rmod__(self, other: Any) -> Any:
        return _remainder(other, self)

    def __truediv__(self, other: Any) -> Any:
        return Quotient(self, other) if isinstance(other, int) else NotImplemented

    def __rtruediv__(self, other: Any) -> Any:
        return Quotient(other, self) if isinstance(other, int) else NotImplemented

    @property
    def numerator(self) -> Any:
        return self

    def __lt__(self, other: Any) -> Any:
        found = int.__lt__(self, other)
        if found is not NotImplemented:
            _compared(self, other, "<" if found else ">=")
        return found

    def __le__(self, other: Any) -> Any:
        found = int.__le__(self, other)
        if found is not NotImplemented:
            _compared(self, other, "<=" if found else ">")
        return found

    def __gt__(self, other: Any) -> Any:
        found = int.__gt__(self, other)
        if found is not NotImplemented:
            _compared(self, other, ">" if found else "<=")
        return found

    def __ge__(self, other: Any) -> Any:
        found = int.__ge__(self, other)
        if found is not NotImplemented:
            _compared(self, other, ">=" if found else "<")
        return found

    def __eq__(self, other: Any) -> Any:
        found = int.__eq__(self, other)
        if found is not NotImplemented:
            _compared(self, other, "=" if found else "!=")
        return found

    def __ne__(self, other: Any) -> Any:
        found = int.__ne__(self, other)
        if found is not NotImplemented:
            _compared(self, other, "!=" if found else "=")
        return found

    __hash__ = int.__hash__


def _divided(a: Any, b: Any) -> Any:
    """Return a // b; the form is the quotient where it came out whole, which is recorded."""
    if not isinstance(a, int) or not isinstance(b, int):
        return NotImplemented
    value, rest = divmod(int.__index__(a), int.__index__(b))
    form = form_of(a) / form_of(b)
    if rest == 0:
        _is_whole(form)
        return _made(value, form)
    return _made(value, _floor(form))


def _remainder(a: Any, b: Any) -> Any:
    if not isinstance(a, int) or not isinstance(b, int):
        return NotImplemented
    value = int.__index__(a) % int.__index__(b)
    if value == 0:
        _is_whole(form_of(a) / form_of(b))
        return 0
    return Traced(value, Form.of(Call("mod", (form_of(a), form_of(b)))))


def _is_whole(form: Form) -> None:
    found = _DECISIONS.get()
    if found is not None and not _integral(form):
        found.whole[form] = None


@lru_cache(maxsize=4096)
def _integral(form: Form) -> bool:
    return form.is_integral()


def _floor(form: Form) -> Form:
    """Return the floor, with the terms outside that are whole by themselves or were found to be."""
    found = _DECISIONS.get()
    known = found.whole if found is not None else {}
    outside, inside = Form.of(0), Form.of(0)
    for mono, value in form.terms.items():
        part = Form({mono: value})
        if mono and (part.is_integral() or part in known or Form({mono: -value}) in known):
            outside = outside + part
        else:
            inside = inside + part
    if inside.constant is not None:
        return outside + Form.of(Fraction(inside.constant).__floor__())
    if len(inside.terms) == 1:
        ((mono, value),) = inside.terms.items()
        if -1 <= value < 1 and all(power < 0 for _, power in mono):  # a size is at least 1
            return outside + Form.of(Fraction(value).__floor__())
    return outside + Form.of(Call("floor", (inside,)))


class Field(NamedTuple):
    """A symbol of a formula: its name, the field of the case it stands for, and that field's value."""

    symbol: str
    field: str
    value: int


def least_sizes(fields: Mapping[str, Field]) -> dict[str, int]:
    """Return the smallest value that each symbol can have: 2 for a mesh axis, which is no axis below, else 1."""
    return {name: 2 if item.field.startswith("execution.mesh.") else 1 for name, item in fields.items()}
