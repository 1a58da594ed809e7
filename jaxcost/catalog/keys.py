"""Strict reading of one config: typed keys, every problem collected, and which keys were read.

One rule for whole numbers everywhere: a size is an exact integer. An integral float (4096.0) is refused, not converted,
because a file that writes sizes as floats was rewritten by a tool and may have lost digits; true and false are no
numbers. A key of the graph that is a real number (an epsilon, a rate, a rotary base) may be written as an integer.

Absent and null differ. A key left out takes the class's own default; null is allowed only where the class gives it a
meaning, and each reader says which.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from jaxcost.contracts.errors import Problem
from jaxcost.contracts.record import LARGEST_SIZE

# config name (transformers.activations.ACT2FN) -> the record's name
ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}
ABSENT: Any = object()
REQUIRED: Any = object()
COPY = "copy it from the released config"


class Keys:
    """One object of a config. Readers return a usable value even after a problem, so that all problems are found."""

    def __init__(self, data: Mapping[str, Any], where: str):
        self.data, self.where = dict(data), where
        self.read: set[str] = set()
        self.broken: set[str] = set()
        self.problems: list[Problem] = []

    def problem(self, key: str, value: object, rule: str, remedy: str) -> None:
        """Note that `key` breaks `rule`."""
        self.broken.add(key)
        self.problems.append(Problem(f"{self.where}.{key}" if self.where else key, value, rule, remedy))

    def get(self, key: str, default: Any = None) -> Any:
        """The raw value, marked as read."""
        self.read.add(key)
        return self.data.get(key, default)

    def sound(self, *names: str) -> bool:
        """Whether none of these keys has a problem: a rule between two keys is for values that are what they should."""
        return self.broken.isdisjoint(names)

    def given(self, key: str) -> bool:
        """Whether the key is there with a value other than null."""
        return self.data.get(key) is not None

    def size(self, key: str, default: Any = REQUIRED, null: int | None = None) -> int:
        """A positive exact integer; `null` is what a null means, None where null is not allowed."""
        value = self.get(key, default)
        if value is REQUIRED:
            self.problem(key, None, "missing, and the class has no usable default for it", COPY)
            return 1
        if value is None and null is not None:
            return null
        if isinstance(value, bool) or not isinstance(value, int):
            rule = "must be an exact integer"
            self.problem(key, value, rule, "write a whole number without a decimal point, quotes or true/false")
            return 1
        if not 0 < value <= LARGEST_SIZE:
            self.problem(key, value, f"must lie between 1 and {LARGEST_SIZE}", "copy the size from the released config")
            return 1
        return value

    def count(self, key: str, default: int) -> int:
        """An exact integer from 0."""
        if self.data.get(key) == 0 and type(self.data[key]) is int:
            self.read.add(key)
            return 0
        return self.size(key, default) if key in self.data or default else default

    def number(self, key: str, default: float, low: float = 0.0, high: float = math.inf) -> float:
        """A finite number in [low, high)."""
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.problem(key, value, "must be a number", "write a number without quotes")
        elif not low <= value < high or (isinstance(value, int) and value > 10**300):
            self.problem(key, value, f"must lie in [{low}, {high})", COPY)
        else:
            return float(value)
        return low

    def positive(self, key: str, default: float) -> float:
        """A finite number above zero."""
        value = self.get(key, default)
        if isinstance(value, int | float) and not isinstance(value, bool) and value == 0:
            self.problem(key, value, "must be positive", COPY)
            return 1.0
        return self.number(key, default) or 1.0

    def optional(self, key: str, default: float | None) -> float | None:
        """A positive number, or null for a part that is switched off."""
        if self.data.get(key, default) is None:
            self.read.add(key)
            return None
        return self.positive(key, default or 1.0)

    def rate(self, key: str, default: float) -> float:
        """A dropout rate in [0, 1)."""
        return self.number(key, default, high=1.0)

    def flag(self, key: str, default: bool) -> bool:
        """A boolean."""
        value = self.get(key, default)
        if isinstance(value, bool):
            return value
        self.problem(key, value, "must be true or false", "write true or false")
        return default

    def activation(self, key: str, default: str) -> str:
        """An activation by its transformers name."""
        value = self.get(key, default)
        if isinstance(value, str) and value in ACTIVATIONS:
            return ACTIVATIONS[value]
        names = ", ".join(ACTIVATIONS)
        self.problem(key, value, "not an activation that is understood", f"the activations are {names}")
        return "silu"

    def only(self, key: str, allowed: tuple[object, ...], why: str) -> None:
        """A key of the graph of which only some values are understood; the class default is among them."""
        value = self.get(key, ABSENT)
        if value is not ABSENT and not any(type(value) is type(item) and value == item for item in allowed):
            shown = " or ".join("null" if item is None else str(item).lower() for item in allowed)
            self.problem(key, value, why, f"only {shown} is understood here")

    def rename(self, aliases: Mapping[str, str]) -> None:
        """Read a key under its other names (the class's attribute map); two names may not disagree."""
        for alias, key in aliases.items():
            if alias not in self.data:
                continue
            self.read.add(alias)
            value = self.data[alias]
            if key in self.data and self.data[key] != value:
                self.problem(alias, value, f"another name of {key}, which has another value", "keep one of the two")
            self.data[key] = value

    def table(self, key: str) -> Keys | None:
        """A nested object, or None where the key is absent or null; its problems go to `absorb`."""
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            self.problem(key, value, "must be null or an object", COPY)
            return None
        return Keys(value, f"{self.where}.{key}" if self.where else key)

    def absorb(self, inner: Keys, remedy: str = "remove it, or write a manifest") -> None:
        """Take over the problems of a nested object, and refuse its keys that nobody read."""
        for extra in inner.data:
            if extra not in inner.read:
                inner.problem(str(extra), inner.data[extra], "not a key that is understood", remedy)
        self.problems += inner.problems
