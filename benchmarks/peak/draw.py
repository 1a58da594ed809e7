"""The cases of the peak study, drawn by a seed.

    python benchmarks/peak/draw.py > benchmarks/peak/matrix-1.txt

The matrix was drawn and committed before any of it was compiled. It shares no case with the lists of development cases,
which the policies were read from; README.md says what was committed when.
"""

from __future__ import annotations

import random
from pathlib import Path

FOLDER = Path(__file__).parent
SEED = "jaxcost peak matrix 1"
DEVELOPMENT = ("development-cuda",)
TRAINED = ("qwen2.5-0.5b", "llama-3.2-1b", "llama-3.1-8b", "llama-3.1-70b")
TENSOR = {
    "qwen2.5-0.5b": (1, 2),
    "llama-3.2-1b": (1, 2, 4, 8),
    "llama-3.1-8b": (1, 2, 4, 8),
    "llama-3.1-70b": (1, 2, 4, 8),
}
# Devices that a model is spread over: the larger, the more.
DEVICES = {
    "qwen2.5-0.5b": (1, 2, 4, 8, 16),
    "llama-3.2-1b": (1, 2, 4, 8, 16, 32),
    "llama-3.1-8b": (1, 8, 16, 32, 64, 128),
    "llama-3.1-70b": (8, 32, 64, 128, 256, 512),
}
SPLITS = ("data", "fsdp", "tensor", "fsdp,tensor", "data,fsdp", "data,tensor", "data,fsdp,tensor")
LARGEST_SCORES = 3 * 2**30  # elements of one layer's scores on one device


