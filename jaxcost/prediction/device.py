"""What one device holds of a step: its arguments, its results, and the live peak a compiler is expected to plan.

The peak depends on the compiler, so there is one per family of targets; with no target named it is that of
`DEFAULT_FAMILY`. Where no materialisation policy covers a case only its lower end is known: the arguments, which are
alive throughout.
"""

from __future__ import annotations

from typing import Any

from jaxcost.prediction.domain import is_formula
from jaxcost.prediction.ownership import arguments, results
from jaxcost.prediction.peak import Unpredicted, predict_peak
from jaxcost.prediction.program import Program
from jaxcost.prediction.rows import Ledger, Row

FAMILIES = ("cuda", "tpu", "cpu")
DEFAULT_FAMILY = "cuda"


def device(program: Program) -> Ledger:
    """Return per-device bytes of the step's arguments, results and live peak on the worst device.

    `peak_bytes` is that of `DEFAULT_FAMILY`, `peak_bytes_by_family` has all; each with the name of its policy, or with
    the reason why none covers the case.
    """
    incoming = arguments(program)
    outgoing = results(program, incoming)
    rows = tuple(
        Row(
            item.object,
            item.scope,
            kind,
            item.bytes,
            "bytes",
            {
                "role": item.role,
                "dtype": item.dtype,
                "elements": item.elements,
                "copies": item.copies,
                "placement": "host" if item.host else "device",
                "created": "before the step" if kind == "argument" else "by the step",
                "released": "with the step, or taken over by a result" if kind == "argument" else "by the caller",
                "padding": item.padding,
            },
            "worst device",
            "allocator padding",
            per_device=item.per_device,
        )
        for kind, items in (("argument", incoming), ("result", outgoing))
        for item in items
    )
    argument = sum(item.per_device for item in incoming)
    totals: dict[str, Any] = {
        "argument_bytes": argument,
        "output_bytes": sum(item.per_device for item in outgoing),
        "state_bytes": sum(item.per_device for item in incoming if item.role != "input"),
        "input_bytes": sum(item.per_device for item in incoming if item.role == "input"),
    }
    peaks, reasons = {}, {}
    for family in FAMILIES:
        peaks[family], reason = _peak(program, family, argument)
        if reason:
            reasons[f"peak_bytes_by_family.{family}.expected"] = reason
            if family == DEFAULT_FAMILY:
                reasons["peak_bytes.expected"] = reason
    totals["peak_bytes"] = dict(peaks[DEFAULT_FAMILY])
    totals["peak_bytes_by_family"] = peaks
    return Ledger("device", totals, rows, reasons)


def _peak(program: Program, family: str, argument: Any) -> tuple[dict[str, Any], str]:
    """Return the interval of one family with what it rests on, and why its ends are unknown."""
    unknown = {"lower": argument, "expected": None, "upper": None, "at": None, "policy": None}
    if is_formula(program.sizes.axis("b"), program.sizes.axis("s")):
        return unknown, "a largest cut is a choice between sizes, which symbols do not have"
    found = predict_peak(program, family)
    if isinstance(found, Unpredicted):
        return unknown, found.reason
    return {
        "lower": found.lower,
        "expected": found.expected,
        "upper": found.upper,
        "at": found.at,
        "policy": found.policy,
    }, ""
