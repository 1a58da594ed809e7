"""`sensitivity`: how every ledger changes when one declared field changes, or a vector of several."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import Any

import click

from jaxcost.cli.options import WHOLE, case_options, choose, output_options
from jaxcost.cli.output import check_writable, document, print_json, write_file
from jaxcost.contracts.errors import reject


@click.command("sensitivity")
@click.argument("model", required=False)
@case_options
@click.option(
    "--set", "sets", multiple=True, metavar="FIELD=VALUE",
    help="A case of its own: this one field of the base changed. May be repeated.  [default: a surface for the phase]",
)  # fmt: skip
@click.option(
    "--vector", "vectors", multiple=True, metavar="FIELD=VALUE,FIELD=VALUE",
    help="A vector: several fields changed together, with their interaction. May be repeated.",
)  # fmt: skip
@click.option("--fields", "list_fields", is_flag=True, help="List the fields that can be varied, and stop.")
@click.option(
    "--target", "targets", multiple=True, metavar="T",
    help="Compile the base and every case for this target, and reconcile the differences; may be repeated.",
)  # fmt: skip
@click.option("--no-formulas", is_flag=True, help="Leave the symbolic derivatives out.")
@click.option("--timeout", type=WHOLE, default=600, metavar="S", help="Seconds for one compile.  [default: 600]")
@click.option("--memory", type=WHOLE, default=12, metavar="GIB", help="Memory of one compile.  [default: 12]")
@click.option("--rows", is_flag=True, help="Every total that moves, and every row of an observed difference.")
@output_options(html=True)
def sensitivity(
    model: str | None,
    sets: tuple[str, ...],
    vectors: tuple[str, ...],
    list_fields: bool,
    targets: tuple[str, ...],
    no_formulas: bool,
    rows: bool,
    html: Path | None,
    as_json: bool,
    quiet: bool,
    **parameters: Any,
) -> int:
    """One declared field, one new prediction: the value, difference and ratio of every ledger total.

    Each --set is a case of its own from an unchanged base, whose digest is verified after every case. A second field in
    one --set is refused; --vector moves several, and says so. FIELD is a name of --fields, an option of a case, or a
    record path (architecture.groups.0.layer.mlp.width). Exit code 1 where an observed difference is open.

    \b
    Examples:
        jaxcost sensitivity llama-3.1-8b --phase prefill --seq 4096 --html tornado.html
        jaxcost sensitivity llama-3.1-8b --phase decode --past 8191 --set kv_heads=1 --set kv_dtype=fp8_e4m3
        jaxcost sensitivity qwen2.5-0.5b --phase training --batch 8 --seq 512 --vector remat=block,batch=16
        jaxcost sensitivity toy-tied --phase training --batch 4 --seq 8 --set batch=8 --target cpu
    """
    if list_fields:
        idle = {"--set": sets, "--vector": vectors, "--target": targets, "--html": html, "--rows": rows}
        for option in (name for name, value in idle.items() if value):
            raise reject(option, None, "--fields lists what can be varied, and varies nothing", f"leave out {option}")
        return _fields(model, as_json, quiet, parameters)
    check_writable(html, "--html")
    limits = {name: _number(parameters.pop(name), f"--{name}") for name in ("timeout", "memory")}
    chosen = choose(model, parameters)
    from jaxcost.planning.sensitivity.run import vary
    from jaxcost.report.progress import progress

    options: dict[str, Any] = {"formulas": not no_formulas}
    if targets:
        gc.enable()
        from jaxcost.planning.sensitivity.observed import fitting, observe_differences

        options["fits"] = fitting(targets)
        options["fits"](chosen.case)
    with progress("predicting", quiet or not sys.stderr.isatty()) as say:
        found = vary(chosen.case, sets, vectors, progress=say, **options)
    body, code = found.to_dict(), 0
    if targets:
        with progress("compiling", quiet) as say:
            seen = observe_differences(
                found, targets, timeout_seconds=limits["timeout"], memory_bytes=limits["memory"] * 2**30, progress=say
            )
        body["observed"] = [item.to_dict() for item in seen]
        code = int(any(item.infeasible for item in seen))
    data = document("jaxcost.sensitivity.v1", model=chosen.manifest.architecture.name, **body, exit_code=code)
    if html is not None:
        from jaxcost.report.sensitivity_page import sensitivity_page

        write_file(html, sensitivity_page(data), "--html")
    if as_json:
        print_json(data)
    elif not quiet:
        from jaxcost.report.sensitivity import show_sensitivity

        show_sensitivity(data, rows=rows)
    return code


def _fields(model: str | None, as_json: bool, quiet: bool, parameters: dict[str, Any]) -> int:
    """List the fields; with a model and a case also their values and every record path."""
    from jaxcost.planning.sensitivity.fields import described

    case = choose(model, parameters).case if model or parameters["case_file"] else None
    found = described(case)
    if as_json:
        print_json(document("jaxcost.fields.v1", fields=found))
    elif not quiet:
        from jaxcost.report.sensitivity import show_fields

        show_fields(found)
    return 0


def _number(value: Any, option: str) -> int:
    if not isinstance(value, int) or not 0 < value <= 10**6:
        raise reject(option, value, "must be a whole number from 1 to 1,000,000", f"write for example {option} 60")
    return value


COMMANDS = {"sensitivity": sensitivity}
