"""What a program runs on: dense peaks by element type and instruction path, memory, links; each with its source.

One file in the room `hardware/` describes one device. A figure is used only for what it says: a peak with structured
sparsity is not one of a dense matmul, a peak of another precision is not one of this, a rate over both directions of
a link is not one over one of them. Where sources disagree both figures stand in the file and one is used; a figure
that nobody printed is missing, with the reason, never zero.

    >>> device("h100").peak("bf16").tera_per_s
    Fraction(4947, 5)

Memory is as printed (GB = 10^9, GiB = 2^30 bytes): what a compiler may fill of it is `jaxcost.observation.targets`'s.
Peaks, memory and links are those of a chip; `jax_devices_per_chip` says how many JAX devices share them.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Annotated, Literal

from pydantic import Field

from jaxcost.contracts.errors import Problem, RejectedError, reject
from jaxcost.contracts.record import Name, Record, Size, parse_file
from jaxcost.data import room
from jaxcost.planning.quantities import Number, positive

PeakType = Literal["bf16", "fp16", "tf32", "fp8", "fp4", "int8", "fp32", "fp64"]
Path = Literal["matrix", "vector"]
Reach = Literal["node", "slice", "pair", "host", "between"]
Unit = Literal["GB", "GiB", "MiB"]

UNIT_BYTES: Mapping[str, int] = {"GB": 10**9, "GiB": 2**30, "MiB": 2**20}
# A stored element type runs at the peak of its width; the two FP8 formats share one.
PEAK_TYPES: Mapping[str, PeakType] = {
    "bf16": "bf16", "fp16": "fp16", "tf32": "tf32", "fp8": "fp8", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8",
    "fp4": "fp4", "int8": "int8", "fp32": "fp32", "fp64": "fp64",
}  # fmt: skip
# How far a declared peak may stand above the recorded one: published roundings differ in the fourth digit.
ROUNDING = Fraction(1, 1000)
# What follows the colon of a target: its shape, and its slices.
SHAPE = re.compile(r"([1-9][0-9]{0,5}(?:x[1-9][0-9]{0,5}){0,2})(?:\*([1-9][0-9]{0,4}))?")

Figure = Annotated[int | float, Field(gt=0, le=10**9)]
Text = Annotated[str, Field(min_length=1, max_length=1000)]


def exact(printed: int | float) -> Fraction:
    """Return a printed decimal figure as the fraction it reads."""
    return Fraction(str(printed))


@dataclass(frozen=True)
class PeakRate:
    """The dense peak of one chip: operations a second for one element type on one instruction path.

    `unit` is FLOP/s (one FMA = 2 FLOPs), or OP/s for integers. `origin` says whether the figure is recorded or
    declared by the caller.
    """

    device: str
    dtype: PeakType
    path: Path
    per_second: Fraction
    origin: str = "recorded"

    @property
    def unit(self) -> str:
        """FLOP/s, or OP/s where the elements are integers."""
        return "OP/s" if self.dtype == "int8" else "FLOP/s"

    @property
    def tera_per_s(self) -> Fraction:
        """The rate in units of 10^12 a second."""
        return self.per_second / 10**12

    @property
    def label(self) -> str:
        """The constant in words: what a utilisation was divided by."""
        tera = f"{float(self.tera_per_s):,.10g} T{self.unit}"
        return f"{tera}, {self.device}, dense {self.dtype}, {self.path} path, {self.origin}"


class Peak(Record):
    """Dense and structured-sparse peaks of one element type on one instruction path, in 10^12 operations a second."""

    dtype: PeakType
    path: Path
    dense: Figure
    sparse: Figure | None = None

    def problems(self) -> Iterable[Problem]:
        if self.sparse is not None and self.sparse <= self.dense:
            yield Problem("sparse", self.sparse, "not above the dense peak", "check which of the two is which")


class Nominal(Record):
    """A constant that published tables divide by instead of the recorded peak, and who uses it."""

    dtype: PeakType
    tera_per_s: Figure
    used_by: Text


class Memory(Record):
    """Device memory as printed; bandwidth in GB/s = 10^9 bytes a second."""

    capacity: Figure
    unit: Unit
    type: Name
    bandwidth_gb_per_s: Figure

    @property
    def capacity_bytes(self) -> int:
        """The printed capacity in bytes, by its own unit; rounded down."""
        return int(exact(self.capacity) * UNIT_BYTES[self.unit])

    @property
    def bytes_per_second(self) -> Fraction:
        """The printed bandwidth in bytes a second."""
        return exact(self.bandwidth_gb_per_s) * 10**9


class Link(Record):
    """One interconnect of a chip: where it reaches, and its rate with its direction.

    `reach`: `node` (all devices of a host or of a switch domain), `slice` (a TPU torus), `pair` (a bridge), `host`
    (device to host memory), `between` (nodes or slices). `extent` is the largest number of chips it joins. Rates are
    the chip's, in GB/s = 10^9 bytes a second; `link_per_direction_gb_per_s` is one link's. `unstated_gbit_per_s` (10^9
    bits a second, for a chip or a pod) is a figure whose direction the source leaves open.
    """

    name: Name
    reach: Reach
    topology: Literal["switch", "torus", "direct", "bus"]
    dimensions: Annotated[int, Field(ge=1, le=3)] | None = None
    extent: Size | None = None
    links_per_device: Size | None = None
    per_direction_gb_per_s: Figure | None = None
    bidirectional_gb_per_s: Figure | None = None
    link_per_direction_gb_per_s: Figure | None = None
    unstated_gbit_per_s: Figure | None = None
    unstated_per: Literal["chip", "pod"] = "chip"
    unverified: bool = False

    def problems(self) -> Iterable[Problem]:
        one, both = self.per_direction_gb_per_s, self.bidirectional_gb_per_s
        if one is not None and both is not None and exact(both) != 2 * exact(one):
            yield Problem("bidirectional_gb_per_s", both, f"not twice the {one} GB/s of one direction", "check both")
        if all(rate is None for rate in (one, both, self.link_per_direction_gb_per_s, self.unstated_gbit_per_s)):
            yield Problem("per_direction_gb_per_s", None, "a link without a rate", "list it under [missing]")
        if (self.topology == "torus") != (self.dimensions is not None):
            yield Problem("dimensions", self.dimensions, "a torus has dimensions, nothing else has", "correct one")


class Source(Record):
    """Where figures were read, and when, as far as known."""

    text: Text
    date: Annotated[str, Field(pattern=r"^\d{4}(-\d{2}(-\d{2})?)?$")] | None = None


class Conflict(Record):
    """Two sources disagree on a field: the figure used, the other one, and who prints it."""

    field: Name
    used: Text
    other: Text
    source: Text
    note: str = ""


class Device(Record):
    """One device of the room `hardware/`, whole."""

    name: Name
    description: Name
    vendor: Name
    aliases: tuple[Name, ...]
    matrix_unit: Name
    peaks: Annotated[tuple[Peak, ...], Field(min_length=1)]
    sources: Annotated[tuple[Source, ...], Field(min_length=1)]
    target: Name | None = None
    jax_devices_per_chip: Size = 1
    tdp_w: Figure | None = None
    memory: Memory | None = None
    links: tuple[Link, ...] = ()
    nominals: tuple[Nominal, ...] = ()
    conflicts: tuple[Conflict, ...] = ()
    unverified: tuple[Name, ...] = ()
    notes: tuple[Text, ...] = ()
    missing: dict[Name, Text] = Field(default_factory=dict)

    def problems(self) -> Iterable[Problem]:
        keys = [(peak.dtype, peak.path) for peak in self.peaks]
        if len(set(keys)) < len(keys):
            yield Problem("peaks", keys, "an element type and path appear twice", "keep one, or list a conflict")
        for field, absent in (("memory", self.memory is None), ("links", not self.links), ("tdp_w", not self.tdp_w)):
            if absent != (field in self.missing):
                yield Problem(f"missing.{field}", None, "absent and given a reason, or present: one of the two", "mend")

    def peak(self, dtype: str, path: str = "matrix", density: str = "dense", operands: str | None = None) -> PeakRate:
        """Return the dense peak for an element type on an instruction path.

        Args:
            dtype: element type of the arithmetic, such as `bf16`, `tf32` or `fp8`.
            path: `matrix` (Tensor Core, Matrix Core, MXU) or `vector`.
            density: anything but `dense` is refused; the argument exists so that the refusal can say why.
            operands: element type of the operands where it is known; another precision is refused.

        Raises:
            RejectedError: the peak is sparse, of another precision than the operands, or was not printed.
        """
        known = _peak_type(dtype)
        problems = [*self._density_problems(dtype, density), *self._operand_problems(dtype, operands)]
        if problems:
            raise RejectedError(problems)
        for row in self.peaks:
            if (row.dtype, row.path) == (known, path):
                return PeakRate(self.name, row.dtype, row.path, exact(row.dense) * 10**12)
        rule = f"no {known} peak on the {path} path of {self.name} is recorded: unknown, not zero"
        raise reject("dtype", dtype, rule, f"recorded are {self._known(None)}")

    def declared_peak(self, dtype: str, tera_per_s: Number, path: str = "matrix") -> PeakRate:
        """Return a peak that the caller names, in 10^12 operations a second, as published tables do (989 for H100).

        Raises:
            RejectedError: it is the sparse figure, the peak of another precision, or stands above the dense peak.
        """
        value = positive(tera_per_s, "tera_per_s")
        recorded = self.peak(dtype, path)
        listed = [n for n in self.nominals if n.dtype == recorded.dtype and exact(n.tera_per_s) == value]
        if listed:
            return PeakRate(self.name, recorded.dtype, recorded.path, value * 10**12, f"declared: {listed[0].used_by}")
        if abs(value - recorded.tera_per_s) <= ROUNDING * recorded.tera_per_s:
            return PeakRate(
                self.name, recorded.dtype, recorded.path, value * 10**12, "declared: the dense peak, rounded"
            )
        problems = [*self._other_figure_problems(recorded, value)]
        if problems:
            raise RejectedError(problems)
        return PeakRate(self.name, recorded.dtype, recorded.path, value * 10**12, "declared by the caller")

    def _density_problems(self, dtype: str, density: str) -> Iterable[Problem]:
        if density != "dense":
            rule = "a dense matmul has no structured sparsity, so a sparse peak is not its ceiling"
            yield Problem("density", density, rule, f"use the dense peak: {self._known(dtype)}")

    def _operand_problems(self, dtype: str, operands: str | None) -> Iterable[Problem]:
        if operands is not None and _peak_type(operands) != _peak_type(dtype):
            rule = f"the operands are {operands}; the peak of another precision is not their ceiling"
            yield Problem("dtype", dtype, rule, f"ask for {_peak_type(operands)}, or declare the conversion as an op")

    def _other_figure_problems(self, recorded: PeakRate, value: Fraction) -> Iterable[Problem]:
        """Yield what a declared peak is instead of the dense one: sparse, another precision's, or too high."""
        use = f"use {float(recorded.tera_per_s):g}"
        for row in self.peaks:
            same = (row.dtype, row.path) == (recorded.dtype, recorded.path)
            if same and row.sparse is not None and _close(value, row.sparse):
                rule = f"this is the peak with structured sparsity; a dense {recorded.dtype} matmul has another ceiling"
                yield Problem("tera_per_s", float(value), rule, use)
                return
            if not same and _close(value, row.dense):
                path = f"the {recorded.dtype} one on the {recorded.path} path"
                rule = f"this is the {row.dtype} peak on the {row.path} path, not {path}"
                yield Problem("tera_per_s", float(value), rule, use)
                return
        if value > recorded.tera_per_s:
            known = f"{float(recorded.tera_per_s):g} T{recorded.unit}"
            rule = f"above the dense {recorded.dtype} peak of {known} recorded for {self.name}"
            remedy = "check the precision, the sparsity, and whether it is one chip's"
            yield Problem("tera_per_s", float(value), rule, remedy)

    def bandwidth(self) -> Fraction:
        """Return the bytes a second of device memory.

        Raises:
            RejectedError: no bandwidth is recorded.
        """
        return self.known_memory().bytes_per_second

    def known_memory(self) -> Memory:
        """Return the memory.

        Raises:
            RejectedError: no memory is recorded.
        """
        if self.memory is None:
            reason = self.missing["memory"]
            raise reject("device", self.name, f"its memory is unknown: {reason}", "choose another device")
        return self.memory

    def ridge(self, dtype: str, path: str = "matrix") -> Fraction:
        """Return the ridge point against device memory: the peak over the bandwidth, in FLOPs a byte."""
        return self.peak(dtype, path).per_second / self.bandwidth()

    @property
    def ridge_bf16(self) -> float | None:
        """The BF16 ridge against device memory, None where the peak or the memory is not recorded."""
        known = any((row.dtype, row.path) == ("bf16", "matrix") for row in self.peaks) and self.memory is not None
        return float(self.ridge("bf16")) if known else None

    def link(self, reach: str) -> Link | None:
        """Return the first verified link of a reach, None where none is recorded."""
        return next((link for link in self.links if link.reach == reach and not link.unverified), None)

    def _known(self, dtype: str | None) -> str:
        rows = [row for row in self.peaks if dtype is None or row.dtype == PEAK_TYPES.get(dtype)]
        return ", ".join(f"{row.dtype} {row.dense:g} ({row.path})" for row in rows) or "none of this element type"


