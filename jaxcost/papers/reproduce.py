"""Published tables, row by row: printed, computed, and what stands between the two.

For each row a case is built, its ledgers answer, signed differences lead to the paper's convention, the published
formula must give the same integer, and the result must agree with the print within half a unit of its last digit. Where
printed inputs enter (times, rates) their own rounding gives an interval, and a print that meets it is `bounded`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from jaxcost.contracts.errors import RejectedError, reject
from jaxcost.papers.components import Components
from jaxcost.papers.contract import Check, Column, Contract, Quantity, Table, column_figure
from jaxcost.papers.expression import Interval, expression, interval
from jaxcost.papers.graphs import case_of
from jaxcost.papers.printed import Figure
from jaxcost.papers.translate import Scope, Step, Translation, constants, proved, translate
from jaxcost.planning.hardware import device
from jaxcost.planning.utilisation import hfu, mfu
from jaxcost.prediction.program import program

# Worst first, as everywhere in jaxcost.
STATUSES = ("open", "unmeasured", "bounded", "explained", "exact")

_CONSTANT = Column(name="constant", title="constant")


@dataclass(frozen=True)
class Cell:
    """One printed figure beside what was computed. Values are in the print's own unit.

    `between` are the signed steps from what the source's text says (or from jaxcost's ledger) to `computed`; `residual`
    is the print less `computed`, and `tolerance` the half unit that rounding allows. A `derived` figure is not the
    source's print: the source prints the form, and it was evaluated.
    """

    table: str
    row: str
    column: str
    printed: str
    computed: Fraction | None
    residual: Fraction | None
    tolerance: Fraction | None
    status: str
    between: tuple[Step, ...] = ()
    ledgers: tuple[Translation, ...] = ()
    allowed: Interval | None = None
    written: Fraction | None = None
    reason: str = ""
    derived: bool = False


@dataclass(frozen=True)
class Reproduction:
    """What came of a contract: proofs of its forms, its tables' cells, and its constants beside `hardware/`."""

    contract: Contract
    proofs: tuple[Translation, ...]
    cells: tuple[Cell, ...]
    peaks: tuple[Cell, ...]

    @property
    def status(self) -> str:
        """The worst status; a column that is not reproducible, with its reason, does not count."""
        found = [item.status for item in self.proofs] + [item.status for item in (*self.cells, *self.peaks)]
        seen = [status for status in found if status != "unmeasured"]
        return worst(seen) if seen else "unmeasured"


def worst(statuses: list[str]) -> str:
    """Return the worst of statuses."""
    return min(statuses, key=STATUSES.index)


def reproduce(contract: Contract, prove: bool = True) -> Reproduction:
    """Return everything of a contract; `prove` runs its forms on symbols too."""
    proofs = tuple(proved(contract, item) for item in contract.quantities if item.symbolic) if prove else ()
    cells = tuple(cell for table in contract.tables for cell in table_cells(contract, table))
    return Reproduction(contract, proofs, cells, tuple(_peaks(contract)))


class _Row(Mapping[str, Any]):
    """The names one row's checks may use: its columns, the contract's constants, quantities by name, ledgers.

    A quantity's value is jaxcost's: ledger plus differences. That the formula gives the same is kept in `used`, and a
    check that uses an open quantity is open.
    """

    def __init__(self, contract: Contract, table: Table, index: int, known: dict[Any, Components]):
        self.contract, self.table, self._known = contract, table, known
        self.cells = table.cells(index)
        self.figures = {
            column.name: column_figure(column, self.cells[column.name])
            for column in table.columns
            if column.role != "label" and self.cells[column.name]
        }
        self.exact = {column.name for column in table.columns if column.exact}
        self.derived = {column.name for column in table.columns if column.role == "derived"}
        self.nominal = {name: _plain(item.value) for name, item in self.figures.items()}
        self.constants = constants(contract)
        self.used: dict[str, Translation] = {}
        texts = list(table.workload.texts)
        texts += contract.graph(table.graph).sizes.values() if table.graph else []
        names = sorted({name for text in texts for name in expression(text).names})
        self._sizes = tuple(self.nominal.get(name) for name in names)

    def spread(self) -> Scope:
        """The same names, with the columns that rounding touches as intervals."""
        rounded = {name: item.interval for name, item in self.figures.items() if name not in self.exact}
        return Scope(rounded, self)

    def components(self, quantity: Quantity | None = None) -> Components:
        """Return the ledgers of this row's case, under a quantity's replay and precision."""
        quantity = quantity or next(q for q in self.contract.quantities if q.graph == self.table.graph)
        key = (quantity.remat, quantity.precision, self._sizes)
        if key not in self._known:
            graph = self.contract.graph(self.table.graph)
            case = case_of(graph, quantity, self.nominal, self.table.workload)
            self._known[key] = Components(program(case))
        return self._known[key]

    def __getitem__(self, name: str) -> Any:
        if name in self.nominal:
            return self.nominal[name]
        if name in self.constants:
            return self.constants[name]
        if not self.table.graph:
            raise KeyError(name)
        if name in self.contract.names:
            quantity = self.contract.quantity(name)
            if quantity.graph != self.table.graph:
                raise KeyError(f"{name}: the graph of this table is another")
            if name not in self.used:
                self.used[name] = translate(self.contract, quantity, self.components(quantity), self.nominal)
            found = self.used[name]
            return found.ledger + sum((step.amount for step in found.steps), 0)
        return self.components()[name]

    def __iter__(self) -> Iterator[str]:
        return iter((*self.nominal, *self.constants, *self.contract.names))

    def __len__(self) -> int:
        return len(list(iter(self)))


