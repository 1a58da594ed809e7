"""Every printed figure through the product, and each open once its print, its ledger or its formula is off."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache
from typing import Any

import pytest

from jaxcost.papers import reproduce as module
from jaxcost.papers.components import COMPONENTS, Components
from jaxcost.papers.contract import Contract, Table, Workload, column_figure
from jaxcost.papers.graphs import case_of
from jaxcost.papers.registry import registry
from jaxcost.papers.reproduce import Cell, Reproduction, reproduce, table_cells
from jaxcost.prediction.program import program

TABLES = [
    pytest.param(contract, table, id=f"{contract.name}.{table.name}")
    for contract in registry().values()
    for table in contract.tables
]
CHECKED = [found for found in TABLES if found.values[1].checks]


@cache
def found(name: str) -> Reproduction:
    return reproduce(registry()[name], prove=False)


@cache
def cells(name: str, table: str) -> tuple[Cell, ...]:
    return tuple(cell for cell in found(name).cells if cell.table == table)


def cell(name: str, table: str, row: str, column: str) -> Cell:
    return next(item for item in cells(name, table) if item.row == row and item.column == column)


def values(name: str, table: str, column: str) -> list[float]:
    return [float(item.computed) for item in cells(name, table) if item.column == column and item.computed is not None]


@pytest.mark.parametrize(("contract", "table"), TABLES)
def test_no_printed_figure_is_open(contract: Contract, table: Table) -> None:
    seen = cells(contract.name, table.name)
    assert [(c.row, c.column, c.printed, c.computed, c.reason) for c in seen if c.status == "open"] == []
    filled = sum(
        1
        for index in range(len(table.rows))
        for check in table.checks
        if table.cells(index)[check.column]
        and all(table.cells(index)[name] in listed for name, listed in check.rows.items())
    )
    assert sum(1 for c in seen if c.status != "unmeasured") == filled
    for c in (c for c in seen if c.status in ("exact", "explained")):
        assert c.computed is not None and c.tolerance is not None and abs(c.residual or 0) <= c.tolerance
    for c in (c for c in seen if c.status == "unmeasured"):
        assert c.reason and c.computed is None


@pytest.mark.parametrize(("contract", "table"), CHECKED)
def test_every_printed_column_is_checked_or_said_to_be_out_of_reach(contract: Contract, table: Table) -> None:
    said = {check.column for check in table.checks} | {n for item in table.unreproduced for n in item.columns}
    assert said


def altered(table: Table, row: int, column: str, text: str) -> Table:
    names = [item.name for item in table.columns]
    changed = list(table.rows[row])
    changed[names.index(column)] = text
    return table.model_copy(update={"rows": (tuple(changed),)})


def moved(text: str, unit: Fraction, steps: int) -> str:
    """The printed figure, so many units of its last digit away."""
    value = Fraction(text) + steps * unit
    exponent = -max(0, math.ceil(-math.log10(unit)))
    return f"{float(value):.{-exponent}f}" if exponent else str(int(value))


@pytest.mark.parametrize(("contract", "table"), CHECKED)
def test_one_digit_changed_makes_the_figure_open(contract: Contract, table: Table) -> None:
    """Two units of the last digit off, more where the rounding of printed inputs allows more."""
    pairs = [(i, check) for i in range(len(table.rows)) for check in table.checks]
    for index, check in pairs[:: max(1, len(pairs) // 40)]:
        row = table.cells(index)
        if not row[check.column] or any(row[name] not in listed for name, listed in check.rows.items()):
            continue
        only = table.model_copy(update={"rows": (table.rows[index],), "checks": (check,)})
        [right] = [c for c in table_cells(contract, only) if c.status != "unmeasured"]
        assert right.allowed is not None and right.tolerance is not None
        unit = 2 * right.tolerance
        slack = math.ceil((right.allowed.high - right.allowed.low) / unit) + 2
        column = next(item for item in table.columns if item.name == check.column)
        for steps in (-slack, slack):
            text = moved(right.printed, unit, steps)
            if column_figure(column, text).unit != unit:  # now it ends in a zero that only marks its size
                text = moved(right.printed, unit, steps + (1 if steps > 0 else -1))
            wrong = altered(only, 0, check.column, text)
            [bad] = [c for c in table_cells(contract, wrong) if c.status != "unmeasured"]
            assert bad.status == "open", (table.name, index, check.column, bad.printed, bad.computed)


@pytest.mark.parametrize(
    ("name", "table", "component"),
    [
        ("megatron", "table1", "parameters"),
        ("chinchilla", "table_a4", "training"),
        ("palm", "table22", "training"),
        ("palm", "mfu", "training"),
        ("korthikanti", "table2_sequence", "saved_layer_on_device"),
        ("korthikanti", "table5", "training"),
        ("gpt3", "table_d1_decoders", "bias_scalars"),
        ("zero", "table1_stage2", "state_on_device_2"),
        ("llama3", "total", "training"),
        ("pythia", "table1", "parameters"),
    ],
)
def test_a_ledger_that_is_one_off_makes_its_rows_open(
    name: str, table: str, component: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The print would hide it in its rounding; the formula, which knows nothing of the ledger, does not."""
    right = COMPONENTS[component]
    monkeypatch.setitem(COMPONENTS, component, lambda names: right(names) + 1)
    contract = registry()[name]
    [one] = [item for item in contract.tables if item.name == table]
    only = one.model_copy(update={"rows": one.rows[:1]})
    assert "open" in {c.status for c in table_cells(contract, only)}


