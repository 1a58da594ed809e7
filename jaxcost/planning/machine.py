"""One device as a step sees it: a peak, a memory boundary, and the links a collective crosses.

Links are those of one JAX device, in one direction. Inside a node (or a slice) stands the device's own figure; between
nodes a figure is used only where the device's file has one or the caller declares it: unknown is not zero. A torus has
links in every dimension; with several mesh axes on it each gets at most what the others leave, one dimension each.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from jaxcost.contracts.case import Case
from jaxcost.contracts.errors import reject
from jaxcost.planning.hardware import SHAPE, Device, Link, PeakRate, device, exact
from jaxcost.planning.quantities import Number, count, not_negative, positive

GPUS_PER_NODE = 8  # of an SXM board, where neither the device nor the caller says otherwise


@dataclass(frozen=True)
class Wire:
    """A path of one JAX device: bytes a second in one direction, or None with the reason."""

    name: str
    reach: str
    bytes_per_second: Fraction | None
    source: str
    topology: str = "unknown"
    dimensions: int = 0

    def seconds(self, size: Number, axes_beside: int = 0) -> Fraction | None:
        """Return the time that so many bytes take; `axes_beside` other mesh axes keep a torus dimension each."""
        if size == 0:
            return Fraction(0)
        rate = self.rate(axes_beside)
        return None if rate is None else Fraction(size) / rate

    def rate(self, axes_beside: int = 0) -> Fraction | None:
        """Return the bytes a second that a collective over one mesh axis may use."""
        if self.bytes_per_second is None or not self.dimensions:
            return self.bytes_per_second
        return self.bytes_per_second * Fraction(max(1, self.dimensions - axes_beside), self.dimensions)

    def to_data(self) -> dict[str, Any]:
        """Return the JSON form."""
        rate = self.bytes_per_second
        return {
            "name": self.name,
            "reach": self.reach,
            "topology": self.topology,
            "dimensions": self.dimensions,
            "bytes_per_second": None if rate is None else float(rate),
            "direction": "one direction, one JAX device",
            "source": self.source,
            **({"reason": self.source} if rate is None else {}),
        }


@dataclass(frozen=True)
class Machine:
    """What bounds a step: the device, its peak for the arithmetic of the step, memory, links, and where nodes end."""

    device: Device
    peak: PeakRate
    bytes_per_second: Fraction
    inside: Wire
    between: Wire
    devices: int
    devices_per_node: int
    startup_seconds: Fraction | None
    notes: tuple[str, ...]

    @property
    def ridge(self) -> Fraction:
        """FLOPs a byte of device memory at which both resources take as long."""
        return self.peak.per_second / self.bytes_per_second

    def ridges(self) -> dict[str, Fraction | None]:
        """Return the ridge point against every boundary by name; None where the path's rate is unknown."""
        found: dict[str, Fraction | None] = {"device memory": self.ridge}
        for wire in (self.inside, self.between):
            rate = wire.bytes_per_second
            found[wire.reach] = None if rate is None else self.peak.per_second / rate
        return found


def machine(
    name: object,
    case: Case,
    *,
    peak_type: str | None = None,
    peak_path: str | None = None,
    devices_per_node: int | None = None,
    inside_gb_per_s: Number | None = None,
    between_gb_per_s: Number | None = None,
    startup_seconds: Number | None = None,
) -> Machine:
    """Return the machine that a case runs on.

    Args:
        name: a device, an alias, or a target with a shape (`h100:4x8`, `tpu-v5p:2x2x4`).
        case: its mesh gives the number of devices, its compute type the peak.
        peak_type: the instruction path where the operands' type has several: `tf32` for fp32 operands.
        peak_path: `matrix` or `vector`; default matrix, or vector where fp32 operands are multiplied as fp32.
        devices_per_node: consecutive devices that share a node.
        inside_gb_per_s: declared rate of the path inside a node, in one direction, of one device.
        between_gb_per_s: the same between nodes or slices.
        startup_seconds: declared startup of one execution of one collective.

    Raises:
        RejectedError: the device is unknown or lacks a figure, the peak is of another precision, or the shape is not
            the mesh's.
    """
    found = device(name)
    shape = _shape(str(name), found, case.execution.device_count)
    operands = case.state.compute_dtype
    rate = _peak(found, operands, peak_type, peak_path)
    chips = Fraction(1, found.jax_devices_per_chip)
    notes = []
    if found.jax_devices_per_chip > 1:
        notes.append(f"a JAX device is 1/{found.jax_devices_per_chip} of a chip and takes that share of its figures")
    torus = next((link for link in found.links if link.topology == "torus"), None)
    per_node = _per_node(devices_per_node, shape, found, case.execution.device_count, torus, notes)
    inside = _wire(found, ("slice", "node"), inside_gb_per_s, chips, "slice" if torus else "node")
    between = _wire(found, ("between",), between_gb_per_s, chips, "between")
    startup = None if startup_seconds is None else not_negative(startup_seconds, "startup_seconds")
    if startup is None and case.execution.device_count > 1:
        notes.append("no startup of a collective is declared: its bytes alone are timed")
    if torus is not None and case.execution.device_count > 1:
        notes.append("rings close: a slice dimension without wrap-around links has half of the rate")
    return Machine(
        found,
        PeakRate(rate.device, rate.dtype, rate.path, rate.per_second * chips, rate.origin),
        found.bandwidth() * chips,
        inside,
        between,
        case.execution.device_count,
        per_node,
        startup,
        tuple(notes),
    )


