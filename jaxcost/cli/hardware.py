"""`hardware`: the recorded devices, their figures as printed, and where sources disagree."""

from __future__ import annotations

import click

from jaxcost.cli.options import output_options
from jaxcost.cli.output import document, print_json


@click.command("hardware")
@click.argument("name", required=False)
@output_options()
def hardware(name: str | None, as_json: bool, quiet: bool) -> None:
    """The devices that rooflines and plans know: dense peaks, memory, links, each as printed, with its source.

    NAME is a device, an alias or a target, and shows everything recorded of it: sparse peaks kept apart, conflicts
    between sources side by side, what was not read.

    \b
    Examples:
        jaxcost hardware
        jaxcost hardware h100
    """
    from jaxcost.planning.hardware import device, devices

    found = devices() if name is None else (device(name),)
    data = document(
        "jaxcost.hardware.v1", devices=[{**item.to_data(), "ridge_bf16": item.ridge_bf16} for item in found]
    )
    if as_json:
        print_json(data)
    elif not quiet:
        from jaxcost.report.hardware import show_device, show_devices

        if name is None:
            show_devices(data["devices"])
        else:
            show_device(data["devices"][0])


COMMANDS = {"hardware": hardware}
