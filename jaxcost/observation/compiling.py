"""Compiling: a lowered program and a target in, what the compiler made of it out. Runs inside a worker.

The observed program is compiled with XLA's own rematerialisation switched off, so that its FLOPs are those of the
program; `rematerialisation=True` compiles with XLA's defaults, for what XLA adds where the device is exceeded. A
compiler that refuses (the TPU compiler does, when memory is exceeded) is a result too, with the same dump.

    mesh = make_mesh(target, {"fsdp": 8})
    lowered = jax.jit(step).lower(*arguments_sharded_over(mesh))
    compiled = compile_lowered(lowered, target)
"""

from __future__ import annotations

import math
import os
import platform
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import topologies

from jaxcost.contracts.errors import reject
from jaxcost.observation import private
from jaxcost.observation.exceeded import exceeded
from jaxcost.observation.targets import Target, require


@dataclass(frozen=True)
class Modules:
    """The module a compile left behind.

    `optimised` is a serialised HloProto, with the buffer assignment where `has_buffer_assignment`; `before` the module
    before optimisation, where it was asked for. None: the compiler failed before there was one.
    """

    optimised: bytes | None
    has_buffer_assignment: bool
    before: bytes | None


@dataclass(frozen=True)
class Compiled:
    """A compiled program.

    `memory_analysis` and `cost_analysis` are what the compiler says of itself, unchanged, in its own names (bytes;
    FLOPs, bytes, seconds): evidence about the compiler. Each is None with a reason where it says nothing.
    """

    target: str
    module_name: str
    modules: Modules
    memory_analysis: Mapping[str, int] | None
    memory_analysis_reason: str
    cost_analysis: Mapping[str, float] | None
    cost_analysis_reason: str
    compile_seconds: float
    environment: Mapping[str, Any]

    def to_data(self) -> dict[str, Any]:
        """Return the record for a worker's reply (plain data and bytes)."""
        return {"outcome": "compiled", **asdict(self)}


@dataclass(frozen=True)
class Refusal:
    """A program the compiler refused.

    `exhausted` names the memory that was exceeded (`HBM`, ...), None for any other refusal. The two sizes are as
    printed, with two decimals of the unit; the exact sum is in the buffer assignment of `modules`.
    """

    target: str
    module_name: str
    modules: Modules
    text: str
    exhausted: str | None
    required_bytes: int | None
    available_bytes: int | None
    compile_seconds: float
    environment: Mapping[str, Any]

    def to_data(self) -> dict[str, Any]:
        """Return the record for a worker's reply (plain data and bytes)."""
        return {"outcome": "refused", **asdict(self)}


def devices(target: Target) -> tuple[Any, ...]:
    """Return the JAX devices of a target in the order of its topology; abstract ones for CUDA and TPU.

    Nodes and slices are contiguous in that order.

    Raises:
        UnavailableError: the compiler is not installed.
        RejectedError: the compiler refuses the topology.
        RuntimeError: a CPU target in a process that was started with fewer CPU devices.
    """
    return _devices(target)


@cache
def _devices(target: Target) -> tuple[Any, ...]:
    require(target)
    if target.family == "cpu":
        present = jax.devices("cpu")
        if len(present) < target.device_count:
            raise RuntimeError(f"this process has {len(present)} CPU devices, {target.text} needs its own worker")
        return tuple(present[: target.device_count])
    try:
        made = tuple(topologies.get_topology_desc(**target.topology_arguments()).devices)
    except jax.errors.JaxRuntimeError as error:
        raise reject(
            "target", target.text, f"the compiler refuses the topology: {error}", "choose another shape"
        ) from None
    if len(made) != target.device_count:
        raise RuntimeError(f"{target.text} made {len(made)} devices, expected {target.device_count}")
    return made


def make_mesh(target: Target, axes: Mapping[str, int], axis_types: tuple[Any, ...] | None = None) -> jax.sharding.Mesh:
    """Return the mesh of the named axes over all devices of the target.

    Devices are laid out in topology order, the last axis fastest: put the axis that communicates most last, so that it
    stays inside a node, and the axis that crosses nodes or slices first. No axis at all is a mesh of one device.

    Raises:
        RejectedError: the sizes are not positive, or their product is not the target's number of devices.
    """
    axes = dict(axes) or {"data": 1}
    for name, size in axes.items():
        if size < 1:
            raise reject(f"mesh.{name}", size, "an axis has at least one device", "leave the axis out")
    product = math.prod(axes.values())
    if product != target.device_count:
        written = ",".join(f"{name}={size}" for name, size in axes.items())
        raise reject(
            "mesh", written, f"the axes make {product} devices and {target.text} has {target.device_count}",
            "make the product of the axes equal to the number of devices, or choose another target",
        )  # fmt: skip
    grid = np.array(devices(target), dtype=object).reshape(tuple(axes.values()))
    return jax.sharding.Mesh(grid, tuple(axes), axis_types=axis_types)


