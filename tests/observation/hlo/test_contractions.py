from __future__ import annotations

import json
from itertools import product

import jax
import jax.numpy as jnp
import pytest

from jaxcost.contracts.errors import RejectedError
from jaxcost.observation.hlo import read_hlo
from jaxcost.observation.hlo.convolution import ConvolutionCount, count_convolution, valid_pairs
from jaxcost.observation.hlo.schema import message
from tests.observation.hlo.building import Program, array, cuda_devices, dot, dump, dump_cuda, fill


def flops(data, platform="cpu"):
    return read_hlo(data, platform=platform).flops.value


@pytest.mark.parametrize("n, expected", [(2, 74_752), (9, 336_384)])
def test_a_dense_layer(n, expected):
    data, _ = dump(lambda x, k, b: x @ k + b, array(n, 73), array(73, 256), array(256))
    assert flops(data) == expected


def test_batch_one_is_a_dot_or_its_strength_reduced_form():
    data, _ = dump(lambda x, k, b: x @ k + b, array(1, 73), array(73, 256), array(256))
    reading = read_hlo(data, platform="cpu")
    assert reading.flops.value + reading.contractions.strength_reduced_total.value == 37_376


def test_small_and_large():
    assert flops(dump(jnp.matmul, array(2, 10), array(10, 7))[0]) == 280
    big = array(2048, 2048, dtype="bfloat16")
    assert flops(dump(jnp.matmul, big, big)[0]) == 17_179_869_184


@pytest.mark.cuda
def test_on_cuda():
    square = array(512, 512)
    reading = read_hlo(dump_cuda(jnp.matmul, square, square), platform="cuda")
    assert reading.flops.value == 2 * 512**3
    (row,) = reading.contractions.rows
    assert row.split_k in (1, 4) and row.logical_flops == row.flops
    for n, expected in ((2, 74_752), (9, 336_384)):
        assert flops(dump_cuda(jnp.matmul, array(n, 73), array(73, 256)), "cuda") == expected


@pytest.mark.cuda
def test_strength_reduction_is_listed_apart():
    reading = read_hlo(dump_cuda(jnp.matmul, array(1, 73), array(73, 256)), platform="cuda")
    assert reading.flops.value == 0
    (row,) = reading.contractions.strength_reduced
    assert (row.opcode, row.flops) == ("reduce", 37_376)
    outer = read_hlo(dump_cuda(lambda a, b: jnp.einsum("i,j->ij", a, b), array(64), array(128)), platform="cuda")
    assert [r.flops for r in outer.contractions.strength_reduced] == [2 * 64 * 128]


@pytest.mark.cuda
def test_split_k_shows_its_padding():
    a, b = array(64, 8193, dtype="bfloat16"), array(8193, 64, dtype="bfloat16")
    reading = read_hlo(dump_cuda(jnp.matmul, a, b), platform="cuda")
    (row,) = reading.contractions.rows
    assert row.split_k > 1
    assert row.logical_flops == 2 * 64 * 64 * 8193 < row.flops
    assert reading.contractions.strength_reduced == ()  # the reduce that adds the parts is no product


@pytest.mark.cuda
def test_a_cublas_call_shows_its_padding():
    a, b = array(100, 513, dtype="bfloat16"), array(513, 203, dtype="bfloat16")
    reading = read_hlo(dump_cuda(jnp.matmul, a, b, xla_gpu_enable_triton_gemm=False), platform="cuda")
    (row,) = reading.contractions.rows
    assert row.target == "__cublas$lt$matmul"
    assert (row.m, row.k, row.n, row.flops) == (104, 520, 208, 2 * 104 * 520 * 208)
    assert row.logical_flops == 2 * 100 * 513 * 203


def qkv(x, blk):
    with jax.named_scope("group0"), jax.named_scope("attn"):
        out = []
        for name in ("q_proj", "k_proj", "v_proj"):
            with jax.named_scope(name):
                out.append(jnp.tanh(x @ blk[name]["weight"]))
        return out


