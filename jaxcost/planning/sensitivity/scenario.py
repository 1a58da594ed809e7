"""One declared field, one new case. The base is copied, changed in what one field owns, and validated as a whole.

`Base` remembers the digest and every field of the base; `verify` refuses to go on once either is another. A scenario
whose records moved in a leaf that its field does not own is refused too: what it shows would have two causes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jaxcost.contracts.architecture import Architecture, LayerGroup, LearnedPositions, Norm, absences
from jaxcost.contracts.case import Case
from jaxcost.contracts.errors import Problem, RejectedError, reject
from jaxcost.contracts.execution import MESH_AXES
from jaxcost.planning.sensitivity.fields import ALIASES, Field, field, leaves, parse_value, set_at

ONE = "a case of a sensitivity changes exactly one declared field"


@dataclass(frozen=True)
class Change:
    """A field, by its short name or record path, and its new value."""

    field: str
    value: Any


@dataclass(frozen=True)
class Moved:
    """A leaf of the records, before and after."""

    path: str
    before: Any
    after: Any

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"path": self.path, "before": self.before, "after": self.after}


@dataclass(frozen=True)
class Scenario:
    """A validated case that differs from its base in the fields named, and the leaves that moved."""

    fields: tuple[Field, ...]
    changes: tuple[Change, ...]
    before: tuple[Any, ...]
    case: Case
    moved: tuple[Moved, ...]

    @property
    def name(self) -> str:
        """`kv_heads 8 -> 32`; fields of a vector joined by commas."""
        pairs = zip(self.fields, self.before, self.changes, strict=True)
        return ", ".join(f"{own.name} {shown(before)} -> {shown(change.value)}" for own, before, change in pairs)


class Base:
    """The case that all scenarios start from, with what it was when they began."""

    def __init__(self, case: Case):
        self.case = case
        self.digest = case.digest
        self._content = _content(case)

    def verify(self, after: str) -> None:
        """Do nothing if the base is what it was.

        Raises:
            RejectedError: its digest or any of its fields is another.
        """
        now = self.case.digest
        if now != self.digest or _content(self.case) != self._content:
            rule = f"the base was {self.digest[:12]} before {after}, and later cases would start from something else"
            raise reject("base.digest", now, rule, "build every case from a copy; a record is never changed in place")


def _content(case: Case) -> str:
    return hashlib.sha256(json.dumps(case.to_data(), sort_keys=True).encode()).hexdigest()


def changed(base: Case, changes: Mapping[str, Any]) -> Case:
    """Return a copy of the base with values put at record paths, validated as a whole.

    `architecture.absent` follows the branches. What was supplied about the base alone is left behind: `expected`
    integers and liveness events.

    Raises:
        RejectedError: with every rule that the new case breaks.
    """
    data = base.to_data()
    for path, value in changes.items():
        set_at(data, path, value)
    data["expected"] = data["liveness"] = None
    branches = _branches(data["architecture"])
    if branches is not None:
        data["architecture"]["absent"] = list(absences(branches))
    return Case.from_data(data)


def _branches(data: Mapping[str, Any]) -> frozenset[str] | None:
    """Return the optional branches of an architecture's plain data; None where it is not a legal one."""
    parts: dict[str, Any] = {"embedding_width": data["embedding_width"]}
    try:
        parts["groups"] = tuple(LayerGroup.from_data(group) for group in data["groups"])
        for name, kind in (("final_norm", Norm), ("embedding_norm", Norm), ("learned_positions", LearnedPositions)):
            parts[name] = kind.from_data(data[name]) if data[name] is not None else None
    except (RejectedError, TypeError):
        return None
    return Architecture.model_construct(**parts).branches


def scenario(base: Base, changes: Sequence[Change], apply: Callable[..., Case] = changed) -> Scenario:
    """Return the case that the changes make of the base.

    Args:
        base: where it starts; verified afterwards.
        changes: one for a case, several for a vector.
        apply: makes the new case of the base and the values at record paths.

    Raises:
        RejectedError: an unknown field, a value it does not take or has already, two fields that own the same leaf,
            records that moved elsewhere, a rule that the new case breaks, a base that was changed.
    """
    found = [field(change.field, base.case, change.value) for change in changes]
    before = [own.read(base.case) for own in found]
    merged: dict[str, Any] = {}
    owners: dict[str, str] = {}
    problems: list[Problem] = []
    for own, change in zip(found, changes, strict=True):
        try:
            values = own.changes(base.case, change.value)
        except RejectedError as error:
            problems.extend(error.problems)
            continue
        for path, other in owners.items():
            if any(_overlap(path, mine) for mine in values):
                rule = f"{path} belongs to {other} and to {own.name}"
                problems.append(Problem(own.name, change.value, rule, "give one of the two"))
        owners |= dict.fromkeys(values, own.name)
        merged |= values
    if problems:
        raise RejectedError(problems)
    case = apply(base.case, merged)
    label = ", ".join(f"{own.name}={shown(change.value)}" for own, change in zip(found, changes, strict=True))
    base.verify(label)
    moved = moves(base.case, case)
    problems += (*no_change(found, before, changes, moved), *strays(found, moved, label))
    if problems:
        raise RejectedError(problems)
    return Scenario(tuple(found), tuple(changes), tuple(before), case, moved)


