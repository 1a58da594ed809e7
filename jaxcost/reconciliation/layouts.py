"""Under which names, and in which axis order, a producer stores the parameters that a program declares.

A layout is an explicit table from component parameters to stored names. A stored name that no table entry gives is an
unexpected tensor, never one to be renamed until it fits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from jaxcost.prediction.program import Program, Tensor


@dataclass(frozen=True)
class ExpectedTensor:
    """One stored array as a layout names it. Equal `alias` means one storage."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    trainable: bool
    alias: str

    @property
    def scalars(self) -> int:
        """The number of stored scalars."""
        count = 1
        for extent in self.shape:
            count *= extent
        return count


# Component parameter (below its group, where it has one) to the stored name and the axes of each stored dimension.
# Linear weights are stored output by input, as torch.nn.Linear does.
_LLAMA: dict[str, tuple[str, tuple[str, ...]]] = {
    "embed/tokens/weight": ("model.embed_tokens.weight", ("v", "d")),
    "attn_norm/scale": ("input_layernorm.weight", ("d",)),
    "attn/q_proj/weight": ("self_attn.q_proj.weight", ("h e", "d")),
    "attn/k_proj/weight": ("self_attn.k_proj.weight", ("k e", "d")),
    "attn/v_proj/weight": ("self_attn.v_proj.weight", ("k e", "d")),
    "attn/o_proj/weight": ("self_attn.o_proj.weight", ("d", "h e")),
    "attn/q_proj/bias": ("self_attn.q_proj.bias", ("h e",)),
    "attn/k_proj/bias": ("self_attn.k_proj.bias", ("k e",)),
    "attn/v_proj/bias": ("self_attn.v_proj.bias", ("k e",)),
    "attn/o_proj/bias": ("self_attn.o_proj.bias", ("d",)),
    "mlp_norm/scale": ("post_attention_layernorm.weight", ("d",)),
    "mlp/gate/weight": ("mlp.gate_proj.weight", ("f", "d")),
    "mlp/up/weight": ("mlp.up_proj.weight", ("f", "d")),
    "mlp/down/weight": ("mlp.down_proj.weight", ("d", "f")),
    "mlp/gate/bias": ("mlp.gate_proj.bias", ("f",)),
    "mlp/up/bias": ("mlp.up_proj.bias", ("f",)),
    "mlp/down/bias": ("mlp.down_proj.bias", ("d",)),
    "final_norm/scale": ("model.norm.weight", ("d",)),
    "head/weight": ("lm_head.weight", ("v", "d")),
}


def _llama(tensor: Tensor, layer: int | None, first: int) -> tuple[str, tuple[str, ...]] | None:
    local = tensor.name if layer is None else tensor.name.split("/", 1)[1]
    found = _LLAMA.get(local)
    if found is None:
        return None
    name, axes = found
    return (name if layer is None else f"model.layers.{first + layer}.{name}"), axes


def _own(tensor: Tensor, layer: int | None, first: int) -> tuple[str, tuple[str, ...]]:
    axes = tuple(tensor.axes.split())
    if layer is None:
        return tensor.name, axes
    group, rest = tensor.name.split("/", 1)
    return f"{group}/{layer}/{rest}", axes


LAYOUTS: dict[str, Callable[[Tensor, int | None, int], tuple[str, tuple[str, ...]] | None]] = {
    "jaxcost": _own,
    "huggingface-llama": _llama,
}


def expected_tensors(program: Program, layout: str) -> tuple[ExpectedTensor, ...]:
    """Return every named stored array of a program under a layout, layers apart; a tied head is a name of its own.

    `jaxcost` names read `group0/1/attn/q_proj/weight` (group, layer in the group, parameter); `huggingface-llama` those
    of transformers' LlamaForCausalLM state mapping.
    """
    named: dict[tuple[str, int | None], str] = {}
    shaped: list[tuple[Tensor, int | None, str, tuple[int, ...]]] = []
    first = 0
    for index in (None, *range(len(program.sizes.repeats))):
        repeat = 1 if index is None else program.sizes.repeats[index]
        for tensor in program.parameters:
            if tensor.group != index:
                continue
            for layer in (None,) if index is None else range(repeat):
                placed = LAYOUTS[layout](tensor, layer, first)
                if placed is None:
                    placed = (f"{tensor.name} (no name in layout {layout})", tuple(tensor.axes.split()))
                name, axes = placed
                shape = tuple(program.sizes.product(part, tensor.group) for part in axes)
                named[tensor.name, layer] = name
                shaped.append((tensor, layer, name, shape))
        first += 0 if index is None else repeat
    return tuple(
        ExpectedTensor(name, shape, tensor.dtype, tensor.trainable, named.get((tensor.storage, layer), name))
        for tensor, layer, name, shape in shaped
    )
