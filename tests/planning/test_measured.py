"""A step that really ran, joined with its prediction; and what a GPU's allocator would have said, made up here."""

import copy
import json
import math
import subprocess
import sys

import jsonschema
import pytest

import jaxcost
from jaxcost.contracts.errors import RejectedError
from jaxcost.observation.measure import measure_case
from jaxcost.planning.measured import is_inconsistent, join_measurement, percentile
from jaxcost.prediction.ledgers import predict
from jaxcost.reconciliation.supplied import load_bundle, reconcile_supplied
from jaxcost.schema import schema

CASES = {
    "training": jaxcost.training(jaxcost.load("toy-tied"), batch=4, seq=16, mesh={"fsdp": 2}),
    "decode": jaxcost.decode(jaxcost.load("toy-untied"), batch=2, past=7),
}


@pytest.fixture(scope="module")
def measured():
    return {name: measure_case(case, "cpu", samples=4, warmup=2, window=2) for name, case in CASES.items()}


def jax_cli(*words):
    return subprocess.run([sys.executable, "-m", "jaxcost", *words], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", CASES)
def test_real_arrays_hold_what_is_predicted_on_every_device(measured, name):
    prediction = predict(CASES[name])
    joined = join_measurement(prediction, measured[name])
    rows = {row["counter"]: row for row in joined["report"]["rows"]}
    assert rows["argument_bytes"]["status"] == rows["output_bytes"]["status"] == "exact"
    assert len(measured[name]["argument_bytes"]) == CASES[name].execution.device_count
    assert rows["peak_in_use_bytes"]["observation"] is None and "allocator" in rows["peak_in_use_bytes"]["reason"]
    assert not is_inconsistent(joined)


def test_one_byte_more_is_open(measured):
    seen = copy.deepcopy(measured["decode"])
    seen["argument_bytes"] = [seen["argument_bytes"][0] + 1]
    joined = join_measurement(predict(CASES["decode"]), seen)
    assert joined["report"]["status"] == "open" and is_inconsistent(joined)


def test_the_state_is_carried_from_step_to_step(measured):
    """Every sample is of the same work, and there are as many as asked for; the first step is no sample."""
    raw = measured["training"]["raw"]
    assert len(raw["samples_ns"]) == 4 and len(raw["warmup_ns"]) == 2 and raw["window_steps"] == 2
    assert min(raw["samples_ns"]) > 0 and raw["window_ns"] > 0


def test_percentiles_by_nearest_rank():
    samples = [50, 10, 40, 30, 20]
    assert [percentile(samples, p) for p in (1, 20, 21, 50, 90, 100)] == [10, 10, 20, 30, 50, 50]
    assert percentile([7], 99) == 7


def as_gpu(seen, before, after, limit=2**36):
    """The measurement as it would look on one GPU whose allocator peaked so."""
    seen = copy.deepcopy(seen)
    seen["hardware"] |= {"platform": "gpu", "device_kind": "NVIDIA H100 80GB HBM3", "name": "NVIDIA H100 80GB HBM3"}
    state = {"in_use_bytes": 1, "limit_bytes": limit}
    seen["allocator"] = [
        {"before": state | {"peak_in_use_bytes": before}, "after": state | {"peak_in_use_bytes": after}}
        for _ in seen["allocator"]
    ]
    return seen


@pytest.fixture(scope="module")
def on_gpu(measured):
    """A decode step of a model inside the domain of the peak's policy."""
    case = jaxcost.decode(jaxcost.load("qwen2.5-0.5b"), batch=4, past=511)
    prediction = predict(case)
    seen = copy.deepcopy(measured["decode"])
    seen["argument_bytes"] = [prediction.value("device.argument_bytes")]
    seen["result_bytes"] = [prediction.value("device.output_bytes")]
    return prediction, seen


def peak_row(joined):
    return next(row for row in joined["report"]["rows"] if row["counter"] == "peak_in_use_bytes")


def test_an_allocators_peak_is_held_against_the_predicted_interval(on_gpu):
    prediction, seen = on_gpu
    expected = prediction.value("device.peak_bytes.expected")
    assert peak_row(join_measurement(prediction, as_gpu(seen, 10, expected)))["status"] == "bounded"
    assert peak_row(join_measurement(prediction, as_gpu(seen, 10, 3 * expected)))["status"] == "open"


def test_a_peak_that_making_the_arguments_set_is_not_the_steps(on_gpu):
    prediction, seen = on_gpu
    row = peak_row(join_measurement(prediction, as_gpu(seen, 10**9, 10**9)))
    assert row["observation"] is None and row["status"] == "unmeasured" and "at most as large" in row["reason"]


def test_utilisation_is_of_the_devices_own_peak_and_above_one_is_inconsistent(on_gpu):
    prediction, seen = on_gpu
    flops = prediction.value("flops.forward")
    seen = as_gpu(seen, 10, prediction.value("device.peak_bytes.expected"))
    seen["raw"] |= {"samples_ns": [10**6], "window_ns": 2 * 10**6}
    ratio = join_measurement(prediction, seen)["utilisation"]["mfu"]
    assert math.isclose(ratio["value"], flops / (989.4e12 * 1e-3), rel_tol=1e-12)
    assert "nvidia-h100-sxm5-80gb" in ratio["denominator"]["what"]
    seen["raw"]["samples_ns"] = [10]  # ten nanoseconds for a whole model
    joined = join_measurement(prediction, seen)
    assert joined["utilisation"]["mfu"]["status"] == "inconsistent" and is_inconsistent(joined)
    assert joined["utilisation"]["mfu"]["value"] > 1
    assert any(finding["kind"] == "utilisation above one" for finding in joined["report"]["findings"])


def test_a_device_without_figures_has_no_utilisation(on_gpu):
    prediction, seen = on_gpu
    seen = as_gpu(seen, 10, 20)
    seen["hardware"]["device_kind"] = "Experimental 9000"
    found = join_measurement(prediction, seen)["utilisation"]
    assert found["mfu"] is None and "Experimental 9000" in found["reason"]


@pytest.mark.parametrize(
    ("field", "value"), [("samples", 0), ("samples", True), ("warmup", -1), ("window", 1.5), ("samples", 10**9)]
)
def test_counts_out_of_range_are_refused_before_anything_runs(field, value):
    with pytest.raises(RejectedError, match=f"--{field}"):
        measure_case(CASES["decode"], "cpu", **{field: value})


def test_devices_that_are_not_there_are_refused():
    with pytest.raises(RejectedError, match="present or cpu"):
        measure_case(CASES["decode"], "gpu")
    many = jaxcost.training(jaxcost.load("toy-tied"), batch=128, seq=4, mesh={"data": 128})
    with pytest.raises(RejectedError, match="virtual CPU devices"):
        measure_case(many, "cpu")


def test_the_command_writes_a_document_and_a_bundle_that_verify_reads(tmp_path):
    record = tmp_path / "seen.json"
    words = ("--phase", "prefill", "--batch", "2", "--seq", "8")
    done = jax_cli(
        "measure", "toy-tied", *words, "--devices", "cpu", "--samples", "3", "--record", str(record), "--json"
    )
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    jsonschema.validate(data, schema("jaxcost.measure.v1"))
    assert data["evidence_class"] == "locally_measured" and len(data["raw"]["samples_ns"]) == 3
    bundle = load_bundle(record)
    assert bundle.evidence_class == "locally_measured" and bundle.artefacts[0] == "seen.samples.json"
    assert json.loads((tmp_path / "seen.samples.json").read_text())["raw_digest"] == data["raw"]["digest"]
    case = jaxcost.prefill(jaxcost.load("toy-tied"), batch=2, seq=8)
    report = reconcile_supplied(predict(case), bundle)
    assert report.status == "exact"
    done = jax_cli("verify", "toy-tied", *words, "--observation", str(record), "--quiet")
    assert done.returncode == 0, done.stderr


def test_bad_input_is_refused_without_a_file(tmp_path):
    record = tmp_path / "seen.json"
    words = ("--phase", "decode", "--past", "7", "--record", str(record))
    for more in (("--samples", "0"), ("--peak-of", "abacus"), ("--timeout", "soon"), ("--devices", "gpu")):
        done = jax_cli("measure", "toy-tied", *words, *more)
        assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    assert not record.exists()
