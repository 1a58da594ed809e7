"""Counts of everything that is no contraction, by kind, on each target and by hand."""

from __future__ import annotations

import pytest

from jaxcost.observation.hlo.primitives import count_primitives
from jaxcost.observation.hlo.reading import read_graph
from tests.observation.hlo.building import Program, loop
from tests.observation.hlo.counting import CPU, H100, V5E

ALL = pytest.mark.parametrize("target", [CPU, H100, V5E])


def values(found):
    return {name: amount.value for name, amount in found.totals.items()}


def by_hand(program, platform="cpu"):
    return count_primitives(read_graph(program.bytes(), platform=platform)[1])


def function(program, *opcodes, dtype="f32", name="function"):
    """A scalar function of two numbers that applies the opcodes one after the other."""
    made = program.computation(name)
    one, other = program.add("parameter", (dtype,)), program.add("parameter", (dtype,), parameter_number=1)
    for opcode in opcodes:
        one = program.add(opcode, (dtype,), [one, other])
    return made


@ALL
def test_one_operation_per_element(programs, target):
    assert values(programs.primitives("unary", target)) == {
        "tanh": 1024, "exp": 1024, "rsqrt": 1024, "multiply": 1024, "add": 1024,
    }  # fmt: skip


@ALL
def test_a_window_meets_the_elements_that_are_there(programs, target):
    # 9 x 9 in windows of 2 x 2, the last row and column alone: 81 elements reach 25 results of each of 2 x 4 planes.
    assert values(programs.primitives("pooled", target)) == {"max": (81 - 25) * 2 * 4}


@ALL
def test_a_reduction_applies_its_function_once_less_than_it_has_values(programs, target):
    found = values(programs.primitives("reductions", target))
    assert found["max"] == 1023
    assert found["add"] == 7 * 128