def no_change(
    found: Sequence[Field], before: Sequence[Any], changes: Sequence[Change], moved: Sequence[Moved]
) -> tuple[Problem, ...]:
    """Return a problem for every field that moved none of its leaves."""
    return tuple(
        Problem(
            own.name,
            change.value,
            f"it is {shown(old)} already, so nothing would change",
            "give another value, or leave it out",
        )
        for own, old, change in zip(found, before, changes, strict=True)
        if not any(own.is_owner(leaf.path) for leaf in moved)
    )


def strays(found: Sequence[Field], moved: Sequence[Moved], label: str) -> tuple[Problem, ...]:
    """Return the problem of leaves that moved and that no field which was named owns."""
    others = [leaf.path for leaf in moved if not any(own.is_owner(leaf.path) for own in found)]
    if not others:
        return ()
    rule = f"{', '.join(others)} moved too: {ONE}"
    return (Problem(label, others[0], rule, "give the other field a case of its own, or call the two a vector"),)


def _overlap(left: str, right: str) -> bool:
    return f"{left}.".startswith(f"{right}.") or f"{right}.".startswith(f"{left}.")


def moves(before: Case, after: Case) -> tuple[Moved, ...]:
    """Return the leaves that differ between two cases; one that a side does not have is None there."""
    old, new = leaves(before), leaves(after)
    return tuple(
        Moved(path, old.get(path), new.get(path))
        for path in dict.fromkeys((*old, *new))
        if old.get(path) != new.get(path)
    )


def parse_changes(text: str) -> list[Change]:
    """Return the changes of `field=value,field=value`.

    A part that names no field goes on with the value before it (`windows=4096,0`, `mesh=data=4,tensor=2`); brackets
    hold a JSON value together.

    Raises:
        RejectedError: it does not begin with a field and `=`.
    """
    parts: list[tuple[str, list[str]]] = []
    for piece in _pieces(text):
        name, equals, value = piece.partition("=")
        name = name.strip()
        of_mesh = parts and parts[-1][0] in ("mesh", "execution.mesh") and name in (*MESH_AXES, "zero")
        goes_on = of_mesh or (parts and not equals)
        if goes_on:
            parts[-1][1].append(piece.strip())
        elif not equals or not name:
            raise reject("field", text, "not of the form FIELD=VALUE", "write for example kv_heads=1")
        else:
            parts.append((name, [value.strip()]))
    return [Change(name, parse_value(",".join(values))) for name, values in parts]


def _pieces(text: str) -> Iterator[str]:
    """Yield what stands between commas outside of brackets and quotes."""
    depth, quoted, start = 0, False, 0
    for index, sign in enumerate(text):
        if sign == '"':
            quoted = not quoted
        elif not quoted and sign in "[{":
            depth += 1
        elif not quoted and sign in "]}":
            depth -= 1
        elif not quoted and depth == 0 and sign == ",":
            yield text[start:index]
            start = index + 1
    yield text[start:]


def as_changes(given: object) -> tuple[Change, ...]:
    """Return the changes of a text `field=value,...` or of a mapping of fields to values.

    Raises:
        RejectedError: it is neither, or empty.
    """
    if isinstance(given, str):
        return tuple(parse_changes(given))
    if isinstance(given, Mapping) and given:
        return tuple(Change(str(name), value) for name, value in given.items())
    raise reject("field", repr(given), "must be FIELD=VALUE, or a mapping of a field to its value", "kv_heads=1")


def single(given: object) -> tuple[Change, ...]:
    """Return the one change of a case.

    Raises:
        RejectedError: there is a second one.
    """
    changes = as_changes(given)
    problems = second_field(changes, given)
    if problems:
        raise RejectedError(problems)
    return changes


def second_field(changes: Sequence[Change], given: object) -> tuple[Problem, ...]:
    """Return the problem of a case that changes more than one field."""
    if len(changes) == 1:
        return ()
    names = ", ".join(change.field for change in changes)
    rule = f"{ONE}, and this one has {len(changes)} ({names}): which of them moved what could not be told"
    both = ",".join(f"{change.field}={shown(change.value)}" for change in changes)
    remedy = f"give each its own --set, or call it a vector: --vector {both}"
    return (Problem("--set", _text(given), rule, remedy),)


def several(given: object) -> tuple[Change, ...]:
    """Return the changes of a vector.

    Raises:
        RejectedError: there is only one, or a field twice.
    """
    changes = as_changes(given)
    if len(changes) < 2:
        rule = "a vector moves several fields, and this one has one"
        raise reject("--vector", _text(given), rule, f"use --set {changes[0].field}={shown(changes[0].value)}")
    names = [ALIASES.get(change.field, change.field) for change in changes]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise reject("--vector", _text(given), f"sets {', '.join(twice)} twice", "give it once")
    return changes


def _text(given: object) -> str:
    return given if isinstance(given, str) else repr(given)


def shown(value: Any) -> str:
    """Return a value as the command line takes it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "none"
    if isinstance(value, Mapping):
        return ",".join(f"{name}={shown(item)}" for name, item in value.items()) or "none"
    if isinstance(value, list | tuple):
        return ",".join(map(shown, value)) or "none"
    return str(value)
