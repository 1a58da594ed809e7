"""A proof: what a ledger gives on symbols, minus a published closed form, expanded to zero for all sizes.

The left side comes out of the program and the folds that `predict` runs; the right side is a text in the source's
symbols. Neither is made from the other. A wrong form is proved wrong: ledger minus form equals a difference that is
stated, and not zero.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from jaxcost.prediction.symbols import as_form, degree, divided, symbol
from jaxcost.verify.proofs.kinds import KINDS, Derivations

SYMBOLS = ("B", "S", "T", "R", "L", "d", "V", "H", "K", "E", "F", "W", "X")
DEGREES = ("n", "t")
Derive = Callable[[Derivations], Any]
Terms = Callable[[Derivations], Sequence[tuple[str, Any]]]
Status = Literal["holds", "fails"]


@dataclass(frozen=True)
class Proof:
    """One identity, or one wrong form with its error.

    Attributes:
        name: unique; its first part says what it is about.
        statement: the claim in a line, in words and symbols.
        totals: the ledger totals, or rows of a ledger, that it is derived from.
        kind: the kind of case, a key of `KINDS`.
        derive: the ledger's side.
        closed: the published side, in symbols and the names of `given`.
        source: where the closed form stands.
        given: names in `closed` and `difference` that are derived from ledgers of their own.
        difference: ledger minus `closed`; zero for an identity.
        where: what sizes must satisfy besides being whole and positive.
        terms: the parts the ledger's side is the sum of, where the source lists them.
    """

    name: str
    statement: str
    totals: tuple[str, ...]
    kind: str
    derive: Derive
    closed: str
    source: str
    given: Mapping[str, Derive] = field(default_factory=dict)
    difference: str = "0"
    where: str = ""
    terms: Terms | None = None


class Proved(NamedTuple):
    """What came of a proof: both sides, what is left of their difference, and what was taken to divide."""

    proof: Proof
    status: Status
    ledger: str
    residual: str
    divides: tuple[str, ...]
    terms: tuple[tuple[str, str], ...]
    reason: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        data: dict[str, Any] = {
            "name": self.proof.name,
            "statement": self.proof.statement,
            "totals": list(self.proof.totals),
            "kind": KINDS[self.proof.kind].words,
            "closed": self.proof.closed,
            "difference": self.proof.difference,
            "source": self.proof.source,
            "where": [
                *([self.proof.where] if self.proof.where else []),
                *(f"{text} is whole" for text in self.divides),
            ],
            "ledger": self.ledger,
            "residual": self.residual,
            "status": self.status,
        }
        if self.terms:
            data["terms"] = [{"object": name, "value": value} for name, value in self.terms]
        if self.reason:
            data["reason"] = self.reason
        return data


def prove(proof: Proof, derivations: Derivations | None = None) -> Proved:
    """Carry a proof out. A fold that cannot be run on symbols fails it, with the reason."""
    import sympy

    derivations = derivations or Derivations()
    try:
        left, whole = divided(proof.derive(derivations))
        names: dict[str, Any] = {name: symbol(name) for name in SYMBOLS} | {name: degree(name) for name in DEGREES}
        for name, derive in proof.given.items():
            names[name], more = divided(derive(derivations))
            whole += more
        closed, difference = (sympy.sympify(text, locals=names) for text in (proof.closed, proof.difference))
        residual = sympy.expand(sympy.together(left - closed - difference))
        if residual != 0:
            residual = sympy.factor(residual)
        # An identity that leaves something, and an error that is none, both fail.
        zero_error = proof.difference != "0" and sympy.expand(sympy.together(difference)) == 0
        terms = [(name, divided(value)[0]) for name, value in (proof.terms(derivations) if proof.terms else ())]
        gap = sympy.expand(sum(value for _, value in terms) - left) if terms else 0
    except (TypeError, ValueError, KeyError, AttributeError, ZeroDivisionError) as error:
        return Proved(proof, "fails", "", "", (), (), f"{type(error).__name__}: {error}")
    reason = (
        "the listed terms do not sum to the ledger" if gap != 0 else "the stated error is zero" if zero_error else ""
    )
    holds = residual == 0 and not reason
    return Proved(
        proof,
        "holds" if holds else "fails",
        _text(left),
        _text(residual),
        tuple(dict.fromkeys(_text(quotient) for quotient in whole)),
        tuple((name, _text(value)) for name, value in terms),
        reason,
    )


def _text(expression: Any) -> str:
    try:
        return as_form(expression).text()
    except ValueError:
        return str(expression)
