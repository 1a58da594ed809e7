"""Utilisation: three ratios with three numerators, and rates that know what they already contain.

    MFU                model FLOPs / (devices x peak x time)     useful arithmetic in a healthy step
    HFU                executed FLOPs / (devices x peak x time)  recomputed arithmetic counted as well
    calendar progress  accepted work / (reference rate x elapsed time)  what checkpoints, failures and replay left

Each comes with its numerator, denominator and convention, as exact fractions. A ratio above one is an inconsistency
with its likely causes, never clamped. A `Rate` says whose it is (one device's or the job's), which FLOPs it counts
and which losses it already contains: dividing it by the devices twice, or applying a loss twice, is refused.

    >>> mfu(12 * 10**14, seconds=0.40, devices=8, peak=10**15).value
    Fraction(3, 8)
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Literal

from jaxcost.contracts.errors import Problem, RejectedError, reject
from jaxcost.planning.hardware import PeakRate
from jaxcost.planning.quantities import Number, count, not_negative, positive, share

Kind = Literal["model", "executed"]
Scope = Literal["device", "total"]

# The losses a rate may already contain. `downtime` is the three that stop the job; a reserve says what it covers.
LOSSES = ("utilisation", "recomputation", "replay", "padding", "checkpoints", "failures", "restart", "reserve")
DOWNTIME = frozenset({"checkpoints", "failures", "restart"})
FMA2 = "one FMA = 2 FLOPs"


@dataclass(frozen=True)
class Cause:
    """One way in which a ratio above one may have come about; `would_be` is the ratio without it, if it has one."""

    text: str
    would_be: Fraction | None = None

    def to_data(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"text": self.text, "would_be": None if self.would_be is None else float(self.would_be)}


@dataclass(frozen=True)
class Utilisation:
    """A ratio with what stands above and below the line. Nothing here is clamped."""

    name: Literal["MFU", "HFU", "calendar progress"]
    numerator: Fraction
    numerator_what: str
    denominator: Fraction
    denominator_what: str
    unit: str
    convention: str
    causes: tuple[Cause, ...] = ()

    @property
    def value(self) -> Fraction:
        """The ratio, exact."""
        return self.numerator / self.denominator

    @property
    def consistent(self) -> bool:
        """False where the ratio is above one: no device does more than its peak."""
        return self.value <= 1

    @property
    def status(self) -> Literal["consistent", "inconsistent"]:
        """The verdict as text."""
        return "consistent" if self.consistent else "inconsistent"

    def __str__(self) -> str:
        text = (
            f"{self.name} {float(100 * self.value):.2f}% = {float(self.numerator):.6g} {self.unit} "
            f"({self.numerator_what}) / {float(self.denominator):.6g} {self.unit} ({self.denominator_what}); "
            f"{self.convention}"
        )
        if self.consistent:
            return text
        return f"{text}. INCONSISTENT, above 100%: " + "; ".join(cause.text for cause in self.causes)

    def to_data(self) -> dict[str, Any]:
        """Return the JSON form: the ratio beside the two numbers that make it."""
        return {
            "name": self.name,
            "value": float(self.value),
            "numerator": {"value": _plain(self.numerator), "unit": self.unit, "what": self.numerator_what},
            "denominator": {"value": _plain(self.denominator), "unit": self.unit, "what": self.denominator_what},
            "convention": self.convention,
            "status": self.status,
            "causes": [cause.to_data() for cause in self.causes],
        }


@dataclass(frozen=True)
class Rate:
    """FLOPs a second, and what they are.

    `kind`: `model` (useful arithmetic, recomputation not counted) or `executed`. `scope`: one device's or the whole
    job's. `includes`: the losses (`LOSSES`) that the figure already contains; a measured end-to-end rate contains all
    that happened in its window.
    """

    per_second: Fraction
    kind: Kind
    scope: Scope
    convention: str = FMA2
    includes: frozenset[str] = field(default_factory=frozenset)

    def after(self, loss: str, lost: Number, covers: Collection[str] = ()) -> Rate:
        """Return the rate after a loss of the share `lost`; `covers` names what a reserve stands for beside itself.

        Raises:
            RejectedError: the rate already contains the loss, or one that it covers.
        """
        taken = losses((loss, *covers), "loss")
        double = contained(self, taken)
        if double:
            rule = f"the rate already contains {', '.join(double)}; applied again it would be charged twice"
            raise reject("loss", loss, rule, "use the rate as it is, or one measured without it")
        kept = 1 - share(lost, f"loss.{loss}")
        return replace(self, per_second=self.per_second * kept, includes=self.includes | taken)

    def per_device(self, devices: int) -> Rate:
        """Return one device's share of the job's rate.

        Raises:
            RejectedError: it is one device's already.
        """
        _require(_scope_problems(self, "total"))
        return replace(self, per_second=self.per_second / count(devices, "devices"), scope="device")

    def total(self, devices: int) -> Rate:
        """Return the job's rate from one device's.

        Raises:
            RejectedError: it is the job's already.
        """
        _require(_scope_problems(self, "device"))
        return replace(self, per_second=self.per_second * count(devices, "devices"), scope="total")

    def seconds(self, flops: Number, kind: Kind, scope: Scope = "total") -> Fraction:
        """Return the time that work of `kind` takes at this rate; `scope` says whose work it is.

        Raises:
            RejectedError: executed work at a rate of model FLOPs, or the reverse: the recomputation would count twice,
                or not at all; or the job's work at one device's rate, or the reverse.
        """
        _require([*_kind_problems(self, kind), *_scope_problems(self, scope)])
        return positive(flops, "flops") / self.per_second


def contained(achieved: Rate, taken: frozenset[str]) -> tuple[str, ...]:
    """Return the losses among `taken` that a rate already contains."""
    return tuple(sorted(taken & achieved.includes))


def losses(names: Collection[str], where: str) -> frozenset[str]:
    """Return losses by name, `downtime` as the three it stands for.

    Raises:
        RejectedError: a name is none of `LOSSES`.
    """
    found: set[str] = set()
    for name in names:
        if name == "downtime":
            found |= DOWNTIME
        elif name in LOSSES:
            found.add(name)
        else:
            raise reject(where, name, "not a loss known here", f"use one of {', '.join((*LOSSES, 'downtime'))}")
    return frozenset(found)


def rate(
    per_second: Number,
    kind: Kind,
    scope: Scope,
    includes: Collection[str] = (),
    convention: str = FMA2,
) -> Rate:
    """Return a rate that a caller states, checked."""
    if kind not in ("model", "executed"):
        raise reject("kind", kind, "must be model or executed", "say whether recomputed FLOPs are counted")
    if scope not in ("device", "total"):
        raise reject("scope", scope, "must be device or total", "say whether it is one device's or the job's")
    return Rate(positive(per_second, "per_second"), kind, scope, convention, losses(includes, "includes"))


def useful_rate(peak: PeakRate, devices: int, utilisation: Number, convention: str = FMA2) -> Rate:
    """Return the job's rate of model FLOPs at a declared MFU. It contains the utilisation, and nothing else."""
    achieved = share(utilisation, "utilisation") * peak.per_second * count(devices, "devices")
    return Rate(positive(achieved, "utilisation"), "model", "total", convention, frozenset({"utilisation"}))


