"""Library calls and kernels: by shape, by their own word, or unknown; never zero for want of a number."""

from __future__ import annotations

import json

import pytest

from jaxcost.observation.hlo.flops import count_flops
from jaxcost.observation.hlo.kernels import host_transfer
from jaxcost.observation.hlo.reading import read_graph
from tests.observation.hlo.building import Program, dot


def call(target, operands=(("f32", 8, 8),), results=(("f32", 8, 8),), config=None, platform="cuda", **more):
    program = Program()
    program.computation("entry")
    given = [program.add("parameter", shape, parameter_number=i) for i, shape in enumerate(operands)]
    if config is not None:
        more["backend_config"] = config if isinstance(config, bytes) else json.dumps(config).encode()
    opcode = target if target == "ragged-dot" else "custom-call"
    named = {} if opcode == "ragged-dot" else {"custom_call_target": target}
    program.add(opcode, results[0] if len(results) == 1 else list(results), given, **named, **more)
    return count_flops(*read_graph(program.bytes(), platform=platform))


# Pallas, Triton and what nobody knows -----------------------------------------------------------------------------


@pytest.mark.tpu
def test_a_kernel_that_declares_its_cost_is_believed(programs):
    found = programs.flops("pallas", "tpu-v5e:1x1")
    assert found.total == found.by_class["kernel"].value == 268_435_456
    (row,) = found.rows
    assert (row.target, row.basis, row.flops) == ("tpu_custom_call", "declared", 268_435_456)


@pytest.mark.tpu
def test_a_kernel_that_declares_none_is_opaque_and_not_zero(programs):
    found = programs.flops("pallas silent", "tpu-v5e:1x1")
    assert (found.total, found.minimum, found.maximum) == (None, 0, None)
    (unknown,) = found.unknowns
    assert (unknown.target, unknown.kind, unknown.voids) == ("tpu_custom_call", "kernel", True)
    assert unknown.operands == ("f32[512,512]", "f32[512,512]") and "declares no cost" in found.reason
    assert "pallas_call" in unknown.op_name


@pytest.mark.cuda
def test_a_triton_kernel_is_opaque(programs):
    found = programs.flops("triton", "h100:1")
    assert found.total is None
    assert [(u.target, u.detail) for u in found.unknowns] == [("__gpu$xla.gpu.triton", "tiled")]


@pytest.mark.parametrize(
    ("estimate", "total"),
    [
        ({"flops": "12"}, 12), ({"flops": 12}, 12), ({"flops": "0"}, 0), ({"flops": "-1"}, None),
        ({"flops": "x"}, None), ({"flops": None}, None), ({}, None), ({"transcendentals": "5"}, None),
        (None, None), ([], None),
    ],
)  # fmt: skip
def test_only_a_whole_number_is_a_declaration(estimate, total):
    config = {"custom_call_config": {} if estimate is None else {"cost_estimate": estimate}}
    found = call("tpu_custom_call", config=config, platform="tpu")
    assert found.total == total and bool(found.unknowns) == (total is None)


@pytest.mark.parametrize(
    "target", ["my_ffi", "triton_kernel_call", "triton_kernel_call_ffi", "mosaic_gpu_v2", "__gpu$xla.gpu.ptx", ""]
)
def test_what_nobody_knows_is_named_with_its_shapes_and_scope(target):
    found = call(target, op_name="jit(f)/attn/ffi_call", config=b"\x00not json")
    assert (found.total, found.minimum) == (None, 0)
    (unknown,) = found.unknowns
    assert (unknown.target, unknown.scope, unknown.operands, unknown.result) == (
        target, "attn", ("f32[8,8]",), "f32[8,8]",
    )  # fmt: skip


@pytest.mark.parametrize(
    "target", ["cu_threefry2x32_ffi", "TopK", "__gpu$TopK", "PartialReduce", "Sharding", "X64SplitLow", "MoveToHost"]
)
def test_what_only_moves_compares_or_draws_is_no_unknown(target):
    found = call(target)
    assert (found.total, found.unknowns) == (0, ())


@pytest.mark.parametrize(
    "target", ["xla_ffi_python_cpu_callback", "xla_ffi_python_gpu_callback", "xla_python_gpu_callback",
               "xla_python_cpu_callback", "xla_ffi_partitioned_python_cpu_callback"],
)  # fmt: skip
def test_a_callback_is_work_of_the_host(target):
    found = call(target)
    assert found.total == 0 and [(u.kind, u.voids) for u in found.unknowns] == [("host", False)]


def test_traffic_between_slices_is_not_handed_to_the_program():
    program = Program()
    program.computation("entry")
    x, token = program.add("parameter", ("f32", 8)), program.add("after-all", ("token",))
    for attributes in ([{"key": "_xla_host_transfer_handler_name", "value": "rendezvous"}],
                       [{"key": "_xla_megascale_transfer_type", "value": "ALL_GATHER"}]):  # fmt: skip
        program.add("send", [("f32", 8), ("u32",), ("token",)], [x, token], is_host_transfer=True,
                    frontend_attributes={"map": attributes})  # fmt: skip
    program.add("send", [("f32", 8), ("u32",), ("token",)], [x, token])
    module = read_graph(program.bytes(), platform="tpu")[1].module
    sends = [host_transfer(at) for at in module.walk() if at.opcode == "send"]
    assert sends == ["send to rendezvous", "", ""]


