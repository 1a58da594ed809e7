"""What every classification of buffers has: a class of each value, with its reason, worked out when it is asked for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from jaxcost.observation.hlo.flow import Flow, Value
from jaxcost.observation.hlo.module import Instruction, Module
from jaxcost.observation.hlo.origins import Places

SCRATCH = "scratch space of a library call"


@dataclass(frozen=True, slots=True)
class Kind:
    """The class of a value, why, and whether there was evidence for it."""

    name: str
    why: str
    sure: bool = True


class Classifier(ABC):
    """Classifies the values of one module. `names` are its classes; `constant`, `border` and `unknown` those of
    constants, of results, and of what no instruction makes.
    """

    names: ClassVar[tuple[str, ...]]
    constant: ClassVar[Kind]
    border: ClassVar[Kind]
    unknown: ClassVar[Kind]

    def __init__(self, module: Module, places: Places) -> None:
        self.module, self.places, self.flow = module, places, Flow(module)
        self._known: dict[tuple[int, tuple[int, ...]], Kind] = {}

    @abstractmethod
    def argument(self, path: str) -> Kind:
        """The class of an argument of the program."""

    @abstractmethod
    def result(self, at: Instruction, index: tuple[int, ...]) -> Kind:
        """The class of a result that has memory of its own."""

    def is_result(self, at: Instruction, index: tuple[int, ...]) -> bool:
        """Whether a value is, without being copied, a result of the program."""
        return at is self.module.entry.root or bool(self.flow.reach(Value(at, index)).results)

    def temporary(self, at: Instruction, index: tuple[int, ...]) -> Kind:
        """The class of a value in temporary memory."""
        key = (at.id, index)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._find(Value(at, index))
        return found

    @abstractmethod
    def _find(self, value: Value) -> Kind: ...


def made_inside(value: Value) -> Iterator[Instruction]:
    """The instruction inside a frame that makes a value."""
    at, index = value
    for _ in range(8):
        if not index:
            yield at
            return
        if at.opcode == "tuple":
            at, index = at.operands[index[0]], index[1:]
        elif at.opcode in ("fusion", "call", "async-start") and at.called:
            at = at.called[0].root
            if at.opcode != "tuple":
                index = ()
        elif at.opcode.endswith("-start") and at.operands:
            # ((operands), results), (operand, result) or results alone: one result each
            at, index = at.operands[min(index[-1], len(at.operands) - 1)], ()
        else:
            yield at
            return
