"""Every figure of the scenario comes out of the plan, exactly; published values are typed here and nowhere else."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import sympy

from jaxcost.planning.run.memory import perfect_shard_bytes
from jaxcost.planning.run.sheet import FIGURES, Figure, Sheet, Unknown, figure
from jaxcost.planning.run.work import six_p_flops_per_token
from tests.planning.run.plans import scenario, with_model

# figure: (the value derived by the document's author, the changes to the scenario under which it is asked for)
WORKSHEET = {
    "budget_flops": (Fraction("7.875035136e23"), {}),
    "main_run_flops": (Fraction("5.906276352e23"), {}),
    "useful_flops_per_s": (Fraction("1.012736e17"), {}),
    "affordable_tokens": (Fraction("3281264640000"), {}),
    "optimizer_steps": (820_000, {}),
    "accelerator_hours": (552_960, {}),
    "checkpoint_bytes": (480 * 10**9, {}),
    "weights_bytes": (60 * 10**9, {}),
    "transfer_seconds": (24, {}),
    "pause_fraction_elapsed": (Fraction(60, 1800), {}),
    "pause_fraction_useful": (Fraction(60, 1860), {}),
    "dataset_bytes": (Fraction("13.12e12"), {}),
    "step_positions": (4_194_304, {"batch_tokens": None, "micro_batch": 1, "seq": 8192, "accumulate": 16,
                                   "data_parallel": 32}),
    "cost_low": (1_658_880, {}),
    "cost": (3_317_760, {}),
    "cost_high": (5_529_600, {}),
}  # fmt: skip
# Figures that the document prints as doubles.
ROUNDED = {
    "tokens_per_s": (562631.1111111111, {}),
    "step_seconds": (7.109453993933266, {}),
    "healthy_days": (67.47398466464442, {}),
    "read_bytes_per_s": (2.2664455500276395e6, {}),
}
BATCH = {"batch_tokens": None, "micro_batch": 1, "seq": 8192, "accumulate": 16, "data_parallel": 32}


@pytest.mark.parametrize("name", WORKSHEET)
def test_exact_figures_of_the_worksheet(name: str) -> None:
    value, changes = WORKSHEET[name]
    assert scenario(**changes).known(name) == value


@pytest.mark.parametrize("name", ROUNDED)
def test_rounded_figures_of_the_worksheet(name: str) -> None:
    value, changes = ROUNDED[name]
    assert float(scenario(**changes).known(name)) == value


def test_the_batch_of_factors_and_its_step() -> None:
    plan = scenario(**BATCH)
    assert plan.known("step_positions") == 4_194_304
    assert float(plan.known("step_seconds")) == 7.454802831142568
    assert plan.known("devices_per_replica") == 8


def test_young_at_one_minute_and_six_hours() -> None:
    plan = scenario(checkpoint_pause=60, job_mtbf_hours=6)
    assert plan.known("young_interval_seconds") / 60 == pytest.approx(26.832815729997478, rel=1e-15)


def test_perfect_division_is_16_p_over_d_in_symbols_and_in_the_plan() -> None:
    parameters, devices = sympy.symbols("P D", positive=True)
    assert perfect_shard_bytes(16 * parameters, devices) == 16 * parameters / devices
    plan = scenario()
    assert plan.known("full_state_bytes") == 16 * 30 * 10**9
    assert plan.known("perfect_shard_bytes") == Fraction(16 * 30 * 10**9, 256)


def test_six_p_in_symbols() -> None:
    assert six_p_flops_per_token(sympy.Symbol("P")) == 6 * sympy.Symbol("P")


def test_state_policies_are_sums_of_their_objects() -> None:
    for precision, full, resume in (("bf16_master_adam", 16, 14), ("masterless_bf16", 12, 10), ("fp32", 16, 12)):
        plan = scenario(case={"precision": precision}, parameters=10**9, tokens="1e9")
        scalar = plan.sheet.given["scalar_bytes"]
        assert plan.known("full_state_bytes") == full * 10**9 + scalar
        assert plan.known("resume_bytes") == resume * 10**9 + scalar


def test_factored_state_without_shapes_is_unknown_and_with_a_model_known() -> None:
    plan = scenario(case={"precision": "fp32", "optimizer": "adafactor"}, checkpoint="weights")
    assert plan.known("full_state_bytes") is None and "MODEL" in plan.sheet.value("full_state_bytes").reason
    assert with_model(case={"precision": "fp32", "optimizer": "adafactor"}, mesh=None).known("full_state_bytes") > 0


def test_total_and_active_parameters_are_kept_apart() -> None:
    dense, sparse = scenario(), scenario(active=3_000_000_000)
    for name in ("full_state_bytes", "checkpoint_bytes", "perfect_shard_bytes", "weights_bytes"):
        assert sparse.known(name) == dense.known(name)
    assert sparse.known("stage_flops") * 10 == dense.known("stage_flops")


def test_a_reserve_is_never_charged_twice_with_the_same_downtime() -> None:
    inside, apart = scenario(), scenario(downtime="apart")
    lasting = Fraction(inside.known("productive_fraction"))
    assert apart.known("main_run_flops") == inside.known("main_run_flops") * lasting
    contained = scenario(mfu_window="calendar")
    assert contained.known("main_run_flops") == inside.known("main_run_flops")
    assert contained.known("healthy_days") is None
    assert contained.known("calendar_days") == inside.known("healthy_days")


def test_padding_is_computed_and_not_useful() -> None:
    packed, padded = scenario(), scenario(padding="0.2", masked="0.5")
    assert padded.known("step_useful_tokens") == 3_200_000 and padded.known("step_target_tokens") == 1_600_000
    assert padded.known("processed_tokens") == Fraction("4.1e12")
    assert padded.known("stage_flops") == packed.known("stage_flops") / Fraction("0.8")
    assert padded.known("optimizer_steps") == math.ceil(Fraction("3.28e12") / 3_200_000)


def test_scaling_of_fixed_and_of_growing_work() -> None:
    plan = scenario(baseline_devices=64, serial_fraction="0.02")
    assert plan.known("device_ratio") == 4
    assert plan.known("fixed_work_speedup") == 1 / (Fraction("0.02") + Fraction("0.98") / 4)
    assert plan.known("throughput_gain") == Fraction("0.02") + Fraction("0.98") * 4
    assert plan.known("fixed_work_limit") == 50
    assert scenario(serial_fraction=0).known("fixed_work_limit") is None


def test_other_token_counts_are_no_speedup_of_fixed_work() -> None:
    same = scenario(baseline_tokens="3.28e12", baseline_days=300)
    assert same.known("measured_speedup") == pytest.approx(300 / same.known("calendar_days"))
    assert same.known("measured_throughput_gain") == pytest.approx(same.known("measured_speedup"))
    other = scenario(baseline_tokens="1e12", baseline_days=300)
    assert other.known("measured_speedup") is None and other.known("measured_throughput_gain") > 1
    assert "no speedup of fixed work" in other.sheet.value("measured_speedup").reason


def test_a_step_waits_for_its_slowest_rank() -> None:
    plan = scenario(slow_probability="0.001", slow_factor=2)
    assert plan.known("slow_step_probability") == pytest.approx(1 - 0.999**256, rel=1e-12)
    assert plan.known("mean_slowdown") == pytest.approx(2 - 0.999**256, rel=1e-12)
    assert scenario(slow_probability=0).known("slow_step_probability") == 0
    assert scenario(slow_probability="1e-12").known("slow_step_probability") == pytest.approx(256e-12, rel=1e-9)


def test_batches_in_flight_by_littles_law() -> None:
    assert scenario(loader_seconds=2).known("batches_in_flight") == 1
    assert scenario(loader_seconds=20).known("batches_in_flight") == math.ceil(20 / 7.109453993933266)


def test_what_is_not_given_is_named() -> None:
    found = scenario(job_mtbf_hours=None, restart_seconds=None).sheet.value("productive_fraction", "main")
    assert found == Unknown("not given: job_mtbf_hours, restart_seconds")


def test_every_figure_has_a_contract() -> None:
    plan = scenario()
    for name, item in FIGURES.items():
        assert item.what and not item.what.endswith("."), name
        assert not item.section or (item.scope and item.convention), name
        assert plan.sheet.rests_on(name), name


def test_dependencies_are_those_of_the_signatures() -> None:
    plan = scenario()
    assert plan.sheet.rests_on("accelerator_hours") == ("devices", "days")
    assert "price" not in plan.sheet.rests_on("calendar_days") and "mfu" in plan.sheet.rests_on("calendar_days")


def test_a_second_figure_of_the_same_name_is_refused() -> None:
    def accelerator_hours(devices: int) -> int:
        """Another."""
        return devices

    with pytest.raises(ValueError, match="accelerator_hours"):
        figure("budget", "h")(accelerator_hours)


def test_a_sheet_runs_on_any_figures() -> None:
    def double(each_part: tuple[int, ...], missing: int | None = None) -> int:
        """Twice the parts."""
        return 2 * sum(each_part) + (missing or 0)

    figures = {"double": Figure("double", "x", "", "Twice", "", "", "", False, double)}
    sheet = Sheet({"missing": None}, {"a": {"part": 1}, "b": {"part": 2}}, figures)
    assert sheet.value("double") == 6
    assert Sheet({"missing": 1}, {"a": {"part": None}}, figures).value("double") == Unknown("not given: part")
