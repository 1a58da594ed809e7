"""Columns, what fits, what changed and what to change first, on recorded programs."""

from __future__ import annotations

from typing import Any

import pytest

from jaxcost.catalog import load
from jaxcost.contracts.case import build_case
from jaxcost.contracts.errors import RejectedError
from jaxcost.planning.advice import HELD, _least, candidates, held
from jaxcost.planning.column import compiled_collectives
from jaxcost.planning.compare import Spec, compare, fill_target, fraction_labels, plan
from jaxcost.planning.difference import buffers_by_class, place_of
from jaxcost.prediction.ledgers import predict
from tests.planning.columns import compared, died, refused, rematerialised, requiring, same
from tests.reconciliation.recorded import named, observed

MEMORY = 84_942_979_072
LIMIT = 80_695_830_118  # 0.95 x MEMORY, rounded down
BASE: dict[str, Any] = {"phase": "training", "batch": 16, "seq": 64, "remat": "block"}


def test_columns_are_in_the_order_of_specs_and_targets() -> None:
    specs = [Spec({"data": 8}), Spec({"fsdp": 4, "tensor": 2}, {"remat": "none"})]
    found = plan(load("llama-3.2-1b"), BASE, specs, ["h100", "tpu-v5e"])
    assert [(item.spec.name, item.target.text) for item in found] == [
        ("data=8", "h100:8"),
        ("data=8", "tpu-v5e:2x4"),
        ("fsdp=4,tensor=2 remat=none", "h100:8"),
        ("fsdp=4,tensor=2 remat=none", "tpu-v5e:2x4"),
    ]
    assert found[2].case.execution.remat == "none" and found[0].case.execution.remat == "block"


@pytest.mark.parametrize(
    ("text", "devices", "filled"),
    [
        ("h100", 8, "h100:8"),
        ("h100", 512, "h100:64x8"),
        ("h100:4x8", 32, "h100:4x8"),
        ("cpu", 12, "cpu:12"),
        ("tpu-v5e", 8, "tpu-v5e:2x4"),
        ("tpu-v5e", 7, "tpu-v5e:1x7"),
        ("tpu-v5p", 512, "tpu-v5p:8x8x8"),
        ("tpu-v5p", 16, "tpu-v5p:2x2x4"),
        ("tpu-v5p", 1, "tpu-v5p:1x1x1"),
    ],
)
def test_a_target_without_a_shape_takes_the_devices_of_the_mesh(text: str, devices: int, filled: str) -> None:
    assert fill_target(text, devices) == filled


def test_what_cannot_be_compared_is_rejected_all_together() -> None:
    specs = [Spec({"data": 8}), Spec({"fsdp": 3}), Spec({"data": 8})]
    with pytest.raises(RejectedError) as caught:
        plan(load("llama-3.2-1b"), BASE, specs, ["h100:4"])
    problems = [(problem.path.split(":")[0], problem.rule) for problem in caught.value.problems]
    assert [name for name, _ in problems] == ["data=8", "fsdp=3", "fsdp=3", "data=8"] or len(problems) >= 3
    assert any("8 devices and the target h100:4 has 4" in rule for _, rule in problems)
    assert any("must divide hidden_size" in rule or "must divide the sequences" in rule for _, rule in problems)
    with pytest.raises(RejectedError, match="the same case on the same target"):
        plan(load("llama-3.2-1b"), BASE, [Spec({"data": 8}), Spec({"data": 8}, {"remat": "block"})], ["h100"])
    with pytest.raises(RejectedError, match="nothing to compare"):
        plan(load("llama-3.2-1b"), BASE, [])
    for devices, target in ((12, "h100"), (3, "tpu-7x")):
        with pytest.raises(RejectedError, match="no whole number"):
            fill_target(target, devices)
    for devices, target in ((281_474_976_710_597, "tpu-v5p"), (100_000, "h100")):
        with pytest.raises(RejectedError, match="makes at most"):
            fill_target(target, devices)


@pytest.mark.parametrize(
    "value", ["0", "1.5", "-0.5", "nan", "x", "1/0", "0." + "1" * 30, "1e-4000000000", "1e-9_9_9_9_9_9"]
)
def test_a_fraction_is_a_share(value: str) -> None:
    with pytest.raises(RejectedError, match="above 0 and at most 1"):
        fraction_labels([value])


