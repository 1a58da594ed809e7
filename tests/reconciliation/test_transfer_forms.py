"""What one transfer is, how its forms follow from it, and what is said of what is there and what is not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from jaxcost.observation.observed import Observed
from jaxcost.prediction.ledgers import Prediction
from jaxcost.reconciliation.collectives import AUTO, SLICES, UNKNOWN_TIMES, Transfers, axes_text, folded
from jaxcost.reconciliation.rows import Explanation, Row
from jaxcost.reconciliation.transfer_forms import (
    Change,
    Key,
    Need,
    Seen,
    anywhere,
    as_evidence,
    axis_pair,
    changed,
    likeness,
    listed,
    related,
    same_group,
    same_pass,
    same_place,
    same_scope,
    shows,
)
from tests.reconciliation.test_transfer_rules import HYBRID, compiled, copied, of, predicted, resize

UP = "group0/mlp/up"
# 48 elements of bf16, 96 bytes, in each of 4 executions: two layers of two microbatches.
NEED = Need(Key("all-gather", "fsdp", 96, 4), "bf16", 48, UP, "forward", f"{UP}/weight", (), 2, 2, 8)
SEEN = Seen(Key("all-gather", "fsdp", 96, 4), "bf16", 48, UP, "forward", "", "gather.1", "plain", (), "m.py:1", 0)


def test_a_key_is_a_row() -> None:
    assert (NEED.key.scope, NEED.key.total) == ("all-gather/fsdp/96x4", 384)
    assert Key("send", "", 3, 5).scope == "send/unknown axes/3x5"
    assert NEED.scopes == (UP,) and replace(NEED, terms=("a", "b")).scopes == ("a", "b")
    assert SEEN.shown == "gather.1 (bf16 x 48)" and not SEEN.taken


@pytest.mark.parametrize(
    ("changes", "kind", "payload", "times", "dtype", "elements"),
    [
        ((), "all-gather", 96, 4, "bf16", 48),
        ((Change("wider type", dtype="fp32"),), "all-gather", 192, 4, "fp32", 48),
        ((Change("gathered by a sum", kind="all-reduce"),), "all-reduce", 96, 4, "bf16", 48),
        ((Change("out of the loop", divided=2),), "all-gather", 192, 2, "bf16", 96),
        ((Change("hoisted", fewer=2),), "all-gather", 96, 2, "bf16", 48),
        ((Change("one sum each", pieces=3),), "all-gather", 96, 4, "bf16", 48),
        ((Change("a", divided=2), Change("b", fewer=2), Change("c", dtype="fp32")), "all-gather", 384, 1, "fp32", 96),
        ((Change("a", kind="all-reduce"), Change("b", dtype="fp32")), "all-reduce", 192, 4, "fp32", 48),
    ],
)
def test_each_change_has_its_effect(
    changes: tuple[Change, ...], kind: str, payload: int, times: int, dtype: str, elements: int
) -> None:
    assert changed(NEED, changes) == (Key(kind, "fsdp", payload, times), dtype, elements)


def test_an_instruction_shows_what_is_claimed_of_it() -> None:
    cut, summed = replace(SEEN, sliced=("own.1",)), replace(SEEN, form="gathers by summing into zeros")
    for names, plain, sliced, zeros in (
        (set(), True, True, True), ({"wider type"}, True, True, True), ({"reduced whole"}, False, True, False),
        ({"gathered by a sum"}, False, False, True), ({"reduced whole", "gathered by a sum"}, False, False, False),
    ):  # fmt: skip
        assert (shows(SEEN, names), shows(cut, names), shows(summed, names)) == (plain, sliced, zeros)


@pytest.mark.parametrize(
    ("scope", "near", "group"),
    [
        (UP, True, True),
        ("group0/mlp", True, True),
        ("group0", True, True),
        (f"{UP}/cast", True, True),
        ("", True, False),
        ("group0/mlp/upper", False, True),
        ("group0/mlp/down", False, True),
        ("group01/mlp/up", False, False),
        ("head", False, False),
    ],
)
def test_what_lies_near_a_transfer(scope: str, near: bool, group: bool) -> None:
    seen = replace(SEEN, scope=scope)
    assert (related(NEED, seen), same_group(NEED, seen), same_scope(NEED, seen)) == (near, group, scope == UP)
    assert anywhere(NEED, seen)
    assert same_place(NEED, seen) == (scope == UP)
    assert not same_place(NEED, replace(seen, phase="backward"))
    assert likeness(NEED, seen) == (scope == UP, near, True)
    of_terms = replace(NEED, scope="group0/mlp_norm", terms=("x", UP))
    assert related(of_terms, seen) == near and same_scope(of_terms, seen) == (scope == UP)
    assert not same_group(replace(NEED, scope="head"), replace(SEEN, scope="head"))  # the head is no group of layers


@pytest.mark.parametrize(
    ("kind", "phase", "passes"),
    [
        ("all-gather", "forward", "forward"),
        ("all-gather", "backward", "backward replay"),
        ("all-gather", "replay", "backward replay"),
        ("reduce-scatter", "backward", "backward"),
        ("reduce-scatter", "forward", "backward"),
    ],
)
def test_passes(kind: str, phase: str, passes: str) -> None:
    need = replace(NEED, key=NEED.key._replace(kind=kind), phase=phase)
    for other in ("forward", "backward", "replay", "optimizer"):
        seen = replace(SEEN, phase=other)
        assert same_pass(need, seen) == (other in passes.split())
        assert likeness(need, seen)[2] == ((phase == "forward") == (other in ("forward", "optimizer")))


def test_two_instructions_over_all_axes() -> None:
    def over(*axes: str) -> list[Seen]:
        return [replace(SEEN, key=SEEN.key._replace(axes=each), name=each) for each in axes]

    three = ["data", "fsdp", "tensor"]
    for there, pair in (
        (("fsdp", "data,tensor"), ("fsdp", "data,tensor")),
        (("data,tensor", "fsdp", "tensor"), ("fsdp", "data,tensor")),
        (("data", "fsdp"), None),
        (("tensor,data", "fsdp"), None),
    ):
        found = axis_pair(three, over(*there))
        assert (found and tuple(seen.name for seen in found)) == pair
    assert axis_pair(["data"], over("data")) is None


def test_texts() -> None:
    assert as_evidence(SEEN, NEED) == f"gather.1 (bf16 x 48) for {UP}/weight"
    assert as_evidence(replace(SEEN, sliced=("a", "b")), NEED).endswith("weight, of which a, b keeps a part")
    assert listed("abcdef") == "a, b, c, d, e, f" and listed("abcdefgh") == "a, b, c, d, e, f and 2 more"
    assert listed([]) == "" and listed("abc", 2) == "a, b and 1 more"
    assert axes_text(["data", "fsdp"]) == "data,fsdp" and axes_text([]) == ""


def test_explanations_of_one_reason_are_one() -> None:
    items = [Explanation(3, "r", "a"), Explanation(5, "s", "b"), Explanation(-3, "r", "c"), Explanation(2, "s", "b")]
    assert folded(items) == (Explanation(0, "r", "a, c"), Explanation(7, "s", "b"))


# What is said of rows


def transfers(prediction: Prediction, rows: list[dict[str, Any]], **target: Any) -> Transfers:
    replay = [{"scope": "group0/mlp/up", "phase": "replay"}]
    data = {
        "collectives": {"rows": rows}, "target": target, "jaxpr": {"by_scope_phase": replay},
        "hlo": {"by_scope_phase": replay},
    }  # fmt: skip
    return Transfers(prediction, Observed(data))


def rows_of(found: Transfers) -> dict[str, Row]:
    return {row.key: row for row in found.rows()}


def test_a_row_says_what_was_declared_and_what_was_not() -> None:
    prediction = predicted(**HYBRID)
    rows = compiled(prediction)
    one = of(rows, "head/weight", "all-gather")
    stray = copied(one, name="stray", source="model.py:7", scope="head", phase="forward")
    resize(stray, 6, 12)
    found = transfers(prediction, [*rows, stray])
    key = f"collective:all-gather/fsdp/12x{one['executions']}"
    row = rows_of(found)[key]
    assert (row.prediction, row.observation, row.status) == (0, 12 * one["executions"], "open")
    assert row.reason == "not declared: stray (bf16 x 6) model.py:7"
    (finding,) = found.findings()
    text = f"nobody declared all-gather over fsdp, 12 bytes x {one['executions']}, in head at model.py:7"
    assert (finding.kind, finding.text, finding.evidence) == ("undeclared collective", text, ("stray",))
    bare = copied(one, name="stray", source="", scope="", phase="forward", axes=None)
    resize(bare, 6, 12)
    found = transfers(prediction, [*rows, bare])
    (finding,) = found.findings()
    assert finding.text == f"nobody declared all-gather over unknown axes, 12 bytes x {one['executions']}, in no scope"
    assert rows_of(found)[key.replace("fsdp", "unknown axes")].reason == "not declared: stray (bf16 x 6)"
    rows.remove(of(rows, "d group0/mlp/up/weight", "reduce-scatter"))
    row = next(
        row for row in transfers(prediction, rows).rows() if row.status == "open" and row.counter == "collective"
    )
    assert row.reason.startswith("declared: ") and "d group0/mlp/up/weight (backward)" in row.reason


def test_executions_that_nobody_knows() -> None:
    prediction = predicted(**HYBRID)
    rows = compiled(prediction)
    row = of(rows, "head/weight", "all-gather")
    kind = "collective_bytes:all-gather/fsdp"
    declared = rows_of(transfers(prediction, rows))[kind].prediction
    row["executions"] = None
    found = rows_of(transfers(prediction, rows))
    own = found[f"collective:all-gather/fsdp/{row['name']}"]
    assert (own.prediction, own.observation, own.unit, own.reason) == (None, None, "bytes", UNKNOWN_TIMES)
    for key in ("collective_bytes", kind):
        assert (found[key].observation, found[key].status, found[key].reason) == (None, "unmeasured", UNKNOWN_TIMES)
    assert found[kind].prediction == declared
    assert found["collective_bytes:reduce-scatter/fsdp"].status == "exact"
    assert found["collective_bytes:reduce-scatter/fsdp"].reason == ""


def test_automatic_partitioning_is_counted_and_not_claimed() -> None:
    prediction = predicted(sharding="auto", **HYBRID)
    rows = compiled(prediction)
    found = transfers(prediction, rows)
    whole = sum(row["executions"] * max(row["operand_bytes"], 0) for row in rows if row["kind"] == "all-reduce")
    made = rows_of(found)
    assert {(row.prediction, row.reason, row.unit) for row in made.values()} == {(None, AUTO, "bytes")}
    sums = sum(row.observation or 0 for key, row in made.items() if key.startswith("collective_bytes:all-reduce/"))
    assert sums == whole
    parts = sum(row.observation or 0 for key, row in made.items() if ":" in key)
    assert made["collective_bytes"].observation == parts
    assert list(found.findings()) == []  # what explicit sharding declares, to the byte
    row = of(rows, "head/weight", "all-gather")
    row["executions"] += 1
    (finding,) = transfers(prediction, rows).findings()
    there = made["collective_bytes:all-gather/fsdp"].observation or 0
    text = f"all-gather/fsdp: {there + row['result_bytes']} bytes, {there} with explicit sharding"
    assert (finding.kind, finding.text) == ("automatic partitioning", text)
    assert len(finding.evidence) == 4 and set(finding.evidence) < {row["name"] for row in rows}


def test_one_device_of_automatic_partitioning_talks_to_nobody() -> None:
    assert rows_of(transfers(predicted(batch=8, sharding="auto"), [])) == {}
    assert not transfers(predicted(batch=8, sharding="auto"), []).auto


def test_between_slices() -> None:
    prediction = predicted(**HYBRID)
    rows = compiled(prediction)
    one = of(rows, "head/weight", "all-gather")
    sends = [copied(one, name=f"send.{n}", kind="send", form="ALL_REDUCE", executions=3) for n in range(5)]
    for send in sends:
        resize(send, 10, 99)
    other = copied(one, name="other", kind="all-gather", form="ALL_REDUCE")
    found = transfers(prediction, [*rows, *sends, other], slice_count=3)
    assert {(row.prediction, row.reason) for row in found.rows()} == {(None, SLICES)}
    (finding,) = found.findings()
    text = "ALL_REDUCE: each device sends 150 bytes to the other 2 of 3 slices"
    assert (finding.kind, finding.text) == ("between slices", text)
    assert finding.evidence == ("send.0", "send.1", "send.2", "send.3")
    assert list(transfers(prediction, rows, slice_count=1).findings()) == []


def test_evidence_names_what_was_found() -> None:
    prediction = predicted(**HYBRID)
    rows = compiled(prediction)
    weight = "d group0/mlp/up/weight"
    row = of(rows, weight, "reduce-scatter")
    elements = row["operand_bytes"] // 2
    rows.remove(of(rows, weight, "all-reduce"))
    row |= {"kind": "all-reduce", "axes": ["data", "fsdp"]}
    resize(row, row["operand_bytes"], row["operand_bytes"])
    row["parts"][0]["sliced"] = ["own.1"]
    said = f"{row['name']} (bf16 x {elements}) for {weight}, of which own.1 keeps a part"
    found = rows_of(transfers(prediction, rows))
    reason = "scattered and summed at once: one all-reduce over all axes, and a slice"
    amounts = {row.key: [item.amount for item in row.explanations if item.reason == reason] for row in found.values()}
    declared = row["operand_bytes"] * row["executions"]
    assert amounts["collective_bytes:reduce-scatter/fsdp"] == [-declared]
    assert amounts["collective_bytes:all-reduce/data"] == [-declared // 2]  # the sum of the half that is kept
    assert amounts["collective_bytes:all-reduce/data,fsdp"] == [declared]
    (item,) = found["collective_bytes:all-reduce/data,fsdp"].explanations
    assert item.evidence == said


def test_a_ring_says_what_passes() -> None:
    prediction = predicted(batch=8, mesh={"fsdp": 8})
    rows = compiled(prediction)
    row = of(rows, "d group0/mlp/up/weight", "reduce-scatter")
    rows.remove(row)
    shard = row["result_bytes"]
    for number in range(7):
        passed = copied(row, name=f"permute.{number}", kind="collective-permute")
        resize(passed, shard, shard)
        rows.append(passed)
    found = rows_of(transfers(prediction, rows))
    (gone,) = found["collective_bytes:reduce-scatter/fsdp"].explanations
    (come,) = found["collective_bytes:collective-permute/fsdp"].explanations
    assert (gone.amount, come.amount) == (-8 * shard * row["executions"], 7 * shard * row["executions"])
    names = ", ".join(f"permute.{number}" for number in range(6)) + " and 1 more"
    said = f"{names} pass {shard // 2} x bf16 of d group0/mlp/up/weight 7 times"
    assert gone.evidence == come.evidence == said
    elsewhere = [{**r, "parts": [{**p, "phase": "forward"} for p in r["parts"]]} if r["kind"] == "collective-permute"
                 else r for r in rows]  # fmt: skip
    assert rows_of(transfers(prediction, elsewhere))["collective_bytes"].status == "open"
