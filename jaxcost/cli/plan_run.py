"""`plan run`: a training run from its assumptions to a page that can be signed."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import click

from jaxcost.catalog import Manifest, load, load_case_file
from jaxcost.cli.options import F, case_options, given, output_options
from jaxcost.cli.output import check_writable, document, print_json, write_file
from jaxcost.contracts.errors import Problem, RejectedError, UnavailableError, reject
from jaxcost.contracts.record import as_table, parse_file
from jaxcost.planning.run.assumed import parse_assumed
from jaxcost.planning.run.inputs import BOUNDARY, DEFAULTS, SPECS, RunInputs, read_inputs

# Fields that the options of a case have already, and what a plan calls them.
FROM_CASE = ("seq", "accumulate", "mesh")
CHOICES: tuple[tuple[str, str, str], ...] = (
    ("device", "NAME", "What the run has: h100, a100, tpu-v5p, ...; its peak and memory are on record."),
    ("dtype", "NAME", "Precision of the matrix products.  [default: bf16]"),
    (
        "work",
        "ledger|six_p",
        "FLOPs of a token: MODEL's ledger at --seq, or 6 x active.  [default: the ledger, if any]",
    ),
    ("downtime", "in_reserve|apart", "Whether the reserve pays for downtime.  [default: in_reserve]"),
    ("mfu_window", "healthy|calendar", "What the utilisation was taken over.  [default: healthy]"),
    ("checkpoint", "weights|resume|full", "What a checkpoint holds.  [default: resume]"),
    ("interval_counts", "elapsed|useful", "Whether the interval holds its pause.  [default: elapsed]"),
    ("currency", "TEXT", "Of the price."),
    ("name", "TEXT", "Title of the page."),
    ("note", "TEXT", "A line below it."),
)


def run_options(command: F) -> F:
    """Add an option for every field of a plan."""
    decorators: list[Callable[[F], F]] = []
    for name, spec in SPECS.items():
        if name not in FROM_CASE:
            text = spec.what + (f"  [default: {DEFAULTS[name]}]" if name in DEFAULTS else "")
            unit = spec.unit if len(spec.unit) < 16 else "N"
            decorators.append(
                click.option(_flag(name), f"set_{name}", metavar=unit.upper().replace(" ", ""), help=text)
            )
    for name, metavar, text in CHOICES:
        decorators.append(click.option(_flag(name), f"text_{name}", metavar=metavar, help=text))
    for decorator in reversed(decorators):
        command = decorator(command)
    return command


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


@click.command("run")
@click.argument("model", required=False)
@click.option("--plan", "plan_file", type=click.Path(path_type=Path), metavar="FILE",
              help="A plan (.toml, .json); flags override it.")  # fmt: skip
@run_options
@click.option("--price-date", metavar="DATE", help="Of the price, as 2026-03; a price without one is refused.")
@click.option("--include", "includes", multiple=True, metavar="ITEM",
              help=f"What the price pays for: {', '.join(BOUNDARY)}; may be repeated.")  # fmt: skip
@click.option("--evidence", multiple=True, metavar="NAME=CLASS,SOURCE",
              help="Evidence of an assumption: mfu=locally_measured,rehearsal of March; may be repeated.")  # fmt: skip
@click.option("--claim", "claims", multiple=True, metavar="[STAGE:]FIGURE=VALUE",
              help="A figure found elsewhere, compared with the plan's to its digits; may be repeated.")  # fmt: skip
@click.option("--context", "contexts", multiple=True, type=int, metavar="N",
              help="Contexts at which 6PT is compared with MODEL's ledger; may be repeated.")  # fmt: skip
@click.option("--change", "changes", multiple=True, metavar="FIELD=VALUE",
              help="Show what moves when this changes; may be repeated, and all are made at once.")  # fmt: skip
@click.option("--against", type=click.Path(path_type=Path), metavar="FILE",
              help="Show what moves from the plan in this file to this one.")  # fmt: skip
@click.option("--simulated-runs", type=int, metavar="N", help="Runs that are played out.  [default: 256]")
@click.option("--seed", type=int, metavar="N", help="Of the random numbers.  [default: 0]")
@click.option("--rows", is_flag=True, help="Every figure with its convention, unknown ones too.")
@case_options
@output_options(html=True)
def run(model: str | None, rows: bool, html: Path | None, as_json: bool, quiet: bool, **parameters: Any) -> int:
    """A training run: what it takes, how long, whether it fits, what it costs, and what to test first.

    A number may be a range: --mfu 0.35..0.40..0.43 is low..value..high. What is not given stays unknown, and so does
    what follows from it. Exit code 1 where the plan does not fit its budget, calendar or memory, or where a check or
    a claim is open.

    \b
    Examples:
        jaxcost plan run --devices 256 --device h100 --days 90 --mfu 0.40 --reserve 0.25 --parameters 30e9
        jaxcost plan run llama-3.1-8b --devices 256 --device h100 --days 30 --mfu 0.35..0.40..0.43 --reserve 0.25 \\
            --seq 8192 --mesh data=32,tensor=8 --micro-batch 1 --accumulate 4 --remat block --html plan.html
        jaxcost plan run --plan examples/plan_30b.toml --change mfu=0.35
    """
    check_writable(html, "--html")
    inputs, manifest, folder = read_options(model, parameters)
    from jaxcost.planning.run.change import changed
    from jaxcost.planning.run.document import plan_document
    from jaxcost.planning.run.plan import plan_run
    from jaxcost.report.progress import progress

    with progress("planning", quiet or as_json):
        plan = plan_run(inputs, manifest, folder)
        base = None
        if parameters["against"] is not None:
            base = plan_run(*_file(parameters["against"], "--against"))
        if parameters["changes"]:
            after = changed(plan.inputs, parameters["changes"])
            same = after.model == plan.inputs.model
            base, plan = plan, plan_run(after, plan.manifest if same else None, folder)
        body = plan_document(plan, base)
    data = document("jaxcost.plan_run.v1", **body)
    if html is not None:
        from jaxcost.report.run_plan_page import run_plan_page

        write_file(html, run_plan_page(data), "--html")
    if as_json:
        print_json(data)
    elif not quiet:
        from jaxcost.report.run_plan import show_run_plan

        show_run_plan(data, rows=rows)
    return int(data["status"] in ("infeasible", "open"))


def _file(path: Path, option: str) -> tuple[RunInputs, None, Path]:
    """Return the plan of a file, and the folder where its paths begin."""
    return read_inputs(_table(path, option), path.name), None, path.parent


def _table(path: Path, option: str) -> dict[str, Any]:
    if not path.exists():
        raise UnavailableError(str(path), "no such file", f"check the path of {option}")
    return {name: _dated(value) for name, value in as_table(parse_file(path), path.name).items()}


def _dated(value: Any) -> Any:
    """Return TOML dates as text, wherever they stand."""
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, dict):
        return {name: _dated(item) for name, item in value.items()}
    return [_dated(item) for item in value] if isinstance(value, list) else value


def read_options(model: str | None, parameters: Mapping[str, Any]) -> tuple[RunInputs, Manifest | None, Path | None]:
    """Return the inputs of a plan file, a case file and flags; flags override the files.

    Raises:
        RejectedError: with every problem of the three together, as far as they can be told apart.
    """
    problems: list[Problem] = []
    data: dict[str, Any] = {}
    manifest: Manifest | None = None
    path: Path | None = parameters["plan_file"]
    try:
        if path is not None:
            data = _table(path, "--plan")
    except RejectedError as error:
        problems += error.problems
    for take in (_take_case, _take_numbers, _take_texts, _take_evidence):
        try:
            manifest = take(data, parameters) or manifest
        except RejectedError as error:
            problems += error.problems
    folder = path.parent if path is not None else None
    if model is not None:
        data["model"] = model
        folder = None
        try:
            manifest = load(model)
        except RejectedError as error:
            problems += error.problems
    if problems:
        raise RejectedError(problems)
    return read_inputs(data, path.name if path is not None else ""), manifest, folder


def _take_case(data: dict[str, Any], parameters: Mapping[str, Any]) -> Manifest | None:
    """Take the options of a case: context, accumulation, mesh and microbatch for the plan, the others as they are."""
    options: dict[str, Any] = {}
    manifest = None
    if parameters["case_file"] is not None:
        file = load_case_file(parameters["case_file"])
        manifest, options = file.manifest, dict(file.options)
        if manifest is not None:
            data["model"] = manifest.architecture.name
    options |= given(parameters)
    phase = options.pop("phase", "training")
    if phase != "training":
        raise reject("--phase", phase, "a run that is planned here trains", "leave it out")
    mesh = options.pop("mesh", None)
    if mesh is not None:
        listed = mesh if isinstance(mesh, list) else [{"name": n, "size": s} for n, s in dict(mesh).items()]
        names = [axis["name"] for axis in listed]
        if len(set(names)) < len(names):
            raise reject("--mesh", ",".join(names), "an axis appears twice", "give each axis one size")
        data["mesh"] = {axis["name"]: axis["size"] for axis in listed}
    batch = options.pop("batch", None)
    for name in ("seq", "accumulate"):
        value = options.pop(name, None)
        if value is not None:
            data[name] = _assumption(name, value)
    if batch is not None:
        data["micro_batch"] = _micro_batch(batch, data, parameters)
    if options:
        data["case"] = {**(data.get("case") or {}), **options}
    return manifest


def _assumption(name: str, value: Any) -> dict[str, Any]:
    return {"value": value} if isinstance(value, int) else parse_assumed(str(value), _flag(name))


def _micro_batch(batch: Any, data: Mapping[str, Any], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sequences of a microbatch from the global ones, which accumulation x replicas must divide."""
    from jaxcost.planning.run.batch import replicas

    if parameters["set_micro_batch"] is not None:
        raise reject("--batch", batch, "the microbatch is given beside it", "give one of --batch and --micro-batch")
    declared = parameters["set_data_parallel"] or _value(data.get("data_parallel"))
    mesh = data.get("mesh")
    count = replicas(mesh, int(declared) if str(declared or "").isdecimal() else None)
    if count is None:
        raise reject("--batch", batch, "global sequences say nothing of a microbatch without a mesh",
                     "give --mesh or --data-parallel, or --micro-batch")  # fmt: skip
    accumulate = int(_value(data.get("accumulate")) or 1)
    if not isinstance(batch, int) or batch <= 0 or batch % (count * accumulate):
        rule = f"{count} replicas x {accumulate} microbatches must divide it"
        raise reject("--batch", batch, rule, "raise it, or accumulate less")
    return {"value": batch // (count * accumulate)}


def _value(value: Any) -> Any:
    return value.get("value") if isinstance(value, dict) else value


def _take_numbers(data: dict[str, Any], parameters: Mapping[str, Any]) -> None:
    problems: list[Problem] = []
    for name in SPECS:
        text = parameters.get(f"set_{name}")
        if text is not None:
            try:
                data[name] = parse_assumed(text, _flag(name))
            except RejectedError as error:
                problems += error.problems
    if parameters["price_date"] is not None:
        if isinstance(data.get("price"), dict):
            data["price"] = {**data["price"], "date": parameters["price_date"]}
        else:
            problems.append(Problem("--price-date", parameters["price_date"], "there is no price", "give --price"))
    if problems:
        raise RejectedError(problems)


def _take_texts(data: dict[str, Any], parameters: Mapping[str, Any]) -> None:
    for name, _, _ in CHOICES:
        if parameters[f"text_{name}"] is not None:
            data[name] = parameters[f"text_{name}"]
    for name in ("simulated_runs", "seed"):
        if parameters[name] is not None:
            data[name] = parameters[name]
    for name in ("includes", "contexts"):
        if parameters[name]:
            data[name] = list(parameters[name])
    claims = dict(_pairs(parameters["claims"], "--claim"))
    if claims:
        data["claims"] = {
            **(data.get("claims") or {}),
            **{n: parse_assumed(v, f"--claim {n}") for n, v in claims.items()},
        }


def _take_evidence(data: dict[str, Any], parameters: Mapping[str, Any]) -> None:
    for name, text in _pairs(parameters["evidence"], "--evidence"):
        field = name.replace("-", "_")
        if field not in SPECS or data.get(field) is None:
            raise reject("--evidence", name, "no assumption that is given has this name", "give the assumption too")
        kind, _, source = text.partition(",")
        found = data[field] if isinstance(data[field], dict) else {"value": data[field]}
        data[field] = {**found, "evidence": kind.strip(), "source": source.strip()}


def _pairs(texts: Iterable[str], option: str) -> Iterable[tuple[str, str]]:
    for text in texts:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not name or not value:
            raise reject(option, text, "not of the form NAME=VALUE", f"see `jaxcost plan run --help` on {option}")
        yield name, value


COMMANDS = {"run": run}
