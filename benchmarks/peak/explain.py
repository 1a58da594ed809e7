"""Names for the buffers of a moment: each is matched by its extents with an array that the case declares.

    python benchmarks/peak/explain.py FOLDER LIST [first] [last]     one compact paragraph a case

Used while policies were read; the predictions never see it. A buffer is `name:dtype` where its extents are those of a
declared array in some order (extents of 1 left out, a stack over the layers marked `*`), else its shape. Where two
arrays have the same extents the first name is shown.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from cases import key, parsed
from moments import stretches


def known(command: str) -> dict[tuple[int, ...], str]:
    """Return sorted extents -> name for the arrays a case declares on one device."""
    from jaxcost.prediction.program import program

    case, _ = parsed(command)
    p = program(case)
    sizes, run = p.device_microbatch_sizes, case.execution
    fsdp = run.degree("fsdp")
    found: dict[tuple[int, ...], str] = {}

    def put(name: str, *extents_: int) -> None:
        extents = tuple(sorted(n for n in extents_ if n != 1))
        if name not in found.setdefault(extents, name).split("|"):
            found[extents] += "|" + name

    layers = p.sizes.repeats[0]
    b, s, d, v = (sizes.axis(a) for a in "bsdv")
    h, k, g, e, f = (sizes.axis(a, 0) for a in "hkgef")
    t = sizes.axis("t")
    kinds: dict[str, list[tuple[int, ...]]] = {
        "A": [(b, h, s, t), (b * h, s, t), (b * k, s, t * g), (b, k, g, s, t), (b * h, s * t), (b, k, s, g * t)],
        "Tf": [(b, s, f), (b * s, f)],
        "Td": [(b, s, d), (b * s, d), (b, s, fsdp, d // fsdp), (b * fsdp, s, d // fsdp)],
        "q": [(b, s, h, e), (b * s, h * e), (b, s, k, g, e)],
        "kv": [(b, s, k, e), (b * s, k * e)],
        "LG": [(b, s, v), (b * s, v)],
    }
    block = case.workload.block_for(s)
    blocks = s // block
    kinds["q"] += [(blocks, b, block, k, g, e)]
    kinds["kv"] += [(blocks, b, block, k, e)]
    kinds["M"] = [(blocks, blocks, b, k, block, block, g)]
    kinds["blk"] = [(b * k, block, block * g), (b, block, k, g, block), (b * h, block, block)]
    for name, shapes in kinds.items():
        for shape in shapes:
            put(name, *shape)
            put(name + "*", layers, *shape)
    weights = {"Wgate": (d, f), "Wq": (d, h, e), "Wk": (d, k, e), "Wemb": (v, d)}
    for name, shape in weights.items():
        rest = 1
        for extent in shape[1:]:
            rest *= extent
        for mark, stack in (("", ()), ("*", (layers,))):
            if mark and name == "Wemb":
                continue
            put(f"{name}{mark}", *stack, *shape)
            put(f"{name}{mark}", *stack, shape[0], rest)
            if fsdp > 1:
                part = tuple(n // fsdp if n == d else n for n in shape)
                put(f"{name}/n{mark}", *stack, *part)
                put(f"{name}/n{mark}", *stack, fsdp, *part)
    return found


def named(shape: str, names: dict[tuple[int, ...], str]) -> str:
    """Return the name of a shape like `bf16[2,3]`."""
    match = re.match(r"(\w+)\[([\d,]*)\]", shape)
    if match is None:
        return shape
    extents = tuple(sorted(int(n) for n in match[2].split(",") if n and int(n) != 1))
    return f"{names[extents]}:{match[1]}" if extents in names else shape


def paragraph(folder: Path, command: str, share: float = 0.6, least: float = 0.004) -> str:
    """Return a compact account of one case."""
    name = key(command)
    seen = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    lines = [command]
    if not (folder / f"{name}.hlo").exists():
        return f"{command}\n  {seen['status']} {seen['reason'][:120]}"
    found, resident = stretches((folder / f"{name}.hlo").read_bytes())
    base = sum(size for size, _, _ in resident)
    top = max((s.bytes for s in found), default=0)
    names = known(command)
    lines.append(f"  live {base + top} resident {base} top {top}")
    for stretch in found:
        if stretch.bytes < share * top:
            continue
        rows: Counter[str] = Counter()
        rest = 0
        for size, shape, what, _ in stretch.live:
            label = ("~" if what.startswith("~") else "") + named(shape, names)
            if size < least * top:
                rest += size
            else:
                rows[label] += 1
        mark = "***" if stretch.bytes == top else "   "
        rows = Counter(dict(sorted(rows.items(), key=lambda row: row[0].startswith("~"))))
        text = " ".join(f"{count}x{label}" if count > 1 else label for label, count in rows.items())
        where = " ".join(word[:12] for word in stretch.name.split())
        lines.append(f"  {mark}{where:22} {stretch.bytes / 1e6:10.1f} @{_at(stretch)}: {text} (+{rest / 1e6:.1f})")
    return "\n".join(lines)


def _at(stretch: Any) -> str:
    ops = [op for _, _, what, op in stretch.live if what.split(" ", 1)[-1] == stretch.instruction]
    return stretch.instruction[:26] + ("[" + "/".join(ops[0].split("/")[-3:])[-44:] + "]" if ops else "")


if __name__ == "__main__":
    lines = [line for line in Path(sys.argv[2]).read_text(encoding="utf-8").splitlines() if line.strip()]
    first, last = (int(sys.argv[3]), int(sys.argv[4])) if len(sys.argv) > 4 else (1, len(lines))
    for line in lines[first - 1 : last]:
        if (Path(sys.argv[1]) / f"{key(line)}.json").exists():
            print(paragraph(Path(sys.argv[1]), line, *(float(word) for word in sys.argv[5:])))
