"""Fuzzing finds planted faults on both sides, says how to repeat them, and compiles what it claims to compile."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from jaxcost.contracts.case import Case, build_case
from jaxcost.contracts.record import parse_json
from jaxcost.observation.observe import Wish, observe_many
from jaxcost.observation.observed import Observed
from jaxcost.observation.pool import Pool
from jaxcost.prediction import flops
from jaxcost.prediction.ledgers import predict
from jaxcost.prediction.rows import Row
from jaxcost.reconciliation import merged
from jaxcost.reconciliation.matmuls import IDLE, Matmuls
from jaxcost.reconciliation.report import reconcile
from jaxcost.verify import fuzz as module
from jaxcost.verify.failures.common import with_rows
from jaxcost.verify.failures.subjects import RMS, decode, prefill, toy, train, with_attention
from jaxcost.verify.fuzz import COMPILED, disagreements, fuzz
from jaxcost.verify.holding import broken
from jaxcost.verify.strategies import altered

CASES = (train(), prefill(batch=2), decode(toy(tied=False)))
contraction_flops = flops.contraction_flops


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with Pool(size=2) as workers:
        yield workers


@pytest.fixture(scope="module")
def seen(pool: Pool) -> dict[int | None, list[Observed]]:
    """Observations of the three cases by optimisation level."""
    levels = (0, None)
    wishes = [Wish(case, "cpu:1", level, second_compile=False) for level in levels for case in CASES]
    found = observe_many(wishes, pool=pool)
    return {level: found[i * len(CASES) : (i + 1) * len(CASES)] for i, level in enumerate(levels)}


def counted(observed: Observed) -> dict[tuple[str, str], int]:
    rows = observed.data["hlo"]["by_scope_phase"]
    return {(row["scope"], row["phase"]): row["flops"] for row in rows if row["flops"]}


def test_little_effort_gives_the_same_counts(seen: dict[int | None, list[Observed]]) -> None:
    for little, usual in zip(seen[0], seen[None], strict=True):
        assert little.data["environment"]["optimisation_level"] == 0
        assert usual.data["environment"]["optimisation_level"] is None
        assert little.flops == usual.flops
        assert counted(little) == counted(usual)


def test_compiled_programs_agree_with_the_ledger(seen: dict[int | None, list[Observed]]) -> None:
    for case, observed in zip(CASES, seen[0], strict=True):
        assert disagreements(reconcile(predict(case), observed)) == []


def single(**options: Any) -> Case:
    """One layer that norms its branches only: its input reaches the projections as it is."""
    (group,) = toy().groups
    norms = {"attention_norm": None, "mlp_norm": None, "attention_post_norm": RMS, "mlp_post_norm": RMS}
    layer = group.layer.replaced(residual="post_branch", **norms)
    return train(altered(toy(tied=False), groups=(group.replaced(repeat=1, layer=layer),)), **options)


HABITS = {
    merged.REASON: train(
        with_attention(toy(), kv_heads=4),
        batch=4,
        accumulate=2,
        attention="blockwise",
        remat="attention",
        layers="unrolled",
    ),
    IDLE: single(frozen=["embed"]),
}


def test_habits_of_the_compiler_are_explained_to_the_unit(pool: Pool) -> None:
    """Two programs with products that the jaxpr has and the module has not, and what is said about them."""
    found = observe_many([Wish(case, "cpu:1", 0, second_compile=False) for case in HABITS.values()], pool=pool)
    for (reason, case), observed in zip(HABITS.items(), found, strict=True):
        assert disagreements(reconcile(predict(case), observed)) == []
        rows = [row for row in reconcile(predict(case), observed).rows if row.counter == "matmul_flops"]
        assert reason in {item.reason for row in rows for item in row.explanations}


def test_a_layer_that_is_still_a_loop_has_no_idle_gradient_to_lose(pool: Pool) -> None:
    """The same module, told to hold a loop over the group: the missing products are then open."""
    case = HABITS[IDLE]
    (observed,) = observe_many([Wish(case, "cpu:1", 0, second_compile=False)], pool=pool)
    assert observed.data["hlo"]["loops"] == []
    for name in ("jit(training_step)/transpose(jvp(group0))/while", ""):
        document = copy.deepcopy(observed.to_dict())
        document["hlo"]["loops"] = [{"op_name": name}]
        report = reconcile(predict(case), Observed.from_dict(document))
        assert report.status == "open"
        assert IDLE not in {item.reason for row in report.rows for item in row.explanations}


def test_only_one_scanned_layer_with_nothing_trained_below_has_an_idle_gradient(
    seen: dict[int | None, list[Observed]],
) -> None:
    def idle(case: Case) -> dict[tuple[str, str], int]:
        return Matmuls(predict(case), seen[0][0]).idle

    wanted = {
        (f"group0/attn/{name}", "backward"): n for name, n in (("q_proj", 1024), ("k_proj", 512), ("v_proj", 512))
    }
    assert idle(single(frozen=["embed"])) == wanted
    assert idle(single(frozen=["head"])) == idle(single()) == {}
    assert idle(single(frozen=["embed"], layers="unrolled")) == {}
    assert idle(train(toy(tied=False), frozen=["embed", "group0/attn_norm"])) == {}  # two layers are a loop


def test_one_flop_more_in_an_observation_is_a_disagreement(seen: dict[int | None, list[Observed]]) -> None:
    for case, observed in zip(CASES, seen[0], strict=True):
        document = copy.deepcopy(observed.to_dict())
        row = next(row for row in document["hlo"]["by_scope_phase"] if row["flops"])
        row["flops"] += 1
        found = disagreements(reconcile(predict(case), Observed.from_dict(document)))
        assert any("residual 1," in text for text in found)


def test_a_case_that_could_not_be_observed_is_a_disagreement() -> None:
    assert disagreements(reconcile(predict(prefill()), None))


def fixed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "draw_cases", lambda count, seed: list(CASES))


def test_fuzz_passes_what_agrees(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    fixed(monkeypatch)
    said: list[str] = []
    result = fuzz(3, 1, "cpu:1", pool, said.append)
    assert result.status == "passed", result.failures
    assert result.compiled == 3
    document = result.to_dict()
    assert document["status"] == "passed"
    assert document["checks"] > 30
    assert COMPILED in document["properties"]
    assert any("compiled" in line for line in said)
    json.dumps(document, allow_nan=False)


def test_a_wrong_prediction_is_found_by_the_compiler(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The properties are switched off here, so that only the compiled program can notice."""
    fixed(monkeypatch)
    monkeypatch.setattr(module, "broken", lambda case: [])
    monkeypatch.setattr(module, "predict", lambda case: with_rows(predict(case), "flops", one_more))
    result = fuzz(3, 1, "cpu:1", pool)
    assert result.status == "failed"
    assert {failure.property for failure in result.failures} == {COMPILED}


