"""Every total and every row of a case's ledgers as a formula of the manifest's and the case's fields.

The case's sizes become traced integers (`traced`) and the folds run on it as they do in `predict`: the values are
theirs, the formulas what they were made of. A formula holds wherever the same decisions fall; `conditions` lists those
that sizes could make fall otherwise. Dtypes, kinds of layer and policies are the case's own and act as numbers;
so do pipeline stages with their microbatches (a schedule is an order, no formula) and given lengths (`numbers`).

Symbols: B sequences, S new rows, T rows visible over a cache, R logits rows, m microbatches, Q rows of an attention
block, d hidden, w columns of a narrower token table, V vocabulary, P position rows; for each group of layers L, H, K,
E, F (layers, query heads, K/V heads, head width, MLP width), W its windows, rot the rotated part of a head; Vp and Hp
are V and H with padding. Mesh axes go by their names. Several groups are numbered (L0, L1).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from pydantic import PrivateAttr

from jaxcost.contracts.case import Case
from jaxcost.contracts.record import Record
from jaxcost.prediction.forms import Call, Form
from jaxcost.prediction.ledgers import FOLDS
from jaxcost.prediction.program import program
from jaxcost.prediction.rows import Row
from jaxcost.prediction.traced import Decisions, Field, Traced, form_of, least_sizes, recording

GROUP_FIELDS = {
    "L": "repeat",
    "H": "layer.attention.query_heads",
    "K": "layer.attention.kv_heads",
    "E": "layer.attention.head_dim",
    "F": "layer.mlp.width",
    "rot": "layer.attention.rotary.dimensions",
}
PEAK = "the fullest cut over time, a choice between sizes; `estimate` gives it as a number"
OTHER_SIDE = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "=", "!=": "!="}


class TracedCase(Case):
    """A case whose sizes are traced integers. It equals no plain case, so that nothing remembered of one is used.

    What is padded has a symbol of its own: `Vp` stored vocabulary rows, `Hp` executed query heads.
    """

    _padded: dict[str, int] = PrivateAttr(default_factory=dict)

    @property
    def vocabulary_rows(self) -> int:
        """Stored vocabulary rows."""
        return self._padded.get("v", super().vocabulary_rows)

    def query_heads(self, group: int) -> int:
        """Query heads of a group as executed."""
        return self._padded.get(f"h{group}", super().query_heads(group))


@dataclass(frozen=True)
class Total:
    """One total of a ledger.

    Attributes:
        path: as in `Prediction.value`, for example `flops.forward`.
        form: its formula, None where it has none.
        value: the number that `predict` gives; None where unknown.
        reason: why there is no formula, or no number.
    """

    path: str
    form: Form | None
    value: Any
    reason: str = ""


@dataclass(frozen=True)
class RowFormula:
    """One row of a ledger with its formula; `device` is that of the worst device, where it was derived."""

    ledger: str
    row: Row
    form: Form | None
    device: Form | None


@dataclass(frozen=True)
class CaseFormulas:
    """The formulas of a case.

    Attributes:
        case: the case, as declared.
        fields: what each symbol stands for.
        totals: every total of every ledger, in order.
        rows: every row.
        conditions: what must hold of other sizes for the formulas of a ledger to be theirs, by ledger.
    """

    case: Case
    fields: dict[str, Field]
    totals: tuple[Total, ...]
    rows: tuple[RowFormula, ...]
    conditions: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def sizes(self) -> dict[str, int]:
        """The value of each symbol."""
        return {name: item.value for name, item in self.fields.items()}

    def of(self, path: str) -> Total:
        """Return a total by its path.

        Raises:
            KeyError: naming the path.
        """
        found = next((total for total in self.totals if total.path == path), None)
        if found is None:
            raise KeyError(f"{path} is not a total of a prediction")
        return found


def case_formulas(case: Case, ledgers: tuple[str, ...] = tuple(FOLDS)) -> CaseFormulas:
    """Return the formulas of a case's ledgers (default: all)."""
    traced, fields = traced_case(case)
    totals: list[Total] = []
    rows: list[RowFormula] = []
    conditions: dict[str, tuple[str, ...]] = {}
    least = least_sizes(fields)
    with recording() as before:
        built = program(traced)
    for name in ledgers:
        with recording() as found:
            found.whole.update(before.whole)
            ledger = FOLDS[name](built)
        found.compared.update(before.compared)
        conditions[name] = tuple(_conditions(found, least))
        totals += [_total(f"{name}.{path}", value, ledger.reasons) for path, value in flat(ledger.totals)]
        rows += [RowFormula(name, row, _form(row.value), _form(row.per_device)) for row in ledger.rows]
    return CaseFormulas(case, fields, tuple(totals), tuple(rows), conditions)


