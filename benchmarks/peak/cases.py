"""Cases of the peak study as command lines, and what compiling one leaves behind.

A case is the text that `jaxcost verify` takes, for example

    llama-3.2-1b --phase training --batch 8 --seq 2048 --remat block --mesh fsdp=8 --target h100:8

so that every row of every list here can be run by hand.
"""

from __future__ import annotations

import hashlib
import json
import shlex
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
    """Return the file name under which a command's observation is kept."""
    case, target = parsed(command)
    return hashlib.sha256(f"{case.digest} {target}".encode()).hexdigest()[:16]


def compile_into(commands: list[str], folder: Path, workers: int = 1, timeout_seconds: float = 900) -> None:
    """Compile what `folder` does not hold yet; each case leaves `KEY.json` and, where a module came out, `KEY.hlo`."""
    from jaxcost.observation.observe import TASK
    from jaxcost.observation.pool import Pool, WorkerFailure, request_for
    from jaxcost.observation.targets import parse_target

    folder.mkdir(parents=True, exist_ok=True)
    with Pool(size=workers) as pool:
        for number, command in enumerate(commands):
            case, text = parsed(command)
            name = key(command)
            if (folder / f"{name}.json").exists():
                continue
            target = parse_target(text)
            payload = {
                "case": case.to_data(), "target": target.text, "optimisation_level": None, "second_compile": False,
                "return_hlo": False, "keep_hlo": str(folder / f"{name}.hlo"),
            }  # fmt: skip
            request = request_for(target, TASK, payload, label=command, timeout_seconds=timeout_seconds)
            (reply,) = pool.map([request])
            found: dict[str, Any] = {"command": command, "case_digest": case.digest}
            if isinstance(reply, WorkerFailure):
                found |= {"status": "failed", "reason": reply.reason[:400]}
            else:
                seen = reply.value["observed"]
                found |= {
                    "status": seen["status"], "reason": seen["reason"][:400], "memory": _small(seen["memory"]),
                    "module_digest": seen["environment"]["module_digest"],
                    "versions": seen["environment"]["versions"],
                    "compile_seconds": seen["environment"]["compile_seconds"],
                }  # fmt: skip
            (folder / f"{name}.json").write_text(json.dumps(found, indent=1), encoding="utf-8")
            print(f"{number + 1}/{len(commands)} {found['status']} {command}", flush=True)


def _small(memory: dict[str, Any] | None) -> dict[str, Any] | None:
    return None if memory is None else {name: value for name, value in memory.items() if "bytes" in name}
