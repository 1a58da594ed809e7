"""Cases of the peak study as command lines, and what compiling one leaves behind.

A case is the text that `jaxcost verify` takes, for example

    llama-3.2-1b --phase training --batch 8 --seq 2048 --remat block --mesh fsdp=8 --target h100:8

so that every row of every list here can be run by hand.

    python benchmarks/peak/cases.py LIST FOLDER [part of how many]

compiles what the folder does not hold yet. Each case leaves `KEY.json` and `KEY.hlo`, the module with its buffer
assignment. Only what a peak needs is done: the step is lowered and compiled as `observe` does it (XLA's own
rematerialisation off), and nothing is counted.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from jaxcost.contracts.case import Case

WHOLE = ("batch", "seq", "past", "accumulate", "attention_block", "vocabulary_multiple", "zero", "head_multiple")


def parsed(command: str) -> tuple[Case, str]:
    """Return the case and the target of a command line."""
    import jaxcost
    from jaxcost.contracts.case import build_case

    words = shlex.split(command)
    model, options = words[0], {}
    for name, value in zip(words[1::2], words[2::2], strict=True):
        key = name.removeprefix("--").replace("-", "_")
        if key == "mesh":
            options[key] = {axis: int(size) for axis, size in (part.split("=") for part in value.split(","))}
        elif key in WHOLE:
            options[key] = int(value)
        else:
            options[key] = value
    target = str(options.pop("target"))
    return build_case(jaxcost.load(model), options), target


def key(command: str) -> str:
    """Return the file name under which what a command left is kept."""
    return hashlib.sha256(command.encode()).hexdigest()[:16]


def lines(path: Path) -> list[str]:
    """Return the commands of a list; a line that begins with # is a comment."""
    return [line for line in path.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]


def compiled(command: str, folder: Path) -> dict[str, Any]:
    """Compile one case in this process and return its JSON; the module is written beside."""
    from jaxcost.observation.compiling import Refusal, compile_lowered, make_mesh
    from jaxcost.observation.targets import parse_target
    from jaxcost.reference.step import make_step

    case, text = parsed(command)
    target = parse_target(text)
    step = make_step(case, make_mesh(target, case.execution.mesh_sizes))
    found = compile_lowered(step.trace().lower(), target)
    hlo = found.modules.optimised
    if hlo:
        (folder / f"{key(command)}.hlo").write_bytes(hlo)
    return {
        "command": command,
        "case_digest": case.digest,
        "status": "refused" if isinstance(found, Refusal) else "compiled",
        "reason": found.text[:300] if isinstance(found, Refusal) else "",
        "module_digest": hashlib.sha256(hlo).hexdigest() if hlo else None,
        "versions": found.environment["versions"],
        "options": {name: str(value) for name, value in found.environment["compiler_options"].items()},
    }


def main(path: Path, folder: Path, part: int, parts: int) -> None:
    """Compile a part of a list in a child process that has the environment of a worker."""
    from jaxcost.observation.pool import worker_environment

    commands = lines(path)[part::parts]
    kind: Any = "tpu" if any("--target tpu" in command for command in commands) else "cuda"
    # A process has one number of CPU devices: a list of CPU cases is of one number.
    counts = {int(command.rsplit(":", 1)[1]) for command in commands if "--target cpu" in command}
    kind, devices = ("cpu", counts.pop()) if len(counts) == 1 else (kind, 1)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="peak-") as directory:
        environment = worker_environment(kind, devices, directory)
        environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), environment["PYTHONPATH"]])
        code = "import sys, cases; cases.child(*sys.argv[1:])"
        arguments = [sys.executable, "-P", "-c", code, str(path), str(folder), str(part), str(parts)]
        subprocess.run(arguments, env=environment, check=True)


def child(path: str, folder: str, part: str, parts: str) -> None:
    """Compile what is missing, one case after another."""
    room = Path(folder)
    for command in lines(Path(path))[int(part) :: int(parts)]:
        left = room / f"{key(command)}.json"
        if left.exists():
            continue
        started = time.perf_counter()
        try:
            found = compiled(command, room)
        except Exception as error:  # noqa: BLE001  one case that fails must not end the batch; it is recorded
            found = {"command": command, "status": "failed", "reason": f"{type(error).__name__}: {error}"[:600]}
        found["seconds"] = round(time.perf_counter() - started, 1)
        left.write_text(json.dumps(found, indent=1), encoding="utf-8")
        print(found["status"], found["seconds"], command, flush=True)


if __name__ == "__main__":
    place = [int(word) for word in sys.argv[3:5]] or [0, 1]
    main(Path(sys.argv[1]), Path(sys.argv[2]), *place)
