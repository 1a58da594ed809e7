"""What a buffer is for in a program of any author, by hand and from small compiled programs."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from jaxcost.observation.hlo import read_graph
from jaxcost.observation.hlo.heap import Span, fullest, replay, spans
from jaxcost.observation.hlo.purposes import PURPOSES, Purposes, argument_purpose
from jaxcost.observation.hlo.schema import message
from tests.observation.hlo.building import Program, array, dump


@pytest.mark.parametrize(
    ("path", "purpose"),
    [
        ("params['dense']['kernel']", "parameter"),
        ("state.params['w']", "parameter"),
        ("model.layers[0].weight", "parameter"),
        ("opt_state[0].mu['params']['w']", "optimizer"),
        ("state[1][0].nu['w']", "optimizer"),
        ("x", "argument"),
        ("parametric", "argument"),
        ("", "argument"),
    ],
)
def test_an_argument_is_a_parameter_only_where_its_path_says_so(path, purpose):
    kind = argument_purpose(path)
    assert (kind.name, kind.sure) == (purpose, True)


def argument_kinds(*paths, sizes=()):
    program = Program()
    program.computation("entry")
    made = [
        program.add("parameter", ("f32", size), op_name=path, parameter_number=n)
        for n, (path, size) in enumerate(zip(paths, sizes or [64] * len(paths), strict=True))
    ]
    program.add("add", ("f32", 64), [made[0], made[1]])
    _, graph = read_graph(program.bytes(), platform="cpu", general=True)
    purposes = Purposes(graph.module, graph.places)
    return [purposes.argument(path) for path in paths]


def test_parameters_are_told_by_the_moments_that_repeat_their_tree():
    paths = ["s[0]['a']['w'].value", "s[0]['b'].value", "s[1]['opt_state'][0]['mu']['a']['w'].value",
             "s[1]['opt_state'][0]['mu']['b'].value", "x"]  # fmt: skip
    kinds = argument_kinds(*paths)
    assert [k.name for k in kinds] == ["parameter", "parameter", "optimizer", "optimizer", "argument"]
    assert kinds[0].why == ("argument s[0]['a']['w'].value, whose tree the moments s[1]['opt_state'][0]['mu'] repeat")
    kinds = argument_kinds("m.w", "m.b", "s[0].trace.w", "s[0].trace.b")
    assert [k.name for k in kinds] == ["parameter", "parameter", "optimizer", "optimizer"]


@pytest.mark.parametrize(
    ("paths", "sizes"),
    [
        (("x[0]", "s[0].mu[0]"), (64, 32)),  # another shape
        (("m.w", "g.w", "s[0].nu.w"), ()),  # gradients are given too
        (("m.w", "s[0].mu.w", "s[0].mu.a", "s[0].mu.b"), ()),  # one path of three
        (("m.w", "trace.w.x"), ()),  # no path in common
    ],
)
def test_moments_that_repeat_no_tree_or_two_tell_nothing(paths, sizes):
    kinds = argument_kinds(*paths, sizes=sizes)
    assert kinds[0].name == "argument" and "parameter" not in {kind.name for kind in kinds}


def purposes_of(function, *arguments):
    data, _ = dump(function, *arguments)
    reading, graph = read_graph(data, platform="cpu", general=True)
    assert reading.memory.by_class_at_peak.keys() == set(PURPOSES)
    assert sum(reading.memory.by_class_at_peak.values()) == reading.memory.live_peak_bytes
    return reading, graph


def test_forward_stacks_are_saved_only_where_a_backward_pass_reads_them():
    def layer(x, w):
        return jnp.tanh(x @ w), x

    x, ws = array(256, 64), array(6, 64, 64)
    stack = 6 * 256 * 64 * 4
    forward, _ = purposes_of(lambda x, ws: jnp.sort(jax.lax.scan(layer, x, ws)[1], 0).sum(), x, ws)
    assert forward.memory.by_class_at_peak["loop_stack"] >= stack and not forward.memory.by_class_at_peak["saved"]
    training, _ = purposes_of(jax.grad(lambda x, ws: jax.lax.scan(layer, x, ws)[0].sum(), argnums=1), x, ws)
    assert training.memory.by_class_at_peak["saved"] >= stack and not training.memory.by_class_at_peak["loop_stack"]


def program_of_all_kinds():
    program = Program()
    program.computation("entry")
    made = {"parameter": program.add("parameter", ("f32", 64), op_name="params['w']")}
    x = program.add("parameter", ("f32", 64), op_name="x", parameter_number=1)
    made["copy"] = program.add("convert", ("bf16", 64), [made["parameter"]])
    made["saved"] = program.add("exponential", ("f32", 64), [x], op_name="jit(f)/jvp(layer)/exp")
    made["gathered"] = program.add("all-gather", ("f32", 256), [made["parameter"]], op_name="jit(f)/x/all_gather")
    made["replayed"] = program.add(
        "sine", ("f32", 64), [x], op_name="jit(f)/transpose(jvp(layer))/checkpoint/rematted_computation/sin"
    )
    made["zeros"] = program.add("broadcast", ("f32", 64), [program.constant(0)])
    made["gradient"] = program.add(
        "multiply", ("f32", 64), [made["saved"], made["replayed"]], op_name="jit(f)/transpose(jvp(layer))/mul"
    )
    made["working"] = program.add("cosine", ("f32", 64), [x], op_name="jit(f)/other/cos")
    made["nameless"] = program.add("tanh", ("f32", 64), [made["working"]])
    program.add("add", ("f32", 64), [made["gradient"], made["nameless"]], op_name="jit(f)/other/add")
    return program, made


def test_one_value_of_each_kind():
    program, made = program_of_all_kinds()
    _, graph = read_graph(program.bytes(), platform="cpu", general=True)
    purposes = Purposes(graph.module, graph.places)
    found = {name: purposes.temporary(graph.module.instructions[at], ()) for name, at in made.items()}
    assert {name: kind.name for name, kind in found.items() if name != "parameter"} == {
        "copy": "argument_copy", "saved": "saved", "gathered": "collective", "replayed": "recomputed",
        "zeros": "constant", "gradient": "gradient", "working": "temporary", "nameless": "temporary",
    }  # fmt: skip
    assert found["copy"].why == "a copy of argument params['w'] as bf16"
    assert found["gathered"].why.endswith("of argument params['w']")
    assert found["working"].sure and not found["nameless"].sure


def test_a_frame_of_optax_makes_it_the_optimizers():
    program, made = program_of_all_kinds()
    index = program.module.stack_frame_index
    index.file_names.extend(["/home/me/train.py", "/lib/site-packages/optax/_src/transform.py"])
    for file in (1, 2):
        index.file_locations.add(file_name_id=file, line=7)
    index.stack_frames.add(file_location_id=1)
    index.stack_frames.add(file_location_id=2, parent_frame_id=1)
    index.stack_frames.add(file_location_id=1, parent_frame_id=2)  # called back from optax
    for name, frame in (("working", 3), ("gradient", 1)):
        next(i for i in program.open.instructions if i.id == made[name]).metadata.stack_frame_id = frame
    _, graph = read_graph(program.bytes(), platform="cpu", general=True)
    purposes = Purposes(graph.module, graph.places)
    kinds = {name: purposes.temporary(graph.module.instructions[made[name]], ()).name for name in made}
    assert (kinds["working"], kinds["gradient"]) == ("optimizer", "gradient")


FRAMES = [
    ("/lib/optax/losses/_classification.py", "temporary"),
    ("/lib/optax/monte_carlo/stochastic_gradient_estimators.py", "temporary"),
    ("/lib/optax/_src/numerics.py", "temporary"),
    ("/lib/optax/transforms/_accumulation.py", "optimizer"),
    ("C:\\lib\\optax\\contrib\\_muon.py", "optimizer"),
]


@pytest.mark.parametrize(("file", "kind"), FRAMES)
def test_a_loss_of_optax_is_no_update_and_what_is_differentiated_is_a_gradient(file, kind):
    program, made = program_of_all_kinds()
    index = program.module.stack_frame_index
    index.file_names.extend(["/home/me/train.py", file, "/lib/optax/_src/numerics.py"])
    for number in (1, 2, 3):
        index.file_locations.add(file_name_id=number, line=7)
        index.stack_frames.add(file_location_id=number, parent_frame_id=number - 1)
    for name, frame in (("working", 3), ("gradient", 3), ("replayed", 3)):
        next(i for i in program.open.instructions if i.id == made[name]).metadata.stack_frame_id = frame
    _, graph = read_graph(program.bytes(), platform="cpu", general=True)
    purposes = Purposes(graph.module, graph.places)
    kinds = {name: purposes.temporary(graph.module.instructions[made[name]], ()).name for name in made}
    assert (kinds["working"], kinds["gradient"], kinds["replayed"]) == (kind, "gradient", "recomputed")


def test_spans_are_the_replay_turned_on_its_side():
    trace = message("HeapSimulatorTrace")
    sizes = {0: 10, 1: 20, 2: 5, 3: 20}
    events = (("A", 0), ("A", 1), ("F", 0), ("S", 3, 1), ("F", 1), ("A", 2), ("F", 3), ("S", 1, 1))
    for kind, buffer, *shared in events:
        trace.events.add(kind="AFS".index(kind), buffer_id=buffer, share_with_canonical_id=shared[0] if shared else 0)
    found, count = spans(trace, sizes)
    assert count == len(events)
    assert sorted(found, key=lambda s: (s.owner, s.first)) == [
        Span(0, 0, 2, (0,)), Span(1, 1, 6, (1, 3)), Span(1, 7, 8, (1,)), Span(2, 5, 8, (2,)),
    ]  # fmt: skip
    for event in replay(trace, sizes):
        assert event.used == sum(sizes[s.owner] for s in found if s.first <= event.number < s.end)
    assert fullest(trace, sizes).bytes == 30


def test_tables_of_pointers_need_no_trace():
    program = Program()
    program.computation("entry")
    x = program.add("parameter", ("f32", 4), op_name="x")
    root = program.add("tuple", [("f32", 4), ("f32", 4)], [x, x])
    plan = program.proto.buffer_assignment
    plan.logical_buffers.add(id=0, size=16).defined_at.instruction_id = root
    plan.buffer_allocations.add(size=16, is_entry_computation_parameter=True)
    plan.buffer_allocations.add(size=16).assigned.add(logical_buffer_id=0, size=16)
    memory = read_graph(program.bytes(), platform="cuda", general=True)[0].memory
    assert (memory.live_peak_bytes, memory.required_bytes, memory.fragmentation_bytes) == (16, 32, 16)
    plan.logical_buffers[0].defined_at.instruction_id = x  # an array: then the peak cannot be told
    assert read_graph(program.bytes(), platform="cuda", general=True)[0].memory.live_peak_bytes is None
