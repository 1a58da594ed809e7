"""The gates as a run of `jaxcost verify`: which cases they are held over, the document's body, the exit code."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from jaxcost.verify.gates import run_gates
from jaxcost.verify.gates.common import GateResult, Subject, subject
from jaxcost.verify.gates.sections import SECTIONS
from jaxcost.verify.gates.subjects import catalogue
from jaxcost.verify.request import VerifyRequest


@dataclass(frozen=True)
class GatesOutcome:
    """What came of every line, over the cases named."""

    gates: tuple[GateResult, ...]
    cases: tuple[str, ...]
    seconds: float

    @property
    def exit_code(self) -> int:
        """0, or 1 where a line is broken."""
        return int(any(gate.status == "broken" for gate in self.gates))

    def to_dict(self) -> dict[str, Any]:
        """Return the body of the document `jaxcost.verify.v1`."""
        return {
            "status": "open" if self.exit_code else "exact",
            "reports": [],
            "unavailable": [],
            "claims": [],
            "seconds": round(self.seconds, 1),
            "calibration_seconds": None,
            "calibration_reason": "nothing was compiled in this run",
            "gates": [{**gate.to_dict(), "title": SECTIONS[gate.sentence.section][0]} for gate in self.gates],
            "gate_cases": list(self.cases),
        }


def hold_gates(request: VerifyRequest) -> GatesOutcome:
    """Run every gate over the cases asked for: one case of each model named, or all phases where no case is given.

    Raises:
        RejectedError: a model or a case breaks its contract.
    """
    started, seen = time.monotonic(), list[str]()

    def said(name: str) -> None:
        seen.append(name)
        request.progress(f"[{len(seen)}] {name}")

    found = run_gates(_subjects(request), progress=said)
    return GatesOutcome(tuple(found), tuple(seen), time.monotonic() - started)


def _subjects(request: VerifyRequest) -> Iterator[Subject]:
    if not request.case_options and request.case_file is None:
        yield from catalogue(request.models or None)
        return
    from jaxcost.verify.command import cases_of

    for name, case in cases_of(request):
        yield subject(name, case)
