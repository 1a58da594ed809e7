"""Bytes that a declared schedule moves across one memory boundary. Logical payloads, not transactions.

Attention, materialised: each stage reads its operands once and writes its result once; scores and probabilities are
written and read back. Blockwise: a query block stays on chip while all keys and values pass by, so K and V are read
once per query block; the output and one fp32 number a row are written once. All other contractions are isolated
one-pass products: both operands read once, the result written once.

`unfused_bytes` (every op reads its inputs and writes its outputs) and `compulsory_bytes` (arguments read once, results
written once) bound any schedule of the same ops.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any, NamedTuple

from jaxcost.contracts.dtypes import payload_bytes
from jaxcost.prediction.domain import exact_div, is_formula
from jaxcost.prediction.flops import contraction_flops
from jaxcost.prediction.ownership import Holding, arguments, results
from jaxcost.prediction.program import Contraction, Lookup, Op, Primitive, Program
from jaxcost.prediction.replay import declared
from jaxcost.prediction.rows import Ledger, Row

BOUNDARY = "device memory and chip"
CONVENTION = "logical payload between device memory and chip: "
# What each schedule takes for granted.
SCHEDULES = {
    "one pass": "both operands of an isolated product are read whole once, its result is written once",
    "materialised": "every stage reads its operands whole once and writes its result once",
    "blockwise": "a block stays on chip while all rows of the other side pass by, once for each block",
}
STATISTICS = "b k g s"  # the axes of one number a row
OMITTED = "cache hits, sectors, replays, padding, workspace"


class OnePass(NamedTuple):
    """An isolated product: its FLOPs, bytes with each operand and the result crossing once, and FLOPs per byte."""

    scope: str
    flops: Any
    bytes: Any
    intensity: Any
    layers: Any


def gemm_bytes(m: Any, k: Any, n: Any, x_dtype: str, w_dtype: str, y_dtype: str) -> Any:
    """Return b_x m k + b_w k n + b_y m n, the payload of one pass of an m x k by k x n product."""
    return payload_bytes(m * k, x_dtype) + payload_bytes(k * n, w_dtype) + payload_bytes(m * n, y_dtype)


def one_pass(program: Program) -> tuple[OnePass, ...]:
    """Return the one-pass payload and intensity of every forward contraction of one layer, pairwise ones included."""
    found = []
    for op in program.contractions:
        size = sum((_bytes(program, name) for name in (*op.inputs, *op.outputs)), 0)
        work = _divide(contraction_flops(program, op), op.repeat)
        found.append(OnePass(op.scope, work, size, _divide(work, size), op.repeat))
    return tuple(found)


def kv_input(program: Program, group: int = 0) -> dict[str, Any]:
    """Return one layer's pairwise FLOPs, its one-pass K/V input bytes, and their ratio.

    The ratio is 2 s / b x h / k: the context length cancels from it, and from neither of its terms.
    """
    ops = [op for op in program.contractions if program.is_pairwise(op) and op.group == group]
    work = sum((_divide(contraction_flops(program, op), op.repeat) for op in ops), 0)
    elements = program.sizes.product("b t k e", group)
    size = 2 * payload_bytes(elements, program.case.state.kv_dtype)
    return {"flops": work, "bytes": size, "intensity": _divide(work, size)}


def _divide(a: Any, b: Any) -> Any:
    if is_formula(a, b):
        return a / b
    ratio = Fraction(a, b)
    return ratio.numerator if ratio.denominator == 1 else ratio


def _dtype(program: Program, name: str) -> str:
    """Return the type in which a tensor moves: a weight's is that it is multiplied in."""
    return program.case.state.compute_dtype if program.is_weight(name) else program.tensors[name].dtype


def _bytes(program: Program, name: str) -> Any:
    """Return the bytes of one layer's copy of a tensor."""
    return payload_bytes(program.elements(program.tensors[name]), _dtype(program, name))


def product_rows(program: Program) -> list[Row]:
    """Return the rows of every product: the attention schedule, and one pass of each other product and its replay."""
    rows = attention_rows(program)
    rows += [row for op in program.contractions if not program.is_pairwise(op) for row in _gemm_rows(program, op)]
    replayed = [op for op in declared(program) if isinstance(op, Contraction) and not program.is_pairwise(op)]
    return rows + [_row(program, name, op, "replay", way) for op in replayed for name, way in _operands(op)]


