"""How fast prefill and decode can be: ledgers over a device's rates, two idealisations, neither a promise.

    full overlap   arithmetic, memory traffic and collectives at once: the longest of the three
    serialised     one after the other: their sum

No execution of these counts is faster than full overlap; a real one can be slower than the sum. Weights cross memory
once a step whatever the batch; every sequence brings its own K/V rows. Of a windowed layer only the rows its window
reaches are counted. With a pipeline the batch is cut into one part a stage; a token passes all stages.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Any

from jaxcost.contracts.architecture import Architecture
from jaxcost.contracts.dtypes import payload_bytes
from jaxcost.contracts.errors import reject
from jaxcost.observation.targets import Target
from jaxcost.planning.machine import Machine, machine
from jaxcost.planning.serve.capacity import serving_case
from jaxcost.planning.serve.inputs import Engine
from jaxcost.planning.serve.weights import rank_weights, stored_program
from jaxcost.planning.steptime import step_time
from jaxcost.prediction.program import Program, program
from jaxcost.prediction.traffic import product_rows

MOST_SEQUENCES = 2**20


@dataclass(frozen=True)
class Bound:
    """A step's work on the busiest device: seconds of arithmetic, traffic and collectives; bytes by what they are."""

    compute: Fraction
    memory: Fraction
    sent: Fraction
    flops: int
    weight_bytes: int
    kv_bytes: int
    other_bytes: int

    @property
    def full_overlap(self) -> Fraction:
        """All three resources at once."""
        return max(self.compute, self.memory, self.sent)

    @property
    def serialised(self) -> Fraction:
        """One after the other."""
        return self.compute + self.memory + self.sent

    @property
    def by(self) -> str:
        """The resource that takes longest."""
        named = {"compute": self.compute, "memory": self.memory, "interconnect": self.sent}
        return max(named, key=lambda name: named[name])

    def plus(self, other: Bound) -> Bound:
        """Return two steps after one another."""
        mine, its = vars(self), vars(other)
        return Bound(**{name: mine[name] + its[name] for name in mine})

    def mean(self, other: Bound, times: int) -> Bound:
        """Return `times` steps whose work goes from this one's to the other's in equal parts."""
        mine, its = vars(self), vars(other)
        found: dict[str, Any] = {}
        for name in mine:
            half = times * Fraction(mine[name] + its[name]) / 2
            found[name] = int(half) if isinstance(mine[name], int) else half
        return Bound(**found)

    def to_data(self) -> dict[str, Any]:
        """Return the JSON form, seconds of one device."""
        return {
            "full_overlap_seconds": float(self.full_overlap), "serialised_seconds": float(self.serialised),
            "compute_seconds": float(self.compute), "memory_seconds": float(self.memory),
            "communication_seconds": float(self.sent), "bound": self.by, "flops": self.flops,
            "weight_bytes": self.weight_bytes, "kv_bytes": self.kv_bytes, "other_bytes": self.other_bytes,
        }  # fmt: skip


