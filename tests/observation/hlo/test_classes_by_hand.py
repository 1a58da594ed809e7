"""What a buffer is for, one piece of evidence at a time, on programs of a few instructions."""

from __future__ import annotations

import pytest

from jaxcost.observation.hlo.classes import Classes
from jaxcost.observation.hlo.kinds import SCRATCH, Kind
from jaxcost.observation.hlo.module import read_module
from jaxcost.observation.hlo.origins import Places
from tests.observation.hlo.building import Program

FORWARD, BACKWARD = "jit(f)/jvp(group0)/mlp/", "jit(f)/transpose(jvp(group0))/mlp/"
PRODUCT = {"dot_dimension_numbers": {"lhs_contracting_dimensions": [1], "rhs_contracting_dimensions": [0]}}


def kinds(program: Program):
    """The class of a named value in temporary memory."""
    module = read_module(program.module)
    classes, named = Classes(module, Places(None)), {at.name: at for at in module.walk()}

    def kind(name: str, *index: int) -> Kind:
        return classes.temporary(named[name], index)

    return kind


def argument(program: Program, shape: tuple, path: str) -> int:
    number = sum(at.opcode == "parameter" for at in program.open.instructions)
    return program.add("parameter", shape, parameter_number=number, op_name=path, name=path)


# Single values ------------------------------------------------------------------------------------------------------


def test_the_vocabulary_is_the_side_of_the_heads_product_that_only_its_weight_has():
    """A head of 20 by 8, so that its larger side is not the vocabulary; what is 20 wide there is no logits."""
    program = Program()
    program.computation("entry")
    rows = program.add("exponential", ("f32", 2, 20), [argument(program, ("f32", 2, 20), "inputs")])
    weight = argument(program, ("f32", 20, 8), "parameters.head.weight")
    logits = program.add(
        "dot", ("f32", 2, 8), [rows, weight], name="logits", op_name="jit(f)/head/inner/dot", **PRODUCT
    )
    program.add("exponential", ("f32", 2, 20), [rows], name="rows", op_name="jit(f)/head/inner/exp")
    program.add("exponential", ("f32", 2, 8), [logits], name="odds", op_name="jit(f)/loss/exp")
    kind = kinds(program)
    assert {name: kind(name).name for name in ("logits", "odds", "rows")} == {
        "logits": "logits", "odds": "logits", "rows": "workspace",
    }  # fmt: skip


def test_bytes_that_a_library_call_returns_beside_its_result_are_scratch():
    program = Program()
    inside = program.computation("inside", fusion=True)
    x = program.add("parameter", ("f32", 4))
    program.add("tuple", [("f32", 4), ("u8", 64)], [x, program.add("convert", ("u8", 64), [x])])
    program.computation("entry")
    x = program.add("parameter", ("f32", 4))
    for dtype in ("s8", "u8"):
        program.add("custom-call", [("f32", 4), (dtype, 64)], [x], name=f"call {dtype}", custom_call_target="f")
    program.add("fusion", [("f32", 4), ("u8", 64)], [x], [inside], name="fused")
    kind = kinds(program)
    assert kind("call s8", 1).why == kind("call u8", 1).why == SCRATCH
    assert SCRATCH not in (kind("call u8", 0).why, kind("fused", 1).why)


def test_zeros_are_what_fills_them():
    program = Program()
    program.computation("entry")
    part = argument(program, ("f32", 2, 4), "inputs")
    argument(program, ("f32", 16, 8), "parameters.head.weight")
    named = "jit(f)/group0/broadcast"
    zeros = program.add("broadcast", ("f32", 2, 16), [program.constant(0)], name="zeros", op_name=named)
    made = program.add("exponential", ("f32", 2, 4), [part])
    where = [program.constant(0), program.constant(0)]
    filled = [zeros, made, *where]
    program.add("dynamic-update-slice", ("f32", 2, 16), filled, name="written", op_name="jit(f)/head/update")
    program.add("broadcast", ("f32", 2, 16), [program.constant(0)], name="idle", op_name=named)
    kind = kinds(program)
    assert kind("written").name == "logits"  # 16 wide, the larger side of the head
    assert kind("zeros") == Kind("logits", f"memory that written fills: {kind('written').why}")
    assert kind("idle") == Kind("workspace", "follows from constants and counters")


def backward(opcode: str, operands: int, **rest) -> Kind:
    """The class of a product of the backward pass; its factors are activations, what follows them are weights."""
    program = Program()
    program.computation("entry")
    given = [argument(program, ("f32", 6, 6), "inputs") for _ in range(min(operands, 2))]
    argument(program, ("f32", 5, 6), "parameters.groups[0].mlp.up.weight")
    given += [argument(program, ("f32", 6, 6), f"parameters.groups[0].mlp.bias{i}.weight") for i in range(operands - 2)]
    program.add(opcode, ("f32", 7, 7), given, name="made", op_name=f"{BACKWARD}dot_general", **rest)
    return kinds(program)("made")


