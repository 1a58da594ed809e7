"""What holds a module together, and what its reader does not know."""

from __future__ import annotations

import pytest

from jaxcost.contracts.errors import RejectedError
from jaxcost.observation.hlo.module import read_module
from jaxcost.observation.hlo.schema import message, split
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


def reordered(data: bytes, change) -> bytes:
    """A module in which `change` was made to the bytes of each instruction: (bytes, how many before it) -> bytes."""
    module = message("HloModuleProto", data)

    def field(number: int, body: bytes) -> bytes:
        return bytes([number << 3 | 2, len(body) & 127 | 128, len(body) >> 7]) + body

    number = {name: f.number for name, f in module.computations[0].DESCRIPTOR.fields_by_name.items()}["instructions"]
    outer = {name: f.number for name, f in module.DESCRIPTOR.fields_by_name.items()}["computations"]
    whole, count = b"", 0
    for computation in module.computations:
        body = b""
        for instruction in computation.instructions:
            body += field(number, change(instruction.SerializeToString(), count))
            count += 1
        computation.ClearField("instructions")
        whole += field(outer, computation.SerializeToString() + body)
    module.ClearField("computations")
    return module.SerializeToString() + whole


def test_fields_that_are_absent_or_there_twice_are_read_as_protobuf_has_them():
    program = calling("fusion", 1)
    program.module.computations[0].instructions[0].metadata.op_name = "jit(f)/x"
    data = program.module.SerializeToString()
    plain = read_module(split(data))
    fields = message("HloInstructionProto").DESCRIPTOR.fields_by_name
    name, metadata = fields["name"].number << 3 | 2, fields["metadata"].number << 3 | 2
    before = [(at.id, at.name, at.opcode, at.shape, at.op_name, len(at.operands)) for at in plain.walk()]

    def change(raw: bytes, count: int) -> bytes:
        if count == 0:  # scalars: the last; messages: both together
            more = message("OpMetadata")
            more.source_line = 7
            body = more.SerializeToString()
            return bytes([name, 5]) + b"other" + raw + bytes([metadata, len(body)]) + body
        one = message("HloInstructionProto", raw)
        one.ClearField("name")
        return one.SerializeToString()

    module = read_module(split(reordered(data, change)))
    found = [(at.id, at.name, at.opcode, at.shape, at.op_name, len(at.operands)) for at in module.walk()]
    assert found[0] == before[0] and next(module.walk()).metadata.source_line == 7
    assert found[1:] == [(row[0], "", *row[2:]) for row in before[1:]]
    assert before[0][4] == "jit(f)/x" and {row[4] for row in before[1:]} == {""}


def test_no_text_of_a_module_can_be_taken_for_the_end_of_an_instruction():
    program = calling("fusion", 1)
    program.module.computations[0].instructions[0].name = "\0"
    assert next(at.name for at in read_module(program.module).walk()) == "\0"
    program.module.computations[0].instructions[0].ClearField("name")
    program.module.computations[1].instructions[0].name = "\0"
    with pytest.raises(RejectedError, match="no name is"):
        read_module(program.module)


def test_an_instruction_is_made_once_whoever_asks_first():
    program = calling("fusion", 1)
    for ask in (
        lambda module: [module.entry.root.called[0].root, module.computations[0].root],
        lambda module: [module.computations[0].callers[0], module.entry.root],
        lambda module: [module.instructions[module.entry.root.id], module.entry.instructions[-1]],
        lambda module: [module.entry.parameters[0], module.entry.root.operands[0]],
    ):
        first, second = ask(read_module(program.module))
        assert first is second


def test_an_empty_message_says_nothing_and_what_it_would_hold_is_reported():
    program = calling("fusion", 1)
    config = message("HloInstructionProto").DESCRIPTOR.fields_by_name["block_scaling_config"].number << 3 | 2
    tag = bytes([config & 127 | 128, config >> 7])
    for held, unknowns in ((b"", []), (b"\x0a\x00", ["field BlockScalingConfig.1"])):
        data = reordered(
            program.module.SerializeToString(),
            lambda raw, n, held=held: raw + tag + bytes([len(held)]) + held if n == 0 else raw,
        )
        assert read_module(split(data)).unknowns == unknowns


@pytest.mark.parametrize(("numbers", "why"), [
    ([0, 0, 1], "must be unique"), ([0, 1, 1], "must be unique"), ([1, 1, 0], "must be unique"),
    ([0, 1, 3], "without gaps"), ([1, 2, 3], "without gaps"), ([0, -2, 1], "not be negative|not negative"),
])  # fmt: skip
def test_parameters_are_numbered_from_0_on(numbers, why):
    program = calling("fusion", 1, 3, 3)
    for at, number in zip(program.module.computations[0].instructions, numbers, strict=True):
        at.parameter_number = number
    with pytest.raises(RejectedError, match=why):
        read_module(program.module)
    for at, number in zip(program.module.computations[0].instructions, (2, 0, 1), strict=True):
        at.parameter_number = number
    assert sorted(read_module(program.module).computations[0].parameters) == [0, 1, 2]


def paired() -> Program:
    """A fusion of a pair of arrays, which are put in a tuple and taken out again."""
    program = calling("fusion", 1, 2, 2)
    pair = program.add("tuple", [("f32",), ("f32",)], list(data_of(program)))
    program.add("get-tuple-element", [("f32",)], [pair], tuple_index=1)
    return program


def data_of(program: Program) -> list[int]:
    return [at.id for at in program.module.computations[-1].instructions[:2]]


def entry_of(program: Program):
    return program.module.computations[-1]


def twice(program):
    entry_of(program).instructions[1].id = entry_of(program).instructions[0].id


def late(program):
    entry_of(program).instructions[-2].operand_ids[0] = entry_of(program).instructions[-1].id


def elsewhere(program):
    entry_of(program).instructions[-2].operand_ids[0] = program.module.computations[0].instructions[0].id


def index(program):
    entry_of(program).instructions[-1].tuple_index = 2


def narrow(program):
    del entry_of(program).instructions[-2].shape.tuple_shapes[1]


def rootless(program):
    entry_of(program).root_id = program.module.computations[0].instructions[0].id


def itself(program):
    at = next(at for at in entry_of(program).instructions if at.opcode == "fusion")
    at.called_computation_ids[0] = entry_of(program).id


def named_alike(program):
    program.module.computations[0].id = entry_of(program).id


def entryless(program):
    program.module.entry_computation_id = 99


@pytest.mark.parametrize(("damage", "why"), [
    (twice, "instruction ids must be unique"), (late, "operands must come before"),
    (elsewhere, "operands must come before, in the same computation"), (index, r"must index \(f32\[\], f32\[\]\)"),
    (narrow, "must have 2 elements"), (rootless, "root must be an instruction of the computation"),
    (itself, "called computations must come before"), (named_alike, "computation ids must be unique"),
    (entryless, "must be a computation of the module"),
])  # fmt: skip
def test_what_does_not_hold_together_is_refused(damage, why):
    assert read_module(paired().module).entry.root.number == 1
    program = paired()
    damage(program)
    with pytest.raises(RejectedError, match=why):
        read_module(program.module)
