"""What an ideal algorithm sends for one collective: ring, tree, and two levels of links.

`payload` is the whole logical array of a collective, in bytes, on one device: what every device holds before an
all-reduce or a reduce-scatter, or after an all-gather; what each sends away in an all-to-all or a permutation. Sends
are those of one device, of the values alone; a payload is cut into equal pieces, so its elements are rounded up to a
multiple of the participants.

Formulas: ring and recursive doubling, Thakur, Rabenseifner, Gropp 2005, "Optimization of Collective Communication
Operations in MPICH", sections 3 and 4; the double binary tree, Sanders, Speck, Traeff 2009, "Two-tree algorithms for
full bandwidth broadcast, reduction and scan". None of them is traffic that was measured on a link.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

KINDS = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")


class Ends(NamedTuple):
    """Bytes that one device puts into one execution of a collective, and takes out of it."""

    input_bytes: int
    output_bytes: int


class Levels(NamedTuple):
    """Participants of one group that share a node (or a slice), and how many nodes the group spans."""

    inside: int
    across: int


def ends(kind: str, payload: int, participants: int) -> Ends:
    """Return one device's input and output of a payload that the participants divide."""
    if kind == "all-gather":
        return Ends(payload // participants, payload)
    if kind == "reduce-scatter":
        return Ends(payload, payload // participants)
    return Ends(payload, payload)


def ring_send_bytes(kind: str, payload: int, participants: int) -> int:
    """Return what each device sends around a ring: (n - 1) / n of the payload, twice that for an all-reduce.

    An all-to-all sends every piece but its own straight to its owner, a permutation sends the payload.
    """
    if kind == "collective-permute":
        return payload
    once = payload // participants * (participants - 1)
    return 2 * once if kind == "all-reduce" else once


def tree_send_bytes(kind: str, payload: int, participants: int) -> int | None:
    """Return what each device sends in a tree, None where the participants are no power of two.

    All-reduce: a double binary tree, in which a device is a leaf of one tree and inside the other; each carries half
    of the payload up once and down twice, together twice the payload. All-gather and reduce-scatter: recursive
    doubling and halving, (n - 1) / n of the payload in log2 n steps.
    """
    if kind == "all-reduce" and participants > 1:
        return 2 * payload
    if kind in ("all-gather", "reduce-scatter") and participants & (participants - 1):
        return None
    return ring_send_bytes(kind, payload, participants)


def hierarchical_send_bytes(kind: str, payload: int, levels: Levels) -> tuple[int, int]:
    """Return what each device sends inside its node and between nodes, when a collective runs level by level.

    Of m participants in each of N nodes: a reduce-scatter scatters inside first and sends 1 / m of the payload between
    nodes, an all-gather is its reverse, an all-reduce is one after the other. An all-to-all sends each piece to its
    owner. Of a permutation the whole payload crosses where the group spans nodes.
    """
    inside, across = levels
    if kind == "collective-permute":
        return (0, payload) if across > 1 else (payload, 0)
    if kind == "all-to-all":
        piece = payload // (inside * across)
        return piece * (inside - 1), piece * inside * (across - 1)
    within = payload // inside * (inside - 1)
    between = payload // (inside * across) * (across - 1)
    return (2 * within, 2 * between) if kind == "all-reduce" else (within, between)


def levels(mesh: Sequence[tuple[str, int]], axes: Sequence[str], devices_per_node: int) -> Levels | None:
    """Return how the groups over some mesh axes lie on nodes of consecutive devices, None where groups differ.

    Devices are numbered row by row, the last mesh axis fastest.
    """
    sizes = [size for _, size in mesh]
    strides = [prod(sizes[i + 1 :]) for i in range(len(sizes))]
    chosen = [i for i, (name, _) in enumerate(mesh) if name in axes]
    rest = [i for i in range(len(sizes)) if i not in chosen]
    found = {
        _levels([base + offset for offset in _span(chosen, sizes, strides)], devices_per_node)
        for base in _span(rest, sizes, strides)
    }
    return found.pop() if len(found) == 1 else None


def _span(axes: Sequence[int], sizes: Sequence[int], strides: Sequence[int]) -> list[int]:
    ids = [0]
    for axis in axes:
        ids = [base + strides[axis] * i for base in ids for i in range(sizes[axis])]
    return ids


def _levels(members: Sequence[int], devices_per_node: int) -> Levels | None:
    counts: dict[int, int] = {}
    for member in members:
        counts[member // devices_per_node] = counts.get(member // devices_per_node, 0) + 1
    inside = set(counts.values())
    return Levels(inside.pop(), len(counts)) if len(inside) == 1 else None