def traffic(program: Program) -> Ledger:
    """Return the traffic ledger; `bytes` sums all its rows, `attention_bytes` the forward attention schedule."""
    rows = product_rows(program)

    def total(phase: str, schedule: str) -> Any:
        return sum((row.value for row in rows if row.phase == phase and row.fields["schedule"] == schedule), 0)

    plan, incoming = program.case.workload.attention, arguments(program)
    unfused = unfused_bytes(program, incoming)
    compulsory = sum(item.bytes for item in (*incoming, *results(program, incoming)))
    totals = {
        "attention_bytes": total("forward", plan),
        "attention_backward_bytes": total("backward", plan),
        "attention_replay_bytes": total("replay", plan),
        "gemm_one_pass_bytes": total("forward", "one pass"),
        "gemm_backward_bytes": total("backward", "one pass"),
        "gemm_replay_bytes": total("replay", "one pass"),
        "bytes": sum((row.value for row in rows), 0),
        "unfused_bytes": sum(unfused.values()),
        "unfused_by_phase": unfused,
        "compulsory_bytes": compulsory,
    }
    return Ledger("traffic", totals, tuple(rows))


def _row(
    program: Program,
    name: str,
    op: Op,
    phase: str,
    direction: str,
    schedule: str = "one pass",
    times: Any = 1,
    statistics: str = "",
    scope: str = "",
    gradient: str = "",
) -> Row:
    """Return the row of a tensor, of its gradient (`d NAME`), or of row statistics: fp32 over the axes given."""
    tensor = name.removeprefix("d ")
    axes, dtype = (statistics, "fp32") if statistics else (program.tensors[tensor].axes, _dtype(program, tensor))
    elements = program.sizes.product(axes, op.group)
    each = payload_bytes(elements, dtype) if statistics else _bytes(program, tensor)
    fields = {
        "direction": direction,
        "boundary": BOUNDARY,
        "axes": axes,
        "elements": elements,
        "dtype": dtype,
        "bytes": each,
        "multiplicity": times,
        "layers": op.repeat,
        "schedule": schedule,
    }
    if gradient:
        fields["gradient_of"] = gradient
    convention = CONVENTION + SCHEDULES.get(schedule, SCHEDULES["blockwise"])
    value = each * times * op.repeat
    return Row(name, scope or op.scope, phase, value, "bytes", fields, convention, OMITTED, region=op.region)


def _operands(op: Contraction) -> list[tuple[str, str]]:
    return [(op.inputs[0], "read"), (op.inputs[1], "read"), (op.outputs[0], "write")]


def _gemm_rows(program: Program, op: Contraction) -> list[Row]:
    """Return one-pass rows of a contraction: forward, and for each gradient its two operands and itself."""
    rows = [_row(program, name, op, "forward", way) for name, way in _operands(op)]
    left, right = op.inputs
    for operand in op.gradients:
        other = right if operand == left else left
        moves = ((f"d {op.outputs[0]}", "read"), (other, "read"), (f"d {operand}", "write"))
        rows += [_row(program, name, op, "backward", way, gradient=operand) for name, way in moves]
    return rows


def attention_rows(program: Program) -> list[Row]:
    """Return the rows of the declared attention schedule: forward, replay of it, backward."""
    rows: list[Row] = []
    again = {id(op) for op in declared(program)}
    materialised = program.case.workload.attention == "materialised"
    for scores in (op for op in program.contractions if op.name == "scores"):
        inside = [op for op in program.ops if op.segment == scores.segment]
        values = next(op for op in inside if isinstance(op, Contraction) and op.name == "values")
        steps = inside[inside.index(scores) : inside.index(values) + 1]
        for phase in ("forward", "replay"):
            chosen = steps if phase == "forward" else [op for op in steps if id(op) in again]
            if materialised:
                rows += [row for op in chosen for row in _stage_rows(program, op, phase)]
            elif chosen:
                rows += _blockwise_forward(program, scores, values, phase)
        if scores.gradients or values.gradients:
            rows += _stage_backward(program, steps) if materialised else _blockwise_backward(program, scores, values)
    return rows


def _stage_rows(program: Program, op: Op, phase: str) -> list[Row]:
    plan = program.case.workload.attention
    rows = [_row(program, name, op, phase, "read", plan) for name in op.inputs if name != "key"]
    return rows + [_row(program, name, op, phase, "write", plan) for name in op.outputs]


