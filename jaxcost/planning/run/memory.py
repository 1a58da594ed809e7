"""What a device holds: state by the ownership ledger, the peak by the device ledger, and what is left of the device.

`16 P / D` is what a device would hold if every component were divided by all devices. No layout is assumed to do so:
it is a lower bound, and the ledger's number is the sum of what each array's own axes divide. A plan without a model
knows the bound alone, so it may find that a run does not fit and never that it does.
"""

from __future__ import annotations

from typing import Any

from jaxcost.planning.run.sheet import Unknown, figure

PEAK = "one device, the worst one; live arrays at the fullest moment: state, saved tensors, gathered weights, buffers"
UNCOUNTED = "allocator fragmentation, communication libraries, profilers"


@figure(
    "memory",
    "bytes",
    scope="device",
    convention="all state over all devices; only where every component is sharded",
    omitted="replicated vectors, activations, gathered weights, buffers",
)
def perfect_shard_bytes(full_state_bytes: Any, devices: Any) -> Any:
    """State of a device if every component were divided by every device."""
    return full_state_bytes / devices


@figure(
    "memory",
    "bytes",
    scope="device",
    staged=True,
    convention="ownership ledger: each array by the axes that divide it",
    omitted="activations, gathered weights, buffers",
)
def state_bytes_per_device(persistent: Any) -> Any:
    """State that a device holds between steps."""
    return persistent


@figure("memory", "bytes", scope="device", staged=True, convention="ownership ledger less perfect division")
def undivided_bytes_per_device(state_bytes_per_device: Any, perfect_shard_bytes: Any) -> Any:
    """What perfect division would leave out."""
    return state_bytes_per_device - perfect_shard_bytes


@figure(
    "memory", "bytes", scope="device", staged=True, convention=PEAK + "; lower end of the interval", omitted=UNCOUNTED
)
def peak_lower_bytes(peak: Any, perfect_shard_bytes: Any = None) -> Any:
    """Memory at the peak, at least."""
    if peak["lower"] is not None:
        return peak["lower"]
    if perfect_shard_bytes is not None:
        return perfect_shard_bytes
    return Unknown(str(peak.get("reason", "not predicted")))


@figure(
    "memory", "bytes", scope="device", staged=True, convention=PEAK + "; upper end of the interval", omitted=UNCOUNTED
)
def peak_upper_bytes(peak: Any) -> Any:
    """Memory at the peak, at most."""
    return peak["upper"] if peak["upper"] is not None else Unknown(str(peak.get("reason", "not predicted")))


@figure(
    "memory",
    "bytes",
    scope="device",
    convention="what a program may address of the device x the share that a step may fill",
)
def memory_limit_bytes(device_memory_bytes: Any, memory_fraction: Any) -> Any:
    """Memory that a step may fill."""
    return int(device_memory_bytes * memory_fraction)


@figure(
    "memory",
    "bytes",
    scope="device",
    staged=True,
    convention="limit less the upper end of the peak; negative: it does not fit",
    omitted=UNCOUNTED,
)
def headroom_bytes(memory_limit_bytes: Any, peak_upper_bytes: Any) -> Any:
    """Headroom at the peak."""
    return memory_limit_bytes - peak_upper_bytes


@figure(
    "memory",
    "",
    scope="device",
    staged=True,
    convention="no where the lower end exceeds the limit, yes where the upper end stays within it, unknown between",
)
def fits(memory_limit_bytes: Any, peak_lower_bytes: Any, peak_upper_bytes: Any = None) -> Any:
    """Whether the step fits."""
    if peak_lower_bytes > memory_limit_bytes:
        return "no"
    if peak_upper_bytes is not None and peak_upper_bytes <= memory_limit_bytes:
        return "yes"
    return Unknown("the peak is not bounded from above" if peak_upper_bytes is None else "the interval holds the limit")
