"""How many tokens a paged K/V cache holds: vLLM's published formula, restated.

A page holds `block_size` tokens of one layer, keys and values. Layers of one kind (full attention, or one window) form
groups of equal size; one block is a page in each layer of a group, and all groups draw blocks from one pool:

    blocks = available // page bytes // layers of the largest group
    tokens = blocks // groups x block_size                               as the engine prints them
    blocks of a request = sum over groups of ceil(rows / block_size), one more where a window may begin inside a block
    concurrency = blocks / blocks of a request

Sources: vllm-project/vllm at 001cabc1be16 (`SOURCE`). From other commits: groups of the smallest kind's size alone
(bbf906a88ba1); the printed tokens as int(concurrency x max_model_len), the sum over groups without rounding by layers
(later than 001cabc1be16). Both readings of the printed tokens are given; without windows they differ by less than one
block where block_size divides max_model_len.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from jaxcost.contracts.errors import reject

SOURCE = {
    "repository": "vllm-project/vllm",
    "commit": "001cabc1be16a59a70d720ed61a13b678c060a18",
    "files": ["vllm/v1/core/kv_cache_utils.py", "vllm/v1/kv_cache_interface.py"],
}


@dataclass(frozen=True)
class KeptLayer:
    """What one layer keeps on one device: bytes of a page, the window (0: every row), the pipeline rank it is on."""

    page_bytes: int
    window: int = 0
    rank: int = 0


@dataclass(frozen=True)
class Group:
    """Layers that share a table of pages: a layer's page bytes, the window, layers on each pipeline rank."""

    page_bytes: int
    window: int
    layers: tuple[int, ...]

    def request_blocks(self, tokens: int, block_size: int, batched_tokens: int) -> int:
        """Return the most blocks that a request of so many tokens holds of this group.

        A windowed layer keeps the window's past beside the rows that a step adds, and may begin inside a block.
        """
        if not self.window:
            return -(-tokens // block_size)
        return -(-min(self.window - 1 + batched_tokens, tokens) // block_size) + 1


@dataclass(frozen=True)
class Pool:
    """The blocks of one replica: its groups, its number of blocks, and what a block of the fullest rank takes."""

    groups: tuple[Group, ...]
    blocks: int
    block_bytes: int
    block_size: int
    batched_tokens: int

    @property
    def tokens(self) -> int:
        """Tokens as the engine prints them."""
        return self.blocks // len(self.groups) * self.block_size

    def request_blocks(self, tokens: int) -> int:
        """Return the most blocks that one request of so many tokens holds."""
        return sum(group.request_blocks(tokens, self.block_size, self.batched_tokens) for group in self.groups)

    def concurrency(self, tokens: int) -> Fraction:
        """Return how many requests of so many tokens the pool holds, a fraction as it is printed."""
        return Fraction(self.blocks, self.request_blocks(tokens))

    def tokens_by_concurrency(self, tokens: int) -> int:
        """Return the capacity as later versions print it: concurrency times the longest request, rounded down."""
        return int(self.concurrency(tokens) * tokens)

    def longest(self, most: int) -> int:
        """Return the longest request, up to `most` tokens, that the pool holds; 0 where it holds none."""
        low, high = 0, most
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.request_blocks(middle) <= self.blocks else (low, middle - 1)
        return low


def group_size(kinds: Sequence[int]) -> int:
    """Return the layers of a group from the layers of each kind: the smallest kind's number, or the largest where
    that is less than one and a half times the smallest (padding a little then wastes less).
    """
    return max(kinds) if 2 * max(kinds) < 3 * min(kinds) else min(kinds)


def groups_of(layers: Sequence[KeptLayer], hybrid: bool = True) -> tuple[Group, ...]:
    """Return the groups of a model's layers. Without `hybrid`, windowed layers beside full ones keep every row.

    Raises:
        RejectedError: layers of several kinds have pages of several sizes.
    """
    windows = {layer.window for layer in layers}
    if len(windows) > 1 and not hybrid and 0 in windows:
        layers = [KeptLayer(layer.page_bytes, 0, layer.rank) for layer in layers]
        windows = {0}
    sizes = {layer.page_bytes for layer in layers}
    if len(sizes) > 1:
        rule = f"layers have pages of {len(sizes)} sizes, whose common allocation the published formula leaves open"
        raise reject("model", sorted(sizes), rule, "choose a model whose layers all have the same K/V heads")
    ranks, page = 1 + max(layer.rank for layer in layers), sizes.pop()
    kinds: dict[int, list[KeptLayer]] = {}
    for layer in layers:
        kinds.setdefault(layer.window, []).append(layer)
    size = group_size([len(kind) for kind in kinds.values()])
    found = []
    for window, kind in kinds.items():
        count = -(-len(kind) // size)
        for index in range(count):
            mine = kind[index::count]
            on_rank = [sum(layer.rank == rank for layer in mine) for rank in range(ranks)]
            found.append(Group(page, window, tuple(on_rank)))
    return tuple(found)


def pool(groups: Sequence[Group], available: Sequence[int], block_size: int, batched_tokens: int) -> Pool:
    """Return the pool of a replica from the bytes available on a device of each rank: the scarcest rank decides."""
    blocks, widest = [], 0
    for rank, size in enumerate(available):
        layers = max(group.layers[rank] for group in groups)
        widest = max(widest, layers)
        blocks.append(max(0, size // groups[0].page_bytes // layers))
    return Pool(tuple(groups), min(blocks), widest * groups[0].page_bytes, block_size, batched_tokens)
