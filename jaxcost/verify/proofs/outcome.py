"""The proofs as a run of `jaxcost verify`: the document's body and the exit code."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from jaxcost.verify.proofs import run_proofs
from jaxcost.verify.proofs.prove import Proved
from jaxcost.verify.request import VerifyRequest


@dataclass(frozen=True)
class ProofsOutcome:
    """What came of all proofs."""

    proofs: tuple[Proved, ...]
    seconds: float

    @property
    def failed(self) -> bool:
        """Whether a proof does not hold."""
        return any(proved.status == "fails" for proved in self.proofs)

    @property
    def exit_code(self) -> int:
        """0, or 1 where a proof does not hold."""
        return int(self.failed)

    def to_dict(self) -> dict[str, Any]:
        """Return the body of the document `jaxcost.verify.v1`."""
        return {
            "status": "open" if self.failed else "exact",
            "reports": [],
            "unavailable": [],
            "claims": [],
            "seconds": round(self.seconds, 1),
            "calibration_seconds": None,
            "calibration_reason": "nothing was compiled in this run",
            "proofs": [proved.to_dict() for proved in self.proofs],
        }


def prove_all(request: VerifyRequest) -> ProofsOutcome:
    """Carry out every proof, saying which is at work."""
    started = time.monotonic()
    return ProofsOutcome(run_proofs(request.progress), time.monotonic() - started)
