from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from jaxcost.contracts.errors import RejectedError
from jaxcost.observation.hlo import Total, read_hlo
from jaxcost.observation.hlo.flops import count_flops
from jaxcost.observation.hlo.module import read_module
from jaxcost.observation.hlo.reading import read_graph
from jaxcost.observation.hlo.schema import message, parse, split
from jaxcost.observation.hlo.trips import exact, read_executions
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
        (0, 2, 8, "NE", 4), (0, 2, 7, "NE", None), (5, 1, 5, "EQ", 1), (5, -1, 5, "EQ", 1), (7, 1, 5, "LT", 0),
        (0, -1, 5, "LT", None), (0, 0, 5, "LT", None),
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


def counting(program: Program, dtype: str, start: bytes, bound: bytes, direction: str, opcode: str, by: bytes) -> None:
    """A loop over one scalar of any integer type, `i = i <opcode> by` while `direction` holds of the bound."""

    def constant(value: bytes) -> int:
        made = program.add("constant", (dtype,))
        literal = program.open.instructions[-1].literal
        if dtype in ("s8", "u8", "s16", "u16"):  # packed, as XLA packs them
            setattr(literal, f"{dtype}s", value)
        else:
            getattr(literal, f"{dtype}s").append(int.from_bytes(value, "little", signed=dtype[0] == "s"))
        return made

    body = program.computation("body")
    counter = program.add("parameter", (dtype,))
    program.add(opcode, (dtype,), [counter, constant(by)])
    condition = program.computation("condition")
    counter = program.add("parameter", (dtype,))
    program.add("compare", ("pred",), [counter, constant(bound)], comparison_direction=direction)
    program.computation("entry")
    program.add("while", (dtype,), [constant(start)], [body, condition])


def little(value: int, size: int) -> bytes:
    return value.to_bytes(size, "little", signed=value < 0)


@pytest.mark.parametrize(
    "dtype, start, bound, direction, opcode, by, trips",
    [
        ("s32", 10, 0, "GT", "subtract", 3, 4),  # 10 7 4 1
        ("s32", 0, 5, "LT", "subtract", -2, 3),  # 0 2 4
        ("s8", -3, 4, "LT", "add", 2, 4),  # -3 -1 1 3
        ("u8", 250, 255, "LT", "add", 1, 5), ("s16", -300, 0, "LT", "add", 100, 3),
        ("u16", 0, 60000, "LT", "add", 20000, 3),
        ("u32", 1, 100, "LT", "multiply", 3, 5),  # 1 3 9 27 81
        # The last value may be the least or the greatest that the type holds.
        ("s32", -1, -(2**31), "GT", "multiply", 2, 31), ("u8", 1, 128, "LT", "multiply", 2, 7),
        ("s8", 0, -128, "NE", "add", -64, 2), ("s8", 100, 127, "NE", "add", 27, 1), ("u8", 254, 255, "NE", "add", 1, 1),
        # One step further and it wraps around: the comparison that follows is another one.
        ("s8", 120, 127, "LE", "add", 1, None), ("s8", -120, -128, "GE", "subtract", 1, None),
        ("s8", 0, 127, "LT", "add", 100, None), ("u8", 200, 255, "LE", "add", 1, None),
        ("s16", 32_760, 2**15 - 1, "LE", "add", 1, None), ("u16", 65_530, 2**16 - 1, "LE", "add", 1, None),
        ("s64", 2**63 - 3, 2**63 - 1, "LE", "add", 1, None), ("u64", 2**64 - 3, 2**64 - 1, "LE", "add", 1, None),
        ("u8", 1, 0, "GE", "subtract", 1, None), ("u8", 1, 200, "LT", "multiply", 2, None),
        ("s8", 1, 100, "LT", "multiply", 2, None), ("u32", 1, 3_000_000_000, "LT", "multiply", 2, None),
        # Integers wrap around at their width, so it ends later than it would without a width.
        ("s32", -1, -2_000_000_000, "GT", "multiply", 3, 27),
    ],
)  # fmt: skip
def test_a_counter_counts_within_its_type(dtype, start, bound, direction, opcode, by, trips):
    size, program = int(dtype[1:]) // 8, Program()
    counting(program, dtype, little(start, size), little(bound, size), direction, opcode, little(by, size))
    (found,) = read_hlo(program.bytes(), platform="tpu").loops
    assert found.trips == trips


def test_a_literal_of_another_size_says_nothing():
    program = Program()
    counting(program, "s16", little(0, 1), little(5, 2), "LT", "add", little(1, 2))
    assert read_hlo(program.bytes(), platform="tpu").loops[0].trips is None


