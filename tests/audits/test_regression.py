"""An audit against a recorded one: growth, bounds, unknowns, other targets, and what is said of the compiler."""

from __future__ import annotations

import copy
import json
import lzma
import os

import pytest

from jaxcost.audits.document import audit_document
from jaxcost.audits.regression import (
    GATED,
    STATUSES,
    Bound,
    bounds_of,
    compare_audits,
    figures,
    kept,
    read_recorded,
)
from jaxcost.contracts.errors import RejectedError, UnavailableError
from jaxcost.observation.sources import Program
from jaxcost.observation.targets import parse_target
from jaxcost.report.regressed import show_against, verdict
from tests.audits.compiled_programs import compile_for


@pytest.fixture(scope="module")
def recorded(root):
    data = lzma.decompress((root / "hlo_dumps/qwen2.5-0.5b_training_h100-8_76e70a61.hlo.xz").read_bytes())
    versions = {"jax": "0.10.2", "jaxlib": "0.10.2", "jax-cuda13-plugin": "0.10.2", "python": "3.11.7"}
    program = Program(
        "proto", "step", data, "cuda", parse_target("h100:8"), environment={"versions": versions},
        mesh={"fsdp": 2, "tensor": 2, "data": 2},
    )  # fmt: skip
    return {**json.loads(json.dumps(audit_document(program))), "jaxcost": "0"}


@pytest.fixture
def document(recorded):
    return copy.deepcopy(recorded)


def statuses(comparison):
    return {row.name: row.status for row in comparison.rows}


def test_an_audit_is_the_same_as_itself(recorded, document):
    comparison = compare_audits(recorded, document)
    assert comparison.status == "same" and not comparison.failed
    assert set(statuses(comparison).values()) == {"same"} and comparison.differences == ()
    assert comparison.to_dict()["unchanged"] > 0


GROWN = [
    ("flops.total", lambda d: add(d["flops"], "total", 1)),
    ("memory.argument_bytes", lambda d: add(d["memory"], "argument_bytes", 1)),
    ("memory.required_bytes", lambda d: add(d["memory"], "required_bytes", 1)),
    ("memory.live_peak_bytes", lambda d: add(d["memory"], "live_peak_bytes", 1)),
    ("collectives.bytes", lambda d: add(d["collectives"][0], "total_result_bytes", 1)),
    ("collectives.executions", lambda d: add(d["collectives"][0], "executions", 1)),
    ("unknowns.count", lambda d: d["unknowns"].append({"what": "x", "kind": "kernel", "reason": "opaque"})),
]


def add(table, name, amount):
    table[name] += amount


@pytest.mark.parametrize(("name", "change"), GROWN)
def test_one_more_of_anything_held_fails(recorded, document, name, change):
    change(document)
    comparison = compare_audits(recorded, document)
    assert comparison.failed and comparison.status == "grown"
    failed = {row.name: row for row in comparison.failures}
    assert (failed[name].growth, failed[name].status, str(failed[name].bound)) == (1, "grown", "0")
    # The other way round it shrank, and nothing fails.
    back = compare_audits(document, recorded)
    assert not back.failed and back.status == "changed" and statuses(back)[name] == "shrunk"


@pytest.mark.parametrize(
    ("bound", "growth", "fails"),
    [
        ("memory.live_peak_bytes=1%", 0.01, False), ("memory.live_peak_bytes=1%", 0.0101, True),
        ("memory=1%", 0.01, False), ("memory=1%", 0.02, True), ("flops=0", 0.01, True),
    ],
)  # fmt: skip
def test_bounds_by_share(recorded, document, bound, growth, fails):
    document["memory"]["live_peak_bytes"] += int(recorded["memory"]["live_peak_bytes"] * growth)
    comparison = compare_audits(recorded, document, bounds_of([bound]))
    assert comparison.failed is fails
    assert statuses(comparison)["memory.live_peak_bytes"] == "grown"