def test_fractions_keep_their_text_and_order() -> None:
    assert fraction_labels(["0.9", 0.75, "0.9"]) == ("0.9", "0.75")
    assert fraction_labels([]) == ("0.75", "0.95")


def test_fits_is_required_bytes_against_the_device_to_the_byte() -> None:
    found = compared(requiring(LIMIT), requiring(LIMIT + 1))
    first, second = (column.to_dict() for column in found.columns)
    assert first["limits"] == {"0.75": 63_707_234_304, "0.95": LIMIT} and first["device_memory_bytes"] == MEMORY
    assert (first["fits"], second["fits"]) == ({"0.75": False, "0.95": True}, {"0.75": False, "0.95": False})
    assert (compared(requiring(LIMIT)).exit_code, found.exit_code) == (0, 1)
    assert second["compiled"]["headroom_bytes"] == MEMORY - LIMIT - 1


def test_unknown_is_not_zero() -> None:
    def unknown(document: dict[str, Any]) -> None:
        document["memory"]["required_bytes"] = None
        document["memory"]["reasons"] = {"required_bytes": "no buffer assignment"}

    (column,) = compared(unknown).columns
    data = column.to_dict()
    assert data["fits"] == {"0.75": None, "0.95": None} and data["fits_reason"] == "no buffer assignment"
    assert data["compiled"]["headroom_bytes"] is None


def test_a_target_without_a_limit_answers_neither_way() -> None:
    found = compared(same, record=named("llama-3.1-8b_training_cpu-8_"))
    data = found.columns[0].to_dict()
    assert data["fits"] == {"0.75": None, "0.95": None} and "no memory limit" in data["fits_reason"]
    assert found.exit_code == 0 and not found.advice


def test_both_witnesses_side_by_side_with_the_error_between_them() -> None:
    (column,) = compared(same).columns
    data = column.to_dict()
    first, second = data["predicted"], data["compiled"]
    assert (
        first["argument_bytes"] == second["argument_bytes"] == 12_048_220_164 and data["error"]["argument_bytes"] == 0
    )
    assert (first["flops"], second["flops"]) == (553_586_924_716_032, 522_800_599_138_304)
    assert data["error"]["flops"] == pytest.approx(553_586_924_716_032 / 522_800_599_138_304 - 1)
    statuses = {row["counter"]: row["status"] for row in data["rows"] if not row["scope"]}
    assert statuses["argument_bytes"] == "exact" and statuses["matmul_flops"] == "explained"


def test_one_byte_and_one_flop_more_make_a_column_open() -> None:
    def byte(document: dict[str, Any]) -> None:
        document["memory"]["argument_bytes"] += 1

    def flop(document: dict[str, Any]) -> None:
        document["hlo"]["flops"] += 1

    for change in (byte, flop):
        found = compared(change)
        assert found.columns[0].open_rows and found.exit_code == 1
    assert compared(byte).columns[0].error()["argument_bytes"] != 0


def test_a_refused_program_does_not_fit_and_keeps_the_compilers_words() -> None:
    found = compared(same, refused())
    data = found.columns[1].to_dict()
    assert data["refused"] == "RESOURCE_EXHAUSTED: <too> large" and data["status"] == "refused"
    assert data["fits"] == {"0.75": False, "0.95": False} and found.exit_code == 1
    assert found.columns[0].to_dict()["refused"] is None


@pytest.mark.parametrize("kind", ["timed_out", "memory_exceeded", "crashed"])
def test_a_dead_worker_is_a_column_with_its_reason(kind: str) -> None:
    found = compared(same, died(kind))
    data = found.columns[1].to_dict()
    assert data["status"] == "failed" and data["compiled"] is None and found.exit_code == 1
    assert data["reason"] == f"{kind.replace('_', ' ')}: no answer within 1 s"
    assert data["fits"] == {"0.75": None, "0.95": None} and data["fits_reason"] == data["reason"]
    assert found.differences[0].basis == "predicted" and not found.differences[0].rows
    assert [item["kind"] for item in found.advice] == ["fits"]


def test_what_the_reference_program_does_not_express_is_predicted_and_says_unmeasured() -> None:
    found = compared(same, died("rejected", "pipelines are not executed"))
    data = found.columns[1].to_dict()
    assert data["status"] == "unmeasured" and "does not express the spec: pipelines" in data["reason"]
    assert data["predicted"]["argument_bytes"] == 12_048_220_164 and found.exit_code == 0
    assert compared(died("raised")).exit_code == 4