def _peak(found: Device, operands: str, peak_type: str | None, peak_path: str | None) -> PeakRate:
    if peak_type is None:
        path = peak_path or ("vector" if operands in ("fp32", "fp64") else "matrix")
        return found.peak(operands, path, operands=operands)
    if (operands, peak_type) == ("fp32", "tf32"):
        return found.peak("tf32", peak_path or "matrix")
    return found.peak(peak_type, peak_path or "matrix", operands=operands)


def _shape(text: str, found: Device, devices: int) -> tuple[tuple[int, ...], int] | None:
    """Return the shape and number of slices that a target's text gives, None where it gives none."""
    _, colon, rest = text.partition(":")
    if not colon:
        return None
    match = SHAPE.fullmatch(rest)
    assert match is not None  # `device` refuses another form
    shape, slices = tuple(int(part) for part in match[1].split("x")), int(match[2] or 1)
    total = slices * found.jax_devices_per_chip
    for side in shape:
        total *= side
    if total != devices:
        rule = f"the shape has {total} devices and the mesh {devices}"
        raise reject("--device", text, rule, "make the two agree, or name the device without a shape")
    return shape, slices


def _per_node(
    declared: int | None,
    shape: tuple[tuple[int, ...], int] | None,
    found: Device,
    devices: int,
    torus: Link | None,
    notes: list[str],
) -> int:
    if declared is not None:
        return count(declared, "devices_per_node")
    if torus is not None:
        slices = shape[1] if shape else 1
        return devices // slices
    if shape is not None:
        return shape[0][-1] if len(shape[0]) > 1 else devices
    extent = next((link.extent for link in found.links if link.reach == "node" and link.extent), None)
    if extent is None and devices > GPUS_PER_NODE:
        notes.append(f"nodes of {GPUS_PER_NODE} devices are assumed")
    return extent or GPUS_PER_NODE


def _wire(found: Device, reaches: tuple[str, ...], declared: Number | None, chips: Fraction, reach: str) -> Wire:
    if declared is not None:
        return Wire(
            "declared", reach, positive(declared, f"{reach}_gb_per_s") * 10**9, "declared by the caller", "declared"
        )
    for name in reaches:
        link = found.link(name)
        if link is not None:
            rate, source = one_direction(link, found)
            dimensions = link.dimensions or 0
            return Wire(link.name, reach, rate * chips, source, link.topology, dimensions)
    reason = found.missing.get("links") or found.missing.get(f"links.{reach}") or "no figure of this path is recorded"
    return Wire("unknown", reach, None, f"{reason}; declare one")


def one_direction(link: Link, found: Device) -> tuple[Fraction, str]:
    """Return a chip's bytes a second in one direction over a link, and how the printed figure was read."""
    if link.per_direction_gb_per_s is not None:
        return exact(link.per_direction_gb_per_s) * 10**9, f"{found.name}: printed for one direction"
    if link.bidirectional_gb_per_s is not None:
        return exact(link.bidirectional_gb_per_s) * 10**9 / 2, f"{found.name}: half of the bidirectional figure"
    if link.link_per_direction_gb_per_s is not None:
        links = link.links_per_device or 2 * (link.dimensions or 1)
        return exact(link.link_per_direction_gb_per_s) * links * 10**9, f"{found.name}: {links} links of one direction"
    assert link.unstated_gbit_per_s is not None
    rate = exact(link.unstated_gbit_per_s) * 10**9 / 8
    source = f"{found.name}: printed without a direction, taken as one"
    if link.unstated_per == "pod":
        extent = next((other.extent for other in found.links if other.topology == "torus"), None) or 1
        return rate / extent, f"{source}; a pod's figure over its {extent} chips"
    return rate, source
