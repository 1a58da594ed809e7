"""One row walked through: seven steps in order; the first that disagrees is the one where the fault is.

Faults are planted in what was seen, never in the prediction; nothing is compiled here.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import Any

import jsonschema
import pytest

from jaxcost.cli import main
from jaxcost.data import room
from jaxcost.prediction.ledgers import predict
from jaxcost.reconciliation.report import not_executed, reconcile
from jaxcost.reconciliation.rows import Row
from jaxcost.reconciliation.supplied import reconcile_supplied
from jaxcost.schema import schema
from jaxcost.verify.explain import QUESTIONS, explain_row
from jaxcost.verify.failures.common import bundle, counter, tensor_entries
from jaxcost.verify.failures.subjects import prefill
from tests.reconciliation.recorded import NAMES, named, observed, prediction, report

Capture = pytest.CaptureFixture[str]
Change = Callable[[dict[str, Any]], object]
CPU, REPLAY = named("toy-tied_training_cpu"), named("toy-untied_training_cpu")
MESH = named("qwen2.5-0.5b_training_h100-8")
STEPS = ["shapes", "elements", "bytes", "FLOPs", "transfers", "phase", "residual"]
SCORES = "group0/attn/scores:forward"


@cache
def walked(name: str, key: str) -> Any:
    return explain_row(report(name), key, observed(name))


def planted(key: str, change: Change, name: str = CPU) -> Any:
    return explain_row(report(name, change), key, observed(name, change))


def lines(found: Any, step: str) -> dict[str, Any]:
    return {row["what"]: row for item in found["steps"] if item["step"] == step for row in item["rows"]}


def test_the_order_is_that_of_debugging() -> None:
    assert list(QUESTIONS) == STEPS
    steps = walked(CPU, f"jaxpr_matmul_flops:{SCORES}")["steps"]
    assert [(step["number"], step["step"]) for step in steps] == list(enumerate(STEPS, start=1))


@pytest.mark.parametrize("name", [CPU, REPLAY, named("toy-untied_decode"), named("toy-tied_prefill"), MESH])
def test_every_kind_of_row_can_be_walked(name: str) -> None:
    kinds = {(row.counter, row.phase, row.status): row for row in report(name).rows}
    for row in kinds.values():
        found = walked(name, row.key)
        assert found["conclusion"] and found["status"] == row.status
        first = found["first_disagreement"]
        if row.status == "exact" and not row.verdict and first:
            assert first["step"] in ("shapes", "bytes", "residual"), (row.key, found["conclusion"])
        if row.residual and row.status in ("open", "explained"):
            assert first is not None, row.key
        json.dumps(found, allow_nan=False)


# What each kind of row shows -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("counter_name", ["matmul_flops", "jaxpr_matmul_flops"])
def test_a_product_is_walked_from_its_operands_to_its_work(counter_name: str) -> None:
    found = walked(CPU, f"{counter_name}:{SCORES}")
    left = "group0/attn/scores, left"
    shape = lines(found, "shapes")[left]
    assert shape["predicted"] == [2, 8, 2, 2, 2] and shape["agrees"] and shape["note"].startswith("b s k g e")
    assert lines(found, "elements")[left]["predicted"] == lines(found, "elements")[left]["observed"] == 256
    assert lines(found, "bytes")[left]["predicted"] == 512 and lines(found, "bytes")[left]["note"] == "bf16"
    work = lines(found, "FLOPs")["group0/attn/scores (forward)"]
    assert (work["predicted"], work["observed"], work["note"]) == (4096, 4096, "b s k g e, b t k e -> b k g s t")
    assert (
        "between device memory and chip" in lines(found, "transfers")["group0/attn/scores/out, write (forward)"]["note"]
    )
    assert "this row: forward" in lines(found, "phase")["workload"]["note"]
    assert lines(found, "residual")["residual"]["note"] == "status exact"
    if counter_name == "jaxpr_matmul_flops":
        assert found["first_disagreement"] is None and "no step disagrees" in found["conclusion"]


def test_work_that_is_no_product_stands_apart_and_nobody_saw_it() -> None:
    found = (
        walked(CPU, "matmul_flops:forward") if report(CPU).row("matmul_flops:forward") else walked(CPU, "matmul_flops")
    )
    work = lines(found, "FLOPs")["exp (no product)"]
    assert work["unit"] == "primitives" and work["predicted"] > 0
    assert work["observed"] is None and work["agrees"] is None


def test_a_product_of_the_compiled_program_ends_in_its_instructions() -> None:
    found = walked(MESH, "matmul_flops:group0/mlp/down:forward")
    texts = [row["observed"] for row in lines(found, "residual").values() if row["predicted"] == "bf16"]
    assert any(" x " in str(text) and "bf16[" in str(text) for text in texts)


def test_attention_in_blocks_is_compared_by_its_work_alone() -> None:
    (name,) = (
        name
        for name in NAMES
        if name.startswith("qwen2.5-0.5b_training_h100-1_") and prediction(name).case.execution.remat == "attention"
    )
    found = walked(name, "jaxpr_matmul_flops:group0/attn/scores:replay")
    assert found["first_disagreement"] is None
    assert "in pieces" in lines(found, "shapes")["group0/attn/scores, left"]["note"]
    assert lines(found, "FLOPs")["group0/attn/scores (replay)"]["agrees"]  # of two causes, and one product in the jaxpr


def test_another_phase_is_shown_and_its_difference_is_its_own() -> None:
    found = walked(REPLAY, "jaxpr_matmul_flops:group0/mlp/down:forward")
    beside = lines(found, "phase")["jaxpr_matmul_flops:group0/mlp/down:replay"]
    assert (beside["predicted"], beside["observed"], beside["agrees"]) == (6144, 0, None)
    assert found["first_disagreement"] is None


def test_replicated_heads_are_another_shape_for_the_same_work() -> None:
    found = walked(named("qwen3-0.6b_training_h100-2x8"), "jaxpr_matmul_flops:group0/attn/scores:forward")
    keys = lines(found, "shapes")["group0/attn/scores, right"]
    assert (keys["predicted"], keys["observed"]) == ([2, 1024, 8, 128], [2, 1024, 16, 128])
    assert found["status"] == "exact" and found["first_disagreement"]["step"] == "shapes"


def test_a_compiler_that_widens_operands_is_seen_in_its_instructions() -> None:
    found = walked(CPU, "matmul_flops:group0/mlp/down:forward")
    assert found["status"] == "exact" and found["first_disagreement"]["step"] == "residual"
    (dot,) = (row for row in lines(found, "residual").values() if row["predicted"] == "bf16")
    assert dot["observed"].startswith("f32[") and dot["agrees"] is False


def test_a_residual_that_comes_in_later_is_named_too() -> None:
    found = walked(MESH, "matmul_flops")
    assert found["first_disagreement"]["step"] == "bytes"  # gradients of scores are wider than declared
    assert "which comes in at step 4, FLOPs, is explained in full" in found["conclusion"]


def test_a_tensor_is_walked() -> None:
    found = walked(CPU, "tensor:group0/attn/q_proj/weight")
    (shape,) = lines(found, "shapes").values()
    assert (shape["predicted"], shape["observed"], shape["note"]) == ([2, 8, 4, 2], [2, 8, 4, 2], "layer d h e")
    assert lines(found, "bytes")["group0/attn/q_proj/weight"]["observed"] == 512
    assert lines(found, "FLOPs") == lines(found, "transfers") == {}


def test_argument_bytes_are_walked_to_what_is_held() -> None:
    found = walked(CPU, "argument_bytes")
    held = lines(found, "bytes")
    parts = [row for what, row in held.items() if what != "argument_bytes"]
    assert sum(row["predicted"] for row in parts) == held["argument_bytes"]["predicted"] == 13_604
    assert sum(row["observed"] for row in parts) == held["argument_bytes"]["observed"] == 13_604


def test_a_peak_is_walked_class_by_class() -> None:
    found = walked(MESH, "live_peak_bytes")
    assert lines(found, "bytes")["live_peak_bytes.parameter"]["agrees"]
    assert any("logits" in what for what in lines(found, "shapes"))
    assert found["first_disagreement"]["step"] == "bytes"  # a class may differ while the peak is bounded
    assert found["conclusion"].endswith("The row itself is bounded")


def test_a_transfer_between_devices_is_walked() -> None:
    key = next(row.key for row in report(MESH).rows if row.counter == "collective" and row.status == "explained")
    found = walked(MESH, key)
    assert found["first_disagreement"] == {"number": 5, "step": "transfers"}
    assert lines(found, "residual")["left after the explanations"]["observed"] == 0
    assert "explained in full" in found["conclusion"]


def test_saved_bytes_are_walked_tensor_by_tensor() -> None:
    found = walked(MESH, "saved_bytes:forward")
    saved = lines(found, "bytes")["group0/in"]
    assert saved["agrees"] and saved["predicted"] == 704_643_072 and saved["note"] == "bf16"


def test_a_cache_is_walked() -> None:
    found = walked(named("toy-untied_decode"), "kv_cache.allocated_bytes")
    assert lines(found, "shapes")["group0/attn/keys"]["observed"] == [1, 8, 2, 2]


def test_dead_replay_is_missing_work_and_not_another_shape() -> None:
    found = walked(REPLAY, "matmul_flops:group0/mlp/down:replay")
    assert found["first_disagreement"] == {"number": 4, "step": "FLOPs"}
    assert lines(found, "shapes")["group0/mlp/down, left"]["note"].endswith("the jaxpr has no such product")
    reason = lines(found, "residual")["dead replay dropped by differentiation"]
    assert reason["observed"] == -6144 and "no backward op needs" in reason["note"]
    assert "explained in full" in found["conclusion"]


# The first step that disagrees is that of the fault -----------------------------------------------------------------


def _product(document: dict[str, Any]) -> dict[str, Any]:
    """The jaxpr's product behind the scores."""
    found: dict[str, Any] = next(row for row in document["jaxpr"]["rows"] if f"{row['scope']}:{row['phase']}" == SCORES)
    return found


