"""A second count of the same things, from the case alone and by the plainest means: loops, lists and products.

The oracle of the properties uses nothing of `jaxcost.prediction`: no axes, no program, no fold. It walks the layers
one by one, asks at each matrix what it multiplies and whether a gradient is wanted on either side, and counts (query,
key) pairs by looking at each pair. Slow and small on purpose; one multiply-add is two FLOPs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from jaxcost.contracts.architecture import Norm
from jaxcost.contracts.case import Case
from jaxcost.contracts.dtypes import BITS


@dataclass(frozen=True)
class Tensor:
    """One stored parameter of one layer (`layer` counts from 0 within its group, 0 outside the stack)."""

    scope: str
    part: str
    shape: tuple[int, ...]
    layer: int = 0

    @property
    def scalars(self) -> int:
        """Number of scalars."""
        count = 1
        for extent in self.shape:
            count *= extent
        return count


@dataclass(frozen=True)
class Product:
    """One matrix product of one layer: 2 x rows x inner x outputs FLOPs forward.

    `weight` tells a product with a stored matrix from a pairwise one. `gradients` says for its two operands, first the
    activation (or the left one), whether backward computes a gradient, each at the cost of the forward product.
    """

    scope: str
    layer: int
    rows: int
    inner: int
    outputs: int
    weight: bool
    gradients: tuple[bool, bool]

    @property
    def flops(self) -> int:
        """Forward FLOPs."""
        return 2 * self.rows * self.inner * self.outputs


def tensors(case: Case, padded: bool = False) -> list[Tensor]:
    """Return every parameter once: a tied head is the embedding's storage and is not listed.

    `padded` gives the vocabulary its stored rows, padding included, instead of those of the released model.
    """
    arch = case.architecture
    d, rows = arch.hidden_size, case.vocabulary_rows if padded else arch.vocabulary_size
    found = [Tensor("embed/tokens", "weight", (rows, d))]
    if arch.learned_positions:
        found.append(Tensor("embed/positions", "weight", (arch.learned_positions.rows, d)))
    for index, group in enumerate(arch.groups):
        attention, mlp = group.layer.attention, group.layer.mlp
        h, k, e, f = attention.query_heads, attention.kv_heads, attention.head_dim, mlp.width
        for layer in range(group.repeat):
            scope = f"group{index}"
            found += _norm(f"{scope}/attn_norm", group.layer.attention_norm, d, layer)
            for name, weight, bias, has_bias in (
                ("q_proj", (d, h, e), (h, e), attention.query_bias),
                ("k_proj", (d, k, e), (k, e), attention.key_bias),
                ("v_proj", (d, k, e), (k, e), attention.value_bias),
                ("o_proj", (h, e, d), (d,), attention.output_bias),
            ):
                found += _matrix(f"{scope}/attn/{name}", weight, bias, has_bias, layer)
            found += _norm(f"{scope}/mlp_norm", group.layer.mlp_norm, d, layer)
            for name in ("gate", "up") if mlp.form == "gated" else ("up",):
                found += _matrix(f"{scope}/mlp/{name}", (d, f), (f,), mlp.bias, layer)
            found += _matrix(f"{scope}/mlp/down", (f, d), (d,), mlp.bias, layer)
    found += _norm("final_norm", arch.final_norm, d, 0)
    if not arch.tied:
        found.append(Tensor("head", "weight", (d, rows)))
    return found


def _norm(scope: str, norm: Norm | None, d: int, layer: int) -> list[Tensor]:
    parts = [name for name, there in (("scale", norm.scale), ("bias", norm.bias)) if there] if norm else []
    return [Tensor(scope, part, (d,), layer) for part in parts]


def _matrix(scope: str, weight: tuple[int, ...], bias: tuple[int, ...], has_bias: bool, layer: int) -> list[Tensor]:
    found = [Tensor(scope, "weight", weight, layer)]
    return [*found, Tensor(scope, "bias", bias, layer)] if has_bias else found


def unique_parameters(case: Case) -> int:
    """Return the number of learned scalars, tied storage once, without vocabulary padding."""
    return sum(tensor.scalars for tensor in tensors(case))


def trainable_parameters(case: Case) -> int:
    """Return the number of learned scalars that receive a gradient, without vocabulary padding."""
    return sum(tensor.scalars for tensor in tensors(case) if not case.is_frozen(tensor.scope))


def sequence_lengths(case: Case) -> list[int]:
    """Return the new rows of every sequence of the global batch."""
    work = case.workload
    return list(work.lengths) if work.lengths is not None else [work.new_tokens] * work.batch


def pairs(case: Case, convention: str | None = None) -> int:
    """Return the (query, key) pairs of one head of one layer over the whole batch, looking at each pair.

    `rectangular` counts all pairs of a sequence; `legal` those with the key not after the query.
    """
    rule = convention or case.convention.attention_pairs
    past = case.workload.past_tokens
    count = 0
    for new in sequence_lengths(case):
        for query in range(past, past + new):
            for key in range(past + new):
                if rule == "rectangular" or key <= query:
                    count += 1
    return count


def logits_rows(case: Case) -> int:
    """Return the rows projected onto the vocabulary over the whole batch."""
    work = case.workload
    if work.logits == "all":
        return sum(sequence_lengths(case))
    wanted = 1 if work.logits == "final" else int(work.logits)
    return sum(min(length, wanted) for length in sequence_lengths(case))


def products(case: Case) -> Iterator[Product]:
    """Yield every matrix product of the forward pass in order, with the gradients backward needs at it.

    A gradient goes to a matrix that is trained, and to an activation below which something is trained. Where layers are
    scanned every layer runs the same program, so the first computes what any of them needs.
    """
    arch = case.architecture
    rows, d = sum(sequence_lengths(case)), arch.hidden_size
    pair_count = pairs(case)
    training = case.workload.phase == "training"

    def trained(scope: str) -> bool:
        return training and not case.is_frozen(scope)

    live = trained("embed")
    for index, group in enumerate(arch.groups):
        scope, layer = f"group{index}", group.layer
        h, k, e, f = layer.attention.query_heads, layer.attention.kv_heads, layer.attention.head_dim, layer.mlp.width
        attn, mlp = trained(f"{scope}/attn"), trained(f"{scope}/mlp")
        both = (("attn_norm", layer.attention_norm), ("mlp_norm", layer.mlp_norm))
        norms = [norm is not None and norm.scale and trained(f"{scope}/{name}") for name, norm in both]
        if case.execution.layers == "scan" and (attn or mlp or any(norms)):
            live = True
        for number in range(group.repeat):
            below = live or norms[0]
            for name, heads in (("q_proj", h), ("k_proj", k), ("v_proj", k)):
                yield Product(f"{scope}/attn/{name}", number, rows, d, heads * e, True, (below, attn))
            inside = below or attn
            # One product of length e per pair and query head; the K/V head only says which row is read.
            yield Product(f"{scope}/attn/scores", number, pair_count, e, h, False, (inside, inside))
            yield Product(f"{scope}/attn/values", number, pair_count, e, h, False, (inside, inside))
            yield Product(f"{scope}/attn/o_proj", number, rows, h * e, d, True, (inside, attn))
            live = live or inside
            below = live or norms[1]
            for name in ("gate", "up") if layer.mlp.form == "gated" else ("up",):
                yield Product(f"{scope}/mlp/{name}", number, rows, d, f, True, (below, mlp))
            yield Product(f"{scope}/mlp/down", number, rows, f, d, True, (below or mlp, mlp))
            live = live or below or mlp
    live = live or (trained("final_norm") and arch.final_norm.scale)
    head = trained("embed" if arch.tied else "head")
    yield Product("head", 0, logits_rows(case), d, case.vocabulary_rows, True, (live, head))


def forward_flops(case: Case) -> int:
    """Return the forward FLOPs of all matrix products, under the case's pair convention."""
    return sum(product.flops for product in products(case))


