"""Where values go and where they come from, on a graph of a few instructions whose answers are plain to see."""

from __future__ import annotations

import pytest

from jaxcost.observation.hlo.flow import Flow, Slot, Value
from jaxcost.observation.hlo.module import Instruction, read_module
from jaxcost.observation.hlo.origins import behind
from tests.observation.hlo.building import Program

ROW = ("f32", 4)
STATE = [("s32",), ROW, ROW, ("f32", 3, 4), ROW]
COUNTER, KEPT, SUMMED, STACKED, REPLACED = range(len(STATE))


class Graph:
    """A module read, and its instructions by name."""

    def __init__(self, program: Program) -> None:
        self.module = read_module(program.module)
        self.flow = Flow(self.module)
        self.named = {at.name: at for at in self.module.walk()}

    def __getitem__(self, name: str) -> Instruction:
        return self.named[name]


@pytest.fixture(scope="module")
def looped() -> Graph:
    """A loop of three rounds that does to each element of its state what the element is called."""
    program = Program()
    body = program.computation("body")
    state = program.add("parameter", STATE, name="state")
    elements = [
        program.add("get-tuple-element", shape, [state], tuple_index=i, name=f"inside.{i}")
        for i, shape in enumerate(STATE)
    ]
    count = program.add("add", ("s32",), [elements[COUNTER], program.constant(1)])
    total = program.add("add", ROW, [elements[SUMMED], elements[KEPT]], name="total")
    layer = program.add("bitcast", ("f32", 1, 4), [elements[KEPT]])
    where = [elements[COUNTER], program.constant(0)]
    stack = program.add("dynamic-update-slice", STATE[STACKED], [elements[STACKED], layer, *where], name="stack")
    other = program.add("negate", ROW, [elements[REPLACED]], name="other")
    program.add("tuple", STATE, [count, elements[KEPT], total, stack, other], name="next")
    condition = program.computation("condition")
    state = program.add("parameter", STATE, name="asked")
    count = program.add("get-tuple-element", ("s32",), [state], tuple_index=0)
    program.add("compare", ("pred",), [count, program.constant(3)], comparison_direction="LT")
    program.computation("entry")
    data = program.add("parameter", ROW, name="data")
    zeros = program.add("broadcast", ROW, [program.constant(0)], name="zeros")
    stack = program.add("broadcast", STATE[STACKED], [program.constant(0)], name="empty")
    first = program.add("tuple", STATE, [program.constant(0), data, zeros, stack, zeros], name="first")
    loop = program.add("while", STATE, [first], [body, condition], name="loop")
    found = [
        program.add("get-tuple-element", STATE[i], [loop], tuple_index=i, name=f"after.{i}") for i in (SUMMED, STACKED)
    ]
    program.add("tuple", [STATE[SUMMED], STATE[STACKED]], found, name="results")
    return Graph(program)


@pytest.mark.parametrize(("position", "change", "writer"), [
    (KEPT, "kept", None), (SUMMED, "summed", "total"), (STACKED, "stacked", "stack"), (REPLACED, "replaced", "other"),
])  # fmt: skip
def test_a_loop_keeps_sums_stacks_or_replaces_an_element(looped, position, change, writer):
    found, by = looped.flow.change(Slot(looped["loop"], position))
    assert (found, by and by.name) == (change, writer)


def test_an_element_read_inside_a_loop_is_its_state_there(looped):
    loop = looped["loop"]
    inside = looped.flow.inside(Slot(loop, REPLACED))
    assert inside.slots == [Slot(loop, REPLACED)]  # what comes after it is another value
    assert [user.name for user in inside.users] == ["other"]


def test_a_value_made_in_a_loop_leaves_it_as_an_element_of_its_state(looped):
    reach = looped.flow.reach(Value(looped["other"]))
    assert (reach.slots, reach.users) == ([Slot(looped["loop"], REPLACED)], [])


def test_an_element_of_a_tuple_reaches_what_reads_that_element(looped):
    loop, flow = looped["loop"], looped.flow
    assert flow.reach(Value(loop, (SUMMED,))).results == [0]
    assert flow.reach(Value(loop, (STACKED,))).results == [1]
    assert flow.reach(Value(loop, (REPLACED,))).results == []  # nobody reads it
    assert flow.reach(Value(loop)).results == []  # the table of pointers is no element