@pytest.mark.parametrize(("opcode", "operands", "rest"), [
    ("dot", 2, PRODUCT), ("custom-call", 2, {"custom_call_target": "f"}),
    ("custom-call", 3, {"custom_call_target": "f"}), ("ragged-dot", 3, {}),
])  # fmt: skip
def test_a_backward_product_of_two_factors_that_are_no_weights_is_a_gradient(opcode, operands, rest):
    why = "a product of the backward pass of group0/mlp without a weight"
    assert backward(opcode, operands, **rest) == Kind("gradient", why)


def test_a_library_call_of_one_operand_is_no_product():
    assert backward("custom-call", 1, custom_call_target="f").name != "gradient"


@pytest.mark.parametrize(("dims", "name"), [
    ((3, 4, 5), "gradient"), ((4, 5), "gradient"), ((20,), "gradient"), ((5, 3), "workspace"), ((3, 4), "workspace"),
])  # fmt: skip
def test_what_is_as_large_as_a_weight_or_one_of_its_layers_in_its_backward_pass_is_its_gradient(dims, name):
    program = Program()
    program.computation("entry")
    argument(program, ("f32", 3, 4, 5), "parameters.groups[0].mlp.up.weight")
    x = argument(program, ("f32", *dims), "inputs")
    program.add("exponential", ("f32", *dims), [x], name="made", op_name=f"{BACKWARD}exp")
    assert kinds(program)("made").name == name


# Loop state ---------------------------------------------------------------------------------------------------------

HEAD = ("f32", 2, 8)
STACK, ROW = ("f32", 3, 8), ("f32", 1, 8)


def looped(op_name: str, *, returned: bool = False, source: str = "inputs") -> Program:
    """A loop that keeps one element, replaces one, and writes rows of an argument into a stack."""
    program, state = Program(), [("s32",), HEAD, HEAD, STACK, STACK]
    body = program.computation("body")
    given = program.add("parameter", state, name="state")
    count, kept, other, stack, rows = (
        program.add("get-tuple-element", shape, [given], tuple_index=i) for i, shape in enumerate(state)
    )
    zero = program.constant(0)
    row = program.add("dynamic-slice", ROW, [rows, count, zero])
    written = program.add("dynamic-update-slice", STACK, [stack, row, count, zero])
    following = [
        program.add("add", ("s32",), [count, program.constant(1)]), kept, program.add("negate", HEAD, [other]),
        written, rows,
    ]  # fmt: skip
    program.add("tuple", state, following)
    condition = program.computation("condition")
    given = program.add("parameter", state)
    count = program.add("get-tuple-element", ("s32",), [given], tuple_index=0)
    program.add("compare", ("pred",), [count, program.constant(3)], comparison_direction="LT")
    program.computation("entry")
    x = program.add("exponential", ("f32", 2, 16), [argument(program, ("f32", 2, 16), "inputs")])
    weight = argument(program, ("f32", 16, 8), "parameters.head.weight")
    rows = argument(program, STACK, source)
    logits = program.add("dot", HEAD, [x, weight], name="logits", op_name="jit(f)/head/dot_general", **PRODUCT)
    hidden = program.add("exponential", HEAD, [logits], name="hidden", op_name="jit(f)/group0/exp")
    empty = program.add("broadcast", STACK, [program.constant(0)])
    first = program.add("tuple", state, [program.constant(0), logits, hidden, empty, rows])
    program.add("while", state, [first], [body, condition], name="loop", op_name=op_name)
    if returned:
        loop = program.open.instructions[-1].id
        program.add("get-tuple-element", STACK, [loop], tuple_index=3)
    else:
        program.add("exponential", ("f32", 2, 16), [x])
    return program


def test_state_that_a_loop_keeps_is_what_it_started_as():
    kind = kinds(looped("jit(f)/group0/while"))
    assert kind("loop", 1) == kind("state", 1) == kind("logits")
    assert kind("logits").name == "logits"


def test_state_that_a_loop_replaces_is_its_workspace():
    kind = kinds(looped("jit(f)/group0/while"))
    why = "state that group0 replaces in each round"
    assert kind("loop", 2) == kind("state", 2) == Kind("workspace", why)
    assert kind("hidden").why != why  # what goes into the loop is no state of it yet
    assert kind("loop", 0).why == "a scalar of a loop's state"


def test_a_stack_of_attention_is_a_cache_where_the_program_returns_it():
    scope = "jit(f)/group0/attn/core/"
    assert kinds(looped(f"{scope}while"))("loop", 3) == Kind(
        "attention", "gathered block by block by the loop loop of group0/attn/core"
    )
    assert kinds(looped(f"{scope}while", returned=True))("loop", 3).name == "cache"
    assert kinds(looped("jit(f)/attnuation/while"))("loop", 3).name != "attention"


@pytest.mark.parametrize(("source", "name"), [
    ("parameters.groups[0].mlp.up.weight", "gathered_weight"), ("optimizer.mu.head.weight", "gathered_weight"),
    ("labels", "workspace"),
])  # fmt: skip
def test_a_stack_of_copies_of_a_weight_is_the_weight_gathered(source, name):
    kind = kinds(looped("jit(f)/group0/while", source=source))("loop", 3)
    assert kind.name == name
    assert (kind.why == f"a copy of {source} for each layer, stacked by loop") == (name == "gathered_weight")
