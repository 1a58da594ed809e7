"""The generators: legal by construction, wide enough to meet every feature; damage never escapes as a fault."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxcost.catalog import load_case_file
from jaxcost.catalog.manifest import manifest_from_data
from jaxcost.catalog.toml_text import manifest_toml
from jaxcost.contracts.architecture import OPTIONAL_BRANCHES, RESIDUAL_NORMS, Architecture, Attention, Norm
from jaxcost.contracts.case import Case, build_case
from jaxcost.contracts.errors import RejectedError
from jaxcost.contracts.execution import Execution
from jaxcost.contracts.observation import Observation
from jaxcost.contracts.record import parse_json, parse_toml
from jaxcost.contracts.state import StatePolicy
from jaxcost.contracts.workload import Workload
from jaxcost.verify.failures.common import bundle, counter
from jaxcost.verify.failures.subjects import biased, prefill, toy, train
from jaxcost.verify.fuzz import case_file, draw_cases
from jaxcost.verify.strategies import (
    architectures,
    cases,
    executions,
    malformed,
    malformed_text,
    options_of,
    state_policies,
    workloads,
)


@given(cases())
def test_a_drawn_case_can_be_written_as_options(case: Case) -> None:
    assert build_case(case.architecture, options_of(case)).digest == case.digest


@given(architectures(), workloads(), state_policies(), executions())
def test_the_parts_can_be_drawn_alone(a: Architecture, w: Workload, s: StatePolicy, e: Execution) -> None:
    assert a.layer_count > 0
    assert w.visible_tokens >= w.new_tokens
    assert s.object("parameter") is not None
    assert e.device_count > 0


@given(cases(compilable=True))
def test_compilable_cases_are_tiny_and_on_one_device(case: Case) -> None:
    assert case.execution.device_count == 1
    assert case.workload.lengths is None
    assert case.architecture.hidden_size <= 12
    for group in case.architecture.groups:
        assert min(group.layer.attention.head_dim, group.layer.mlp.width, case.workload.visible_tokens) > 1


def norms(case: Case) -> list[Norm]:
    arch = case.architecture
    found = [*(n for g in arch.groups for n in g.layer.norms), arch.final_norm, arch.embedding_norm]
    return [norm for norm in found if norm is not None]


def attentions(case: Case) -> list[Attention]:
    return [group.layer.attention for group in case.architecture.groups]


FEATURES: dict[str, Callable[[Case], Any]] = {
    "tied": lambda c: c.architecture.tied,
    "untied": lambda c: not c.architecture.tied,
    "several groups": lambda c: len(c.architecture.groups) > 1,
    "learned positions": lambda c: c.architecture.learned_positions,
    "decoupled width": lambda c: any(g.layer.attention.decoupled_width for g in c.architecture.groups),
    "MQA": lambda c: any(
        g.layer.attention.kv_heads == 1 < g.layer.attention.query_heads for g in c.architecture.groups
    ),
    "GQA": lambda c: any(1 < g.layer.attention.kv_heads < g.layer.attention.query_heads for g in c.architecture.groups),
    "partial rotary": lambda c: any(
        g.layer.attention.rotary and g.layer.attention.rotary.dimensions < g.layer.attention.head_dim
        for g in c.architecture.groups
    ),
    "no rotary": lambda c: any(g.layer.attention.rotary is None for g in c.architecture.groups),
    "classic": lambda c: any(g.layer.mlp.form == "classic" for g in c.architecture.groups),
    "output bias alone": lambda c: any(
        g.layer.attention.output_bias and not g.layer.attention.query_bias for g in c.architecture.groups
    ),
    "no final norm": lambda c: c.architecture.final_norm is None,
    "norm without scale": lambda c: any(not n.scale for n in norms(c)),
    "norm of one plus scale": lambda c: any(n.unit_offset for n in norms(c)),
    "layer norm": lambda c: any(n.kind == "layer" for n in norms(c)),
    **{
        form: (lambda c, form=form: any(g.layer.residual == form for g in c.architecture.groups))
        for form in RESIDUAL_NORMS
    },
    "parallel with one norm": lambda c: any(
        g.layer.residual == "parallel" and g.layer.mlp_norm is None for g in c.architecture.groups
    ),
    "several residual forms": lambda c: len({g.layer.residual for g in c.architecture.groups}) > 1,
    "norms over heads": lambda c: any(a.qk_norm and a.qk_norm.over == "head" for a in attentions(c)),
    "norms over the width": lambda c: any(a.qk_norm and a.qk_norm.over == "width" for a in attentions(c)),
    "alibi": lambda c: any(a.alibi and a.rotary is None for a in attentions(c)),
    "alibi and rotary": lambda c: any(a.alibi and a.rotary for a in attentions(c)),
    "interleaved": lambda c: any(a.rotary and a.rotary.interleaved for a in attentions(c)),
    "score scale": lambda c: any(a.scale for a in attentions(c)),
    "score soft cap": lambda c: any(a.score_softcap for a in attentions(c)),
    "logit soft cap": lambda c: c.architecture.logit_softcap,
    "fused projections": lambda c: any(a.storage == "fused" for a in attentions(c)),
    "fused biases": lambda c: any(a.storage == "fused" and a.query_bias for a in attentions(c)),
    "fused gate and up": lambda c: any(g.layer.mlp.storage == "fused" for g in c.architecture.groups),
    "a window": lambda c: any(g.windows for g in c.architecture.groups),
    "alternating windows": lambda c: any(len(set(g.windows[: g.repeat])) > 1 for g in c.architecture.groups),
    "full attention in a cycle": lambda c: any(0 in g.windows for g in c.architecture.groups),
    "positions with offset": lambda c: c.architecture.learned_positions and c.architecture.learned_positions.offset,
    "sinusoidal positions": lambda c: c.architecture.sinusoidal_positions,
    "narrow table, tied": lambda c: c.architecture.embedding_width and c.architecture.tied,
    "narrow table, untied": lambda c: c.architecture.embedding_width and not c.architecture.tied,
    "embedding norm": lambda c: c.architecture.embedding_norm,
    "embedding scale": lambda c: c.architecture.embedding_scale,
    "dropout": lambda c: c.workload.dropout and c.architecture.dropout.attention,
    "frozen": lambda c: c.state.frozen,
    "padding": lambda c: c.vocabulary_rows > c.architecture.vocabulary_size,
    "accumulation": lambda c: c.workload.accumulate > 1,
    "blockwise": lambda c: c.workload.attention == "blockwise",
    "scan": lambda c: c.execution.layers == "scan",
    "unrolled": lambda c: c.execution.layers == "unrolled",
    "recomputation": lambda c: c.execution.remat == "block",
    "adafactor": lambda c: c.state.optimizer == "adafactor",
}


def test_draws_meet_every_feature() -> None:
    drawn = draw_cases(100, 5)
    missing = [name for name, has in FEATURES.items() if not any(map(has, drawn))]
    assert not missing
    branches = set().union(*(case.architecture.branches for case in drawn))
    assert branches == set(OPTIONAL_BRANCHES) - {"experts", "adapters", "projectors", "extra_trainable"}


def test_draws_follow_from_the_seed_and_the_index_alone() -> None:
    first = [case.digest for case in draw_cases(12, 7)]
    assert first == [case.digest for case in draw_cases(15, 7)][:12]
    assert first != [case.digest for case in draw_cases(12, 8)]
    assert len(set(first)) == 12


def accepts(build: Callable[[Any], object], data: Any) -> bool:
    """Whether data is accepted; anything but acceptance and RejectedError with a remedy is a failure."""
    try:
        build(data)
    except RejectedError as error:
        assert error.problems
        assert all(problem.rule and problem.remedy for problem in error.problems)
        json.dumps([problem.to_dict() for problem in error.problems], allow_nan=False)
        return False
    return True


INPUTS: dict[str, tuple[Callable[[Any], object], dict[str, Any]]] = {
    "manifest": (lambda data: manifest_from_data(data, "m.toml", None, "manifest"), biased().to_data()),
    "case": (Case.from_data, train(frozen=["embed"], mesh={"fsdp": 2}).to_data()),
    "options": (lambda data: build_case(toy(), data), dict(options_of(train()))),
    "bundle": (
        Observation.from_data,
        bundle(prefill(), counters=[counter("flops.forward", 1, "FLOPs", "all", (1, "one"))], tensors=True).model_dump(
            mode="json", by_alias=True
        ),
    ),
}


@pytest.mark.parametrize("name", INPUTS)
def test_the_undamaged_input_is_accepted(name: str) -> None:
    build, data = INPUTS[name]
    assert accepts(build, data)


@pytest.mark.parametrize("name", INPUTS)
def test_damaged_data_loads_or_is_rejected(name: str) -> None:
    build, data = INPUTS[name]
    refused = []

    @given(malformed(data))
    @settings(max_examples=150)
    def check(damaged: Any) -> None:
        refused.append(not accepts(build, damaged))

    check()
    # Damage that never hurts would show nothing.
    assert sum(refused) > len(refused) / 3


@pytest.mark.parametrize("parse", [parse_toml, parse_json])
def test_damaged_text_loads_or_is_rejected(parse: Callable[[bytes], Any]) -> None:
    text = manifest_toml(biased()) if parse is parse_toml else json.dumps(biased().to_data(), indent=1)
    build = lambda raw: manifest_from_data(parse(raw), "m", None, "manifest")  # noqa: E731
    assert accepts(build, text.encode())

    @given(malformed_text(text))
    @settings(max_examples=150)
    def check(raw: bytes) -> None:
        accepts(build, raw)

    check()


@given(st.data())
@settings(max_examples=10)
def test_a_case_file_gives_the_case_again(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    case = data.draw(cases())
    path = tmp_path_factory.mktemp("case") / "case.json"
    path.write_text(json.dumps(case_file(case)))
    read = load_case_file(path)
    assert read.manifest is not None
    assert build_case(read.manifest.architecture, read.options).digest == case.digest


def test_a_case_file_is_found_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "case.json"
    path.write_text("{")
    assert not accepts(load_case_file, path)
