from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxcost.observation.hlo import read_hlo
from tests.observation.hlo.building import Program, array, dump, loop


def test_a_product_reads_its_operands_and_writes_its_result():
    data, _ = dump(jnp.matmul, array(32, 64), array(64, 16))
    traffic = read_hlo(data, platform="cpu").traffic
    assert traffic.read_bytes["contraction"].value == (32 * 64 + 64 * 16) * 4
    assert traffic.write_bytes["contraction"].value == 32 * 16 * 4
    assert traffic.total_read_bytes.value == sum(total.value for total in traffic.read_bytes.values())


def test_a_loop_reads_one_layer_per_trip():
    def layers(x, ws):
        return jax.lax.scan(lambda c, w: (jnp.sin(c) + w, c), x, ws)

    data, _ = dump(layers, array(1024), array(50, 1024))
    traffic = read_hlo(data, platform="cpu").traffic
    one = 1024 * 4
    read = traffic.total_read_bytes.value + traffic.total_write_bytes.value
    assert 50 * 4 * one <= read <= 50 * 12 * one  # a stack read whole in each trip would be 50 * 50 layers


def test_slices_fused_or_not():
    program = Program()
    inside = program.computation("fused", fusion=True)
    stack = program.add("parameter", ("f32", 50, 1024), parameter_number=0)
    index = program.add("parameter", ("s32",), parameter_number=1)
    update = program.add("parameter", ("f32", 1, 1024), parameter_number=2)
    zero = program.constant(0)
    program.add("dynamic-update-slice", ("f32", 50, 1024), [stack, update, index, zero])
    program.computation("entry")
    stack = program.add("parameter", ("f32", 50, 1024), parameter_number=0)
    index = program.constant(3)
    part = program.add("dynamic-slice", ("f32", 1, 1024), [stack, index, index])
    program.add("fusion", ("f32", 50, 1024), [stack, index, part], [inside])
    traffic = read_hlo(program.bytes(), platform="cuda").traffic
    layer = 4096
    assert traffic.total_read_bytes.value == 2 * (layer + 4)  # each reads a layer and an index
    assert traffic.total_write_bytes.value == 2 * layer


def sums(traffic):
    return traffic.total_read_bytes.value, traffic.total_write_bytes.value, traffic.total_on_chip_bytes.value


def test_a_slice_is_as_many_bytes_as_it_takes_wherever_its_source_lies():
    program = Program()
    program.computation("entry")
    stack = program.add("parameter", ("f32", 50, 1024))
    index = program.constant(3)
    program.add("dynamic-slice", ("f32", 1, 1024), [stack, index, index])
    layer = 4096
    assert sums(read_hlo(program.bytes(), platform="tpu").traffic) == (layer + 4, layer, 0)
    program.open.instructions[0].shape.layout.memory_space = 1  # the stack is on the chip: the index alone is read
    assert sums(read_hlo(program.bytes(), platform="tpu").traffic) == (4, layer, layer)


def test_an_update_in_place_writes_the_update():
    program = Program()
    program.computation("entry")
    stack = program.add("parameter", ("f32", 50, 1024), parameter_number=0)
    update = program.add("parameter", ("f32", 1, 1024), parameter_number=1)
    index = program.constant(3)
    program.add("dynamic-update-slice", ("f32", 50, 1024), [stack, update, index, index])
    layer = 4096
    traffic = read_hlo(program.bytes(), platform="tpu").traffic
    assert sums(traffic) == (layer, layer, 0)
    assert traffic.write_bytes["copy"].value == layer


def test_a_fusion_in_a_fusion_that_slices_reads_the_slice():
    program = Program()
    cut = program.computation("cut", fusion=True)
    stack = program.add("parameter", ("f32", 50, 1024), parameter_number=0)
    index = program.add("parameter", ("s32",), parameter_number=1)
    program.add("dynamic-slice", ("f32", 1, 1024), [stack, index, index])
    outer = program.computation("outer", fusion=True)
    stack = program.add("parameter", ("f32", 50, 1024), parameter_number=0)
    index = program.add("parameter", ("s32",), parameter_number=1)
    layer = program.add("fusion", ("f32", 1, 1024), [stack, index], [cut])
    program.add("negate", ("f32", 1, 1024), [layer])
    program.computation("entry")
    stack = program.add("parameter", ("f32", 50, 1024), parameter_number=0)
    program.add("fusion", ("f32", 1, 1024), [stack, program.constant(3)], [outer])
    assert sums(read_hlo(program.bytes(), platform="cuda").traffic) == (4096 + 4, 4096, 0)


def test_bookkeeping_moves_nothing_and_on_chip_bytes_stand_apart():
    program = Program()
    loop(program, 0, 1, 5, "LT", per_trip=lambda p: p.add("negate", ("f32", 256), [p.add("constant", ("f32", 256))]))
    reading = read_hlo(program.bytes(), platform="tpu")
    assert reading.traffic.write_bytes["other"].value == 5 * (1024 + 4) + 6  # negate and add; compare runs once more
    for computation in program.module.computations:
        for at in computation.instructions:
            if at.opcode == "negate":
                at.shape.layout.memory_space = 1
    moved = read_hlo(program.bytes(), platform="tpu")
    assert moved.traffic.total_on_chip_bytes.value == 5 * 1024
    assert moved.traffic.write_bytes["other"].value == reading.traffic.write_bytes["other"].value - 5 * 1024


def test_an_uncounted_loop_makes_traffic_unknown():
    program = Program()
    loop(program, 0, 0, 5, "LT", per_trip=lambda p: p.add("negate", ("f32", 256), [p.add("constant", ("f32", 256))]))
    traffic = read_hlo(program.bytes(), platform="cpu").traffic
    assert traffic.write_bytes["other"].value is None
    assert traffic.read_bytes["fusion"].value == 0
