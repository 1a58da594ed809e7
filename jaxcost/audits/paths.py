"""A path to its audits: a file of a module, a dump directory, a saved audit. No jax is imported; a worker reads."""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jaxcost.audits.audit import TASKS, Audit, audited, replies
from jaxcost.audits.regression import checked
from jaxcost.audits.saved import read_document
from jaxcost.contracts.errors import Problem, UnavailableError, reject
from jaxcost.observation.pool import Pool, Request, WorkerFailure
from jaxcost.observation.sources.dumps import DumpedModule, choose, dumped_file, meant_by, read_dump
from jaxcost.observation.targets import Family, parse_target

RECORD_SCHEMA = "jaxcost.record.v1"


@dataclass(frozen=True)
class Asked:
    """What is asked of a path. `every`: all modules of a dump; `module`: the one of this name, number or label."""

    path: Path
    module: str | None = None
    every: bool = False
    platform: Family | None = None
    target: str | None = None
    mesh: Mapping[str, int] | None = None
    trips: Mapping[str, int] | None = None


@dataclass(frozen=True)
class Failed:
    """A module of a dump that could not be audited, and why."""

    label: str
    problems: tuple[Problem, ...]


def audit_path(
    asked: Asked, pool: Pool, say: Callable[[str], None] = lambda message: None
) -> tuple[list[Audit], list[Failed]]:
    """Return the audits of a path: one, but for `every` module of a dump; with it one that fails leaves the others.

    Raises:
        RejectedError: what lies there cannot be read, or the worker that read it died, or exceeded its time or memory.
        UnavailableError: nothing lies there.
        WorkerError: a fault of jaxcost's own.
    """
    path = asked.path
    if asked.target is not None:
        parse_target(asked.target)
    try:
        kind = path.stat().st_mode
    except FileNotFoundError:
        raise UnavailableError(str(path), "no such file or directory", "check the path") from None
    except OSError as error:
        raise reject(str(path)[:200], None, f"cannot be read ({error.strerror})", "check the path") from None
    if stat.S_ISDIR(kind):
        return _dump(asked, pool, say)
    if asked.module is not None or asked.every:
        option, value = ("--module", asked.module) if asked.module is not None else ("--all", None)
        raise reject(option, value, "a file is one module", "leave it out, or name a dump directory")
    if not stat.S_ISREG(kind):
        raise reject(str(path), None, "is no plain file", "copy its content to a file")
    saved = _json(path)
    if saved is None:
        module = dumped_file(path)
        request = _request(asked, {"path": str(path.resolve())}, path.name)
        return [audited(_value(pool, _module(asked, module, "") if module is not None else request))], []
    if saved.get("schema") == RECORD_SCHEMA:
        return [_record(asked, saved, pool)], []
    given = [name for name in ("platform", "target", "mesh", "trips") if getattr(asked, name)]
    if given:
        raise reject(f"--{given[0]}", str(path), "a saved audit is shown as it is", f"leave --{given[0]} out")
    return [read_saved(saved, path.name)], []


def read_saved(saved: Mapping[str, Any], where: str) -> Audit:
    """Return the audit of a saved document.

    Raises:
        RejectedError: it is another document, or its figures are none.
    """
    return Audit(checked(saved, where))


@contextmanager
def whole(path: Path | None) -> Iterator[None]:
    """Show a saved audit: what it lacks is the file's fault.

    Raises:
        RejectedError: a part that is shown is missing from it or has another form.
    """
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        if path is None or not path.is_file() or _json(path) is None:
            raise
        reason = f"{type(error).__name__}: {error}"[:200]
        raise reject(str(path), reason, "is no whole audit", "save the audit again") from error


def _value(pool: Pool, request: Request) -> Any:
    """What a worker makes of a file. What ends a worker is the file: XLA's parser of text dies on some damaged ones."""
    return replies(pool, [request], "dump the module again, as a proto")[0]


def _dump(asked: Asked, pool: Pool, say: Callable[[str], None]) -> tuple[list[Audit], list[Failed]]:
    modules = read_dump(asked.path)
    if not asked.every:
        chosen, how = choose(modules, asked.module, asked.path.name)
        return [audited(_value(pool, _module(asked, chosen, how)))], []
    if asked.module is not None:
        modules = meant_by(modules, asked.module, asked.path.name)
    say(f"{len(modules)} modules")
    results = pool.map(_module(asked, at, "") for at in modules)
    audits, failed = [], []
    for module, result in zip(modules, results, strict=True):
        if isinstance(result, WorkerFailure):
            fault = Problem(module.label, None, f"{result.kind}: {result.reason}", "audit it alone to see more")
            failed.append(Failed(module.label, result.problems or (fault,)))
        else:
            audits.append(audited(result.value))
    return audits, failed


def _module(asked: Asked, module: DumpedModule, how: str) -> Request:
    payload = {
        "path": str(module.path.resolve()), "origin": "dump", "name": module.name.removeprefix("jit_"),
        "notes": [f"module {module.label} ({module.path.name})", *([how] if how else [])],
        "assignment": str(module.assignment.resolve()) if module.assignment else None,
        "device": str(module.device.resolve()) if module.device else None,
    }  # fmt: skip
    if asked.platform is None and asked.target is None:
        asked = replace(asked, platform=module.platform)
    return _request(asked, payload, module.label)


def _request(asked: Asked, payload: Mapping[str, Any], label: str) -> Request:
    more = {name: getattr(asked, name) for name in ("platform", "target")}
    tables = {name: dict(value) if (value := getattr(asked, name)) else None for name in ("mesh", "trips")}
    return Request(f"{TASKS}:audit_file", {**payload, **more, **tables}, label=label)


def _record(asked: Asked, saved: Mapping[str, Any], pool: Pool) -> Audit:
    """The module of recorded evidence, which lies beside it."""
    module = asked.path.with_name(asked.path.name.removesuffix(".json") + ".hlo.xz")
    if not module.is_file():
        raise UnavailableError(str(module), "the module of this record does not lie beside it", "check the path")
    observed = saved.get("observed")
    target = observed.get("target") if isinstance(observed, Mapping) else None
    text = target.get("text") if isinstance(target, Mapping) else None
    if asked.target is None and asked.platform is None and isinstance(text, str):
        asked = replace(asked, target=text)
    return audited(_value(pool, _request(asked, {"path": str(module.resolve())}, module.name)))


def _json(path: Path) -> Mapping[str, Any] | None:
    """The object of a JSON file; None where the file is none, to be read as a module."""
    try:
        with path.open("rb") as file:
            if file.read(4096).lstrip()[:1] != b"{":
                return None
    except OSError as error:
        raise reject(str(path), None, f"cannot be read ({error.strerror})", "check its permissions") from None
    data = read_document(path, str(path))
    return data if isinstance(data, dict) else None


def several(audits: Sequence[Audit], failed: Sequence[Failed]) -> dict[str, Any]:
    """Return the parts of the document of several audits: `audits` and `rejected`."""
    return {
        "audits": [audit.to_dict() for audit in audits],
        "rejected": [{"module": at.label, "errors": [p.to_dict() for p in at.problems]} for at in failed],
    }
