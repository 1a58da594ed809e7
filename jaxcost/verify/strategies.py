"""The one home of generators: Hypothesis strategies over everything the contracts allow (architectures in `graphs`).

Legal by construction, not by rejection: the mesh is drawn first and every size is built as a multiple of the degree
that must divide it, the hidden width before the heads that share it out, the frozen scopes from the architecture's own
names. What a strategy returns has passed `build_case`, so every drawn case can be written down as a case file.

    @given(cases(phase="decode"))
    def test_something(case): ...

`malformed` and `malformed_text` are the other half: they damage valid input in the ways a hand or a disk damages it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import strategies as st

from jaxcost.contracts.architecture import Attention, Layer, LayerGroup, Mlp, Norm, Rotary
from jaxcost.contracts.case import Case, build_case
from jaxcost.contracts.execution import REMATS, Execution
from jaxcost.contracts.state import OPTIMIZERS, StatePolicy, state_policy
from jaxcost.contracts.workload import PHASES, Workload
from jaxcost.verify.graphs import NO_DROPOUT, altered, architectures, build_architecture, divisors

MODULI = ("data", "fsdp", "tensor")
BY_NAME = ("save_only_these_names", "save_and_offload_only_these_names")
# Names that every layer has, whatever its norms and its attention plan.
ALWAYS_NAMED = ("q_proj", "k_proj", "v_proj", "context", "o_proj", "up", "activation", "down")
FREE_PRECISIONS = ("fp32", "bf16", "mixed")
FIXED_PRECISIONS = ("masterless_bf16", "fp32_autocast_adam", "bf16_master_adam", "a16_six_object")
INFERENCE_PRECISIONS = ("bf16_inference", "fp32_inference")

__all__ = [
    "altered", "architectures", "build_architecture", "cases", "divisors", "executions", "malformed", "malformed_text",
    "options_of", "state_policies", "workloads", "written_options",
]  # fmt: skip


@st.composite
def meshes(draw: st.DrawFn, devices: int | None = None) -> dict[str, int]:
    """Meshes over data, fsdp and tensor, now and then context: small degrees, or exactly `devices` devices."""
    if devices is None:
        names = [name for name in draw(st.permutations(MODULI)) if draw(st.booleans())]
        found = {name: draw(st.sampled_from((1, 2, 3, 4))) for name in names}
        if draw(st.integers(0, 4)) == 0:
            found["context"] = draw(st.sampled_from((2, 3)))
        return found
    mesh: dict[str, int] = {}
    left = devices
    for name in MODULI[:-1]:
        mesh[name] = draw(st.sampled_from(divisors(left)))
        left //= mesh[name]
    mesh[MODULI[-1]] = left
    return {name: size for name, size in mesh.items() if size > 1}


@st.composite
def workload_options(
    draw: st.DrawFn,
    phase: str,
    *,
    shards: int = 1,
    largest: int = 12,
    smallest: int = 1,
    batches: int = 3,
    ragged: bool = True,
    context: int = 1,
) -> dict[str, Any]:
    """Options of a workload whose microbatch `shards` (data x fsdp) divides, and its rows `context`."""
    options: dict[str, Any] = {"phase": phase}
    accumulate = draw(st.sampled_from((1, 1, 1, 2, 3))) if phase == "training" else 1
    options["batch"] = shards * accumulate * draw(st.integers(1, batches))
    if accumulate > 1:
        options["accumulate"] = accumulate
    new = 1 if phase == "decode" else context * draw(st.integers(smallest, largest))
    if phase == "decode":
        options["past"] = draw(st.integers(smallest - 1, largest))
    else:
        options["seq"] = new
    if phase != "training":
        options["logits"] = draw(st.sampled_from(("final", "all", *range(1, new + 1))))
    options["attention"] = draw(st.sampled_from(("materialised", "materialised", "blockwise")))
    if options["attention"] == "blockwise":
        visible = options.get("past", 0) + new
        blocks = [
            n for n in range(1, visible + 1) if all(_block(rows, n) >= min(rows, smallest) for rows in (new, visible))
        ]
        options["attention_block"] = draw(st.sampled_from(blocks))
    if phase == "training" and draw(st.booleans()):
        options["dropout"] = True
    if ragged and phase != "decode" and context == 1 and draw(st.integers(0, 5)) == 0:
        lengths = [draw(st.integers(1, new)) for _ in range(options["batch"])]
        lengths[draw(st.integers(0, len(lengths) - 1))] = new
        options["lengths"] = lengths
    return options


def _block(rows: int, most: int) -> int:
    """Return the largest divisor of `rows` not above `most`."""
    return max(d for d in divisors(rows) if d <= most)


@st.composite
def state_options(draw: st.DrawFn, phase: str, *, fixed: bool = True) -> dict[str, Any]:
    """Options of a state policy: precision and optimizer; `fixed` adds the accounting policies of the literature."""
    if phase != "training":
        return {"precision": draw(st.sampled_from(INFERENCE_PRECISIONS))}
    precision = draw(st.sampled_from(FREE_PRECISIONS + (FIXED_PRECISIONS if fixed else ())))
    optimizer = "adam" if precision in FIXED_PRECISIONS else draw(st.sampled_from(OPTIMIZERS))
    return {"precision": precision, "optimizer": optimizer}


@st.composite
def execution_options(draw: st.DrawFn, phase: str, *, mesh: Mapping[str, int], rows: int = 1) -> dict[str, Any]:
    """Options of an execution, the mesh apart: recomputation, layers, vocabulary padding that `tensor` divides, what an
    fsdp axis gathers, sequence parallelism where `tensor` divides a device's `rows`.
    """
    tensor = mesh.get("tensor", 1)
    options: dict[str, Any] = {
        "layers": draw(st.sampled_from(("scan", "unrolled"))),
        "vocabulary_multiple": tensor * draw(st.sampled_from((1, 1, 2, 8))),
    }
    if phase == "training":
        options["remat"] = draw(st.sampled_from(REMATS))
        if options["remat"] in BY_NAME:
            names = st.lists(st.sampled_from(ALWAYS_NAMED), unique=True, min_size=1, max_size=3)
            options["remat_names"] = draw(names)
        if mesh.get("fsdp", 1) > 1 and draw(st.booleans()):
            options["reshard"] = draw(st.booleans())
            options["fsdp_group"] = draw(st.sampled_from(("root", "block", "matrix")))
            ahead = draw(st.integers(0, 2))
            options["prefetch"] = 0 if options["fsdp_group"] == "root" else ahead
    if tensor > 1 and rows % tensor == 0 and draw(st.booleans()):
        options["sequence_parallel"] = True
    return options


def workloads(phase: str | None = None) -> st.SearchStrategy[Workload]:
    """Workloads of one device, of one phase or of any."""
    phases = st.sampled_from(PHASES) if phase is None else st.just(phase)
    toy = build_architecture(**_toy_parts())
    built = phases.flatmap(workload_options).map(lambda options: build_case(toy, options).workload)
    return built


def state_policies(phase: str | None = None) -> st.SearchStrategy[StatePolicy]:
    """State policies of the presets."""
    phases = st.sampled_from(PHASES) if phase is None else st.just(phase)
    return phases.flatmap(
        lambda name: state_options(name).map(
            lambda o: state_policy(o["precision"], o.get("optimizer", "adam"), name == "training")
        )
    )


@st.composite
def executions(draw: st.DrawFn, phase: str | None = None, devices: int | None = None) -> Execution:
    """Executions over every mesh and recomputation; `devices` fixes the size of the mesh."""
    mesh = draw(meshes(devices))
    options = draw(execution_options(phase or draw(st.sampled_from(PHASES)), mesh=mesh))
    for name in ("reshard", "fsdp_group", "prefetch"):
        if name in options:
            options.setdefault("fsdp", {})[name.removeprefix("fsdp_")] = options.pop(name)
    axes = [{"name": name, "size": size} for name, size in mesh.items()]
    return Execution.from_data({**options, "mesh": axes})


@st.composite
def cases(
    draw: st.DrawFn,
    phase: str | None = None,
    *,
    compilable: bool = False,
    devices: int | None = None,
    ragged: bool = True,
    frozen: bool = True,
) -> Case:
    """Whole cases.

    Args:
        phase: one phase, or None for any.
        compilable: only what the reference network compiles, in tiny sizes, on `devices` (default 1). No product
            sums over an axis of extent one: compilers make those elementwise multiplications, no contractions.
        devices: fix the number of devices of the mesh.
        ragged: allow `lengths` (arithmetic only).
        frozen: allow frozen scopes in training.
    """
    phase = phase or draw(st.sampled_from(PHASES))
    mesh = draw(meshes(devices if devices is not None or not compilable else 1))
    if phase == "decode":
        mesh.pop("context", None)
    context = mesh.get("context", 1)
    tensor, fsdp = mesh.get("tensor", 1), mesh.get("fsdp", 1)
    largest, smallest = (6, 2) if compilable else (draw(st.sampled_from((8, 8, 24))), 1)
    work = draw(
        workload_options(
            phase,
            shards=mesh.get("data", 1) * fsdp,
            largest=largest,
            smallest=smallest,
            batches=2 if compilable else 3,
            ragged=ragged and not compilable,
            context=context,
        )
    )
    rows = 1 if "lengths" in work else work.get("seq", 1) // context
    options = {
        **work,
        **draw(state_options(phase, fixed=not compilable)),
        **draw(execution_options(phase, mesh=mesh, rows=rows)),
        "mesh": mesh,
    }
    if not compilable:
        options["pairs"] = draw(st.sampled_from(("rectangular", "rectangular", "legal")))
    visible = options.get("past", 0) + options.get("seq", 1)
    architecture = draw(
        architectures(
            tensor=tensor,
            fsdp=fsdp,
            largest=largest,
            smallest=smallest,
            layers=3 if compilable else 4,
            positions=visible,
        )
    )
    if frozen and phase == "training" and draw(st.integers(0, 2)) == 0:
        scopes = sorted(build_case(architecture, options).frozen_names)
        chosen = set(draw(st.lists(st.sampled_from(scopes), unique=True, max_size=3)))
        # The first group keeps a trained matrix: freezing everything is refused.
        chosen -= {"group0"} | ({"group0/mlp"} if "group0/attn" in chosen else set())
        options["frozen"] = sorted(chosen)
    return build_case(architecture, options)


def options_of(case: Case) -> dict[str, Any]:
    """Return the options from which `build_case` makes this case again; custom state policies have none.

    Raises:
        ValueError: the case cannot be written as options.
    """
    options = written_options(case)
    liveness = None if case.liveness is None else case.liveness.to_data()
    if build_case(case.architecture, options, liveness).digest != case.digest:
        raise ValueError("this case is not one that options can express")
    return options


def written_options(case: Case) -> dict[str, Any]:
    """Return a case's fields as options, without a look at whether they say all of it."""
    work, run, state = case.workload, case.execution, case.state
    options: dict[str, Any] = {
        "phase": work.phase, "batch": work.batch, "seq": work.new_tokens, "logits": work.logits,
        "attention": work.attention, "attention_block": work.attention_block, "dropout": work.dropout,
        "accumulate": work.accumulate, "precision": state.name, "remat": run.remat, "layers": run.layers,
        "mesh": run.mesh_sizes, "zero": run.zero, "sharding": run.sharding,
        "vocabulary_multiple": run.vocabulary_multiple, "head_multiple": run.head_multiple,
        "sequence_parallel": run.sequence_parallel, "context_method": run.context_method,
        "gradient_sync": run.gradient_sync, "offload": list(run.offload), "remat_names": list(run.remat_names),
        "fsdp_group": run.fsdp.group, "reshard": run.fsdp.reshard, "prefetch": run.fsdp.prefetch,
        "pipeline_schedule": run.pipeline.schedule, "pipeline_layers": list(run.pipeline.layers),
        "pipeline_virtual": run.pipeline.virtual, "embedding_stage": run.pipeline.embedding_stage,
        "head_stage": run.pipeline.head_stage, "pairs": case.convention.attention_pairs,
    }  # fmt: skip
    if work.phase == "decode":
        options["past"] = work.past_tokens
    if work.phase == "training":
        options["optimizer"] = state.optimizer
    if state.frozen:
        options["frozen"] = list(state.frozen)
    if work.lengths is not None:
        options["lengths"] = list(work.lengths)
    return options


