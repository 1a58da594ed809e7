"""What a recomputation policy keeps, what it declares to run again, and what of that nothing needs.

A policy says for each forward op whether the backward pass runs it again. Walking back from everything backward needs:
a needed tensor whose op is not replayed is saved; one whose op is replayed is rebuilt, and then the op's inputs are
needed in turn. The saved set and the replayed ops that are of use both come out of this walk; declared replay outside of
it is dead. Tensors that stay inside a blockwise kernel are always rebuilt, by the kernel's own backward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from jaxcost.prediction.program import Contraction, Op, Program

Policy = Callable[[Program, Op], bool]
PERSISTENT = ("parameter", "input")


def _nothing(program: Program, op: Op) -> bool:
    return False


def _layer(program: Program, op: Op) -> bool:
    return op.region == "block"


def _all(program: Program, op: Op) -> bool:
    return True


def _all_but_contractions(program: Program, op: Op) -> bool:
    return op.region == "block" and not isinstance(op, Contraction)


def _all_but_weight_products(program: Program, op: Op) -> bool:
    return op.region == "block" and not (isinstance(op, Contraction) and not op.batch_axes)


def _quadratic(program: Program, op: Op) -> bool:
    return any({"s", "t"} <= set(program.tensors[name].axes.split()) for name in op.outputs)


POLICIES: dict[str, Policy] = {
    "none": _nothing,
    "everything_saveable": _nothing,
    "attention": _all_but_weight_products,
    "dots_with_no_batch_dims_saveable": _all_but_weight_products,
    "dots_saveable": _all_but_contractions,
    "block": _layer,
    "nothing_saveable": _layer,
    "everything": _all,
    # Korthikanti et al. 2022, arXiv:2205.05198, section 5: drop what is quadratic in the sequence, keep the rest.
    "selective": _quadratic,
}


@dataclass(frozen=True)
class Walk:
    """The result of the walk: saved tensor names, ops replayed to some use, ops the blockwise kernel repeats."""

    saved: tuple[str, ...]
    useful: frozenset[int]
    kernel: frozenset[int]


def declared(program: Program, remat: str | None = None) -> tuple[Op, ...]:
    """Return the forward ops a policy runs again, in order; in training only."""
    if program.case.workload.phase != "training":
        return ()
    policy = POLICIES[remat or program.case.execution.remat]
    return tuple(op for op in program.ops if policy(program, op))


def walk(program: Program, remat: str | None = None) -> Walk:
    """Walk back from what backward needs under a policy (default: the case's)."""
    policy = POLICIES[remat or program.case.execution.remat]
    saved: dict[str, None] = {}
    useful: set[int] = set()
    kernel: set[int] = set()
    seen: set[str] = set()
    queue = [name for op in program.ops for name in op.needs]
    while queue:
        name = queue.pop()
        tensor = program.tensors[name]
        if name in seen or tensor.role in PERSISTENT:
            continue
        seen.add(name)
        op = program.producers[name]
        if tensor.role == "onchip":
            kernel.add(id(op))
            if policy(program, op):
                useful.add(id(op))
        elif policy(program, op):
            useful.add(id(op))
        else:
            saved[name] = None
            continue
        queue.extend(op.inputs)
    order = {name: index for index, name in enumerate(program.tensors)}
    return Walk(tuple(sorted(saved, key=order.__getitem__)), frozenset(useful), frozenset(kernel))


def kernel_repeats(program: Program) -> tuple[Op, ...]:
    """Return the ops whose on-chip results the blockwise backward pass computes again."""
    found = walk(program).kernel
    return tuple(op for op in program.ops if id(op) in found)
