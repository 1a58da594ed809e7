"""What a device offers: the target of a mesh, the share of memory that a program may fill, whether a size stays in.

JAX preallocates 0.75 of a GPU's memory unless told otherwise; 0.95 is about what is left beside the runtime.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from jaxcost.contracts.errors import reject
from jaxcost.observation.targets import LARGEST_DEVICE_COUNT, Target, parse_target

FRACTIONS = ("0.75", "0.95")
GPUS_PER_NODE = 8


def limit_bytes(target: Target, fraction: str) -> int | None:
    """Return the bytes that a program may fill, rounded down; None where the target states no memory."""
    memory = target.device_memory_bytes
    return None if memory is None else int(memory * Fraction(fraction))


def within(size: int | None, limit: int | None) -> bool | None:
    """Return whether a size stays within a limit; None where either is unknown."""
    return None if size is None or limit is None else size <= limit


NO_LIMIT = "the target states no memory limit"


def interval_within(peak: Mapping[str, Any], limit: int | None) -> bool | None:
    """Return whether a predicted peak stays within a limit; None where its interval holds the limit, or is unknown."""
    if limit is None:
        return None
    if peak["lower"] is not None and peak["lower"] > limit:
        return False
    return True if peak["upper"] is not None and peak["upper"] <= limit else None


def fraction_labels(fractions: Sequence[str | float]) -> tuple[str, ...]:
    """Return the fractions as the texts that name them, in order, each once.

    Raises:
        RejectedError: one is not a number above 0 and at most 1.
    """
    labels: dict[str, None] = {}
    for value in fractions or FRACTIONS:
        text = str(value).strip()
        try:  # an exponent of many digits would be written out in full
            number = Fraction(text) if len(text) <= 20 and not re.search(r"e[+-]?[\d_]{4}", text, re.I) else Fraction(0)
        except (ValueError, ZeroDivisionError):
            number = Fraction(0)
        if not 0 < number <= 1:
            raise reject("--fraction", text, "must be a number above 0 and at most 1", "write for example 0.9")
        labels[text] = None
    return tuple(labels)


def fill_target(text: str, devices: int) -> str:
    """Return a target with a shape for `devices`: its own, else one chosen.

    NVIDIA: nodes of 8 devices. TPU: the torus whose sides are nearest to each other.

    Raises:
        RejectedError: the text is no target, or the chip makes no shape of that many devices.
    """
    if ":" in text or not text:
        return text
    smallest = parse_target(text)
    chip, largest = smallest.chip, LARGEST_DEVICE_COUNT[smallest.family]
    if devices > largest:  # also before the tori of so many are looked for
        rule = f"the mesh has {devices} devices; {chip} makes at most {largest}"
        raise reject("--target", text, rule, "choose a smaller mesh")
    if smallest.family != "tpu":
        if smallest.family == "cpu" or devices <= GPUS_PER_NODE:
            return f"{chip}:{devices}"
        if devices % GPUS_PER_NODE:
            rule = f"{devices} devices are no whole number of nodes of {GPUS_PER_NODE}"
            raise reject("--target", text, rule, f"write {chip}:{devices}, or NODESxDEVICES")
        return f"{chip}:{devices // GPUS_PER_NODE}x{GPUS_PER_NODE}"
    chips, left = divmod(devices, smallest.device_count)
    if left:
        rule = f"{devices} devices are no whole number of chips of {smallest.device_count} devices"
        raise reject("--target", text, rule, "choose another mesh or target")
    shape = min(_tori(chips, len(smallest.chip_shape)), key=lambda sides: sides[-1] - sides[0])
    return f"{chip}:{'x'.join(map(str, shape))}"


def _tori(chips: int, dimensions: int, least: int = 1) -> list[tuple[int, ...]]:
    """Return the ways to write `chips` as a product of sides in rising order."""
    if dimensions == 1:
        return [(chips,)] if chips >= least else []
    sides = [side for side in range(least, math.isqrt(chips) + 1) if side**dimensions <= chips and chips % side == 0]
    return [(side, *rest) for side in sides for rest in _tori(chips // side, dimensions - 1, side)]
