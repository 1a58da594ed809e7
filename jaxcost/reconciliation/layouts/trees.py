"""The tree paths of the reference network: `groups.0.attn.q_proj.weight` scanned, `groups.0.3.attn...` unrolled.

A tied head has no array of its own in the tree, so it has no name here. The order of the tree is that of the fields of
its modules, which a file of Equinox leaves relies on: it is written down below, and tested against the network.
"""

from __future__ import annotations

from jaxcost.prediction.program import Program, Tensor
from jaxcost.reconciliation.layouts.pieces import ExpectedTensor, extent, is_linear, local_name


def stacked(program: Program) -> tuple[ExpectedTensor, ...]:
    """Return the arrays of scanned layers: one per group, with a leading axis of its layers."""
    return _ordered([(_path(tensor, None), tensor, (tensor.repeat,)) for tensor in _owned(program)], program)


def unrolled(program: Program) -> tuple[ExpectedTensor, ...]:
    """Return the arrays of unrolled layers, each layer apart."""
    found: list[tuple[str, Tensor, tuple[int, ...]]] = [
        (_path(tensor, layer), tensor, ())
        for tensor in _owned(program)
        for layer in (range(tensor.repeat) if tensor.group is not None else (None,))
    ]
    return _ordered(found, program)


def _owned(program: Program) -> list[Tensor]:
    return [tensor for tensor in program.parameters if tensor.storage == tensor.name]


def _path(tensor: Tensor, layer: int | None) -> str:
    local = local_name(tensor).replace("/", ".")
    if tensor.group is None:
        return local
    return f"groups.{tensor.group}." + ("" if layer is None else f"{layer}.") + local


# Where the fields of the modules stand: outside, in a layer, in attention, in the MLP, in a projection or norm.
_OUTSIDE = ("embed", "groups", "final_norm", "head")
_FIELDS = (
    "tokens", "positions", "attn_norm", "attn", "attn_post_norm", "mlp_norm", "mlp", "mlp_post_norm", "qkv", "q_proj",
    "k_proj", "v_proj", "q_norm", "k_norm", "o_proj", "gate_up", "gate", "up", "down", "project_in", "norm",
    "project_out", "weight", "scale", "bias",
)  # fmt: skip


def _place(path: str) -> tuple[tuple[int, int | str], ...]:
    parts = path.split(".")
    keys: list[tuple[int, int | str]] = [(0, _OUTSIDE.index(parts[0]))]
    for part in parts[1:]:
        if part.isdigit():
            keys.append((0, int(part)))
        else:
            keys.append((1, _FIELDS.index(part)) if part in _FIELDS else (2, part))
    return tuple(keys)


def _ordered(found: list[tuple[str, Tensor, tuple[int, ...]]], program: Program) -> tuple[ExpectedTensor, ...]:
    made = []
    for path, tensor, stack in sorted(found, key=lambda item: _place(item[0])):
        own = tuple(extent(program, axis, tensor.group) for axis in tensor.axes.split())
        lead = stack if tensor.group is not None else ()
        made.append(ExpectedTensor(path, (*lead, *own), tensor.dtype, tensor.trainable, path, (tensor.name,),
                                   is_linear(tensor)))  # fmt: skip
    return tuple(made)
