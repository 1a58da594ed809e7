"""`papers`: what published sources counted, their tables reproduced, and when their numbers may be compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from jaxcost.cli.options import case_options, choose, output_options
from jaxcost.cli.output import check_writable, document, print_json, write_file
from jaxcost.contracts.errors import reject


@click.command("papers")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--compare", "model", metavar="MODEL", help="Bring the contracts to one case of this model.")
@case_options
@output_options(html=True)
def papers(
    names: tuple[str, ...], model: str | None, as_json: bool, quiet: bool, html: Path | None, **parameters: Any
) -> int:
    """The published accounting contracts, their tables reproduced, and the comparison gate.

    Without NAME one line for each contract; with NAME its axes, symbols, forms and tables, row by row. Numbers of
    different papers are compared with --compare alone: then every axis is brought to one case (training unless the
    options say otherwise), or no number is shown. Exit code 1: a printed figure is not reproduced, or contracts that
    were named cannot be compared.

    \b
    Examples:
        jaxcost papers
        jaxcost papers megatron
        jaxcost papers --compare gpt2 --batch 8 --seq 1024
        jaxcost papers kaplan palm --compare llama-3.1-8b --seq 4096
    """
    check_writable(html, "--html")
    from jaxcost.papers.document import comparison_document, contracts_document
    from jaxcost.papers.registry import registry

    known = registry()
    for name in sorted({name for name in names if names.count(name) > 1}):
        raise reject("NAME", name, "named twice", "name each contract once")
    chosen = [known.contract(name) for name in names] or list(known.values())
    options = [name for name in parameters if name.startswith("case_") and parameters[name] not in (None, ())]
    if model is None:
        if options:
            flag = "--" + options[0].removeprefix("case_").replace("_", "-")
            raise reject(flag, None, "a case is chosen for a comparison", "add --compare MODEL, or leave it out")
        if len(chosen) == 1:
            body = contracts_document(chosen, prove=True)
        else:
            from jaxcost.report.progress import progress

            with progress("reproducing", quiet or as_json) as say:
                body = contracts_document(chosen, prove=bool(names) or html is not None, progress=say)
    else:
        if parameters["case_phase"] is None and parameters["case_file"] is None:
            parameters["case_phase"] = "training"
        target = choose(model, parameters).case
        body = comparison_document(chosen, target, named=bool(names))
    data = document("jaxcost.papers.v1", **body)
    if html is not None:
        from jaxcost.report.papers_page import papers_page

        write_file(html, papers_page(data), "--html")
    if as_json:
        print_json(data)
    elif not quiet:
        from jaxcost.report.papers_tables import show_comparison, show_contract, show_contracts

        if model is not None:
            show_comparison(data)
        elif names:
            for contract in data["contracts"]:
                show_contract(contract)
        else:
            show_contracts(data)
    return int(data["exit_code"])


COMMANDS = {"papers": papers}
