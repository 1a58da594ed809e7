"""The partial derivative of a total by a declared size, and what it says of the difference.

Every total of a case is a form of its sizes (`prediction.formulas`): the folds run on integers that remember what they
came from. For a total f and a size x that goes from x0 to x0 + h, the exact difference is the polynomial
f(x0 + h) - f(x0) in h. Where f is linear in x, that is the derivative times h and no approximation; where it is not,
the higher terms are shown. Either must be the difference of the two predictions to the unit: if not, the form does not
hold over the step (a padding, a divisor, a choice between sizes falls otherwise), and that is said.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from math import comb
from typing import Any

from jaxcost.contracts.case import Case
from jaxcost.planning.sensitivity.fields import mesh_sizes
from jaxcost.planning.sensitivity.scenario import Moved, Scenario
from jaxcost.prediction.forms import Call, Form
from jaxcost.prediction.formulas import CaseFormulas, case_formulas, traced_case
from jaxcost.prediction.rows import plain

VISIBLE = "workload.past_tokens"
NO_SYMBOL = "the field is no size: a kind, a policy or an object"
CONDITIONS_SHOWN = 4
WHOLE_PROMPT = "the formula is of rows over a cache, and the base is a whole prompt, of which another one holds"


class Slopes:
    """The derivatives of a base's totals by the sizes that its cases move."""

    def __init__(self, base: Case):
        self.base = base
        self._formulas: CaseFormulas | None = None

    def _of(self, found: Scenario) -> CaseFormulas:
        """A prompt over cached rows tells visible rows from new ones; a whole prompt is its value at T = S."""
        if found.moved[0].path == VISIBLE and not self.base.workload.continues:
            return case_formulas(found.case)
        if self._formulas is None:
            self._formulas = case_formulas(self.base)
        return self._formulas

    def of(self, found: Scenario, rows: Iterable[tuple[str, Any, Any]]) -> tuple[dict[str, dict[str, Any]], str]:
        """Return, by path of a total, its derivative and the difference it makes; and why there is none, or nothing.

        Args:
            found: a case of one field.
            rows: path, base value and value of each total. One that neither moves nor depends on the field is left out.
        """
        if len(found.fields) != 1 or len(found.moved) != 1:
            return {}, NO_SYMBOL
        if found.moved[0].path == "workload.new_tokens" and self.base.workload.continues:
            return {}, "visible rows go with new ones: two sizes move"
        formulas = self._of(found)
        step = _step(found.moved[0], formulas)
        if step is None:
            return {}, NO_SYMBOL
        name, before, after = step
        at = {**formulas.sizes, name: before}
        # Sizes that follow from others (padded ones) are those of the case.
        new = {**at, **{symbol: item.value for symbol, item in traced_case(found.case)[1].items()}, name: after}
        moved = {symbol for symbol in at if new[symbol] != at[symbol]}
        answer = {}
        for path, base, value in rows:
            total = next((item for item in formulas.totals if item.path == path), None)
            if total is not None and total.form is not None and (moved & total.form.symbols or base != value):
                holds = formulas.conditions[path.partition(".")[0]]
                answer[path] = derivative(total.form, name, (at, new), base, value, holds)
        return answer, ""


def _step(leaf: Moved, formulas: CaseFormulas) -> tuple[str, int, int] | None:
    """Return the symbol of the leaf that moved, with its value before and after; None where it has none."""
    before, after, path = leaf.before, leaf.after, leaf.path
    if path == "execution.mesh":
        old, new = (mesh_sizes(side) for side in (before, after))
        moved = [axis for axis in old if old[axis] != new.get(axis)]
        if list(old) != list(new) or len(moved) != 1:
            return None
        path, before, after = f"{path}.{moved[0]}", old[moved[0]], new[moved[0]]
    if path == VISIBLE:
        new_rows = formulas.case.workload.new_tokens
        return ("T", before + new_rows, after + new_rows) if "T" in formulas.fields else None
    if not _whole(before) or not _whole(after):
        return None
    name = next((name for name, item in formulas.fields.items() if item.field == path), None)
    return None if name is None else (name, before, after)


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def powers(form: Form, name: str) -> dict[int, Form] | None:
    """Return the coefficient of each power of a size, forms of the others; None where the size is inside a call."""
    found: dict[int, Form] = {}
    for mono, value in form.terms.items():
        if any(isinstance(atom, Call) and name in Form.of(atom).symbols for atom, _ in mono):
            return None
        power = dict(mono).get(name, 0)
        rest = Form({tuple((atom, count) for atom, count in mono if atom != name): value})
        found[power] = found.get(power, Form.of(0)) + rest
    return found


def slope(form: Form, name: str) -> Form | None:
    """Return the partial derivative of a form by a size; None where the size is inside a call."""
    parts = powers(form, name)
    if parts is None:
        return None
    total = Form.of(0)
    for power, rest in parts.items():
        if power:
            total = total + rest * Form({((name, power - 1),) if power != 1 else (): power})
    return total


def growth(form: Form, name: str, at: Mapping[str, int]) -> dict[int, Fraction] | None:
    """Return f(x + h) - f(x) as coefficients of the powers of h, all sizes at `at`; None where it is no polynomial."""
    parts = powers(form, name)
    if parts is None or any(power < 0 for power in parts):
        return None
    values = {power: rest.value(at) for power, rest in parts.items()}
    found = {}
    for j in range(1, max(values, default=0) + 1):
        term = sum((value * comb(k, j) * at[name] ** (k - j) for k, value in values.items() if k >= j), Fraction(0))
        if term:
            found[j] = term
    return found


def derivative(
    form: Form,
    name: str,
    sizes: tuple[Mapping[str, int], Mapping[str, int]],
    before: Any,
    after: Any,
    conditions: Iterable[str] = (),
) -> dict[str, Any]:
    """Return one derivative: its formula, its value at the base, and the exact difference over the step.

    Args:
        form, name: the total, and the size that moves.
        sizes: all sizes before and after. Where another size of the form follows in steps there is no derivative.
        before, after: the predicted total.
        conditions: what must hold for the form.
    """
    at, new = sizes
    step = new[name] - at[name]
    alone = all(new[other] == at[other] for other in form.symbols if other != name)
    own, grown = (slope(form, name), growth(form, name, at)) if alone else (None, None)
    difference = form.value(new) - form.value(at)
    if grown is not None:  # the two ways to the difference are one polynomial
        assert sum(value * step**power for power, value in grown.items()) == difference
    found: dict[str, Any] = {
        "symbol": name,
        "formula": None if own is None else own.text(),
        "at_base": None if own is None else plain(own.value(at)),
        "step": step,
        "linear": grown is not None and max(grown, default=0) <= 1,
        "difference_formula": None if grown is None else _polynomial(grown),
        "difference": plain(difference),
        "agrees": before is not None and after is not None and difference == after - before,
    }
    if form.value(at) != before:
        found["agrees"] = False
        found["reason"] = WHOLE_PROMPT if name == "T" else "the base differs"
    elif not found["agrees"]:
        held = list(conditions)
        more = f" and {len(held) - CONDITIONS_SHOWN} more" if len(held) > CONDITIONS_SHOWN else ""
        found["reason"] = f"the formula does not hold over this step; it holds while {', '.join(held[:4])}{more}"
    return found


def _polynomial(grown: Mapping[int, Fraction]) -> str:
    terms = [f"{plain(grown[power])}*h" + (f"**{power}" if power > 1 else "") for power in sorted(grown, reverse=True)]
    return " + ".join(terms).replace("+ -", "- ") or "0"
