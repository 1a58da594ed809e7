"""`jaxcost.audit`: what any compiled JAX program costs, from the program itself.

    audit = jaxcost.audit(step, state, batch, target="h100:8", donate_argnums=0)
    audit.flops, audit.memory["required_bytes"], audit.unknowns, audit.findings
    audit.save("step.json")

The function is traced and lowered here, in the process it lives in; it is compiled and read in a worker, so neither
flags nor devices of this process are touched. No jax is imported before there is a function to trace.
"""

from __future__ import annotations

import copy
import json
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, Self

from jaxcost.audits.given import checked_mesh, checked_trips
from jaxcost.contracts.errors import reject
from jaxcost.observation.pool import Pool, Reply, Request, request_for
from jaxcost.observation.targets import LARGEST_DEVICE_COUNT, Target, parse_target, require

ALLOWED = ("jaxcost.audits",)
SCHEMA = "jaxcost.audit.v1"
TASKS = "jaxcost.audits.tasks"

_ENDED = {
    "crashed": "the compiler or reader crashed on it",
    "timed_out": "it took too long",
    "memory_exceeded": "it took too much memory",
}
_ENDED_REMEDY = {
    "crashed": "mend the program, or audit it for another target",
    "timed_out": "raise --timeout (Pool(timeout_seconds=...)), or audit a smaller program",
    "memory_exceeded": "raise --memory (Pool(memory_bytes=...)), or audit a smaller program",
}
_SAID = re.compile(r"(?:F[0-9]{4} |.*(?:Check failed|terminate called|what\(\):|Assertion|[Ff]atal|error:|Error:)).*")


