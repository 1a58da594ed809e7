"""Transfers between devices: each follows from the axes of the program, and ideal sends obey their identities."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxcost.prediction import program as build
from jaxcost.prediction.algorithms import (
    KINDS,
    Levels,
    ends,
    hierarchical_send_bytes,
    levels,
    ring_send_bytes,
    tree_send_bytes,
)
from jaxcost.prediction.collectives import collectives
from jaxcost.prediction.rows import Ledger
from tests.prediction.cases import RUNNING, TOY, case

# Of the running fixture, bf16, eight ranks: section 0x07J of the cost model that tests/data/figures.json is of.
ONE_WAY, ALL_REDUCE, RESHARD = 14_052_957_184, 28_105_914_368, 42_158_871_552


def ledger(sizes: dict[str, Any], phase: str = "training", per_node: int | None = None, **options: Any) -> Ledger:
    options.setdefault("seq", 4096 if sizes is RUNNING else 8)
    return collectives(build(case(sizes, phase, **options)), per_node)


def found(of: Ledger, **where: str) -> list[tuple[str, int, int]]:
    """(object, payload, executions) of the rows with these fields; `phase` and `scope` are of the row itself."""
    own = {name: where.pop(name) for name in ("phase", "scope") if name in where}
    return [
        (row.object, row.fields["payload_bytes"], row.fields["times"])
        for row in of.rows
        if all(row.fields[name] == value for name, value in where.items())
        and all(getattr(row, name) == value for name, value in own.items())
    ]


def test_figures_of_ideal_rings() -> None:
    rows = ledger(RUNNING, batch=8, mesh={"data": 8}, zero=3, remat="block").rows
    gathers = [row for row in rows if row.fields["kind"] == "all-gather"]
    sent = {
        phase: sum(row.fields["ring_send_bytes"] * row.fields["times"] for row in gathers if row.phase == phase)
        for phase in ("forward", "backward")
    }
    assert sent == {"forward": ONE_WAY, "backward": ONE_WAY}
    payload = sum(row.value for row in gathers) // 2
    assert ring_send_bytes("all-reduce", payload, 8) == ALL_REDUCE
    assert sum(sent.values()) + ring_send_bytes("reduce-scatter", payload, 8) == RESHARD


@given(st.sampled_from(KINDS), st.integers(1, 64), st.integers(1, 1 << 20), st.sampled_from([1, 2, 4, 8]))
def test_ideal_sends(kind: str, n: int, elements: int, itemsize: int) -> None:
    payload = -(-elements // n) * n * itemsize  # rounded up to what the participants divide
    ring = ring_send_bytes(kind, payload, n)
    gather, scatter = (ring_send_bytes(one, payload, n) for one in ("all-gather", "reduce-scatter"))
    assert gather == scatter and gather * n == (n - 1) * payload
    assert ring_send_bytes("all-reduce", payload, n) == gather + scatter
    if kind != "collective-permute":
        assert (ring == 0) == (n == 1)
    tree = tree_send_bytes(kind, payload, n)
    assert tree is None or tree >= ring
    into, out = ends(kind, payload, n)
    assert {into, out} <= {payload, payload // n}
    assert (into == out) == (kind in ("all-reduce", "all-to-all", "collective-permute") or n == 1)


@given(st.sampled_from(KINDS[:4]), st.integers(1, 8), st.integers(1, 8), st.integers(1, 1 << 12))
def test_levels_send_in_sum_what_a_ring_sends(kind: str, inside: int, across: int, pieces: int) -> None:
    payload = pieces * inside * across
    within, between = hierarchical_send_bytes(kind, payload, Levels(inside, across))
    assert within + between == ring_send_bytes(kind, payload, inside * across)
    assert (between == 0) == (across == 1) and (within == 0) == (inside == 1)


def test_groups_lie_on_nodes_by_the_order_of_the_mesh() -> None:
    mesh = [("data", 4), ("tensor", 8)]
    assert levels(mesh, ["tensor"], 8) == Levels(8, 1)
    assert levels(mesh, ["data"], 8) == Levels(1, 4)
    assert levels(mesh, ["data", "tensor"], 8) == Levels(8, 4)
    assert levels([("data", 2), ("tensor", 3)], ["tensor"], 4) is None
    row = next(r for r in ledger(TOY, batch=4, mesh={"data": 4, "tensor": 2}, per_node=2).rows)
    assert row.fields["inside_send_bytes"] is not None
    assert ledger(TOY, batch=4, mesh={"data": 4}).rows[0].fields["inside_send_bytes"] is None


@pytest.mark.parametrize("mesh", [{}, {"data": 1}, {"fsdp": 1, "tensor": 1}])
def test_one_device_sends_nothing(mesh: dict[str, int]) -> None:
    alone = ledger(TOY, mesh=mesh)
    assert alone.rows == () and alone.totals["payload_bytes"] == 0 and alone.totals["by_kind"] == {}


def test_a_resident_copy_is_no_transfer() -> None:
    """Data parallelism holds every parameter, moment and master copy on every rank; gradients and the loss move."""
    rows = ledger(TOY, batch=4, mesh={"data": 4}).rows
    assert {row.fields["kind"] for row in rows} == {"all-reduce"}
    assert {row.object.removeprefix("d ") for row in rows if row.object.startswith("d ")} == {
        tensor.name for tensor in build(case(TOY, "training", seq=8, batch=4)).unique_parameters
    }
    assert [row.object for row in rows if not row.object.startswith("d ")] == ["loss/out"]
    assert ledger(TOY, "prefill", batch=4, mesh={"data": 4}).rows == ()


def test_column_and_row_parallel_products() -> None:
    one = ledger(TOY, batch=2, mesh={"tensor": 2}, remat="block")
    stream = 2 * 8 * TOY["d"] * 2
    assert found(one, phase="forward", scope="group0/attn/o_proj") == [("group0/attn/o_proj/out", stream, 2)]
    assert found(one, phase="forward", scope="group0/mlp/down") == [("group0/mlp/down/out", stream, 2)]
    inputs = [row for row in one.rows if row.phase == "backward" and row.object == "d group0/attn_norm/out"]
    assert [row.fields["terms"] for row in inputs] == [tuple(f"group0/attn/{n}_proj" for n in "qkv")]
    # The block's last product is dead in the replay, and so is its sum.
    assert {row.scope for row in one.rows if row.phase == "replay"} == {"group0/attn/o_proj"}
    assert len(found(one, scope="loss")) == 3


def test_matrices_are_gathered_again_where_they_were_dropped() -> None:
    matrices = 7
    dropped = ledger(TOY, batch=4, mesh={"fsdp": 4}, remat="none")
    gathers = [row for row in dropped.rows if row.object.endswith("/weight") and row.fields["kind"] == "all-gather"]
    assert [row.phase for row in gathers].count("forward") == matrices + 1
    assert [row.phase for row in gathers].count("backward") == matrices
    kept = ledger(TOY, batch=4, mesh={"fsdp": 4}, remat="none", reshard=False)
    assert {row.phase for row in kept.rows if row.fields["kind"] == "all-gather"} == {"forward"}
    assert found(kept, kind="reduce-scatter") == found(dropped, kind="reduce-scatter")


def test_hybrid_sharding_scatters_first_and_sums_the_shard() -> None:
    rows = ledger(TOY, batch=4, mesh={"data": 2, "fsdp": 2}).rows
    weight = [row.fields for row in rows if row.object == "d group0/mlp/up/weight"]
    assert [(f["kind"], f["axis"]) for f in weight] == [("reduce-scatter", "fsdp"), ("all-reduce", "data")]
    assert weight[0]["payload_bytes"] == 2 * weight[1]["payload_bytes"]


def test_accumulation_repeats_or_waits() -> None:
    every = ledger(TOY, batch=8, accumulate=4, mesh={"data": 2})
    last = ledger(TOY, batch=8, accumulate=4, mesh={"data": 2}, gradient_sync="last_microbatch")
    (often,) = found(every, scope="group0/mlp/up")
    (once,) = found(last, scope="group0/mlp/up")
    assert often[2] == 4 * once[2] and once[1] == 2 * often[1]  # the accumulated gradient is fp32


def test_rows_of_context() -> None:
    gathered = ledger(TOY, batch=2, mesh={"context": 4}, remat="none")
    whole = 2 * 8 * TOY["k"] * TOY["e"] * 2
    assert found(gathered, kind="all-gather", phase="forward") == [
        ("group0/attn/rotary/k", whole, 2),
        ("group0/attn/v_proj/out", whole, 2),
    ]
    assert [size for _, size, _ in found(gathered, kind="reduce-scatter")] == [whole, whole]
    ring = ledger(TOY, batch=2, mesh={"context": 4}, remat="none", attention="blockwise", context_method="ring")
    forward = found(ring, kind="collective-permute", phase="forward", scope="group0/attn/scores")
    assert forward == [("group0/attn/rotary/k", whole // 4, 3 * 2)]
    backward = found(ring, kind="collective-permute", phase="backward", scope="group0/attn/scores")
    assert sum(times for _, _, times in backward) == (3 + 4) * 2


def test_shared_heads_are_summed_over_the_ranks_that_hold_them() -> None:
    rows = ledger(TOY, batch=2, mesh={"tensor": 4}).rows  # two K/V heads
    over = {row.fields["axis"]: row.fields["participants"] for row in rows}
    assert over == {"tensor": 4, "tensor_replica": 2, "tensor_heads": 2}
    assert {row.object for row in rows if row.fields["axis"] == "tensor_replica"} == {
        "d group0/attn/rotary/k",
        "d group0/attn/v_proj/out",
    }


def test_sequence_parallelism_trades_each_sum_for_a_scatter_and_a_gather() -> None:
    plain = ledger(TOY, batch=2, mesh={"tensor": 2}, remat="block")
    split = ledger(TOY, batch=2, mesh={"tensor": 2}, remat="block", sequence_parallel=True)
    stream = {row.scope for row in plain.rows if row.fields["kind"] == "all-reduce" and row.fields["elements"] > 64}
    assert not [row for row in split.rows if row.fields["kind"] == "all-reduce" and row.scope in stream - {"loss"}]
    assert {row.scope for row in split.rows if row.fields["kind"] == "reduce-scatter"} == stream


def test_stages_hand_on_activations_and_gradients() -> None:
    ledger_ = ledger(TOY | {"tied": True}, batch=4, accumulate=4, mesh={"pipeline": 2})
    sent = found(ledger_, axis="pipeline", kind="collective-permute")
    assert len(sent) == 1 and sent[0][2] == 4
    assert found(ledger_, axis="pipeline", kind="all-reduce")


def test_zero_scatters_gradients_and_gathers_updates() -> None:
    plain = ledger(TOY, batch=4, mesh={"data": 4}, vocabulary_multiple=4)
    split = ledger(TOY, batch=4, mesh={"data": 4}, zero=2, vocabulary_multiple=4)
    sums = sum(row.fields["ring_send_bytes"] for row in plain.rows if row.scope == "group0/mlp/up")
    scatter = found(split, kind="reduce-scatter", scope="group0/mlp/up")
    assert [2 * ring_send_bytes("reduce-scatter", size, 4) for _, size, _ in scatter] == [sums]
    assert {row.phase for row in split.rows if row.fields["kind"] == "all-gather"} == {"optimizer"}


def test_a_tied_table_is_summed_once() -> None:
    tied = ledger(TOY | {"tied": True}, batch=4, mesh={"data": 4})
    (row,) = [row for row in tied.rows if row.object == "d embed/tokens/weight"]
    assert row.fields["terms"] == ("head", "embed/tokens")
    assert not [row for row in tied.rows if row.object == "d head/weight"]


def test_factored_statistics_leave_the_totals_unknown() -> None:
    unknown = ledger(TOY, batch=4, mesh={"fsdp": 4}, optimizer="adafactor")
    assert unknown.totals["payload_bytes"] is None and "Adafactor" in unknown.reasons["payload_bytes"]
    assert ledger(TOY, batch=4, mesh={"data": 4}, optimizer="adafactor").totals["payload_bytes"] > 0
