"""The declared list of saved tensors against what JAX keeps of a scanned layer."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from jaxcost.observation.residuals import _levels, saved_residuals
from jaxcost.observation.sections import known_scopes
from jaxcost.prediction.ledgers import predict
from jaxcost.reconciliation.residuals import OTHER_FORM, UNCAST, residual_rows
from jaxcost.reference import make_step
from tests.reference.small import ARCHITECTURES, make_case

BLOCKS = {"attention": "blockwise", "attention_block": 4}
NAMES = {"remat": "save_only_these_names", "remat_names": ["q_proj", "context", "mlp_norm", "up"]}
EXACT = {
    "block": {"remat": "block"},
    "attention": {"remat": "attention"},
    "names": NAMES,
    "names, blocks": NAMES | BLOCKS,
    "probabilities": {"remat": "save_only_these_names", "remat_names": ["probabilities", "attn_norm"]},
}


def case_of(name, options):
    return make_case(ARCHITECTURES[name], batch=2, seq=8, **{"precision": "mixed", **options})


def kept(case):
    return [item.to_dict() for item in saved_residuals(make_step(case).trace().jaxpr, known_scopes(case))]


def row_of(case, residuals):
    (row,) = residual_rows(predict(case), SimpleNamespace(data={"jaxpr": {"residuals": residuals}}))
    return row


@pytest.mark.parametrize("name", ["llama", "gpt2", "olmo"])
@pytest.mark.parametrize("policy", EXACT)
def test_a_policy_keeps_what_is_declared(name, policy):
    case = case_of(name, EXACT[policy])
    found = kept(case)
    assert row_of(case, found).status == "exact"
    # One array less, one more, one of another type.
    assert row_of(case, found[1:]).status == "open"
    assert row_of(case, [*found, found[0]]).status == "open"


@pytest.mark.parametrize("options", [{}, BLOCKS, {"remat": "dots_saveable"}], ids=str)
@pytest.mark.parametrize("name", ["llama", "gemma", "opt", "neox", "olmo"])
def test_what_derivatives_keep_beside_is_told_by_rule(name, options):
    case = case_of(name, options)
    found = kept(case)
    row = row_of(case, found)
    assert row.status == "explained"
    reasons = {item.reason for item in row.explanations}
    assert reasons == {UNCAST} if options.get("remat") else {"the interior of a norm, in fp32", OTHER_FORM} <= reasons
    # An array in no known place, and a declared one that is gone.
    stranger = {**found[0], "scope": "group0/mlp/down", "primitive": "tanh", "name": ""}
    assert row_of(case, [*found, stranger]).status == "open"
    inner = next(
        item
        for item in found
        if (item["scope"] == "group0/mlp/up" if options.get("remat") else item["name"] == "activation")
    )
    assert row_of(case, [item for item in found if item is not inner]).status == "open"


def test_offloaded_tensors_rest_on_the_host():
    options = {"remat": "save_and_offload_only_these_names", "remat_names": ["q_proj", "up"]}
    case = case_of("llama", options)
    found = kept(case)
    assert sorted(item["scope"] for item in found if item["host"]) == ["group0/attn/q_proj", "group0/mlp/up"]

    def statuses(items):
        seen = SimpleNamespace(data={"jaxpr": {"residuals": items}})
        return [row.status for row in residual_rows(predict(case), seen)]

    assert statuses(found) == ["exact", "exact"]
    assert statuses([{**item, "host": False} for item in found]) == ["exact", "open"]


def test_lists_of_other_programs_are_not_compared():
    case = case_of("llama", {"layers": "unrolled"})
    row = row_of(case, [])
    assert (row.status, row.observation) == ("unmeasured", None)
    assert "unrolled" in row.reason


def test_the_list_rests_on_no_parameter_that_another_release_renames(monkeypatch):
    """jax 0.11 has no `num_carry`: which results are carried is told by their shapes."""
    closed = make_step(case_of("llama", {"remat": "block"})).trace().jaxpr
    expected = saved_residuals(closed)
    assert expected
    for eqn in (eqn for level, _ in _levels(closed.jaxpr, "") for eqn in level.eqns if eqn.primitive.name == "scan"):
        left = {name: value for name, value in eqn.params.items() if name not in ("num_carry", "num_consts")}
        monkeypatch.setattr(eqn, "params", left)
    assert saved_residuals(closed) == expected
