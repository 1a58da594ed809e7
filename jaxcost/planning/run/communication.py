"""Collectives of a step: how often, how large, how many bytes a link carries. What of it is exposed is not known here.

Counts and bytes are the collectives ledger's; the duration is bytes over the link's rate in one direction, which no
overlap is taken from and no startup added to.
"""

from __future__ import annotations

from typing import Any

from jaxcost.planning.run.sheet import figure

OMITTED = "startup, protocol, contention, waiting for the slowest rank; how much is hidden behind computation"


@figure("communication", "collectives", scope="device", staged=True, convention="executions of one device in one step")
def collectives_per_step(transfers: Any) -> Any:
    """Collectives of a step."""
    return transfers["executions"]


@figure("communication", "collectives/s", scope="device", staged=True, convention="healthy steps")
def collectives_per_s(collectives_per_step: Any, step_seconds: Any) -> Any:
    """Their frequency."""
    return collectives_per_step / step_seconds


@figure(
    "communication",
    "bytes",
    scope="device",
    staged=True,
    convention="the whole array of one execution: before a reduction, after a gather",
)
def largest_payload_bytes(transfers: Any) -> Any:
    """Largest array that one of them moves."""
    return transfers["largest_bytes"]


@figure("communication", "bytes", scope="device", staged=True, convention="payload x executions of one step")
def payload_bytes_per_step(transfers: Any) -> Any:
    """All arrays that they move in a step."""
    return transfers["payload_bytes"]


@figure(
    "communication",
    "bytes",
    scope="device",
    staged=True,
    convention="ideal rings: what one device sends in a step",
    omitted="headers, retries, routes",
)
def ring_send_bytes_per_step(transfers: Any) -> Any:
    """Bytes that a device sends."""
    return transfers["ring_send_bytes"]


@figure("communication", "bytes", scope="device", staged=True, convention="level by level, inside a node or slice")
def inside_send_bytes_per_step(sends_inside: Any) -> Any:
    """Of them inside its node."""
    return sends_inside


@figure("communication", "bytes", scope="device", staged=True, convention="level by level, between nodes or slices")
def between_send_bytes_per_step(sends_between: Any) -> Any:
    """Of them to other nodes."""
    return sends_between


@figure(
    "communication",
    "s",
    scope="step",
    staged=True,
    convention="inside sends over the node link's rate in one direction",
    omitted=OMITTED,
)
def inside_seconds(inside_send_bytes_per_step: Any, node_bytes_per_s: Any) -> Any:
    """Time of the sends inside a node, if nothing overlaps."""
    return inside_send_bytes_per_step / node_bytes_per_s


@figure(
    "communication",
    "bytes/s",
    scope="device",
    staged=True,
    omitted=OMITTED,
    convention="between sends over the step: below it the network alone is longer than the step",
)
def network_bytes_per_s_needed(between_send_bytes_per_step: Any, step_seconds: Any) -> Any:
    """Network rate of a device that the step needs at least, in one direction."""
    return between_send_bytes_per_step / step_seconds


@figure(
    "communication",
    "s",
    scope="step",
    staged=True,
    convention="step less its executed FLOPs at peak: exposed transfers, bubbles, launches and ops bound by memory "
    "have to fit here",
)
def seconds_beyond_arithmetic(step_seconds: Any, executed_utilisation: Any) -> Any:
    """Time of a step that is not arithmetic at peak."""
    return step_seconds * (1 - executed_utilisation)
