"""`models`, `show` and `import`: what the catalogue holds, one manifest in full, and a config.json as a manifest."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from jaxcost.catalog import Manifest, catalogue_names, load, manifest_toml
from jaxcost.cli.options import output_options
from jaxcost.cli.output import check_writable, document, print_json, write_file
from jaxcost.contracts.architecture import Architecture
from jaxcost.contracts.errors import reject


@click.command("models")
@output_options()
def models(as_json: bool, quiet: bool) -> None:
    """The catalogue, one line each: name, family, parameters, active parameters.

    \b
    Example:
        jaxcost models
    """
    rows = [_model_row(name, load(name)) for name in catalogue_names()]
    if as_json:
        print_json(document("jaxcost.models.v1", models=rows))
    elif not quiet:
        from jaxcost.report.tables import show_models

        show_models(rows)


def _model_row(name: str, manifest: Manifest) -> dict[str, Any]:
    arch = manifest.architecture
    totals = _parameters(arch)
    return {
        "name": name,
        "family": arch.family,
        "huggingface_id": arch.huggingface_id,
        "layers": arch.layer_count,
        "hidden_size": arch.hidden_size,
        "parameters": totals["unique"],
        "active_parameters": totals["active"],
        "digest": arch.digest,
        "source": arch.source,
    }


def _parameters(architecture: Architecture) -> dict[str, Any]:
    """Unique, named and active parameters. They depend on no workload, so the smallest one is used."""
    from jaxcost.contracts.case import prefill
    from jaxcost.prediction.ledgers import predict

    totals = predict(prefill(architecture, seq=1)).to_dict()["ledgers"]["parameters"]["totals"]
    return {name: totals[name] for name in ("unique", "named", "active")}


@click.command("show")
@click.argument("model")
@click.option("--formula", is_flag=True, help="The ledgers as symbolic formulas.")
@output_options()
def show(model: str, formula: bool, as_json: bool, quiet: bool) -> None:
    """A manifest in full, its source and digest.

    MODEL is a catalogue name, its Hugging Face id, a manifest (.toml, .json), a config.json or a folder that holds one.

    \b
    Examples:
        jaxcost show gpt2
        jaxcost show qwen2.5-0.5b --formula
    """
    manifest = load(model)
    body = _show_body(manifest)
    if formula:
        body["formulas"] = _formulas(manifest.architecture)
    if as_json:
        print_json(document("jaxcost.show.v1", **body))
    elif not quiet:
        from jaxcost.report.tables import show_manifest

        show_manifest(body)


def _formulas(architecture: Architecture) -> dict[str, dict[str, str]]:
    """The ledgers of the three phases as text, by phase and path; what is zero in a phase is left out."""
    from jaxcost.contracts.case import decode, prefill, training
    from jaxcost.prediction.symbols import formulas

    cases = {
        "training": training(architecture, seq=1),
        "prefill": prefill(architecture, seq=1),
        "decode": decode(architecture, past=0),
    }
    return {
        phase: {path: str(value) for path, value in formulas(case).items() if value != 0}
        for phase, case in cases.items()
    }


def _show_body(manifest: Manifest) -> dict[str, Any]:
    arch = manifest.architecture
    return {
        "name": arch.name,
        "origin": manifest.origin,
        "path": manifest.path.name if manifest.path else None,
        "source": arch.source,
        "digest": arch.digest,
        "parameters": _parameters(arch),
        "architecture": arch.to_data(),
        "liveness": manifest.liveness.to_data() if manifest.liveness else None,
        "expected": dict(manifest.expected) if manifest.expected is not None else None,
    }


@click.command("import")
@click.argument("config", type=click.Path(path_type=Path))
@click.option(
    "-o", "output", type=click.Path(path_type=Path), metavar="FILE", help="Write the manifest (.toml or .json) here."
)
@output_options()
def import_config(config: Path, output: Path | None, as_json: bool, quiet: bool) -> None:
    """A Hugging Face config.json (the file, or the folder it lies in) to a manifest.

    Keys that change the graph and are not understood are rejected by name. The manifest goes to standard output, or
    with -o to a file.

    \b
    Example:
        jaxcost import path/to/config.json -o my-model.toml
    """
    if output is not None and output.suffix not in (".toml", ".json"):
        raise reject("-o", str(output), "the suffix says neither TOML nor JSON", "name the file .toml or .json")
    check_writable(output, "-o")
    manifest = load(config)
    if manifest.origin != "huggingface_config":
        raise reject(
            "CONFIG", os.fspath(config), "a manifest already, not a Hugging Face config", "use it as MODEL as it is"
        )
    arch = manifest.architecture
    if output is not None:
        arch = arch.replaced(name=output.stem[:200] or arch.name)
        write_file(output, _manifest_text(arch, output.suffix), "-o")
    if as_json:
        print_json(
            document("jaxcost.show.v1", **_show_body(Manifest(arch, None, None, manifest.path, manifest.origin)))
        )
    elif output is None and not quiet:
        click.echo(_manifest_text(arch, ".toml"), nl=False)
    elif not quiet:
        click.echo(f"wrote {output} (digest {arch.digest[:12]})", err=True)


def _manifest_text(arch: Architecture, suffix: str) -> str:
    if suffix == ".toml":
        return manifest_toml(
            arch, f"Imported from a Hugging Face {arch.source}. Write the address of the release as source."
        )
    import json

    return json.dumps({key: value for key, value in arch.to_data().items() if value is not None}, indent=2) + "\n"


COMMANDS = {"models": models, "show": show, "import": import_config}
