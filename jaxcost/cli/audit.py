"""`audit`: what any compiled program costs, from the program itself."""

from __future__ import annotations

import gc
import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jaxcost.cli.options import WHOLE, output_options
from jaxcost.cli.output import check_writable, document, print_json, rendered, write_file
from jaxcost.contracts.errors import Problem, RejectedError, reject

if TYPE_CHECKING:
    from jaxcost.audits.audit import Audit
    from jaxcost.audits.paths import Failed
    from jaxcost.observation.pool import Pool


class _File(click.Path):
    """A path that is not the empty text, which pathlib takes for this folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path.

        Raises:
            RejectedError: it is empty.
        """
        if not value:
            name = param.opts[-1] if isinstance(param, click.Option) else "PATH"
            raise reject(name, value, "is empty", "name a file or a directory")
        return super().convert(value, param, ctx)


_FILE = _File(path_type=Path)
_AXIS = re.compile(r"\s*(?P<name>[^=,\s]+)\s*=\s*(?P<size>[0-9]{1,9})\s*")
_TRIPS = re.compile(r"\s*(?P<name>[^=\s]+)\s*=\s*(?P<size>[0-9]{1,18})\s*")


@click.command("audit")
@click.argument("path", required=False, type=_FILE)
@click.option("--function", "name", metavar="MODULE:NAME", help="Import this function, compile and audit it.")
@click.option("--target", "targets", multiple=True, metavar="T", help="Compile for this target; may be repeated.")
@click.option("--module", metavar="NAME", help="Which module of a dump: name, number or label.  [default: the largest]")
@click.option("--all", "every", is_flag=True, help="Audit each module of a dump.")
@click.option("--platform", type=click.Choice(["cpu", "cuda", "tpu"]), help="Whose compiler wrote the module.")
@click.option("--mesh", metavar="data=2,fsdp=4", help="Mesh axes, in order; they name the collectives.")
@click.option("--trips", multiple=True, metavar="LOOP=N", help="Trips of a loop that depends on run-time values.")
@click.option("--against", type=_FILE, metavar="FILE", help="A recorded audit (--json); growth gives exit code 1.")
@click.option("--bound", "bounds", multiple=True, metavar="FIGURE=N", help="Growth allowed: memory.required_bytes=1%.")
@click.option("--save", type=_FILE, metavar="FILE", help="Write the audit as JSON, to be compared with later.")
@click.option("--export", type=_FILE, metavar="FILE", help="Write a file for a viewer (see docs/audit.md).")
@click.option("--rows", is_flag=True, help="Every row of every table.")
@click.option("--strict", is_flag=True, help="Exit code 1 where something is unknown.")
@click.option("--timeout", type=WHOLE, default=600, metavar="S", help="Seconds for one program.  [default: 600]")
@click.option("--memory", type=WHOLE, default=12, metavar="GIB", help="Memory of the worker.  [default: 12]")
@output_options(html=True)
def audit(
    path: Path | None, name: str | None, targets: tuple[str, ...], html: Path | None, as_json: bool, quiet: bool,
    export: Path | None, save: Path | None, **parameters: Any,
) -> int:  # fmt: skip
    """FLOPs, memory, collectives and loops of any compiled program: a module, an XLA dump, a function.

    PATH is an HLO module (proto or text, packed or not), a directory that --xla_dump_to wrote, or a saved audit. Only
    --function imports code; it is found in this folder or on PYTHONPATH.

    \b
    Examples:
        jaxcost audit module_0002.jit_step.sm_9.0a_gpu_after_optimizations.hlo.pb
        jaxcost audit xla_dump --module jit_train_step --html step.html
        jaxcost audit --function train:step --target h100:8 --target tpu-v5e:2x4
        jaxcost audit --function train:step --target h100:8 --save step.json
        jaxcost audit --function train:step --target h100:8 --against step.json --bound memory.live_peak_bytes=1%
    """
    gc.enable()
    _check(path, name, targets, {**parameters, "html": html, "export": export, "save": save})
    against = parameters["against"]
    recorded, bounds = _recorded(against, parameters["bounds"])
    mesh = _table(parameters["mesh"].split(","), _AXIS, "--mesh", "AXIS=N") if parameters["mesh"] is not None else None
    trips = _table(parameters["trips"], _TRIPS, "--trips", "LOOP=N") if parameters["trips"] else None
    from jaxcost.audits.audit import ALLOWED
    from jaxcost.observation.pool import Pool
    from jaxcost.report.progress import progress

    limits = {"timeout_seconds": float(parameters["timeout"]), "memory_bytes": parameters["memory"] * 2**30}
    with progress("compiling" if name else "reading", quiet) as say, Pool(size=2, allow=ALLOWED, **limits) as pool:
        failed: list[Failed] = []
        if name is not None:
            audits = _functions(name, targets or ("cpu",), mesh, trips, pool)
        else:
            from jaxcost.audits.paths import Asked, audit_path

            assert path is not None
            asked = Asked(
                path, module=parameters["module"], every=parameters["every"], platform=parameters["platform"],
                target=targets[0] if targets else None, mesh=mesh, trips=trips,
            )  # fmt: skip
            audits, failed = audit_path(asked, pool, say)
    if parameters["every"] or len(targets) > 1:
        if as_json:
            from jaxcost.audits.paths import several

            print_json(document("jaxcost.audits.v1", **several(audits, failed)))
        elif not quiet:
            _show_several(audits, failed, parameters["every"], parameters["rows"])
        return _code(audits, failed, parameters["strict"])
    from jaxcost.audits.paths import whole

    with whole(path):
        data = audits[0].to_dict()
        if recorded is not None:
            from jaxcost.audits.regression import compare_audits

            data["against"] = compare_audits(recorded, data, bounds, against=str(against)).to_dict()
        # All of it is made before any of it is printed or written.
        code = max(_code(audits, failed, parameters["strict"]), int(recorded is not None and data["against"]["failed"]))
        files = _files(data, html, export, save)
        shown = rendered(lambda: _show(data, parameters["rows"])) if not (as_json or quiet) else ""
    _write(files, quiet)
    if as_json:
        print_json(data)
    else:
        sys.stdout.write(shown)
    return code


