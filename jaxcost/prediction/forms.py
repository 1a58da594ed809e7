"""Formulas without a computer algebra system: sums of products of named sizes, kept expanded.

A form is a sum of terms, each an exact coefficient times whole powers (negative ones too) of atoms. An atom is a size
by its name, or a call whose arguments are forms: `floor`, `ceil`, `mod`, `min`, `max`, and `quotient` by a sum. Two
forms of equal terms are equal; what differs by the identities of a call may not be recognised as equal.

`text` writes a form factored: what all terms share, then again and again what most of the rest have.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from functools import cached_property
from itertools import product
from math import gcd, lcm
from typing import Any, NamedTuple

Number = int | Fraction
# The order in which sizes stand in a product; mesh axes and calls follow by name.
ORDER = ("B", "m", "L", "S", "T", "R", "Q", "V", "Vp", "P", "d", "w", "H", "Hp", "K", "E", "F", "W")
LAYERS = "L"
BRACKETS = {"floor": "⌊{}⌋", "ceil": "⌈{}⌉"}
SYMPY_NAMES = {"floor": "floor", "ceil": "ceiling", "mod": "Mod", "min": "Min", "max": "Max"}
SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


class Call(NamedTuple):
    """A function of forms that is no polynomial."""

    name: str
    arguments: tuple[Form, ...]


Atom = str | Call
Monomial = tuple[tuple[Atom, int], ...]


def _key(atom: Atom) -> tuple[int, str]:
    if isinstance(atom, Call):
        return len(ORDER) + 1, f"{atom.name}{[argument.text() for argument in atom.arguments]}"
    stem = atom.rstrip("0123456789_")
    return (ORDER.index(stem), atom) if stem in ORDER else (len(ORDER), atom)


def _whole(value: Number) -> Number:
    return value.numerator if isinstance(value, Fraction) and value.denominator == 1 else value


class Form:
    """A sum of terms; immutable.

    Attributes:
        terms: coefficient of each monomial, none of them zero.
    """

    __slots__ = ("__dict__", "terms")

    def __init__(self, terms: Mapping[Monomial, Number]):
        self.terms: dict[Monomial, Number] = {
            mono: value if type(value) is int else _whole(value) for mono, value in terms.items() if value
        }

    @classmethod
    def of(cls, value: Number | str | Call) -> Form:
        """Return the form of a number, of a size by its name, or of a call."""
        if isinstance(value, str | Call):
            return cls({((value, 1),): 1})
        return cls({(): value})

    # -- arithmetic ---------------------------------------------------------------------------------------------------

    def __add__(self, other: Form) -> Form:
        terms = dict(self.terms)
        for mono, value in other.terms.items():
            terms[mono] = terms.get(mono, 0) + value
        return Form(terms)

    def __neg__(self) -> Form:
        call = self._sole_call("floor")
        if call is not None:  # -floor(-a) is the ceiling of a
            return Form.of(Call("ceil", (-call.arguments[0],)))
        return Form({mono: -value for mono, value in self.terms.items()})

    def __sub__(self, other: Form) -> Form:
        return self + Form({mono: -value for mono, value in other.terms.items()})

    def __mul__(self, other: Form) -> Form:
        terms: dict[Monomial, Number] = {}
        for left, a in self.terms.items():
            for right, b in other.terms.items():
                mono = _times(left, right)
                terms[mono] = terms.get(mono, 0) + a * b
        return Form(terms)

    def __truediv__(self, other: Form) -> Form:
        """Return the quotient: term by term where `other` is one term, else a multiple of it or a `quotient`.

        Raises:
            ZeroDivisionError: `other` is zero.
        """
        if not other.terms:
            raise ZeroDivisionError("a form divided by zero")
        if len(other.terms) == 1:
            ((mono, value),) = other.terms.items()
            inverse: Number = Fraction(1, value) if isinstance(value, int) else 1 / value
            return self * Form({tuple((atom, -power) for atom, power in mono): inverse})
        first = next(iter(other.terms))
        if first in self.terms:
            ratio = Form.of(Fraction(self.terms[first]) / other.terms[first])
            if (self - other * ratio).is_zero:
                return ratio
        return Form.of(Call("quotient", (self, other)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Form) and self.terms == other.terms

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash(frozenset(self.terms.items()))

    def __repr__(self) -> str:
        return self.text()

    def _sole_call(self, name: str) -> Call | None:
        if len(self.terms) == 1:
            ((mono, value),) = self.terms.items()
            if value == 1 and len(mono) == 1 and mono[0][1] == 1:
                atom = mono[0][0]
                if isinstance(atom, Call) and atom.name == name:
                    return atom
        return None

    # -- questions ----------------------------------------------------------------------------------------------------

    @property
    def is_zero(self) -> bool:
        """Whether there is no term."""
        return not self.terms

    @property
    def constant(self) -> Number | None:
        """The number that the form is, or None."""
        if self.is_zero:
            return 0
        return self.terms.get(()) if len(self.terms) == 1 else None

    @cached_property
    def symbols(self) -> frozenset[str]:
        """The names of all sizes in it, those inside calls included."""
        found: set[str] = set()
        for mono in self.terms:
            for atom, _ in mono:
                if isinstance(atom, Call):
                    found.update(*(argument.symbols for argument in atom.arguments))
                else:
                    found.add(atom)
        return frozenset(found)

    def value(self, sizes: Mapping[str, int]) -> Fraction:
        """Return what the form is worth.

        Raises:
            KeyError: naming a size that is not given.
        """
        total: Number = 0
        for mono, coefficient in self.terms.items():
            top: Any = coefficient
            bottom: Any = 1
            for atom, power in mono:
                worth = sizes[atom] if isinstance(atom, str) else _worth(atom, sizes)
                if power > 0:
                    top = top * worth**power
                else:
                    bottom = bottom * worth**-power
            total = total + (top if bottom == 1 else Fraction(top) / bottom)
        return Fraction(total)

    def is_positive(self, least: Mapping[str, int], strictly: bool = True) -> bool:
        """Return whether it is above zero (or not below) for all sizes from their least values on; False if unknown.

        Args:
            least: smallest value of each size, 1 where it is not given.
            strictly: whether zero itself is ruled out.
        """
        cleared = self._without_divisors()
        if cleared is None:
            return False
        shifted = Form.of(0)
        for mono, coefficient in cleared.terms.items():
            part = Form.of(coefficient)
            for atom, power in mono:
                for _ in range(power):
                    part = part * (Form.of(atom) + Form.of(least.get(str(atom), 1)))
            shifted = shifted + part
        if any(value < 0 for value in shifted.terms.values()):
            return False
        return bool(shifted.terms.get(())) if strictly else True

    def _without_divisors(self) -> Form | None:
        """Return it times all sizes that it is divided by, None where a call is in it."""
        lowest: dict[Atom, int] = {}
        for mono in self.terms:
            for atom, power in mono:
                if isinstance(atom, Call):
                    return None
                lowest[atom] = min(lowest.get(atom, 0), power)
        return self * Form({tuple(sorted(((a, -p) for a, p in lowest.items() if p), key=lambda x: _key(x[0]))): 1})

    def is_integral(self) -> bool:
        """Return whether it is whole for all whole sizes; False if that is not known."""
        if any(power < 0 for mono in self.terms for _, power in mono):
            return False
        bottom = lcm(*(Fraction(value).denominator for value in self.terms.values()))
        names = sorted(self.symbols)
        if bottom == 1:
            return True
        if bottom > 6 or len(names) > 3 or any(isinstance(atom, Call) for mono in self.terms for atom, _ in mono):
            return False
        # A polynomial whose coefficients have this denominator is whole everywhere if it is for all residues.
        scaled = (dict(zip(names, at, strict=True)) for at in product(range(bottom), repeat=len(names)))
        return all((self.value(at) * bottom) % bottom == 0 for at in scaled)

    def sign_alone(self) -> Form:
        """Return a simpler form of the same sign, all sizes being positive and what divides by ranks above one."""
        if self.is_zero:
            return self
        shared, rest = _shared(self)
        peers = _peers(rest)
        if peers is not None and all(
            not isinstance(a, Call) or a.name == "less one" for m in peers[0].terms for a, _ in m
        ):
            rest = peers[1]
        return Form.of(-1) * rest if next(iter(shared.terms.values())) < 0 else rest

    # -- writing ------------------------------------------------------------------------------------------------------

    def text(self, pretty: bool = False) -> str:
        """Return it factored, as Python would compute it (`2*B*d**2`), or for reading (`2·B·d²`)."""
        return _Writer(pretty).sum(self)


def _times(left: Monomial, right: Monomial) -> Monomial:
    if not left:
        return right
    if not right:
        return left
    powers = dict(left)
    for atom, power in right:
        powers[atom] = powers.get(atom, 0) + power
    return tuple(sorted(((atom, power) for atom, power in powers.items() if power), key=lambda item: _key(item[0])))


def _worth(atom: Atom, sizes: Mapping[str, int]) -> Number:
    if not isinstance(atom, Call):
        return sizes[atom]
    values = [argument.value(sizes) for argument in atom.arguments]
    if atom.name == "floor":
        return values[0].__floor__()
    if atom.name == "ceil":
        return values[0].__ceil__()
    if atom.name == "mod":
        return values[0] % values[1]
    if atom.name == "quotient":
        return values[0] / values[1]
    return {"min": min, "max": max}[atom.name](values)


class _Writer:
    """Writes forms, factored step by step."""

    def __init__(self, pretty: bool):
        self.pretty = pretty
        self.dot, self.minus = ("·", "−") if pretty else ("*", "-")

    def sum(self, form: Form) -> str:
        """Return a form as a sum of as few terms as the steps find."""
        if form.is_zero:
            return "0"
        number = form.terms.get(())
        if number is not None and len(form.terms) > 1:
            others = Form({mono: value for mono, value in form.terms.items() if mono})
            if len(others.terms) > 1 and next(iter(_shared(others)[0].terms)):
                return self.joined([self.sum(others), self.term((), number)])
        shared, rest = _shared(form)
        if len(rest.terms) == 1:
            return self.term(*next(iter(form.terms.items())))
        peers = _peers(rest)
        if peers is not None:
            bracket, rest = peers
            shared = shared * bracket
        inner = self.split(rest) if len(rest.terms) > 1 else ""
        if not inner:
            return self.term(*next(iter((shared * rest).terms.items())))
        ((mono, factor),) = shared.terms.items()
        if mono == () and factor == 1:
            return inner
        return self.term(mono, factor, f"({inner})")

    def split(self, form: Form) -> str:
        """Return a form whose terms share nothing: those with the leading atom first, then the others."""
        atom = _leading(form)
        if atom is None:
            parts = [self.term(mono, value) for mono, value in _sorted(form)]
        else:
            inside = Form({m: v for m, v in form.terms.items() if dict(m).get(atom[0], 0) * atom[1] > 0})
            outside = Form({m: v for m, v in form.terms.items() if m not in inside.terms})
            parts = [self.sum(inside), self.sum(outside)]
        return self.joined(parts)

    def joined(self, parts: list[str]) -> str:
        """Return a sum of written terms, what is added before what is taken off."""
        parts = sorted(parts, key=lambda part: part.startswith(self.minus))
        text = parts[0]
        for part in parts[1:]:
            text += f" {self.minus} {part[1:]}" if part.startswith(self.minus) else f" + {part}"
        return text

    def term(self, mono: Monomial, value: Number, bracket: str = "") -> str:
        """Return a product, with what it is divided by at its end."""
        exact = Fraction(value)
        top = [self.power(atom, power) for atom, power in mono if power > 0] + ([bracket] if bracket else [])
        bottom = [self.power(atom, -power) for atom, power in mono if power < 0]
        if abs(exact.numerator) != 1 or not top:
            top = [str(abs(exact.numerator)), *top]
        if exact.denominator != 1:
            bottom = [str(exact.denominator), *bottom]
        text = self.dot.join(top)
        if not bottom and len(top) == 1 and mono and isinstance(mono[0][0], Call) and mono[0][0].name == "quotient":
            text = self.call(mono[0][0])
        if bottom:
            text += "/" + (bottom[0] if len(bottom) == 1 else f"({self.dot.join(bottom)})")
        return (self.minus if exact < 0 else "") + text

    def power(self, atom: Atom, power: int) -> str:
        """Return an atom to a power above zero."""
        name = atom if isinstance(atom, str) else self.call(atom)
        if isinstance(atom, Call) and atom.name == "quotient":
            name = f"({name})"
        if power == 1:
            return name
        return name + (str(power).translate(SUPERSCRIPT) if self.pretty else f"**{power}")

    def call(self, atom: Call) -> str:
        """Return a call; a quotient as a division of two brackets. For reading, floor and ceiling have their signs."""
        arguments = [self.sum(argument) for argument in atom.arguments]
        if atom.name == "quotient":
            return f"({arguments[0]})/({arguments[1]})"
        if atom.name == "bracket":
            return f"({arguments[0]})"
        if atom.name == "less one":
            return f"({arguments[0]} {self.minus} 1)"
        if self.pretty and atom.name in BRACKETS:
            return BRACKETS[atom.name].format(arguments[0])
        return f"{atom.name if self.pretty else SYMPY_NAMES[atom.name]}({', '.join(arguments)})"


def _peers(form: Form) -> tuple[Form, Form] | None:
    """Return (a + b x, f) or (a + b / x, f) where the form is their product, for a size x and numbers a and b.

    So what is partly replicated over x ranks and partly split shows one bracket for all arrays.
    """
    once = {(atom, power): None for mono in form.terms for atom, power in mono if abs(power) == 1}
    for atom, sign in sorted(once, key=lambda item: item[1]):  # divisors first
        if not isinstance(atom, str):
            continue
        without: dict[Monomial, Number] = {}
        within: dict[Monomial, Number] = {}
        for mono, value in form.terms.items():
            power = dict(mono).get(atom, 0)
            if power not in (0, sign):
                break
            (within if power else without)[tuple(item for item in mono if item[0] != atom)] = value
        else:
            if without.keys() != within.keys():
                continue
            ratios = {Fraction(within[mono]) / value for mono, value in without.items()}
            if len(ratios) != 1:
                continue
            ratio, size = ratios.pop(), Form({((atom, sign),): 1})
            if ratio == -1 and sign == -1:
                return Form({((Call("less one", (Form.of(atom),)), 1), (atom, -1)): 1}), Form(without)
            if len(without) > 1:
                parts = Form.of(ratio.denominator) + Form.of(ratio.numerator) * size
                return Form.of(Call("bracket", (parts,))), Form(without) / Form.of(ratio.denominator)
    return None


def _sorted(form: Form) -> list[tuple[Monomial, Number]]:
    """Return terms of many atoms before those of few, in the order of atoms; a number last."""
    return sorted(
        form.terms.items(), key=lambda item: (-sum(abs(p) for _, p in item[0]), [_key(atom) for atom, _ in item[0]])
    )


def _shared(form: Form) -> tuple[Form, Form]:
    """Return (what all terms share, the rest)."""
    powers: dict[Atom, list[int]] = {}
    for mono in form.terms:
        for atom, power in mono:
            powers.setdefault(atom, []).append(power)
    common: dict[Atom, int] = {}
    for atom, found in powers.items():
        if len(found) == len(form.terms):
            if min(found) > 0:
                common[atom] = min(found)
            elif max(found) < 0:
                common[atom] = max(found)
    values = [Fraction(value) for value in form.terms.values()]
    factor = Fraction(gcd(*(v.numerator for v in values)), lcm(*(v.denominator for v in values)))
    if all(value < 0 for value in values):
        factor = -factor
    mono = tuple(sorted(common.items(), key=lambda item: _key(item[0])))
    shared = Form({mono: factor})
    return shared, form / shared


def _leading(form: Form) -> tuple[Atom, int] | None:
    """Return the atom, with the sign of its power, that stands in most terms and not in all; of equals the layers."""
    counts: dict[tuple[Atom, int], int] = {}
    for mono in form.terms:
        for atom, power in mono:
            key = (atom, 1 if power > 0 else -1)
            counts[key] = counts.get(key, 0) + 1
    several = {key: n for key, n in counts.items() if 1 < n < len(form.terms)}
    if not several:
        return None

    def rank(key: tuple[Atom, int]) -> tuple[Any, ...]:
        layers = isinstance(key[0], str) and key[0].rstrip("0123456789") == LAYERS
        return -several[key], not layers, key[1] < 0, _key(key[0])

    return min(several, key=rank)


def total(forms: Iterable[Form]) -> Form:
    """Return the sum of some forms."""
    found = Form.of(0)
    for form in forms:
        found = found + form
    return found
