"""Where an instruction without a name belongs: by what feeds it and what it feeds."""

from __future__ import annotations

import pytest

from jaxcost.observation.hlo.module import read_module
from jaxcost.observation.hlo.origins import Places
from tests.observation.hlo.building import Program

BACKWARD = "jit(f)/transpose(jvp())/dot_general"


def program(frame: str, *, scope: str = "") -> Program:
    """A nameless operation inside a frame without a name, fed by a named operation outside it."""
    made = Program()
    inner = made.computation("inner")
    value = made.add("parameter", ("f32", 8), parameter_number=0)
    made.add("negate", ("f32", 8), [value])
    made.computation("entry")
    data = made.add("parameter", ("f32", 8), parameter_number=0)
    fed = made.add("exponential", ("f32", 8), [data])
    name = BACKWARD.replace("/dot_general", f"/{scope}/dot_general") if scope else BACKWARD
    made.module.computations[-1].instructions[-1].metadata.op_name = name
    made.add(frame, ("f32", 8), [fed], [inner])
    return made


@pytest.mark.parametrize("scope", ["", "layer"])
@pytest.mark.parametrize("frame", ["fusion", "call", "async-start"])
def test_what_has_no_name_takes_the_phase_of_what_feeds_it(frame, scope):
    module = read_module(program(frame, scope=scope).module)
    (at,) = (at for at in module.walk() if at.opcode == "negate")
    for names in (None, module.op_names()):
        found = Places(None, names).of(at)
        assert (found.scope, found.phase, found.exact) == (scope, "backward", False)


def test_where_no_name_tells_anything_nothing_is_asked():
    module = read_module(program("fusion").module)
    (at,) = (at for at in module.walk() if at.opcode == "negate")
    found = Places(None, ["jit(f)/exp", ""]).of(at)
    assert (found.scope, found.phase, found.exact) == ("", "forward", False)