def _code(audits: list[Audit], failed: list[Failed], strict: bool) -> int:
    if failed and not audits:
        raise RejectedError(problem for at in failed for problem in at.problems)
    refused = any(found.refused for found in audits)
    return int(refused or bool(failed) or (strict and any(found.unknowns for found in audits)))


def _check(path: Path | None, name: str | None, targets: tuple[str, ...], parameters: Mapping[str, Any]) -> None:
    if (path is None) == (name is None):
        rule = "give one of the two" if path is not None else "nothing is named"
        raise reject("PATH", None if path is None else str(path), rule, "name a PATH or --function MODULE:NAME")
    problems = []
    for option, key in (("--module", "module"), ("--all", "every"), ("--platform", "platform")):
        if name is not None and parameters[key]:
            problems.append(Problem(option, parameters[key], "belongs to a dump or a file", "leave it out"))
    if name is None and len(targets) > 1:
        rule = "a compiled module is of one target"
        problems.append(Problem("--target", ", ".join(targets), rule, "name one, or give a --function"))
    if parameters["every"] or len(targets) > 1:
        for option in ("html", "export", "save", "against"):
            if parameters[option] is not None:
                rule = "is of one audit, and several are asked for"
                problems.append(Problem(f"--{option}", str(parameters[option]), rule, "name one target or one module"))
    for option in ("timeout", "memory"):
        value = parameters[option]
        if not isinstance(value, int) or not 0 < value <= 10**6:
            rule = "must be a whole number from 1 to 1,000,000"
            problems.append(Problem(f"--{option}", value, rule, "leave it out for the default"))
    if problems:
        raise RejectedError(problems)
    written: dict[Path, str] = {}
    for option in ("html", "export", "save"):
        file = parameters[option]
        check_writable(file, f"--{option}")
        if file is None or (file.exists() and not file.is_file()):
            continue
        other = written.setdefault(Path(os.path.realpath(file)), option)
        if other != option:
            raise reject(f"--{option}", str(file), f"is the file of --{other} too", "name another file")
    if parameters["export"] is not None:
        from jaxcost.audits.exports import check_export

        check_export(parameters["export"].name, "--export")
    if name is not None:
        from jaxcost.observation.sources.names import check_name

        check_name(name)


def _table(parts: Any, form: re.Pattern[str], option: str, shape: str) -> dict[str, int]:
    found: dict[str, int] = {}
    problems = []
    for part in parts:
        match = form.fullmatch(part)
        if match is None or match["name"] in found:
            rule = f"not of the form {shape}" if match is None else "named twice"
            problems.append(Problem(option, part, rule, f"write for example {option} {shape.lower()[:-1]}4"))
        else:
            found[match["name"]] = int(match["size"])
    if problems:
        raise RejectedError(problems)
    return found


def _functions(
    name: str, targets: tuple[str, ...], mesh: Mapping[str, int] | None, trips: Mapping[str, int] | None, pool: Pool
) -> list[Audit]:
    from jaxcost.audits.audit import named_audits

    return named_audits(name, targets, pool, folder=str(Path.cwd()), mesh=mesh, trips=trips)


def _recorded(against: Path | None, texts: tuple[str, ...]) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    if against is None:
        if texts:
            raise reject("--bound", texts[0], "bounds a growth, and nothing is compared", "give --against FILE")
        return None, {}
    from jaxcost.audits.regression import bounds_of, read_recorded

    return read_recorded(against), bounds_of(texts)


def _files(
    data: dict[str, Any], html: Path | None, export: Path | None, save: Path | None
) -> list[tuple[Path, str, str]]:
    """The files asked for: where each goes, its text, and the option that names it."""
    files = []
    if export is not None:
        from jaxcost.audits.exports import export_text

        files.append((export, export_text(data, export.name), "--export"))
    if html is not None:
        from jaxcost.report.audit_page import audit_page

        files.append((html, audit_page(data), "--html"))
    if save is not None:
        kept = {name: value for name, value in data.items() if name != "against"}
        files.append((save, json.dumps(kept, indent=1, allow_nan=False) + "\n", "--save"))
    return files


def _write(files: list[tuple[Path, str, str]], quiet: bool) -> None:
    for path, text, option in files:
        write_file(path, text, option)
        if not quiet:
            click.echo(f"wrote {path}", err=True)


def _show(data: dict[str, Any], rows: bool) -> None:
    from jaxcost.report.audited import show_audit

    if "against" not in data:
        return show_audit(data, rows)
    from jaxcost.report.regressed import show_against

    return show_against(data["against"], rows)


def _show_several(audits: list[Audit], failed: list[Failed], short: bool, rows: bool) -> None:
    from jaxcost.report.console import console
    from jaxcost.report.tables import line

    out = console()
    for found in audits:
        if short:
            line(out, f"{found.data['program']['notes'][0]}: {found}")
        else:
            _show(found.to_dict(), rows)
    for at in failed:
        line(out, f"{at.label}: {at.problems[0].rule}")


COMMANDS = {"audit": audit}
