"""Every published figure comes out of a fold, and a fault of one planted in that fold makes it miss."""

from __future__ import annotations

import json
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import sympy

from jaxcost.contracts.dtypes import payload_bytes
from jaxcost.contracts.liveness import Liveness
from jaxcost.prediction import (
    activations,
    flops,
    groups,
    kv_cache,
    liveness,
    ownership,
    parameters,
    predict,
    sequence_shards,
    sharding,
    stages,
    state,
    tensor_parallel,
    traffic,
)
from jaxcost.prediction import program as build
from jaxcost.prediction.rows import by_scope, total
from jaxcost.prediction.symbols import equal, symbolic
from tests.prediction.cases import CLASSIC, RUNNING, TOY, case

FIGURES = json.loads((Path(__file__).parent.parent / "data" / "figures.json").read_text())["figures"]
GIB = 2**30
TIED = {"tied": True}
CLASSIC_RELATIONS = {"E": "d/H", "K": "H", "F": "4*d"}
CLASSIC_OPTIONS = {"seq": 4096, "dropout": True, "precision": "bf16"}


def running(phase: str = "training", sizes: dict[str, Any] | None = None, **options: Any) -> Any:
    options.setdefault("seq", 4096 if phase != "decode" else 1)
    return build(case(RUNNING | (sizes or {}), phase, **options))


def toy(phase: str = "prefill", tied: bool = True, **options: Any) -> Any:
    return build(case(TOY | {"tied": tied}, phase, seq=4, **options))


def classic(**options: Any) -> Any:
    return build(case(CLASSIC | {"dropout": 0.1}, "training", **CLASSIC_OPTIONS, **options))


def scoped(ledger: Any, *scopes: str, per: int = 1) -> Any:
    sums = by_scope(ledger.rows)
    return Fraction(sum(sums.get(scope, 0) for scope in scopes), per)


def forward(*scopes: str, per: int = 32) -> Any:
    rows = [row for row in flops.flops(running()).rows if row.phase == "forward"]
    sums = by_scope(rows)
    return Fraction(sum(sums[scope] for scope in scopes), per)


def attention_parameters(k: int) -> Any:
    return scoped(parameters.parameters(running(sizes={"k": k})), "group0/attn", per=32)


def policy(name: str) -> Any:
    phase = "prefill" if name.endswith("_inference") else "training"
    return state.state(running(phase, precision=name)).totals["bytes"]


def saved_layer(remat: str | None = None, quadratic: bool | None = None) -> Any:
    """Bytes of one classic layer's own saved tensors; `quadratic` chooses those with both row axes."""
    rows = [row for row in activations.saved(classic(), remat) if row.region == "block"]
    if quadratic is not None:
        rows = [row for row in rows if ({"s", "t"} <= set(row.fields["axes"].split())) == quadratic]
    return Fraction(sum(row.value for row in rows), 32)


def crossover() -> Any:
    built = symbolic(case(CLASSIC | {"dropout": 0.1}, "training", **CLASSIC_OPTIONS), **CLASSIC_RELATIONS)
    rows = [row for row in activations.saved(built) if row.region == "block"]
    square = sum(row.value for row in rows if {"s", "t"} <= set(row.fields["axes"].split()))
    s, d, h = (sympy.Symbol(name, integer=True, positive=True) for name in "SdH")
    size = sympy.Symbol("size", positive=True)
    linear = sympy.expand(sum(row.value for row in rows) - square)
    (found,) = sympy.solve(sympy.expand((square - linear) / s).subs(s, size), size)
    return found.subs({d: 4096, h: 32})


def cut(persistent: bool) -> Any:
    objects = [("A", 4, 0.0, 4.0), ("B", 5, 1.0, 2.0), ("W", 3, 1.5, 1.8), ("C", 6, 2.0, 3.0)]
    return events(objects, 20) if persistent else events(objects)


def events(objects: list[tuple[str, int, float, float]], persistent: int = 0) -> int:
    data = {
        "objects": [{"name": n, "bytes": size, "birth": a, "death": z} for n, size, a, z in objects],
        "persistent_bytes": persistent,
    }
    supplied = Liveness.from_data(data)
    return int(liveness.supplied_peak(supplied).bytes) + supplied.persistent_bytes