@pytest.mark.cuda
def test_a_merged_dot_is_split_by_its_weights():
    sizes = {"q_proj": 512, "k_proj": 128, "v_proj": 128}
    sharding = jax.sharding.SingleDeviceSharding(cuda_devices(1)[0])
    struct = lambda *dims: jax.ShapeDtypeStruct(dims, jnp.bfloat16, sharding=sharding)  # noqa: E731
    blk = {name: {"weight": struct(256, size)} for name, size in sizes.items()}
    data, _ = dump(qkv, struct(2048, 256), blk)
    scopes = frozenset({"group0", "attn", *sizes})
    reading = read_hlo(data, platform="cuda", scopes=scopes)
    expected = {name: 2 * 2048 * 256 * size for name, size in sizes.items()}
    assert reading.flops.value == sum(expected.values())
    (row,) = reading.contractions.rows
    assert {share.argument: share.flops for share in row.shares} == {
        f"blk['{name}']['weight']": amount for name, amount in expected.items()
    }
    assert {scope: total.value for (scope, _), total in reading.contractions.by_place.items()} == {
        f"group0/attn/{name}": amount for name, amount in expected.items()
    }
    assert row.scope == "group0/attn" and row.scope_exact
    # Where no path names a component the shares stay, but the place is the scope that encloses them.
    every = read_hlo(data, platform="cuda")
    (row,) = every.contractions.rows
    assert (row.scope, row.scope_exact, len(row.shares)) == ("group0/attn", False, 3)
    assert {scope for scope, _ in every.contractions.by_place} == {"group0/attn"}


def fused(x, blk):
    """Products with pieces of one stored weight: q, k, v of `attn.qkv`, and gate and up of `mlp.gate_up`."""
    out = []
    with jax.named_scope("group0"):
        for part, stored, sizes in (("attn", "qkv", {"q_proj": 512, "k_proj": 128, "v_proj": 128}),
                                    ("mlp", "gate_up", {"gate": 256, "up": 256})):  # fmt: skip
            start = 0
            for name, size in sizes.items():
                with jax.named_scope(part), jax.named_scope(name):
                    weight = jax.lax.slice_in_dim(blk[part][stored]["weight"], start, start + size, axis=1)
                    out.append(jnp.tanh(x[part] @ weight))
                start += size
    return out


@pytest.mark.cuda
def test_a_dot_over_a_whole_fused_weight_lies_above_its_products():
    sharding = jax.sharding.SingleDeviceSharding(cuda_devices(1)[0])
    struct = lambda *dims: jax.ShapeDtypeStruct(dims, jnp.bfloat16, sharding=sharding)  # noqa: E731
    blk = {"attn": {"qkv": {"weight": struct(256, 768)}}, "mlp": {"gate_up": {"weight": struct(256, 512)}}}
    data, _ = dump(fused, {"attn": struct(2048, 256), "mlp": struct(2048, 256)}, blk)
    scopes = frozenset(["group0", "attn", "mlp", "q_proj", "k_proj", "v_proj", "gate", "up"])
    reading = read_hlo(data, platform="cuda", scopes=scopes)
    # One dot each: it bears the name of one product, and its operand the name of none.
    assert {scope: total.value for (scope, _), total in reading.contractions.by_place.items()} == {
        "group0/attn": 2 * 2048 * 256 * 768,
        "group0/mlp": 2 * 2048 * 256 * 512,
    }


def brute_pairs(kernel, size, out, stride, low, wdil, bdil):
    return sum(
        0 <= p < (size - 1) * bdil + 1 and p % bdil == 0
        for k, o in product(range(kernel), range(out))
        for p in [o * stride + k * wdil - low]
    )