def _stage_backward(program: Program, steps: list[Op]) -> list[Row]:
    """Separate stages: two products each for values and scores, and the elementwise backward passes between them."""
    rows: list[Row] = []
    plan = program.case.workload.attention
    for op in reversed(steps):
        if isinstance(op, Contraction):
            rows += [
                replace(row, fields={**row.fields, "schedule": plan}, convention=CONVENTION + SCHEDULES[plan])
                for row in _gemm_rows(program, op)
                if row.phase == "backward"
            ]
        elif op.gradients:
            out = f"d {op.outputs[0]}"
            rows += [_row(program, name, op, "backward", "read", plan) for name in (out, *op.needs)]
            rows += [_row(program, f"d {name}", op, "backward", "write", plan) for name in op.gradients]
    return rows


def _blocks(program: Program, rows: Any) -> Any:
    work = program.case.workload
    return exact_div(rows, work.block_for(rows) if isinstance(rows, int) else work.attention_block)


def _blockwise_forward(program: Program, scores: Contraction, values: Contraction, phase: str) -> list[Row]:
    plan, blocks = program.case.workload.attention, _blocks(program, program.sizes.axis("s"))
    return [
        _row(program, scores.inputs[0], scores, phase, "read", plan),
        _row(program, scores.inputs[1], scores, phase, "read", plan, blocks),
        _row(program, values.inputs[1], values, phase, "read", plan, blocks),
        _row(program, values.outputs[0], values, phase, "write", plan),
        _row(
            program,
            "row statistics",
            scores,
            phase,
            "write",
            plan,
            1,
            STATISTICS,
            scores.scope.replace("/scores", "/softmax"),
        ),
    ]


def _blockwise_backward(program: Program, scores: Contraction, values: Contraction) -> list[Row]:
    """A key block stays on chip while all query blocks pass by: their rows and the accumulated dQ move each time."""
    plan, blocks = program.case.workload.attention, _blocks(program, program.sizes.axis("t"))
    q, k = scores.inputs
    v, o = values.inputs[1], values.outputs[0]
    softmax = scores.scope.replace("/scores", "/softmax")
    rows = [_row(program, item, values, "backward", "read", plan) for item in (o, f"d {o}")]
    rows.append(_row(program, "sum(do * o)", scores, "backward", "write", plan, 1, STATISTICS, softmax))
    rows += [_row(program, item, scores, "backward", "read", plan) for item in (k, v)]
    rows += [_row(program, item, scores, "backward", "read", plan, blocks) for item in (q, f"d {o}")]
    rows += [
        _row(program, item, scores, "backward", "read", plan, blocks, STATISTICS, softmax)
        for item in ("row statistics", "sum(do * o)")
    ]
    rows += [_row(program, f"d {q}", scores, "backward", way, plan, blocks) for way in ("read", "write")]
    rows += [_row(program, f"d {item}", op, "backward", "write", plan) for item, op in ((k, scores), (v, values))]
    return rows


def unfused_bytes(program: Program, incoming: tuple[Holding, ...]) -> dict[str, Any]:
    """Return, by phase, the bytes when every op reads its inputs from memory and writes its outputs to it.

    Backward reads the gradients of the outputs and what the op needs, and writes a gradient per input that needs one.
    A lookup reads as many rows as it writes. The optimizer reads gradients, parameters and its state and writes the
    latter two back. A carry moves nothing.
    """
    sums: dict[str, Any] = {}

    def move(phase: str, op: Op, names: tuple[str, ...]) -> None:
        size = sum((_moved(program, op, name) for name in names), 0)
        sums[phase] = sums.get(phase, 0) + size * op.repeat

    for op in program.ops:
        if isinstance(op, Primitive) and op.kind == "carry":
            continue
        move("forward", op, (*op.inputs, *op.outputs))
        if op.gradients:
            move("backward", op, (*(n for n in op.outputs), *op.needs, *op.gradients))
    for op in declared(program):
        move("replay", op, (*op.inputs, *op.outputs))
    if program.case.workload.phase == "training":
        kept = sum(item.bytes for item in incoming if item.role not in ("input", "parameter"))
        updated = sum(
            payload_bytes(program.elements(t), t.dtype) * t.repeat for t in program.unique_parameters if t.trainable
        )
        gradient = program.case.state.object("gradient")
        dtype = gradient.dtype if gradient else program.case.state.parameter_dtype
        read = sum(
            payload_bytes(program.elements(t), dtype) * t.repeat for t in program.unique_parameters if t.trainable
        )
        sums["optimizer"] = 2 * (kept + updated) + read
    return sums


def _moved(program: Program, op: Op, name: str) -> Any:
    if isinstance(op, Lookup) and program.tensors[name].role == "parameter":
        return payload_bytes(program.elements(program.tensors[op.outputs[0]]), program.tensors[name].dtype)
    return 0 if program.tensors[name].role == "onchip" else _bytes(program, name)
