"""What the compiler made of the program, small enough to keep: what a later audit is compared with.

Nothing here is a cost. Counts of instructions, fusions, loops and kernels, the shapes that are multiplied, the layouts
of arguments: when a new compiler gives other costs, these say what it does differently. `program` is the other side:
what was asked for, before any compiler, so that a change of the program is not taken for one of the compiler.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from jaxcost.audits.evidence import Evidence, Notes
from jaxcost.observation.hlo.module import Instruction, Module
from jaxcost.observation.hlo.opcodes import HARMLESS_TARGETS

_LISTED = 200  # shapes and layouts kept one by one; a digest stands for all of them
_ARGUMENTS = 2000
# What tells two instructions of one opcode and shape apart, beside their operands.
_TOLD: Mapping[str, Callable[[Instruction], str]] = {
    "parameter": lambda at: str(at.number), "get-tuple-element": lambda at: str(at.number),
    "fusion": lambda at: at.proto.fusion_kind, "custom-call": lambda at: at.proto.custom_call_target,
}  # fmt: skip
_BODY = ("rows", "opaque", "kernels", "linear_algebra")
_NAMED = frozenset(["name", "scope", "phase", "source", "op_name", "line"])


def section(evidence: Evidence, notes: Notes) -> dict[str, Any]:
    """Return the fingerprint of the compiled module and of the program behind it.

    `contractions`: instructions by opcode, sizes and types; `merged` of them hold several products, `split` cut their
    contracted dimension. `strength_reduced`: products that became multiply and reduce. `rematerialised`: instructions
    of XLA's own recomputation. `arrays`: arrays that collectives of a kind move, more than their instructions where
    several were combined. `structure`: see there.
    """
    module, reading = evidence.graph.module, evidence.reading
    opcodes: Counter[str] = Counter()
    fusions: Counter[str] = Counter()
    kernels: Counter[str] = Counter()
    nested = 0
    for at in module.walk():
        opcodes[at.opcode] += 1
        if at.opcode == "fusion":
            fusions[at.proto.fusion_kind or "unknown"] += 1
            nested += at.computation.is_fusion
        elif at.opcode == "custom-call" and at.proto.custom_call_target not in HARMLESS_TARGETS:
            kernels[at.proto.custom_call_target] += 1
    products = reading.contractions
    shapes = Counter(
        f"{row.target or row.opcode} {row.lhs} x {row.rhs} -> {row.out}"
        + (f" split {row.split_k}" if row.split_k > 1 else "")
        for row in products.rows
    )
    trips = [loop.trips for loop in reading.loops]
    moves = Counter(row.kind for row in reading.collectives.rows)
    arrays: Counter[str] = Counter()
    for found in reading.collectives.rows:
        arrays[found.kind] += max(1, len(found.parts))
    layouts = {argument.path or f"argument {argument.number}": _layout(module.entry.parameters[argument.number])
               for argument in reading.arguments}  # fmt: skip
    return {
        "structure": structure(module),
        "instructions": sum(opcodes.values()),
        "opcodes": _sorted(opcodes),
        "fusions": {"count": sum(fusions.values()), "nested": nested, "by_kind": _sorted(fusions)},
        "contractions": {
            "count": len(products.rows), "merged": sum(1 for row in products.rows if len(row.shares) > 1),
            "split": sum(1 for row in products.rows if row.split_k > 1), "by_shape": _largest(shapes),
            "digest": _digest(_sorted(shapes)),
        },
        "strength_reduced": len(products.strength_reduced),
        "rematerialised": len(reading.xla_remat),
        "loops": {"count": len(reading.loops), "trips": sorted(n for n in trips if n is not None)},
        "collectives": {"instructions": _sorted(moves), "arrays": _sorted(arrays)},
        "layouts": {"arguments": dict(list(layouts.items())[:_LISTED]), "digest": _digest(layouts)},
        "copies": opcodes["copy"] + opcodes["copy-start"],
        "kernels": _sorted(kernels),
        "program": _program(evidence),
    }  # fmt: skip


def structure(module: Module) -> str:
    """Return a digest that one compiled program has in whatever form it is read: as a function, a proto or text.

    It covers opcodes, shapes, which values are operands of which, what is called, fused and targeted, and what is
    returned; no names, metadata, layouts, literals, schedule, or attributes such as contracted dimensions and groups.
    """
    table = module.table
    digests: list[bytes] = []  # of what is distinct, by number
    known: dict[tuple[Any, ...], int] = {}
    made: list[int] = []  # by the number of the instruction
    inside: list[bytes] = []  # by the position of the computation
    shapes = [str(shape) for shape in table.shape_of.values()]
    shape_of: list[int] = table.shape_numbers.tolist()
    operand_of: list[int] = table.operands.tolist()
    ends: list[int] = table.operand_ends.tolist()
    starts = table.starts.tolist()
    last = 0
    for computation, start, end, root in zip(module.computations, starts, starts[1:], table.roots, strict=False):
        for number in range(start, end):  # callees and operands come first
            opcode, shape, more = table.opcodes[number], shape_of[number], ""
            if opcode in _TOLD:
                more = _TOLD[opcode](computation.instructions[number - start])
            operands = tuple(map(made.__getitem__, operand_of[last : ends[number]]))
            last = ends[number]
            called = [inside[callee] for callee in table.called.get(number, ())]
            key = (opcode, shape, more, operands, *called)
            found = known.get(key)
            if found is None:
                found = known[key] = len(digests)
                head = f"{opcode}\0{shapes[shape]}\0{more}".encode()
                whole = b"".join((head, *map(digests.__getitem__, operands), *called))
                digests.append(hashlib.blake2b(whole, digest_size=16).digest())
            made.append(found)
        # What a computation returns, and all that it holds, in no order.
        held = sorted(map(digests.__getitem__, made[start:end]))
        inside.append(hashlib.blake2b(digests[made[root]] + b"".join(held), digest_size=16).digest())
    return inside[table.entry].hex()


def _program(evidence: Evidence) -> dict[str, Any]:
    """What was asked for: arguments, results, and the digest of what the jaxpr computes; None where that is unknown."""
    lowered = evidence.program.lowered
    if lowered is None:
        return {"arguments": None, "arguments_digest": None, "results": None, "jaxpr_digest": None, "operations": None,
                "reason": "only the compiled module is known"}  # fmt: skip
    arguments = [
        f"{a.path}: {a.dtype}[{','.join(map(str, a.shape))}]" + (" donated" if a.donated else "")
        + (f" {a.sharding}" if a.sharding else "")
        for a in lowered.arguments
    ]  # fmt: skip
    jaxpr = lowered.jaxpr
    return {
        "arguments": arguments[:_ARGUMENTS], "arguments_digest": _digest(arguments), "results": list(lowered.results),
        "jaxpr_digest": None if jaxpr is None else _digest(_unnamed(jaxpr)),
        "operations": None if jaxpr is None else dict(jaxpr.get("operations") or {}),
        "reason": "" if jaxpr is not None else "only a lowered stage was given",
    }  # fmt: skip


def _unnamed(jaxpr: Mapping[str, Any]) -> dict[str, Any]:
    """What the jaxpr computes, without names, scopes and lines: renaming a layer changes no cost."""
    rows = [
        json.dumps({key: value for key, value in row.items() if key not in _NAMED}, sort_keys=True, default=str)
        for name in _BODY
        for row in jaxpr.get(name) or ()
        if isinstance(row, Mapping)
    ]
    return {"flops": jaxpr.get("flops"), "rows": sorted(rows), "operations": jaxpr.get("operations")}


def _layout(parameter: Instruction) -> str:
    """`f32[8,128] {1,0:T(8,128)}`: the order of dimensions, minor first, and the first tile."""
    layout = parameter.proto.shape.layout
    order = ",".join(map(str, layout.minor_to_major))
    tile = ""
    if layout.tiles:
        tile = f":T({','.join(map(str, layout.tiles[0].dimensions))})"
    space = f" in space {layout.memory_space}" if layout.memory_space else ""
    return f"{parameter.shape} {{{order}{tile}}}{space}"


def _sorted(counts: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted(counts.items()))


def _largest(counts: Counter[str]) -> dict[str, int]:
    return _sorted(dict(sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:_LISTED]))


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, default=str, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
