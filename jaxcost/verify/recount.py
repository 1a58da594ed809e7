"""A second count of the same things, from the case alone and by the plainest means: loops, lists and products.

The oracle of the properties uses nothing of `jaxcost.prediction`: no axes, no program, no fold. It walks the layers
one by one, asks at each matrix what it multiplies and whether a gradient is wanted on either side, and counts (query,
key) pairs by looking at each pair. Slow and small on purpose; one multiply-add is two FLOPs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from jaxcost.contracts.architecture import Attention, Layer, Mlp, Norm
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

    `padded` gives vocabulary and query heads their stored extents, padding included, instead of the released ones.
    """
    arch = case.architecture
    d, w = arch.hidden_size, arch.table_width
    rows = case.vocabulary_rows if padded else arch.vocabulary_size
    found = [Tensor("embed/tokens", "weight", (rows, w))]
    if arch.embedding_width:
        found.append(Tensor("embed/project_in", "weight", (w, d)))
    if arch.learned_positions:
        found.append(Tensor("embed/positions", "weight", (arch.learned_positions.rows, d)))
    found += _norm("embed/norm", arch.embedding_norm, (d,), 0)
    for index, group in enumerate(arch.groups):
        for layer in range(group.repeat):
            scope = f"group{index}"
            for name, norm in _norms(group.layer):
                found += _norm(f"{scope}/{name}", norm, (d,), layer)
            attention = group.layer.attention
            heads = case.query_heads(index) if padded else attention.query_heads
            found += _attention(f"{scope}/attn", attention, heads, d, layer)
            found += _mlp(f"{scope}/mlp", group.layer.mlp, d, layer)
    found += _norm("final_norm", arch.final_norm, (d,), 0)
    if arch.embedding_width:
        found.append(Tensor("head/project_out", "weight", (d, w)))
    if not arch.tied:
        found.append(Tensor("head", "weight", (w, rows)))
    return found


def _norms(layer: Layer) -> list[tuple[str, Norm | None]]:
    return [
        ("attn_norm", layer.attention_norm),
        ("attn_post_norm", layer.attention_post_norm),
        ("mlp_norm", layer.mlp_norm),
        ("mlp_post_norm", layer.mlp_post_norm),
    ]


def _attention(scope: str, attention: Attention, h: int, d: int, layer: int) -> list[Tensor]:
    k, e = attention.kv_heads, attention.head_dim
    biases = (attention.query_bias, attention.key_bias, attention.value_bias)
    found = []
    whole = attention.storage == "fused"
    if whole:
        found += _matrix(f"{scope}/qkv", (d, h + 2 * k, e), (h + 2 * k, e), all(biases), layer)
    for name, heads, bias in zip(("q_proj", "k_proj", "v_proj"), (h, k, k), biases, strict=True):
        if not whole:
            found += _matrix(f"{scope}/{name}", (d, heads, e), (heads, e), bias, layer)
        elif bias and not all(biases):
            found.append(Tensor(f"{scope}/{name}", "bias", (heads, e), layer))
    if attention.qk_norm:
        for name, heads in (("q_norm", h), ("k_norm", k)):
            width = (e,) if attention.qk_norm.over == "head" else (heads, e)
            found += _norm(f"{scope}/{name}", attention.qk_norm.norm, width, layer)
    return [*found, *_matrix(f"{scope}/o_proj", (h, e, d), (d,), attention.output_bias, layer)]


def _mlp(scope: str, mlp: Mlp, d: int, layer: int) -> list[Tensor]:
    f, found = mlp.width, []
    if mlp.storage == "fused":
        found += _matrix(f"{scope}/gate_up", (d, 2 * f), (2 * f,), mlp.bias, layer)
    else:
        for name in ("gate", "up") if mlp.form == "gated" else ("up",):
            found += _matrix(f"{scope}/{name}", (d, f), (f,), mlp.bias, layer)
    return [*found, *_matrix(f"{scope}/down", (f, d), (d,), mlp.bias, layer)]


def _norm(scope: str, norm: Norm | None, shape: tuple[int, ...], layer: int) -> list[Tensor]:
    parts = [name for name, there in (("scale", norm.scale), ("bias", norm.bias)) if there] if norm else []
    return [Tensor(scope, part, shape, layer) for part in parts]


def _matrix(scope: str, weight: tuple[int, ...], bias: tuple[int, ...], has_bias: bool, layer: int) -> list[Tensor]:
    found = [Tensor(scope, "weight", weight, layer)]
    return [*found, Tensor(scope, "bias", bias, layer)] if has_bias else found


def unique_parameters(case: Case) -> int:
    """Return the number of learned scalars, tied storage once, without vocabulary padding."""
    return sum(tensor.scalars for tensor in tensors(case))


def trainable_parameters(case: Case) -> int:
    """Return the number of learned scalars that nothing freezes, without vocabulary padding."""
    return sum(tensor.scalars for tensor in tensors(case) if not case.is_frozen(tensor.scope))


def sequence_lengths(case: Case) -> list[int]:
    """Return the new rows of every sequence of the global batch."""
    work = case.workload
    return list(work.lengths) if work.lengths is not None else [work.new_tokens] * work.batch