@pytest.mark.parametrize(("contract", "table"), [t for t in CHECKED if t.values[1].graph])
def test_a_formula_that_is_off_makes_its_rows_open(contract: Contract, table: Table) -> None:
    wrong = contract.model_copy(
        update={"quantities": tuple(q.model_copy(update={"formula": f"{q.formula} + 1"}) for q in contract.quantities)}
    )
    only = table.model_copy(update={"rows": table.rows[:1]})
    used = {c.column for c in table_cells(contract, only) if c.ledgers}
    seen = [c for c in table_cells(wrong, only) if c.column in used and c.ledgers]
    assert {c.status for c in seen} <= {"open"}


# Right answers, typed from the sources.


def test_megatron_table_1() -> None:
    assert [c.printed for c in cells("megatron", "table1") if c.column == "params_billion"] == [
        "1.7", "3.6", "7.5", "18.4", "39.1", "76.1", "145.6", "310.1", "529.6", "1008.0",
    ]  # fmt: skip
    assert {c.status for c in cells("megatron", "table1") if c.column != "tflops_per_gpu"} <= {
        "exact",
        "explained",
        "bounded",
    }
    assert [round(value, 1) for value in values("megatron", "equation4", "days")] == [33.8, 83.9]


def test_megatron_table_2_follows_equation_3_and_not_equation_4() -> None:
    days = [c for c in cells("megatron", "table2") if c.column == "days"]
    assert [c.printed for c in days] == ["84", "43", "23", "90", "74", "74"]
    assert [c.status for c in days] == ["bounded", "bounded", "exact", "exact", "exact", "exact"]
    shorter = [8 * 300e9 * 174.6e9 / (n * x * 1e12) / 86400 for n, x in ((384, 153.5), (768, 149.5), (1536, 141.5))]
    assert [round(value) for value in shorter] == [82, 42, 22]


def test_torchtitan_logs_what_its_formula_gives() -> None:
    assert round(values("torchtitan", "logged_step", "tflops")[0], 1) == 253.4
    assert [round(value) for value in values("torchtitan", "benchmark", "mfu")] == [39, 33]


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"scale": "0"}, "must be positive"),
        ({"scale": "-1"}, "must be positive"),
        ({"computed": "p/0"}, "divides by zero"),
        ({"computed": "nothing"}, "not known here"),
        ({"computed": None, "utilisation": ("p", "0", "1", "1")}, "above zero"),
        ({"computed": None, "utilisation": ("p", "1", "1/2", "1")}, "devices are whole"),
        ({"computed": None, "utilisation": ("p", "1", "1", "0-1")}, "above zero"),
    ],
)
def test_a_check_that_cannot_be_computed_is_open_with_its_reason(change: dict[str, Any], rule: str) -> None:
    contract = registry()["megatron"]
    table = contract.tables[0]
    check = table.checks[0].model_copy(update=change)
    only = table.model_copy(update={"rows": table.rows[:1], "checks": (check,), "unreproduced": ()})
    [seen] = list(table_cells(contract, only))
    assert seen.status == "open" and rule in seen.reason