def _shape(document: dict[str, Any]) -> None:
    _product(document)["operands"] = ["bfloat16[2,8,4,2]", "bfloat16[2,8,4,2]"]


def _type(document: dict[str, Any]) -> None:
    _product(document)["operands"] = [text.replace("bfloat16", "float32") for text in _product(document)["operands"]]


def _times(document: dict[str, Any]) -> None:
    _product(document)["executions"] += 1


def _work(document: dict[str, Any]) -> None:
    _product(document)["total"] += 1


@pytest.mark.parametrize(
    ("change", "step"), [(_shape, "shapes"), (_times, "elements"), (_type, "bytes"), (_work, "FLOPs")]
)
def test_the_first_step_that_disagrees_is_where_the_fault_is(change: Change, step: str) -> None:
    key = f"jaxpr_matmul_flops:{SCORES}"
    assert walked(CPU, key)["first_disagreement"] is None
    found = planted(key, change)
    assert found["first_disagreement"]["step"] == step
    assert f"the first step that disagrees is {STEPS.index(step) + 1}, {step}" in found["conclusion"]


def test_axes_in_another_order_are_a_layout_and_no_disagreement() -> None:
    def turned(document: dict[str, Any]) -> None:
        texts = _product(document)["operands"]
        texts[texts.index("bfloat16[2,8,2,2]")] = "bfloat16[2,2,8,2]"
        texts.reverse()

    found = planted(f"jaxpr_matmul_flops:{SCORES}", turned)
    assert found["first_disagreement"] is None
    assert "axes in another order" in lines(found, "shapes")["group0/attn/scores, right"]["note"]


