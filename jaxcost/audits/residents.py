"""What is in device memory that its author may not know of: pruned arguments, baked constants, padding, host buffers,
packed types, copies of loop state, arrays that are there twice; and what is live at the peak by class and line.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from jaxcost.audits.arguments import DEVICE_SPACE, HOST_SPACE, Bound, returned
from jaxcost.audits.evidence import Evidence, Notes
from jaxcost.observation.hlo.flow import Flow, Slot
from jaxcost.observation.hlo.memory import LiveBuffer
from jaxcost.observation.hlo.module import Instruction, Module
from jaxcost.observation.hlo.origins import source_of
from jaxcost.observation.sections import short_path

_SPACES = {0: "device", 1: "on chip", 2: "synchronisation flags", 4: "scalar memory", 5: "host", 6: "scalar memory"}
_LARGE = 1 << 20  # below a MiB a constant or a copy is no finding
_SMALL = 1024
_LISTED = 50
_NEIGHBOURS = 48
_HLO_DTYPES = {
    "float32": "f32", "float64": "f64", "float16": "f16", "bfloat16": "bf16", "bool": "pred", "int8": "s8",
    "int16": "s16", "int32": "s32", "int64": "s64", "uint8": "u8", "uint16": "u16", "uint32": "u32", "uint64": "u64",
    "int4": "s4", "uint4": "u4", "int2": "s2", "uint2": "u2", "complex64": "c64", "complex128": "c128",
}  # fmt: skip


def spaces(evidence: Evidence) -> list[dict[str, Any]]:
    """Return the bytes allocated in each memory of the device and its host."""
    assignment = evidence.graph.assignment
    sums: dict[int, int] = defaultdict(int)
    for allocation in assignment.buffer_allocations if assignment is not None else ():
        if not allocation.is_thread_local:
            sums[int(allocation.color)] += int(allocation.size)
    return [
        {"space": _SPACES.get(color, f"memory space {color}"), "color": color, "bytes": size}
        for color, size in sorted(sums.items())
    ]


def pruned(arguments: Iterable[Bound], unknown: str, notes: Notes) -> dict[str, Any]:
    """Return the arguments that the program does not take. The caller still holds them.

    `unknown`: why the arguments of the call are not known, '' where they are; then nothing tells what was pruned.
    """
    rows: list[dict[str, Any]] = [
        {"path": a.path, "shape": a.shape, "bytes": a.bytes, "sharding": a.given.sharding}
        for a in arguments
        if a.parameter is None and a.given is not None
    ]
    for row in rows[:20]:
        if row["bytes"] >= _LARGE:
            notes.find(
                "pruned", f"{row['path']} is not used: the program does not take it, and its {row['bytes']:,} bytes "
                "stay where the caller holds them", where=row["path"], bytes=row["bytes"],
            )  # fmt: skip
    return {
        "bytes": None if unknown else sum(row["bytes"] for row in rows), "count": None if unknown else len(rows),
        "arguments": rows[:_LISTED], "reason": unknown or None,
    }  # fmt: skip


# Constants --------------------------------------------------------------------------------------------------------


def constants(evidence: Evidence, notes: Notes) -> dict[str, Any]:
    """Return the arrays that are part of the program: captured by the function, or folded by the compiler.

    `copies` counts equal constants of the module; `captured` whether the function captured an array of these bytes.
    What it captured is null where nothing but a module, or a lowered stage, is known.
    """
    module, lowered = evidence.graph.module, evidence.program.lowered
    given = lowered.constants if lowered is not None and lowered.jaxpr is not None else None
    captured = Counter((_HLO_DTYPES.get(one.dtype, one.dtype), one.bytes) for one in given or ())
    made: list[tuple[Instruction, dict[str, Any]]] = []
    for at in module.walk():
        if at.opcode != "constant" or at.shape.bytes < _SMALL or at.shape.is_tuple:
            continue
        digest = hashlib.sha256(at.proto.literal.SerializeToString()).hexdigest()
        key = (at.shape.dtype, at.shape.logical_bytes)
        own = captured[key] > 0
        captured[key] -= own
        made.append((at, {
            "name": at.name, "shape": str(at.shape), "bytes": at.shape.bytes, "digest": digest[:16],
            "captured": own if given is not None else None,
        }))  # fmt: skip
    copies = Counter(row["digest"] for _, row in made)
    made.sort(key=lambda pair: -pair[1]["bytes"])
    rows = [
        {**row, "source": nearest_source(evidence, at), "copies": copies[row["digest"]]} for at, row in made[:_LISTED]
    ]
    for row in rows[:20]:
        if row["bytes"] >= _LARGE:
            whose = "captured by the function" if row["captured"] else "of the program"
            notes.find(
                "constant", f"a constant {row['shape']} {whose} is baked into the module: it is compiled with it and "
                "stays in device memory as long as the program is loaded", where=row["source"] or row["name"],
                bytes=row["bytes"],
            )  # fmt: skip
    absent = [{"dtype": dtype, "bytes": size, "count": count} for (dtype, size), count in captured.items() if count > 0]
    return {
        "bytes": evidence.reading.memory.constant_bytes, "rows": rows, "not_listed": len(made) - len(rows),
        "captured_bytes": None if given is None else sum(one.bytes for one in given),
        "captured_but_no_constant": None if given is None else absent,
    }  # fmt: skip


# Layouts ----------------------------------------------------------------------------------------------------------


def padding(evidence: Evidence, arguments: Iterable[Bound], notes: Notes) -> dict[str, Any]:
    """Return what tiles add to the elements. Padding belongs to the layout that the compiler chose, not to a shape."""
    rows: list[dict[str, Any]] = [
        {"what": kind, "name": name, "shape": str(shape), "logical_bytes": shape.logical_bytes, "bytes": shape.bytes}
        for kind, name, shape in (
            *(("argument", a.path, a.parameter.shape) for a in arguments if a.parameter is not None),
            *(("result", r.name, r.shape) for r in returned(evidence)),
        )
        if shape.bytes > shape.logical_bytes
    ]
    live = [b for b in evidence.reading.memory.live if b.kind == "temporary" and b.padding_bytes]
    rows += [
        {
            "what": "temporary", "name": b.value or b.instruction, "shape": b.shape, "logical_bytes": b.logical_bytes,
            "bytes": b.bytes,
        }
        for b in live
    ]  # fmt: skip
    rows.sort(key=lambda row: row["logical_bytes"] - row["bytes"])
    for row in rows[:10]:
        more = row["bytes"] - row["logical_bytes"]
        if more >= _LARGE and more * 8 >= row["logical_bytes"]:
            notes.find(
                "padding", f"{row['what']} {row['name']} {row['shape']} takes {row['bytes']:,} bytes for "
                f"{row['logical_bytes']:,} of elements: tiles pad its minor dimensions", where=row["name"], bytes=more,
            )  # fmt: skip
    known = evidence.reading.memory.live_peak_bytes is not None
    return {
        "at_peak_bytes": sum(b.padding_bytes for b in evidence.reading.memory.live) if known else None,
        "argument_bytes": sum(r["bytes"] - r["logical_bytes"] for r in rows if r["what"] == "argument"),
        "result_bytes": sum(r["bytes"] - r["logical_bytes"] for r in rows if r["what"] == "result"),
        "rows": rows[:_LISTED],
    }  # fmt: skip


def packing(evidence: Evidence, arguments: Iterable[Bound]) -> list[dict[str, Any]]:
    """Return the arrays of one byte and less an element: how many bits each element takes where it is stored."""
    narrow = ("s4", "u4", "s2", "u2", "s1", "u1", "f4", "f6", "f8", "pred")
    shapes = [
        *(("argument", a.path, a.parameter.shape) for a in arguments if a.parameter is not None),
        *(("result", r.name, r.shape) for r in returned(evidence)),
    ]
    return [
        {
            "what": what, "name": name, "shape": str(shape), "elements": shape.size, "bytes": shape.bytes,
            "bits_per_element": round(shape.bytes * 8 / shape.size, 3), "packed": shape.bytes < shape.size,
        }
        for what, name, shape in shapes
        if shape.dtype.startswith(narrow) and shape.size > 1
    ][:_LISTED]  # fmt: skip


def host(evidence: Evidence, arguments: Iterable[Bound], notes: Notes) -> dict[str, Any]:
    """Return what the program keeps in the host's memory: none of it is in the device's bytes. `bytes` is null where
    the module has temporaries there and no plan of its memory.

    An argument that the caller keeps on the host while the module takes it in device memory is a finding.
    """
    assignment, module = evidence.graph.assignment, evidence.graph.module
    rows: list[dict[str, Any]] = []
    if assignment is not None:
        buffers = {b.id: b for b in assignment.logical_buffers}
        for allocation in assignment.buffer_allocations:
            if allocation.color != HOST_SPACE:
                continue
            at = None
            if allocation.is_entry_computation_parameter:
                kind, at = "argument", module.entry.parameters.get(allocation.parameter_number)
            else:
                kind = "result" if allocation.maybe_live_out else "temporary"
                largest = max(allocation.assigned, key=lambda a: a.size, default=None)
                made = buffers.get(largest.logical_buffer_id) if largest is not None else None
                at = module.instructions.get(made.defined_at.instruction_id) if made is not None else None
            name = "" if at is None else at.op_name or at.name
            rows.append(
                {"what": kind, "name": name, "shape": "" if at is None else str(at.shape), "bytes": allocation.size}
            )
    else:
        rows = [
            {"what": "argument", "name": a.path, "shape": a.shape, "bytes": a.bytes}
            for a in arguments
            if a.parameter is not None and a.parameter.shape.memory_space == HOST_SPACE
        ]
        rows += [
            {"what": "result", "name": r.name, "shape": str(r.shape), "bytes": r.shape.bytes}
            for r in returned(evidence)
            if r.argument is None and r.shape.memory_space == HOST_SPACE
        ]
    for argument in arguments:
        at = argument.parameter
        asked = argument.given is not None and argument.given.sharding.endswith("_host")
        if asked and at is not None and at.shape.memory_space == DEVICE_SPACE and evidence.platform != "cpu":
            notes.find(
                "host", f"{argument.path} is given in host memory and the compiled module takes it in device memory",
                where=argument.path, bytes=argument.bytes,
            )  # fmt: skip
    transfers = sum(
        1
        for at in module.walk()
        if at.opcode in ("copy-start", "async-start")
        and {leaf.memory_space for leaf in at.shape.leaves()} >= {HOST_SPACE, DEVICE_SPACE}
    )
    planned = assignment is not None or not any(
        leaf.memory_space == HOST_SPACE
        for at in module.walk()
        if at.opcode not in ("parameter", "tuple") and at is not module.entry.root
        for leaf in at.shape.leaves()
    )
    size = sum(int(row["bytes"]) for row in rows) if planned else None
    return {"bytes": size, "rows": rows[:_LISTED], "transfers": transfers}


# Copies -----------------------------------------------------------------------------------------------------------


def loop_copies(evidence: Evidence, notes: Notes) -> list[dict[str, Any]]:
    """Return the copies of loop state that the compiler put in, outside a loop and in its body, with the reason.

    `executions` is how often one runs, `at_peak` whether its memory is in use at the fullest moment.
    """
    module, memory = evidence.graph.module, evidence.reading.memory
    live = {name for b in memory.live for name in (b.instruction, b.value)}
    loops = [at for at in module.walk() if at.opcode == "while"]
    if not loops:
        return []
    flow: Flow | None = None
    times = evidence.graph.executions.counts()
    rows: list[dict[str, Any]] = []
    for loop in loops:
        body, state = loop.called[0], loop.operands[0]
        for where, root in (("before", state), ("inside", body.root)):
            if root.opcode != "tuple":
                continue
            for position, operand in enumerate(root.operands):
                copy = copied_by(operand)
                if copy is None or operand.shape.bytes < _SMALL:
                    continue
                flow = flow or Flow(module)
                if flow.change(Slot(loop, position))[0] == "kept":
                    continue
                rows.append({
                    "instruction": operand.name, "loop": loop.name, "where": where, "position": position,
                    "shape": str(operand.shape), "bytes": operand.shape.bytes,
                    "executions": times[operand.computation.id].value,
                    "at_peak": operand.name in live if memory.live_peak_bytes is not None else None,
                    "why": _why(module, copy, where), "source": nearest_source(evidence, operand),
                })  # fmt: skip
    rows.sort(key=lambda row: -row["bytes"])
    by_loop: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        by_loop[row["loop"]].append(row)
    for loop_name, found in by_loop.items():
        size = sum(row["bytes"] for row in found)
        if size >= _LARGE:
            why = found[0]["why"]
            text = f"{len(found):,} copies of the state of {loop_name}, {size:,} bytes; the largest because {why}"
            notes.find("loop_copy", text, where=found[0]["source"] or loop_name, bytes=size)
    return rows[:_LISTED]


def copied_by(at: Instruction) -> Instruction | None:
    """What an instruction copies, where it does nothing else and stays in its memory space."""
    if at.opcode == "copy-done":
        at = at.operands[0]
    if at.opcode in ("copy", "copy-start"):
        source = at.operands[0]
        spaces = {leaf.memory_space for leaf in (*at.shape.leaves(), *source.shape.leaves()) if leaf.size > 1}
        return source if len(spaces) == 1 else None
    if at.opcode == "fusion" and len(at.operands) == 1:
        inner = {i.opcode for i in at.called[0].instructions}
        return at.operands[0] if "copy" in inner and inner <= {"parameter", "copy", "bitcast"} else None
    return None


def _why(module: Module, source: Instruction, where: str) -> str:
    origin = source_of(source)
    if where == "inside":
        return "the next value cannot be written where the old one lies: that is still read"
    if origin.opcode == "parameter" and origin.computation is module.entry:
        given = {e.parameter_number for e in module.proto.input_output_alias.entries}
        name = origin.op_name or origin.name
        if origin.proto.parameter_number not in given:
            return f"the loop writes into its state, and argument {name} is not donated"
        return f"the loop writes into its state, and argument {name} is needed elsewhere"
    if len(source.users) > 1:
        return "one value starts several elements of the state, or is read again later"
    return "the loop writes into its state, and what it starts from must stay"


def twice(evidence: Evidence, arguments: Iterable[Bound], notes: Notes) -> list[dict[str, Any]]:
    """Return results that are an argument unchanged and have memory of their own."""
    root, rows = evidence.graph.module.entry.root, []
    names = {a.number: a.path for a in arguments if a.number is not None}
    for result in returned(evidence):
        at = root
        for i in result.index if root.opcode == "tuple" else ():
            at = at.operands[i] if at.opcode == "tuple" else at
        source = source_of(at)
        same = (source.shape.dtype, source.shape.dims) == (result.shape.dtype, result.shape.dims)
        if source.opcode != "parameter" or source.computation is not root.computation or not same:
            continue
        if result.argument == source.proto.parameter_number or result.shape.bytes < _SMALL:
            continue
        path = names.get(source.proto.parameter_number, source.name)
        rows.append({"path": path, "result": list(result.index), "bytes": result.shape.bytes})
        if result.shape.bytes >= _LARGE:
            text = f"result {result.name} is {path} unchanged, in memory of its own"
            notes.find("twice", text, where=path, bytes=result.shape.bytes)
    return rows[:_LISTED]


# The peak ---------------------------------------------------------------------------------------------------------


def by_class(live: Iterable[LiveBuffer]) -> list[dict[str, Any]]:
    """Return what is live at the peak by class; sums to the live peak."""
    sums: dict[str, list[int]] = {}
    for b in live:
        row = sums.setdefault(b.class_, [0, 0, 0])
        row[0], row[1], row[2] = row[0] + b.bytes, row[1] + 1, row[2] + (0 if b.sure else b.bytes)
    return [
        {"class": name, "bytes": size, "buffers": count, "unsure_bytes": unsure}
        for name, (size, count, unsure) in sorted(sums.items(), key=lambda item: -item[1][0])
    ]


def by_source(evidence: Evidence, live: Iterable[LiveBuffer]) -> list[dict[str, Any]]:
    """Return what is live at the peak by the line of the user's code that made it; sums to the live peak.

    Arguments, and constants without a line, have rows of their own. `inferred_bytes` is the part of a row whose line is
    that of the nearest instruction for which the compiler kept one.
    """
    module = evidence.graph.module
    wanted = {name for b in live for name in (b.value, b.instruction)}
    at_name = {at.name: at for at in module.walk() if at.name in wanted}
    sums: dict[tuple[str, str], list[Any]] = {}
    for b in live:
        source, inferred = buffer_source(evidence, at_name, b), False
        if not source and b.kind not in ("parameter", "constant"):
            at = at_name.get(b.value or b.instruction)
            source = nearest_source(evidence, at) if at is not None else ""
            inferred = bool(source)
        kind = "argument" if b.kind == "parameter" else "constant" if b.kind == "constant" and not source else "line"
        row = sums.setdefault((kind, source), [0, 0, 0, 0, ""])
        row[0], row[1], row[2] = row[0] + b.bytes, row[1] + 1, row[2] + (b.bytes if inferred else 0)
        if b.bytes > row[3]:
            row[3], row[4] = b.bytes, b.value or b.instruction
    return [
        {
            "kind": kind if source or kind != "line" else "unknown", "source": source or None, "bytes": row[0],
            "buffers": row[1], "inferred_bytes": row[2], "largest": row[4],
        }
        for (kind, source), row in sorted(sums.items(), key=lambda item: -item[1][0])
    ]  # fmt: skip


def buffer_source(evidence: Evidence, at_name: Mapping[str, Instruction], buffer: LiveBuffer) -> str:
    """Return the user's line behind a buffer that has a line: that of its value or of what defines its memory."""
    for name in (buffer.value, buffer.instruction) if buffer.source else ():
        at = at_name.get(name)
        if at is not None and evidence.graph.module.source(at) == buffer.source:
            return evidence.user_source(at)
    return short_path(buffer.source)


def nearest_source(evidence: Evidence, at: Instruction) -> str:
    """Return the user's line of an instruction, or that of the nearest one around it that has one; '' without."""
    seen, front = {at.id}, [at]
    while front and len(seen) < _NEIGHBOURS:
        ahead: list[Instruction] = []
        for here in front:
            found = evidence.user_source(here)
            if found:
                return found
            near = [*here.users[:_NEIGHBOURS], *here.operands[:_NEIGHBOURS]]
            if here.opcode in ("fusion", "call", "async-start") and here.called:
                near.append(here.called[0].root)
            for other in near:
                if other.id not in seen and other.opcode not in ("tuple", "parameter", "while"):
                    seen.add(other.id)
                    ahead.append(other)
        front = ahead
    return ""
