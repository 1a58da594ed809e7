"""Each rule fires on its evidence, not without it, and never explains more than the evidence amounts to."""

from __future__ import annotations

from typing import Any

import pytest

from jaxcost.contracts.errors import RejectedError
from jaxcost.prediction.ledgers import predict
from jaxcost.reconciliation import merged
from jaxcost.reconciliation.report import reconcile
from jaxcost.reconciliation.rows import Report
from tests.reconciliation.recorded import NAMES, named, observed, prediction, report, row_of

CPU, H100 = named("toy-tied_training_cpu"), named("toy-tied_training_h100")
UNROLLED, LLAMA = named("toy-untied_training_cpu"), named("llama-3.1-8b_training_cpu-8")
DECODE = named("toy-untied_decode_h100")
UNDONE = "recomputation undone by the compiler"


def _place(document: dict[str, Any], scope: str, phase: str) -> dict[str, Any]:
    return next(r for r in document["hlo"]["by_scope_phase"] if (r["scope"], r["phase"]) == (scope, phase))


def reasons(found: Report, key: str) -> set[str]:
    return {item.reason for item in row_of(found, key).explanations}


# Recomputation undone ---------------------------------------------------------------------------------------------


def undo(document: dict[str, Any], keep: str = "") -> None:
    """What common-subexpression elimination leaves of a replay: nothing, or one product of a scope."""
    hlo = document["hlo"]
    replayed = [row for row in hlo["contractions"] if row["phase"] == "replay"]
    kept = [row for row in replayed if row["scope"] == keep][:1]
    assert bool(kept) == bool(keep)
    gone = [row for row in replayed if row not in kept]
    hlo["contractions"] = [row for row in hlo["contractions"] if row not in gone]
    for row in gone:
        _place(document, row["scope"], "replay")["flops"] -= row["total"]
        hlo["flops"] -= row["total"]


def test_an_undone_recomputation_is_explained_and_found() -> None:
    found = report(UNROLLED, undo)
    replays = [row for row in found.rows if row.counter == "matmul_flops" and row.phase == "replay"]
    assert len(replays) == 9 and {row.status for row in replays} == {"explained"}
    assert row_of(found, "matmul_flops").status == "explained"
    assert {item.reason for row in replays for item in row.explanations} > {UNDONE}
    assert "recomputation undone" in {finding.kind for finding in found.findings}
    assert "recomputation undone" not in {finding.kind for finding in report(UNROLLED).findings}


@pytest.mark.parametrize(
    ("scope", "status"), [("attn/q_proj", "open"), ("attn/scores", "open"), ("mlp/up", "explained")]
)
def test_a_replay_that_lost_all_but_one_product_is_not_undone(scope: str, status: str) -> None:
    """Equality spreads from the layer's input: what follows a product that is still there cannot have merged."""
    found = report(UNROLLED, lambda document: undo(document, keep=f"group0/{scope}"))
    assert row_of(found, "matmul_flops").status == status
    given = {item.reason for row in found.rows for item in row.explanations}
    assert UNDONE not in given
    assert merged.REASON in given or status == "open"


def test_an_undone_recomputation_keeps_its_forward_results() -> None:
    def without_forward(document: dict[str, Any]) -> None:
        undo(document)
        rows = document["hlo"]["contractions"]
        document["hlo"]["contractions"] = [
            row for row in rows if (row["scope"], row["phase"]) != ("group0/mlp/up", "forward")
        ]

    found = report(UNROLLED, without_forward)
    assert row_of(found, "matmul_flops:group0/mlp/up:replay").status == "open"
    assert row_of(found, "matmul_flops:group0/mlp/gate:replay").status == "explained"


def test_an_undone_recomputation_needs_its_equations() -> None:
    def unwritten(document: dict[str, Any]) -> None:
        undo(document)
        document["jaxpr"]["rows"] = [row for row in document["jaxpr"]["rows"] if row["phase"] != "replay"]

    found = report(UNROLLED, unwritten)
    assert row_of(found, "matmul_flops:group0/mlp/up:replay").status == "open"


