"""Programs whose loops and branches decide their FLOPs, each with what it executes: a number of one product of
f32[8,64] by f32[64,64], or the fewest and most, or None where only the data know.

Named pairs, so that a worker compiles one by its name.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from jaxcost.observation.worker import task

PRODUCT = 2 * 8 * 64 * 64


def array(*dims, dtype="float32"):
    return jax.ShapeDtypeStruct(dims, dtype)


X, WS = array(8, 64), array(12, 64, 64)
N, P = array(dtype="int32"), array(dtype="bool")


def layer(x, w):
    return jnp.tanh(x @ w), None


def layers(x, ws, **options):
    return lax.scan(layer, x, ws, **options)[0]


def loss(x, ws):
    return jnp.sum(layers(x, ws))


def rematerialised(x, ws):
    return jnp.sum(lax.scan(jax.checkpoint(layer), x, ws)[0])


def unrolled(x, ws):
    for i in range(12):
        x, _ = layer(x, ws[i])
    return jnp.sum(x)


def twice(x, ws):
    return lax.scan(lambda c, _: (layers(c, ws), None), x, None, length=3)[0]


def counted(start, holds, step, trips_of_x=lambda c, ws, i: layer(c, ws[i % 12])[0]):
    """x under `while holds(i): i = step(i)`."""

    def program(x, ws):
        def body(s):
            return step(s[0]), trips_of_x(s[1], ws, jnp.int32(s[0]))

        return lax.while_loop(lambda s: holds(s[0]), body, (start, x))[1]

    return program


def until_small(x, ws):
    return lax.while_loop(lambda x: jnp.sum(x) > 1, lambda x: layer(x, ws[0])[0], x)


def at_most_seven(x, ws):
    def body(s):
        return s[0] + 1, layer(s[1], ws[s[0]])[0]

    return lax.while_loop(lambda s: (s[0] < 7) & (jnp.sum(s[1]) > 1), body, (0, x))[1]


def until_done(x, ws):
    def body(s):
        i, _, c = s
        c = layer(c, ws[i])[0]
        return i + 1, jnp.sum(c) > 3, c

    return lax.while_loop(lambda s: jnp.logical_and(s[0] < 7, jnp.logical_not(s[1])), body, (0, False, x))[2]


def two_counters(holds):
    def program(x, ws):
        def body(s):
            return s[0] + 1, s[1] - 2, layer(s[2], ws[s[0]])[0]

        return lax.while_loop(lambda s: holds(s[0], s[1]), body, (0, 11, x))[2]

    return program


@jax.custom_vjp
def own_rule(x, w):
    return jnp.tanh(x @ w)


own_rule.defvjp(lambda x, w: (own_rule(x, w), (x, w)), lambda kept, g: (g @ kept[1].T, kept[0].T @ g))


def inner_counts(inner):
    """A loop of 5 around `inner(i, x, ws)`."""
    return lambda x, ws: lax.fori_loop(0, 5, lambda i, c: inner(i, c, ws), x)


def chosen(index, *branches):
    """One of some branches in each of 12 trips, by the counter."""

    def program(x, ws):
        return lax.fori_loop(
            0, 12, lambda i, c: lax.switch(index(i), [lambda c, b=b: b(c, ws, i) for b in branches], c), x
        )

    return program


def once(c, ws, i):
    return layer(c, ws[i])[0]


def two(c, ws, i):
    return once(once(c, ws, i), ws, 0)


def none(c, ws, i):
    return c * 0.5


def by_table(x, ws):
    def body(c, each):
        w, use = each
        return lax.cond(use, lambda c: layer(c, w)[0], lambda c: c * 0.5, c), None

    return lax.scan(body, x, (ws, jnp.arange(12) % 4 == 1))[0]


def by_data(p, x, ws):
    return lax.cond(p, lambda x: layers(x, ws), lambda x: layers(x, ws[:5]), x)


PROGRAMS = {
    # The public report, and its siblings.
    "forward": (loss, (X, WS), 12),
    "gradient": (jax.grad(loss, (0, 1)), (X, WS), 36),
    "rematerialised gradient": (jax.grad(rematerialised, (0, 1)), (X, WS), 48),
    "unrolled": (unrolled, (X, WS), 12),
    "unrolled gradient": (jax.grad(unrolled, (0, 1)), (X, WS), 36),
    "scan in scan": (twice, (X, WS), 36),
    "gradient of scan in scan": (jax.grad(lambda x, ws: jnp.sum(twice(x, ws)), (0, 1)), (X, WS), 108),
    "scan in cond": (by_data, (P, X, WS), (5, 12)),
    "reverse": (lambda x, ws: layers(x, ws, reverse=True), (X, WS), 12),
    "two layers a trip": (lambda x, ws: layers(x, ws, unroll=2), (X, WS), 12),
    "five layers a trip": (lambda x, ws: layers(x, ws, unroll=5), (X, WS), 12),
    "run-time bound": (lambda n, x, ws: lax.fori_loop(0, n, lambda i, c: once(c, ws, i), x), (N, X, WS), None),
    "data-dependent exit": (until_small, (X, WS), None),
    "bounded, with an exit": (at_most_seven, (X, WS), (0, 7)),
    "bounded, with a flag": (until_done, (X, WS), (1, 7)),
    "map": (lambda x, ws: lax.map(lambda w: layer(x, w)[0], ws), (X, WS), 12),
    "map in batches": (lambda x, ws: lax.map(lambda w: layer(x, w)[0], ws, batch_size=4), (X, WS), 12),
    # Products of 64 x 64 (eight of the unit): 6 + 3 + 1 pairs on the way in, 5 + 2 + 1 on the way out.
    "associative scan": (lambda x, ws: lax.associative_scan(jnp.matmul, ws), (X, WS), 18 * 8),
    "own gradient rule": (
        jax.grad(lambda x, ws: jnp.sum(lax.scan(lambda c, w: (own_rule(c, w), None), x, ws)[0]), (0, 1)), (X, WS), 36,
    ),
    "scan of nothing": (lambda x, ws: layers(x, ws[:0]), (X, WS), 0),
    "scan of one": (lambda x, ws: layers(x, ws[:1]), (X, WS), 1),
    "gradient of a gradient": (jax.grad(lambda x, ws: jnp.sum(jax.grad(loss, 0)(x, ws)), 1), (X, WS), 72),
    # Counters.
    "no trip": (lambda x, ws: lax.fori_loop(5, 5, lambda i, c: once(c, ws, i), x), (X, WS), 0),
    "down by one": (counted(11, lambda i: i >= 0, lambda i: i - 1), (X, WS), 12),
    "down by three": (counted(11, lambda i: i > 1, lambda i: i - 3), (X, WS), 4),
    "up by three": (counted(0, lambda i: i < 12, lambda i: i + 3), (X, WS), 4),
    "until equal": (counted(0, lambda i: i != 12, lambda i: i + 4), (X, WS), 3),
    "doubled": (counted(1, lambda i: i < 100, lambda i: 2 * i), (X, WS), 7),
    "a float": (counted(0.0, lambda i: i < 6, lambda i: i + 1.5), (X, WS), 4),
    "a byte": (counted(jnp.uint8(0), lambda i: i < 7, lambda i: i + jnp.uint8(2)), (X, WS), 4),
    "towards each other": (two_counters(lambda i, j: i < j), (X, WS), 4),
    "whichever ends first": (two_counters(lambda i, j: (i < 9) & (j > 0)), (X, WS), 6),
    "whichever ends last": (two_counters(lambda i, j: (i < 9) | (j > 0)), (X, WS), 9),
    "triangle": (inner_counts(lambda i, c, ws: lax.fori_loop(0, i, lambda j, c: once(c, ws, j), c)), (X, WS), 10),
    "other triangle": (
        inner_counts(lambda i, c, ws: lax.while_loop(
            lambda s: s[0] < 5, lambda s: (s[0] + 1, once(s[1], ws, s[0])), (i, c))[1]), (X, WS), 15,
    ),
    # Branches.
    "constant predicate": (
        lambda x, ws: lax.cond(jnp.array(True), lambda x: two(x, ws, 1), lambda x: once(x, ws, 1), x), (X, WS), 2,
    ),
    "branch by data": (
        lambda i, x, ws: lax.switch(i, [lambda x: once(x, ws, 1), lambda x: two(x, ws, 1), lambda x: x], x),
        (N, X, WS), (0, 2),
    ),
    "every third trip": (chosen(lambda i: jnp.int32(i % 3 == 0), none, once), (X, WS), 4),
    "by turns": (chosen(lambda i: i % 3, once, two, none), (X, WS), 12),
    "from a trip on": (chosen(lambda i: jnp.int32(i >= 4), once, two), (X, WS), 20),
    "by a table": (by_table, (X, WS), 3),
}  # fmt: skip


@task
def compile_loops(payload):
    """The optimised modules of the named programs for a target."""
    from jaxcost.observation.compiling import compile_lowered, devices
    from jaxcost.observation.targets import parse_target

    target = parse_target(payload["target"])
    sharding = jax.sharding.SingleDeviceSharding(devices(target)[0])
    modules = []
    for name in payload["names"]:
        function, arguments, _ = PROGRAMS[name]
        placed = [jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=sharding) for a in arguments]
        lowered = jax.jit(function).lower(*placed)
        modules.append(compile_lowered(lowered, target, dump=False, options=payload["options"]).modules.optimised)
    return modules
