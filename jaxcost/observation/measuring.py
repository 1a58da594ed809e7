"""What a worker does for a measurement: build the step, run it on real devices, keep every sample. Imports jax.

Time is taken from the call to the moment every result is ready. The steps of a window are dispatched one after the
other and waited for once, so that the window shows what a loop that does not wait would see. Each instrument is named:
what the arrays hold, what the allocator says, what the driver says and what the process holds are four numbers.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from typing import Any

import jax

from jaxcost.contracts.case import Case
from jaxcost.observation.worker import task
from jaxcost.reference.sharding import make_mesh
from jaxcost.reference.step import Step, make_step, random_arguments

SCHEMA = "jaxcost.measured.v1"
# Fields of PJRT's allocator statistics, in our names; a backend leaves out what it does not know.
ALLOCATOR = {
    "in_use_bytes": "bytes_in_use", "peak_in_use_bytes": "peak_bytes_in_use", "limit_bytes": "bytes_limit",
    "reserved_bytes": "bytes_reserved", "peak_reserved_bytes": "peak_bytes_reserved",
    "largest_allocation_bytes": "largest_alloc_size", "pool_bytes": "pool_bytes",
}  # fmt: skip
FLAGS = ("JAX_", "XLA_", "LIBTPU_", "TPU_", "CUDA_VISIBLE_DEVICES", "ENABLE_PJRT")
SEED = 0


@task
def measure_case(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Run the step of one case on the devices that jax finds, and return what was measured.

    Args:
        payload: `case` (data), `warmup` and `samples` (steps), `window` (steps dispatched without waiting).

    Raises:
        RejectedError: there are fewer devices than the mesh needs, or the network cannot execute the case.
    """
    case = Case.from_data(payload["case"], "case")
    devices = jax.devices()
    mesh = make_mesh(case, devices) if case.execution.device_count > 1 else None
    used = list(mesh.devices.flat) if mesh is not None else devices[:1]
    step = make_step(case, mesh)
    arguments = _placed(case, step)
    held = _by_device(arguments, used)
    before = [_allocator(device) for device in used]
    started = time.perf_counter()
    compiled = step.jit().lower(*arguments).compile()
    compiling = time.perf_counter() - started
    run = _Loop(case, compiled, arguments)
    del arguments
    warm = [run.timed() for _ in range(payload["warmup"])]
    samples = [run.timed() for _ in range(payload["samples"])]
    window = run.window(payload["window"])
    after = [_allocator(device) for device in used]
    results = _by_device(run.results, used)
    raw = {"warmup_ns": warm, "samples_ns": samples, "window_steps": payload["window"], "window_ns": window}
    return {
        "schema": SCHEMA,
        "case": case.to_data(),
        "case_digest": case.digest,
        "hardware": _hardware(used, len(devices)),
        "framework": {name: metadata.version(name) for name in ("jax", "jaxlib", "equinox", "optax")},
        "backend": str(used[0].client.platform_version),
        "flags": {name: value for name, value in sorted(os.environ.items()) if name.startswith(FLAGS)},
        "compile_seconds": compiling,
        "raw": raw,
        "raw_digest": hashlib.sha256(json.dumps(raw, sort_keys=True).encode()).hexdigest(),
        "argument_bytes": held,
        "result_bytes": results,
        "allocator": [{"before": first, "after": last} for first, last in zip(before, after, strict=True)],
        "driver": _driver(used),
        "process": _process(),
    }


class _Loop:
    """The step called again and again, its state taken over from call to call as a training or decoding loop does."""

    def __init__(self, case: Case, compiled: Callable[..., Any], arguments: Sequence[Any]):
        self.phase, self.compiled = case.workload.phase, compiled
        self.first, self.rest = arguments[0], tuple(arguments[1:])
        self.results: Any = ()

    def call(self) -> Any:
        """Dispatch one step; its results become the arguments that it donated."""
        # Results that nobody holds may be freed; those of the last step are dropped before the next begins.
        self.results = ()
        found = self.compiled(self.first, *self.rest)
        if self.phase == "training":
            self.first = found[0]
        elif self.phase == "decode":
            self.rest = (found[1], *self.rest[1:])
        self.results = found
        return found

    def timed(self) -> int:
        """Return the nanoseconds from the call until every result is ready."""
        started = time.perf_counter_ns()
        jax.block_until_ready(self.call())
        return time.perf_counter_ns() - started

    def window(self, steps: int) -> int:
        """Return the nanoseconds of `steps` steps dispatched without waiting in between."""
        started = time.perf_counter_ns()
        for _ in range(steps):
            self.call()
        jax.block_until_ready(self.results)
        return time.perf_counter_ns() - started


def _placed(case: Case, step: Step) -> tuple[Any, ...]:
    """Return random arguments, born on their devices: no device ever holds more than its own shard."""

    def born(key: jax.Array) -> tuple[Any, ...]:
        return random_arguments(case, key)

    made: tuple[Any, ...] = jax.jit(born, out_shardings=step.in_shardings)(jax.random.key(SEED))
    jax.block_until_ready(made)
    return made


def _by_device(tree: Any, devices: Sequence[Any]) -> list[int]:
    """Return the bytes of the arrays' shards on each device, each buffer once."""
    held = dict.fromkeys(devices, 0)
    for leaf in jax.tree.leaves(tree):
        for shard in leaf.addressable_shards:
            held[shard.device] += shard.data.nbytes
    return [held[device] for device in devices]


def _allocator(device: Any) -> dict[str, Any]:
    stats = device.memory_stats()
    if not stats:
        return {**dict.fromkeys(ALLOCATOR), "reason": f"the {device.platform} client keeps no allocator statistics"}
    return {ours: stats.get(theirs) for ours, theirs in ALLOCATOR.items()}


def _hardware(used: Sequence[Any], there: int) -> dict[str, Any]:
    first = used[0]
    named = _cpu_model() if first.platform == "cpu" else first.device_kind
    return {
        "platform": first.platform, "device_kind": first.device_kind, "name": named, "used": len(used),
        "present": there, "processes": jax.process_count(), "machine": platform.platform(),
        "cpu_count": os.cpu_count(), "load_average": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
    }  # fmt: skip


def _cpu_model() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()


def _driver(used: Sequence[Any]) -> dict[str, Any]:
    """Return what the driver says is used on each device, by all processes and contexts; None with a reason."""
    program = shutil.which("nvidia-smi")
    if used[0].platform != "gpu" or program is None:
        said = "no instrument of the driver is known here" if used[0].platform != "gpu" else "nvidia-smi is not here"
        return {"used_bytes": None, "reason": said}
    query = [program, "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, check=True, timeout=30)
        mebibytes = [int(line) for line in done.stdout.split()]
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return {"used_bytes": None, "reason": f"nvidia-smi gave no numbers: {type(error).__name__}"}
    return {"used_bytes": [2**20 * value for value in mebibytes], "reason": "nvidia-smi, every GPU of the machine, MiB"}


def _process() -> dict[str, Any]:
    """Return the largest resident size of this process: interpreter, compiler, host buffers."""
    try:
        import resource
    except ImportError:
        return {"peak_resident_bytes": None, "reason": "this system does not say"}
    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"peak_resident_bytes": size if platform.system() == "Darwin" else size * 1024, "reason": "getrusage"}