def test_bounds_by_amount(recorded, document):
    document["collectives"][0]["total_result_bytes"] += 2**20
    assert not compare_audits(recorded, document, bounds_of(["collectives.bytes=1MiB"])).failed
    assert compare_audits(recorded, document, bounds_of(["collectives.bytes=1048575"])).failed
    # The bound on executions is another one.
    document["collectives"][0]["executions"] += 1
    assert compare_audits(recorded, document, bounds_of(["collectives.bytes=1MiB"])).failed
    assert not compare_audits(recorded, document, bounds_of(["collectives=10%"])).failed


def test_what_is_only_shown_is_held_where_it_is_named(recorded, document):
    name = next(iter(document["flops"]["by_phase"]))
    document["flops"]["by_phase"][name] += 1
    assert not compare_audits(recorded, document).failed
    assert compare_audits(recorded, document, bounds_of([f"flops.by_phase.{name}=0"])).failed
    assert not compare_audits(recorded, document, bounds_of(["flops=0"])).failed


def test_a_collective_that_is_new_fails_and_one_that_is_gone_does_not(recorded, document):
    row = {**document["collectives"][0], "kind": "collective-broadcast"}
    document["collectives"].append(row)
    comparison = compare_audits(recorded, document)
    new = [row for row in comparison.failures if row.status == "new"]
    assert new and all(row.name.startswith("collectives.collective-broadcast[") for row in new)
    back = compare_audits(document, recorded)
    assert not back.failed and "gone" in statuses(back).values()


UNKNOWN = [
    ("flops.total", lambda d: d["flops"].update(total=None, reason="the trip count of while.3 depends on data")),
    ("memory.live_peak_bytes", lambda d: d["memory"].update(live_peak_bytes=None)),
    ("collectives.bytes", lambda d: d["collectives"][0].update(total_operand_bytes=None)),
]


@pytest.mark.parametrize(("name", "change"), UNKNOWN)
def test_unknown_on_either_side_is_never_the_same(recorded, document, name, change):
    change(document)
    for old, new in ((recorded, document), (document, recorded), (document, copy.deepcopy(document))):
        comparison = compare_audits(old, new)
        row = next(row for row in comparison.failures if row.name == name)
        assert row.status == "unknown" and row.growth is None and row.reason
        assert comparison.failed and comparison.status == "unknown"
    root = name.split(".")[0]
    assert not compare_audits(recorded, document, bounds_of([f"{root}=unknown"])).failed
    # Accepting what is unknown accepts no growth.
    known = copy.deepcopy(recorded)
    known["flops"]["total"] += 1
    assert compare_audits(recorded, known, bounds_of(["flops=unknown"])).failed


def test_intervals_are_compared_by_both_ends(recorded, document):
    document["flops"]["total"] = {"minimum": 1, "maximum": recorded["flops"]["total"]}
    assert statuses(compare_audits(recorded, document))["flops.total"] == "changed"
    assert not compare_audits(recorded, document).failed
    document["flops"]["total"]["maximum"] += 1
    assert compare_audits(recorded, document).failed
    document["flops"]["total"]["maximum"] = None
    assert statuses(compare_audits(recorded, document))["flops.total"] == "unknown"


def test_another_target_is_refused_or_labelled(recorded, document):
    document["program"]["target"] = {**document["program"]["target"], "text": "cpu:8"}
    with pytest.raises(RejectedError, match="h100:8, this one of cpu:8"):
        compare_audits(recorded, document)
    document["flops"]["total"] *= 2
    comparison = compare_audits(recorded, document, across=True)
    assert not comparison.failed and comparison.differences[0].about == "target"
    assert all(row.bound is None for row in comparison.rows)


@pytest.mark.parametrize(
    "text",
    ["", "flops", "flops=", "flops=-1", "flops=1.5", "flops=1e3", "flops=1kb", "nothing=0", "=0", "flops=0=0",
     "x" * 500, "memory=0.00001KiB"],
)  # fmt: skip
def test_a_bound_that_is_none(text):
    with pytest.raises(RejectedError):
        bounds_of([text])


