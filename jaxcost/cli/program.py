"""The program `jaxcost`: its commands, and how it ends.

Exit codes: 0 done; 1 something compared is open, refused or infeasible; 2 the input was rejected; 3 a compiler or a
file given by path is missing; 4 an internal fault; 130 interrupted. With --json an error is one JSON document on
standard output. Tracebacks appear only with JAXCOST_DEBUG=1.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import gc
import os
import sys
from collections.abc import Sequence
from importlib import import_module

import click

import jaxcost
from jaxcost.contracts.errors import JaxcostError, Problem, RejectedError, UnavailableError

# command -> (the module that defines it, its line in the help)
COMMANDS = {
    "models": ("jaxcost.cli.catalogue", "The catalogue, one line each."),
    "show": ("jaxcost.cli.catalogue", "A manifest in full, its source and digest."),
    "import": ("jaxcost.cli.catalogue", "A Hugging Face config.json to a manifest."),
    "estimate": ("jaxcost.cli.estimate", "All ledgers of one case."),
    "verify": ("jaxcost.cli.verify", "Predict, observe, reconcile."),
    "audit": ("jaxcost.cli.audit", "Any JAX function, HLO module or XLA dump: what it costs."),
    "plan": ("jaxcost.cli.plan", "What to choose: a training run, what to recompute."),
    "roofline": ("jaxcost.cli.roofline", "Which resource bounds each op and the step on a device."),
    "compare": ("jaxcost.cli.compare", "Sharding specs side by side, predicted and compiled."),
    "sensitivity": ("jaxcost.cli.sensitivity", "One declared field, one new prediction: what moves, and by how much."),
    "measure": ("jaxcost.cli.measure", "Run a step on the devices present."),
    "papers": ("jaxcost.cli.papers", "Published accounting contracts, their tables reproduced, and when they compare."),
    "reconcile": ("jaxcost.cli.reconcile", "A checkpoint's headers against the manifest."),
    "hardware": ("jaxcost.cli.hardware", "The devices that rooflines and plans know."),
    "targets": ("jaxcost.cli.targets", "What can be compiled for, here."),
}
INTERRUPTED, BROKEN_PIPE = 130, 141
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class _Program(click.Group):
    """A group that imports a command's module when the command is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = import_module(COMMANDS[cmd_name][0]).COMMANDS[cmd_name]
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


@click.group(cls=_Program, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(jaxcost.__version__, prog_name="jaxcost")
def program() -> None:
    """What a transformer costs, in exact integers, checked against the program XLA compiles.

    \b
    jaxcost models
    jaxcost estimate llama-3.1-8b --phase training --seq 4096
    jaxcost verify llama-3.1-8b --phase training --batch 16 --seq 4096 --mesh fsdp=8 --target h100:8
    """


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    collecting = gc.isenabled()
    gc.disable()  # a tenth of an estimate's time; `verify`, which runs for long, turns it on again
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller, who then wants the exit code alone
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115  # open until the program ends
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a character the terminal cannot show is no reason to fail
            stream.reconfigure(errors="backslashreplace")
    try:
        code = _run(words)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader went away. Point standard output elsewhere, or the interpreter complains when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except OSError as error:  # the result, or the message about it, has nowhere to go
        if error.errno not in FULL:
            raise
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        with contextlib.suppress(OSError):
            return _fail([], _full(error))
        os.dup2(nowhere, sys.stderr.fileno())
        return RejectedError.exit_code
    finally:
        if collecting:
            gc.enable()
    return code


def _run(words: list[str]) -> int:
    try:
        # Not click's own main(), which would turn an interruption and a closed pipe into its own exit codes.
        with program.make_context("jaxcost", words) as context:
            result = program.invoke(context)
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.ctx.get_help() if error.ctx else str(error))
        return 0
    except click.UsageError as error:
        return _fail(words, RejectedError([_usage_problem(error)]))
    except (click.Abort, KeyboardInterrupt):
        click.echo("Interrupted.", err=True)
        return INTERRUPTED
    except JaxcostError as error:
        return _fail(words, error)
    except BrokenPipeError:
        raise
    except Exception as error:  # the border: a bug becomes one line and exit code 4
        if os.environ.get("JAXCOST_DEBUG") == "1":
            raise
        if isinstance(error, OSError) and error.errno in FULL:
            return _fail(words, _full(error))
        long = isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG
        return _fail(words, _too_long(error) if long else error)
    return result if isinstance(result, int) else 0


