"""The registry: every file of `papers/`, read strictly, with the contracts that there must be.

A registry that lacks a required contract would lose an incompatible coordinate in silence, so it is refused whole; so
is one with a duplicate, an unknown field, a composite that is not marked, or a composite's part bound to no contract.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from jaxcost.contracts.errors import Problem, RejectedError, reject
from jaxcost.contracts.record import parse_file
from jaxcost.data import room
from jaxcost.papers.contract import Contract

# The cost model's six sources, and the five that the issue of reproduction adds.
REQUIRED = (
    "teaching-article", "kaplan", "chinchilla", "palm", "megatron", "korthikanti", "gpt3", "zero", "maxtext",
    "torchtitan", "llama3",
)  # fmt: skip
COMPOSITE = ("teaching-article",)


class Registry(Mapping[str, Contract]):
    """Contracts by name, in the order of `REQUIRED`, then by name.

    Raises:
        RejectedError: a required contract is missing, one appears twice, or a composite is not bound to its sources.
    """

    def __init__(self, contracts: Iterable[Contract]):
        found = tuple(contracts)
        names = [item.name for item in found]
        problems = [
            Problem("papers", name, "two files declare this contract", "keep one of the two")
            for name in sorted({name for name in names if names.count(name) > 1})
        ]
        problems += missing(names)
        for item in found:
            if item.name in COMPOSITE and item.kind != "composite":
                rule = "a composite source, whose parts have different coordinates"
                problems.append(Problem(f"{item.name}.kind", item.kind, rule, "write composite"))
            for index, part in enumerate(item.subsections):
                if part.inherits not in names or part.inherits in COMPOSITE:
                    rule = "no primary contract of this registry"
                    remedy = f"use one of {', '.join(sorted(set(names) - set(COMPOSITE)))}"
                    problems.append(Problem(f"{item.name}.subsections.{index}.inherits", part.inherits, rule, remedy))
        if problems:
            raise RejectedError(problems)
        order = {name: index for index, name in enumerate(REQUIRED)}
        self._contracts = {
            item.name: item for item in sorted(found, key=lambda c: (order.get(c.name, len(order)), c.name))
        }

    def __getitem__(self, name: str) -> Contract:
        return self._contracts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._contracts)

    def __len__(self) -> int:
        return len(self._contracts)

    def contract(self, name: str) -> Contract:
        """Return a contract by name.

        Raises:
            RejectedError: there is none of that name.
        """
        if name not in self._contracts:
            rule = "no published contract has this name"
            raise reject("NAME", name, rule, f"use one of {', '.join(self._contracts)}")
        return self._contracts[name]


def missing(names: Sequence[str]) -> tuple[Problem, ...]:
    """Return a problem for each required contract that is not among `names`."""
    return tuple(
        Problem("papers", name, "a required contract is missing", f"add papers/{name}.toml")
        for name in REQUIRED
        if name not in names
    )


def read_contract(path: Path) -> Contract:
    """Read one file; its name is the contract's.

    Raises:
        RejectedError: with every problem of the file.
    """
    contract = Contract.from_data(parse_file(path), path.stem)
    if contract.name != path.stem:
        raise reject(f"{path.stem}.name", contract.name, "differs from the name of its file", "make the two agree")
    return contract


@lru_cache(maxsize=1)
def registry() -> Registry:
    """Return the registry of the room `papers/`."""
    return load_registry(room("papers"))


def load_registry(folder: Path) -> Registry:
    """Read every .toml of a folder.

    Raises:
        RejectedError: with the problems of all files, or of the registry as a whole.
    """
    problems: list[Problem] = []
    contracts = []
    for path in sorted(folder.glob("*.toml")):
        try:
            contracts.append(read_contract(path))
        except RejectedError as error:
            problems.extend(error.problems)
    if problems:
        raise RejectedError(problems)
    return Registry(contracts)
