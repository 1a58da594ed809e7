"""From a declared graph and sizes to the architecture and the case whose ledgers answer for a paper's row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxcost.contracts.architecture import (
    Architecture,
    Attention,
    Dropout,
    Layer,
    LayerGroup,
    LearnedPositions,
    Mlp,
    Norm,
    Rotary,
    absences,
)
from jaxcost.contracts.case import Case, build_case
from jaxcost.contracts.errors import reject
from jaxcost.papers.contract import Graph, Quantity, Workload
from jaxcost.papers.expression import expression

# Any legal sizes: a proof replaces them by symbols and keeps the kinds of layer alone.
SAMPLE = {
    "hidden": 16, "layers": 2, "heads": 4, "kv_heads": 4, "head_dim": 4, "width": 64, "vocabulary": 32,
    "positions": 8,
}  # fmt: skip
NORMS = {
    "none": None,
    "rms": Norm(kind="rms", epsilon=1e-5, scale=True, bias=False),
    "layer": Norm(kind="layer", epsilon=1e-5, scale=True, bias=False),
    "layer_bias": Norm(kind="layer", epsilon=1e-5, scale=True, bias=True),
}
# A norm without learned scale: what a graph without norm scalars still needs to be a legal layer.
BARE = Norm(kind="layer", epsilon=1e-5, scale=False, bias=False)


def architecture(graph: Graph, scope: Mapping[str, Any] | None = None) -> Architecture:
    """Return the architecture of a graph.

    Args:
        graph: the declaration.
        scope: values of the names that its sizes mention; None takes sample sizes, for proofs.

    Raises:
        RejectedError: a size is no positive integer, or the graph is not a legal one.
    """
    if graph.model:
        from jaxcost.catalog import load

        return load(graph.model).architecture
    sizes = SAMPLE if scope is None else {name: _size(name, text, scope) for name, text in graph.sizes.items()}
    norm = NORMS[graph.norm] or BARE
    query, keys, width = sizes["heads"], sizes["kv_heads"], sizes["head_dim"]
    rotary = Rotary(theta=10000.0, dimensions=width - width % 2) if graph.positions == "rotary" else None
    attention = Attention(
        query_heads=query, kv_heads=keys, head_dim=width, query_bias=graph.biases, key_bias=graph.biases,
        value_bias=graph.biases, output_bias=graph.biases, rotary=rotary,
        decoupled_width=query * width != sizes["hidden"],
    )  # fmt: skip
    activation: Any = "gelu" if graph.mlp == "classic" else "silu"
    mlp = Mlp(form=graph.mlp, width=sizes["width"], activation=activation, bias=graph.biases)
    second = norm if graph.residual == "pre" else None
    layer = Layer(residual=graph.residual, attention=attention, mlp=mlp, attention_norm=norm, mlp_norm=second)
    rate = 0.1 if graph.dropout else 0.0
    table = LearnedPositions(rows=sizes["positions"]) if graph.positions == "learned" else None
    parts: dict[str, Any] = {
        "name": graph.name,
        "hidden_size": sizes["hidden"],
        "vocabulary_size": sizes["vocabulary"],
        "groups": (LayerGroup(repeat=sizes["layers"], layer=layer),),
        "final_norm": norm,
        "tied": graph.tied,
        "dropout": Dropout(embedding=rate, attention=rate, residual=rate),
        "learned_positions": table,
    }
    draft = Architecture.model_construct(**parts)
    return Architecture.from_data(
        {
            **{name: _plain(value) for name, value in parts.items() if value is not None},
            "absent": list(absences(draft.branches)),
        },
        f"graphs.{graph.name}",
    )


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value.to_data() if hasattr(value, "to_data") else value


def _size(name: str, text: str, scope: Mapping[str, Any]) -> int:
    value = expression(text).value(scope)
    if not isinstance(value, int) or value <= 0:
        raise reject(f"sizes.{name}", str(value), "not a positive integer", f"correct {text!r} or the row's figures")
    return value


def case_of(
    graph: Graph, quantity: Quantity, scope: Mapping[str, Any] | None = None, workload: Workload | None = None
) -> Case:
    """Return the training step that a quantity is about: the graph's architecture, the quantity's replay and policy.

    Args:
        graph: the graph.
        quantity: whose replay, precision it takes.
        scope: values of names in the graph's and the workload's formulas; None for a proof.
        workload: batch, rows and mesh; None for a proof.
    """
    made = architecture(graph, scope)
    work = workload or Workload(batch="1", seq="8")
    values = scope or {}
    options: dict[str, Any] = {
        "phase": "training",
        "batch": _size("batch", work.batch, values),
        "seq": _size("seq", work.seq, values),
        "remat": quantity.remat,
        "precision": quantity.precision or "bf16",
    }
    if graph.dropout:
        options["dropout"] = True
    mesh = {axis: _size(axis, text, values) for axis, text in work.mesh.items()}
    mesh = {axis: size for axis, size in mesh.items() if size > 1}
    if mesh:
        options["mesh"] = mesh
        if work.sequence_parallel and "tensor" in mesh:
            options["sequence_parallel"] = True
    return build_case(made, options)