@pytest.mark.parametrize(
    ("required", "status", "text"),
    [
        (LIMIT, "compiled", "silently (1,000 FLOPs more, +0.0%) and then fit 0.95 of the device: 75.15 GiB"),
        (
            LIMIT + 1,
            "compiled",
            "silently (1,000 FLOPs more, +0.0%) and still not fit: 75.15 GiB (80,695,830,119 bytes)",
        ),
        (LIMIT, "refused", "and the compiler still refuses the program"),
    ],
)
def test_xlas_own_rematerialisation_is_said_of_a_column_that_exceeds_the_device(
    required: int, status: str, text: str
) -> None:
    (column,) = compared(rematerialised(required, status=status)).columns
    seen = column.to_dict()["rematerialisation"]
    assert text in seen["text"] and seen["excess_flops"] == 1000 and not column.fits("0.95")
    assert compared(same).columns[0].rematerialisation() is None


def test_a_second_compile_of_a_program_that_fits_says_so() -> None:
    def fits(document: dict[str, Any]) -> None:
        needed = document["memory"]["required_bytes"]
        rematerialised(needed)(document)
        document["memory"]["required_bytes"] = needed

    def nothing(document: dict[str, Any]) -> None:
        fits(document)
        document["rematerialisation"]["second_compile"]["remat_instructions"] = 0

    first, second = (column.rematerialisation() for column in compared(fits, nothing).columns)
    assert first is not None and "rematerialises silently (1,000 FLOPs more, +0.0%) though" in first["text"]
    assert second is not None and second["text"].startswith("XLA left to itself recomputes nothing: 30.90 GiB")


def test_buffer_changes_sum_to_the_change_of_the_live_peak() -> None:
    def other(document: dict[str, Any]) -> None:
        document["memory"]["at_peak"][0]["bytes"] += 640
        document["memory"]["live_peak_bytes"] += 640

    (item,) = compared(same, other).differences
    rows = [row for row in item.rows if row.what == "buffers"]
    assert len(rows) == 1 and rows[0].change == 640 == item.totals["live_peak_bytes"]
    assert (
        sum(buffers_by_class(observed(named("llama-3.1-8b_training_h100-8_", fsdp=8)).memory).values())
        == (observed(named("llama-3.1-8b_training_h100-8_", fsdp=8)).memory["live_peak_bytes"])
    )


def test_equal_columns_differ_in_nothing_and_one_collective_or_flop_is_found() -> None:
    def moved(document: dict[str, Any]) -> None:
        row = document["collectives"]["rows"][0]
        row["total_operand_bytes"] = row["total_result_bytes"] = 1 + max(
            row["total_operand_bytes"], row["total_result_bytes"]
        )
        document["hlo"]["by_scope_phase"][0]["flops"] += 2

    equal, changed = compared(same, same, moved).differences
    assert not equal.rows and not equal.note
    assert {(row.what, row.change) for row in changed.rows} == {("collectives", 1), ("flops", 2)}


def test_every_column_has_one_base_the_first_of_its_target_or_the_one_named() -> None:
    found = compared(same, same, same)
    assert [(d.before.name, d.after.name) for d in found.differences] == [("a=8", "b=8"), ("a=8", "c=8")]
    found = compared(same, same, same, base="b=8")
    assert [(d.before.name, d.after.name) for d in found.differences] == [("b=8", "a=8"), ("b=8", "c=8")]
    with pytest.raises(RejectedError, match="no column has this name"):
        compared(same, base="fsdp=8")


@pytest.mark.parametrize(
    ("path", "scope"),
    [
        ("state.parameters.groups[0].mlp.gate.weight", "group0/mlp/gate"),
        ("state.optimizer[0].mu.groups[12].attn_norm.scale", "group12/attn_norm"),
        ("parameters.embed.tokens.weight", "embed/tokens"),
        ("state.parameters.head.weight", "head"),
        ("tokens", ""),
        ("state.optimizer[0].count", ""),
    ],
)
def test_an_argument_has_the_scope_of_its_component(path: str, scope: str) -> None:
    assert place_of(path) == scope


