"""What a table and a page say of an audit alike: its headline, sums of its lists, the order of what it found.

Read from the document that --json prints. A section that is absent, or of a form not known here, gives no row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from jaxcost.audits.tree import COLUMNS, Value, added, children_of, most, paths, payload, share, unbounded

REST = "(everything else)"
MEMORY = {
    "required_bytes": "required: all allocations in device memory",
    "live_peak_bytes": "live peak: in use at the fullest moment",
    "fragmentation_bytes": "gaps between allocations",
    "argument_bytes": "arguments",
    "output_bytes": "results",
    "alias_bytes": "of these, in the memory of donated arguments",
    "constant_bytes": "constants",
    "temp_bytes": "temporaries, gaps included",
}
DETAILS = {
    "by_space": "by memory space", "pruned": "arguments the program does not use", "constants": "captured constants",
    "padding": "padding of tiles", "packing": "packed types", "host": "host memory", "loop_copies": "copies in loops",
    "twice": "held twice", "rematerialisation": "what XLA's own rematerialisation does", "moments": "parts of the step",
    "by_source": "at the peak, by source line",
}  # fmt: skip


RESIDENT_DEPTH = 2  # of the short tree: arguments by class, not by path


class Collective(NamedTuple):
    """Transfers of one kind over the same axes and links, trips included.

    `bytes` is the whole array that moves, `wire` what one device sends by the convention stated in the document. `link`
    says whether the group stays inside a node or a slice; '' where the target has one.
    """

    kind: str
    axes: str
    group: int
    link: str
    rows: int
    executions: Value
    bytes: Value
    wire: Value


def rows_of(value: Any) -> list[Mapping[str, Any]]:
    """Return the rows of a list of tables; of a table with `rows`, those; of anything else, none."""
    if isinstance(value, Mapping):
        value = value.get("rows")
    return [row for row in value if isinstance(row, Mapping)] if isinstance(value, Sequence) else []


def table_of(value: Any) -> Mapping[str, Any]:
    """Return a table, or an empty one."""
    return value if isinstance(value, Mapping) else {}


def title(document: Mapping[str, Any]) -> str:
    """Return the name of the program and what it was compiled for."""
    program = document["program"]
    target = table_of(program.get("target")).get("text") or program["platform"]
    return f"{program['name'] or program['module']} on {target}"


def facts(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what the numbers rest on, as (name, value)."""
    program = document["program"]
    target = table_of(program.get("target"))
    mesh = ", ".join(f"{axis}={size}" for axis, size in table_of(program.get("mesh")).items())
    environment = table_of(program.get("environment"))
    versions = ", ".join(f"{name} {version}" for name, version in table_of(environment.get("versions")).items())
    found = [
        ("device", target.get("description", "")), ("devices", f"{program['device_count']:,}"), ("mesh", mesh),
        ("origin", program["origin"]), ("module", program["module"]), ("instructions", f"{program['instructions']:,}"),
        ("versions", versions), ("digest", str(program["digest"])[:16]),
    ]  # fmt: skip
    return [(name, str(value)) for name, value in found if value]


def headline(document: Mapping[str, Any]) -> list[tuple[str, Value | None, str]]:
    """Return the numbers to know first, as (name, value, unit); None is unknown."""
    flops, memory = document["flops"], document["memory"]
    columns = table_of(table_of(document.get("attribution")).get("columns"))

    def column(name: str) -> Value | None:
        found = table_of(columns.get(name))
        if found.get("total") is None and found.get("minimum"):
            return {"minimum": found["minimum"], "maximum": None}
        value: Value | None = found.get("total")
        return value

    total = flops["total"]
    if total is None and flops.get("minimum"):
        total = {"minimum": flops["minimum"], "maximum": None}
    return [
        ("FLOPs", total, "FLOPs"),
        ("bytes moved", column("bytes"), "bytes"),
        ("required memory", memory.get("required_bytes"), "bytes"),
        ("live peak", memory.get("live_peak_bytes"), "bytes"),
        ("collectives, payload", column("collective_bytes"), "bytes"),
    ]


def donated(section: Mapping[str, Any], said: Callable[[Any], str]) -> str:
    """Return the sentence on donation; `said` writes a number of bytes."""
    used, vain, possible = (section.get(f"{name}_bytes") for name in ("used", "in_vain", "possible"))
    lost = "what was donated in vain is not known" if vain is None else f"{said(vain)} were donated in vain"
    return f"{said(used)} of results take over an argument, {lost}, {said(possible)} more could be donated"


