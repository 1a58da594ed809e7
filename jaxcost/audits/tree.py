"""Trees of costs as plain data: a list of nodes, each after its parent, with what lies in it and below it.

    {"parent": 3, "name": "attn", "kind": "scope", "total": {"flops": 12}, "own": {}}

`total` includes the nodes below, `own` does not. A column that is absent is 0. What is known in part is an interval,
{"minimum", "maximum"}; its maximum is None where something in it is unknown, and its minimum is then what is counted.
Nothing here recurses, so depth is no matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

COLUMNS = ("flops", "bytes", "peak_bytes", "collective_bytes")
ITSELF = "(itself)"
UNITS = {"flops": "FLOPs", "bytes": "bytes", "peak_bytes": "bytes", "collective_bytes": "bytes"}

Value = int | dict[str, int | None]
Node = dict[str, Any]


def some(number: int, what: str) -> str:
    """Return `1 result`, `1,200 results`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def least(value: Value) -> int:
    """The smallest that a value can be: what is certainly there."""
    return (value["minimum"] or 0) if isinstance(value, dict) else value


def most(value: Value) -> int | None:
    """The largest that a value can be; None where that is unknown."""
    return value["maximum"] if isinstance(value, dict) else value


def added(values: Iterable[Value]) -> Value:
    """The sum of values: an interval where one is, without an upper end where one has none."""
    low, high = 0, 0
    bounded = True
    for value in values:
        low += least(value)
        upper = most(value)
        bounded = bounded and upper is not None
        high += upper or 0
    if not bounded:
        return {"minimum": low, "maximum": None}
    return low if low == high else {"minimum": low, "maximum": high}


def unbounded(value: Any) -> Value:
    """A value of a document in which None is unknown, as one in which it is an interval without an upper end."""
    found: Value = {"minimum": 0, "maximum": None} if value is None else value
    return found


def payload(row: Mapping[str, Any]) -> Value:
    """Return the bytes of the whole array that a collective moves, trips included."""
    sides = [unbounded(row.get("total_operand_bytes")), unbounded(row.get("total_result_bytes"))]
    if any(most(side) is None for side in sides):
        return {"minimum": 0, "maximum": None}
    return max(sides, key=lambda side: most(side) or 0)


def children_of(nodes: Sequence[Mapping[str, Any]]) -> list[list[int]]:
    """The numbers of the nodes directly below each node."""
    below: list[list[int]] = [[] for _ in nodes]
    for number, node in enumerate(nodes):
        if node["parent"] is not None:
            below[node["parent"]].append(number)
    return below


def itself(nodes: Sequence[Mapping[str, Any]]) -> list[Node]:
    """The tree with what is a node's own as one of its children, so that the children of each node add up to it."""
    made: list[Node] = [dict(node) for node in nodes]
    for number, below in enumerate(children_of(nodes)):
        own = {column: value for column, value in nodes[number]["own"].items() if value != 0}
        if below and own:
            made[number]["own"] = {}
            made.append({"parent": number, "name": ITSELF, "kind": "smaller", "total": own, "own": dict(own)})
    return made


def share(node: Mapping[str, Any], root: Mapping[str, Any]) -> float:
    """The largest part of the root's total in any column that a node holds; 1 where it holds something unknown."""
    found = 0.0
    for column, value in node["total"].items():
        amount, whole = most(value), root["total"].get(column, 0)
        if amount is None:
            return 1.0
        size = most(whole) or least(whole)
        if size:
            found = max(found, min(1.0, amount / size))
    return found


def folded(nodes: Sequence[Node], keep: int, smallest: float = 0.0) -> list[Node]:
    """The tree with at most `keep` of its largest nodes, none with a share below `smallest`.

    What is left out below a node becomes one node of kind `smaller`, `(12 smaller)`, so that every sum holds. A node is
    left out with all that is below it. Those nodes come on top of `keep`.
    """
    if not nodes:
        return []
    shares = [share(node, nodes[0]) for node in nodes]
    if len(nodes) <= keep and min(shares) >= smallest:
        return [dict(node) for node in nodes]
    ranked = sorted(range(1, len(nodes)), key=lambda i: (-shares[i], i))[: max(0, keep - 1)]
    wanted = {0, *(i for i in ranked if shares[i] >= smallest)}
    number: dict[int, int] = {}
    made: list[Node] = []
    dropped: dict[int, list[int]] = {}
    for i, node in enumerate(nodes):
        parent = node["parent"]
        if i in wanted and (parent is None or parent in number):
            number[i] = len(made)
            made.append({**node, "parent": None if parent is None else number[parent]})
        elif parent in number:
            dropped.setdefault(parent, []).append(i)
    for parent, group in dropped.items():
        sums = {
            column: value
            for column in COLUMNS
            if (value := added(nodes[i]["total"].get(column, 0) for i in group)) != 0
        }
        name = f"({len(group):,} smaller)"
        made.append({"parent": number[parent], "name": name, "kind": "smaller", "total": sums, "own": dict(sums)})
    return made


def paths(nodes: Sequence[Mapping[str, Any]], most_deep: int = 256) -> list[tuple[int, ...]]:
    """Of each node the numbers from below the root down to it, itself included; at most `most_deep` of them."""
    found: list[tuple[int, ...]] = []
    for number, node in enumerate(nodes):
        above = () if node["parent"] is None else found[node["parent"]]
        found.append(above if node["parent"] is None or len(above) >= most_deep else (*above, number))
    return found