# Hoisting ---------------------------------------------------------------------------------------------------------


def hoist(document: dict[str, Any]) -> None:
    """One product of the layer loop runs once."""
    row = next(r for r in document["hlo"]["contractions"] if (r["scope"], r["phase"]) == ("group0/mlp/up", "forward"))
    less = row["total"] - row["flops"]
    assert row["executions"] == 2 and less
    row.update(executions=1, total=row["flops"])
    _place(document, "group0/mlp/up", "forward")["flops"] -= less
    document["hlo"]["flops"] -= less


def test_a_hoisted_product_is_explained_by_the_dot_that_bears_its_name() -> None:
    key = "matmul_flops:group0/mlp/up:forward"
    found = report(CPU, hoist)
    assert row_of(found, key).status == row_of(found, "matmul_flops").status == "explained"
    (item,) = row_of(found, key).explanations
    assert item.reason == "loop-invariant hoisting" and "runs 1 times for 2" in item.evidence

    def renamed(document: dict[str, Any]) -> None:
        hoist(document)
        for row in document["hlo"]["contractions"]:
            row["op_name"] = "jit(step)/group0/mlp/up/other/dot_general"

    assert row_of(report(CPU, renamed), key).status == "open"

    def removed(document: dict[str, Any]) -> None:
        hoist(document)
        document["hlo"]["contractions"] = [r for r in document["hlo"]["contractions"] if r["scope"] != "group0/mlp/up"]

    assert row_of(report(CPU, removed), key).status == "open"


def test_a_product_that_runs_more_often_is_not_hoisted() -> None:
    def more(document: dict[str, Any]) -> None:
        row = next(
            r for r in document["hlo"]["contractions"] if (r["scope"], r["phase"]) == ("group0/mlp/up", "forward")
        )
        row.update(executions=3, total=3 * row["flops"])
        _place(document, "group0/mlp/up", "forward")["flops"] += row["flops"]

    assert row_of(report(CPU, more), "matmul_flops:group0/mlp/up:forward").status == "open"


# Names that the compiler dropped ----------------------------------------------------------------------------------


def misplaced(document: dict[str, Any], extra: int = 0, named: bool = False) -> None:
    """A product whose name is gone is taken for one of the backward pass."""
    row = next(
        r for r in document["hlo"]["contractions"] if (r["scope"], r["phase"]) == ("group0/attn/values", "forward")
    )
    row.update(phase="backward", op_name="jit(f)/x/dot_general" if named else "", scope_exact=named)
    _place(document, "group0/attn/values", "forward")["flops"] -= row["total"]
    _place(document, "group0/attn/values", "backward")["flops"] += row["total"] + extra
    document["hlo"]["flops"] += extra


def test_products_without_names_are_compared_for_the_whole_group() -> None:
    found = report(CPU, misplaced)
    row = row_of(found, "matmul_flops:group0")
    assert row.status == "exact" and "dropped the names" in row.reason
    assert not [r for r in found.rows if r.counter == "matmul_flops" and r.scope.startswith("group0/")]
    assert row_of(found, "matmul_flops:head:forward").status == "exact"
    assert found.status != "open"


def test_the_whole_group_stays_open_where_its_total_does_not_close() -> None:
    found = report(CPU, lambda document: misplaced(document, extra=2))
    assert row_of(found, "matmul_flops:group0").status == "open"
    assert row_of(found, "matmul_flops:group0").residual == 2


def test_products_with_names_are_not_moved() -> None:
    found = report(CPU, lambda document: misplaced(document, named=True))
    assert found.row("matmul_flops:group0") is None
    assert row_of(found, "matmul_flops:group0/attn/values:forward").status == "open"


# Unknowns ---------------------------------------------------------------------------------------------------------


