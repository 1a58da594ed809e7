"""FLOPs of compiled programs on each target: exact, an interval, or unknown with what is certain."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from jaxcost.observation.hlo.flops import count_flops
from jaxcost.observation.hlo.products import real_operations
from jaxcost.observation.hlo.reading import read_graph
from tests.observation.hlo.building import Program, dot, loop
from tests.observation.hlo.counting import CPU, H100, V5E
from tests.observation.hlo.flop_programs import CONVOLUTIONS, convolution

ALL = pytest.mark.parametrize("target", [CPU, H100, V5E])


def by_hand(program, platform="cpu"):
    return count_flops(*read_graph(program.bytes(), platform=platform))


# Products ---------------------------------------------------------------------------------------------------------


@ALL
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("dense 1", 37_376), ("dense 2", 74_752), ("dense 9", 336_384), ("small", 280), ("large", 17_179_869_184),
        ("cube", 2 * 512**3), ("batched", 2 * 8 * 64 * 32 * 48), ("int8", 2 * 32 * 64 * 48),
        ("fp8", 2 * 64 * 128 * 64), ("int4", 2 * 64 * 128 * 64), ("fp4", 2 * 64 * 128 * 64),
        ("highest", 2 * 64 * 128 * 64), ("x3", 2 * 64 * 128 * 64), ("scaled", 2 * 64 * 128 * 64), ("empty", 0),
    ],
)  # fmt: skip
def test_a_product_is_counted_once_whatever_the_compiler_made_of_it(programs, name, expected, target):
    found = programs.flops(name, target)
    # A product of one row may be executed as multiply and reduce: it is a product still.
    logical = sum(row.logical_flops * row.executions.value for row in found.rows)
    assert logical == expected
    # Cut in eight parts, K of 128 leaves 16 four-bit numbers each, which are padded to the 32 of a memory transaction.
    padding = 2 if (name, target) == ("fp4", "h100:1") else 1
    assert found.total == padding * logical
    assert found.elementwise_products.value in (0, expected if name == "dense 1" else 0)
    products = found.by_class["contraction"].value + found.by_class["elementwise_product"].value
    assert found.unknowns == () and products == found.total
    assert sum(amount.value for amount in found.by_dtype.values()) == found.total


@pytest.mark.parametrize(
    ("name", "target", "dtype"),
    [
        ("int8", CPU, "s8 -> s32"), pytest.param("fp8", "h100:1", "f8e4m3fn -> f32", marks=pytest.mark.cuda),
        pytest.param("int4", "tpu-v5e:1x1", "bf16 x s4 -> f32", marks=pytest.mark.tpu),
    ],
)  # fmt: skip
def test_the_types_of_a_product_are_those_it_was_compiled_with(programs, name, target, dtype):
    assert list(programs.flops(name, target).by_dtype) == [dtype]


@pytest.mark.parametrize("target", [CPU, H100])
def test_a_complex_product_is_four_real_ones(programs, target):
    assert programs.flops("complex", target).total == 8 * 32 * 64 * 48
    vector = programs.flops("complex vector", target)
    assert vector.total == 8 * 64 * 48


@pytest.mark.tpu
def test_a_tpu_multiplies_complex_numbers_by_three_real_products(programs):
    assert programs.flops("complex", "tpu-v5e:1x1").total == 3 * 2 * 32 * 64 * 48


def test_a_real_factor_halves_the_work_of_a_complex_one():
    assert [real_operations(*pair) for pair in (("f32", "f32"), ("f32", "c64"), ("c128", "c128"))] == [1, 2, 4]


@pytest.mark.parametrize(
    ("name", "target", "precision", "passes"),
    [
        ("highest", CPU, "HIGHEST", 1), ("x3", CPU, "BF16_BF16_F32_X3", 3),
        pytest.param("highest", "tpu-v5e:1x1", "HIGHEST", 6, marks=pytest.mark.tpu),
    ],
)  # fmt: skip
def test_passes_of_a_precision_are_said_and_not_counted(programs, name, target, precision, passes):
    found = programs.flops(name, target)
    (row,) = found.rows
    assert (row.precision, row.passes, row.total.value) == (precision, passes, 2 * 64 * 128 * 64)


def test_structured_sparsity_leaves_the_total_unknown():
    program = Program()
    program.computation("entry")
    dot(program, 2, 4, 8)
    dot(program, 2, 4, 8)
    program.open.instructions[-1].sparsity_config.MergeFromString(b"\x0a\x00")
    found = by_hand(program, "cuda")
    assert (found.total, found.minimum, found.maximum) == (None, 2 * 2 * 4 * 8, None)
    assert [u.kind for u in found.unknowns] == ["contraction"] and "sparsity" in found.reason


# Groups -----------------------------------------------------------------------------------------------------------

ACTIVE = 2 * 64 * 128 * 256


@pytest.mark.parametrize(("target", "groups"), [(CPU, 8), pytest.param("h100:1", 8, marks=pytest.mark.cuda)])
def test_a_ragged_product_compiled_dense_says_both(programs, target, groups):
    found = programs.flops("ragged", target)
    assert ACTIVE == 4_194_304
    assert (found.total, found.active.value) == (groups * ACTIVE, ACTIVE)
    (dense,) = found.dense_groups
    assert (dense.groups, dense.flops.value, dense.active.value) == (groups, groups * ACTIVE, ACTIVE)


@pytest.mark.tpu
def test_a_tpu_runs_the_groups_alone_and_says_so_itself(programs):
    found = programs.flops("ragged", "tpu-v5e:1x1")
    assert (found.total, found.active.value, found.dense_groups) == (ACTIVE, ACTIVE, ())
    assert {row.basis for row in found.rows if row.flops} == {"declared"}
    assert found.by_class["kernel"].value == ACTIVE


@ALL
def test_gradients_of_a_ragged_product_are_seen_through_too(programs, target):
    found = programs.flops("ragged grad", target)
    assert found.active.value == 3 * ACTIVE
    assert found.total == (8 + 1 + 1 if target.startswith("tpu") else 3 * 8) * ACTIVE


@ALL
def test_a_band_of_a_dense_product_is_no_group(programs, target):
    found = programs.flops("banded", target)
    assert found.dense_groups == () and found.active.value == found.total == 2 * 64 * 64 * 32


# Convolutions -----------------------------------------------------------------------------------------------------


def taps(name):
    """Multiplications with an element of the input: what a convolution of ones with ones adds up to."""
    given, kernel, _ = CONVOLUTIONS[name]
    made = jax.jit(convolution(name))(np.ones(given, np.float32), np.ones(kernel, np.float32))
    return int(np.asarray(made, np.float64).sum())


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_a_convolution_on_a_cpu_is_its_taps(programs, name):
    found = programs.flops(f"conv {name}")
    assert found.total == 2 * taps(name)
    assert {row.kind for row in found.rows} <= {"convolution", "contraction"} and found.unknowns == ()


@pytest.mark.cuda
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_cudnn_multiplies_the_padding_that_was_written_out(programs, name):
    found = programs.flops(f"conv {name}", "h100:1")
    assert sum(row.logical_flops for row in found.rows) == 2 * taps(name)
    assert found.total >= 2 * taps(name)
    assert (found.total > 2 * taps(name)) == (name in ("transposed", "one-sided"))
    assert found.by_class["convolution"].value == found.total


@pytest.mark.tpu
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_a_tpu_convolution_is_what_the_compiler_rewrote_it_to(programs, name):
    found = programs.flops(f"conv {name}", "tpu-v5e:1x1")
    # Where space is folded into batch, taps on what fills the folds are multiplied too.
    assert found.total >= 2 * taps(name)
    if name in ("dilated", "grouped", "transposed", "patches"):
        assert found.total == 2 * taps(name)
    assert found.by_class["convolution"].value == found.total


@pytest.mark.parametrize("target", [CPU, H100])
def test_gradients_of_a_convolution_cost_what_it_costs(programs, target):
    found = programs.flops("conv grad", target)
    assert found.total == 3 * 2 * taps("plain")
    assert found.by_phase["backward"].value == 2 * found.by_phase["forward"].value


def test_the_gradient_of_a_depthwise_kernel_is_multiplied_densely_on_a_cpu(programs):
    found = programs.flops("depthwise grad")
    once = 2 * taps("depthwise")
    assert (found.total, found.active.value) == ((1 + 8) * once, 2 * once)
    (dense,) = found.dense_groups
    assert (dense.groups, dense.active.value) == (8, once)
    # With two outputs for each input XLA writes the groups as a batch, and nothing is multiplied in vain.
    assert programs.flops("multiplied grad").dense_groups == ()


@pytest.mark.cuda
def test_cudnn_multiplies_the_groups_of_a_depthwise_kernel_alone(programs):
    assert programs.flops("depthwise grad", "h100:1").dense_groups == ()


def test_a_library_layout_that_cuts_features_in_blocks_is_unknown():
    program = Program()
    program.computation("entry")
    x = program.add("parameter", ("s8", 1, 4, 8, 8, 4))
    w = program.add("parameter", ("s8", 16, 4, 3, 3, 4), parameter_number=1)
    program.add("custom-call", ("s8", 1, 4, 6, 6, 4), [x, w], custom_call_target="__cudnn$convForward",
                window={"dimensions": [{"size": 3}, {"size": 3}]})  # fmt: skip
    found = by_hand(program, "cuda")
    assert found.total is None and [u.target for u in found.unknowns] == ["__cudnn$convForward"]


# What is not known ------------------------------------------------------------------------------------------------


@ALL
def test_a_loop_without_a_count_leaves_what_is_outside(programs, target):
    found = programs.flops("fori", target)
    assert (found.total, found.minimum, found.maximum) == (None, 2 * 8 * 64 * 64, None)
    assert [(u.kind, u.voids) for u in found.unknowns] == [("loop", True)]
    assert "run-time" in found.reason
    assert found.by_class["linear_algebra"].value == 0


@ALL
def test_a_loop_of_additions_leaves_the_total_alone(programs, target):
    found = programs.flops("counted", target)
    assert found.total == 2 * 8 * 64 * 64 and found.unknowns == ()


@ALL
def test_branches_are_an_interval(programs, target):
    found = programs.flops("branches", target)
    once = 2 * 8 * 64 * 64
    assert (found.total, found.minimum, found.maximum) == (None, once, 2 * once)
    assert "conditional" in found.reason and found.unknowns == ()


@pytest.mark.parametrize("target", [CPU, V5E])
def test_python_on_the_host_is_named_and_voids_nothing(programs, target):
    found = programs.flops("host", target)
    assert found.total == 2 * 8 * 64 * 64
    (unknown,) = found.unknowns
    assert (unknown.kind, unknown.voids) == ("host", False) and "pure_callback" in unknown.op_name


def test_an_unknown_opcode_may_hold_anything():
    program = Program()
    program.computation("entry")
    dot(program, 2, 3, 4)
    program.add("frobnicate", ("f32", 2), [])
    found = by_hand(program)
    assert (found.total, found.minimum) == (None, 48)
    assert [(u.kind, u.target) for u in found.unknowns] == [("opcode", "frobnicate")]


def test_loops_multiply_and_an_uncalled_kernel_is_nothing():
    program = Program()
    loop(program, 0, 1, 5, "LT", per_trip=lambda p: dot(p, 2, 3, 4))
    assert by_hand(program).total == 5 * 48
    program = Program()
    call = {"custom_call_target": "mystery"}
    loop(program, 0, 1, 0, "LT", per_trip=lambda p: p.add("custom-call", ("f32", 2), [], **call))
    assert by_hand(program).total == 0 and by_hand(program).unknowns == ()
    program = Program()
    loop(program, 0, 1, 3, "LT", per_trip=lambda p: p.add("custom-call", ("f32", 2), [], **call))
    found = by_hand(program)
    assert found.total is None and found.unknowns[0].executions.value == 3


def test_scopes_of_a_total_add_up():
    program = Program()
    program.computation("entry")
    dot(program, 2, 3, 4, op_name="jit(f)/attn/dot_general")
    dot(program, 2, 3, 5, op_name="jit(f)/transpose(jvp(mlp))/dot_general")
    program.add("custom-call", ("f32", 2), [], custom_call_target="mystery", op_name="jit(f)/mlp/ffi_call")
    found = by_hand(program)
    assert {scope: amount.value for scope, amount in found.by_scope.items()} == {"attn": 48, "mlp": None}
    assert found.by_scope["mlp"].minimum == 60
    assert {phase: amount.value for phase, amount in found.by_phase.items()} == {"forward": None, "backward": 60}
    assert found.by_place["mlp", "backward"].value == 60 and found.by_place["mlp", "forward"].minimum == 0
