"""What a file of `papers/` declares: one published accounting contract, in the paper's own symbols and figures.

A contract has ten axes (what is counted, over which rows, with which backward pass and replay, owned by whom), symbols
with their translation, quantities (a published formula, the ledger of jaxcost it corresponds to, and signed differences
between the two) and tables as printed. Whatever an axis does not say is written `not stated`, never left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import Field

from jaxcost.contracts.errors import Problem, RejectedError
from jaxcost.contracts.execution import Remat
from jaxcost.contracts.record import Name, Record
from jaxcost.papers.components import COMPONENTS, SYMBOLS
from jaxcost.papers.expression import expression
from jaxcost.papers.printed import figure, is_number

Formula = Annotated[str, Field(min_length=1, max_length=2000)]
Text = Annotated[str, Field(min_length=1, max_length=2000)]
Identifier = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,60}$")]
Decimal = Annotated[str, Field(pattern=r"^[0-9]{1,30}(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,3})?$")]

# What two papers may both give. Model FLOPs and hardware FLOPs are kinds of their own: their denominators differ.
KINDS = {
    "parameters": "scalars",
    "forward_flops": "FLOPs",
    "model_flops": "FLOPs",
    "hardware_flops": "FLOPs",
    "saved_bytes_per_layer": "bytes",
    "state_bytes": "bytes",
    "state_bytes_per_device": "bytes",
}
PER_DEVICE = ("state_bytes_per_device",)
Kind = Literal[
    "parameters", "forward_flops", "model_flops", "hardware_flops", "saved_bytes_per_layer", "state_bytes",
    "state_bytes_per_device",
]  # fmt: skip
# What a published form may take for granted about the graph, each with the test that a target must pass (`gate`).
Requirement = Literal[
    "one_kind_of_layer", "multi_head", "heads_fill_width", "classic_mlp", "width_4d", "dropout", "two_byte_activations",
    "materialised", "no_windows", "table_of_hidden_width", "rows_all", "zero_0", "zero_1", "zero_2", "zero_3",
    "data_parallel_only", "one_device",
]  # fmt: skip
AXES = (
    "architecture", "coordinate", "phase", "operations", "backward", "replay", "state", "ownership", "output",
    "evidence",
)  # fmt: skip


class Axes(Record):
    """The ten axes on which two contracts can differ, in words."""

    architecture: Text
    coordinate: Text
    phase: Text
    operations: Text
    backward: Text
    replay: Text
    state: Text
    ownership: Text
    output: Text
    evidence: Text


class Source(Record):
    """Where the contract was read: citation, address, and a locator for each thing taken from it."""

    citation: Text
    url: Text
    locators: tuple[Text, ...]


class Symbol(Record):
    """One symbol of the paper. `jaxcost` is its translation, empty for one that nothing here corresponds to."""

    paper: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,40}$")]
    jaxcost: str = Field(default="", max_length=500)
    meaning: Text


class Constant(Record):
    """A number of the paper, as printed; `device` is the name of a device of `hardware/` whose dense peak it is."""

    name: Identifier
    value: Decimal
    meaning: Text
    device: str = Field(default="", max_length=80)
    path: str = Field(default="bf16", max_length=40)


class Difference(Record):
    """One signed step from jaxcost's ledger to the paper's figure, with a closed form of its own."""

    name: Text
    amount: Formula
    why: Text


class Graph(Record):
    """The graph a paper counts: a model of the catalogue, or a uniform stack with sizes by name or formula.

    `relations` tie the symbols of a proof (as `symbols.symbolic_sizes` takes them).
    """

    name: Identifier
    model: str = Field(default="", max_length=80)
    norm: Literal["none", "rms", "layer", "layer_bias"] = "none"
    mlp: Literal["classic", "gated"] = "classic"
    biases: bool = False
    positions: Literal["none", "learned", "rotary"] = "none"
    residual: Literal["pre", "parallel"] = "pre"
    tied: bool = True
    dropout: bool = False
    sizes: dict[str, Formula] = Field(default_factory=dict)
    relations: dict[str, str] = Field(default_factory=dict)

    def problems(self) -> Iterable[Problem]:
        needed = {"hidden", "layers", "heads", "kv_heads", "head_dim", "width", "vocabulary", "positions"}
        if self.model and self.sizes:
            yield Problem("sizes", sorted(self.sizes), "a model of the catalogue has its own sizes", "leave sizes out")
        elif not self.model and set(self.sizes) != needed:
            rule = f"a graph gives exactly {', '.join(sorted(needed))}"
            yield Problem("sizes", sorted(self.sizes), rule, "give each, as a number, a column or a formula")
        yield from _formulas(self.sizes.items(), "sizes")


class Quantity(Record):
    """A published formula and how jaxcost's ledger comes to it: `ledger` + differences = `formula`, for all sizes.

    `formula` is in the paper's symbols; `ledger` and the differences are in jaxcost's names (`components`) alone.
    `remat` is what the contract replays. `to_kind` brings the figure to that of a whole step where a gate compares
    `kind`. `cells` names the printed inputs the formula is evaluated on, where it needs any beside the graph's.
    """

    name: Identifier
    title: Text
    equation: Text
    unit: Literal["scalars", "FLOPs", "bytes"]
    formula: Formula
    ledger: Formula
    graph: Identifier
    remat: Remat = "none"
    precision: str = Field(default="", max_length=40)
    differences: tuple[Difference, ...] = ()
    kind: Kind | None = None
    to_kind: Formula = "1"
    requires: tuple[Requirement, ...] = ()
    rank_local: bool = False
    symbolic: bool = True
    subsection: str = Field(default="", max_length=60)

    def problems(self) -> Iterable[Problem]:
        pairs = [("formula", self.formula), ("ledger", self.ledger), ("to_kind", self.to_kind)]
        pairs += [(f"differences.{i}.amount", item.amount) for i, item in enumerate(self.differences)]
        yield from _formulas(pairs)
        yield from self._ownership_problems()
        if self.kind is not None and KINDS[self.kind] != self.unit:
            rule = f"the kind {self.kind} is counted in {KINDS[self.kind]}"
            yield Problem("unit", self.unit, rule, "activation bytes, scalars and FLOPs are kinds apart")

    def _ownership_problems(self) -> Iterable[Problem]:
        """A kind is global or of one device; a figure of the one is never relabelled as the other."""
        if self.kind is not None and (self.kind in PER_DEVICE) != self.rank_local:
            rule = f"{self.kind} is {'of one device' if self.kind in PER_DEVICE else 'global'}"
            yield Problem("rank_local", self.rank_local, rule, "a global figure is not relabelled as one rank's")


class Column(Record):
    """One column of a table as printed.

    `role` is `derived` where the source does not print it; `note` then says how. `exact` columns hold counts, which no
    rounding touches; the digits of the others are those printed, unless `significant`, `digit` (the unit of the last
    one) or `zeros` says otherwise.
    """

    name: Identifier
    title: Text
    unit: str = Field(default="", max_length=60)
    role: Literal["printed", "label", "derived"] = "printed"
    note: str = Field(default="", max_length=400)
    exact: bool = False
    significant: Annotated[int, Field(ge=1, le=30)] | None = None
    digit: Decimal | None = None
    zeros: Literal["significant", "insignificant"] = "significant"

    def problems(self) -> Iterable[Problem]:
        if self.role == "derived" and not self.note:
            yield Problem("note", "", "a column that the source does not print says where it is from", "write a note")
        if self.digit is not None and not float(self.digit):
            yield Problem("digit", self.digit, "must be positive", "write the unit of the last digit")
        if self.name in COMPONENTS or self.name in SYMBOLS:
            yield Problem("name", self.name, "the name of a ledger", "use another")


class Step(Record):
    """One signed step between what a paper's text says and what its table prints."""

    name: Text
    amount: Formula
    why: Text


