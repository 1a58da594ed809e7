"""The peak on TPU: training, prefill and decode."""

from __future__ import annotations

import re
from importlib import resources

import pytest

import jaxcost
from jaxcost.contracts.case import Case, build_case
from jaxcost.prediction.peak import PeakPrediction, Unpredicted, policy_for, predict_peak
from jaxcost.prediction.program import program

PACKAGE = resources.files("jaxcost.prediction.peak")


def case(model: str, phase: str, **options: object) -> Case:
    return build_case(jaxcost.load(model), {"phase": phase, **options})


def peak(wanted: Case) -> PeakPrediction:
    found = predict_peak(program(wanted), "tpu")
    assert not isinstance(found, Unpredicted), found
    return found


BLOCK, NONE = {"remat": "block"}, {"remat": "none"}
BLOCKS, WRITTEN = {"attention": "blockwise"}, {"attention": "materialised"}
# Live peaks of development cases, in bytes: what the compiler planned for v5e or v5p.
PLANNED = [
    ("llama-3.2-1b", "training", {**BLOCK, **BLOCKS, "batch": 16, "seq": 4096, "mesh": {"fsdp": 8}}, 9_794_458_624),
    (
        "llama-3.1-8b", "training",
        {**BLOCK, **BLOCKS, "batch": 8, "seq": 4096, "mesh": {"fsdp": 4, "tensor": 2}}, 20_354_863_264,
    ),
    ("llama-3.1-8b", "decode", {**WRITTEN, "batch": 16, "past": 4095, "mesh": {"tensor": 8}}, 4_156_555_264),
    ("llama-3.1-8b", "prefill", {**WRITTEN, "batch": 8, "seq": 2048, "mesh": {"fsdp": 8}}, 3_327_665_152),
    ("llama-3.1-8b", "prefill", {**WRITTEN, "batch": 4, "seq": 4096, "mesh": {"tensor": 8}}, 2_952_110_592),
]  # fmt: skip


@pytest.mark.parametrize(("model", "phase", "options", "planned"), PLANNED)
def test_development_cases_come_out(model: str, phase: str, options: dict[str, object], planned: int) -> None:
    found = peak(case(model, phase, **options))
    assert abs(found.expected - planned) < 0.006 * planned
    assert found.lower <= planned <= found.upper


def test_casts_stand_beside_fp32_weights_alone() -> None:
    both = [peak(case("llama-3.2-1b", "training", **BLOCK, seq=1024, precision=name)) for name in ("mixed", "bf16")]
    names = [{item.object for moment in found.moments for item in moment.held} for found in both]
    assert "weights of all layers, cast" in names[0]
    assert "weights of all layers, cast" not in names[1]


def test_logits_and_their_gradient_meet_where_the_gather_is_windowed() -> None:
    found = peak(case("llama-3.2-1b", "training", **BLOCK, **BLOCKS, batch=16, seq=4096, mesh={"fsdp": 8}))
    assert found.at == "loss"
    assert found.by_class["logits"] == 2 * 4096 * 128_256 * (4 + 2)
    short = peak(case("llama-3.2-1b", "training", **BLOCK, **BLOCKS, batch=8, seq=4096, mesh={"fsdp": 4}))
    assert "loss" not in {moment.name for moment in short.moments}


def test_one_batch_axis_halves_the_scores_of_prefill() -> None:
    sizes = [
        peak(case("llama-3.2-1b", "prefill", **WRITTEN, batch=b, seq=4096, mesh={"data": n})).by_class["attention"]
        for b, n in ((2, 2), (4, 2))
    ]
    assert sizes[1] == 4 * sizes[0]  # twice the sequences, and fp32 in place of bf16


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"phase": "training", "seq": 64, "layers": "unrolled"}, "writes its layers out"),
        ({"phase": "training", "seq": 64, "batch": 4, "accumulate": 2}, "accumulates"),
        ({"phase": "training", "seq": 64, "remat": "everything"}, "recomputes by everything"),
        ({"phase": "prefill", "seq": 16384, "batch": 2, **WRITTEN}, "more than 4 GiB"),
    ],
)
def test_outside_of_the_domain_nothing_is_predicted(options: dict[str, object], reason: str) -> None:
    found = predict_peak(program(build_case(jaxcost.load("llama-3.2-1b"), options)), "tpu")
    assert isinstance(found, Unpredicted)
    assert reason in found.reason


def test_every_rule_of_the_record_is_used() -> None:
    policy = policy_for("tpu")
    assert policy is not None
    names = ("tpu.py", "tpu_serving.py", "serving.py", "step.py")
    source = "\n".join((PACKAGE / name).read_text(encoding="utf-8") for name in names)
    variants = "replayed saved none single gathered tied uncast data gated classic rows degree tensor one blocks"
    endings = f"-({'|'.join(variants.split())})$"
    for rule in policy.rules:
        stem = rule
        while stem not in source and re.search(endings, stem):
            stem = re.sub(endings, "", stem)
        assert stem in source, rule
