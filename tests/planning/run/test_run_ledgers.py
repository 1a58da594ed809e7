"""What the ledgers say of a model in a plan, and that a plan repeats none of their arithmetic."""

from __future__ import annotations

from fractions import Fraction

import pytest

import jaxcost
from jaxcost.planning.run.document import plan_document
from jaxcost.planning.run.facts import state_components
from jaxcost.planning.run.iso import by_context, iso_budget
from jaxcost.planning.run.review import findings
from jaxcost.planning.run.work import token_work
from jaxcost.prediction.ledgers import Prediction
from tests.planning.run.plans import scenario, with_model

OPTIONS = {"mesh": {"data": 2, "fsdp": 4, "tensor": 4}, "accumulate": 4, "remat": "block"}


@pytest.fixture(scope="module")
def predicted() -> Prediction:
    arch = jaxcost.load("llama-3.2-1b")
    return jaxcost.predict(jaxcost.training(arch, batch=2 * 4 * 8, seq=4096, **OPTIONS))


def test_work_of_a_token_is_the_flops_ledger_of_the_case(predicted: Prediction) -> None:
    plan = with_model()
    tokens = 64 * 4096
    assert plan.known("global_sequences") == 64 and plan.known("step_positions") == tokens
    model = Fraction(predicted.value("flops.forward") + predicted.value("flops.backward"), tokens)
    assert plan.known("ledger_flops_per_token") == plan.known("flops_per_token") == model
    assert plan.known("executed_over_model") == Fraction(predicted.value("flops.total"), tokens) / model


def test_recomputation_does_not_lengthen_a_step_of_useful_flops() -> None:
    assert with_model().known("step_seconds") == with_model(case={"remat": "none"}).known("step_seconds")


def test_memory_is_that_of_the_ownership_and_device_ledgers(predicted: Prediction) -> None:
    plan = with_model()
    assert plan.known("state_bytes_per_device") == predicted.value("ownership.persistent_bytes")
    peak = predicted.value("device.peak_bytes_by_family.cuda")
    assert plan.known("peak_lower_bytes") == peak["lower"] and plan.known("peak_upper_bytes") == peak["upper"]
    assert plan.known("full_state_bytes") == predicted.value("state.bytes")
    assert plan.known("checkpoint_bytes") is not None
    assert plan.known("resume_bytes") == predicted.value("state.checkpoint_bytes")


def test_components_of_the_state_sum_to_it() -> None:
    for plan in (
        scenario(),
        with_model(),
        with_model(case={"frozen": ["embed"]}),
        scenario(case={"precision": "fp32", "optimizer": "lion"}),
    ):
        listed = plan.sheet.given["state_objects"]
        assert sum(size for _, size in listed) == plan.known("full_state_bytes")
    assert dict(state_components(scenario().inputs, 30 * 10**9))["master_parameters"] == 4 * 30 * 10**9


def test_components_of_a_device_sum_to_its_state_and_to_its_peak() -> None:
    plan = with_model()
    listed = plan_document(plan)["components"]
    between = sum(item["bytes"] for item in listed if item["moment"] == "between steps")
    assert between == plan.known("state_bytes_per_device")
    peak = sum(item["bytes"] for item in listed if item["moment"] == "at the peak")
    assert plan.known("peak_lower_bytes") <= peak <= plan.known("peak_upper_bytes")
    kinds = {item["component"] for item in listed if item["moment"] == "at the peak"}
    assert {"gathered_weight", "saved", "workspace"} <= kinds


def test_a_mesh_with_replicas_holds_more_than_perfect_division() -> None:
    plan = with_model()
    assert plan.known("undivided_bytes_per_device") > 0
    assert plan.known("state_bytes_per_device") > plan.known("perfect_shard_bytes")


def test_what_fits_and_what_does_not() -> None:
    assert with_model().known("fits") == "yes"
    crowded = with_model(micro_batch=512, mesh={"data": 32})
    assert crowded.known("fits") == "no" and any(item["kind"] == "does not fit" for item in findings(crowded))


def test_without_a_model_a_plan_never_says_that_it_fits() -> None:
    assert scenario().known("fits") is None
    assert scenario(parameters=3 * 10**12, tokens="1e9").known("fits") == "no"


def test_a_peak_without_a_policy_is_unknown_with_the_reason() -> None:
    plan = with_model(case={"remat": "block", "attention": "cudnn"})
    assert plan.known("peak_upper_bytes") is None and "cudnn" in plan.sheet.value("peak_upper_bytes", "main").reason
    assert plan.known("fits") is None