def toy_events() -> Any:
    hidden, qkv, scores, work = (
        ("hidden", 64, 0.0, 5.0),
        ("qkv", 128, 1.0, 5.0),
        ("scores", 128, 2.0, 4.0),
        ("work", 128, 2.0, 3.0),
    )
    return events([hidden, qkv, scores, work, ("probabilities", 128, 3.0, 5.0), ("output", 64, 4.0, 5.0)])


def steps(remat: str) -> Any:
    return flops.flops(running(remat=remat)).totals["total"]


def zero(stage: int) -> Any:
    built = running(precision="a16_six_object", batch=8, mesh={"data": 8}, zero=stage)
    return ownership.ownership(built).totals["persistent_bytes"]


def zero3_group(kind: str, name: str) -> Any:
    """A group of FSDP over eight ranks that each hold an even part of every array, in bf16."""
    built = running(precision="a16_six_object", batch=8, mesh={"data": 8}, zero=3, fsdp_group=kind)
    (rank,) = stages.ranks(built)
    return next(group for group in groups.fsdp_groups(built, rank) if group.name == name)


GROUPS = {
    "root_only": ("root", "root"),
    "root_remainder": ("block", "remainder"),
    "embedding_or_head": ("matrix", "head/weight"),
    "block": ("block", "group0"),
}


def product(name: str) -> Any:
    built = running(precision="bf16", mesh={"tensor": 8})
    return next(item for item in tensor_parallel.locals_of(built) if item.scope == f"group0/attn/{name}")


def context_kv() -> Any:
    built = running(precision="bf16", mesh={"context": 2})
    (found,) = sequence_shards.keys_values(built)
    return found.local_bytes + found.remote_bytes


def attention_traffic(built: Any, per: int = 1) -> Any:
    return Fraction(traffic.traffic(built).totals["attention_bytes"], per)


def q_proj(built: Any) -> Any:
    return next(item for item in traffic.one_pass(built) if item.scope == "group0/attn/q_proj")


def q_proj_rows() -> dict[str, Any]:
    return {"M4096": running("prefill"), "M32": running("decode", batch=32, past=1), "M1": running("decode", past=1)}


def cache(k: int, key: str = "bytes", t: int = 32768) -> Any:
    return kv_cache.kv_cache(running("decode", sizes={"k": k}, past=t - 1)).totals[key]


def gate_factors() -> Any:
    built = running(optimizer="adafactor", layers="unrolled")
    gate = next(item for item in parameters.entries(built) if item.name == "group0/mlp/gate/weight")
    factors = [item for item in built.case.state.objects if item.count in ("row", "column")]
    return sum(sympy.prod(state.array_shape(item, gate)) for item in factors)


def symbolic_flops(sizes: dict[str, Any], ledger: Callable[[Any], Any], **relations: str) -> Any:
    return ledger(flops.flops(symbolic(case(sizes, "training", seq=4096, remat="block"), **relations)))


def block_forward(ledger: Any) -> Any:
    return sum(row.value for row in ledger.rows if row.phase == "forward" and row.region == "block") / sympy.Symbol(
        "L", integer=True, positive=True
    )


def symbolic_parameters(*scopes: str) -> Any:
    built = symbolic(case(CLASSIC, "training", seq=4096), **CLASSIC_RELATIONS)
    sums = by_scope(parameters.parameters(built).rows)
    return sum(sums[scope] for scope in scopes)


def delta_logits() -> Any:
    return (
        flops.flops(running("prefill", logits="all")).totals["forward"]
        - flops.flops(running("prefill")).totals["forward"]
    )


def six(key: str) -> Any:
    return flops.six_nd(running())[key]


def kaplan() -> Any:
    rows = parameters.parameters(running()).rows
    matrices = [row for row in rows if row.scope.startswith("group0") and row.object.endswith("/weight")]
    return 6 * total(matrices) * 4096


