"""The changes that would lower the peak most, each with the bytes it would save and how that was derived (`replay`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jaxcost.audits.blocks import undone, waiting
from jaxcost.audits.changes import changes
from jaxcost.audits.donation import Possible
from jaxcost.audits.evidence import Evidence, Notes
from jaxcost.audits.replay import Replay

MOST = 10
_SHARE = 1000  # a saving below a thousandth of the peak is not shown


def savings(
    evidence: Evidence, possible: Mapping[str, list[Possible]], given: Sequence[Mapping[str, Any]] = (),
    notes: Notes | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Return the changes that would lower the peak most, at most ten, the largest first. `given` are the rows of the
    section on donation.

    Each is taken alone: two of them together save what a replay of both would say, not the sum.
    """
    replay = Replay.of(evidence)
    if replay is None:
        reason = evidence.reading.memory.reasons.get("live_peak_bytes", "the heap trace does not give the peak")
        return {"peak_bytes": evidence.reading.memory.live_peak_bytes, "rows": [], "reason": reason}
    before = replay.peak()
    if notes is not None:
        _on_checkpoints(replay, notes)
    rows: list[dict[str, Any]] = []
    for change in changes(replay, possible, given):
        after = replay.peak(change.edits, change.resident)
        saved = before - after
        least = None
        if change.costs is not None:
            least = max(0, before - replay.peak((*change.edits, *change.costs), change.resident + change.resident_cost))
        if saved <= 0 or saved * _SHARE < before:
            continue
        rows.append({
            "kind": change.kind, "target": change.target, "action": change.action, "saves_bytes": saved,
            "at_least_bytes": saved if change.bound == "exact" else least, "peak_after_bytes": after,
            "bound": change.bound, "evidence": "derived", "derivation": change.derivation,
            "assumptions": list(change.assumptions),
        })  # fmt: skip
    rows.sort(key=lambda row: (-row["saves_bytes"], row["kind"], row["target"]))
    once = {(row["kind"], row["target"]): row for row in reversed(rows)}
    rows = [row for row in rows if once[row["kind"], row["target"]] is row]
    return {"peak_bytes": before, "rows": rows[:MOST], "reason": None}


def _on_checkpoints(replay: Replay, notes: Notes) -> None:
    """A checkpoint that lowers nothing, and why none is proposed where it would be undone."""
    kept, peak = undone(replay), replay.peak()
    if kept * _SHARE >= peak * 10:
        text = (
            f"{kept:,} bytes that a checkpoint makes again lie in memory since before the backward pass: the compiler "
            "merged the recomputation with what it repeats, and the checkpoint lowers nothing here"
        )
        notes.find("checkpoint", text, bytes=kept)
    saved = waiting(replay)
    if replay.evidence.undoes_checkpoints and saved * 10 >= peak:
        text = (
            f"{saved:,} bytes outside loops wait for the backward pass at the peak; no checkpoint is proposed for "
            "them, as the CPU compiler of jaxlib 0.10 undoes one in straight-line code: audit for the device it is to "
            "run on"
        )
        notes.find("checkpoint", text, bytes=saved)
