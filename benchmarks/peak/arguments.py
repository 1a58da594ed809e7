"""Argument bytes, exact on every target: drawn cases of models up to 1B over meshes, precisions and optimizers.

    python benchmarks/peak/arguments.py draw                 # writes arguments.txt from the seed
    python benchmarks/peak/arguments.py compile FOLDER       # compiles what FOLDER does not hold yet
    python benchmarks/peak/arguments.py table FOLDER         # writes results-arguments.json and prints the counts

The prediction folds the declared arrays (on TPU with the tiles that follow from shape and type); the observation sums
the allocations of the entry's parameters. The two share no code.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

from cases import key, lines, parsed

HERE = Path(__file__).parent
LIST, RESULTS = HERE / "arguments.txt", HERE / "results-arguments.json"
SEED, CASES = 20261129, 60
MODELS = ("qwen2.5-0.5b", "llama-3.2-1b", "qwen3-0.6b", "gpt2", "smollm-135m", "opt-350m")
MESHES = (
    "",
    "data=2",
    "fsdp=2",
    "fsdp=4",
    "tensor=2",
    "data=2,fsdp=2",
    "fsdp=2,tensor=2",
    "data=2,fsdp=2,tensor=2",
    "fsdp=8",
)
PRECISIONS = ("mixed", "bf16", "fp32", "bf16_master_adam")
OPTIMIZERS = ("adam", "adamw", "sgd", "momentum", "lion")
TPU = {1: "1x1", 2: "1x2", 4: "2x2", 8: "2x4"}


def draw() -> list[str]:
    """Return the drawn commands, each for the CPU, H100 and TPU v5e."""
    from jaxcost.contracts.errors import RejectedError

    rng, found = random.Random(SEED), []
    while len(found) < 3 * CASES:
        model, mesh, precision = rng.choice(MODELS), rng.choice(MESHES), rng.choice(PRECISIONS)
        optimizer = "adam" if precision.endswith("adam") else rng.choice(OPTIMIZERS)
        count = 1
        for part in filter(None, mesh.split(",")):
            count *= int(part.split("=")[1])
        words = (
            f"{model} --phase training --batch {8 * rng.choice((1, 2))} --seq {rng.choice((256, 512))} --remat block"
        )
        words += f" --precision {precision} --optimizer {optimizer}" + (f" --mesh {mesh}" if mesh else "")
        texts = [f"{words} --target {target}" for target in (f"cpu:{count}", f"h100:{count}", f"tpu-v5e:{TPU[count]}")]
        try:
            parsed(texts[0])
        except RejectedError:
            continue
        if texts[0] not in found:
            found += texts
    return found


def compile_all(folder: Path) -> None:
    """Compile what is missing: the CPU and H100 whole, TPU as far as its plan."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, kept in parts().items():
        path = folder / f"{name}.txt"
        path.write_text("\n".join(kept) + "\n", encoding="utf-8")
        script = "planned.py" if name == "tpu" else "cases.py"
        subprocess.run([sys.executable, str(HERE / script), str(path), str(folder)], check=True)


def parts() -> dict[str, list[str]]:
    """Return the drawn commands by what one process can compile: those for the CPU by their number of devices."""
    found: dict[str, list[str]] = {}
    for line in lines(LIST):
        target = line.rsplit(" ", 1)[1]
        name = "tpu" if target.startswith("tpu") else "h100" if target.startswith("h100") else target.replace(":", "-")
        found.setdefault(name, []).append(line)
    return found


def table(folder: Path) -> list[dict[str, Any]]:
    """Return a row per case that was compiled: predicted and observed argument bytes and their difference."""
    from jaxcost.observation.hlo import read_hlo
    from jaxcost.prediction.ledgers import predict
    from jaxcost.prediction.peak.tiles import tiled_arguments

    rows = []
    for command in lines(LIST):
        left = folder / f"{key(command)}.json"
        if not left.exists():
            continue
        about = json.loads(left.read_text(encoding="utf-8"))
        row = {"command": command, "status": about["status"], "reason": about.get("reason", "")}
        if about["status"] == "compiled":
            case, target = parsed(command)
            family = "tpu" if target.startswith("tpu") else "cuda" if target.startswith("h100") else "cpu"
            prediction = predict(case)
            logical = prediction.value("device.argument_bytes")
            padded = sum(item.padded for item in tiled_arguments(prediction.program)) if family == "tpu" else logical
            seen = read_hlo(
                left.with_suffix(".hlo").read_bytes(), platform=family, scopes=frozenset()
            ).memory.argument_bytes
            row |= {
                "family": family,
                "logical": logical,
                "predicted": padded,
                "observed": seen,
                "difference": seen - padded,
            }
            row["module_digest"] = about["module_digest"]
        rows.append(row)
    return rows


def main(words: list[str]) -> None:
    """Do one of the three jobs."""
    if words[:1] == ["draw"]:
        LIST.write_text(f"# seed {SEED}\n" + "\n".join(draw()) + "\n", encoding="utf-8")
    elif words[:1] == ["compile"]:
        compile_all(Path(words[1]))
    else:
        rows = table(Path(words[1]))
        RESULTS.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
        for family in ("cpu", "cuda", "tpu"):
            mine = [row for row in rows if row.get("family") == family]
            exact = sum(row["difference"] == 0 for row in mine)
            padding = sum(row["predicted"] > row["logical"] for row in mine)
            print(f"{family}: {exact} of {len(mine)} exact, {padding} with tile padding")
        print("not compiled:", [row["command"] for row in rows if row["status"] != "compiled"])


if __name__ == "__main__":
    main(sys.argv[1:])