def _mesh(chance: random.Random, model: str, devices: int) -> dict[str, int] | None:
    """Return mesh axes whose product is `devices`, of a split drawn among those that can hold it."""
    if devices == 1:
        return {}
    for _ in range(50):
        axes = chance.choice(SPLITS).split(",")
        rest, mesh = devices, {}
        if "tensor" in axes:
            degrees = [t for t in TENSOR[model] if t > 1 and rest % t == 0 and (len(axes) > 1 or t == rest)]
            if not degrees:
                continue
            mesh["tensor"] = chance.choice(degrees)
            rest //= mesh["tensor"]
        if "data" in axes and "fsdp" in axes:
            degrees = [n for n in (2, 4, 8, 16, 32, 64) if rest % n == 0 and rest // n > 1]
            if not degrees:
                continue
            mesh["data"] = chance.choice(degrees)
            mesh["fsdp"] = rest // mesh["data"]
        elif "data" in axes:
            mesh["data"] = rest
        elif "fsdp" in axes:
            mesh["fsdp"] = rest
        elif rest > 1:
            continue
        if all(size > 1 for size in mesh.values()) and mesh.get("fsdp", 1) <= 128:
            return {axis: mesh[axis] for axis in ("data", "fsdp", "tensor") if axis in mesh}
    return None


def _target(devices: int) -> str:
    return f"h100:{devices}" if devices <= 8 else f"h100:{devices // 8}x8"


def _command(model: str, options: dict[str, object], mesh: dict[str, int], target: str) -> str:
    words = [model, *(f"--{name} {value}" for name, value in options.items())]
    if mesh:
        words.append("--mesh " + ",".join(f"{axis}={size}" for axis, size in mesh.items()))
    return " ".join([*words, f"--target {target}"])


def training(
    chance: random.Random, layers: str = "scan", remats: tuple[str, ...] = ("none", "attention", "block")
) -> str:
    """Draw one training case for H100."""
    while True:
        model = chance.choice(TRAINED if layers == "scan" else TRAINED[:2])
        devices = chance.choice(DEVICES[model])
        mesh = _mesh(chance, model, devices)
        if mesh is None:
            continue
        heads = {"qwen2.5-0.5b": 14, "llama-3.2-1b": 32, "llama-3.1-8b": 32, "llama-3.1-70b": 64}[model]
        seq, local = chance.choice((1024, 2048, 4096, 8192)), chance.choice((1, 2, 3, 4, 8))
        attention = chance.choice(("blockwise", "materialised"))
        scores = local * heads // mesh.get("tensor", 1) * seq * seq
        if local * seq > 32768 or (attention == "materialised" and scores > LARGEST_SCORES):
            continue
        remat, precision = chance.choice(remats), chance.choice(("mixed", "mixed", "bf16"))
        options: dict[str, object] = {
            "phase": "training", "batch": local * mesh.get("data", 1) * mesh.get("fsdp", 1), "seq": seq,
            "remat": remat, "attention": attention, "precision": precision,
        }  # fmt: skip
        if layers == "unrolled":
            options["layers"] = layers
        return _command(model, options, mesh, _target(devices))


def serving(chance: random.Random, phase: str) -> str:
    """Draw one prefill or decode case for H100; batch 1 is drawn often."""
    while True:
        model = chance.choice(TRAINED)
        devices = chance.choice(tuple(n for n in DEVICES[model] if n <= 64))
        mesh = _mesh(chance, model, devices)
        if mesh is None:
            continue
        shards = mesh.get("data", 1) * mesh.get("fsdp", 1)
        local = chance.choice((1, 1, 2, 4, 8) if phase == "prefill" else (1, 1, 4, 16, 32))
        rows = chance.choice((512, 1024, 2048, 4096, 8192))
        attention = chance.choice(("blockwise", "materialised"))
        heads = {"qwen2.5-0.5b": 14, "llama-3.2-1b": 32, "llama-3.1-8b": 32, "llama-3.1-70b": 64}[model]
        scores = local * heads // mesh.get("tensor", 1) * rows * (rows if phase == "prefill" else 1)
        if attention == "materialised" and scores > LARGEST_SCORES:
            continue
        options: dict[str, object] = {"phase": phase, "batch": local * shards}
        options["seq" if phase == "prefill" else "past"] = rows if phase == "prefill" else rows - 1
        options |= {"attention": attention, "precision": "bf16_inference"}
        if chance.random() < 0.2 and model in TRAINED[:2]:
            options["layers"] = "unrolled"
        return _command(model, options, mesh, _target(devices))


# Slices of each number of devices, and bytes of one device's memory.
SLICES = {
    "v5e": ({1: "1x1", 4: "2x2", 8: "2x4", 16: "4x4", 32: "4x8", 64: "8x8"}, 16 * 2**30),
    "v5p": ({4: "2x2x1", 8: "2x2x2", 16: "2x2x4", 64: "4x4x4"}, 95 * 2**30),
}


def tpu(chance: random.Random, phase: str = "training") -> str:
    """Draw one case for TPU; its arguments and activations leave room, since the compiler refuses what does not fit."""
    from cases import parsed

    from jaxcost.prediction.liveness import program_peak
    from jaxcost.prediction.ownership import arguments
    from jaxcost.prediction.program import program

    while True:
        kind = chance.choice(tuple(SLICES))
        slices, memory = SLICES[kind]
        devices = chance.choice(tuple(slices))
        command = training(chance) if phase == "training" else serving(chance, phase)
        model, _, rest = command.partition(" ")
        mesh = _mesh(chance, model, devices)
        if mesh is None or "--layers" in rest:
            continue
        words = rest.split(" --mesh ")[0].split(" --target ")[0].split(" ")
        options: dict[str, object] = {n[2:]: v for n, v in zip(words[::2], words[1::2], strict=True)}
        local = chance.choice((1, 2, 4))
        options["batch"] = local * mesh.get("data", 1) * mesh.get("fsdp", 1)
        if phase == "training":
            options["seq"] = chance.choice((1024, 2048, 4096))
        found = _command(model, options, mesh, f"tpu-{kind}:{slices[devices]}")
        step = program(parsed(found)[0])
        held = sum(item.per_device for item in arguments(step)) + program_peak(step).bytes
        if held < 0.55 * memory:
            return found


def distinct(chance: random.Random, count: int, make: object, taken: set[str]) -> list[str]:
    """Return `count` commands that are not in `taken`, and add them to it."""
    found: list[str] = []
    while len(found) < count:
        command = make(chance)  # type: ignore[operator]
        if command not in taken:
            taken.add(command)
            found.append(command)
    return found


def listed(name: str) -> list[str]:
    """Return the commands of a committed list; a line that begins with # is a comment."""
    path = FOLDER / f"{name}.txt"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [line for line in lines if line and not line.startswith("#")]


def matrix() -> list[str]:
    """Draw the matrix: 88 cases for H100 and 27 for TPU, none of them a development case."""
    chance, taken = random.Random(SEED), {line for name in DEVELOPMENT for line in listed(name)}
    parts = (
        (46, training),
        (10, lambda c: training(c, "unrolled")),
        (16, lambda c: serving(c, "prefill")),
        (16, lambda c: serving(c, "decode")),
        (19, tpu),
        (4, lambda c: tpu(c, "prefill")),
        (4, lambda c: tpu(c, "decode")),
    )
    return [command for count, make in parts for command in distinct(chance, count, make, taken)]


if __name__ == "__main__":
    print("\n".join(matrix()))
