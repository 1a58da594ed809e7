from __future__ import annotations

import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

from jaxcost.contracts.errors import RejectedError
from jaxcost.observation.hlo import read_hlo
from jaxcost.observation.hlo.reading import Argument, Result
from tests.observation.hlo.building import Program, array, dot, dump, loop


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


def test_arguments_and_results_have_their_path_shape_and_bytes():
    program = Program()
    program.computation("entry")
    x = program.add("parameter", ("bf16", 3, 5), parameter_number=0, op_name="x")
    tiled = program.open.instructions[-1].shape.layout.tiles.add()
    tiled.dimensions.extend([8, 128])  # stored as 8 rows of 128
    n = program.add("parameter", ("s32",), parameter_number=1, op_name="state['n']")
    program.add("tuple", [("s32",), ("bf16", 3, 5)], [n, x])
    reading = read_hlo(program.bytes(), platform="tpu")
    assert reading.arguments == (
        Argument(0, "x", "bf16[3,5]", 8 * 128 * 2, 3 * 5 * 2), Argument(1, "state['n']", "s32[]", 4, 4),
    )  # fmt: skip
    assert reading.results == (Result("s32[]", 4, 4), Result("bf16[3,5]", 30, 30))


def test_groups_of_collectives_are_listed_once():
    program = Program()
    program.module.device_assignment.computation_count = 4
    program.computation("entry")
    x = program.add("parameter", ("f32", 8))
    near, far = [[0, 1], [2, 3]], [[0, 2], [1, 3]]
    for channel, groups in enumerate((near, far, near), start=1):
        listed = {"replica_groups": [{"replica_ids": group} for group in groups]}
        x = program.add(
            "all-gather", ("f32", 8), [x], dimensions=[0], channel_id=channel, collective_device_list=listed
        )
    plain = read_hlo(program.bytes(), platform="cuda").to_dict()["collectives"]
    assert plain["groups"] == [near, far]
    assert [row["groups"] for row in plain["rows"]] == [0, 1, 0]


@pytest.mark.parametrize("count", [-1, 2.0, True, "3", None])
def test_a_supplied_trip_count_is_a_whole_number(count):
    with pytest.raises(RejectedError, match=r"trips\.while\.1"):
        read_hlo(looped().bytes(), platform="tpu", trips={"while.1": count})


def test_a_supplied_trip_count_may_be_nought():
    def flops(count):
        return read_hlo(looped().bytes(), platform="tpu", trips={"while.1": count}).flops.value

    assert [flops(0), flops(1), flops(7)] == [0, 48, 7 * 48]


def looped() -> Program:
    """A loop whose bound nothing tells, around a product of 2 x 3 and 3 x 4."""
    program = Program()
    loop(program, 0, 0, 5, "LT", per_trip=lambda p: dot(p, 2, 3, 4))
    return program


def test_reading_imports_no_jax():
    code = "import sys, jaxcost.observation.hlo; print([m for m in ('jax', 'jaxlib') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_the_same_counts_with_optimisation_off():
    def loss(ws, x):
        return jnp.sum(jax.lax.scan(lambda c, w: (jnp.tanh(c @ w), None), x, ws)[0])

    arguments = array(4, 32, 32), array(8, 32)
    full = read_hlo(dump(jax.grad(loss), *arguments)[0], platform="cpu")
    fast = read_hlo(dump(jax.grad(loss), *arguments, options={"xla_backend_optimization_level": 0})[0], platform="cpu")
    assert full.flops.value == fast.flops.value == 3 * 2 * 8 * 32 * 32 * 4
