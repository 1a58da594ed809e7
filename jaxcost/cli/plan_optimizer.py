"""`plan optimizer`: the work of an optimizer that multiplies whole matrices, and who should own which."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from jaxcost.cli.options import WHOLE, output_options
from jaxcost.cli.output import document, print_json


@click.command("optimizer")
@click.argument("model")
@click.option("--ranks", type=WHOLE, required=True, metavar="N", help="Data-parallel ranks that own the matrices.")
@click.option(
    "--split",
    default="projection",
    metavar="stored|projection|head",
    show_default=True,
    help="What is one matrix: a stored array, a projection, or one head of it.",
)
@click.option("--iterations", type=WHOLE, default=5, metavar="K", show_default=True, help="Newton-Schulz iterations.")
@click.option(
    "--tensor",
    type=WHOLE,
    default=1,
    metavar="N",
    show_default=True,
    help="Ranks over which each matrix lies in pieces.",
)
@click.option(
    "--rate",
    type=float,
    default=None,
    metavar="FLOP/s",
    help="Achieved rate of one rank; without it times are unknown.",
)
@click.option(
    "--launch",
    type=float,
    default=None,
    metavar="SECONDS",
    help="Dispatch time of one kernel; without it times are unknown.",
)
@output_options()
def optimizer(
    model: str,
    ranks: int,
    split: Any,
    iterations: int,
    tensor: int,
    rate: float | None,
    launch: float | None,
    as_json: bool,
    quiet: bool,
) -> int:
    """Newton-Schulz work by matrix and product, ownership of whole matrices by cost and by size, launches.

    Matrices are those of the layers; token table, head, norms and biases are left to another optimizer and listed.

    \b
    Examples:
        jaxcost plan optimizer llama-3.1-8b --ranks 24
        jaxcost plan optimizer qwen3-0.6b --ranks 8 --split head --rate 3e14 --launch 5e-6 --json
    """  # fmt: skip
    from jaxcost.catalog import load
    from jaxcost.contracts.case import build_case
    from jaxcost.planning.optimizer_work import plan_optimizer

    architecture = load(model).architecture
    case = build_case(architecture, {"phase": "training", "seq": 1})
    found = plan_optimizer(
        case, ranks, split=split, iterations=iterations, tensor=tensor, rate_flops_per_s=rate, launch_seconds=launch
    )
    data = document("jaxcost.plan_optimizer.v1", model=architecture.name, what="optimizer", **found.to_data())
    if as_json:
        print_json(data)
    elif not quiet:
        _show(data)
    return 0


def _show(data: Mapping[str, Any]) -> None:
    """Print the matrices, the three partitions and what runs."""
    from jaxcost.report.console import console, table
    from jaxcost.report.numbers import about, exact
    from jaxcost.report.tables import line

    out = console()
    line(out, f"{data['model']}: {data['iterations']} Newton-Schulz iterations, split by {data['split']}", style="bold")
    made = table("matrix", "rows x columns", "copies", "FLOPs of one", "FLOPs of all", "about",
                 right=("rows x columns", "copies", "FLOPs of one", "FLOPs of all", "about"))  # fmt: skip
    for row in data["matrices"]:
        made.add_row(
            row["name"], f"{row['rows']:,} x {row['columns']:,}", exact(row["copies"]), exact(row["flops"]),
            exact(row["all_flops"]), about(row["all_flops"], "FLOPs"),
        )  # fmt: skip
    out.print(made)
    parts = ", ".join(f"{name} {about(value, 'FLOPs')}" for name, value in data["by_product"].items())
    line(out, f"products: {parts}; together {data['flops']:,} FLOPs")
    usual = " and ".join(data["usual_estimate_counts"])
    line(out, f"the usual estimate 4 K m^2 n counts {usual} alone: {data['usual_estimate_flops']:,} FLOPs")
    made = table("owners of whole matrices", "critical rank", "its FLOPs", "over the mean", "seconds",
                 right=("critical rank", "its FLOPs", "over the mean", "seconds"))  # fmt: skip
    for name in ("by_cost", "by_size", "by_offset"):
        owner, seconds = data[name], data["times"][f"products_{name}"]
        made.add_row(
            owner["rule"], exact(owner["critical_rank"]), exact(owner["critical_flops"]),
            f"{owner['balance']:.3f}", "unknown" if seconds is None else f"{seconds:.4g}",
        )  # fmt: skip
    out.print(made)
    line(out, f"no partition of whole matrices is below {data['least_critical_flops']:,} FLOPs on its critical rank")
    counted = data["launches"]
    line(
        out,
        f"{data['matrix_count']:,} matrices: {counted['one_by_one']:,} kernel launches one by one, "
        f"{counted['batched_by_shape']:,} with equal shapes batched; a captured graph is one dispatch",
    )
    if data["tensor"] > 1:
        moved = data["exchange"]
        line(out, f"made whole over {data['tensor']} tensor ranks: {moved['gathered_bytes']:,} bytes to the owners, as "
                  f"many back; the largest buffer {moved['buffer_bytes']:,} bytes")  # fmt: skip
    times = data["times"]
    if times["bound"]:
        line(out, f"dispatch takes {times['dispatch']:.4g} s a rank: bound by {times['bound']}")
    if "reason" in times:
        line(out, f"times unknown: {times['reason']}", style="yellow")
    line(out, f"left to another optimizer: {len(data['others'])} parameters. Not counted: {data['omitted']}")


COMMANDS = {"optimizer": optimizer}