def _toy_parts() -> dict[str, Any]:
    norm = Norm(kind="rms", epsilon=1e-5, scale=True, bias=False)
    layer = Layer(
        residual="pre",
        attention=Attention(
            query_heads=4, kv_heads=2, head_dim=2, query_bias=False, key_bias=False, value_bias=False,
            output_bias=False, rotary=Rotary(theta=10000.0, dimensions=2),
        ),
        mlp=Mlp(form="gated", width=12, activation="silu", bias=False),
        attention_norm=norm,
        mlp_norm=norm,
    )  # fmt: skip
    return {
        "hidden_size": 8, "vocabulary_size": 16, "groups": (LayerGroup(repeat=2, layer=layer),), "final_norm": norm,
        "tied": True, "dropout": NO_DROPOUT, "learned_positions": None,
    }  # fmt: skip


_WRONG: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1.5,
    2.0,
    float("nan"),
    float("inf"),
    2**49,
    10**30,
    "",
    "3",
    "true",
    [],
    {},
    [[]],
    {"a": 1},
)


def _paths(data: object) -> list[tuple[Any, ...]]:
    """Return the path of every node below the root of plain data, however deep it is nested."""
    found: list[tuple[Any, ...]] = []
    waiting: list[tuple[tuple[Any, ...], object]] = [((), data)]
    while waiting:
        path, node = waiting.pop()
        if isinstance(node, Mapping):
            children: Sequence[tuple[Any, Any]] = list(node.items())
        else:
            children = list(enumerate(node)) if isinstance(node, list) else []
        below = [((*path, key), value) for key, value in children]
        found.extend(path for path, _ in below)
        waiting.extend(below)
    return found


