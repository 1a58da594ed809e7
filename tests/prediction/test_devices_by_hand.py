"""Ranks, meshes, windows and groups counted by hand, on the model of `test_rows_by_hand` and its neighbours."""

from __future__ import annotations

from typing import Any

import pytest

import jaxcost
from jaxcost.contracts.architecture import Architecture
from jaxcost.contracts.case import Case, build_case
from jaxcost.prediction import predict, program
from jaxcost.prediction.collectives import collectives, rank_rows
from jaxcost.prediction.flops import busiest_rank, rank_flops, six_nd
from jaxcost.prediction.ledgers import Prediction
from jaxcost.prediction.peak import PeakPrediction, predict_peak
from jaxcost.prediction.rows import Row
from jaxcost.prediction.stages import ranks
from tests.prediction.cases import TOY, architecture, case

MATRICES = 64 + 32 + 32 + 64 + 3 * 96  # scalars of a layer's matrices
HEAD = 8 * 16


def windowed(cycle: list[int], split: tuple[int, ...] = (4,), **options: Any) -> Case:
    """Four layers (or `split` into groups) with a cycle of windows in the last group; one sequence of four rows."""
    data = architecture(**{**TOY, "L": 4, "split": split}).to_data()
    data["groups"][-1]["windows"] = cycle
    return build_case(Architecture.from_data(data), {"phase": "training", "batch": 2, "seq": 4, **options})


def pairwise(pairs: int, sequences: int = 2) -> int:
    """FLOPs of scores and values over query-key pairs: two products, four heads of two, one multiply-add is two."""
    return 2 * 2 * 4 * 2 * pairs * sequences


def products(rows: int, layers: int = 1) -> int:
    return 2 * rows * MATRICES * layers


def of(found: Prediction, ledger: str, **where: Any) -> list[Row]:
    return [row for row in found.ledgers[ledger].rows if all(getattr(row, key) == to for key, to in where.items())]


# A window of 2 over four rows leaves 1 + 2 + 2 + 2 pairs, a causal mask 1 + 2 + 3 + 4.


@pytest.mark.parametrize("split, full", [((4,), 2), ((2, 2), 3)])
def test_windows_cut_legal_pairs_layer_by_layer(split: tuple[int, ...], full: int) -> None:
    """A cycle of (2, 0): layers 0 and 2 of one group of four; layer 2 alone where the first group has no windows."""
    legal = pairwise(full * 10 + (4 - full) * 7)
    matrices = products(8, 4) + 2 * 8 * HEAD
    wide = predict(windowed([2, 0], split))
    assert wide.value("flops.forward") == matrices + pairwise(4 * 16)
    assert wide.value("flops.forward_causal") == matrices + legal
    assert predict(windowed([2, 0], split, pairs="legal")).value("flops.forward") == matrices + legal
    scores = [row for row in of(wide, "flops", object="scores", phase="forward") if "windows" in row.fields]
    assert [row.fields["windows"] for row in scores] == [(2, 0)]
    assert not [row for row in of(wide, "flops", object="q_proj") if "windows" in row.fields]
    unrolled = predict(windowed([2, 0], split, pairs="legal", layers="unrolled"))
    assert unrolled.value("flops.forward") == matrices + legal


def test_each_rank_has_the_windows_of_its_layers() -> None:
    options = {"pairs": "legal", "mesh": {"pipeline": 2}, "batch": 4, "accumulate": 2}
    for layers, first, last in (([1, 3], 7, 10 + 7 + 10), ([3, 1], 7 + 10 + 7, 10), ([2, 2], 17, 17)):
        built = program(windowed([2, 0], pipeline_layers=layers, **options))
        mine = [3 * (products(16, n) + pairwise(pairs, 4)) for n, pairs in zip(layers, (first, last), strict=True)]
        mine[1] += 3 * 2 * 16 * HEAD
        assert [rank_flops(built, rank) for rank in ranks(built)] == mine
        assert busiest_rank(built).number == mine.index(max(mine))


