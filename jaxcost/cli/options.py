"""Options that several commands share.

Values are passed on as given: the records decide, so that all problems come together.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from jaxcost.catalog import Manifest, load, load_case_file
from jaxcost.contracts.case import Case, build_case
from jaxcost.contracts.errors import Problem, RejectedError, reject
from jaxcost.contracts.execution import MESH_AXES, OFFLOADABLE, REMATS
from jaxcost.contracts.state import OPTIMIZERS, PRECISIONS

F = TypeVar("F", bound=Callable[..., Any])


class _Whole(click.ParamType):  # type: ignore[type-arg]  # generic in newer click only
    """A whole number; other text stays text, for the record to reject beside whatever else is wrong."""

    name = "N"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the integer that `value` spells, else `value`."""
        return int(value) if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,40}", value) else value


WHOLE = _Whole()

# flag, the option it sets, type, metavar, help
_CASE: tuple[tuple[str, str, Any, str, str], ...] = (
    ("--phase", "phase", str, "training|prefill|decode",
     "What one step does; needed, but for papers and plan run: training."),
    ("--batch", "batch", WHOLE, "N", "Global sequences per step.  [default: 1]"),
    ("--seq", "seq", WHOLE, "N", "New tokens per sequence; needed, but for decode: 1."),
    ("--past", "past", WHOLE, "N", "Cached tokens; --past 32767 makes 32,768 visible.  [default: 0]"),
    ("--logits", "logits", WHOLE, "all|final|N",
     "Rows projected onto the vocabulary, per sequence.  [default: all in training, final otherwise]"),
    ("--accumulate", "accumulate", WHOLE, "N", "Microbatches per step.  [default: 1]"),
    ("--precision", "precision", str, "NAME",
     f"{', '.join(PRECISIONS)}.  [default: mixed in training, bf16_inference otherwise]"),
    ("--optimizer", "optimizer", str, "NAME", f"{', '.join(OPTIMIZERS)}.  [default: adam]"),
    ("--remat", "remat", str, "NAME", f"What is recomputed: {', '.join(REMATS)}.  [default: none]"),
    ("--attention", "attention", str, "PLAN",
     "materialised, blockwise, cudnn or splash.  [default: materialised]"),
    ("--attention-block", "attention_block", WHOLE, "N", "Rows per block of the blockwise schedule.  [default: 512]"),
    ("--layers", "layers", str, "scan|unrolled", "How the stack is executed.  [default: scan]"),
    ("--mesh", "mesh", str, "AXIS=N,...", f"Mesh axes in order: {', '.join(MESH_AXES)}.  [default: one device]"),
    ("--zero", "zero", WHOLE, "0|1|2|3", "ZeRO stage over the data axis.  [default: 0]"),
    ("--sharding", "sharding", str, "explicit|auto",
     "Declared collectives, or the partitioner's.  [default: explicit]"),
    ("--fsdp-group", "fsdp_group", str, "root|block|matrix",
     "What is gathered over fsdp at a time.  [default: matrix]"),
    ("--prefetch", "prefetch", WHOLE, "N", "Groups gathered ahead of their use.  [default: 0]"),
    ("--context-method", "context_method", str, "all_gather|ring",
     "How keys and values of other rows arrive.  [default: all_gather]"),
    ("--pipeline-schedule", "pipeline_schedule", str, "gpipe|1f1b|interleaved",
     "How stages take turns; microbatches are those of --accumulate.  [default: gpipe]"),
    ("--pipeline-virtual", "pipeline_virtual", WHOLE, "N", "Virtual stages per rank.  [default: 1]"),
    ("--embedding-stage", "embedding_stage", WHOLE, "N", "Stage of the embedding.  [default: 0]"),
    ("--head-stage", "head_stage", WHOLE, "N", "Stage of final norm and head.  [default: -1, the last]"),
    ("--gradient-sync", "gradient_sync", str, "every_microbatch|last_microbatch",
     "When gradients are reduced.  [default: every_microbatch]"),
    ("--head-multiple", "head_multiple", WHOLE, "N", "Pad the query heads to a multiple.  [default: 1]"),
    ("--vocabulary-multiple", "vocabulary_multiple", WHOLE, "N",
     "Pad the vocabulary rows to a multiple.  [default: 1]"),
    ("--pairs", "pairs", str, "rectangular|legal",
     "Which (query, key) pairs are counted.  [default: rectangular]"),
)  # fmt: skip


def case_options(command: F) -> F:
    """Add the options of a case, --case among them."""
    return _case_options(command, repeated=False)


def repeated_case_options(command: F) -> F:
    """Add the options of a case, those with a value repeatable: each then holds a tuple of the values given."""
    return _case_options(command, repeated=True)