def within_a_loop(start: str, *, called: bool) -> Program:
    """A loop of 4 trips around one that counts up to 10 from a constant 3, from an element of the outer state that
    stays 3, or from one that moves; the inner loop stands in the body or in a computation that the body calls.
    """
    state, program = [("s32",), ("s32",)], Program()
    body = program.computation("inner.body")
    counter = program.add("parameter", ("s32",))
    dot(program, 2, 3, 4)
    program.add("add", ("s32",), [counter, program.constant(1)])
    condition = program.computation("inner.condition")
    counter = program.add("parameter", ("s32",))
    program.add("compare", ("pred",), [counter, program.constant(10)], comparison_direction="LT")

    def inner(whole: int) -> None:
        index = {"constant": 0, "stays": 1, "moves": 0}[start]
        first = program.constant(3) if start == "constant" else program.add(
            "get-tuple-element", ("s32",), [whole], tuple_index=index
        )  # fmt: skip
        program.add("while", ("s32",), [first], [body, condition], name="inner")

    if called:
        aside = program.computation("aside")
        inner(program.add("parameter", state))
    outer = program.computation("outer.body")
    whole = program.add("parameter", state)
    if called:
        program.add("call", ("s32",), [whole], [aside])
    else:
        inner(whole)
    counter = program.add("get-tuple-element", ("s32",), [whole], tuple_index=0)
    same = program.add("get-tuple-element", ("s32",), [whole], tuple_index=1)
    program.add("tuple", state, [program.add("add", ("s32",), [counter, program.constant(1)]), same])
    until = program.computation("outer.condition")
    whole = program.add("parameter", state)
    counter = program.add("get-tuple-element", ("s32",), [whole], tuple_index=0)
    program.add("compare", ("pred",), [counter, program.constant(4)], comparison_direction="LT")
    program.computation("entry")
    first = program.add("tuple", state, [program.constant(0), program.constant(3)])
    program.add("while", state, [first], [outer, until], name="outer")
    return program


@pytest.mark.parametrize("called", [False, True])
@pytest.mark.parametrize("start, trips", [("constant", 7), ("stays", 7), ("moves", None)])
def test_a_loop_within_a_loop_counts_where_it_starts_alike_each_time(start, trips, called):
    reading = read_hlo(within_a_loop(start, called=called).bytes(), platform="tpu")
    assert {loop.instruction: loop.trips for loop in reading.loops} == {"inner": trips, "outer": 4}
    in_all = 10 + 9 + 8 + 7 if trips is None else 4 * trips  # from 0, 1, 2 and 3 up to 10
    assert reading.flops.value == in_all * 2 * 2 * 3 * 4
    inner = next(loop for loop in reading.loops if loop.instruction == "inner")
    assert (inner.entries, inner.total, inner.varies) == (exact(4), exact(in_all), trips is None)
    assert not reading.unknowns


def test_a_comparison_handed_through_a_call_is_found():
    program = Program()
    aside = program.computation("aside")
    program.add("copy", ("pred",), [program.add("parameter", ("pred",))])
    body = program.computation("body")
    program.add("add", ("s32",), [program.add("parameter", ("s32",)), program.constant(1)])
    condition = program.computation("condition")
    counter = program.add("parameter", ("s32",))
    below = program.add("compare", ("pred",), [counter, program.constant(6)], comparison_direction="LT")
    program.add("call", ("pred",), [below], [aside])
    program.computation("entry")
    program.add("while", ("s32",), [program.constant(0)], [body, condition])
    assert read_hlo(program.bytes(), platform="tpu").loops[0].trips == 6


def test_a_product_in_one_of_two_branches_runs_once_or_not_at_all():
    program = Program()
    branches = []
    for n in (4, 5):
        branches.append(program.computation(f"branch.{n}"))
        program.add("parameter", ("f32",))
        dot(program, 2, 3, n)
    program.computation("entry")
    which, scalar = program.add("parameter", ("pred",)), program.add("parameter", ("f32",), parameter_number=1)
    at = program.add("conditional", ("f32", 2), [which, scalar, scalar], branches)
    reading = read_hlo(program.bytes(), platform="cpu")
    assert [row.executions for row in reading.contractions.rows] == [Total(0, 1), Total(0, 1)]
    assert reading.flops == Total(2 * 2 * 3 * 4, 2 * 2 * 3 * 5) and at
    program.open.instructions[-1].called_computation_ids.pop()  # the only branch there is
    reading = read_hlo(program.bytes(), platform="cpu")
    assert [row.executions for row in reading.contractions.rows] == [Total(1, 1)]