def test_an_unknown_count_is_not_zero() -> None:
    def unknown(document: dict[str, Any]) -> None:
        _place(document, "group0/mlp/up", "forward")["flops"] = None
        document["hlo"].update(flops=None, unknowns=["the loop at group0 has no known trip count"])

    found = report(CPU, unknown)
    for key in ("matmul_flops:group0/mlp/up:forward", "matmul_flops"):
        row = row_of(found, key)
        assert (row.observation, row.status) == (None, "unmeasured")
        assert "no known trip count" in row.reason
    assert row_of(found, "matmul_flops:group0/mlp/gate:forward").status == "exact"


def test_an_opaque_kernel_is_unmeasured_and_not_zero() -> None:
    def opaque(document: dict[str, Any]) -> None:
        document["hlo"]["opaque"].append({
            "id": 1, "name": "custom-call.99", "computation": "main", "target": "mystery", "op_name": "jit(f)/mystery",
            "scope": "group0/attn", "phase": "forward", "operands": ["f32[2,2]"], "result": "f32[2,2]",
            "executions": 1, "declared": {},
        })  # fmt: skip

    row = row_of(report(CPU, opaque), "opaque_flops:group0/attn:forward")
    assert (row.prediction, row.observation, row.status) == (None, None, "unmeasured")
    assert "mystery" in row.reason


# What no explanation may do ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_explanations_do_not_follow_the_residual(name: str) -> None:
    """With another observed total every explanation keeps its amount: none is computed from what it explains."""

    def shifted(document: dict[str, Any]) -> None:
        for section in ("hlo", "jaxpr"):
            for row in document[section]["by_scope_phase"]:
                row["flops"] += 1000 * (row["flops"] > 0)
            document[section]["flops"] += 12345
        for field in ("argument_bytes", "output_bytes", "alias_bytes"):
            document["memory"][field] += 777

    before, after = report(name), report(name, shifted)
    for row in before.rows:
        if row.scope or row.counter.endswith("_bytes"):
            found = after.row(row.key)
            if found is None:  # places that no longer add up and hold nameless products are compared as one group
                whole = row_of(after, f"{row.counter}:{row.scope.split('/')[0]}")
                assert {item.reason for item in row.explanations} <= {item.reason for item in whole.explanations}
            else:
                assert found.explanations == row.explanations


@pytest.mark.parametrize("name", NAMES)
def test_every_explanation_says_what_it_rests_on(name: str) -> None:
    for row in report(name).rows:
        for item in row.explanations:
            # A transfer in another form may carry as many bytes as the declared one.
            assert item.reason and item.evidence and (item.amount or row.counter.startswith("collective"))


# What reconcile takes ---------------------------------------------------------------------------------------------


def test_an_observation_of_another_case_is_refused() -> None:
    with pytest.raises(RejectedError, match="observe the case that was predicted"):
        reconcile(prediction(CPU), observed(DECODE))


def test_nothing_seen_is_unmeasured() -> None:
    found = reconcile(prediction(CPU))
    assert found.status == "unmeasured" and {row.status for row in found.rows} == {"unmeasured"}
    assert all(row.observation is None for row in found.rows)
    assert row_of(found, "parameters.unique").prediction == 1128


@pytest.mark.parametrize("status", ["failed"])
def test_a_failed_observation_is_open(status: str) -> None:
    def fail(document: dict[str, Any]) -> None:
        document.update(status=status, reason="the compiler ran out of time", evidence_class="unmeasured")
        for section in (
            "hlo",
            "memory",
            "jaxpr",
            "compiler",
            "collectives",
            "parameters",
            "state",
            "rematerialisation",
        ):
            document[section] = None

    found = report(CPU, fail)
    assert found.status == "open"
    assert row_of(found, "observation").reason == "the compiler ran out of time"
    assert {row.status for row in found.rows} == {"open", "unmeasured"}