def collectives(document: Mapping[str, Any]) -> list[Collective]:
    """Return the collectives by kind and axes, those that move most first."""
    groups: dict[tuple[str, str, int, str], list[Mapping[str, Any]]] = {}
    for row in rows_of(document.get("collectives")):
        axes = ", ".join(row["axes"]) if row.get("axes") else str(row.get("layout") or "unnamed")
        key = (str(row["kind"]), axes, int(row.get("group_size") or 0), str(row.get("link") or ""))
        groups.setdefault(key, []).append(row)
    found = [
        Collective(
            *key, len(rows), added(unbounded(row.get("executions")) for row in rows), added(map(payload, rows)),
            added(unbounded(row.get("total_wire_bytes")) for row in rows),
        )
        for key, rows in groups.items()
    ]  # fmt: skip
    return sorted(found, key=lambda row: (-(most(row.bytes) or 0), row.kind, row.axes))


def largest(
    document: Mapping[str, Any], tree: str, least_share: float, rows: int
) -> list[tuple[int, Mapping[str, Any]]]:
    """Return the top of a tree in the order of a walk, as (depth, node): those with the largest share of a column.

    What is left out below a node is one row, so that what stands below it adds up.
    """
    nodes = document["attribution"].get(tree)
    if not nodes:
        return []
    way = paths(nodes)
    shown = (i for i, node in enumerate(nodes) if node["kind"] != "resident" or len(way[i]) <= RESIDENT_DEPTH)
    ranked = sorted(shown, key=lambda i: (-share(nodes[i], nodes[0]), len(way[i]), i))
    wanted = {i for i in ranked[:rows] if share(nodes[i], nodes[0]) >= least_share}
    wanted = {i for i in wanted if all(j in wanted for j in way[i])}
    size = [most(node["total"].get("flops", 0)) or 0 for node in nodes]

    def order(i: int) -> list[tuple[int, int]]:
        return [(-size[j], j) for j in way[i]]

    found = [(order(i), len(way[i]), nodes[i]) for i in wanted]
    for i, below in enumerate(children_of(nodes)):
        if i in wanted and any(j in wanted for j in below):
            rest = _rest([nodes[i]["own"], *(nodes[j]["total"] for j in below if j not in wanted)])
            if rest["total"]:
                found.append(([*order(i), (1, 0)], len(way[i]) + 1, rest))
    return [(depth, node) for _, depth, node in sorted(found, key=lambda row: row[0])]


def lines(document: Mapping[str, Any], rows: int | None) -> list[Mapping[str, Any]]:
    """Return the largest source lines, and in one row everything else, so that the columns add up to the program's."""
    listed, calls = (rows_of(document["attribution"].get(name)) for name in ("lines", "calls"))
    every = [row for row in listed if row.get("line")]
    if not every:
        return []
    shown = every[:rows]
    left = [row["total"] for row in listed if not row.get("line")]
    apart = [n["total"] for n in calls if n["parent"] == 0 and n["kind"] in ("none", "resident")]
    rest = _rest([*(row["total"] for row in every[len(shown) :]), *left, *apart])
    return [*shown, *([rest] if rest["total"] else [])]


def _rest(amounts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    total = {column: added(one.get(column, 0) for one in amounts) for column in COLUMNS}
    return {"name": REST, "kind": "rest", "total": {column: value for column, value in total.items() if value != 0}}


def unnamed(document: Mapping[str, Any]) -> bool:
    """Return whether most FLOPs have no scope of their own, so that the arguments tell more."""
    found = table_of(table_of(document["attribution"].get("columns")).get("flops"))
    whole, without = most(unbounded(found.get("total"))), most(unbounded(found.get("no_scope")))
    return whole is None or without is None or 2 * without > whole


def trips(row: Mapping[str, Any]) -> Any:
    """Return the trips of a loop: an integer, what bounds it, or None."""
    found = row.get("trips")
    return {"minimum": row["minimum"], "maximum": None} if found is None and row.get("minimum") else found


def place(row: Mapping[str, Any]) -> str:
    """Return where a row belongs: its scope and phase, failing that its source or its name."""
    parts = [str(row[key]) for key in ("scope", "phase") if row.get(key)]
    return ", ".join(parts) or str(row.get("op_name") or row.get("source") or row.get("where") or "")


def compared(row: Mapping[str, Any]) -> str:
    """Return where two counts are compared: a place, or what encloses several."""
    return place(row) or ("the whole program" if row.get("places") else "no scope")


def why(row: Mapping[str, Any]) -> str:
    """Return why a place's counts differ: its reasons, each with how often it was found, failing those its note."""
    found = []
    for reason in rows_of(row.get("reasons")):
        times = int(reason.get("count") or 1)
        found.append(f"{times:,} times: {reason.get('text', '')}" if times > 1 else str(reason.get("text", "")))
    return "; ".join([*found, *([str(row["reason"])] if row.get("reason") else [])])


def empty(value: Any) -> bool:
    """Return whether a section holds nothing but zeros, nothing and emptiness."""
    if isinstance(value, Mapping):
        return all(empty(item) for item in value.values())
    return not value
