"""Every interface of JAX or XLA used here that carries no promise, each with the reason and the versions tried.

Nothing else in the package touches one: when a release breaks jaxcost, this is the file to mend. All were tried with
jax and jaxlib 0.10.2, jax-cuda13-plugin 0.10.2 and libtpu 0.0.42.1; what the sources of jax 0.11 say is noted.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Compiler options with no documentation of their own; each is accepted by the compiler of its family.
#
# XLA rematerialises a program that exceeds the device and says so nowhere but in instruction names (`.remat`).
# CUDA: what `jax_compiler_enable_remat_pass=False` sets; given as an option so that it is part of the compile's key and
# record. TPU: that switch has no effect, the pass is told to consider no buffer instead. CPU: there is no such pass.
WITHOUT_REMATERIALISATION: dict[str, dict[str, Any]] = {
    "cpu": {},
    "cuda": {"xla_disable_hlo_passes": "rematerialization"},
    "tpu": {"xla_tpu_rematerialization_min_size_in_bytes": 2**40},
}

# Code generation without effort: a program is compiled to be read, not to be run. The module keeps its contractions;
# fusions and temporary buffers differ. Together about four times faster on a two-layer training step.
CPU_LITTLE_EFFORT: dict[str, Any] = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}

# No buffer assignment is public for CUDA and TPU. The dump has it, in one file, also where the compiler then refuses.
DUMP_OPTIONS: dict[str, Any] = {"xla_dump_hlo_as_proto": True}
_DUMPED = re.compile(r"module_(?P<number>[0-9]+)\.(?P<rest>.+)")


def dumped_module(directory: Path, module_name: str, stage: str) -> Path | None:
    """Return the dump of a module at a stage (`after_optimizations`, `before_optimizations`), None where there is none.

    Names are `module_NNNN.NAME.[TARGET_]after_optimizations.hlo.pb`, NNNN counting the modules of the process; a
    compilation may compile helpers of its own, so the name decides, then the number.
    """
    found: list[tuple[bool, int, Path]] = []
    for path in directory.glob(f"*{stage}.hlo.pb"):
        match = _DUMPED.fullmatch(path.name)
        if match:
            found.append((match["rest"].startswith(module_name + "."), int(match["number"]), path))
    return max(found)[2] if found else None


def module_name(lowered: Any) -> str:
    """Return the name of a lowered module, `jit_step`. The MLIR module is public, its attributes are MLIR's."""
    return str(lowered.compiler_ir("stablehlo").operation.attributes["sym_name"].value)


def optimised_proto(compiled: Any) -> bytes:
    """Return the compiled module as an HloProto without buffer assignment.

    `runtime_executable()` is public, what it returns is not; works for CPU executables and for ahead-of-time CUDA and
    TPU ones. The module is field 1 of HloProto. Unchanged in jax 0.11.
    """
    module: bytes = compiled.runtime_executable().hlo_modules()[0].as_serialized_hlo_module_proto()
    return b"\x0a" + _varint(len(module)) + module


def proto_of_text(text: str) -> bytes:
    """Return the HloProto of a module printed as text. For foreign dumps: the parser crashes on some inputs, so call
    it in a worker. No public reader of HLO text exists in jax 0.10.2 or 0.11.
    """
    parse: Callable[[str], Any] = importlib.import_module("jaxlib._hlo").hlo_module_from_text
    module: bytes = parse(text).as_serialized_hlo_module_proto()
    return b"\x0a" + _varint(len(module)) + module


def saved_residuals(function: Callable[..., Any], *arguments: Any, **keywords: Any) -> list[tuple[Any, str]]:
    """Return what a backward pass keeps, as (abstract value, where it comes from).

    The public `jax.ad_checkpoint.print_saved_residuals` prints the same list. Unchanged in jax 0.11.
    """
    from jax._src.ad_checkpoint import saved_residuals as residuals

    return list(residuals(function, *arguments, **keywords))


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])
