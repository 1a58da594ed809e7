"""Under which names, and in which axis order, a producer stores the parameters that a program declares.

A layout is an explicit table from declared parameters to stored arrays. A stored name that no table entry gives is an
unexpected tensor, never one to be renamed until it fits; a declared parameter that the table does not know stays
without a stored name, and so is missing.

    jaxcost                    group0/1/attn/q_proj/weight, layers apart, axes as declared
    equinox, equinox-unrolled  groups.0.attn.q_proj.weight, the tree paths of the reference network
    huggingface-FAMILY         the state mapping of transformers' class of that family (see `huggingface.py`)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from jaxcost.contracts.errors import reject
from jaxcost.prediction.program import Program
from jaxcost.reconciliation.layouts import huggingface, trees
from jaxcost.reconciliation.layouts.pieces import ExpectedTensor as ExpectedTensor
from jaxcost.reconciliation.layouts.pieces import layer_names

LAYOUTS: Mapping[str, Callable[[Program], tuple[ExpectedTensor, ...]]] = {
    "jaxcost": layer_names,
    "equinox": trees.stacked,
    "equinox-unrolled": trees.unrolled,
    **huggingface.LAYOUTS,
}
# Families whose classes share one table.
ALIASES: Mapping[str, str] = {
    f"huggingface-{name}": "huggingface-llama" for name in ("mistral", "qwen2", "qwen3", "gemma", "olmo", "stablelm")
}


def layout_name(name: str) -> str:
    """Return the name of the table that a layout's name stands for.

    Raises:
        RejectedError: there is none.
    """
    found = ALIASES.get(name, name)
    if found not in LAYOUTS:
        raise reject("layout", name, "not a layout that is known", f"use one of {', '.join((*LAYOUTS, *ALIASES))}")
    return found


def expected_tensors(program: Program, layout: str) -> tuple[ExpectedTensor, ...]:
    """Return every named stored array of a program under a layout; a tied head is a name of its own where it has one.

    Raises:
        RejectedError: the layout is not known.
    """
    return LAYOUTS[layout_name(layout)](program)
