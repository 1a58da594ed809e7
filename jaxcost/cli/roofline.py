"""`roofline`: which resource bounds each op, each scope and the step on one device."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jaxcost.cli.options import WHOLE, case_options, choose, output_options
from jaxcost.cli.output import check_writable, document, print_json, write_file
from jaxcost.contracts.case import Case
from jaxcost.contracts.errors import reject

if TYPE_CHECKING:
    from jaxcost.planning.machine import Machine


class _Real(click.ParamType):  # type: ignore[type-arg]  # generic in newer click only
    """A decimal number read exactly; other text stays text, to be rejected with its path."""

    name = "X"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number that `value` spells, else `value`."""
        if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,25}(\.[0-9]{1,25})?(e[+-]?[0-9]{1,2})?", value, re.I):
            return float(value)
        return value


REAL = _Real()


@click.command("roofline")
@click.argument("model", required=False)
@case_options
@click.option("--device", metavar="NAME", help="A device of hardware/, or a target: h100, tpu-v5p:2x2x4; needed.")
@click.option("--peak-type", metavar="TYPE", help="Instruction path of the products: tf32 for fp32 operands.")
@click.option("--peak-path", metavar="PATH", help="matrix or vector.  [default: matrix; vector for fp32]")
@click.option("--devices-per-node", type=WHOLE, metavar="N", help="Devices that share a node.")
@click.option("--inside-gbs", type=REAL, metavar="X", help="GB/s inside a node, one direction, one device.")
@click.option("--between-gbs", type=REAL, metavar="X", help="GB/s between nodes, one direction, one device.")
@click.option("--startup", type=REAL, metavar="S", help="Seconds before a collective's first byte.")
@click.option(
    "--overlap", metavar="F|AXIS=F,...",
    help="Share of communication that hides behind arithmetic, for all axes or each.",
)  # fmt: skip
@click.option("--batches", metavar="N,...", help="Also the regime at each of these batches, all else as it is.")
@click.option("--measured", type=REAL, metavar="S", help="A measured step time, to be held against the bounds.")
@click.option("--target", metavar="T", help="Compile for this TPU target and show the compiler's own estimate.")
@click.option(
    "--replay",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Take the compiler's estimate of --target from a record.",
)
@click.option("--clock-ghz", type=REAL, metavar="X", help="Clock of the compute units, to turn its cycles into a time.")
@click.option("--rows", is_flag=True, help="Every op and collective.")
@output_options(html=True)
def roofline(model: str | None, rows: bool, html: Path | None, as_json: bool, quiet: bool, **parameters: Any) -> int:
    """Rooflines of a step: intensity, ceilings, which resource bounds each op and scope, idealised step times.

    FLOPs and bytes are the ledgers', ceilings those printed for the device. Full overlap and the sum of all resources
    are idealisations; neither bounds a real program from above. Arithmetic only, unless --target compiles.
    Exit code 1 where --measured contradicts the bounds.

    \b
    Examples:
        jaxcost roofline llama-3.1-8b --phase training --batch 16 --seq 4096 --remat block --mesh fsdp=8 --device h100
        jaxcost roofline llama-3.1-8b --phase decode --batch 8 --past 32767 --device tpu-v5e --html roofline.html
    """
    check_writable(html, "--html")
    chosen = choose(model, parameters)
    if parameters["device"] is None:
        raise reject("--device", None, "no device is named", "write for example --device h100")
    if parameters["replay"] is not None and parameters["target"] is None:
        raise reject("--replay", str(parameters["replay"]), "a record is of a target", "name it with --target")
    from jaxcost.planning.machine import machine
    from jaxcost.planning.steptime import step_time
    from jaxcost.prediction.ledgers import assumptions
    from jaxcost.prediction.program import program

    case = chosen.case
    runs_on = machine(
        parameters["device"], case, peak_type=parameters["peak_type"], peak_path=parameters["peak_path"],
        devices_per_node=parameters["devices_per_node"], inside_gb_per_s=parameters["inside_gbs"],
        between_gb_per_s=parameters["between_gbs"], startup_seconds=parameters["startup"],
    )  # fmt: skip
    found = step_time(program(case), runs_on, _overlap(parameters["overlap"]))
    batches = [WHOLE.convert(part.strip(), None, None) for part in (parameters["batches"] or "").split(",")]
    regimes = _regimes(case, runs_on, batches) if parameters["batches"] is not None else []
    measured = None if parameters["measured"] is None else found.measured(parameters["measured"])
    data = document(
        "jaxcost.roofline.v1", case={**case.to_data(), "digest": case.digest}, **found.to_data(),
        regimes=regimes, measured=measured,
        compiler=_compiler(case, parameters["target"], parameters["replay"], parameters["clock_ghz"], quiet),
        assumptions=list(assumptions(case)),
    )  # fmt: skip
    if html is not None:
        from jaxcost.report.roofline_page import roofline_page

        write_file(html, roofline_page(data), "--html")
    if as_json:
        print_json(data)
    elif not quiet:
        from jaxcost.report.rooflines import show_roofline

        show_roofline(data, rows=rows)
    return 1 if measured is not None and measured["status"] == "inconsistent" else 0


def _regimes(case: Case, runs_on: Machine, batches: Sequence[Any]) -> list[dict[str, Any]]:
    from jaxcost.planning.regimes import regimes

    return [item.to_data() for item in regimes(case, runs_on, batches)]


def _overlap(text: str | None) -> Mapping[str, Any] | Any | None:
    """Return the declared overlap: a number, or one for each axis of `fsdp=0.9,tensor=0`."""
    if text is None:
        return None
    if "=" not in text:
        return REAL.convert(text, None, None)
    found: dict[str, Any] = {}
    for part in text.split(","):
        axis, _, value = (piece.strip() for piece in part.partition("="))
        if not axis or axis in found:
            raise reject("--overlap", part, "not AXIS=F, or an axis twice", "write for example --overlap fsdp=0.9")
        found[axis] = REAL.convert(value, None, None)
    return found


def _compiler(case: Case, target: str | None, replay: Path | None, clock_ghz: Any, quiet: bool) -> dict[str, Any]:
    """Return the compiler's estimate from a compile or a record; unknown where neither is asked for."""
    from jaxcost.planning.compiler_time import compiler_time, from_compile, nothing_compiled

    if target is None:
        return nothing_compiled()
    from jaxcost.observation.targets import parse_target

    found = parse_target(target, "--target")
    if replay is not None:
        from jaxcost.observation.record import find_record, read_record

        return compiler_time(read_record(find_record(replay, case.digest, found.text))).to_data()
    from jaxcost.observation.cycles import compiler_cycles
    from jaxcost.report.progress import progress

    with progress("compiling", quiet):
        answer = compiler_cycles(case, target)
    return from_compile(answer, found.family, clock_ghz).to_data()


COMMANDS = {"roofline": roofline}
