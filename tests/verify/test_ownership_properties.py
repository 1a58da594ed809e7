"""Ownership on meshes that the reference network does not execute too: stages, ZeRO, late gradients, offload."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jaxcost.contracts.case import Case
from jaxcost.contracts.execution import Execution, Fsdp, Pipeline
from jaxcost.verify import properties  # noqa: F401  registers the properties
from jaxcost.verify.holding import PROPERTIES, broken, variant
from jaxcost.verify.strategies import cases

NAMES = [name for name, item in PROPERTIES.items() if item.check.__module__.endswith("ownership_properties")]


@st.composite
def spread(draw: st.DrawFn) -> Case:
    """A training case with a pipeline, a ZeRO stage, groups, offload and late gradients, each now and then."""
    case = draw(cases(phase="training", ragged=False))
    mesh = dict(case.execution.mesh_sizes)
    layers, options = case.architecture.layer_count, dict[str, Any](remat=draw(st.sampled_from(("none", "block"))))
    size = draw(st.sampled_from((1, 2, 3)))
    if size > 1:
        mesh["pipeline"] = size
        virtual = draw(st.sampled_from((1, 2)))
        interleaved = virtual > 1 and case.workload.accumulate % size == 0
        stages = size * (virtual if interleaved else 1)
        cuts = sorted(draw(st.integers(0, layers)) for _ in range(stages - 1))
        options["pipeline_layers"] = [b - a for a, b in zip([0, *cuts], [*cuts, layers], strict=True)]
        options["pipeline_schedule"] = "interleaved" if interleaved else draw(st.sampled_from(("gpipe", "1f1b")))
        options["pipeline_virtual"] = virtual if interleaved else 1
        options["embedding_stage"] = draw(st.integers(-stages, stages - 1))
        options["head_stage"] = draw(st.integers(-stages, stages - 1))
    if mesh.get("data", 1) > 1:
        options["zero"] = draw(st.sampled_from((0, 1, 2, 3)))
    if mesh.get("fsdp", 1) > 1 or options.get("zero") == 3:
        options["fsdp_group"] = draw(st.sampled_from(("root", "block", "matrix")))
        options["reshard"] = draw(st.booleans())
        ahead = draw(st.integers(0, 2))
        options["prefetch"] = 0 if options["fsdp_group"] == "root" else ahead
    if case.workload.accumulate > 1:
        options["gradient_sync"] = draw(st.sampled_from(("every_microbatch", "last_microbatch")))
    stateful = ("optimizer",) if case.state.optimizer != "sgd" else ()
    options["offload"] = draw(st.lists(st.sampled_from(("parameter", "gradient", *stateful)), unique=True))
    return variant(case, mesh=mesh, **options)


# A draw builds a whole case, and drops meshes that its model does not divide: slow and filtered by design.
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(spread())
def test_spread_cases_keep_the_properties(case: Case) -> None:
    assert broken(case, NAMES) == []


@given(cases())
@settings(max_examples=25, deadline=None)
def test_defaults_leave_the_digest_alone(case: Case) -> None:
    """Writing a default out is the same case."""
    run = case.execution
    written = run.to_data()
    for name, default in (("fsdp", Fsdp()), ("pipeline", Pipeline())):
        if getattr(run, name) == default:
            written[name] = default.to_data()
    assert case.replaced(execution=Execution.from_data(written)).digest == case.digest


@pytest.mark.parametrize("field", ["fsdp", "pipeline", "offload", "gradient_sync", "head_multiple", "context_method"])
def test_a_case_without_the_new_fields_has_the_same_digest(field: str) -> None:
    from jaxcost.verify.failures.subjects import train

    data = train(mesh={"fsdp": 2}).to_data()
    data["execution"].pop(field, None)
    assert Case.from_data(data).digest == train(mesh={"fsdp": 2}).digest
