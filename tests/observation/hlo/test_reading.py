from __future__ import annotations

import json
import subprocess
import sys

import jax
import jax.numpy as jnp

from jaxcost.observation.hlo import read_hlo
from tests.observation.hlo.building import Program, array, dot, dump


def test_a_reading_is_json_and_reads_alike_from_both_protos():
    def fn(x, w):
        return jnp.tanh(x @ w) @ w

    data, compiled = dump(fn, array(8, 16), array(16, 16))
    reading = read_hlo(data, platform="cpu")
    plain = json.loads(json.dumps(reading.to_dict()))
    assert plain["contractions"]["total"] == reading.flops.value == 2 * 2 * 8 * 16 * 16
    assert [a["path"] for a in plain["arguments"]] == ["x", "w"]
    bare = compiled.runtime_executable().hlo_modules()[0].as_serialized_hlo_module_proto()
    other = read_hlo(bare, platform="cpu")
    assert other.contractions.by_place == reading.contractions.by_place
    assert other.traffic.read_bytes == reading.traffic.read_bytes


def test_source_lines_point_at_the_program():
    data, _ = dump(lambda x, w: x @ w, array(8, 16), array(16, 16))
    (row,) = read_hlo(data, platform="cpu").contractions.rows
    assert row.source.rsplit("/")[-1].startswith("test_reading.py:")


def test_xla_rematerialisation_is_named():
    program = Program()
    program.computation("entry")
    dot(program, 2, 3, 4)
    program.open.instructions[-1].name = "dot.1.remat2"
    reading = read_hlo(program.bytes(), platform="cuda")
    assert reading.xla_remat == ("dot.1.remat2",)
    assert reading.contractions.rows[0].remat


def test_reading_imports_no_jax():
    code = "import sys, jaxcost.observation.hlo; print([m for m in ('jax', 'jaxlib', 'numpy') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_the_same_counts_with_optimisation_off():
    def loss(ws, x):
        return jnp.sum(jax.lax.scan(lambda c, w: (jnp.tanh(c @ w), None), x, ws)[0])

    arguments = array(4, 32, 32), array(8, 32)
    full = read_hlo(dump(jax.grad(loss), *arguments)[0], platform="cpu")
    fast = read_hlo(dump(jax.grad(loss), *arguments, options={"xla_backend_optimization_level": 0})[0], platform="cpu")
    assert full.flops.value == fast.flops.value == 3 * 2 * 8 * 32 * 32 * 4