def _full(error: Exception) -> RejectedError:
    rule = f"cannot be written ({getattr(error, 'strerror', None)})"
    return RejectedError([Problem("output", None, rule, "free some space, or write elsewhere")])


def _too_long(error: Exception) -> RejectedError:
    name = str(getattr(error, "filename", None) or "")
    return RejectedError([Problem("path", name, "the system takes no name that long", "name a file by a shorter path")])


def _usage_problem(error: click.UsageError) -> Problem:
    command = error.ctx.command_path if error.ctx else "jaxcost"
    where = ""
    if isinstance(error, click.NoSuchOption):
        where = error.option_name
    elif isinstance(error, click.BadParameter) and error.param is not None:
        where = error.param.opts[0] if error.param.param_type_name == "option" else (error.param.name or "")
    message = error.format_message().rstrip(".?")
    if isinstance(error, click.NoSuchOption) and (owners := _commands_with(error.option_name)):
        remedy = f"{', '.join(owners)} {'have' if owners[1:] else 'has'} it; see `{command} --help`"
        return Problem(where, None, f"not an option of `{command}`", remedy)
    near = difflib.get_close_matches(message.rpartition("'")[0].rpartition("'")[2], COMMANDS, n=1) if not where else []
    hint = f"did you mean `jaxcost {near[0]}`? See" if near else "see"
    return Problem(where or "command line", None, message[:1].lower() + message[1:], f"{hint} `{command} --help`")


def _commands_with(option: str) -> list[str]:
    """Return the commands that have an option, subcommands by their full name."""
    found = []
    for name, (module, _) in COMMANDS.items():
        command = import_module(module).COMMANDS[name]
        below = {name: command}
        if isinstance(command, click.Group):
            context = click.Context(command)
            below = {f"{name} {part}": command.get_command(context, part) for part in command.list_commands(context)}
        found += [f"`jaxcost {path}`" for path, item in below.items() if any(option in p.opts for p in item.params)]
    return found


def _fail(words: list[str], error: Exception) -> int:
    if "--json" in words:
        click.echo(_document(error))
    else:
        click.echo(_text(error), err=True)
    return error.exit_code if isinstance(error, JaxcostError) else JaxcostError.exit_code


def _text(error: Exception) -> str:
    if isinstance(error, RejectedError):
        count = len(error.problems)
        shown = "\n".join(f"  {_line(problem)}" for problem in error.problems[:50])
        more = f"\n  ... and {count - 50} more" if count > 50 else ""
        return f"rejected: {count} problem{'s' if count != 1 else ''}\n{shown}{more}"
    if isinstance(error, UnavailableError):
        return f"unavailable: {error}"
    summary = " ".join(str(error).split())[:300]
    return f"internal fault: {type(error).__name__}: {summary} (this is a bug; JAXCOST_DEBUG=1 shows where)"


def _line(problem: Problem) -> str:
    if problem.value is None:
        return f"{problem.path or 'input'}: {problem.rule}. {problem.remedy}"
    return str(problem)


def _document(error: Exception) -> str:
    import json

    if isinstance(error, RejectedError):
        schema, errors = "jaxcost.rejected.v1", [problem.to_dict() for problem in error.problems]
    elif isinstance(error, UnavailableError):
        problem = Problem(error.what, None, error.reason, error.remedy)
        schema, errors = "jaxcost.unavailable.v1", [problem.to_dict()]
    else:
        problem = Problem(
            "", None, f"internal fault: {type(error).__name__}: {error}", "this is a bug; JAXCOST_DEBUG=1 shows where"
        )
        schema, errors = "jaxcost.fault.v1", [problem.to_dict()]
    return json.dumps({"schema": schema, "jaxcost": jaxcost.__version__, "errors": errors}, indent=2)
