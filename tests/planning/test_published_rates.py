"""Published utilisation through `planning.utilisation` and the ledgers: LLM-Foundry's 216 rows, and others."""

from __future__ import annotations

from fractions import Fraction

import pytest

from jaxcost.data import room
from jaxcost.papers.contract import Contract
from jaxcost.papers.registry import read_contract
from jaxcost.papers.reproduce import Reproduction, reproduce
from jaxcost.planning.hardware import device
from jaxcost.planning.utilisation import mfu, of_rate, rate


def contract(name: str) -> Contract:
    return read_contract(room("papers") / f"{name}.toml")


@pytest.fixture(scope="module")
def foundry() -> Reproduction:
    return reproduce(contract("llm-foundry"), prove=False)


def test_all_216_rows_come_out_within_three_hundredths_of_a_point(foundry: Reproduction) -> None:
    assert len(foundry.contract.tables[0].rows) == 216
    for column in ("mfu", "hfu"):
        cells = [cell for cell in foundry.cells if cell.column == column]
        assert len(cells) == 216
        assert all(cell.residual is not None and abs(cell.residual) <= Fraction(3, 100) for cell in cells)
        assert all(cell.status in ("explained", "bounded") for cell in cells)
        assert all(used.status == "explained" for cell in cells for used in cell.ledgers), "from the ledgers"
    assert all(cell.status == "exact" for cell in foundry.cells if cell.column == "scalars")


def test_the_peak_constant_is_named_and_no_other_meets_every_row() -> None:
    """The printed MFUs follow from 989.5; the recorded 989.4 and the common 989 leave rows outside of the print."""
    h100 = device("h100")
    assert "LLM-Foundry" in h100.declared_peak("bf16", 989.5).label
    assert "rounded" in h100.declared_peak("fp8", 1979).origin
    found = contract("llm-foundry")
    peaks = {item.name: item.value for item in found.constants}
    assert peaks == {"peak_a100": "312e12", "peak_h100_bf16": "989.5e12", "peak_h100_fp8": "1979e12"}
    outside = {tera: _outside(found, tera) for tera in (989.5, 989.4, 989)}
    assert outside[989.5] == 0
    assert outside[989.4] > 0
    assert outside[989] > 0


def _outside(found: Contract, tera: float) -> int:
    """Rows of H100 in bf16 whose print no rate in [printed, printed + 1) tokens a second gives."""
    table, peak = found.tables[0], device("h100").declared_peak("bf16", tera)
    count = 0
    for index in range(len(table.rows)):
        cells = table.cells(index)
        if cells["gpu"] != "h100_80gb" or cells["precision"] != "amp_bf16":
            continue
        seq, scalars, width, layers = (int(cells[name]) for name in ("seq", "scalars", "hidden", "layers"))
        flops = 6 * scalars * seq + 12 * layers * width * seq**2
        low, high = (
            100 * mfu(Fraction(flops * (int(cells["tokens_per_s"]) + more), seq), 1, int(cells["gpus"]), peak).value
            for more in (0, 1)
        )
        half = Fraction(1, 200)
        count += not (low - half <= Fraction(cells["mfu"]) <= high + half)
    return count


def test_a_wrong_peak_or_count_would_show(foundry: Reproduction) -> None:
    """The check can fail: the FP8 rows over the BF16 peak, or FLOPs without the attention term, leave 0.03 point."""
    table = foundry.contract.tables[0]
    index = next(i for i in range(216) if table.cells(i)["precision"] == "amp_fp8")
    cells = table.cells(index)
    cell = [item for item in foundry.cells if item.column == "mfu"][index]
    assert cell.computed is not None
    assert abs(2 * cell.computed - Fraction(cells["mfu"])) > Fraction(3, 100)
    seq, scalars = int(cells["seq"]), int(cells["scalars"])
    peak = device("h100").declared_peak("fp8", 1979)
    six_n = 100 * mfu(Fraction(6 * scalars * int(cells["tokens_per_s"])), 1, int(cells["gpus"]), peak).value
    assert seq > 512
    assert abs(six_n - Fraction(cells["mfu"])) > Fraction(3, 100)


@pytest.mark.parametrize(
    ("name", "column", "cells"),
    [("megatron", "percent_of_peak", 10), ("llama3", "mfu", 3), ("maxtext", "mfu_percent", 46)],
)
def test_other_published_percentages(name: str, column: str, cells: int) -> None:
    found = [cell for cell in reproduce(contract(name), prove=False).cells if cell.column == column]
    assert len(found) == cells
    assert all(cell.status in ("exact", "explained", "bounded") for cell in found), [
        (cell.row, cell.printed, float(cell.computed or 0)) for cell in found if cell.status == "open"
    ]


def test_palm_and_mt_nlg_by_their_printed_arithmetic() -> None:
    """Appendix B prints (238.3 x 6 x 540) / (275 x 6144): MFU without attention, in percent 45.7."""
    v4, a100 = device("tpu-v4").peak("bf16"), device("a100").peak("bf16")
    palm = of_rate(rate(Fraction(2383, 10) * 10**3 * 6 * 540 * 10**9, "model", "total"), 6144, v4)
    assert round(100 * float(palm.value), 1) == 45.7
    mt_nlg = of_rate(rate(Fraction(6543, 100) * 10**3 * 6 * 530 * 10**9, "model", "total"), 2240, a100)
    assert round(100 * float(mt_nlg.value), 1) == 29.8, "the paper prints 29.7: cut, not rounded"


def test_llama_s_41_percent_is_400_read_as_rounded_to_tens() -> None:
    peak = device("h100").declared_peak("bf16", 989)
    shares = [100 * of_rate(rate(tera * 10**12, "model", "device"), 16384, peak).value for tera in (395, 400, 405)]
    assert round(float(shares[1]), 1) == 40.4
    assert shares[0] < Fraction(405, 10) <= shares[2], "41 needs 401 or more, which 400 rounded to tens may be"