def test_the_kernel_of_group_offsets_multiplies_nothing():
    integers = {"operands": [("s32", 8)], "results": [("s32", 9), ("s32", 8)], "platform": "tpu"}
    assert call("tpu_custom_call", **integers, op_name="ragged-dot-metadata").total == 0
    assert call("tpu_custom_call", **integers, op_name="jit(f)/pallas_call").total is None
    floats = {**integers, "results": [("f32", 9)]}
    assert call("tpu_custom_call", **floats, op_name="ragged-dot-metadata").total is None


# Fused attention --------------------------------------------------------------------------------------------------


def attention(target, operands, results, scores, mask="CAUSAL", **config):
    shape = {"dimensions": [str(size) for size in scores]}
    return call(target, operands, results, {
        "cudnn_fmha_backend_config": {"intermediate_tensor_shape": shape, "mask_type": mask, **config}
    })  # fmt: skip


B, N, G, T, S, QK, V = 2, 4, 2, 16, 24, 8, 6
PAIRS = B * N * T * S
Q, K, VALUES, OUT = ("bf16", B, T, N, QK), ("bf16", B, S, G, QK), ("bf16", B, S, G, V), ("bf16", B, T, N, V)
STATISTICS, SCRATCH = ("f32", B, N, T), ("u8", 0)


@pytest.mark.parametrize("name", ["Softmax", "ScaleBiasSoftmax", "SoftmaxDropout", "SoftmaxF8"])
def test_attention_forward_is_two_products_over_the_full_square(name):
    found = attention(f"__cudnn$fmha{name}", [Q, K, VALUES], [OUT, STATISTICS, SCRATCH], (B, N, T, S))
    assert found.total == found.by_class["kernel"].value == 2 * PAIRS * (QK + V)
    (row,) = found.rows
    assert (row.basis, row.detail) == ("shape", "mask CAUSAL") and "no credit" in row.convention


@pytest.mark.parametrize("name", ["SoftmaxBackward", "ScaleBiasSoftmaxDropoutBackward", "SoftmaxBackwardF8"])
def test_attention_backward_is_five(name):
    found = attention(f"__cudnn$fmha{name}", [Q, K, STATISTICS, VALUES, OUT], [Q, K, VALUES, SCRATCH], (B, N, T, S))
    assert found.total == 2 * PAIRS * (3 * QK + 2 * V)


def test_a_window_is_named_and_earns_nothing():
    found = attention("__cudnn$fmhaSoftmax", [Q, K, VALUES], [OUT], (B, N, T, S), sliding_window_length=4)
    assert found.total == 2 * PAIRS * (QK + V) and found.rows[0].detail == "mask CAUSAL, window 4"


@pytest.mark.parametrize("scores", [(B, N, T + 1, S), (), (S,), (B, N, T, "x"), (B * QK * N * T * 2, 2)])
def test_attention_whose_scores_do_not_fit_is_opaque(scores):
    found = attention("__cudnn$fmhaSoftmax", [Q, K, VALUES], [OUT], scores)
    assert found.total is None and found.unknowns[0].target == "__cudnn$fmhaSoftmax"


@pytest.mark.cuda
def test_attention_as_cudnn_runs_it(programs):
    found = programs.flops("attention", "h100:1")  # skipped where cuDNN is not installed
    assert found.total == 2 * 2 * 2 * 4 * 256 * 256 * 64
    assert found.rows[0].detail == "mask CAUSAL"


# Products by libraries --------------------------------------------------------------------------------------------

RAGGED = {
    "dot_dimension_numbers": {"lhs_contracting_dimensions": ["1"], "rhs_contracting_dimensions": ["1"]},
    "lhs_ragged_dimensions": ["0"], "rhs_group_dimensions": ["0"],
}  # fmt: skip
GROUPED = {"operands": [("f32", 64, 128), ("f32", 8, 128, 256), ("s32", 8)], "results": [("f32", 64, 256)]}


def test_a_grouped_product_counts_one_group_per_row():
    given = {**GROUPED, "results": [("f32", 64, 256), ("s8", 1024)]}
    config = {"grouped_gemm_backend_config": {"ragged_dot_dimension_numbers": RAGGED}}
    found = call("__cublas$lt$groupedMatmul", **given, config=config)
    assert found.total == found.by_class["contraction"].value == 4_194_304
    elsewhere = {"dot_dimension_numbers": {"rhs_contracting_dimensions": ["9"]}}
    for damaged in ({}, {"grouped_gemm_backend_config": {}},
                    {"grouped_gemm_backend_config": {"ragged_dot_dimension_numbers": elsewhere}}):  # fmt: skip
        assert call("__cublas$lt$groupedMatmul", **given, config=damaged).total is None


