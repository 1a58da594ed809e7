"""What a recomputation policy keeps, what it declares to run again, and what of that nothing needs.

A policy says for each forward op whether the backward pass runs it again. Walking back from everything backward
needs: a needed tensor whose op is not replayed is saved; one whose op is replayed is rebuilt, and then the op's
inputs are needed in turn. The saved set and the replayed ops that are of use both come out of this walk; declared
replay outside of it is dead. Tensors that stay inside a blockwise kernel are always rebuilt, by the kernel's own
backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from jaxcost.contracts.execution import SAVEABLE_NAMES
from jaxcost.contracts.kernels import KERNEL_FAMILIES
from jaxcost.prediction.program import Contraction, Op, Program

Policy = Callable[[Program, Op], bool]
PERSISTENT = ("parameter", "view", "input")


def _nothing(program: Program, op: Op) -> bool:
    return False


def _layer(program: Program, op: Op) -> bool:
    return op.region == "block"


def _all(program: Program, op: Op) -> bool:
    return True


def _all_but_contractions(program: Program, op: Op) -> bool:
    return op.region == "block" and (not isinstance(op, Contraction) or _in_library_kernel(program, op))


def _all_but_weight_products(program: Program, op: Op) -> bool:
    return op.region == "block" and not (isinstance(op, Contraction) and not op.batch_axes)


def _on_chip(program: Program, op: Op) -> bool:
    return any(program.tensors[name].role == "onchip" for name in (*op.inputs, *op.outputs))


def _in_library_kernel(program: Program, op: Op) -> bool:
    """Whether a policy that looks for dots finds none, because a library's kernel does the product."""
    return program.case.workload.attention in KERNEL_FAMILIES and _on_chip(program, op)


def _quadratic(program: Program, op: Op) -> bool:
    return any({"s", "t"} <= set(program.tensors[name].axes.split()) for name in op.outputs)


def kept_by_name(names: Collection[str]) -> Policy:
    """Return the policy that keeps the tensors of these names (`SAVEABLE_NAMES`) of a layer and runs the rest again.

    To keep `context` of a blockwise kernel is to keep its row statistics too, and then nothing of the kernel runs again
    but in its own backward pass.
    """

    def policy(program: Program, op: Op) -> bool:
        if op.region != "block":
            return False
        kernel = _on_chip(program, op)
        if kernel:
            return "context" not in names
        return not any(saveable_name(program, name) in names for name in op.outputs)

    return policy


def saveable_name(program: Program, tensor: str) -> str:
    """Return the name by which a policy keeps a tensor, empty where it has none.

    A projection's is that of its last value, with the bias where it has one.
    """
    op = program.producers[tensor]
    part, leaf = tensor.split("#")[0].rsplit("/", 1)
    component = part.rsplit("/", 1)[-1]
    if op.region != "block":
        return ""
    if leaf == "row_statistics":
        return "context"
    if component == "rotary":
        return f"{leaf}_rotary"
    if component in _TENSORS:
        return _TENSORS[component] if leaf in ("out", "biased") else ""
    if component == "residual":
        return "attn_residual" if leaf == "mid" else ""
    if leaf == "out" and f"{part}/biased" + tensor[len(f"{part}/{leaf}") :] in program.tensors:
        return ""
    return component if component in SAVEABLE_NAMES and leaf in ("out", "biased") else ""


# Components whose output has another name.
_TENSORS = {"softmax": "probabilities", "values": "context"}


def _named(program: Program, op: Op) -> bool:
    return kept_by_name(program.case.execution.remat_names)(program, op)


POLICIES: dict[str, Policy] = {
    "none": _nothing,
    "everything_saveable": _nothing,
    "attention": _all_but_weight_products,
    "dots_with_no_batch_dims_saveable": _all_but_weight_products,
    "dots_saveable": _all_but_contractions,
    "block": _layer,
    "nothing_saveable": _layer,
    "everything": _all,
    "save_only_these_names": _named,
    # What is kept rests in host memory; the same ops run again.
    "save_and_offload_only_these_names": _named,
    # Korthikanti et al. 2022, arXiv:2205.05198, section 5: drop what is quadratic in the sequence, keep the rest.
    "selective": _quadratic,
}


class Saved(NamedTuple):
    """One tensor kept for the backward pass: `copies` layers' worth, needed in `region` (`block` or `outside`).

    `needed_by` names what uses it, in the order of the backward pass: the gradients that a product makes of it, the
    backward pass of other ops, and the ops that run again from it.
    """

    name: str
    copies: Any
    region: str
    needed_by: tuple[str, ...] = ()