class Check(Record):
    """How one column is reproduced: `computed` over ledger quantities, columns and constants; `scale` to the print.

    `written` is what the source's text says to compute where that is not what it prints; the `steps` lead from there to
    `computed`. `cut_from` says from which value on the column is cut and not rounded. `utilisation` names FLOPs,
    seconds, devices and the peak of one in place of `computed`; `counts` says which FLOPs. `rows` limits the check to
    rows whose cell in a column is listed.
    """

    column: Identifier
    computed: Formula | None = None
    scale: Formula = "1"
    written: Formula | None = None
    steps: tuple[Step, ...] = ()
    cut_from: Decimal | None = None
    utilisation: tuple[Formula, ...] = ()
    counts: Literal["model", "executed"] = "model"
    rows: dict[Identifier, tuple[str, ...]] = Field(default_factory=dict)
    note: str = Field(default="", max_length=600)

    def problems(self) -> Iterable[Problem]:
        if (self.computed is None) == (not self.utilisation):
            yield Problem("computed", self.computed, "either computed or utilisation", "give one of the two")
        if self.utilisation and len(self.utilisation) != 4:
            rule = "utilisation is of FLOPs, seconds, devices and the peak of one"
            yield Problem("utilisation", list(self.utilisation), rule, "give the four, in that order")
        if bool(self.written) != bool(self.steps):
            yield Problem("steps", len(self.steps), "written and steps go together", "give both or neither")
        pairs = [(name, getattr(self, name)) for name in ("computed", "scale", "written") if getattr(self, name)]
        pairs += [(f"steps.{i}.amount", item.amount) for i, item in enumerate(self.steps)]
        pairs += [(f"utilisation.{i}", text) for i, text in enumerate(self.utilisation)]
        yield from _formulas(pairs)