def _bundle(change: Change) -> Any:
    case = prefill()
    entries = tensor_entries(case)
    change({entry["name"]: entry for entry in entries})
    seen = [counter("traffic.attention_bytes", 1536, "bytes", "a boundary", (64, "padding"))]
    return case, bundle(case, seen, tensors=entries)


@pytest.mark.parametrize(
    ("field", "value", "step"),
    [("shape", [4, 16], "shapes"), ("dtype", "fp32", "bytes"), ("trainable", False, "residual")],
)
def test_stored_tensors_of_a_bundle_are_walked(field: str, value: object, step: str) -> None:
    name = "group0/0/attn/q_proj/weight"
    case, seen = _bundle(lambda entries: entries[name].update({field: value}))
    found = explain_row(reconcile_supplied(predict(case), seen), f"tensor:{name}", seen)
    assert found["first_disagreement"]["step"] == step
    assert "The row is open" in found["conclusion"]


def test_a_residual_that_is_explained_in_part_stays_open() -> None:
    case, seen = _bundle(lambda entries: None)
    found = explain_row(reconcile_supplied(predict(case), seen), "traffic.attention_bytes", seen)
    assert found["first_disagreement"]["step"] == "transfers" and "stays open" in found["conclusion"]
    assert lines(found, "residual")["left after the explanations"]["observed"] == 64
    scheduled = [row["predicted"] for row in lines(found, "transfers").values() if row["observed"] is None]
    assert sum(scheduled) == 1408