L = sympy.Symbol("L", integer=True, positive=True)
CHECKS: dict[str, Callable[[], Any]] = {
    "param.running.attention": lambda: attention_parameters(8),
    "param.running.mlp": lambda: scoped(parameters.parameters(running()), "group0/mlp", per=32),
    "param.running.block": lambda: scoped(parameters.parameters(running()), "group0", per=32),
    "param.running.stack": lambda: scoped(parameters.parameters(running()), "group0"),
    "param.running.norms": lambda: scoped(
        parameters.parameters(running()), "group0/attn_norm", "group0/mlp_norm", "final_norm"
    ),
    "param.running.embedding": lambda: scoped(parameters.parameters(running()), "embed"),
    "param.running.unique": lambda: parameters.parameters(running()).totals["unique"],
    "param.running.unique_tied": lambda: parameters.parameters(running(sizes=TIED)).totals["unique"],
    "param.mha.attention": lambda: attention_parameters(32),
    "param.mqa.attention": lambda: attention_parameters(1),
    "param.toy.block": lambda: scoped(parameters.parameters(toy()), "group0", per=2),
    "param.toy.untied": lambda: parameters.parameters(toy(tied=False)).totals["unique"],
    "param.toy.tied.unique": lambda: parameters.parameters(toy()).totals["unique"],
    "param.toy.tied.named": lambda: parameters.parameters(toy()).totals["named"],
    "param.toy.tied.payload": lambda: parameters.parameters(toy()).totals["bytes"],
    "param.a16.block": lambda: symbolic_parameters("group0") / L,
    "param.a16.model": lambda: symbolic_parameters("group0", "embed", "head"),
    "state.toy.six_class": lambda: state.state(toy("training", precision="a16_six_object")).totals["bytes"],
    "state.adafactor.gate": gate_factors,
    "activation.scores": lambda: activation_bytes("group0/attn/scores/out"),
    "activation.toy_cut.nonpersistent": lambda: cut(False),
    "activation.toy_cut.process": lambda: cut(True),
    "activation.toy_events.peak": toy_events,
    "activation.korthikanti.linear": lambda: saved_layer(quadratic=False),
    "activation.korthikanti.quadratic": lambda: saved_layer(quadratic=True),
    "activation.korthikanti.stack": lambda: 32 * saved_layer(),
    "activation.korthikanti.selective": lambda: 32 * saved_layer("selective") / GIB,
    "activation.korthikanti.full": lambda: 32 * saved_layer("block") / GIB,
    "activation.korthikanti.crossover": crossover,
    "flops.forward.running.projections": lambda: forward(*(f"group0/attn/{name}_proj" for name in "qkvo")),
    "flops.forward.running.qk": lambda: forward("group0/attn/scores"),
    "flops.forward.running.pv": lambda: forward("group0/attn/values"),
    "flops.forward.running.swiglu": lambda: forward("group0/mlp"),
    "flops.forward.running.block": lambda: forward("group0"),
    "flops.forward.running.stack": lambda: forward("group0", per=1),
    "flops.forward.running.head_one_row": lambda: scoped(flops.flops(running("prefill")), "head"),
    "flops.forward.running.head_all_rows": lambda: forward("head", per=1),
    "flops.forward.running.prefill": lambda: flops.flops(running("prefill")).totals["forward"],
    "flops.forward.running.training": lambda: flops.flops(running()).totals["forward"],
    "flops.forward.running.legal_pairs": lambda: scoped(
        flops.flops(running("prefill", pairs="legal")), "group0/attn/scores", "group0/attn/values", per=32
    ),
    "flops.forward.a16.block": lambda: symbolic_flops(CLASSIC, block_forward, **CLASSIC_RELATIONS),
    "flops.forward.running.block_symbolic": lambda: symbolic_flops(RUNNING, block_forward, E="d/H", K="H/4", F="7*d/2"),
    "flops.forward.toy": lambda: flops.flops(toy()).totals["forward"],
    "flops.forward.toy.layer": lambda: scoped(flops.flops(toy()), "group0", per=2),
    "flops.training.running.none": lambda: steps("none"),
    "flops.training.running.selective_qk_pv": lambda: steps("attention"),
    "flops.training.running.blocks": lambda: steps("block"),
    "flops.training.running.everything": lambda: steps("everything"),
    "flops.six_nd.n_used": lambda: six("n_used"),
    "flops.six_nd.product": lambda: six("product"),
    "flops.six_nd.pairwise": lambda: six("pairwise"),
    "flops.six_nd.all_unique": lambda: 6 * parameters.parameters(running()).totals["unique"] * 4096,
    "flops.six_nd.kaplan_n": kaplan,
    "flops.megatron.eq3": lambda: symbolic_flops(CLASSIC, lambda ledger: ledger.totals["total"], **CLASSIC_RELATIONS),
    "ownership.running.dp": lambda: zero(0),
    "ownership.running.zero1": lambda: zero(1),
    "ownership.running.zero2": lambda: zero(2),
    "ownership.running.zero3": lambda: zero(3),
    "tp.q_proj.column_shard": lambda: product("q_proj").weight_shard_bytes,
    "tp.q_proj.row_partial": lambda: product("o_proj").output_bytes,
    "sp.residual.rank": lambda: sequence_shards.stream_bytes(
        running(precision="bf16", mesh={"tensor": 8}, sequence_parallel=True)
    )[1],
    "cp.kv.full_layer": context_kv,
    "pp.boundary": lambda: stages.boundary_bytes(running(precision="bf16", mesh={"pipeline": 4})),
    "traffic.attention.materialised.layer": lambda: attention_traffic(running("prefill"), 32),
    "traffic.attention.materialised.stack": lambda: attention_traffic(running("prefill")),
    "traffic.attention.materialised.mha": lambda: attention_traffic(running("prefill", sizes={"k": 32}), 32),
    "traffic.attention.toy": lambda: attention_traffic(toy()),
    "traffic.decode.gemm.intensity": lambda: [float(q_proj(built).intensity) for built in q_proj_rows().values()],
    "kv.running.4096": lambda: kv_cache.kv_cache(running("prefill")).totals["bytes"],
    "kv.running.token": lambda: cache(8, "bytes_per_token"),
    "kv.running.32768": lambda: cache(8),
    "kv.toy": lambda: kv_cache.kv_cache(toy()).totals["bytes"],
    "kv.32768.mha": lambda: cache(32),
    "kv.32768.gqa": lambda: cache(8),
    "kv.32768.mqa": lambda: cache(1),
    "decode.running.pairwise": lambda: traffic.kv_input(running("decode", past=32767))["flops"],
    "decode.running.kv_input": lambda: traffic.kv_input(running("decode", past=32767))["bytes"],
    "decode.running.kv_intensity": lambda: traffic.kv_input(running("decode", past=32767))["intensity"],
    "sensitivity.dP_kv": lambda: 32 * (attention_parameters(32) - attention_parameters(8)),
    "sensitivity.all_row_logits": delta_logits,
    "repr.billion.fp32": lambda: payload_bytes(10**9, "fp32"),
    "repr.billion.bf16": lambda: payload_bytes(10**9, "bf16"),
    "repr.billion.fp8_codes": lambda: payload_bytes(10**9, "fp8_e4m3"),
    "repr.billion.int4_codes": lambda: payload_bytes(10**9, "int4"),
}
for _name in (
    "bf16_inference",
    "fp32_inference",
    "masterless_bf16",
    "fp32_autocast_adam",
    "bf16_master_adam",
    "a16_six_object",
):
    CHECKS[f"state.running.{_name}"] = lambda name=_name: policy(name)  # type: ignore[misc]