def mfu(
    model_flops: Number, seconds: Number, devices: int, peak: PeakRate | Number, convention: str = FMA2
) -> Utilisation:
    """Return model FLOPs utilisation: the model FLOPs of all devices over what they could do in the same time.

    Args:
        model_flops: forward and backward FLOPs of the step, over all devices, recomputation not counted.
        seconds: time of the step.
        devices: all devices that share the step.
        peak: of one device; a bare number is FLOPs a second.
        convention: how the FLOPs were counted.
    """
    return _over_peak("MFU", "model FLOPs", model_flops, seconds, devices, peak, convention)


def hfu(
    executed_flops: Number, seconds: Number, devices: int, peak: PeakRate | Number, convention: str = FMA2
) -> Utilisation:
    """Return hardware FLOPs utilisation: like `mfu`, with the recomputed FLOPs in the numerator."""
    return _over_peak("HFU", "executed FLOPs", executed_flops, seconds, devices, peak, convention)


def of_rate(achieved: Rate, devices: int, peak: PeakRate | Number) -> Utilisation:
    """Return the MFU (or HFU, by its kind) of a rate; one device's is compared with one peak, a total with all."""
    peers = count(devices, "devices")
    compared = 1 if achieved.scope == "device" else peers
    name: Literal["MFU", "HFU"] = "MFU" if achieved.kind == "model" else "HFU"
    what = f"{achieved.kind} FLOPs of {'one device' if achieved.scope == 'device' else 'all devices'}"
    found = _over_peak(name, what, achieved.per_second, 1, compared, peak, achieved.convention)
    if found.consistent or achieved.scope == "total" or peers == 1:
        return found
    total = Cause(f"the rate is the total of {peers} devices, not one device's", found.value / peers)
    return replace(found, causes=(total, *found.causes))


