"""TPU cases compiled as far as their memory is planned.

    python benchmarks/peak/planned.py LIST FOLDER

The TPU compiler writes the module with its buffer assignment within seconds and then generates code for about a minute,
which plans no device memory. This waits for the module and ends the process. It leaves what `cases.py` leaves; the
module plans what that of a whole compile plans (live peak, required and argument bytes equal in six cases made both
ways), but a refusal, which comes later, is not seen: compare required bytes with the memory of the device instead.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from cases import key, lines, parsed

STAGE = "buffer assignment"
LIMIT_SECONDS = 300


def child(command: str, directory: str) -> None:
    """Compile one case with its dump in a directory; what the dump is named and compiled with is written beside."""
    from jaxcost.observation import private
    from jaxcost.observation.compiling import describe_environment, make_mesh
    from jaxcost.observation.targets import parse_target
    from jaxcost.reference.step import make_step

    case, text = parsed(command)
    target = parse_target(text)
    lowered = make_step(case, make_mesh(target, case.execution.mesh_sizes)).trace().lower()
    options = private.WITHOUT_REMATERIALISATION[target.family]
    about = describe_environment(target, options) | {"case_digest": case.digest, "name": private.module_name(lowered)}
    (Path(directory) / "about.json").write_text(json.dumps(about, default=str), encoding="utf-8")
    lowered.compile(compiler_options={**options, "xla_dump_to": directory, **private.DUMP_OPTIONS})


def planned(command: str, folder: Path) -> dict[str, Any]:
    """Compile one case as far as its plan, and return its JSON; the module is written beside."""
    from jaxcost.observation import private
    from jaxcost.observation.pool import worker_environment

    with tempfile.TemporaryDirectory(prefix="planned-") as directory:
        room = Path(directory)
        environment = worker_environment("tpu", 1, directory)
        environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), environment["PYTHONPATH"]])
        code = "import sys, planned; planned.child(*sys.argv[1:])"
        with (room / "errors").open("w") as errors:
            process = subprocess.Popen(
                [sys.executable, "-P", "-c", code, command, directory], env=environment, stderr=errors
            )
            about: dict[str, Any] = {}
            started = time.perf_counter()
            while process.poll() is None and time.perf_counter() - started < LIMIT_SECONDS:
                time.sleep(0.2)
                about = about or _about(room)
                # Dumped after the module that is read here, which is whole by then.
                if about and list(room.glob(f"*.{about['name']}.*_after_buffer_assignment.hlo.pb")):
                    break
            process.kill()
            process.wait()
        module = private.dumped_module(room, about["name"], "after_optimizations") if about else None
        if module is None:
            text = (room / "errors").read_text(encoding="utf-8", errors="replace").strip().rsplit("\n", 1)[-1]
            return {"command": command, "status": "failed", "reason": text[:600]}
        hlo = module.read_bytes()
    (folder / f"{key(command)}.hlo").write_bytes(hlo)
    return {
        "command": command,
        "case_digest": about["case_digest"],
        "status": "compiled",
        "stage": STAGE,
        "reason": "",
        "module_digest": hashlib.sha256(hlo).hexdigest(),
        "versions": about["versions"],
        "options": {name: str(value) for name, value in about["compiler_options"].items()},
    }


def _about(room: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads((room / "about.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found


def main(path: Path, folder: Path) -> None:
    """Compile the TPU cases of a list that the folder does not hold yet."""
    folder.mkdir(parents=True, exist_ok=True)
    for command in lines(path):
        left = folder / f"{key(command)}.json"
        if "--target tpu" not in command or left.exists():
            continue
        started = time.perf_counter()
        found = planned(command, folder)
        found["seconds"] = round(time.perf_counter() - started, 1)
        left.write_text(json.dumps(found, indent=1), encoding="utf-8")
        print(found["status"], found["seconds"], command, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
