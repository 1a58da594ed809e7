"""The live peak: its interval against what was compiled, class by class, and whether XLA would recompute.

`live_peak_bytes` is the row that decides: bounded when the compiled peak lies in the predicted interval, open when it
does not or when the interval is wider than 40% of the expected value. What the peak is made of
(`live_peak_bytes.CLASS`) and the fullest moment of each part of the step (`moment_bytes`) stand below it with a
verdict, `holds` or `differs`, and decide nothing: two wrong classes may make a right sum, and this shows it.

`required_bytes` is the live peak and the gaps between buffers. How a compiler packs them is not predicted, so it and
`fragmentation_bytes` stay unmeasured, beside the live peak and apart from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from jaxcost.observation.hlo.classes import WORKSPACE
from jaxcost.observation.hlo.kinds import SCRATCH
from jaxcost.observation.observed import Observed
from jaxcost.prediction.ledgers import Prediction
from jaxcost.prediction.peak import PeakPrediction, Unpredicted, predict_peak
from jaxcost.prediction.rematerialisation import Onset, onset
from jaxcost.reconciliation.rows import Explanation, Interval, Row
from jaxcost.reconciliation.storage import donated_bytes

MAXIMUM_WIDTH = Fraction(2, 5)
PACKING = "how buffers are packed follows from no declaration: gaps between them are not predicted"
# The part of a step (an observation's moment) that a predicted moment of this phase lies in.
PARTS = {"forward": "forward", "loss": "between", "between": "between", "backward": "backward", "optimizer": "after",
         "after": "after", "before": "before"}  # fmt: skip
Span = tuple[int, int, int]


def peak_rows(prediction: Prediction, observed: Observed) -> list[Row]:
    """Compare the fullest moment of one device, and list what lies beside it."""
    memory = observed.memory
    found = predict_peak(prediction.program, str(observed.data["target"]["family"]))
    rows = [_live(found, memory), *_sizes(memory)]
    if isinstance(found, PeakPrediction):
        rows += [*_classes(found, memory), *_moments(found, memory)]
    return rows + _onset(prediction, observed, found)


def _live(found: PeakPrediction | Unpredicted, memory: Mapping[str, Any]) -> Row:
    seen = memory["live_peak_bytes"]
    if isinstance(found, Unpredicted):
        reason = memory["reasons"].get("live_peak_bytes", found.reason)
        return Row("live_peak_bytes", "", "", "bytes", None, seen, reason=reason)
    interval = Interval(found.lower, found.upper, expected=found.expected, maximum_width=MAXIMUM_WIDTH)
    reason = f"{found.policy}: fullest at {found.at}"
    if memory.get("moments"):
        fullest = max(memory["moments"], key=lambda moment: moment["bytes"])
        reason += f"; compiled: {fullest['name']}, at {memory['peak_instruction']}"
    if memory.get("unclassified_bytes"):
        reason += f"; {memory['unclassified_bytes']} bytes of no known class"
    if interval.too_wide:
        reason += f"; the interval is wider than {MAXIMUM_WIDTH} of what is expected"
    why = memory["reasons"].get("live_peak_bytes", reason)
    return Row("live_peak_bytes", "", "", "bytes", interval, seen, _scratch(memory), why)


def _scratch(memory: Mapping[str, Any]) -> tuple[Explanation, ...]:
    """Explain what a library asks for: as large as it likes, whatever the shapes, and known from the module alone."""
    found = [row for row in memory.get("at_peak", ()) if row.get("why") == SCRATCH]
    if not found:
        return ()
    names = ", ".join(f"{row['value']} {row['shape']}" for row in found[:4])
    total = sum(row["bytes"] for row in found)
    return (Explanation(total, "scratch space of library calls", f"live at the peak: {names}"),)


def _sizes(memory: Mapping[str, Any]) -> list[Row]:
    return [
        Row(name, "", "", "bytes", None, memory[name], reason=memory["reasons"].get(name, PACKING))
        for name in ("fragmentation_bytes", "required_bytes")
    ]


def _judged(
    counter: str, phase: str, span: Span, seen: int | None, reason: str, explained: tuple[Explanation, ...] = ()
) -> Row:
    """A row that says whether a part agrees and does not decide a report."""
    lower, expected, upper = span
    interval = Interval(lower, upper, expected=expected)
    apart = sum(item.amount for item in explained)
    verdict = "holds" if seen is not None and interval.holds(seen - apart) else "differs"
    prediction = expected if lower == upper else interval
    return Row(counter, "", phase, "bytes", prediction, seen, explained, reason, verdict)


def _classes(found: PeakPrediction, memory: Mapping[str, Any]) -> list[Row]:
    seen = memory.get("by_class_at_peak")
    if seen is None:
        return []
    spans: dict[str, Span] = {}
    for item in found.peak.held:
        lower, expected, upper = spans.get(item.kind, (0, 0, 0))
        spans[item.kind] = (lower + item.bytes.lower, expected + item.bytes.expected, upper + item.bytes.upper)
    return [
        _judged(
            f"live_peak_bytes.{name}",
            "",
            spans.get(name, (0, 0, 0)),
            size,
            f"at {found.at}, and as compiled",
            _scratch(memory) if name == WORKSPACE else (),
        )
        for name, size in seen.items()
        if size or name in spans
    ]


def _moments(found: PeakPrediction, memory: Mapping[str, Any]) -> list[Row]:
    """The fullest moment of each part of the step that both witnesses know."""
    rows = []
    for seen in memory.get("moments") or ():
        spans = [m.bytes for m in found.moments if PARTS.get(m.phase) == seen["name"]]
        if spans:
            span = (
                max(s.lower for s in spans), max(s.expected for s in spans), max(s.upper for s in spans),
            )  # fmt: skip
            reason = f"compiled: at {seen['instruction']}"
            rows.append(_judged("moment_bytes", seen["name"], span, seen["bytes"], reason))
    return rows


def _onset(prediction: Prediction, observed: Observed, found: PeakPrediction | Unpredicted) -> list[Row]:
    """Whether XLA, left to itself, recomputes: by the predicted peak, and by a second compile where one was made."""
    device = observed.data["target"]["device_memory_bytes"]
    section = observed.data["rematerialisation"] or {}
    if device is None or observed.data["target"]["family"] == "cpu":
        return []
    expected: Onset | None = None
    if isinstance(found, PeakPrediction):
        totals = prediction.ledgers["device"].totals
        expected = onset(
            str(observed.data["target"]["family"]), device, arguments=totals["argument_bytes"],
            results=totals["output_bytes"], aliased=donated_bytes(prediction), lower=found.lower, upper=found.upper,
        )  # fmt: skip
    second = section.get("second_compile")
    seen = None
    if second is not None and second["remat_instructions"] is not None:
        seen = int(second["remat_instructions"] > 0)
    starts = expected.starts if expected is not None else None
    reason = expected.reason if expected is not None else "when it would begin is not predicted here"
    verdict = "" if seen is not None and starts is not None else "no second compile" if seen is None else "uncertain"
    predicted = None if starts is None else int(starts)
    explained: tuple[Explanation, ...] = ()
    return [Row("xla_rematerialisation.onset", "", "", "programs", predicted, seen, explained, reason, verdict)]