def _plain(value: Fraction) -> int | Fraction:
    return value.numerator if value.denominator == 1 else value


def table_cells(contract: Contract, table: Table) -> Iterator[Cell]:
    """Yield every checked cell of a table, then its columns that are not reproducible, with the reason."""
    known: dict[Any, Components] = {}  # rows of one case share its ledgers
    for index in range(len(table.rows)):
        row = _Row(contract, table, index, known)
        labels = [row.cells[c.name] for c in table.columns if c.role == "label"]
        label = ", ".join(part for part in labels if part) or f"{index + 1}: {table.rows[index][0]}"
        for check in table.checks:
            listed = all(row.cells[name] in cells for name, cells in check.rows.items())
            if listed and row.cells[check.column]:
                yield _cell(row, check, label)
    for item in table.unreproduced:
        for name in item.columns:
            yield Cell(table.name, "", name, "", None, None, None, "unmeasured", reason=item.reason)


def _cell(row: _Row, check: Check, label: str) -> Cell:
    printed = row.figures[check.column]
    row.used = {}
    try:
        nominal, allowed = _computed(row, check)
        steps, written = _between(row, check, printed, nominal)
    except RejectedError as error:
        reason = "; ".join(f"{item.value}: {item.rule}" for item in error.problems)
        derived = check.column in row.derived
        return Cell(
            row.table.name, label, check.column, printed.text, None, None, None, "open", reason=reason, derived=derived
        )  # fmt: skip
    final = nominal + sum((step.amount for step in steps if step.form == "cut"), Fraction(0))
    used = tuple(row.used.values())
    status = _status(printed, final, allowed, steps, used)
    return Cell(
        row.table.name, label, check.column, printed.text, final, printed.value - final, printed.unit / 2, status,
        steps, used, allowed, written, check.note, check.column in row.derived,
    )  # fmt: skip


def _computed(row: _Row, check: Check) -> tuple[Fraction, Interval]:
    """Return the value in the print's unit, and all values that the rounding of printed inputs allows."""
    if check.computed:
        formula, scale = expression(check.computed), _scale(row, check)
        return Fraction(formula.value(row)) / scale, interval(formula.value(row.spread())) / scale
    own = [Fraction(expression(text).value(row)) for text in check.utilisation]
    wide = [interval(expression(text).value(row.spread())) for text in check.utilisation]
    share = _percent(check, *own)
    low = _percent(check, wide[0].low, wide[1].high, wide[2].high, wide[3].high)
    high = _percent(check, wide[0].high, wide[1].low, wide[2].low, wide[3].low)
    return share, Interval(low, high)


def _percent(check: Check, flops: Fraction, seconds: Fraction, devices: Fraction, peak: Fraction) -> Fraction:
    """Return MFU or HFU in percent; which of the two, the check says, and neither stands for the other."""
    ratio = mfu if check.counts == "model" else hfu
    if devices.denominator != 1:
        raise reject("devices", str(devices), "devices are whole", "mark the column of devices exact")
    return 100 * ratio(flops, seconds, devices.numerator, peak).value


def _scale(row: _Row, check: Check) -> Fraction:
    scale = Fraction(expression(check.scale).value(row))
    if scale <= 0:
        raise reject("scale", check.scale, "must be positive", "write how much of the unit one printed unit is")
    return scale


def _between(row: _Row, check: Check, printed: Figure, nominal: Fraction) -> tuple[tuple[Step, ...], Fraction | None]:
    """Return the signed steps to the print, and what the source's own text gives before them."""
    scale = _scale(row, check)
    steps = [
        Step(item.name, Fraction(expression(item.amount).value(row)) / scale, item.amount, item.why)
        for item in check.steps
    ]
    written = Fraction(expression(check.written).value(row)) / scale if check.written else None
    if written is not None and written + sum(step.amount for step in steps) != nominal:
        steps.append(Step("not explained", nominal - written - sum(step.amount for step in steps), "open", ""))
    if check.cut_from is not None and printed.value >= Fraction(check.cut_from):
        cut = math.floor(nominal / printed.unit) * printed.unit - nominal
        if cut:
            steps.append(Step("cut, not rounded", cut, "cut", f"the column is cut from {check.cut_from} on"))
    return tuple(steps), written


def _status(
    printed: Figure, final: Fraction, allowed: Interval, steps: tuple[Step, ...], used: tuple[Translation, ...]
) -> str:
    if any(item.status == "open" for item in used) or any(step.form == "open" for step in steps):
        return "open"
    cut = any(step.form == "cut" for step in steps)
    if abs(printed.value - final) <= (0 if cut else printed.unit / 2):
        return "explained" if steps or any(item.status == "explained" for item in used) else "exact"
    return "bounded" if not cut and allowed.meets(printed.interval) else "open"


def _peaks(contract: Contract) -> Iterator[Cell]:
    """Yield each constant that is a peak beside the dense peak that `hardware/` records for that device."""
    for item in contract.constants:
        if item.device:
            recorded = device(item.device).peak(item.path).per_second
            own = column_figure(_CONSTANT, item.value)
            status = "exact" if abs(own.value - recorded) <= own.unit / 2 else "open"
            yield Cell(
                "constants", item.device, item.name, item.value, recorded, own.value - recorded, own.unit / 2, status,
                reason=item.meaning,
            )  # fmt: skip