def calendar_progress(
    accepted_flops: Number, elapsed_seconds: Number, reference: Rate, convention: str = FMA2
) -> Utilisation:
    """Return accepted work over what the healthy job would have done in the same elapsed time.

    Args:
        accepted_flops: model FLOPs of tokens that count: each logical token once, replayed steps not.
        elapsed_seconds: wall-clock time, stops included.
        reference: the job's healthy rate of model FLOPs.
        convention: how the FLOPs were counted.

    Raises:
        RejectedError: the reference already contains downtime or replay, is one device's, or counts executed FLOPs.
    """
    _require(_reference_problems(reference))
    numerator = not_negative(accepted_flops, "accepted_flops")
    denominator = reference.per_second * positive(elapsed_seconds, "elapsed_seconds")
    causes: tuple[Cause, ...] = ()
    if numerator > denominator:
        causes = (
            Cause("replayed or rejected steps were counted again: count each accepted token once"),
            Cause("the reference rate is not of the same job: another batch, context or number of devices"),
            Cause("the elapsed window leaves out time that belongs to it"),
        )
    return Utilisation(
        "calendar progress", numerator, "model FLOPs of accepted tokens",
        denominator, "healthy rate x elapsed time", "FLOP", convention, causes,
    )  # fmt: skip


def agree(one_device: Rate, job: Rate, devices: int) -> None:
    """Hold that one device's rate times the devices is the job's.

    Raises:
        RejectedError: the two differ, or the scopes are mixed up.
    """
    _require([*_scope_problems(job, "total"), *_sum_problems(one_device.total(devices), job, devices)])


def calendar_seconds(healthy_seconds: Number, progress: Utilisation) -> Fraction:
    """Return the elapsed time of work that healthy steps do in `healthy_seconds`.

    Raises:
        RejectedError: the ratio is an MFU or HFU, which are of healthy steps and are in their time already; or it is
            zero, or above one.
    """
    _require(_progress_problems(progress))
    if progress.value == 0:
        raise reject("progress", 0, "no work was accepted, so the work never ends", "give a window with progress")
    return positive(healthy_seconds, "healthy_seconds") / progress.value


def _require(problems: Iterable[Problem]) -> None:
    found = list(problems)
    if found:
        raise RejectedError(found)


def _scope_problems(achieved: Rate, wanted: Scope) -> Iterable[Problem]:
    if achieved.scope == wanted:
        return
    rules = {
        "total": ("this is one device's rate already; the devices were divided out", "divide by devices, not workers"),
        "device": ("this is the job's total already; the devices are in it", "multiply one device's rate, once"),
    }
    rule, remedy = rules[wanted]
    yield Problem("rate", float(achieved.per_second), rule, remedy)


