"""`measure`: one step of a case, run on the devices of this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from jaxcost.cli.options import WHOLE, case_options, choose, output_options
from jaxcost.cli.output import check_writable, document, print_json, write_file


@click.command("measure")
@click.argument("model", required=False)
@case_options
@click.option(
    "--devices",
    default="present",
    metavar="present|cpu",
    show_default=True,
    help="The devices that jax finds here, or virtual CPU devices, as many as the mesh has.",
)
@click.option("--samples", type=WHOLE, default=20, metavar="N", show_default=True, help="Steps timed one by one.")
@click.option("--warmup", type=WHOLE, default=3, metavar="N", show_default=True, help="Steps before the first sample.")
@click.option(
    "--window",
    type=WHOLE,
    default=10,
    metavar="N",
    show_default=True,
    help="Steps dispatched without waiting and timed together.",
)
@click.option(
    "--timeout", type=WHOLE, default=1800, metavar="SECONDS", show_default=True, help="After which the run is stopped."
)
@click.option(
    "--peak-of",
    metavar="DEVICE",
    default=None,
    help="The device of hardware/ whose peak utilisation is of.  [default: the one that runs]",
)
@click.option(
    "--record",
    type=click.Path(path_type=Path),
    default=None,
    metavar="FILE",
    help="Write a bundle for `verify --observation`, the raw samples beside it.",
)
@output_options()
def measure(
    model: str | None,
    devices: str,
    samples: int,
    warmup: int,
    window: int,
    timeout: int,
    peak_of: str | None,
    record: Path | None,
    as_json: bool,
    quiet: bool,
    **parameters: Any,
) -> int:
    """Run the step of a case on the devices present: time, memory by each instrument, utilisation, reconciled.

    Weights and tokens are random. The step is the reference network's, compiled with XLA's defaults; the environment's
    flags act, and are reported. Exit code 1 where a measured number contradicts its prediction or a utilisation
    stands above 100 %, 3 where the run ends without a result.

    \b
    Examples:
        jaxcost measure qwen2.5-0.5b --phase decode --past 255
        jaxcost measure toy-tied --phase training --batch 8 --seq 16 --mesh fsdp=2 --devices cpu --samples 50
        jaxcost measure llama-3.1-8b --phase training --batch 8 --seq 4096 --mesh fsdp=8 --remat block --json
    """  # fmt: skip
    check_writable(record, "--record")
    chosen = choose(model, parameters)
    from jaxcost.observation.measure import measure_case, require_timeout
    from jaxcost.planning.hardware import device
    from jaxcost.planning.measured import is_inconsistent, join_measurement
    from jaxcost.prediction.ledgers import predict
    from jaxcost.report.progress import progress

    if peak_of is not None:
        device(peak_of)
    seconds = require_timeout(timeout)
    with progress(f"compiling and running {chosen.manifest.architecture.name}", quiet):
        measured = measure_case(
            chosen.case, devices, warmup=warmup, samples=samples, window=window, timeout_seconds=seconds
        )
    joined = join_measurement(predict(chosen.case), measured, peak_of)
    bundle = joined.pop("bundle")
    data = document(
        "jaxcost.measure.v1",
        model=chosen.manifest.architecture.name,
        case={"digest": chosen.case.digest, **chosen.case.to_data()},
        evidence_class="locally_measured",
        **{name: measured[name] for name in ("hardware", "framework", "backend", "flags", "compile_seconds")},
        **joined,
        raw={**measured["raw"], "digest": measured["raw_digest"]},
    )
    if record is not None:
        samples_file = record.with_name(record.stem + ".samples.json")
        check_writable(samples_file, "--record")
        bundle["artefacts"] = [samples_file.name, *bundle["artefacts"]]
        write_file(samples_file, json.dumps(measured, indent=1) + "\n", "--record")
        write_file(record, json.dumps(bundle, indent=1) + "\n", "--record")
    if as_json:
        print_json(data)
    elif not quiet:
        from jaxcost.report.measured import show_measured

        show_measured(data)
    return int(is_inconsistent(data))


COMMANDS = {"measure": measure}
