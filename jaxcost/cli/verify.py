"""`verify`: predict, observe, reconcile."""

from __future__ import annotations

import gc
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from jaxcost.cli.options import WHOLE, case_options, given, output_options
from jaxcost.cli.output import check_folder, check_writable, document, print_json, write_file
from jaxcost.contracts.errors import Problem, RejectedError, UnavailableError, reject
from jaxcost.verify.request import VerifyOutcome, VerifyRequest

_FILE = click.Path(path_type=Path)


@click.command("verify")
@click.argument("models", nargs=-1, metavar="[MODEL]...")
@case_options
@click.option(
    "--target",
    "targets",
    multiple=True,
    metavar="T",
    help="Compile for this target; may be repeated (see `jaxcost targets`).",
)
@click.option("--suite", metavar="NAME|FILE", help="A suite of cases, by name or as a file.  [default: default]")
@click.option("--fuzz", type=WHOLE, metavar="N", help="Draw N random cases, check their properties and compile them.")
@click.option("--seed", type=WHOLE, default=None, metavar="S", help="The seed of --fuzz.  [default: 0]")
@click.option(
    "--observation", type=_FILE, metavar="FILE", help="Reconcile with a supplied bundle instead of compiling."
)
@click.option(
    "--record", type=_FILE, metavar="DIR", help="Keep what the compilers said, one record for each case and target."
)
@click.option("--replay", type=_FILE, metavar="DIR", help="Use recorded evidence instead of compiling.")
@click.option("--failures", is_flag=True, help="Run the failure rows: each fault, its symptom, its check.")
@click.option("--proofs", is_flag=True, help="Prove published closed forms from the ledgers, for all sizes.")
@click.option("--gates", is_flag=True, help="Hold the publish gates over the models named, or over the catalogue.")
@click.option("--explain", metavar="ROW", help="One row in full, step by step: counter[:scope][:phase].")
@click.option("--strict", is_flag=True, help="Exit code 1 for unmeasured rows and targets too.")
@click.option("--fail-on-mismatch", is_flag=True, help="The default; accepted for scripts.")
@click.option("--rows", is_flag=True, help="List every row, those of single scopes and exact ones too.")
@output_options(html=True)
def verify(
    models: tuple[str, ...], rows: bool, html: Path | None, as_json: bool, quiet: bool, **parameters: Any
) -> int:
    """Predict, observe, reconcile. With no argument: the default suite on every target available.

    Exit code 0 when nothing compared is open; 1 when something is open, refused by the compiler or infeasible.

    \b
    Examples:
        jaxcost verify
        jaxcost verify toy-tied --phase prefill --seq 4 --target cpu:1
        jaxcost verify llama-3.1-8b --phase training --batch 16 --seq 4096 --mesh fsdp=8 --target h100:8
        jaxcost verify toy-tied --phase prefill --seq 4 --target h100:1 --explain matmul_flops:head:forward
        jaxcost verify --replay hlo_dumps
        jaxcost verify --fuzz 200 --seed 1 --target cpu:1
        jaxcost verify --failures
        jaxcost verify --proofs
        jaxcost verify llama-3.1-8b --gates
    """
    gc.enable()
    check_writable(html, "--html")
    request = _request(models, quiet, parameters)
    check_folder(request.record, "--record")
    from jaxcost.report.progress import progress

    with progress(_doing(request), quiet) as say:
        outcome = _run(replace(request, progress=say))
    data = document("jaxcost.verify.v1", **outcome.to_dict())
    if html is not None:
        from jaxcost.report.page import verify_page

        write_file(html, verify_page(data), "--html")
    if as_json:
        print_json(data)
    elif request.proofs and not quiet:
        from jaxcost.report.console import console
        from jaxcost.report.proofs import show_proofs

        show_proofs(console(), data["proofs"])
    elif request.gates and not quiet:
        from jaxcost.report.console import console
        from jaxcost.report.gates import show_gates

        show_gates(console(), data["gates"], data["gate_cases"], data["seconds"])
    elif not quiet:
        from jaxcost.report.verified import show_verify

        show_verify(data, rows=rows)
    return outcome.exit_code


def _run(request: VerifyRequest) -> VerifyOutcome:
    if request.proofs:
        from jaxcost.verify.proofs.outcome import prove_all

        return prove_all(request)
    if request.gates:
        from jaxcost.verify.gates.outcome import hold_gates

        return hold_gates(request)
    from jaxcost.verify.command import verify as run

    return run(request)


