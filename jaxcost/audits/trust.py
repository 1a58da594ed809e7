"""What XLA says of the program, figure by figure: right, wrong and by how much, not comparable, or absent.

A figure is right where it is what its name says of one execution on one device. Its reference is counted here, from
the module: XLA's cost analysis done again with every loop counted (`xla_counts`), bytes from the buffer assignment,
trips from the loops' own scalars. `value` is XLA's number as it stands; nothing is corrected.

    right           equal to what was counted (a count that XLA adds in 32-bit floats: within their rounding)
    wrong           it says something else; by `difference` = value - measured, and `ratio` = value / measured
    not_comparable  nothing counted here has the same meaning, or what would is unknown
    absent          the backend gives no such figure
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from math import isfinite
from typing import Any

from jaxcost.audits.evidence import FOREIGN, Evidence, Notes
from jaxcost.audits.xla_counts import Counts, Recount, recount
from jaxcost.observation.cycles import estimated_cycles
from jaxcost.observation.exceeded import exceeded
from jaxcost.observation.hlo.flops import FlopCount, FlopRow
from jaxcost.observation.hlo.memory import Memory
from jaxcost.observation.hlo.opcodes import HARMLESS_TARGETS
from jaxcost.observation.hlo.trips import Total, declared_trips, exact, read_executions
from jaxcost.observation.sections import compiler_section

RIGHT, WRONG, NOT_COMPARABLE, ABSENT = VERDICTS = ("right", "wrong", "not_comparable", "absent")

# Memory space 5 of XLA's layouts is the host's.
_HOST_SPACE = 5
_LISTED_LOOPS = 20
_DAMAGE = (LookupError, ValueError, ArithmeticError, TypeError)
_GROUPED = {
    "utilization": "a share of operands, added up over instructions: no share of anything",
    "bytes accessed": "the bytes of one operand (or of the results) of each instruction, added up, loops once",
    "flops": "a part of the figure of the same name",
}
_FIELDS = {"flops": "flops", "bytes accessed": "bytes_accessed", "transcendentals": "transcendentals"}


def section(evidence: Evidence, notes: Notes) -> dict[str, Any]:
    """Return XLA's own counters and a verdict for each of its figures.

    `flops`, `bytes_accessed`, `transcendentals`: XLA's, None with a reason in `reasons`. `recounted`: the same figures
    by XLA's rules, `once` (a loop's body once, as XLA does it) and `executed` (loops counted). `verdicts`: rows of
    figure, source, where, backend, versions, value, compared_with, measured, difference, ratio, verdict, reason.
    """
    return _Verdicts(evidence, notes).section()


class _Verdicts:
    def __init__(self, evidence: Evidence, notes: Notes) -> None:
        self.evidence, self.notes = evidence, notes
        program = evidence.program
        self.table: Mapping[str, float] | None = program.cost_analysis
        self.versions = {
            name: str(version)
            for name, version in dict(program.environment.get("versions") or {}).items()
            if name in ("jax", "jaxlib", "libtpu") or name.startswith("jax-")
        }
        self.rows: list[dict[str, Any]] = []

    def section(self) -> dict[str, Any]:
        evidence = self.evidence
        counted: Recount | None = None
        damage = ""
        try:
            counted = recount(evidence.graph.module, evidence.graph.executions)
        except _DAMAGE as error:
            if evidence.program.origin not in FOREIGN:
                raise  # no compile of our own is damaged
            damage = f"the module could not be recounted: {type(error).__name__}: {error}"
        flops = evidence.work
        values: dict[str, int | float | None] = {}
        reasons: dict[str, str] = {}
        for key, name in _FIELDS.items():
            value = None if self.table is None else whole(self.table.get(key))
            if value is None and self.table:
                # The analysis leaves out what is zero; where a kernel hides, out is not zero.
                value = 0 if not _hidden(flops) and counted is not None and _once(counted, name) == 0 else None
            values[name] = value
            if value is None:
                reasons[name] = evidence.program.cost_analysis_reason if self.table is None else f"XLA gives no {key!r}"
            self.counter(name, value, reasons.get(name, ""), counted, damage, flops)
        self.grouped()
        self.optimal_seconds(counted)
        self.kernels(flops)
        self.loops()
        self.memory(evidence.reading.memory)
        self.refusal(evidence.reading.memory)
        self.cycles()
        self.findings()
        recounted = None if counted is None else {
            "once": {name: _plain(_once(counted, name)) for name in _FIELDS.values()},
            "executed": {name: _json(_executed(counted, name)) for name in _FIELDS.values()},
            "unmodelled": list(counted.unmodelled),
        }  # fmt: skip
        return {**values, "reasons": reasons, "recounted": recounted, "verdicts": self.rows}

    def row(
        self, figure: str, source: str, verdict: str, reason: str, *, value: Any = None, measured: Any = None,
        compared_with: str | None = None, where: str = "",
    ) -> None:  # fmt: skip
        """Add a verdict; `difference` and `ratio` follow from its two numbers where there are two."""
        both = isinstance(value, int | float) and isinstance(measured, int | float)
        self.rows.append({
            "figure": figure, "source": source, "where": where, "backend": self.evidence.platform,
            "versions": self.versions, "value": value, "compared_with": compared_with, "measured": measured,
            "difference": value - measured if both else None,
            "ratio": float(Fraction(value) / Fraction(measured)) if both and measured else None,
            "verdict": verdict, "reason": reason,
        })  # fmt: skip

    # The cost analysis ------------------------------------------------------------------------------------------------

    def counter(
        self, name: str, value: int | float | None, absent: str, counted: Recount | None, damage: str, flops: FlopCount
    ) -> None:
        """One of the three sums of the cost analysis."""
        if counted is None:
            verdict = ABSENT if value is None else NOT_COMPARABLE
            return self.row(name, "cost_analysis", verdict, absent or damage, value=value)
        once, executed = _once(counted, name), _executed(counted, name)
        hidden = _hidden(flops)
        calls = [row for row in flops.rows if row.opcode == "custom-call" and row.target not in HARMLESS_TARGETS]
        declared = [row for row in calls if self.seen(row)]
        missing = ", ".join(sorted({row.target for row in calls if not self.seen(row)})[:4])
        if name == "flops":
            for row in calls:
                executed = executed + row.total
        compared = f"{name} by XLA's rules with every loop counted" + (" and library kernels" if calls else "")
        # What a kernel moves, or takes exponentials of, no count here can tell.
        unread = hidden or (sorted({row.target for row in calls}) if name != "flops" else [])
        measured = None if unread else _json(executed)

        def say(verdict: str, reason: str) -> None:
            share = self.share(flops) if name == "flops" else ""
            reason = "; ".join(part for part in (reason, share) if part)
            self.row(
                name, "cost_analysis", verdict, reason, value=value, measured=measured, compared_with=compared
            )  # fmt: skip

        if value is None:
            return say(ABSENT, absent)
        if name == "bytes_accessed" and self.evidence.platform == "tpu":
            return say(NOT_COMPARABLE, "the TPU compiler counts bytes by rules it does not state; a loop's body once")
        if counted.unmodelled:
            return say(NOT_COMPARABLE, f"XLA's rules for {', '.join(counted.unmodelled)} are not known here")
        if unread:
            what = "computes is unknown, and counts" if name == "flops" else f"adds in {name} counts"
            return say(NOT_COMPARABLE, f"what {', '.join(unread[:4])} {what} as nothing in XLA's figure")
        unverified = [row for row in declared if self.counted_in_jaxpr(row) != row.flops]
        if unverified and name == "flops":
            said = sum(row.flops for row in unverified)
            return say(NOT_COMPARABLE, f"{_text(said)} of it is what kernels declare of themselves, unverified")
        if executed.minimum is None:
            return say(NOT_COMPARABLE, f"{executed.reason}; XLA counts the body of such a loop once")
        slack = self.slack(counted, value)
        near = exact(round(value))
        if executed.value is not None and abs(value - executed.value) <= slack:
            off = value - executed.value
            taken = "what it takes off for custom calls" if -sum(counted.calls.values()) <= off < 0 else "rounding"
            return say(RIGHT, "equal to the recount" if not off else f"equal to the recount but for {taken}")
        why = []
        if abs(value - once) > slack:
            why.append(f"neither the recount with loops nor the one without ({_text(once)}) is this figure")
        elif counted.loops:
            why.append(f"the bodies of {counted.loops} loop{'s' if counted.loops > 1 else ''} are counted once")
        if missing:
            why.append(f"nothing of {missing} is in it")
        if executed.value is None:
            assert executed.maximum is not None
            if executed.minimum <= (near.value or 0) <= executed.maximum and not why:
                return say(NOT_COMPARABLE, "branches of a conditional differ: XLA takes the largest")
            why.append("of a conditional the largest branch is taken")
        say(WRONG, "; ".join(why))

    def seen(self, row: FlopRow) -> bool:
        """Whether XLA's own figure holds a kernel: on TPU it takes over what a kernel declares of itself."""
        return self.evidence.platform == "tpu" and row.basis == "declared"

    def share(self, flops: FlopCount) -> str:
        total = flops.total
        return "" if total is None else f"{_text(total)} of the executed FLOPs are contractions and kernels"

    @staticmethod
    def slack(counted: Recount, value: int | float) -> float:
        """How far a sum of non-negative numbers in 32-bit floats may lie from the exact one: `additions x 2^-24` of it,
        and one for each custom call, which some backends take off. Nothing below 2^24 is rounded.
        """
        rounding = 0.0 if abs(value) < 2**24 else counted.once.terms * 2.0**-24 * abs(value)
        return rounding + sum(counted.calls.values())

    def grouped(self) -> None:
        """Figures per operand: many keys, one meaning."""
        found: dict[str, int] = {}
        for key in self.table or {}:
            if key in _FIELDS or key == "optimal_seconds":
                continue
            stem = re.sub(r"(out)?[0-9]*\{.*\}.*$", "", key).strip()
            found[stem] = found.get(stem, 0) + 1
        for stem, count in sorted(found.items()):
            reason = _GROUPED.get(stem, "its meaning is not known here")
            self.row(f"{stem} per operand", "cost_analysis", NOT_COMPARABLE, f"{count} keys; each is {reason}")

    def optimal_seconds(self, counted: Recount | None) -> None:
        """XLA's estimate of time."""
        value = None if self.table is None else self.table.get("optimal_seconds")
        if value is None:
            if self.table is not None:
                reason = "no rates of the device are known to this analysis"
                self.row("optimal_seconds", "cost_analysis", ABSENT, reason)
            return
        value = float(value)
        if not isfinite(value):
            return self.row("optimal_seconds", "cost_analysis", WRONG, f"{value} is no time")
        calls = sum(counted.calls.values()) if counted is not None else 0
        if value < 0:
            takes = f"each of {calls} custom calls may take one second off" if calls else "no rule here explains it"
            return self.row(
                "optimal_seconds", "cost_analysis", WRONG, f"no time is negative: {takes}", value=value,
            )  # fmt: skip
        reason = "the sum of each instruction's time at the rates of the compiler's own model, a loop's body once"
        self.row("optimal_seconds", "cost_analysis", NOT_COMPARABLE, reason, value=value)

    # What the module itself says --------------------------------------------------------------------------------------

    def kernels(self, flops: FlopCount) -> None:
        """What hand-written kernels declare of themselves, beside the jaxpr's count where there is one."""
        for row in flops.rows:
            if row.basis != "declared":
                continue
            other = self.counted_in_jaxpr(row)
            if other is None:
                reason = "the kernel's author declares it; nothing here can verify it"
                self.row(
                    "cost_estimate.flops", "backend_config", NOT_COMPARABLE, reason, value=row.flops, where=row.name
                )  # fmt: skip
                continue
            verdict = RIGHT if other == row.flops else WRONG
            reason = "declared by the kernel's author; counted in the kernel's own program, times its grid"
            self.row(
                "cost_estimate.flops", "backend_config", verdict, reason, value=row.flops, measured=other,
                compared_with="the jaxpr's count of the kernel", where=row.name,
            )  # fmt: skip

    def counted_in_jaxpr(self, row: FlopRow) -> int | None:
        """FLOPs of one call of a kernel by its own program; None without a jaxpr, or where several kernels could be
        it.
        """
        lowered = self.evidence.program.lowered
        kernels = (lowered.jaxpr or {}).get("kernels") or () if lowered is not None else ()
        named = [one for one in kernels if one["name"] and one["name"] == row.detail] or list(kernels)
        found = {one["flops"] if type(one["flops"]) is int else None for one in named}
        return found.pop() if len(found) == 1 else None

    def loops(self) -> None:
        """XLA's `known_trip_count`, beside what the loop's own scalars give without it."""
        graph = self.evidence.graph
        declared = {number: declared_trips(graph.module.instructions[number]) for number in graph.executions.loops}
        if not any(count is not None for count in declared.values()):
            if declared:
                reason = f"{len(declared)} loops, none with a declared count"
                self.row("known_trip_count", "backend_config", ABSENT, reason)
            return
        derived = read_executions(graph.module, declared=False).loops
        agreed = 0
        for number, count in declared.items():
            loop = derived[number]
            if count is None:
                self.row("known_trip_count", "backend_config", ABSENT, "none declared", where=loop.instruction)
                continue
            if loop.trips == count and agreed >= _LISTED_LOOPS:
                agreed += 1
                continue
            verdict = NOT_COMPARABLE if loop.trips is None else RIGHT if loop.trips == count else WRONG
            reason = {
                RIGHT: "the loop's own scalars give it too", WRONG: "the loop's own scalars give another count",
                NOT_COMPARABLE: f"the loop's scalars do not tell: {loop.reason}",
            }[verdict]  # fmt: skip
            agreed += verdict == RIGHT
            self.row(
                "known_trip_count", "backend_config", verdict, reason, value=count, measured=loop.trips,
                compared_with="trips derived from the loop's scalars", where=loop.instruction,
            )  # fmt: skip
        if agreed > _LISTED_LOOPS:
            rest = f"{agreed - _LISTED_LOOPS} more loops, each with the count that its own scalars give"
            self.row("known_trip_count", "backend_config", RIGHT, rest)

    def cycles(self) -> None:
        """The TPU compiler's estimate of cycles."""
        if self.evidence.platform != "tpu":
            return
        graph = self.evidence.graph
        found: dict[int, dict[str, int]] = {}
        for at in graph.module.walk():
            cycles = None if at.computation.is_fusion else estimated_cycles(at)
            if cycles is not None:
                found[at.id] = {"cycles": cycles}
        if not found:
            reason = "written after the stage that is dumped; an executable's own module has it"
            return self.row("estimated_cycles", "backend_config", ABSENT, reason)
        total = graph.executions.totals(found).get("cycles", exact(0))
        reason = (
            f"the compiler's cost model for {len(found)} instructions, here with loops counted; transfers and waits "
            "have none, and no one states how long a cycle is"
        )
        self.row("estimated_cycles", "backend_config", NOT_COMPARABLE, reason, value=_json(total))

    # Memory -----------------------------------------------------------------------------------------------------------

    def memory(self, memory: Memory) -> None:
        """The fields of `memory_analysis`, each by its meaning on this backend."""
        program = self.evidence.program
        raw = {
            "memory_analysis": program.memory_analysis, "memory_analysis_reason": program.memory_analysis_reason,
            "cost_analysis": None, "cost_analysis_reason": "",
        }  # fmt: skip
        read = {
            name: getattr(memory, name)
            for name in ("argument_bytes", "output_bytes", "alias_bytes", "temp_bytes", "required_bytes",
                         "live_peak_bytes", "all_spaces_peak_bytes")
        }  # fmt: skip
        found = compiler_section(
            self.evidence.platform, raw, {"hlo": {"loops": [], "contractions": []}, "memory": read}
        )["memory_analysis"]  # fmt: skip
        for name, field in found.items():
            value = field["value"]
            if value is None:
                self.row(name, "memory_analysis", ABSENT, field["reason"])
            elif name.startswith("host_"):
                self.host(name, value)
            elif name == "peak_memory_in_bytes":
                self.peak(value, field["meaning"], memory)
            else:
                self.field(name, value, field, read)

    def field(self, name: str, value: int, field: Mapping[str, Any], read: Mapping[str, int | None]) -> None:
        compared = field["compared_with"]
        measured = read.get(compared.removeprefix("memory.")) if compared else None
        meaning = field["meaning"]
        if measured is None:
            reason = self.evidence.reading.memory.reasons.get(str(compared).removeprefix("memory."), "")
            return self.row(
                name, "memory_analysis", NOT_COMPARABLE, "; ".join(p for p in (meaning, reason) if p), value=value,
            )  # fmt: skip
        verdict = {"exact": RIGHT, "misleading": NOT_COMPARABLE, "differs": WRONG}[field["verdict"]]
        self.row(
            name, "memory_analysis", verdict, meaning, value=value, measured=measured, compared_with=compared
        )  # fmt: skip

    def peak(self, value: int, meaning: str, memory: Memory) -> None:
        """A peak is right where it is the live peak of device memory, whatever the rule that made it."""
        measured = memory.live_peak_bytes
        verdict = NOT_COMPARABLE if measured is None else RIGHT if value == measured else WRONG
        why = memory.reasons.get("live_peak_bytes", "") if measured is None else ""
        if verdict == RIGHT and self.evidence.platform != "cuda":
            why = "here that makes no difference"
        self.row(
            "peak_memory_in_bytes", "memory_analysis", verdict, "; ".join(part for part in (meaning, why) if part),
            value=value, measured=measured, compared_with="memory.live_peak_bytes",
        )  # fmt: skip

    def host(self, name: str, value: int) -> None:
        """A field of host memory, against the arrays that the module places there."""
        module = self.evidence.graph.module
        entry = module.entry
        placed = {
            "argument": [p.shape for p in entry.parameters.values()], "output": [entry.root.shape],
        }  # fmt: skip
        kind = name.removeprefix("host_").removesuffix("_size_in_bytes")
        used = any(leaf.memory_space == _HOST_SPACE for at in module.walk() for leaf in at.shape.leaves())
        if kind in placed:
            measured = sum(
                leaf.bytes for shape in placed[kind] for leaf in shape.leaves() if leaf.memory_space == _HOST_SPACE
            )
        elif not used:
            measured = 0
        else:
            reason = "the program keeps arrays in host memory; the module does not say how they are allocated"
            return self.row(name, "memory_analysis", NOT_COMPARABLE, reason, value=value)
        reason = f"{kind} bytes in host memory" + ("" if used else ", of which this program uses none")
        self.row(
            name, "memory_analysis", RIGHT if value == measured else WRONG, reason, value=value, measured=measured,
            compared_with="arrays that the module places in host memory",
        )  # fmt: skip

    def refusal(self, memory: Memory) -> None:
        """The numbers of an out-of-memory message."""
        program = self.evidence.program
        found = exceeded(program.refused) if program.refused else None
        if found is None:
            if program.refused:
                reason = "the compiler refused the program in words that name no two sizes"
                self.row("refusal", "message", NOT_COMPARABLE, reason)
            return
        required = memory.required_bytes
        # Printed with two decimals: half of the last digit either way.
        slack = found.unit_bytes / 200
        reason = (
            f"'memory required' in {found.space}, printed to two decimals: all of device memory, not temporaries alone"
        )
        verdict = (
            NOT_COMPARABLE if required is None else RIGHT if abs(found.required_bytes - required) <= slack else WRONG
        )
        self.row(
            "refusal.required", "message", verdict, reason, value=found.required_bytes, measured=required,
            compared_with="memory.required_bytes",
        )  # fmt: skip
        device = program.target.device_memory_bytes if program.target else None
        verdict = NOT_COMPARABLE if device is None else RIGHT if abs(found.available_bytes - device) <= slack else WRONG
        self.row(
            "refusal.available", "message", verdict, "what the compiler may fill on one device",
            value=found.available_bytes, measured=device, compared_with="target.device_memory_bytes",
        )  # fmt: skip

    def findings(self) -> None:
        """Say what a reader would otherwise believe; what is wrong for one reason is one finding."""
        found: dict[tuple[str, str], list[str]] = {}
        for row in self.rows:
            if row["verdict"] != WRONG or row["value"] is None:
                continue
            said = f"{row['figure']}" + (f" of {row['where']}" if row["where"] else "") + f" is {_text(row['value'])}"
            if isinstance(row["measured"], int | float):
                said += f", not {_text(row['measured'])}"
            if row["ratio"] is not None:
                said += f" ({row['ratio']:.3g} of it)"
            found.setdefault((row["source"], row["reason"].split("; ")[0]), []).append(said)
        for (source, reason), said_of in found.items():
            self.notes.find("xla", f"in XLA's {source}, {'; '.join(said_of)}: {reason}")


def whole(value: object) -> int | float | None:
    """A figure of XLA's table as an integer where it is one."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not isfinite(value):
        return None
    return int(value) if float(value).is_integer() else value


def _hidden(flops: FlopCount) -> list[str]:
    """What the count knows nothing of, loops apart."""
    return sorted({row.target or row.name for row in flops.unknowns if row.kind != "loop" and row.voids})


def _once(counted: Recount, name: str) -> int | float:
    once: Counts = counted.once
    return {"flops": once.flops, "bytes_accessed": once.bytes, "transcendentals": once.transcendentals}[name]


def _executed(counted: Recount, name: str) -> Total:
    return {"flops": counted.flops, "bytes_accessed": counted.bytes, "transcendentals": counted.transcendentals}[name]


def _json(total: Total) -> int | dict[str, int] | None:
    if total.minimum is None or total.maximum is None:
        return None
    return total.minimum if total.value is not None else {"minimum": total.minimum, "maximum": total.maximum}


def _plain(value: int | float) -> int | float:
    return int(value) if float(value).is_integer() else value


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{int(value):,}" if value.is_integer() else f"{value:.6g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
