"""Each rule of the records at its edge: the last value that passes and the first that is refused, by path."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import jaxcost
from jaxcost.contracts.architecture import Layer
from jaxcost.contracts.case import Case, build_case, saveable_names
from jaxcost.contracts.convention import LEGAL, RECTANGULAR, Convention
from jaxcost.contracts.dtypes import payload_bytes
from jaxcost.contracts.errors import (
    JaxcostError,
    NotExecutedError,
    Problem,
    RejectedError,
    UnavailableError,
    reject,
)
from jaxcost.contracts.execution import SAVEABLE_NAMES, Execution, mesh_axes
from jaxcost.contracts.kernels import kernel_problems, splash_block, splash_scheduled_pairs
from jaxcost.contracts.liveness import Liveness, LiveObject
from jaxcost.contracts.mesh import program_mesh
from jaxcost.contracts.observation import Observation
from jaxcost.contracts.record import LARGEST_SIZE, MAXIMUM_DEPTH, Record, parse_file, parse_json, parse_toml, read_text
from jaxcost.contracts.state import StateObject, state_policy
from jaxcost.contracts.workload import Workload
from tests.prediction.cases import TOY, architecture, case


def refused(build: Any, *arguments: Any, **options: Any) -> set[str]:
    """The paths of a refusal; none where nothing is refused."""
    try:
        build(*arguments, **options)
    except RejectedError as error:
        assert all(problem.rule and problem.remedy for problem in error.problems)
        return {problem.path for problem in error.problems}
    return set()


TRAINING = {"phase": "training", "batch": 4, "new_tokens": 8}
PREFILL = {"phase": "prefill", "batch": 4, "new_tokens": 8}
DECODE = {"phase": "decode", "batch": 4, "new_tokens": 1}


@pytest.mark.parametrize(
    "base, passes, fails, path",
    [
        (DECODE, {"past_tokens": 3}, {"new_tokens": 2}, "new_tokens"),
        (TRAINING, {"past_tokens": 0}, {"past_tokens": 1}, "past_tokens"),
        (TRAINING, {"logits": "all"}, {"logits": "final"}, "logits"),
        (PREFILL, {"logits": 8}, {"logits": 9}, "logits"),
        (PREFILL, {"dropout": False}, {"dropout": True}, "dropout"),
        (PREFILL, {"accumulate": 1}, {"accumulate": 2}, "accumulate"),
        (TRAINING, {"accumulate": 4}, {"accumulate": 3}, "accumulate"),
        (TRAINING, {"dropout": True}, {"dropout": 1}, "dropout"),
        (TRAINING, {"lengths": [8, 1, 2, 3]}, {"lengths": [8, 1, 2]}, "lengths"),
        (TRAINING, {"lengths": [8, 8, 8, 8]}, {"lengths": [7, 1, 2, 3]}, "lengths"),
        (DECODE, {"past_tokens": 3}, {"past_tokens": 3, "lengths": [1, 1, 1, 1]}, "lengths"),
        (TRAINING, {"batch": LARGEST_SIZE}, {"batch": LARGEST_SIZE + 1}, "batch"),
        (TRAINING, {"batch": 1}, {"batch": 0}, "batch"),
        (TRAINING, {}, {"batch": True}, "batch"),
        (TRAINING, {}, {"batch": 4.0}, "batch"),
        (TRAINING, {"name": "a\tb"}, {"name": "a\x07b"}, "name"),
        (TRAINING, {"name": "\u202f"}, {"name": "\u202e"}, "name"),
        (TRAINING, {}, {"unheard": 1}, "unheard"),
    ],
)
def test_workloads(base: dict[str, Any], passes: dict[str, Any], fails: dict[str, Any], path: str) -> None:
    assert refused(Workload.from_data, {**base, **passes}) == set()
    assert refused(Workload.from_data, {**base, **fails}) == {path}
    assert refused(Workload.from_data, {**base, **fails}, "workload") == {f"workload.{path}"}


def test_rows_of_a_workload() -> None:
    work = Workload.from_data({**DECODE, "past_tokens": 3})
    assert (work.visible_tokens, work.continues, work.logits_rows_per_sequence) == (4, True, 1)
    first = Workload.from_data({**PREFILL, "logits": 5})
    assert (first.visible_tokens, first.continues, first.logits_rows_per_sequence) == (8, False, 5)
    assert Workload.from_data({**PREFILL, "logits": "final"}).logits_rows_per_sequence == 1
    assert Workload.from_data(TRAINING).logits_rows_per_sequence == 8
    later = Workload.from_data({**PREFILL, "past_tokens": 2})
    assert (later.continues, later.visible_tokens) == (True, 10)
    blocks = Workload.from_data({**TRAINING, "attention_block": 6})
    assert [blocks.block_for(rows) for rows in (12, 8, 7, 4, 1)] == [6, 4, 1, 4, 1]
    assert Workload.from_data(TRAINING).attention_block == 512


@pytest.mark.parametrize(
    "passes, fails, path",
    [
        ({"mesh": [{"name": "data", "size": 2}], "zero": 1}, {"zero": 1}, "zero"),
        ({}, {"mesh": [{"name": "data", "size": 2}] * 2}, "mesh"),
        ({"mesh": [{"name": "fsdp", "size": 2}], "fsdp": {"prefetch": 1}}, {"fsdp": {"prefetch": 1}}, "fsdp"),
        (
            {"mesh": [{"name": "data", "size": 2}], "zero": 3, "fsdp": {"prefetch": 1}},
            {"fsdp": {"group": "root"}},
            "fsdp",
        ),
        (
            {"mesh": [{"name": "pipeline", "size": 2}], "pipeline": {"schedule": "1f1b"}},
            {"pipeline": {"schedule": "1f1b"}},
            "pipeline",
        ),
        (
            {"mesh": [{"name": "tensor", "size": 2}], "sequence_parallel": True},
            {"sequence_parallel": True},
            "sequence_parallel",
        ),
        (
            {"mesh": [{"name": "context", "size": 2}], "context_method": "ring"},
            {"context_method": "ring"},
            "context_method",
        ),
        ({"remat": "save_only_these_names", "remat_names": ["down"]}, {"remat_names": ["down"]}, "remat_names"),
        ({"remat": "block"}, {"remat": "save_and_offload_only_these_names"}, "remat_names"),
        ({}, {"remat": "save_only_these_names", "remat_names": ["uq"]}, "remat_names"),
        ({}, {"remat": "save_only_these_names", "remat_names": ["up", "up"]}, "remat_names"),
        ({"offload": ["optimizer"]}, {"offload": ["optimizer", "optimizer"]}, "offload"),
        (
            {"mesh": [{"name": "pipeline", "size": 2}], "pipeline": {"schedule": "interleaved", "virtual": 2}},
            {"mesh": [{"name": "pipeline", "size": 2}], "pipeline": {"schedule": "interleaved", "virtual": 1}},
            "pipeline.virtual",
        ),
        ({}, {"mesh": [{"name": "pipeline", "size": 2}], "pipeline": {"virtual": 2}}, "pipeline.virtual"),
    ],
)
def test_executions(passes: dict[str, Any], fails: dict[str, Any], path: str) -> None:
    assert refused(Execution.from_data, passes) == set()
    assert path in refused(Execution.from_data, fails)


def test_meshes() -> None:
    mesh = mesh_axes({"data": 2, "fsdp": 3, "tensor": 4})
    run = Execution.from_data({"mesh": mesh})
    assert (run.device_count, run.mesh_sizes) == (24, {"data": 2, "fsdp": 3, "tensor": 4})
    assert (run.degree("fsdp"), run.degree("context")) == (3, 1)
    assert mesh_axes("data=2") == "data=2"
    assert Execution().device_count == 1
    # Two key heads over four ranks: each head stands twice.
    spread = case(TOY, "training", batch=4, seq=4, mesh={"tensor": 4, "data": 2})
    assert program_mesh(spread) == {"tensor": 2, "tensor_replica": 2, "data": 2}
    assert program_mesh(case(TOY, "training", batch=4, seq=4, mesh={"tensor": 2})) == {"tensor": 2}


def built(phase: str = "training", sizes: dict[str, Any] = TOY, **options: Any) -> set[str]:
    if phase != "decode":
        options = {"seq": 8, **options}
    return refused(build_case, architecture(**sizes), {"phase": phase, "batch": 8, **options})


@pytest.mark.parametrize(
    "passes, fails, path",
    [
        ({"mesh": {"data": 8}}, {"mesh": {"data": 16}}, "workload.batch"),
        ({"mesh": {"data": 4}, "accumulate": 2}, {"mesh": {"data": 8}, "accumulate": 2}, "workload.batch"),
        ({"mesh": {"fsdp": 8}}, {"mesh": {"fsdp": 3}, "batch": 9}, "execution.mesh.fsdp"),
        ({}, {"mesh": {"expert": 2}}, "execution.mesh.expert"),
        ({"mesh": {"context": 8}}, {"mesh": {"context": 3}}, "execution.mesh.context"),
        (
            {"mesh": {"tensor": 4}, "sequence_parallel": True},
            {"mesh": {"tensor": 4}, "seq": 6, "sequence_parallel": True},
            "execution.sequence_parallel",
        ),
        (
            {"mesh": {"tensor": 4, "context": 2}, "sequence_parallel": True},
            {"mesh": {"tensor": 4, "context": 4}, "sequence_parallel": True},
            "execution.sequence_parallel",
        ),
        ({"lengths": [8] * 8}, {"mesh": {"context": 2}, "lengths": [8] * 8}, "workload.lengths"),
        ({"mesh": {"tensor": 4}}, {"mesh": {"tensor": 8}}, "execution.mesh.tensor"),
        ({"head_multiple": 6}, {"head_multiple": 5}, "execution.head_multiple"),
        (
            {"mesh": {"pipeline": 2}, "accumulate": 2},
            {"mesh": {"pipeline": 4}, "accumulate": 2},
            "execution.pipeline.layers",
        ),
        (
            {"mesh": {"pipeline": 2}, "pipeline_layers": [2, 0]},
            {"mesh": {"pipeline": 2}, "pipeline_layers": [2, 1]},
            "execution.pipeline.layers",
        ),
        (
            {"mesh": {"pipeline": 2}, "pipeline_layers": [0, 2]},
            {"mesh": {"pipeline": 2}, "pipeline_layers": [2]},
            "execution.pipeline.layers",
        ),
        (
            {"mesh": {"pipeline": 2}, "head_stage": 1},
            {"mesh": {"pipeline": 2}, "head_stage": 2},
            "execution.pipeline.head_stage",
        ),
        (
            {"mesh": {"pipeline": 2}, "embedding_stage": -2},
            {"mesh": {"pipeline": 2}, "embedding_stage": -3},
            "execution.pipeline.embedding_stage",
        ),
        (
            {
                "mesh": {"pipeline": 2},
                "sizes": {**TOY, "L": 4},
                "pipeline_schedule": "interleaved",
                "pipeline_virtual": 2,
                "accumulate": 2,
            },
            {
                "mesh": {"pipeline": 2},
                "sizes": {**TOY, "L": 4},
                "pipeline_schedule": "interleaved",
                "pipeline_virtual": 2,
                "accumulate": 1,
            },
            "workload.accumulate",
        ),
        (
            {"remat": "save_only_these_names", "remat_names": ["scores"]},
            {"remat": "save_only_these_names", "remat_names": ["scores"], "attention": "blockwise"},
            "execution.remat_names",
        ),
        (
            {"remat": "save_only_these_names", "remat_names": ["gate"]},
            {"remat": "save_only_these_names", "remat_names": ["gate"], "sizes": {**TOY, "form": "classic"}},
            "execution.remat_names",
        ),
        (
            {"remat": "save_only_these_names", "remat_names": ["k_rotary"]},
            {"remat": "save_only_these_names", "remat_names": ["k_norm"]},
            "execution.remat_names",
        ),
        ({"offload": ["optimizer", "gradient"]}, {"offload": ["master"]}, "execution.offload"),
        ({"offload": ["optimizer"]}, {"offload": ["optimizer"], "optimizer": "sgd"}, "execution.offload"),
        ({"frozen": ["group0/mlp"]}, {"frozen": ["group1/mlp"]}, "state.frozen"),
        (
            {"frozen": ["embed", "group0", "final_norm"]},
            {"frozen": ["embed", "group0", "final_norm", "head"]},
            "state.frozen",
        ),
        ({"sizes": {**TOY, "positions": 8}}, {"sizes": {**TOY, "positions": 7}}, "workload.new_tokens"),
        (
            {"mesh": {"tensor": 4}, "sizes": {**TOY, "V": 16}},
            {"mesh": {"tensor": 4}, "sizes": {**TOY, "V": 17}},
            "execution.mesh.tensor",
        ),
        (
            {"mesh": {"tensor": 4}, "sizes": {**TOY, "V": 17}, "vocabulary_multiple": 4},
            {"mesh": {"tensor": 4}, "sizes": {**TOY, "f": 14}},
            "execution.mesh.tensor",
        ),
        (
            {"phase": "decode", "past": 3},
            {"phase": "decode", "past": 3, "mesh": {"context": 2}},
            "execution.mesh.context",
        ),
        ({"phase": "prefill"}, {"phase": "prefill", "remat": "block"}, "execution.remat"),
        ({"phase": "prefill"}, {"phase": "prefill", "gradient_sync": "last_microbatch"}, "execution.gradient_sync"),
        (
            {"phase": "prefill", "mesh": {"fsdp": 2}},
            {"phase": "prefill", "mesh": {"fsdp": 2}, "reshard": False},
            "execution.fsdp.reshard",
        ),
        (
            {"phase": "prefill", "mesh": {"data": 2}, "zero": 3},
            {"phase": "prefill", "mesh": {"data": 2}, "zero": 2},
            "execution.zero",
        ),
        ({"phase": "prefill"}, {"phase": "prefill", "mesh": {"pipeline": 2}}, "execution.mesh.pipeline"),
        (
            {"phase": "prefill", "offload": ["parameter"]},
            {"phase": "prefill", "offload": ["optimizer"]},
            "execution.offload",
        ),
        ({"phase": "prefill", "past": 0}, {"phase": "prefill", "past": 1}, "workload.past_tokens"),
        ({"phase": "prefill", "optimizer": "adam"}, {"phase": "prefill", "optimizer": "sgd"}, "optimizer"),
        ({}, {"phase": None}, "phase"),
        ({}, {"seq": None}, "seq"),
        ({}, {"unheard": 1}, "unheard"),
        ({}, {"mesh": "data=2"}, "execution.mesh"),
        ({"pairs": "legal"}, {"pairs": "some"}, "convention.attention_pairs"),
        ({"precision": "bf16_master_adam"}, {"precision": "bf16_master_adam", "optimizer": "sgd"}, "optimizer"),
        ({"precision": "bf16"}, {"precision": "bf16_inference"}, "precision"),
        ({"phase": "prefill", "precision": "fp32_inference"}, {"precision": "fp33"}, "precision"),
        ({"optimizer": "lion"}, {"optimizer": "bear"}, "optimizer"),
    ],
)
def test_cases(passes: dict[str, Any], fails: dict[str, Any], path: str) -> None:
    assert built(**passes) == set()
    assert path in built(**fails)


def test_all_problems_of_a_case_are_told_at_once() -> None:
    found = built(unheard=1, mesh={"data": 16}, seq=None)
    assert {"unheard", "seq"} <= found
    both = refused(Workload.from_data, {**DECODE, "new_tokens": 2, "dropout": True, "accumulate": 2}, "w")
    assert both == {"w.new_tokens", "w.dropout", "w.accumulate"}


def test_kernels_run_what_they_can() -> None:
    def lacks(sizes: dict[str, Any], phase: str = "training", **options: Any) -> set[str]:
        rows = {} if phase == "decode" else {"seq": 256}
        made = case(sizes, phase, **{"batch": 2, **rows, **options})
        return {problem.path for problem in kernel_problems(made)}

    wide, head = {**TOY, "d": 512, "h": 4, "e": 128}, "architecture.groups.0.layer.attention.head_dim"
    assert lacks({**TOY, "e": 4}) == set() == lacks({**TOY, "e": 4}, "decode", past=4)
    assert lacks(wide, attention="cudnn") == set() == lacks({**wide, "e": 8}, attention="cudnn")
    assert lacks({**TOY, "e": 4}, attention="cudnn") == {head} == lacks({**wide, "e": 136}, attention="cudnn")
    assert lacks({**TOY, "e": 4}, attention="splash") == set()
    assert lacks(wide, attention="cudnn", precision="fp32") == {"state.compute_dtype"}
    assert lacks(wide, attention="splash", precision="fp32") == set()
    assert lacks(wide, attention="splash", seq=192) == {"workload.new_tokens"}
    dropped = {**wide, "dropout": 0.1}
    assert lacks(dropped, attention="splash") == set() == lacks(wide, attention="splash", dropout=True)
    assert lacks(dropped, attention="splash", dropout=True) == {"workload.dropout"}
    assert lacks(wide, "decode", attention="cudnn", past=4) == {"workload.attention"}
    assert [splash_block(rows, 512) for rows in (128, 256, 512, 640, 1024, 1152)] == [128, 256, 512, 128, 512, 384]
    assert splash_block(256, 64) == 128
    # Of n x n blocks n (n + 1) / 2 are left: 10 of 16 blocks of 128 x 128.
    assert splash_scheduled_pairs(512, 128) == 10 * 128 * 128


# What each precision keeps: (name, role, basis, type, born, gone, owner)

WEIGHTS = ("parameters", "parameter", "loaded")
GRADIENT = ("gradients", "gradient", "trainable")
END = ("after_backward", "after_release", "autograd")
MADE = ("after_optimizer_construction", "never", "optimizer")
LAZY = ("in_first_step", "never", "optimizer")
MASTER = ("master_parameters", "master", "updated", "fp32", "after_load", "never", "wrapper")
COPY = ("gradient_copy", "gradient_copy", "trainable", "fp32", "after_backward", "after_release", "wrapper")


def born(dtype: str) -> tuple[str, ...]:
    return (*WEIGHTS, dtype, "after_load", "never", "model")


def slots(dtype: str, when: tuple[str, ...]) -> list[tuple[str, ...]]:
    return [("m", "first_moment", "updated", dtype, *when), ("v", "second_moment", "updated", dtype, *when)]


STEP = ("step", "step", "updated", "int32", *MADE)


@pytest.mark.parametrize(
    "precision, optimizer, kept",
    [
        ("mixed", "adam", [born("fp32"), (*GRADIENT, "fp32", *END), STEP, *slots("fp32", MADE)]),
        ("fp32", "adamw", [born("fp32"), (*GRADIENT, "fp32", *END), STEP, *slots("fp32", MADE)]),
        ("bf16", "adam", [born("bf16"), (*GRADIENT, "bf16", *END), STEP, *slots("bf16", MADE)]),
        ("mixed", "sgd", [born("fp32"), (*GRADIENT, "fp32", *END)]),
        ("mixed", "momentum", [born("fp32"), (*GRADIENT, "fp32", *END), slots("fp32", MADE)[0]]),
        ("mixed", "lion", [born("fp32"), (*GRADIENT, "fp32", *END), STEP, slots("fp32", MADE)[0]]),
        ("masterless_bf16", "adam", [born("bf16"), (*GRADIENT, "bf16", *END), *slots("fp32", LAZY)]),
        ("fp32_autocast_adam", "adam", [born("fp32"), (*GRADIENT, "fp32", *END), *slots("fp32", LAZY)]),
        ("bf16_master_adam", "adam", [born("bf16"), MASTER, (*GRADIENT, "bf16", *END), *slots("fp32", LAZY)]),
        ("a16_six_object", "adam", [born("bf16"), MASTER, (*GRADIENT, "bf16", *END), COPY, *slots("fp32", LAZY)]),
    ],
)
def test_what_a_precision_keeps(precision: str, optimizer: str, kept: list[tuple[str, ...]]) -> None:
    policy = state_policy(precision, optimizer)
    fields = ("name", "role", "basis", "dtype", "created", "released", "owner")
    assert [tuple(getattr(item, field) for field in fields) for item in policy.objects] == kept
    assert {item.count for item in policy.objects if item.role != "step"} == {"dense"}
    assert {item.count for item in policy.objects if item.role == "step"} <= {"scalar"}
    assert {item.copies for item in policy.objects} == {1} and {item.placement for item in policy.objects} == {"device"}
    compute = "fp32" if precision == "fp32" else "bf16"
    assert (policy.compute_dtype, policy.score_dtype, policy.kv_dtype) == (compute, compute, compute)
    assert (policy.name, policy.logits_dtype, policy.parameter_dtype) == (precision, "fp32", kept[0][3])
    assert policy.optimizer == optimizer


def test_adafactor_keeps_rows_columns_and_what_it_does_not_factor() -> None:
    policy = state_policy("mixed", "adafactor")
    assert [(item.name, item.role, item.count) for item in policy.objects[2:]] == [
        ("step", "step", "scalar"),
        ("v_row", "second_moment_row", "row"),
        ("v_column", "second_moment_column", "column"),
        ("v", "second_moment", "unfactored"),
    ]


def test_serving_keeps_weights_alone() -> None:
    for precision, weights, compute in (
        ("bf16_inference", "bf16", "bf16"), ("fp32_inference", "fp32", "fp32"), ("mixed", "fp32", "bf16"),
    ):  # fmt: skip
        policy = state_policy(precision, training=False)
        assert [(item.name, item.dtype) for item in policy.objects] == [("parameters", weights)]
        assert (policy.optimizer, policy.kv_dtype) == ("none", compute)
        assert policy.object("gradient") is None and policy.object("parameter") is policy.objects[0]


def test_state_objects_live_from_birth_until_they_go() -> None:
    weights = {"role": "parameter", "basis": "loaded", "count": "dense", "dtype": "fp32", "owner": "model"}
    made = StateObject.from_data({**weights, "name": "w", "created": "after_backward", "released": "after_release"})
    points = ("after_load", "after_optimizer_construction", "after_backward", "in_first_step", "after_release")
    assert [made.live_at(point) for point in points] == [False, False, True, True, False]
    stays = StateObject.from_data({**weights, "name": "w", "created": "in_first_step"})
    assert [stays.live_at(point) for point in points] == [False, False, False, True, True]
    bad = {**weights, "name": "w", "created": "after_backward", "released": "after_backward"}
    assert refused(StateObject.from_data, bad) == {"released"}
    policy = state_policy("mixed")
    assert refused(policy.replaced, objects=policy.objects[1:]) == {"objects"}
    assert refused(policy.replaced, objects=(*policy.objects, policy.objects[0])) == {"objects"}
    assert refused(policy.replaced, parameter_dtype="bf16") == {"parameter_dtype"}


def test_supplied_events() -> None:
    event = {"name": "x", "bytes": 1, "birth": 0.0, "death": 1.0}
    assert refused(LiveObject.from_data, event) == set()
    assert refused(LiveObject.from_data, {**event, "death": 0.0}) == {"death"}
    assert refused(Liveness.from_data, {"objects": [event, {**event, "name": "y"}]}) == set()
    assert refused(Liveness.from_data, {"objects": [event, event]}) == {"objects"}
    assert refused(Liveness.from_data, {"objects": []}) == {"objects"}
    assert Liveness.from_data({"objects": [event]}).persistent_bytes == 0


def test_payloads_round_up_to_bytes() -> None:
    assert [payload_bytes(3, dtype) for dtype in ("fp64", "fp32", "bf16", "fp8_e4m3", "int4", "bool")] == [
        24, 12, 6, 3, 2, 3,
    ]  # fmt: skip
    assert (payload_bytes(4, "int4"), payload_bytes(0, "int4")) == (2, 0)


COMPILED = {
    "schema": "jaxcost.observation.v1", "evidence_class": "compiled", "producer": "xla", "target": "cpu:1",
    "versions": {"jax": "1"}, "flags": {}, "module_digest": "00",
}  # fmt: skip
MEASURED = {
    "schema": "jaxcost.observation.v1", "evidence_class": "locally_measured", "producer": "clock", "hardware": "h",
    "framework": "f", "artefacts": ["a"],
}  # fmt: skip


def test_evidence_carries_its_proof() -> None:
    assert refused(Observation.from_data, COMPILED) == set() == refused(Observation.from_data, MEASURED)
    for base, names in (
        (COMPILED, ("target", "versions", "flags", "module_digest")),
        (MEASURED, ("hardware", "framework", "artefacts")),
    ):
        for name in names:
            left = {key: value for key, value in base.items() if key != name}
            assert refused(Observation.from_data, left) == {name}
    assert refused(Observation.from_data, {**COMPILED, "versions": {}}) == {"versions"}
    assert refused(Observation.from_data, {**COMPILED, "evidence_class": "analytical"}) == {"evidence_class"}
    assert refused(Observation.from_data, {**COMPILED, "evidence_class": "source_reported"}) == {"source_url"}
    counter = {"counter": "flops", "value": 1, "unit": "FLOPs", "visibility": "all"}
    assert refused(Observation.from_data, {**COMPILED, "counters": [counter, {**counter, "scope": "a"}]}) == set()
    assert refused(Observation.from_data, {**COMPILED, "counters": [counter, counter]}) == {"counters"}
    tensor = {"name": "w", "shape": [1], "dtype": "F32", "kind": "parameter", "trainable": True, "alias": "w"}
    assert refused(Observation.from_data, {**COMPILED, "tensors": [tensor, {**tensor, "name": "v"}]}) == set()
    assert refused(Observation.from_data, {**COMPILED, "tensors": [tensor, tensor]}) == {"tensors"}


# The digest, text, and errors


def test_a_digest_covers_what_changes_a_number() -> None:
    work = Workload.from_data(TRAINING)
    assert work.digest == Workload.from_data({**TRAINING, "name": "other", "accumulate": 1}).digest
    assert work.digest != Workload.from_data({**TRAINING, "accumulate": 2}).digest
    assert work.covered() == {"phase": "training", "batch": 4, "new_tokens": 8}
    assert work.replaced(batch=8).digest == Workload.from_data({**TRAINING, "batch": 8}).digest
    assert len(work.digest) == 64
    case_ = case(TOY, "training", batch=2, seq=4)
    assert case_.digest != case(TOY, "training", batch=2, seq=5).digest
    assert Case.from_data(case_.to_data()) == case_
    assert set(case_.covered()) == {"architecture", "workload", "state"}
    assert case(TOY, "training", batch=2, seq=4, pairs="legal").covered()["convention"] == {"attention_pairs": "legal"}
    assert Convention().covered() == {}
    assert case(TOY, "training", batch=2, seq=4, frozen=["head", "embed", "head"]).state.frozen == ("embed", "head")


def test_text_is_read_strictly(tmp_path: Path) -> None:
    assert parse_json('{"a": 1}') == {"a": 1} == parse_toml("a = 1") == parse_json(b'{"a": 1}')
    assert refused(parse_json, '{"a": 1, "a": 2}', "here") == {"here.a"}
    assert refused(parse_json, '{"a": NaN}', "here") == {"here"}
    for text in ("{", b"\xff"):
        assert refused(parse_json, text, "here") == {"here"} == refused(parse_toml, text, "here")
    deep = "[" * (MAXIMUM_DEPTH - 1) + "]" * (MAXIMUM_DEPTH - 1)
    assert parse_json(deep) == json.loads(deep)
    for levels in (MAXIMUM_DEPTH + 1, 100_000):
        assert refused(parse_json, "[" * levels + "]" * levels, "here") == {"here"}
    nested = "a = " + "[" * (MAXIMUM_DEPTH + 1) + "]" * (MAXIMUM_DEPTH + 1)
    assert refused(parse_toml, nested, "here") == {"here"}
    for name, text in (("a.toml", "x = 1"), ("a.json", '{"x": 1}')):
        (tmp_path / name).write_text(text)
        assert parse_file(tmp_path / name) == {"x": 1}
    (tmp_path / "a.txt").write_text("x")
    for path in (tmp_path / "a.txt", tmp_path / "none.toml", tmp_path):
        assert refused(parse_file, path) == {str(path)}
    assert read_text(tmp_path / "a.txt") == b"x"


def test_errors_say_where_what_and_how() -> None:
    error = reject("a.b", 1, "must be two", "write 2")
    assert isinstance(error, RejectedError) and error.exit_code == 2
    assert str(error) == "a.b = 1: must be two. write 2"
    assert str(Problem("", "x" * 200, "r", "m")) == "input = '" + "x" * 76 + "...: r. m"
    assert str(Problem("p", "x" * 78, "r", "m")) == f"p = '{'x' * 78}': r. m"
    assert RejectedError([Problem("a", 1, "b", "c")] * 2).args == ("a = 1: b. c\na = 1: b. c",)
    for value, shown in (
        (1, 1), (2.5, 2.5), (True, True), (None, None), ("x", "x"), (float("nan"), "nan"), ([1], "[1]"),
        ("x" * 200, "x" * 200), ("x" * 201, "x" * 197 + "..."),
    ):  # fmt: skip
        assert Problem("p", value, "r", "m").to_dict() == {"path": "p", "value": shown, "rule": "r", "remedy": "m"}
    gone = UnavailableError("tpu", "no compiler", "install it")
    assert (str(gone), gone.exit_code, gone.what, gone.reason, gone.remedy) == (
        "tpu: no compiler. install it", 3, "tpu", "no compiler", "install it",
    )  # fmt: skip
    assert JaxcostError().exit_code == 4 and issubclass(NotExecutedError, RejectedError)


def test_records_are_frozen() -> None:
    work = Workload.from_data(TRAINING)
    with pytest.raises(ValueError, match="frozen"):
        work.batch = 3  # type: ignore[misc]
    assert refused(Record.from_data, {1, 2}, "here") == {"here"}


def test_what_a_layer_makes_can_be_saved_by_name() -> None:
    everything = set(SAVEABLE_NAMES)
    (group,) = architecture(**TOY).groups
    assert everything - set(saveable_names(group.layer)) == {"q_norm", "k_norm"}
    (plain,) = architecture(**TOY | {"rotary": False, "form": "classic"}).groups
    assert everything - set(saveable_names(plain.layer)) == {"q_norm", "k_norm", "q_rotary", "k_rotary", "gate"}
    parallel = group.layer.replaced(residual="parallel", mlp_norm=None)
    assert everything - set(saveable_names(parallel)) == {"q_norm", "k_norm", "attn_residual", "mlp_norm"}
    data = group.layer.to_data()
    norms = {"attention_norm": None, "mlp_norm": None, "attention_post_norm": data["mlp_norm"]}
    post = Layer.from_data({**data, **norms, "mlp_post_norm": data["mlp_norm"], "residual": "post"})
    assert {"attn_norm", "mlp_norm"}.isdisjoint(saveable_names(post)) and "attn_residual" in saveable_names(post)
    normed = {"over": "head", "norm": data["mlp_norm"]}
    both = Layer.from_data({**data, "attention": {**data["attention"], "qk_norm": normed}})
    assert set(saveable_names(both)) == everything


def test_rows_over_a_cache_are_not_split() -> None:
    whole = case(TOY, "prefill", batch=2, seq=8, mesh={"context": 2})
    assert refused(whole.replaced, workload=whole.workload.replaced(past_tokens=2)) == {"execution.mesh.context"}
    assert refused(whole.replaced, workload=whole.workload.replaced(batch=3)) == set()
    assert built(batch=0) == {"workload.batch"}
    assert built(attention="some") == {"workload.attention"}
    assert built(layers="some") == {"execution.layers"}


def test_the_three_phases_by_name() -> None:
    arch = architecture(**TOY)
    train = jaxcost.training(arch, batch=2, seq=4, optimizer="lion")
    assert train == build_case(arch, {"phase": "training", "batch": 2, "seq": 4, "optimizer": "lion"})
    assert jaxcost.prefill(arch, seq=4) == build_case(arch, {"phase": "prefill", "batch": 1, "seq": 4})
    served = jaxcost.decode(arch, batch=3, past=5, logits="all")
    assert served == build_case(arch, {"phase": "decode", "batch": 3, "past": 5, "logits": "all"})
    assert jaxcost.training(arch, seq=4).workload.batch == 1 == jaxcost.decode(arch, past=4).workload.batch
    work = served.workload
    assert (work.phase, work.new_tokens, work.past_tokens, work.logits) == ("decode", 1, 5, "all")
    assert jaxcost.prefill(arch, seq=4).workload.logits == "final" and train.workload.logits == "all"
    assert (train.state.name, served.state.name) == ("mixed", "bf16_inference")


def test_conventions_and_names_by_default() -> None:
    assert (Convention().flops_per_multiply_add, Convention().attention_pairs) == (2, "rectangular")
    assert (RECTANGULAR.name, LEGAL.name) == ("jaxcost-fma2-rectangular-v1", "jaxcost-fma2-legal-v1")
    assert (RECTANGULAR.attention_pairs, LEGAL.attention_pairs) == ("rectangular", "legal")
    run = Execution()
    assert (run.name, run.mesh, run.zero, run.remat, run.layers, run.sharding) == (
        "",
        (),
        0,
        "none",
        "scan",
        "explicit",
    )
    assert (run.fsdp.group, run.fsdp.reshard, run.fsdp.prefetch, run.donate) == ("matrix", True, 0, True)
    assert (run.pipeline.schedule, run.pipeline.virtual, run.pipeline.layers) == ("gpipe", 1, ())
    assert (run.pipeline.embedding_stage, run.pipeline.head_stage) == (0, -1)
    assert (run.vocabulary_multiple, run.head_multiple, run.gradient_sync) == (1, 1, "every_microbatch")
    assert (Workload.from_data(TRAINING).name, payload_bytes(100, "int4"), payload_bytes(2, "uint32")) == ("", 50, 8)
    bytes_of = {
        "fp64": 8,
        "int64": 8,
        "tf32": 4,
        "int32": 4,
        "fp16": 2,
        "int16": 2,
        "fp8_e5m2": 1,
        "int8": 1,
        "uint8": 1,
    }
    assert {name: payload_bytes(1, name) for name in bytes_of} == bytes_of