# Conditions, branches and states by hand ------------------------------------------------------------------------------


def stepping(program: Program, states: list, first: list, condition, body) -> int:
    """A loop over a tuple: `body` and `condition` get the elements of the state and add instructions."""
    parts = []
    for name, fill in (("body", body), ("condition", condition)):
        parts.append(program.computation(name))
        whole = program.add("parameter", states)
        elements = [program.add("get-tuple-element", s, [whole], tuple_index=i) for i, s in enumerate(states)]
        made = fill(elements)
        if name == "body":
            program.add("tuple", states, made)
    program.computation("entry")
    values = [value() for value in first]
    return program.add("while", states, [program.add("tuple", states, values)], parts, name="loop")


def compare(program: Program, left: int, direction: str, right: int) -> int:
    return program.add("compare", ("pred",), [left, right], comparison_direction=direction)


def both(opcode: str, limit: int, other: int):
    """i < limit, joined with j > other; i goes up by one and j, from 9, down by two."""
    program = Program()
    stepping(
        program, [("s32",), ("s32",)], [lambda: program.constant(0), lambda: program.constant(9)],
        lambda s: program.add(opcode, ("pred",), [
            compare(program, s[0], "LT", program.constant(limit)), compare(program, s[1], "GT", program.constant(other))
        ]),
        lambda s: [
            dot(program, 2, 3, 4) and program.add("add", ("s32",), [s[0], program.constant(1)]),
            program.add("subtract", ("s32",), [s[1], program.constant(2)]),
        ],
    )  # fmt: skip
    return read_hlo(program.bytes(), platform="tpu")


@pytest.mark.parametrize(
    "opcode, limit, other, trips",
    [
        ("and", 3, 0, 3), ("and", 50, 0, 5), ("and", 1_000_000, -2_000_000_001, 1_000_000), ("or", 3, 0, 5),
        ("or", 7, 0, 7), ("and", 0, 0, 0), ("or", 0, 100, 0),
    ],
)  # fmt: skip
def test_two_conditions_end_with_the_first_or_with_the_last(opcode, limit, other, trips):
    reading = both(opcode, limit, other)
    assert (reading.loops[0].trips, reading.loops[0].source) == (trips, "derived")
    assert reading.flops.value == trips * 2 * 2 * 3 * 4


def flagged(limit: int, *, starts: bool = False) -> Program:
    """`i < limit and not done`, where data say when it is done."""
    program = Program()
    state = [("s32",), ("pred",)]
    flag = (lambda: program.add("constant", ("pred",), literal={"preds": [False]})) if not starts else (
        lambda: program.add("parameter", ("pred",))
    )  # fmt: skip
    stepping(
        program, state, [lambda: program.constant(0), flag],
        lambda s: program.add("and", ("pred",), [
            compare(program, s[0], "LT", program.constant(limit)), program.add("not", ("pred",), [s[1]])
        ]),
        lambda s: [
            dot(program, 2, 3, 4) and program.add("add", ("s32",), [s[0], program.constant(1)]),
            program.add("rng", ("pred",), [program.constant(0), program.constant(1)]),
        ],
    )  # fmt: skip
    return program


@pytest.mark.parametrize("limit", [7, 5000])  # also where it is too many to follow one by one
def test_a_condition_of_data_leaves_a_bound_from_above(limit):
    once = 2 * 2 * 3 * 4
    reading = read_hlo(flagged(limit).bytes(), platform="tpu")
    (found,) = reading.loops
    assert (found.trips, found.minimum, found.maximum, found.source) == (None, 1, limit, "derived")
    assert reading.flops == Total(once, limit * once)
    assert found.reason in reading.unknowns and "run-time" in found.reason
    assert read_hlo(flagged(limit, starts=True).bytes(), platform="tpu").loops[0].minimum == 0


@pytest.mark.parametrize("count, error", [(0, "runs 1 to 7 times"), (8, "runs 1 to 7 times"), (7, ""), (1, "")])
def test_a_supplied_count_must_be_one_that_the_condition_allows(count, error):
    data = flagged(7).bytes()
    if error:
        with pytest.raises(RejectedError, match=error):
            read_hlo(data, platform="tpu", trips={"loop": count})
    else:
        (found,) = read_hlo(data, platform="tpu", trips={"loop": count}).loops
        assert (found.trips, found.source, found.reason) == (count, "supplied", "")


