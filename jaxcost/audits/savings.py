"""The changes that would lower the peak most, each with the bytes it would save and how that was derived (`replay`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jaxcost.audits.changes import changes
from jaxcost.audits.donation import Possible
from jaxcost.audits.evidence import Evidence
from jaxcost.audits.replay import Replay

MOST = 10
_SHARE = 1000  # a saving below a thousandth of the peak is not shown


def savings(
    evidence: Evidence, possible: Mapping[str, list[Possible]], given: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """Return the changes that would lower the peak most, at most ten, the largest first. `given` are the rows of the
    section on donation.

    Each is taken alone: two of them together save what a replay of both would say, not the sum.
    """
    replay = Replay.of(evidence)
    if replay is None:
        reason = evidence.reading.memory.reasons.get("live_peak_bytes", "the heap trace does not give the peak")
        return {"peak_bytes": evidence.reading.memory.live_peak_bytes, "rows": [], "reason": reason}
    before = replay.peak()
    rows: list[dict[str, Any]] = []
    for change in changes(replay, possible, given):
        after = replay.peak(change.edits, change.resident)
        saved = before - after
        least = None
        if change.costs is not None:
            least = max(0, before - replay.peak((*change.edits, *change.costs), change.resident + change.resident_cost))
        if saved <= 0 or saved * _SHARE < before:
            continue
        expected = saved if change.bound == "exact" else None
        if change.likely is not None:
            edits, more = change.likely
            expected = max(0, before - replay.peak((*change.edits, *edits), change.resident + more))
        rows.append({
            "kind": change.kind, "target": change.target, "action": change.action, "saves_bytes": saved,
            "at_least_bytes": saved if change.bound == "exact" else least, "expected_bytes": expected,
            "peak_after_bytes": after,
            "bound": change.bound, "evidence": "derived", "derivation": change.derivation,
            "assumptions": list(change.assumptions),
        })  # fmt: skip
    rows.sort(key=lambda row: (-row["saves_bytes"], row["kind"], row["target"]))
    once = {(row["kind"], row["target"]): row for row in reversed(rows)}
    rows = [row for row in rows if once[row["kind"], row["target"]] is row]
    return {"peak_bytes": before, "rows": rows[:MOST], "reason": None}
