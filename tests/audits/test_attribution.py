"""Costs by place: nothing is lost, names of other frameworks keep their modules, a stack keeps its calls."""

from __future__ import annotations

import lzma
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import pytest

from jaxcost.audits import attribution, collectives
from jaxcost.audits.attribution import NO_SCOPE, NO_SOURCE, short_paths
from jaxcost.audits.evidence import Evidence, Notes, gather
from jaxcost.audits.tree import COLUMNS, added, children_of, folded, least, paths, payload
from jaxcost.observation.hlo.flops import count_flops
from jaxcost.observation.hlo.frames import MOST_FRAMES, Frame, Stacks, user_frame
from jaxcost.observation.sources import Program
from jaxcost.observation.targets import parse_target
from tests.observation.hlo.building import Program as Module
from tests.observation.hlo.building import array, dot, dump, loop

ROOT = Path(__file__).resolve().parents[2]
RECORDED = {
    "llama-3.1-8b_training_h100-8_0c6f51ab": ("h100:8", "fsdp", 8),
    "llama-3.1-8b_training_tpu-v5p-2x2x4_dc36b128": ("tpu-v5p:2x2x4", "fsdp", 16),
    "toy-tied_training_cpu-1_62ac7e0b": ("cpu:1", "", 1),
}


def evidence_of(hlo: bytes, target: str = "h100:1", mesh: Mapping[str, int] | None = None) -> Evidence:
    found = parse_target(target)
    return gather(Program("proto", "program", hlo, found.family, found), mesh=mesh)


def recorded(name: str) -> Evidence:
    target, axis, size = RECORDED[name]
    hlo = lzma.decompress((ROOT / "hlo_dumps" / f"{name}.hlo.xz").read_bytes())
    return evidence_of(hlo, target, {axis: size} if axis else None)


def section(evidence: Evidence) -> dict[str, Any]:
    return attribution.section(evidence, Notes())


def leaks(nodes: list[dict[str, Any]]) -> list[tuple[int, str]]:
    """Nodes whose own part and children do not add up to their total."""
    return [
        (number, column)
        for number, below in enumerate(children_of(nodes))
        for column in COLUMNS
        if added([nodes[number]["own"].get(column, 0), *(nodes[i]["total"].get(column, 0) for i in below)])
        != nodes[number]["total"].get(column, 0)
    ]


@pytest.mark.parametrize("name", RECORDED)
def test_nothing_is_lost(name: str) -> None:
    evidence = recorded(name)
    found = section(evidence)
    reading = evidence.reading
    moved = reading.traffic.total_read_bytes + reading.traffic.total_write_bytes
    whole = {
        "flops": count_flops(reading, evidence.graph).total,
        "bytes": moved.value,
        "peak_bytes": reading.memory.live_peak_bytes,
        "collective_bytes": added(map(payload, collectives.section(evidence, Notes()))),
    }
    assert {column: found["columns"][column]["total"] for column in COLUMNS} == whole
    for tree in ("scopes", "calls"):
        root = found[tree][0]["total"]
        assert {column: root.get(column, 0) for column in COLUMNS} == {k: v or 0 for k, v in whole.items()}, tree
        assert leaks(found[tree]) == []
    for column in COLUMNS:
        assert added(phase.get(column, 0) for phase in found["phases"].values()) == (whole[column] or 0)
        for node in found["scopes"]:
            parts = [phase.get(column, 0) for phase in node["phases"].values()]
            assert added(parts) == node["total"].get(column, 0)
    # What has a stack is in one line and in the own part of one function; the rest is in a node that says so.
    for column in ("flops", "bytes", "collective_bytes"):
        unplaced = found["columns"][column]["no_source"]
        for amounts in ([row["total"] for row in found["lines"]], [row["own"] for row in found["functions"]]):
            assert added([unplaced, *(row.get(column, 0) for row in amounts)]) == (whole[column] or 0), column


def test_a_merged_product_lies_around_its_scopes_and_is_split_among_its_arguments() -> None:
    """A compiler makes one product of q, k and v: its name tells no scope of theirs, its operands tell the weights."""
    hlo = lzma.decompress((ROOT / "hlo_dumps/toy-tied_training_h100-1_62ac7e0b.hlo.xz").read_bytes())
    evidence = evidence_of(hlo)
    found = section(evidence)

    def named(tree: str) -> dict[str, dict[str, Any]]:
        nodes = found[tree]
        return {"/".join(nodes[i]["name"] for i in path): node for path, node in zip(paths(nodes), nodes, strict=True)}

    own = {path: node["own"].get("flops", 0) for path, node in named("scopes").items()}
    expected = {scope: amount.value for scope, amount in evidence.work.by_scope.items() if scope}
    assert expected == {scope: own[scope] for scope in expected} and expected["group0/attn"]
    merged = next(row for row in evidence.reading.contractions.rows if "v_proj" in str(row.shares))
    executions = merged.executions.value or 0
    assert merged.scope == "group0/attn" and len(merged.shares) == 3 and executions == 2
    weights = {node["name"]: node["own"].get("flops", 0) for node in found["weights"]}
    for share in merged.shares:
        assert weights[".".join(share.argument.split(".")[-2:])] == share.flops * executions


