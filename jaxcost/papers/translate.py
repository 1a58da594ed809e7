"""One published formula beside jaxcost's own ledger: ledger + signed differences = formula, or the rest is open.

The two sides meet here and nowhere earlier. The ledger's side is a fold over a declared program; the differences are
closed forms in jaxcost's names; the formula is the paper's text in the paper's symbols, each translated. On integers
the sum closes row by row, on symbols for all sizes, by expansion.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

from jaxcost.papers.components import Components
from jaxcost.papers.contract import Contract, Quantity
from jaxcost.papers.expression import expression
from jaxcost.papers.graphs import case_of


class Scope(Mapping[str, Any]):
    """Names from several places, the first that has one wins; nothing is computed before it is asked for."""

    def __init__(self, *parts: Mapping[str, Any]):
        self.parts = parts

    def __getitem__(self, name: str) -> Any:
        for part in self.parts:
            try:
                return part[name]
            except KeyError:
                continue
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(name for part in self.parts for name in part))

    def __len__(self) -> int:
        return len(list(iter(self)))


class Translated(Mapping[str, Any]):
    """The paper's symbols, each by its translation over jaxcost's names."""

    def __init__(self, contract: Contract, scope: Mapping[str, Any]):
        self._texts = {item.paper: item.jaxcost for item in contract.symbols if item.jaxcost}
        self._scope = scope

    def __getitem__(self, name: str) -> Any:
        return expression(self._texts[name]).value(self._scope)

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)


@dataclass(frozen=True)
class Step:
    """One signed step: its name, its amount, the closed form it follows from, and why it is there."""

    name: str
    amount: Any
    form: str
    why: str


@dataclass(frozen=True)
class Translation:
    """A quantity on one case. `residual` is what no difference explains: formula - (ledger + differences)."""

    quantity: Quantity
    ledger: Any
    steps: tuple[Step, ...]
    formula: Any

    @cached_property
    def residual(self) -> Any:
        """Formula less ledger less differences."""
        return self.formula - self.ledger - sum((step.amount for step in self.steps), 0)

    @cached_property
    def closed(self) -> bool:
        """Whether the differences explain everything, exactly (on symbols: by expansion)."""
        return is_zero(self.residual)

    @cached_property
    def status(self) -> str:
        """`exact` without differences, `explained` with, `open` where they leave a rest."""
        if not self.closed:
            return "open"
        return "explained" if any(not is_zero(step.amount) for step in self.steps) else "exact"


def is_zero(value: Any) -> bool:
    """Return whether a value is zero: exactly, or for symbols by expansion."""
    if isinstance(value, int | Fraction):
        return value == 0
    import sympy

    expanded = sympy.expand(sympy.sympify(value))
    return bool(expanded == 0) or bool(sympy.expand(sympy.together(expanded)) == 0)


def constants(contract: Contract) -> dict[str, Any]:
    """Return the constants of a contract as exact numbers."""
    return {item.name: expression(item.value).value({}) for item in contract.constants}


def translate(
    contract: Contract, quantity: Quantity, names: Mapping[str, Any], inputs: Mapping[str, Any] | None = None
) -> Translation:
    """Return a quantity over the ledgers `names` (`Components`); `inputs` are a row's figures, for the symbols."""
    fixed = constants(contract)
    own = Scope(names, fixed)
    paper = Translated(contract, Scope(own, inputs or {}))
    steps = tuple(
        Step(item.name, expression(item.amount).value(own), item.amount, item.why) for item in quantity.differences
    )
    return Translation(
        quantity, expression(quantity.ledger).value(own), steps, expression(quantity.formula).value(paper)
    )


def proved(contract: Contract, quantity: Quantity) -> Translation:
    """Return a quantity on symbols: true of every size of the paper's graph where `closed`."""
    from jaxcost.prediction.symbols import symbolic

    graph = contract.graph(quantity.graph)
    built = symbolic(case_of(graph, quantity), **graph.relations)
    return translate(contract, quantity, Components(built))
