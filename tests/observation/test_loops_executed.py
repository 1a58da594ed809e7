"""Random programs of loops and branches, run for real: the products they execute are the products counted."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from jaxcost.observation.hlo import read_hlo
from jaxcost.observation.jaxpr import count_jaxpr
from jaxcost.observation.private import optimised_proto

PRODUCT = 2 * 8 * 16 * 16

leaves = st.just(("product",))
small = st.integers(0, 4)


def nested(inner):
    bodies = inner
    return st.one_of(
        st.tuples(st.just("after"), bodies, bodies),
        st.tuples(st.just("fori"), small, small, bodies),
        st.tuples(st.just("scan"), small, st.booleans(), bodies),
        st.tuples(st.just("down"), small, st.integers(1, 3), bodies),
        st.tuples(st.just("up to the counter"), bodies),
        st.tuples(st.just("bounded twice"), small, small, bodies),
        st.tuples(st.just("every"), st.integers(1, 3), st.integers(0, 2), bodies, bodies),
        st.tuples(st.just("from"), small, bodies, bodies),
    )


programs = st.recursive(leaves, nested, max_leaves=5)


def run(program, i, state, w):
    """The state (array, products executed) after a program, where `i` is the innermost counter."""
    kind = program[0]
    if kind == "product":
        x, products = state
        return jnp.tanh(x @ w), products + 1
    if kind == "after":
        return run(program[2], i, run(program[1], i, state, w), w)
    if kind == "fori":
        return lax.fori_loop(program[1], program[1] + program[2], lambda j, s: run(program[3], j, s, w), state)
    if kind == "scan":
        numbers = jnp.arange(program[1])
        return lax.scan(lambda s, j: (run(program[3], j, s, w), None), state, numbers, reverse=program[2])[0]
    if kind == "down":
        start, step = 3 * program[1], program[2]
        return lax.while_loop(
            lambda s: s[0] > 0, lambda s: (s[0] - step, run(program[3], s[0], s[1], w)), (start, state)
        )[1]
    if kind == "up to the counter":
        return lax.while_loop(lambda s: s[0] < i, lambda s: (s[0] + 1, run(program[1], s[0], s[1], w)), (0, state))[1]
    if kind == "bounded twice":
        return lax.while_loop(
            lambda s: (s[0] < program[1]) & (s[1] > 0),
            lambda s: (s[0] + 1, s[1] - 2, run(program[3], s[0], s[2], w)),
            (0, program[2], state),
        )[2]
    holds = i % program[1] == program[2] if kind == "every" else i >= program[1]
    taken, other = program[-2:]
    return lax.cond(holds, lambda s: run(taken, i, s, w), lambda s: run(other, i, s, w), state)


@settings(max_examples=12)
@given(programs)
def test_what_runs_is_what_is_counted(program):
    def whole(x, w):
        return lax.fori_loop(0, 3, lambda i, s: run(program, i, s, w), (x, jnp.int32(0)))

    x, w = jnp.ones((8, 16)), jnp.eye(16)
    traced = jax.jit(whole).trace(x, w)
    compiled = traced.lower().compile()
    executed = int(compiled(x, w)[1])
    reading = read_hlo(optimised_proto(compiled), platform="cpu")
    assert reading.unknowns == ()
    assert reading.flops.value == executed * PRODUCT
    assert count_jaxpr(traced.jaxpr).total.value == executed * PRODUCT


def test_a_counted_product_that_does_not_run_would_be_seen():
    x, w = jnp.ones((8, 16)), jnp.eye(16)
    program = ("fori", 0, 3, ("every", 2, 0, ("product",), ("after", ("product",), ("product",))))
    compiled = jax.jit(lambda x, w: run(program, 0, (x, jnp.int32(0)), w)).lower(x, w).compile()
    assert int(compiled(x, w)[1]) == 2 * 1 + 1 * 2
    (conditional,) = read_hlo(optimised_proto(compiled), platform="cpu").conditionals
    assert conditional.decided and sorted(total.value for total in conditional.executions) == [1, 2]
