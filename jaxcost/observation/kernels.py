"""Whether a target has the attention kernel a case asks for, decided before anything is compiled. Imports no jax."""

from __future__ import annotations

from importlib import metadata

from jaxcost.contracts.case import Case
from jaxcost.contracts.errors import UnavailableError, reject
from jaxcost.contracts.kernels import KERNEL_FAMILIES
from jaxcost.observation.targets import Target, Unavailable

# jax asks the library for its version when it lowers the call; the compiler itself does without.
CUDNN_WHEEL = "nvidia-cudnn-cu13"
_EXAMPLES = {"cuda": "h100", "tpu": "tpu-v5e"}


def require_family(case: Case, target: Target) -> None:
    """Raise RejectedError where the case's kernel is written for another family of devices than the target's."""
    plan = case.workload.attention
    family = KERNEL_FAMILIES.get(plan, target.family)
    if family != target.family:
        rule = f"{plan} is a kernel for {family} targets, and {target.text} is none"
        remedy = f"use --attention blockwise, or a {family} target (--target {_EXAMPLES[family]})"
        raise reject("workload.attention", plan, rule, remedy)


def kernel_availability(case: Case) -> Unavailable | None:
    """Return what the case's kernel lacks on this machine, None where it lacks nothing."""
    if case.workload.attention != "cudnn":
        return None
    try:
        metadata.version(CUDNN_WHEEL)
    except metadata.PackageNotFoundError:
        return Unavailable(f"cudnn attention needs {CUDNN_WHEEL}, which is not installed", f"pip install {CUDNN_WHEEL}")
    return None


def require_kernel(case: Case, target: Target) -> None:
    """Raise UnavailableError, with the command that adds it, where the case's kernel is not installed."""
    missing = kernel_availability(case)
    if missing is not None:
        raise UnavailableError(f"{target.text} --attention cudnn", missing.reason, missing.remedy)
