"""`reconcile`: a checkpoint's headers against the manifest."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jaxcost.cli.options import WHOLE, given, output_options
from jaxcost.cli.output import check_writable, document, print_json, write_file

if TYPE_CHECKING:
    from jaxcost.contracts.case import Case
    from jaxcost.observation.checkpoint import Checkpoint


@click.command("reconcile")
@click.argument("model")
@click.argument("checkpoint", type=click.Path(path_type=Path))
@click.option("--layout", metavar="NAME", help="The naming to read by.  [default: the one that agrees exactly]")
@click.option("--precision", "case_precision", metavar="NAME", help="Ask for these types; others are then open.")
@click.option("--optimizer", "case_optimizer", metavar="NAME", help="The optimizer of a train state.  [default: adam]")
@click.option("--layers", "case_layers", metavar="scan|unrolled", help="How a train state keeps its layers.")
@click.option(
    "--freeze", "case_frozen", multiple=True, metavar="SCOPE", help="A component that is not trained; may be repeated."
)
@click.option("--vocabulary-multiple", "case_vocabulary_multiple", type=WHOLE, metavar="N",
              help="Pad the vocabulary rows to a multiple.")  # fmt: skip
@click.option("--strict", is_flag=True, help="Exit code 1 for unmeasured rows too.")
@click.option("--rows", is_flag=True, help="List exact rows too.")
@output_options(html=True)
def reconcile(
    model: str,
    checkpoint: Path,
    layout: str | None,
    strict: bool,
    rows: bool,
    html: Path | None,
    as_json: bool,
    quiet: bool,
    **parameters: Any,
) -> int:
    """Names, shapes, types, ties and bytes of a checkpoint against the manifest, reading headers only.

    CHECKPOINT is a local safetensors file, a folder of one or of shards with an index, an Orbax checkpoint, or a file
    of Equinox leaves. Exit code 0 where all is exact or explained, 1 where something is open.

    \b
    Examples:
        jaxcost reconcile llama-3.1-8b path/to/folder
        jaxcost reconcile path/to/folder path/to/folder --precision bf16_inference
        jaxcost reconcile toy-tied path/to/train-state --precision fp32 --optimizer adam
    """
    check_writable(html, "--html")
    from jaxcost.catalog import load
    from jaxcost.observation.checkpoint import read_checkpoint
    from jaxcost.prediction.ledgers import predict
    from jaxcost.reconciliation.checkpoint import reconcile_checkpoint
    from jaxcost.reconciliation.layouts import layout_name

    manifest = load(model)
    if layout is not None:
        layout_name(layout)
    options = given(parameters)
    seen = read_checkpoint(checkpoint)
    case, training = _cases(manifest.architecture, options, seen)
    found = reconcile_checkpoint(
        predict(case),
        seen,
        layout,
        typed="precision" in options,
        training=None if training is None else predict(training),
    )
    data = document("jaxcost.reconcile.v1", **found.to_dict())
    if html is not None:
        from jaxcost.report.page import verify_page

        write_file(html, verify_page(data), "--html")
    if as_json:
        print_json(data)
    elif not quiet:
        from jaxcost.report.verified import show_verify

        _say(data)
        show_verify(data, rows=rows)
    if found.status in ("open", "rejected"):
        return 1
    return 1 if strict and found.status == "unmeasured" else 0


def _cases(architecture: Any, options: dict[str, Any], seen: Checkpoint) -> tuple[Case, Case | None]:
    """Return the case to compare with, and a training case for the optimizer's bytes where that one is of inference.

    A checkpoint with a train state, an optimizer or a training precision asked for, makes a training case; otherwise
    the parameters are compared as an inference case keeps them.
    """
    from jaxcost.contracts.case import build_case

    kept = {name: value for name, value in options.items() if name not in ("precision", "optimizer")}
    state = "optimizer" in options or "frozen" in options or _has_state(architecture, options, seen)
    precision = options.get("precision")
    inference = precision.endswith("_inference") if isinstance(precision, str) else not state
    if inference and "optimizer" not in options:
        options = {name: value for name, value in options.items() if name != "frozen"}
        case = build_case(architecture, {"phase": "prefill", "seq": 1, **options})
        return case, build_case(architecture, {"phase": "training", "seq": 1, **kept})
    return build_case(architecture, {"phase": "training", "seq": 1, **options}), None


def _has_state(architecture: Any, options: dict[str, Any], seen: Checkpoint) -> bool:
    from jaxcost.contracts.case import build_case
    from jaxcost.prediction.program import program
    from jaxcost.reconciliation.checkpoint_names import held_tensors
    from jaxcost.reconciliation.layouts import expected_tensors

    if seen.named:
        return any(item.role != "parameter" for item in held_tensors(seen))
    plain: dict[str, Any] = {name: options[name] for name in ("layers", "vocabulary_multiple") if name in options}
    built = program(build_case(architecture, {"phase": "prefill", "seq": 1, **plain}))
    return all(len(seen.tensors) != len(expected_tensors(built, name)) for name in ("equinox", "equinox-unrolled"))


def _say(data: dict[str, Any]) -> None:
    """Print the checkpoint and the three answers about bytes."""
    from jaxcost.report.console import console
    from jaxcost.report.numbers import exact
    from jaxcost.report.tables import line

    out, seen, answers = console(), data["checkpoint"], data["answers"]
    line(out, f"{seen['name']}: {seen['format'].replace('_', ' ')}, {seen['tensors']} arrays, layout {seen['layout']} "
              f"({seen['layout_basis']})", style="bold")  # fmt: skip
    for name, entry in answers.items():
        value = "unknown" if entry["bytes"] is None else f"{exact(entry['bytes'])} bytes"
        line(out, f"{name}: {value} ({entry.get('basis') or entry['reason']})")
    totals = {name: exact(value) for name, value in data["totals"].items()}
    line(out, f"scalars: declared {totals['declared_unique']} unique and {totals['declared_named']} named, "
              f"logical {totals['logical_scalars']}, stored {totals['stored_scalars']}")  # fmt: skip


COMMANDS = {"reconcile": reconcile}