def test_valid_pairs_against_the_definition():
    for kernel, size, stride, low, wdil, bdil in product(
        (1, 2, 3, 5), (1, 4, 7), (1, 2, 3), (-1, 0, 2), (1, 2), (1, 2, 3, 4)
    ):
        out = max(0, ((size - 1) * bdil + 1 + low + 2 - ((kernel - 1) * wdil + 1)) // stride + 1)
        got = valid_pairs(kernel, size, out, stride=stride, low=low, window_dilation=wdil, base_dilation=bdil)
        assert got == brute_pairs(kernel, size, out, stride, low, wdil, bdil), (kernel, size, stride, low, wdil, bdil)


@pytest.mark.parametrize(
    "strides, padding, lhs_dilation, rhs_dilation, groups",
    [
        ((1, 1), "SAME", (1, 1), (1, 1), 1), ((2, 2), "SAME", (1, 1), (1, 1), 1), ((2, 1), "VALID", (1, 1), (2, 2), 1),
        ((1, 1), [(1, 2), (0, 1)], (2, 3), (1, 1), 1), ((1, 1), "SAME", (1, 1), (1, 1), 4),
        ((2, 2), "VALID", (1, 1), (1, 1), 2),
    ],
)  # fmt: skip
def test_convolutions(strides, padding, lhs_dilation, rhs_dilation, groups):
    def fn(x, w):
        return jax.lax.conv_general_dilated(
            x, w, strides, padding, lhs_dilation=lhs_dilation, rhs_dilation=rhs_dilation, feature_group_count=groups,
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )  # fmt: skip

    x, w = array(2, 9, 11, 8), array(3, 2, 8 // groups, 16)
    out = jax.eval_shape(fn, x, w).shape
    pads = padding if isinstance(padding, list) else jax.lax.padtype_to_pads(
        (9, 11), tuple((k - 1) * d + 1 for k, d in zip((3, 2), rhs_dilation, strict=True)), strides, padding
    )  # fmt: skip
    taps = 1
    for i, (kernel, size) in enumerate(zip((3, 2), (9, 11), strict=True)):
        taps *= brute_pairs(kernel, size, out[1 + i], strides[i], pads[i][0], rhs_dilation[i], lhs_dilation[i])
    # With optimisation XLA may rewrite a convolution; the count of the program as written is exact.
    data = jax.jit(fn).lower(x, w).compiler_ir("hlo").as_serialized_hlo_module_proto()
    assert flops(data) == 2 * taps * (8 // groups) * 16 * 2


@pytest.mark.cuda
def test_cudnn_convolutions_permute_the_roles():
    def conv(x, w):
        return jax.lax.conv_general_dilated(x, w, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    x, w = array(8, 33, 33, 16), array(3, 3, 16, 32)
    once = 2 * brute_pairs(3, 33, 17, 2, 1, 1, 1) ** 2 * 16 * 32 * 8
    assert flops(dump_cuda(conv, x, w), "cuda") == once
    grad = jax.grad(lambda x, w: jnp.sum(conv(x, w) ** 2), (0, 1))
    reading = read_hlo(dump_cuda(grad, x, w), platform="cuda")
    assert [row.flops for row in reading.contractions.rows] == [once] * 3
    assert reading.contractions.by_phase["backward"].value == 2 * once


@pytest.mark.cuda
def test_a_gradient_of_an_input_padded_for_the_library_is_cut_to_size():
    def conv(x, w):
        return jax.lax.conv_general_dilated(x, w, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    # 16 pixels and a stride of 2 need one pixel at the far end: written out before, and cut away behind.
    x, w = array(4, 16, 16, 16), array(3, 3, 16, 32)
    inside = 2 * brute_pairs(3, 16, 8, 2, 0, 1, 1) ** 2 * 16 * 32 * 4
    grad = jax.grad(lambda x, w: jnp.sum(conv(x, w) ** 2))
    rows = read_hlo(dump_cuda(grad, x, w), platform="cuda").contractions.rows
    assert [row.logical_flops for row in rows] == [inside] * 2
    assert all(row.flops > inside for row in rows)


@pytest.mark.cuda
def test_a_gradient_written_over_a_padded_kernel_has_the_same_products():
    def conv(x, w):
        return jax.lax.conv_general_dilated(x, w, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    # Four pixels and wide features: the kernel is padded and transposed, and convolved with a dilated gradient.
    x, w = array(2, 4, 4, 512), array(3, 3, 512, 512)
    inside = 2 * brute_pairs(3, 4, 2, 2, 0, 1, 1) ** 2 * 512 * 512 * 2
    grad = jax.grad(lambda x, w: jnp.sum(conv(x, w) ** 2), (0, 1))
    rows = read_hlo(dump_cuda(grad, x, w), platform="cuda").contractions.rows
    assert [row.logical_flops for row in rows] == [inside] * 3
    assert all(row.flops > inside for row in rows)


def one_window(**window: int):
    """A convolution over one dimension, of [batch, feature, space] and [space, feature in, feature out]."""
    proto = message("HloInstructionProto")
    proto.window.dimensions.add(**window)
    numbers = {
        "input_batch_dimension": 0, "input_feature_dimension": 1, "input_spatial_dimensions": [2],
        "kernel_spatial_dimensions": [0], "kernel_input_feature_dimension": 1, "kernel_output_feature_dimension": 2,
        "output_batch_dimension": 0, "output_feature_dimension": 1, "output_spatial_dimensions": [2],
    }  # fmt: skip
    fill(proto.convolution_dimension_numbers, numbers)
    return proto


def test_a_window_that_says_nothing_walks_in_steps_of_one():
    count = count_convolution((2, 3, 5), (2, 3, 7), (2, 7, 4), one_window(size=2))
    assert count == ConvolutionCount(2 * (2 * 4) * 3 * 7 * 2, None, None, None, None)  # 2 taps at 4 places


def test_a_dimension_of_a_product_may_be_written_as_a_window():
    # One tap at each of 5 places: rows of the product.
    rows = count_convolution((2, 3, 5), (1, 3, 7), (2, 7, 5), one_window(size=1))
    assert rows == ConvolutionCount(2 * 10 * 3 * 7, 1, 10, 3, 7)
    # 5 taps on 5 elements, once: summed over with the features.
    summed = count_convolution((2, 3, 5), (5, 3, 7), (2, 7, 1), one_window(size=5))
    assert summed == ConvolutionCount(2 * 2 * 15 * 7, 1, 2, 15, 7)
    # Each of 5 taps meets the one element for another output: columns.
    columns = count_convolution((2, 3, 1), (5, 3, 7), (2, 7, 5), one_window(size=5, padding_low=4, padding_high=4))
    assert columns == ConvolutionCount(2 * 2 * 3 * 35, 1, 2, 3, 35)


def test_a_batched_product_written_as_a_convolution():
    # On TPU a batch dimension of n becomes a window of n taps over an input dilated by n, walked in steps of n - 1:
    # tap k meets a real element for output k alone.
    program = Program()
    program.computation("entry")
    lhs = program.add("broadcast", ("f32", 4, 6, 5), [program.constant(0)])
    rhs = program.add("broadcast", ("f32", 4, 7, 5), [program.constant(0)])
    program.add(
        "convolution", ("f32", 4, 6, 7), [lhs, rhs], op_name="jit(f)/bmd,bnd->bmn/dot_general",
        window={"dimensions": [{"size": 4, "stride": 3, "window_dilation": 1, "base_dilation": 4}]},
        convolution_dimension_numbers={
            "input_batch_dimension": 1, "input_feature_dimension": 2, "input_spatial_dimensions": [0],
            "kernel_output_feature_dimension": 1, "kernel_input_feature_dimension": 2, "kernel_spatial_dimensions": [0],
            "output_batch_dimension": 1, "output_feature_dimension": 2, "output_spatial_dimensions": [0],
        },
    )  # fmt: skip
    (row,) = read_hlo(program.bytes(), platform="tpu").contractions.rows
    assert (row.batch, row.m, row.k, row.n) == (4, 6, 5, 7)
    assert row.flops == 2 * 4 * 6 * 5 * 7
    program.open.instructions[-1].window.dimensions[0].padding_low = 3
    with pytest.raises(RejectedError, match="contradict"):
        read_hlo(program.bytes(), platform="tpu")


def test_removing_or_adding_a_dot_changes_the_total():
    data, _ = dump(lambda x, w, v: jnp.tanh(x @ w) @ v, array(8, 16), array(16, 32), array(32, 8))
    proto = message("HloProto")
    proto.ParseFromString(data)
    whole = flops(data)
    assert whole == 2 * 8 * 16 * 32 + 2 * 8 * 32 * 8
    dots = [(c, i) for c in proto.hlo_module.computations for i in c.instructions if i.opcode == "dot"]
    removed = message("HloProto")
    removed.CopyFrom(proto)
    for computation in removed.hlo_module.computations:
        for at in computation.instructions:
            if at.id == dots[0][1].id:
                at.opcode = "custom-call"
                at.custom_call_target = "replaced"
    reading = read_hlo(removed.SerializeToString(), platform="cpu")
    assert reading.flops.value < whole
    assert [o.target for o in reading.contractions.opaque] == ["replaced"]
    computation, at = dots[0]
    copy = computation.instructions.add()
    copy.CopyFrom(at)
    copy.id, copy.name = 1 << 60, "one.more"
    added = read_hlo(proto.SerializeToString(), platform="cpu")
    assert added.flops.value > whole
    assert "one.more" in [row.name for row in added.contractions.rows]


def test_a_dot_whose_operands_disagree_is_rejected():
    program = Program()
    program.computation("entry")
    dot(program, 2, 3, 4)
    assert flops(program.bytes()) == 48
    program.open.instructions[-2].shape.dimensions[0] = 5
    with pytest.raises(RejectedError, match="must agree"):
        read_hlo(program.bytes(), platform="cpu")


def test_a_concatenate_of_the_program_is_one_product():
    def rotary(x, w):
        half = x[:, :32]
        return jnp.concatenate([jnp.sin(half), jnp.cos(half)], -1) @ w

    data, _ = dump(rotary, array(16, 64), array(64, 8))
    (row,) = read_hlo(data, platform="cpu").contractions.rows
    assert row.shares == () and row.scope_exact


def ragged(x, w, groups):
    return jax.lax.ragged_dot(x, w, groups)


def test_a_ragged_dot_is_dense_per_group():
    arguments = array(64, 32), array(4, 32, 16), array(4, dtype="int32")
    assert flops(dump(ragged, *arguments)[0]) == 4 * 2 * 64 * 32 * 16


@pytest.mark.cuda
def test_a_ragged_dot_on_cuda_says_so():
    reading = read_hlo(dump_cuda(ragged, array(64, 32), array(4, 32, 16), array(4, dtype="int32")), platform="cuda")
    (row,) = reading.contractions.rows
    assert (row.flops, row.logical_flops) == (4 * 2 * 64 * 32 * 16, None)


def test_unknown_opcodes_and_fields_are_named():
    program = Program()
    program.computation("entry")
    dot(program, 2, 3, 4)
    program.add("frobnicate", ("f32", 2), [])
    reading = read_hlo(program.bytes(), platform="cpu")
    assert "opcode 'frobnicate'" in reading.unknowns
    program.open.instructions[-1].opcode = "custom-call"
    program.open.instructions[-1].custom_call_target = "mystery"
    reading = read_hlo(program.bytes(), platform="cpu")
    assert reading.unknowns == ()
    assert [o.target for o in reading.contractions.opaque] == ["mystery"]
    at = program.open.instructions[0]
    data = at.SerializeToString() + b"\xf8\x3f\x01"  # field 1023, varint 1
    at.ParseFromString(data)
    assert read_hlo(program.bytes(), platform="cpu").unknowns == ("field HloInstructionProto.1023",)


def scalar_sum(program: Program) -> int:
    """The computation that a reduce adds by."""
    made = program.computation("sum")
    one, other = program.add("parameter", ("f32",)), program.add("parameter", ("f32",), parameter_number=1)
    program.add("add", ("f32",), [one, other])
    return made


def split_in(parts: int, *, padded: bool = True, reduced_as: str = "jit(f)/attn/dot_general") -> Program:
    """A product of [64, k] and [k, 32] whose k of 8193, padded to 8196, is cut into parts that a reduce adds."""
    program = Program()
    adds = scalar_sum(program)
    program.computation("entry")
    k, operands = 8193 if padded else 8196, []
    for number, sides in enumerate(((64, None), (None, 32))):
        whole = program.add("parameter", ("f32", *(side or k for side in sides)), parameter_number=number)
        if padded:
            dims = [side or 8196 for side in sides]
            whole = program.add("pad", ("f32", *dims), [whole, program.constant(0, "s32")])
        cut = (64, parts, 8196 // parts) if number == 0 else (parts, 8196 // parts, 32)
        operands.append(program.add("bitcast", ("f32", *cut), [whole]))
    product = program.add(
        "dot", ("f32", parts, 64, 32), operands, op_name="jit(f)/attn/dot_general",
        dot_dimension_numbers={
            "lhs_batch_dimensions": [1], "rhs_batch_dimensions": [0],
            "lhs_contracting_dimensions": [2], "rhs_contracting_dimensions": [1],
        },
    )  # fmt: skip
    program.add("reduce", ("f32", 64, 32), [product, program.constant(0)], [adds], op_name=reduced_as)
    return program


def test_a_sum_cut_in_parts_is_known_by_its_reduce_and_its_padding():
    (row,) = read_hlo(split_in(4).bytes(), platform="cuda").contractions.rows
    assert (row.batch, row.k, row.split_k) == (4, 2049, 4)
    assert (row.flops, row.logical_flops) == (2 * 64 * 32 * 8196, 2 * 64 * 32 * 8193)
    (row,) = read_hlo(split_in(3, padded=False).bytes(), platform="cuda").contractions.rows
    assert (row.split_k, row.flops, row.logical_flops) == (3, 2 * 64 * 32 * 8196, 2 * 64 * 32 * 8196)
    # A reduce of another name is the program's own: a batch, summed.
    (row,) = read_hlo(
        split_in(4, padded=False, reduced_as="jit(f)/attn/reduce_sum").bytes(), platform="cuda"
    ).contractions.rows
    assert row.split_k == 1


def test_a_sparse_dot_is_not_counted_and_keeps_its_place():
    program = Program()
    program.computation("entry")
    dot(program, 2, 4, 8, op_name="jit(f)/mlp/up/dot_general")
    program.open.instructions[-1].sparsity_config.MergeFromString(b"\x0a\x00")  # it says something
    reading = read_hlo(program.bytes(), platform="cuda")
    (row,) = reading.contractions.rows
    assert (row.flops, row.scope, row.scope_exact, row.shares) == (None, "mlp/up", True, ())
    assert reading.flops.value is None


def test_a_product_that_became_multiplication_is_listed_with_its_cost():
    program = Program()
    adds = scalar_sum(program)
    multiplied = program.computation("multiplied", fusion=True)
    left, right = (program.add("parameter", ("f32", 256, 73), parameter_number=i) for i in (0, 1))
    program.add("multiply", ("f32", 256, 73), [left, right], op_name="jit(f)/head/mul")
    program.computation("entry")
    left, right = (program.add("parameter", ("f32", 256, 73), parameter_number=i) for i in (0, 1))
    made = program.add("fusion", ("f32", 256, 73), [left, right], [multiplied])
    turned = program.add("bitcast", ("f32", 73, 256), [made])
    program.add("reduce", ("f32", 256), [turned, program.constant(0)], [adds], op_name="jit(f)/head/dot_general")
    outer = [program.add("broadcast", ("f32", 64, 128), [program.constant(0)]) for _ in range(2)]
    program.add("multiply", ("f32", 64, 128), outer, op_name="jit(f)/mlp/dot_general")
    found = read_hlo(program.bytes(), platform="cuda").contractions
    assert [(row.opcode, row.scope, row.flops, row.total.value) for row in found.strength_reduced] == [
        ("reduce", "head", 2 * 256 * 73, 2 * 256 * 73), ("multiply", "mlp", 2 * 64 * 128, 2 * 64 * 128),
    ]  # fmt: skip
    assert found.strength_reduced_total.value == 2 * 256 * 73 + 2 * 64 * 128
    assert found.total.value == 0


def test_a_weight_of_another_component_in_a_merged_dot_keeps_its_own():
    program = Program()
    program.computation("entry")
    x = program.add("parameter", ("f32", 8, 16))
    weights = [
        program.add("parameter", ("f32", 16, n), parameter_number=i, op_name=path)
        for i, (n, path) in enumerate(((24, "params['attn']['q_proj']"), (40, "params['mlp']['gate_up']['weight']")), 1)
    ]  # fmt: skip
    both = program.add("concatenate", ("f32", 16, 64), weights, dimensions=[1])
    program.add(
        "dot", ("f32", 8, 64), [x, both], op_name="jit(f)/group0/attn/q_proj/dot_general",
        dot_dimension_numbers={"lhs_contracting_dimensions": [1], "rhs_contracting_dimensions": [0]},
    )  # fmt: skip
    scopes = frozenset(["group0", "attn", "q_proj", "mlp"])
    reading = read_hlo(program.bytes(), platform="cuda", scopes=scopes)
    assert {scope: total.value for (scope, _), total in reading.contractions.by_place.items()} == {
        "group0/attn/q_proj": 2 * 8 * 16 * 24,
        "group0/mlp": 2 * 8 * 16 * 40,
    }


@pytest.mark.parametrize(
    "shape, scores",
    [
        ({"dimensions": ["2", "4", "16", "16"]}, [2, 4, 16, 16]), ({"dimensions": ["2", "x"]}, None),
        ({"dimensions": "24"}, None), ({}, None),
    ],
)  # fmt: skip
def test_what_a_fused_attention_says_of_its_scores(shape, scores):
    program = Program()
    program.computation("entry")
    q = program.add("parameter", ("bf16", 2, 16, 4, 8))
    config = {"cudnn_fmha_backend_config": {"intermediate_tensor_shape": shape, "mask_type": "CAUSAL"}}
    program.add("custom-call", ("bf16", 2, 16, 4, 8), [q], custom_call_target="__cudnn$fmhaSoftmax",
                backend_config=json.dumps(config).encode())  # fmt: skip
    (call,) = read_hlo(program.bytes(), platform="cuda").contractions.opaque
    assert call.declared == (
        {"mask_type": "CAUSAL"} if scores is None else {"mask_type": "CAUSAL", "scores_shape": scores}
    )
