"""`read_hlo`: the whole reading of one compiled module."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Literal, get_args

from jaxcost.observation.hlo.collectives import Collectives, read_collectives
from jaxcost.observation.hlo.contractions import read_contractions
from jaxcost.observation.hlo.memory import Memory, read_memory, result_table_bytes
from jaxcost.observation.hlo.module import Module, not_collecting, read_module
from jaxcost.observation.hlo.origins import Places
from jaxcost.observation.hlo.products import Contractions
from jaxcost.observation.hlo.schema import Proto, agreeing, rejected, split
from jaxcost.observation.hlo.scope import scope_parts
from jaxcost.observation.hlo.traffic import Traffic, read_traffic
from jaxcost.observation.hlo.trips import Conditional, Executions, Loop, Total, read_executions

Platform = Literal["cpu", "cuda", "tpu"]


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of the program: its path in the Python arguments, its shape and bytes on one device.

    `logical_bytes` leaves out the padding of the layout.
    """

    number: int
    path: str
    shape: str
    bytes: int
    logical_bytes: int


@dataclass(frozen=True, slots=True)
class Result:
    """One array that the program returns, on one device; `logical_bytes` leaves out the padding of the layout."""

    shape: str
    bytes: int
    logical_bytes: int


@dataclass(frozen=True, slots=True)
class HloReading:
    """What one compiled module says, per device and step.

    `digest` is the SHA-256 of the bytes given. `xla_remat` names the instructions of XLA's own rematerialisation.
    `unknowns` lists fields, opcodes and constructs the reader did not know or could not count; while it is not empty, a
    total may rest on something unread.
    """

    platform: str
    module: str
    digest: str
    device_count: int
    arguments: tuple[Argument, ...]
    results: tuple[Result, ...]
    result_table_bytes: int
    loops: tuple[Loop, ...]
    conditionals: tuple[Conditional, ...]
    contractions: Contractions
    memory: Memory
    traffic: Traffic
    collectives: Collectives
    xla_remat: tuple[str, ...]
    unknowns: tuple[str, ...]

    @property
    def flops(self) -> Total:
        """Contraction FLOPs of one step on one device (one FMA = two)."""
        return self.contractions.total

    def to_dict(self) -> dict[str, Any]:
        """The reading as JSON values. A total is its integer, {"minimum", "maximum"} or {"unknown": reason}; a table
        keyed by tuples is a list of {"key": [...], "value": ...}; the groups of collectives are listed once, by
        index.
        """
        plain = _plain(self)
        table: dict[str, int] = {}
        listed: list[Any] = []
        for row in plain["collectives"]["rows"]:
            text = repr(row["groups"])
            if text not in table:
                table[text] = len(listed)
                listed.append(row["groups"])
            row["groups"] = table[text]
        plain["collectives"]["groups"] = listed
        assert isinstance(plain, dict)
        return plain


def _plain(value: Any) -> Any:
    if isinstance(value, Total):
        if value.minimum is None:
            return {"unknown": value.reason}
        return value.minimum if value.value is not None else {"minimum": value.minimum, "maximum": value.maximum}
    if is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, dict):
        if all(isinstance(key, str) for key in value):
            return {key: _plain(v) for key, v in value.items()}
        return [{"key": _plain(key), "value": _plain(v)} for key, v in value.items()]
    if isinstance(value, (tuple, list)):
        return [_plain(v) for v in value]
    return value


@dataclass(frozen=True, slots=True)
class Graph:
    """The module behind a reading, for what goes on to ask about single instructions. `moved_bytes`: what one execution
    of an instruction reads and writes in device memory, by its id.
    """

    module: Module
    assignment: Proto | None
    loops: Mapping[int, Loop]
    executions: Executions
    places: Places
    moved_bytes: Mapping[int, int]


def read_hlo(
    hlo_bytes: bytes,
    *,
    platform: Platform,
    mesh: Mapping[str, int] | None = None,
    scopes: frozenset[str] | None = None,
    trips: Mapping[str, int] | None = None,
    devices_per_node: int | None = None,
) -> HloReading:
    """Read an HloProto or HloModuleProto (gzip accepted).

    `mesh`: ordered axis -> size, to name collectives' axes. `scopes`: names of the program's scope components (as
    names or paths); None keeps every named scope. `trips`: counts by while-instruction name, for loops that depend on
    run-time values. `devices_per_node`: consecutive devices that share a node or a slice, where there are several.
    Raises RejectedError for bytes that are not one whole, consistent module.
    """
    return read_graph(
        hlo_bytes, platform=platform, mesh=mesh, scopes=scopes, trips=trips, devices_per_node=devices_per_node
    )[0]


def read_graph(
    hlo_bytes: bytes,
    *,
    platform: Platform,
    mesh: Mapping[str, int] | None = None,
    scopes: frozenset[str] | None = None,
    trips: Mapping[str, int] | None = None,
    devices_per_node: int | None = None,
    general: bool = False,
) -> tuple[HloReading, Graph]:
    """The reading and the graph it was read from; arguments and errors are those of `read_hlo`.

    `general`: buffers are classed as those of a program of any author (`purposes`).
    """
    if platform not in get_args(Platform):
        raise rejected(
            "platform", platform, f"must be one of {', '.join(get_args(Platform))}", "give the target's platform"
        )
    for name, count in (trips or {}).items():
        if type(count) is not int or count < 0:
            raise rejected(f"trips.{name}", count, "a trip count is a whole number, 0 or more", "correct it")
    with agreeing(), not_collecting():
        return _read(
            bytes(hlo_bytes), platform, mesh, scopes_kept=scope_parts(scopes), trips=trips,
            devices_per_node=devices_per_node, general=general,
        )  # fmt: skip


def _read(
    data: bytes, platform: str, mesh: Mapping[str, int] | None, *, scopes_kept: frozenset[str] | None,
    trips: Mapping[str, int] | None, devices_per_node: int | None, general: bool,
) -> tuple[HloReading, Graph]:  # fmt: skip
    parts = split(data)
    module, assignment = read_module(parts), parts.assignment
    executions = read_executions(module, trips)
    loops = executions.loops
    places = Places(scopes_kept, module.op_names())
    contractions, notes = read_contractions(module, executions, places, platform)
    memory, memory_notes = read_memory(module, assignment, places, platform, general=general)
    traffic, moved = read_traffic(module, executions, places)
    collectives = read_collectives(module, executions, places, mesh, devices_per_node)
    unknowns = [
        *module.unknowns,
        *notes,
        *memory_notes,
        *(loop.reason for loop in loops.values() if loop.trips is None and not loop.varies),
    ]
    reading = HloReading(
        platform=platform, module=module.name, digest=hashlib.sha256(data).hexdigest(),
        device_count=module.device_count,
        arguments=tuple(
            Argument(number, at.op_name, str(at.shape), at.shape.bytes, at.shape.logical_bytes)
            for number, at in sorted(module.entry.parameters.items())
        ),
        results=tuple(Result(str(leaf), leaf.bytes, leaf.logical_bytes) for leaf in module.entry.root.shape.leaves()),
        result_table_bytes=result_table_bytes(module, assignment, platform),
        loops=tuple(loops.values()),
        conditionals=tuple(executions.conditionals.values()), contractions=contractions, memory=memory,
        traffic=traffic, collectives=collectives,
        xla_remat=tuple(at.name for at in module.walk() if ".remat" in at.name), unknowns=tuple(unknowns),
    )  # fmt: skip
    return reading, Graph(module, assignment, loops, executions, places, moved)
