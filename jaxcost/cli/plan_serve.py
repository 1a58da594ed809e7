"""`plan serve`: what a replica holds, how fast a token can be, how many requests that serves, and what is left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jaxcost.cli.options import WHOLE, F, output_options
from jaxcost.cli.output import check_writable, document, print_json, write_file
from jaxcost.cli.roofline import REAL
from jaxcost.contracts.errors import Problem, RejectedError

if TYPE_CHECKING:
    from jaxcost.planning.serve import Asked

# record: (flag, type, metavar, help); the name of the field is the flag's
_ENGINE: tuple[tuple[str, Any, str, str], ...] = (
    ("tensor", WHOLE, "N", "Tensor-parallel ranks.  [default: the devices over --pipeline]"),
    ("pipeline", WHOLE, "N", "Pipeline stages.  [default: 1]"),
    ("pipeline-layers", str, "N,...", "Layers of each stage.  [default: even]"),
    ("max-model-len", WHOLE, "N", "Longest request, prompt and output.  [default: 8192]"),
    ("gpu-memory-utilization", REAL, "X", "Share of device memory that the engine may fill.  [default: 0.9]"),
    ("block-size", WHOLE, "N", "Tokens of a page.  [default: 16]"),
    ("kv-cache-dtype", str, "TYPE",
     "auto, bf16, fp16, fp8, fp8_e5m2, or int8_per_token_head and fp8_per_token_head with scales.  [default: auto]"),
    ("weight-dtype", str, "TYPE", "bf16, or fp8, int8, int4 for the matrices of the layers.  [default: bf16]"),
    ("weight-scales", str, "GRAIN", "Of quantised weights: tensor, channel or group:N, with :TYPE where not fp32."),
    ("arithmetic", str, "TYPE", "Peak that the products run at: bf16, fp8 or int8.  [default: bf16]"),
    ("max-num-batched-tokens", WHOLE, "N", "Most tokens of a step, a chunk of a prompt.  [default: 8192]"),
    ("max-num-seqs", WHOLE, "N", "Most sequences of a step.  [default: what memory allows]"),
    ("activation-bytes", WHOLE, "B", "The profiled peak of activations; without it the capacity is an upper limit."),
    ("other-bytes", WHOLE, "B", "Memory outside of the allocator, captured graphs; without it, an upper limit."),
    ("rotary-rows", WHOLE, "N", "Positions of the rotary table that stands beside the weights."),
    ("device-memory", WHOLE, "B", "Memory of a device, where it is not the target's."),
    ("vocabulary-multiple", WHOLE, "N", "Pad the vocabulary rows to a multiple.  [default: 64]"),
)  # fmt: skip
_WORK: tuple[tuple[str, Any, str, str], ...] = (
    ("prompt", WHOLE, "N", "Prompt tokens of a request."),
    ("output", WHOLE, "N", "Output tokens of a request."),
    ("rate", REAL, "R", "Requests a second that arrive, over all replicas."),
    ("ttft", REAL, "S", "Target: seconds to the first token."),
    ("tpot", REAL, "S", "Target: seconds per output token."),
    ("batch", WHOLE, "N", "Sequences of the decode step shown.  [default: 1]"),
    ("link", str, "inside|between", "Prefill and decode on devices of their own, joined by this link."),
)
_LIFETIME: tuple[tuple[str, Any, str, str], ...] = (
    ("against", str, "MODEL", "Lifetime cost: another model that meets the same quality target."),
    ("train-tokens", REAL, "N", "Tokens that this model is trained on."),
    ("against-train-tokens", REAL, "N", "Tokens that the other one is trained on."),
    ("train-seq", WHOLE, "N", "Context of training.  [default: 4096]"),
    ("train-utilization", REAL, "X", "Share of the peak in training."),
    ("prefill-utilization", REAL, "X", "Share of the peak in prefill."),
    ("decode-utilization", REAL, "X", "Share of the peak in decode."),
    ("utilization", REAL, "X", "Refused: one share for all phases."),
    ("volume", REAL, "N", "Tokens served over the lifetime."),
    ("price", REAL, "P", "Of a device-hour."),
    ("currency", str, "TEXT", "Of the price."),
    ("price-date", str, "DATE", "Of the price, as 2026-03-01."),
    ("price-includes", str, "TEXT", "What the price pays for."),
)
_FIELD = {"device-memory": "device_memory_bytes"}


def serve_options(command: F) -> F:
    """Add an option for every field of the engine, the workload and the lifetime comparison."""
    decorators: list[Callable[[F], F]] = []
    for record, listed in (("engine", _ENGINE), ("work", _WORK), ("life", _LIFETIME)):
        for flag, kind, metavar, text in listed:
            field = _FIELD.get(flag, flag.replace("-", "_"))
            decorators.append(click.option(f"--{flag}", f"{record}_{field}", type=kind, metavar=metavar, help=text))
    for decorator in reversed(decorators):
        command = decorator(command)
    return command


@click.command("serve")
@click.argument("model")
@click.option("--target", required=True, metavar="T", help="h100:1, h100:8, h100:2x8, tpu-v5e:2x4, ...")
@serve_options
@click.option("--no-hybrid", is_flag=True, help="Windowed layers keep every row, beside full ones.")
@click.option("--draft", "spec_draft", metavar="MODEL", help="Speculative decode: the model that drafts.")
@click.option("--next-n", "spec_next_n", type=WHOLE, metavar="N", help="Multi-token decode: tokens a step, by heads.")
@click.option("--speculate", "spec_tokens", type=WHOLE, metavar="K", help="Draft tokens of a verification.")
@click.option("--acceptance", "spec_acceptance", type=REAL, metavar="A", help="Chance that a draft token is accepted.")
@click.option("--inside-gbs", type=REAL, metavar="X", help="GB/s inside a node, one direction, one device.")
@click.option("--between-gbs", type=REAL, metavar="X", help="GB/s between nodes, one direction, one device.")
@click.option("--startup", type=REAL, metavar="S", help="Seconds before a collective's first byte.")
@output_options(html=True)
def serve(model: str, html: Path | None, as_json: bool, quiet: bool, **parameters: Any) -> int:
    """A serving plan: memory and K/V pages as vLLM counts them, latency bounds, load, and what is left out.

    Capacities are an upper limit until --activation-bytes and --other-bytes say what the engine measured. Times are
    bounds from a device's rates. Exit code 1 where not one request of --max-model-len fits.

    \b
    Examples:
        jaxcost plan serve llama-3.1-8b --target h100:1
        jaxcost plan serve llama-3.1-70b --target h100:8 --max-model-len 131072 --kv-cache-dtype fp8 \\
            --activation-bytes 1300000000 --other-bytes 700000000 --rotary-rows 131072
        jaxcost plan serve llama-3.1-8b --target h100:2 --tensor 1 --prompt 2000 --output 500 --rate 8 --ttft 0.5 \\
            --tpot 0.02 --link inside --draft llama-3.2-1b --speculate 3 --acceptance 0.7 --html serve.html
    """
    check_writable(html, "--html")
    from jaxcost.planning.serve import serve_plan
    from jaxcost.report.progress import progress

    asked = read_asked(model, parameters)
    with progress("planning", quiet or as_json):
        data = document("jaxcost.plan_serve.v1", **serve_plan(asked))
    if html is not None:
        from jaxcost.report.serve_plan_page import serve_plan_page

        write_file(html, serve_plan_page(data), "--html")
    if as_json:
        print_json(data)
    elif not quiet:
        from jaxcost.report.serve_plan import show_serve_plan

        show_serve_plan(data)
    return 0 if data["capacity"]["starts"] else 1


def read_asked(model: str, parameters: Mapping[str, Any]) -> Asked:
    """Return what is asked, from the options by their names.

    Raises:
        RejectedError: with the problems of every record together.
    """
    from jaxcost.catalog import load
    from jaxcost.planning.serve import Asked, Engine, Lifetime, Speculation, Workload, filled, target_of

    problems: list[Problem] = []

    def tried(build: Callable[[], Any]) -> Any:
        try:
            return build()
        except RejectedError as error:
            problems.extend(error.problems)
            return None

    manifest, target = tried(lambda: load(model)), tried(lambda: target_of(parameters["target"]))
    given = _given(parameters, "engine")
    if "pipeline_layers" in given:
        given["pipeline_layers"] = [WHOLE.convert(part.strip(), None, None)
                                    for part in given["pipeline_layers"].split(",")]  # fmt: skip
    if parameters["no_hybrid"]:
        given["hybrid"] = False
    if target is not None:
        given = tried(lambda: filled(given, target)) or given
    engine = tried(lambda: Engine.from_data(given, "engine"))
    work = tried(lambda: Workload.from_data(_given(parameters, "work"), "workload"))
    life, spec = _given(parameters, "life"), _given(parameters, "spec")
    if spec.get("next_n") is not None and "tokens" not in spec and isinstance(spec["next_n"], int):
        spec["tokens"] = spec["next_n"] - 1
    lifetime = tried(lambda: Lifetime.from_data(life, "lifetime")) if life else None
    speculation = tried(lambda: Speculation.from_data(spec, "speculation")) if spec else None
    wires = tried(lambda: _wires(parameters))
    if problems:
        raise RejectedError(problems)
    return Asked(manifest, target, engine, work, wires, speculation, lifetime)


def _given(parameters: Mapping[str, Any], record: str) -> dict[str, Any]:
    head = f"{record}_"
    found = {name.removeprefix(head): value for name, value in parameters.items() if name.startswith(head)}
    return {name: value for name, value in found.items() if value is not None}


def _wires(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the declared rates of links.

    Raises:
        RejectedError: one is no number above zero.
    """
    from jaxcost.planning.quantities import not_negative, positive

    found: dict[str, Any] = {}
    for option, name in (("inside_gbs", "inside_gb_per_s"), ("between_gbs", "between_gb_per_s")):
        if parameters[option] is not None:
            found[name] = positive(parameters[option], f"--{option.replace('_', '-')}")
    if parameters["startup"] is not None:
        found["startup_seconds"] = not_negative(parameters["startup"], "--startup")
    return found


COMMANDS = {"serve": serve}