@dataclass(frozen=True)
class Audit:
    """The audit of one program; `data` is the document (`jaxcost.audit.v1`).

    An unknown figure is None, and `unknowns` says why. FLOPs are per device and step, one FMA is two.
    """

    data: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The name of the program."""
        return str(self.data["program"]["name"])

    @property
    def flops(self) -> Any:
        """FLOPs of contractions and known kernels: an integer, {"minimum", "maximum"}, or None."""
        return self.data["flops"]["total"]

    @property
    def memory(self) -> Mapping[str, Any]:
        """Bytes on one device."""
        memory: Mapping[str, Any] = self.data["memory"]
        return memory

    @property
    def collectives(self) -> list[dict[str, Any]]:
        """Transfers between devices."""
        return list(self.data["collectives"])

    @property
    def findings(self) -> list[dict[str, Any]]:
        """What is worth knowing beside the totals."""
        return list(self.data["findings"])

    @property
    def unknowns(self) -> list[dict[str, Any]]:
        """What could not be told, and where."""
        return list(self.data["unknowns"])

    @property
    def refused(self) -> str | None:
        """What the compiler said where it refused the program, else None."""
        refused: str | None = self.data["program"]["refused"]
        return refused

    def to_dict(self) -> dict[str, Any]:
        """Return the document as plain data of its own."""
        return copy.deepcopy(dict(self.data))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Return the audit of a document.

        Raises:
            RejectedError: it is of another schema, a part is missing or of another kind, or a figure is none.
        """
        from jaxcost.audits.regression import checked

        return cls(checked(dict(data), "audit"))

    def save(self, path: Path | str) -> Path:
        """Write the document as JSON, for `jaxcost audit --against`.

        Raises:
            RejectedError: the file cannot be written.
        """
        path = Path(path)
        try:
            path.write_text(json.dumps(self.data, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        except OSError as error:
            raise reject("path", str(path), f"cannot be written ({error.strerror})", "write elsewhere") from None
        return path

    def __str__(self) -> str:
        target = self.data["program"]["target"]
        where = target["text"] if target else self.data["program"]["platform"]
        unknown = f", {len(self.unknowns)} unknown" if self.unknowns else ""
        required = _cell(self.memory.get("required_bytes"))
        return f"Audit({self.name} on {where}: {_cell(self.flops)} FLOPs, {required} bytes required{unknown})"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        memory, program = self.memory, self.data["program"]
        where = program["target"]["text"] if program["target"] else program["platform"]
        rows: list[tuple[str, Any]] = [
            ("FLOPs", self.flops), ("required bytes", memory.get("required_bytes")),
            ("live peak bytes", memory.get("live_peak_bytes")), ("argument bytes", memory.get("argument_bytes")),
            ("collectives", len(self.collectives)),
        ]  # fmt: skip
        cells = "".join(
            f"<tr><td>{name}</td><td style='text-align:right'>{_cell(value)}</td></tr>" for name, value in rows
        )
        notes = [f"unknown: {row['what']}: {row['reason']}" for row in self.unknowns[:10]]
        notes += [str(row["text"]) for row in self.findings[:10]]
        listed = "".join(f"<li>{escape(note)}</li>" for note in notes)
        title = f"{escape(self.name)} on {escape(where)}"
        return f"<table><caption>{title}, one device, one step</caption>{cells}</table><ul>{listed}</ul>"


def _cell(value: Any) -> str:
    if isinstance(value, Mapping):
        return " to ".join(_cell(value[end]) for end in ("minimum", "maximum"))
    return "unknown" if value is None else f"{value:,}"


def audit(
    function: Any,
    /,
    *args: Any,
    target: str = "cpu",
    mesh: Mapping[str, int] | None = None,
    trips: Mapping[str, int] | None = None,
    donate_argnums: Any = None,
    donate_argnames: Any = None,
    static_argnums: Any = None,
    static_argnames: Any = None,
    in_shardings: Any = None,
    out_shardings: Any = None,
    keep_unused: bool | None = None,
    pool: Pool | None = None,
    **keywords: Any,
) -> Audit:
    """Compile a function for a target and say what the program costs; nothing runs, no device is needed.

    Args:
        function: plain, `jax.jit`, `eqx.filter_jit`, `nnx.jit`; or a stage of one (traced, lowered, compiled), without
            arguments. A `Compiled` keeps the platform it was compiled for.
        args: its arguments: arrays, `jax.ShapeDtypeStruct`, pytrees and modules of them, numbers.
        keywords: its keyword arguments.
        target: `cpu`, `cpu:8`, `h100:8`, `tpu-v5e:2x4`, ... A bare `cpu` has as many devices as the program.
        mesh: axes in whose context the function is traced, so that a bare `PartitionSpec` has a meaning; by their names
            collectives are told apart. None takes the mesh that the shardings name.
        trips: counts by while-instruction name, for loops that depend on run-time values.
        donate_argnums, donate_argnames, static_argnums, static_argnames, in_shardings, out_shardings, keep_unused: as
            in `jax.jit`, for a function that is not jitted.
        pool: workers to use, made with `Pool(allow=("jaxcost.audits",))`; None starts one and stops it.

    Raises:
        RejectedError: it is no function, cannot be traced, or does not fit the target.
            The compiler crashed, or exceeded its time or memory.
        UnavailableError: the target's compiler is not installed; the message has the command that adds it.
    """
    from jaxcost.observation.sources import stages
    from jaxcost.observation.sources.functions import lower_function

    options = {
        "donate_argnums": donate_argnums, "donate_argnames": donate_argnames, "static_argnums": static_argnums,
        "static_argnames": static_argnames, "in_shardings": in_shardings, "out_shardings": out_shardings,
        "keep_unused": keep_unused,
    }  # fmt: skip
    mesh, trips = checked_mesh(mesh), checked_trips(trips)
    if pool is not None and not isinstance(pool, Pool):
        raise reject("pool", pool, "is no pool of workers", 'give one: Pool(allow=("jaxcost.audits",))')
    found = parse_target(target)
    require(found)
    more = {"mesh": mesh, "trips": trips}
    stage = stages.stage_of(function)
    if stage is not None:
        given = {"args": args or None, **options, **keywords}
        for name, value in given.items():
            if value is not None:
                raise reject(name, value, "a stage has its arguments already, and its options", "give the stage alone")
        request = _stage_request(*stage, found, bare=target == "cpu", more=more)
    else:
        lowered, module = lower_function(function, args, keywords, platform=found.family, options=options, mesh=mesh)
        request = module_request(lowered, module, fitting(found, module.device_count, bare=target == "cpu"), more)
    with nullcontext(pool) if pool is not None else Pool(size=1, allow=ALLOWED) as workers:
        return audited(replies(workers, [request])[0])


def _stage_request(kind: Any, stage: Any, target: Target, *, bare: bool, more: Mapping[str, Any]) -> Request:
    from jaxcost.observation.sources.stages import compiled_stage, lowered_stage

    if kind == "compiled":
        payload = {"program": compiled_stage(stage, None if bare else target).to_data(), **more}
        return Request(f"{TASKS}:audit_program", payload, label="compiled stage")
    lowered, module = lowered_stage(kind, stage, target)
    return module_request(lowered, module, fitting(target, module.device_count, bare=bare), more, origin="stage")


def module_request(
    lowered: Any, module: Any, target: Target, more: Mapping[str, Any], *, origin: str = "function"
) -> Request:
    """Return the request that compiles a lowered module for a target and audits it."""
    payload = {
        "lowered": lowered.to_data(), "module": module.to_data(), "target": target.text, "origin": origin, **more,
    }  # fmt: skip
    return request_for(target, f"{TASKS}:audit_module", payload, label=f"{lowered.name} {target.text}")


def named_request(
    name: str,
    target: str,
    *,
    folder: str,
    mesh: Mapping[str, int] | None = None,
    trips: Mapping[str, int] | None = None,
) -> Request:
    """Return the request that imports a function by name (`module:name`) in a worker, compiles and audits it.

    The worker has as many CPU devices as the target has devices, so that a mesh of the program can be made.

    Raises:
        RejectedError: the target is none.
        UnavailableError: its compiler is not installed.
    """
    found = parse_target(target)
    require(found)
    payload = {
        "function": name, "target": target, "folder": folder, "mesh": checked_mesh(mesh), "trips": checked_trips(trips),
    }  # fmt: skip
    devices = min(found.device_count, LARGEST_DEVICE_COUNT["cpu"])
    return Request(
        f"{TASKS}:audit_named", payload, kind=found.family, cpu_devices=devices, label=f"{name} {found.text}"
    )


def named_audits(name: str, targets: Sequence[str], pool: Pool, **more: Any) -> list[Audit]:
    """Return the audits of a function named for the command line, one for each target.

    A bare `cpu` has as many devices as the program, as in `audit`: a program for several is lowered and compiled again
    by a worker that has them. `more`: as in `named_request`.

    Raises:
        RejectedError, UnavailableError, WorkerError: as `audit` does; of the first target that cannot be audited.
    """
    values = replies(pool, [named_request(name, target, **more) for target in targets])
    for index, value in enumerate(values):
        if "devices" in value:
            (values[index],) = replies(pool, [named_request(name, f"cpu:{value['devices']}", **more)])
    return [audited(value) for value in values]


def fitting(target: Target, devices: int, *, bare: bool) -> Target:
    """Return the target for a program of so many devices; a bare `cpu` takes theirs.

    Raises:
        RejectedError: the program is for several devices and the target has another number of them.
    """
    if bare and devices > 1:
        return parse_target(f"cpu:{devices}")
    if devices not in (1, target.device_count):
        rule = f"the program is for {devices} devices, the target has {target.device_count}"
        example = f"{target.chip}:{devices}" if target.family != "tpu" else "a slice of as many devices"
        raise reject("target", target.text, rule, f"name a target of {devices} devices: {example}")
    return target


def replies(
    pool: Pool, requests: Sequence[Request], crashed: str = _ENDED_REMEDY["crashed"]
) -> list[Mapping[str, Any]]:
    """Return what tasks made of programs, in order. A program that ends its compiler is refused like any other.

    Raises:
        RejectedError, UnavailableError: of the first that has no reply.
        WorkerError: a task failed by a fault of its own.
    """
    values: list[Mapping[str, Any]] = []
    for request, result in zip(requests, pool.map(requests), strict=True):
        if isinstance(result, Reply):
            values.append(result.value)
        elif result.kind in _ENDED:
            said = _last_words(result.stderr_tail) if result.kind == "crashed" else ""
            rule = f"{_ENDED[result.kind]} ({result.reason}{'; it said: ' * bool(said)}{said})"
            remedy = crashed if result.kind == "crashed" else _ENDED_REMEDY[result.kind]
            raise reject(request.label, result.kind, rule, remedy)
        else:
            result.throw()
    return values


def _last_words(text: str) -> str:
    """What a process that died said of it: the last line that names a failure, else the last before its stack."""
    lines = [line.strip() for line in text.partition("Fatal Python error")[0].splitlines() if line.strip()]
    named = [line for line in lines if _SAID.fullmatch(line)]
    return (named or lines or [""])[-1][:300]


def audited(value: Mapping[str, Any]) -> Audit:
    """Return the audit that a task of `jaxcost.audits.tasks` made."""
    document = dict(value["document"])
    return Audit({"schema": document.pop("schema"), "jaxcost": _version(), **document})


def _version() -> str:
    # An import of the root package would be an import of every room that it names.
    return str(sys.modules[__name__.partition(".")[0]].__version__)
