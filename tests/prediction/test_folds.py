"""What the folds must hold to whatever the sizes: policies, frozen parts, ragged work, meshes, groups, formulas."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from typing import Any

import pytest
import sympy

from jaxcost.contracts.errors import RejectedError
from jaxcost.contracts.execution import REMATS
from jaxcost.prediction import dead_replay, predict, program
from jaxcost.prediction.activations import saved
from jaxcost.prediction.domain import ceil_div, exact_div, maximum, where
from jaxcost.prediction.flops import flops
from jaxcost.prediction.liveness import program_peak
from jaxcost.prediction.ownership import shards
from jaxcost.prediction.rows import total
from jaxcost.prediction.state import factored_axes
from jaxcost.prediction.symbols import FORMULAS, formula, formulas
from jaxcost.prediction.traffic import traffic
from tests.prediction.cases import CLASSIC, RUNNING, TOY, architecture, case, draw

MEDIUM = {"L": 4, "d": 16, "h": 8, "k": 4, "e": 2, "f": 24, "V": 32}


def pairwise(built: Any) -> int:
    return int(
        sum(row.value for row in flops(built).rows if row.phase == "forward" and row.object in ("scores", "values"))
    )


@pytest.mark.parametrize("remat", [name for name in REMATS if not name.endswith("these_names")])
@pytest.mark.parametrize("plan", ["materialised", "blockwise"])
def test_replay_of_every_policy(remat: str, plan: str) -> None:
    built = program(case(MEDIUM, "training", seq=8, batch=2, remat=remat, attention=plan))
    totals = flops(built).totals
    block = sum(row.value for row in flops(built).rows if row.phase == "forward" and row.region == "block")
    expected = {
        "none": 0,
        "everything_saveable": 0,
        "dots_saveable": 0,
        "attention": pairwise(built),
        "dots_with_no_batch_dims_saveable": pairwise(built),
        "block": block,
        "nothing_saveable": block,
        "everything": totals["forward"],
    }[remat]
    kernel = pairwise(built) // 2 if plan == "blockwise" else 0
    assert totals["recompute"] == expected + kernel
    assert totals["backward"] == 2 * totals["forward"]


def test_dead_replay_follows_the_graph() -> None:
    def dead(**options: Any) -> list[str]:
        return [row.scope for row in dead_replay(program(case(MEDIUM, "training", seq=8, **options)))]

    assert dead(remat="block") == ["group0/mlp/down"]
    assert dead(remat="block", attention="blockwise") == ["group0/mlp/down"]
    assert dead(remat="attention") == []
    assert dead(remat="everything") == []
    assert dead(remat="none") == []
    # With the output projection frozen nothing reads the context, so its product is not needed again either.
    assert "group0/attn/values" in dead(remat="attention", frozen=["group0/attn"])


def test_dead_replay_of_the_running_fixture() -> None:
    built = program(case(RUNNING, "training", seq=4096, batch=16, remat="block", mesh={"fsdp": 8}))
    (row,) = dead_replay(built)
    assert flops(built).totals["per_device"] == 553_586_924_716_032
    assert row.per_device == 30_786_325_577_728
    assert flops(built).totals["per_device"] - row.per_device == 522_800_599_138_304


def test_frozen_parts_drop_their_weight_gradients_only() -> None:
    free = flops(program(case(MEDIUM, "training", seq=8))).totals
    built = program(case(MEDIUM, "training", seq=8, frozen=["group0/mlp"]))
    mlp = sum(row.value for row in flops(built).rows if row.phase == "forward" and row.scope.startswith("group0/mlp/"))
    assert flops(built).totals["backward"] == free["backward"] - mlp
    assert predict(built.case).value("state.trainable") < predict(built.case).value("state.loaded")


def test_nothing_below_the_lowest_trainable_part() -> None:
    built = program(case(MEDIUM, "training", seq=8, frozen=["embed", "group0", "final_norm"]))
    parts = [(row.scope, row.part) for row in flops(built).rows if row.phase == "backward"]
    assert parts == [("head", "dw")]
    assert [row.object for row in saved(built)] == ["final_norm/out", "head/out"]
    replayed = program(case(MEDIUM, "training", seq=8, frozen=["embed", "group0", "final_norm"], remat="block"))
    assert flops(replayed).totals["recompute"] == 0


def test_first_unrolled_layer_needs_no_input_gradient() -> None:
    """Where nothing below it trains; a scanned group is one program and computes it in every layer."""

    def backward(layers: str, frozen: list[str]) -> int:
        return int(flops(program(case(MEDIUM, "training", seq=8, frozen=frozen, layers=layers))).totals["backward"])

    d, h, k, e = (MEDIUM[name] for name in "dhke")
    below = ["embed", "group0/attn_norm"]
    assert backward("scan", below) - backward("unrolled", below) == 2 * 8 * d * (h + 2 * k) * e
    # The scale of the first norm is below the projections: its gradient needs theirs.
    assert backward("scan", ["embed"]) == backward("unrolled", ["embed"])


def test_dx_remains_where_something_below_trains() -> None:
    built = program(case(MEDIUM, "training", seq=8, frozen=["group0", "final_norm", "head"]))
    assert {row.part for row in flops(built).rows if row.phase == "backward"} == {"dx"}


def test_tied_uses_accumulate() -> None:
    built = program(case(MEDIUM | {"tied": True}, "training", seq=8))
    head = [row.part for row in flops(built).rows if row.scope == "head"]
    assert head == ["forward", "dx", "dw"]
    assert [tensor.name for tensor in built.parameters if tensor.storage == "embed/tokens/weight"] == [
        "embed/tokens/weight",
        "head/weight",
    ]


@pytest.mark.parametrize("seed", range(4))
def test_groups_of_equal_layers_may_be_cut_anywhere(seed: int) -> None:
    sizes, options = draw(seed)
    sizes["L"] = 4
    ledgers = [
        predict(case(sizes | {"split": split}, "training", remat=remat, **options))
        for remat in ("none", "block")
        for split in ((4,), (1, 3), (1, 1, 1, 1))
    ]
    paths = ("parameters.unique", "flops.total", "activations.saved_bytes", "traffic.bytes", "state.bytes")
    for start in (0, 3):
        for other in ledgers[start + 1 : start + 3]:
            for path in (*paths, "activations.program_order_peak_bytes", "primitives.exp", "primitives.add"):
                assert other.value(path) == ledgers[start].value(path), path


def test_ragged_work_adds_up_over_its_sequences() -> None:
    lengths = [5, 3, 8]
    for options in ({}, {"pairs": "legal"}):
        whole = predict(case(MEDIUM, "training", seq=8, batch=3, lengths=lengths, **options))
        parts = [predict(case(MEDIUM, "training", seq=n, **options)) for n in lengths]
        for path in (
            "flops.total",
            "flops.forward_causal",
            "activations.saved_bytes",
            "traffic.attention_bytes",
            "primitives.exp",
        ):
            assert whole.value(path) == sum(part.value(path) for part in parts), path
    padded = predict(case(MEDIUM, "training", seq=8, batch=3))
    assert whole.value("flops.total") < padded.value("flops.total")


def test_accumulation_changes_no_total() -> None:
    one = predict(case(MEDIUM, "training", seq=8, batch=4))
    four = predict(case(MEDIUM, "training", seq=8, batch=4, accumulate=4))
    assert one.ledgers["flops"].totals == four.ledgers["flops"].totals
    assert {row.fields["microbatches"] for row in four.ledgers["flops"].rows} == {4}
    assert four.value("activations.saved_bytes") * 4 == one.value("activations.saved_bytes")


MESHES: list[dict[str, int]] = [
    {"data": 2},
    {"fsdp": 4},
    {"tensor": 2},
    {"fsdp": 2, "tensor": 2},
    {"data": 2, "fsdp": 2, "tensor": 2},
]


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_devices_share_the_flops(mesh: dict[str, int]) -> None:
    built = program(case(MEDIUM, "training", seq=8, batch=8, mesh=mesh, remat="block"))
    totals = flops(built).totals
    assert totals["per_device"] * built.case.execution.device_count == totals["total"]


STAGED = [(mesh, zero) for mesh in MESHES for zero in range(4) if zero == 0 or "data" in mesh]


@pytest.mark.parametrize(("mesh", "zero"), STAGED, ids=str)
def test_shards_over_all_devices_are_replicas_of_global_plus_padding(mesh: dict[str, int], zero: int) -> None:
    sizes = MEDIUM | {"d": 20, "e": 3, "rotary": False, "qkv_bias": True, "f": 26, "V": 34}
    built = program(case(sizes, "training", seq=8, batch=8, mesh=mesh, zero=zero, optimizer="adam"))
    devices = built.case.execution.device_count
    for item in built.case.state.objects:
        for array in shards(built, item):
            replicas, rest = divmod(devices, array.shards)
            assert rest == 0 and array.padding >= 0
            assert array.local * devices == replicas * (array.scalars + array.padding)


def test_zero_padding_is_counted() -> None:
    built = program(case(MEDIUM | {"d": 6, "h": 3, "k": 1}, "training", seq=8, batch=5, mesh={"data": 5}, zero=3))
    found = {array.name: array for array in shards(built, built.case.state.objects[0])}
    assert found["final_norm/scale"].local == 2 and found["final_norm/scale"].padding == 4


def test_argument_bytes_of_the_running_fixture() -> None:
    found = predict(
        case(RUNNING, "training", seq=4096, batch=16, mesh={"fsdp": 8}, precision="mixed", optimizer="adam")
    )
    assert found.value("device.argument_bytes") == 12_048_220_164
    peak = found.value("device.peak_bytes")
    assert 12_048_220_164 < peak["lower"] <= peak["expected"] <= peak["upper"]
    assert peak == {**found.value("device.peak_bytes_by_family")["cuda"]}
    assert found.value("device.peak_bytes_by_family.cpu.expected") is None


def test_arguments_of_serving() -> None:
    found = predict(case(TOY, "decode", past=3))
    cache = 2 * 2 * 4 * 2 * 2 * 2
    parameters = 2 * found.value("parameters.unique")
    assert found.value("device.argument_bytes") == parameters + cache + 4 + 4
    assert found.value("kv_cache.allocated_bytes") == cache
    first = predict(case(TOY, "prefill", seq=4))
    assert first.value("device.output_bytes") == 16 * 4 + cache


def test_dropout_needs_a_key() -> None:
    sizes = MEDIUM | {"dropout": 0.1}
    with_key, without = (predict(case(sizes, "training", seq=8, dropout=flag)) for flag in (True, False))
    assert with_key.value("device.argument_bytes") - without.value("device.argument_bytes") == 8


def test_vocabulary_padding_is_stored_and_executed_not_released() -> None:
    plain, padded = (predict(case(MEDIUM | {"V": 30}, "training", seq=8, vocabulary_multiple=n)) for n in (1, 16))
    assert padded.value("parameters.unique") == plain.value("parameters.unique")
    assert padded.value("parameters.padding") == 2 * 2 * 16
    assert padded.value("parameters.bytes") - plain.value("parameters.bytes") == 4 * 2 * 2 * 16
    assert padded.value("flops.forward") - plain.value("flops.forward") == 2 * 8 * 16 * 2


def test_populations_and_the_three_answers_about_state() -> None:
    found = (
        predict(case(MEDIUM, "training", seq=8, frozen=["embed"], precision="a16_six_object")).ledgers["state"].totals
    )
    loaded, trained = found["loaded"], found["trainable"]
    assert loaded - trained == 32 * 16
    assert found["bytes"] == 2 * loaded + 18 * trained
    assert found["by_role"]["gradient"] == 2 * trained
    assert found["optimizer_bytes"] == 8 * trained
    assert found["checkpoint_bytes"] == 2 * loaded + 12 * trained
    assert found["resident_bytes"]["after_load"] == 2 * loaded + 4 * trained
    assert found["resident_bytes"]["after_backward"] == 2 * loaded + 10 * trained


@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((14336, 4096), (1, 0)),
        ((4096,), None),
        ((127, 4096), None),
        ((128, 4096), (0, 1)),
        ((32, 4096, 32, 128), (3, 1)),
        ((32, 64, 96), None),
    ],
)
def test_factored_axes(shape: tuple[int, ...], axes: tuple[int, int] | None) -> None:
    assert factored_axes(shape) == axes


def test_adafactor_as_optax_keeps_it() -> None:
    """One factored matrix has rows and columns and a placeholder; a vector has its moment and two placeholders."""
    sizes = {"L": 1, "d": 256, "h": 2, "k": 2, "e": 128, "f": 130, "V": 7}
    found = predict(case(sizes, "training", seq=4, optimizer="adafactor", layers="unrolled")).ledgers["state"].rows
    scalars = {row.object: row.fields["scalars"] for row in found}
    # q, k, v [256, 2, 128], o [2, 128, 256], gate, up and down are factored; two tables of 7 rows and 3 norms are not
    assert scalars["v_row"] == 4 * 256 + 3 * 130 + 5
    assert scalars["v_column"] == 4 * 512 + 3 * 256 + 5
    assert scalars["v"] == 7 + 2 * 7 * 256 + 3 * 256


def test_saved_activations_of_policies_nest() -> None:
    sizes = CLASSIC | {"dropout": 0.1}
    size = {
        remat: predict(case(sizes, "training", seq=256, dropout=True, remat=remat)).value("activations.saved_bytes")
        for remat in ("none", "attention", "block", "everything")
    }
    assert size["none"] > size["attention"] > size["block"] > size["everything"] == 0


def test_blockwise_keeps_nothing_quadratic() -> None:
    found = predict(case(MEDIUM, "training", seq=64, attention="blockwise", attention_block=16))
    axes = {row.object: row.fields.get("axes", "") for row in found.ledgers["activations"].rows}
    assert not any({"s", "t"} <= set(names.split()) for names in axes.values())
    assert "group0/attn/softmax/row_statistics" in axes and "group0/attn/values/out" in axes


def test_blockwise_rereads_keys_once_per_query_block() -> None:
    built = program(case(MEDIUM, "prefill", seq=64, attention="blockwise", attention_block=16))
    rows = [row for row in traffic(built).rows if row.fields["schedule"] == "blockwise"]
    assert {row.fields["multiplicity"] for row in rows if row.object.endswith(("keys", "values"))} == {4}
    d, e, h, k = 16, 2, 8, 4
    each = 2 * 64 * h * e * 2 + 4 * 2 * (2 * 64 * k * e) + 4 * 64 * h
    assert traffic(built).totals["attention_bytes"] == 4 * each
    assert d == h * e


def test_program_peak_by_hand() -> None:
    """One classic layer, prefill: the cut with most bytes alive is found among all of them."""
    sizes = {
        "L": 1,
        "d": 4,
        "h": 2,
        "k": 2,
        "e": 2,
        "f": 64,
        "V": 2,
        "form": "classic",
        "activation": "relu",
        "rotary": False,
    }
    peak = program_peak(program(case(sizes, "prefill", seq=8)))
    x, wide, cache = 8 * 4 * 2, 8 * 64 * 2, 2 * 8 * 4 * 2
    assert peak.at == "group0/mlp/activation"
    assert peak.bytes == x + 2 * wide + cache
    assert dict(peak.alive)["group0/mlp/up/out"] == wide


def test_peak_is_between_saved_and_everything() -> None:
    found = predict(case(MEDIUM, "training", seq=32))
    peak = found.value("activations.program_order_peak_bytes")
    assert found.value("activations.saved_bytes") < peak < found.value("traffic.unfused_bytes")


def test_bounds_of_traffic_are_ordered() -> None:
    for phase, options in (("training", {"seq": 32}), ("prefill", {"seq": 32}), ("decode", {"past": 31})):
        totals = predict(case(MEDIUM, phase, **options)).ledgers["traffic"].totals
        assert 0 < totals["compulsory_bytes"] < totals["unfused_bytes"]


def test_supplied_events_and_none() -> None:
    from jaxcost.contracts.case import build_case

    data = {"objects": [{"name": "A", "bytes": 5, "birth": 0.0, "death": 1.0}], "persistent_bytes": 2}
    options = {"phase": "prefill", "seq": 4}
    supplied = predict(build_case(architecture(**TOY), options, liveness=data))
    assert supplied.value("activations.peak_bytes") == 5
    assert supplied.value("activations.process_peak_bytes") == 7
    nothing = predict(build_case(architecture(**TOY), options)).to_dict()["ledgers"]["activations"]["totals"]
    assert nothing["peak_bytes"] is None and nothing["reason"] == "no liveness events supplied"


SYMBOLS = {"L": "L", "d": "d", "h": "H", "k": "K", "e": "E", "f": "F", "V": "V", "positions": "P"}


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("phase", ["training", "prefill", "decode"])
def test_formulas_equal_numbers(seed: int, phase: str) -> None:
    sizes, options = draw(100 + seed)
    rng = random.Random(seed)
    options = {"batch": options["batch"], "seq": options["seq"]}
    if phase == "training":
        options["remat"] = rng.choice(["none", "block"])
        options["dropout"] = rng.random() < 0.5
    if phase == "decode":
        options = {"batch": options["batch"], "past": rng.randint(1, 30)}
    chosen = case(sizes, phase, **options)
    values = {"B": options["batch"], "S": options.get("seq", 1), "T": options.get("past", 0) + 1}
    values |= {name: sizes[key] for key, name in SYMBOLS.items()}
    numbers = {sympy.Symbol(name, integer=True, positive=True): value for name, value in values.items()}
    found = predict(chosen)
    for path, expression in formulas(chosen).items():
        assert expression.subs(numbers) == found.value(path), path
    assert set(FORMULAS) == set(formulas(chosen))


def test_identities() -> None:
    B, S, T, L, H, K, E = (sympy.Symbol(name, integer=True, positive=True) for name in "BSTLHKE")
    gqa = case(RUNNING, "decode", past=100)
    assert formula(gqa, "kv_cache.bytes") == 4 * B * T * L * K * E
    training = case(RUNNING, "training", seq=64)
    none = formula(training, "flops.total")
    assert sympy.expand(none - 3 * formula(training, "flops.forward")) == 0
    block = formula(case(RUNNING, "training", seq=64, remat="attention"), "flops.total")
    assert sympy.expand(block - none - 4 * B * S**2 * H * E * L) == 0
    assert sympy.expand(block - none - 4 * B * S**2 * K * E * L) != 0


def test_one_pass_intensity_as_a_formula() -> None:
    from jaxcost.prediction.symbols import equal, symbolic
    from jaxcost.prediction.traffic import kv_input, one_pass

    built = symbolic(case(RUNNING, "prefill", seq=64))
    q = next(item for item in one_pass(built) if item.scope == "group0/attn/q_proj")
    B, S, H, K, E, d = (sympy.Symbol(name, integer=True, positive=True) for name in ("B", "S", "H", "K", "E", "d"))
    m, k, n = B * S, d, H * E
    assert equal(q.intensity, 2 * m * k * n / (2 * (m * k + k * n + m * n)))
    assert sympy.simplify(kv_input(built)["intensity"] - S * H / K) == 0


def test_a_formula_is_refused_where_there_is_none() -> None:
    with pytest.raises(RejectedError):
        formula(case(MEDIUM, "training", seq=8, batch=2, lengths=[8, 3]), "flops.forward")
    with pytest.raises(RejectedError):
        formula(case(MEDIUM, "training", seq=8), "flops.forward", Q="d")
    with pytest.raises(KeyError, match=r"flops\.nothing"):
        formula(case(MEDIUM, "training", seq=8), "flops.nothing")


def test_json_is_whole_and_exact() -> None:
    found = predict(case(MEDIUM, "training", seq=8, batch=2, mesh={"fsdp": 2}))
    data = json.loads(json.dumps(found.to_dict()))
    assert data["schema"] == "jaxcost.estimate.v1"
    assert data["case"]["digest"] == found.case.digest
    assert data["ledgers"]["collectives"]["totals"]["payload_bytes"] > 0
    assert data["ledgers"]["device"]["totals"]["peak_bytes_by_family"]["cpu"]["reason"]
    keys = {"object", "scope", "phase", "value", "unit", "fields", "convention", "omitted", "evidence"}
    rows = [row for ledger in data["ledgers"].values() for row in ledger["rows"]]
    assert all(keys <= set(row) for row in rows)
    assert all(isinstance(row["value"], int) for row in rows)
    assert "<table>" in found._repr_html_()
    with pytest.raises(KeyError, match=r"flops\.none"):
        found.value("flops.none")


def test_rows_sum_to_their_totals() -> None:
    found = predict(case(MEDIUM, "training", seq=8, remat="block"))
    rows = found.ledgers["flops"].rows
    assert total(rows) == found.value("flops.total")
    assert total(found.ledgers["traffic"].rows) == found.value("traffic.bytes")
    assert total(found.ledgers["state"].rows) == found.value("state.bytes")


def test_domain_functions() -> None:
    np = pytest.importorskip("numpy")
    x = sympy.Symbol("x", positive=True)
    assert ceil_div(7, 2) == 4 and ceil_div(8, 2) == 4
    assert list(ceil_div(np.array([7, 8]), 2)) == [4, 4]
    assert ceil_div(x, 2).subs(x, 7) == 4
    assert maximum(2, 3) == 3 and list(maximum(np.array([1, 5]), 3)) == [3, 5] and maximum(x, 3).subs(x, 2) == 3
    assert where(True, 1, 2) == 1 and list(where(np.array([True, False]), 1, 2)) == [1, 2]
    assert where(x > 3, 1, 2).subs(x, 4) == 1
    assert exact_div(6, 3) == 2
    with pytest.raises(ValueError, match="does not divide"):
        exact_div(7, 3)


def test_prediction_imports_nothing_heavy() -> None:
    code = "import sys, jaxcost.prediction; print([m for m in ('jax', 'numpy', 'sympy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
