"""What a worker does for an audit: open, compile where there is something to compile, read, and write the document.

Each task returns the document, and the compiled module where `keep_hlo` asks for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from jaxcost.audits.document import audit_document
from jaxcost.contracts.errors import RejectedError
from jaxcost.observation.sources import Program
from jaxcost.observation.targets import parse_target
from jaxcost.observation.worker import task


@task
def audit_module(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Compile a module that was lowered elsewhere and audit it.

    Args:
        payload: `lowered` and `module` (data), `target` (text), `origin`, and optionally `mesh`, `trips`, `keep_hlo`.
    """
    from jaxcost.observation.private import Portable
    from jaxcost.observation.sources.compiled import compile_program
    from jaxcost.observation.sources.program import Lowered

    lowered, module = Lowered.from_data(payload["lowered"]), Portable.from_data(payload["module"])
    program = compile_program(lowered, module, parse_target(payload["target"]), origin=payload["origin"])
    return _audited(program, payload)


@task
def audit_named(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Import a function by name, lower, compile and audit it.

    Args:
        payload: `function` (`module:name`), `target`, `folder` (put on the path), and as in `audit_module`.

    Returns:
        The audit; of a program for several devices and a bare `cpu`, their number alone (`devices`).
    """
    from jaxcost.observation.sources.compiled import compile_program
    from jaxcost.observation.sources.named import lower_named

    target = parse_target(payload["target"])
    lowered, module = lower_named(payload["function"], target, folder=payload["folder"], mesh=payload.get("mesh"))
    if payload["target"] == "cpu" and module.device_count > 1:
        return {"devices": module.device_count}
    return _audited(compile_program(lowered, module, target), payload)


@task
def audit_program(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Audit a program whose compiled module is in the payload: `program` (data), and as in `audit_module`."""
    return _audited(Program.from_data(payload["program"]), payload)


@task
def audit_file(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Read a file of a compiled module and audit it.

    Args:
        payload: `path`, the other arguments of `read_program` as far as known, and as in `audit_module`.
    """
    from jaxcost.observation.sources.files import read_program

    given = ("platform", "target", "name", "origin", "notes", "assignment", "device")
    try:
        program = read_program(payload["path"], **{name: payload[name] for name in given if payload.get(name)})
        return _audited(program, payload)
    except RejectedError as error:
        file = Path(payload["path"]).name
        problems = [
            replace(problem, path=f"{file}: {problem.path}") if problem.path.partition(".")[0] == "hlo" else problem
            for problem in error.problems
        ]
        raise RejectedError(problems) from error


def _audited(program: Program, payload: Mapping[str, Any]) -> dict[str, Any]:
    document = audit_document(program, mesh=payload.get("mesh"), trips=payload.get("trips"))
    return {"document": document, "hlo": program.hlo if payload.get("keep_hlo") else None}