class Model:
    """A model on a replica of a machine: the bound of every step that serving takes."""

    def __init__(self, architecture: Architecture, engine: Engine, target: Target, **wires: Any):
        self.architecture, self.engine, self.target, self.wires = architecture, engine, target, wires
        self._found: dict[tuple[Any, ...], Bound] = {}

    @cached_property
    def machine(self) -> Machine:
        """One stage's tensor ranks; the peak is that of the declared arithmetic."""
        case = serving_case(self.architecture, self.engine, {"phase": "decode", "past": 1})
        each = self.target.device_count // max(1, self.target.node_count, self.target.slice_count)
        wires = {"devices_per_node": each, **{name: value for name, value in self.wires.items() if value is not None}}
        found = machine(self.target.text.partition(":")[0], case, **wires)
        if self.engine.arithmetic == "bf16":
            return found
        rate, chips = found.device.peak(self.engine.arithmetic), found.device.jax_devices_per_chip
        return replace(found, peak=replace(rate, per_second=rate.per_second / chips))

    @cached_property
    def streamed(self) -> int | None:
        """Bytes of weights that a step reads on one tensor rank where they are quantised; None where they are not."""
        if self.engine.weight_dtype == "bf16":
            return None
        flat = self.engine.replaced(pipeline=1, pipeline_layers=())
        return rank_weights(stored_program(self.architecture, flat), flat)[0].streamed

    def decode(self, batch: int, context: int) -> Bound:
        """Return the bound of one new token of each of `batch` sequences over `context` cached ones."""
        return self._step(batch, 1, context)

    def verify(self, batch: int, rows: int, context: int) -> Bound:
        """Return the bound of a step with several new rows a sequence, logits for each."""
        return self._step(batch, rows, context)

    def prefill(self, prompt: int, chunk: int | None = None, batch: int = 1) -> Bound:
        """Return the bound of a prompt, whole or in chunks; each chunk reads the weights and the rows before it.

        Between the lengths of windows the work of a chunk is affine in the rows before it, so a run of chunks there is
        its number times the mean of its ends, exactly.
        """
        chunk = min(chunk or prompt, prompt)
        whole, rest = divmod(prompt, chunk)
        parts = [self._step(batch, chunk, 0, final=True)]
        for first, last in affine_runs(whole, chunk, self.windows):
            ends = [self._step(batch, chunk, index * chunk, final=True) for index in (first, last)]
            parts.append(ends[0].mean(ends[1], last - first + 1))
        if rest:
            parts.append(self._step(batch, rest, whole * chunk, final=True))
        found = parts[0]
        for part in parts[1:]:
            found = found.plus(part)
        return found

    @property
    def windows(self) -> frozenset[int]:
        """The sliding windows of the layers."""
        return frozenset(window for group in self.architecture.groups for window in group.windows if window)

    def _step(self, batch: int, rows: int, past: int, final: bool = False) -> Bound:
        key = (batch, rows, past, final)
        if key not in self._found:
            self._found[key] = self._fresh(batch, rows, past, final)
        return self._found[key]

    def _fresh(self, batch: int, rows: int, past: int, final: bool) -> Bound:
        part = -(-batch // self.engine.pipeline)
        if rows == 1 and past:
            case = serving_case(self.architecture, self.engine, {"phase": "decode", "batch": part, "past": past})
        else:
            options = {
                "phase": "prefill", "batch": part, "seq": rows, "logits": "final" if final else "all",
                "attention_block": rows,  # one block: the kernel reads keys and values once
            }  # fmt: skip
            case = serving_case(self.architecture, self.engine, options)
            if past:
                case = case.replaced(workload=case.workload.replaced(past_tokens=past))
        built = program(case)
        found = step_time(built, self.machine)
        sent = found.communication_seconds
        if sent is None:
            raise reject("--target", self.target.text, found.reason, "declare the rate (--inside-gbs, --between-gbs)")
        whole = found.whole
        weight, kv = _read(built, "weight"), _read(built, "kv")
        other = whole.bytes - weight - kv
        kv -= beyond_windows(built)
        weight = weight if self.streamed is None else self.streamed
        memory = Fraction(weight + kv + other) / self.machine.bytes_per_second
        return Bound(whole.compute_seconds, memory, sent + self._crossing(part, rows), whole.flops, weight, kv, other)

    def _crossing(self, batch: int, rows: int) -> Fraction:
        """Return the time in which the rows pass from stage to stage, inside a node where the replica lies in one."""
        if self.engine.pipeline == 1:
            return Fraction(0)
        wire = self.machine.inside if self.inside_node else self.machine.between
        size = payload_bytes(batch * rows * self.architecture.hidden_size, "bf16") // self.engine.tensor
        seconds = wire.seconds(size)
        if seconds is None:
            raise reject("--target", self.target.text, wire.source, "declare the rate (--inside-gbs, --between-gbs)")
        return (self.engine.pipeline - 1) * seconds

    @property
    def inside_node(self) -> bool:
        """Whether a replica's devices share a node."""
        return self.engine.tensor * self.engine.pipeline <= self.machine.devices_per_node


def affine_runs(chunks: int, size: int, windows: frozenset[int]) -> list[tuple[int, int]]:
    """Return the runs (first, last) of chunks 1 to `chunks - 1` in which no chunk lies across the end of a window."""
    alone = {
        index
        for window in windows
        for index in range(window // size - 2, window // size + 2)
        if 1 <= index < chunks
    }  # fmt: skip
    found, first = [], 1
    for index in sorted(alone):
        found += [(first, index - 1)] if first < index else []
        found.append((index, index))
        first = index + 1
    return [*found, *([(first, chunks - 1)] if first < chunks else [])]


def _read(built: Program, what: str) -> int:
    """Return the bytes of weights, or of cached keys and values, that the products of a step read on a device."""
    micro = replace(built, sizes=built.device_microbatch_sizes)
    total = 0
    for row in product_rows(micro):
        last = row.object.rsplit("/", 1)[-1]
        cached = last in ("keys", "values") and row.fields["direction"] == "read"
        if (what == "weight" and last == "weight") or (what == "kv" and cached):
            total += int(row.value)
    return total


def beyond_windows(built: Program) -> int:
    """Return the bytes of cached rows that lie outside of every query's window in windowed layers, on a device."""
    case, sizes = built.case, built.device_sizes
    new, visible, total = case.workload.new_tokens, case.workload.visible_tokens, 0
    for index, group in enumerate(case.architecture.groups):
        width = 2 * sizes.product("b k e", index)
        for layer in range(group.repeat):
            window = group.window(layer)
            beyond = max(0, visible - (window + new - 1)) if window and case.workload.continues else 0
            total += payload_bytes(int(beyond * width), case.state.kv_dtype)
    return total


def largest(fits: Callable[[int], bool], most: int = MOST_SEQUENCES) -> int:
    """Return the largest whole number up to `most` that fits, 0 where 1 does not; `fits` turns false once."""
    if not fits(1):
        return 0
    low, high = 1, 2
    while high <= most and fits(high):
        low, high = high, 2 * high
    high = min(high, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
