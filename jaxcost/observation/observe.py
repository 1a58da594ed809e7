"""Observing a case: what the compiler of a target makes of its step. No jax is imported here; a worker does the work.

with Pool() as pool:
    seen = observe(case, "h100:8", pool=pool)
seen.flops_by("group0/attn", "backward"), seen.memory["required_bytes"]
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxcost.contracts.case import Case
from jaxcost.contracts.errors import Problem, RejectedError, UnavailableError, reject
from jaxcost.observation.kernels import require_family, require_kernel
from jaxcost.observation.observed import SCHEMA, SECTIONS, Observed
from jaxcost.observation.pool import Pool, Reply, Request, WorkerFailure, request_for
from jaxcost.observation.record import write_record
from jaxcost.observation.sections import target_section
from jaxcost.observation.targets import Target, parse_target, require

TASK = "jaxcost.observation.tasks:observe_case"


@dataclass(frozen=True)
class Wish:
    """One case to be observed on one target.

    `optimisation_level` 0 compiles for the CPU with little effort (same contractions, other memory); `second_compile`
    allows the compile with XLA's own rematerialisation where the program exceeds the device.
    """

    case: Case
    target: str = "cpu"
    optimisation_level: int | None = None
    second_compile: bool = True
    record: Path | str | None = None


def target_for(case: Case, target: str) -> Target:
    """Return the target, with as many devices as the case's mesh; a bare `cpu` takes the mesh's size.

    Raises:
        RejectedError: the text is no target, mesh and target differ in their number of devices, or the attention
            kernel is written for another family.
    """
    devices = case.execution.device_count
    found = parse_target(f"cpu:{devices}" if target == "cpu" else target)
    if found.device_count != devices:
        sizes = case.execution.mesh_sizes
        mesh = ",".join(f"{name}={size}" for name, size in sizes.items()) or "empty"
        count = "1 device" if devices == 1 else f"{devices} devices"
        rule = f"the mesh ({mesh}) has {count} and the target {found.text} has {found.device_count}"
        remedy = "choose a mesh whose product is the target's number of devices, or another target"
        raise reject("execution.mesh", mesh, rule, remedy)
    require_family(case, found)
    return found


def observe(
    case: Case,
    target: str = "cpu",
    *,
    pool: Pool | None = None,
    optimisation_level: int | None = None,
    second_compile: bool = True,
    record: Path | str | None = None,
) -> Observed:
    """Compile the step of a case for a target and return what the compiler made of it.

    Args:
        case: the case; the product of its mesh axes is the number of devices (no mesh: one).
        target: `cpu`, `cpu:8`, `h100:8`, `tpu-v5e:2x4`, ...
        pool: workers to use; None starts one and stops it.
        optimisation_level: 0 compiles for the CPU with little effort: the same contractions, other memory.
        second_compile: where the device is exceeded, compile again with XLA's own rematerialisation.
        record: a directory to write the evidence to, for replay.

    Raises:
        RejectedError: mesh and target do not fit together, or the reference cannot express the case.
        UnavailableError: the target's compiler is not installed; the message has the command that adds it.

    A worker that crashes, or exceeds its time or memory, gives an observation of status `failed`.
    """
    wish = Wish(case, target, optimisation_level, second_compile, record)
    found = target_for(case, target)
    require(found)
    require_kernel(case, found)
    seen = observe_many([wish], pool=pool)[0]
    failure = seen.data.get("failure")
    if failure and failure["kind"] == "rejected":
        raise RejectedError(Problem(**problem) for problem in failure["problems"])
    if failure and failure["kind"] == "unavailable":
        raise UnavailableError(failure["details"]["what"], seen.reason, failure["details"]["remedy"])
    return seen


def observe_many(wishes: Iterable[Wish], *, pool: Pool | None = None) -> list[Observed]:
    """Observe several cases, in parallel as far as the pool goes, and return them in order.

    What `observe` raises about one case (rejected, unavailable) is here an observation of status `failed` whose
    `failure.kind` says so.
    """
    wanted = list(wishes)
    results: list[Observed | None] = [None] * len(wanted)
    targets: list[Target | None] = [None] * len(wanted)
    requests: list[tuple[int, Request]] = []
    for index, wish in enumerate(wanted):
        try:
            target = targets[index] = target_for(wish.case, wish.target)
            require(target)
            require_kernel(wish.case, target)
        except RejectedError as error:
            failure = WorkerFailure("rejected", str(error), problems=error.problems)
            results[index] = failed(wish.case, targets[index], wish.target, failure)
        except UnavailableError as error:
            failure = WorkerFailure("unavailable", error.reason, details={"what": error.what, "remedy": error.remedy})
            results[index] = failed(wish.case, targets[index], wish.target, failure)
        else:
            requests.append((index, _request(wish, target)))
    if requests:
        with nullcontext(pool) if pool is not None else Pool(size=min(2, len(requests))) as workers:
            replies = workers.map([request for _, request in requests])
        for (index, _), reply in zip(requests, replies, strict=True):
            results[index] = _result(wanted[index], targets[index], reply)
    return [result for result in results if result is not None]


def failed(case: Case, target: Target | None, text: str, failure: WorkerFailure) -> Observed:
    """Return the observation that says why there is none."""
    return Observed.from_dict({
        "schema": SCHEMA, "status": "failed", "reason": failure.reason or failure.kind, "evidence_class": "unmeasured",
        "origin": "none", "case": case.to_data(), "case_digest": case.digest,
        "target": target_section(target) if target else {"text": text},
        "environment": {}, **dict.fromkeys(SECTIONS),
        "failure": {
            "kind": failure.kind, "stderr_tail": failure.stderr_tail, "details": dict(failure.details),
            "problems": [problem.to_dict() for problem in failure.problems],
        },
    })  # fmt: skip


def _request(wish: Wish, target: Target) -> Request:
    payload = {
        "case": wish.case.to_data(), "target": target.text, "optimisation_level": wish.optimisation_level,
        "second_compile": wish.second_compile, "return_hlo": wish.record is not None,
    }  # fmt: skip
    label = f"{wish.case.architecture.name} {wish.case.workload.phase} {target.text}"
    return request_for(target, TASK, payload, label=label)


def _result(wish: Wish, target: Target | None, reply: Reply | WorkerFailure) -> Observed:
    if isinstance(reply, WorkerFailure):
        return failed(wish.case, target, wish.target, reply)
    seen = Observed.from_dict(reply.value["observed"])
    if wish.record is not None and reply.value["hlo"] is not None:
        write_record(wish.record, seen, reply.value["hlo"], command=_command(wish, seen.target))
    return seen


def _command(wish: Wish, target: str) -> Sequence[str]:
    """The command line that makes the observation again, as far as options say it."""
    work, run = wish.case.workload, wish.case.execution
    options: list[tuple[str, Any]] = [
        ("phase", work.phase), ("batch", work.batch), ("seq", work.new_tokens), ("past", work.past_tokens or None),
        ("attention", work.attention), ("logits", work.logits), ("precision", wish.case.state.name or None),
        ("optimizer", wish.case.state.optimizer if work.phase == "training" else None),
        ("remat", run.remat), ("layers", run.layers), ("sharding", run.sharding),
        ("mesh", ",".join(f"{name}={size}" for name, size in run.mesh_sizes.items()) or None), ("target", target),
    ]  # fmt: skip
    given = (part for name, value in options if value is not None for part in (f"--{name}", str(value)))
    return ["jaxcost", "verify", wish.case.architecture.name, *given]