def one_more(row: Row) -> Row:
    return replace(row, value=row.value + 2, per_device=row.per_device + 2) if row.object == "o_proj" else row


def off_by_one(name: str) -> Any:
    return lambda program, op, pairs="rectangular": contraction_flops(program, op, pairs) + 2 * (op.name == name)


@pytest.mark.parametrize("name", ["q_proj", "scores", "down", "head"])
def test_an_off_by_one_is_found_without_compiling(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The failure is printed as a case file that breaks the same property again."""
    monkeypatch.setattr(flops, "contraction_flops", off_by_one(name))
    said: list[str] = []
    with Pool(size=1) as idle:
        result = fuzz(3, 2, "cpu:1", idle, said.append)
    assert result.status == "failed"
    assert result.compiled == 0
    [failure] = result.failures
    table = parse_json(said[-1])
    assert table == json.loads(json.dumps(failure.case_file))
    case = rebuilt(table)
    assert broken(case, [failure.property])
    monkeypatch.undo()
    assert not broken(case)


def rebuilt(table: dict[str, Any]) -> Case:
    from jaxcost.catalog.manifest import manifest_from_data

    options = dict(table)
    manifest = manifest_from_data(options.pop("architecture"), "case.json", None, "case_file")
    return build_case(manifest.architecture, options)