def test_bounds_are_read_whole(recorded, document):
    found = bounds_of(["flops=0", "memory.live_peak_bytes = 1.5%", "collectives.bytes=2MiB", "unknowns=unknown"])
    assert found["flops"] == Bound() and str(found["memory.live_peak_bytes"]) == "1.5%"
    assert found["collectives.bytes"] == Bound(absolute=2**21) and found["unknowns"].unknown
    with pytest.raises(RejectedError, match="has a bound already"):
        bounds_of(["flops=0", "flops=1"])
    with pytest.raises(RejectedError, match="names no figure"):
        compare_audits(recorded, document, bounds_of(["memory.no_such_bytes=0"]))


BROKEN = [
    lambda d: d.pop("flops"),
    lambda d: d.update(schema="jaxcost.audit.v9"),
    lambda d: d.update(memory=[]),
    lambda d: d["flops"].update(total="many"),
    lambda d: d["flops"].update(total=1.5),
    lambda d: d["flops"].update(total=True),
    lambda d: d["flops"].update(total={"minimum": 1}),
    lambda d: d["memory"].update(live_peak_bytes={"minimum": "a", "maximum": 2}),
    lambda d: d.update(collectives={}),
    lambda d: d.update(unknowns=3),
    lambda d: d["program"].pop("refused"),
    lambda d: d.update(program=None),
    lambda d: d["program"].update(notes=3),
    lambda d: d["unknowns"].append({"what": "x"}),
    lambda d: d["flops"].update(total=-1),
    lambda d: d["flops"].update(total={"minimum": 3, "maximum": 1}),
    lambda d: d["memory"].update(required_bytes=-1),
    lambda d: d["xla"].update(flops=float("nan")),
    lambda d: d["loops"].append({"trips": {"minimum": 3, "maximum": 1}}),
    lambda d: d.update(deep={"a": [float("inf")]}),
]


@pytest.mark.parametrize("damage", BROKEN)
def test_a_record_that_is_no_audit(recorded, document, damage, tmp_path):
    damage(document)
    path = tmp_path / "old.json"
    path.write_text(json.dumps(document))
    with pytest.raises(RejectedError):
        read_recorded(path)
    with pytest.raises(RejectedError):
        compare_audits(recorded, document)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '"x"', "[" * 100_000, "{}"])
def test_files_that_are_no_record(text, tmp_path):
    path = tmp_path / "old.json"
    path.write_text(text)
    with pytest.raises(RejectedError):
        read_recorded(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RejectedError):
        read_recorded(path)
    with pytest.raises(RejectedError):
        read_recorded(tmp_path)
    with pytest.raises(UnavailableError):
        read_recorded(tmp_path / "none.json")