def test_a_loss_would_be_seen() -> None:
    found = section(recorded("toy-tied_training_cpu-1_62ac7e0b"))
    nodes = [dict(node) for node in found["scopes"]]
    leaf = next(i for i, node in enumerate(nodes) if node["own"].get("flops"))
    nodes[leaf] = {**nodes[leaf], "own": {**nodes[leaf]["own"], "flops": nodes[leaf]["own"]["flops"] - 1}}
    assert leaks(nodes) == [(leaf, "flops")]


def products(*op_names: str) -> Module:
    """A module with a product of 2 x 3 by 3 x 5 (60 FLOPs) for each name."""
    program = Module()
    program.computation("entry")
    for op_name in op_names:
        dot(program, 2, 3, 5, op_name)
    return program


def scopes_of(program: Module) -> dict[str, Any]:
    """Scope -> FLOPs of its own, in a module made by hand."""
    nodes = section(evidence_of(program.bytes()))["scopes"]
    below = paths(nodes)
    return {
        "/".join(nodes[i]["name"] for i in below[number]): node["own"]["flops"]
        for number, node in enumerate(nodes)
        if "flops" in node["own"]
    }


@pytest.mark.parametrize(
    ("op_name", "scope"),
    [
        ("jit(step)/transpose(jvp(Transformer))/layers_0/attn/query/dot_general", "Transformer/layers_0/attn/query"),
        ("jit(f)/jvp(Net)/Net.__call__/block1/Linear.__call__/dot_general", "Net/Net.__call__/block1/Linear.__call__"),
        ("jit(f)/jvp(mlp)/~/linear_0/dot_general", "mlp/~/linear_0"),
        ("jit(loss)/jvp(eqx.nn.MLP)/eqx.nn.Linear/dot_general", "eqx.nn.MLP/eqx.nn.Linear"),
        ("jit(step)/while/body/closed_call/checkpoint/block/mlp/bsd,df->bsf/dot_general", "block/mlp"),
        ("jit(f)/vmap(jvp(experts))/jit(relu)/dot_general", "experts"),
        ("jit(f)/dot_general", NO_SCOPE),
        ("", NO_SCOPE),
        ("jit(f)/</script><img src=x onerror=alert(1)>/dot_general", "</script><img src=x onerror=alert(1)>"),
    ],
)  # fmt: skip
def test_a_product_lies_in_the_module_that_made_it(op_name: str, scope: str) -> None:
    found = scopes_of(products(op_name))
    assert found == {scope: 60}


def test_a_very_deep_scope_keeps_its_tail_in_one_name() -> None:
    name = "/".join(f"s{i}" for i in range(5000))
    nodes = section(evidence_of(products(f"jit(f)/{name}/dot_general").bytes()))["scopes"]
    assert len(nodes) == attribution.MOST_DEPTH + 1 and nodes[-1]["name"].endswith("/s4999")


def stacked(frames: list[tuple[str, str, int]], program: Module | None = None) -> Module:
    """A module of one product traced through the given calls (file, function, line), innermost first."""
    program = program or products("jit(f)/a/dot_general")
    index = program.module.stack_frame_index
    parent = 0
    for file, function, line in reversed(frames):
        index.file_names.append(file)
        index.function_names.append(function)
        index.file_locations.add(
            file_name_id=len(index.file_names), function_name_id=len(index.function_names), line=line
        )
        index.stack_frames.add(file_location_id=len(index.file_locations), parent_frame_id=parent)
        parent = len(index.stack_frames)
    program.open.instructions[-1].metadata.stack_frame_id = parent
    return program


MINE = "/home/me/project/train.py"
LIBRARY = "/venv/lib/python3.11/site-packages/flax/linen/linear.py"
WORKER = "/venv/lib/python3.11/site-packages/jaxcost/observation/worker.py"


