#!/usr/bin/env python
"""How fast is a compiled module read, and does a large one stay within its limits?

    python benchmarks/reading.py

A training step of a few unrolled transformer layers is compiled for the CPU and grown to 100,000 instructions, and to
50 MB of text: the same instructions, again and again, with a buffer assignment of the same size. Asked of it:

    graph    protobuf bytes to a graph that is checked and can be asked: at least 300,000 instructions a second
    made     the same, and every instruction of it made as an object, as an audit goes on to do: the same limit
    proto    100,000 instructions: everything that jaxcost reads in a module, in under 20 s and 4 GiB
    text     50 MB of HLO text: the same, XLA's own parser included
    audit    both files through `jaxcost audit FILE --json`, from its start to its end, worker included

Each runs in an interpreter of its own, so that its memory is its own. Seconds are of the processor: they are the same
on a busy machine, nearly; those of `audit` are of the processor too, of all its processes, and the notes have the
seconds of the clock. A ratio above one is a limit that is kept.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from measuring import Answer, fresh, run

QUESTION = "Large modules: how far are they from their limits (1 is the limit, more is better)?"
INSTRUCTIONS, TEXT_BYTES = 100_000, 50_000_000
PER_SECOND, SECONDS, BYTES = 300_000, 20.0, 4 << 30

_GRAPH = """
import gc, json, sys, time
from jaxcost.observation.hlo.module import not_collecting, read_module
from jaxcost.observation.hlo.schema import split
data, times = open(sys.argv[1], "rb").read(), []
for _ in range(int(sys.argv[2]) + 1):
    started = time.process_time()
    with not_collecting():
        module = read_module(split(data))
        count = module.size if sys.argv[3] == "graph" else sum(len(c.instructions) for c in module.computations)
    times.append(time.process_time() - started)
    del module
    gc.collect()
print(json.dumps({"seconds": times[1:], "instructions": count, "bytes": len(data)}))
"""
_WHOLE = """
import json, re, sys, time
started = time.process_time()
from jaxcost.observation.hlo import read_hlo
data = open(sys.argv[1], "rb").read()
if sys.argv[2] == "text":
    from jaxcost.observation.hlo.text import module_text
    from jaxcost.observation.private import proto_of_text
    data = proto_of_text(module_text(data))
reading = read_hlo(data, platform="cpu")
print(json.dumps({
    "seconds": time.process_time() - started, "flops": reading.flops.value, "unknowns": len(reading.unknowns),
    "peak": 1024 * int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1]),
}))
"""


_COMMAND = """
import json, re, resource, subprocess, sys, time
from pathlib import Path