def test_an_integer_written_down_beforehand_is_walked() -> None:
    case = prefill().replaced(expected={"flops.forward": 8961})
    found = explain_row(reconcile_supplied(predict(case), bundle(case, tensors=True)), "expected.flops.forward")
    assert found["first_disagreement"]["step"] == "FLOPs" and "residual of 1" in found["conclusion"]


def test_where_nothing_was_observed_no_step_disagrees() -> None:
    found = explain_row(reconcile(predict(prefill()), None), "flops.forward")
    assert found["first_disagreement"] is None and "no step can disagree" in found["conclusion"]
    found = explain_row(not_executed(predict(prefill()), "cpu:1", ()), "parameters.unique")
    assert "no step can disagree" in found["conclusion"]


def test_without_what_was_seen_the_numbers_of_the_report_are_left() -> None:
    found = explain_row(report(REPLAY), "matmul_flops:group0/mlp/down:replay")
    assert found["first_disagreement"]["step"] == "FLOPs"
    with pytest.raises(KeyError):
        explain_row(report(REPLAY), "matmul_flops:nowhere")


def test_a_row_of_no_known_kind_is_walked_to_its_residual() -> None:
    base = report(CPU)
    odd = base.with_rows([*base.rows, Row("oddity", "", "", "things", 1, 2)])
    found = explain_row(odd, "oddity")
    assert found["first_disagreement"]["step"] == "residual"


# The command -----------------------------------------------------------------


def test_the_walk_is_printed_and_nothing_else_of_the_report(capsys: Capture) -> None:
    path = str(room("hlo_dumps") / f"{REPLAY}.json")
    key = "matmul_flops:group0/mlp/down:replay"
    assert main(["verify", "--replay", path, "--explain", key, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    jsonschema.validate(document, schema("jaxcost.verify.v1"))
    (found,) = document["explain"]
    assert {**found, "report": ""} == walked(REPLAY, key)
    assert main(["verify", "--replay", path, "--explain", key]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for number, (step, question) in enumerate(QUESTIONS.items(), start=1):
        assert f"{number}. {step}: {question}" in text
    assert "The first step that disagrees is 4, FLOPs" in text and "bytes_moved" not in text


def test_a_row_that_no_report_has_is_rejected_with_near_ones(capsys: Capture) -> None:
    path = str(room("hlo_dumps") / f"{CPU}.json")
    assert main(["verify", "--replay", path, "--explain", "tensor:group0/q_proj/weight", "--json"]) == 2
    (error,) = json.loads(capsys.readouterr().out)["errors"]
    assert error["path"] == "--explain" and "tensor:group0/attn/q_proj/weight" in error["remedy"]
    assert main(["verify", "--replay", path, "--explain", "zzz", "--json"]) == 2
    (error,) = json.loads(capsys.readouterr().out)["errors"]
    assert "counter[:scope][:phase]" in error["remedy"] and "matmul_flops" in error["remedy"]