def device_names() -> tuple[str, ...]:
    """Return the names of the recorded devices, sorted."""
    return tuple(sorted(path.stem for path in room("hardware").glob("*.toml")))


@cache
def devices() -> tuple[Device, ...]:
    """Return every recorded device, by name.

    Raises:
        RejectedError: a file breaks its contract, or two devices claim one name.
    """
    read = tuple(read_device(name) for name in device_names())
    claimed: dict[str, str] = {}
    for item in read:
        for name in (item.name, *item.aliases):
            if claimed.setdefault(_plain(name), item.name) != item.name:
                raise reject(f"{item.name}.aliases", name, f"also {claimed[_plain(name)]}'s", "give it to one of them")
    return read


def read_device(name: str) -> Device:
    """Read one file of the room `hardware/` by its exact name."""
    path = room("hardware") / f"{name}.toml"
    found = Device.from_data(parse_file(path), path.name)
    if found.name != name:
        raise reject(f"{path.name}.name", found.name, "not the name of its file", f"write {name}")
    return found


def device(text: object) -> Device:
    """Return the device that a name, an alias or a target (`h100:4x8`) means.

    Raises:
        RejectedError: no device goes by that name (near names are given), or what follows the colon is no shape.
    """
    if not isinstance(text, str) or not text or len(text) > 80:
        raise reject("device", text, "not the name of a device", f"choose one of {', '.join(device_names())}")
    name, colon, shape = text.partition(":")
    if colon and not SHAPE.fullmatch(shape):
        raise reject("device", text, "not of the form NAME:SHAPE[*SLICES]", "write for example h100:4x8")
    wanted = _plain(name)
    names = {_plain(name): item for item in devices() for name in (item.name, *item.aliases)}
    if wanted in names:
        return names[wanted]
    shown = {item.aliases[0] for item in devices() if item.aliases}
    near = difflib.get_close_matches(wanted, names, n=3, cutoff=0.6)
    close = f" (near: {', '.join(names[name].aliases[0] for name in near)})" if near else ""
    raise reject("device", text, "no figures of it are recorded", f"choose one of {', '.join(sorted(shown))}{close}")


def _plain(name: str) -> str:
    return name.strip().lower().replace("_", "-").replace(" ", "-")


def _peak_type(dtype: str) -> PeakType:
    if dtype not in PEAK_TYPES:
        rule = "not an element type with a peak of its own"
        raise reject("dtype", dtype, rule, f"use one of {', '.join(PEAK_TYPES)}")
    return PEAK_TYPES[dtype]


def _close(value: Fraction, printed: int | float) -> bool:
    return abs(value - exact(printed)) <= 5 * ROUNDING * exact(printed)


__all__ = [
    "SHAPE", "Conflict", "Device", "Link", "Memory", "Nominal", "Peak", "PeakRate", "Source",
    "device", "device_names", "devices", "exact", "read_device",
]  # fmt: skip
