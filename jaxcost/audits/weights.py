"""Which argument a product multiplies: FLOPs by the program's own names of its weights.

A framework that names no operations still names its arguments, so `state['blocks'][3]['up']['kernel']` tells the layer
where no scope does. An operand that is a moved, cast, gathered or sliced argument is that argument. The product that
makes a weight's gradient multiplies no argument: its result is followed, element by element, to the weight it updates.
What multiplies neither (attention's two products, a loop's state) is by no argument. Of two that multiply each other
the parameter is meant, by its path, or the leaf of a tree beside an array given alone; otherwise both are named.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from jaxcost.audits.donation import ELEMENTWISE
from jaxcost.audits.evidence import Evidence
from jaxcost.audits.tree import Node, Value, added, children_of
from jaxcost.observation.hlo.flops import FlopRow
from jaxcost.observation.hlo.module import Instruction
from jaxcost.observation.hlo.opcodes import MOVEMENT
from jaxcost.observation.hlo.origins import behind
from jaxcost.observation.hlo.products import Contraction
from jaxcost.observation.hlo.purposes import PARAMETER, argument_purpose
from jaxcost.observation.hlo.trips import Total, exact

NO_ARGUMENT, BETWEEN = "(no argument)", "(between arguments)"
MOST_WORDS = 24  # of a path; the rest is one name
_PASSES = MOVEMENT | frozenset("all-reduce all-reduce-start all-reduce-done reduce-scatter async-update".split())
_ELEMENT = "get-tuple-element"
_STEPS = 96  # back from one operand
_FOLLOWED = 400  # instructions looked at behind one product
_WORD = re.compile(r"[^.\[\]'\"]+")


class Weights:
    """The arguments behind the products of one program."""

    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence
        self.module = evidence.graph.module
        self.products = {row.id: row for row in evidence.reading.contractions.rows}
        self.multiplies = {row.id: row.multiply for row in evidence.reading.contractions.strength_reduced}
        self.direct = {row.id: self._multiplied(row) for row in evidence.work.rows}
        self._multiplied_somewhere = {path for found in self.direct.values() for paths, _ in found for path in paths}

    def of(self, row: FlopRow) -> list[tuple[tuple[str, ...], int]]:
        """The arguments behind each product merged in `row`, with its FLOPs of one execution; () is none."""
        found = self.direct[row.id]
        if row.kind not in ("contraction", "convolution") or any(_leaf(path) for paths, _ in found for path in paths):
            return found
        updated = self._updated(self.module.instructions[row.id])
        return [((updated,), row.flops)] if updated else found

    def label(self, row: FlopRow) -> str:
        """The arguments behind a row in one text; '' without."""
        return ", ".join(dict.fromkeys(" × ".join(paths) for paths, _ in self.of(row) if paths))

    def _multiplied(self, row: FlopRow) -> list[tuple[tuple[str, ...], int]]:
        product: Contraction | None = self.products.get(row.id)
        shares = product.shares if product is not None else ()
        if shares and all(s.argument for s in shares) and sum(s.flops for s in shares) == row.flops:
            return [((s.argument,), s.flops) for s in shares]
        at = self.module.instructions[self.multiplies.get(row.id, row.id)]
        paths = []
        for operand in at.operands[:2]:
            argument = self._argument(operand)
            if argument is not None and argument.op_name:
                paths.append(argument.op_name)
        paths = list(dict.fromkeys(paths))
        if len(paths) > 1:
            for known in ([p for p in paths if argument_purpose(p).name == PARAMETER], list(filter(_leaf, paths))):
                if len(known) == 1:
                    return [((known[0],), row.flops)]
        return [(tuple(paths), row.flops)]

    def _argument(self, at: Instruction) -> Instruction | None:
        """The argument that a value is a copy of: of a loop's state only what the loop does not change."""
        for _ in range(_STEPS):
            if at.opcode == "parameter" and at.computation is self.module.entry:
                return at
            if at.opcode == _ELEMENT and at.operands[0].opcode == "parameter" and not _kept(at):
                return None
            before = behind(at)
            if before is None:
                return None
            at = before
        return None

    def _updated(self, product: Instruction) -> str:
        """The one weight, multiplied elsewhere, that is combined element by element with what a product becomes."""
        met: set[str] = set()
        seen = {product.id}
        ahead = [product]
        while ahead and len(seen) < _FOLLOWED:
            here = ahead.pop(0)
            for user in self._readers(here):
                if user.id in seen:
                    continue
                seen.add(user.id)
                if user.opcode in ELEMENTWISE and user.opcode not in MOVEMENT:
                    for other in user.operands:
                        argument = self._argument(other) if other is not here else None
                        if argument is not None and argument.op_name in self._multiplied_somewhere:
                            met.add(argument.op_name)
                elif user.opcode == "dynamic-update-slice":
                    if user.operands[1] is not here:  # else it is a layer's part of what a loop stacks
                        continue
                elif user.opcode not in _PASSES and user.opcode not in ("parameter", _ELEMENT):
                    continue
                ahead.append(user)
        return met.pop() if len(met) == 1 else ""

    @staticmethod
    def _readers(at: Instruction) -> Iterator[Instruction]:
        """What reads a value next: inside the fusion that takes it, behind the fusion or loop that returns it."""
        made = [at]  # the value, and what returns it
        for here in made:
            if len(made) > _FOLLOWED:
                return
            for user in here.users:
                if user.opcode in ("fusion", "call") and user.called:
                    inside = user.called[0].parameters
                    yield from (inside[n] for n, operand in enumerate(user.operands) if operand is here and n in inside)
                elif user.opcode == "tuple" and user is user.computation.root:
                    places = {n for n, operand in enumerate(user.operands) if operand is here}
                    for caller in user.computation.callers:
                        if caller.opcode in ("fusion", "call", "while"):
                            yield from (u for u in caller.users if u.opcode == _ELEMENT and u.number in places)
                else:
                    yield user
            if here is here.computation.root:
                made += [caller for caller in here.computation.callers if caller.opcode in ("fusion", "call")]


