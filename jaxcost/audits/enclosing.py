"""Places that agree only together: the compiler merged products of several scopes, or gave them another name.

Where a place alone has FLOPs too many and another too few, they are compared in the smallest scope around both in which
nothing is left: of one phase first, then of all. That is a comparison, not a reason: it says that the sums agree there
and claims nothing of the places below. Whatever no scope closes stays unexplained where it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_EVIDENCE = 8


def enclosed(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows of places with those that agree only together as one, which lists them in `places`."""
    open_ = [row for row in rows if row["unexplained"]]
    closed: dict[int, dict[str, Any]] = {}  # id of a row -> the row it is part of
    made: list[dict[str, Any]] = []
    for scope in sorted({s for row in open_ for s in _around(row["scope"])}, key=lambda s: (-len(_parts(s)), s)):
        below = [row for row in open_ if id(row) not in closed and _inside(row["scope"], scope)]
        for phase in (*sorted({row["phase"] for row in below}), ""):
            group = [row for row in below if id(row) not in closed and phase in ("", row["phase"])]
            if len(group) > 1 and sum(row["unexplained"] for row in group) == 0:
                made.append(_together(scope, phase, group))
                closed.update({id(row): made[-1] for row in group})
    kept = [row for row in rows if id(row) not in closed]
    return sorted([*kept, *made], key=lambda row: (row["scope"], row["phase"]))


def _parts(scope: str) -> tuple[str, ...]:
    return tuple(scope.split("/")) if scope else ()


def _around(scope: str) -> Iterable[str]:
    parts = _parts(scope)
    return ("/".join(parts[:depth]) for depth in range(len(parts) + 1))


def _inside(scope: str, outer: str) -> bool:
    return not outer or scope == outer or scope.startswith(outer + "/")


def _together(scope: str, phase: str, group: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    reasons = listed(reason for row in group for reason in row["reasons"])
    columns = {name: sum(row[name] for row in group) for name in ("jaxpr", "compiled", "difference", "unexplained")}
    return {
        "scope": scope, "phase": phase, **columns, "reasons": reasons,
        "reason": f"named differently by the compiler: the sums of {len(group)} places agree",
        "places": [
            {name: row[name] for name in ("scope", "phase", "jaxpr", "compiled", "difference")} for row in group
        ],
    }  # fmt: skip


def listed(reasons: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return reasons in JSON: those that say the same are one, with how many they are (`count`)."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for reason in reasons:
        key = (reason["kind"], reason["text"])
        row = found.setdefault(key, {"kind": key[0], "flops": 0, "text": key[1], "count": 0, "evidence": []})
        row["flops"] += reason["flops"]
        row["count"] += reason["count"]
        row["evidence"] = list(dict.fromkeys((*row["evidence"], *reason["evidence"])))[:_EVIDENCE]
    return list(found.values())