def test_a_ragged_product_not_yet_lowered_counts_one_group_per_row():
    numbers = {
        "dot_dimension_numbers": {"lhs_contracting_dimensions": [1], "rhs_contracting_dimensions": [1]},
        "lhs_ragged_dimensions": [0], "rhs_group_dimensions": [0],
    }  # fmt: skip
    assert call("ragged-dot", **GROUPED, ragged_dot_dimension_numbers=numbers).total == 4_194_304
    contracted = {
        "dot_dimension_numbers": {"lhs_contracting_dimensions": [0], "rhs_contracting_dimensions": [0]},
        "lhs_ragged_dimensions": [0],
    }  # fmt: skip
    weights = {"operands": [("f32", 64, 128), ("f32", 64, 256), ("s32", 8)], "results": [("f32", 8, 128, 256)]}
    assert call("ragged-dot", **weights, ragged_dot_dimension_numbers=contracted).total == 4_194_304


@pytest.mark.parametrize("target", ["__cudnn$blockScaledDot", "__op$block_scaled_dot"])
def test_a_block_scaled_product(target):
    operands = [("f8e4m3fn", 2, 64, 128), ("f8e4m3fn", 2, 32, 128), ("f8e8m0fnu", 2, 64, 4), ("f8e8m0fnu", 2, 32, 4)]
    assert call(target, operands, [("bf16", 2, 64, 32), ("u8", 0)]).total == 2 * 2 * 64 * 128 * 32
    assert call(target, operands, [("bf16", 2, 64, 33)]).total is None


def test_a_product_by_onednn_is_read_from_its_sizes():
    assert call("__onednn$matmul", [("f32", 5, 7), ("f32", 7, 3)], [("f32", 5, 3)]).total == 2 * 5 * 7 * 3
    assert call("__onednn$matmul", [("f32", 4, 5, 7), ("f32", 4, 3, 7)], [("f32", 4, 5, 3)]).total == 2 * 4 * 5 * 7 * 3
    assert call("__onednn$matmul", [("f32", 4, 5, 7), ("f32", 7, 3)], [("f32", 4, 5, 3)]).total == 2 * 4 * 5 * 7 * 3
    assert call("__onednn$matmul", [("f32", 5, 7), ("f32", 7, 3)], [("f32", 5, 4)]).total is None


def test_a_cublas_call_without_a_readable_configuration_is_opaque():
    found = call("__cublas$lt$matmul", [("f32", 5, 7), ("f32", 7, 3)], [("f32", 5, 3)], {"gemm_backend_config": {}})
    assert found.total is None and found.unknowns[0].target == "__cublas$lt$matmul"


def test_a_scaled_dot_counts_its_operands_and_not_their_scales():
    program = Program()
    program.computation("entry")
    given = [
        program.add("parameter", (dtype, *dims), parameter_number=i)
        for i, (dtype, *dims) in enumerate([
            ("f8e4m3fn", 64, 128), ("f8e4m3fn", 128, 32), ("f8e8m0fnu", 64, 4), ("f8e8m0fnu", 4, 32),
        ])
    ]  # fmt: skip
    program.add("scaled-dot", ("bf16", 64, 32), given, dot_dimension_numbers={
        "lhs_contracting_dimensions": [1], "rhs_contracting_dimensions": [0]})  # fmt: skip
    found = count_flops(*read_graph(program.bytes(), platform="cuda"))
    assert (found.total, list(found.by_dtype)) == (2 * 64 * 128 * 32, ["f8e4m3fn -> bf16"])


def test_one_kernel_more_and_the_total_is_gone():
    program = Program()
    program.computation("entry")
    dot(program, 2, 3, 4)
    assert count_flops(*read_graph(program.bytes(), platform="cuda")).total == 48
    program.add("custom-call", ("f32", 2), [], custom_call_target="mystery")
    assert count_flops(*read_graph(program.bytes(), platform="cuda")).total is None


@pytest.mark.parametrize("shape", [("f32",), ("f32", 0), ("f32", 4, 4), ("s32", 3), ("c64", 2, 3, 5)])
@pytest.mark.parametrize("count", [0, 1, 2, 4])
def test_a_call_whose_operands_are_not_its_own_is_counted_or_unknown(shape, count):
    scores = {"intermediate_tensor_shape": {"dimensions": ["2", "2"]}}
    for target in (
        "TopK", "lapack_sgetrf_ffi", "lapack_sorgqr_ffi", "lapack_sgtsv_ffi", "blas_strsm", "cusolver_syrk_ffi",
        "cu_cholesky_update_ffi", "CompactWyHelper", "EighTpu", "__cudnn$fmhaSoftmax", "__cudnn$fmhaSoftmaxBackward",
        "__cublas$lt$matmul", "__cublas$lt$groupedMatmul", "__cudnn$blockScaledDot", "__onednn$matmul",
        "__cudnn$convForward", "cu_threefry2x32_ffi", "tpu_custom_call",
    ):  # fmt: skip
        for config in (None, b"\xff", {"cudnn_fmha_backend_config": scores}):
            found = call(target, [shape] * count, [shape], config)
            assert (found.total is None) == any(unknown.voids for unknown in found.unknowns)
            assert found.minimum >= 0