def test_palm_appendix_b() -> None:
    assert round(float(cell("palm", "table22", "540B", "tflops_per_token").computed or 0), 2) == 3.28
    assert round(float(cell("palm", "table22", "540B", "tflops_with_remat").computed or 0), 2) == 4.10
    assert [round(value, 1) for value in values("palm", "mfu", "percent")] == [45.7, 46.2, 57.8]
    assert [round(value, 1) for value in values("palm", "mt_nlg", "percent")] == [29.7, 30.2]


def test_chinchilla_table_a4() -> None:
    ratios = [c for c in cells("chinchilla", "table_a4") if c.column == "ratio"]
    assert [c.printed for c in ratios] == ["1.03", "1.10", "1.08", "1.04", "1.03", "0.99"]
    assert {c.status for c in ratios} == {"explained"}
    assert [round(float(c.written or 0), 2) for c in ratios] == [1.58, 1.32, 1.23, 1.15, 1.12, 1.03]
    for c in ratios:
        assert c.written is not None and c.written + sum(step.amount for step in c.between) == c.computed


def test_korthikanti_tables() -> None:
    assert values("korthikanti", "worked", "quadratic") == [80, 64]
    assert [round(v) for v in values("korthikanti", "worked", "saved_percent")] == [70, 65]
    assert [round(v, 1) for v in values("korthikanti", "worked", "overhead_percent")] == [2.7, 1.6]
    assert [round(v, 1) for v in values("korthikanti", "table5", "throughput_increase")] == [29.1, 31.9, 29.7, 32.1]
    assert round(values("korthikanti", "appendix_b", "sbhp_gb")[0], 2) == 2.73
    assert [round(v, 1) for v in values("korthikanti", "figure7_sequence", "both_percent")] == [16.1, 18.5, 20.2, 20.2]
    assert [round(v) for v in values("korthikanti", "table4", "overhead")] == [-3, 39, 7, 4]
    one_replay = [c for c in cells("korthikanti", "table5") if c.column == "hfu"]
    assert all(c.ledgers[0].status == "explained" for c in one_replay)


def test_zero_table_1_at_64_ways() -> None:
    stages = [cell("zero", f"table1_stage{stage}", "7.5B", "gb") for stage in (1, 2, 3)]
    assert [c.printed for c in stages] == ["120", "120", "120"]
    at_64 = [
        next(c for c in cells("zero", f"table1_stage{stage}") if c.row == "7.5B" and c.printed == printed)
        for stage, printed in ((1, "31.4"), (2, "16.6"), (3, "1.88"))
    ]
    assert [round(float(c.computed or 0), 2) for c in at_64] == [31.41, 16.64, 1.88]


def test_zero_cuts_from_100_gb_on_and_rounds_below() -> None:
    every = [c for stage in (1, 2, 3) for c in cells("zero", f"table1_stage{stage}")]
    cut = [c for c in every if any(step.form == "cut" for step in c.between)]
    assert sorted(c.printed for c in cut) == sorted(["513", "4187", "4046", "4011", "257", "2218", "2054", "2013"])
    assert len(every) == 54


def test_llama_3_reads_its_rates_as_rounded_to_tens() -> None:
    status = {c.row: c.status for c in cells("llama3", "table4") if c.column == "mfu"}
    assert sorted(status.values()) == ["bounded", "exact", "exact"]
    assert float(cell("llama3", "total", "405B", "flops").computed or 0) == pytest.approx(3.80e25, rel=1e-3)


def test_peaks_are_those_of_the_hardware_room_and_a_wrong_one_is_open() -> None:
    peaks = {name: found(name).peaks for name in ("megatron", "palm", "maxtext", "llama3", "korthikanti")}
    assert {c.status for seen in peaks.values() for c in seen} == {"exact"}
    contract = registry()["palm"]
    wrong = contract.model_copy(
        update={"constants": tuple(c.model_copy(update={"value": "312.6e12"}) for c in contract.constants)}
    )
    assert {c.status for c in module._peaks(wrong)} == {"open"}