@pytest.mark.parametrize("declared", [b"", b'{"known_trip_count":{"n":"7"}}'])
def test_a_supplied_count_of_a_loop_that_is_known_is_the_known_one(declared):
    program = Program()
    loop(program, 0, 1, 7, "LT", per_trip=lambda p: dot(p, 2, 3, 4))
    module, _ = parse(program.bytes())
    (at,) = (at for part in module.computations for at in part.instructions if at.opcode == "while")
    at.backend_config = declared
    data = module.SerializeToString()
    assert read_hlo(data, platform="cpu", trips={"while.1": 7}).loops[0].trips == 7
    with pytest.raises(RejectedError, match="7 trips"):
        read_hlo(data, platform="cpu", trips={"while.1": 4})


def test_a_supplied_name_must_be_a_loop():
    with pytest.raises(RejectedError, match="names no loop") as error:
        read_hlo(flagged(7).bytes(), platform="tpu", trips={"while.9": 3})
    assert "loop" in error.value.problems[0].remedy


def branching(predicate) -> Program:
    """A conditional on what `predicate` adds, between products of 2 and of 5 columns."""
    program, branches = Program(), []
    for n in (2, 5):
        branches.append(program.computation(f"branch.{n}"))
        program.add("parameter", ("f32",))
        dot(program, 2, 3, n)
        program.add("constant", ("f32",), literal={"f32s": [0.0]})
    program.computation("entry")
    scalar = program.add("parameter", ("f32",))
    program.add("conditional", ("f32",), [predicate(program), scalar, scalar], branches, name="choice")
    return program


@pytest.mark.parametrize(
    "predicate, columns",
    [
        (lambda p: p.add("constant", ("pred",), literal={"preds": [True]}), 2),
        (lambda p: p.add("constant", ("pred",), literal={"preds": [False]}), 5),
        (lambda p: p.constant(0), 2), (lambda p: p.constant(1), 5), (lambda p: p.constant(9), 5),
        (lambda p: p.constant(-1), 5),  # out of range is the last
        (lambda p: compare(p, p.add("remainder", ("s32",), [p.constant(-7), p.constant(4)]), "EQ", p.constant(-3)), 2),
        (lambda p: compare(p, p.add("divide", ("s32",), [p.constant(-7), p.constant(2)]), "EQ", p.constant(-4)), 5),
        (lambda p: p.add("convert", ("s32",), [p.add("constant", ("f32",), literal={"f32s": [1.9]})]), 5),
    ],
)  # fmt: skip
def test_a_predicate_that_is_known_takes_its_branch(predicate, columns):
    reading = read_hlo(branching(predicate).bytes(), platform="cpu")
    assert reading.flops.value == 2 * 2 * 3 * columns
    (choice,) = reading.conditionals
    assert choice.decided and choice.executions == (exact(int(columns == 2)), exact(int(columns == 5)))


def test_a_predicate_of_data_does_not():
    reading = read_hlo(branching(lambda p: p.add("parameter", ("pred",), parameter_number=1)).bytes(), platform="cpu")
    assert reading.flops == Total(24, 60) and not reading.conditionals[0].decided


def test_a_body_called_from_two_loops_counts_for_each():
    program = Program()
    body = program.computation("body")
    counter = program.add("parameter", ("s32",))
    dot(program, 2, 3, 4)
    program.add("add", ("s32",), [counter, program.constant(1)])
    condition = program.computation("condition")
    compare(program, program.add("parameter", ("s32",)), "LT", program.constant(10))
    program.computation("entry")
    first = program.add("while", ("s32",), [program.constant(4)], [body, condition], name="first")
    program.add("while", ("s32",), [program.add("subtract", ("s32",), [first, program.constant(3)])], [body, condition])
    reading = read_hlo(program.bytes(), platform="tpu")
    assert [loop.trips for loop in reading.loops] == [6, 3]  # the second starts where the first ended, less three
    assert reading.flops.value == 9 * 2 * 2 * 3 * 4


