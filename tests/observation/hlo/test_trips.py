from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from jaxcost.contracts.errors import RejectedError
from jaxcost.observation.hlo import Total, read_hlo
from jaxcost.observation.hlo.schema import message
from tests.observation.hlo.building import Program, array, dot, dump, loop

WEIGHTS, X = array(12, 64, 64), array(8, 64)


def layers(x, ws):
    return jnp.sum(jax.lax.scan(lambda c, w: (jnp.tanh(c @ w), None), x, ws)[0])


def remat(x, ws):
    body = jax.checkpoint(lambda c, w: (jnp.tanh(c @ w), None))
    return jnp.sum(jax.lax.scan(body, x, ws)[0])


@pytest.mark.parametrize(
    "fn, flops",
    [
        (layers, 786_432),  # 2 * 8 * 64 * 64 * 12
        (jax.grad(layers, (0, 1)), 2_359_296),
        (jax.grad(remat, (0, 1)), 3_145_728),
    ],
)
def test_a_scan_counts_each_trip(fn, flops):
    data, compiled = dump(fn, X, WEIGHTS)
    reading = read_hlo(data, platform="cpu")
    assert reading.flops.value == flops
    assert {loop.trips for loop in reading.loops} == {12}
    assert compiled.cost_analysis()["flops"] < flops / 2  # XLA counts the body once


def without_declared_trips(data: bytes) -> bytes:
    proto = message("HloProto")
    proto.ParseFromString(data)
    for computation in proto.hlo_module.computations:
        for at in computation.instructions:
            if at.opcode == "while":
                at.backend_config = b""
    return proto.SerializeToString()


def nested(x, ws):
    def outer(c, w):
        return jax.lax.scan(lambda d, _: (jnp.tanh(d @ w), None), c, None, length=3)[0], None

    return jax.lax.scan(outer, x, ws[:6])[0]


@pytest.mark.parametrize(
    "fn, trips",
    [
        (layers, [12]),
        (jax.grad(layers, (0, 1)), [12, 12]),
        (lambda x, ws: jax.lax.scan(lambda c, w: (jnp.tanh(c @ w), None), x, ws, reverse=True)[0], [12]),
        (lambda x, ws: jax.lax.scan(lambda c, w: (jnp.tanh(c @ w), None), x, ws, unroll=2)[0], [6]),
        (lambda x, ws: jax.lax.fori_loop(2, 11, lambda i, c: jnp.tanh(c @ ws[i]), x), [9]),
        (nested, [3, 6]),
        (
            lambda x, ws: jax.lax.while_loop(lambda s: s[0] > 1, lambda s: (s[0] - 3, jnp.tanh(s[1] @ ws[0])), (11, x))[
                1
            ],
            [4],
        ),
    ],
)
def test_the_derived_count_is_the_declared_one(fn, trips):
    data, _ = dump(fn, X, WEIGHTS)
    declared = read_hlo(data, platform="cpu")
    derived = read_hlo(without_declared_trips(data), platform="cpu")
    assert sorted(loop.trips for loop in derived.loops) == trips
    assert {loop.source for loop in derived.loops} == {"derived"}
    assert derived.flops == declared.flops
    assert derived.flops.value


@pytest.mark.parametrize(
    "start, step, bound, direction, trips",
    [
        (0, 1, 5, "LT", 5), (0, 1, 5, "LE", 6), (0, 3, 10, "LT", 4), (10, -1, 0, "GT", 10), (10, -3, 0, "GE", 4),
        (0, 2, 8, "NE", 4), (0, 2, 7, "NE", None), (5, 1, 5, "EQ", 1), (7, 1, 5, "LT", 0), (0, -1, 5, "LT", None),
        (0, 0, 5, "LT", None),
    ],
)  # fmt: skip
def test_counting_up_down_and_never(start, step, bound, direction, trips):
    program = Program()
    loop(program, start, step, bound, direction, per_trip=lambda p: dot(p, 2, 3, 4))
    reading = read_hlo(program.bytes(), platform="tpu")
    assert reading.loops[0].trips == trips
    assert reading.flops.value == (None if trips is None else 48 * trips)


def test_a_run_time_bound_is_unknown_and_can_be_supplied():
    data, _ = dump(
        lambda n, x, ws: jax.lax.fori_loop(0, n, lambda i, c: jnp.tanh(c @ ws[i]), x), array(dtype="int32"), X, WEIGHTS
    )
    reading = read_hlo(data, platform="cpu")
    (found,) = reading.loops
    assert (found.trips, found.source) == (None, "unknown")
    assert reading.flops.value is None and reading.flops.minimum is None
    assert "run-time" in reading.flops.reason and reading.unknowns
    assert read_hlo(data, platform="cpu", trips={found.instruction: 7}).flops.value == 7 * 2 * 8 * 64 * 64
    with pytest.raises(RejectedError, match="whole number"):
        read_hlo(data, platform="cpu", trips={found.instruction: True})


def test_a_declared_count_that_its_scalars_contradict_is_unknown():
    program = Program()
    loop(program, 0, 1, 5, "LT", per_trip=lambda p: dot(p, 2, 3, 4))
    program.open.instructions[-1].backend_config = b'{"known_trip_count":{"n":"6"}}'
    reading = read_hlo(program.bytes(), platform="cpu")
    assert reading.flops.value is None
    assert "declares 6 trips" in reading.loops[0].reason
    program.open.instructions[-1].backend_config = b'{"known_trip_count":{"n":"5"}}'
    assert read_hlo(program.bytes(), platform="cpu").flops.value == 5 * 48


def test_branches_are_alternatives():
    def fn(p, x, w):
        return jax.lax.cond(p, lambda x: jnp.tanh(x @ w) @ w, lambda x: jnp.tanh(x @ w), x)

    data, _ = dump(fn, array(dtype="bool"), array(8, 64), array(64, 64))
    once = 2 * 8 * 64 * 64
    assert read_hlo(data, platform="cpu").flops == Total(once, 2 * once)
