"""Resharding after the forward pass: the backward pass gathers weights again, and no product is computed twice."""

from __future__ import annotations

import jax
import pytest

from jaxcost.observation.hlo import read_hlo
from jaxcost.observation.jaxpr import count_jaxpr
from jaxcost.reference import make_mesh, make_step
from tests.reference.small import ARCHITECTURES, LITTLE_EFFORT, make_case


def step_of(name, **options):
    case = make_case(ARCHITECTURES[name], batch=8, seq=8, mesh={"fsdp": 8}, **options)
    return make_step(case, make_mesh(case, jax.devices()))


def gathers_after_forward(step):
    """All-gathers that the compiled step runs after its forward pass."""
    program = step.trace().lower().compile(compiler_options=LITTLE_EFFORT)
    module = program.runtime_executable().hlo_modules()[0].as_serialized_hlo_module_proto()
    rows = read_hlo(module, platform="cpu").collectives.rows
    return sum(row.executions.value for row in rows if row.kind == "all-gather" and row.phase != "forward")


@pytest.mark.parametrize("layers", ["scan", "unrolled"])
def test_weights_are_gathered_again_and_no_product_is_repeated(layers):
    again, kept = (step_of("llama", layers=layers, reshard=reshard) for reshard in (True, False))
    assert count_jaxpr(again.trace().jaxpr).by_phase == count_jaxpr(kept.trace().jaxpr).by_phase
    matrices = 7 * 3  # of three layers
    assert gathers_after_forward(again) == matrices
    assert gathers_after_forward(kept) == 0


@pytest.mark.parametrize("remat", ["everything", "everything_saveable"])
def test_other_policies_that_keep_weights_reshard_too(remat):
    again, kept = (
        count_jaxpr(step_of("neox", remat=remat, reshard=reshard).trace().jaxpr) for reshard in (True, False)
    )
    assert again.by_phase == kept.by_phase


def test_a_policy_that_replays_the_layer_is_left_as_it_is():
    texts = {step_of("llama", remat="block", reshard=reshard).trace().lower().as_text() for reshard in (True, False)}
    assert len(texts) == 1
