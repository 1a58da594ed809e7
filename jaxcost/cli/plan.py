"""`plan`: what to choose. One subcommand per module, imported when it is called."""

from __future__ import annotations

from importlib import import_module

import click

# subcommand -> (the module that defines it, its line in the help)
SUBCOMMANDS = {
    "run": ("jaxcost.cli.plan_run", "A training run: how long, whether it fits, what it costs, what to test first."),
    "runs": ("jaxcost.cli.plan_runs", "Published training runs, and the utilisation that their hours imply."),
    "serve": (
        "jaxcost.cli.plan_serve",
        "A serving replica: pages of K/V cache, latency bounds, load, what is left out.",
    ),
    "recompute": ("jaxcost.cli.plan_recompute", "What to keep under a budget of memory."),
    "lookup": ("jaxcost.cli.plan_lookup", "A large lookup table, and whether its rows arrive in time."),
    "optimizer": ("jaxcost.cli.plan_optimizer", "Work of an optimizer that multiplies matrices, and who owns which."),
}


class _Plans(click.Group):
    """A group that imports a subcommand's module when the subcommand is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(SUBCOMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in SUBCOMMANDS:
            return None
        command = import_module(SUBCOMMANDS[cmd_name][0]).COMMANDS[cmd_name]
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Plans"):
            formatter.write_dl([(name, line) for name, (_, line) in SUBCOMMANDS.items()])


@click.group("plan", cls=_Plans)
def plan() -> None:
    """What to choose: from exact ledgers, with every assumption named.

    \b
    Examples:
        jaxcost plan run --devices 256 --device h100 --days 90 --mfu 0.40 --reserve 0.25 --parameters 30e9
        jaxcost plan recompute llama-3.1-8b --phase training --batch 8 --seq 4096 --mesh fsdp=8 --budget 8GiB
    """


COMMANDS = {"plan": plan}