def below(number):
    try:
        for task in Path(f"/proc/{number}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                yield child
                yield from below(child)
    except OSError:
        return

peaks, started = {}, time.perf_counter()
with open(sys.argv[2], "wb") as out:
    command = subprocess.Popen([sys.executable, "-m", "jaxcost", "audit", sys.argv[1], "--json"], stdout=out,
                               stderr=subprocess.DEVNULL)
    while command.poll() is None:
        for number in (command.pid, *below(command.pid)):
            try:
                found = re.search(r"VmHWM:\\s+(\\d+) kB", Path(f"/proc/{number}/status").read_text())
            except OSError:
                continue
            peaks[number] = max(peaks.get(number, 0), 1024 * int(found[1]) if found else 0)
        time.sleep(0.02)
took = time.perf_counter() - started
if command.returncode:
    sys.exit(f"jaxcost audit ended with {command.returncode}")
used = resource.getrusage(resource.RUSAGE_CHILDREN)
document = json.loads(Path(sys.argv[2]).read_text())
print(json.dumps({
    "seconds": used.ru_utime + used.ru_stime, "wall": took, "peak": max(peaks.values()), "processes": len(peaks),
    "instructions": document["program"]["instructions"], "flops": document["flops"]["total"],
}))
"""


def compiled(layers: int) -> bytes:
    """HloProto, buffer assignment included, of a training step of so many unrolled layers."""
    import jax
    import jax.numpy as jnp

    def layer(x: Any, p: Any) -> Any:
        q, k, v = (jnp.einsum("bsd,dhk->bshk", x, p[name]) for name in "qkv")
        weights = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k) / 4.0, axis=-1)
        x = x + jnp.einsum("bhqk,bkhd,hdo->bqo", weights, v, p["o"])
        normed = x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6)
        return x + jax.nn.silu(normed @ p["up"]) @ p["down"]

    def step(parameters: Any, x: Any, y: Any) -> Any:
        def loss(parameters: Any) -> Any:
            here = x
            for p in parameters:
                with jax.named_scope("layer"):
                    here = layer(here, p)
            return jnp.mean((here - y) ** 2)

        value, gradient = jax.value_and_grad(loss)(parameters)
        return jax.tree.map(lambda p, g: p - 0.1 * jnp.tanh(g), parameters, gradient), value

    def array(*dims: int) -> Any:
        return jax.ShapeDtypeStruct(dims, jnp.float32)

    one = {"q": array(64, 4, 16), "k": array(64, 4, 16), "v": array(64, 4, 16), "o": array(4, 16, 64),
           "up": array(64, 256), "down": array(256, 64)}  # fmt: skip
    lowered = jax.jit(step, donate_argnums=0).lower([one] * layers, array(2, 32, 64), array(2, 32, 64))
    with tempfile.TemporaryDirectory() as folder:
        lowered.compile(compiler_options={"xla_dump_to": folder, "xla_dump_hlo_as_proto": True})
        (path,) = Path(folder).glob("*after_optimizations.hlo.pb")
        return path.read_bytes()


def measure(options: argparse.Namespace) -> Answer:
    from growing import as_text, grown, instructions

    instructions_wanted, text_wanted = (5_000, 500_000) if options.smallest else (INSTRUCTIONS, TEXT_BYTES)
    small = compiled(2 if options.smallest else 4)
    large = grown(small, -(-instructions_wanted // instructions(small)))
    text = as_text(large)
    if len(text) < text_wanted:
        text = as_text(grown(small, -(-instructions_wanted * text_wanted // (len(text) * instructions(small)))))
    answer = Answer({"instructions": instructions(large), "proto_bytes": len(large), "text_bytes": len(text)})
    with tempfile.TemporaryDirectory() as folder:
        proto_path, text_path = Path(folder) / "large.hlo.pb", Path(folder) / "large.txt"
        proto_path.write_bytes(large)
        text_path.write_bytes(text)
        for name in ("graph", "made"):
            read = json.loads(fresh([sys.executable, "-c", _GRAPH, str(proto_path), str(options.repeat), name]))
            answer.seconds[name] = read["seconds"]
            rate, size = (read[what] / answer.median(name) for what in ("instructions", "bytes"))
            answer.ratios[f"{name}: instructions a second / limit"] = round(rate / PER_SECOND, 3)
            answer.notes.append(
                f"{name}: {rate:,.0f} instructions and {size:,.0f} bytes a second, the median of {options.repeat}"
            )
        for name, path in (("proto", proto_path), ("text", text_path)):
            found = [json.loads(fresh([sys.executable, "-c", _WHOLE, str(path), name])) for _ in range(options.repeat)]
            answer.seconds[name] = [one["seconds"] for one in found]
            peak = max(one["peak"] for one in found)
            answer.ratios[f"{name}: limit / seconds"] = round(SECONDS / answer.median(name), 3)
            answer.ratios[f"{name}: limit / peak memory"] = round(BYTES / peak, 3)
            answer.notes.append(f"{name}: {peak:,} bytes of memory at most, {found[0]['flops']} FLOPs counted")
        for name, path in (("audit of proto", proto_path), ("audit of text", text_path)):
            out = str(Path(folder) / "audit.json")
            found = [json.loads(fresh([sys.executable, "-c", _COMMAND, str(path), out])) for _ in range(options.repeat)]
            answer.seconds[name] = [one["seconds"] for one in found]
            peak, wall = max(one["peak"] for one in found), min(one["wall"] for one in found)
            answer.ratios[f"{name}: limit / seconds"] = round(SECONDS / answer.median(name), 3)
            answer.ratios[f"{name}: limit / peak memory"] = round(BYTES / peak, 3)
            answer.notes.append(
                f"{name}: {found[0]['instructions']:,} instructions, {wall:.1f} s by the clock at best, {peak:,} bytes "
                f"in the largest of {found[0]['processes']} processes, {found[0]['flops']} FLOPs counted"
            )
    return answer


if __name__ == "__main__":
    run(QUESTION, measure, argparse.ArgumentParser(description=__doc__,
                                                   formatter_class=argparse.RawDescriptionHelpFormatter))  # fmt: skip
