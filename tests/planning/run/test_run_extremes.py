"""Numbers at the edge of what is accepted: a plan is refused or comes out whole, without a fault or a warning."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxcost.contracts.errors import RejectedError
from jaxcost.planning.run import plan_run, read_inputs
from jaxcost.planning.run.document import plan_document
from jaxcost.planning.run.inputs import SPECS
from jaxcost.report.run_plan_page import run_plan_page
from jaxcost.schema import schema
from tests.planning.run.plans import SCENARIO

FREE = {name: value for name, value in SCENARIO.items() if name != "tokens"}
EDGES = ("1e-40", "1e-20", "1e-9", "0", "0.5", "0.999999", "1", "2", "1e9", "1e15", "1e20", "1e40")
RANGES = [{"value": edge, "low": "0", "high": "1e40"} for edge in EDGES]
VALIDATOR = jsonschema.Draft202012Validator(schema("jaxcost.plan_run.v1"))


@settings(max_examples=150)
@given(changes=st.dictionaries(st.sampled_from(sorted(SPECS)), st.sampled_from([*EDGES, *RANGES]), max_size=4))
def test_a_plan_is_refused_or_whole(changes: dict[str, Any]) -> None:
    price = {"price": {"value": "5", "low": "1e-9", "high": "1e20", "date": "2026-10"}} if "price" in changes else {}
    try:
        body = plan_document(plan_run(read_inputs({**SCENARIO, **changes, **price})))
    except RejectedError as error:
        assert all(problem.rule and problem.remedy for problem in error.problems)
        return
    data = {"schema": "jaxcost.plan_run.v1", "jaxcost": "0", **body}
    json.dumps(data, allow_nan=False)
    VALIDATOR.validate(data)
    assert run_plan_page(data).startswith("<!doctype html>")


@pytest.mark.parametrize("few", [{"days": "1e-30"}, {"mfu": "1e-40"}])
def test_a_budget_that_reaches_no_token(few: dict[str, Any]) -> None:
    made = plan_run(read_inputs({**FREE, **few}))
    VALIDATOR.validate({"schema": "jaxcost.plan_run.v1", "jaxcost": "0", **plan_document(made)})
    found = made.sheet.value("stage_tokens", "main")
    assert found.reason == "the budget reaches no whole token"
    assert made.known("affordable_tokens") > 0 and made.known("total_tokens") is None


def test_a_range_that_ends_at_no_token() -> None:
    mfu = {"value": "0.4", "low": "1e-40", "high": "0.5"}
    VALIDATOR.validate(
        {"schema": "jaxcost.plan_run.v1", "jaxcost": "0", **plan_document(plan_run(read_inputs({**FREE, "mfu": mfu})))}
    )
