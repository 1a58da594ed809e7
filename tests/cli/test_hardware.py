"""`jaxcost hardware`: the devices in a document and a table, everything of one, and names that are none."""

from __future__ import annotations

import json

import jsonschema
import pytest

from jaxcost.cli import main
from jaxcost.schema import schema


def test_the_document_fits_its_schema_and_the_schema_can_fail(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["hardware", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    jsonschema.validate(data, schema("jaxcost.hardware.v1"))
    assert len(data["devices"]) == 22
    first = data["devices"][0]
    for broken in ({**first, "peaks": [{"dtype": "bf16"}]}, {**first, "memory": {**first["memory"], "unit": "G"}}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**data, "devices": [broken]}, schema("jaxcost.hardware.v1"))


def test_one_device_is_shown_whole(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["hardware", "tpu-v5p:2x2x4"]) == 0
    text = capsys.readouterr().out
    for part in (
        "Google TPU v5p", "3D torus, up to 8,960 chips", "1,200 GB/s in both directions together",
        "50 Gbit/s a chip, direction not stated", "95 GB used, 95 GiB in a newer page", "no power figure was read",
        "2025-02-18",
    ):  # fmt: skip
        assert part in text, part
    assert main(["hardware", "mi325x"]) == 0
    text = capsys.readouterr().out
    assert "recalled, not read: not used" in text and "tdp_w" in text
    assert main(["hardware", "h100"]) == 0
    text = capsys.readouterr().out
    assert "989.4" in text and "1,978.9" in text and "LLM-Foundry" in text


def test_the_table_has_every_device_and_says_what_is_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["hardware"]) == 0
    text = capsys.readouterr().out
    assert "nvidia-v100-sxm2" in text and "unknown" in text and "200.6" in text


def test_an_unknown_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["hardware", "h1000", "--json"]) == 2
    [problem] = json.loads(capsys.readouterr().out)["errors"]
    assert "h100" in problem["remedy"]
    assert main(["hardware", "--quiet"]) == 0
    assert capsys.readouterr().out == ""
