"""Files for viewers that exist, held against the rules that the viewers publish."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import jsonschema
import pytest

from jaxcost.audits.document import audit_document
from jaxcost.audits.exports import SPEEDSCOPE_SCHEMA, export_text
from jaxcost.contracts.errors import RejectedError
from tests.audits.test_attribution import products, recorded

# Of https://www.speedscope.app/file-format-schema.json what a file of sampled profiles has to keep.
UNITS = ["none", "nanoseconds", "microseconds", "milliseconds", "seconds", "bytes"]
SPEEDSCOPE = {
    "type": "object",
    "required": ["$schema", "profiles", "shared"],
    "properties": {
        "$schema": {"const": SPEEDSCOPE_SCHEMA},
        "activeProfileIndex": {"type": "integer"},
        "exporter": {"type": "string"},
        "name": {"type": "string"},
        "shared": {
            "type": "object",
            "required": ["frames"],
            "properties": {
                "frames": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "required": ["name"],
                        "properties": {
                            "name": {"type": "string"}, "file": {"type": "string"},
                            "line": {"type": "number"}, "col": {"type": "number"},
                        },
                    },
                }
            },
        },
        "profiles": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["type", "name", "unit", "startValue", "endValue", "samples", "weights"],
                "properties": {
                    "type": {"const": "sampled"}, "name": {"type": "string"}, "unit": {"enum": UNITS},
                    "startValue": {"type": "number"}, "endValue": {"type": "number"},
                    "samples": {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}},
                    "weights": {"type": "array", "items": {"type": "number"}},
                },
            },
        },
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return audit_document(recorded("llama-3.1-8b_training_h100-8_0c6f51ab").program, mesh={"fsdp": 8})


def test_speedscope_opens_it_and_its_profiles_weigh_what_the_program_costs(document: dict[str, Any]) -> None:
    file = json.loads(export_text(document, "step.speedscope.json"))
    jsonschema.validate(file, SPEEDSCOPE)
    frames = file["shared"]["frames"]
    columns = document["attribution"]["columns"]
    names = [profile["name"] for profile in file["profiles"]]
    assert names == [
        f"{what} by {by}" for by in ("module", "source")
        for what in ("FLOPs", "bytes moved", "bytes at the peak", "collective bytes")
    ]  # fmt: skip
    totals = [columns[c]["total"] for c in ("flops", "bytes", "peak_bytes", "collective_bytes")] * 2
    for profile, total in zip(file["profiles"], totals, strict=True):
        assert sum(profile["weights"]) == profile["endValue"] == total
        assert len(profile["samples"]) == len(profile["weights"])
        assert all(0 <= i < len(frames) for stack in profile["samples"] for i in stack)
    stacks = {"/".join(frames[i]["name"] for i in stack) for stack in file["profiles"][0]["samples"]}
    assert "group0/attn/q_proj" in stacks and "group0/mlp/down" in stacks


def test_the_rules_can_fail(document: dict[str, Any]) -> None:
    file = json.loads(export_text(document, "step.speedscope.json"))
    file["profiles"][0]["unit"] = "FLOPs"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(file, SPEEDSCOPE)


def test_perfetto_shows_memory_over_the_schedule(document: dict[str, Any]) -> None:
    events = json.loads(export_text(document, "step.trace.json"))["traceEvents"]
    counters = [event for event in events if event["ph"] == "C"]
    assert max(sum(event["args"].values()) for event in counters) == document["memory"]["live_peak_bytes"]
    assert [event["ts"] for event in counters] == sorted(event["ts"] for event in counters)
    parts = [event for event in events if event["ph"] == "X"]
    assert [event["name"] for event in parts] == list(dict.fromkeys(e["name"] for e in parts)) and len(parts) > 2
    assert all(a["ts"] + a["dur"] <= b["ts"] for a, b in pairwise(parts))


def test_what_no_viewer_reads_and_what_is_not_there_are_refused() -> None:
    from jaxcost.observation.sources import Program

    bare = audit_document(Program("proto", "p", products("jit(f)/a/dot_general").bytes(), "cuda"))
    for name, rule in (("x.json", "speedscope.json"), ("x.trace.json", "timeline")):
        with pytest.raises(RejectedError, match=rule):
            export_text(bare, name)
    assert json.loads(export_text(bare, "x.speedscope.json"))["profiles"]


def test_a_profile_says_where_it_shows_only_a_part_or_a_bound(document: dict[str, Any]) -> None:
    for upper, said in ((None, "counted part"), (9, "at most")):
        nodes = [
            {"parent": None, "name": "program", "total": {"flops": {"minimum": 4, "maximum": upper}}, "own": {}},
            {"parent": 0, "name": "a", "total": {"flops": 4}, "own": {"flops": 4}},
            {"parent": 0, "name": "b", "total": {}, "own": {"flops": {"minimum": 0, "maximum": upper and 5}}},
        ]
        part = {**document, "attribution": {"scopes": nodes, "calls": []}}
        (profile,) = json.loads(export_text(part, "x.speedscope.json"))["profiles"]
        assert profile["name"] == f"FLOPs by module, {said}" and profile["endValue"] == (upper or 4)


def test_a_program_without_temporary_memory_is_a_trace_of_what_it_holds(document: dict[str, Any]) -> None:
    buffers = {"r0": {"class": "result", "bytes": 8}, "r1": {"class": "argument", "bytes": 4}}
    timeline = {"steps": 0, "peak_step": 0, "resident": ["r0", "r1"], "points": [], "buffers": buffers}
    bare = {**document, "memory": {**document["memory"], "timeline": timeline}}
    (counter,) = (event for event in json.loads(export_text(bare, "x.trace.json"))["traceEvents"] if event["ph"] == "C")
    assert counter["args"] == {"argument": 4, "result": 8}
