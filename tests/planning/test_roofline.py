"""Rooflines: figures of the worksheet, points that are the ledgers', two idealisations that are no upper bound."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings

import jaxcost
from jaxcost.contracts.case import Case
from jaxcost.contracts.errors import RejectedError
from jaxcost.planning.hardware import device
from jaxcost.planning.machine import machine
from jaxcost.planning.roofline import by_scope, point, total
from jaxcost.planning.steptime import StepTime, step_time
from jaxcost.prediction.flops import flops
from jaxcost.prediction.program import program
from jaxcost.prediction.traffic import traffic
from jaxcost.verify.strategies import cases


def train(model: str = "llama-3.2-1b", **options: Any) -> Case:
    return jaxcost.training(jaxcost.load(model), **{"batch": 16, "seq": 1024, **options})


def timed(case: Case, name: str = "h100", overlap: Any = None, **options: Any) -> StepTime:
    return step_time(program(case), machine(name, case, **options), overlap)


def test_the_ridge_of_an_a100() -> None:
    assert round(float(device("a100-40gb").ridge("bf16")), 2) == 200.64
    decode = jaxcost.decode(jaxcost.load("llama-3.1-8b"), batch=32, past=0)
    runs_on = machine("a100-40gb", decode)
    assert runs_on.ridge == device("a100-40gb").ridge("bf16")
    found = point("weights", "decode", 32, 1, runs_on)
    assert found.bound == "memory", "batch 32 does not cross the BF16 ridge; the FP32 ridge of 12.5 cannot say it does"
    assert device("a100-40gb").ridge("fp32", "vector") < 32


@pytest.mark.parametrize("batch", [1, 8, 32])
def test_decode_projections_have_the_intensity_of_the_batch(batch: int) -> None:
    """At most the batch, and within 3% of it; attention over a long context stays near the group of its heads."""
    case = jaxcost.decode(jaxcost.load("llama-3.1-8b"), batch=batch, past=32767)
    found = {item.scope: item for item in timed(case, "a100-40gb").points}
    for name in ("group0/mlp/gate", "group0/attn/q_proj", "head"):
        intensity = found[name].intensity
        assert intensity is not None
        assert Fraction(97, 100) * batch < intensity < batch
    scores = found["group0/attn/scores"].intensity
    assert scores is not None
    assert scores < 4, "four query heads share a K/V head, whatever the batch"
    assert all(item.bound == "memory" for item in found.values())


def test_points_are_the_ledgers() -> None:
    case = train(remat="block", accumulate=2)
    found = timed(case)
    products = [item for item in found.points if item.scope != "optimizer"]
    built = program(case)
    assert sum(item.flops for item in products) == flops(built).totals["total"]
    one = program(train(remat="block"))
    assert (
        sum(i.bytes for i in timed(train(remat="block")).points if i.scope != "optimizer")
        == traffic(one).totals["bytes"]
    )
    assert total(found.points).flops == sum(item.flops for item in by_scope(found.points))


@pytest.mark.parametrize("mesh", [{"fsdp": 8}, {"tensor": 8}, {"data": 2, "fsdp": 2, "tensor": 2}, {"context": 4}])
def test_points_on_a_mesh_are_the_worst_device_s(mesh: dict[str, int]) -> None:
    case = train(mesh=mesh, batch=32)
    found = timed(case)
    assert total(found.points).flops == flops(program(case)).totals["per_device"]


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_a_pipeline_s_points_are_its_busiest_rank_s(schedule: str) -> None:
    case = train(mesh={"pipeline": 4}, accumulate=8, pipeline_schedule=schedule)
    found = timed(case)
    assert total(found.points).flops == flops(program(case)).totals["per_device"]
    assert found.bubble == Fraction(3, 8)
    alone = timed(train(accumulate=8))
    assert total(found.points).bytes < total(alone.points).bytes


def test_microbatches_read_weights_again() -> None:
    once, four = (total(timed(train(accumulate=n)).points) for n in (1, 4))
    assert once.flops == four.flops
    assert four.bytes > once.bytes


def test_bounds_are_in_order_and_none_is_an_upper_one() -> None:
    found = timed(train(mesh={"fsdp": 8}, batch=64), overlap=Fraction(1, 2))
    full, ordered, serial = (found.seconds(name) for name in ("full_overlap", "ops_in_order", "serialised"))
    assert full is not None and ordered is not None and serial is not None
    assert full <= ordered <= serial
    whole = found.whole
    assert max(whole.compute_seconds, whole.memory_seconds) <= whole.overlapped_seconds <= whole.serial_seconds
    for name in ("upper", "upper_bound", "sum", ""):
        with pytest.raises(RejectedError, match="bounds a real program from above"):
            found.seconds(name)


def test_collectives_take_startup_and_bytes() -> None:
    case = train(mesh={"fsdp": 8}, batch=64)
    bare, with_startup = timed(case), timed(case, startup_seconds=Fraction(1, 10**5))
    executions = sum(item.times for item in bare.transmissions)
    assert bare.communication_seconds is not None and with_startup.communication_seconds is not None
    assert with_startup.communication_seconds - bare.communication_seconds == Fraction(executions, 10**5)
    sent = sum(item.times * (item.inside_bytes or 0) for item in bare.transmissions)
    assert bare.communication_seconds == Fraction(sent, 450 * 10**9), "one direction of NVLink 4, not both"


def test_reach_decides_the_path() -> None:
    case = train(mesh={"data": 4, "fsdp": 8}, batch=64)
    unknown = timed(case, "h100:4x8")
    assert unknown.communication_seconds is None, "no rate between nodes is recorded: unknown, not zero"
    assert (unknown.bound, unknown.seconds("full_overlap")) == ("unknown", None)
    assert "declare one" in unknown.reason
    inside = unknown.by_axis()
    assert inside["fsdp"] is not None and inside["data"] is None
    known = timed(case, "h100:4x8", between_gb_per_s=50)
    assert known.communication_seconds is not None
    across = [item for item in known.transmissions if item.between_bytes]
    assert {item.axis for item in across} == {"data", "data,fsdp"}
    half = timed(case, "h100:4x8", {"data": 1, "fsdp": 0.5}, between_gb_per_s=50)
    shares = {"data": 1, "fsdp": Fraction(1, 2), "data,fsdp": Fraction(1, 2)}
    seconds = half.by_axis()
    assert half.exposed_seconds == sum((s or 0) * (1 - shares[axis]) for axis, s in seconds.items())


def test_a_torus_gives_each_axis_what_the_others_leave() -> None:
    alone = timed(train(mesh={"fsdp": 16}, batch=64), "tpu-v5e:4x4")
    assert alone.machine.inside.rate() == 200 * 10**9
    assert alone.machine.inside.rate(1) == alone.machine.inside.rate(5) == 100 * 10**9
    wire = machine("tpu-v5p", train(mesh={"fsdp": 2})).inside
    assert (wire.rate(), wire.rate(1), wire.rate(2)) == (600 * 10**9, 400 * 10**9, 200 * 10**9)


def test_slices_are_joined_by_the_data_centre_network() -> None:
    case = train(mesh={"data": 2, "fsdp": 16}, batch=64)
    found = timed(case, "tpu-v5e:4x4*2")
    assert (found.machine.devices_per_node, found.machine.devices) == (16, 32)
    rate = found.machine.between.bytes_per_second
    assert rate == Fraction(6400 * 10**9, 8 * 256), "a pod's figure over its chips"
    assert "without a direction" in found.machine.between.source


def test_collectives_that_are_not_predicted_are_unknown() -> None:
    found = timed(train(mesh={"fsdp": 8}, batch=64, optimizer="adafactor"))
    assert (found.communication_seconds, found.bound, found.seconds("serialised")) == (None, "unknown", None)
    assert "Adafactor" in found.reason
    assert found.points


@given(cases())
@settings(max_examples=60, deadline=None)
def test_points_are_the_ledger_s_for_any_case(case: Case) -> None:
    """Drawn models, phases, meshes and policies: FLOPs sum to the worst device's, full overlap is the shorter time."""
    fp32 = case.state.compute_dtype == "fp32"
    found = timed(case, "a100" if fp32 else "h100", between_gb_per_s=50)
    assert total(found.points).flops == flops(found.program).totals["per_device"]
    full, serial = found.seconds("full_overlap"), found.seconds("serialised")
    assert (full is None) == (serial is None) == (found.communication_seconds is None)
    assert found.reason or full is not None, "what is unknown has a reason"
    if full is not None and serial is not None:
        assert full <= serial
    assert all(0 <= item.overlapped_seconds <= item.serial_seconds for item in found.points)
    found.to_data()


