"""`estimate`: all ledgers of one case."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from jaxcost.cli.options import case_options, choose, output_options
from jaxcost.cli.output import check_writable, document, print_json, write_file
from jaxcost.contracts.case import Case
from jaxcost.contracts.errors import reject


@click.command("estimate")
@click.argument("model", required=False)
@case_options
@click.option(
    "--target",
    "targets",
    multiple=True,
    metavar="T",
    help="Also the live peak predicted for this target, and whether it fits; may be repeated. Nothing is compiled.",
)
@click.option("--rows", is_flag=True, help="Every row of every ledger, not only the totals.")
@output_options(html=True)
def estimate(
    model: str | None,
    targets: tuple[str, ...],
    rows: bool,
    html: Path | None,
    as_json: bool,
    quiet: bool,
    **parameters: Any,
) -> int:
    """All ledgers of one case, in exact integers. Arithmetic only: no jax is imported and nothing is compiled.

    Exit code 1 where an integer under [expected] does not come out, or a predicted peak exceeds 0.95 of a --target.

    \b
    Examples:
        jaxcost estimate llama-3.1-8b --phase training --batch 1 --seq 4096
        jaxcost estimate qwen2.5-0.5b --phase decode --past 32767 --json
        jaxcost estimate llama-3.1-8b --phase training --batch 16 --seq 4096 --remat block --mesh fsdp=8 --target h100
    """
    check_writable(html, "--html")
    chosen = choose(model, parameters)
    from jaxcost.prediction.ledgers import predict

    prediction = predict(chosen.case)
    body = estimate_body(chosen.case, prediction.to_dict())
    if targets:
        from jaxcost.planning.expected import expected_fit

        body["targets"] = [expected_fit(prediction, text) for text in targets]
    data = document("jaxcost.estimate.v1", **body)
    if html is not None:
        from jaxcost.report.page import estimate_page

        write_file(html, estimate_page(data), "--html")
    if as_json:
        print_json(data)
    elif not quiet:
        from jaxcost.report.tables import show_estimate

        show_estimate(data, rows=rows)
    too_large = any(entry["fits"]["0.95"] is False for entry in data.get("targets", ()))
    return int(too_large or any(entry["status"] != "exact" for entry in data.get("expected", ())))


def estimate_body(case: Case, prediction: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document of an estimate without its head: the case, the ledgers, assumptions, expected integers.

    Raises:
        RejectedError: an expected path names no total.
    """
    ledgers = prediction["ledgers"]
    body = {"case": {"digest": case.digest, **case.to_data()}, "ledgers": ledgers}
    body |= {key: value for key, value in prediction.items() if key not in ("case", "schema", "jaxcost", "ledgers")}
    if case.expected:
        body["expected"] = [_expected_row(path, value, ledgers) for path, value in case.expected.items()]
    return body


def _expected_row(path: str, expected: int, ledgers: Mapping[str, Any]) -> dict[str, Any]:
    node: Any = None
    ledger, _, rest = path.removeprefix("ledgers.").partition(".")
    if ledger in ledgers:
        node = ledgers[ledger]["totals"]
        for part in rest.removeprefix("totals.").split("."):
            node = node.get(part, _MISSING) if isinstance(node, dict) else _MISSING
    if node is _MISSING or isinstance(node, dict) or ledger not in ledgers:
        names = sorted(f"{name}.{total}" for name, table in ledgers.items() for total in table["totals"])
        raise reject(f"expected.{path}", expected, "not a total of a ledger", f"the totals are {', '.join(names)}")
    status = "unmeasured" if node is None else "exact" if node == expected else "open"
    return {"path": path, "expected": expected, "predicted": node, "status": status}


_MISSING = object()

COMMANDS = {"estimate": estimate}
