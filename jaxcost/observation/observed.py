"""The result of an observation: one JSON document and a few questions it answers.

Everything under `hlo`, `memory` and `collectives` is per device; `parameters` and `jaxpr` are global. Counts and bytes
are integers; an unknown is None with a reason beside it.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jaxcost.contracts.errors import Problem, RejectedError

SCHEMA = "jaxcost.observed.v1"
STATUSES = ("observed", "refused", "failed")
SECTIONS = ("parameters", "state", "jaxpr", "hlo", "memory", "collectives", "compiler", "rematerialisation")
_REMEDY = "take the document from Observed.to_dict() or from `jaxcost verify --record`"


@dataclass(frozen=True)
class Observed:
    """What was seen of one case on one target. `data` is the document; treat it as read-only.

    `status`: `observed`; `refused` by the compiler, in which case the sections describe the program it refused; or
    `failed`, in which case the sections are None and `reason` says why.
    """

    data: Mapping[str, Any]

    @classmethod
    def from_dict(cls, data: object) -> Observed:
        """Return the observation a document holds.

        Raises:
            RejectedError: it is no such document, or claims compiled evidence without target, versions, flags or the
                module's digest.
        """
        problems = list(_problems(data))
        if problems:
            raise RejectedError(problems)
        assert isinstance(data, dict)
        return cls(copy.deepcopy(data))

    def to_dict(self) -> dict[str, Any]:
        """Return a copy of the document."""
        return copy.deepcopy(dict(self.data))

    @property
    def status(self) -> str:
        """`observed`, `refused` or `failed`."""
        return str(self.data["status"])

    @property
    def reason(self) -> str:
        """Why the status is not `observed`; empty where it is."""
        return str(self.data["reason"])

    @property
    def target(self) -> str:
        """The target's text."""
        return str(self.data["target"]["text"])

    @property
    def case_digest(self) -> str:
        """The digest of the case observed."""
        return str(self.data["case_digest"])

    @property
    def memory(self) -> Mapping[str, Any]:
        """Bytes on one device; empty where nothing was compiled."""
        return self.data["memory"] or {}

    @property
    def parameters(self) -> Mapping[str, Any]:
        """Parameter entries and totals; empty where the observation failed."""
        return self.data["parameters"] or {}

    @property
    def flops(self) -> int | None:
        """Contraction FLOPs of one device, trip counts included; None where a loop's count is unknown."""
        section = self.data["hlo"]
        return None if section is None or section["flops"] is None else int(section["flops"])

    def flops_by(self, scope: str = "", phase: str = "", *, witness: str = "hlo") -> int | None:
        """Return the FLOPs below `scope` in `phase`; an empty argument means all.

        Args:
            scope: a component scope, its children included: `group0/attn` holds `group0/attn/q_proj`.
            phase: `forward`, `backward`, `replay` or `optimizer`.
            witness: `hlo` (one device) or `jaxpr` (all devices).
        """
        section = self.data[witness]
        if section is None or section["flops"] is None:
            return None
        return sum(
            int(row["flops"])
            for row in section["by_scope_phase"]
            if (not phase or row["phase"] == phase)
            and (not scope or row["scope"] == scope or row["scope"].startswith(scope + "/"))
        )


def _problems(data: object) -> list[Problem]:
    if not isinstance(data, dict):
        return [Problem("observed", type(data).__name__, "an object (table) is expected", _REMEDY)]
    if data.get("schema") != SCHEMA:
        return [Problem("observed.schema", data.get("schema"), f"must be {SCHEMA}", _REMEDY)]
    problems = []
    status = data.get("status")
    if status not in STATUSES:
        problems.append(Problem("observed.status", status, f"must be one of {', '.join(STATUSES)}", _REMEDY))
    for name in ("reason", "evidence_class", "origin", "case", "case_digest", "target", "environment", *SECTIONS):
        if name not in data:
            problems.append(Problem(f"observed.{name}", None, "the key is missing", _REMEDY))
    for name in ("case", "target"):
        if name in data and not isinstance(data[name], dict):
            problems.append(Problem(f"observed.{name}", type(data[name]).__name__, "an object is expected", _REMEDY))
    if data.get("evidence_class") == "compiled":
        environment = data.get("environment")
        environment = environment if isinstance(environment, dict) else {}
        for name in ("versions", "flags", "module_digest"):
            if environment.get(name) is None or (name != "flags" and not environment[name]):
                rule, remedy = f"evidence of class compiled needs {name}", "give it, or claim the class unmeasured"
                problems.append(Problem(f"observed.environment.{name}", None, rule, remedy))
    for name in SECTIONS:
        if name not in data or (data[name] is None and status != "observed"):
            continue
        if not isinstance(data[name], dict):
            kind = type(data[name]).__name__
            problems.append(Problem(f"observed.{name}", kind, "the section is empty or misshapen", _REMEDY))
    return problems
