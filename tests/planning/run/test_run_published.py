"""Published runs: 6 x active x tokens over hours x peak, and the hours beyond a printed utilisation."""

from __future__ import annotations

from fractions import Fraction

import jsonschema
import pytest

from jaxcost.contracts.errors import RejectedError
from jaxcost.planning.run.published import PublishedRun, implied, published_runs
from jaxcost.schema import schema

RUNS = {run.name: run for run in published_runs()}
# run: implied share of the peak in percent, derived by hand from the printed numbers with the peaks of the data sheets,
# written with two decimals; hence the 0.01 below
IMPLIED = {
    "LLaMA-7B": (43.42,), "LLaMA-13B": (51.38,), "LLaMA-33B": (45.82,), "LLaMA-65B": (47.70,), "Llama 2 7B": (39.06,),
    "Llama 2 13B": (37.72,), "Llama 2 70B": (42.84,), "Llama 3.1 405B": (34.58,), "Pythia 70M": (22.12,),
    "Pythia 6.9B": (32.79,), "Pythia 12B": (26.25,), "BLOOM 176B": (31.82,), "PaLM 540B": (30.39,),
    "Gopher 280B": (30.20,), "DeepSeek-V3": (34.63, 17.31),
}  # fmt: skip


@pytest.mark.parametrize("name", IMPLIED)
def test_the_utilisation_that_hours_imply(name: str) -> None:
    found = implied(RUNS[name])
    shares = [float(100 * ratio.value) for _, ratio in found.utilisations]
    assert shares == pytest.approx(IMPLIED[name], abs=0.01)
    assert all(ratio.consistent for _, ratio in found.utilisations)


def test_no_run_is_missing_and_each_names_its_source() -> None:
    assert set(RUNS) == set(IMPLIED)
    assert all(run.cite for run in RUNS.values())


def test_training_total_of_llama_3() -> None:
    run = RUNS["Llama 3.1 405B"]
    assert float(run.flops) == pytest.approx(float(run.printed_flops or 0), rel=1e-3)
    beyond = implied(run).hours_beyond
    assert beyond is not None
    assert [round(float(hours) / 1e6, 2) for hours in beyond] == [2.76, 6.03]


def test_training_total_of_deepseek_v3_counts_active_parameters() -> None:
    run = RUNS["DeepSeek-V3"]
    assert run.flops == 6 * 37 * 10**9 * 148 * 10**11
    assert run.assumed_why and run.precisions == ("bf16", "fp8")
    stored = run.replaced(active=None)
    assert stored.flops == run.flops * Fraction(671, 37)
    assert not implied(stored).utilisations[0][1].value < implied(run).utilisations[0][1].value


def test_faults_in_a_run_are_refused() -> None:
    data = RUNS["DeepSeek-V3"].to_data()
    for fault in ({"active": 672 * 10**9}, {"assumed_why": None}, {"hours": 0}, {"printed_mfu": ["0.43", "0.38"]}):
        with pytest.raises(RejectedError):
            PublishedRun.from_data({**data, **fault})


def test_the_command(run_jaxcost) -> None:  # type: ignore[no-untyped-def]
    import json

    data = json.loads(run_jaxcost("plan", "runs", "--json").stdout)
    jsonschema.validate(data, schema("jaxcost.plan_runs.v1"))
    text = run_jaxcost("plan", "runs").stdout
    assert "34.63%" in text and "17.31%" in text and "no data sheet of the H800" in text
