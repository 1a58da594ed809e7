"""`plan runs`: what published training runs took, and the utilisation that their hours imply."""

from __future__ import annotations

import click

from jaxcost.cli.options import output_options
from jaxcost.cli.output import document, print_json


@click.command("runs")
@output_options()
def runs(as_json: bool, quiet: bool) -> int:
    """Published training runs: accelerator-hours, 6PT work, and the utilisation that the two imply.

    The hours hold more than healthy steps, so the ratio lies below a printed utilisation; the hours between the two
    are shown where one is printed.

    \b
    Examples:
        jaxcost plan runs
        jaxcost plan runs --json
    """
    from jaxcost.planning.run.published import CONVENTION, OMITTED, implied, published_runs

    found = [implied(run).to_dict() for run in published_runs()]
    data = document("jaxcost.plan_runs.v1", convention=CONVENTION, omitted=OMITTED, runs=found)
    if as_json:
        print_json(data)
    elif not quiet:
        from jaxcost.report.run_plan import show_published_runs

        show_published_runs(data)
    return 0


COMMANDS = {"runs": runs}
