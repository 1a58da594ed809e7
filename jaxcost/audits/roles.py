"""What the arguments of a step are for: parameters and optimizer state, by their paths or, failing that, by their use.

By use, an argument is optimizer state where it is only read element by element and outside what was differentiated,
while another of its shape is read inside it: so a moment is told from its parameter. Without a differentiated part
nothing tells them apart, and no role is given.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from jaxcost.audits.arguments import Bound, bound_arguments, returned, whole_argument
from jaxcost.audits.batch import Batch
from jaxcost.audits.donation import ELEMENTWISE
from jaxcost.audits.replay import Replay
from jaxcost.observation.hlo.kinds import Kind
from jaxcost.observation.hlo.purposes import ARGUMENT, GRADIENT, PARAMETER, STATE, argument_purpose

_MOVES = frozenset("bitcast copy reshape transpose convert copy-start copy-done".split())
_DIFFERENTIATED = ("jvp(", "transpose(", "rematted_computation")
_READS = 4096  # readers looked at for one argument


@dataclass(frozen=True)
class Group:
    """Arguments of one role, the words that say how it was told, and their bytes on one device.

    `twice` are the bytes of results with memory of their own and the shapes of these arguments: their new values, where
    the arguments are not donated.
    """

    found: tuple[Bound, ...]
    told: str
    twice: int

    @property
    def bytes(self) -> int:
        """Bytes of the arguments and of their new values."""
        return sum(a.bytes for a in self.found) + self.twice


class Roles:
    """The arguments of one program by role. Those that lie in the host's memory have none."""

    def __init__(self, replay: Replay) -> None:
        self.replay = replay
        every, _ = bound_arguments(replay.evidence)
        self.arguments = [
            a for a in every
            if a.parameter is not None and not a.parameter.shape.is_tuple and a.parameter.shape.memory_space == 0
        ]  # fmt: skip

    def _kind(self, argument: Bound) -> Kind:
        """The class by the path in the call; where that says nothing, by the name in the module."""
        told = self.replay.purposes.argument(argument.path)
        if told.name == ARGUMENT and argument.parameter is not None and argument.parameter.op_name:
            return self.replay.purposes.argument(argument.parameter.op_name)
        return told

    def _named(self, role: str) -> Group | None:
        """The arguments of a role by path: their own, or the tree that their moments repeat."""
        found = {a.number: (a, self._kind(a)) for a in self.arguments}
        found = {number: (a, kind) for number, (a, kind) in found.items() if kind.name == role}
        if not found:
            return None
        own = all(argument_purpose(a.path).name == role for a, _ in found.values())
        told = "by their paths" if own else "by paths that parameters and moments share"
        return self.group([a for a, _ in found.values()], told)

    @cached_property
    def state(self) -> Group | None:
        """Optimizer state."""
        if (named := self._named(STATE)) is not None:
            return named
        inside: list[Bound] = []
        outside: list[Bound] = []
        for argument in self.arguments:
            where = self._read(argument)
            (inside if where == "inside" else outside if where == "update" else []).append(argument)
        shapes = {_shape(a) for a in inside}
        found = [a for a in outside if _shape(a) in shapes and len(_shape(a)[1]) > 0]
        told = "by their use: read element by element outside the differentiated part, each with another of its shape"
        return self.group(found, told) if found else None

    @cached_property
    def parameters(self) -> Group | None:
        """Parameters: by path, else those, without the optimizer's state, with a result of their shape and type."""
        if (named := self._named(PARAMETER)) is not None:
            return named
        made = Counter((r.shape.dtype, r.shape.dims) for r in returned(self.replay.evidence) if r.shape.dims)
        taken = {r.argument for r in returned(self.replay.evidence)}
        state = {a.number for a in self.state.found} if self.state is not None else set()
        found: list[Bound] = []
        for shape, count in made.items():
            alike = [a for a in self.arguments if _shape(a) == shape and a.number not in state]
            found += _fitting(alike, count, taken)
        return self.group(found, "by results of their shapes") if found else None

    @cached_property
    def data(self) -> list[Bound]:
        """Other arguments that share the first dimension of the largest of them: a batch."""
        known = {a.number for g in (self.state, self.parameters) if g is not None for a in g.found}
        rest = [a for a in self.arguments if a.number not in known and _shape(a)[1]]
        rest = [a for a in rest if self._kind(a).name == ARGUMENT]
        if not rest:
            return []
        first = _shape(max(rest, key=lambda a: a.bytes))[1][0]
        return [a for a in rest if _shape(a)[1][0] == first]

    @cached_property
    def batch(self) -> Batch | None:
        """The batch, traced from the first dimension of the data; None where there is no such data."""
        given = [a.parameter for a in self.data if a.parameter is not None]
        if not given or self.parameters is None:
            return None
        return Batch(self.replay.evidence.graph.module, given[0].shape.dims[0], given)

    def results_with_batch(self) -> list[tuple[int, int]]:
        """Of each result with memory of its own that holds the batch: its bytes, and in how many dimensions it does."""
        root, batch = self.replay.evidence.graph.module.entry.root, self.batch
        if batch is None:
            return []
        own = [r for r in returned(self.replay.evidence) if r.argument is None]
        rows = [(r.shape.bytes, batch.times(root, r.index)) for r in own]
        return [(size, times) for size, times in rows if times]

    @cached_property
    def trains(self) -> bool:
        """Whether the program computes gradients."""
        return any(held.kind.name == GRADIENT for held in self.replay.held)

    def group(self, found: Iterable[Bound], told: str) -> Group:
        """Arguments with the results that are as many of their shapes and have memory of their own."""
        found = tuple(found)
        wanted: dict[tuple[str, tuple[int, ...]], int] = {}
        for argument in found:
            wanted[_shape(argument)] = wanted.get(_shape(argument), 0) + 1
        twice = 0
        for result in returned(self.replay.evidence):
            key = (result.shape.dtype, result.shape.dims)
            if result.argument is None and wanted.get(key, 0) > 0:
                wanted[key] -= 1
                twice += result.shape.bytes
        return Group(found, told, twice)

    def _read(self, argument: Bound) -> str:
        """`inside` where something differentiated reads it, `update` where only element-wise work outside does."""
        assert argument.parameter is not None
        seen, stack, update = {argument.parameter.id}, [argument.parameter], False
        while stack:
            for user in stack.pop().users:
                if user.id in seen:
                    continue
                seen.add(user.id)
                if any(word in user.op_name for word in _DIFFERENTIATED):
                    return "inside"
                if len(seen) > _READS:
                    return ""
                if user.opcode in _MOVES or user.opcode == "tuple":  # of a tuple, its reader's name is what counts
                    stack.append(user)
                elif user.opcode == "fusion":
                    operands = [p for n, p in user.called[0].parameters.items() if user.operands[n].id in seen]
                    stack += [p for p in operands if p.id not in seen]
                    seen.update(p.id for p in operands)
                elif user.opcode in ELEMENTWISE:
                    update = True
                else:
                    return ""
        return "update" if update else ""


def _fitting(alike: list[Bound], count: int, taken: set[int | None]) -> list[Bound]:
    """Of arguments of one shape those that `count` results of it replace: data may have the shape of a parameter.

    Those whose memory results take over, or those of the one argument of the call that has as many; else all of them.
    """
    if len(alike) <= count:
        return alike
    given = [a for a in alike if a.number in taken]
    if len(given) == count:
        return given
    groups: dict[str, list[Bound]] = {}
    for argument in alike:
        groups.setdefault(whole_argument(argument.path), []).append(argument)
    whole = [group for group in groups.values() if len(group) == count]
    return whole[0] if len(whole) == 1 else alike


def _shape(argument: Bound) -> tuple[str, tuple[int, ...]]:
    assert argument.parameter is not None
    return argument.parameter.shape.dtype, argument.parameter.shape.dims