def test_a_value_reaches_all_that_use_it():
    program = Program()
    program.computation("entry")
    data = program.add("parameter", ROW, name="data")
    seen = program.add("bitcast", ("f32", 2, 2), [data])
    used = program.add("negate", ("f32", 2, 2), [seen], name="used")
    program.add("tuple", [ROW, ("f32", 2, 2)], [data, used])
    graph = Graph(program)
    reach = graph.flow.reach(Value(graph["data"]))
    assert ([user.name for user in reach.users], reach.results) == (["used"], [0])


def test_what_a_loop_makes_of_constants_alone_is_constant(looped):
    loop, constant = looped["loop"], looped.flow.constant
    assert [constant(Value(loop, (i,))) for i in range(6)] == [True, False, False, False, False, False]
    # The sum starts from zeros and grows by the data: inside the loop it is data.
    assert [constant(Value(looped[f"inside.{i}"])) for i in range(5)] == [True, False, False, False, False]
    assert constant(Value(looped["zeros"])) and not constant(Value(looped["data"]))
    assert [constant(Value(looped["first"], (i,))) for i in range(6)] == [True, False, True, True, True, False]
    assert not constant(Value(looped["first"]))


def test_what_no_argument_goes_into_is_constant():
    program = Program()
    table = program.computation("table", fusion=True)
    program.add("iota", ROW)
    doubled = program.computation("doubled", fusion=True)
    inner = program.add("parameter", ROW, name="bound")
    program.add("add", ROW, [inner, inner])
    program.computation("entry")
    data = program.add("parameter", ROW, name="data")
    made = program.add("fusion", ROW, [], [table], name="table")
    program.add("fusion", ROW, [made], [doubled], name="doubled")
    own = [program.add(opcode, ("u32",), name=opcode) for opcode in ("partition-id", "replica-id")]
    program.add("add", ("u32",), own, name="device")
    both = program.add("tuple", [ROW, ROW], [made, data])
    program.add("custom-call", ROW, [both], custom_call_target="f", name="of both")
    alone = program.add("tuple", [ROW, ROW], [made, made])
    program.add("custom-call", ROW, [alone], custom_call_target="f", name="of tables")
    program.add("infeed", ROW, name="fed")
    graph = Graph(program)
    yes = ("table", "bound", "doubled", "partition-id", "replica-id", "device", "of tables")
    no = ("data", "of both", "fed")
    assert {name: graph.flow.constant(Value(graph[name])) for name in (*yes, *no)} == {
        **dict.fromkeys(yes, True), **dict.fromkeys(no, False),
    }  # fmt: skip


# Back ---------------------------------------------------------------------------------------------------------------


def test_the_state_of_a_loop_comes_from_what_the_loop_is_given(looped):
    assert behind(looped["state"]) is looped["first"]
    assert behind(looped[f"inside.{KEPT}"]) is looped["data"]


def test_a_call_comes_from_its_root_and_its_parameters_from_the_operands():
    program = Program()
    inner = program.computation("inner")
    left, right = (program.add("parameter", ROW, parameter_number=i, name=f"inner.{i}") for i in range(2))
    program.add("add", ROW, [left, right], name="sum")
    program.computation("entry")
    operands = [program.add("parameter", ROW, parameter_number=i, name=f"data.{i}") for i in range(2)]
    program.add("call", ROW, operands, [inner], name="called")
    graph = Graph(program)
    assert behind(graph["called"]) is graph["sum"]
    assert [behind(graph[f"inner.{i}"]) for i in range(2)] == [graph["data.0"], graph["data.1"]]
    assert behind(graph["data.0"]) is None


def test_the_walk_back_ends_where_no_operand_is_bound():
    program = Program()
    wrapped = program.computation("wrapped")
    inner = [program.add("parameter", ROW, parameter_number=i, name=f"inner.{i}") for i in range(2)]
    program.add("add", ROW, inner)
    fused = program.computation("fused", fusion=True)
    program.add("tuple", [ROW], [program.add("parameter", ROW)])
    program.computation("entry")
    data = program.add("parameter", ROW, name="data")
    program.add("async-start", [[ROW], ROW], [data], [wrapped])
    gathered = program.add("all-gather-start", [ROW, ("f32", 8)], [data])
    for i in range(2):
        program.add("get-tuple-element", [ROW, ("f32", 8)][i], [gathered], tuple_index=i, name=f"part.{i}")
    more = program.add("fusion", [ROW, ROW], [data], [fused])  # it says two elements and makes one
    program.add("get-tuple-element", ROW, [more], tuple_index=1, name="second")
    graph = Graph(program)
    assert behind(graph["second"]) is None
    assert [behind(graph[f"inner.{i}"]) for i in range(2)] == [graph["data"], None]
    assert [behind(graph[f"part.{i}"]) for i in range(2)] == [graph["data"], None]