class Unreproduced(Record):
    """A column that no ledger can say anything about, and why."""

    columns: tuple[Identifier, ...]
    reason: Text


class Workload(Record):
    """The step that each row of a table is about."""

    batch: Formula = "1"
    seq: Formula = "1"
    mesh: dict[str, Formula] = Field(default_factory=dict)
    sequence_parallel: bool = False

    @property
    def texts(self) -> tuple[str, ...]:
        """The formulas of batch, rows and mesh."""
        return (self.batch, self.seq, *self.mesh.values())


class Table(Record):
    """A published table, cell by cell as text, with what is reproduced of it."""

    name: Identifier
    title: Text
    locator: Text
    graph: str = Field(default="", max_length=60)
    workload: Workload = Workload()
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    checks: tuple[Check, ...] = ()
    unreproduced: tuple[Unreproduced, ...] = ()

    def problems(self) -> Iterable[Problem]:
        names = [column.name for column in self.columns]
        yield from _twice("columns", names)
        if not self.rows:
            yield Problem("rows", [], "a table has rows", "copy them as printed")
        for index, row in enumerate(self.rows):
            if len(row) != len(names):
                rule = f"the row has {len(row)} cells, the table {len(names)} columns"
                yield Problem(f"rows.{index}", len(row), rule, "give one cell for each column, empty where blank")
                continue
            for column, cell in zip(self.columns, row, strict=True):
                if cell and column.role != "label" and not is_number(cell):
                    yield Problem(f"rows.{index}.{column.name}", cell, "not a printed number", "copy the figure alone")
        said = [item.column for item in self.checks] + [name for item in self.unreproduced for name in item.columns]
        for name in sorted(set(said) - set(names)):
            yield Problem("checks", name, "no column of the table", f"use one of {', '.join(names)}")
        for index, check in enumerate(self.checks):
            for name in sorted(set(check.rows) - set(names)):
                yield Problem(f"checks.{index}.rows", name, "no column of the table", f"use one of {', '.join(names)}")

    def cells(self, row: int) -> dict[str, str]:
        """Return the cells of a row by column."""
        return dict(zip((column.name for column in self.columns), self.rows[row], strict=True))


class Subsection(Record):
    """One part of a composite source: what it inherits, and from which contract."""

    name: Identifier
    inherits: Name
    locator: Text
    says: Text


class Finding(Record):
    """Something a reader of the source should know: an error, a near miss, two mistakes that cancel."""

    kind: Literal["error_in_source", "cancelling_errors", "omission", "inference", "conflict", "not_read"]
    text: Text


class NumericComparison(Record):
    """Whether figures of this source may stand beside another's: only after both are on one target manifest.

    The contracts that ship are all closed; `gate` opens them for one target at a time.
    """

    allowed: bool = False
    normalized_to_common_manifest: bool = False
    target_case_id: str = Field(default="", pattern=r"^([0-9a-f]{64})?$")

    def problems(self) -> Iterable[Problem]:
        if self.allowed and not (self.normalized_to_common_manifest and self.target_case_id):
            rule = "numbers of different papers are compared on one target manifest only"
            remedy = "normalise every axis to a target and give its case digest, or leave the comparison closed"
            yield Problem("allowed", True, rule, remedy)


