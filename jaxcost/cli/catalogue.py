"""`models`, `show` and `import`: what the catalogue holds, one manifest in full, and a config.json as a manifest."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from jaxcost.catalog import Manifest, Published, catalogue_names, load, manifest_toml, options_toml, read_maxtext
from jaxcost.cli.options import case_options, choose, given, output_options
from jaxcost.cli.output import check_writable, document, print_json, write_file
from jaxcost.contracts.architecture import Architecture
from jaxcost.contracts.errors import RejectedError, reject


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
    totals, reason = _parameters(arch)
    return {
        "name": name,
        "family": arch.family,
        "huggingface_id": arch.huggingface_id,
        "layers": arch.layer_count,
        "hidden_size": arch.hidden_size,
        "parameters": totals["unique"],
        "active_parameters": totals["active"],
        **({"reason": reason} if reason else {}),
        "digest": arch.digest,
        "source": arch.source,
    }


def _parameters(architecture: Architecture) -> tuple[dict[str, Any], str | None]:
    """Unique, named and active parameters, or why they are unknown. They depend on no workload; one token is used."""
    from jaxcost.contracts.case import prefill
    from jaxcost.prediction.ledgers import predict

    try:
        totals = predict(prefill(architecture, seq=1)).to_dict()["ledgers"]["parameters"]["totals"]
    except RejectedError as error:  # a manifest may declare what no ledger counts yet
        return dict.fromkeys(("unique", "named", "active")), "; ".join(p.path for p in error.problems)
    return {name: totals[name] for name in ("unique", "named", "active")}, None


@click.command("show")
@click.argument("model", required=False)
@click.option("--formula", is_flag=True, help="The ledgers as formulas: in each phase, or with --phase of one case.")
@click.option("--ledger", "ledgers", multiple=True, metavar="NAME", help="Formulas of this ledger; may be repeated.")
@click.option("--scope", metavar="SCOPE", help="Formulas of the rows at and below this scope, such as group0/attn.")
@click.option("--rows", is_flag=True, help="Formulas of every row, not only of the totals.")
@case_options
@output_options()
def show(
    model: str | None,
    formula: bool,
    ledgers: tuple[str, ...],
    scope: str | None,
    rows: bool,
    as_json: bool,
    quiet: bool,
    **parameters: Any,
) -> int:
    """A manifest in full, its source and digest; with --formula its ledgers as formulas of its fields.

    MODEL is a catalogue name, its Hugging Face id, a manifest (.toml, .json), a config.json or a folder that holds one.
    With --formula and the options of a case each formula stands beside the number that `estimate` gives; exit code 1
    where one does not give that number.

    \b
    Examples:
        jaxcost show gpt2
        jaxcost show qwen2.5-0.5b --formula
        jaxcost show llama-3.1-8b --formula --phase training --batch 16 --seq 4096 --mesh fsdp=8
        jaxcost show gemma-2-2b --formula --phase prefill --seq 8192 --ledger flops --scope group0/attn
    """
    from jaxcost.cli.formula import check_choice, formulas_of_case, model_formulas

    options = given(parameters) or parameters["case_file"] is not None
    check_choice(formula, bool(options), {"--ledger": ledgers, "--scope": scope, "--rows": rows})
    case = None
    if options:
        chosen = choose(model, parameters)
        manifest, case = chosen.manifest, chosen.case
    else:
        if model is None:
            raise reject("MODEL", None, "no model is named", "give a MODEL (see `jaxcost models`)")
        manifest = load(model)
    body, agree = _show_body(manifest), True
    if formula and case is None:
        body["formulas"], body["formula"] = model_formulas(manifest.architecture, ledgers)
    elif case is not None:
        body["formula"], agree = formulas_of_case(case, ledgers, scope, rows)
    if as_json:
        print_json(document("jaxcost.show.v1", **body))
    elif not quiet and formula:
        from jaxcost.report.formulas import show_formulas

        show_formulas(body)
    elif not quiet:
        from jaxcost.report.tables import show_manifest

        show_manifest(body)
    return int(not agree)


def _show_body(manifest: Manifest) -> dict[str, Any]:
    arch = manifest.architecture
    parameters, reason = _parameters(arch)
    return {
        "name": arch.name,
        "origin": manifest.origin,
        "path": manifest.path.name if manifest.path else None,
        "source": arch.source,
        "digest": arch.digest,
        "parameters": parameters,
        **({"reason": reason} if reason else {}),
        "ties": [["embed/tokens/weight", "head/weight"]] if arch.tied else [],
        "persistent_buffers": [],
        "published": [_published(item, parameters) for item in manifest.published],
        "architecture": arch.to_data(),
        "liveness": manifest.liveness.to_data() if manifest.liveness else None,
        "expected": dict(manifest.expected) if manifest.expected is not None else None,
    }


def _published(item: Published, parameters: dict[str, Any]) -> dict[str, Any]:
    """A published count beside what its relation gives; the residual is 0 where they agree, null where unknown."""
    unknown = parameters["unique"] is None
    explained = None if unknown else item.explained(parameters["unique"], parameters["named"])
    residual = None if explained is None else item.count - explained
    return {
        "count": item.count,
        "relation": item.relation,
        "explained": explained,
        "residual": residual,
        "source": item.source,
    }


@click.command("import")
@click.argument("config", type=click.Path(path_type=Path))
@click.option(
    "-o", "output", type=click.Path(path_type=Path), metavar="FILE", help="Write the manifest (.toml or .json) here."
)
@click.option(
    "--case-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Of a MaxText file: write the options of its step here (.toml); with -o.",
)
@click.option("--text-only", is_flag=True, help="Of a config that nests its language model, read that one alone.")
@output_options()
def import_config(
    config: Path, output: Path | None, case_file: Path | None, text_only: bool, as_json: bool, quiet: bool
) -> None:
    """A Hugging Face config.json (or its folder), or a MaxText .yml, to a manifest.

    Keys that change the graph and are not understood are rejected by name. The manifest goes to standard output, or
    with -o to a file. A MaxText file also says the step: its options go to standard error, or to --case-file.

    \b
    Examples:
        jaxcost import path/to/config.json -o my-model.toml
        jaxcost import path/to/maxtext.yml -o my-model.toml --case-file my-case.toml
    """
    if output is not None and output.suffix not in (".toml", ".json"):
        raise reject("-o", str(output), "the suffix says neither TOML nor JSON", "name the file .toml or .json")
    if output is not None and output.exists() and config.exists() and output.samefile(config):
        raise reject("-o", str(output), "is the file that is read", "write the manifest to another file")
    check_writable(output, "-o")
    maxtext = read_maxtext(config) if config.suffix in (".yml", ".yaml") and config.is_file() else None
    if case_file is not None:
        if maxtext is None or output is None or case_file.suffix != ".toml":
            rule = "goes with a MaxText file, with -o, and ends in .toml"
            raise reject("--case-file", str(case_file), rule, "jaxcost import FILE.yml -o M.toml --case-file C.toml")
        check_writable(case_file, "--case-file")
    manifest = load(config, text_only=text_only)
    if manifest.origin not in ("huggingface_config", "maxtext_config"):
        rule = "a manifest already, not a Hugging Face or MaxText config"
        raise reject("CONFIG", os.fspath(config), rule, "use it as MODEL as it is")
    arch = manifest.architecture
    if output is not None:
        arch = arch.replaced(name=output.stem[:200] or arch.name)
        write_file(output, _manifest_text(manifest.origin, arch, output.suffix), "-o")
    if case_file is not None and maxtext is not None and output is not None:
        model = os.path.relpath(output, case_file.parent)
        write_file(case_file, options_toml({"model": model, **maxtext.options}), "--case-file")
    if as_json:
        body = _show_body(Manifest(arch, None, None, manifest.path, manifest.origin))
        extra = {"options": dict(maxtext.options), "assumptions": list(maxtext.notes)} if maxtext else {}
        print_json(document("jaxcost.show.v1", **body, **extra))
    elif output is None and not quiet:
        click.echo(_manifest_text(manifest.origin, arch, ".toml"), nl=False)
    elif not quiet:
        click.echo(f"wrote {output} (digest {arch.digest[:12]})", err=True)
    if maxtext and not quiet and not as_json:
        click.echo("options of the step:", err=True)
        click.echo(options_toml(maxtext.options), nl=False, err=True)
        for note in maxtext.notes:
            click.echo(f"note: {note}", err=True)


def _manifest_text(origin: str, arch: Architecture, suffix: str) -> str:
    if suffix == ".toml":
        kind = "Hugging Face" if origin == "huggingface_config" else "MaxText"
        return manifest_toml(arch, f"Imported from a {kind} {arch.source}. Write the address of the release as source.")
    import json

    return json.dumps({key: value for key, value in arch.to_data().items() if value is not None}, indent=2) + "\n"


COMMANDS = {"models": models, "show": show, "import": import_config}
