"""A plain walk over a paged cache, written from the description of the engine: pages are handed out one by one.

Shares no line with the package: it keeps a table of pages for every group of layers and takes pages from one pool while
requests grow token by token.
"""

from __future__ import annotations

from collections.abc import Sequence


def groups(windows: Sequence[int]) -> list[tuple[int, int]]:
    """(window, layers) of each group: kinds of layers dealt into groups of equal size, the last ones padded."""
    kinds: dict[int, int] = {}
    for window in windows:
        kinds[window] = kinds.get(window, 0) + 1
    small, large = min(kinds.values()), max(kinds.values())
    size = large if large < small * 1.5 else small
    found = []
    for window, layers in kinds.items():
        hands: list[int] = [0] * -(-layers // size)
        for index in range(layers):
            hands[index % len(hands)] += 1
        found += [(window, hand) for hand in hands]
    return found


def pool_size(available: int, page: int, tables: Sequence[tuple[int, int]]) -> int:
    """Count blocks by taking them away: each takes a page in as many layers as the largest group has."""
    each = page * max(layers for _, layers in tables)
    return len(range(each, available + 1, each))


def admitted(blocks: int, tables: Sequence[tuple[int, int]], tokens: int, size: int, step: int) -> int:
    """Admit requests of so many tokens until one finds the pool empty; return how many found all their pages."""
    free, found = blocks, 0
    while True:
        for window, _ in tables:
            taken = 0
            rows = tokens if not window else min(tokens, window - 1 + step)
            for row in range(rows):
                taken += row % size == 0
            taken += bool(window)  # a window may begin inside a page
            if taken > free:
                return found
            free -= taken
        found += 1
