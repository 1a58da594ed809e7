"""One declared field, one new prediction: the published surface, refusals, isolation, vectors, a random property."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import jaxcost
from jaxcost.contracts.case import OPTION_NAMES, Case, build_case
from jaxcost.contracts.errors import RejectedError
from jaxcost.contracts.liveness import Liveness
from jaxcost.planning.sensitivity import scenario as scenarios
from jaxcost.planning.sensitivity import vary
from jaxcost.planning.sensitivity.fields import ALIASES, NAMES, described, field, leaves, paths
from jaxcost.planning.sensitivity.run import Result, Sensitivity
from jaxcost.planning.sensitivity.scenario import Base, Change, changed, parse_changes
from jaxcost.planning.sensitivity.totals import IDEAL, totals
from jaxcost.prediction.ledgers import predict
from jaxcost.verify.failures.subjects import EVENTS, decode, prefill, toy, train, with_attention
from jaxcost.verify.strategies import altered, cases

PUBLISHED = json.loads((Path(__file__).parents[1] / "data" / "sensitivity.json").read_text(encoding="utf-8"))
# the published patch: (the field as --set takes it, the leaves that move)
PATCHES = {
    "Hkv 8->32": ("kv_heads=32", 1),
    "Hkv 8->1": ("kv_heads=1", 1),
    "untied->tied": ("tied=yes", 1),
    "parameter dtype 2->4 B": ("parameter_dtype=fp32", 2),
    "batch 1->8": ("batch=8", 1),
    "visible K/V 4096->8192": ("visible=8192", 1),
    "final->all-row logits": ("logits=all", 1),
    "K/V dtype 2->1 B": ("kv_dtype=fp8_e4m3", 1),
    "replicated -> 8-way parameter shard": ("mesh=tensor=8", 1),
}
PATHS = {
    "unique_parameters": "parameters.unique",
    "parameter_bytes": "parameters.bytes",
    "forward_flops": "flops.forward",
    "kv_bytes": "kv_cache.bytes",
    "materialised_traffic": "traffic.attention_bytes",
}


def running(**options: Any) -> Case:
    return build_case(jaxcost.load("running"), {"phase": "prefill", "seq": 4096, **options})


def rounded(ratio: Fraction | None) -> float:
    assert ratio is not None
    return round(float(ratio), 3)


def only(case: Case, *sets: object, **options: Any) -> Result:
    [found] = vary(case, sets, **options).cases
    return found


def refused(case: Case, *sets: object, vectors: Any = (), **options: Any) -> list[Any]:
    with pytest.raises(RejectedError) as caught:
        vary(case, sets, vectors, **options)
    for problem in caught.value.problems:
        assert problem.path and problem.rule and problem.remedy
    return list(caught.value.problems)


# -- the published surface --------------------------------------------------------------------------------------------


def test_the_base_is_the_published_one() -> None:
    found = totals(predict(running()))
    assert {name: found[path] for name, path in PATHS.items()} == PUBLISHED["base"]


@pytest.mark.parametrize("row", PUBLISHED["cases"], ids=[row["patch"] for row in PUBLISHED["cases"]])
def test_each_published_case_is_exact(row: Mapping[str, Any]) -> None:
    text, moved = PATCHES[row["patch"]]
    found = only(running(), text)
    assert len(found.scenario.moved) == moved and not found.is_vector
    for (name, path), ratio in zip(PATHS.items(), row["ratios"], strict=True):
        delta = found.delta(path)
        assert delta.value == row.get(name, PUBLISHED["base"][name]), path
        assert rounded(delta.ratio) == ratio
        assert delta.invariant == (delta.value == PUBLISHED["base"][name])
    if "rank_local_ratio" in row:
        own = found.delta(IDEAL)
        assert own.ratio == Fraction(row["rank_local_ratio"]) and own.value * 8 == own.base
        assert [f"{size / 2**30:.2f}" for size in (own.base, own.value)] == ["14.96", "1.87"]
        held = found.delta("ownership.by_role.parameter")  # what a device holds: norm scales are whole
        assert own.value < held.value and rounded(held.ratio) == row["rank_local_ratio"]


def test_the_published_differences_are_exact() -> None:
    heads, logits = vary(running(), ["kv_heads=32", "logits=all"]).cases
    found = [heads.delta("parameters.unique").difference, logits.delta("flops.forward").difference]
    assert found == [row["value"] for row in PUBLISHED["differences"]]


def test_the_default_surface_holds_every_published_case() -> None:
    found = vary(running())
    assert found.default and not found.left_out
    expected = {changed_digest(text) for text, _ in PATCHES.values()}
    assert expected <= {item.scenario.case.digest for item in found.cases}


def changed_digest(text: str) -> str:
    return only(running(), text, formulas=False).scenario.case.digest


@pytest.mark.parametrize("case", [prefill(), decode(), train(), train(batch=8, mesh={"data": 4}), prefill(toy(False))])
def test_every_phase_has_a_default_surface(case: Case) -> None:
    found = vary(case)
    assert len(found.cases) > 5 and all(set(row) == {"field", "value", "reason"} for row in found.left_out)
    assert all(any(not row.invariant for row in item.deltas) for item in found.cases)


def test_what_the_contracts_refuse_is_left_out_with_its_rule() -> None:
    fused = build_case(with_attention(toy(), storage="fused"), {"phase": "prefill", "seq": 4})
    [row] = vary(fused).left_out
    assert row["field"] == "mesh" and "fused" in row["reason"]


# -- refusals ---------------------------------------------------------------------------------------------------------

TOY = prefill()
REFUSED: dict[str, tuple[Case, object, str, str]] = {
    "a second field": (TOY, "kv_heads=1,batch=8", "--set", "exactly one declared field, and this one has 2"),
    "a second field in a mapping": (TOY, {"kv_heads": 1, "batch": 8}, "--set", "has 2 (kv_heads, batch)"),
    "an unsupported path": (TOY, "architecture.groups.0.layer.colour=1", "architecture.groups", "not a field"),
    "an unsupported name": (TOY, "kvheads=1", "kvheads", "not a field that can be varied"),
    "a name": (TOY, "architecture.name=other", "architecture.name", "not a field"),
    "a whole record": (TOY, "workload=1", "workload", "not a field"),
    "the phase": (TOY, "workload.phase=decode", "workload.phase", "state, logits and cache all follow"),
    "a part of a mesh": (prefill(mesh={"tensor": 2}), "execution.mesh.0.size=1", "execution.mesh.0", "not a field"),
    "a no-op": (TOY, "kv_heads=2", "kv_heads", "it is 2 already"),
    "a no-op of an object": (TOY, "parameter_dtype=bf16", "parameter_dtype", "it is bf16 already"),
    "a no-op of a mesh": (TOY, "mesh=none", "mesh", "it is none already"),
    "heads that do not divide": (TOY, "kv_heads=3", "groups.0.layer.attention.kv_heads", "must divide query_heads (4)"),
    "a degree that does not divide the heads": (TOY, "mesh=tensor=3", "execution.mesh.tensor", "tensor must divide"),
    "a degree that does not divide the batch": (TOY, "mesh=data=2", "workload.batch", "must divide the sequences"),
    "a degree that does not divide the world": (train(batch=8, mesh={"data": 8}), "shard=3", "shard", "is 8"),
    "a shard degree with nothing to share": (TOY, "shard=2", "shard", "data x fsdp is 1"),
    "an axis twice": (TOY, "mesh=tensor=2,tensor=2", "mesh", "the axis appears twice"),
    "no axis": (TOY, "mesh=tensor", "mesh", "not of the form AXIS=N"),
    "a mesh of yes": (TOY, "mesh=yes", "mesh", "must be axes and their sizes"),
    "text for a number": (TOY, "kv_heads=two", "kv_heads", "valid integer"),
    "a decimal": (TOY, "kv_heads=1.0", "kv_heads", "valid integer"),
    "true for a number": (TOY, {"kv_heads": True}, "kv_heads", "valid integer"),
    "not a number": (TOY, {"batch": float("nan")}, "batch", "valid integer"),
    "nan as text": (TOY, "batch=nan", "batch", "valid integer"),
    "zero": (TOY, "batch=0", "batch", "greater than 0"),
    "negative": (TOY, "batch=-1", "batch", "greater than 0"),
    "huge": (TOY, "batch=" + "9" * 40, "batch", "less than or equal"),
    "nothing": (TOY, "batch=", "batch", "valid integer"),
    "no value": (TOY, "batch", "field", "not of the form FIELD=VALUE"),
    "no field": (TOY, "=3", "field", "not of the form FIELD=VALUE"),
    "not a change": (TOY, 3, "field", "FIELD=VALUE, or a mapping"),
    "an empty mapping": (TOY, {}, "field", "FIELD=VALUE, or a mapping"),
    "fewer visible rows than new ones": (TOY, "visible=3", "visible", "the 4 new rows"),
    "visible rows of no number": (TOY, "visible=yes", "visible", "whole number of rows"),
    "visible rows in training": (train(), "visible=8", "visible", "sees its own rows"),
    "past rows in training": (train(), "past=8", "past", "keeps no cache"),
    "an optimizer outside of training": (TOY, "optimizer=sgd", "optimizer", "updates nothing"),
    "an optimizer nobody knows": (train(), "optimizer=shampoo", "optimizer", "not a known optimizer"),
    "what acts in training alone": (TOY, "remat=block", "execution.remat", "acts in training only"),
    "a group that is not there": (TOY, "group3.kv_heads=1", "group3.kv_heads", "1 group"),
    "broken JSON": (TOY, "architecture.learned_positions={3", "value", "not JSON"),
    "the parameters of an object alone": (TOY, "state.objects.0.dtype=fp32", "state.parameter_dtype", "has dtype fp32"),
    "control characters": (TOY, "\x1b[31m=3", "'\\x1b[31m'", "not a field"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_case_that_is_none_is_refused(name: str) -> None:
    case, given_, path, rule = REFUSED[name]
    digest = case.digest
    problems = refused(case, given_)
    assert any(path in problem.path and rule in problem.rule for problem in problems), problems
    assert case.digest == digest
    assert all(problem.path.isprintable() for problem in problems)


def test_all_problems_come_together_and_a_sound_case_beside_them_changes_nothing() -> None:
    found = refused(TOY, "batch=2", "kv_heads=3", "foo=1", vectors=["batch=2", "batch=2,batch=3"])
    assert [problem.path.rpartition(".")[2] for problem in found] == ["kv_heads", "foo", "--vector", "--vector"]


def test_the_same_case_twice_is_refused() -> None:
    [problem] = refused(TOY, "batch=2", {"workload.batch": 2})
    assert "the same case as batch 1 -> 2" in problem.rule


def test_a_refusal_names_what_was_probably_meant() -> None:
    [problem] = refused(TOY, "num_kv_heads=1")
    assert "kv_heads" in problem.remedy and "--fields" in problem.remedy


def test_a_sensitivity_is_of_a_case() -> None:
    with pytest.raises(RejectedError, match="of a case"):
        vary("toy-tied")  # type: ignore[arg-type]


def test_several_groups_are_named_apart() -> None:
    layers = toy().groups[0]
    two = build_case(altered(toy(), groups=(layers, layers.replaced(repeat=3))), {"phase": "prefill", "seq": 4})
    [problem] = refused(two, "kv_heads=1")
    assert "2 groups of layers each have it" in problem.rule and "group0.kv_heads" in problem.remedy
    found = only(two, "group1.kv_heads=1")
    assert [leaf.path for leaf in found.scenario.moved] == ["architecture.groups.1.layer.attention.kv_heads"]
    assert found.scenario.name == "group1.kv_heads 2 -> 1"


# -- isolation --------------------------------------------------------------------------------------------------------


def test_a_change_that_moves_more_than_its_field_is_refused() -> None:
    def wider(base: Case, values: Mapping[str, Any]) -> Case:
        return changed(base, {**values, "workload.batch": 8})

    [problem] = refused(prefill(), "kv_heads=1", apply=wider)
    assert "workload.batch moved too" in problem.rule and problem.value == "workload.batch"
    assert only(prefill(), "batch=8", apply=wider).delta("kv_cache.bytes").ratio == 8


def test_a_base_changed_while_a_case_is_made_is_found_out() -> None:
    base = prefill()

    def in_place(case: Case, values: Mapping[str, Any]) -> Case:
        made = changed(case, values)
        case.__dict__["convention"] = made.convention.replaced(attention_pairs="legal")
        return made

    [problem] = refused(base, "kv_heads=1", apply=in_place)
    assert problem.path == "base.digest" and "before kv_heads=1" in problem.rule


@pytest.mark.parametrize("where", ["workload", "architecture"])
def test_a_base_changed_by_a_prediction_is_found_out(where: str) -> None:
    base = prefill()

    def spoiling(case: Case) -> Any:
        base.__dict__[where] = getattr(case, where)
        return predict(case)

    sets = {"workload": ["kv_heads=1", "batch=8"], "architecture": ["kv_heads=1", "batch=8"]}[where]
    [problem] = refused(base, *sets, predict=spoiling)
    assert problem.path == "base.digest"


def test_a_base_changed_outside_of_its_digest_is_found_out() -> None:
    base = Base(prefill())
    base.verify("nothing")
    digest = base.case.digest
    base.case.__dict__["expected"] = {"parameters.unique": 1}
    assert base.case.digest == digest
    with pytest.raises(RejectedError, match="later cases would start from something else"):
        base.verify("a prediction")


def test_without_the_guard_a_changed_base_goes_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Base, "verify", lambda self, after: None)
    base = prefill()

    def spoiling(case: Case) -> Any:
        base.__dict__["workload"] = case.workload
        return predict(case)

    assert vary(base, ["kv_heads=1", "batch=8"], predict=spoiling).digest != base.digest


def test_cases_do_not_depend_on_their_order() -> None:
    texts = ["kv_heads=1", "batch=8", "parameter_dtype=fp32"]
    forward, backward = (vary(prefill(), order).cases for order in (texts, texts[::-1]))
    assert [item.to_dict() for item in forward] == [item.to_dict() for item in backward[::-1]]


def test_what_was_supplied_about_the_base_is_left_behind() -> None:
    base = prefill().replaced(expected={"parameters.unique": 1}, liveness=Liveness.from_data(EVENTS))
    found = only(base, "kv_heads=1")
    assert found.scenario.case.expected is found.scenario.case.liveness is None
    peak = found.delta("activations.peak_bytes")
    assert (peak.base, peak.value, peak.invariant) == (448, None, False) and "of the base" in peak.reason


# -- fields -----------------------------------------------------------------------------------------------------------


def test_every_option_of_a_case_but_the_phase_is_a_field() -> None:
    assert set(OPTION_NAMES) - {"phase"} <= set(NAMES)
    for name in (*NAMES, *ALIASES):
        assert field(name, train()).owns


def test_every_path_is_a_field_and_reads_its_value() -> None:
    case = train(batch=4, mesh={"data": 2})
    for path in paths(case):
        assert field(path, case).is_owner(path)
    listed = described(case)
    assert {entry["field"] for entry in listed} >= set(NAMES)
    owned = {path for entry in listed for path in entry["owns"]}
    assert all(
        path in owned or path.replace(".0.", ".N.", 1) in owned or path.startswith("state.") for path in paths(case)
    )


# All that takes the parameters' type where the optimizer state is optax's; the step counter does not.
OPTAX = [f"state.objects.{number}.dtype" for number in (0, 1, 3, 4)]


@pytest.mark.parametrize(
    ("case", "text", "moved"),
    [
        (TOY, "parameter_dtype=fp32", {"state.parameter_dtype", "state.objects.0.dtype"}),
        (train(precision="fp32"), "parameter_dtype=bf16", {"state.parameter_dtype", *OPTAX}),
        (train(precision="bf16_master_adam"), "parameter_dtype=fp32", {"state.parameter_dtype", OPTAX[0]}),
        (train(batch=8, mesh={"data": 8}), "mesh=data=4,fsdp=2,zero=3", {"execution.mesh", "execution.zero"}),
        (train(batch=8, mesh={"data": 8}, zero=1), "mesh=fsdp=8", {"execution.mesh", "execution.zero"}),
        (train(batch=8, mesh={"data": 8}), "shard=4", {"execution.mesh"}),
        (train(), "remat=save_only_these_names,up,down", {"execution.remat", "execution.remat_names"}),
        (train(remat="save_only_these_names", remat_names=["up"]), "remat=none",
         {"execution.remat", "execution.remat_names"}),
        (decode(), "visible=20", {"workload.past_tokens"}),
        (decode(), "workload.past_tokens=20", {"workload.past_tokens"}),
        (train(), "frozen=group0/attn,embed", {"state.frozen"}),
        (TOY, "windows=2,0", {"architecture.groups.0.windows"}),
        (TOY, "architecture.groups.0.layer.mlp.bias=yes", {"architecture.groups.0.layer.mlp.bias"}),
        (TOY, 'architecture.learned_positions={"rows": 64}',
         {f"architecture.learned_positions{part}" for part in ("", ".rows", ".offset")}),
        (TOY, "num_key_value_heads=1", {"architecture.groups.0.layer.attention.kv_heads"}),
        (TOY, "pairs=legal", {"convention.attention_pairs"}),
    ],
)  # fmt: skip
def test_what_belongs_together_moves_as_one(case: Case, text: str, moved: set[str]) -> None:
    found = only(case, text)
    assert {leaf.path for leaf in found.scenario.moved} <= moved and not found.is_vector
    assert found.scenario.case.architecture.branches.isdisjoint(found.scenario.case.architecture.absent)


def test_values_of_lists_objects_and_meshes_hold_together() -> None:
    parsed = parse_changes('mesh=data=2,tensor=2,zero=1,windows=4096,0,x.y={"a": [1, 2], "b": "c,d"},tied=no')
    assert parsed == [
        Change("mesh", "data=2,tensor=2,zero=1"),
        Change("windows", "4096,0"),
        Change("x.y", {"a": [1, 2], "b": "c,d"}),
        Change("tied", False),
    ]


def test_a_prefill_over_cached_rows_is_counted_and_not_executed() -> None:
    from jaxcost.contracts.errors import NotExecutedError
    from jaxcost.reference.support import require_supported
    from jaxcost.verify import recount

    found = only(prefill(batch=3, logits=2), "visible=9")
    case, prediction = found.scenario.case, found.prediction
    assert prediction.value("flops.forward") == recount.forward_flops(case)
    assert prediction.value("kv_cache.bytes") == recount.cache_bytes(case)
    assert prediction.value("device.peak_bytes.expected") is None
    with pytest.raises(NotExecutedError, match="empty cache"):
        require_supported(case)
    wrong = (("mesh=context=2", "cached rows of a prompt"), ("lengths=4,4,4", "over a cache"))
    for text, rule in wrong:
        assert any(rule in problem.rule for problem in refused(case, text))


# -- vectors ----------------------------------------------------------------------------------------------------------


def test_a_vector_is_called_one_and_its_interaction_is_named() -> None:
    [found] = vary(prefill(), vectors=["batch=8,visible=8"]).vectors
    base, (batch, rows) = totals(predict(prefill())), found.alone
    assert isinstance(batch, Result) and isinstance(rows, Result)
    for path in ("flops.forward", "kv_cache.bytes", "parameters.unique"):
        parts, remainder, why = found.interaction(path)
        assert parts == batch.delta(path).difference + rows.delta(path).difference and not why
        assert base[path] + parts + remainder == found.delta(path).value
    assert found.interaction("kv_cache.bytes")[1] == 7 * base["kv_cache.bytes"]
    assert found.interaction("parameters.unique") == (0, 0, "")
    data = found.to_dict()
    assert data["kind"] == "vector" and "several fields moved together" in data["notes"][0]
    assert all(row.derivative is None for row in found.deltas)


def test_fields_that_cannot_move_alone_leave_the_interaction_unknown() -> None:
    [found] = vary(TOY, vectors=["query_heads=2,head_dim=4"]).vectors
    assert found.interaction("kv_cache.bytes")[:2] == (None, None)
    assert "query_heads * head_dim" in found.interaction("kv_cache.bytes")[2]
    assert {type(item) for item in found.alone} == {str}


@pytest.mark.parametrize(
    ("vector", "rule"),
    [
        ("batch=8", "this one has one"),
        ({"batch": 8}, "this one has one"),
        ("batch=8,batch=4", "sets batch twice"),
        ("kv_heads=1,num_key_value_heads=4", "sets kv_heads twice"),
        ("batch=8,kv_heads=2", "it is 2 already"),
        ("precision=fp32_inference,kv_dtype=fp8_e4m3", "belongs to precision and to kv_dtype"),
        ("visible=8,past=2", "belongs to visible and to past"),
    ],
)
def test_a_vector_that_is_none_is_refused(vector: object, rule: str) -> None:
    assert any(rule in problem.rule for problem in refused(TOY, vectors=[vector]))


def test_a_known_comparison_says_what_else_moves() -> None:
    assert any("checkpoint tensors" in note for note in only(TOY, "kv_heads=1").to_dict()["notes"])
    assert any("dequantisation" in note for note in only(TOY, "parameter_dtype=int8").to_dict()["notes"])


# -- any case, any field ----------------------------------------------------------------------------------------------

GROUPED = ("kv_heads", "layer_count", "mlp_width")
FIELDS = (*GROUPED, "batch", "seq", "visible", "vocabulary_size", "tied", "parameter_dtype", "kv_dtype", "logits",
          "attention", "pairs", "accumulate", "layers", "vocabulary_multiple")  # fmt: skip


@st.composite
def asked(draw: st.DrawFn) -> tuple[Case, str, Any]:
    """A small case and a value for one of its fields; whether it is legal is not looked at."""
    case = draw(cases())
    name = draw(st.sampled_from(FIELDS))
    if name in GROUPED:
        name = f"group{draw(st.integers(0, len(case.architecture.groups) - 1))}.{name}"
    short = name.rpartition(".")[2]
    words = {
        "tied": st.booleans(), "parameter_dtype": st.sampled_from(("fp32", "bf16", "fp16")),
        "kv_dtype": st.sampled_from(("fp32", "bf16", "fp8_e4m3")), "logits": st.sampled_from(("all", "final", 1)),
        "attention": st.sampled_from(("materialised", "blockwise")), "pairs": st.sampled_from(("rectangular", "legal")),
        "layers": st.sampled_from(("scan", "unrolled")),
    }  # fmt: skip
    return case, name, draw(words.get(short, st.integers(1, 24)))


def accepted(case: Case, name: str, value: Any) -> Sensitivity | None:
    try:
        return vary(case, [{name: value}])
    except RejectedError:
        return None


@given(asked())
def test_a_difference_is_that_of_two_predictions_and_the_base_stays(question: tuple[Case, str, Any]) -> None:
    case, name, value = question
    digest, content = case.digest, case.to_data()
    found = accepted(case, name, value)
    assert (case.digest, case.to_data()) == (digest, content)
    assume(found is not None)  # a drawn change that the records refuse has no difference; refusals are tested above
    assert found is not None
    check(case, found.cases[0])


def check(case: Case, item: Result) -> None:
    """Every difference is that of two predictions made here, and a derivative that agrees gives it."""
    old, new = totals(predict(case)), totals(predict(item.scenario.case))
    for row in item.deltas:
        assert (row.base, row.value) == (old.get(row.path), new.get(row.path))
        if None not in (row.base, row.value):
            assert row.difference == new[row.path] - old[row.path]
            assert row.invariant == (row.difference == 0)
    assert {leaf.path for leaf in item.scenario.moved} == {
        path for path in {*leaves(case), *leaves(item.scenario.case)}
        if leaves(case).get(path) != leaves(item.scenario.case).get(path)
    }  # fmt: skip
    for row in item.deltas:
        slope = row.derivative
        if slope is not None and slope["agrees"]:
            assert Fraction(slope["difference"]) == row.difference
            if slope["linear"]:
                assert Fraction(slope["at_base"]) * slope["step"] == row.difference


@pytest.mark.parametrize("shift", [(1, 0), (0, 1)], ids=["base", "value"])
def test_the_property_can_fail(shift: tuple[int, int]) -> None:
    right = only(TOY, "kv_heads=1")
    check(TOY, right)
    rows = [replace(row, base=row.base + shift[0], value=row.value + shift[1]) if row.path == "flops.forward" else row
            for row in right.deltas]  # fmt: skip
    with pytest.raises(AssertionError):
        check(TOY, replace(right, deltas=tuple(rows)))
    slope = right.delta("flops.forward").derivative
    assert slope is not None
    rows = [replace(row, derivative={**slope, "at_base": slope["at_base"] + 1}) if row.path == "flops.forward" else row
            for row in right.deltas]  # fmt: skip
    with pytest.raises(AssertionError):
        check(TOY, replace(right, deltas=tuple(rows)))


def test_most_questions_of_the_property_are_answered() -> None:
    """The property is not empty: its fields are accepted by the toy, each with another value."""
    values = {"tied": False, "parameter_dtype": "fp32", "kv_dtype": "fp32", "logits": "all", "attention": "blockwise",
              "pairs": "legal", "layers": "unrolled", "kv_heads": 1, "accumulate": 2}  # fmt: skip
    for name in FIELDS:
        case = train(batch=2) if name == "accumulate" else prefill()
        assert accepted(case, name, values.get(name, 24)) is not None, name


def test_varying_imports_nothing_slow(root: Path) -> None:
    import subprocess

    code = (
        "import sys, jaxcost; jaxcost.vary(jaxcost.prefill(jaxcost.load('toy-tied'), seq=4));"
        "print([m for m in ('jax', 'sympy', 'rich', 'hypothesis') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root)
    assert done.stdout.strip() == "[]"


def test_the_pieces_that_failure_rows_take_out_are_there() -> None:
    assert scenarios.second_field([Change("a", 1)], "") == () and scenarios.strays([], [], "") == ()