for _name, (_kind, _group) in GROUPS.items():
    CHECKS[f"fsdp.group.{_name}"] = lambda kind=_kind, name=_group: zero3_group(kind, name).full_bytes  # type: ignore[misc]
    CHECKS[f"fsdp.missing_peer.{_name}"] = (
        lambda kind=_kind, name=_group: zero3_group(kind, name).missing_bytes  # type: ignore[misc]
    )
for _name in ("M4096", "M32", "M1"):
    CHECKS[f"traffic.gemm.{_name}"] = lambda name=_name: q_proj(q_proj_rows()[name]).bytes  # type: ignore[misc]


def activation_bytes(name: str) -> Any:
    built = running(precision="bf16")
    tensor = built.tensors[name]
    return payload_bytes(built.elements(tensor), tensor.dtype)


def agrees(figure: dict[str, Any], found: Any) -> bool:
    value = figure["value"]
    if isinstance(value, str) and "," in value:
        return [round(number, 4 if number > 2 else 6) for number in found] == [float(part) for part in value.split(",")]
    if isinstance(value, str):
        names = {name: sympy.Symbol(name, integer=True, positive=True) for name in "BSLVd"}
        return equal(sympy.sympify(value, locals=names | {"h": names["d"]}), found)
    if isinstance(value, float):
        return round(float(found), 1) == value
    return bool(found == value)