def test_overlap_is_declared_and_cannot_hide_more_than_there_is() -> None:
    case = train(mesh={"tensor": 8}, batch=8)
    none = timed(case)
    assert none.exposed_seconds is None
    assert none.seconds("ops_in_order") is None
    assert timed(case, overlap=0).exposed_seconds == none.communication_seconds
    hidden = timed(case, overlap={"tensor": 1}, inside_gb_per_s=1)
    assert hidden.communication_seconds is not None and hidden.exposed_seconds is not None
    assert hidden.exposed_seconds == hidden.communication_seconds - hidden.whole.overlapped_seconds > 0
    with pytest.raises(RejectedError, match="no collective runs over this axis"):
        timed(case, overlap={"fsdp": 0.5})
    for bad in (1.5, -0.1, True, "most", float("nan")):
        with pytest.raises(RejectedError, match="overlap"):
            timed(case, overlap=bad)


def test_a_measured_time_below_the_bound_is_an_inconsistency() -> None:
    found = timed(train())
    bound = found.seconds("full_overlap")
    assert bound is not None
    slow, fast = found.measured(2 * bound), found.measured(bound * Fraction(99, 100))
    assert (slow["status"], slow["causes"]) == ("consistent", [])
    assert slow["share_of_full_overlap"] == 0.5
    assert fast["status"] == "inconsistent"
    assert len(fast["causes"]) >= 3
    impossible = found.measured(bound / 1000)
    assert impossible["mfu"]["value"] > 1, "never clamped"


