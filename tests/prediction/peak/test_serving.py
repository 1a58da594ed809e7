"""The peak of prefill and decode on NVIDIA: what is held follows from declared shapes and a record of rules."""

from __future__ import annotations

import re
from importlib import resources

import pytest

import jaxcost
from jaxcost.contracts.case import Case, build_case
from jaxcost.prediction.peak import serving
from jaxcost.prediction.peak.moments import PeakPrediction, Unpredicted, peak_of
from jaxcost.prediction.peak.policy import Policy, parse_policy
from jaxcost.prediction.program import program

RECORD = "cuda-jax0.10-serving.toml"


@pytest.fixture(scope="module")
def policy() -> Policy:
    folder = resources.files("jaxcost.prediction.peak") / "policies"
    return parse_policy((folder / RECORD).read_text(encoding="utf-8"), RECORD)


def case(model: str, phase: str, **options: object) -> Case:
    return build_case(jaxcost.load(model), {"phase": phase, "attention": "materialised", **options})


def peak(policy: Policy, wanted: Case) -> PeakPrediction:
    found = serving.moments(program(wanted), policy)
    assert not isinstance(found, Unpredicted), found
    return peak_of(policy, found)


BLOCKS = {"attention": "blockwise"}
# Live peaks of development cases that the rules were read from, in bytes: what the compiler planned.
PLANNED = [
    ("llama-3.1-8b", "prefill", {"batch": 1, "seq": 2048}, 17_047_754_016),
    ("llama-3.1-8b", "prefill", {**BLOCKS, "batch": 4, "seq": 4096, "mesh": {"tensor": 8}}, 2_836_728_616),
    ("llama-3.1-70b", "prefill", {"batch": 2, "seq": 2048, "mesh": {"tensor": 8}}, 18_218_645_024),
    ("llama-3.1-8b", "decode", {"batch": 16, "past": 8191, "mesh": {"tensor": 8}}, 5_265_042_916),
    ("llama-3.1-8b", "decode", {"batch": 1, "past": 8191, "mesh": {"tensor": 8}}, 3_192_987_044),
    ("llama-3.1-8b", "decode", {"batch": 16, "past": 4095, "mesh": {"fsdp": 8}}, 5_207_230_760),
    ("llama-3.2-1b", "decode", {"batch": 8, "past": 2047, "mesh": {"data": 4, "tensor": 2}}, 1_353_958_924),
]  # fmt: skip


@pytest.mark.parametrize(("model", "phase", "options", "planned"), PLANNED)
def test_development_cases_come_out(
    policy: Policy, model: str, phase: str, options: dict[str, object], planned: int
) -> None:
    found = peak(policy, case(model, phase, **options))
    assert abs(found.expected - planned) < 0.005 * planned
    assert found.lower <= planned <= found.upper


def test_what_crosses_the_border_is_held_at_every_moment(policy: Policy) -> None:
    found = peak(policy, case("llama-3.2-1b", "decode", batch=8, past=2047))
    for moment in found.moments:
        classes = moment.by_class
        assert classes["parameter"] == 1_235_814_400 * 2
        assert classes["cache"] >= 2 * 16 * 8 * 2048 * 8 * 64 * 2


def test_one_token_of_a_sharded_table_gathers_the_whole_table(policy: Policy) -> None:
    one = peak(policy, case("llama-3.1-8b", "decode", batch=1, past=1023, mesh={"tensor": 8}))
    two = peak(policy, case("llama-3.1-8b", "decode", batch=2, past=1023, mesh={"tensor": 8}))
    assert one.at == "embed"
    assert one.by_class["gathered_weight"] >= 128_256 * 4096 * 2
    assert "gathered_weight" not in two.by_class


def test_scores_follow_the_square_of_the_prompt(policy: Policy) -> None:
    sizes = [peak(policy, case("llama-3.2-1b", "prefill", batch=2, seq=n)).by_class["attention"] for n in (2048, 4096)]
    assert sizes[1] == 4 * sizes[0]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"precision": "mixed"}, "serves fp32 weights in bf16"),
        ({"precision": "mixed", "phase": "decode", "past": 15, "seq": 1}, "serves fp32 weights in bf16"),
    ],
)
def test_outside_of_the_domain_nothing_is_predicted(policy: Policy, options: dict[str, object], reason: str) -> None:
    wanted = case("llama-3.2-1b", **{"phase": "prefill", "seq": 64, **options})  # type: ignore[arg-type]
    found = serving.moments(program(wanted), policy)
    assert isinstance(found, Unpredicted)
    assert reason in found.reason


def test_fused_projections_and_other_residuals_are_outside(policy: Policy) -> None:
    for model in ("phi-3-mini-4k", "falcon-7b"):
        assert isinstance(serving.moments(program(case(model, "prefill", seq=64)), policy), Unpredicted)


def test_every_rule_of_the_record_is_used_and_none_is_missing(policy: Policy) -> None:
    source = (resources.files("jaxcost.prediction.peak") / "serving.py").read_text(encoding="utf-8")
    stems = {re.sub("-(fsdp|meshed|alone|tensor)$", "", rule) for rule in policy.rules}
    assert all(stem in source for stem in stems), [stem for stem in stems if stem not in source]


def test_a_rule_that_is_taken_away_is_missed(policy: Policy) -> None:
    less = Policy(
        policy.name, policy.family, policy.compiler, policy.read_from,
        {name: rule for name, rule in policy.rules.items() if name != "prefill-scores"},
    )  # fmt: skip
    with pytest.raises(KeyError):
        serving.moments(program(case("llama-3.2-1b", "prefill", seq=64)), less)