@st.composite
def malformed(draw: st.DrawFn, data: Mapping[str, Any]) -> Any:
    """Return a copy of plain data damaged in one to three places.

    A key is dropped, misspelt, moved to another table or filled with a value of the wrong type, sign or size; a list
    element is repeated or taken away; a value is buried in nested lists. Some damage happens to be legal.
    """
    copy = json.loads(json.dumps(data))
    for _ in range(draw(st.integers(1, 3))):
        paths = _paths(copy)
        if not paths:
            break
        path = draw(st.sampled_from(paths))
        parent = copy
        for key in path[:-1]:
            parent = parent[key]
        _damage(draw, copy, parent, path[-1])
    return copy


def _damage(draw: st.DrawFn, root: Any, parent: Any, key: Any) -> None:
    kind = draw(st.sampled_from(("drop", "rename", "retype", "retype", "negate", "bury", "repeat", "move")))
    if kind == "drop":
        del parent[key]
    elif kind == "rename" and isinstance(parent, dict):
        parent[draw(st.sampled_from((f"{key}s", str(key).upper(), "", f" {key}", "\u0000", "$ref")))] = parent.pop(key)
    elif kind == "negate" and isinstance(parent[key], int | float):
        parent[key] = -parent[key]
    elif kind == "bury":
        value = parent[key]
        for _ in range(draw(st.sampled_from((1, 3, 70, 300)))):
            value = [value]
        parent[key] = value
    elif kind == "repeat" and isinstance(parent, list):
        parent.append(json.loads(json.dumps(parent[key])))
    elif kind == "move" and isinstance(root, dict) and parent is not root:
        root[str(key)] = parent[key]
    else:
        parent[key] = draw(st.sampled_from(_WRONG))