def test_the_line_of_the_users_own_code_is_told_and_the_stack_kept() -> None:
    calls = [(LIBRARY, "Dense.__call__", 9), (MINE, "Block.__call__", 7), (LIBRARY, "wrapped", 3), (MINE, "loss", 5),
             (WORKER, "answer", 1), (MINE, "asks_for_an_audit", 1), ("<frozen runpy>", "_run_code", 88)]  # fmt: skip
    found = section(evidence_of(stacked(calls).bytes()))
    assert [(line["file"], line["name"], line["line"], line["total"]["flops"]) for line in found["lines"]] == [
        ("train.py", "Block.__call__", 7, 60)
    ]
    calls_made = [(node["name"], node["kind"]) for node in found["calls"] if "flops" in node["total"]]
    assert calls_made == [
        ("program", "root"), ("loss", "call"), ("wrapped", "library"), ("Block.__call__", "call"),
        ("Dense.__call__", "library"),
    ]  # fmt: skip
    own = {row["name"]: row["own"].get("flops", 0) for row in found["functions"]}
    assert own == {"loss": 0, "wrapped": 0, "Block.__call__": 60, "Dense.__call__": 0}
    assert "/home/me" not in str(found) and "/venv" not in str(found)


def test_a_framework_that_names_no_operations_is_divided_by_the_modules_on_the_stack() -> None:
    calls = [(LIBRARY, "conv_general_dilated", 9), (LIBRARY, "Conv.__call__", 8), (MINE, "Block.__call__", 7),
             (LIBRARY, "BoundMethod.__call__", 6), (MINE, "make.<locals>.Net.__call__", 5), (MINE, "_Grad.__call__", 4),
             (MINE, "loss", 3)]  # fmt: skip
    found = section(evidence_of(stacked(calls, products("jit(f)/dot_general")).bytes()))
    names = [(node["name"], node["kind"], node["own"].get("flops", 0)) for node in found["scopes"]]
    assert names[:5] == [
        ("program", "root", 0), (NO_SCOPE, "none", 0), ("Net.__call__", "called", 0),
        ("Block.__call__ (line 5)", "called", 0), ("Conv.__call__ (line 7)", "called", 60),
    ]  # fmt: skip
    assert found["columns"]["flops"]["no_scope"] == 60 and leaks(found["scopes"]) == []


def test_a_repeated_stretch_of_calls_stands_once_and_what_is_damaged_ends() -> None:
    stretch = [(MINE, "inner", 3), (MINE, "middle", 2), (MINE, "outer", 1)]
    program = stacked([*stretch, *stretch[1:], *stretch[1:]])
    evidence = evidence_of(program.bytes())
    (at,) = (at for at in evidence.graph.module.walk() if at.opcode == "dot")
    assert [frame.function for frame in Stacks(evidence.graph.module).of(at)] == ["inner", "middle", "outer"]
    frames = program.module.stack_frame_index.stack_frames
    frames[0].parent_frame_id = len(frames)  # a cycle
    frames[1].file_location_id = 99
    evidence = evidence_of(program.bytes())
    assert len(Stacks(evidence.graph.module).at(len(frames))) <= MOST_FRAMES
    assert Stacks(evidence.graph.module).at(10**6) == ()
    assert section(evidence)["columns"]["flops"]["total"] == 60


def test_own_code_and_libraries_are_told_apart() -> None:
    library = [LIBRARY, "flax/linen/linear.py", "/usr/lib/python3.11/contextlib.py", "<string>"]
    assert all(Frame(path, "f", 1).library for path in library)
    assert not any(Frame(path, "f", 1).library for path in (MINE, "/src/flax/flax/linen/linear.py", "models/net.py"))
    assert user_frame((Frame(LIBRARY, "f", 1),)) == Frame(LIBRARY, "f", 1) and user_frame(()) is None


def test_equal_file_names_are_told_apart() -> None:
    assert short_paths(["/a/b/model.py", "/a/c/model.py", "/x/site-packages/flax/core.py", "<frozen runpy>"]) == {
        "/a/b/model.py": "b/model.py", "/a/c/model.py": "c/model.py", "/x/site-packages/flax/core.py": "flax/core.py",
        "<frozen runpy>": "<frozen runpy>",
    }  # fmt: skip


def test_without_a_stack_the_cost_is_in_a_node_that_says_so() -> None:
    found = section(evidence_of(products("jit(f)/a/dot_general").bytes()))
    assert {node["name"]: node["total"].get("flops") for node in found["calls"]} == {"program": 60, NO_SOURCE: 60}
    assert found["columns"]["flops"]["no_source"] == 60 and found["columns"]["flops"]["no_scope"] == 0
    assert found["columns"]["peak_bytes"]["total"] is None and found["columns"]["peak_bytes"]["reason"]


