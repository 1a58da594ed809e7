"""What published runs imply: 6 x active parameters x tokens over accelerator-hours x peak, and what lies beyond a
printed utilisation.

The ratio is of all hours that were reported, so it contains downtime, replay and whatever else the hours hold; a
printed utilisation is of healthy steps. The difference between the two, in hours, is shown and not explained away.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any

from pydantic import Field

from jaxcost.contracts.errors import Problem
from jaxcost.contracts.record import Name, Record, Size, as_table, parse_file
from jaxcost.data import room
from jaxcost.planning.hardware import PeakRate, device
from jaxcost.planning.run.work import six_p_flops_per_token
from jaxcost.planning.utilisation import Utilisation, mfu

FILE = "runs/training_runs.toml"
CONVENTION = "6 x active parameters x tokens over accelerator-hours x 3600 s x dense peak; one FMA = 2 FLOPs"
OMITTED = "products of queries and keys, recomputation"
Text = Annotated[str, Field(min_length=1, max_length=1000)]
Decimal = Annotated[str, Field(pattern=r"^\d{1,12}(\.\d{1,12})?(e\d{1,2})?$")]


class PublishedRun(Record):
    """One run as printed. `assumed_device` stands in for one that is not on record, and `assumed_why` says so."""

    name: Name
    device: Name
    hours: Size
    parameters: Size
    tokens: Size
    cite: Text
    active: Size | None = None
    accelerators: Size | None = None
    printed_flops: Decimal | None = None
    printed_mfu: tuple[Decimal, Decimal] | None = None
    printed_peak_tera_per_s: int | float | None = None
    assumed_device: Name | None = None
    assumed_why: Text | None = None
    precisions: tuple[Name, ...] = ("bf16",)
    hours_include: str = ""

    def problems(self) -> Iterable[Problem]:
        if (self.assumed_device is None) != (self.assumed_why is None):
            yield Problem("assumed_why", self.assumed_why, "an assumed device has a reason", "give both, or neither")
        if self.active is not None and self.active > self.parameters:
            yield Problem("active", self.active, "more active than stored parameters", "exchange the two")
        if self.printed_mfu is not None and Fraction(self.printed_mfu[0]) > Fraction(self.printed_mfu[1]):
            yield Problem("printed_mfu", list(self.printed_mfu), "a range runs upwards", "exchange the two")

    @property
    def flops(self) -> int:
        """Work of the run under 6PT, with active parameters."""
        return int(six_p_flops_per_token(self.active or self.parameters) * self.tokens)


@dataclass(frozen=True)
class Implied:
    """A run with the utilisation that its hours imply, one for each precision whose peak may be the denominator."""

    run: PublishedRun
    utilisations: tuple[tuple[PeakRate, Utilisation], ...]

    @property
    def hours_beyond(self) -> tuple[Fraction, Fraction] | None:
        """Hours beyond those that the work takes at the printed utilisation, at its high and low end; None without one.

        Signed: negative where the work would take longer than the hours reported.
        """
        run = self.run
        if run.printed_mfu is None or run.printed_peak_tera_per_s is None:
            return None
        per_hour = Fraction(str(run.printed_peak_tera_per_s)) * 10**12 * 3600
        low, high = (run.hours - run.flops / (per_hour * Fraction(share)) for share in run.printed_mfu)
        return low, high

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        run, beyond = self.run, self.hours_beyond
        printed = None if run.printed_mfu is None else [float(Fraction(share)) for share in run.printed_mfu]
        return {
            "name": run.name, "device": run.device, "accelerators": run.accelerators, "hours": run.hours,
            "parameters": run.parameters, "active": run.active or run.parameters, "tokens": run.tokens,
            "flops": run.flops, "printed_flops": None if run.printed_flops is None else float(run.printed_flops),
            "implied": [
                {"peak": peak.label, "dtype": peak.dtype, "tera_per_s": float(peak.tera_per_s),
                 "value": float(found.value), "status": found.status}
                for peak, found in self.utilisations
            ],
            "printed_mfu": printed,
            "hours_beyond": None if beyond is None else [float(hours) for hours in beyond],
            "assumption": run.assumed_why, "hours_include": run.hours_include, "evidence": "source_reported",
            "source": run.cite, "convention": CONVENTION, "omitted": OMITTED,
        }  # fmt: skip


def published_runs() -> tuple[PublishedRun, ...]:
    """Return the runs of the room `papers/`, in the order of the file.

    Raises:
        RejectedError: the file breaks its contract.
    """
    path = room("papers") / FILE
    rows = as_table(parse_file(path), path.name).get("runs")
    return tuple(PublishedRun.from_data(row, f"{path.name}.runs.{i}") for i, row in enumerate(rows or ()))


def implied(run: PublishedRun) -> Implied:
    """Return the utilisation that a run's hours imply, against each peak that may be its denominator."""
    peaks = [device(run.assumed_device or run.device).peak(dtype) for dtype in run.precisions]
    return Implied(run, tuple((peak, mfu(run.flops, run.hours * 3600, 1, peak)) for peak in peaks))