def test_a_running_sum_is_a_window_that_ends_at_each_element():
    program = Program()
    add = function(program, "add")
    program.computation("entry")
    x = program.add("parameter", ("f32", 128))
    program.add("reduce-window", ("f32", 128), [x, program.constant(0)], [add],
                window={"dimensions": [{"size": 128, "stride": 1, "padding_low": 127}]})  # fmt: skip
    assert values(by_hand(program)) == {"add": 128 * 129 // 2 - 128}


@ALL
def test_gathers_and_scatters_count_the_elements_they_touch(programs, target):
    assert values(programs.primitives("gather", target))["gather"] == 40
    found = values(programs.primitives("scatter", target))
    assert (found["scatter"], found["add"]) == (40, 40)


@ALL
def test_a_sort_counts_elements_and_estimates_comparisons(programs, target):
    found = programs.primitives("sort", target)
    assert values(found)["sort"] == 2048
    assert found.estimates["sort_comparisons"].value == 8 * 256 * 8
    assert "sort_comparisons" not in found.totals


@ALL
def test_the_largest_few_are_searched_or_sorted(programs, target):
    found = values(programs.primitives("top", target))
    assert found.get("topk", found.get("sort")) == 2048


@ALL
def test_loops_multiply_what_they_hold(programs, target):
    found = values(programs.primitives("scanned", target))
    assert (found["exp"], found["multiply"]) == (6 * 16, 6 * 16)


@ALL
def test_branches_are_an_interval(programs, target):
    found = programs.primitives("branches", target)
    assert (found.totals["exp"].minimum, found.totals["exp"].maximum) == (0, 512)
    assert (found.totals["tanh"].minimum, found.totals["tanh"].maximum) == (0, 1024)


@ALL
def test_a_loop_without_a_count_is_unknown_for_what_it_holds(programs, target):
    found = programs.primitives("fori", target)
    assert found.totals["tanh"].value is None and "run-time" in found.totals["tanh"].reason


def test_integers_and_complex_numbers_stand_apart():
    program = Program()
    program.computation("entry")
    for dtype in ("f32", "bf16", "s32", "u32", "c64"):
        x = program.add("parameter", (dtype, 5), parameter_number=len(program.open.instructions))
        program.open.instructions[-1].parameter_number = (
            sum(i.opcode == "parameter" for i in program.open.instructions) - 1
        )
        program.add("subtract", (dtype, 5), [x, x])
        program.add("compare", ("pred", 5), [x, x], comparison_direction="LT")
    assert values(by_hand(program)) == {
        "add": 10, "integer_add": 10, "complex_add": 5, "compare": 10, "integer_compare": 10, "complex_compare": 5,
    }  # fmt: skip


def test_the_function_of_a_reduction_counts_per_application():
    program = Program()
    norm = function(program, "multiply", "add")
    program.computation("entry")
    x, zero = program.add("parameter", ("f32", 6, 7)), program.constant(0)
    program.add("reduce", ("f32", 7), [x, zero], [norm], dimensions=[0])
    assert values(by_hand(program)) == {"multiply": 5 * 7, "add": 5 * 7}
    program.open.instructions[-1].shape.dimensions[0] = 42  # nothing is reduced
    assert values(by_hand(program)) == {}


def test_a_scatter_applies_its_combiner_per_update_and_a_replacement_nothing():
    for opcodes, expected in ((("add",), {"scatter": 15, "add": 15}), ((), {"scatter": 15})):
        program = Program()
        combine = function(program, *opcodes)
        program.computation("entry")
        given = [program.add("parameter", shape, parameter_number=i)
                 for i, shape in enumerate([("f32", 64, 3), ("s32", 5, 1), ("f32", 5, 3)])]  # fmt: skip
        program.add("scatter", ("f32", 64, 3), given, [combine])
        assert values(by_hand(program)) == expected


def test_a_choice_in_windows_compares_and_adds():
    program = Program()
    select, scatter = function(program, "maximum", name="select"), function(program, "add", name="scatter")
    program.computation("entry")
    x, source = program.add("parameter", ("f32", 8)), program.add("parameter", ("f32", 4), parameter_number=1)
    program.add("select-and-scatter", ("f32", 8), [x, source, program.constant(0)], [select, scatter],
                window={"dimensions": [{"size": 2, "stride": 2}]})  # fmt: skip
    assert values(by_hand(program)) == {"max": 4, "add": 4}


def test_random_words_are_counted_where_a_library_or_the_device_draws_them():
    program = Program()
    program.computation("entry")
    key = program.add("parameter", ("u64", 2))
    program.add("rng-bit-generator", [("u64", 2), ("u32", 128)], [key])
    program.add("custom-call", [("u32", 32), ("u32", 32)], [key], custom_call_target="cu_threefry2x32_ffi")
    assert values(by_hand(program)) == {"rng": 128 + 64}


def test_what_a_kernel_does_inside_is_named_as_not_counted():
    program = Program()
    program.computation("entry")
    for target in ("mystery", "__cudnn$norm", "lapack_spotrf_ffi", "Sharding", "xla_ffi_python_cpu_callback"):
        program.add("custom-call", ("f32", 2), [], custom_call_target=target)
    assert by_hand(program).hidden == ("mystery", "__cudnn$norm")
    assert values(by_hand(program)) == {}


def test_fusions_are_descended_and_each_caller_counts():
    program = Program()
    inner = program.computation("inner", fusion=True)
    x = program.add("parameter", ("f32", 9))
    program.add("exponential", ("f32", 9), [x])
    outer = program.computation("outer", fusion=True)
    x = program.add("parameter", ("f32", 9))
    program.add("log", ("f32", 9), [program.add("fusion", ("f32", 9), [x], [inner])])
    program.computation("entry")
    x = program.add("parameter", ("f32", 9))
    for _ in range(2):
        x = program.add("fusion", ("f32", 9), [x], [outer])
    assert values(by_hand(program)) == {"exp": 18, "log": 18}


def test_one_operation_more_is_seen():
    def tanh(program):
        x = program.add("broadcast", ("f32", 4), [program.constant(0)])
        program.add("tanh", ("f32", 4), [x])

    counts = []
    for trips in (3, 4):
        program = Program()
        loop(program, 0, 1, trips, "LT", per_trip=tanh)
        counts.append(values(by_hand(program))["tanh"])
    assert counts == [12, 16]


def test_places_and_phases_add_up_to_the_totals():
    program = Program()
    program.computation("entry")
    x = program.add("parameter", ("f32", 4))
    program.add("tanh", ("f32", 4), [x], op_name="jit(f)/mlp/tanh")
    program.add("tanh", ("f32", 4), [x], op_name="jit(f)/transpose(jvp(mlp))/tanh")
    found = by_hand(program)
    assert {key: amount.value for key, amount in found.by_phase.items()} == {
        ("tanh", "forward"): 4, ("tanh", "backward"): 4,
    }  # fmt: skip
    assert {key: amount.value for key, amount in found.by_place.items()} == {
        ("tanh", "mlp", "forward"): 4, ("tanh", "mlp", "backward"): 4,
    }  # fmt: skip
