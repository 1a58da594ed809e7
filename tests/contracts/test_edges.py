"""Rules of graphs, options and texts at their edges, each with the path, the value and the words of its refusal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import jaxcost
from jaxcost.contracts.architecture import (
    OPTIONAL_BRANCHES,
    Architecture,
    Attention,
    Dropout,
    Layer,
    LayerGroup,
    Mlp,
    Norm,
    Rotary,
    absences,
)
from jaxcost.contracts.case import OPTION_NAMES, Case, build_case
from jaxcost.contracts.errors import RejectedError
from jaxcost.contracts.execution import MESH_AXES, OFFLOADABLE, REMATS, SAVEABLE_NAMES, Execution, Fsdp, Pipeline
from jaxcost.contracts.record import as_table, parse_file, parse_json, parse_toml, read_text
from jaxcost.contracts.state import OPTIMIZERS, PRECISIONS, StatePolicy, state_policy
from jaxcost.contracts.workload import Workload
from tests.prediction.cases import TOY, architecture, case

Data = dict[str, Any]


def problems(build: Any, *arguments: Any, **options: Any) -> list[tuple[str, object, str]]:
    """Path, value and rule of each problem of a refusal."""
    with pytest.raises(RejectedError) as caught:
        build(*arguments, **options)
    assert all(item.remedy for item in caught.value.problems)
    return [(item.path, item.value, item.rule) for item in caught.value.problems]


# Graphs

NORM: Data = {"kind": "rms", "epsilon": 1e-5, "scale": True, "bias": False}
ATTENTION: Data = {
    "query_heads": 4, "kv_heads": 2, "head_dim": 2, "query_bias": False, "key_bias": False, "value_bias": False,
    "output_bias": False,
}  # fmt: skip
MLP: Data = {"form": "gated", "width": 12, "activation": "silu", "bias": False}
NORMS = ("attention_norm", "mlp_norm", "attention_post_norm", "mlp_post_norm")


@pytest.mark.parametrize(
    ("record", "base", "passes", "fails", "path", "value", "rule"),
    [
        (Norm, NORM, {"epsilon": 1e-30}, {"epsilon": 0.0}, "epsilon", 0.0, "must be positive"),
        (Norm, NORM, {"bias": True}, {"bias": True, "scale": False}, "bias", True, "a bias without a learned scale is"),
        (Norm, NORM, {"scale": False}, {"epsilon": -1.0}, "epsilon", -1.0, "must be positive"),
        (Rotary, {"dimensions": 2}, {"theta": 0.5}, {"theta": 0.0}, "theta", 0.0, "must be positive"),
        (Attention, ATTENTION, {"kv_heads": 1}, {"kv_heads": 3}, "kv_heads", 3, "must divide query_heads (4)"),
        (Attention, ATTENTION, {"kv_heads": 4}, {"kv_heads": 8}, "kv_heads", 8, "must divide query_heads (4)"),
        (
            Attention, {**ATTENTION, "storage": "fused"},
            {"query_bias": True, "key_bias": True, "value_bias": True}, {"query_bias": True, "value_bias": True},
            "storage", "fused", "one fused array has biases for queries, keys and values alike",
        ),
        (Attention, {**ATTENTION, "key_bias": True}, {}, {"storage": "fused"}, "storage", "fused", "one fused array"),
        (Attention, ATTENTION, {"scale": 0.1}, {"scale": 0.0}, "scale", 0.0, "must be positive"),
        (Attention, ATTENTION, {"score_softcap": 0.1}, {"score_softcap": 0.0}, "score_softcap", 0.0, "must be"),
        (
            Attention, {**ATTENTION, "head_dim": 6}, {"rotary": {"theta": 1.0, "dimensions": 6}},
            {"rotary": {"theta": 1.0, "dimensions": 8}}, "rotary.dimensions", 8, "must be even and at most head",
        ),
        (
            Attention, {**ATTENTION, "head_dim": 6}, {"rotary": {"theta": 1.0, "dimensions": 4}},
            {"rotary": {"theta": 1.0, "dimensions": 5}}, "rotary.dimensions", 5, "must be even and at most head",
        ),
        (Mlp, {**MLP, "form": "classic"}, {}, {"storage": "fused"}, "storage", "fused", "a classic MLP has no gate"),
        (Mlp, {**MLP, "storage": "fused"}, {}, {"form": "classic"}, "storage", "fused", "a classic MLP has no gate"),
        (Dropout, {"embedding": 0.0, "attention": 0.0}, {"residual": 0.0}, {"residual": 1.0}, "residual", 1.0, "a "),
        (Dropout, {"embedding": 0.0, "residual": 0.0}, {"attention": 0.5}, {"attention": -1.0}, "attention", -1.0, "a"),
        (Dropout, {"attention": 0.0, "residual": 0.0}, {"embedding": 0.9}, {"embedding": 1.5}, "embedding", 1.5, "a "),
    ],
)  # fmt: skip
def test_parts_of_a_layer(
    record: Any, base: Data, passes: Data, fails: Data, path: str, value: object, rule: str
) -> None:
    assert record.from_data({**base, **passes}).to_data().items() >= passes.items() or "rotary" in passes
    ((where, what, why),) = problems(record.from_data, {**base, **fails})
    assert (where, what) == (path, value) and why.startswith(rule)


@pytest.mark.parametrize(
    ("residual", "required", "allowed"),
    [
        ("pre", "attention_norm mlp_norm", ""),
        ("post", "attention_post_norm mlp_post_norm", ""),
        ("post_branch", "attention_post_norm mlp_post_norm", ""),
        ("both", "attention_norm mlp_norm attention_post_norm mlp_post_norm", ""),
        ("parallel", "attention_norm", "mlp_norm"),
    ],
)
def test_each_residual_form_has_its_norms(residual: str, required: str, allowed: str) -> None:
    base = {"residual": residual, "attention": ATTENTION, "mlp": MLP}
    for name in NORMS:
        there = {norm: NORM for norm in required.split() if norm != name}
        if name in required.split():
            found = problems(Layer.from_data, {**base, **there})
            assert found == [(name, None, f"the residual form {residual} needs this norm")]
        elif name in allowed.split():
            assert len(Layer.from_data({**base, **there, name: NORM}).norms) == len(there) + 1
        else:
            found = problems(Layer.from_data, {**base, **there, name: NORM})
            assert found == [(name, "present", f"the residual form {residual} has no such norm")]
    whole = Layer.from_data({**base, **dict.fromkeys(required.split(), NORM)})
    assert len(whole.norms) == len(required.split())


def test_windows_go_round() -> None:
    layer = architecture(**TOY).groups[0].layer.to_data()
    group = LayerGroup.from_data({"repeat": 5, "layer": layer, "windows": [7, 0, 3]})
    assert [group.window(at) for at in range(5)] == [7, 0, 3, 7, 0]
    assert LayerGroup.from_data({"repeat": 5, "layer": layer}).window(3) == 0
    found = problems(LayerGroup.from_data, {"repeat": 5, "layer": layer, "windows": [0, 0]})
    assert found == [("windows", [0, 0], "full attention everywhere is the empty cycle")]


def graph(**changes: Any) -> Data:
    return {**architecture(**TOY).to_data(), **changes}


def without(*names: str) -> Data:
    return graph(absent=[name for name in graph()["absent"] if name not in names])


def test_a_graph_has_layers_and_one_width() -> None:
    wide = architecture(**{**TOY, "e": 4}).to_data()
    path = "groups.0.layer.attention.decoupled_width"
    assert wide["groups"][0]["layer"]["attention"]["decoupled_width"]
    wide["groups"][0]["layer"]["attention"]["decoupled_width"] = False
    said = "query_heads * head_dim = 16 differs from hidden_size = 8"
    assert problems(Architecture.from_data, wide) == [(path, False, said)]
    narrow = graph()
    narrow["groups"][0]["layer"]["attention"]["decoupled_width"] = True
    said = "declared decoupled although query_heads * head_dim equals hidden_size"
    assert problems(Architecture.from_data, narrow) == [(path, True, said)]
    first, *_ = problems(Architecture.from_data, graph(groups=[]))
    assert first == ("groups", [], "at least one group of layers is needed")


def test_tables_of_a_graph() -> None:
    made = Architecture.from_data({**without("embedding_projection"), "embedding_width": 6})
    assert (made.table_width, Architecture.from_data(graph()).table_width, made.layer_count) == (6, 8, 2)
    assert architecture(split=(2, 3, 1)).layer_count == 6
    found = problems(Architecture.from_data, {**without("embedding_projection"), "embedding_width": 8})
    assert found == [("embedding_width", 8, "equals hidden_size, so there is nothing to project")]
    learned = architecture(**TOY, positions=4).to_data()
    assert Architecture.from_data(graph(sinusoidal_positions=True)).sinusoidal_positions
    found = problems(Architecture.from_data, {**learned, "sinusoidal_positions": True})
    assert found == [("sinusoidal_positions", True, "positions are learned or sinusoidal, not both")]


def test_each_branch_is_present_or_declared_absent() -> None:
    absent = graph()["absent"]
    assert absent == sorted(set(OPTIONAL_BRANCHES) - {"rotary_positions"})
    for name in absent:
        rule = f"the branch {name!r} is neither present nor declared absent"
        left = [other for other in absent if other != name]
        assert problems(Architecture.from_data, graph(absent=left)) == [("absent", left, rule)]
    both = sorted([*absent, "rotary_positions"])
    said = "declared absent although the manifest contains it"
    assert problems(Architecture.from_data, graph(absent=both)) == [("absent", "rotary_positions", said)]
    ((path, value, rule),) = problems(Architecture.from_data, graph(absent=sorted([*absent, "unheard"])))
    assert (path, value) == ("absent", "unheard") and rule.startswith("not an optional branch; the branches are att")
    twice = sorted([*absent, "experts"])
    assert problems(Architecture.from_data, graph(absent=twice)) == [("absent", twice, "an entry appears twice")]
    turned = absent[::-1]
    said = "must be sorted, so that equal graphs have equal digests"
    assert problems(Architecture.from_data, graph(absent=turned)) == [("absent", turned, said)]
    assert absences(["experts", "adapters"]) == tuple(sorted(set(OPTIONAL_BRANCHES) - {"experts", "adapters"}))


def test_the_branches_of_a_graph() -> None:
    base = architecture(**TOY)
    assert base.branches == {"rotary_positions"}
    assert architecture(**TOY, rotary=False).branches == set()
    assert architecture(**TOY, bias=True).branches == {"rotary_positions", "attention_bias", "mlp_bias"}
    assert architecture(**TOY, qkv_bias=True).branches == {"rotary_positions", "attention_bias"}
    assert architecture(**TOY, norm="layer").branches == {"rotary_positions", "norm_bias"}
    assert architecture(**TOY, positions=3).branches == {"rotary_positions", "learned_positions"}
    for name in ("query_bias", "key_bias", "value_bias", "output_bias"):
        assert Attention.from_data({**ATTENTION, name: True}).has_bias
    assert not Attention.from_data(ATTENTION).has_bias
    biased = {**NORM, "kind": "layer", "bias": True}
    data = without("norm_bias")
    assert Architecture.from_data({**data, "final_norm": biased}).branches == {"rotary_positions", "norm_bias"}
    data = without("norm_bias", "embedding_norm")
    normed = Architecture.from_data({**data, "embedding_norm": biased})
    assert normed.branches == {"rotary_positions", "norm_bias", "embedding_norm"}
    for norm, names in ((NORM, {"qk_norm"}), (biased, {"qk_norm", "norm_bias"})):
        data = without(*names)
        data["groups"][0]["layer"]["attention"]["qk_norm"] = {"over": "head", "norm": norm}
        assert Architecture.from_data(data).branches == {"rotary_positions", *names}


# Options of a case


def options_of(made: Case) -> Data:
    return {**made.workload.to_data(), **made.execution.to_data()}


@pytest.mark.parametrize(
    ("options", "field", "value"),
    [
        ({"batch": 8}, "batch", 8),
        ({"accumulate": 2}, "accumulate", 2),
        ({"attention": "blockwise"}, "attention", "blockwise"),
        ({"attention_block": 4}, "attention_block", 4),
        ({"dropout": True}, "dropout", True),
        ({"lengths": [8, 2, 3, 4]}, "lengths", [8, 2, 3, 4]),
        ({"mesh": {"data": 2}}, "mesh", [{"name": "data", "size": 2}]),
        ({"mesh": {"data": 2}, "zero": 2}, "zero", 2),
        ({"remat": "block"}, "remat", "block"),
        ({"remat": "save_only_these_names", "remat_names": ["up"]}, "remat_names", ["up"]),
        ({"layers": "unrolled"}, "layers", "unrolled"),
        ({"sharding": "auto"}, "sharding", "auto"),
        ({"vocabulary_multiple": 5}, "vocabulary_multiple", 5),
        ({"head_multiple": 6}, "head_multiple", 6),
        ({"mesh": {"tensor": 2}, "sequence_parallel": True}, "sequence_parallel", True),
        ({"mesh": {"context": 2}, "context_method": "ring"}, "context_method", "ring"),
        ({"accumulate": 2, "gradient_sync": "last_microbatch"}, "gradient_sync", "last_microbatch"),
        ({"offload": ["gradient"]}, "offload", ["gradient"]),
        (
            {"mesh": {"fsdp": 2}, "fsdp_group": "block", "reshard": False, "prefetch": 3},
            "fsdp", {"group": "block", "reshard": False, "prefetch": 3},
        ),
        (
            {"mesh": {"pipeline": 2}, "pipeline_schedule": "1f1b", "pipeline_layers": [0, 2], "embedding_stage": 1,
             "head_stage": 0},
            "pipeline",
            {"schedule": "1f1b", "layers": [0, 2], "virtual": 1, "embedding_stage": 1, "head_stage": 0},
        ),
        (
            {"mesh": {"pipeline": 2}, "pipeline_schedule": "interleaved", "pipeline_virtual": 2, "accumulate": 2,
             "pipeline_layers": [1, 0, 1, 0]},
            "pipeline",
            {"schedule": "interleaved", "layers": [1, 0, 1, 0], "virtual": 2, "embedding_stage": 0, "head_stage": -1},
        ),
    ],
)  # fmt: skip
def test_an_option_sets_its_field_and_no_other(options: Data, field: str, value: object) -> None:
    base = {"phase": "training", "batch": 4, "seq": 8}
    made, plain = options_of(build_case(architecture(**TOY), {**base, **options})), options_of(
        build_case(architecture(**TOY), base)
    )  # fmt: skip
    assert made[field] == value != plain[field]
    others = {"mesh", "zero", "remat", "accumulate"} & set(options) | {field}
    assert {name: item for name, item in made.items() if name not in others} == {
        name: item for name, item in plain.items() if name not in others
    }
    assert set(options) <= set(OPTION_NAMES)


def test_what_is_not_given_takes_its_default() -> None:
    arch = architecture(**TOY)
    for phase, logits, state in (
        ("training", "all", "mixed"), ("prefill", "final", "bf16_inference"), ("decode", "final", "bf16_inference"),
    ):  # fmt: skip
        given = {"phase": phase, "past": 3} if phase == "decode" else {"phase": phase, "seq": 8}
        made = build_case(arch, given)
        work = made.workload
        assert (work.phase, work.batch, work.logits, made.state.name) == (phase, 1, logits, state)
        assert (work.new_tokens, work.past_tokens) == ((1, 3) if phase == "decode" else (8, 0))
        assert made.execution == Execution() and made.convention.attention_pairs == "rectangular"
        assert made.state.optimizer == ("adam" if phase == "training" else "none") and made.state.frozen == ()
        assert (made.liveness, made.expected) == (None, None)
    assert jaxcost.decode(arch, past=3) == build_case(arch, {"phase": "decode", "past": 3})
    assert jaxcost.training(arch, seq=2).workload.batch == jaxcost.prefill(arch, seq=2).workload.batch == 1
    made = build_case(
        arch, {"phase": "decode", "past": 3, "logits": 1, "pairs": "legal", "precision": "fp32_inference"}
    )
    assert (made.workload.logits, made.convention.attention_pairs, made.state.name) == (1, "legal", "fp32_inference")
    event = {"name": "x", "bytes": 1, "birth": 0.0, "death": 1.0}
    made = build_case(arch, {"phase": "prefill", "seq": 8}, {"objects": [event]}, {"parameters.unique": 1256})
    assert made.liveness is not None and made.liveness.objects[0].bytes == 1
    assert made.expected == {"parameters.unique": 1256}
    assert made.digest == build_case(arch, {"phase": "prefill", "seq": 8}, {"objects": [event]}).digest


def built(phase: str = "training", sizes: Data = TOY, **options: Any) -> list[tuple[str, object, str]]:
    given = {"phase": phase, "batch": 8, **({} if phase == "decode" else {"seq": 8}), **options}
    return problems(build_case, architecture(**sizes), given)


def test_a_case_says_what_it_lacks() -> None:
    arch = architecture(**TOY)
    assert problems(build_case, arch, {"phase": "training"}) == [
        ("seq", None, "phase training needs the number of new tokens")
    ]
    assert problems(build_case, arch, {"phase": "prefill", "batch": 2}) == [
        ("seq", None, "phase prefill needs the number of new tokens")
    ]
    assert problems(build_case, arch, {}) == [
        ("seq", None, "every phase but decode needs the number of new tokens"),
        ("phase", None, "a case needs a phase"),
    ]
    wrong = {"objects": [{"name": "x", "bytes": 1, "birth": 1.0, "death": 0.0}]}
    ((path, value, _),) = problems(build_case, arch, {"phase": "prefill", "seq": 8}, wrong)
    assert (path, value) == ("liveness.objects.0.death", 0.0)
    assert built(unheard=3) == [("unheard", 3, "not an option of a case")]
    assert built("prefill", optimizer="lion") == [("optimizer", "lion", "phase prefill updates nothing")]
    assert built(mesh="data=2") == [("execution.mesh", "data=2", "must be a table of axes and their sizes")]
    ((path, value, _),) = built("prefill", past=3)
    assert (path, value) == ("workload.past_tokens", 3)
    assert build_case(arch, {"phase": "prefill", "seq": 8, "past": 0}).workload.past_tokens == 0


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"mesh": {"data": 2, "fsdp": 8}},
         ("workload.batch", 8, "data x fsdp = 16 must divide the sequences of one microbatch (8)")),
        ({"mesh": {"fsdp": 3}, "batch": 9},
         ("execution.mesh.fsdp", 3, "fsdp shards matrices along the hidden axis and must divide hidden_size (8)")),
        ({"mesh": {"expert": 2}}, ("execution.mesh.expert", 2, "no layer of this architecture has experts")),
        ({"mesh": {"context": 3}}, ("execution.mesh.context", 3, "context must divide the rows of a sequence (8)")),
        ({"mesh": {"context": 2}, "phase": "decode", "past": 3},
         ("execution.mesh.context", 2, "decode has one new row, which a context axis cannot split")),
        ({"mesh": {"context": 2, "tensor": 4}, "seq": 4, "sequence_parallel": True},
         ("execution.sequence_parallel", True, "sequence parallelism splits 2 rows over tensor (4)")),
        ({"mesh": {"tensor": 2}, "lengths": [8] * 8, "sequence_parallel": True},
         ("workload.lengths", [8] * 4, "ragged rows are not split over devices")),
        ({"sizes": {**TOY, "positions": 5}},
         ("workload.new_tokens", 8, "8 visible tokens need 8 rows of learned positions; there are 5")),
        ({"mesh": {"tensor": 2}, "sizes": {**TOY, "f": 13}},
         ("execution.mesh.tensor", 2, "tensor must divide mlp.width (13) of group 0")),
        ({"mesh": {"tensor": 2}, "sizes": {**TOY, "h": 3, "k": 1, "d": 6}},
         ("execution.mesh.tensor", 2, "tensor must divide query_heads (3) of group 0")),
        ({"mesh": {"tensor": 2}, "sizes": {**TOY, "h": 6, "k": 3, "d": 12}},
         ("execution.mesh.tensor", 2, "tensor must divide kv_heads (3) of group 0, or be a multiple of it")),
        ({"mesh": {"tensor": 2}, "sizes": {**TOY, "V": 17}},
         ("execution.mesh.tensor", 2, "tensor must divide the vocabulary rows (17)")),
        ({"head_multiple": 5},
         ("execution.head_multiple", 5, "5 padded query heads are no multiple of kv_heads (2) of group 0")),
        ({"gradient_sync": "last_microbatch"},
         ("execution.gradient_sync", "last_microbatch",
          "of one microbatch the first is the last: it would change nothing but the digest")),
        ({"phase": "prefill", "remat": "block"},
         ("execution.remat", "block", "it acts in training only: in prefill nothing is recomputed")),
        ({"phase": "decode", "past": 1, "gradient_sync": "last_microbatch"},
         ("execution.gradient_sync", "last_microbatch", "it acts in training only: in decode there are no gradients")),
        ({"phase": "prefill", "mesh": {"data": 2}, "zero": 1},
         ("execution.zero", 1, "it acts in training only: in prefill there is no optimizer state and no gradient to "
          "shard")),
        ({"phase": "prefill", "mesh": {"fsdp": 2}, "reshard": False},
         ("execution.fsdp.reshard", False,
          "it acts in training only: in prefill no backward pass uses a weight again")),
        ({"phase": "prefill", "offload": ["optimizer"]},
         ("execution.offload", "optimizer", "the state of prefill, bf16_inference and none has no such object")),
        ({"offload": ["master"]}, ("execution.offload", "master", "the state of training, mixed and adam has no such "
                                   "object")),
        ({"mesh": {"pipeline": 4}, "accumulate": 4},
         ("execution.pipeline.layers", [], "4 stages do not divide 2 layers")),
        ({"mesh": {"pipeline": 2}, "pipeline_layers": [1, 2]},
         ("execution.pipeline.layers", [1, 2], "2 stages hold 2 layers; 2 entries hold 3")),
        ({"mesh": {"pipeline": 2}, "pipeline_layers": [1, 1, 0]},
         ("execution.pipeline.layers", [1, 1, 0], "2 stages hold 2 layers; 3 entries hold 2")),
        ({"mesh": {"pipeline": 2}, "head_stage": -3}, ("execution.pipeline.head_stage", -3, "there are 2 stages")),
        ({"mesh": {"pipeline": 2}, "embedding_stage": 2},
         ("execution.pipeline.embedding_stage", 2, "there are 2 stages")),
        ({"phase": "prefill", "mesh": {"pipeline": 2}},
         ("execution.mesh.pipeline", 2, "stages are scheduled in training only")),
        ({"mesh": {"pipeline": 2}, "pipeline_schedule": "interleaved", "pipeline_virtual": 2, "accumulate": 1,
          "pipeline_layers": [1, 0, 1, 0]},
         ("workload.accumulate", 1, "the interleaved schedule runs microbatches in groups of pipeline (2)")),
        ({"frozen": ["head"], "sizes": {**TOY, "tied": True}},
         ("state.frozen", "head", "no component of this architecture")),
        ({"frozen": ["embed", "group0", "final_norm", "head"]},
         ("state.frozen", ["embed", "final_norm", "group0", "head"], "nothing is left to train")),
        ({"frozen": ["attn"]}, ("state.frozen", "attn", "no component of this architecture")),
    ],
)  # fmt: skip
def test_a_case_is_refused_for_one_reason(options: Data, expected: tuple[str, object, str]) -> None:
    assert built(**options) == [expected]


@pytest.mark.parametrize("name", ["scores", "probabilities"])
def test_blockwise_attention_makes_no_pairs_to_save(name: str) -> None:
    named = {"remat": "save_only_these_names", "remat_names": [name]}
    assert case(TOY, "training", seq=8, **named).execution.remat_names == (name,)
    found = built(attention="blockwise", **named)
    rule = "no layer of this architecture, with attention blockwise, makes it"
    assert found == [("execution.remat_names", name, rule)]


def test_fused_storage_is_not_split_over_tensor_ranks() -> None:
    data = architecture(**TOY).to_data()
    for part in ("attention", "mlp"):
        layer = {**data["groups"][0]["layer"]}
        layer[part] = {**layer[part], "storage": "fused"}
        arch = Architecture.from_data({**data, "groups": [{**data["groups"][0], "layer": layer}]})
        options = {"phase": "training", "batch": 4, "seq": 8}
        assert build_case(arch, {**options, "mesh": {"data": 2}}).execution.degree("data") == 2
        found = problems(build_case, arch, {**options, "mesh": {"tensor": 2}})
        rule = "the cut axis of fused storage would be split over ranks, which is a layout of its own"
        assert found == [(f"architecture.groups.0.layer.{part}.storage", "fused", rule)]


def test_components_that_can_be_frozen() -> None:
    made = case(TOY, "training", seq=8, frozen=["group0/mlp", "embed"])
    assert made.frozen_names == {
        "embed", "final_norm", "head", "group0", "group0/attn", "group0/mlp", "group0/attn_norm", "group0/mlp_norm",
    }  # fmt: skip
    for scope, frozen in (
        ("embed", True), ("embed/tokens", True), ("group0/mlp", True), ("group0/mlp/up", True), ("group0", False),
        ("group0/mlp_norm", False), ("head", False), ("group0/attn", False),
    ):  # fmt: skip
        assert made.is_frozen(scope) is frozen
    tied = case({**TOY, "tied": True}, "training", seq=8)
    assert "head" not in tied.frozen_names
    projected = Architecture.from_data({**without("embedding_projection"), "embedding_width": 6})
    both = build_case(projected, {"phase": "training", "seq": 8, "frozen": ["embed/project_in", "head/project_out"]})
    assert both.frozen_names > {"embed/project_in", "head/project_out"}
    assert case(TOY, "training", seq=8, frozen=["head", "embed", "head"]) == case(
        TOY, "training", seq=8, frozen=("embed", "head")
    )
    # The projections of a table lie below it and are frozen with it.
    found = problems(
        build_case, projected, {"phase": "training", "seq": 8, "frozen": ["embed", "final_norm", "group0", "head"]}
    )
    assert found == [("state.frozen", ["embed", "final_norm", "group0", "head"], "nothing is left to train")]
    assert build_case(architecture(**TOY), {"phase": "prefill", "seq": 8, "frozen": sorted(tied.frozen_names)})
    for wrong in (["embed", 3], 3):  # what is no list of names is refused, not sorted
        assert problems(build_case, architecture(**TOY), {"phase": "training", "seq": 8, "frozen": wrong})


def test_padding_and_copies() -> None:
    made = case({**TOY, "V": 17}, "training", seq=8, batch=4, vocabulary_multiple=8, head_multiple=6)
    assert (made.vocabulary_rows, made.query_heads(0)) == (24, 6)
    exact = case(TOY, "training", seq=8, batch=4, vocabulary_multiple=8, head_multiple=4)
    assert (exact.vocabulary_rows, exact.query_heads(0)) == (16, 4)
    for tensor, copies in ((1, 1), (2, 1), (4, 2)):
        held = case(TOY, "training", seq=8, mesh={"tensor": tensor}).kv_replicas(0)
        assert held == copies and isinstance(held, int)


def test_an_optimizer_belongs_to_training() -> None:
    train, serve = case(TOY, "training", seq=8), case(TOY, "prefill", seq=8)
    assert problems(train.replaced, state=serve.state) == [
        ("state.optimizer", "none", "phase training and optimizer none do not go together")
    ]
    assert problems(serve.replaced, state=train.state) == [
        ("state.optimizer", "adam", "phase prefill and optimizer adam do not go together")
    ]


def test_positions_are_read_behind_their_offset() -> None:
    data = architecture(**TOY, positions=10).to_data()
    data["learned_positions"]["offset"] = 2
    arch = Architecture.from_data(data)
    assert build_case(arch, {"phase": "prefill", "seq": 8}).workload.visible_tokens == 8
    rule = "9 visible tokens need 11 rows of learned positions; there are 10"
    assert problems(build_case, arch, {"phase": "prefill", "seq": 9}) == [("workload.new_tokens", 9, rule)]
    assert build_case(arch, {"phase": "decode", "past": 7}).workload.visible_tokens == 8
    assert problems(build_case, arch, {"phase": "decode", "past": 8}) == [("workload.new_tokens", 1, rule)]


def test_only_the_state_that_is_kept_rests_on_the_host() -> None:
    made = case(TOY, "training", seq=8, precision="a16_six_object", offload=["parameter", "master", "gradient"])
    objects = tuple(item for item in made.state.objects if "moment" not in item.role)
    assert {item.role for item in objects} == {"parameter", "master", "gradient", "gradient_copy"}
    bare = made.replaced(state=made.state.replaced(objects=objects))
    assert bare.execution.offload == made.execution.offload
    run = made.execution.replaced(offload=("optimizer",))
    assert made.replaced(execution=run).execution.offload == ("optimizer",)
    rule = "the state of training, a16_six_object and adam has no such object"
    assert problems(bare.replaced, execution=run) == [("execution.offload", "optimizer", rule)]


# Tables of names


def test_tables_of_names() -> None:
    assert MESH_AXES == ("pipeline", "data", "fsdp", "context", "tensor", "expert")
    assert OFFLOADABLE == ("parameter", "master", "gradient", "optimizer")
    for axis in MESH_AXES:
        assert Execution.from_data({"mesh": [{"name": axis, "size": 2}]}).degree(axis) == 2
    for name in OFFLOADABLE:
        assert Execution.from_data({"offload": [name]}).offload == (name,)
    for name in SAVEABLE_NAMES:
        by_name = {"remat": "save_and_offload_only_these_names", "remat_names": [name]}
        assert Execution.from_data(by_name).remat_names == (name,)
    for name in REMATS[:-2]:
        assert Execution.from_data({"remat": name}).remat == name
    for name in OPTIMIZERS:
        assert state_policy("mixed", name).optimizer == name
    for name in PRECISIONS:
        assert state_policy(name, training=not name.endswith("_inference")).name == name
    for wrong in (
        lambda: state_policy("fp33"), lambda: state_policy("mixed", "none"), lambda: state_policy("bf16_inference"),
    ):  # fmt: skip
        assert len(problems(wrong)) == 1


def test_groups_gather_ahead_where_there_is_another() -> None:
    for group in ("block", "matrix"):
        assert Fsdp.from_data({"group": group, "prefetch": 1}).prefetch == 1
    assert Fsdp.from_data({"group": "root"}).prefetch == 0
    ((path, value, _),) = problems(Fsdp.from_data, {"group": "root", "prefetch": 2})
    assert (path, value) == ("prefetch", 2)


@pytest.mark.parametrize(
    ("schedule", "virtual", "goes"),
    [("gpipe", 1, True), ("1f1b", 1, True), ("interleaved", 2, True), ("interleaved", 3, True),
     ("interleaved", 1, False), ("gpipe", 2, False), ("1f1b", 2, False)],
)  # fmt: skip
def test_virtual_stages_interleave(schedule: str, virtual: int, goes: bool) -> None:
    data = {"schedule": schedule, "virtual": virtual}
    if goes:
        assert Pipeline.from_data(data).virtual == virtual
        return
    rule = f"schedule {schedule} and {virtual} virtual stages do not go together"
    assert problems(Pipeline.from_data, data) == [("virtual", virtual, rule)]


def test_a_policy_keeps_the_loaded_parameters() -> None:
    data = state_policy("bf16_master_adam").to_data()
    weights, rest = data["objects"][0], data["objects"][1:]
    rule = "no object holds the loaded parameters"
    for objects in (rest, [{**weights, "basis": "trainable"}, *rest], [{**weights, "role": "master"}, *rest[1:]]):
        assert problems(StatePolicy.from_data, {**data, "objects": objects}) == [
            ("objects", [item["name"] for item in objects], rule)
        ]
    found = problems(StatePolicy.from_data, {**data, "objects": [{**weights, "dtype": "fp32"}, *rest]})
    assert found == [("parameter_dtype", "bf16", "the parameter object has dtype fp32")]
    twice = [weights, *rest, rest[0]]
    found = problems(StatePolicy.from_data, {**data, "objects": twice})
    assert found == [("objects", "master_parameters", "two state objects share a name")]
    policy = state_policy("bf16_master_adam")
    assert [getattr(policy.object(role), "name", None) for role in ("master", "second_moment", "step")] == [
        "master_parameters", "v", None,
    ]  # fmt: skip


# Text


def test_a_refusal_of_text_says_where() -> None:
    assert problems(parse_json, '{"a": {"b": 1, "b": 2}}', "here") == [
        ("here.b", 2, "the key appears twice in one object")
    ]
    for token in ("NaN", "Infinity", "-Infinity"):
        assert problems(parse_json, f"[{token}]", "here") == [
            ("here", token, "NaN and infinities are not JSON numbers")
        ]
    ((path, value, rule),) = problems(parse_json, "{", "here")
    assert (path, value) == ("here", None) and rule.startswith("not JSON (")
    ((path, value, rule),) = problems(parse_toml, "a = ", "here")
    assert (path, value) == ("here", None) and rule.startswith("not TOML (")
    for parse in (parse_json, parse_toml):
        assert problems(parse, b"ab\xff", "here") == [("here", "byte 2", "not UTF-8 text")]
        assert problems(parse, b"\xff") == [("input", "byte 0", "not UTF-8 text")]
    assert problems(parse_json, "[" * 70 + "]" * 70) == [("input", "nesting", "nested too deeply")]
    tables = '{"a":' * 70 + "1" + "}" * 70
    assert problems(parse_json, tables) == [("input", "nesting", "nested too deeply")]
    assert as_table({"a": 1}, "here") == {"a": 1}
    for data, kind in (([], "list"), (3, "int"), (None, "NoneType")):
        assert problems(as_table, data, "here") == [("here", kind, "an object (table) is expected at the top")]


def test_a_refusal_of_a_file_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert problems(read_text, tmp_path) == [(str(tmp_path), "directory", "a file is expected")]
    gone = tmp_path / "gone.json"
    assert problems(read_text, gone) == [(str(gone), "FileNotFoundError", "cannot be read (No such file or directory)")]
    assert problems(read_text, Path("/dev/null")) == [("/dev/null", "special file", "a regular file is expected")]
    named = tmp_path / "a.yaml"
    named.write_text("a")
    assert problems(parse_file, named) == [(str(named), ".yaml", "the suffix says neither TOML nor JSON")]
    for name in ("bad.json", "bad.toml"):
        (tmp_path / name).write_text("{")
        assert problems(parse_file, tmp_path / name)[0][0] == name
    monkeypatch.setattr("jaxcost.contracts.record.MAXIMUM_TEXT_BYTES", 1)
    assert read_text(named) == b"a"
    named.write_text("ab")
    assert problems(read_text, named) == [(str(named), 2, "larger than 1 bytes")]


def test_a_refusal_of_a_field_says_how_to_mend_it() -> None:
    base: Data = {"phase": "training", "batch": 4, "new_tokens": 8}
    for change, path, value, remedy in (
        ({"batch": "4"}, "batch", "4", "write a whole number without a decimal point, quotes or true/false"),
        ({"batch": 4.5}, "batch", 4.5, "write a whole number without a decimal point"),
        ({"batch": True}, "batch", True, "write a whole number without a decimal point, quotes or true/false"),
        ({"dropout": "no"}, "dropout", "no", "write true or false"),
        ({"name": 3}, "name", 3, "write text in quotes"),
        ({"phase": "sleep"}, "phase", "sleep", "use one of the allowed values"),
        ({"unheard": 3}, "unheard", 3, "remove the key or correct its spelling"),
        ({"batch": 0}, "batch", 0, "give a value that satisfies the rule"),
    ):
        with pytest.raises(RejectedError) as caught:
            Workload.from_data({**base, **change}, "workload")
        (found,) = caught.value.problems
        assert (found.path, found.value) == (f"workload.{path}", value)
        assert found.remedy.startswith(remedy) and found.rule[0].islower()
    with pytest.raises(RejectedError) as caught:
        Workload.from_data({"phase": "training", "batch": 4})
    (found,) = caught.value.problems
    assert (found.path, found.value) == ("new_tokens", None)
    assert found.remedy == "add the key; an absent part is declared, not left out"
    ((path, value, rule),) = problems(Norm.from_data, {**NORM, "epsilon": "x"}, "norm")
    assert (path, value) == ("norm.epsilon", "x")
    ((path, value, rule),) = problems(Workload.from_data, {"phase": object()}, "work")
    assert (path, value) == ("work", "dict") and rule.startswith("not plain JSON data (")
    assert problems(Workload.from_data, [], "work")[0][0] == "work"
