"""The peak as a cut: the most bytes alive at one time, from supplied events or from the program in its declared order.

Intervals are half-open and a release precedes a birth at the same time, so the peak is never the sum of all objects.

The program's own replay takes one microbatch on one device. A tensor is born at its op and dies after its last use;
saved tensors live until the backward op that needs them; gradients of activations are born and die in reverse order.
Weight gradients belong to the state ledger. Layers of a group are alike, so the replay visits its last layer, where
saved tensors of all earlier layers are alive, as one stack.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from jaxcost.contracts.dtypes import payload_bytes
from jaxcost.contracts.liveness import Liveness
from jaxcost.prediction.program import Op, Primitive, Program
from jaxcost.prediction.replay import Saved, walk


class Peak(NamedTuple):
    """The largest cut: bytes, when (a time or an op's scope), in which phase, and what is alive, largest first."""

    bytes: Any
    at: Any
    phase: str
    alive: tuple[tuple[str, Any], ...]


def supplied_peak(events: Liveness) -> Peak:
    """Return the first largest cut through supplied intervals, workspace included and persistent bytes left out."""
    best = Peak(0, 0.0, "", ())
    for time in sorted({item.birth for item in events.objects}):
        alive = [(item.name, item.bytes) for item in events.objects if item.birth <= time < item.death]
        size = sum(value for _, value in alive)
        if size > best.bytes:
            best = Peak(size, time, "", tuple(alive))
    return best


@dataclass
class _Replay:
    """Live bytes while ops run."""

    program: Program
    sizes: Any
    live: dict[str, Any] = field(default_factory=dict)
    best: Peak = field(default_factory=lambda: Peak(0, "", "", ()))

    def born(self, name: str, gradient: bool = False) -> None:
        key = f"d {name}" if gradient else name
        tensor = self.program.tensors[name]
        if key in self.live or tensor.role in ("parameter", "view", "input", "onchip"):
            return
        if tensor.role == "cache" and self.program.case.workload.continues:
            return  # written in place into the donated argument
        self.live[key] = payload_bytes(self.program.device_elements(tensor, self.sizes), tensor.dtype)

    def cut(self, op: Op, phase: str) -> None:
        size = sum(self.live.values())
        if size > self.best.bytes:
            alive = sorted(self.live.items(), key=lambda item: -item[1])
            self.best = Peak(size, op.scope, phase, tuple((name, value) for name, value in alive if value))

    def forward(self, ops: list[Op], keep: set[str], phase: str) -> None:
        last = {name: index for index, op in enumerate(ops) for name in op.inputs}
        for index, op in enumerate(ops):
            enters = isinstance(op, Primitive) and op.kind == "carry"
            if enters:  # the layer's input is the tensor that leaves the previous one
                self._free(op, index, last, keep)
            for name in op.outputs:
                self.born(name)
            self.cut(op, phase)
            if not enters:
                self._free(op, index, last, keep)

    def _free(self, op: Op, index: int, last: dict[str, int], keep: set[str]) -> None:
        for name in (*op.inputs, *op.outputs):
            if last.get(name, index) <= index and name not in keep:
                self.live.pop(name, None)


def program_peak(program: Program) -> Peak:
    """Return the peak of activations and their gradients in the declared order, in bytes on the worst device."""
    run = program.case.execution
    sizes = program.device_microbatch_sizes
    training = program.case.workload.phase == "training"
    # A checkpoint around everything rebuilds all that backward needs before backward starts.
    found = walk(program, "none" if run.remat == "everything" else None) if training else None
    kept = found.saved if found else ()
    replay = _Replay(program, sizes)
    keep = {item.name for item in kept} | set(program.results)
    for segment in _segments(program):
        if segment[0].segment:
            stack = _stack(program, sizes, kept, segment[0].segment)
            if stack:
                replay.live[f"saved by earlier layers of {segment[0].segment}"] = stack
        after = {name for op in program.ops[program.ops.index(segment[-1]) + 1 :] for name in op.inputs}
        replay.forward(segment, keep | after, "forward")
    if found:
        useful = {id(op) for op in found.useful}
        for segment in reversed(_segments(program)):
            _backward(program, replay, segment, useful)
            replay.live.pop(f"saved by earlier layers of {segment[0].segment}", None)
    return replay.best


def _segments(program: Program) -> list[list[Op]]:
    """Return runs of ops of the same segment, in order."""
    runs: list[list[Op]] = []
    for op in program.ops:
        if runs and runs[-1][0].segment == op.segment:
            runs[-1].append(op)
        else:
            runs.append([op])
    return runs


def _stack(program: Program, sizes: Any, kept: tuple[Saved, ...], segment: str) -> Any:
    total: Any = 0
    for item in kept:
        tensor = program.tensors[item.name]
        if item.region == "block" and program.producers[item.name].segment == segment:
            total = total + payload_bytes(program.device_elements(tensor, sizes), tensor.dtype) * (item.copies - 1)
    return total


def _backward(program: Program, replay: _Replay, segment: list[Op], useful: set[int]) -> None:
    """Rebuild what the segment's backward ops need, then run them in reverse."""
    needed = {name for op in segment for name in op.needs}
    again = [op for op in segment if id(op) in useful]
    replay.forward(again, needed | set(replay.live), "replay")
    for index in range(len(segment) - 1, -1, -1):
        op = segment[index]
        earlier = {name for other in segment[:index] for name in other.needs}
        if isinstance(op, Primitive) and op.kind == "carry":
            gradient = replay.live.pop(f"d {op.outputs[0]}", None)
            if gradient is not None:
                replay.live[f"d {op.inputs[0]}"] = gradient
        elif op.gradients:
            for name in op.outputs:
                if name != "loss/out":
                    replay.born(name, gradient=True)
            for name in op.gradients:
                replay.born(name, gradient=True)
            replay.cut(op, "backward")
        for name in op.outputs:
            replay.live.pop(f"d {name}", None)
        for name in (*op.needs, *op.outputs):
            if name not in earlier:
                replay.live.pop(name, None)