def test_every_figure_has_a_check() -> None:
    assert {figure["id"] for figure in FIGURES} == set(CHECKS)


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure["id"])
def test_figure(figure: dict[str, Any]) -> None:
    assert agrees(figure, CHECKS[figure["id"]]())


def plus_one(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: function(*args, **kwargs) + 1


def longer(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: function(*args, **kwargs)[:-1]


@pytest.mark.parametrize(
    ("module", "name", "fault", "figure"),
    [
        (parameters, "payload_bytes", plus_one, "param.toy.tied.payload"),
        (state, "object_scalars", plus_one, "state.toy.six_class"),
        (flops, "contraction_flops", plus_one, "flops.forward.toy"),
        (activations, "payload_bytes", plus_one, "activation.korthikanti.linear"),
        (kv_cache, "payload_bytes", plus_one, "kv.toy"),
        (traffic, "_bytes", plus_one, "traffic.attention.toy"),
        (traffic, "_stage_rows", longer, "traffic.attention.toy"),
        (sharding, "ceil_div", plus_one, "ownership.running.zero1"),
        (groups, "payload_bytes", plus_one, "fsdp.group.block"),
        (groups, "ceil_div", plus_one, "fsdp.missing_peer.block"),
        (tensor_parallel, "ceil_div", plus_one, "tp.q_proj.column_shard"),
        (tensor_parallel, "payload_bytes", plus_one, "tp.q_proj.row_partial"),
        (sequence_shards, "payload_bytes", plus_one, "cp.kv.full_layer"),
        (stages, "payload_bytes", plus_one, "pp.boundary"),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_a_planted_fault_misses(
    module: Any, name: str, fault: Any, figure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = next(item for item in FIGURES if item["id"] == figure)
    assert agrees(chosen, CHECKS[figure]())
    monkeypatch.setattr(module, name, fault(getattr(module, name)))
    assert not agrees(chosen, CHECKS[figure]())


def test_a_closed_interval_would_be_a_larger_peak() -> None:
    late = [("A", 4, 0.0, 4.0), ("B", 5, 1.0, 2.001), ("C", 6, 2.0, 3.0)]
    assert events(late) == 15
    assert events([("A", 4, 0.0, 4.0), ("B", 5, 1.0, 2.0), ("C", 6, 2.0, 3.0)]) == 10


def test_tying_changes_parameters_and_no_flops() -> None:
    """A lookup charged as a product, or a tied head as nothing, would make FLOPs depend on the tie (trl issue 6708)."""
    found = {}
    for tied in (False, True):
        sizes = {"L": 2, "d": 1024, "h": 8, "k": 8, "e": 128, "f": 64, "V": 151936, "tied": tied}
        found[tied] = predict(case(sizes, "training", seq=1))
        rows = found[tied].ledgers["flops"].rows
        assert total((row for row in rows if row.scope == "head"), phase="forward") == 311_164_928
        assert total(row for row in rows if row.scope == "head") == 933_494_784
        assert not [row for row in rows if row.scope.startswith("embed")]
    assert found[False].value("flops.total") == found[True].value("flops.total")
    assert found[False].value("parameters.unique") - found[True].value("parameters.unique") == 155_582_464