def test_a_device_of_the_busiest_rank() -> None:
    mesh = {"pipeline": 2, "data": 2, "tensor": 2}
    for layers, ends in (([3, 1], 0), ([1, 3], 1)):
        made = case({**TOY, "L": 4}, "training", batch=8, seq=4, mesh=mesh, accumulate=2, pipeline_layers=layers)
        found, built = predict(made), program(made)
        whole = products(32, 3) + pairwise(3 * 16, 8) + ends * 2 * 32 * HEAD
        totals = found.ledgers["flops"].totals
        assert totals["per_device_forward"] == whole // 4
        assert totals["per_device_backward"] == 2 * whole // 4
        assert totals["per_device"] == 3 * whole // 4
        rank = busiest_rank(built)
        assert (rank.number, rank_flops(built, rank), rank_flops(built, rank, on_device=True)) == (
            ends, 3 * whole, 3 * whole // 4,
        )  # fmt: skip
        head = of(found, "flops", object="head", phase="forward") or of(found, "flops", scope="head", phase="forward")
        assert [row.per_device for row in head] == [ends * 2 * 32 * HEAD // 4]
    replayed = case(
        {**TOY, "L": 4}, "training", batch=8, seq=4, mesh=mesh, accumulate=2, pipeline_layers=[3, 1], remat="block"
    )
    assert predict(replayed).value("flops.per_device_recompute") == (products(32, 3) + pairwise(3 * 16, 8)) // 4


def test_devices_without_stages_share_by_axis() -> None:
    found = predict(case(TOY, "training", batch=8, seq=4, mesh={"data": 2, "tensor": 2, "context": 2}))
    whole = products(32, 2) + pairwise(2 * 16, 8) + 2 * 32 * HEAD
    assert found.value("flops.forward") == whole
    assert found.value("flops.per_device_forward") == whole // 8


def test_splash_says_which_pairs_it_schedules() -> None:
    wide = {**TOY, "d": 512, "e": 128}
    found = predict(case(wide, "training", batch=2, seq=512, attention="splash", attention_block=128))
    for row in of(found, "flops", phase="forward"):
        told = {name: row.fields[name] for name in ("block", "scheduled_pairs") if name in row.fields}
        # Four blocks of 128: 10 of 16 are left.
        assert told == ({"block": 128, "scheduled_pairs": 10 * 128 * 128} if row.object in ("scores", "values") else {})
        assert {"contraction", "layers", "microbatches", "matrix"} <= set(row.fields)
    plain = predict(case(wide, "training", batch=2, seq=512, attention="blockwise"))
    assert not [row for row in plain.ledgers["flops"].rows if "block" in row.fields]
    odd = predict(case(wide, "training", batch=2, seq=192, attention="splash"))
    assert not [row for row in odd.ledgers["flops"].rows if "block" in row.fields]


def test_six_n_d_in_its_parts() -> None:
    used = 2 * MATRICES + HEAD
    assert six_nd(program(case(TOY, "training", batch=2, seq=4))) == {
        "n_used": used, "rows": 8, "product": 6 * used * 8, "pairwise": 3 * pairwise(2 * 16),
        "total": 6 * used * 8 + 3 * pairwise(2 * 16),
    }  # fmt: skip


# Collectives


def test_factors_of_adafactor_over_sharded_axes_are_unknown() -> None:
    for mesh, known in (({"tensor": 2}, False), ({"fsdp": 2}, False), ({"data": 2}, True), ({"context": 2}, True)):
        found = predict(case(TOY, "training", batch=4, seq=4, mesh=mesh, optimizer="adafactor"))
        ledger = found.ledgers["collectives"]
        names = ("payload_bytes", "by_kind", "by_axis", "ring_send_bytes")
        assert ledger.name == "collectives" and tuple(ledger.totals) == names
        assert {total is not None for total in ledger.totals.values()} == {known}
        assert bool(ledger.rows) == known and set(ledger.reasons) == (set() if known else set(names))
        assert isinstance(ledger.rows, tuple)


def test_the_rank_that_moves_most() -> None:
    for layers in ([3, 1], [1, 3]):
        made = case(
            {**TOY, "L": 4}, "training", batch=4, seq=4, mesh={"pipeline": 2, "tensor": 2}, accumulate=2,
            pipeline_layers=layers,
        )  # fmt: skip
        built = program(made)
        sums = [sum(row.value for row in rank_rows(built, rank)) for rank in ranks(built)]
        assert collectives(built).totals["payload_bytes"] == max(sums) > min(sums)
    one = program(case(TOY, "training", batch=4, seq=4, mesh={"tensor": 2}))
    assert list(collectives(one).rows) == rank_rows(one, ranks(one)[0])


def test_levels_of_heads_and_their_replicas() -> None:
    """data 2 x tensor 4 over two key heads: devices 0-3 and 4-7; a head stands on two neighbours."""
    built = program(case(TOY, "training", batch=4, seq=4, mesh={"data": 2, "tensor": 4}))
    seen: dict[tuple[int, str], Any] = {}
    for per_node in (8, 4, 2, 3):
        for row in collectives(built, per_node).rows:
            fields = row.fields
            if row.object in ("embed/tokens/out", "loss/out", "d group0/attn/v_proj/out", "d group0/attn_norm/out"):
                told = (fields["inside_send_bytes"], fields["between_send_bytes"], fields.get("reason"))
                seen.setdefault((per_node, fields["axis"]), told)
    uneven = (None, None, "the groups of this collective lie differently on nodes")
    assert seen == {
        # All ranks of tensor: 64 fp32 sums, 2 x 3/4 of 256 bytes; over two nodes of two 2 x 1/2 inside, half between.
        (8, "tensor"): (384, 0, None), (4, "tensor"): (384, 0, None), (2, "tensor"): (256, 128, None),
        (3, "tensor"): uneven,
        # The loss, padded to a number for each of two: 8 bytes.
        (8, "data"): (8, 0, None), (4, "data"): (0, 8, None), (2, "data"): (0, 8, None), (3, "data"): (0, 8, None),
        # Replicas are neighbours, heads lie two apart.
        (8, "tensor_replica"): (32, 0, None), (4, "tensor_replica"): (32, 0, None),
        (2, "tensor_replica"): (32, 0, None), (3, "tensor_replica"): uneven,
        (8, "tensor_heads"): (128, 0, None), (4, "tensor_heads"): (128, 0, None), (2, "tensor_heads"): (0, 128, None),
        (3, "tensor_heads"): uneven,
    }  # fmt: skip
    summed = next(row for row in collectives(built).rows if row.object == "embed/tokens/out")
    assert (summed.fields["ring_send_bytes"], summed.fields["tree_send_bytes"]) == (384, 512)


# Device: the host, and peaks that a policy covers


def test_offloaded_state_is_an_argument_on_the_host() -> None:
    found = predict(case(TOY, "training", batch=2, seq=4, offload=["optimizer"]))
    places = {row.object: row.fields["placement"] for row in of(found, "device", phase="argument")}
    assert {places[name] for name in ("m", "v")} == {"host"}
    assert {places[name] for name in ("parameters", "tokens")} == {"device"}


def test_a_covered_peak_is_written_out_for_each_family() -> None:
    made = jaxcost.decode(jaxcost.load("llama-3.2-1b"), batch=8, past=2047, attention="materialised")
    found = predict(made).ledgers["device"]
    peaks = found.totals["peak_bytes_by_family"]
    for family in ("cuda", "tpu"):
        policy = predict_peak(program(made), family)
        assert isinstance(policy, PeakPrediction)
        assert peaks[family] == {
            "lower": policy.lower, "expected": policy.expected, "upper": policy.upper, "at": policy.at,
            "policy": policy.policy,
        }  # fmt: skip
        assert policy.policy.startswith(family) and found.totals["argument_bytes"] <= policy.lower
    assert peaks["cuda"] != peaks["tpu"] and found.totals["peak_bytes"] == peaks["cuda"]
    assert set(found.reasons) == {"peak_bytes_by_family.cpu.expected"}
    assert peaks["cpu"]["lower"] == found.totals["argument_bytes"] and peaks["cpu"]["expected"] is None


# Ownership: 1256 scalars of fp32, as parameters, gradients and two moments, and a step counter of four bytes


COPY = 4 * 1256


def owned(**options: Any) -> dict[str, Any]:
    totals: dict[str, Any] = (
        predict(case(TOY, "training", **{"batch": 4, "seq": 4, **options})).ledgers["ownership"].totals
    )
    return totals


def test_what_each_stage_of_zero_halves() -> None:
    stages = {
        "0": 4 * COPY + 4,
        "1": 2 * COPY + 2 * COPY // 2 + 4,  # the moments
        "2": COPY + 3 * COPY // 2 + 4,  # and the gradients
        "3": 4 * COPY // 2 + 4,  # and the parameters
    }
    for zero in range(4):
        totals = owned(mesh={"data": 2}, zero=zero)
        assert totals["by_zero_stage"] == stages and totals["persistent_bytes"] == stages[str(zero)]
        assert totals["cluster_bytes"] == 2 * stages[str(zero)] and totals["global_bytes"] == 4 * COPY + 4
        assert totals["by_role"]["first_moment"] == (COPY if zero == 0 else COPY // 2)
        assert totals["by_role"]["gradient"] == (COPY if zero < 2 else COPY // 2)
        assert totals["gradients"]["reduced_bytes"] == totals["by_role"]["gradient"]
    assert owned(mesh={"fsdp": 2})["by_zero_stage"] == {"0": 4 * 4 * (1216 // 2 + 40) + 4}  # five vectors stay whole
    assert owned()["by_zero_stage"] == {"0": 4 * COPY + 4}


def test_the_rank_that_holds_most_is_named() -> None:
    """The embedding's 128 scalars against the head's and a final norm's: the last rank, if layers are even."""
    first, last = 496 + 128, 496 + 128 + 8
    even = owned(mesh={"data": 2, "pipeline": 2}, accumulate=2, zero=1)
    assert even["worst_device"] == {"device": "pipeline=1", "holds": "1 layers, final norm and head"}
    assert even["by_zero_stage"] == {
        "0": 16 * last + 4, "1": 12 * last + 4, "2": 10 * last + 4, "3": 8 * last + 4
    }  # fmt: skip
    assert even["cluster_bytes"] == 2 * (12 * (first + last) + 2 * 4)
    assert even["pipeline"]["worst_rank_state"] == 1 and isinstance(even["cluster_bytes"], int)
    uneven = owned(mesh={"pipeline": 2}, accumulate=2, pipeline_layers=[2, 0])
    assert uneven["worst_device"]["device"] == "pipeline=0" and uneven["worst_device"]["holds"].startswith("2 layers")
    assert uneven["persistent_bytes"] == 16 * (2 * 496 + 128) + 4
    assert uneven["pipeline"]["worst_rank_state"] == uneven["pipeline"]["worst_rank_with_saved"] == 0


def test_how_often_gradients_are_reduced() -> None:
    for options, times in (
        ({}, 0),
        ({"accumulate": 2}, 0),
        ({"mesh": {"tensor": 2}, "accumulate": 2}, 0),
        ({"mesh": {"data": 2}, "accumulate": 2}, 2),
        ({"mesh": {"fsdp": 2}, "accumulate": 2}, 2),
        ({"mesh": {"context": 2}, "accumulate": 2}, 2),
        ({"mesh": {"data": 2, "context": 2}}, 1),
        ({"mesh": {"data": 2}, "accumulate": 2, "gradient_sync": "last_microbatch"}, 1),
    ):
        totals = owned(**options)["gradients"]
        assert totals["reductions"] == times
        assert totals["sync"] == options.get("gradient_sync", "every_microbatch")
    # Until the last microbatch a device keeps whole gradients, whatever the stage.
    late = owned(mesh={"data": 2}, accumulate=2, gradient_sync="last_microbatch", zero=2)
    assert (late["gradients"]["between_microbatches_bytes"], late["gradients"]["reduced_bytes"]) == (COPY, COPY // 2)


def test_rows_over_context_and_the_stream_over_tensor() -> None:
    """A sequence's four rows of keys and values have 4 x 8 x 2 bytes; two devices keep half, and fetch half."""
    whole = owned(mesh={"data": 2, "context": 2}, accumulate=2)["context"]
    assert whole == {
        "method": "all_gather", "layer_kv_bytes": 64, "local_kv_bytes": 32, "remote_kv_bytes": 32, "buffer_bytes": 64
    }  # fmt: skip
    ring = owned(mesh={"data": 2, "context": 2}, accumulate=2, context_method="ring")["context"]
    assert ring["method"] == "ring" and (ring["layer_kv_bytes"], ring["local_kv_bytes"]) == (64, 32)
    totals = owned(mesh={"tensor": 2}, sequence_parallel=True)
    assert totals["sequence"] == {"stream_bytes": 4 * 4 * 8 * 2, "stream_bytes_per_device": 4 * 4 * 8 * 2 // 2}
    assert totals["tokens_per_device"] == 16 and owned(mesh={"context": 2, "data": 2})["tokens_per_device"] == 4
    assert owned(mesh={"tensor": 4})["tensor"]["kv_replicas"] == 2
    assert "context" not in totals and "sequence" not in owned(mesh={"tensor": 2})


def test_state_on_the_host_moves_in_and_out() -> None:
    totals = owned(offload=["optimizer"])
    assert totals["host_bytes"] == 2 * COPY + 4
    assert totals["host_to_device_bytes"] == totals["device_to_host_bytes"] == totals["host_bytes"]
    assert totals["persistent_bytes"] + totals["host_bytes"] == 4 * COPY + 4
    assert "host_to_device_bytes" not in owned()
    served = predict(case(TOY, "decode", batch=2, past=5, offload=["parameter"])).ledgers["ownership"].totals
    assert served["host_to_device_bytes"] == 2 * 1256 and served["device_to_host_bytes"] == 0