def _kept(element: Instruction) -> bool:
    """Whether a loop hands on this element of its state as it is; true of what is no loop's."""
    root = element.computation.root
    callers = element.computation.callers
    if not any(caller.opcode == "while" for caller in callers):
        return True
    if root.opcode != "tuple" or element.number >= len(root.operands):
        return False
    made = root.operands[element.number]
    while made.opcode in ("copy", "bitcast", "opt-barrier") and made.operands:
        made = made.operands[0]
    return made.opcode == _ELEMENT and made.number == element.number and made.operands[0] is element.operands[0]


def _leaf(path: str) -> bool:
    """Whether an argument is one of several in a tree."""
    return "[" in path or "." in path


def weights_tree(weights: Weights) -> list[Node]:
    """Return FLOPs by argument as a tree over the words of its path (`audits.tree`, the column `flops` alone)."""
    nodes: list[Node] = [{"parent": None, "name": "program", "kind": "root", "total": [], "own": []}]
    known: dict[tuple[int, str], int] = {}

    def add(words: tuple[str, ...], kind: str, value: Value) -> None:
        at = 0
        nodes[at]["total"].append(value)
        for word in words:
            if (at, word) not in known:
                known[at, word] = len(nodes)
                nodes.append({"parent": at, "name": word, "kind": kind, "total": [], "own": []})
            at = known[at, word]
            nodes[at]["total"].append(value)
        nodes[at]["own"].append(value)

    for row in weights.evidence.work.rows:
        for paths, flops in weights.of(row):
            value = _value(row.executions.times(exact(flops)))
            if len(paths) == 1:
                add(words_of(paths[0]), "argument", value)
            else:
                add((BETWEEN, " × ".join(paths)) if paths else (NO_ARGUMENT,), "none", value)
    for unknown in weights.evidence.work.unknowns:
        if unknown.voids and unknown.kind != "loop":
            add((NO_ARGUMENT,), "none", {"minimum": 0, "maximum": None})
    return _joined([{**node, **{part: _column(node[part]) for part in ("total", "own")}} for node in nodes])


def _joined(nodes: list[Node]) -> list[Node]:
    """The tree with one node for each stretch of words between which a path has no choice: `state.blocks`."""
    below = children_of(nodes)
    made: list[Node] = []
    number: dict[int, int] = {}  # of a node, where it or what it was joined to stands
    for i, node in enumerate(nodes):
        parent = node["parent"]
        alone = parent not in (None, 0) and len(below[parent]) == 1 and not nodes[parent]["own"]
        if alone and node["kind"] == "argument":
            number[i] = number[parent]
            before = made[number[i]]
            made[number[i]] = {**node, "parent": before["parent"], "name": f"{before['name']}.{node['name']}"}
        else:
            number[i] = len(made)
            made.append({**node, "parent": None if parent is None else number[parent]})
    return made


def words_of(path: str) -> tuple[str, ...]:
    """Return the words of an argument's path: state, blocks, 3, up, kernel of `state['blocks'][3]['up']['kernel']`."""
    words = tuple(_WORD.findall(path)) or (path,)
    return words if len(words) <= MOST_WORDS else (*words[: MOST_WORDS - 1], ".".join(words[MOST_WORDS - 1 :]))


def _value(total: Total) -> Value:
    if total.value is not None:
        return total.value
    return {"minimum": total.minimum or 0, "maximum": total.maximum if total.minimum is not None else None}


def _column(values: list[Value]) -> Mapping[str, Any]:
    value = added(values)
    return {"flops": value} if value != 0 else {}
