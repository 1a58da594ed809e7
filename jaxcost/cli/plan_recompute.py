"""`plan recompute`: the tensors that are worth keeping under a budget of memory."""

from __future__ import annotations

import re
from typing import Any

import click

from jaxcost.cli.options import case_options, choose, output_options
from jaxcost.cli.output import document, print_json
from jaxcost.contracts.errors import reject

_UNITS = {"": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


@click.command("recompute")
@click.argument("model", required=False)
@case_options
@click.option(
    "--budget", required=True, metavar="BYTES", help="For saved tensors of one microbatch on one device: 8GiB, 500MiB."
)
@output_options()
def recompute(model: str | None, budget: str, as_json: bool, quiet: bool, **parameters: Any) -> int:
    """What to keep: the policy by name that replays the fewest FLOPs within a budget of memory.

    Exact arithmetic over the declared program; nothing is compiled. The answer is given as the options that ask for it.

    \b
    Examples:
        jaxcost plan recompute llama-3.1-8b --phase training --batch 8 --seq 4096 --mesh fsdp=8 --budget 8GiB
        jaxcost plan recompute qwen2.5-0.5b --phase training --batch 1 --seq 2048 --attention blockwise --budget 2GiB
    """
    limit = _bytes(budget)
    for name in ("remat", "remat_names"):
        if parameters[f"case_{name}"] is not None:
            flag = f"--{name.replace('_', '-')}"
            raise reject(flag, parameters[f"case_{name}"], "the search chooses what is recomputed", f"leave {flag} out")
    chosen = choose(model, parameters)
    from jaxcost.planning.recompute import plan_recompute

    found = plan_recompute(chosen.case, limit)
    data = document("jaxcost.plan.v1", model=chosen.manifest.architecture.name, what="recompute", **found.to_dict())
    if as_json:
        print_json(data)
    elif not quiet:
        _show(data)
    return 0


def _bytes(text: str) -> int:
    match = re.fullmatch(r"([0-9]{1,18})(|B|KiB|MiB|GiB)", text.strip())
    if match is None:
        rule = "must be a whole number of bytes, KiB, MiB or GiB"
        raise reject("--budget", text, rule, "write for example --budget 8GiB")
    return int(match[1]) * _UNITS[match[2]]


def _show(data: dict[str, Any]) -> None:
    """Print the three policies and the options of the best one."""
    rows = (("every layer replayed", "least"), ("within the budget", "best"), ("every name kept", "most"))
    click.echo(f"{data['model']}: saved tensors within {data['budget_bytes']:,} bytes on each device")
    click.echo(f"{'':22}{'replayed FLOPs':>26}{'saved bytes':>22}")
    for label, name in rows:
        click.echo(f"{label:22}{data[name]['replay_flops']:>26,}{data[name]['saved_bytes']:>22,}")
    click.echo(f"\n{data['best']['options']}")
    click.echo(f"{data['convention']}; {data['visited']:,} sets weighed, the rest ruled out by bounds")


COMMANDS = {"recompute": recompute}
