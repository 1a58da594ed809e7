"""What is shown to a reader names a line of the reader's own code, also where a library's line made the instruction."""

from __future__ import annotations

import jax
import optax
import pytest

import jaxcost
from jaxcost.audits import flops
from jaxcost.audits.evidence import Notes
from jaxcost.observation.pool import Pool
from tests.audits.test_attribution import evidence_of, stacked

LIBRARY = "/home/u/venv/lib/python3.12/site-packages/flax/nnx/nn/linear.py"


def array(*dims):
    return jax.ShapeDtypeStruct(dims, "float32")


@pytest.mark.parametrize(
    ("frames", "line"),
    [
        ([(LIBRARY, "Linear.__call__", 422), ("/home/u/net.py", "Block.__call__", 27)], "net.py:27"),
        ([("/home/u/net.py", "Block.__call__", 27)], "net.py:27"),
        ([(LIBRARY, "Linear.__call__", 422)], "flax/nnx/nn/linear.py:422"),
        ([], ""),
    ],
)
def test_the_innermost_line_outside_installed_packages(frames, line):
    evidence = evidence_of(stacked(frames).bytes())
    (at,) = (at for at in evidence.graph.module.walk() if at.opcode == "dot")
    assert evidence.user_source(at) == line
    (row,) = flops.section(evidence, Notes())["rows"]
    assert row["source"] == line
    if len(frames) > 1:  # the module itself names the library's
        assert evidence.graph.module.source(at) == f"{LIBRARY}:422"


def test_every_section_says_the_callers_line():
    """The line of the layer is optax's own; the call to it is this file's."""

    def step(x, labels):
        def body(c, _):
            return c + jax.grad(lambda x: optax.softmax_cross_entropy(x, labels).mean())(c), None

        return jax.lax.scan(body, x, length=3)[0]

    with Pool(size=1, allow=("jaxcost.audits",), timeout_seconds=600) as pool:
        data = jaxcost.audit(step, array(64, 512), array(64, 512), target="cpu", pool=pool).data
    memory = data["memory"]
    shown = [row["source"] for name in ("at_peak", "by_source") for row in memory[name]]
    shown += [row["source"] for row in memory["timeline"]["buffers"].values()]
    shown += [row["source"] for row in data["loops"]]
    found = {line for line in shown if line}
    assert found and all(line.startswith("test_user_source.py:") for line in found), found
