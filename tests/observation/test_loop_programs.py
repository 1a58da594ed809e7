"""Loops and branches of every kind, compiled for each target: the module, the jaxpr and the program agree."""

from __future__ import annotations

import jax
import pytest

from jaxcost.observation.hlo import Total, read_hlo
from jaxcost.observation.hlo.schema import message
from jaxcost.observation.jaxpr import count_jaxpr
from jaxcost.observation.pool import Pool, request_for
from jaxcost.observation.targets import parse_target
from tests.observation.loop_programs import PRODUCT, PROGRAMS

TASKS = "tests.observation.loop_programs"
CUDA, TPU = pytest.mark.cuda, pytest.mark.tpu
TARGETS = [pytest.param("cpu:1"), pytest.param("h100:1", marks=CUDA), pytest.param("tpu-v5e:1x1", marks=TPU)]


@pytest.fixture(scope="module")
def compiled():
    """A function: the module of each program named, on a target, with compiler options."""
    with Pool(size=1, allow=(TASKS,), timeout_seconds=600) as pool:
        made = {}

        def get(target, names, **options):
            key = target, tuple(sorted(options.items()))
            if key not in made:
                payload = {"target": target, "names": list(names), "options": options}
                request = request_for(parse_target(target), f"{TASKS}:compile_loops", payload)
                made[key] = dict(zip(names, pool.value(request), strict=True))
            return made[key]

        yield get


def read(data, target, **options):
    return read_hlo(data, platform=parse_target(target).family, **options)


def executed(reading):
    """FLOPs of products, whether or not the compiler kept them products."""
    return reading.flops + reading.contractions.strength_reduced_total


def expected(amount):
    low, high = amount if isinstance(amount, tuple) else (amount, amount)
    return Total(low * PRODUCT, high * PRODUCT)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("target", TARGETS)
def test_the_module_executes_what_the_program_says(compiled, target, name):
    reading = read(compiled(target, list(PROGRAMS))[name], target)
    amount = PROGRAMS[name][2]
    if amount is None:
        assert executed(reading).minimum is None
        (loop,) = (loop for loop in reading.loops if loop.trips is None)
        assert loop.source == "unknown" and loop.maximum is None
        assert "run-time" in executed(reading).reason and loop.reason in reading.unknowns
        assert executed(read(compiled(target, [])[name], target, trips={loop.instruction: 5})).value == 5 * PRODUCT
    else:
        assert executed(reading) == expected(amount)
        assert bool(reading.unknowns) == (isinstance(amount, tuple) and "bounded" in name)


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_jaxpr_says_the_same(name):
    function, arguments, amount = PROGRAMS[name]
    found = count_jaxpr(jax.make_jaxpr(function)(*arguments))
    if amount is None:
        assert found.total.minimum is None and "no static trip count" in found.unknowns[0]
    else:
        assert found.total == expected(amount) and found.unknowns == ()


@pytest.mark.parametrize("target", TARGETS)
def test_without_what_xla_declares_the_loops_themselves_say_it(compiled, target):
    for name, data in compiled(target, list(PROGRAMS)).items():
        proto = message("HloProto")
        proto.ParseFromString(data)
        for at in (at for computation in proto.hlo_module.computations for at in computation.instructions):
            if at.opcode == "while":
                at.backend_config = b""
        again = read(proto.SerializeToString(), target)
        assert again.flops == read(data, target).flops or again.flops.minimum is None, name
        assert "declared" not in {loop.source for loop in again.loops}
        assert [loop.trips for loop in again.loops] == [loop.trips for loop in read(data, target).loops], name


@pytest.mark.cuda
@pytest.mark.parametrize("how", ["DOUBLE_BUFFER", "FULL_UNROLL", "AUTO_UNROLL"])
def test_loops_that_the_compiler_unrolls(compiled, how):
    names = ["forward", "gradient", "triangle", "every third trip", "scan in scan", "bounded, with an exit"]
    option = f"WHILE_LOOP_UNROLLING_{how}"
    for name, data in compiled("h100:1", names, xla_gpu_enable_while_loop_unrolling=option).items():
        assert executed(read(data, "h100:1")) == expected(PROGRAMS[name][2]), name


def test_one_constant_more_is_another_count(compiled):
    proto = message("HloProto")
    proto.ParseFromString(compiled("cpu:1", list(PROGRAMS))["down by three"])
    (changed,) = [
        at
        for computation in proto.hlo_module.computations
        for at in computation.instructions
        if at.opcode == "constant" and list(at.literal.s32s) == [11]
    ]
    changed.literal.s32s[0] = 14
    reading = read(proto.SerializeToString(), "cpu:1")
    assert reading.flops.value is None and "declares 4 trips" in reading.loops[0].reason
