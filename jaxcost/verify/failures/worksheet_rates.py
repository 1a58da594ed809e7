"""A resource plan that is wrong about rates: peaks, utilisation, paths and queues of the second document.

Rows `worksheet/...` are of its closing list, rows `caveat/...` are warnings in passing.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from jaxcost.planning.hardware import Link, Memory, PeakRate, device
from jaxcost.planning.machine import machine
from jaxcost.planning.queue import Flow, Stay, in_flight
from jaxcost.planning.steptime import StepTime, step_time
from jaxcost.planning.utilisation import (
    Rate,
    agree,
    calendar_progress,
    calendar_seconds,
    mfu,
    of_rate,
    rate,
    useful_rate,
)
from jaxcost.planning.work import work
from jaxcost.prediction.program import program
from jaxcost.verify.failures.common import Failure, judged, rejected
from jaxcost.verify.failures.guards import Guard, any_text
from jaxcost.verify.failures.subjects import train

PEAKS = "planning.hardware, the peak of a matmul"
RATES = "planning.utilisation, what a rate contains"
QUEUES = "planning.queue, Little's law"


def _peak() -> PeakRate:
    return device("h100").peak("bf16")


def _healthy() -> Rate:
    return useful_rate(_peak(), 256, 0.40)


def _measured() -> Rate:
    """A rate measured over healthy steps of a run that recomputes its blocks."""
    return rate(10**17, "model", "total", includes=("utilisation", "recomputation"))


def _timed(mesh: dict[str, int], shape: str) -> StepTime:
    case = train(batch=32, mesh=mesh)
    return step_time(program(case), machine(f"h100:{shape}", case))


def _held(share: Fraction) -> str:
    """The verdict on a measured time: so many times the time at full overlap."""
    found = _timed({"fsdp": 2}, "2")
    bound = found.seconds("full_overlap")
    assert bound is not None
    return str(found.measured(share * bound)["status"])


def _link(per_direction: int) -> Link:
    data = {"name": "NVLink 4", "reach": "node", "topology": "switch", "bidirectional_gb_per_s": 900}
    return Link.from_data({**data, "per_direction_gb_per_s": per_direction}, "link")


def _memory(unit: str) -> Memory:
    data = {"capacity": 80, "unit": unit, "type": "HBM3", "bandwidth_gb_per_s": 3350}
    return Memory.from_data(data, "memory")


def _always(answer: Any) -> Any:
    """A removal: a property that gives one answer, whatever it is asked about."""
    return lambda original: property(lambda self: answer)


def _free(original: Any) -> Any:
    """A removal: a path of unknown rate takes no time."""
    return lambda wire, size, beside=0: original(wire, size, beside) or Fraction(0)


def failures() -> list[Failure]:
    """Return the rows about rates."""
    return [
        rejected(
            "worksheet/1",
            "the peak with structured sparsity is taken for a dense matmul",
            "the ceiling doubles and utilisation halves",
            PEAKS,
            sound=lambda: device("h100").declared_peak("bf16", 989.4),
            faulty=lambda: device("h100").declared_peak("bf16", 1979),
            guard="jaxcost.planning.hardware:Device._other_figure_problems",
        ),
        rejected(
            "worksheet/1b",
            "the peak of FP8 is taken for BF16 operands",
            "a precision that the arithmetic does not have",
            PEAKS,
            sound=lambda: device("h100").peak("bf16", operands="bf16"),
            faulty=lambda: device("h100").peak("fp8", operands="bf16"),
            guard="jaxcost.planning.hardware:Device._operand_problems",
        ),
        rejected(
            "worksheet/1c",
            "a sparse peak is asked for",
            "a data sheet's larger figure stands where matrices are dense",
            PEAKS,
            sound=lambda: device("h100").peak("bf16", density="dense"),
            faulty=lambda: device("h100").peak("bf16", density="sparse"),
            guard="jaxcost.planning.hardware:Device._density_problems",
        ),
        rejected(
            "worksheet/2",
            "MFU is applied twice",
            "an achieved rate is discounted by the utilisation it was measured with",
            RATES,
            sound=lambda: rate(256 * _peak().per_second, "model", "total").after("utilisation", 0.60),
            faulty=lambda: _healthy().after("utilisation", 0.60),
            guard="jaxcost.planning.utilisation:contained",
        ),
        rejected(
            "worksheet/2b",
            "a reserve that covers failures is followed by a discount for failures",
            "the same downtime is paid for twice",
            RATES,
            sound=lambda: _healthy().after("reserve", 0.25).after("failures", 0.05),
            faulty=lambda: _healthy().after("reserve", 0.25, covers=("downtime",)).after("failures", 0.05),
            guard="jaxcost.planning.utilisation:contained",
        ),
        rejected(
            "worksheet/7b",
            "a rate that contains recomputation pays for it again",
            "8/6 on top of a measured rate of useful work",
            RATES,
            sound=lambda: _healthy().after("recomputation", Fraction(1, 4)),
            faulty=lambda: _measured().after("recomputation", Fraction(1, 4)),
            guard="jaxcost.planning.utilisation:contained",
        ),
        rejected(
            "worksheet/7c",
            "executed FLOPs are timed at a rate of model FLOPs",
            "replay stands in the work and in the rate",
            RATES,
            sound=lambda: _measured().seconds(6 * 10**17, "model"),
            faulty=lambda: _measured().seconds(8 * 10**17, "executed"),
            guard="jaxcost.planning.utilisation:_kind_problems",
        ),
        rejected(
            "worksheet/10c",
            "a capacity in a unit that is neither GB nor GiB",
            "7% depend on how the reader takes G",
            "validation of a device",
            sound=lambda: _memory("GB"),
            faulty=lambda: _memory("G"),
            guard=Guard("jaxcost.planning.hardware:Memory.model_fields.unit", any_text),
        ),
        rejected(
            "worksheet/11",
            "healthy MFU is called calendar progress",
            "checkpoints, failures and replay cost nothing, and idle peak counts as lost days",
            RATES,
            sound=lambda: calendar_seconds(86400, calendar_progress(9 * 10**17, 10, _measured())),
            faulty=lambda: calendar_seconds(86400, of_rate(_healthy(), 256, _peak())),
            guard="jaxcost.planning.utilisation:_progress_problems",
        ),
        rejected(
            "worksheet/11b",
            "progress is held against a rate that contains the downtime",
            "the ratio hides what it should show",
            RATES,
            sound=lambda: calendar_progress(10**17, 10, _healthy()),
            faulty=lambda: calendar_progress(10**17, 10, _healthy().after("downtime", 0.1)),
            guard="jaxcost.planning.utilisation:_reference_problems",
        ),
        judged(
            "caveat/1",
            "a ratio above 100% is shown as if it could be",
            "375% where the numerator has a zero too many",
            "planning.utilisation, consistency with the peak",
            sound=lambda: mfu(12 * 10**14, 0.40, 8, 10**15).status,
            faulty=lambda: mfu(12 * 10**15, 0.40, 8, 10**15).status,
            passes="consistent",
            wanted="inconsistent",
            guard=Guard("jaxcost.planning.utilisation:Utilisation.consistent", _always(True)),
        ),
        judged(
            "caveat/2",
            "a total of eight devices is called one device's",
            "156% of one peak, by the number of workers in the place of devices",
            "planning.utilisation, consistency with the peak",
            sound=lambda: of_rate(rate(1545.38e12, "model", "total"), 8, _peak()).status,
            faulty=lambda: of_rate(rate(1545.38e12, "model", "device"), 8, _peak()).status,
            passes="consistent",
            wanted="inconsistent",
            guard=Guard("jaxcost.planning.utilisation:Utilisation.consistent", _always(True)),
        ),
        rejected(
            "caveat/3",
            "one device's rate is divided by the devices again",
            "per device and total are confused",
            RATES,
            sound=lambda: _measured().per_device(8),
            faulty=lambda: _measured().per_device(8).per_device(8),
            guard="jaxcost.planning.utilisation:_scope_problems",
        ),
        rejected(
            "caveat/4",
            "a rate per device and a total that do not agree",
            "the divisor was the number of workers",
            "planning.utilisation, devices times one device's rate is the total",
            sound=lambda: agree(rate(10**15, "model", "device"), rate(8 * 10**15, "model", "total"), 8),
            faulty=lambda: agree(rate(8 * 10**15, "model", "device"), rate(8 * 10**15, "model", "total"), 8),
            guard="jaxcost.planning.utilisation:_sum_problems",
        ),
        rejected(
            "caveat/5",
            "Little's law is applied to an overloaded queue",
            "a queue that grows without end gets an average",
            QUEUES,
            sound=lambda: in_flight(Flow(100, "request", offered_per_s=90, capacity_per_s=120), Stay(0.2, "request")),
            faulty=lambda: in_flight(Flow(100, "request", offered_per_s=150, capacity_per_s=120), Stay(0.2, "request")),
            guard="jaxcost.planning.queue:_overload",
        ),
        rejected(
            "caveat/6",
            "requests a second are multiplied by the stay of a token",
            "items in flight of no kind",
            QUEUES,
            sound=lambda: in_flight(Flow(100, "request"), Stay(0.2, "request")),
            faulty=lambda: in_flight(Flow(100, "request"), Stay(0.2, "token")),
            guard="jaxcost.planning.queue:_mixed",
        ),
        rejected(
            "caveat/7",
            "the stay of Little's law is the service alone",
            "what waits is not in flight",
            QUEUES,
            sound=lambda: in_flight(Flow(100, "request"), Stay(0.2, "request")),
            faulty=lambda: in_flight(Flow(100, "request"), Stay(0.1, "request", frozenset({"service"}))),
            guard="jaxcost.planning.queue:_left_out",
        ),
        rejected(
            "caveat/8",
            "the sum of all resource times is called an upper bound",
            "a program that is slower contradicts it",
            "planning.steptime, idealisations alone",
            sound=lambda: _timed({"fsdp": 2}, "2").seconds("serialised"),
            faulty=lambda: _timed({"fsdp": 2}, "2").seconds("upper"),
            guard="jaxcost.planning.steptime:_upper_bound_problems",
        ),
        judged(
            "caveat/9",
            "a link whose rate nobody stated takes no time",
            "communication between nodes vanishes from the step",
            "planning.steptime, unknown is not zero",
            sound=lambda: _bound_known({"fsdp": 8}, "8"),
            faulty=lambda: _bound_known({"data": 2, "fsdp": 8}, "2x8"),
            passes="known",
            wanted="unknown",
            guard=Guard("jaxcost.planning.machine:Wire.seconds", _free),
        ),
        rejected(
            "caveat/10",
            "the rate of both directions of a link is taken for one",
            "collectives take half of their time",
            "validation of a link",
            sound=lambda: _link(450),
            faulty=lambda: _link(900),
            guard="jaxcost.planning.hardware:Link.problems",
        ),
        judged(
            "caveat/11",
            "a step faster than full overlap is taken for a good one",
            "less traffic, other work or an asynchronous clock is not looked for",
            "planning.steptime, a measured time against the bound",
            sound=lambda: _held(Fraction(3, 2)),
            faulty=lambda: _held(Fraction(9, 10)),
            passes="consistent",
            wanted="inconsistent",
            guard="jaxcost.planning.steptime:_faster",
        ),
        judged(
            "caveat/12",
            "rows with a matrix each are credited with reuse",
            "batching independent products raises no intensity",
            "planning.work, who shares a weight",
            sound=lambda: work("b d, d f -> b f", {"b": 8, "d": 64, "f": 64}).weights,
            faulty=lambda: work("b d, b d f -> b f", {"b": 8, "d": 64, "f": 64}).weights,
            passes="shared",
            wanted="per row",
            guard=Guard("jaxcost.planning.work:Work.weights", _always("shared")),
        ),
        rejected(
            "caveat/13",
            "the ridge of FP32 is used for BF16 arithmetic",
            "a batch of 32 seems to cross it",
            PEAKS,
            sound=lambda: device("a100-40gb").peak("bf16", operands="bf16"),
            faulty=lambda: device("a100-40gb").peak("fp32", "vector", operands="bf16"),
            guard="jaxcost.planning.hardware:Device._operand_problems",
        ),
    ]


def _bound_known(mesh: dict[str, int], shape: str) -> str:
    return "unknown" if _timed(mesh, shape).bound == "unknown" else "known"