class Contract(Record):
    """One published accounting contract."""

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,40}$")]
    title: Text
    kind: Literal["paper", "implementation", "composite"]
    primary_object: Text
    source: Source
    axes: Axes
    symbols: tuple[Symbol, ...]
    constants: tuple[Constant, ...] = ()
    graphs: tuple[Graph, ...] = ()
    quantities: tuple[Quantity, ...] = ()
    tables: tuple[Table, ...] = ()
    subsections: tuple[Subsection, ...] = ()
    findings: tuple[Finding, ...] = ()
    numeric_comparison: NumericComparison = NumericComparison()

    def problems(self) -> Iterable[Problem]:
        for field in ("graphs", "quantities", "tables", "constants", "subsections"):
            yield from _twice(field, [item.name for item in getattr(self, field)])
        yield from _twice("symbols", [item.paper for item in self.symbols])
        graphs = {item.name for item in self.graphs}
        uses = [(f"quantities.{i}.graph", item.graph) for i, item in enumerate(self.quantities)]
        uses += [(f"tables.{i}.graph", item.graph) for i, item in enumerate(self.tables) if item.graph]
        for path, name in uses:
            if name not in graphs:
                yield Problem(path, name, "no graph of this contract", f"use one of {', '.join(sorted(graphs))}")
        if (self.kind == "composite") != bool(self.subsections):
            rule = "a composite source is bound to its sources part by part, and only such a source is"
            yield Problem("subsections", len(self.subsections), rule, "list the parts, or correct kind")
        parts = {item.name for item in self.subsections}
        for index, item in enumerate(self.quantities):
            if item.subsection not in (parts or {""}):
                rule = "a quantity of a composite source names the part it stands in"
                yield Problem(f"quantities.{index}.subsection", item.subsection, rule, "name a subsection")
        known = {symbol.paper for symbol in self.symbols if symbol.jaxcost}
        for index, item in enumerate(self.quantities):
            for name in expression(item.formula).names:
                if name not in known:
                    rule = f"the symbol {name!r} of the formula has no translation"
                    yield Problem(f"quantities.{index}.formula", item.formula, rule, "add it to symbols")
            own = [item.ledger, *(difference.amount for difference in item.differences)]
            for name in sorted({name for text in own for name in expression(text).names}):
                if name not in COMPONENTS and name not in SYMBOLS and name not in {c.name for c in self.constants}:
                    rule = f"{name!r} is no ledger of jaxcost"
                    yield Problem(f"quantities.{index}", name, rule, "a ledger's side may not use the paper's symbols")

        for index, table in enumerate(self.tables):
            yield from self._unaccounted(index, table)

    def _unaccounted(self, index: int, table: Table) -> Iterable[Problem]:
        """A printed column is reproduced, an input of what is, or said to be out of reach; none is passed over."""
        texts = list(table.workload.texts)
        if table.graph in {item.name for item in self.graphs}:
            texts += self.graph(table.graph).sizes.values()
        for check in table.checks:
            texts += [text for text in (check.computed, check.written, check.scale, *check.utilisation) if text]
            texts += [step.amount for step in check.steps]
        used = {name for text in texts for name in expression(text).names}
        used |= {symbol for item in self.symbols if item.jaxcost for symbol in expression(item.jaxcost).names}
        used |= {check.column for check in table.checks}
        used |= {name for item in table.unreproduced for name in item.columns}
        for column in table.columns:
            if column.role == "printed" and not column.exact and column.name not in used:
                rule = "a printed column that is neither reproduced nor said to be out of reach"
                yield Problem(
                    f"tables.{index}.columns", column.name, rule, "add a check, or say why under unreproduced"
                )

    def quantity(self, name: str) -> Quantity:
        """Return a quantity by its name.

        Raises:
            KeyError: there is none.
        """
        for item in self.quantities:
            if item.name == name:
                return item
        raise KeyError(name)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the quantities."""
        return tuple(item.name for item in self.quantities)

    def graph(self, name: str) -> Graph:
        """Return a graph by its name."""
        return next(item for item in self.graphs if item.name == name)


def _twice(path: str, names: list[str]) -> Iterable[Problem]:
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield Problem(path, name, "appears twice", "keep one of the two")


def _formulas(pairs: Iterable[tuple[str, str]], below: str = "") -> Iterable[Problem]:
    for path, text in pairs:
        try:
            expression(text)
        except RejectedError as error:
            where = f"{below}.{path}" if below else path
            yield from (Problem(where, problem.value, problem.rule, problem.remedy) for problem in error.problems)


def column_figure(column: Column, cell: str) -> Any:
    """Return the printed figure of a cell under its column's rule for digits."""
    return figure(cell, significant=column.significant, unit=column.digit, zeros=column.zeros)