class Walk(NamedTuple):
    """The result of a walk: what is saved, which ops are replayed to some use, which ops a blockwise kernel repeats."""

    saved: tuple[Saved, ...]
    useful: tuple[Op, ...]
    kernel: tuple[Op, ...]


def declared(program: Program, remat: str | None = None) -> tuple[Op, ...]:
    """Return the forward ops a policy runs again, in order; in training only.

    A layer without a backward pass (frozen, and nothing trainable below it) is not replayed.
    """
    if program.case.workload.phase != "training":
        return ()
    name = remat or program.case.execution.remat
    policy, whole = POLICIES[name], name == "everything"
    differentiated = {op.segment for op in program.ops if op.gradients}
    return tuple(op for op in program.ops if policy(program, op) and (whole or op.segment in differentiated))


def walk(program: Program, remat: str | None = None, policy: Policy | None = None) -> Walk:
    """Walk back from what backward needs under a policy: by its name, itself, or by default the case's.

    A checkpoint drops what is inside it and keeps what leaves it: a tensor needed outside of the layer that makes it is
    saved, of the last layer only. With `everything` the whole forward pass is one checkpoint.
    """
    remat = remat or program.case.execution.remat
    whole = policy is None and remat == "everything"
    policy = policy or POLICIES[remat]
    saved: dict[tuple[str, str], Saved] = {}
    useful: set[int] = set()
    kernel: set[int] = set()
    seen: set[tuple[str, str, bool]] = set()
    # (tensor, segment that wants it) to the uses it is wanted for, with the place of each in the backward pass
    uses: dict[tuple[str, str], dict[tuple[int, int, str], None]] = {}
    place = {id(op): index for index, op in enumerate(program.ops)}
    # (tensor, segment that wants it, wanted by a backward pass and not by a replayed op), and what for
    queue = [
        ((tensor, "" if whole else op.segment, True), (1, -place[id(op)], use))
        for op in program.ops
        for tensor in op.needs
        for use in _backward_uses(op, tensor)
    ]
    while queue:
        key, use = queue.pop()
        tensor, wanted, direct = program.tensors[key[0]], key[1], key[2]
        uses.setdefault(key[:2], {})[use] = None
        if key in seen or tensor.role in PERSISTENT:
            continue
        seen.add(key)
        op = program.producers[tensor.name]
        inside = tensor.role == "onchip"
        if inside and direct:
            kernel.add(id(op))
        if policy(program, op) and ("" if whole else op.segment) == wanted:
            useful.add(id(op))
        elif not inside:
            leaves = op.segment != "" and wanted != op.segment
            region = "outside" if leaves or not op.segment else "block"
            saved[tensor.name, wanted] = Saved(tensor.name, 1 if leaves else tensor.repeat, region)
            continue
        again = (0, place[id(op)], f"{op.scope} run again")
        queue.extend(((name, wanted, inside and direct), again) for name in op.inputs)
    order = {name: index for index, name in enumerate(program.tensors)}
    found = [
        item._replace(needed_by=tuple(use[2] for use in sorted(uses[key])))
        for key, item in sorted(saved.items(), key=lambda pair: order[pair[1].name])
    ]
    ops = program.ops
    return Walk(tuple(found), tuple(op for op in ops if id(op) in useful), tuple(op for op in ops if id(op) in kernel))


def _backward_uses(op: Op, tensor: str) -> tuple[str, ...]:
    """Return for which results the backward pass of an op needs a tensor."""
    if not isinstance(op, Contraction):
        return (f"{op.scope} backward",)
    left, right = op.inputs
    return tuple(f"d {name}" for name in op.gradients if tensor == (right if name == left else left)) or (
        f"{op.scope} backward",
    )


def split_backward(program: Program) -> tuple[Op, ...]:
    """Return the ops whose work splash does once more than a blockwise backward pass that makes all gradients at once.

    Its default backward pass is two kernels, one for dQ and one for dK and dV: each rebuilds the probabilities, and
    each multiplies the output's gradient by V, which is the product of `values` with respect to the probabilities.
    """
    if program.case.workload.attention != "splash":
        return ()
    again = {id(op) for op in walk(program).kernel}
    return tuple(
        op
        for op in program.ops
        if id(op) in again or (isinstance(op, Contraction) and op.gradients and _on_chip(program, op))
    )
