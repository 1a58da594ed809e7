"""When a second compile is made: where XLA would recompute in silence, long before a program exceeds its device."""

from __future__ import annotations

from dataclasses import replace

import pytest

import jaxcost
from jaxcost.observation import tasks
from jaxcost.observation.compiling import compile_lowered, make_mesh
from jaxcost.observation.hlo.rematerialisation import limit_bytes
from jaxcost.observation.sections import hlo_sections, known_scopes
from jaxcost.observation.targets import parse_target
from jaxcost.reference.step import make_step


@pytest.mark.cuda
def test_above_the_silent_limit_a_program_that_fits_is_compiled_again() -> None:
    case = jaxcost.training(jaxcost.load("toy-tied"), batch=2, seq=8)
    target = parse_target("h100:1")
    lowered = make_step(case, make_mesh(target, case.execution.mesh_sizes)).trace().lower()
    first = compile_lowered(lowered, target)
    sections = hlo_sections(
        first.modules.optimised or b"", target, mesh=case.execution.mesh_sizes, scopes=known_scopes(case)
    )
    memory = sections["memory"]
    # A device that the program just fills: required is within it, temporaries are above the limit.
    full = replace(target, device_memory_bytes=memory["required_bytes"])
    seen = tasks._rematerialisation(lowered, full, first, sections, case, True)
    assert (seen["needed"], seen["expected"]) == (False, True)
    assert seen["limit_bytes"] == limit_bytes(memory["border_bytes"], memory["required_bytes"]) < seen["believed_bytes"]
    assert seen["second_compile"]["status"] == "compiled"
    # The real one has room to spare: one compile says all.
    seen = tasks._rematerialisation(lowered, target, first, sections, case, True)
    assert (seen["needed"], seen["expected"], seen["second_compile"]) == (False, False, None)
