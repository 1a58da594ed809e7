"""Policies are strict records: whole numbers or yes and no, each with a reason and the cases it was read from."""

from __future__ import annotations

import pytest

from jaxcost.contracts.errors import RejectedError
from jaxcost.prediction.peak.policy import FILES, parse_policy, policy_for

GOOD = """
schema = "jaxcost.peak.v1"
name = "p"
family = "cuda"
compiler = "c"
read_from = "cases"

[[rules]]
id = "copies"
value = 2
alternatives = [1, 2, 4]
reason = "why"
evidence = [{ case = "a model --phase training", module = "ab12", seen = "two" }]
"""


def test_a_rule_has_its_value_among_its_alternatives() -> None:
    rule = parse_policy(GOOD).rule("copies")
    assert (rule.low, rule.value, rule.high) == (1, 2, 4)
    assert rule.evidence[0].seen == "two"


@pytest.mark.parametrize(
    ("old", "new", "path"),
    [
        ("value = 2", "value = 3", "alternatives"),
        ("value = 2", "value = 2.5", "value"),
        ("value = 2", "value = true", "value"),
        ("value = 2", "value = -2", "value"),
        ("[1, 2, 4]", "[1, 2, 2]", "alternatives"),
        ('reason = "why"', 'reason = "why"\nweight = 1', "weight"),
        ('reason = "why"\n', "", "reason"),
        ('seen = "two"', 'found = "two"', "found"),
        (
            'evidence = [{ case = "a model --phase training", module = "ab12", seen = "two" }]',
            "evidence = []",
            "evidence",
        ),
        ('family = "cuda"', 'family = "mainframe"', "family"),
        ('name = "p"', 'name = "p"\nfitted = 1.02', "fitted"),
        ('schema = "jaxcost.peak.v1"', 'schema = "other"', "schema"),
    ],
)
def test_anything_else_is_refused(old: str, new: str, path: str) -> None:
    assert old in GOOD
    with pytest.raises(RejectedError) as refused:
        parse_policy(GOOD.replace(old, new))
    assert any(path in problem.path for problem in refused.value.problems)


def test_a_rule_given_twice_is_refused() -> None:
    rule = GOOD[GOOD.index("[[rules]]") :]
    with pytest.raises(RejectedError, match="twice"):
        parse_policy(GOOD + rule)


def test_text_that_is_no_table_is_refused() -> None:
    with pytest.raises(RejectedError, match="TOML"):
        parse_policy("rules = [")


def test_the_packaged_cuda_policy_loads_and_names_real_evidence() -> None:
    policy = policy_for("cuda")
    assert policy is not None
    assert policy.family == "cuda"
    for rule in policy.rules.values():
        assert rule.low <= int(rule.value) <= rule.high
        for seen in rule.evidence:
            assert "--target h100:" in seen.case
            assert len(seen.module) >= 12


def test_a_family_without_a_policy_has_none() -> None:
    assert "cpu" not in FILES
    assert policy_for("cpu") is None