def test_a_counter_deep_in_the_state_behind_copies():
    program = Program()
    inner = [("s32",), ("f32", 4)]
    body = program.computation("body")
    whole = program.add("parameter", [("f32", 4), inner])
    pair = program.add("get-tuple-element", inner, [whole], tuple_index=1)
    counter = program.add("get-tuple-element", ("s32",), [pair], tuple_index=0)
    data = program.add("get-tuple-element", ("f32", 4), [pair], tuple_index=1)
    dot(program, 2, 3, 4)
    started = program.add("copy-start", [("s32",), ("s32",), ("u32",)], [counter])
    moved = program.add("add", ("s32",), [program.add("copy-done", ("s32",), [started]), program.constant(2)])
    program.add("tuple", [("f32", 4), inner], [data, program.add("tuple", inner, [moved, data])])
    condition = program.computation("condition")
    whole = program.add("parameter", [("f32", 4), inner])
    pair = program.add("get-tuple-element", inner, [whole], tuple_index=1)
    compare(program, program.add("get-tuple-element", ("s32",), [pair], tuple_index=0), "LE", program.constant(6))
    program.computation("entry")
    data = program.add("parameter", ("f32", 4))
    pair = program.add("tuple", inner, [program.constant(-1), data])
    first = program.add("tuple", [("f32", 4), inner], [data, pair])
    program.add("while", [("f32", 4), inner], [first], [body, condition])
    reading = read_hlo(program.bytes(), platform="tpu")
    assert reading.loops[0].trips == 4  # -1 1 3 5
    assert reading.flops.value == 4 * 2 * 2 * 3 * 4


def test_a_scan_instruction_runs_its_body_for_each_slice():
    program = Program()
    step = program.computation("step")
    program.add("parameter", ("f32", 3))
    program.add("parameter", ("f32",), parameter_number=1)
    dot(program, 2, 3, 4)
    program.computation("entry")
    scanned = program.add("parameter", ("f32", 7, 3))
    carry = program.add("parameter", ("f32",), parameter_number=1)
    program.add("scan", ("f32", 2, 4), [scanned, carry], [step], dimensions=[0], num_carries=1)
    assert read_hlo(program.bytes(), platform="cpu").flops.value == 7 * 2 * 2 * 3 * 4


def test_a_loop_in_a_branch_never_taken_is_unreached():
    program = Program()
    loop(program, 0, 1, 5, "LT", per_trip=lambda p: dot(p, 2, 3, 4))
    program.open.name = "branch"
    taken = program.computation("other")
    program.add("parameter", [("s32",)])
    program.computation("entry")
    state = program.add("parameter", [("s32",)])
    branch = program.module.computations[2]
    branch.instructions[0].opcode = "parameter"  # its constant becomes what it is called with
    del branch.instructions[0].literal.s32s[:]
    program.add("conditional", [("s32",)], [program.constant(1), state, state], [branch.id, taken])
    found = read_hlo(program.bytes(), platform="tpu")
    assert (found.loops[0].source, found.loops[0].trips, found.loops[0].entries) == ("unreached", 0, exact(0))
    assert found.flops.value == 0 and found.unknowns == ()


def test_what_one_trip_holds():
    program = within_a_loop("moves", called=False)
    module = read_module(split(program.bytes()))
    executions = read_executions(module)
    own = {at.id: {"flops": 48} for at in module.walk() if at.opcode == "dot"}
    inside = {executions.loops[number].instruction: held for number, held in executions.within(own).items()}
    assert inside["inner"].per_trip["flops"] == exact(48)
    assert inside["outer"].per_trip["flops"] == Total(7 * 48, 10 * 48)  # from 3 and from 0 up to 10
    assert inside["inner"].whole["flops"] == inside["outer"].whole["flops"] == exact(34 * 48)


def test_programs_that_call_each_other_without_end_in_sight_are_read_in_time():
    """Sixty computations that call the next one twice: 2^60 ways to reach the last."""
    program = Program()
    loop(program, 0, 1, 5, "LT", per_trip=lambda p: dot(p, 2, 3, 4))
    program.open.name = "last"
    called = program.open.id
    for number in range(60):
        made = program.computation(f"level.{number}")
        program.add("call", [("s32",)], [], [called])
        program.add("call", [("s32",)], [], [called])
        called = made
    reading = read_hlo(program.bytes(), platform="tpu")
    assert reading.flops.value == 2**60 * 5 * 48


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32"])
def test_a_declared_count_that_the_counter_contradicts_is_not_taken(dtype):
    def run(x):
        start, end, step = (jnp.asarray(n, dtype) for n in (47, 24, 11))
        return jax.lax.while_loop(lambda c: c[0] > end, lambda c: (c[0] - step, jnp.sin(c[1] @ c[1])), (start, x))[1]

    hlo, compiled = dump(run, array(4, 4))
    assert '"known_trip_count":{"n":"1"}' in compiled.as_text(), "no need of this test any more"
    reading, graph = read_graph(hlo, platform="cpu", general=True)
    (loop,) = graph.loops.values()
    assert loop.trips is None and "XLA declares 1 trips but the loop's scalars give 3" in loop.reason
    found = count_flops(reading, graph)
    assert found.total is None and found.minimum == 0