def pairs(case: Case, convention: str | None = None, window: int = 0) -> int:
    """Return the (query, key) pairs of one head of one layer over the whole batch, looking at each pair.

    `rectangular` counts all pairs of a sequence; `legal` those with the key not after the query, and with a window only
    the query's own row and the `window` - 1 before it.
    """
    rule = convention or case.convention.attention_pairs
    past = case.workload.past_tokens
    count = 0
    for new in sequence_lengths(case):
        for query in range(past, past + new):
            for key in range(past + new):
                if rule == "rectangular" or (key <= query and (not window or query - key < window)):
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
    rows, d, w = sum(sequence_lengths(case)), arch.hidden_size, arch.table_width
    windows = {group.window(number) for group in arch.groups for number in range(group.repeat)}
    pair_counts = {window: pairs(case, window=window) for window in windows}
    training = case.workload.phase == "training"

    def trained(scope: str) -> bool:
        return training and not case.is_frozen(scope)

    live = trained("embed")
    if arch.embedding_width:
        yield Product("embed/project_in", 0, rows, w, d, True, (live, trained("embed/project_in")))
    for index, group in enumerate(arch.groups):
        scope, layer = f"group{index}", group.layer
        h, k, e, f = case.query_heads(index), layer.attention.kv_heads, layer.attention.head_dim, layer.mlp.width
        attn, mlp = trained(f"{scope}/attn"), trained(f"{scope}/mlp")
        norms = {name: norm is not None and norm.scale and trained(f"{scope}/{name}") for name, norm in _norms(layer)}
        if case.execution.layers == "scan" and (attn or mlp or any(norms.values())):
            live = True
        for number in range(group.repeat):
            below = live or norms["attn_norm"]
            for name, heads in (("q_proj", h), ("k_proj", k), ("v_proj", k)):
                yield Product(f"{scope}/attn/{name}", number, rows, d, heads * e, True, (below, attn))
            inside = below or attn
            # One product of length e per pair and query head; the K/V head only says which row is read.
            pair_count = pair_counts[group.window(number)]
            yield Product(f"{scope}/attn/scores", number, pair_count, e, h, False, (inside, inside))
            yield Product(f"{scope}/attn/values", number, pair_count, e, h, False, (inside, inside))
            yield Product(f"{scope}/attn/o_proj", number, rows, h * e, d, True, (inside, attn))
            middle = live or inside or norms["attn_post_norm"]
            if layer.residual == "parallel":  # both branches read the layer's input; without a second norm, one norm
                below = live or norms["mlp_norm" if layer.mlp_norm else "attn_norm"]
            else:
                below = middle or norms["mlp_norm"]
            for name in ("gate", "up") if layer.mlp.form == "gated" else ("up",):
                yield Product(f"{scope}/mlp/{name}", number, rows, d, f, True, (below, mlp))
            yield Product(f"{scope}/mlp/down", number, rows, f, d, True, (below or mlp, mlp))
            live = middle or below or mlp or norms["mlp_post_norm"]
    live = live or (arch.final_norm is not None and arch.final_norm.scale and trained("final_norm"))
    if arch.embedding_width:
        out = trained("head/project_out")
        yield Product("head/project_out", 0, logits_rows(case), d, w, True, (live, out))
        live = live or out
    head = trained("embed" if arch.tied else "head")
    yield Product("head", 0, logits_rows(case), w, case.vocabulary_rows, True, (live, head))


def by_scope(case: Case) -> dict[str, int]:
    """Return the forward FLOPs of the products by component scope."""
    found: dict[str, int] = {}
    for product in products(case):
        found[product.scope] = found.get(product.scope, 0) + product.flops
    return found


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


def least_cache_bytes(case: Case) -> int:
    """Return the bytes of the keys and values that each layer's window still reaches, row by row."""
    total = 0
    for group in case.architecture.groups:
        attention = group.layer.attention
        for layer in range(group.repeat):
            window = group.window(layer)
            for new in sequence_lengths(case):
                last = case.workload.past_tokens + new - 1
                reached = [key for key in range(last + 1) if not window or last - key < window]
                total += 2 * len(reached) * attention.kv_heads * attention.head_dim
    return total * BITS[case.state.kv_dtype] // 8


def _ranks_apart(case: Case, scope: str) -> int:
    """Return the tensor ranks that hold different parts of a matrix: of keys and values at most one per K/V head."""
    tensor = case.execution.degree("tensor")
    if scope.rsplit("/", 1)[-1] not in ("k_proj", "v_proj"):
        return tensor
    group = case.architecture.groups[int(scope.split("/")[0].removeprefix("group"))]
    return min(tensor, group.layer.attention.kv_heads)


def device_parameter_bytes(case: Case) -> tuple[int, int]:
    """Return the bytes of stored parameters on one device and over the whole mesh.

    Matrices: hidden axis over fsdp; heads, MLP width and vocabulary over tensor. Vectors are whole on every device. A
    token table (and head) narrower than the layers has no hidden axis, positions and projections have no tensor axis.
    """
    narrow = case.architecture.embedding_width is not None
    run, width = case.execution, BITS[case.state.parameter_dtype] // 8
    local = 0
    for tensor in tensors(case, padded=True):
        share = tensor.scalars
        if tensor.part == "weight":
            if not narrow or tensor.scope not in ("embed/tokens", "head"):
                share //= run.degree("fsdp")
            if tensor.scope not in ("embed/positions", "embed/project_in", "head/project_out"):
                share //= _ranks_apart(case, tensor.scope)
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