def test_model_and_executed_flops_do_not_stand_for_each_other() -> None:
    """MFU and HFU come from two functions; a check says which FLOPs it counts."""
    seen: list[str] = []
    contract = registry()["palm"]
    [table] = [item for item in contract.tables if item.name == "mfu"]
    with pytest.MonkeyPatch.context() as patch:
        for name in ("mfu", "hfu"):
            right: Any = getattr(module, name)
            patch.setattr(module, name, lambda *a, name=name, right=right: seen.append(name) or right(*a))
        list(table_cells(contract, table))
    assert set(seen[:6]) == {"mfu"} and set(seen[6:]) == {"hfu"}


def test_the_worst_status_is_the_contract_s() -> None:
    assert found("gqa").status == "unmeasured"
    assert found("llama3").status == "bounded"
    assert found("pythia").status == "explained"
    broken = registry()["pythia"]
    rows = (*broken.tables[0].rows[:-1], (*broken.tables[0].rows[-1][:-1], "1"))
    table = broken.tables[0].model_copy(update={"rows": rows})
    assert reproduce(broken.model_copy(update={"tables": (table,)}), prove=False).status == "open"


def test_a_row_without_a_legal_graph_is_open_with_its_reason() -> None:
    contract = registry()["megatron"]
    wrong = altered(contract.tables[0], 0, "attention_heads", "7")  # 2304 is no multiple
    seen = [c for c in table_cells(contract, wrong) if c.column == "params_billion"]
    assert [c.status for c in seen] == ["open"] and seen[0].computed is None
    assert "not a positive integer" in seen[0].reason


def test_why_flashattention_s_gflops_are_out_of_reach() -> None:
    """The reason names what the ledger gives for the stated shape; it is not the printed figure, or near it."""
    contract = registry()["flashattention"]
    scope = {"batch": 64, "seq": 1024}
    quantity = registry()["kaplan"].quantity("n")
    work = Workload(batch="batch", seq="seq")
    names = Components(program(case_of(contract.graph("gpt2_medium"), quantity, scope, work)))
    assert round(names["pairwise_training"] / 1e9) == 825
    [reason] = [c.reason for c in found("flashattention").cells if c.column == "gflops"]
    assert "825 GFLOPs" in reason


def per_token(name: str, table: str, quantity: str, row: int) -> Components:
    """The ledgers of one row of a table under a quantity's replay."""
    contract = registry()[name]
    [found_table] = [item for item in contract.tables if item.name == table]
    figures = {c.name: c for c in found_table.columns}
    scope = {
        column: int(text)
        for column, text in found_table.cells(row).items()
        if figures[column].exact and figures[column].role != "label"
    }
    item = contract.quantity(quantity)
    return Components(program(case_of(contract.graph(item.graph), item, scope, found_table.workload)))


def said(name: str, kind: str) -> str:
    return " ".join(item.text for item in registry()[name].findings if item.kind == kind)


def test_the_numbers_in_findings_are_the_ledger_s() -> None:
    llama = per_token("llama3", "total", "six_n", 0)
    rows, text = llama["rows"], said("llama3", "cancelling_errors")
    for name, figure in (("training", "2625.4"), ("pairwise_training", "202.9")):
        assert f"{llama[name] / rows / 1e9:.1f}" == figure and figure in text
    assert f"{6 * llama['embedding_scalars'] / 1e9:.1f}" == "12.6" and "12.6" in text
    low = 1 - 6 * llama["parameters"] * rows / llama["training"]
    causal = 1 - 6 * llama["parameters"] * rows / (llama["training"] - llama["pairwise_training"] / 2)
    assert f"{100 * low:.1f} percent below the ledger with every pair, {100 * causal:.1f} percent" in text
    text = said("megatron", "cancelling_errors")
    for row, figure in ((0, "10.4"), (9, "1.3")):
        names = per_token("megatron", "table1", "iteration_flops", row)
        eight = 8 * (names["parameters"] - names["final_norm_scalars"]) * names["rows"]
        assert f"{100 * (1 - eight / names['executed']):.1f}" == figure and figure in text
    text = said("gpt3", "cancelling_errors")
    for row, figure in ((0, "22"), (7, "2.7")):
        names = per_token("gpt3", "table_d1_decoders", "six_n", row)
        low = 100 * (1 - 6 * names["parameters"] * names["rows"] / names["training"])
        assert f"{low:.{1 if '.' in figure else 0}f}" == figure and f" {figure} " in text
