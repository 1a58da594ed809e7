"""What an audit rests on: one compiled module, read, with what its source knew beside it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from jaxcost.audits.given import checked_mesh, checked_trips, of_devices
from jaxcost.observation.hlo import Graph, HloReading, Total, read_graph
from jaxcost.observation.hlo.flops import FlopCount, count_flops
from jaxcost.observation.hlo.frames import Stacks, user_frame
from jaxcost.observation.hlo.module import Instruction
from jaxcost.observation.sections import short_path
from jaxcost.observation.sources import Program
from jaxcost.observation.sources.files import module_facts

FOREIGN = ("proto", "text", "dump")  # origins of modules that may be damaged


@dataclass(frozen=True)
class Evidence:
    """A program and the reading of its module.

    `mesh` names the axes of collectives, in order; empty where none is known.
    """

    program: Program
    reading: HloReading
    graph: Graph
    mesh: Mapping[str, int]

    @property
    def platform(self) -> str:
        """`cpu`, `cuda` or `tpu`."""
        return self.program.platform

    @property
    def undoes_checkpoints(self) -> bool:
        """Whether the compiler merges the recomputation of a checkpoint in straight-line code with the original.

        The CPU compiler of jaxlib 0.10 does, that of 0.11 does not (0.10.2 and 0.11.2 tried); a module that does not
        say its version is taken for one of 0.10.
        """
        version = str(dict(self.program.environment.get("versions") or {}).get("jaxlib", ""))
        newer = re.match(r"0\.(?:1[1-9]|[2-9][0-9])\.|[1-9]", version) is not None
        return self.platform == "cpu" and not newer

    @cached_property
    def work(self) -> FlopCount:
        """What the program computes, counted once for all sections."""
        return count_flops(self.reading, self.graph)

    @cached_property
    def stacks(self) -> Stacks:
        """The Python stacks of the module's instructions."""
        return Stacks(self.graph.module)

    def user_source(self, at: Instruction) -> str:
        """`file:line` of the innermost call in the program's own code that made an instruction, '' without.

        Where all of its stack is in installed packages it is the innermost line of those.
        """
        frame = user_frame(self.stacks.of(at))
        return short_path(f"{frame.file}:{frame.line}" if frame is not None else self.graph.module.source(at))


@dataclass
class Notes:
    """What the sections of one audit found: `findings` for the reader, `unknowns` that a total rests on.

    A finding is {"kind", "text", "where"?, "bytes"?, "flops"?}; an unknown is {"what", "kind", "reason", "scope",
    "shapes"?, "source"?}.
    """

    findings: list[dict[str, Any]] = field(default_factory=list)
    unknowns: list[dict[str, Any]] = field(default_factory=list)

    def find(self, kind: str, text: str, **more: Any) -> None:
        """Add a finding."""
        self.findings.append({"kind": kind, "text": text, **more})

    def unknown(self, what: str, kind: str, reason: str, **more: Any) -> None:
        """Add an unknown."""
        self.unknowns.append({"what": what, "kind": kind, "reason": reason, **more})


def gather(
    program: Program, *, mesh: Mapping[str, int] | None = None, trips: Mapping[str, int] | None = None
) -> Evidence:
    """Read the module of a program.

    Args:
        program: what to read.
        mesh: ordered axis sizes; None takes those the source knew.
        trips: counts by while-instruction name, for loops that depend on run-time values.

    Raises:
        RejectedError: the bytes are not one whole, consistent module. The mesh has another number of devices. A count
            is of no loop, or of one that the program counts otherwise.
    """
    mesh, trips = checked_mesh(mesh), checked_trips(trips)
    if mesh:
        facts = module_facts(program.hlo)
        if facts.counted:
            of_devices(mesh, facts.device_count)
    axes = dict(mesh if mesh is not None else program.lowered.mesh if program.lowered else program.mesh)
    target = program.target
    per_island = None
    if target is not None and (islands := max(target.node_count, target.slice_count)) > 1:
        per_island = target.device_count // islands
    reading, graph = read_graph(
        program.hlo, platform=program.platform, mesh=axes or None, trips=trips, devices_per_node=per_island,
        general=True,
    )  # fmt: skip
    return Evidence(program, reading, graph, axes)


def number(total: Total) -> int | dict[str, int] | None:
    """A total in JSON: its integer, the interval it lies in, or None."""
    if total.minimum is None:
        return None
    assert total.maximum is not None
    return total.minimum if total.value is not None else {"minimum": total.minimum, "maximum": total.maximum}