def flat(totals: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the totals with dotted paths; what is neither a number nor unknown is left out."""
    for name, value in totals.items():
        path = f"{above}{name}"
        if isinstance(value, Mapping):
            yield from flat(value, f"{path}.")
        elif value is None or (isinstance(value, int | Fraction) and not isinstance(value, bool)):
            yield path, value


def _total(path: str, value: Any, reasons: Mapping[str, str]) -> Total:
    inside = path.partition(".")[2]
    if "peak" in path:
        return Total(path, None, None, PEAK)
    if value is None:
        return Total(path, None, None, reasons.get(inside, "unknown"))
    number = Fraction(int(value.numerator), int(value.denominator)) if isinstance(value, Fraction) else int(value)
    return Total(path, _form(value), number)


def _form(value: Any) -> Form | None:
    return form_of(value) if isinstance(value, int | Fraction) and not isinstance(value, bool) else None


# -- the traced case --------------------------------------------------------------------------------------------------


def traced_case(case: Case) -> tuple[TracedCase, dict[str, Field]]:
    """Return the case with traced sizes, and what each symbol stands for."""
    names = _names(case)
    fields: dict[str, Field] = {}
    parts = {
        part: _traced(getattr(case, part), part, names, fields) for part in ("architecture", "workload", "execution")
    }
    if case.workload.continues:
        fields["T"] = Field("T", "workload.past_tokens + workload.new_tokens", case.workload.visible_tokens)
        past = Traced(case.workload.past_tokens, Form.of("T") - form_of(parts["workload"].new_tokens))
        parts["workload"] = parts["workload"].model_copy(update={"past_tokens": past})
    data = {name: getattr(case, name) for name in type(case).model_fields}
    made = TracedCase.model_construct(**{**data, **parts})
    for key, name, where, value in _padded(case):
        fields[name] = Field(name, where, value)
        made._padded[key] = Traced(value, Form.of(name))
    return made, fields


def _padded(case: Case) -> Iterator[tuple[str, str, str, int]]:
    """Yield (key, symbol, field, value) of what a case pads."""
    run, groups = case.execution, case.architecture.groups
    if run.vocabulary_multiple > 1:
        where = "architecture.vocabulary_size up to a multiple of execution.vocabulary_multiple"
        yield "v", "Vp", where, case.vocabulary_rows
    if run.head_multiple > 1:
        for index in range(len(groups)):
            heads = f"architecture.groups.{index}.{GROUP_FIELDS['H']}"
            name = "Hp" if len(groups) == 1 else f"Hp{index}"
            yield f"h{index}", name, f"{heads} up to a multiple of execution.head_multiple", case.query_heads(index)


def _names(case: Case) -> dict[str, str]:
    """Return the symbol of each field that is a size, by its dotted path."""
    arch, work, run = case.architecture, case.workload, case.execution
    names = {
        "architecture.hidden_size": "d",
        "architecture.vocabulary_size": "V",
        "architecture.learned_positions.rows": "P",
        "architecture.embedding_width": "w",
        "workload.batch": "B",
    }
    if work.phase != "decode":
        names["workload.new_tokens"] = "S"
    if isinstance(work.logits, int):
        names["workload.logits"] = "R"
    piped = run.degree("pipeline") > 1
    if work.accumulate > 1 and not piped:
        names["workload.accumulate"] = "m"
    if work.attention != "materialised":
        names["workload.attention_block"] = "Q"
    names.update(
        {f"execution.mesh.{axis.name}": axis.name for axis in run.mesh if axis.size > 1 and axis.name != "pipeline"}
    )
    for index, group in enumerate(arch.groups):
        number = "" if len(arch.groups) == 1 else str(index)
        names.update({f"architecture.groups.{index}.{path}": f"{name}{number}" for name, path in GROUP_FIELDS.items()})
        distinct = sorted({window for window in group.windows if window})
        for place, window in enumerate(group.windows):
            if window:
                which = f"_{distinct.index(window)}" if len(distinct) > 1 else ""
                names[f"architecture.groups.{index}.windows.{place}"] = f"W{number}{which}"
    return names


def numbers(case: Case) -> tuple[str, ...]:
    """Return the fields that could have been sizes and act as numbers in this case."""
    found = ["execution.mesh.pipeline", "workload.accumulate"] if case.execution.degree("pipeline") > 1 else []
    return (*found, *(["workload.lengths"] if case.workload.lengths is not None else []))


def _traced(value: Any, path: str, names: Mapping[str, str], fields: dict[str, Field]) -> Any:
    """Return a record with its named sizes traced; `fields` gets what each symbol stands for."""
    if path in names and isinstance(value, int):
        fields.setdefault(names[path], Field(names[path], path, value))
        return Traced(value, Form.of(names[path]))
    if isinstance(value, Record):
        changed = {}
        for name in type(value).model_fields:
            old = getattr(value, name)
            new = _traced(old, f"{path}.{name}", names, fields)
            if new is not old:
                changed[name] = new
        return value.model_copy(update=changed) if changed else value
    if isinstance(value, tuple):
        axes = path == "execution.mesh"
        made = tuple(
            _axis(item, names, fields) if axes else _traced(item, f"{path}.{index}", names, fields)
            for index, item in enumerate(value)
        )
        return made if any(new is not old for new, old in zip(made, value, strict=True)) else value
    return value


def _axis(axis: Any, names: Mapping[str, str], fields: dict[str, Field]) -> Any:
    size = _traced(axis.size, f"execution.mesh.{axis.name}", names, fields)
    return axis if size is axis.size else axis.model_copy(update={"size": size})


# -- conditions -------------------------------------------------------------------------------------------------------


def _conditions(found: Decisions, least: Mapping[str, int]) -> Iterator[str]:
    """Yield what was decided and could have been decided otherwise, each once."""
    said: set[str] = set()
    for difference, relation in found.compared:
        if not _always(difference, relation, least):
            text = _relation(difference, relation)
            if text not in said:
                said.add(text)
                yield text
    yield from (f"{form.text(pretty=True)} is whole" for form in found.said_whole())


def _always(difference: Form, relation: str, least: Mapping[str, int]) -> bool:
    below = Form.of(-1) * difference
    if relation == "<=" and len(difference.terms) == 2 and difference == Form.of(-1) + _first_floor(difference):
        return True  # the floor of one over sizes is at most 1
    if relation == "!=":
        return difference.is_positive(least) or below.is_positive(least)
    side = difference if relation in (">", ">=") else below
    return relation != "=" and side.is_positive(least, strictly=relation in ("<", ">"))


def _first_floor(form: Form) -> Form:
    """Return the floor of 1 divided by sizes that a form has for a term, or zero."""
    for mono in form.terms:
        for atom, _ in mono:
            if isinstance(atom, Call) and atom.name == "floor":
                inside = atom.arguments[0].terms
                if list(inside.values()) == [1] and all(power < 0 for _, power in next(iter(inside))):
                    return Form.of(atom)
    return Form.of(0)


def _relation(difference: Form, relation: str) -> str:
    """Return `a < b` for a difference a - b compared with zero."""
    difference = difference.sign_alone()
    left = Form({mono: value for mono, value in difference.terms.items() if value > 0})
    right = Form({mono: -value for mono, value in difference.terms.items() if value < 0})
    sign = {"!=": "≠", "<=": "≤", ">=": "≥"}
    if left.constant is not None and right.constant is None:
        left, right, relation = right, left, OTHER_SIDE[relation]
    return f"{left.text(pretty=True)} {sign.get(relation, relation)} {right.text(pretty=True)}"


__all__ = ["Call", "CaseFormulas", "Field", "RowFormula", "Total", "case_formulas", "flat", "traced_case"]
