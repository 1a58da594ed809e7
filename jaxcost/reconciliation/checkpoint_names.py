"""What the names of a checkpoint mean: its layout, its roles, its buffers, and what lies beside quantised codes.

Every rule is a table. A layout is chosen only where its names and the stored ones agree exactly; where none does, the
nearest is compared with, and the report says so and stays open.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from jaxcost.observation.checkpoint.stored import Checkpoint, StoredTensor
from jaxcost.prediction.program import Program
from jaxcost.reconciliation.layouts import LAYOUTS, ExpectedTensor, expected_tensors, layout_name

# First part of a tree path -> role, in trees of a train state.
STATE_PARTS: Mapping[str, str] = {
    "parameters": "parameter", "params": "parameter", "master": "master", "optimizer": "optimizer",
    "opt_state": "optimizer",
}  # fmt: skip
# Fields of optax 0.2 states -> role of a state object.
OPTIMIZER_FIELDS: Mapping[str, str] = {
    "mu": "first_moment", "trace": "first_moment", "nu": "second_moment", "v": "second_moment",
    "v_row": "second_moment_row", "v_col": "second_moment_column", "count": "step", "mini_step": "step",
    "gradient_step": "step", "acc_grads": "gradient_accumulator", "loss_scale": "scale",
}  # fmt: skip


@dataclass(frozen=True)
class Held:
    """One stored array with its place in a train state: role, and the parameter path it belongs to."""

    role: str
    path: str
    tensor: StoredTensor


@dataclass(frozen=True)
class Buffer:
    """Arrays that released checkpoints carry and no optimizer trains. `axes` gives the shape, None where it varies."""

    pattern: str
    axes: tuple[str, ...] | None
    reason: str


# r2 is half the rotary dimensions, p the learned position rows, 1 one.
BUFFERS = (
    Buffer(r"(.*\.)?rotary_emb\.inv_freq", ("r2",), "rotary frequencies, rebuilt from the configuration"),
    Buffer(r"(.*\.)?h\.\d+\.attn\.bias", ("1", "1", "p", "p"), "the causal mask of GPT-2, rebuilt from its positions"),
    Buffer(r"(.*\.)?(attn|attention)\.masked_bias", (), "the score of a masked pair, a constant"),
    Buffer(r"(.*\.)?attention\.bias", None, "the causal mask of GPT-NeoX, rebuilt from its positions"),
    Buffer(r"(.*\.)?position_ids", None, "the numbers of the positions"),
)
# Suffix -> what it is; after the whole name of a weight, or after its module's name.
COMPANIONS: Mapping[str, str] = {
    ".absmax": "largest magnitude of each block of codes", ".quant_map": "the values of the codes",
    ".nested_absmax": "largest magnitude of each block of block scales",
    ".nested_quant_map": "the values of the codes of block scales",
    ".quant_state.bitsandbytes__nf4": "how the codes were made",
    ".quant_state.bitsandbytes__fp4": "how the codes were made",
    ".SCB": "row scales of int8 codes", ".weight_format": "the layout of int8 codes", "_scale": "scale of fp8 codes",
    "_scale_inv": "block scales of fp8 codes",
}  # fmt: skip


@dataclass(frozen=True)
class Choice:
    """The layout compared with: `exact` where its names agree with the stored ones."""

    name: str
    expected: tuple[ExpectedTensor, ...]
    exact: bool
    basis: str


def held_tensors(seen: Checkpoint) -> list[Held]:
    """Return the stored arrays by role; a tree without the parts of a train state holds parameters alone."""
    if seen.format != "orbax":
        return [Held("parameter", tensor.name, tensor) for tensor in seen.tensors]
    firsts = {tensor.name.split(".", 1)[0] for tensor in seen.tensors}
    if not any(STATE_PARTS.get(first) == "parameter" for first in firsts):
        return [Held("parameter", tensor.name, tensor) for tensor in seen.tensors]
    return [_held(tensor) for tensor in seen.tensors]


def _held(tensor: StoredTensor) -> Held:
    first, _, rest = tensor.name.partition(".")
    role = STATE_PARTS.get(first, "other")
    if role != "optimizer":
        return Held(role, rest if role != "other" else tensor.name, tensor)
    parts = rest.split(".")
    for index, part in enumerate(parts):
        if part in OPTIMIZER_FIELDS:
            return Held(OPTIMIZER_FIELDS[part], ".".join(parts[index + 1 :]), tensor)
    return Held("other", tensor.name, tensor)


def choose_layout(program: Program, names: Sequence[str], wanted: str | None) -> Choice:
    """Return the layout to compare with.

    Args:
        program: the declared parameters.
        names: the stored names of parameters, companions and buffers among them.
        wanted: a layout by name, or None to look for exact agreement.

    Raises:
        RejectedError: the wanted layout is not known.
    """
    if wanted is not None:
        name = layout_name(wanted)
        return Choice(name, expected_tensors(program, name), True, "named by the user")
    stored = set(names)
    fits: list[Choice] = []
    nearest: tuple[int, int, str, tuple[ExpectedTensor, ...]] | None = None
    for name in LAYOUTS:
        expected = expected_tensors(program, name)
        every = {tensor.name for tensor in expected}
        needed = {tensor.name for tensor in expected if tensor.alias == tensor.name}
        extra = {item for item in stored - every if not beside(item, every) and buffer_of(item) is None}
        if needed <= stored and not extra:
            fits.append(Choice(name, expected, True, f"all {len(needed)} names agree exactly"))
        shared = len(stored & every)
        if nearest is None or (shared, -len(every)) > nearest[:2]:
            nearest = (shared, -len(every), name, expected)
    if fits:
        return fits[0] if len(fits) == 1 else _one_of(fits, program.case.architecture.family)
    assert nearest is not None
    shared, _, name, expected = nearest
    lacking = len({tensor.name for tensor in expected if tensor.alias == tensor.name} - stored)
    basis = f"{shared} of the {len(stored)} stored names are its own, {lacking} of its names are not stored"
    return Choice(name, expected, False, f"no layout's names agree exactly; nearest is {name}: {basis}")


def _one_of(fits: Sequence[Choice], family: str) -> Choice:
    """Return that of the model's own family, or one of several that say the same of every array; else none is exact."""
    own = {f"huggingface-{family}", f"huggingface-{family}-base"}
    for fit in fits:
        if fit.name in own:
            return replace(fit, basis=f"{fit.basis}; of the layouts with these names, that of the model's family")
    said = [{(t.name, t.shape, t.alias) for t in fit.expected} for fit in fits]
    if all(item == said[0] for item in said):
        return fits[0]
    names = ", ".join(fit.name for fit in fits)
    return Choice(fits[0].name, fits[0].expected, False, f"several layouts have these names ({names}); name one")


def buffer_of(name: str) -> Buffer | None:
    """Return the table's entry for a name that is a known buffer."""
    return next((buffer for buffer in BUFFERS if re.fullmatch(buffer.pattern, name)), None)


def buffer_shape(buffer: Buffer, program: Program) -> tuple[int, ...] | None:
    """Return the shape a buffer must have, None where the table does not say."""
    if buffer.axes is None:
        return None
    arch = program.case.architecture
    rotary = next((group.layer.attention.rotary for group in arch.groups if group.layer.attention.rotary), None)
    extents = {
        "1": 1, "r2": rotary.dimensions // 2 if rotary else 0,
        "p": arch.learned_positions.rows if arch.learned_positions else 0,
    }  # fmt: skip
    return tuple(extents[axis] for axis in buffer.axes)


def beside(name: str, names: set[str] | Mapping[str, object]) -> str:
    """Return the weight that a name lies beside as scale or code table of its quantisation, "" where none."""
    for suffix in COMPANIONS:
        if name.endswith(suffix):
            stem = name.removesuffix(suffix)
            for weight in (stem, f"{stem}.weight"):
                if weight in names:
                    return weight
    return ""
