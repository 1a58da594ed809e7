"""The piece of the product that a failure row's check rests on, and how that piece alone is taken out.

A check that cannot fail proves nothing. Each row therefore names its guard: a function, a property, a record's field.
With the guard removed the row's fault goes through like sound input and the row is `missed`; a test does this for every
row. A guard is `module:path`; the path runs through attributes and, at a mapping, through keys:

    jaxcost.contracts.case:Case._tensor_problems              a rule of a record says nothing
    jaxcost.contracts.observation:Counter.model_fields.visibility     a required field may be left out
    jaxcost.verify.holding:PROPERTIES.forward_equals_the_walk a property holds of everything
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, get_args

from jaxcost.contracts.record import Record

Without = Callable[[Any], Any]


def silent(*_: Any, **__: Any) -> tuple[()]:
    """Find nothing, whatever is asked; also falsy, for a rule that answers with a text."""
    return ()


def silenced(original: Any) -> Any:
    """Return what says nothing in the place of a function, method or property."""
    return property(silent) if isinstance(original, property) else silent


def emptied(original: Any) -> Any:
    """Return an empty collection of the kind of the original."""
    return type(original)()


def held(original: Any) -> Any:
    """Return a property (of `jaxcost.verify.holding`) that holds of every case."""
    return replace(original, check=silent)


def optional(original: Any) -> Any:
    """Return the field of a record with an empty text for its default."""
    field = copy(original)
    field.default = ""
    field.metadata = []
    return field


def any_text(original: Any) -> Any:
    """Return the field of a record as free text."""
    field = copy(original)
    field.annotation = str
    return field


def ignored(original: Any) -> Any:
    """Return the setting under which a record passes over keys that it does not know."""
    return "ignore"


def passing_over(status: str) -> Without:
    """Return the removal of one verdict: a comparison of that status is called exact."""

    def without(original: Any) -> Any:
        return property(lambda row: "exact" if original.fget(row) == status else original.fget(row))

    return without


@dataclass(frozen=True)
class Guard:
    """`target` is the piece a check rests on; `without` makes, from the original, what stands there once removed."""

    target: str
    without: Without = silenced

    @contextmanager
    def removed(self) -> Iterator[None]:
        """Take the piece out, and put it back.

        Raises:
            AttributeError, KeyError: nothing of that name is there, so the guard is out of date.
        """
        module, _, path = self.target.partition(":")
        *steps, last = path.split(".")
        owner: Any = import_module(module)
        records = []
        for step in steps:
            owner = owner[step] if isinstance(owner, Mapping) else getattr(owner, step)
            records += [owner] if isinstance(owner, type) and issubclass(owner, Record) else []
        original = owner[last] if isinstance(owner, Mapping) else vars(owner)[last]  # vars: a property stays one
        rebuilt = _holders(records[-1]) if isinstance(owner, Mapping) and records else []
        try:
            _put(owner, last, self.without(original), rebuilt)
            yield
        finally:
            _put(owner, last, original, rebuilt)


# Checks that several rows rest on.
VISIBILITY = Guard("jaxcost.contracts.observation:Counter.model_fields.visibility", optional)
PROVENANCE = Guard("jaxcost.contracts.observation:REQUIRED_FIELDS.locally_measured", emptied)
AXES = Guard("jaxcost.reconciliation.supplied:_differences")
UNITS = Guard("jaxcost.reconciliation.supplied:_unit_difference")


def _put(owner: Any, name: str, value: Any, rebuilt: list[type[Record]]) -> None:
    if isinstance(owner, MutableMapping):
        owner[name] = value
    else:
        setattr(owner, name, value)
    for record in rebuilt:
        record.model_rebuild(force=True)


def _holders(record: type[Record]) -> list[type[Record]]:
    """Return a record and those that hold it, innermost first: each keeps its own copy of the rules below it."""
    found, level = [record], [record]
    while level:
        level = [
            other
            for other in _subclasses(Record)
            if any(held in _types(field.annotation) for field in other.model_fields.values() for held in level)
        ]
        found += level
    return found


def _subclasses(record: type[Record]) -> list[type[Record]]:
    direct = record.__subclasses__()
    return [*direct, *(further for other in direct for further in _subclasses(other))]


def _types(annotation: Any) -> list[Any]:
    return [annotation, *(inner for item in get_args(annotation) for inner in _types(item))]
