"""What XLA does when a program exceeds its device: the second compile, and what it is compared with.

The observed program is compiled with XLA's own rematerialisation off. Where it exceeds the device, was refused, or is
above the limit at which XLA for CUDA recomputes of its own accord, it is compiled once more with XLA's defaults.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from jaxcost.observation.compiling import Compiled, Refusal
from jaxcost.observation.hlo.rematerialisation import limit_bytes
from jaxcost.observation.targets import Target


def rematerialisation_section(
    target: Target,
    first: Compiled | Refusal,
    sections: Mapping[str, Any],
    *,
    again: Callable[[], Compiled | Refusal] | None,
    read: Callable[[bytes], Mapping[str, Any]],
    keep_hlo: bool = False,
) -> dict[str, Any]:
    """Return whether the program exceeds the device, whether XLA would recompute some of it in silence to fit, and what
    a compile with XLA's defaults then did.

    Args:
        target: the device and its memory.
        first: the compile without XLA's rematerialisation.
        sections: what was read from it: `hlo`, `memory` (None where there was no module).
        again: compiles with XLA's defaults; None makes no second compile.
        read: reads the second module into the same sections.
        keep_hlo: whether `second_compile.hlo` holds its bytes.
    """
    memory = sections["memory"] or {}
    required, available = memory.get("required_bytes"), target.device_memory_bytes
    exceeds = isinstance(first, Refusal) or (required is not None and available is not None and required > available)
    believed, limit = memory.get("believed_bytes"), None
    if target.family == "cuda" and believed is not None and available is not None:
        limit = limit_bytes(memory["border_bytes"], available)
    silent = limit is not None and believed is not None and believed > limit
    section = {
        "needed": exceeds,
        "expected": None if limit is None else silent,
        "believed_bytes": believed,
        "limit_bytes": limit,
        "device_memory_bytes": available,
        "required_bytes": required,
        "refusal": refusal_section(first) if isinstance(first, Refusal) else None,
        "second_compile": None,
    }
    if not (exceeds or silent) or again is None or target.family == "cpu":
        return section
    second = again()
    hlo = second.modules.optimised
    seen: Mapping[str, Any] = read(hlo) if hlo else {"hlo": None, "memory": None}
    section["second_compile"] = _second(second, seen, sections["hlo"]) | ({"hlo": hlo} if keep_hlo else {})
    return section


def refusal_section(refusal: Refusal) -> dict[str, Any]:
    """Return what the compiler said where it refused."""
    return {
        "text": refusal.text, "exhausted": refusal.exhausted, "required_bytes": refusal.required_bytes,
        "available_bytes": refusal.available_bytes,
    }  # fmt: skip


def _second(second: Compiled | Refusal, seen: Mapping[str, Any], first_hlo: Mapping[str, Any] | None) -> dict[str, Any]:
    hlo, memory = seen["hlo"] or {}, seen["memory"] or {}
    flops, before = hlo.get("flops"), (first_hlo or {}).get("flops")
    marked = [row for row in hlo.get("contractions", ()) if row["remat"]]
    named = hlo.get("xla_remat", [])
    return {
        "status": "refused" if isinstance(second, Refusal) else "compiled",
        "refusal": refusal_section(second) if isinstance(second, Refusal) else None,
        "flops": flops,
        "excess_flops": None if flops is None or before is None else flops - before,
        "remat_instructions": len(named),
        "remat_instruction_flops": _sum(row["total"] for row in marked),
        "excess_by_scope_phase": _excess(hlo, first_hlo or {}),
        "names": named[:20],
        "required_bytes": memory.get("required_bytes"),
        "live_peak_bytes": memory.get("live_peak_bytes"),
        "flags": {name: str(value) for name, value in second.environment["compiler_options"].items()},
        "module_digest": hashlib.sha256(second.modules.optimised).hexdigest() if second.modules.optimised else None,
        "compile_seconds": second.compile_seconds,
    }


def _excess(after: Mapping[str, Any], before: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Where the second compile does more contraction FLOPs than the first, or fewer; None where one is unknown."""
    found: dict[tuple[str, str], list[int | None]] = {}
    for section, sign in ((after, 1), (before, -1)):
        for row in section.get("by_scope_phase", ()):
            flops = row["flops"]
            found.setdefault((row["scope"], row["phase"]), []).append(None if flops is None else sign * flops)
    total = {key: _sum(amounts) for key, amounts in sorted(found.items())}
    return [{"scope": scope, "phase": phase, "flops": n} for (scope, phase), n in total.items() if n != 0]


def _sum(amounts: Iterable[int | None]) -> int | None:
    """The sum; None where one of them is unknown."""
    known = list(amounts)
    return None if None in known else sum(amount for amount in known if amount is not None)
