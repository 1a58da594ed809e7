"""`targets`: what can be compiled for on this machine, and how to add the rest."""

from __future__ import annotations

import click

from jaxcost.cli.options import output_options
from jaxcost.cli.output import document, print_json


@click.command("targets")
@output_options()
def targets(as_json: bool, quiet: bool) -> None:
    """The targets, which can be compiled for here, and how to add the others.

    No device is needed: GPU and TPU programs are compiled ahead of time. A target is written CHIP[:SHAPE].

    \b
    Example:
        jaxcost targets
    """
    from jaxcost.observation.targets import targets_table

    rows = targets_table()
    if as_json:
        print_json(document("jaxcost.targets.v1", targets=rows))
    elif not quiet:
        from jaxcost.report.tables import show_targets

        show_targets(rows)


COMMANDS = {"targets": targets}