def test_a_pipe_or_a_device_is_never_read(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", "/dev/zero"):
        with pytest.raises(RejectedError, match="is no plain file"):
            read_recorded(path)


def test_odd_parts_of_a_record_do_not_break_a_comparison(recorded, document):
    """Whatever lies in the parts that only the sentences read."""
    for odd in (None, 3, "x", [], {}, {"a": {"b": None}}):
        for name in ("compiled", "program", "findings"):
            other = copy.deepcopy(document)
            other[name] = odd
            try:
                compare_audits(recorded, other, across=True)
            except RejectedError:
                assert name == "findings" or name == "program"
        for name in recorded["compiled"]:
            other = copy.deepcopy(document)
            other["compiled"][name] = odd
            compare_audits(recorded, other)
            compare_audits(other, recorded)


def test_what_is_kept_compares_like_the_whole(recorded, tmp_path):
    text = kept(recorded)
    assert len(text) < len(json.dumps(recorded)) / 4
    path = tmp_path / "old.json"
    path.write_text(text)
    comparison = compare_audits(read_recorded(path), recorded)
    assert comparison.status == "same"
    assert figures(json.loads(text)).keys() == figures(recorded).keys()


# What the compiler does differently -------------------------------------------------------------------------------


def said(comparison, about):
    return " ".join(found.text for found in comparison.differences if found.about == about)


def test_an_upgrade_is_told_apart_from_a_change_of_the_program(recorded, document):
    document["program"]["environment"]["versions"]["jaxlib"] = "0.11.0"
    compiled = document["compiled"]
    compiled["fusions"]["by_kind"] = {**compiled["fusions"]["by_kind"], "kLoop": 1}
    compiled["fusions"]["count"] -= 5
    compiled["opcodes"]["copy"] += 3
    compiled["contractions"]["merged"] += 2
    compiled["contractions"]["digest"] = "other"
    compiled["contractions"]["by_shape"]["dot f32[8,8] x f32[8,8] -> f32[8,8]"] = 1
    compiled["strength_reduced"] += 1
    compiled["rematerialised"] += 7
    compiled["loops"]["count"] -= 1
    compiled["collectives"]["instructions"]["all-gather"] = 1
    compiled["kernels"]["__cublas$lt$matmul"] = 4
    compiled["layouts"]["digest"] = "other"
    comparison = compare_audits(recorded, document)
    assert not comparison.failed and comparison.status == "changed"
    assert "jaxlib 0.10.2 -> 0.11.0" in said(comparison, "versions")
    assert "cannot be told" in said(comparison, "versions"), "a proto alone says nothing of the program"
    assert "kLoop" in said(comparison, "fusions")
    assert "copy" in said(comparison, "instructions")
    assert "several products" in said(comparison, "contractions")
    assert "multiply and reduce" in said(comparison, "contractions")
    assert "recomputes on its own" in said(comparison, "memory")
    assert "unrolled" in said(comparison, "loops")
    assert "combined" in said(comparison, "collectives")
    assert "__cublas$lt$matmul 0 -> 4" in said(comparison, "kernels")
    assert said(comparison, "layouts")


def test_a_change_of_the_program_is_said_first(recorded, document):
    for data, digest in ((recorded, "a"), (document, "b")):
        data = data["compiled"]["program"]
        data.update(arguments=["x: float32[8]"], arguments_digest="1", results=["float32[]"], jaxpr_digest=digest,
                    operations={"tanh": 8})  # fmt: skip
    document["compiled"]["program"].update(arguments=["x: bfloat16[8]"], arguments_digest="2", operations={"tanh": 16})
    document["program"]["environment"]["versions"]["jax"] = "0.11.0"
    try:
        comparison = compare_audits(recorded, document)
    finally:
        recorded["compiled"]["program"].update(
            arguments=None, arguments_digest=None, results=None, jaxpr_digest=None, operations=None
        )
    first = [found.about for found in comparison.differences][:2]
    assert first == ["program", "program"]
    assert "bfloat16" in said(comparison, "program") and "tanh 8 -> 16" in said(comparison, "program")
    assert "trace the same code differently" in said(comparison, "program")


def of_arguments(document, arguments, results=()):
    program = document["compiled"]["program"]
    program.update(arguments=arguments, arguments_digest=str(arguments), results=list(results))
    return document


def test_donation_that_is_lost_is_said_with_its_arguments(recorded, document):
    old, new = copy.deepcopy(recorded), document
    paths = [f"state['layer: {i}'].kernel" for i in range(5)]
    of_arguments(old, [f"{path}: float32[8,4] donated P('d', None)" for path in paths])
    of_arguments(new, [f"{path}: float32[8,4] P('d', None)" for path in paths])
    old["memory"]["alias_bytes"], new["memory"]["alias_bytes"] = 640, 0
    comparison = compare_audits(old, new)
    text = said(comparison, "program")
    assert text == (
        "5 arguments are no longer donated: state['layer: 0'].kernel, state['layer: 1'].kernel, "
        "state['layer: 2'].kernel and 2 more; donation saves 0 bytes, not 640"
    )
    assert text in comparison.to_text()
    assert statuses(comparison)["memory.alias_bytes"] == "shrunk" and not comparison.failed
    held = bounds_of(["memory.alias_bytes=0"])
    assert compare_audits(old, new, held).failed
    assert not compare_audits(new, old, held).failed
    assert "5 arguments are donated now" in said(compare_audits(new, old), "program")
    # A record of an earlier version has no such figure; nothing is said of it.
    del old["memory"]["alias_bytes"]
    assert not compare_audits(old, new).failed


def test_changed_arguments_are_said_by_path(recorded, document):
    old = of_arguments(
        copy.deepcopy(recorded), ["a: float32[8] donated", "b: int4[2]", "c: float32[] P('d',)"], ["float32[8]"] * 3
    )
    new = of_arguments(
        document, ["a: float32[16] donated", "c: float32[]", "d: key<fry>[]"], ["float32[16]"] * 2 + ["float32[8]"]
    )
    text = said(compare_audits(old, new), "program")
    for part in (
        "1 argument changed: a float32[8] -> float32[16]", "1 argument is new: d key<fry>[]",
        "1 argument is gone: b int4[2]", "1 argument is sharded otherwise: c P('d',) -> as the compiler likes",
        "2 results changed: float32[8] -> float32[16] (2)",
    ):  # fmt: skip
        assert part in text, part
    assert "donated" not in text
    # What cannot be read, or paired, is listed as it is.
    for odd in (["a"], ["a: float32[8]", "a: float32[8]"], [3]):
        assert "its arguments differ: " in said(compare_audits(old, of_arguments(document, odd)), "program")
    swapped = of_arguments(document, [*reversed(old["compiled"]["program"]["arguments"])])
    assert "their order" in said(compare_audits(old, swapped), "program")


def test_the_report_names_what_failed(recorded, document, capsys):
    document["memory"]["live_peak_bytes"] += 2**20
    document["flops"]["total"] = None
    document["flops"]["reason"] = "while.3 depends on data"
    data = compare_audits(recorded, document, against="old.json").to_dict()
    json.dumps(data, allow_nan=False)
    show_against(data)
    shown = capsys.readouterr().out
    assert "memory.live_peak_bytes" in shown and "+1,048,576 (1.00 MiB)" in shown
    assert "while.3 depends on data" in shown and "old.json" in shown
    assert "2 beyond their bounds" in verdict(data)
    show_against(compare_audits(recorded, recorded).to_dict())
    assert "nothing is beyond its bound" in capsys.readouterr().out
    text = compare_audits(recorded, document).to_text()
    assert "FAILED memory.live_peak_bytes" in text


def test_the_bytes_of_collectives_are_payload_everywhere(recorded, document, capsys):
    """The headline, the tree and a comparison name the same number; the axes are in the name of a figure."""
    columns = recorded["attribution"]["columns"]["collective_bytes"]
    found = {name: figure.range.low for name, figure in figures(recorded).items() if name.endswith(".bytes")}
    assert found.pop("collectives.bytes") == columns["total"] == sum(found.values())
    row = next(row for row in document["collectives"] if row["kind"] == "all-gather")
    assert row["result_bytes"] > row["operand_bytes"]
    row["total_operand_bytes"] += 1  # no payload: the result is the whole array
    assert compare_audits(recorded, document).status == "same"
    row["total_result_bytes"] += 1
    show_against(compare_audits(recorded, document).to_dict())
    assert f"collectives.all-gather[{'+'.join(row['axes'])}].bytes" in capsys.readouterr().out


def test_trips_of_loops_are_those_of_a_step(document):
    """A loop inside another runs as often as both say."""
    document["loops"] = [{"trips": 7, "total_trips": 35}, {"trips": 5, "total_trips": 5}]
    assert figures(document)["loops.trips"].range.high == 40
    document["loops"][0]["total_trips"] = None
    assert figures(document)["loops.trips"].range.high is None


def test_every_status_is_one_of_those_named(recorded, document):
    for _, change in [*GROWN, *UNKNOWN]:
        change(document)
    assert {row.status for row in compare_audits(recorded, document).rows} <= set(STATUSES)
    assert GATED


def test_rematerialisation_shows_as_flops_gathers_and_a_smaller_peak(pool):
    """A program that really changed: `jax.checkpoint` around each layer."""
    mesh = {"d": 8}
    plain, remat = (
        audit_document(compile_for(pool, name, "cpu:8", mesh)) for name in ("fsdp", "fsdp_remat")
    )  # fmt: skip
    comparison = compare_audits(plain, remat)
    failed = {row.name for row in comparison.failures}
    assert {"flops.total", "collectives.executions", "collectives.all-gather[d].executions"} <= failed
    assert statuses(comparison)["memory.live_peak_bytes"] == "shrunk"
    assert comparison.differences[0].about == "program"
    gathers = next(row for row in comparison.rows if row.name == "collectives.all-gather[d].executions")
    assert (gathers.old.low, gathers.new.low) == (6, 12)