def _case_options(command: F, repeated: bool) -> F:
    many: dict[str, Any] = {"multiple": True} if repeated else {"default": None}
    decorators = [
        click.option(flag, f"case_{name}", type=kind, metavar=metavar, help=text, **many)
        for flag, name, kind, metavar, text in _CASE
    ]
    decorators += [
        click.option("--sequence-parallel", "case_sequence_parallel", is_flag=True, default=None,
                     help="Split the rows between tensor-parallel regions over tensor."),
        click.option("--reshard/--no-reshard", "case_reshard", default=None,
                     help="Gather weights again for the backward pass.  [default: --reshard]"),
        click.option("--remat-names", "case_remat_names", metavar="NAME,...", **many,
                     help="What the policies that go by name keep."),
        click.option("--offload", "case_offload", metavar="ROLE,...", **many,
                     help=f"State that rests in host memory: {', '.join(OFFLOADABLE)}."),
        click.option("--pipeline-layers", "case_pipeline_layers", metavar="N,...", **many,
                     help="Layers of each stage.  [default: even]"),
        click.option("--dropout", "case_dropout", is_flag=True, default=None, help="Apply the model's dropout rates."),
        click.option("--freeze", "case_frozen", multiple=True, metavar="SCOPE",
                     help="A component that is not trained; may be repeated."),
        click.option("--case", "case_file", type=click.Path(path_type=Path), default=None, metavar="FILE",
                     help="A case file (.toml, .json); flags override it."),
    ]  # fmt: skip
    for decorator in reversed(decorators):
        command = decorator(command)
    return command


def output_options(html: bool = False) -> Callable[[F], F]:
    """Add --json and --quiet, and --html where there is something to look at."""

    def add(command: F) -> F:
        command = click.option("--quiet", is_flag=True, help="No progress and no tables; the exit code answers.")(
            command
        )
        if html:
            command = click.option(
                "--html", type=click.Path(path_type=Path), metavar="FILE", help="Write a self-contained page."
            )(command)
        return click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")(command)

    return add


def given(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the case options that flags gave, by their names in `OPTION_NAMES`.

    Raises:
        RejectedError: the text of --mesh is not a list of axes.
    """
    options = {
        name.removeprefix("case_"): value
        for name, value in parameters.items()
        if name.startswith("case_") and name != "case_file" and value is not None and value != ()
    }
    if "frozen" in options:
        options["frozen"] = list(options["frozen"])
    if "mesh" in options:
        options["mesh"] = parse_mesh(options["mesh"])
    for name in ("remat_names", "offload", "pipeline_layers"):
        if name in options:
            parts = [part.strip() for part in options[name].split(",")]
            options[name] = [WHOLE.convert(part, None, None) for part in parts] if name == "pipeline_layers" else parts
    return options


def parse_mesh(text: str) -> list[dict[str, Any]]:
    """Return the axes of `fsdp=4,tensor=2`, in order; an empty text is one device.

    Raises:
        RejectedError: with a problem for every part that is not AXIS=N.
    """
    axes, problems = [], []
    for part in text.split(",") if text.strip() else ():
        match = re.fullmatch(r"\s*([a-z_]+)\s*=\s*(-?[0-9]{1,18})\s*", part)
        if match:
            axes.append({"name": match[1], "size": int(match[2])})
        else:
            problems.append(
                Problem("--mesh", part, "not of the form AXIS=N", "write for example --mesh fsdp=4,tensor=2")
            )
    if problems:
        raise RejectedError(problems)
    return axes


@dataclass(frozen=True)
class Chosen:
    """The case a command was asked for, with the manifest it is about."""

    manifest: Manifest
    case: Case


def choose(model: str | None, parameters: Mapping[str, Any]) -> Chosen:
    """Build the case of MODEL, a case file and flags; flags override the file.

    Raises:
        RejectedError: with every problem of the three together, as far as they can be told apart.
    """
    problems: list[Problem] = []
    options: dict[str, Any] = {}
    manifest: Manifest | None = None
    try:
        if parameters["case_file"] is not None:
            file = load_case_file(parameters["case_file"])
            manifest, options = file.manifest, dict(file.options)
    except RejectedError as error:
        problems.extend(error.problems)
    try:
        options.update(given(parameters))
    except RejectedError as error:
        problems.extend(error.problems)
    try:
        if model is not None:
            manifest = load(model)
    except RejectedError as error:
        problems.extend(error.problems)
    if problems:
        raise RejectedError(problems)
    if manifest is None:
        raise reject(
            "MODEL", None, "no model is named", "give a MODEL (see `jaxcost models`), or --case FILE with model = NAME"
        )
    liveness = manifest.liveness.to_data() if manifest.liveness else None
    return Chosen(manifest, build_case(manifest.architecture, options, liveness, manifest.expected))