def test_a_loop_nobody_counted_leaves_what_is_certain_and_names_the_rest() -> None:
    program = Module()

    def body(inside: Module) -> None:
        dot(inside, 2, 3, 5, "jit(f)/layers/dot_general")

    loop(program, 0, 1, 4, "NE", per_trip=body)
    program.open.instructions[-1].backend_config = b""
    condition = next(c for c in program.module.computations if c.name == "condition")
    condition.instructions[-1].comparison_direction = "TOTALORDER"  # nothing can be told from it
    dot(program, 2, 3, 5, "jit(f)/head/dot_general")
    evidence = evidence_of(program.bytes())
    found = section(evidence)
    total = count_flops(evidence.reading, evidence.graph)
    assert total.total is None and found["columns"]["flops"]["total"] is None and found["columns"]["flops"]["reason"]
    nodes = {node["name"]: node["total"].get("flops", 0) for node in found["scopes"]}
    assert nodes["head"] == 60 and nodes["program"] == {"minimum": total.minimum, "maximum": None}
    assert least(nodes["layers"]) in (0, 60) and nodes["layers"]["maximum"] is None


def test_a_conditional_leaves_an_interval_and_not_the_sum_of_its_branches() -> None:
    def step(which: Any, x: Any, w: Any) -> Any:
        def wide(x: Any) -> Any:
            with jax.named_scope("wide"):
                return x @ w @ w.T

        def narrow(x: Any) -> Any:
            with jax.named_scope("narrow"):
                return (x[:, :2] @ w[:2, :1]) * jax.numpy.ones_like(x)

        with jax.named_scope("either"):
            return jax.lax.cond(which > 0, wide, narrow, x)

    hlo, _ = dump(step, array(), array(8, 16), array(16, 32))
    evidence = evidence_of(hlo, "cpu:1")
    found = section(evidence)
    whole = evidence.work.amount
    assert whole.value is None and whole.maximum == 2 * 2 * 8 * 16 * 32
    for tree in ("scopes", "calls"):
        assert found[tree][0]["total"]["flops"] == {"minimum": whole.minimum, "maximum": whole.maximum}
    totals = {node["name"]: node["total"].get("flops") for node in found["scopes"]}
    assert totals["either"] == totals["program"] and totals["wide"] == {"minimum": 0, "maximum": whole.maximum}


def test_a_smaller_tree_has_the_same_sums() -> None:
    nodes = section(recorded("llama-3.1-8b_training_h100-8_0c6f51ab"))["scopes"]
    for keep in (1, 2, 7, 40, len(nodes)):
        small = folded(nodes, keep)
        assert small[0]["total"] == nodes[0]["total"] and leaks(small) == []
        assert len([node for node in small if node["kind"] != "smaller"]) <= keep
        assert all(node["parent"] is None or node["parent"] < i for i, node in enumerate(small))
    assert len(folded(nodes, len(nodes), 0.01)) < len(nodes) and leaks(folded(nodes, len(nodes), 0.01)) == []


def large(count: int = 100_000, depth: int = 12, stacks: int = 1000) -> bytes:
    """A module of one computation, its instructions in 1,000 scopes and traced through 1,000 stacks."""
    program = Module()
    index = program.module.stack_frame_index
    for i in range(50):
        index.file_names.append(f"/home/me/project/file{i}.py")
        index.function_names.append(f"Module{i}.__call__")
    for i in range(2000):
        index.file_locations.add(file_name_id=1 + i % 50, function_name_id=1 + i % 50, line=i)
    ends = []
    for i in range(stacks):
        for d in range(depth):
            parent = len(index.stack_frames) if d else 0
            index.stack_frames.add(file_location_id=1 + (i * 7 + d * 131) % 2000, parent_frame_id=parent)
        ends.append(len(index.stack_frames))
    program.computation("entry")
    first = last = program.add("parameter", ("f32", 64, 64), parameter_number=0)
    for i in range(count):
        name = f"jit(step)/transpose(jvp(Model))/layers_{i // 400}/attn/{('query', 'key', 'value', 'out')[i % 4]}/add"
        last = program.add("add", ("f32", 64, 64), [last, first], op_name=name)
        program.open.instructions[-1].metadata.stack_frame_id = ends[i % stacks]
    return program.bytes()


def test_a_hundred_thousand_instructions_are_placed_in_two_seconds() -> None:
    evidence = evidence_of(large())
    start = time.process_time()
    found = section(evidence)
    taken = time.process_time() - start
    assert (
        found["columns"]["bytes"]["total"] == 100_000 * 3 * 64 * 64 * 4 - 64 * 64 * 4
    )  # the first adds one array twice
    assert taken < 2 * 2, f"{taken:.1f} s of processor time; twice the 2 s for a slower machine"
