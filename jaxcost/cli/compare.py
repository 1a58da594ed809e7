"""`compare`: sharding specs side by side, predicted and compiled."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from jaxcost.catalog import Manifest, load, load_case_file
from jaxcost.cli.options import WHOLE, given, output_options, repeated_case_options
from jaxcost.cli.output import check_writable, document, print_json, write_file
from jaxcost.contracts.case import OPTION_NAMES
from jaxcost.contracts.errors import Problem, RejectedError, reject
from jaxcost.contracts.execution import Execution, mesh_axes

LISTS = ("remat_names", "offload", "pipeline_layers", "frozen")
YES_NO = {"yes": True, "true": True, "no": False, "false": False}
SWITCHES = ("sequence_parallel", "reshard", "dropout")


@click.command("compare")
@click.argument("model", required=False)
@repeated_case_options
@click.option(
    "--vary", "varied", multiple=True, metavar="NAME=VALUE[,...]",
    help="Options that go together, of one policy; may be repeated, `--vary none` for the base.",
)  # fmt: skip
@click.option(
    "--target", "targets", multiple=True, metavar="T",
    help="Compile for this target; may be repeated. Without a shape it takes the devices of each mesh.  [default: cpu]",
)  # fmt: skip
@click.option(
    "--fraction", "fractions", multiple=True, metavar="F",
    help="Share of the device's memory that a program may fill; may be repeated.  [default: 0.75, 0.95]",
)  # fmt: skip
@click.option("--base", metavar="NAME", help="The column that others are compared with.  [default: the first]")
@click.option("--no-compile", is_flag=True, help="The predictions alone.")
@click.option("--timeout", type=WHOLE, default=600, metavar="S", help="Seconds for one compile.  [default: 600]")
@click.option("--memory", type=WHOLE, default=12, metavar="GIB", help="Memory of one compile.  [default: 12]")
@click.option("--rows", is_flag=True, help="Exact integers, and every row of what changed.")
@output_options(html=True)
def compare(model: str | None, rows: bool, html: Path | None, as_json: bool, quiet: bool, **parameters: Any) -> int:
    """Sharding specs side by side: memory, FLOPs, collectives, predicted and compiled, and what changed between them.

    Every option of a case may be repeated: a column is made for each combination, meshes first, on each target.
    Exit code 1 where a column does not fit, is refused by the compiler, or has a compared number that is open.

    \b
    Examples:
        jaxcost compare llama-3.1-8b --phase training --batch 16 --seq 4096 --remat block --target h100 \\
            --mesh data=8 --mesh fsdp=8 --mesh fsdp=4,tensor=2 --mesh tensor=8 --html compare.html
        jaxcost compare qwen2.5-0.5b --phase training --seq 2048 --remat none --remat block --target tpu-v5e
        jaxcost compare llama-3.1-8b --phase decode --past 32767 --mesh tensor=8 --mesh none --no-compile --target h100
    """
    gc.enable()
    check_writable(html, "--html")
    manifest, options, specs = _asked(model, parameters)
    limits = {name: _number(parameters[name], f"--{name}") for name in ("timeout", "memory")}
    from jaxcost.planning.compare import Spec
    from jaxcost.planning.compare import compare as run
    from jaxcost.report.progress import progress

    with progress("predicting" if parameters["no_compile"] else "compiling", quiet) as say:
        found = run(
            manifest, options, [Spec(mesh, policy) for mesh, policy in specs], parameters["targets"],
            parameters["fractions"], compiling=not parameters["no_compile"], base=parameters["base"],
            timeout_seconds=limits["timeout"], memory_bytes=limits["memory"] * 2**30, progress=say,
        )  # fmt: skip
    data = document("jaxcost.compare.v1", model=manifest.architecture.name, **found.to_dict())
    if html is not None:
        from jaxcost.report.compare_page import compare_page

        write_file(html, compare_page(data), "--html")
    if as_json:
        print_json(data)
    elif not quiet:
        from jaxcost.report.compared import show_compare

        show_compare(data, rows=rows)
    return found.exit_code


def _number(value: Any, option: str) -> int:
    if not isinstance(value, int) or not 0 < value <= 10**6:
        raise reject(option, value, "must be a whole number from 1 to 1,000,000", f"write for example {option} 60")
    return value


def _asked(
    model: str | None, parameters: Mapping[str, Any]
) -> tuple[Manifest, dict[str, Any], list[tuple[dict[str, int], dict[str, Any]]]]:
    """Return the manifest, the options of the base case, and (mesh, options that differ) of each spec in order.

    Raises:
        RejectedError: with every problem of the model, the case file, the options and the policies together.
    """
    problems: list[Problem] = []
    manifest: Manifest | None = None
    options: dict[str, Any] = {}
    specs: list[tuple[dict[str, int], dict[str, Any]]] = []
    try:
        if parameters["case_file"] is not None:
            file = load_case_file(parameters["case_file"])
            manifest, options = file.manifest, dict(file.options)
    except RejectedError as error:
        problems.extend(error.problems)
    try:
        if model is not None:
            manifest = load(model)
    except RejectedError as error:
        problems.extend(error.problems)
    policies: list[dict[str, Any]] = []
    for text in parameters["varied"] or ("none",):
        try:
            policies.append(parse_policy(text))
        except RejectedError as error:
            problems.extend(error.problems)
    try:
        fixed, meshes, products = _combinations(parameters)
        inherited = options.pop("mesh", ())
        options |= fixed
        for mesh in meshes or [_inherited(inherited)]:
            specs += [(mesh, {**chosen, **policy}) for chosen in products for policy in policies]
    except RejectedError as error:
        problems.extend(error.problems)
    if manifest is None and not problems:
        problems.append(Problem("MODEL", None, "no model is named", "give a MODEL (see `jaxcost models`)"))
    if problems or manifest is None:
        raise RejectedError(problems)
    return manifest, options, specs


def _combinations(
    parameters: Mapping[str, Any],
) -> tuple[dict[str, Any], list[dict[str, int]], list[dict[str, Any]]]:
    """Return the options given once, the meshes, and every combination of the options given more than once."""
    fixed: dict[str, Any] = {}
    meshes: list[dict[str, int]] = []
    repeated: dict[str, list[Any]] = {}
    problems: list[Problem] = []
    for key, values in parameters.items():
        if not key.startswith("case_") or key == "case_file" or values is None or values == ():
            continue
        name = key.removeprefix("case_")
        if name == "frozen" or not isinstance(values, tuple):
            fixed |= given({key: values})
            continue
        read = []
        for value in values:
            try:
                empty = name == "mesh" and value.strip() in ("", "none")
                read.append([] if empty else given({key: value})[name])
            except RejectedError as error:
                problems.extend(error.problems)
        if name == "mesh":
            try:
                meshes = [_sizes(axes) for axes in read]
            except RejectedError as error:
                problems.extend(error.problems)
        elif len(read) > 1:
            repeated[name] = read
        elif read:
            fixed[name] = read[0]
    if problems:
        raise RejectedError(problems)
    products = [dict(zip(repeated, chosen, strict=True)) for chosen in itertools.product(*repeated.values())]
    return fixed, meshes, products


def _inherited(mesh: object) -> dict[str, int]:
    """Return the mesh of a case file as axis to size.

    Raises:
        RejectedError: it is no table of axes and sizes.
    """
    if isinstance(mesh, str):
        raise reject("mesh", mesh, "must be a table of axes and their sizes", "write {fsdp = 8} in the case file")
    return Execution.from_data({"mesh": mesh_axes(mesh)}, "execution").mesh_sizes


def _sizes(axes: Any) -> dict[str, int]:
    """Return a mesh as axis to size.

    Raises:
        RejectedError: an axis appears twice.
    """
    names = [axis["name"] for axis in axes]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise reject("--mesh", twice[0], "the axis appears twice", "give each axis one size")
    return {axis["name"]: axis["size"] for axis in axes}


def parse_policy(text: str) -> dict[str, Any]:
    """Return the options of `remat=block,attention=blockwise`; empty for `none`.

    A part without `=` goes on with the list before it: `remat=save_only_these_names,remat-names=q_proj,up`.

    Raises:
        RejectedError: with a problem for every part that sets no option of a case.
    """
    found: dict[str, Any] = {}
    problems: list[Problem] = []
    for name, value in _parts(text):
        if name not in OPTION_NAMES or name in ("mesh", "lengths") or not value:
            remedy = "meshes are given by --mesh" if name == "mesh" else f"use {', '.join(_settable())}"
            problems.append(Problem("--vary", f"{name}={value}", "sets no option of a case", remedy))
        elif name in found:
            problems.append(Problem("--vary", text, f"sets {name} twice", "give it once"))
        elif name in SWITCHES and value not in YES_NO:
            problems.append(Problem("--vary", f"{name}={value}", "is neither yes nor no", f"write {name}=yes"))
        elif name in SWITCHES:
            found[name] = YES_NO[value]
        elif name in LISTS:
            found[name] = [WHOLE.convert(part, None, None) for part in value.split(",")]
        else:
            found[name] = WHOLE.convert(value, None, None)
    if problems:
        raise RejectedError(problems)
    return found


def _parts(text: str) -> Iterator[tuple[str, str]]:
    """Yield (name, value) of a policy, a value that goes on joined by commas."""
    if text.strip() in ("", "none"):
        return
    parts: list[list[str]] = []
    for part in text.split(","):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if equals:
            parts.append([name.replace("-", "_"), value])
        elif parts and parts[-1][0] in LISTS:
            parts[-1][1] += f",{name}"
        else:
            parts.append([name, ""])
    for name, value in parts:
        yield ("frozen" if name == "freeze" else name), value


def _settable() -> list[str]:
    return [name for name in OPTION_NAMES if name not in ("mesh", "lengths")]


COMMANDS = {"compare": compare}
