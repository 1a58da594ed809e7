"""A measurement joined with its prediction: what ran, how long it took, what held memory, and whether the two agree.

The bytes that arrays hold and the allocator's peak are rows, reconciled as a compiled program's are. Time has no
prediction; it has a bound that no step can beat, and utilisation, which says of which peak. What an instrument does not
see is null with the reason, and four instruments of memory (arrays, allocator, driver, process) stay four numbers.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from jaxcost.contracts.errors import RejectedError
from jaxcost.contracts.observation import Observation
from jaxcost.planning.expected import predicted_peak
from jaxcost.planning.hardware import Device, PeakRate, device
from jaxcost.planning.utilisation import Utilisation, hfu, mfu
from jaxcost.prediction.ledgers import Prediction
from jaxcost.reconciliation.rows import Finding, Interval, Report, Row

PERCENTILES = (50, 90, 95, 99)
FAMILIES = {"gpu": "cuda", "tpu": "tpu", "cpu": "cpu"}
WIDEST = Fraction(2, 5)  # of an interval around an expected peak, as for compiled programs


def percentile(samples: Sequence[int], percent: int) -> int:
    """Return the nearest-rank percentile: the smallest sample that at least `percent` % of them do not exceed."""
    ordered = sorted(samples)
    return ordered[max(math.ceil(len(ordered) * percent / 100), 1) - 1]


def join_measurement(prediction: Prediction, measured: Mapping[str, Any], peak_of: str | None = None) -> dict[str, Any]:
    """Return a measurement with its prediction: `time`, `memory`, `utilisation`, `report`, and `bundle`.

    Args:
        prediction: of the case that ran.
        measured: what `jaxcost.observation.measure.measure_case` returned.
        peak_of: the device of `hardware/` whose peak utilisation is of; None looks the measured device up by its name.

    Raises:
        RejectedError: `peak_of` is no recorded device.
    """
    named, unknown = _recorded(measured["hardware"], peak_of)
    time = _time(prediction, measured["raw"])
    ratios, reason = _utilisation(prediction, measured, time, named, unknown)
    rows = _memory_rows(prediction, measured)
    findings = _findings(ratios, measured)
    environment = {
        "family": "measured", "evidence_class": "locally_measured", "hardware": _hardware_text(measured["hardware"]),
        "versions": measured["framework"], "flags": measured["flags"], "artefacts": _artefacts(measured),
    }  # fmt: skip
    case = {**prediction.case.to_data(), "digest": prediction.case.digest}
    report = Report(case, measured["hardware"]["device_kind"], environment, tuple(rows), tuple(findings), "measured")
    utilisation: dict[str, Any] = {name: ratio.to_data() for name, ratio in ratios.items()}
    if reason:
        utilisation |= {"mfu": None, "hfu": None, "reason": reason}
    return {
        "time": time,
        "memory": _instruments(measured),
        "utilisation": utilisation,
        "report": report.to_dict(),
        "bundle": _bundle(measured),
    }


def is_inconsistent(joined: Mapping[str, Any]) -> bool:
    """Return whether a row is open, or a utilisation stands above one."""
    ratios = [joined["utilisation"].get(name) for name in ("mfu", "hfu")]
    above = any(ratio is not None and ratio["status"] == "inconsistent" for ratio in ratios)
    return above or joined["report"]["status"] in ("open", "rejected")


def _time(prediction: Prediction, raw: Mapping[str, Any]) -> dict[str, Any]:
    samples = raw["samples_ns"]
    work = prediction.case.workload
    median = percentile(samples, 50)
    return {
        "samples": len(samples),
        "warmup_steps": len(raw["warmup_ns"]),
        "first_step_ns": raw["warmup_ns"][0],
        "percentile_rule": "nearest rank, of steps waited for one by one",
        "minimum_ns": min(samples),
        "percentiles_ns": {f"p{percent}": percentile(samples, percent) for percent in PERCENTILES},
        "maximum_ns": max(samples),
        "window": {
            "steps": raw["window_steps"], "total_ns": raw["window_ns"],
            "step_ns": raw["window_ns"] // raw["window_steps"], "rule": "dispatched without waiting, waited for once",
        },
        "tokens_per_step": work.batch * work.new_tokens,
        "tokens_per_second": float(Fraction(work.batch * work.new_tokens * 10**9, median)),
    }  # fmt: skip


def _recorded(hardware: Mapping[str, Any], peak_of: str | None) -> tuple[Device | None, str]:
    """Return the recorded device a run was on, or why none is known."""
    if peak_of is not None:
        return device(peak_of), ""
    if hardware["platform"] == "cpu":
        return None, "no peak is recorded for a CPU; name a recorded device with --peak-of to assume one"
    kind = hardware["device_kind"]
    with contextlib.suppress(RejectedError):
        return device(kind), ""
    return None, f"no device of hardware/ goes by {kind!r}; name one with --peak-of"


def _utilisation(
    prediction: Prediction, measured: Mapping[str, Any], time: Mapping[str, Any], named: Device | None, unknown: str
) -> tuple[dict[str, Utilisation], str]:
    """Return MFU and HFU of the median step, or why they are unknown."""
    if named is None:
        return {}, unknown
    try:
        peak: PeakRate = named.peak(prediction.case.state.compute_dtype)
    except RejectedError as error:
        return {}, str(error.problems[0].rule)
    totals = prediction.ledgers["flops"].totals
    seconds = Fraction(time["percentiles_ns"]["p50"], 10**9)
    devices = measured["hardware"]["used"]
    convention = "one FMA = 2 FLOPs; matmuls; every query-key pair; median step waited for"
    model = totals["forward"] + totals["backward"]
    return {
        "mfu": mfu(model, seconds, devices, peak, convention),
        "hfu": hfu(totals["total"], seconds, devices, peak, convention),
    }, ""


def _memory_rows(prediction: Prediction, measured: Mapping[str, Any]) -> list[Row]:
    worst = "largest over the devices; the payload of array shards, without tile or allocator padding"
    rows = [
        Row(
            "argument_bytes", "", "", "bytes", prediction.value("device.argument_bytes"),
            max(measured["argument_bytes"]), reason=worst,
        ),
        Row(
            "output_bytes", "", "", "bytes", prediction.value("device.output_bytes"),
            max(measured["result_bytes"]), reason=worst,
        ),
    ]  # fmt: skip
    family = FAMILIES.get(measured["hardware"]["platform"], "")
    seen, reason = _allocator_peak(measured)
    peak: dict[str, Any] = (
        predicted_peak(prediction, family) if family else {"lower": 0, "upper": None, "reason": "unknown family"}
    )
    if peak.get("upper") is None:
        reason = "; ".join(part for part in (reason, peak.get("reason", "")) if part)
        rows.append(Row("peak_in_use_bytes", "", "", "bytes", None, seen, reason=reason))
    else:
        interval = Interval(
            peak["lower"], peak["upper"], expected=peak["expected"], maximum_width=WIDEST,
        )  # fmt: skip
        rows.append(Row("peak_in_use_bytes", "", "", "bytes", interval, seen, reason=reason))
    return rows


def _allocator_peak(measured: Mapping[str, Any]) -> tuple[int | None, str]:
    """Return the largest peak of the allocators that the step itself raised, or why it is unknown."""
    pairs = [(item["before"], item["after"]) for item in measured["allocator"]]
    if any(after["peak_in_use_bytes"] is None for _, after in pairs):
        return None, pairs[0][1].get("reason", "the allocator keeps no peak")
    before, after = max(pairs, key=lambda pair: pair[1]["peak_in_use_bytes"])
    if before["peak_in_use_bytes"] == after["peak_in_use_bytes"]:
        return None, (
            f"making the arguments peaked at {before['peak_in_use_bytes']:,} bytes and the step did not pass that: "
            "its own peak is at most as large"
        )
    return after["peak_in_use_bytes"], "the allocator's peak, rounding and library workspace included"


def _instruments(measured: Mapping[str, Any]) -> dict[str, Any]:
    """Return what each instrument of memory says, each with what it can see."""
    return {
        "arrays": {
            "argument_bytes": measured["argument_bytes"], "result_bytes": measured["result_bytes"],
            "sees": "shards of the step's arguments and results on each device, nothing in between",
        },
        "allocator": {
            "devices": measured["allocator"], "sees": "what jax's allocator handed out, since the process began",
        },
        "driver": {**measured["driver"], "sees": "all processes and contexts on the devices"},
        "process": {**measured["process"], "sees": "host memory of the measuring process, compiler and all"},
    }  # fmt: skip


def _findings(ratios: Mapping[str, Utilisation], measured: Mapping[str, Any]) -> list[Finding]:
    found = [Finding("utilisation above one", str(ratio)) for ratio in ratios.values() if not ratio.consistent]
    samples, windowed = measured["raw"]["samples_ns"], measured["raw"]["window_ns"] // measured["raw"]["window_steps"]
    spread = percentile(samples, 95) / percentile(samples, 50)
    if spread > 1.5:
        text = f"p95 is {spread:.2f} times the median: something else ran, or the steps are not alike"
        found.append(Finding("unsteady steps", text, (f"p50 {percentile(samples, 50):,} ns",)))
    median = percentile(samples, 50)
    if windowed < median * Fraction(9, 10):
        text = f"a step takes {windowed:,} ns in a window and {median:,} ns when waited for: the wait is host time"
        found.append(Finding("waiting costs", text))
    return found


def _hardware_text(hardware: Mapping[str, Any]) -> str:
    return f"{hardware['used']} x {hardware['name']} ({hardware['platform']}), {hardware['machine']}"


def _artefacts(measured: Mapping[str, Any]) -> list[str]:
    return [f"raw samples, sha256 {measured['raw_digest']}"]


def _bundle(measured: Mapping[str, Any]) -> dict[str, Any]:
    """Return the measurement as a bundle that `jaxcost verify --observation` reads."""
    sees = "shards of real arrays on the fullest device"
    counters = [
        {"counter": f"device.{ours}", "value": max(measured[theirs]), "unit": "bytes", "visibility": sees}
        for ours, theirs in (("argument_bytes", "argument_bytes"), ("output_bytes", "result_bytes"))
    ]
    data: dict[str, Any] = {
        "schema": "jaxcost.observation.v1",
        "evidence_class": "locally_measured",
        "producer": "jaxcost measure",
        "target": measured["hardware"]["device_kind"],
        "versions": dict(measured["framework"]),
        "flags": dict(measured["flags"]),
        "hardware": _hardware_text(measured["hardware"]),
        "framework": f"jax {measured['framework']['jax']}, jaxlib {measured['framework']['jaxlib']}",
        "artefacts": _artefacts(measured),
        "counters": counters,
    }
    Observation.from_data(data, "bundle")
    return data