def test_transfers_are_those_of_the_collectives_ledger(predicted: Prediction) -> None:
    plan, rows = with_model(), predicted.ledgers["collectives"].rows
    assert plan.known("collectives_per_step") == sum(row.fields["times"] for row in rows)
    assert plan.known("largest_payload_bytes") == max(row.fields["payload_bytes"] for row in rows)
    assert plan.known("payload_bytes_per_step") == predicted.value("collectives.payload_bytes")
    inside, between = plan.known("inside_send_bytes_per_step"), plan.known("between_send_bytes_per_step")
    assert inside > 0 and between > 0
    assert plan.known("inside_seconds") == Fraction(inside, 450 * 10**9)


def test_what_the_utilisation_leaves_for_everything_else() -> None:
    plan = with_model()
    assert plan.known("executed_utilisation") == Fraction(2, 5) * plan.known("executed_over_model")
    rest = plan.known("step_seconds") * (1 - plan.known("executed_utilisation"))
    assert plan.known("seconds_beyond_arithmetic") == rest > 0


def test_a_utilisation_that_recomputation_lifts_above_the_peak_is_infeasible() -> None:
    noted = {item["kind"] for item in findings(with_model(mfu="0.9"))}
    assert "above the peak" in noted and "above the peak" not in {item["kind"] for item in findings(with_model())}


def test_transfers_longer_than_the_step_are_infeasible() -> None:
    crowded = with_model(mesh={"fsdp": 4, "tensor": 8}, seq=16, micro_batch=1, mfu="1")
    assert crowded.known("inside_seconds") > crowded.known("step_seconds")
    assert "transfers over the step" in {item["kind"] for item in findings(crowded)}
    assert "transfers over the step" not in {item["kind"] for item in findings(with_model())}


def test_six_p_undercounts_more_as_the_context_grows() -> None:
    arch = jaxcost.load("llama-3.1-8b")
    rows = by_context(arch, 8_030_261_248, (2048, 8192, 32768, 131072), Fraction(10**24), ())
    shares = [row["shortfall"] for row in rows]
    assert shares == sorted(shares) and shares[0] < Fraction(1, 100) and shares[-1] > Fraction(4, 5)
    for row in rows:
        assert row["tokens"] * row["ledger_flops_per_token"] == 10**24
        assert token_work(arch, row["context"]).model == row["ledger_flops_per_token"]


def test_a_context_that_a_model_does_not_take_is_unknown_with_the_reason() -> None:
    (row,) = by_context(jaxcost.load("gpt2"), 124_439_808, (4096,), Fraction(10**20), ())
    assert row["ledger_flops_per_token"] is None and "positions" in row["reason"]


def test_six_p_for_a_model_is_a_finding() -> None:
    noted = {item["kind"]: item["text"] for item in findings(with_model(work="six_p", seq=65536, micro_batch=1))}
    assert "65,536" in noted["6P is not exact"]
    assert "6P is not exact" not in {item["kind"] for item in findings(with_model())}


def test_one_budget_at_every_point_of_the_curve() -> None:
    found = iso_budget(Fraction(10**24), 30 * 10**9)
    assert all(6 * point["parameters"] * point["tokens"] == 10**24 for point in found["points"])
    assert [point["parameters"] for point in found["points"] if point["own"]] == [30 * 10**9]
    assert "not equal quality" in found["note"]


STAGES = [
    {"name": "short", "tokens": "1e12", "seq": 4096},
    {"name": "long", "tokens": "1e10", "seq": 65536, "micro_batch": 1, "mfu": "0.30",
     "mesh": {"fsdp": 8, "context": 4}},
]  # fmt: skip


def test_stages_have_their_own_context_batch_and_utilisation_and_are_summed() -> None:
    plan = with_model(stages=STAGES)
    names = ("stage_tokens", "stage_flops", "healthy_seconds", "optimizer_steps")
    short, long = ([plan.known(name, stage) for name in names] for stage in ("short", "long"))
    assert plan.known("total_tokens") == short[0] + long[0] == 10**12 + 10**10
    assert plan.known("total_flops") == short[1] + long[1]
    assert plan.known("healthy_days") == (short[2] + long[2]) / 86400
    assert plan.known("total_steps") == short[3] + long[3]
    assert plan.known("flops_per_token", "long") > 2 * plan.known("flops_per_token", "short")
    assert plan.known("useful_stage_flops_per_s", "long") == plan.known("useful_flops_per_s") * Fraction(3, 4)
    assert all(check.status in ("exact", "explained") for check in plan.checks)
    alone = with_model(stages=STAGES[:1])
    assert alone.known("stage_flops", "short") == short[1]


def test_a_stage_that_borrows_a_utilisation_is_named() -> None:
    noted = [item["text"] for item in findings(with_model(stages=STAGES)) if item["kind"] == "utilisation reused"]
    assert len(noted) == 1 and noted[0].startswith("short")


def test_a_stage_that_the_mesh_does_not_take_is_refused_by_name() -> None:
    with pytest.raises(jaxcost.RejectedError, match="stage long"):
        with_model(stages=[STAGES[0], {**STAGES[1], "mesh": {"pipeline": 32}}])