@st.composite
def malformed_text(draw: st.DrawFn, text: str) -> bytes:
    """Return the bytes of a text file damaged as bytes: cut short, a line twice, not UTF-8, a control character."""
    raw = text.encode()
    kind = draw(st.sampled_from(("cut", "twice", "byte", "insert", "deep", "empty", "bom", "wide")))
    position = draw(st.integers(0, max(0, len(raw) - 1)))
    if kind == "cut":
        return raw[:position]
    if kind == "twice":
        lines = raw.splitlines(keepends=True) or [raw]
        line = draw(st.integers(0, len(lines) - 1))
        return b"".join([*lines[: line + 1], *lines[line:]])
    if kind == "byte":
        return raw[:position] + bytes([draw(st.sampled_from((0x80, 0xC3, 0xFF, 0x00)))]) + raw[position + 1 :]
    if kind == "insert":
        return (
            raw[:position]
            + draw(st.sampled_from((b"{", b"}", b'"', b",", b"NaN", b"-", b"\x1b", b"[[")))
            + raw[position:]
        )
    if kind == "deep":
        return b"[" * draw(st.sampled_from((65, 5000))) + raw
    if kind == "bom":
        return b"\xef\xbb\xbf" + raw
    if kind == "wide":
        return text.encode("utf-16")
    return b""
