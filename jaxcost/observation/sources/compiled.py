"""A lowered module to a compiled program. Runs inside a worker of the target's kind."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from jaxcost.contracts.errors import reject
from jaxcost.observation.compiling import Compiled, compile_module
from jaxcost.observation.overflow import refusal_section, rematerialisation_section
from jaxcost.observation.private import Portable
from jaxcost.observation.sections import hlo_sections
from jaxcost.observation.sources.program import Lowered, Program
from jaxcost.observation.targets import Target


def compile_program(lowered: Lowered, module: Portable, target: Target, *, origin: str = "function") -> Program:
    """Compile a module for a target, a second time where it exceeds the device, and return what is known of it.

    Raises:
        RejectedError: the compiler refuses it before there is a module; module and target do not fit together.
        UnavailableError: the compiler of the target is not installed.
    """
    first = compile_module(module, target)
    hlo = first.modules.optimised
    if hlo is None:
        text = refusal_section(first)["text"] if not isinstance(first, Compiled) else "no module was dumped"
        raise reject(
            "function", lowered.name, f"the compiler for {target.text} refuses it: {first_lines(text)}",
            "mend the program, or audit it for another target",
        )  # fmt: skip

    def read(data: bytes) -> Mapping[str, Any]:
        return hlo_sections(data, target, mesh=lowered.mesh, scopes=None)

    second = None
    if target.family != "cpu":
        second = rematerialisation_section(
            target, first, read(hlo), read=read, keep_hlo=True,
            again=lambda: compile_module(module, target, rematerialisation=True),
        )  # fmt: skip
    notes = list(lowered.warnings)
    if module.device_count < target.device_count:
        notes.append(
            f"the program is for 1 device and {target.text} has {target.device_count}: no argument is sharded, the "
            "figures are those of one device"
        )
    numbers: dict[str, Any] = {
        "refused": "" if isinstance(first, Compiled) else first.text, "memory_analysis": None, "cost_analysis": None,
        **dict.fromkeys(("memory_analysis_reason", "cost_analysis_reason"), "the compiler refused the program"),
    }  # fmt: skip
    if isinstance(first, Compiled):
        numbers |= {name: getattr(first, name) for name in numbers if name != "refused"}
    environment = {
        **first.environment, "xla_rematerialisation": "off", "module_digest": hashlib.sha256(hlo).hexdigest(),
        "compile_seconds": first.compile_seconds,
    }  # fmt: skip
    return Program(
        origin=origin, name=lowered.name, hlo=hlo, platform=target.family, target=target, lowered=lowered,
        second=second, environment=environment, notes=tuple(notes), **numbers,
    )  # fmt: skip


def first_lines(text: str, count: int = 2) -> str:
    """Return the first lines of a compiler's text that say something, on one line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " ".join(lines[:count])[:600].rstrip(".")