def test_collective_payload_is_the_whole_array_that_moves() -> None:
    found = compiled_collectives(observed(named("llama-3.1-8b_training_h100-8_", fsdp=8)))
    assert found is not None
    section = observed(named("llama-3.1-8b_training_h100-8_", fsdp=8)).data["collectives"]["by_kind_axes"]
    gathered = sum(row["result_bytes"] for row in section if row["kind"] == "all-gather")
    reduced = sum(row["operand_bytes"] for row in section if row["kind"] == "reduce-scatter")
    assert found["by_kind"]["all-gather"] == gathered and found["by_kind"]["reduce-scatter"] == reduced
    assert found["bytes"] == sum(row["bytes"] for row in found["rows"]) == sum(found["by_axis"].values())


def test_an_unknown_collective_makes_its_sums_unknown() -> None:
    def unknown(document: dict[str, Any]) -> None:
        document["collectives"]["by_kind_axes"][0]["operand_bytes"] = None

    (column,) = compared(unknown).columns
    compiled = column.compiled()
    assert compiled is not None and compiled["collectives"]["bytes"] is None
    assert column.error()["collective_bytes"] is None


def test_candidates_are_single_changes_that_the_contracts_accept() -> None:
    case = build_case(
        load("llama-3.2-1b").architecture, {**BASE, "remat": "none", "mesh": [{"name": "data", "size": 8}]}
    )
    names = dict(candidates(case))
    assert "--mesh fsdp=8" in names and "--remat block" in names and "--zero 1" in names
    assert "--mesh data=4,tensor=2" in names and "--attention blockwise" in names
    assert {"--accumulate 2", "--sequence-parallel"} & set(names) == {"--accumulate 2"}
    assert all(made.execution.device_count == 8 for made in names.values())
    assert len({made.digest for made in names.values()} | {case.digest}) == len(names) + 1
    odd = build_case(load("toy-tied").architecture, {"phase": "prefill", "seq": 4})
    assert {name for name, _ in candidates(odd)} == {"--attention blockwise"}


def test_accumulation_is_advised_as_far_as_it_is_needed() -> None:
    steps = [{"change": f"--accumulate {n}", "enough": enough} for n, enough in ((2, False), (4, True), (8, True))]
    other = {"change": "--remat block", "enough": None}
    assert list(_least([other, *steps])) == [other, steps[1]]
    assert list(_least([*steps[:1], other])) == [steps[0], other] and list(_least([])) == []


def test_advice_is_the_difference_of_two_witnesses_of_one_kind() -> None:
    found = compared(requiring(10 * MEMORY))
    changes = [item for item in found.advice if item["kind"] == "change"]
    (short,) = [item for item in found.advice if item["kind"] == "short"]
    assert short["bytes"] == 10 * MEMORY - LIMIT and sum(short["classes"].values()) > 0
    assert changes and [item["bytes"] for item in changes] == sorted((c["bytes"] for c in changes), reverse=True)
    before = predict(found.columns[0].case)
    after = {name: predict(case) for name, case in candidates(found.columns[0].case)}
    for item in changes:
        assert item["bytes"] > 0 and item["flops"] == after[item["change"]].value("flops.per_device") - before.value(
            "flops.per_device"
        )
        if item["quantity"] == HELD:
            assert item["bytes"] == held(before) - held(after[item["change"]]) and item["enough"] is None


def test_where_all_fit_nothing_is_to_be_changed() -> None:
    found = compared(same, same)
    assert [item["kind"] for item in found.advice] == ["fits"] and found.exit_code == 0


def test_predictions_alone_need_no_compiler() -> None:
    found = compare(load("llama-3.1-8b"), {**BASE, "seq": 4096}, [Spec({"data": 8}), Spec({"fsdp": 8})], ["h100"],
                    compiling=False)  # fmt: skip
    first, second = (column.to_dict() for column in found.columns)
    assert first["status"] == "unmeasured" and first["compiled"] is None and first["fits"]["0.95"] is None
    assert first["predicted"]["fits"] == {"0.75": False, "0.95": False}  # its arguments alone are more than the device
    assert second["predicted"]["fits"]["0.95"] is not False and found.exit_code == 1
    assert (
        found.differences[0].basis == "predicted" and found.differences[0].totals["argument_bytes"] == -84_314_947_584
    )
