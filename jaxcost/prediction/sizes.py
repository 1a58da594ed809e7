"""Axis names and their extents.

Axes: b batch, s new (query) rows, t visible (key) rows, r logits rows per sequence, d hidden, w columns of the token
table, v stored vocabulary rows, p rows of the learned position table; of a group of layers h query heads, k key/value
heads, g = h / k, e head width, f MLP width, and of fused storage n = h + 2 k and u = 2 f.

A product over axes is where ragged work differs: with sequence lengths L, the joint extent of (b, s) is the sum of L
and that of (b, s, t) is the sum of L squared. `legal` counts only the pairs a causal mask lets through; a sliding
window w leaves query position p with min(p + 1, w) keys, so layers of one group may differ and are summed by window.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from jaxcost.contracts.case import Case
from jaxcost.prediction.domain import ceil_div, exact_div, minimum

ROW_AXES = frozenset("str")
# Axis to the fields of a case that give its extent; those of a group of layers are its layer's.
AXIS_FIELDS: dict[str, tuple[str, ...]] = {
    "b": ("workload.batch",),
    "s": ("workload.new_tokens",),
    "t": ("workload.past_tokens", "workload.new_tokens"),
    "r": ("workload.logits", "workload.new_tokens"),
    "d": ("architecture.hidden_size",),
    "w": ("architecture.embedding_width", "architecture.hidden_size"),
    "v": ("architecture.vocabulary_size", "execution.vocabulary_multiple"),
    "p": ("architecture.learned_positions.rows",),
    "h": ("attention.query_heads", "execution.head_multiple"),
    "k": ("attention.kv_heads",),
    "g": ("attention.query_heads", "attention.kv_heads", "execution.head_multiple"),
    "e": ("attention.head_dim",),
    "f": ("mlp.width",),
    "n": ("attention.query_heads", "attention.kv_heads", "execution.head_multiple"),
    "u": ("mlp.width",),
}


@dataclass(frozen=True)
class Sizes:
    """Extents of all axes. Values are integers, or expressions of one other domain (see `domain`).

    Attributes:
        values: extents outside the groups of layers.
        groups: for each group, the extents of its own axes.
        repeats: layers in each group.
        lengths: lengths of ragged sequences, or None for the rectangle b x s.
        logical_vocabulary: vocabulary rows before padding.
        unpadded: for each group, the extents of padded axes (heads) before padding; empty where nothing is padded.
        windows: for each group, the cycle of its layers' windows, 0 for full attention; no cycle, no windows.
    """

    values: Mapping[str, Any]
    groups: tuple[Mapping[str, Any], ...]
    repeats: tuple[Any, ...]
    lengths: tuple[int, ...] | None = None
    logical_vocabulary: Any = 0
    windows: tuple[tuple[Any, ...], ...] = ()
    unpadded: tuple[Mapping[str, Any], ...] = ()
    _products: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def axis(self, name: str, group: int | None = None) -> Any:
        """Return the extent of one axis."""
        if group is not None and name in self.groups[group]:
            return self.groups[group][name]
        return self.values[name]

    def released(self, name: str, group: int | None = None) -> Any:
        """Return the extent of one axis in the released model, before padding."""
        if name == "v":
            return self.logical_vocabulary
        if group is not None and self.unpadded and name in self.unpadded[group]:
            return self.unpadded[group][name]
        return self.axis(name, group)

    def shape(self, axes: str, group: int | None = None) -> tuple[Any, ...]:
        """Return the extents of space-separated axes, as a rectangle."""
        return tuple(self.axis(name, group) for name in axes.split())

    def product(self, axes: str, group: int | None = None, pairs: str = "rectangular") -> Any:
        """Return the joint extent of distinct space-separated axes; `pairs` is `rectangular` or `legal`."""
        key = (axes, group, pairs)
        if key not in self._products:
            self._products[key] = self._product(axes.split(), group, pairs)
        return self._products[key]

    def _product(self, names: list[str], group: int | None, pairs: str) -> Any:
        total: Any = 1
        joint = set()
        if "b" in names and (self.lengths is not None or (pairs == "legal" and "s" in names and "t" in names)):
            joint = {"b"} | (ROW_AXES & set(names))
            total = self._rows(joint, pairs)
        for name in names:
            if name not in joint:
                total = total * self.axis(name, group)
        return total

    def _rows(self, joint: set[str], pairs: str) -> Any:
        """Return the joint extent of the batch with the row axes in `joint`."""
        if {"s", "t"} <= joint and pairs == "legal":
            return self.legal_pairs()
        assert self.lengths is not None
        if {"s", "t"} <= joint:
            return sum(n * n for n in self.lengths)
        if joint & {"s", "t"}:
            return sum(self.lengths)
        if "r" in joint:
            return sum(min(n, self.values["r"]) for n in self.lengths)
        return self.values["b"]

    def legal_pairs(self, window: Any = 0) -> Any:
        """Return the (query, key) pairs of the batch that the mask of a layer with this window (0: none) lets through.

        One sequence: the sum of min(p + 1, window) over the positions p of its queries.
        """
        new, visible = self.values["s"], self.values["t"]
        if self.lengths is not None:
            return sum(_seen(n, window) for n in self.lengths)
        if isinstance(window, int) and window == 0:
            return self.values["b"] * (new * (visible - new) + exact_div(new * (new + 1), 2))
        return self.values["b"] * (_seen(visible, window) - _seen(visible - new, window))

    def kept_rows(self, window: Any = 0) -> Any:
        """Return the visible rows of the batch that its last queries see in a layer with this window (0: all rows)."""
        if self.lengths is not None:
            return sum(min(n, window) if window else n for n in self.lengths)
        visible = self.values["t"]
        if isinstance(window, int) and window == 0:
            return self.values["b"] * visible
        return self.values["b"] * minimum(visible, window)

    def by_window(self, group: int | None, first: int, repeat: Any) -> tuple[tuple[Any, Any], ...]:
        """Return (window, number of layers) for `repeat` layers of a group from layer `first` on."""
        cycle = self.windows[group] if group is not None and self.windows else ()
        if not cycle:
            return ((0, repeat),)
        length = len(cycle)
        return tuple(
            (window, ceil_div(first + repeat - place, length) - ceil_div(first - place, length))
            for place, window in enumerate(cycle)
        )

    def over_layers(self, axes: str, group: int | None, first: int, repeat: Any, pairs: str = "rectangular") -> Any:
        """Return the sum of `product` over the layers `first` to `first + repeat - 1`; windows cut legal pairs."""
        names = axes.split()
        if pairs == "rectangular" or not {"b", "s", "t"} <= set(names):
            return self.product(axes, group) * repeat
        rest = self.product(" ".join(name for name in names if name not in "bst"), group)
        return rest * sum(self.legal_pairs(window) * count for window, count in self.by_window(group, first, repeat))

    def microbatch(self, count: int) -> Sizes:
        """Return the sizes of one of `count` microbatches; of ragged ones, that with the most pairs."""
        if count == 1:
            return self
        return self._part([self._every(count, 1, index) for index in range(count)] if self.lengths else None, count)

    def local(self, shards: int, tensor: int, microbatches: int = 1, context: int = 1) -> Sizes:
        """Return what one device computes with: sequences over `shards`, their rows over `context`, heads, MLP width
        and vocabulary over `tensor`.

        Of ragged shards the one with the most pairs is taken. The hidden axis stays whole: a weight sharded along it is
        gathered before use; so do the key rows t, which every query needs. Where there are fewer K/V heads than ranks
        a rank holds one, shared with others, and the query heads of its own that go with it.
        """
        parts = [self._every(microbatches, shards, index) for index in range(shards)] if self.lengths else None
        part = self._part(parts, shards) if shards > 1 else self
        if context > 1:
            part = replace(part, values={**part.values, "s": exact_div(part.values["s"], context)})
        if tensor == 1:
            return part
        groups = []
        for own in part.groups:
            heads, shared = exact_div(own["h"], tensor), isinstance(own["k"], int) and own["k"] < tensor
            kv = 1 if shared else exact_div(own["k"], tensor)
            groups.append({**own, "h": heads, "k": kv, "g": exact_div(heads, kv), "f": exact_div(own["f"], tensor)})
        return replace(part, groups=tuple(groups), values={**part.values, "v": exact_div(part.values["v"], tensor)})

    def _part(self, parts: list[tuple[int, ...]] | None, count: int) -> Sizes:
        values = {**self.values, "b": exact_div(self.values["b"], count)}
        if parts is None:
            return replace(self, values=values)
        worst = max(parts, key=lambda lengths: (sum(n * n for n in lengths), sum(lengths)))
        return replace(self, values=values, lengths=worst)

    def _every(self, microbatches: int, shards: int, index: int) -> tuple[int, ...]:
        """Return the lengths of shard `index` in every microbatch; with one shard, of microbatch `index`."""
        assert self.lengths is not None
        size = len(self.lengths) // microbatches
        chunks = [self.lengths[i * size : (i + 1) * size] for i in range(microbatches)]
        if shards == 1:
            return chunks[index]
        part = size // shards
        return tuple(n for chunk in chunks for n in chunk[index * part : (index + 1) * part])


def _seen(rows: Any, window: Any) -> Any:
    """Return the keys that the first `rows` queries of a sequence see: the sum of min(i, window) for i from 1."""
    if isinstance(window, int) and window == 0:
        return exact_div(rows * (rows + 1), 2)
    short = minimum(rows, window)
    return exact_div(short * (short + 1), 2) + (rows - short) * window


def sizes_of(case: Case) -> Sizes:
    """Return the integer sizes of a case."""
    arch, work = case.architecture, case.workload
    positions = arch.learned_positions
    values = {
        "b": work.batch,
        "s": work.new_tokens,
        "t": work.visible_tokens,
        "r": work.logits_rows_per_sequence,
        "d": arch.hidden_size,
        "w": arch.table_width,
        "v": case.vocabulary_rows,
        "p": positions.rows if positions else 0,
    }
    groups, unpadded = [], []
    for index, group in enumerate(arch.groups):
        attention, heads = group.layer.attention, case.query_heads(index)
        groups.append(
            {
                "h": heads,
                "k": attention.kv_heads,
                "g": heads // attention.kv_heads,
                "e": attention.head_dim,
                "f": group.layer.mlp.width,
                "n": heads + 2 * attention.kv_heads,
                "u": 2 * group.layer.mlp.width,
            }
        )
        unpadded.append({"h": attention.query_heads, "n": attention.query_heads + 2 * attention.kv_heads})
    repeats = tuple(group.repeat for group in arch.groups)
    windows = tuple(group.windows for group in arch.groups)
    return Sizes(values, tuple(groups), repeats, work.lengths, arch.vocabulary_size, windows, tuple(unpadded))
