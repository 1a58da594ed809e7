"""Measuring a case: its step, run on the devices of this machine. No jax is imported here; a worker does the work.

The worker is a fresh process, so that its allocator has seen nothing but this step and the making of its arguments.
"""

from __future__ import annotations

from typing import Any

from jaxcost.contracts.case import Case
from jaxcost.contracts.errors import UnavailableError, reject
from jaxcost.observation.pool import Pool, Reply, Request, WorkerFailure

TASK = "jaxcost.observation.measuring:measure_case"
MOST_STEPS = 100_000
MOST_CPU_DEVICES = 64
DEFAULT_TIMEOUT_SECONDS = 1800.0


def measure_case(
    case: Case,
    devices: str = "present",
    *,
    warmup: int = 3,
    samples: int = 20,
    window: int = 10,
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
    memory_bytes: int | None = None,
    pool: Pool | None = None,
) -> dict[str, Any]:
    """Run the step of a case and return what was measured (`jaxcost.measured.v1`), with every sample.

    Args:
        case: the case; the product of its mesh axes is the number of devices.
        devices: `present` for the devices that jax finds here, or `cpu` for virtual CPU devices, as many as the mesh.
        warmup: steps before the first sample.
        samples: steps that are timed one by one, each waited for.
        window: steps dispatched without waiting, timed together.
        timeout_seconds: after which the run is stopped.
        memory_bytes: host memory after which the run is stopped; None leaves it to the machine.

    Raises:
        RejectedError: a count out of range, fewer devices than the mesh needs, a case the network cannot execute.
        UnavailableError: jax finds no device to run on, or the run ended without a result.
    """
    counts: dict[str, object] = {"warmup": warmup, "samples": samples, "window": window}
    for name, value in counts.items():
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_STEPS:
            raise reject(f"--{name}", value, f"must be a whole number from 1 to {MOST_STEPS:,}", f"write --{name} 10")
    if devices not in ("present", "cpu"):
        raise reject("--devices", devices, "must be present or cpu", "present: what jax finds; cpu: virtual devices")
    count = case.execution.device_count
    if devices == "cpu" and count > MOST_CPU_DEVICES:
        rule = f"the mesh has {count} devices; at most {MOST_CPU_DEVICES} virtual CPU devices are run here"
        raise reject("execution.mesh", count, rule, "measure a smaller mesh")
    request = Request(
        TASK,
        {"case": case.to_data(), "warmup": warmup, "samples": samples, "window": window},
        kind="present" if devices == "present" else "cpu",
        cpu_devices=count if devices == "cpu" else 1,
        timeout_seconds=timeout_seconds,
        memory_bytes=memory_bytes if memory_bytes is not None else 2**50,
        label=f"{case.architecture.name} {case.workload.phase}",
    )
    if pool is not None:
        reply = pool.map([request])[0]
    else:
        with Pool(size=1) as own:
            reply = own.map([request])[0]
    if isinstance(reply, Reply):
        found: dict[str, Any] = reply.value
        return found
    raise_failure(reply)
    raise AssertionError("a failure raises")


def require_timeout(value: object) -> float:
    """Return a time limit in seconds.

    Raises:
        RejectedError: it is not a whole number from 1 to a week.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 604_800:
        raise reject("--timeout", value, "must be a whole number of seconds, at most a week", "write --timeout 1800")
    return float(value)


def raise_failure(failure: WorkerFailure) -> None:
    """Raise what a run that ended without a result means to its user."""
    if failure.kind == "rejected":
        failure.throw()
    last = (failure.stderr_tail.strip().splitlines() or [""])[-1]
    remedy = {
        "timed_out": "give it more time (--timeout), or measure a smaller case",
        "memory_exceeded": "measure a smaller case",
    }.get(failure.kind, "measure a smaller case, or look at what the devices are doing")
    raise UnavailableError("the measurement", f"{failure.kind}: {failure.reason} {last}".strip(), remedy)
