"""The partial derivative of a total by a declared extent, and what it says of the difference.

Totals are polynomials of the extents (the same folds on symbols, see `prediction.symbols`). For a total f and a field x
that goes from x0 to x0 + h, the exact difference is the polynomial f(x0 + h) - f(x0) in h. Where f is linear in x, that
is the derivative times h and no approximation; where it is not, the higher terms are shown. Either must be the
difference of the two predictions to the unit: if not, the formula does not hold over the step (padding, a divisor, a
choice between sizes), and that is said.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from jaxcost.contracts.case import Case
from jaxcost.contracts.errors import RejectedError
from jaxcost.planning.sensitivity.scenario import Scenario
from jaxcost.prediction.ledgers import FOLDS
from jaxcost.prediction.sizes import sizes_of
from jaxcost.prediction.symbols import symbol, symbolic

LEDGERS = ("parameters", "state", "flops", "activations", "kv_cache", "traffic")
_GROUP_SYMBOLS = {"repeat": "L", "layer.attention.query_heads": "H", "layer.attention.kv_heads": "K",
                  "layer.attention.head_dim": "E", "layer.mlp.width": "F"}  # fmt: skip
_SYMBOLS = {
    "workload.batch": "B", "workload.new_tokens": "S", "workload.past_tokens": "T", "workload.logits": "R",
    "architecture.hidden_size": "d", "architecture.embedding_width": "w", "architecture.vocabulary_size": "V",
    "architecture.learned_positions.rows": "P",
}  # fmt: skip


def symbol_name(found: Scenario, base: Case) -> str:
    """Return the symbol of the one leaf that moved; empty where the field has none."""
    if len(found.fields) != 1 or len(found.moved) != 1:
        return ""
    leaf = found.moved[0]
    if not _whole(leaf.before) or not _whole(leaf.after):
        return ""
    match = re.fullmatch(r"architecture\.groups\.([0-9]+)\.(.+)", leaf.path)
    if match:
        suffix = "" if len(base.architecture.groups) == 1 else match[1]
        return _GROUP_SYMBOLS[match[2]] + suffix if match[2] in _GROUP_SYMBOLS else ""
    if leaf.path == "workload.new_tokens" and base.workload.continues:
        return ""  # visible rows go with them
    return _SYMBOLS.get(leaf.path, "")


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def values(case: Case) -> dict[str, int]:
    """Return the integer behind each symbol of a case."""
    sizes = sizes_of(case)
    found = {name: sizes.axis(axis) for name, axis in zip("BSTRVPdw", "bstrvpdw", strict=True)}
    for index, group in enumerate(sizes.groups):
        suffix = "" if len(sizes.groups) == 1 else str(index)
        found |= {f"{name}{suffix}": group[axis] for name, axis in zip("HKEF", "hkef", strict=True)}
        found[f"L{suffix}"] = sizes.repeats[index]
        windows = sorted({window for window in case.architecture.groups[index].windows if window})
        for place, window in enumerate(windows):
            found[f"W{suffix}_{place}" if len(windows) > 1 else f"W{suffix}"] = window
    return found


def derivatives(
    base: Case, found: Scenario, differences: Mapping[str, tuple[Any, Any]], paths: Iterable[str]
) -> tuple[dict[str, dict[str, Any]], str]:
    """Return, by path of a total, its derivative and the difference it makes; and why there is none, or nothing.

    Args:
        base, found: the base and a case of one field.
        differences: base value and value of each total, as predicted.
        paths: the totals wanted; those without a formula are left out.
    """
    name = symbol_name(found, base)
    if not name:
        return {}, "" if len(found.fields) > 1 else "the field has no symbol: it is a kind, a policy or an object"
    # A prompt over cached rows tells visible rows from new ones; a whole prompt is its value at T = S.
    kind = found.case if name == "T" else base
    try:
        built = symbolic(kind)
    except RejectedError as error:
        return {}, "; ".join(f"{problem.path}: {problem.rule}" for problem in error.problems)
    totals = {ledger: FOLDS[ledger](built).totals for ledger in LEDGERS}
    old, new = values(base), values(found.case)
    answer = {}
    for path in paths:
        ledger, _, total = path.partition(".")
        if total in totals.get(ledger, ()) and path in differences:
            expression = totals[ledger][total]
            if expression is not None:
                answer[path] = _derivative(expression, name, old, new[name] - old[name], *differences[path])
    return answer, ""


def _derivative(
    expression: Any, name: str, at: Mapping[str, int], step: int, before: Any, after: Any
) -> dict[str, Any]:
    """Return one derivative: its formula, its value at the base, and the exact difference over the step."""
    import sympy

    x, h = symbol(name), sympy.Symbol("h", integer=True)
    expression = sympy.expand(sympy.sympify(expression))
    rest = {symbol(other): value for other, value in at.items() if other != name}
    own = expression.subs(rest)
    slope = sympy.expand(sympy.diff(expression, x))
    grown = sympy.expand(own.subs(x, at[name] + h) - own.subs(x, at[name]))
    difference = grown.subs(h, step)
    found: dict[str, Any] = {
        "symbol": name, "formula": str(slope), "at_base": _number(sympy.diff(own, x).subs(x, at[name])),
        "step": step, "linear": bool(sympy.diff(own, x, 2).simplify() == 0), "difference_formula": str(grown),
        "difference": _number(difference),
    }  # fmt: skip
    held = before is not None and own.subs(x, at[name]) == before
    found["agrees"] = bool(held and after is not None and difference == after - before)
    if not found["agrees"]:
        found["reason"] = (
            "the formula is of another number: padding or a mesh is in the prediction"
            if not held else "the formula does not hold over this step: a divisor or a choice between sizes changes"
        )  # fmt: skip
    return found


def _number(value: Any) -> int | str | None:
    """Return an exact number as JSON carries it: an integer, or the text of a fraction; None where it is none."""
    if value.is_Integer:
        return int(value)
    return str(value) if value.is_Rational else None