def _doing(request: VerifyRequest) -> str:
    """Return what a run does, for the first line of its progress."""
    if request.failures:
        return "running the failure rows"
    if request.proofs:
        return "proving closed forms"
    if request.gates:
        return "holding the publish gates"
    if request.fuzz is not None:
        return f"drawing {request.fuzz} random cases"
    if request.replay is not None:
        return "reading recorded evidence"
    if request.observation is not None:
        return "reading the supplied bundle"
    return "compiling"


def _request(models: tuple[str, ...], quiet: bool, parameters: dict[str, Any]) -> VerifyRequest:
    problems: list[Problem] = []
    options: dict[str, Any] = {}
    try:
        options = given(parameters)
    except RejectedError as error:
        problems.extend(error.problems)
    fuzz, seed = parameters["fuzz"], parameters["seed"]
    if fuzz is not None and (not isinstance(fuzz, int) or not 0 < fuzz <= 10**6):
        problems.append(
            Problem("--fuzz", fuzz, "must be a whole number from 1 to 1,000,000", "write for example --fuzz 200")
        )
    if seed is not None and fuzz is None:
        problems.append(Problem("--seed", seed, "nothing is drawn at random", "give --fuzz N, or leave it out"))
    seed = 0 if seed is None else seed
    if not isinstance(seed, int) or not 0 <= seed < 2**64:
        problems.append(
            Problem("--seed", seed, "must be a whole number from 0 to 2**64 - 1", "write for example --seed 1")
        )
    for one, other in (
        ("replay", "record"),
        ("replay", "fuzz"),
        ("observation", "record"),
        ("observation", "replay"),
        ("suite", "fuzz"),
    ):
        if parameters[one] is not None and parameters[other] is not None:
            problems.append(
                Problem(f"--{one}", str(parameters[one]), f"does not go together with --{other}", "give one of the two")
            )
    problems.extend(_unused(models, options, parameters))
    if problems:
        raise RejectedError(problems)
    for name, what in (("observation", "file"), ("replay", "folder or file")):
        path = parameters[name]
        if path is not None and not path.exists():
            raise UnavailableError(str(path), f"the {what} given with --{name} does not exist", "check the path")
    kept = (
        "case_file",
        "targets",
        "suite",
        "observation",
        "record",
        "replay",
        "failures",
        "proofs",
        "gates",
        "explain",
        "strict",
    )
    row = parameters["explain"]
    if row is not None and re.fullmatch(r"[A-Za-z_]\w*(\.\w+)*(:[^:]+){0,2}", row) is None:
        raise reject("--explain", row, "not of the form counter[:scope][:phase]", "write for example matmul_flops:head")
    return VerifyRequest(
        models=models, case_options=options, fuzz=fuzz, seed=seed, quiet=quiet,
        **{name: parameters[name] for name in kept},
    )  # fmt: skip


def _unused(models: tuple[str, ...], options: dict[str, Any], parameters: dict[str, Any]) -> list[Problem]:
    """Return what was given beside an option that leaves it no part in the run."""
    beside = {
        "MODEL": bool(models),
        "--case": parameters["case_file"] is not None,
        "case options": bool(options),
        "--suite": parameters["suite"] is not None,
        "--target": bool(parameters["targets"]),
        "--fuzz": parameters["fuzz"] is not None,
        "--observation": parameters["observation"] is not None,
        "--record": parameters["record"] is not None,
        "--replay": parameters["replay"] is not None,
        "--failures": parameters["failures"],
        "--proofs": parameters["proofs"],
        "--gates": parameters["gates"],
        "--explain": parameters["explain"] is not None,
    }
    cases = ("MODEL", "--case", "case options", "--suite", "--target")
    own = ("--failures", "--proofs", "--gates", "--explain")
    held = ("MODEL", "--case", "case options", "--proofs", "--gates")
    left_out: tuple[tuple[str, str, tuple[str, ...]], ...] = (
        ("failures", "the failure rows bring their own cases", tuple(n for n in beside if n not in own)),
        ("proofs", "the proofs bring their own cases", tuple(n for n in beside if n != "--proofs")),
        ("gates", "the gates are held over cases, and compile nothing", tuple(n for n in beside if n not in held)),
        ("replay", "records bring their own cases and targets", cases),
        ("observation", "a bundle is compared in place of a compile", ("--suite", "--target")),
    )
    problems = []
    for option, rule, names in left_out:
        if parameters[option]:
            given_too = [name for name in names if beside[name]]
            problems += [Problem(name, None, rule, f"leave it out, or --{option}") for name in given_too]
    return problems


COMMANDS = {"verify": verify}
