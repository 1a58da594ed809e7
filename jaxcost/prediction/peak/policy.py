"""Materialisation policies: what a compiler version does with a step, as dated records and not as code.

The arrays of a step follow from its declared shapes. Which of them exist at the fullest moment, and how many copies, is
a habit of one compiler version; a policy lists these habits as rules. Each rule has a value (yes or no, or a whole
number of copies), its reason, and the development cases it was read from. Where the compiler's scheduler decides and
shapes do not say how, the rule lists its alternatives, and its value is the likelier one.

No value is a fitted number: all are whole or yes/no, and none is changed until a case agrees. A policy belongs to one
family of targets and one compiler version, and to this program's text.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any

from jaxcost.contracts.errors import Problem, RejectedError

SCHEMA = "jaxcost.peak.v1"
# The record of a family, and apart from it that of serving where it has one of its own.
FILES = {"cuda": "cuda-jax0.10.toml", "cuda serving": "cuda-jax0.10-serving.toml", "tpu": "tpu-jax0.10.toml"}
FAMILIES = ("cuda", "tpu")
_REMEDY = "correct the policy record"
_TABLE = {"schema": str, "name": str, "family": str, "compiler": str, "read_from": str, "rules": list}
_RULE = {"id": str, "value": (bool, int), "alternatives": list, "reason": str, "evidence": list}
_EVIDENCE = {"case": str, "module": str, "seen": str}

Value = bool | int


@dataclass(frozen=True, slots=True)
class Evidence:
    """A development case: its command, the start of its module's SHA-256, and what was seen in it."""

    case: str
    module: str
    seen: str = ""


@dataclass(frozen=True, slots=True)
class Rule:
    """One habit: `value` is the likelier of `alternatives` (which hold it), or the only one."""

    id: str
    value: Value
    alternatives: tuple[Value, ...]
    reason: str
    evidence: tuple[Evidence, ...]

    @property
    def low(self) -> int:
        """The smallest alternative; no is 0, yes is 1."""
        return int(min(self.alternatives))

    @property
    def high(self) -> int:
        """The largest alternative."""
        return int(max(self.alternatives))


@dataclass(frozen=True)
class Policy:
    """The rules of one family and compiler version, by id."""

    name: str
    family: str
    compiler: str
    read_from: str
    rules: Mapping[str, Rule]

    def rule(self, identity: str) -> Rule:
        """Return a rule.

        Raises:
            KeyError: the code asks for a rule that the record does not have.
        """
        return self.rules[identity]

    def yes(self, identity: str) -> bool:
        """Return whether the likelier value of a rule is yes (or not zero)."""
        return bool(self.rules[identity].value)


def parse_policy(text: str, path: str = "policy") -> Policy:
    """Return the policy a TOML text holds.

    Raises:
        RejectedError: with every unknown, missing or wrong key, a rule given twice, and a value among no alternatives.
    """
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise RejectedError([Problem(path, str(error), "must be TOML", _REMEDY)]) from error
    problems = list(_keys(data, _TABLE, path, optional=()))
    if data.get("schema") != SCHEMA:
        problems.append(Problem(f"{path}.schema", data.get("schema"), f"must be {SCHEMA}", _REMEDY))
    if data.get("family") not in FAMILIES:
        problems.append(Problem(f"{path}.family", data.get("family"), f"must be one of {', '.join(FAMILIES)}", _REMEDY))
    rules: dict[str, Rule] = {}
    for number, item in enumerate(data["rules"] if isinstance(data.get("rules"), list) else ()):
        place = f"{path}.rules.{number}"
        found = list(_rule_problems(item, place))
        if not found and item["id"] in rules:
            found.append(Problem(f"{place}.id", item["id"], "the rule is given twice", _REMEDY))
        problems += found
        if not found:
            seen = tuple(Evidence(**entry) for entry in item["evidence"])
            alternatives = tuple(item.get("alternatives", [item["value"]]))
            rules[item["id"]] = Rule(item["id"], item["value"], alternatives, item["reason"], seen)
    if problems:
        raise RejectedError(problems)
    return Policy(data["name"], data["family"], data["compiler"], data["read_from"], rules)


def _keys(table: object, known: Mapping[str, Any], path: str, optional: Iterable[str]) -> Iterable[Problem]:
    if not isinstance(table, dict):
        yield Problem(path, type(table).__name__, "a table is expected", _REMEDY)
        return
    for name in table:
        if name not in known:
            yield Problem(f"{path}.{name}", table[name], f"the keys are {', '.join(known)}", _REMEDY)
    for name, kind in known.items():
        if name not in table:
            if name not in optional:
                yield Problem(f"{path}.{name}", None, "the key is missing", _REMEDY)
        elif not isinstance(table[name], kind):
            yield Problem(f"{path}.{name}", table[name], "a value of another type is expected", _REMEDY)


def _rule_problems(item: object, path: str) -> Iterable[Problem]:
    found = list(_keys(item, _RULE, path, optional=("alternatives",)))
    if found:
        yield from found
        return
    assert isinstance(item, dict)
    value, alternatives = item["value"], item.get("alternatives", [item["value"]])
    for other in (value, *alternatives):
        if type(other) is not type(value) or other < 0:
            yield Problem(f"{path}.value", other, "values are all yes or no, or all whole numbers from 0 on", _REMEDY)
    if value not in alternatives or len(set(alternatives)) != len(alternatives):
        rule = "the alternatives differ and hold the value"
        yield Problem(f"{path}.alternatives", alternatives, rule, _REMEDY)
    if not item["reason"].strip() or not item["evidence"]:
        yield Problem(f"{path}.evidence", item["evidence"], "a rule has a reason and cases it was read from", _REMEDY)
    for number, entry in enumerate(item["evidence"]):
        yield from _keys(entry, _EVIDENCE, f"{path}.evidence.{number}", optional=("seen",))


@lru_cache(maxsize=4)
def policy_for(family: str, phase: str = "training") -> Policy | None:
    """Return the packaged policy of a family of targets and phase, None where there is none (CPU).

    Raises:
        RejectedError: the record is broken.
    """
    name = FILES.get(f"{family} serving", FILES.get(family)) if phase != "training" else FILES.get(family)
    if name is None:
        return None
    text = resources.files(__package__).joinpath("policies", name).read_text(encoding="utf-8")
    return parse_policy(text, name)
