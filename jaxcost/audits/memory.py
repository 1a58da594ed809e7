"""Memory of one device as the compiler planned it, and what its author may change about it.

Two numbers, defined alike on every backend, whatever its own statistics mean there:

- `required_bytes`: all allocations in device memory: arguments, results that take over no argument, constants,
  temporaries with the gaps between them. This is what an out-of-memory message adds up.
- `live_peak_bytes`: arguments, results and constants, and the fullest moment of the temporaries (the compiler's heap
  trace, replayed). The rest of `required_bytes` is fragmentation.

`required_bytes` is never below arguments and temporaries together. A result that takes over an argument counts once.
Tables of pointers to results (8 bytes a leaf on CPU and CUDA; an allocation of its own on TPU) belong to the results.
Memory of the host and memory on the chip are in neither: a temporary that TPU keeps in VMEM is in `by_space` alone.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from jaxcost.audits import residents
from jaxcost.audits.arguments import bound_arguments
from jaxcost.audits.donation import donation
from jaxcost.audits.evidence import Evidence, Notes
from jaxcost.audits.savings import savings
from jaxcost.observation.hlo.rematerialisation import limit_bytes
from jaxcost.observation.sections import Values, plain


def section(evidence: Evidence, notes: Notes) -> dict[str, Any]:
    """Return the bytes of arguments, results and temporaries, what is live at the peak, and what would lower it."""
    memory, values = evidence.reading.memory, Values()
    found = {f.name: plain(getattr(memory, f.name), values) for f in fields(memory) if f.name != "live"}
    arguments, unknown = bound_arguments(evidence)
    given, possible = donation(evidence, notes)
    drawn = (found["timeline"] or {}).get("buffers", {}).values()
    wanted = {name for row in memory.live for name in (row.value, row.instruction)}
    wanted.update(row["instruction"] for row in drawn)
    made = {at.name: at for at in evidence.graph.module.walk() if at.name in wanted}
    for row in drawn:
        at = made.get(row["instruction"])
        if row["source"] and at is not None:
            row["source"] = evidence.user_source(at) or row["source"]
    known = memory.live_peak_bytes is not None
    if not known and memory.temp_bytes != 0:
        notes.unknown("live peak", "memory", memory.reasons.get("live_peak_bytes", "no heap trace"))
    return {
        **found,
        "at_peak": [
            {**plain(row, values), "source": residents.buffer_source(evidence, made, row)} for row in memory.live
        ],
        "by_class": residents.by_class(memory.live) if known else None,
        "by_source": residents.by_source(evidence, memory.live) if known else None,
        "by_space": residents.spaces(evidence),
        "donation": given,
        "pruned": residents.pruned(arguments, unknown, notes),
        "constants": residents.constants(evidence, notes),
        "padding": residents.padding(evidence, arguments, notes),
        "packing": residents.packing(evidence, arguments),
        "host": residents.host(evidence, arguments, notes),
        "loop_copies": residents.loop_copies(evidence, notes),
        "twice": residents.twice(evidence, arguments, notes),
        "rematerialisation": rematerialisation(evidence, notes),
        "savings": savings(evidence, possible, given["arguments"], notes),
    }


def rematerialisation(evidence: Evidence, notes: Notes) -> dict[str, Any]:
    """Return what XLA's own rematerialisation does to the program on its device.

    `expected` is None where it cannot be told: for CUDA the pass and its limit are known (`hlo.rematerialisation`); the
    TPU compiler does not state its limit, and refuses what it cannot make fit; the CPU compiler has no such pass.
    `second` is what a compile with XLA's defaults did, where one was made.
    """
    program, reading = evidence.program, evidence.reading
    memory, target = reading.memory, evidence.program.target
    available = target.device_memory_bytes if target is not None else None
    limit = expected = None
    if evidence.platform == "cpu":
        expected, reason = False, "the CPU compiler has no such pass"
    elif evidence.platform == "tpu":
        reason = "the TPU compiler does not state the limit above which it recomputes; it refuses what does not fit"
    elif available is None:
        reason = "the device is not known: name a target to compare with its memory"
    elif memory.believed_bytes is None:
        reason = "the module carries no schedule"
    else:
        limit = limit_bytes(memory.border_bytes, available)
        expected, reason = memory.believed_bytes > limit, "temporaries by the pass's own count against its limit"
    required = memory.required_bytes
    row: dict[str, Any] = {
        "expected": expected, "reason": reason, "believed_bytes": memory.believed_bytes, "limit_bytes": limit,
        "device_memory_bytes": available,
        "fits": None if required is None or available is None else required <= available,
        "already_in_module": len(reading.xla_remat), "refused": program.refused or None,
        "second": _second(program.second),
    }  # fmt: skip
    if reading.xla_remat:
        text = f"XLA itself recomputes in this module: {len(reading.xla_remat)} instructions are marked .remat"
        notes.find("rematerialisation", text, where=reading.xla_remat[0])
    if expected and memory.believed_bytes is not None and limit is not None:
        text = (
            f"XLA's defaults would recompute in silence: its pass counts {memory.believed_bytes:,} bytes of "
            f"temporaries and its limit is {limit:,}"
        )
        notes.find("rematerialisation", text, bytes=memory.believed_bytes - limit)
    if row["fits"] is False:
        notes.find("memory", f"{required:,} bytes are required and the device has {available:,}", bytes=required)
    if program.refused:
        notes.find("refused", " ".join(program.refused.split())[:400])
    made = row["second"]
    if made is not None and made.get("status") == "compiled":
        peak, more = made.get("live_peak_bytes"), made.get("excess_flops")
        text = (
            f"with XLA's defaults the peak is {_known(peak)} bytes instead of {_known(memory.live_peak_bytes)}, and "
            f"{_known(more)} FLOPs are added"
        )
        said = {name: value for name, value in (("bytes", peak), ("flops", more)) if value is not None}
        notes.find("rematerialisation", text, **said)
    return row


def _known(number: int | None) -> str:
    return "an unknown number of" if number is None else f"{number:,}"


def _second(second: Any) -> dict[str, Any] | None:
    """The second compile of a source (`observation.overflow`) without its bytes."""
    made = second.get("second_compile") if second else None
    if not made:
        return None
    return {name: value for name, value in made.items() if name not in ("hlo", "excess_by_scope_phase")}