def backward_flops(case: Case) -> int:
    """Return the backward FLOPs: one forward product's worth per gradient needed. Zero outside training."""
    return sum(product.flops * sum(product.gradients) for product in products(case))


def cache_bytes(case: Case) -> int:
    """Return the bytes of keys and values of all visible rows, each head of each layer once."""
    total = 0
    for group in case.architecture.groups:
        attention = group.layer.attention
        for _layer in range(group.repeat):
            for new in sequence_lengths(case):
                total += 2 * (case.workload.past_tokens + new) * attention.kv_heads * attention.head_dim
    return total * BITS[case.state.kv_dtype] // 8


def device_parameter_bytes(case: Case) -> tuple[int, int]:
    """Return the bytes of stored parameters on one device and over the whole mesh.

    Matrices: hidden axis over fsdp; heads, MLP width and vocabulary over tensor. Vectors are whole on every device.
    """
    run, width = case.execution, BITS[case.state.parameter_dtype] // 8
    local = 0
    for tensor in tensors(case, padded=True):
        share = tensor.scalars
        if tensor.part == "weight":
            share //= run.degree("fsdp")
            if tensor.scope != "embed/positions":
                share //= run.degree("tensor")
        local += share * width
    return local, local * run.device_count


def state_bytes(case: Case) -> dict[str, int]:
    """Return the bytes of every state role while all of them are alive, in the first optimizer step.

    A stacked (scanned) group is one array with its layers in front. Adafactor factors an array whose second largest
    extent is 128 or more: the row factor lacks the largest extent, the column factor the second largest; what does not
    apply is one scalar (optax 0.2).
    """
    found: dict[str, int] = {}
    for item in case.state.objects:
        scalars = 0
        for tensor in _arrays(case):
            if item.basis != "loaded" and (case.workload.phase != "training" or case.is_frozen(tensor.scope)):
                continue
            scalars += _stored(tensor.shape, item.count)
        if item.count == "scalar":
            scalars = 1
        found[item.role] = found.get(item.role, 0) + scalars * item.copies * BITS[item.dtype] // 8
    return found


def _arrays(case: Case) -> list[Tensor]:
    """Return the stored arrays: layers stacked where they are scanned, one by one otherwise."""
    found = []
    for tensor in tensors(case, padded=True):
        if not tensor.scope.startswith("group") or case.execution.layers == "unrolled":
            found.append(tensor)
        elif tensor.layer == 0:
            group = int(tensor.scope.split("/")[0].removeprefix("group"))
            found.append(Tensor(tensor.scope, tensor.part, (case.architecture.groups[group].repeat, *tensor.shape)))
    return found


def _stored(shape: tuple[int, ...], rule: str) -> int:
    total = 1
    for extent in shape:
        total *= extent
    largest = sorted(shape)
    factored = len(shape) > 1 and largest[-2] >= 128
    if rule == "dense" or (rule == "unfactored" and not factored):
        return total
    if rule == "unfactored" or not factored:
        return 1
    return total // (largest[-1] if rule == "row" else largest[-2])