def test_a_refusal_is_open_with_the_compiler_s_words() -> None:
    def refuse(document: dict[str, Any]) -> None:
        document.update(status="refused", reason="RESOURCE_EXHAUSTED: out of memory on HBM")
        document["rematerialisation"] = {
            "refusal": {"text": "RESOURCE_EXHAUSTED"},
            "second_compile": {
                "status": "refused", "refusal": {"text": "RESOURCE_EXHAUSTED again"}, "remat_instructions": 3,
                "excess_flops": 12, "required_bytes": 99, "names": ["fusion.1.remat"],
            },
        }  # fmt: skip

    found = report(CPU, refuse)
    assert found.status == row_of(found, "accepted").status == "open"
    assert "RESOURCE_EXHAUSTED" in row_of(found, "accepted").reason
    assert row_of(found, "xla_rematerialisation.excess_flops").observation == 12
    assert [finding.kind for finding in found.findings].count("refused") == 2
    assert "xla rematerialisation" in {finding.kind for finding in found.findings}
    assert row_of(found, "matmul_flops").status == "exact"  # the first program is compared all the same


@pytest.mark.parametrize(
    ("path", "value", "status"),
    [
        ("parameters.unique", 1128, "exact"),
        ("parameters.unique", 1129, "open"),
        ("parameters.nothing", 1, "open"),
        ("nothing.at.all", 1, "open"),
        ("state.by_role.parameter", 4512, "exact"),
    ],
)
def test_expected_integers(path: str, value: int, status: str) -> None:
    case = prediction(CPU).case
    data = {**case.to_data(), "expected": {path: value}}
    found = reconcile(predict(type(case).from_data(data)))
    assert row_of(found, f"expected.{path}").status == status


# XLA's own counters -----------------------------------------------------------------------------------------------


def test_xla_s_counters_carry_verdicts_and_decide_nothing() -> None:
    found = report(LLAMA)
    flops = row_of(found, "xla.flops")
    assert flops.verdict.startswith("wrong: 13.36 times too low") and "count once" in flops.verdict
    assert row_of(report(H100), "xla.flops").verdict.startswith("absent")
    assert all(row.verdict for row in found.rows if row.counter.startswith("xla."))
    assert row_of(found, "xla.peak_memory_in_bytes").verdict == "misleading"

    def nonsense(document: dict[str, Any]) -> None:
        for counter in document["compiler"]["counters"].values():
            counter["value"] = 1

    assert report(LLAMA, nonsense).status == found.status


# Products between groups ------------------------------------------------------------------------------------------


def stray(document: dict[str, Any]) -> None:
    """Two products lose their names: one keeps its place, the other is taken for another phase of no group at all."""
    rows = [r for r in document["hlo"]["contractions"] if (r["scope"], r["phase"]) == ("group0/mlp/up", "forward")]
    kept = next(
        r for r in document["hlo"]["contractions"] if (r["scope"], r["phase"]) == ("group0/mlp/gate", "forward")
    )
    kept.update(op_name="", scope_exact=False)
    for row in rows:
        _place(document, row["scope"], row["phase"])["flops"] -= row["total"]
        document["hlo"]["by_scope_phase"].append({"scope": "", "phase": "backward", "flops": row["total"]})
        row.update(op_name="", scope="", phase="backward", scope_exact=False)


def test_products_of_no_certain_group_are_compared_with_all_that_is_not_settled() -> None:
    found = report(CPU, stray)
    assert not [row.key for row in found.rows if row.counter == "matmul_flops" and row.status == "open"]
    (row,) = [row for row in found.rows if row.counter == "matmul_flops" and "dropped the names" in row.reason]
    assert row.status == "exact"

    def short(document: dict[str, Any]) -> None:
        stray(document)
        document["hlo"]["by_scope_phase"][-1]["flops"] -= 2

    assert [row for row in report(CPU, short).rows if row.counter == "matmul_flops" and row.status == "open"]
