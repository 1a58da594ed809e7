"""What XLA's rematerialisation pass believes: its own words, met to the byte."""

from __future__ import annotations

import os
import re

import jax
import jax.numpy as jnp
import pytest

from jaxcost.observation.hlo.module import read_module
from jaxcost.observation.hlo.rematerialisation import believed_bytes, border_bytes, limit_bytes, shape_bytes
from jaxcost.observation.hlo.schema import parse
from tests.observation.hlo.building import H100, Program, dump

WORDS = re.compile(r"below [^(]*\((-?\d+) bytes\).*reduced to [^(]*\((-?\d+) bytes\).*from [^(]*\((-?\d+) bytes\)")


def crowded(x, w):
    """Many products alive at once, none of which can be made again from less."""
    products = [jax.lax.dot(w * (i + 1), w) for i in range(24)]
    total = products[0]
    for product in reversed(products):
        total = jax.lax.dot(total, product)
    return x * 2 + total[0, 0], total[0, 0]


def compiled(memory, *, donate, options, capfd):
    """The module, and what the compiler printed, for one H100 of so much memory."""
    from jax.experimental import topologies

    description = H100.replace("84942979072", str(memory))
    device = topologies.get_topology_desc(
        platform="cuda", topology_name=f"gpu{memory}", topology="1x1x1", target_config=description
    ).devices[0]
    sharding = jax.sharding.SingleDeviceSharding(device)
    x = jax.ShapeDtypeStruct((16 << 20,), jnp.float32, sharding=sharding)
    w = jax.ShapeDtypeStruct((2048, 2048), jnp.float32, sharding=sharding)
    capfd.readouterr()
    data, _ = dump(jax.jit(crowded, donate_argnums=(0,) if donate else ()), x, w, options=options)
    return read_module(parse(data)[0]), capfd.readouterr().err


@pytest.mark.cuda
@pytest.mark.parametrize("donate", [True, False])
def test_the_limit_and_the_sum_are_those_that_the_compiler_prints(donate, capfd):
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL", "0") not in ("", "0", "1"):
        pytest.skip("the compiler's warnings are switched off")
    memory = 400_000_000
    module, printed = compiled(memory, donate=donate, options={}, capfd=capfd)
    found = WORDS.search(printed)
    assert found, printed[:500]
    limit, _, before = (int(number) for number in found.groups())
    results = shape_bytes(module.entry.root.shape)
    assert limit == limit_bytes(border_bytes(module), memory) + results
    plain, _ = compiled(memory, donate=donate, options={"xla_disable_hlo_passes": "rematerialization"}, capfd=capfd)
    assert believed_bytes(plain) == before - results


def test_a_module_without_a_schedule_has_no_sum():
    program = Program()
    program.computation("entry")
    program.add("parameter", ("f32", 4))
    module = read_module(parse(program.bytes())[0])
    assert believed_bytes(module) is None
    assert border_bytes(module) == 4 * 4 * 2


def test_a_result_counts_beside_the_operand_it_could_take_over():
    """Two values of a chain are alive at once by the pass's rule, and a view is no value of its own."""
    program = Program()
    program.computation("entry")
    x = program.add("parameter", ("f32", 8))
    first = program.add("negate", ("f32", 8), [x])
    view = program.add("bitcast", ("f32", 2, 4), [first])
    second = program.add("negate", ("f32", 2, 4), [view])
    third = program.add("negate", ("f32", 2, 4), [second])
    entry = program.module.entry_computation_id
    program.module.schedule.sequences.add(key=entry).value.instruction_ids.extend([x, first, view, second, third])
    module = read_module(parse(program.bytes())[0])
    assert believed_bytes(module) == 2 * 8 * 4  # `first` and `second`; the argument and the result are the caller's


def test_what_a_started_copy_carries_is_no_value_of_its_own():
    """A copy-start gives its result, its operand and a context; the result alone is new, and copy-done returns it."""
    program = Program()
    program.computation("entry")
    x = program.add("parameter", ("f32", 8))
    made = program.add("negate", ("f32", 8), [x])
    start = program.add("copy-start", [("f32", 8), ("f32", 8), ("u32",)], [made])
    done = program.add("copy-done", ("f32", 8), [start])
    last = program.add("negate", ("f32", 8), [done])
    entry = program.module.entry_computation_id
    program.module.schedule.sequences.add(key=entry).value.instruction_ids.extend([x, made, start, done, last])
    array, context, table = 8 * 4, 4, 3 * 8
    assert believed_bytes(read_module(parse(program.bytes())[0])) == 2 * array + context + table


def test_the_limit_never_falls_below_nothing():
    assert limit_bytes(0, 1000) == 760
    assert limit_bytes(900, 1000) == 0
