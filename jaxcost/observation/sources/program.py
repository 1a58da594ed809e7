"""The records of a program to be audited, as plain data: they cross the border between processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from jaxcost.observation.targets import Family, Target, parse_target


@dataclass(frozen=True)
class Argument:
    """One array argument as the caller passes it (global shape), in the order of the flattened arguments.

    `kept`: whether the compiled program takes it (an unused one is pruned). `donated`: whether the caller gave it away.
    `sharding` is the text of its sharding, '' where none was given.
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    donated: bool
    kept: bool
    sharding: str = ""


@dataclass(frozen=True)
class Constant:
    """An array the function captured instead of taking it as an argument."""

    shape: tuple[int, ...]
    dtype: str
    bytes: int
    path: str = ""


@dataclass(frozen=True)
class Lowered:
    """What is known before the compiler runs: arguments, captured constants, the jaxpr's own count, the mesh.

    `jaxpr` is the section made by `jaxcost.observation.jaxpr`, None where only a lowered or compiled stage was given.
    `jitted` is what decides on donation: `jax.jit` (a plain function, and `nnx.jit`, alike) or `eqx.filter_jit`; ''
    where only a stage was given.
    """

    name: str
    platform: Family
    device_count: int
    arguments: tuple[Argument, ...]
    results: tuple[str, ...]
    constants: tuple[Constant, ...]
    mesh: Mapping[str, int]
    jaxpr: Mapping[str, Any] | None
    warnings: tuple[str, ...] = ()
    jitted: str = ""

    def to_data(self) -> dict[str, Any]:
        """Return the record as plain data."""
        return asdict(self)

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Self:
        """Return the record of `to_data`."""
        return cls(**{
            **data,
            "arguments": tuple(Argument(**{**a, "shape": tuple(a["shape"])}) for a in data["arguments"]),
            "constants": tuple(Constant(**{**c, "shape": tuple(c["shape"])}) for c in data["constants"]),
            "results": tuple(data["results"]),
            "warnings": tuple(data["warnings"]),
        })  # fmt: skip


@dataclass(frozen=True)
class Program:
    """One compiled module, and what is known of it.

    `origin`: function, stage, proto, text or dump. `hlo` is an HloProto or HloModuleProto (gzip accepted).
    `memory_analysis` and `cost_analysis` are the compiler's own numbers, None with a reason where there are none.
    `refused` is the compiler's text where it refused the program: then `hlo` is what it dumped on the way.
    `second` is the module compiled with XLA's own rematerialisation, where the first exceeds the device.
    `mesh` are the axes that the module itself names, where nothing is known of its lowering.
    """

    origin: str
    name: str
    hlo: bytes
    platform: Family
    target: Target | None = None
    lowered: Lowered | None = None
    memory_analysis: Mapping[str, int] | None = None
    memory_analysis_reason: str = "no compiler ran: its numbers are not in the file"
    cost_analysis: Mapping[str, float] | None = None
    cost_analysis_reason: str = "no compiler ran: its numbers are not in the file"
    refused: str = ""
    second: Mapping[str, Any] | None = None
    environment: Mapping[str, Any] = field(default_factory=dict)
    mesh: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def to_data(self) -> dict[str, Any]:
        """Return the record as plain data and bytes."""
        data = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {
            **data,
            "target": self.target.text if self.target else None,
            "lowered": self.lowered.to_data() if self.lowered else None,
            "notes": list(self.notes),
        }

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Self:
        """Return the record of `to_data`."""
        return cls(**{
            **data,
            "target": parse_target(data["target"]) if data["target"] else None,
            "lowered": Lowered.from_data(data["lowered"]) if data["lowered"] else None,
            "notes": tuple(data["notes"]),
        })  # fmt: skip