def test_utilisation_tells_model_from_executed_work() -> None:
    found = timed(train(remat="block"))
    useful, executed = found.utilisation(1)
    assert useful.name == "MFU" and executed.name == "HFU"
    assert executed.numerator > useful.numerator == found.model_flops


def test_a_chip_of_two_devices_is_shared() -> None:
    case = train(mesh={"fsdp": 2})
    half = machine("tpu-7x", case)
    assert half.peak.per_second * 2 == device("tpu-7x").peak("bf16").per_second
    assert half.bytes_per_second * 2 == device("tpu-7x").bandwidth()
    assert any("1/2 of a chip" in note for note in half.notes)


def test_precision_is_the_operands() -> None:
    fp32 = train(precision="fp32")
    assert machine("h100", fp32).peak.per_second == device("h100").peak("fp32", "vector").per_second
    assert machine("h100", fp32, peak_type="tf32").peak.dtype == "tf32"
    with pytest.raises(RejectedError, match="operands are bf16"):
        machine("h100", train(), peak_type="fp8")
    with pytest.raises(RejectedError, match="no fp32 peak"):
        machine("tpu-v5e", fp32)


@pytest.mark.parametrize(
    ("name", "options", "problem"),
    [
        ("h100:4", {}, "the shape has 4 devices and the mesh 1"),
        ("h100:0x8", {}, "NAME:SHAPE"),
        ("h100:", {}, "NAME:SHAPE"),
        ("v100", {}, "no bf16 peak"),
        ("h100", {"devices_per_node": 0}, "devices_per_node"),
        ("h100", {"devices_per_node": True}, "devices_per_node"),
        ("h100", {"between_gb_per_s": 0}, "between_gb_per_s"),
        ("h100", {"inside_gb_per_s": float("inf")}, "node_gb_per_s"),
        ("h100", {"startup_seconds": -1}, "startup_seconds"),
    ],
)
def test_a_machine_that_cannot_be_is_refused(name: str, options: dict[str, Any], problem: str) -> None:
    with pytest.raises(RejectedError, match=problem):
        machine(name, train(), **options)


def test_attention_over_linear_is_s_over_eight_d() -> None:
    """Full pairs, as many K/V heads as query heads, a gated MLP of width 4 D: on symbols, from the FLOPs ledger."""
    import sympy

    from jaxcost.prediction.symbols import symbolic_sizes

    case = train("llama-2-7b", seq=64)
    sizes = symbolic_sizes(case, K="H", E="d/H", F="4*d")
    rows = flops(program(case, sizes)).rows
    inside = [row for row in rows if row.region == "block" and row.phase == "forward"]
    pairwise = sum(row.value for row in inside if row.object in ("scores", "values"))
    linear = sum(row.value for row in inside if row.object not in ("scores", "values"))
    ratio = sympy.simplify(pairwise / linear)
    s, d = (next(x for x in ratio.free_symbols if x.name == name) for name in "Sd")
    assert sympy.simplify(ratio - s / (8 * d)) == 0


def test_the_checks_above_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the FLOPs of one op doubled, the points no longer equal the ledger."""
    import jaxcost.planning.roofline as module

    original = module.point
    monkeypatch.setattr(module, "point", lambda s, p, f, b, m: original(s, p, 2 * f if s == "head" else f, b, m))
    case = train()
    found = timed(case)
    assert sum(item.flops for item in found.points) != flops(program(case)).totals["total"]
