"""`plan lookup`: a large lookup table, its memory, and whether its rows arrive in time."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import click

from jaxcost.cli.options import WHOLE, output_options
from jaxcost.cli.output import document, print_json
from jaxcost.contracts.errors import reject


@click.command("lookup")
@click.option("--elements", type=WHOLE, required=True, metavar="N", help="Scalars of the whole table.")
@click.option("--dtype", default="bf16", metavar="TYPE", show_default=True, help="How they are stored.")
@click.option("--width", type=WHOLE, default=1, metavar="N", show_default=True, help="Scalars of a row.")
@click.option("--lookups", type=WHOLE, default=1, metavar="N", show_default=True, help="Rows that a token reads.")
@click.option("--tokens", type=WHOLE, default=1, metavar="N", show_default=True, help="Tokens of a step on one device.")
@click.option("--device", "device_name", required=True, metavar="NAME", help="The device that reads.")
@click.option(
    "--reach",
    default="host",
    metavar="host|node|between",
    show_default=True,
    help="Which link of the device the rows come over.",
)
@click.option(
    "--hidden-us",
    type=float,
    default=0.0,
    metavar="US",
    show_default=True,
    help="Microseconds of compute before the lookup, during which rows may be fetched.",
)
@click.option(
    "--latency-us",
    type=float,
    default=0.0,
    metavar="US",
    show_default=True,
    help="Microseconds before the first byte arrives.",
)
@output_options()
def lookup(
    elements: int,
    dtype: str,
    width: int,
    lookups: int,
    tokens: int,
    device_name: str,
    reach: str,
    hidden_us: float,
    latency_us: float,
    as_json: bool,
    quiet: bool,
) -> int:
    """A lookup table's bytes, what a step reads of it, and what of the transfer stays exposed.

    Exit code 1 where part of the transfer stays exposed.

    \b
    Examples:
        jaxcost plan lookup --elements 51000000000 --width 1024 --lookups 2 --tokens 4096 --device h100 --hidden-us 500
    """  # fmt: skip
    from jaxcost.planning.hardware import device
    from jaxcost.planning.lookup import LookupTable
    from jaxcost.planning.quantities import number

    found = device(device_name)
    link = found.link(reach)
    if link is None or link.per_direction_gb_per_s is None:
        known = sorted({item.reach for item in found.links if item.per_direction_gb_per_s is not None})
        rule = f"no rate in one direction is recorded for {found.name}: unknown, not zero"
        raise reject("--reach", reach, rule, f"recorded are {', '.join(known) or 'none'}")
    table = LookupTable(elements, dtype, width, lookups)
    rate = Fraction(str(link.per_direction_gb_per_s)) * 10**9
    fetched = table.prefetch(
        tokens, rate, number(hidden_us, "--hidden-us") / 10**6, number(latency_us, "--latency-us") / 10**6
    )
    memory = found.memory.capacity_bytes if found.memory is not None else None
    body: dict[str, Any] = {
        "what": "lookup", "device": found.name, "link": link.name, "link_bytes_per_s": float(rate),
        "table_bytes": table.table_bytes, "device_memory_bytes": memory, "tokens": tokens, **fetched,
        "omitted": "optimizer state of the table, metadata, equal rows read once, contention on the link",
    }  # fmt: skip
    data = document("jaxcost.plan_lookup.v1", **body)
    if as_json:
        print_json(data)
    elif not quiet:
        from jaxcost.report.numbers import about

        size = about(data["table_bytes"], "bytes") or f"{data['table_bytes']} B"
        click.echo(
            f"table: {data['table_bytes']:,} bytes ({float(Fraction(data['table_bytes'], 10**9)):,.6g} GB, {size})"
        )
        click.echo(f"one step reads {data['read_bytes']:,} bytes over {data['link']} of {data['device']}: "
                   f"{1e6 * data['transfer_seconds']:,.3f} us")  # fmt: skip
        exposed = f"{1e6 * data['exposed_seconds']:,.3f} us stay exposed"
        click.echo("hidden behind the layers before it" if data["hidden"] else exposed)
        click.echo(f"{data['convention']}. Not counted: {data['omitted']}")
    return int(not data["hidden"])


COMMANDS = {"lookup": lookup}