def compile_lowered(
    lowered: Any,
    target: Target,
    *,
    rematerialisation: bool = False,
    dump: bool = True,
    before: bool = False,
    optimisation_level: int | None = None,
    options: Mapping[str, Any] | None = None,
) -> Compiled | Refusal:
    """Compile a `jax.stages.Lowered` for the target whose devices it was lowered for.

    Args:
        rematerialisation: XLA's own; False keeps it from recomputing anything (CPU: it never does).
        dump: read the module from a dump, with buffer assignment; False takes it from the executable, without.
        before: also keep the module before optimisation (needs `dump`).
        optimisation_level: 0 compiles for the CPU with little effort: the same contractions, other fusions and
            temporary buffers. None is XLA's default; no other value, and no other family, has a meaning here.
        options: further compiler options; recorded with the rest.

    A dump goes to a temporary directory that is removed before this returns.
    """
    if optimisation_level not in (None, 0) or (optimisation_level == 0 and target.family != "cpu"):
        raise ValueError("optimisation_level is None, or 0 for a CPU target")
    chosen = {
        **({} if rematerialisation else private.WITHOUT_REMATERIALISATION[target.family]),
        **(private.cpu_little_effort() if optimisation_level == 0 else {}),
        **(options or {}),
    }

    def run(every: dict[str, Any]) -> _Ran:
        compiled = lowered.compile(compiler_options=every)
        return _Ran(
            compiled.memory_analysis(), compiled.cost_analysis() or None, lambda: private.optimised_proto(compiled)
        )

    return _compile(run, private.module_name(lowered), target, chosen, dump=dump, before=before)


def compile_module(module: private.Portable, target: Target, *, rematerialisation: bool = False) -> Compiled | Refusal:
    """Compile a module that was lowered in another process, for the devices of the target in their order.

    Raises:
        RejectedError: module and target differ in their number of devices.
    """
    if module.device_count not in (1, target.device_count):
        raise reject(
            "target", target.text, f"the program is for {module.device_count} devices, the target has "
            f"{target.device_count}", "choose a target with as many devices as the program's mesh",
        )  # fmt: skip
    chosen = {} if rematerialisation else dict(private.WITHOUT_REMATERIALISATION[target.family])

    def run(every: dict[str, Any]) -> _Ran:
        made = private.compile_portable(module, devices(target)[: module.device_count], every)
        return _Ran(private.executable_memory(made), private.executable_costs(made), None)

    environment = {**module.options, **chosen}
    return _compile(run, module.name, target, chosen, dump=True, before=False, recorded=environment)


@dataclass(frozen=True)
class _Ran:
    """What a compiler returned: its memory statistics, its costs, and how to have the module without a dump."""

    memory: Any
    costs: Mapping[str, float] | None
    proto: Callable[[], bytes] | None


def _compile(
    run: Callable[[dict[str, Any]], _Ran], name: str, target: Target, chosen: Mapping[str, Any], *, dump: bool,
    before: bool, recorded: Mapping[str, Any] | None = None,
) -> Compiled | Refusal:  # fmt: skip
    environment = describe_environment(target, recorded or chosen)
    with tempfile.TemporaryDirectory(prefix="dump-") as directory:
        dumping = {"xla_dump_to": directory, **private.DUMP_OPTIONS} if dump else {}
        started = time.perf_counter()
        try:
            ran = run({**chosen, **dumping})
        except jax.errors.JaxRuntimeError as error:
            seconds = time.perf_counter() - started
            modules = _dumped(Path(directory), name, before)
            return _refusal(str(error), target, name, modules, seconds, environment)
        seconds = time.perf_counter() - started
        if ran.proto is not None and not dump:
            modules = Modules(ran.proto(), has_buffer_assignment=False, before=None)
        else:
            modules = _dumped(Path(directory), name, before)
            if modules.optimised is None:
                raise RuntimeError(f"the compiler for {target.text} dumped no module after optimisation")
    memory = _memory_analysis(ran.memory)
    return Compiled(
        target.text, name, modules,
        memory, "" if memory is not None else f"the compiler for {target.text} gives no memory analysis",
        dict(sorted(ran.costs.items())) if ran.costs else None,
        "" if ran.costs else f"the compiler for {target.text} gives no cost analysis ahead of time",
        seconds, environment,
    )  # fmt: skip


def describe_environment(target: Target, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a compiled number depends on beside the program: versions, flags, options, target."""
    return {
        "target": target.text,
        "device_description": target.description,
        "versions": {"python": platform.python_version(), **require(target).versions},
        "machine": platform.machine(),
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        "compiler_options": dict(options),
    }


def _dumped(directory: Path, name: str, before: bool) -> Modules:
    optimised = private.dumped_module(directory, name, "after_optimizations")
    unoptimised = private.dumped_module(directory, name, "before_optimizations") if before else None
    return Modules(
        optimised.read_bytes() if optimised else None,
        has_buffer_assignment=optimised is not None,
        before=unoptimised.read_bytes() if unoptimised else None,
    )


def _refusal(
    text: str, target: Target, name: str, modules: Modules, seconds: float, environment: Mapping[str, Any]
) -> Refusal:
    found = exceeded(text)
    required = found.required_bytes if found else None
    available = found.available_bytes if found else None
    space = found.space if found else ("unknown" if "RESOURCE_EXHAUSTED" in text else None)
    return Refusal(target.text, name, modules, text, space, required, available, seconds, environment)


def _memory_analysis(statistics: Any) -> dict[str, int] | None:
    """Return every integer field of the compiler's memory statistics, by its own name."""
    if statistics is None:
        return None
    names = [name for name in dir(statistics) if name.endswith("_in_bytes")]
    return {name: int(getattr(statistics, name)) for name in names}
