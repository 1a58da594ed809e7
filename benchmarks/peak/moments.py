"""Where the memory of a compiled step is, moment by moment.

The heap trace is cut into stretches: the entry computation between its loops, and each of its loops. Of each stretch
the fullest event is kept with every buffer live then, and shown as the difference from the stretch shown before.

    python benchmarks/peak/moments.py FOLDER 'COMMAND' [smallest share shown]
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxcost.observation.hlo import memory as hlo_memory
from jaxcost.observation.hlo.heap import fullest, replay
from jaxcost.observation.hlo.module import Instruction, Module, read_module
from jaxcost.observation.hlo.origins import Places
from jaxcost.observation.hlo.schema import parse


@dataclass
class Stretch:
    """One stretch of the schedule: its fullest event and what is live then (temporary buffers only)."""

    name: str
    bytes: int
    instruction: str
    live: list[tuple[int, str, str, str]]  # bytes, shape, opcode and instruction, op_name


def _outermost(module: Module) -> dict[str, Instruction]:
    """Computation name to the while of the entry computation that runs it, directly or not."""
    owner: dict[str, Instruction] = {}

    def mark(computation: Any, top: Instruction) -> None:
        owner[computation.name] = top
        for at in computation.instructions:
            for called in at.called:
                mark(called, top)

    for at in module.entry.instructions:
        if at.opcode == "while":
            for called in at.called:
                mark(called, at)
    return owner


def stretches(data: bytes) -> tuple[list[Stretch], list[tuple[int, str, str]]]:
    """Return the stretches in order, and the resident buffers as (bytes, kind, shape and path)."""
    proto, assignment = parse(data)
    module = read_module(proto)
    places = Places(None)
    reader = hlo_memory._Reader(module, assignment, places)
    device = {i: b.size for i, b in reader.buffers.items() if b.color == 0}
    sizes = {i: device.get(i, 0) for i in reader.buffers}
    by_name = {at.name: at for at in module.walk()}
    tops = _outermost(module)
    best: list[Stretch] = []
    trace = max(assignment.heap_simulator_traces, key=lambda t: fullest(t, sizes).bytes, default=None)
    if trace is not None:
        marks: list[tuple[str, int, int]] = []  # stretch, bytes, event
        for event in replay(trace, sizes):
            number, used = event.number, event.used
            at = by_name.get(event.instruction)
            computation = at.computation.name if at is not None else event.computation
            top = tops.get(computation)
            name = top.name if top is not None else "entry"
            if at is not None and at.opcode == "while" and at.computation is module.entry:
                name, top = at.name, at
            if top is not None:
                backward = "transpose(jvp(group" in top.op_name
                name += " backward" if backward else " forward" if "jvp(group" in top.op_name else ""
            if event.kind == 1 and (not marks or marks[-1][0] != name):
                continue
            if not marks or marks[-1][0] != name:
                marks.append((name, used, number))
            elif used > marks[-1][1]:
                marks[-1] = (name, used, number)
        wanted = {number: (name, used) for name, used, number in marks}
        for event in replay(trace, sizes):
            number, used = event.number, event.used
            if number in wanted:
                rows = []
                for identity in event.live:
                    if sizes[identity]:
                        at, shape = reader.defined_by(reader.buffers[identity])
                        if at is None:
                            rows.append((sizes[identity], "", "", ""))
                        else:
                            _, op_name = places.named(at)
                            inner = "" if at.computation is module.entry else "~"
                            rows.append((sizes[identity], str(shape), f"{inner}{at.opcode} {at.name}", op_name))
                rows.sort(key=lambda row: (-row[0], row[2]))
                best.append(Stretch(wanted[number][0], used, event.instruction, rows))
    resident = [(b.bytes, b.kind, f"{b.shape} {b.op_name}") for b in reader.resident()]
    return best, sorted(resident, key=lambda row: -row[0])


def show(folder: Path, command: str, least: float = 0.004, share: float = 0.8) -> None:
    """Print the stretches of a compiled case that reach `share` of its peak."""
    from cases import key

    name = key(command)
    seen = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    print(command, name, seen["status"])
    if seen["status"] == "failed":
        print(seen["reason"])
        return
    found, resident = stretches((folder / f"{name}.hlo").read_bytes())
    kinds: Counter[str] = Counter()
    for size, kind, _ in resident:
        kinds[kind] += size
    base, top = sum(kinds.values()), max((s.bytes for s in found), default=0)
    print("  resident", dict(kinds), "live", base + top)
    before: Counter[tuple[int, str, str, str]] = Counter()
    for stretch in found:
        if stretch.bytes < share * top:
            continue
        mark = "***" if stretch.bytes == top else "=="
        print(f"  {mark} {stretch.name} +{stretch.bytes / 1e6:.2f} (total {(base + stretch.bytes) / 1e6:.2f})"
              f" at {stretch.instruction}")  # fmt: skip
        now = Counter(stretch.live)
        for sign, rows in (("-", before - now), ("+", now - before)):
            for (size, shape, what, op_name), times in rows.items():
                if size >= least * top:
                    path = op_name.replace("jit(training_step)/", "").replace("closed_call/", "").replace("body/", "")
                    print(f"   {sign}{size / 1e6:10.2f} x{times} {shape:34} {what[:40]:40} {path[-80:]}")
        before = now


if __name__ == "__main__":
    show(Path(sys.argv[1]), sys.argv[2], *(float(word) for word in sys.argv[3:]))