def _kind_problems(achieved: Rate, kind: Kind) -> Iterable[Problem]:
    if kind != achieved.kind:
        rule = f"{kind} FLOPs at a rate of {achieved.kind} FLOPs: recomputation is counted twice, or not at all"
        yield Problem("kind", kind, rule, f"give the {achieved.kind} FLOPs, or a rate of {kind} FLOPs")


def _reference_problems(reference: Rate) -> Iterable[Problem]:
    if reference.kind != "model":
        rule = "accepted work is model FLOPs, the reference is not"
        yield Problem("reference", reference.kind, rule, "give the rate of model FLOPs")
    if reference.scope != "total":
        rule = "accepted work is the job's, the reference one device's"
        yield Problem("reference", reference.scope, rule, "give the job's rate")
    ended = contained(reference, DOWNTIME | {"replay"})
    if ended:
        rule = f"the reference rate already contains {', '.join(ended)}; the ratio would hide them"
        yield Problem("reference", float(reference.per_second), rule, "give the rate of healthy steps")


def _sum_problems(summed: Rate, job: Rate, devices: int) -> Iterable[Problem]:
    if summed.per_second != job.per_second:
        parts = f"{float(summed.per_second):.6g}, the total {float(job.per_second):.6g}"
        rule = f"one device's rate times {devices} devices is {parts}"
        remedy = "the divisor is the number of devices, not of workers or ranks"
        yield Problem("job", float(job.per_second), rule, remedy)


def _progress_problems(progress: Utilisation) -> Iterable[Problem]:
    if progress.name != "calendar progress":
        rule = f"an {progress.name} is of healthy steps and in their time already; it is no calendar progress"
        yield Problem(
            "progress", float(progress.value), rule, "give accepted work over the healthy rate x elapsed time"
        )
    elif not progress.consistent:
        causes = "; ".join(cause.text for cause in progress.causes)
        yield Problem("progress", float(progress.value), f"above 100%: {causes}", "mend the numerator or the window")


def _over_peak(
    name: Literal["MFU", "HFU"],
    what: str,
    flops: Number,
    seconds: Number,
    devices: int,
    peak: PeakRate | Number,
    convention: str,
) -> Utilisation:
    per_second = peak.per_second if isinstance(peak, PeakRate) else positive(peak, "peak")
    label = peak.label if isinstance(peak, PeakRate) else f"{float(per_second):.6g} FLOP/s, declared"
    work, time, number = not_negative(flops, "flops"), positive(seconds, "seconds"), count(devices, "devices")
    available = per_second * time * number
    causes = _causes(work / available, number) if work > available else ()
    denominator = f"{number} x {label} x {float(time):.6g} s"
    return Utilisation(name, work, what, available, denominator, "FLOP", convention, causes)


def _causes(ratio: Fraction, devices: int) -> tuple[Cause, ...]:
    """The usual ways to a ratio above one, those that one factor would mend with the ratio that is left."""
    found = [
        Cause(f"a power of ten in the numerator or the peak: divided by 10 it is {_percent(ratio / 10)}", ratio / 10)
    ]
    if devices > 1:
        text = f"the numerator was multiplied by the {devices} devices twice: {_percent(ratio / devices)}"
        found.append(Cause(text, ratio / devices))
    found += [
        Cause(f"an FMA counted as one FLOP in the peak and two in the work: {_percent(ratio / 2)}", ratio / 2),
        Cause("a peak of another precision than the arithmetic, or without the devices that took part"),
        Cause("the model's largest context was used as the sequence length of the run"),
        Cause("the time leaves work out: an asynchronous step was not waited for, or a window too short"),
    ]
    return tuple(cause for cause in found if cause.would_be is None or cause.would_be <= 1)


def _percent(ratio: Fraction) -> str:
    return f"{float(100 * ratio):.2f}%"


def _plain(value: Fraction) -> int | float:
    return int(value) if value.denominator == 1 else float(value)
