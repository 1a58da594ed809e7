"""What holds a module together, and what its reader does not know."""

from __future__ import annotations

import pytest

from jaxcost.contracts.errors import RejectedError
from jaxcost.observation.hlo.module import read_module
from tests.observation.hlo.building import Program


def test_what_is_unknown_is_named_once_and_counted():
    program = Program()
    program.computation("entry")
    for opcode in ("sharpen", "blur", "sharpen", "sharpen"):
        program.add(opcode, ("f32",))
    assert read_module(program.module).unknowns == ["opcode 'blur'", "opcode 'sharpen' x3"]


def calling(opcode: str, called: int, taken: int = 1, given: int = 1) -> Program:
    """A program in which one instruction calls computations that take `taken` parameters each."""
    program = Program()
    inner = []
    for i in range(called):
        inner.append(program.computation(f"inner.{i}"))
        for number in range(taken):
            program.add("parameter", [("f32",)], parameter_number=number)
    program.computation("entry")
    data = [program.add("parameter", [("f32",)], parameter_number=i) for i in range(given)]
    program.add(opcode, [("f32",)], data, inner)
    return program


@pytest.mark.parametrize(("opcode", "called"), [("while", 2), ("fusion", 1), ("call", 1), ("conditional", 1)])
def test_an_instruction_calls_what_its_operation_needs(opcode, called):
    given = 2 if opcode == "conditional" else 1
    assert read_module(calling(opcode, called, given=given).module).entry.root.opcode == opcode
    with pytest.raises(RejectedError, match=f"{opcode} calls {called}.* computations"):
        read_module(calling(opcode, called - 1, given=given).module)


@pytest.mark.parametrize("opcode", ["fusion", "call"])
@pytest.mark.parametrize(("taken", "given"), [(1, 2), (2, 1)])
def test_a_computation_is_given_as_many_operands_as_it_takes(opcode, taken, given):
    with pytest.raises(RejectedError, match=rf"inner\.0 takes {taken} operands"):
        read_module(calling(opcode, 1, taken, given).module)


def test_a_loop_takes_one_parameter():
    with pytest.raises(RejectedError, match="body and condition take one parameter"):
        read_module(calling("while", 2, taken=2).module)


@pytest.mark.parametrize(("opcode", "given", "why"), [
    ("copy", 2, "copy takes 1 operands"), ("add", 1, "add takes 2 operands"),
    ("scatter", 2, "scatter takes 3 or more operands"), ("all-reduce-start", 0, "takes 1 or more operands"),
])  # fmt: skip
def test_an_instruction_takes_what_its_operation_needs(opcode, given, why):
    with pytest.raises(RejectedError, match=why):
        read_module(calling(opcode, 0, given=given).module)
