"""Builds a program: components append tensors and ops, and the builder works out which tensors need gradients.

A tensor needs a gradient when anything trainable lies upstream of it. The builder meets ops in execution order, so
one pass decides. Where layers are unrolled and nothing trainable lies below a group, its first layer needs no input
gradient while the others do: it becomes a section of its own. A scanned group is one program for all layers, so there
every layer computes what any layer needs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from jaxcost.contracts.case import Case
from jaxcost.prediction.components import embedding, head, loss, norm, residual
from jaxcost.prediction.program import LEARNED, Contraction, Count, Lookup, Op, Primitive, Program, Tensor
from jaxcost.prediction.sizes import Sizes


class Builder:
    """Collects the tensors and ops of one program."""

    def __init__(self, case: Case, sizes: Sizes):
        self.case, self.sizes = case, sizes
        self.training = case.workload.phase == "training"
        self.compute: str = case.state.compute_dtype
        self.tensors: dict[str, Tensor] = {}
        self.ops: list[Op] = []
        self.group: int | None = None
        self.first = 0
        self.repeat: Any = 1
        self.region = "outside"
        self.section = ""
        self._graded: set[str] = set()

    @property
    def prefix(self) -> str:
        """Scope of the current group of layers."""
        return f"group{self.group}"

    def needs_gradient(self, name: str) -> bool:
        """Return whether a tensor lies on a path from something trainable."""
        return name in self._graded

    def parameter(self, name: str, axes: str, storage: str | None = None) -> str:
        """Declare a parameter `scope/leaf`; `storage` names the parameter whose array it shares."""
        if name not in self.tensors:
            scope = name.rsplit("/", 1)[0]
            storage = storage or name
            owner = storage.rsplit("/", 1)[0]
            trainable = not self.case.is_frozen(owner)
            repeat = 1 if self.group is None else self.sizes.repeats[self.group]
            dtype = self.case.state.parameter_dtype
            self.tensors[name] = Tensor(name, axes, dtype, "parameter", scope, self.group, repeat, storage, trainable)
            if trainable and self.training:
                self._graded.add(name)
        return name

    def view(self, name: str, axes: str, whole: str) -> str:
        """Declare the part of the fused parameter `whole` that one projection multiplies."""
        self.tensors[name] = replace(
            self.tensors[whole], name=name, axes=axes, role="view", scope=name.rsplit("/", 1)[0], storage=whole
        )
        if whole in self._graded:
            self._graded.add(name)
        return name

    def tensor(self, name: str, axes: str, dtype: str | None = None, role: str = "activation", scope: str = "") -> str:
        """Declare a tensor made or received by the step."""
        name = name + self.section
        scope = scope or name.rsplit("/", 1)[0]
        self.tensors[name] = Tensor(name, axes, dtype or self.compute, role, scope, self.group, self.repeat, name)
        return name

    def contract(
        self, scope: str, spec: str, left: str, right: str, dtype: str | None = None, role: str = "activation"
    ) -> str:
        """Append a contraction and return its output `scope/out`."""
        out_axes = spec.split("->")[1].strip()
        out = self.tensor(f"{scope}/out", out_axes, dtype, role)
        gradients = self._gradients((left, right))
        other = {left: right, right: left}
        needs = tuple(dict.fromkeys(other[name] for name in gradients))
        op = Contraction(
            **self._common(scope, (left, right), (out,), gradients, needs), spec=spec, out_dtype=dtype or self.compute
        )
        self._append(op)
        return out

    def lookup(self, scope: str, table: str, indices: str, axes: str) -> str:
        """Append a row gather and return its output."""
        out = self.tensor(f"{scope}/out", axes)
        gradients = self._gradients((table,))
        self._append(
            Lookup(**self._common(scope, (table, indices), (out,), gradients, (indices,) if gradients else ()))
        )
        return out

    def primitive(
        self,
        kind: str,
        scope: str,
        inputs: tuple[str, ...],
        outputs: tuple[str, ...],
        forward: tuple[Count, ...] = (),
        backward: tuple[Count, ...] = (),
        parameter_backward: tuple[Count, ...] = (),
        needs: tuple[str, ...] = (),
    ) -> tuple[str, ...]:
        """Append non-matmul work; `backward` counts apply when the op's data needs a gradient."""
        gradients = self._gradients(inputs)
        weights = [name for name in gradients if self.tensors[name].role in LEARNED]
        counts = backward if len(weights) < len(gradients) else ()
        counts = counts + (parameter_backward if weights else ())
        common = self._common(scope, inputs, outputs, gradients, needs if gradients else ())
        self._append(Primitive(**common, kind=kind, forward=forward, backward=counts))
        return outputs

    def also_needs(self, name: str) -> None:
        """Let the backward pass of the last op need one more tensor."""
        self.ops[-1] = replace(self.ops[-1], needs=(*self.ops[-1].needs, name))

    def _gradients(self, inputs: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(name for name in inputs if name in self._graded)

    def _common(
        self,
        scope: str,
        inputs: tuple[str, ...],
        outputs: tuple[str, ...],
        gradients: tuple[str, ...],
        needs: tuple[str, ...],
    ) -> dict[str, Any]:
        return {
            "name": scope.rsplit("/", 1)[-1],
            "scope": scope,
            "inputs": inputs,
            "outputs": outputs,
            "gradients": gradients,
            "needs": needs,
            "region": self.region,
            "segment": "" if self.group is None else self.prefix + self.section,
            "group": self.group,
            "first": self.first,
            "repeat": self.repeat,
        }

    def _append(self, op: Op) -> None:
        self.ops.append(op)
        if op.gradients:
            self._graded.update(name for name in op.outputs if self.tensors[name].role not in ("mask", "statistic"))

    def carry(self, previous: str, output: str, needs_gradient: bool) -> str:
        """Enter a layer: its input is the previous layer's output, in the first layer what came before the group."""
        self.region = "boundary"
        name = self.tensor(f"{self.prefix}/in", "b s d")
        sources = (previous, output) if output else (previous,)
        common = self._common(self.prefix, sources, (name,), (), ())
        self.ops.append(Primitive(**common, kind="carry", forward=(), backward=()))
        if needs_gradient:
            self._graded.add(name)
        self.region = "block"
        return name


def build(case: Case, sizes: Sizes) -> Program:
    """Return the program of a case for given sizes."""
    b = Builder(case, sizes)
    x = embedding.embed(b)
    caches: list[str] = []
    for index in range(len(case.architecture.groups)):
        x = _group(b, index, x, caches)
    b.group, b.first, b.repeat, b.region, b.section = None, 0, 1, "outside", ""
    x = norm.norm(b, "final_norm", case.architecture.final_norm, x)
    logits = head.head(b, x)
    results = (loss.loss(b, logits),) if b.training else (logits, *caches)
    return Program(case, sizes, b.tensors, tuple(b.ops), results)


def _group(b: Builder, index: int, x: str, caches: list[str]) -> str:
    """Append a group of identical layers, in one section or, where its first layer differs, in two."""
    b.group, b.first, b.section = index, 0, ""
    repeat = b.sizes.repeats[index]
    below = b.needs_gradient(x)
    trains = b.training and _trains(b.case, index)
    if b.case.execution.layers == "scan" or below or not trains:
        return _section(b, index, x, repeat, below or (trains and b.case.execution.layers == "scan"), True, caches)
    x = _section(b, index, x, 1, False, False, caches)
    if repeat == 1:
        return x
    b.first, b.section = 1, "#rest"
    return _section(b, index, x, repeat - 1, True, True, caches)


def _section(b: Builder, index: int, x: str, repeat: Any, graded: bool, loops: bool, caches: list[str]) -> str:
    layer = b.case.architecture.groups[index].layer
    b.repeat = repeat
    output = residual.output(b.prefix, layer) + b.section
    entry = b.carry(x, output if loops and repeat != 1 else "", graded)
    return residual.layer(b, layer, entry, caches)


def _trains(case: Case, index: int) -> bool:
    prefix = f"group{index}"
    if case.is_frozen(prefix):
        return False
    layer = case.architecture.groups[index].layer
    norms = {
        "attn_norm": layer.attention_norm,
        "mlp_norm": layer.mlp_norm,
        "attn_post_norm": layer.attention_post_norm,
        "mlp_post_norm": layer.mlp_post_norm,
    }
    parts = ["attn", "mlp"] + [name for name, value in norms.items() if value and value.scale]
    return any(not case.is_frozen(f"{prefix}/{part}") for part in parts)
