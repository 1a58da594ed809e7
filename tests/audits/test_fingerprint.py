"""The digest of a module's structure: what changes it, and what does not."""

from __future__ import annotations

import pytest

from jaxcost.audits.evidence import gather
from jaxcost.audits.fingerprint import structure
from jaxcost.observation.sources import Program
from tests.observation.hlo.building import Program as ByHand


def digest(*, name="a", other="multiply", size=4, swapped=False, element=0, kind="kLoop", target="one", again=False):
    """Of a module with a fusion, a call, a tuple and a choice of its elements."""
    made = ByHand(name)
    shape = ("f32", size)
    inner = made.computation(f"{name}.fused", fusion=True)
    made.add("negate", shape, [made.add("parameter", shape)])
    made.computation(f"{name}.entry")
    one, two = (made.add("parameter", shape, parameter_number=n, op_name=f"{name}/x") for n in (0, 1))
    fused = made.add("fusion", shape, [two if swapped else one], [inner], fusion_kind=kind)
    called = made.add("custom-call", shape, [two], custom_call_target=target)
    pair = made.add("tuple", [shape, shape], [fused, called])
    chosen = made.add("get-tuple-element", shape, [pair], tuple_index=element)
    if again:
        made.add("abs", shape, [one])
    made.add(other, shape, [chosen, one])
    return structure(gather(Program("proto", name, made.bytes(), "cuda")).graph.module)


@pytest.mark.parametrize(
    "change",
    [{"other": "add"}, {"size": 5}, {"swapped": True}, {"element": 1}, {"kind": "kInput"}, {"target": "two"},
     {"again": True}],
)  # fmt: skip
def test_what_is_computed_changes_it(change):
    assert digest(**change) != digest()


def test_names_do_not_change_it():
    assert digest(name="b") == digest()
