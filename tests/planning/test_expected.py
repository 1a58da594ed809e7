"""Whether a predicted peak fits, and the program that says so without a compiler."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from jaxcost.catalog import load
from jaxcost.cli.program import main
from jaxcost.contracts.case import build_case
from jaxcost.contracts.errors import RejectedError
from jaxcost.observation.targets import parse_target
from jaxcost.planning.expected import expected_fit, predicted_peak
from jaxcost.planning.limits import interval_within, limit_bytes, within
from jaxcost.prediction.ledgers import Prediction, predict
from jaxcost.schema import schema


def eight(**axes: int) -> Prediction:
    mesh = [{"name": name, "size": size} for name, size in axes.items()]
    options = {"phase": "training", "batch": 16, "seq": 4096, "remat": "block", "mesh": mesh}
    return predict(build_case(load("llama-3.1-8b").architecture, options))


@pytest.mark.parametrize(
    ("lower", "upper", "limit", "answer"),
    [
        (1, 10, 10, True), (1, 10, 9, None), (1, None, 10, None), (11, None, 10, False), (10, 12, 10, None),
        (11, 12, 10, False), (1, 2, None, None), (None, None, 10, None),
    ],
)  # fmt: skip
def test_an_interval_answers_where_it_leaves_no_doubt(
    lower: int | None, upper: int | None, limit: int | None, answer: bool | None
) -> None:
    assert interval_within({"lower": lower, "upper": upper}, limit) is answer


def test_limits_are_rounded_down_and_unknown_where_no_memory_is_stated() -> None:
    assert limit_bytes(parse_target("h100:8"), "0.95") == 80_695_830_118
    assert limit_bytes(parse_target("cpu:2"), "0.95") is None
    assert (within(10, 10), within(11, 10), within(None, 10), within(1, None)) == (True, False, None, None)


def test_the_predicted_peak_of_a_target_is_that_of_the_policy_and_sums_over_classes() -> None:
    found, peak = expected_fit(eight(fsdp=8), "h100"), predicted_peak(eight(fsdp=8), "cuda")
    assert found["target"] == "h100:8" and found["peak_bytes"]["expected"] == peak["expected"]
    assert sum(found["by_class"].values()) == peak["expected"] == sum(peak["held"].values())
    assert peak["lower"] <= peak["expected"] <= peak["upper"] and found["fits"] == {"0.75": True, "0.95": True}


def test_arguments_alone_can_show_that_a_case_does_not_fit() -> None:
    assert expected_fit(eight(data=8), "h100")["fits"] == {"0.75": False, "0.95": False}
    found = expected_fit(eight(data=8), "cpu")
    assert found["peak_bytes"]["expected"] is None and found["peak_bytes"]["reason"]
    assert found["peak_bytes"]["lower"] == eight(data=8).value("device.argument_bytes")
    with pytest.raises(RejectedError, match="has 8 devices and the target h100:4 has 4"):
        expected_fit(eight(data=8), "h100:4")


def test_the_tables_of_an_estimate_show_the_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    words = ["estimate", "llama-3.1-8b", "--phase", "training", "--batch", "16", "--seq", "4096", "--remat", "block"]
    code = main([*words, "--mesh", "data=8", "--target", "h100", "--target", "cpu", "--html", str(tmp_path / "p.html")])
    text = capsys.readouterr().out
    assert code == 1 and "fits, predicted" in text and "no limit stated" in text
    assert "XLA left to itself rematerialises: temporaries of" in text and "no materialisation policy covers" in text
    assert "<h2>fits, predicted</h2>" in (tmp_path / "p.html").read_text(encoding="utf-8")


def test_estimate_says_whether_it_fits_and_imports_no_jax(run_jaxcost: Callable[..., Any]) -> None:
    words = ("--phase", "training", "--batch", "16", "--seq", "4096", "--remat", "block", "--target", "h100")
    for mesh, code in (("fsdp=8", 0), ("data=8", 1)):
        done = run_jaxcost("estimate", "llama-3.1-8b", *words, "--mesh", mesh, "--json")
        data = json.loads(done.stdout)
        jsonschema.validate(data, schema("jaxcost.estimate.v1"))
        assert done.returncode == code and data["targets"][0]["fits"]["0.95"] is (code == 0)
    program = (
        "import sys; from jaxcost.cli import main;"
        "main(['estimate', 'toy-tied', '--phase', 'training', '--seq', '16', '--target', 'h100', '--quiet']);"
        "print([name for name in sys.modules if name.split('.')[0] in ('jax', 'jaxlib')])"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout.strip() == "[]"


def test_sends_are_told_apart_by_nodes() -> None:
    def sends(prediction: Prediction, target: str) -> dict[str, Any]:
        found: dict[str, Any] = expected_fit(prediction, target)["sends"]
        return found

    whole = eight(fsdp=8)
    ring = whole.ledgers["collectives"].totals["ring_send_bytes"]
    assert sends(whole, "h100:8") == {"devices_per_node": 8, "inside_bytes": ring, "between_bytes": 0}
    split = sends(whole, "h100:2x4")
    assert split["inside_bytes"] + split["between_bytes"] == ring and split["between_bytes"] > 0
    axes = [{"name": "data", "size": 4}, {"name": "fsdp", "size": 3}]
    options = {"phase": "training", "batch": 12, "seq": 64, "mesh": axes}
    uneven = sends(predict(build_case(load("smollm-135m").architecture, options)), "h100:3x4")
    assert uneven["inside_bytes"] is None and "unevenly on nodes of 4 devices" in uneven["reason"]
    adafactor = {"phase": "training", "seq": 64, "optimizer": "adafactor", "mesh": [{"name": "tensor", "size": 2}]}
    unknown = sends(predict(build_case(load("toy-tied").architecture, adafactor)), "h100:2")
    assert unknown["inside_bytes"] is None and "Adafactor" in unknown["reason"]
